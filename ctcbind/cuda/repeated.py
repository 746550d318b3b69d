"""Calls that are like one before them: nothing of them is found out again."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..batch import Batch
from .by_stream import PER_THREAD
from .common import addresses, capturing
from .device_batch import DeviceBatch
from .launch import DeviceState, Work

__all__ = ["Repeated"]

#: So many different calls are known at most.
MOST = 64

Key = tuple[Any, ...]


class Known(NamedTuple):
    """What a call came to; `rooms`: shape and dtype of losses, reduced loss and gradient, None for what it has not."""

    state: DeviceState
    work: Work
    rooms: tuple[tuple[tuple[int, ...], Any] | None, ...]


class Repeated:
    """Of batches whose values the host never reads (graph_safe), shapes, strides, dtypes, device and stream decide
    everything. Where a call before had the same, only addresses differ."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}
        self._cupy: Any = None

    def keep(self, cupy: Any, batch: Batch, results: tuple[Any, Any, Any], state: DeviceState, work: Work) -> None:
        """Such a call, once it is computed; `results` are losses, reduced loss and gradient in the caller's layout."""
        if not isinstance(batch, DeviceBatch) or not batch.graph_safe or batch.overwrite or batch.logits.back:
            return
        x = batch.logits.array if batch.logits.layout == "TNC" else batch.logits.array.transpose(1, 0, 2)
        integers = batch.device_labels, batch.device_input_lengths, batch.device_label_lengths
        self._cupy = cupy
        key = self._key((x, *integers), results[2] is not None)
        if key is None:
            return
        if len(self._known) >= MOST:
            self._known.clear()
        rooms = tuple(None if each is None else (each.shape, each.dtype) for each in results)
        self._known[key] = Known(state, work, rooms)

    def run(self, arrays: tuple[Any, Any, Any, Any], with_grad: bool) -> tuple[Any, Any] | None:
        """(losses or their reduction, gradient) of (logits, targets, input_lengths, target_lengths); None, with nothing
        done, where no call like it is known."""
        if not self._known:
            return None
        key, cupy = self._key(arrays, with_grad), self._cupy
        known = None if key is None else self._known.get(key)
        if known is None:
            return None
        x, labels, input_lengths, label_lengths = arrays
        losses, reduced, grad = (None if room is None else cupy.empty(*room) for room in known.rooms)
        at = addresses(x, losses, grad, reduced)
        at["labels"] = labels.data.ptr
        if input_lengths is not None:
            at["input_lengths"] = input_lengths.data.ptr
        if label_lengths is not None:
            at["label_lengths"] = label_lengths.data.ptr
        known.state.start(known.work, at, arrays[1:], captured=capturing(cupy))
        return losses if reduced is None else reduced, grad

    def _key(self, arrays: tuple[Any, ...], with_grad: bool) -> Key | None:
        """None for arrays that are not CuPy's or lie between elements, and where each thread has a stream of its own
        under one address."""
        cupy = self._cupy
        stream = cupy.cuda.get_current_stream().ptr
        if stream == PER_THREAD:
            return None
        parts = [with_grad, cupy.cuda.runtime.getDevice(), stream]
        for x in arrays:
            if x is None:
                parts.append(None)
            elif type(x) is cupy.ndarray and not x.data.ptr % x.itemsize:
                parts += x.shape, x.strides, x.dtype, x.device.id
            else:
                return None
        return tuple(parts)

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        self._known.clear()
