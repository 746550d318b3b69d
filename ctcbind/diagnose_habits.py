"""What texts go through on the way to targets: each habit takes what a network reads and makes the target of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import lgamma
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .diagnose_order import EVIDENCE
from .diagnose_undone import MORE_EVIDENCE
from .edits import edit_distance
from .errors import counted
from .forks import open_properties

__all__ = ["TIMES", "Fit", "Habit", "Reading", "Texts", "habits", "once"]

#: So many labels for each class tell what another map makes of it.
TIMES = 3
#: So many labels of classes that are never read are no errors of the network.
UNHEARD = 10
#: To a class that a network was not trained to say it gives less than this many frames' probability for each label.
THOUGHT_OF = 0.1
#: Spaces and marks are no more than this share of a text: a network that says none of more has not learned yet.
UNHEARD_OF_ALL = 0.5
#: So many classes that are others' in the targets are no errors of the network.
MERGED = 3
#: A network may say labels twice, or some not yet, by mistake: then it makes more than this share of other errors.
FEWER = 0.25
#: So many labels may be lost at an end: the marks of begin and end that a tokenizer would have put there.
ENDS = (1, 2, 3)
#: Mistakes of a network at the same place of each sample have at most this probability by chance, as -ln p.
UNLIKELY = 14.0

Reading = tuple[int, ...]
Rewrite = Callable[[Reading], Reading]

READ = "have what the network reads for their target"


def _as_it_is(row: Reading) -> Reading:
    return row


class Habit(NamedTuple):
    """`rewrite` makes a target of a reading, but for what `forget` takes out of the target; `chosen` is how many
    classes were chosen to fit these targets. Unless it explains all but the share `errors` of what is read otherwise,
    the network may make such mistakes. The others are the sentences of the finding."""

    rewrite: Rewrite
    seen: str
    means: str
    do: str
    forget: Rewrite = _as_it_is
    chosen: int = 0
    errors: float = 0.5


class Fit(NamedTuple):
    """How a habit fits each sample: whether it changes anything there, and edits and labels that are left to tell."""

    touched: npt.NDArray[np.bool_]
    left: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


@open_properties
@dataclass(frozen=True)
class Texts:
    """What the network reads and what the targets hold, sample by sample, of `C` classes; `frames(k)`: of how many
    frames class k has the probability.

    Where targets were `padded`, a network that was trained with them says that too, and no class is missing; one that
    is not `sure` says another label for each by chance, if these are few, and one of `blanks` in the place of the
    blank."""

    readings: list[Reading]
    rows: list[Reading]
    C: int
    frames: Callable[[int], float]
    padded: bool
    sure: bool
    blanks: set[int]

    @cached_property
    def far(self) -> npt.NDArray[np.int64]:
        """The edits between each reading and its target."""
        return np.array(list(map(edit_distance, self.readings, self.rows)), np.int64)

    @property
    def width(self) -> int:
        return max(map(len, self.rows))

    def mark(self, place: int) -> Reading:
        """The label that all targets have first (0) or last (-1); none if one is empty."""
        ends = {row[place] for row in self.rows if row}
        return tuple(ends) if len(ends) == 1 and min(map(len, self.rows)) else ()

    def fit(self, habit: Habit) -> Fit:
        made, kept = list(map(habit.rewrite, self.readings)), list(map(habit.forget, self.rows))
        touched = [pair != other for pair, other in zip(zip(made, kept), zip(self.readings, self.rows))]
        left, size = list(map(edit_distance, made, kept)), list(map(len, kept))
        return Fit(np.array(touched, bool), np.array(left, np.int64), np.array(size, np.int64))

    def often(self, fit: Fit) -> bool:
        """Whether it is seen in more samples than labels that are read by mistake explain: these stand at any place."""
        told = fit.left < self.far
        sizes = np.array(list(map(len, self.readings)))
        return bool(np.log(1 + sizes)[told].sum() >= UNLIKELY)


def habits(texts: Texts) -> Iterator[Habit]:
    """What these targets may have been through; of those that explain as many samples, the likeliest first."""
    yield from _marks(texts)
    yield from _cut_short(texts)
    yield _REPEATS_LOST
    yield from _padded_with_a_label(texts)
    yield _TWICE
    yield from _EVERY_OTHER
    yield from _separated(texts)
    yield from _ends_lost(texts)
    yield from _out_of_order(texts)
    yield from _classes_missing(texts)
    yield from _other_classes(texts)
    yield from _classes_unheard(texts)


def once(reading: Reading) -> Reading:
    return tuple(label for label, _ in groupby(reading))


def _cut(part: slice) -> Rewrite:
    return lambda reading: reading[part]


def _marks(texts: Texts) -> Iterator[Habit]:
    begin, end = texts.mark(0), texts.mark(-1)
    for before, after in ((begin, end), (begin, ()), ((), end)):
        marks = [f"class {k} before it" for k in before] + [f"class {k} after it" for k in after]
        if marks:
            yield Habit(
                _between(before, after),
                f"{READ}, with {' and '.join(marks)}",
                "the targets hold marks of begin or end (BOS, EOS), which the network was not trained to say, or "
                "has not learned to: no frame shows them",
                "leave such marks out of the targets: the loss knows where they end",
            )


def _between(before: Reading, after: Reading) -> Rewrite:
    return lambda reading: (*before, *reading, *after)


def _cut_short(texts: Texts) -> Iterator[Habit]:
    width = texts.width
    # of few classes a label that is read by mistake is mostly one of those beside it, and is seen at the end alone
    if sum(len(reading[width:]) for reading in texts.readings) * np.log(texts.C - 1) >= MORE_EVIDENCE:
        yield Habit(
            _cut(slice(width)),
            f"have the first {width} labels that the network reads for their target, and no target has more",
            f"targets were cut to {counted(width, 'label')}: what is said after those counts as blank",
            "raise the length to which targets are cut, or leave out the samples that are longer",
        )


_REPEATS_LOST = Habit(
    once,
    f"{READ}, with equal labels in a row made one",
    "repeats were taken out of the targets, while the network was trained to say them",
    "leave repeats in the targets: the loss puts the blank between them itself",
    errors=FEWER,
)


def _padded_with_a_label(texts: Texts) -> Iterator[Habit]:
    width, ends = texts.width, Counter(row[-1:] for row in texts.rows)
    end, often = ends.most_common(1)[0]
    # the longest may end in others; a network that overlooks the last label of some lacks no more than that
    lacks = {width - len(reading) for reading in texts.readings if len(reading) < width}
    found = often == len(texts.rows) or (2 * often > len(texts.rows) and len(lacks) > 1)
    if end and found and len(set(map(len, texts.rows))) == 1:
        yield Habit(
            lambda reading: reading + end * (width - len(reading)),
            f"{READ}, and class {end[0]} after it up to {width} labels",
            f"the targets were padded with class {end[0]}, which is a label too, and so all of it counts as labels",
            "pass target_lengths, or pad with a number that no class has, such as -1",
        )


_TWICE = Habit(
    lambda reading: tuple(label for label in reading for _ in range(2)),
    f"{READ}, each label of it twice",
    "each label of a text was added to its target twice",
    "see where symbols become labels: one of each",
)

_EVERY_OTHER = [
    Habit(
        _cut(slice(first, None, 2)),
        f"{READ}, without its {lost} label and so on",
        "every other label of a text was lost on the way to its target",
        "see how symbols become labels: a step of 2 in a slice, pairs of bytes taken for one",
    )
    for first, lost in ((0, "second, fourth"), (1, "first, third"))
]


def _separated(texts: Texts) -> Iterator[Habit]:
    between = {label for row in texts.rows for label in row[1::2]}
    if len(between) == 1:
        yield Habit(
            lambda reading: tuple(label for one in reading for label in (one, *between))[:-1],
            f"{READ}, with class {min(between)} between its labels",
            f"class {min(between)} was put between the labels of the targets, as a separator or a blank",
            "leave it out: the loss puts the blank between labels itself",
        )


def _ends_lost(texts: Texts) -> Iterator[Habit]:
    for count in ENDS:
        labels, were = ("label", "was") if count == 1 else (f"{count} labels", "were")
        for part, end in ((slice(count, None), "first"), (slice(-count), "last")):
            habit = Habit(
                _cut(part),
                f"{READ}, without its {end} {labels}",
                f"the {end} {labels} of each target {were} cut off",
                "see where texts are cut: what takes a mark off, or the end of a line, takes a label where none stands",
            )
            if texts.often(texts.fit(habit)):
                yield habit


def _out_of_order(texts: Texts) -> Iterator[Habit]:
    collected: list[tuple[Rewrite, str]] = [
        (lambda reading: tuple(dict.fromkeys(reading)), "each label once"),
        (lambda reading: tuple(sorted(set(reading))), "each label once, sorted"),
        (lambda reading: tuple(sorted(reading)), "sorted"),
    ]
    for collect, how in collected:
        habit = Habit(
            collect,
            f"{READ}, {how}",
            "the targets are no longer in the order in which they are said, or complete: they went through a set, "
            "numpy.unique or a sort",
            "keep the labels of a text as they follow on each other",
            errors=FEWER,
        )
        if texts.often(texts.fit(habit)):
            yield habit


def _classes_missing(texts: Texts) -> Iterator[Habit]:
    read = Counter(label for reading in texts.readings for label in reading)
    written = {label for row in texts.rows for label in row}
    missing = sorted(read.keys() - written - texts.blanks)
    left_out = sum(read[label] for label in missing)
    if not 0 < len(missing) <= len(written) or texts.padded:
        return  # noise that is read as labels is of most classes
    # labels that are read by mistake are mostly in no target of a small batch, and of any class
    if left_out * np.log((texts.C - 1) / len(missing)) >= MORE_EVIDENCE:
        which = f"class {missing[0]}" if len(missing) == 1 else f"classes {', '.join(map(str, missing))}"
        yield Habit(
            lambda reading: tuple(label for label in reading if label not in missing),
            f"{READ}, without {which}",
            f"the targets lack {which} (a space, or what a map from symbols to classes does not know), while the "
            "network was trained to say it",
            "see where symbols become classes, and what is left out there",
            chosen=len(missing),
        )


def _classes_unheard(texts: Texts) -> Iterator[Habit]:
    said = {label for reading in texts.readings for label in reading}
    written = Counter(label for row in texts.rows for label in row if label not in said)
    # of many classes those that are rare may all be read by mistake; and those that it thinks of it is about to learn
    unheard = sorted(
        label for label, times in written.items() if times >= TIMES and texts.frames(label) < THOUGHT_OF * times
    )
    count = sum(written[label] for label in unheard)
    if unheard and not texts.padded and UNHEARD <= count <= UNHEARD_OF_ALL * sum(map(len, texts.rows)):
        which = f"class {unheard[0]}" if len(unheard) == 1 else f"classes {', '.join(map(str, unheard))}"
        yield Habit(
            _as_it_is,
            f"{READ}, and {which} among its labels, which it never reads",
            f"the network was not trained to say {which} (a space, marks of punctuation), or has not learned to yet",
            "prepare texts as for the network's training, or train it with these",
            lambda row: tuple(label for label in row if label not in unheard),
            len(unheard),
            FEWER,
        )


def _other_classes(texts: Texts) -> Iterator[Habit]:
    other = _map_of_classes(texts)
    changed = [f"{label} for {k}" for k, label in sorted(other.items()) if label != k]
    if not changed:
        return
    fewer = len(set(other.values())) < len(other)
    yield Habit(
        lambda reading: tuple(other.get(label, label) for label in reading),
        f"{READ}, but for {'fewer' if fewer else 'other'} classes: "
        f"{', '.join(changed[:8])}{', ...' * (len(changed) > 8)}",
        "what the network was trained to tell apart is one class here: text that was made lower case, lost its "
        "accents, or has one class for all that is rare"
        if fewer
        else "symbols have other classes here than in the network's training: another list of them, or the "
        "same in another order",
        "prepare texts as for the network's training, or train it with these"
        if fewer
        else "use the map from symbols to classes that the network was trained with",
        chosen=len(changed),
    )


def _map_of_classes(texts: Texts) -> dict[int, int]:
    """For each class that is read the one in the targets, where each has one of its own, or where several have one;
    nothing where samples are too few to tell, or where all are moved by one step, which `mismatch` tells."""
    as_long = [(reading, row) for reading, row in zip(texts.readings, texts.rows) if len(reading) == len(row)]
    pairs = Counter(pair for reading, row in as_long for pair in zip(reading, row))
    other: dict[int, int] = {}
    for (read, label), _ in pairs.most_common():
        other.setdefault(read, label)
    if not other or sum(pairs.values()) < TIMES * len(other):
        return {}
    if len(set(other.values())) == len(other):
        if not texts.sure and len(other) * np.log(len(other)) - lgamma(len(other) + 1) < EVIDENCE:
            return {}  # any map of so few classes has others for each by chance, and a fresh network is one
        return other if len({label - read for read, label in other.items()}) >= 3 else {}
    if sum(read != label for read, label in other.items()) < MERGED:
        return {}  # the network takes a class for another
    step = Counter(label - read for read, label in other.items()).most_common(1)[0][0]
    apart = [read for read, label in other.items() if label - read != step]
    more = sum(pairs[read, other[read]] - pairs[read, read + step] for read in apart)
    if step and more < TIMES * len(apart):
        return {}  # all are moved by one step, and some labels were lost
    # how much the targets tell by their labels' frequencies, less what was chosen to fit them
    labels = Counter(label for _, row in as_long for label in row)
    told = -sum(count * np.log(count / labels.total()) for count in labels.values())
    return other if told - len(other) * np.log(texts.C - 1) >= MORE_EVIDENCE else {}
