"""What was put between the last layer and a log-softmax, which moves each frame by a number of its own: a tanh, a
sigmoid, a clamp, a normalisation. How far apart a frame's numbers are tells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .diagnose_activation import FRAMES, NUMBERS, SATURATED, SOFTMAX, does_harm, one_length
from .patient import Floats, Patient
from .tolerance import ROUNDOFF

__all__ = ["shifted"]

#: How far apart the ends of some activations are.
APART = {1: "a sigmoid, or were clamped to 0 and 1", 2: "a tanh, or were clamped to -1 and 1"}
#: By this share the widest frame may fall short of that.
NEARLY = 0.002
#: The ends of a clamp are as far apart in each frame, to so many unit roundoffs of the largest logit.
ROUNDINGS = 4
#: If more than this share of the numbers is exactly at an end of its frame, all have come there.
ALL = 0.99
#: At least this share of the frames (FULL) must reach from end to end, and of their numbers beside the two that do, at
#: least this share (AT_ENDS) must be at an end.
FULL, AT_ENDS = 0.2, 0.1
#: So many frames must come within PILED of the widest, as a share of the way from there to the narrowest TENTH: few do
#: where nothing has an end. If all but the tenth are at an activation's ends, the widest must come so near them.
PILED, TENTH = 0.1, 0.1
#: At least so many classes (CLASSES) must be at an end at this share of these frames (HERE), and more than FARTHER
#: times as far from both ends at the same share: biases would hold always the same classes there.
CLASSES, HERE, FARTHER = 3, 0.05, 3


def shifted(p: Patient) -> None:
    """A normalisation, by the norms of frames less their mean; a tanh, a sigmoid or a clamp, by frames of which many
    reach from end to end, and none farther."""
    kept = p.without_lost()
    if SOFTMAX & p.kinds != {"log_probabilities"} or kept.C < 4 or not kept.fits.any():
        return
    x = kept.x
    if not one_length(p, kept.turned(x=x - x.mean(axis=2, keepdims=True)), "log-probabilities less their mean"):
        _bounded(p, kept)


def _bounded(p: Patient, kept: Patient) -> None:
    apart = np.concatenate([np.ptp(block, axis=1) for block in kept.blocks()])
    width = float(apart.max())
    most = 1 / (1 + (p.C - 1) * np.exp(-width))
    if not does_harm(kept, most):
        return
    rounding = ROUNDINGS * ROUNDOFF[p.dtype] * max(map(abs, kept.ends))
    size = next((size for size in APART if size * (1 - NEARLY) <= width <= size + rounding), None)
    edge = max(size * (1 - SATURATED) / 2 if size else 0.0, rounding)
    full = apart >= width - 2 * edge
    if full.mean() < FULL:
        return
    stuck = size is not None and (_from_end(kept.rows) == 0).mean() > ALL
    if not stuck and not _crowded(kept, apart, full, edge, rounding, size):
        return
    p.find(
        "activation",
        f"no frame's log-probabilities are more than {width:.4g} apart, and those of {full.mean():.1%} of the frames "
        f"are within {2 * edge:.2g} of that",
        f"the logits have been through {APART[size] if size else 'a clamp'} before the log-softmax: no class gets more "
        f"than {most:.3g}, and training stalls",
        "give log_softmax the network's last layer as it is, without an activation",
        "likely",
    )


def _from_end(rows: Floats) -> Floats:
    """How far each number is from the nearer end of its frame."""
    nearer: Floats = np.minimum(rows - rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True) - rows)
    return nearer


def _crowded(
    kept: Patient, apart: Floats, full: npt.NDArray[np.bool_], edge: float, rounding: float, size: int | None
) -> bool:
    """Whether frames crowd at what is farthest apart, and their numbers at both ends, as if something held them there:
    other numbers than biases, which are always those of the same classes."""
    width = apart.max()
    spread = width - np.quantile(apart, TENTH)
    told = spread > rounding / PILED  # else it is the rounding that brings them together
    come = size is not None and spread <= edge and size - width <= PILED * spread
    if told and not come and (apart >= width - PILED * spread).mean() < FULL:
        return False
    rows = np.unique(kept.rows[full], axis=0)  # a frame that is repeated tells no more than once
    if len(rows) < FRAMES or rows.size < NUMBERS:
        return False
    from_end = _from_end(rows)
    if (from_end <= edge).sum() - 2 * len(rows) < AT_ENDS * (rows.size - 2 * len(rows)):
        return False
    at, away = ((each.mean(axis=0) >= HERE) for each in (from_end <= edge, from_end > FARTHER * edge))
    return bool((told and size is not None) or (at & away).sum() >= CLASSES)
