"""Targets that are not what a CTC loss is to be given, though each of their labels is a class."""

from __future__ import annotations

from itertools import chain, groupby, pairwise

import numpy as np
import numpy.typing as npt

from .diagnose_habits import TIMES, Fit, Habit, Reading, Texts, habits, once
from .diagnose_undone import MORE_EVIDENCE, MOST
from .edits import edit_distance
from .errors import brief, counted
from .patient import Patient, confident

__all__ = ["added_up", "frame_labels", "joined", "rewritten"]

#: In fewer frames labels may well be as many by chance.
FRAMES = 20
#: So many samples, and so many different readings, show a habit of those who wrote the targets.
SAMPLES = 3
#: A network reads a sample well if it errs in no more than this share of its labels.
NEAR = 0.2
#: Where each frame counts as another label, a network means the same one twice if it is so sure of that, as the
#: logarithm of the odds: it is in doubt of one that it merely has not left off holding.
AGAIN = 3.0


def frame_labels(p: Patient) -> None:
    """One label for each frame, most of them the same as the one before: an alignment."""
    T, rows = p.shape[0], p.labels
    if p.topology == "simple" or not p.N or any(len(row) not in (T, int(f)) for row, f in zip(rows, p.frames)):
        return
    rows = [row[: int(frames)] for row, frames in zip(rows, p.frames)]
    labels, merged = sum(map(len, rows)), [[label for label, _ in groupby(row)] for row in rows]
    again = labels - sum(map(len, merged))
    if labels < FRAMES or 2 * again < labels:
        return
    p.find(
        "frame_labels",
        f"each target has as many labels as its sample has frames, {labels} in all, {again} of them the same as the "
        "one before",
        "these are alignments, with a label for each frame: the loss takes labels as they follow on each other, and "
        "finds their frames itself",
        "merge equal labels in a row, and leave the blanks out: [label for label, _ in itertools.groupby(row) if label "
        f"!= {p.blank}]; or train on alignments with a cross-entropy of each frame",
        "certain",
    )
    p.change(labels=[[label for label in row if label != p.blank] for row in merged])


def rewritten(p: Patient) -> None:
    """What the network reads, to the last label or nearly, but for one thing that was done to the targets."""
    kept = [n for n in range(p.N) if n not in p.lost]
    outputs = p.outputs()
    if p.topology == "simple" and _held(p, kept, outputs):
        outputs = list(map(once, outputs))
    readings, rows = [outputs[n] for n in kept], [tuple(p.labels[n]) for n in kept]
    unlike = [reading != row for reading, row in zip(readings, rows)]
    if p.C < 3 or len(set(readings)) < SAMPLES:
        return
    says = p.surest[p.best != p.blank]
    sure = bool(len(says) and says.mean() >= confident(p.C))
    wins = np.bincount(p.best, minlength=p.C)
    trained = sure and 2 * wins[p.blank] > p.count  # sure of most classes, a network may be at random
    if sum(unlike) < SAMPLES:
        _texts_missing(p, {n: outputs[n] for n in kept}, trained)
        return
    # a class that wins more often than the blank says no text
    blanks: set[int] = set() if sure else set(np.flatnonzero(wins > wins[p.blank]).tolist())
    padded = "padding_in_targets" in p.kinds
    texts = Texts(readings, rows, p.C, lambda k: float(p.posterior_of(k).sum()), padded, sure, blanks)
    found: list[tuple[npt.NDArray[np.intp], Habit, Fit]] = []
    for habit in habits(texts):
        fit = texts.fit(habit)
        told = max(_to_the_last(texts, habit, fit), _nearly(texts, habit, fit), key=len)
        if len(told):
            found.append((told, habit, fit))
    if not found:
        _texts_missing(p, {n: outputs[n] for n in kept}, trained)
        return
    told, habit, fit = found[0]
    for each in found[1:]:  # of as good ones the first, unless one leaves less than half as many errors
        more, left = len(each[0]) - len(told), each[2].left[each[0]].sum()
        if more > 0 or (more == 0 and 2 * left < fit.left[told].sum()):
            told, habit, fit = each
    samples = [kept[i] for i in told]
    now, left, size = (int(each[told].sum()) for each in (texts.far, fit.left, fit.size))
    p.find(
        "mismatch",
        f"{len(told)} of {p.N} samples {habit.seen}"
        + (f"; that leaves {counted(left, 'error')} in {size} labels, of {now} as they are given" if left else ""),
        habit.means,
        habit.do,
        "likely",
        samples,
    )
    p.change(labels=_instead(p, {n: outputs[n] for n in samples}))


