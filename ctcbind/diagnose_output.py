"""What is wrong with what the network says: the wrong blank, all blanks, one class, exploding numbers, no progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from math import isfinite, isnan

import numpy as np

from .errors import counted
from .finding import quoted
from .patient import Floats, Patient, confident

__all__ = [
    "all_blank",
    "blank_unused",
    "constant_output",
    "dominant_class",
    "engine_limit",
    "exploding",
    "infinite",
    "negative",
    "stalled",
    "unreached",
]

#: A network reads a sample if its loss is below this share of that of one which ignores its input: while it learns
#: what is frequent, it is hardly below.
BETTER = 0.8
#: The loss of a sample that is certain may be so far below 0 by rounding in float32.
ROUNDED = 1e-3
#: Fewer frames than this do not show what the network usually does.
FRAMES = 20
#: Of a sample that the network hears this share of the frames, at least, is not as the one before.
MOVES = 0.5
#: A network that merely makes errors has no loss above this many times that of a uniform model.
WORSE = 30.0
#: A gradient norm has exploded if it is so many times the median of the earlier ones and the batch is not read well, or
#: so many times the largest of them.
GROWTH, BEYOND = 10.0, 100.0
#: Of three or four steps the last one's must be above this as well.
IMMENSE = 1e5
#: If the loss was once this share of what it is now, the network had learned something, and has lost it.
LOST = 0.3
#: So many times it has risen to that from below, it comes back, and other batches are the reason.
TURNS = 3
#: A loss of so many times the first, the median and that of a uniform model is no batch of longer samples.
PEAK = 10.0
#: A loss rises from the start if it has risen to this many times the first; fewer losses than so many do not tell.
RISES, RISEN = 8, 1.2
#: What that means, and what to look at first.
UPHILL = "the loss rises from the first step, and so the updates go uphill"
SIGN = (
    "see first that gradient and update have the right sign (weights -= rate * gradient), and that the gradient with "
    "respect to the logits is not sent through a softmax once more; then "
)
#: No gradient reaches the weights if its norms stay below the first number, for so many steps, while the logits have
#: one above the last.
NOTHING, THROUGHOUT, SOMETHING = 1e-8, 3, 1e-3
#: Steps after which a network is better than a uniform model, if it learns at all.
STEPS = 50
#: Trainings that go well have left the plateau of blanks after so many, as a rule.
PLATEAU = 300
#: A network on this plateau has this share of the loss of a uniform model, or less: it says what is frequent.
FREQUENT = 0.5


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


def _emitted(p: Patient) -> tuple[list[tuple[int, ...]], int, int]:
    outputs = p.outputs()
    return outputs, sum(map(len, outputs)), sum(map(len, p.labels))


def constant_output(p: Patient) -> None:
    """The same probabilities at every frame of every sample, where nothing found before says why."""
    if p.count < FRAMES or p.C < 2 or "not_finite" in p.kinds:
        return
    blocks = (block - block[:, :1] for block in p.blocks() if len(block))
    apart = next(blocks)
    if (apart != apart[0]).any() or any((block != apart[0]).any() for block in blocks):
        _constant_along(p.without_made_up())
        return
    do = (
        "see that what reaches the last layer differs from frame to frame (activations that are not all 0, an input "
        "that is not all alike), and that its weights are not 0 and take part in training"
    )
    if apart[0].any():
        seen = f"all {p.count} frames have the same probabilities, from {p.posteriors.min():.3g} to "
        seen += f"{p.posteriors.max():.3g}, that of class {p.best[0]}{', the blank' if p.best[0] == p.blank else ''}"
        means = "the output does not depend on the input: the last layer's weights are 0, or what reaches it is"
        p.find("constant_output", seen, means, do, "certain")
        return
    seen = f"at all {p.count} frames each of the {p.C} classes has the probability {1 / p.C:.3g}"
    means = (
        "the network says nothing: its last layer begins at zero and has not been trained yet, which is harmless, or "
        "nothing but zeros reaches it"
    )
    p.find("constant_output", seen, means, f"if it is so after some steps too, {do}", "likely")


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
    _, emitted, labels = _emitted(p)
    if p.count < FRAMES or not labels or p.C < 2 or not p.fits.any() or emitted > 0.05 * labels:
        return
    if "constant_output" in p.kinds:  # which is why
        return
    blank = float(p.posterior_of(p.blank).mean())
    if blank < confident(p.C) or not p.loss >= 0.8 * p.constant_loss:
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


def exploding(p: Patient, losses: list[float], earlier: list[float], norms: tuple[float, ...]) -> None:
    """Gradient norms that leave all measure in the history, or logits that have."""
    order = [n for n in np.argsort(norms)[::-1].tolist() if n not in p.lost][:3]
    now = "the largest gradients with respect to the logits are " + ", ".join(
        f"{norms[n]:.3g} (sample {n}, at most {np.sqrt(2 * p.frames[n]):.3g})" for n in order
    )
    now = now if order else "no gradient is finite here"
    means = "a step was too long, and the weights have left the region in which the loss can lead them back"
    do = "clip gradients (by a norm of 1 to 5), lower the learning rate, warm it up; go back to the last good weights"
    if _rises(losses):
        means, do = f"{UPHILL}; or {means}", SIGN + do
    broken = next((step for step, value in enumerate(earlier) if not isfinite(value)), None)
    lost = next((step for step, value in enumerate(losses) if isnan(value)), None)
    if broken is not None:
        seen = f"the gradient norm of step {broken} is {earlier[broken]}"
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "certain", order)
    elif lost is not None:
        means += ", or that step was given nan"
        do += "; look through the features of that step"
        p.find("exploding_gradients", f"the loss of step {lost} is nan; {now}", means, do, "likely", order)
    elif _has_grown(p, earlier):
        middle = float(np.median(earlier[:-1]))
        seen = f"the last gradient norm is {earlier[-1]:.3g}, the median of the {len(earlier) - 1} before {middle:.3g}"
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "likely", order)
    elif losses and 0 <= (best := _lowest(losses)) < LOST * losses[-1] and not _varies(losses) and _reads_nothing(p):
        seen = f"the loss has been {best:.4g} for some steps, and is {losses[-1]:.4g}"
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "likely", order)
    elif (peak := _peak(losses, p.uniform_loss)) is not None and _reads_nothing(p):
        seen = f"the loss of step {peak} is {losses[peak]:.4g}, that of the first {losses[0]:.4g}"
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "likely", order)
    elif (p := p.without_made_up()).count >= FRAMES and p.fits.any() and p.loss > WORSE * p.uniform_loss:
        spread = max(float(np.ptp(block, axis=1).max(initial=0.0)) for block in p.blocks())
        apart = f"up to {spread:.3g}" if isfinite(spread) else "more than 1.8e+308"
        times = p.loss / p.uniform_loss
        much = f"{p.loss:.4g}, {times:{'.0f' if times < 1e6 else '.3g'}} times that of a uniform model"
        much = much if isfinite(p.loss) else "past the range of float64"
        seen = f"the loss a sample is {much}, with logits {apart} apart in a frame"
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "likely", order)


def _rises(losses: list[float]) -> bool:
    """Whether the loss has risen from its first step on, and never fell."""
    finite = [value for value in losses if isfinite(value)]
    if len(finite) < RISES or not finite[-1] > RISEN * finite[0] > 0:
        return False
    means = [float(np.mean(part)) for part in np.array_split(finite, min(len(finite), 10))]  # batches differ
    return all(later > 0.98 * before for before, later in pairwise(means))


def _reads_nothing(p: Patient) -> bool:
    """Whether the network is no better than one that ignores its input. A few samples of which it is sure, and wrong,
    may cost as much as all of them cost that one."""
    if not p.loss >= 0.9 * min(p.constant_loss, p.uniform_loss):
        return False
    ignorant = np.minimum(p.constant_losses, p.uniform_losses)
    return bool(np.mean((p.losses < BETTER * ignorant)[p.fits]) <= 0.5)


def _has_grown(p: Patient, norms: list[float]) -> bool:
    """Whether the last gradient norm is far above those before it. Where a network reads its batches well, a hard one
    among them has ten times the norm of the others, and nothing is lost."""
    if len(norms) < 5:  # the first steps have large ones, and other ones
        return len(norms) >= 3 and norms[-1] > max(IMMENSE, BEYOND * max(norms[:-1]))
    if norms[-1] > max(1.0, BEYOND * max(norms[:-1])):
        return True
    return norms[-1] > GROWTH * float(np.median(norms[:-1])) and not p.loss < 0.5 * min(p.constant_loss, p.uniform_loss)


def _peak(losses: list[float], uniform: float) -> int | None:
    """The step whose loss is beyond that of any batch a network would meet untrained; it may have fallen since."""
    finite = [value for value in losses if isfinite(value)]
    if len(finite) < 3 or not losses[0] > 0 or not max(finite) > PEAK * max(losses[0], np.median(finite), uniform):
        return None
    return losses.index(max(finite))


def _lowest(losses: list[float], width: int = 5) -> float:
    """The lowest that the loss was for some steps together, by their median."""
    if len(losses) <= width or not isfinite(losses[-1]):
        return np.inf
    return float(np.median(np.lib.stride_tricks.sliding_window_view(losses, width), axis=1).min())


def _varies(losses: list[float]) -> bool:
    """Whether the loss has been low and high in turns: batches of short and of long samples, from buckets or one by
    one, of which the last is one of the long."""
    high = np.asarray(losses) > np.sqrt(LOST) * losses[-1]
    return bool(np.count_nonzero(high[1:] & ~high[:-1]) >= TURNS)


def infinite(p: Patient, losses: list[float]) -> None:
    """Losses of inf in the history: one sample is enough."""
    steps = [step for step, value in enumerate(losses) if value == np.inf]
    if steps and not p.kinds & {"infeasible", "not_finite", "exploding_gradients"}:
        p.find(
            "not_finite",
            f"the loss of {'step' if len(steps) == 1 else f'{len(steps)} of {len(losses)} steps, the first of them'} "
            f"{steps[0]} is inf",
            "those batches hold samples without a path (fewer frames than their labels take), or logits of -inf where "
            "every path needs them; the mean of a batch with one of them is inf",
            "diagnose such a batch; then leave those samples out, or set zero_infinity=True",
            "certain",
        )


def negative(p: Patient, losses: list[float]) -> None:
    """A loss below 0 in the history, which no probability has."""
    step = next((step for step, value in enumerate(losses) if value < -ROUNDED), None)
    if step is not None:
        p.find(
            "negative_loss",
            f"the loss of step {step} is {losses[step]:.4g}",
            "minus the logarithm of a probability is never below 0: what computed it was given logits, or others that "
            "do not sum to 1, where it takes probabilities",
            "give that loss log_softmax of the logits, or give the logits to ctcbind; if something was added to the "
            "loss, give the history without it",
            "likely",
        )


def unreached(p: Patient, earlier: list[float], norms: tuple[float, ...]) -> None:
    """Gradient norms of 0 at the weights, while the logits have a gradient."""
    here = max((norm for n, norm in enumerate(norms) if n not in p.lost), default=0.0)
    if len(earlier) < THROUGHOUT or not max(earlier) < NOTHING or not min(earlier) >= 0 or not here > SOMETHING:
        return
    largest = "0" if max(earlier) == 0 else f"at most {max(earlier):.3g}"
    p.find(
        "not_learning",
        f"the gradient norms of all {len(earlier)} steps are {largest}, and the largest gradient with respect to the "
        f"logits is {here:.3g} here",
        "no gradient reaches the weights",
        "see that the loss is taken with autograd (no .detach(), no no_grad, no numbers where arrays are meant), that "
        "no layer is frozen, that backward runs before the norm is measured, and zero_grad not between the two",
        "certain",
    )


def stalled(p: Patient, losses: list[float]) -> None:
    """A loss that no longer falls, and is no better than that of a model which ignores its input."""
    losses = [value for value in losses if isfinite(value)]
    rises = _rises(losses)
    if (len(losses) < 20 and not rises) or not p.fits.any() or not _reads_nothing(p):
        return
    if p.kinds & {"mismatch", "exploding_gradients", "not_learning", "negative_loss"}:
        return  # it has learned, something else than these labels, or once; or that is told; or these are no losses
    half = len(losses) // 2
    before, last = losses[-half : -half // 2], losses[-(half // 2) :]
    fell = float(np.mean(before) - np.mean(last))
    by_chance = 2 * float(np.hypot(np.std(before), np.std(last))) / np.sqrt(len(last))
    early = len(losses) < PLATEAU and not rises  # where few and unlike batches soon hide that it falls
    least = 0.01 * abs(float(np.mean(before)))
    falls = fell > max(least, by_chance / 2 if early else by_chance)
    seen = (
        f"over the last {half} of {len(losses)} steps the loss went from {np.mean(before):.4g} to {np.mean(last):.4g}; "
        f"loss a sample here {p.loss:.4g}, of a constant model {p.constant_loss:.4g}, of a uniform one "
        f"{p.uniform_loss:.4g}"
    )
    if p.loss > 1.2 * p.uniform_loss and len(losses) >= STEPS and min(losses[-half:]) > 1.2 * p.uniform_loss:
        p.find(
            "not_learning",
            seen,
            (f"{UPHILL}; or " if rises else "")
            + "after so many steps the network is worse than one that knows nothing: the steps are too long",
            (SIGN if rises else "") + "lower the learning rate by ten times or more, clip gradients, and begin anew",
            "likely",
        )
    elif not falls:
        hidden = early and by_chance > 2 * least
        early = early and ("all_blank" in p.kinds or p.loss < FREQUENT * p.uniform_loss)
        p.find(
            "not_learning",
            seen,
            UPHILL
            if rises
            else "the steps lead nowhere, and the network is no better than one that ignores its input"
            + ("; trainings stay on this plateau for some hundred steps" if early else ""),
            (SIGN if rises else "")
            + "see that the gradient reaches the weights (sign, scale, frozen layers) and that targets belong to their "
            "inputs; then try a learning rate three times as high, and one three times as low",
            "possible" if early or hidden else "likely",
        )


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
