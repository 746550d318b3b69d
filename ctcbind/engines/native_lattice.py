"""Lattice, alignment and second derivatives by csrc/lattice.c, align.c and second_order.c. Batches on the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import ArrayView
from ..batch import Batch
from ..bindings import native_lattice as c
from .native_samples import Scores, each_sample, graph_args, rows_args

__all__ = ["Paths", "Trellis", "align", "gradient", "hessian", "hvp", "trellis"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


class Trellis(NamedTuple):
    """float64 of (N, T, S), -inf past a sample's own frames and states; `log_z` (N,)."""

    log_alpha: Floats
    log_beta: Floats
    log_gamma: Floats
    log_z: Floats


class Paths(NamedTuple):
    """`states` (N, T), `starts`, `ends` and `scores` (N, L), `log_p` (N,)."""

    states: Ints
    starts: Ints
    ends: Ints
    scores: Floats
    log_p: Floats


def states_of(batch: Batch) -> int:
    return 2 * int(batch.label_lengths.max(initial=0)) + 1


def trellis(batch: Batch, scores: Scores | None = None, *, only_gamma: bool = False) -> Trellis:
    """The lattice; with `only_gamma`, alpha and beta are empty."""
    shape = (batch.N, batch.T, states_of(batch))
    gamma = np.full(shape, -np.inf)
    alpha, beta = (np.full((0, 0, 0) if only_gamma else shape, -np.inf) for _ in range(2))

    def run(n: int) -> float:
        graph = graph_args(batch, n, scores)
        own = {"gamma": gamma[n].ctypes.data}
        if not only_gamma:
            own |= {"alpha": alpha[n].ctypes.data, "beta": beta[n].ctypes.data}
        log_z = c.lattice(graph, stride=shape[2], **own)
        if log_z is None:
            for each in (gamma,) if only_gamma else (alpha, beta, gamma):
                each[n, : graph.rows.T, : 2 * graph.L + 1] = np.nan
            return np.nan
        return log_z

    log_z = np.array(each_sample(batch, run), dtype=np.float64)
    return Trellis(alpha, beta, gamma, log_z)


def gradient(batch: Batch, scores: Scores, grad: Any, bonus_grad: Floats | None) -> tuple[Floats, Floats]:
    """(ln of each sample's sum over paths (N,), expected counts of each class (N, C)).

    Writes d loss / d logits into `grad` (T, N, C) and the occupancies, less than which d loss / d bonus is, into
    `bonus_grad` (N, T, S), which begins as zeros.
    """
    grad[...] = 0

    def run(n: int) -> tuple[float, Floats]:
        graph = graph_args(batch, n, scores)
        T = graph.rows.T
        counts, softmax = np.zeros((2, T, batch.C))
        gamma = None if bonus_grad is None else np.full((T, bonus_grad.shape[2]), -np.inf)
        log_z = c.lattice(
            graph,
            stride=0 if gamma is None else gamma.shape[1],
            gamma=0 if gamma is None else gamma.ctypes.data,
            counts=counts.ctypes.data,
            softmax=softmax.ctypes.data,
        )
        if log_z is None:
            grad[:T, n] = np.nan
            if bonus_grad is not None:
                bonus_grad[n, :T] = np.nan
            return np.nan, np.full(batch.C, np.nan)
        if log_z > -np.inf:
            grad[:T, n] = softmax - counts
            if bonus_grad is not None and gamma is not None:
                np.exp(gamma, out=bonus_grad[n, :T])
        return log_z, counts.sum(axis=0)

    done = each_sample(batch, run)
    return np.array([log_z for log_z, _ in done]), np.array([counts for _, counts in done])


def align(batch: Batch, scores: Scores | None = None) -> Paths:
    """The best path of each sample; -1 and NaN where there is none, and past a sample's own frames and labels."""
    longest = int(batch.label_lengths.max(initial=0))
    states = np.full((batch.N, batch.T), -1, dtype=np.int32)
    starts, ends = np.full((2, batch.N, longest), -1, dtype=np.int32)
    means = np.full((batch.N, longest), np.nan)

    def run(n: int) -> float:
        graph = graph_args(batch, n, scores)
        where = {
            "states": states[n].ctypes.data,
            "starts": starts[n].ctypes.data,
            "ends": ends[n].ctypes.data,
            "scores": means[n].ctypes.data,
        }
        log_p = c.align(graph, **where)
        return np.nan if log_p is None else log_p

    return Paths(states, starts, ends, means, np.array(each_sample(batch, run)))


def hvp(batch: Batch, along: ArrayView, out: Any) -> None:
    """The Hessian times `along`, which has the logits' shape, into `out` (T, N, C)."""
    out[...] = 0

    def run(n: int) -> None:
        graph = graph_args(batch, n)
        product = np.empty((graph.rows.T, batch.C))
        done = c.hvp(graph, rows_args(along, n, graph.rows.T), product.ctypes.data)
        out[: graph.rows.T, n] = product if done else np.nan

    each_sample(batch, run)


def hessian(batch: Batch, dtype: str) -> npt.NDArray[Any]:
    """(N, T, C, T, C), zeros past a sample's frames and where there is no path."""
    T, N, C = batch.logits.shape
    out = np.zeros((N, T, C, T, C), dtype=dtype)

    def run(n: int) -> None:
        graph = graph_args(batch, n)
        frames = graph.rows.T
        own = out[n] if out.dtype == np.float64 else np.zeros((frames, C, frames, C))
        if not c.hessian(graph, own.ctypes.data, own.shape[2]):
            own[:frames, :, :frames] = np.nan
        if own.dtype != out.dtype:
            out[n, :frames, :, :frames] = own

    each_sample(batch, run)
    return out
