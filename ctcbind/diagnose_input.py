"""What is wrong with logits and targets as they were given: axes, numbers, blanks, padding. Each finding puts right
what it finds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .engines.reference import log_softmax
from .errors import brief, counted
from .finding import Sure, quoted
from .loss import ctc_loss
from .patient import Floats, Patient

__all__ = ["masked", "not_finite", "swapped_axes", "wrong_labels"]

#: The axes are swapped if neighbours along the batch differ by less than this share of what neighbours in time do.
NEARER = 0.2
#: What is taken for a mistake (such endings of all rows) has at most this probability by chance, as -ln p.
UNLIKELY = 14.0
#: Rows that all end in so many of one label were padded with it, where that is more than half of each.
ENDING = 8
#: That no label is of the class at one end is a hint if by chance it has at most this probability, as -ln p.
HINT = 2.0
#: Another class is the network's blank only if it is so many times as probable as the one that was named. The softmax
#: of normal logits has a relative deviation of sqrt(e - 1) = 1.3 per frame: means over a hundred frames differ by far
#: less.
CLEARLY = 2.0
#: Fewer frames are too few to tell a mask.
FRAMES = 10
#: A class is forbidden if it lies this much below the most probable one at all frames, and so many times as far as any
#: other ever does.
FORBIDDEN, FARTHER = 20.0, 3.0


def not_finite(p: Patient) -> None:
    """NaN, and +inf; samples that have lost all their paths to -inf."""
    if all(np.isfinite(part).all() for part in p.parts()):
        return
    with np.errstate(all="ignore"):
        wrong = (np.isnan(p.x) | (p.x == np.inf)).any(axis=2) & p.inside
    over = bool((p.x == np.inf).any())
    if wrong.any():
        samples = np.flatnonzero(wrong.any(axis=0))
        t = int(np.argmax(wrong[:, samples[0]]))
        p.find(
            "not_finite",
            f"{counted(int(wrong.sum()), 'frame')} with nan or +inf in {quoted(samples)}; the first is frame {t} of "
            f"sample {samples[0]}",
            "the network has overflowed or was given nan: the losses of these samples are nan, or mean nothing"
            + ("; float16 ends at 65504" if p.dtype == "float16" else ""),
            ("compute the last layer in float32, or scale what goes into it; " if p.dtype == "float16" else "")
            + "look for the first layer that gives them; lower the learning rate, clip gradients, check the features",
            "certain",
            samples,
        )
        p.lost |= frozenset(map(int, samples))
        p.made_up |= frozenset(np.flatnonzero(2 * wrong.sum(axis=0) > p.frames).tolist())
    p.change(x=_without(p.x, wrong))  # what the padding holds as well: lengths may have been too short
    _without_paths(p, over)
    if np.isneginf(p.x).any():
        p.change(x=np.maximum(p.x, -1e4))


def _without_paths(p: Patient, over: bool) -> None:
    """Samples that have lost all their paths to -inf; `over`: there was +inf as well."""
    dead = [n for n in np.flatnonzero(p.fits) if _without_mass(p, int(n))]
    if told := [n for n in dead if n not in p.lost]:
        cause, cure = "a mask forbids what the labels need", ""
        if over:
            cause = f"numbers have left the range of {p.dtype} downwards, as others have upwards (+inf); or {cause}"
            cure = "look for the first layer that overflows; if there is a mask, "
        p.find(
            "not_finite",
            f"every path of {quoted(told)} goes through a class with logit -inf",
            f"the loss is inf although there are frames enough: {cause}",
            cure + "do not mask the blank or classes that occur in the targets",
            "certain",
            told,
        )
    if dead:
        p.lost |= frozenset(map(int, dead))
        x = p.x.copy()
        x[:, dead] = 0.0  # they say nothing beyond that
        p.change(x=x)


def masked(p: Patient) -> None:
    """Labels of classes that a mask of a large finite number keeps from all frames."""
    kept = [n for n in range(p.N) if n not in p.lost and p.frames[n]]
    least, most = np.full(p.C, np.inf), np.zeros(p.C)
    for n in kept:
        row = p.part(slice(n, n + 1))[: p.frames[n], 0]
        below = row.max(axis=1, keepdims=True) - row
        least, most = np.minimum(least, below.min(axis=0)), np.maximum(most, below.max(axis=0))
    far = least >= FORBIDDEN
    if not kept or p.C < 3 or far.all() or not far.any() or not least[far].min() > FARTHER * most[~far].max():
        return
    if p.frames[kept].sum() < FRAMES or (least == most)[~far].all():
        return  # too few, or the same at every frame
    told = [n for n, row in enumerate(p.labels) if n not in p.lost and any(far[k] for k in row)]
    classes = sorted({k for n in told for k in p.labels[n] if far[k]})
    if not told:
        return
    cost = least[classes].min()
    which = f"class {classes[0]}" if len(classes) == 1 else f"one of the classes {brief(classes)}"
    p.find(
        "masked_labels",
        f"every path of {quoted(told)} goes through {which}, whose logits are {cost:.3g} or more below the most "
        f"probable class at all frames, while those of the others are at most {most[~far].max():.3g} below it",
        f"a mask forbids what the labels need: each such label costs {cost:.3g} or more, and no step can change that",
        "do not mask the blank or classes that occur in the targets",
        "certain",
        told,
    )
    p.change(x=np.where(far, p.x[:, :, ~far].min(axis=2, keepdims=True), p.x))


def _without(x: Floats, wrong: npt.NDArray[np.bool_]) -> Floats:
    """Each wrong frame replaced by the sample's first right one, by zeros where it has none or in the padding."""
    x = np.where(np.isnan(x) | (x == np.inf), 0.0, x)
    for n in np.flatnonzero(wrong.any(axis=0)):
        right = np.flatnonzero(~wrong[:, n])
        x[wrong[:, n], n] = x[right[0], n] if right.size else 0.0
    return x


