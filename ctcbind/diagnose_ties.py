"""Numbers of a frame that are equal to the last bit: those that a ReLU or a dropout after the last layer has made 0,
also where a log-softmax has moved each frame since."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .finding import CLASSES, quoted
from .patient import Patient

__all__ = ["ties"]

#: So few frames tell nothing; those with so many equal numbers do, if they are this share of all.
FRAMES, EQUAL, OF_ALL = 20, 3, 0.2
#: No other numbers are equal but by rounding: less than this share as many, and of those others.
BY_CHANCE = 0.1
#: So many of a dropout's stand between others, where one that leaves out what is lower than 0 puts it highest.
BETWEEN = 0.1
#: Fewer equal numbers than this share of all others are no ReLU's.
CUT = 0.05
#: What a dropout leaves out are all classes alike, within so many standard deviations, and no more than this share.
ALIKE, MOST = 6.0, 0.9
#: The equal numbers of so many frames must differ from those of others: a floor is the same at all frames.
UNLIKE = 0.5
#: And other numbers come as near to them as this share of the range of their frame: a mask is far from everything.
NEAR = 0.05
#: So many numbers are looked at.
NUMBERS = 1 << 20


def ties(p: Patient) -> None:
    """A ReLU under a log-softmax, by numbers that are the lowest of their frame together; a dropout, by some that stand
    between the others, of any class."""
    kept = p.without_lost()
    logs = "log_probabilities" in p.kinds
    if (p.kinds - {"log_probabilities"}) & _TOLD or kept.C < 4 or kept.count < FRAMES or not kept.fits.any():
        return
    step = -(-kept.given.size // NUMBERS)
    rows = kept.given[::step][kept.inside[::step]]
    if not logs and not (rows == 0).any():
        return
    rows = np.unique(rows.astype(np.float64), axis=0)  # a frame that is repeated tells no more than once
    if len(rows) < FRAMES:
        return
    ordered = np.sort(rows, axis=1)
    lows, tops = ordered[:, :1], ordered[:, -1:]
    same = ordered[:, 1:] == ordered[:, :-1]
    # the number that stands most often in its frame: it is the same at every place of the longest run
    middle = _most_equal(ordered, same) if logs else np.zeros((len(rows), 1))
    at = rows == middle
    many = at.sum(axis=1) >= EQUAL
    others = int(same.sum()) - int(np.maximum(at.sum(axis=1) - 1, 0).sum())
    if many.mean() < OF_ALL or others > BY_CHANCE * min(at[many].sum(), (~at).sum()):
        return
    if logs and len(np.unique(middle[many])) < UNLIKE * many.sum():
        return
    lowest = (middle == lows)[many, 0].mean()
    if lowest > 1 - BY_CHANCE and logs:
        _relu(p, rows, at, lows, tops)
    elif lowest < BY_CHANCE and ((lows < middle) & (middle < tops))[many, 0].mean() > BETWEEN:
        _dropout(p, at[many] if logs else at)


def _most_equal(ordered: npt.NDArray[np.float64], same: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """(M, 1): of each frame the number that stands there most often."""
    run, best = np.zeros(len(ordered), np.int64), np.zeros(len(ordered), np.int64)
    number = ordered[:, 0].copy()
    for k in range(same.shape[1]):
        run = np.where(same[:, k], run + 1, 0)
        longer = run > best
        best[longer], number[longer] = run[longer], ordered[longer, k]
    return number[:, None]


def _relu(
    p: Patient,
    rows: npt.NDArray[np.float64],
    at: npt.NDArray[np.bool_],
    lows: npt.NDArray[np.float64],
    tops: npt.NDArray[np.float64],
) -> None:
    near = ~at & (rows < lows + NEAR * (tops - lows))
    if at.mean() < CUT or near.sum() < FRAMES or (at.any(axis=0) & ~at.all(axis=0)).sum() < 3:
        return
    used = sorted({label for row in p.labels for label in row} | {p.blank})
    dead = [k for k in used if at[:, k].all()]
    p.find(
        "activation",
        f"{at.mean():.1%} of the numbers are the lowest of their frame, and equal to the last bit"
        + (f", those of {quoted(dead, words=CLASSES)} at every frame" if dead else ""),
        "the logits have been through a ReLU, or were clamped, before the log-softmax: what is at this end has no "
        "gradient, and a class that is there at every frame is never learned",
        "give log_softmax the network's last layer as it is, without an activation",
        "likely",
        harmless=not dead,
    )


def _dropout(p: Patient, at: npt.NDArray[np.bool_]) -> None:
    share = float(at.mean())
    if share > MOST:
        return
    apart = (at.mean(axis=0) - share) ** 2 * len(at) / (share * (1 - share))  # in variances of a class
    if max(apart.max(), max(apart.sum() - p.C, 0) ** 2 / (2 * p.C)) > ALIKE**2:
        return
    p.find(
        "activation",
        f"{share:.1%} of the numbers are {'equal within their frame' if 'log_probabilities' in p.kinds else '0'}, to "
        "the last bit, of all classes alike, and stand between the others",
        "a dropout after the last layer leaves out what the network says, the blank and labels alike, at frames at "
        "random",
        "take the dropout away from behind the last layer, and leave it to the layers before (in PyTorch F.dropout "
        "without training= is never off)",
        "likely",
    )


#: What explains equal numbers by itself, or leaves nothing of them.
_TOLD = {"activation", "probabilities", "negated_log_probabilities", "softmax_twice", "log_base", "constant_output"}
