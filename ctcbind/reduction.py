"""From one loss a sample to one number, and what that does to each sample's gradient."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .batch import Batch

__all__ = ["REDUCTIONS", "Reduction", "reduce_losses", "sample_weights", "set_where"]

Reduction = Literal["none", "sum", "batch_mean", "label_mean"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "sum", "batch_mean", "label_mean")


#: Up to so many samples Python's own numbers are quicker than NumPy's fixed cost of a call.
_FEW = 32
_SUM = np.add.reduce
#: What float32 rounds to inf.
_TOO_MUCH = float.fromhex("0x1.ffffffp127")


def sample_weights(reduction: Reduction, batch: Batch) -> npt.NDArray[np.float64] | None:
    """What each sample's loss, and so its gradient, counts in the reduced loss; None where all count 1.

    An empty label counts as one label in "label_mean", as in PyTorch (ATen/native/LossCTC.cpp).
    """
    if reduction == "batch_mean":
        return np.full(batch.N, 1.0 / batch.N)
    if reduction == "label_mean":
        N = batch.N
        if type(batch.integers) is list and N <= _FEW:
            return np.array([1.0 / ((count or 1) * N) for count in batch.integers[-2 * N : -N]])
        return 1.0 / (np.maximum(batch.label_lengths, 1) * float(N))
    return None


def reduce_losses(
    reduction: Reduction,
    losses: Any,
    weights: npt.NDArray[np.float64] | None,
    *,
    zero_infinity: bool,
    grad: Any = None,
    xp: Any = np,
) -> Any:
    """The losses (N,), or their weighted sum as a scalar of their dtype (a 0-d array on a device).

    With `zero_infinity` a loss that is inf becomes 0, and so does its `grad` (N, T, C).
    """
    if zero_infinity:
        infinite = losses == np.inf
        set_where(losses, infinite, 0, xp)
        if grad is not None:  # that of a loss past its dtype is not so by itself
            set_where(grad, infinite, 0, xp)
    if reduction == "none":
        return losses
    wide = losses.astype(np.float64) if weights is None else losses * xp.asarray(weights)
    if xp is not np:
        return wide.sum().astype(losses.dtype)
    total = _total(wide)
    if losses.dtype == np.float64:
        return np.float64(total)
    return losses.dtype.type(np.inf if total >= _TOO_MUCH else total)  # NumPy would warn, and be slow to be told not to


def set_where(array: Any, mask: Any, value: Any, xp: Any) -> None:
    """array[mask] = value, for one value; CuPy's own way makes a list of every element, and waits for its length."""
    if xp is np:
        array[mask] = value
    else:
        xp.copyto(array, xp.asarray(value, dtype=array.dtype), where=mask[(..., *[None] * (array.ndim - mask.ndim))])


def _total(values: npt.NDArray[np.float64]) -> float:
    """Rounded once, as in csrc/python/reduction.c: the same bits whichever way a batch went."""
    try:
        return math.fsum(values.tolist())
    except (OverflowError, ValueError):  # on the way
        with np.errstate(over="ignore", invalid="ignore"):
            return float(_SUM(values))