def _without_mass(p: Patient, n: int) -> bool:
    frames = int(p.frames[n])
    x = p.x[:frames, n]
    if not np.isneginf(x).any():
        return False
    return bool(np.isinf(ctc_loss(x[:, None], [p.labels[n]], blank=p.blank, topology=p.topology)[0]))


def swapped_axes(p: Patient) -> None:
    """With as many frames as samples no count tells; but frames resemble their neighbours, and samples do not."""
    T, N, _ = p.shape
    if T != N or T < 8:
        return
    in_time = float(np.median(np.abs(np.diff(p.x, axis=0)).sum(axis=2)))
    in_batch = float(np.median(np.abs(np.diff(p.x, axis=1)).sum(axis=2)))
    if 0 < in_batch < NEARER * in_time and len({tuple(row) for row in p.labels}) > 1:
        p.find(
            "swapped_axes",
            f"T = N = {T}; neighbours along the batch differ by {in_batch:.3g}, neighbours in time by {in_time:.3g}",
            "what is read as time varies like a batch, and the batch like time: the axes are swapped",
            'pass the other layout: layout="NTC" for (N, T, C), layout="TNC" for (T, N, C)',
            "likely",
        )
        p.change(x=np.ascontiguousarray(p.x.transpose(1, 0, 2)))


def wrong_labels(p: Patient) -> None:
    """Padding that is counted as labels, and a blank among the labels."""
    _padding(p)
    _blank_in_targets(p)
    below = [n for n, row in enumerate(p.labels) if any(label < 0 for label in row)]
    if below:
        p.find(
            "invalid",
            f"there are negative labels in {quoted(below)}, with labels after them or in rows of different lengths",
            "the rule label_negative is broken: a loss refuses this",
            ("pad rows at their ends, not in front; " if _in_front(p, None) else "")
            + "ctcbind.check lists every place",
            "certain",
            below,
        )
    p.change(labels=[[label for label in row if 0 <= label < p.C and label != p.blank] for row in p.labels])


