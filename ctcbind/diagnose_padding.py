"""Padding of the input that is taken for time. Each finding puts right what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain

import numpy as np
import numpy.typing as npt

from .diagnose_activation import OF_ALL, SATURATED
from .diagnose_undone import MORE_EVIDENCE
from .edits import edit_distance
from .errors import brief
from .patient import Patient

__all__ = ["padded_frames", "said_in_padding"]

#: The frames at the end of a padded sample that may differ from the rest: convolutions see what lies beyond the edge.
EDGE = 16
#: A sample that changes for more frames after its length has another length, of whatever kind the others are.
MOVES_ON = 3
#: Of so many samples each that ends in frames of its own making tells whether these were counted, or are silence.
MARGINS = 4
#: Lengths that were counted alike differ by this many frames from what they should be, as they were rounded.
ROUNDED = 3
#: So many samples that read their targets and go on show that it is the padding of which they speak.
SAMPLES = 3
#: These are read with errors in this share of their labels, at most.
NEAR = 0.2
#: So many of them that go on have as many labels more (MOST), or the same ones, where it is no padding.
MOST, NEARLY_ALL = 0.75, 0.85
#: The first of them is done at this share of the time at which the last is, or before.
EARLY = 0.8
#: Frames hardly change if they do by this share of what others do: a recurrent layer comes to rest, but not to the bit.
STILL = 1e-3


def padded_frames(p: Patient) -> None:
    """Input lengths beyond the frame from which on samples hardly change any more: they all are the width, or were
    counted before a down-sampling and then cut to the width."""
    T = p.shape[0]
    if p.N < 2 or T < 6 or p.unknown:
        return
    # no network says 0 of all classes at the end of all samples, and before that it has had room for their labels
    says = np.any([part.any(axis=(1, 2)) for part in p.parts()], axis=0)
    spoken = int(np.flatnonzero(says).max(initial=-1)) + 1
    at_once = max(map(p.required, range(p.N))) <= spoken < T
    found = [ends for still in _still(p) if (ends := _ends(still, at_once, T - p.frames)) is not None]
    if not found:
        return
    runs, edge = max(found, key=lambda ends: np.count_nonzero(ends[0]))  # layers come to rest to the bit here and there
    tails = runs > 0
    # a sample without labels may be silence; one that has no room for its labels then was never filled
    left = T - edge - runs - 1
    tails &= np.array([bool(row) and left[n] >= p.required(n) for n, row in enumerate(p.labels)])
    if not tails.any():
        return
    samples = np.flatnonzero(tails)
    worst = int(np.where(tails, runs + p.frames, 0).argmax())
    many, rest = f"{len(samples)} of {p.N} samples end in frames that hardly change any more", int(runs[worst]) + 1
    but = f", but for the last {edge}" if edge else ""
    if (p.frames == T).all():
        seen = f"all input lengths are T = {T}, but {many}: sample {worst} in {rest}{but}"
    else:
        seen = (
            f"{many}, before their input lengths do: sample {worst} in {rest} of T = {T}{but}, and its input length is "
            f"{int(p.frames[worst])}"
        )
    own = tails & (p.frames < T)
    margins = bool(own.sum() >= MARGINS) and not _counted_alike(left[own], p.frames[own])
    p.find(
        "padded_frames",
        seen,
        "the padding of the input is counted as time, and the network learns to fill it with blanks"
        + ("; or these samples end in silence that is 0 to the bit, and all is well" if margins else ""),
        "pass input_lengths with the number of frames before the padding (after the network's own down-sampling)",
        "possible" if margins else "likely",
        samples,
    )
    p.change(frames=np.where(tails, left, p.frames))


def _counted_alike(spoken: npt.NDArray[np.int64], counted: npt.NDArray[np.int64]) -> bool:
    """Whether so many frames more, or so many times as many, are counted in all samples."""
    line = np.polyfit(spoken, counted, 1) if len(set(spoken.tolist())) > 1 else np.array([0, np.median(counted)])
    return bool((np.abs(np.polyval(line, spoken) - counted) <= ROUNDED).all())


def _still(p: Patient) -> Iterator[npt.NDArray[np.bool_]]:
    """(T - 1, N): which frames are the same as the one before; then, which hardly differ from it, but for those between
    0 and 1, or at the ends of -1 and 1: what a sure network says after a softmax or a tanh hardly differs anywhere."""
    same = np.empty((p.shape[0] - 1, p.N), bool)
    for some in p.samples():
        x = p.given[:, some]
        same[:, some] = here = x[1:, :, 0] == x[:-1, :, 0]  # which few are, and these are looked at
        same[:, some][here] = (x[1:][here] == x[:-1][here]).all(axis=1)
    yield same
    change = np.concatenate([np.abs(np.diff(x, axis=0)).max(axis=2) for x in p.parts()], axis=1)
    changes = change[np.isfinite(change)]
    if not changes.size:
        return
    lowest = largest = 0.0
    saturated = finite = 0
    for x in p.parts():
        values = x[np.isfinite(x)]
        lowest = min(lowest, float(values.min(initial=0.0)))
        largest = max(largest, float(np.abs(values).max(initial=0.0)))
        saturated += int(np.count_nonzero(np.abs(values) >= SATURATED))
        finite += values.size
        if largest > 1:
            break  # which tells
    if largest > 1 or (lowest < 0 and saturated / finite < OF_ALL):
        yield same | (change <= STILL * np.quantile(changes, 0.75))


def _ends(
    still: npt.NDArray[np.bool_], at_once: bool, known: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], int] | None:
    """(how many frames of each sample's padding are still, how many at the very end may not be); None: no padding but
    the frames that are `known` to be. `at_once`: it may begin at the same frame in all samples."""
    for edge in range(min(EDGE, (len(still) + 1) // 10) + 1):
        if (runs := _padded(still[::-1][edge:], at_once, np.maximum(known - edge, 0))) is not None:
            return runs, edge
    return None


def _padded(same: npt.NDArray[np.bool_], at_once: bool, known: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """How often, from the end, a frame is as the one before it: 0 for a sample that has no padding beyond the known,
    None where none has, where such frames are found elsewhere too, or where a sample goes on beyond its length."""
    pairs = len(same)
    runs = np.where(same.all(axis=0), pairs, (~same).argmax(axis=0))
    tails = runs - known >= max(3, pairs // 20)
    inner = sum(int(same[run:, n].sum()) for n, run in enumerate(runs))
    if tails.sum() < max(1, len(runs) // 4) or inner or (runs == pairs).any() or (known - runs > MOVES_ON).any():
        return None
    if len(set(runs.tolist())) < 2 and not at_once:
        return None
    return np.where(tails, runs, 0)


def said_in_padding(p: Patient) -> None:
    """Targets that are read to their end, and then labels that are not theirs: what a network says of padding, until
    it comes to rest there."""
    T, told_already = p.shape[0], "padded_frames" in p.kinds
    if p.N < SAMPLES or p.C < 3 or p.unknown or "padding_in_targets" in p.kinds:
        return
    if not told_already and (p.frames < T).any():
        return
    rows, readings = [tuple(row) for row in p.labels], p.outputs()
    starts = [p.begins(n).tolist() for n in range(p.N)]
    more = np.array([len(reading) - len(row) for reading, row in zip(readings, rows)])
    errors = [edit_distance(reading[: len(row)], row) for reading, row in zip(readings, rows)]
    read = [n for n in range(p.N) if rows[n] and n not in p.lost and more[n] >= 0 and errors[n] <= NEAR * len(rows[n])]
    told = [n for n in read if more[n]]
    if len(told) < SAMPLES or 2 * len(told) < p.N:
        return
    if 2 * sum(not errors[n] for n in told) < len(told):  # labels that were left out in between leave errors
        return
    if sum(len(rows[n]) for n in told) * np.log(p.C - 1) < MORE_EVIDENCE:
        return
    after = [readings[n][len(rows[n]) :] for n in told]
    ended = {int(p.winners[p.frames[n] - 1, n]) for n in told}
    rests = len(ended) == 1 and ended == set(chain(*after))  # all come to rest in one class, and say no other before
    if not rests and (_marks(after, len(read)) or not _of_padding(p, read, starts, more)):
        return
    ends = p.frames.copy()
    for k in np.flatnonzero(more > 0).tolist():
        ends[k] = starts[k][len(rows[k])]
    if not told_already:
        n = max(told, key=lambda n: int(more[n]))
        p.find(
            "padded_frames",
            f"all input lengths are T = {T}, and {len(told)} of {p.N} samples read their target and then other labels: "
            f"sample {n} reads {brief(list(readings[n][: len(rows[n])]))} in its first {int(ends[n])} frames, and "
            f"{brief(list(readings[n][len(rows[n]) :]))} after them",
            "the padding of the input is counted as time, and a network that was not trained to read it says anything "
            "there; or the ends of these texts are not in their targets",
            "pass input_lengths with the number of frames before the padding (after the network's own down-sampling); "
            "where all samples are that long, see where texts are cut",
            "likely" if rests else "possible",
            told,
        )
    p.change(frames=ends)


def _marks(after: list[tuple[int, ...]], read: int) -> bool:
    """Whether nearly all samples that are read go on by the same class, or by as many labels: marks that targets lack,
    or the ends that they were cut off. Of padding the longest samples have none."""
    labels, counts = Counter(chain(*after)), Counter(map(len, after))
    alike = max(labels.values()) >= NEARLY_ALL * labels.total() or max(counts.values()) >= MOST * len(after)
    return alike and len(after) >= NEARLY_ALL * read


def _of_padding(p: Patient, read: list[int], starts: list[list[int]], more: npt.NDArray[np.int64]) -> bool:
    """Whether labels after the targets are no ends that these lack: where targets were cut to a number of labels, the
    longest go on; or all lack as many labels."""
    told, longest = [n for n in read if more[n]], max(map(len, p.labels))
    done = np.array([starts[n][len(p.labels[n]) - 1] for n in read])
    if 2 * sum(len(p.labels[n]) < longest for n in told) < len(told) or not done.min() <= EARLY * done.max():
        return False
    return not more[read[int(done.argmax())]] or len({int(more[n]) for n in told}) > 1
