"""How far an engine's losses and gradients may be from the float64 reference, and how far they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import ArrayView
from .engines import EngineInfo
from .errors import counted
from .peers import PeerInfo

__all__ = ["PROMISED", "ROUNDOFF", "Floats", "beyond", "difference", "farthest", "nearest", "tolerances"]

#: Engines that work in float64 whatever the dtype of the logits.
DOUBLE = ("reference",)

#: What PyTorch's own tests hold cuDNN's gradient to (pytorch #159106).
CUDNN_GRADIENT = 1e-4

#: What engines promise that do not compute in log space, for logits other than float64: losses relative (absolute
#: below 1), gradients absolute.
PROMISED = {"native": (1e-6, 2e-6), "cuda": (1e-6, 1e-5)}

#: Unit roundoff of each dtype: half the distance from 1 to the next number.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

#: So many numbers are compared at a time.
AT_ONCE = 1_000_000

Floats = npt.NDArray[np.float64]


def tolerances(info: EngineInfo | PeerInfo, view: ArrayView, losses: Floats) -> tuple[Floats, Floats]:
    """What loss and gradient of each sample may differ by from the `reference`, whose `losses` these are.

    They follow from the engine's arithmetic. In log space each of T steps rounds a logarithm that has grown to l nats
    by u l at most, u the unit roundoff of the dtype computed in, and its exponentials and logarithms by a few u more.
    With a loss of L nats that sums to u T (L / 2 + 4) at most, for the loss and, as the error of an exponent, for the
    gradient. Uniform scores come near it, since they round the same way at every step. Where frames are few, another
    part is larger: each ln y was rounded twice before, which sums to 2 u L, and the exponent of the gradient, alpha +
    beta - ln y - ln p, is made of numbers up to 2 L, and rounds by 3 u L more. `reference` computes in float64, the
    others in float32 unless logits are float64. cuDNN's gradient is off as that of log space is (docs/gpu: 4e-4 for 255
    labels in 275 frames, 0.004 for 200 in 1000, 0.4 for 255 in 10000), and may be by 1e-4 at the least. The native
    engine counts logits past 2^50 / 4T in steps that let the largest of them add up exactly: its loss may be off by
    half a step at each frame. It and `cuda` may never be off by more than they promise, however long a sample is. Added
    are the error of the reference itself and the rounding of results to their dtype.
    """
    double = info.name in DOUBLE or (view.dtype == "float64" and "float64" in info.contract.dtypes)
    T = max(view.shape[0], 1)
    size = np.where(np.isfinite(losses), losses, 0.0)
    loss, grad = _in_log_space(ROUNDOFF["float64"] if double else ROUNDOFF["float32"], T, size)
    reference = _in_log_space(ROUNDOFF["float64"], T, size)
    if info.name == "cudnn":
        grad = np.maximum(grad, CUDNN_GRADIENT)
    if info.name in PROMISED and not double:
        of_loss, of_grad = PROMISED[info.name]
        loss, grad = np.minimum(loss, of_loss * np.maximum(size, 1.0)), np.minimum(grad, of_grad)
    if info.name == "native" and double and (most := _largest(view)) * 4 * T >= 2.0**50:
        loss = loss + most * (4 * T * T * 2.0**-52)
    stored = (0.0, 0.0) if info.name == "reference" else (ROUNDOFF[view.loss_dtype], ROUNDOFF[view.dtype])
    return loss + reference[0] + stored[0] * size, grad + reference[1] + stored[1]


def _in_log_space(u: float, T: int, size: Floats) -> tuple[Floats, Floats]:
    steps = u * T * (size / 2 + 4)
    return steps + 2 * u * size, steps + 5 * u * size


def _largest(view: ArrayView) -> float:
    size = np.abs(view.array)
    return float(size.max(initial=0.0, where=np.isfinite(size)))


def difference(mine: Floats, theirs: Floats) -> Floats:
    """Absolute differences; equal infinities and NaN beside NaN differ by 0, one of them beside a number by inf."""
    with np.errstate(invalid="ignore"):
        diff = np.abs(mine - theirs)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    return np.where(same, 0.0, np.where(np.isnan(diff), np.inf, diff))


def farthest(mine: npt.NDArray[Any], theirs: Floats) -> Floats:
    """(N,): the largest difference in each sample of arrays (T, N, C), some samples at a time: these may be large."""
    T, N, C = theirs.shape
    step = max(AT_ONCE // max(T * C, 1), 1)
    parts = (slice(first, first + step) for first in range(0, N, step))
    found = [difference(mine[:, n].astype(np.float64), theirs[:, n]).max(axis=(0, 2), initial=0.0) for n in parts]
    return np.concatenate(found)


def beyond(what: str, diffs: Floats, limits: Floats) -> str | None:
    """Where differences go beyond their limits: the sample furthest beyond its own, and how many others do."""
    if not (count := int((diffs > limits).sum())):
        return None
    n = int(np.argmax(diffs / limits))
    others = f", and {counted(count - 1, 'other sample')}" if count > 1 else ""
    return f"the {what} of sample {n} by {diffs[n]:.1e} (allowed {limits[n]:.1e}){others}"


def nearest(diffs: Floats, limits: Floats) -> float:
    """The limit of the sample that comes nearest to its own."""
    return float(limits[int(np.argmax(diffs / limits))])
