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
    "REAL",
    "WORTH_A_THREAD",
    "Scores",
    "as_dtype",
    "fields_of",
    "fields_out",
    "graphs_of",
    "in_kind",
    "on_host",
    "results",
    "rows_of",
    "threads_for",
]

#: The dtypes that results have.
REAL = {np.dtype(name): c.DTYPES[name] for name in ("float32", "float64")}

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


def as_dtype(array: npt.NDArray[np.float64], dtype: str) -> npt.NDArray[Any]:
    """What is past that dtype becomes infinite, as a loss does, without a warning. The array has no gaps."""
    if dtype == "float64":
        return array
    narrow = np.empty(array.shape, dtype=dtype)
    c.narrow(array, narrow)
    return narrow


def results(kind: str, structs: Any) -> npt.NDArray[np.void]:
    """The C structs as an array, in their memory."""
    return np.frombuffer(c.memory(structs), dtype=_dtype(kind))


@cache
def _dtype(kind: str) -> np.dtype[np.void]:
    return np.dtype(c.layout(kind))  # type: ignore[call-overload, no-any-return]


def rows_of(view: ArrayView, frames: npt.NDArray[np.int32]) -> Any:
    """The frames of each sample, for kernels to read: C structs."""
    rows = c.structs("ctcbind_rows", len(frames), fields_of(view))
    c.set_frames(rows, frames)
    return rows


def fields_of(view: ArrayView) -> dict[str, Any]:
    """Those of a `ctcbind_rows` that all samples have. Raises where there are no kernels that could read them, of the
    instruction set asked for."""
    if not c.any_kernels():
        ENGINE.library()
    T, _, C = view.shape
    t, _, step = view.strides
    data, dtype = view.array.transpose(1, 0, 2), c.DTYPES[view.dtype]
    return {"data": data, "stride_t": t, "stride_c": step, "T": T, "C": C, "dtype": dtype}


def fields_out(grad: npt.NDArray[Any]) -> dict[str, Any]:
    """Those of a `ctcbind_rows_out`: room for a result of the logits' shape, (T, N, C), of float32 or float64."""
    T, _, C = grad.shape
    t, _, step = (stride // grad.itemsize for stride in grad.strides)
    data, dtype = grad.transpose(1, 0, 2), REAL[grad.dtype]
    return {"data": data, "stride_t": t, "stride_c": step, "T": T, "C": C, "dtype": dtype}


def graphs_of(batch: Batch, scores: Scores | None = None) -> Any:
    """The lattice of each sample: C structs."""
    topology = c.TOPOLOGIES[batch.topology]
    fields: dict[str, Any] = {"rows": fields_of(batch.logits), "blank": batch.blank, "topology": topology}
    if scores is not None and scores.prior is not None:
        fields["prior"] = np.broadcast_to(scores.prior, (batch.N, batch.C))
    if scores is not None and scores.bonus is not None:
        bonus = fields["bonus"] = scores.bonus
        fields["bonus_t"], fields["bonus_s"] = (stride // bonus.itemsize for stride in bonus.strides[1:])
    graphs = c.structs("ctcbind_graph", batch.N, fields)
    c.set_labels(graphs, batch.labels, batch.label_lengths, batch.input_lengths)
    return graphs


def threads_for(values: int) -> int:
    """How many threads so many values, of a lattice or of the logits, are worth."""
    return get_num_threads() if values >= WORTH_A_THREAD else 1
