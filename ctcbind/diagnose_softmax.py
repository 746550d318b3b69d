"""Logits that have been through a softmax, a log-softmax or a sigmoid. Each finding puts right what it finds."""

from __future__ import annotations

import numpy as np

from .patient import Floats, Patient

__all__ = ["probabilities"]

#: How far the sum of a frame's probabilities may be from 1, by the rounding of the dtype that they are stored in.
SUM = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-4, "float64": 1e-4}
#: The same where they may have been stored in a narrower dtype before.
CAST = 1e-2
#: The sums of powers are so many times as near to 1 to the right base as to another.
NEARER = 4.0
#: A sigmoid that is rounded to 0 gives more than this share of numbers near 1; more than so many are unlike each other,
#: or somebody wrote them.
NEAR_1, MANY, FEW_NUMBERS = 0.99, 0.01, 20
#: The probabilities of two classes that are sure crowd there: so many of all.
CROWD = 0.2
#: With fewer classes than this, logits between 0 and 1 are taken for a sigmoid's only if they come near both ends.
FEW_CLASSES = 8


def probabilities(p: Patient) -> None:
    """Numbers that have been through a softmax, once or twice, or through a log-softmax, and perhaps had their sign
    turned."""
    tolerance = SUM[p.dtype]
    if p.count < 3 or p.C < 2:
        return
    lowest, highest = p.ends
    if lowest < -tolerance and highest > tolerance:
        return  # on both sides of what any of these gives, along any axis
    rows = p.rows
    if len(rows) >= 10 and lowest >= 0 and highest <= 1 and _near(rows.sum(axis=1), 1.0, CAST):
        tolerance = max(tolerance, float(np.abs(rows.sum(axis=1) - 1.0).max()))
    cure = "give the network's last activations as they are, and leave every softmax to the loss"
    if lowest >= -tolerance and highest <= 1 + tolerance and _near(rows.sum(axis=1), 1.0, tolerance):
        _after_softmax(p, tolerance, cure)
        return
    if _along_another_axis(p, tolerance, cure) or _between_0_and_1(p, lowest, highest, cure):
        return
    if lowest >= -tolerance and _near(_log_sums(-rows), 0.0, tolerance):
        p.find(
            "negated_log_probabilities",
            f"no logit is below {lowest:.3g}, and the exponentials of minus each frame's sum to 1 within {tolerance:g}",
            "these are log-probabilities with their sign turned: what the network finds probable counts as improbable",
            "turn the sign back, or, as well, " + cure,
            "certain" if len(rows) >= 10 else "likely",
        )
        p.change(x=-p.x)
        return
    if highest > tolerance or _to_another_base(p, highest, tolerance, cure):
        return
    if _near(_log_sums(np.maximum(rows, -1e4)), 0.0, tolerance):
        _after_log_softmax(p, tolerance, cure)


def _after_softmax(p: Patient, tolerance: float, cure: str) -> None:
    """Each frame's numbers sum to 1."""
    lowest, highest = p.ends
    log_p = np.log(np.maximum(p.x, 1e-30))
    inner = _under_another_softmax(p, log_p, tolerance)
    seen = f"all logits lie between {lowest:.3g} and {highest:.3g}, and each frame's sum to 1 within {tolerance:g}"
    if inner is not None:
        p.find(
            "softmax_twice",
            seen + "; under them lies a softmax again",
            "softmax was applied twice before the loss, which applies it a third time: nothing can become certain",
            cure,
            "likely",
        )
        log_p = inner
    else:
        p.find(
            "probabilities",
            seen,
            "these are probabilities: the loss applies a softmax of its own, so softmax is applied twice, no class "
            f"gets more than {np.e / (np.e + p.C - 1):.3g}, and training stalls",
            cure,
            "certain" if len(p.rows) >= 10 else "likely",
        )
    p.change(x=log_p)


def _after_log_softmax(p: Patient, tolerance: float, cure: str) -> None:
    """Each frame's exponentials sum to 1."""
    highest = p.ends[1]
    inner = _under_another_softmax(p, np.maximum(p.x, -1e4), tolerance)
    seen = f"no logit is above {highest:.3g}, and each frame's exponentials sum to 1 within {tolerance:g}"
    if inner is not None:
        p.find(
            "softmax_twice",
            seen + "; less a constant, they lie between 0 and 1 and sum to 1 themselves",
            "this is a log-softmax of a softmax: nothing can become certain, and training stalls",
            cure,
            "likely",
        )
        p.change(x=inner)
        return
    p.find(
        "log_probabilities",
        seen,
        "these are log-probabilities: the loss is right all the same, since a log-softmax leaves them as they are, and "
        "so is its gradient, whether it is taken as that of the logits or passed back through your log-softmax",
        "nothing; or, to save the time, " + cure,
        "certain" if len(p.rows) >= 10 else "likely",
        harmless=True,
    )