def _to_the_last(texts: Texts, habit: Habit, fit: Fit) -> npt.NDArray[np.intp]:
    """The samples that it explains to the last label; none where these are not most."""
    unlike, same = texts.far > 0, fit.left == 0
    told = np.flatnonzero(same & unlike)
    touched = unlike.sum()
    if texts.often(fit):  # one that changes a part of the readings says nothing of errors in the others
        touched = min(touched, fit.touched.sum())
    shared = sum(min(len(texts.readings[i]), len(texts.rows[i])) for i in told)
    most = same.sum() >= MOST * len(same) and len(told) >= max(SAMPLES, MOST * touched)
    most = most and texts.far[told].sum() >= 2 * habit.chosen  # else each may be one label that is read by mistake
    # that little of what is read is in the targets may be by chance
    return told if most and shared * np.log(texts.C - 1) >= MORE_EVIDENCE else told[:0]


def _nearly(texts: Texts, habit: Habit, fit: Fit) -> npt.NDArray[np.intp]:
    """The samples that it brings nearer, where the network makes errors too, if these are most of those that it
    changes, and it explains most of what seemed to be errors there."""
    touched = fit.touched
    told = np.flatnonzero(touched & (fit.left < texts.far))
    now, left = texts.far[touched].sum(), fit.left[touched].sum()
    errors = np.where(touched, fit.left, texts.far).sum()
    shared = (fit.size - fit.left)[told].sum()
    most = len(told) >= max(SAMPLES, MOST * touched.sum()) and left <= habit.errors * now and not texts.padded
    evidence = min(now - left - TIMES * habit.chosen, shared) * np.log(texts.C - 1)
    return told if most and errors <= NEAR * fit.size.sum() and evidence >= MORE_EVIDENCE else told[:0]


def _texts_missing(p: Patient, read: dict[int, Reading], trained: bool) -> None:
    """Targets without a label where the network reads some; one that is not `trained` may say anything. One or two of
    them may be silence that it reads wrong."""
    empty = [n for n in read if not p.labels[n]]
    told = [n for n in empty if read[n]]
    well = [row for n, row in read.items() if row and edit_distance(row, p.labels[n]) <= NEAR * len(p.labels[n])]
    labels = sum(len(read[n]) for n in told)
    few = len(told) < SAMPLES
    if not told or len(told) < MOST * len(empty) or len(well) < MOST * (len(read) - len(empty)):
        return
    if few and (not trained or len(well) < SAMPLES or labels <= 2 * len(told)):
        return
    shown = labels if trained and (few or 2 * len(empty) > len(read)) else min(labels, sum(map(len, well)))
    if shown * np.log(p.C - 1) < MORE_EVIDENCE or labels < 2 * len(told):
        return  # a label may be said to silence, and one or two may be read by chance
    n = max(told, key=lambda n: len(read[n])) if few else told[0]
    have = "has no labels for its target" if len(told) == 1 else "have no labels for their target"
    p.find(
        "mismatch",
        f"{len(told)} of {p.N} samples {have}, and the network reads some there"
        f"{' as it does elsewhere' if well else ''}: sample {n} reads {brief(list(read[n]))}",
        "texts are missing, and their samples teach the network to say nothing",
        "see which texts were not found or not read; leave out samples without one",
        "possible" if few else "likely",
        told,
    )
    if not few:
        p.change(labels=_instead(p, {n: read[n] for n in told}))


