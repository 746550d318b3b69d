"""What the native functions beside the loss have in common: one sample at a time, on the host, samples over threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import ArrayView, as_host
from ..batch import Batch
from ..bindings.native_rows import DTYPES, TOPOLOGIES, GraphArgs, RowsArgs
from ..threads import get_num_threads

__all__ = ["Scores", "each_sample", "graph_args", "in_kind", "on_host", "rows_args"]

#: Below this many lattice cells a thread costs more than it saves.
WORTH_A_THREAD = 50_000


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
    if view.device == "cpu":
        return array
    with view.array.device:
        return view.xp.asarray(array)


def rows_args(view: ArrayView, sample: int, frames: int) -> RowsArgs:
    t, n, c = view.strides
    at = view.array.ctypes.data + sample * n * view.array.itemsize
    return RowsArgs(at, t, c, frames, view.shape[2], DTYPES[view.dtype])


def graph_args(batch: Batch, sample: int, scores: Scores | None = None) -> GraphArgs:
    labels = batch.labels.ctypes.data + int(batch.starts[sample]) * batch.labels.itemsize
    graph = GraphArgs(
        rows_args(batch.logits, sample, int(batch.input_lengths[sample])),
        labels,
        int(batch.label_lengths[sample]),
        batch.blank,
        TOPOLOGIES[batch.topology],
    )
    if scores is None:
        return graph
    if scores.prior is not None:
        graph = graph._replace(prior=scores.prior.ctypes.data)
    if scores.bonus is not None:
        own = scores.bonus[sample]
        t, s = (stride // own.itemsize for stride in own.strides)
        graph = graph._replace(bonus=own.ctypes.data, bonus_t=t, bonus_s=s)
    return graph


def each_sample(batch: Batch, run: Callable[[int], Any]) -> list[Any]:
    """run(sample) for every sample, in order; over threads where there is work for them (C lets go of the GIL)."""
    threads = min(get_num_threads(), batch.N)
    cells = int((batch.input_lengths.astype(np.int64) * (2 * batch.label_lengths.astype(np.int64) + 1)).sum())
    if threads < 2 or cells < WORTH_A_THREAD:
        return [run(sample) for sample in range(batch.N)]
    from concurrent.futures import ThreadPoolExecutor  # not at import: it loads much of the standard library

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(batch.N)))
