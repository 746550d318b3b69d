"""Targets that are not what a CTC loss is to be given, though each of their labels is a class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain, groupby, pairwise
from math import lgamma

import numpy as np

from .diagnose_mismatch import MORE_EVIDENCE, MOST
from .diagnose_order import EVIDENCE
from .errors import brief, counted
from .patient import Patient, confident

__all__ = ["added_up", "frame_labels", "joined", "rewritten"]

#: In fewer frames labels may well be as many by chance.
FRAMES = 20
#: So many samples, and so many different readings, show a habit of those who wrote the targets.
SAMPLES = 3
#: So many labels for each class tell what another map makes of it.
TIMES = 3
#: So many classes that are others' in the targets are no errors of the network.
MERGED = 3
#: Mistakes of a network at the same place of each sample have at most this probability by chance, as -ln p.
UNLIKELY = 14.0
#: Where each frame counts as another label, a network means the same one twice if it is so sure of that, as the
#: logarithm of the odds: it is in doubt of one that it merely has not left off holding.
AGAIN = 3.0

Reading = tuple[int, ...]


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
    """What the network reads, to the last label, but for one thing that was done to the targets."""
    kept = [n for n in range(p.N) if n not in p.lost]
    outputs = p.outputs()
    if p.topology == "simple" and _held(p, kept, outputs):
        outputs = list(map(_once, outputs))
    readings, rows = [outputs[n] for n in kept], [tuple(p.labels[n]) for n in kept]
    unlike = [reading != row for reading, row in zip(readings, rows)]
    if p.C < 3 or sum(unlike) < SAMPLES or len(set(readings)) < SAMPLES:
        return
    found: list[tuple[list[int], str, str, str]] = []
    says = p.surest[p.best != p.blank]
    sure = bool(len(says) and says.mean() >= confident(p.C))
    wins = np.bincount(p.best, minlength=p.C)
    blanks: set[int] = (
        set() if sure else set(np.flatnonzero(wins > wins[p.blank]).tolist())
    )  # such a class says no text
    for rewrite, seen, means, do in _habits(readings, rows, p.C, "padding_in_targets" in p.kinds, sure, blanks):
        same = [rewrite(reading) == row for reading, row in zip(readings, rows)]
        told = [n for n, alike, other in zip(kept, same, unlike) if alike and other]
        if sum(same) < MOST * len(kept) or len(told) < max(SAMPLES, MOST * sum(unlike)):
            continue
        shared = sum(min(len(outputs[n]), len(p.labels[n])) for n in told)
        if shared * np.log(p.C - 1) < MORE_EVIDENCE:
            continue  # that little of what is read is in the targets may be by chance
        found.append((told, seen, means, do))
    if found:
        told, seen, means, do = max(found, key=lambda each: len(each[0]))  # of as many the first
        p.find("mismatch", f"{len(told)} of {p.N} samples {seen}", means, do, "likely", told)
        p.change(labels=[list(outputs[n]) if n in told else row for n, row in enumerate(p.labels)])
        return
    empty = [n for n in kept if not p.labels[n]]
    told = [n for n in empty if outputs[n]]
    well = [row for reading, row in zip(readings, rows) if row and reading == row]
    labels = sum(len(outputs[n]) for n in told)
    if len(told) < max(SAMPLES, MOST * len(empty)) or len(well) < MOST * (len(kept) - len(empty)):
        return
    trained = sure and 2 * wins[p.blank] > p.count  # sure of most classes, a network may be at random
    shown = labels if trained and 2 * len(empty) > len(kept) else min(labels, sum(map(len, well)))
    if shown * np.log(p.C - 1) < MORE_EVIDENCE or labels < 2 * len(told):
        return  # a label may be said to silence, and one or two may be read by chance
    n = told[0]
    p.find(
        "mismatch",
        f"{len(told)} of {p.N} samples have no labels for their target, and the network reads some there"
        f"{' as it does elsewhere' if well else ''}: sample {n} reads {brief(list(outputs[n]))}",
        "texts are missing, and their samples teach the network to say nothing",
        "see which texts were not found or not read; leave out samples without one",
        "likely",
        told,
    )
    p.change(labels=[list(outputs[n]) if n in told else row for n, row in enumerate(p.labels)])


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
    """Targets that tell by themselves, whatever the network says: each its labels twice, or each the one before it and
    more."""
    rows = [tuple(row) for row in p.labels]
    classes = len({label for row in rows for label in row})
    if p.N < SAMPLES or classes < 2 or len(set(rows)) < SAMPLES:
        return
    cure = "see where targets are put together: a list that is not emptied for the next sample, or the same row added "
    halves = [row[: len(row) // 2] for row in rows]
    if all(half + half == row for half, row in zip(halves, rows)):
        if sum(map(len, halves)) * np.log(classes) < MORE_EVIDENCE:
            return
        longest = max(halves, key=lambda half: len(half))
        p.find(
            "targets_added_up",
            f"each of the {p.N} targets is a row of labels twice, {brief(list(longest))} for one",
            "the labels of each sample were added to its target twice",
            cure + "again",
            "likely",
        )
        p.change(labels=[list(half) for half in halves])
        return
    if all(after[: len(row)] == row for row, after in pairwise(rows)) and len(rows[-1]) > len(rows[0]):
        if sum(map(len, rows[:-1])) * np.log(classes) < MORE_EVIDENCE:
            return
        p.find(
            "targets_added_up",
            f"each target begins with all of the one before it: they have {len(rows[0])} labels at first, and "
            f"{len(rows[-1])} in the end",
            "the labels of all samples before were left in each target",
            cure + "again",
            "likely",
        )
        p.change(labels=[list(row[len(before) :]) for before, row in pairwise([(), *rows])])


def _habits(
    readings: list[Reading], rows: list[Reading], C: int, padded: bool, sure: bool, blanks: set[int]
) -> list[tuple[Callable[[Reading], Reading], str, str, str]]:
    """(what makes a target of a reading, seen, means, do) of what these targets may have been through; where they were
    padded, a network that was trained with them says that too, and no class is missing; one that is not `sure` says
    another label for each by chance, if these are few, and one of `blanks` in the place of the blank."""
    habits: list[tuple[Callable[[Reading], Reading], str, str, str]] = []
    first, last = ({row[place] for row in rows if row} for place in (0, -1))
    begin, end = (tuple(ends) if len(ends) == 1 and min(map(len, rows)) else () for ends in (first, last))
    for before, after in ((begin, end), (begin, ()), ((), end)):
        if before or after:
            marks = [f"class {k} before it" for k in before] + [f"class {k} after it" for k in after]
            habits.append(
                (
                    _between(before, after),
                    f"have what the network reads for their target, with {' and '.join(marks)}",
                    "the targets hold marks of begin or end (BOS, EOS), which the network was not trained to say, or "
                    "has not learned to: no frame shows them",
                    "leave such marks out of the targets: the loss knows where they end",
                )
            )
    width = max(map(len, rows))
    # of few classes a label that is read by mistake is mostly one of those beside it, and is seen at the end alone
    if sum(len(reading[width:]) for reading in readings) * np.log(C - 1) >= MORE_EVIDENCE:
        habits.append(
            (
                lambda reading: reading[:width],
                f"have the first {width} labels that the network reads for their target, and no target has more",
                f"targets were cut to {counted(width, 'label')}: what is said after those counts as blank",
                "raise the length to which targets are cut, or leave out the samples that are longer",
            )
        )
    habits.append(
        (
            _once,
            "have what the network reads for their target, with equal labels in a row made one",
            "repeats were taken out of the targets, while the network was trained to say them",
            "leave repeats in the targets: the loss puts the blank between them itself",
        )
    )
    if end and len(set(map(len, rows))) == 1:
        habits.append(
            (
                lambda reading: reading + end * (width - len(reading)),
                f"have what the network reads for their target, and class {end[0]} after it up to {width} labels",
                f"the targets were padded with class {end[0]}, which is a label too, and so all of it counts as labels",
                "pass target_lengths, or pad with a number that no class has, such as -1",
            )
        )
    habits.append(
        (
            lambda reading: tuple(label for label in reading for _ in range(2)),
            "have what the network reads for their target, each label of it twice",
            "each label of a text was added to its target twice",
            "see where symbols become labels: one of each",
        )
    )
    for part, which in ((slice(None, None, 2), "second, fourth"), (slice(1, None, 2), "first, third")):
        habits.append(
            (
                _cut(part),
                f"have what the network reads for their target, without its {which} label and so on",
                "every other label of a text was lost on the way to its target",
                "see how symbols become labels: a step of 2 in a slice, pairs of bytes taken for one",
            )
        )
    if len(between := {label for row in rows for label in row[1::2]}) == 1:
        habits.append(
            (
                lambda reading: tuple(label for one in reading for label in (one, *between))[:-1],
                f"have what the network reads for their target, with class {min(between)} between its labels",
                f"class {min(between)} was put between the labels of the targets, as a separator or a blank",
                "leave it out: the loss puts the blank between labels itself",
            )
        )
    for cut, which in ((slice(1, None), "first"), (slice(-1), "last")):
        if not _often(_cut(cut), readings, rows):
            continue
        habits.append(
            (
                _cut(cut),
                f"have what the network reads for their target, without its {which} label",
                f"the {which} label of each target was cut off",
                "see where texts are cut: what takes a mark off, or the end of a line, takes a label where none stands",
            )
        )
    collected: list[tuple[Callable[[Reading], Reading], str]] = [
        (lambda reading: tuple(dict.fromkeys(reading)), "each label once"),
        (lambda reading: tuple(sorted(set(reading))), "each label once, sorted"),
        (lambda reading: tuple(sorted(reading)), "sorted"),
    ]
    habits += [
        (
            collect,
            f"have what the network reads for their target, {how}",
            "the targets are no longer in the order in which they are said, or complete: they went through a set, "
            "numpy.unique or a sort",
            "keep the labels of a text as they follow on each other",
        )
        for collect, how in collected
        if _often(collect, readings, rows)
    ]
    missing = sorted({label for row in readings for label in row} - {label for row in rows for label in row} - blanks)
    left_out = sum(label in missing for row in readings for label in row)
    # labels that are read by mistake are mostly in no target of a small batch, and of any class
    if missing and not padded and left_out * np.log((C - 1) / len(missing)) >= MORE_EVIDENCE:
        which = f"class {missing[0]}" if len(missing) == 1 else f"classes {', '.join(map(str, missing))}"
        habits.append(
            (
                lambda reading: tuple(label for label in reading if label not in missing),
                f"have what the network reads for their target, without {which}",
                f"the targets lack {which} (a space, or what a map from symbols to classes does not know), while the "
                "network was trained to say it",
                "see where symbols become classes, and what is left out there",
            )
        )
    if (other := _other_classes(readings, rows, C, sure)) is not None:
        changed = [f"{label} for {k}" for k, label in sorted(other.items()) if label != k]
        fewer = len(set(other.values())) < len(other)
        habits.append(
            (
                lambda reading: tuple(other.get(label, label) for label in reading),
                f"have what the network reads for their target, but for {'fewer' if fewer else 'other'} classes: "
                f"{', '.join(changed[:8])}{', ...' * (len(changed) > 8)}",
                "what the network was trained to tell apart is one class here: text that was made lower case, lost its "
                "accents, or has one class for all that is rare"
                if fewer
                else "symbols have other classes here than in the network's training: another list of them, or the "
                "same in another order",
                "prepare texts as for the network's training, or train it with these"
                if fewer
                else "use the map from symbols to classes that the network was trained with",
            )
        )
    return habits


def _held(p: Patient, kept: list[int], outputs: list[Reading]) -> bool:
    """Whether equal labels in a row are mostly one that is held a frame too long, where each frame counts as another:
    the network is not sure of the second, and reads the targets no worse than that."""
    said = p.turned(labels=[list(row) for row in outputs])
    gained = float((p.losses - said.losses)[kept].sum())
    return gained < AGAIN * sum(a == b for n in kept for a, b in pairwise(outputs[n]))


def _once(reading: Reading) -> Reading:
    return tuple(label for label, _ in groupby(reading))


def _often(rewrite: Callable[[Reading], Reading], readings: list[Reading], rows: list[Reading]) -> bool:
    """Whether it is seen in more samples than labels that are read by mistake explain: these stand at any place."""
    told = [reading for reading, row in zip(readings, rows) if reading != row == rewrite(reading)]
    return bool(sum(np.log(1 + len(reading)) for reading in told) >= UNLIKELY)


def _cut(part: slice) -> Callable[[Reading], Reading]:
    return lambda reading: reading[part]


def _between(before: Reading, after: Reading) -> Callable[[Reading], Reading]:
    return lambda reading: (*before, *reading, *after)


def _other_classes(readings: list[Reading], rows: list[Reading], C: int, sure: bool) -> dict[int, int] | None:
    """For each class that is read the one in the targets, where each has one of its own, or where several have one;
    None where samples are too few to tell, or where all are moved by one step, which `mismatch` tells."""
    as_long = [(reading, row) for reading, row in zip(readings, rows) if len(reading) == len(row)]
    pairs = Counter(pair for reading, row in as_long for pair in zip(reading, row))
    other: dict[int, int] = {}
    for (read, label), _ in pairs.most_common():
        other.setdefault(read, label)
    if not other or sum(pairs.values()) < TIMES * len(other):
        return None
    if len(set(other.values())) == len(other):
        if not sure and len(other) * np.log(len(other)) - lgamma(len(other) + 1) < EVIDENCE:
            return None  # any map of so few classes has others for each by chance, and a fresh network is one
        return other if len({label - read for read, label in other.items()}) >= 3 else None
    changed = [read for read, label in other.items() if read != label]
    if len(changed) < MERGED:
        return None  # the network takes a class for another
    # how much the targets tell by their labels' frequencies, less what was chosen to fit them
    labels = Counter(label for _, row in as_long for label in row)
    told = -sum(count * np.log(count / labels.total()) for count in labels.values())
    return other if told - len(other) * np.log(C - 1) >= MORE_EVIDENCE else None