def joined(p: Patient) -> None:
    """Labels of two samples in one target, or those of one twice; one row of all labels that was cut at other
    places."""
    kept = [n for n in range(p.N) if n not in p.lost]
    outputs = p.outputs()
    readings, rows = [outputs[n] for n in kept], [tuple(p.labels[n]) for n in kept]
    unlike = [n for n, reading, row in zip(kept, readings, rows) if reading != row]
    if p.C < 3 or not unlike:
        return
    read, given = tuple(chain(*readings)), tuple(chain(*rows))
    if len(unlike) > 1 and read == given and _evidence(given, p) >= MORE_EVIDENCE:
        p.find(
            "mismatch",
            f"the targets of all samples in a row are what the network reads, to the last of {len(given)} labels, "
            f"but {len(unlike)} of {p.N} samples have labels of the one before or after",
            "one row of all labels was cut at other places: target_lengths are those of other samples, or in another "
            "order",
            "sort and shuffle targets and target_lengths together",
            "likely",
            unlike,
        )
        p.change(labels=_instead(p, dict(zip(kept, readings))))
        return
    others = {outputs[n]: n for n in reversed(kept) if outputs[n]}
    more = {n: rest for n in unlike if outputs[n] and (rest := _beyond(tuple(p.labels[n]), outputs[n], others))}
    ways = np.log(2 * p.N * p.N)  # before or after, those of any sample, in any
    told = {n: rest for n, rest in more.items() if _evidence(rest, p) > ways}
    if sum(_evidence(rest, p) - ways for rest in told.values()) < MORE_EVIDENCE:
        return
    twice = [n for n, rest in told.items() if rest == outputs[n]]
    n = next(iter(told))
    which = "that once more" if 2 * len(twice) > len(told) else f"what sample {others[told[n]]} reads"
    p.find(
        "mismatch",
        f"{len(told)} of {p.N} samples have what the network reads for their target, and other labels that it reads "
        f"too: sample {n} reads {brief(list(outputs[n]))}, and its target holds {which} as well",
        "the labels of a sample stand in its target twice"
        if 2 * len(twice) > len(told)
        else "the labels of two samples stand in one target",
        "see where targets are put together: a list that is not emptied for the next sample, the same row added again, "
        "rows cut at the wrong places",
        "likely",
        sorted(told),
    )
    p.change(labels=_instead(p, {n: outputs[n] for n in told}))


def _evidence(labels: Reading, p: Patient) -> float:
    """How unlikely it is that just these labels stand there by chance, as -ln p."""
    return float(len(labels) * np.log(p.C - 1))


def _instead(p: Patient, others: dict[int, Reading]) -> list[list[int]]:
    """The labels, with these in the place of those of some samples."""
    return [list(others.get(n, tuple(row))) for n, row in enumerate(p.labels)]


def _beyond(row: Reading, reading: Reading, others: dict[Reading, int]) -> Reading:
    """What a target holds beside what the sample reads, if a sample reads that."""
    size = len(reading)
    if row[:size] == reading and row[size:] in others:
        return row[size:]
    if row[-size:] == reading and row[:-size] in others:
        return row[:-size]
    return ()


def added_up(p: Patient) -> None:
    """Targets that tell by themselves, unless the network reads them: each its labels twice, or each the one before it
    and more."""
    rows = [tuple(row) for row in p.labels]
    classes = len({label for row in rows for label in row})
    if p.N < SAMPLES or classes < 2 or len(set(rows)) < SAMPLES:
        return
    cure = "see where targets are put together: a list that is not emptied for the next sample, or the same row added "
    halves = [row[: len(row) // 2] for row in rows]
    if all(half + half == row for half, row in zip(halves, rows)):
        labels = [list(half) for half in halves]
        if sum(map(len, halves)) * np.log(classes) < MORE_EVIDENCE or _better_as_given(p, labels):
            return
        longest = max(halves, key=lambda half: len(half))
        p.find(
            "targets_added_up",
            f"each of the {p.N} targets is a row of labels twice, {brief(list(longest))} for one",
            "the labels of each sample were added to its target twice",
            cure + "again",
            "likely",
        )
        p.change(labels=labels)
        return
    if all(after[: len(row)] == row for row, after in pairwise(rows)) and len(rows[-1]) > len(rows[0]):
        labels = [list(row[len(before) :]) for before, row in pairwise([(), *rows])]
        if sum(map(len, rows[:-1])) * np.log(classes) < MORE_EVIDENCE or _better_as_given(p, labels):
            return
        p.find(
            "targets_added_up",
            f"each target begins with all of the one before it: they have {len(rows[0])} labels at first, and "
            f"{len(rows[-1])} in the end",
            "the labels of all samples before were left in each target",
            cure + "again",
            "likely",
        )
        p.change(labels=labels)


def _better_as_given(p: Patient, labels: list[list[int]]) -> bool:
    """Whether the network reads the targets, and no worse than these labels in their place."""
    known = p.loss < min(p.constant_loss, p.uniform_loss)
    return known and bool(np.median(p.losses) <= np.median(p.turned(labels=labels).losses))


def _held(p: Patient, kept: list[int], outputs: list[Reading]) -> bool:
    """Whether equal labels in a row are mostly one that is held a frame too long, where each frame counts as another:
    the targets have fewer, the network is not sure of the second, and reads the targets no worse than that."""
    as_read, merged = (
        sum(edit_distance(read(outputs[n]), p.labels[n]) for n in kept) for read in (lambda output: output, once)
    )
    if merged >= as_read:
        return False
    said = p.turned(labels=[list(row) for row in outputs])
    gained = float((p.losses - said.losses)[kept].sum())
    return gained < AGAIN * sum(a == b for n in kept for a, b in pairwise(outputs[n]))
