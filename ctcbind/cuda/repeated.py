"""Calls that are like one before them: nothing of them is found out again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..batch import Batch
from ..bindings.native_direct import Packer
from .by_stream import PER_THREAD
from .common import addresses, capturing, classes_side_by_side
from .device_batch import DeviceBatch
from .launch import DeviceState, Work

__all__ = ["Repeated"]

#: So many different calls are known at most.
MOST = 64

Key = tuple[Any, ...]

#: In a key, in the place of lengths.
ON_HOST = "on the host"


class Known(NamedTuple):
    """What a call came to. `checked`: whether its labels, on the device, were; `rooms`: shape and dtype of losses,
    reduced loss and gradient, None for what it has not."""

    state: DeviceState
    work: Work
    checked: bool
    rooms: tuple[tuple[tuple[int, ...], Any] | None, ...]


class Repeated:
    """What decides a call beside addresses: shapes, strides, dtypes, device and stream of what is on the device, and
    with labels or lengths on the host how many labels the longest sample has."""

    def __init__(self) -> None:
        self._known: dict[Key, Known] = {}
        #: The keys, less that number, of calls with anything on the host: to pack that of others would be for nothing.
        self._of_host: set[Key] = set()
        self._packer: Packer | None = None
        self._cupy: Any = None

    def pack_with(self, packer: Packer) -> None:
        """From now on labels and lengths may lie on the host."""
        self._packer = packer

    def keep(self, cupy: Any, batch: Batch, results: tuple[Any, Any, Any], state: DeviceState, work: Work) -> None:
        """Such a call, once it is computed; `results` are losses, reduced loss and gradient in the caller's layout."""
        if batch.overwrite or batch.logits.back or not classes_side_by_side(batch.logits.array):
            return
        arrays = [batch.logits.array if batch.logits.layout == "TNC" else batch.logits.array.transpose(1, 0, 2)]
        on_host, checked = True, False
        if isinstance(batch, DeviceBatch):
            on_host, checked = any(batch.copied_lengths), not batch.graph_safe
            if checked and batch.device_labels.ndim == 1 and not batch.copied_lengths[1]:
                return  # the longest has been read from the lengths
            lengths = batch.device_input_lengths, batch.device_label_lengths
            copied = zip(lengths, batch.copied_lengths)
            arrays += batch.device_labels, *(ON_HOST if was else each for each, was in copied)
        self._cupy = cupy
        key = self._key(arrays, results[2] is not None)
        if key is None:
            return
        if len(self._known) >= MOST:
            self.clear()
        if on_host:
            self._of_host.add(key)
            key = (*key, batch.longest)
        rooms = tuple(None if each is None else (each.shape, each.dtype) for each in results)
        self._known[key] = Known(state, work, checked, rooms)

    def run(self, arrays: tuple[Any, Any, Any, Any], with_grad: bool) -> tuple[Any, Any] | None:
        """(losses or their reduction, gradient) of (logits, targets, input_lengths, target_lengths); None where no call
        like it is known, or its labels are wrong."""
        if not self._known:
            return None
        x, labels, frames, counts = arrays
        kind = self._cupy.ndarray
        if type(labels) is not kind:
            return self._run_from_host(arrays, with_grad)
        copied = frames is not None and type(frames) is not kind, counts is not None and type(counts) is not kind
        if any(copied):
            return self._run_with_lengths(arrays, copied, with_grad)
        key = self._key(arrays, with_grad)
        known = None if key is None else self._find(key)
        captured = capturing(self._cupy)
        if known is None or (captured and known.checked):
            return None
        at, found = self._results(known, x)
        _point_at(at, labels, frames, counts)
        right = known.state.start(known.work, at, arrays[1:], captured=captured, checked=known.checked)
        return found if right else None

    def _run_with_lengths(
        self, arrays: tuple[Any, Any, Any, Any], copied: tuple[bool, bool], with_grad: bool
    ) -> tuple[Any, Any] | None:
        """The same where input lengths or label lengths are on the host, to be `copied`."""
        x, labels, *lengths = arrays
        there = [ON_HOST if was else each for each, was in zip(lengths, copied)]
        key = self._key((x, labels, *there), with_grad)
        if self._packer is None or key is None or key not in self._of_host or capturing(self._cupy):
            return None
        given = [each if was else None for each, was in zip(lengths, copied)]
        packed = self._packer.lengths(x.shape, labels.shape[-1], *given)
        known = None if packed is None else self._find((*key, packed[2]))
        if packed is None or known is None:
            return None
        at, found = self._results(known, x)
        _point_at(at, labels, *(None if was else each for each, was in zip(lengths, copied)))
        sent = packed, copied
        right = known.state.start(known.work, at, (labels, *there), captured=False, checked=True, copied=sent)
        return found if right else None

    def _run_from_host(self, arrays: tuple[Any, Any, Any, Any], with_grad: bool) -> tuple[Any, Any] | None:
        x, *integers = arrays
        key = self._key((x,), with_grad)
        if self._packer is None or key is None or key not in self._of_host or capturing(self._cupy):
            return None
        packed = self._packer.pack(x.shape, *integers)
        known = None if packed is None else self._find((*key, packed[2]))
        if packed is None or known is None:
            return None
        at, found = self._results(known, x)
        known.state.start_with(known.work, at, packed)
        return found

    def _find(self, key: Key) -> Known | None:
        """None, too, where the stream is another that has the address of the one before."""
        known = self._known.get(key)
        return None if known is None or known.state.is_left() else known

    def _results(self, known: Known, x: Any) -> tuple[dict[str, int], tuple[Any, Any]]:
        """Room for them, as addresses beside that of x and as what the caller gets."""
        losses, reduced, grad = (None if room is None else self._cupy.empty(*room) for room in known.rooms)
        return addresses(x, losses, grad, reduced), (losses if reduced is None else reduced, grad)

    def _key(self, arrays: Sequence[Any], with_grad: bool) -> Key | None:
        """None for arrays that are not CuPy's or lie between elements, and where each thread has a stream of its own
        under one address."""
        cupy = self._cupy
        stream = cupy.cuda.get_current_stream().ptr
        if stream == PER_THREAD:
            return None
        parts = [with_grad, cupy.cuda.runtime.getDevice(), stream]
        for x in arrays:
            if x is None or x is ON_HOST:
                parts.append(x)
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


def _point_at(at: dict[str, int], labels: Any, input_lengths: Any, label_lengths: Any) -> None:
    """The addresses of those that there are, by the names in `Problem`, into `at`."""
    at["labels"] = labels.data.ptr
    if input_lengths is not None:
        at["input_lengths"] = input_lengths.data.ptr
    if label_lengths is not None:
        at["label_lengths"] = label_lengths.data.ptr
