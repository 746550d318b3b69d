"""What both users of the kernels share: memory that grows only, and labels that stay on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import between_elements, whole_elements
from ..batch import Batch
from ..errors import EngineUnsupported, InvalidInput
from .device_batch import DeviceBatch

__all__ = [
    "INPUT_LENGTHS",
    "LABEL_LENGTHS",
    "TOO_LONG",
    "DeviceMemory",
    "Statuses",
    "addresses",
    "bad_labels",
    "capturing",
    "check_labels",
    "classes_side_by_side",
    "lay_side_by_side",
    "point_to",
    "reduce_as",
]

DEVICE_TO_HOST = 2  # of cudaMemcpyKind
#: Of Problem.status, as in types.cuh.
BAD_LABELS, TOO_LONG = 2, 8
LABELS, LABEL_LENGTHS, INPUT_LENGTHS = 1, 2, 4  # bits of Problem.wide
#: Problem.weighing of each reduction.
WEIGHING = {"none": 0, "sum": 0, "batch_mean": 2, "label_mean": 3}


class DeviceMemory:
    """Device memory from CuPy's pool that grows only. What a captured graph may still use is kept beside what took its
    place; what is given back the pool hands out again in the order of the stream that it was taken on."""

    def __init__(self, cupy: Any, engine: str) -> None:
        self._cupy = cupy
        self._engine = engine
        self._memory: Any = None
        self._size = 0
        self._captured = False
        self._kept: list[Any] = []

    def of(self, size: int, capturing: bool) -> int:
        """The address of at least `size` bytes, and of at least one."""
        if size > self._size or self._memory is None:
            if capturing:
                raise EngineUnsupported(
                    f"engine {self._engine!r} needs {size} bytes of workspace and has {self._size}, and none can be "
                    "allocated while a graph is captured: call it once with the same shapes before the capture"
                )
            if self._captured:
                self._kept.append(self._memory)
            self._memory, self._size, self._captured = None, 0, False
            self._memory = self._cupy.cuda.alloc(max(size, 1))
            self._size = size
        self._captured |= capturing
        return int(self._memory.ptr)

    @property
    def captured(self) -> bool:
        """Whether a graph may use any of it."""
        return self._captured or bool(self._kept)


def classes_side_by_side(x: Any) -> bool:
    """Whether the kernels can read x (T, N, C) where it lies."""
    if not x.size:
        return True
    return not between_elements(x) and (x.strides[2] == x.itemsize or x.shape[2] == 1)


def lay_side_by_side(x: Any) -> Any:
    """A copy of x that they can read."""
    whole = whole_elements(x)
    return x.copy() if whole is x else whole


def capturing(cupy: Any) -> bool:
    """Whether the current stream is being captured into a graph."""
    return bool(cupy.cuda.get_current_stream().is_capturing())


def point_to(problem: dict[str, int], batch: DeviceBatch) -> None:
    """Labels and lengths, into a `Problem`."""
    given = (
        ("labels", batch.device_labels, LABELS),
        ("label_lengths", batch.device_label_lengths, LABEL_LENGTHS),
        ("input_lengths", batch.device_input_lengths, INPUT_LENGTHS),
    )
    wide = 0
    for name, array, bit in given:
        if array is not None:
            problem[name] = array.data.ptr
            wide |= bit * (array.itemsize == 8)
    labels = batch.device_labels
    problem["wide"] = wide
    problem["label_width"] = labels.shape[1] if labels.ndim == 2 else -1
    problem["label_total"] = labels.size


def reduce_as(problem: dict[str, int], batch: Batch) -> None:
    """What samples count, and what becomes of infinite losses, into a `Problem`."""
    problem["weighing"] = WEIGHING[batch.reduction]
    problem["zeroing"] = batch.zero_infinity


def addresses(x: Any, losses: Any | None, grad: Any | None, reduced: Any | None) -> dict[str, int]:
    """Those of the arrays that there are, by the names in `Problem`."""
    arrays = {"logits": x, "losses": losses, "grad": grad, "reduced": reduced}
    return {name: array.data.ptr for name, array in arrays.items() if array is not None}


class Statuses:
    """What kernels find out about each sample, on its way to the host: work that follows need not wait for it."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._room: Any = None
        self._count = self._asked = 0
        self._there: Any = None

    def ask(self, address: int, count: int) -> None:
        """As the current stream will have them when it has come here."""
        cuda = self._cupy.cuda
        if self._room is None or count > self._count:
            if self._there is not None:  # Ctrl-C may have come before the wait, and the copy is yet to come
                self._there.synchronize()
            # pageable memory would have the copy, and so the host, wait at once
            self._room, self._count = cuda.alloc_pinned_memory(max(4 * count, 1)), count
            self._there = cuda.Event(disable_timing=True)
        stream = cuda.get_current_stream()
        cuda.runtime.memcpyAsync(self._room.ptr, address, 4 * count, DEVICE_TO_HOST, stream.ptr)
        self._there.record(stream)
        self._asked = count

    def wait(self) -> Any:
        """(N,) int32, when they are there."""
        self._there.synchronize()
        return np.frombuffer(self._room, np.int32, self._asked)


def bad_labels(status: Any) -> Any:
    """(N,) bool: which samples have labels or lengths out of range."""
    return status == BAD_LABELS


def check_labels(batch: DeviceBatch, status: Any) -> None:
    """Raises the InvalidInput that labels or lengths out of range deserve; only then are they copied to the host."""
    bad = bad_labels(status)
    if bad.any():
        batch.check()
        sample = int(np.argmax(bad))
        raise InvalidInput(
            f"the labels or lengths of sample {sample} are out of range", rule="label_range", sample=sample
        )
