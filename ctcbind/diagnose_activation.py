"""What was put between the last layer and the loss: a ReLU, a tanh, a clamp, a normalisation, a factor. A softmax has
its own file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .errors import counted
from .finding import CLASSES, Sure, quoted
from .patient import Floats, Patient

__all__ = ["FRAMES", "NUMBERS", "OF_ALL", "SATURATED", "SOFTMAX", "activation", "does_harm", "one_length", "scaled"]

#: With fewer frames that differ, or fewer numbers in them, nothing is said.
FRAMES, NUMBERS = 10, 200
#: Equal numbers at one end are a limit's if they are at least AT_LIMIT, at least this SHARE of all, and at least TIMES
#: as many as those of the number next to them.
AT_LIMIT, SHARE, TIMES = 20, 0.005, 10
#: Other numbers must come this near to such a limit, as a share of the whole range: a mask is far from everything.
NEAR = 0.05
#: Numbers of one sign have been through an activation that ends at 0 if enough of them are within CLOSE of it, as a
#: share of the largest, in classes that come farther from it than APART: without an end they would lie on either side.
#: Where they are negative, the exponentials of a frame must sum to more than TOGETHER, as those of a log-softmax never
#: do.
CLOSE, APART, TOGETHER = 1e-3, 0.05, 1.05
#: The lowest number that each activation with a dip gives.
DIPS = {"GELU": -0.16997, "GELU (by a tanh)": -0.17004, "SiLU": -0.278465, "Mish": -0.308843, "hard swish": -0.375}
#: The lowest logit must equal it to this share (LOWEST). This share of all (TURN) must lie about it, no farther than
#: ABOUT of its size, and they must be of this many classes (TURNING): there the curve turns back. These classes must
#: also come so far from it (AWAY): others are there because they hardly vary.
LOWEST, ABOUT, TURN, TURNING, AWAY = 1e-3, 0.05, 0.01, 3, 0.2
#: Norms are equal if they differ by no more than this share: those of random numbers differ more, of however many
#: classes.
ALIKE = 1e-4
#: A LayerNorm or RMSNorm adds a little to the variance, so that norms are below the root of the number of classes: the
#: largest by no more than the share NEARLY. The others, where the variance is smaller, differ from it by BELOW at most.
NEARLY, BELOW = 1e-3, 1e-2
#: Frames that are nearly alike have nearly equal norms without a normalisation. So these must differ by less than this
#: share of d^2 / norm, where d is the median distance of the frames from their mean.
BENT = 0.02
#: A tanh is saturated if at least this share of all numbers (OF_ALL) is at least as large as SATURATED.
SATURATED, OF_ALL = 0.98, 0.1
#: And where hardly any frame differs from the others, if nearly all numbers are.
NEARLY_ALL = 0.99
#: A limit does harm if even a network that is always right would pay this share (COSTS) of the loss of one that knows
#: nothing, and so many nats (MINDS): without labels one that knows nothing pays next to nothing.
COSTS, MINDS = 0.1, 0.1
#: Logits have been made smaller if the median loss is more than HALF of that of a network that knows nothing, and a
#: factor brings it below this share of both (BETTER).
BETTER, HALF = 0.1, 0.5
#: At half of the frames, at least, no class may be more than so many times as probable as each other one: a network is
#: more sure than that before it reads its labels.
SURE = float(np.e**2)
#: If it is more sure at some frames, the network has been trained, or makes errors. Then its loss must be more than
#: WORSE times that of the plateau of blanks, where no training leaves one that reads its labels, and less than BEGUN
#: times the uniform loss, where one is that has hardly begun. And larger logits must bring it below READS times that of
#: the plateau.
WORSE, READS, BEGUN = 1.5, 0.35, 0.75
#: The labels must tell so much, as -ln p, that no network reads them by chance.
EVIDENCE = 20.0
#: Findings after which nothing is looked for here: the softmax explains the numbers.
SOFTMAX = {"probabilities", "log_probabilities", "negated_log_probabilities", "softmax_twice", "log_base"}


def activation(p: Patient) -> None:
    """A normalisation, by the norms of frames; a ReLU, a tanh or a clamp, by the numbers that have come to the end of
    what it gives."""
    kept = p.without_lost()
    if SOFTMAX & p.kinds or kept.C < 3 or not kept.count:
        return
    if one_length(p, kept, "logits"):
        return
    ends = kept.ends
    if (ends[0] > 0 or ends[1] < 0) and _one_sided(p, np.unique(kept.rows, axis=0)):
        return
    if _dip(p, kept, ends):
        return
    if max(map(abs, ends)) > 1 and max(_how_often(kept, end) for end in ends) < AT_LIMIT:
        return  # neither at the ends of a tanh nor at others
    rows = np.unique(kept.rows, axis=0)  # a frame that is repeated tells no more than once
    if _tanh(p, kept.rows, rows) or len(rows) < FRAMES or rows.size < NUMBERS:
        return
    (lowest, highest), low, high = ends, _limit(rows, masks=True), _limit(-rows, masks=False)
    if low is None and high is None:
        used = {label for row in kept.labels for label in row}
        if lowest == 0 < highest and len(used) > 1 and not kept.rows[:, sorted(used)].any():
            _relu(p, kept, kept.rows == 0, "likely")  # or their weights are 0
        return
    if lowest == 0 and high is None and low is not None:
        _relu(p, kept, low, "certain")
        return
    most = 1 / (1 + (p.C - 1) * np.exp(lowest - highest)) if low is not None and high is not None else 1.0
    harm = kept.fits.any() and does_harm(kept, most)
    seen = [
        f"{counted(int(at.sum()), 'number')} of {rows.size} are {end:.6g}, the {which} of all"
        for at, end, which in ((low, lowest, "lowest"), (high, highest, "highest"))
        if at is not None
    ]
    p.find(
        "activation",
        f"of {len(rows)} frames that differ {' and '.join(seen)}",
        "the logits are clamped, or go through an activation with such an end (a ReLU6, a hard tanh): what is at the "
        "end has no gradient"
        + (f", and no class gets more than {most:.3g}" if most < 1 else "")
        + (", so that training stalls" if harm else ""),
        "give the loss the network's last layer as it is, without an activation; it takes logits of any size",
        "likely",
        harmless=not harm,
    )


def _how_often(p: Patient, number: float) -> int:
    return sum(int(np.count_nonzero(block == number)) for block in p.blocks())


def _limit(rows: Floats, *, masks: bool) -> npt.NDArray[np.bool_] | None:
    """Which numbers are at the lower end of all, if it is a limit: not that of a class that is the same at every frame,
    nor one that others do not come close to, where that may be a mask."""
    lowest, spread = rows.min(), np.ptp(rows)
    at = np.asarray(rows == lowest)
    count, per_frame = int(at.sum()), at.sum(axis=1)
    if count < max(AT_LIMIT, SHARE * rows.size):
        return None
    if masks and per_frame.min() == per_frame.max() <= rows.shape[1] / 2:
        return None  # as many in each frame are forbidden
    if lowest == 0 and per_frame.min() > 0 and np.median(per_frame) == 1:
        return None  # so it is, but for ties, of logits less the least of each frame
    if len(np.unique((near := rows[:, at.any(axis=0)])[near > lowest])) < AT_LIMIT:
        return None  # classes that hardly vary, and are rounded to few numbers
    above = rows[~at]
    if len(np.unique(above)) < AT_LIMIT or TIMES * int((above == above.min()).sum()) > count:
        return None
    if masks and not (above < lowest + NEAR * spread).any():
        return None
    return at if (at.any(axis=0) & ~at.all(axis=0)).any() else None


def _one_sided(p: Patient, rows: Floats) -> bool:
    """Numbers that come as near to 0 as those of a softplus or a log-sigmoid, and never reach it."""
    if len(rows) < FRAMES or rows.size < NUMBERS:
        return False
    positive = bool(rows.min() > 0)
    x = np.abs(rows)
    close = x < CLOSE * x.max()
    near = close & (x.max(axis=0) > APART * x.max())
    # what has no end there lies on either side
    if near.sum() < AT_LIMIT or not near.any(axis=1).mean() > OF_ALL or not near.mean() > SHARE:
        return False
    # the exponentials of a log-softmax of which some classes were left out are no more than 1 together
    if not positive and not (np.exp(rows).sum(axis=1) > TOGETHER).mean() > OF_ALL:
        return False
    side, name = (
        ("below", "a softplus or an exponential")
        if positive
        else ("above", "a log-sigmoid, or a log-softmax and a factor")
    )
    p.find(
        "activation",
        f"no logit is {side} 0, and {close.mean():.1%} of them are within {CLOSE * x.max():.3g} of it, the farthest "
        f"{x.max():.4g}",
        f"the logits have been through {name}, or another activation that ends at 0: what is near it has hardly a "
        "gradient",
        "give the loss the network's last layer as it is, without an activation",
        "likely",
        harmless=True,
    )
    return True


def _dip(p: Patient, kept: Patient, ends: tuple[float, float]) -> bool:
    """Numbers that go down to the dip of a GELU or the like, turn there, and go no lower."""
    lowest, highest = ends
    name = min(DIPS, key=lambda name: abs(DIPS[name] - lowest))
    size = -DIPS[name]
    if abs(lowest + size) > LOWEST * size or highest < size:
        return False
    rows = np.unique(kept.rows, axis=0)  # a frame that is repeated tells no more than once
    near = rows < lowest + ABOUT * size
    turning = (near.sum(axis=0) >= AT_LIMIT / TURNING) & (rows.max(axis=0) > lowest + AWAY * size)
    if near.sum() < max(AT_LIMIT, TURN * rows.size) or turning.sum() < TURNING:
        return False
    used = {label for row in kept.labels for label in row} | {kept.blank}
    dead = [k for k in sorted(used) if rows[:, k].max() <= 0]
    p.find(
        "activation",
        f"no logit is below {lowest:.4g}, the lowest that a {name} gives, and {near.mean():.1%} of them are near it"
        + (f"; those of {quoted(dead, words=CLASSES)} are above 0 at no frame" if dead else ""),
        f"the logits have been through a {name}: what is far below 0 before it has no gradient, and no class can be "
        "made improbable",
        "give the loss the network's last layer as it is, without an activation",
        "likely",
        harmless=not dead,
    )
    return True


def _relu(p: Patient, kept: Patient, at: npt.NDArray[np.bool_], sure: Sure) -> None:
    used = sorted({label for row in kept.labels for label in row} | {kept.blank})
    dead = [k for k in used if not kept.rows[:, k].any()]
    p.find(
        "activation",
        f"no logit is below 0, and {at.mean():.1%} of them are 0"
        + (f", those of {quoted(dead, words=CLASSES)} at every frame" if dead else ""),
        "the logits have been through a ReLU: what is 0 has no gradient, and a class that is 0 at every frame is never "
        "learned",
        "give the loss the network's last layer as it is, without an activation",
        sure,
        harmless=not dead,
    )


def does_harm(kept: Patient, most: float) -> bool:
    """Whether it costs a network much that no class can have more than this probability."""
    least = -np.log(most) * kept.frames[kept.fits].mean()
    return bool(least > max(COSTS * min(kept.constant_loss, kept.uniform_loss), MINDS))


def one_length(p: Patient, kept: Patient, what: str) -> bool:
    """Frames whose logits have all the same Euclidean norm, too small to be sure; `what` stands in `kept`."""
    with np.errstate(all="ignore"):
        norms = np.concatenate([np.linalg.norm(block, axis=1) for block in kept.blocks()])
        apart = np.ptp(norms)
    longest, root = norms.max(initial=0.0), np.sqrt(p.C)
    layer = root * (1 - NEARLY) <= longest <= root * (1 + ALIKE)
    if not apart <= (BELOW if layer else ALIKE) * longest or not kept.fits.any():
        return False
    rows = np.unique(kept.rows, axis=0)
    if len(rows) < FRAMES or len(np.unique(rows)) < NUMBERS:
        return False
    norm = float(np.median(norms))
    # where frames are nearly alike, so are their norms, be they normalised or not
    differ = float(np.median(np.linalg.norm(kept.rows - kept.rows.mean(axis=0), axis=1)))
    if not apart <= BENT * differ**2 / norm:
        return False
    most = 1 / (1 + (p.C - 1) * np.exp(-norm * np.sqrt(p.C / (p.C - 1))))  # one number above the rest, which are equal
    if not does_harm(kept, most):
        return False
    p.find(
        "activation",
        f"the vector of {what} of each frame has the Euclidean norm {norm:.4g}",
        "the logits are normalised to one length (an L2 normalisation, a LayerNorm or RMSNorm without weights, or "
        f"before their first step): no class gets more than {most:.3g}, and training stalls",
        "give the loss the network's last layer as it is, without a normalisation, or multiply by a weight that is "
        "learned",
        "certain" if apart <= ALIKE * longest else "likely",
    )
    return True


def _tanh(p: Patient, rows: Floats, unlike: Floats) -> bool:
    """Numbers between -1 and 1 of which many are near both."""
    large = np.abs(unlike)
    if large.max(initial=0.0) > 1 or unlike.shape[1] < 4:
        return False
    ends = large >= SATURATED
    if not (unlike[ends] > 0).any() or not (unlike[ends] < 0).any() or ends.mean() < OF_ALL:
        return False
    saturated = float((np.abs(rows) >= SATURATED).mean())
    few = len(unlike) < FRAMES or unlike.size < NUMBERS or ends.any(axis=0).sum() < 3
    if few and saturated < NEARLY_ALL and not (large == 1).all():
        return False
    p.find(
        "activation",
        f"all logits lie between {rows.min():.6g} and {rows.max():.6g}, and {saturated:.1%} of them "
        f"are within {1 - SATURATED:.2g} of -1 or 1",
        "these look like the outputs of a tanh, or are clamped to -1 and 1: after the softmax that the loss applies, "
        f"no class gets more than {np.e**2 / (np.e**2 + p.C - 1):.3g}, and training stalls",
        "give the loss the network's last layer as it is, without an activation",
        "likely",
    )
    p.change(x=np.arctanh(np.clip(p.x, -1 + 2.0**-24, 1 - 2.0**-24)))
    return True


def scaled(p: Patient) -> None:
    """Logits that are right but for a factor: a network that reads its labels, and cannot be sure of them."""
    told = [int(n) for n in np.flatnonzero(p.fits) if p.labels[n] and n not in p.lost]
    if (
        (SOFTMAX - {"log_probabilities"}) & p.kinds
        or any(finding.kind == "activation" and not finding.harmless for finding in p.findings)
        or p.C < 3
        or sum(len(p.labels[n]) for n in told) * np.log(p.C - 1) < EVIDENCE
    ):
        return

    each = p.losses, p.constant_losses, p.uniform_losses
    now, constant, uniform = (float(np.median(losses[told])) for losses in each)
    ignorant = min(constant, uniform)
    top, limit = p.surest, SURE / (SURE + p.C - 1)
    if not now > HALF * ignorant or np.median(top) > limit:
        return
    bound, nowhere = BETTER * min(now, ignorant), top.max() <= limit
    if not nowhere:
        if not WORSE * ignorant < now < BEGUN * uniform:
            return
        bound = min(BETTER * now, READS * ignorant)

    def median(factor: int) -> float:
        return p.median_in_parts(bound, lambda some: factor * p.part(some), told=told)

    larger = ((median(factor), factor) for factor in (4, 10, 30, 100, 300))
    then, factor = next((each for each in larger if each[0] < bound), (now, 0))
    if not factor:
        return  # it makes errors, and would be sure of them
    p.find(
        "scaled_logits",
        f"with the logits times {factor} the median loss would be {then:.4g} instead of {now:.4g}; the highest "
        f"probability of any class is {top.max():.3g}",
        f"the network reads these labels, and is not sure of {'any' if nowhere else 'most'}: its logits have been made "
        "smaller (divided by a temperature or by the root of a width, normalised, averaged)"
        + ("" if nowhere else ", or it has only begun to learn, and its labels are easy"),
        "give the loss the network's last layer as it is, and leave temperatures to decoding",
        "likely" if nowhere else "possible",
    )
    p.change(x=factor * p.x)