def _blank_in_targets(p: Patient) -> None:
    """Blanks that were written, another class that is the network's blank, labels that count from the other end, or
    padding in front: by which classes are no labels, and how probable those are."""
    samples = [n for n, row in enumerate(p.labels) if p.blank in row]
    if not samples:
        return
    count = sum(row.count(p.blank) for row in p.labels)
    free = set(range(p.C)).difference(*p.labels)
    mean = np.exp(log_softmax(p.rows)).mean(axis=0) if p.count else np.zeros(p.C)
    other = max(free, key=lambda k: (mean[k], k), default=p.blank)
    likelier = bool(mean[other] > mean[p.blank])
    # what a fresh network says by its weights is no blank, which few classes come near to
    known = likelier and mean[other] >= CLEARLY * np.delete(mean, other).max()
    # blanks that somebody wrote stand at every second place
    step = 0 if all(_every_second(p.labels[n], p.blank) for n in samples) else _one_further(p, free)
    as_well, do = "", "leave the blanks out of the targets"
    if step:
        as_well = f", or the labels count from {int(step < 0)}, as they do beside a blank that is the "
        as_well += "first class" if step < 0 else "last"
        ways = [
            "add 1 to every label, if they count from 0 and the network's blank is class 0",
            "pass blank=-1, if it is the last class",
        ]
        if step < 0:
            ways = [
                "pass blank=0, if that is the network's blank",
                "subtract 1 from every label, if they count from 1 and it is the last class",
            ]
        labels = sum(map(len, p.labels))
        if labels * -np.log1p(-1 / p.C) > HINT:
            do = "; ".join([*ways, f"{do}, if blanks are what was written"])
        else:
            do = ", or ".join([do, *ways])
    sure: Sure = "likely" if likelier or step else "certain"
    if known:
        means = (
            f"blank= is not the network's blank: class {other} is no label, and has mean probability "
            f"{mean[other]:.3g}, class {p.blank} {mean[p.blank]:.3g}"
        )
        do = f"pass blank={other}" + (" (or -1, the last)" if other == p.C - 1 else "")
    elif likelier:
        means = (
            f"blanks were written among the labels{as_well}, or blank= is not the network's blank: its "
            "probabilities do not tell, no class that is no label being clearly more probable"
        )
        if not step:
            last = " (blank=-1 where it is the last class)" if p.C - 1 in free else ""
            do += f", or pass the network's blank{last}"
    elif _in_front(p, p.blank):
        means = (
            "rows are padded with the blank in front: counted from the first, the labels of a sample begin with "
            "padding, and its last labels may be left out"
        )
        do = "pad rows at their ends, or pass lists of the labels alone"
        sure = "likely"
    else:
        means = (
            f"blanks were written among the labels{as_well}: the loss puts blanks in itself, and takes no label for one"
        )
    seen = f"class {p.blank}, the blank, stands {counted(count, 'time')} among the labels of {quoted(samples)}"
    p.find("blank_in_targets", seen, means, do, sure, samples)
    if known:
        p.change(blank=other)
    elif step:
        p.change(moved=[[k + step for k in row if 0 <= k + step < p.C and k + step != p.blank] for row in p.labels])


def _one_further(p: Patient, free: set[int]) -> int:
    """What labels may lack that count from the other end than the blank stands at: these never use the class there. 1
    where the blank is the first, -1 where it is the last, 0 if they do."""
    step = 1 if p.blank == 0 else -1 if p.blank == p.C - 1 else 0
    return step if p.C - 1 - p.blank in free else 0


def _in_front(p: Patient, value: int | None) -> bool:
    """Whether a value (None: numbers below 0) stands at the front of rows, in runs of several lengths, and nowhere
    else."""
    found = [[label < 0 if value is None else label == value for label in row] for row in p.labels]
    runs = [row.index(False) if False in row else len(row) for row in found]
    return len({run for run in runs if run}) > 1 and all(sum(row) == run for row, run in zip(found, runs))


