"""A network that is sure of what it says, where that is not what the labels say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import lgamma

import numpy as np
import numpy.typing as npt

from .diagnose_order import BETTER, EVIDENCE, TOLD, nearest_targets
from .diagnose_undone import FRAMES, MORE_EVIDENCE, MOST, readable
from .edits import edit_distance, error_rate
from .errors import brief, counted
from .finding import quoted
from .patient import Floats, Patient, confident

__all__ = ["mismatch", "too_sure", "unexplained"]

#: A network is sure if the labels that win a frame have this mean probability.
SURE = 0.75
#: From this error rate on, what is read is something else than the target.
ERRORS = 0.5
#: A network that merely makes errors has no loss above this many times that of a model which ignores its input.
WORSE = 1.5
#: The same for single samples among others that are read well: these are not hard, but have others' targets. (Where
#: nearly all the others are, it need not be so much.) And beside a constant model, where nothing else was found.
MUCH_WORSE = 3.0
#: And if this share of the samples is read so well: where the network makes errors everywhere, these may be errors too.
WELL, SOME = 0.1, 1 / 3
#: A network has begun to learn if it makes this share, or less, of the errors on its own targets that it makes on
#: others'.
NEARER = 0.7
#: Where no known mistake explains it, the number of labels read must also be that of the targets within this factor:
#: what a network with large random weights reads is right or wrong by chance, and mostly longer.
ALIKE = 1.4
#: Smaller logits have less than this share of the loss, of one that ignores its input too, if all are too large. Errors
#: of a few samples do not tell.
LESS, FEW = 0.75, 3
#: The blank, or the class that the network uses as one, must win this share of the frames, and so many times its share
#: by chance, in so many separate runs.
BLANKS, TIMES_CHANCE, RUNS = 0.3, 3.0, 10
#: Where that class is not the blank that was named: its share of the frames, and the mean probability.
HALF, SURER = 0.5, 0.95
#: One that is not sure enough has a smaller loss with logits so many times as large.
LARGER = 3
#: A network that meets what it was not trained for is sure of its blanks, and of its labels less; and it says some.
BLANK_SURE, LABEL_SURE, SPOKEN = 0.65, 0.4, 0.05
#: So many samples, of so many different numbers of labels, are not read as long as they are by chance.
TOGETHER, LENGTHS = 8, 3


def mismatch(p: Patient) -> None:
    """Labels of other samples, in another order or by another map to classes; logits whose sign was turned."""
    names = np.flatnonzero(p.fits)  # what follows counts these alone, as the others have no loss that could tell
    if 2 * len(names) < p.N or TOLD & p.kinds:
        return
    p = p.without(frozenset(range(p.N)) - frozenset(names.tolist()))
    labels = sum(map(len, p.labels))
    if p.count < FRAMES or not labels or p.C < 3:
        return
    if labels * np.log(p.C - 1) < EVIDENCE + lgamma(p.N + 1):
        return
    now, constant = p.losses[p.fits], p.constant_losses[p.fits]
    ignorant = np.minimum(constant, p.uniform_losses[p.fits])
    readings = p.outputs()
    if not (np.mean(now > WORSE * ignorant) > 0.5 and _most(p, readings, now, constant, ignorant, names)):
        _some(p, readings, now, ignorant, names)


def _most(
    p: Patient,
    readings: list[tuple[int, ...]],
    now: Floats,
    constant: Floats,
    ignorant: Floats,
    names: npt.NDArray[np.intp],
) -> bool:
    """Most samples are read as something else, with certainty; whether that was found."""
    explained = next(_explained(p, readings, float(np.median(now)), float(np.median(constant)), names), None)
    if explained is not None:
        p.find("mismatch", *explained, "likely")
        return True
    if np.mean(now < WELL * ignorant) >= SOME:
        return False
    labels, emitted = sum(map(len, p.labels)), sum(map(len, readings))
    says = p.surest[p.best != p.blank]
    wrong, sure = error_rate(readings, p.labels), says.mean() if len(says) else 0.0
    if labels * np.log(p.C - 1) < MORE_EVIDENCE or not labels / ALIKE <= emitted <= ALIKE * labels:
        return False
    if sure < confident(p.C) or wrong < ERRORS or not (p.best == p.blank).any():
        return False  # with few classes random weights are as sure; one that never says the blank has not been trained
    if p.N > 1 and wrong < NEARER * error_rate(readings, p.labels[1:] + p.labels[:1]):
        return False  # it reads its own targets better than others', so it has begun to learn them
    worst = max(_unlike(p, readings), key=lambda n: float(now[n]))
    p.find(
        "mismatch",
        f"where a label wins it has a mean probability of {sure:.3g}; {counted(emitted, 'label')} read, where there "
        f"are {labels}, with an error rate of {wrong:.2f}; loss a sample {p.loss:.4g}, of a constant model "
        f"{p.constant_loss:.4g}",
        "the network is sure, and these are not the labels that it reads: they belong to other inputs, or symbols have "
        "other classes than in its training, or the inputs are prepared otherwise (turned, reversed, another scale), "
        "or it knows its training set by heart; or it is not trained, and its weights are large at random",
        f"lay what it reads beside the targets: sample {names[worst]} reads {brief(list(readings[worst]))}, its target "
        f"is {brief(p.labels[worst])}",
        "possible",
    )
    return True


def _unlike(p: Patient, readings: list[tuple[int, ...]], among: Iterable[int] | None = None) -> list[int]:
    """The samples that are not read as their targets; all of them where none is."""
    samples = list(range(p.N) if among is None else among)
    return [n for n in samples if readings[n] != tuple(p.labels[n])] or samples


def unexplained(p: Patient) -> None:
    """Where nothing harmful was found: a network that is sure, says mostly one class, as the trained ones do, and makes
    these labels far less probable than one that knows nothing."""
    if any(not finding.harmless for finding in p.findings) or not (told := readable(p)):
        return
    if sum(len(p.labels[n]) for n in told) * np.log(p.C - 1) < MORE_EVIDENCE:
        return
    each = p.losses, p.constant_losses, p.uniform_losses
    now, constant, uniform = (float(np.median(losses[told])) for losses in each)
    wins = np.bincount(p.best, minlength=p.C) / p.count
    top = int(wins.argmax())
    if not max(BLANKS, TIMES_CHANCE / p.C) <= wins[top] < 1:
        return
    runs = (p.winners == top) & p.inside
    runs[1:] &= ~runs[:-1]
    sure = [float(p.surest[here].mean()) for here in (p.best == top, p.best != top)]
    readings = p.outputs()
    wrong = error_rate(readings, p.labels)
    if runs.sum() < RUNS or wrong < ERRORS:
        return
    surely = min(sure) >= SURE and now > min(MUCH_WORSE * constant, WORSE * uniform)
    if not surely and not (top == p.blank and now > WORSE * constant and _strange(p, float(wins[top]), sure)):
        return
    if top != p.blank and (wins[top] < HALF or min(sure) < SURER) and not _as_many(p.turned(blank=top), told):
        return  # random biases favour some class, and seldom the blank
    if p.N > 1 and wrong < NEARER * error_rate(readings, p.labels[1:] + p.labels[:1]):
        return
    blank = "" if top == p.blank else f"; or class {top} is the network's blank, and its labels have other classes here"
    n = max(_unlike(p, readings, told), key=lambda n: len(p.labels[n]))
    p.find(
        "mismatch",
        f"class {top}{', the blank,' if top == p.blank else ''} wins {wins[top]:.1%} of the frames with a mean "
        f"probability of {sure[0]:.3g}, and other classes win the rest with {sure[1]:.3g}; median loss {now:.4g}, of a "
        f"constant model {constant:.4g}, of a uniform one {uniform:.4g}; the error rate is {wrong:.2f}",
        "the network is sure, as trained ones are, and says something else than these labels: they belong to other "
        f"inputs, or frames or classes are not in the order of its training{blank}, or inputs are prepared otherwise "
        "(turned, negated, another scale, far noisier); or it knows its training set by heart, or its weights are "
        "large at random",
        f"lay what it reads beside the targets: sample {n} reads {brief(list(readings[n]))}, its target is "
        f"{brief(p.labels[n])}; see every reshape and transposition before the loss",
        "possible",
    )


def _strange(p: Patient, blanks: float, sure: list[float]) -> bool:
    """Whether it meets what it was not trained for: it says blanks, with certainty, as no fresh network does, and some
    labels, of which it is less sure."""
    spoken = sum(map(len, p.outputs())) >= SPOKEN * sum(map(len, p.labels))
    return blanks >= HALF and sure[0] >= BLANK_SURE and sure[1] >= max(LABEL_SURE, 4 / p.C) and spoken


def too_sure(p: Patient) -> None:
    """Where nothing harmful was found: a network that reads most of these labels, and is so sure where it errs that it
    had better said nothing. With smaller logits its loss may be that of what it reads; else its errors are many."""
    if any(not finding.harmless for finding in p.findings) or not (told := readable(p)):
        return
    if sum(len(p.labels[n]) for n in told) * np.log(p.C - 1) < MORE_EVIDENCE:
        return
    ignorant = np.minimum(p.constant_losses, p.uniform_losses)[told]
    now = p.losses[told]
    if not WORSE * ignorant.mean() < now.mean() < np.inf or np.count_nonzero(now > WORSE * ignorant) < FEW:
        return
    readings, rows = [p.outputs()[n] for n in told], [p.labels[n] for n in told]
    wrong = error_rate(readings, rows)
    if wrong > ERRORS or wrong > NEARER * error_rate(readings, rows[1:] + rows[:1]):
        return

    def mean(factor: float) -> float:
        losses = p.losses_in_parts(lambda some: p.part(some) / factor)
        assert losses is not None, "all are asked for"
        return float(losses[told].mean())

    then, factor = min((mean(factor), factor) for factor in (3, 10, 30, 100, 300, 1000))
    if not then < LESS * min(ignorant.mean(), now.mean()):
        if not now.mean() > MUCH_WORSE * ignorant.mean() or mean(1 / LARGER) < now.mean():
            return
        n = max(_unlike(p, p.outputs(), told), key=lambda n: float(p.losses[n]))
        p.find(
            "mismatch",
            f"the error rate is {wrong:.2f}, and loss a sample {now.mean():.4g}, of a model that ignores its input "
            f"{ignorant.mean():.4g}; with smaller logits it would be {then:.4g} at best",
            "the network reads most of these labels, and says others with certainty where it does not: many labels are "
            "wrong, or it knows its training set by heart",
            f"lay what it reads beside the targets: sample {n} reads {brief(list(p.outputs()[n]))}, its target is "
            f"{brief(p.labels[n])}; if the labels are right, train with more samples, weight decay or dropout",
            "possible",
        )
        return
    p.find(
        "scaled_logits",
        f"loss a sample {now.mean():.4g}, of a model that ignores its input {ignorant.mean():.4g}, and with the logits "
        f"divided by {factor} it would be {then:.4g}; the error rate is {wrong:.2f}",
        "the network reads most of these labels, and each of its errors costs more than it may: its logits are too "
        "large, because its inputs are on another scale than in its training (pixels up to 255 in place of 1, features "
        "that were not normalised), its logits were multiplied, or it knows its training set by heart",
        "prepare the inputs as for its training, and give the loss its last layer as it is; if both are so, train with "
        "more samples, weight decay or dropout",
        "possible",
    )


def _as_many(p: Patient, told: list[int]) -> bool:
    """Whether the network reads as many labels as each target has, of lengths that differ."""
    wanted, read = [len(p.labels[n]) for n in told], [len(reading) for reading in p.outputs()]
    right = sum(read[n] == length for n, length in zip(told, wanted))
    return len(told) >= TOGETHER and len(set(wanted)) >= LENGTHS and right >= MOST * len(told)


def _some(
    p: Patient, readings: list[tuple[int, ...]], now: Floats, ignorant: Floats, names: npt.NDArray[np.intp]
) -> None:
    """Samples that are read as something else, with certainty, among others that are read well."""
    if not (np.median(now) < 0.5 * np.median(ignorant) or np.mean(now < WELL * ignorant) >= SOME):
        return
    errors = [edit_distance(reading, row) / max(len(row), 1) for reading, row in zip(readings, p.labels)]
    well = np.mean(now < WELL * ignorant) >= MOST  # and makes no such errors as are looked for
    times = 3 if well else 2

    def alike(n: int) -> bool:
        """In length: what reads far fewer labels, or far more, errs otherwise."""
        return 1 < len(readings[n]) <= times * len(p.labels[n]) <= 2 * times * len(readings[n])

    # labels that a loss refuses are gone, and nobody reads what is left
    broken = {n for finding in p.findings if finding.kind == "invalid" for n in finding.samples}
    worse = now > (WORSE if well else MUCH_WORSE) * ignorant
    sure = [n for n in range(p.N) if worse[n] and errors[n] > ERRORS and alike(n) and names[n] not in broken]
    if not sure:
        return
    n = max(sure, key=lambda n: float(now[n]))
    own = {k: edit_distance(readings[k], p.labels[k]) for k in sure}
    others = [k for k in sure if any(2 * edit_distance(readings[k], p.labels[i]) < own[k] for i in sure if i != k)]
    exchanged = len(others) > 1 and 2 * len(others) >= len(sure)
    if not exchanged:  # these may be the errors of a network that makes as many elsewhere
        rest = np.flatnonzero(now < ignorant).tolist()
        wrong = sum(edit_distance(readings[k], p.labels[k]) for k in rest)
        rate = (wrong + 1) / (sum(len(p.labels[k]) for k in rest) + 1)
        told = {k: _by_errors(own[k], rate * len(p.labels[k])) for k in sure}
        ways = lgamma(p.N + 1) - lgamma(len(sure) + 1) - lgamma(p.N - len(sure) + 1)  # to choose so many of them
        if sum(told.values()) - ways < EVIDENCE:  # not all together: then each by itself
            sure = [k for k in sure if told[k] >= EVIDENCE]
        if not sure:
            return
        n = max(sure, key=lambda n: float(now[n]))
    means = (
        "targets stand in each other's place: most of these samples read what another of them should"
        if exchanged
        else "their targets belong to other inputs, or were written down wrongly"
    )
    p.find(
        "mismatch",
        f"{len(sure)} of {p.N} samples are read as something else, at a median loss of {np.median(now[sure]):.4g}, "
        f"while that of the others is {np.median(np.delete(now, sure)):.4g}: sample "
        f"{names[n]} reads {brief(list(readings[n]))}, its target is {brief(p.labels[n])}",
        means,
        f"look at {quoted(names[sure])}, and at how inputs and targets are put together",
        "likely" if exchanged else "possible",
        names[sure],
    )


def _by_errors(edits: int, expected: float) -> float:
    """-ln of the most that the probability of so many edits can be, where errors alone make that many on average."""
    return edits * float(np.log(edits / expected)) - edits + expected if edits > expected else 0.0


def _explained(
    p: Patient, readings: list[tuple[int, ...]], now: float, constant: float, names: npt.NDArray[np.intp]
) -> Iterator[tuple[str, str, str]]:
    """(seen, means, do) of each simple mistake that would explain it."""
    chance = BETTER * min(now, constant)

    def median(labels: list[list[int]], turned: bool = False) -> float:
        return p.median_in_parts(chance, (lambda some: -p.part(some)) if turned else None, labels)

    def seen(what: str, then: float) -> str:
        return f"{what} the median loss would be {then:.4g} instead of {now:.4g}"

    others = [k for k in range(p.C) if k != p.blank]
    for step in (1, -1):
        moved = dict(zip(others, np.roll(others, -step).tolist()))
        if (then := median([[moved[k] for k in row] for row in p.labels])) < chance:
            yield (
                seen(f"with each label {'raised' if step > 0 else 'lowered'} by 1", then),
                "the labels are off by one: symbols have other classes here than in the network's training",
                "see where symbols become classes: whether they count from 0 or 1, and where the blank stands",
            )
    if (then := median([row[::-1] for row in p.labels])) < chance:
        yield (
            seen("with the labels of each sample reversed", then),
            "labels and frames run in opposite directions",
            "reverse the targets, or the input along time: one of them is read from its end",
        )
    if (then := median(p.labels, turned=True)) < chance:
        yield (
            seen("with the sign of the logits turned", then),
            "what the network finds probable counts as improbable",
            "turn the sign of the logits back",
        )
    order = nearest_targets(p, readings)
    if order is not None and (then := median([p.labels[n] for n in order])) < chance:
        other = [names[n] for n, k in enumerate(order) if n != k]
        first = ", ".join(map(str, names[order[:8]]))
        yield (
            seen(f"with the targets in another order ({first}{', ...' * (p.N > 8)})", then),
            f"inputs and targets are not in the same order: {quoted(other)} read what others should",
            "shuffle, sort and pad inputs and targets together",
        )
