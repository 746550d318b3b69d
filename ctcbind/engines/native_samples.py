"""What the native functions beside the loss have in common: the samples of a batch as C structs, on the host."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import ArrayView, as_host
from ..batch import Batch
from ..bindings import native_rows as c
from ..threads import get_num_threads
from .native import ENGINE

__all__ = [
    "Scores",
    "addresses",
    "as_dtype",
    "graphs_of",
    "in_kind",
    "on_host",
    "rows_of",
    "rows_out",
    "structs",
    "threads_for",
]

Structs = npt.NDArray[np.void]

#: Of fewer values a thread costs more than it saves.
WORTH_A_THREAD = 15_000


@dataclass(frozen=True)
class Scores:
    """What is added to the lattice: `prior` (C,) float64 is taken from each class's ln y, its weight in it already;
    `bonus` (N, T, S) float64, any strides, is added to each state at each frame."""

    prior: npt.NDArray[np.float64] | None = None
    bonus: npt.NDArray[np.float64] | None = None


def on_host(batch: Batch) -> Batch:
    """The batch with its logits in host memory; those of a GPU are copied, which waits for the device."""
    view = batch.logits
    if view.device == "cpu":
        return batch
    return replace(batch, logits=ArrayView(as_host(view.array), view.dtype, "cpu", view.layout))


def in_kind(view: ArrayView, array: npt.NDArray[Any]) -> Any:
    """A host array as one of the caller's kind, on the caller's device."""
    if view.device != "cpu":
        with view.array.device:
            array = view.xp.asarray(array)
    return array if view.back is None else view.back(array)


def as_dtype(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """What is past that dtype becomes infinite, as a loss does, without a warning."""
    if array.dtype == dtype:
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def structs(kind: str, count: int) -> Structs:
    """Room for the C structs of so many samples, all zeros."""
    return np.zeros(count, dtype=_dtype(kind))


@cache
def _dtype(kind: str) -> np.dtype[np.void]:
    return np.dtype(c.layout(kind))  # type: ignore[call-overload, no-any-return]


def addresses(array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where each sample's own part of an array begins."""
    return _in_steps(array.ctypes.data, array.strides[0], len(array))


def _in_steps(first: int, step: int, count: int) -> npt.NDArray[np.int64]:
    if not step:
        return np.full(count, first, dtype=np.int64)
    # NumPy 1 counts in 32 bits on Windows, unless it is told otherwise
    return np.arange(first, first + count * step, step, dtype=np.int64)


def rows_of(view: ArrayView, frames: npt.NDArray[np.int32]) -> Structs:
    """The frames of each sample, for kernels to read. Raises where there are none for the instruction set asked for."""
    rows = structs("ctcbind_rows", len(frames))
    _describe(rows, view, frames)
    return rows


def _describe(rows: Structs, view: ArrayView, frames: npt.NDArray[np.int32]) -> None:
    ENGINE.library()
    t, n, step = view.strides
    rows["data"] = _in_steps(view.array.ctypes.data, n * view.array.itemsize, len(frames))
    rows["stride_t"], rows["stride_c"] = t, step
    rows["T"], rows["C"], rows["dtype"] = frames, view.shape[2], c.DTYPES[view.dtype]


def rows_out(grad: npt.NDArray[Any]) -> Structs:
    """Room for a result of the logits' shape, (T, N, C), of float32 or float64."""
    T, N, C = grad.shape
    rows = structs("ctcbind_rows_out", N)
    rows["data"] = addresses(grad.transpose(1, 0, 2))
    rows["stride_t"], rows["stride_c"] = grad.strides[0] // grad.itemsize, grad.strides[2] // grad.itemsize
    rows["T"], rows["C"], rows["dtype"] = T, C, c.DTYPES[grad.dtype.name]
    return rows


def graphs_of(batch: Batch, scores: Scores | None = None) -> Structs:
    """The lattice of each sample."""
    graphs = structs("ctcbind_graph", batch.N)
    lengths = batch.label_lengths
    _describe(graphs["rows"], batch.logits, batch.input_lengths)
    graphs["labels"] = batch.labels.ctypes.data + batch.labels.itemsize * batch.starts[:-1]
    graphs["L"], graphs["blank"], graphs["topology"] = lengths, batch.blank, c.TOPOLOGIES[batch.topology]
    if scores is not None and scores.prior is not None:
        graphs["prior"] = scores.prior.ctypes.data
    if scores is not None and scores.bonus is not None:
        bonus = scores.bonus
        graphs["bonus"] = addresses(bonus)
        graphs["bonus_t"], graphs["bonus_s"] = (stride // bonus.itemsize for stride in bonus.strides[1:])
    return graphs


def threads_for(values: int) -> int:
    """How many threads so many values, of a lattice or of the logits, are worth."""
    return get_num_threads() if values >= WORTH_A_THREAD else 1
