"""Calls that are like one before them: nothing of them is found out again."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..batch import Batch
from ..bindings.native_direct import Pack
from .by_stream import PER_THREAD
from .common import addresses, capturing, classes_side_by_side
from .device_batch import DeviceBatch
from .launch import DeviceState, Work

__all__ = ["Repeated"]

#: So many different calls are known at most.
MOST = 64

Key = tuple[Any, ...]


class Known(NamedTuple):
    """What a call came to. `checked`: whether its labels, on the device, were; `rooms`: shape and dtype of losses,
    reduced loss and gradient, None for what it has not."""

    state: DeviceState
    work: Work
    checked: bool
    rooms: tuple[tuple[tuple[int, ...], Any] | None, ...]


class Repeated:
    """What decides a call beside addresses: shapes, strides, dtypes, device, stream; with labels on the host those of
    the logits, and how many labels the longest sample has."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}
        #: The keys of logits that had labels on the host: to pack those of others would be for nothing.
        self._of_host: set[Key] = set()
        self._pack: Pack | None = None
        self._cupy: Any = None

    def pack_with(self, pack: Pack) -> None:
        """From now on labels and lengths may lie on the host."""
        self._pack = pack

    def keep(self, cupy: Any, batch: Batch, results: tuple[Any, Any, Any], state: DeviceState, work: Work) -> None:
        """Such a call, once it is computed; `results` are losses, reduced loss and gradient in the caller's layout."""
        if batch.overwrite or batch.logits.back or not classes_side_by_side(batch.logits.array):
            return
        x = batch.logits.array if batch.logits.layout == "TNC" else batch.logits.array.transpose(1, 0, 2)
        integers: tuple[Any, ...] = ()
        checked = False
        if isinstance(batch, DeviceBatch):
            integers = batch.device_labels, batch.device_input_lengths, batch.device_label_lengths
            checked = not batch.graph_safe
            if checked and (batch.device_labels.ndim != 2 or batch.longest != batch.device_labels.shape[1]):
                return  # values of the lengths were read
        self._cupy = cupy
        key = self._key((x, *integers), results[2] is not None)
        if key is None:
            return
        if len(self._known) >= MOST:
            self.clear()
        if not integers:
            self._of_host.add(key)
            key = (*key, batch.longest)
        rooms = tuple(None if each is None else (each.shape, each.dtype) for each in results)
        self._known[key] = Known(state, work, checked, rooms)

    def run(self, arrays: tuple[Any, Any, Any, Any], with_grad: bool) -> tuple[Any, Any] | None:
        """(losses or their reduction, gradient) of (logits, targets, input_lengths, target_lengths); None where no call
        like it is known, or its labels are wrong."""
        if not self._known:
            return None
        if type(arrays[1]) is not self._cupy.ndarray:
            return self._run_from_host(arrays, with_grad)
        key = self._key(arrays, with_grad)
        known = None if key is None else self._known.get(key)
        if known is None:
            return None
        captured = capturing(self._cupy)
        if captured and known.checked:
            return None
        x, labels, input_lengths, label_lengths = arrays
        at, found = self._results(known, x)
        at["labels"] = labels.data.ptr
        if input_lengths is not None:
            at["input_lengths"] = input_lengths.data.ptr
        if label_lengths is not None:
            at["label_lengths"] = label_lengths.data.ptr
        right = known.state.start(known.work, at, arrays[1:], captured=captured, checked=known.checked)
        return found if right else None

    def _run_from_host(self, arrays: tuple[Any, Any, Any, Any], with_grad: bool) -> tuple[Any, Any] | None:
        x, *integers = arrays
        key = self._key((x,), with_grad)
        if self._pack is None or key is None or key not in self._of_host or capturing(self._cupy):
            return None
        packed = self._pack(x.shape, *integers)
        if packed is None:
            return None
        staged, address, longest = packed
        known = self._known.get((*key, longest))
        if known is None:
            return None
        at, found = self._results(known, x)
        known.state.start_with(known.work, at, staged, address)
        return found

    def _results(self, known: Known, x: Any) -> tuple[dict[str, int], tuple[Any, Any]]:
        """Room for them, as addresses beside that of x and as what the caller gets."""
        losses, reduced, grad = (None if room is None else self._cupy.empty(*room) for room in known.rooms)
        return addresses(x, losses, grad, reduced), (losses if reduced is None else reduced, grad)

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
        self._of_host.clear()
