"""What the native functions beside the loss have in common: one sample at a time, on the host, samples over threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import ArrayView, as_host
from ..batch import Batch
from ..bindings.native_rows import DTYPES, TOPOLOGIES, GraphArgs, RowsArgs
from ..threads import get_num_threads

__all__ = ["Scores", "as_dtype", "each_sample", "graphs_of", "in_kind", "on_host", "rows_of"]

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
    if view.device != "cpu":
        with view.array.device:
            array = view.xp.asarray(array)
    return array if view.back is None else view.back(array)


def as_dtype(array: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    """What is past that dtype becomes infinite, as a loss does, without a warning."""
    with np.errstate(over="ignore"):
        return array.astype(dtype, copy=False)


def rows_of(view: ArrayView, frames: Sequence[int]) -> Callable[[int], RowsArgs]:
    """The frames of any sample; what all samples have in common is asked of the array once."""
    t, n, c = view.strides
    first, step = view.array.ctypes.data, n * view.array.itemsize
    C, dtype = view.shape[2], DTYPES[view.dtype]
    return lambda sample: RowsArgs(first + sample * step, t, c, frames[sample], C, dtype)


def graphs_of(batch: Batch, scores: Scores | None = None) -> Callable[[int], GraphArgs]:
    """The lattice of any sample."""
    rows = rows_of(batch.logits, batch.input_lengths.tolist())
    first, counts = batch.labels.ctypes.data, batch.label_lengths.tolist()
    starts = [first + 4 * start for start in accumulate(counts, initial=0)]
    blank, topology = batch.blank, TOPOLOGIES[batch.topology]

    def plain(sample: int) -> GraphArgs:
        return GraphArgs(rows(sample), starts[sample], counts[sample], blank, topology)

    def scored(sample: int) -> GraphArgs:
        graph = plain(sample)
        if scores is not None and scores.prior is not None:
            graph = graph._replace(prior=scores.prior.ctypes.data)
        if scores is not None and scores.bonus is not None:
            own = scores.bonus[sample]
            t, s = (stride // own.itemsize for stride in own.strides)
            graph = graph._replace(bonus=own.ctypes.data, bonus_t=t, bonus_s=s)
        return graph

    return plain if scores is None else scored


def each_sample(batch: Batch, run: Callable[[int], Any]) -> list[Any]:
    """run(sample) for every sample, in order; over threads where there is work for them (C lets go of the GIL)."""
    threads = min(get_num_threads(), batch.N)
    frames, labels = batch.input_lengths.tolist(), batch.label_lengths.tolist()
    if threads < 2 or sum(T * (2 * L + 1) for T, L in zip(frames, labels, strict=True)) < WORTH_A_THREAD:
        return [run(sample) for sample in range(batch.N)]
    from concurrent.futures import ThreadPoolExecutor  # not at import: it loads much of the standard library

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(batch.N)))