def _every_second(row: list[int], blank: int) -> bool:
    """Whether blanks stand at every second place, and at no other, but for padding at the end."""
    while row and row[-1] == blank:
        row = row[:-1]
    first = row[:1] != [blank]
    return all((label == blank) == (place % 2 == first) for place, label in enumerate(row))


def _padding(p: Patient) -> None:
    """Rows of one length that end in runs of one value which stands nowhere else, or never in runs."""
    widths = {len(row) for row in p.labels}
    if len(widths) != 1 or p.N < 2 or (width := widths.pop()) < 2:
        return
    array = np.array(p.labels)
    for value in np.unique(array[:, -1]).tolist():
        away = array[:, ::-1] != value
        runs = np.where(away.any(axis=1), away.argmax(axis=1), width)
        inner = array[np.arange(width) < (width - runs)[:, None]]
        a_label = 0 <= value < p.C and value != p.blank
        within = int((inner == value).sum())
        if runs.max() < 2 or (within and not (a_label and _ends_unlike(array, value, runs))):
            continue
        if a_label and not within:
            kinds = len(np.unique(array))
            ended = runs[(runs > 0) & (runs < width)]
            score = (ended - 1).sum() * np.log(max(kinds, 2)) + inner.size * -np.log1p(-1 / max(kinds, 2))
            if kinds < 3 or len(set(runs.tolist())) < 2 or (runs >= 2).sum() * 3 < p.N or not inner.size:
                continue
            if score < UNLIKELY or (ended - 1).sum() * np.log(kinds) < UNLIKELY / 2:
                continue
        rows = np.flatnonzero(runs)
        # at the end of one row, beside others past the classes, it may be another label that the network lacks
        one_of_many = len(rows) == 1 and bool((inner >= p.C).any())
        least, most = int(runs[rows].min()), int(runs.max())
        times = f"{least} times" if least == most else f"{least} to {most} times"
        p.find(
            "padding_in_targets",
            f"all {p.N} targets have {width} labels, and {len(rows)} of them {'ends' if len(rows) == 1 else 'end'} in "
            f"{times} {value}, which stands "
            + (f"inside them {within} times, but hardly ever twice in a row" if within else "nowhere else"),
            "the padding of the targets is counted as labels: the network is to say it",
            "pass target_lengths with the number of labels before the padding, or an array (N, L) padded with negative "
            "numbers and no target_lengths",
            "possible" if (within and runs.min() < 2) or one_of_many else "likely" if a_label else "certain",
            rows,
        )
        p.change(labels=[row[: width - int(run)] for row, run in zip(p.labels, runs)])
        return


def _ends_unlike(array: npt.NDArray[np.int64], value: int, runs: npt.NDArray[np.int64]) -> bool:
    """Whether rows end in runs of a value, of many lengths and up to half a row, while inside them it stands alone; or
    each in a long run of it, which is most of the row."""
    rows, width = array.shape
    if runs.min() >= max(ENDING, width // 2 + 1):
        return True
    common = max(int(runs.min()) - 1, 0)  # of rows that are padded to more than the longest needs
    array, runs, width = array[:, : width - common], runs - common, width - common
    found = (array == value) & (np.arange(width) < (width - runs)[:, None])
    again = (int((found[:, 1:] & found[:, :-1]).sum()) + 1) / (int(found.sum()) + 2)
    ended = runs[(runs > 0) & (runs < width)]
    many = len(set(runs.tolist())) >= 4 and (runs >= 2).sum() * 3 >= rows
    long = runs.max() >= max(4, width // 2)
    # the most that the probability of so many more in all is, where each value is followed by itself as often as inside
    more, rows_ended = int((ended - 1).sum()), len(ended)
    if not more or (share := more / (more + rows_ended)) <= again:
        return False
    by_chance = more * np.log(share / again) + rows_ended * np.log((1 - share) / (1 - again))
    return bool(many and long and by_chance >= 2 * UNLIKELY)
