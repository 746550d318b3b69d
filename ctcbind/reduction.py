"""From one loss a sample to one number, and what that does to each sample's gradient."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .batch import Batch

__all__ = ["REDUCTIONS", "Reduction", "reduce_losses", "sample_weights"]

Reduction = Literal["none", "sum", "batch_mean", "label_mean"]
REDUCTIONS: tuple[Reduction, ...] = ("none", "sum", "batch_mean", "label_mean")


def sample_weights(reduction: Reduction, batch: Batch) -> npt.NDArray[np.float64] | None:
    """What each sample's loss, and so its gradient, counts in the reduced loss; None where all count 1.

    An empty label counts as one label in "label_mean", as in PyTorch (ATen/native/LossCTC.cpp).
    """
    if reduction == "batch_mean":
        return np.full(batch.N, 1.0 / batch.N)
    if reduction == "label_mean":
        return 1.0 / (np.maximum(batch.label_lengths, 1) * float(batch.N))
    return None


def reduce_losses(
    reduction: Reduction,
    losses: Any,
    weights: npt.NDArray[np.float64] | None,
    *,
    zero_infinity: bool,
    xp: Any = np,
) -> Any:
    """The losses (N,), or their weighted sum as a scalar of their dtype (a 0-d array on a device)."""
    if zero_infinity:
        losses[losses == np.inf] = 0
    if reduction == "none":
        return losses
    wide = losses.astype(np.float64)
    if weights is not None:
        wide *= xp.asarray(weights)
    with np.errstate(over="ignore"):  # past float32's range the sum is inf, as the losses' own would be
        return wide.sum().astype(losses.dtype)