def _to_another_base(p: Patient, highest: float, tolerance: float, cure: str) -> bool:
    """Logarithms to base 2 or 10. A sure network's sums are near 1 to any base: the nearest tells, if it is nearer too
    than the most probable class alone, which of logits less their highest is all that is near."""
    rows = np.maximum(p.rows, -1e4)
    natural, top = float(np.abs(_log_sums(rows)).mean()), float(np.abs(rows.max(axis=1)).mean())
    for base in (2, 10):
        sums = _log_sums(rows * np.log(base))
        if not _near(sums, 0.0, tolerance) or not NEARER * np.abs(sums).mean() < min(natural, top):
            continue
        p.find(
            "log_base",
            f"no logit is above {highest:.3g}, and {base} to the power of them sums to 1 in each frame within "
            f"{tolerance:g}",
            f"these are log-probabilities to base {base}, and the loss takes natural ones, which are "
            f"{np.log(base):.3g} times as far apart: losses and gradients are those of a network that is "
            f"{'more' if base < np.e else 'less'} sure",
            f"multiply them by ln {base} = {np.log(base):.4f}, or, as well, {cure}",
            "certain" if len(rows) >= 10 else "likely",
        )
        p.change(x=p.x * np.log(base))
        return True
    return False


def _along_another_axis(p: Patient, tolerance: float, cure: str) -> bool:
    """A softmax, or its logarithm, over time or over the batch."""
    for log in (False, True):
        if log and p.x.max() > tolerance:
            break
        values = np.exp(p.x) if log else p.x
        if values.min() < -tolerance or values.max() > 1 + tolerance:
            continue
        for axis, name in ((0, "time"), (1, "the samples of the batch")):
            if p.x.shape[axis] > 1 and _near(values.sum(axis=axis), 1.0, tolerance):
                what = "exponentials" if log else "logits"
                p.find(
                    "probabilities",
                    f"the {what} of each class sum to 1 over {name} within {tolerance:g}, and those of a frame do not",
                    f"a softmax over the wrong axis: over {name}, not over the classes"
                    + ("" if log else "; and the loss applies a softmax of its own"),
                    cure,
                    "certain" if p.x.size >= 100 else "likely",
                )
                p.change(x=np.log(np.maximum(values, 1e-30)))
                return True
    return False


def _between_0_and_1(p: Patient, lowest: float, highest: float, cure: str) -> bool:
    """What has been through a sigmoid. A layer without one gives numbers below 0 too, or zeros after a ReLU."""
    if not (lowest >= 0 and highest <= 1 and highest > 0.5):
        return False
    if lowest == 0 and not ((p.rows > NEAR_1).mean() > MANY and len(np.unique(p.rows)) > FEW_NUMBERS):
        return False  # what is rounded to 0 stands beside what is nearly 1
    unlike = 1 + np.count_nonzero((p.rows[1:] != p.rows[:-1]).any(axis=1))
    if unlike * p.C < 100:
        return False  # a frame that is repeated tells no more than once
    if p.C < FEW_CLASSES and (lowest > 0.1 or highest < 0.9):
        return False  # so few can all be there by a fresh network's biases
    sums = p.rows.sum(axis=1)
    p.find(
        "probabilities",
        f"all logits lie between {lowest:.3g} and {highest:.3g}; frames sum to {sums.min():.3g} or more, up to "
        f"{sums.max():.3g}",
        "these look like the outputs of a sigmoid: after the softmax that the loss applies, no class gets more than "
        f"{np.e / (np.e + p.C - 1):.3g}, and training stalls",
        cure,
        "likely",
    )
    if p.x.min() >= 0 and p.x.max() <= 1:
        p.change(x=np.log(np.maximum(p.x, 2.0**-53) / np.maximum(1 - p.x, 2.0**-53)))
    return True


def _log_sums(rows: Floats) -> Floats:
    """ln of the sum of each frame's exponentials."""
    top = rows.max(axis=1)
    sums: Floats = np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top
    return sums


def _near(values: Floats, target: float, tolerance: float) -> bool:
    return bool(np.abs(values - target).max() <= tolerance)


def _under_another_softmax(p: Patient, log_p: Floats, tolerance: float) -> Floats | None:
    """ln q with log_p = log_softmax(q), where q are probabilities that have something to say; else None."""
    if len(p.rows) < 10:
        return None
    q: Floats = log_p + (1 - log_p.sum(axis=2, keepdims=True)) / p.C
    rows = q[p.inside]
    tolerance *= 10  # it was rounded as a logarithm
    top = rows.max(axis=1)
    if not (rows.min() >= -tolerance and top.max() <= 1 + tolerance):
        return None
    sure = top.mean() >= 0.75 and top.max() >= 0.9
    if sure and (top > NEAR_1).mean() < CROWD:  # any small logits of two classes, or of copies of these, are such
        sure = bool((np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(axis=1).max() > 1)
    return np.asarray(np.log(np.maximum(q, 1e-4))) if sure or _skewed(rows, top) else None


def _skewed(rows: Floats, top: Floats) -> bool:
    """Whether numbers from 0 to 1 lie as those of a softmax do: most of a frame near 0, one far above, and not the same
    at all frames. Small logits less their mean lie as far below 1 / C as above."""
    C = rows.shape[1]
    wins = np.bincount(rows.argmax(axis=1), minlength=C) / len(rows)
    return bool(top.mean() >= max(0.15, 4 / C) and np.median(rows.min(axis=1)) <= 0.5 / C and (wins >= 0.02).sum() >= 3)
