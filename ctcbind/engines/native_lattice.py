"""The lattice, its best path and its second derivatives by csrc/lattice.c, align.c, product.c and hessian.c; batches on
the host."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..arrays import ArrayView
from ..batch import Batch
from ..bindings import native_lattice as c
from ..bindings.native_rows import DTYPES, check, structs
from ..errors import OutOfMemory, counted
from .native_samples import (
    REAL,
    WORTH_A_THREAD,
    Scores,
    fields_of,
    fields_out,
    graphs_of,
    results,
    threads_for,
)

__all__ = [
    "Paths",
    "Trellis",
    "align",
    "gradient",
    "hessian",
    "hessian_scratch",
    "hvp",
    "log_z",
    "posteriors",
    "trellis",
]

Floats = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]


class Trellis(NamedTuple):
    """(N, T, S) of the losses' dtype, -inf past a sample's own frames and states; `log_z` (N,) float64."""

    log_alpha: Floats
    log_beta: Floats
    log_gamma: Floats
    log_z: Floats


class Paths(NamedTuple):
    """`states` and `classes` (N, T), `starts`, `ends` and `scores` (N, L), `log_p` (N,)."""

    states: Ints
    classes: Ints
    starts: Ints
    ends: Ints
    scores: Floats
    log_p: Floats


def trellis(batch: Batch, scores: Scores | None = None) -> Trellis:
    alpha, beta, gamma = _states(batch, 3)
    log_z = _lattices(batch, scores, log_alpha=alpha, log_beta=beta, log_gamma=gamma)
    return Trellis(alpha, beta, gamma, log_z)


def posteriors(batch: Batch, scores: Scores | None = None) -> Floats:
    """The share of all paths that are in each state at each frame, (N, T, S)."""
    (gamma,) = _states(batch)
    _lattices(batch, scores, gamma=gamma)
    return gamma


def log_z(batch: Batch, scores: Scores) -> Floats:
    """ln of each sample's sum over paths (N,)."""
    return _lattices(batch, scores)


def gradient(batch: Batch, scores: Scores, grad: Any, with_gamma: bool) -> tuple[Floats, Floats, Floats | None]:
    """(ln of each sample's sum over paths (N,), expected counts of each class (N, C), the posteriors or None).

    Writes d loss / d logits into `grad` (T, N, C).
    """
    counts = np.empty((batch.N, batch.C))
    gamma = _states(batch)[0] if with_gamma else None
    wide = _wide(grad)
    log_z = _lattices(batch, scores, grad=wide, counts=counts, gamma=gamma)
    if wide is not grad:
        grad[...] = wide
    return log_z, counts, gamma


def _states(batch: Batch, count: int = 1) -> list[Floats]:
    """So many arrays (N, T, S) of the losses' dtype."""
    N, T, S, dtype = batch.N, batch.T, batch.states, np.dtype(batch.logits.loss_dtype)
    try:
        return [np.empty((N, T, S), dtype) for _ in range(count)]
    except MemoryError as error:
        raise OutOfMemory(
            f"the lattice of N = {N}, T = {T} and S = {S} states takes {count * N * T * S * dtype.itemsize} bytes "
            f"({counted(count, 'array')} of {dtype}), and so much memory could not be had; the loss and align do "
            "without such arrays"
        ) from error


def _wide(grad: Any) -> Any:
    """Where C writes a result: the array itself, or float32 in place of narrower floats."""
    return grad if grad.dtype in REAL else np.empty(grad.shape, dtype=np.float32)


def _lattices(batch: Batch, scores: Scores | None, *, grad: Floats | None = None, **arrays: Floats | None) -> Floats:
    """ln of each sample's sum over paths, (N,) float64; what else is wanted is written into the arrays."""
    fields: dict[str, Any] = {name: array for name, array in arrays.items() if array is not None}
    states = batch.states
    fields.update(T_out=batch.T, S_out=states, dtype=DTYPES[batch.logits.loss_dtype])
    if grad is not None:
        fields["grad"] = fields_out(grad)
    to = structs("ctcbind_lattice", batch.N, fields)
    c.lattices(graphs_of(batch, scores), to, batch.N, _threads(batch, states))
    return _checked("ctcbind_lattice", to)["log_z"].copy()


def _threads(batch: Batch, states: int) -> int:
    if batch.N * batch.T * (states + batch.C // 4) < WORTH_A_THREAD:  # which the lines below take longer to see
        return 1
    widths = 2 * batch.label_lengths + (1 + batch.C // 4)
    return threads_for(int(batch.input_lengths.astype(np.int64) @ widths))


def _checked(kind: str, to: Any) -> npt.NDArray[np.void]:
    """The structs, each with its results, as an array. Raises what went wrong with one."""
    found = results(kind, to)
    for status in set(found["status"].tolist()):
        check(f"{kind}s", status)
    return found


def align(batch: Batch, scores: Scores | None = None) -> Paths:
    """The best path of each sample; -1 and NaN where there is none, and past a sample's own frames and labels. The
    logits are in doubles, and what the softmax takes off them as the loss computes it."""
    N, longest = batch.N, batch.longest
    states, classes = np.empty((N, batch.T), np.int32), np.empty((N, batch.T), np.int32)
    starts, ends = np.empty((N, longest), np.int32), np.empty((N, longest), np.int32)
    means = np.empty((N, longest))
    fields = {"states": states, "classes": classes, "starts": starts, "ends": ends, "scores": means}
    to = structs("ctcbind_alignment", N, {**fields, "T_out": batch.T, "L_out": longest})
    c.align(graphs_of(batch, scores), to, N, _threads(batch, 2 * longest + 1))
    return Paths(states, classes, starts, ends, means, _checked("ctcbind_alignment", to)["log_p"].copy())


def hvp(batch: Batch, along: ArrayView, out: Any) -> None:
    """The Hessian times `along`, which has the logits' shape, into `out` (T, N, C)."""
    wide = _wide(out)
    to = structs("ctcbind_product", batch.N, {"along": fields_of(along), "out": fields_out(wide)})
    c.products(graphs_of(batch), to, batch.N, _threads(batch, batch.states))
    _checked("ctcbind_product", to)
    if wide is not out:
        out[...] = wide


def hessian_scratch(batch: Batch) -> int:
    """Bytes that `hessian` takes beside its result: of the largest samples, as many as are computed at once. Those
    without a path take none."""
    sizes = zip(*(lengths[batch.feasible].tolist() for lengths in (batch.input_lengths, batch.label_lengths)))
    each = sorted((c.hessian_bytes(T, L, batch.C) for T, L in sizes), reverse=True)
    return sum(each[: _hessian_threads(batch)])


def _hessian_threads(batch: Batch) -> int:
    return threads_for(int(batch.input_lengths.sum(dtype=np.int64)) * batch.T * batch.C)


def hessian(batch: Batch, dtype: str) -> Floats:
    """(N, T, C, T, C), zeros past a sample's frames and where there is no path."""
    T, N, C = batch.logits.shape
    try:
        out = np.zeros((N, T, C, T, C), dtype=dtype)
    except (MemoryError, ValueError) as error:  # the latter past the largest size of an array
        raise OutOfMemory(
            f"the Hessian of N={N}, T={T}, C={C} takes N (T C)^2 values of {dtype}, and so much memory could not be "
            "had; ctc_hvp gives its product with a vector in O(T S)"
        ) from error
    to = structs("ctcbind_hessian", N, {"data": out, "T_out": T, "dtype": DTYPES[dtype]})
    c.hessians(graphs_of(batch), to, N, _hessian_threads(batch))
    _checked("ctcbind_hessian", to)
    return out
