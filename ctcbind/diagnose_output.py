"""What is wrong with what the network says: the wrong blank, all blanks, one class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from .edits import error_rate
from .errors import counted
from .finding import quoted
from .patient import Floats, Patient, confident

__all__ = [
    "all_blank",
    "blank_unused",
    "constant_output",
    "dominant_class",
    "engine_limit",
]

#: Fewer frames than this do not show what the network usually does.
FRAMES = 20
#: A class that has more than this of all probability may be what a learning rate that is too high has left.
RUN_AWAY = 0.999
#: What differs from frame to frame in so few of them tells no labels, at this share of the loss of a model that says
#: the same at every frame, and of the errors of one that says nothing.
NEARLY_ALL, NO_BETTER = 0.99, 0.8
DIFFERS = (
    "see that what reaches the last layer differs from frame to frame (activations that are not all 0, an input that "
    "is not all alike), and that its weights are not 0 and take part in training"
)
#: Of a sample that the network hears this share of the frames, at least, is not as the one before.
MOVES = 0.5


def blank_unused(p: Patient) -> None:
    """The blank never wins, and a class that is no label does what a blank does."""
    if p.count < FRAMES or p.C < 2 or not p.fits.any():
        return
    wins = np.bincount(p.best, minlength=p.C) / p.count
    used = {label for row in p.labels for label in row}
    free = [k for k in range(p.C) if k not in used and k != p.blank]
    if not free or wins[p.blank] > 0.01:
        return
    other = max(free, key=lambda k: wins[k])
    if wins[other] < 0.3 or p.surest[p.best == other].mean() < max(0.8, confident(p.C)):
        return
    # the median, so that a few samples that are wrong for other reasons do not hide it
    turned = p.turned(blank=other)
    now, then = (float(np.median(each.losses[p.fits])) for each in (p, turned))
    uniform, constant = (np.median(each[p.fits]) for each in (p.uniform_losses, turned.constant_losses))
    # that this class is never a label, among many, is evidence too, even where the loss with it is no better than
    # uniform
    if not then < 0.6 * now or not (then < min(uniform, constant) or sum(map(len, p.labels)) >= 3 * p.C):
        return
    p.find(
        "blank_unused",
        f"the blank, class {p.blank}, wins {wins[p.blank]:.1%} of the frames, class {other}, which is no label, "
        f"{wins[other]:.1%}; with blank={other} the median loss would be {then:.4g} instead of {now:.4g}",
        f"the network was trained with class {other} as its blank",
        f"pass blank={other}" + (" (or -1, the last)" if other == p.C - 1 else ""),
        "certain" if then < 0.2 * now else "likely",
    )
    p.change(blank=other)


def constant_output(p: Patient) -> None:
    """The same probabilities at every frame of every sample, where nothing found before says why."""
    if p.count < FRAMES or p.C < 2 or "not_finite" in p.kinds:
        return
    blocks = (block - block[:, :1] for block in p.blocks() if len(block))
    apart = next(blocks)
    if (apart != apart[0]).any() or any((block != apart[0]).any() for block in blocks):
        if not _constant_but_for_some(p):
            _constant_along(p)
        return
    do = DIFFERS
    if apart[0].any():
        seen = f"all {p.count} frames have the same probabilities, from {p.posteriors.min():.3g} to "
        seen += f"{p.posteriors.max():.3g}, that of class {p.best[0]}{', the blank' if p.best[0] == p.blank else ''}"
        means = "the output does not depend on the input: the last layer's weights are 0 (as some begin), or what "
        means += "reaches it is"
        if p.posteriors.max() > RUN_AWAY:
            means += "; or training has run away, and one class is so far above all others that nothing else counts"
        p.find("constant_output", seen, means, do, "certain")
        return
    seen = f"at all {p.count} frames each of the {p.C} classes has the probability {1 / p.C:.3g}"
    means = (
        "the network says nothing: its last layer begins at zero and has not been trained yet, which is harmless, or "
        "nothing but zeros reaches it"
    )
    p.find("constant_output", seen, means, f"if it is so after some steps too, {do}", "likely")


def _constant_but_for_some(p: Patient) -> bool:
    """The same probabilities at nearly every frame, which is not what the labels ask for."""
    if not p.fits.any() or not p.loss >= NO_BETTER * p.constant_loss:
        return False
    if error_rate(p.outputs(), p.labels) < NO_BETTER:
        return False
    first = next(block for block in p.blocks() if len(block))
    rows = [first[at] - first[at, 0] for at in (0, len(first) // 2, -1)]  # one of them is as most are
    row = max(rows, key=lambda row: _as_that(first, row))
    if _as_that(first, row) < len(first) / 2:
        return False
    alike = sum(_as_that(block, row) for block in p.blocks())
    if alike < NEARLY_ALL * p.count:
        return False
    top = int(row.argmax())
    p.find(
        "constant_output",
        f"{alike} of {p.count} frames have the same probabilities, the highest that of class {top}"
        f"{', the blank' if top == p.blank else ''}; loss a sample {p.loss:.4g}, of a constant model "
        f"{p.constant_loss:.4g}",
        "hardly anything of the input reaches the last layer (activations that have died, or are at their ends), or "
        "nearly all of the input is alike",
        f"{DIFFERS}; if it became so in training, begin anew with a lower learning rate",
        "likely",
    )
    return True


def _as_that(block: Floats, row: Floats) -> int:
    """How many frames have the same probabilities as `row`, whose first logit is 0."""
    return int((block - block[:, :1] == row).all(axis=1).sum())


def _constant_along(p: Patient) -> None:
    """The same probabilities at every frame of each sample, or in every sample at each frame."""

    def apart(n: int) -> Floats:
        x = p.part(slice(n, n + 1))[: p.frames[n], 0]
        return x - x[:, :1]

    if p.frames.sum() < FRAMES or p.frames.min(initial=2) < 2:
        return
    if all((each == each[0]).all() for each in map(apart, range(p.N))):
        p.find(
            "constant_output",
            f"each of the {p.N} samples has the same probabilities at all of its frames, and not those of all others",
            "the output depends on the sample, and not on the frame: time was summed over, or its last state repeated, "
            "before the last layer",
            "see that what reaches the last layer still has its axis of time (no pooling over it, no last hidden state "
            "in place of all of them, no broadcast of one frame)",
            "certain",
        )
    elif len({tuple(row) for row in p.labels}) > 1 and all(
        (one == other[: len(one)]).all() for one, other in pairwise(map(apart, np.argsort(p.frames, kind="stable")))
    ):
        p.find(
            "constant_output",
            f"at each frame all {p.N} samples have the same probabilities, though their targets differ",
            "the output depends on the frame, and not on the sample: one of them was given in place of all, or the "
            "input does not reach the last layer",
            "see that the samples of the batch differ (an index that stays where it is, a broadcast of one sample, an "
            "input of zeros), and that what is learned of them reaches the last layer",
            "certain",
        )
    else:
        _constant_here_and_there(p, apart)


def _constant_here_and_there(p: Patient, apart: Callable[[int], Floats]) -> None:
    """Some samples of which the network says the same at every frame, among others where it hardly ever does."""
    first, second = p.given[:2].astype(np.float64) - p.given[:2, :, :1].astype(np.float64)
    if (first != second).any(axis=1).all():
        return
    moves = [(each[1:] != each[:-1]).any(axis=1) for each in map(apart, range(p.N))]
    still = [n for n, each in enumerate(moves) if len(each) >= FRAMES and p.labels[n] and not each.any()]
    if not still or not all(each.mean() > MOVES for each in moves if each.any()):
        return
    p.find(
        "constant_output",
        f"{quoted(still)} of the {p.N} {'have' if len(still) > 1 else 'has'} the same probabilities at all frames, "
        "and the others have not",
        "nothing of these samples reaches the last layer: their inputs are all alike (empty or silent recordings, "
        "blank images, a part of the batch that was not filled), or a part of the network does not reach them",
        "look at their inputs, and leave out those that hold nothing; see that every part of the batch is filled",
        "certain",
        still,
    )


def all_blank(p: Patient) -> None:
    """The blank everywhere, and no better than a model that says the same at every frame."""
    p = p.without_made_up()
    emitted, labels = sum(map(len, p.outputs())), sum(map(len, p.labels))
    if p.count < FRAMES or not labels or p.C < 2 or not p.fits.any() or emitted > 0.05 * labels:
        return
    if "constant_output" in p.kinds:  # which is why
        return
    blank = float(p.posterior_of(p.blank).mean())
    if blank < confident(p.C) or not p.loss >= NO_BETTER * p.constant_loss:
        return
    do = "go on for some hundred steps if the loss still falls; else raise the learning rate or use Adam, begin with"
    if "exploding_gradients" in p.kinds:
        do = "begin anew, and lower the learning rate or warm it up; if it comes to this again, begin with"
    p.find(
        "all_blank",
        f"the blank wins {(p.best == p.blank).mean():.1%} of {p.count} frames with a mean probability of "
        f"{blank:.3g}; the labels together have {1 - blank:.3g} and need {labels / p.count:.3g} of the frames; "
        f"{counted(emitted, 'label')} read, where there are {labels}; loss a sample {p.loss:.4g}, of a uniform model "
        f"{p.uniform_loss:.4g}, of a constant one with mostly blanks {p.constant_loss:.4g}",
        "the network has learned that blanks are frequent, and nothing of its input yet: the plateau on which CTC "
        "trainings start, and some stay",
        f"{do} short samples, start the blank's bias low, and see that the input reaches the network (normalised, not "
        "all alike) and that the labels are those of the input",
        "certain" if p.loss >= 0.95 * p.constant_loss else "likely",
    )


def dominant_class(p: Patient) -> None:
    """One label wins everywhere, or all samples read the same one or two labels."""
    p = p.without_made_up()
    distinct = {tuple(row) for row in p.labels}
    used = {label for row in p.labels for label in row}
    if p.count < FRAMES or len(used) < 2 or p.C < 3 or not p.fits.any() or "constant_output" in p.kinds:
        return
    if not p.loss >= 0.6 * min(p.constant_loss, p.uniform_loss) or not p.loss >= 0.75 * _loss_by_frequency(p):
        return
    wins = np.bincount(p.best, minlength=p.C) / p.count
    top = int(wins.argmax())
    mean = float(p.surest[p.best == top].mean())
    losses = f"loss a sample {p.loss:.4g}, of a constant model {p.constant_loss:.4g}"
    means = "the network tells its samples not apart: it has learned what is frequent, and nothing of its input yet"
    do = (
        "see that the input reaches the network (normalised, not all alike) and belongs to these labels; shuffle the "
        "samples, lower the learning rate or clip gradients if the loss jumped before, and train on"
    )
    if top != p.blank and wins[top] >= 0.8 and mean >= confident(p.C) and not _tells_apart(p, top):
        seen = f"class {top} wins {wins[top]:.1%} of {p.count} frames with a mean probability of {mean:.3g}; {losses}"
        if top in (0, p.C - 1):
            do = f"see whether class {top} is the network's blank, and pass blank={top} then; else {do}"
        p.find("dominant_class", seen, means, do, "certain" if wins[top] > 0.95 else "likely")
        return
    if p.N < 3 or len(distinct) < 3 or top != p.blank or wins[top] < 0.5 or mean < 0.6:
        return
    output, count = Counter(p.outputs()).most_common(1)[0]
    if count >= 0.9 * p.N and 1 <= len(output) <= 2:
        seen = (
            f"{count} of {p.N} samples read {list(output)} and then blanks, while there are {len(distinct)} different "
            f"targets; {losses}"
        )
        p.find("dominant_class", seen, means, do, "likely")


def _loss_by_frequency(p: Patient) -> float:
    """The loss of a model that says each label as often as the targets have it, and the same at every frame."""
    count = np.bincount([label for row in p.labels for label in row], minlength=p.C)
    share = min(count.sum() / p.count, 0.9)
    row = np.log(np.maximum(share * count / count.sum(), 1e-6))
    row[p.blank] = np.log1p(-share)
    return p.loss_of(np.broadcast_to(row, p.shape))


def _tells_apart(p: Patient, top: int) -> bool:
    """Whether the samples differ in what else is said, with certainty: this class is a blank to the network."""
    rest = p.best != top
    if p.N < 3 or not rest.any() or p.surest[rest].mean() < confident(p.C):
        return False
    return len(set(p.outputs())) > p.N / 2


def engine_limit(p: Patient, reason: str, engine: str) -> None:
    """A batch that the engine asked for cannot take."""
    longest = max(range(p.N), key=lambda n: len(p.labels[n]))
    p.find(
        "engine_limit",
        f"engine {engine!r} cannot take this batch: {reason}; the longest target has {len(p.labels[longest])} labels, "
        f"that of {quoted([longest])}",
        "a loss raises EngineUnsupported for it",
        "engine='native' has no limit (for arrays in host memory), or split the longest samples",
        "certain",
    )
