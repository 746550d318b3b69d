"""What is wrong with lengths: padding taken for time, input lengths too short, too few frames. Each finding puts right
what it finds."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from .diagnose_activation import OF_ALL, SATURATED
from .errors import brief, counted
from .loss import ctc_loss
from .patient import Floats, Patient

__all__ = ["cut_short", "infeasible", "padded_frames", "short_lengths"]

#: What is taken for a mistake (such a gain in the losses) has at most this probability by chance, as -ln p.
UNLIKELY = 14.0
#: So many equal labels at the end of a target that does not fit may be padding.
RUN = 3
#: In fewer frames each sample may well have as many labels as frames.
FRAMES = 10
#: What networks divide the number of frames by.
DOWN_SAMPLING = (2, 3, 4, 6, 8, 16)
#: The frames at the end of a padded sample that may differ from the rest: convolutions see what lies beyond the edge.
EDGE = 16
#: A sample that changes for more frames after its length has another length, of whatever kind the others are.
MOVES_ON = 3
#: Of so many samples each that ends in frames of its own making tells whether these were counted, or are silence.
MARGINS = 4
#: Lengths that were counted alike differ by this many frames from what they should be, as they were rounded.
ROUNDED = 3
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


def cut_short(p: Patient) -> None:
    """Input lengths before whose end a sample has not read all of its target, and reads the rest of it after."""
    T = p.shape[0]
    if p.frames.min(initial=T) == T or p.unknown or p.C < 3 or {"short_lengths", "padded_frames"} & p.kinds:
        return
    read, whole = p.outputs(), p.turned(frames=np.full(p.N, T)).outputs()
    rows = [tuple(row) for row in p.labels]
    told = [n for n, row in enumerate(rows) if n not in p.lost and whole[n] == row != read[n] == row[: len(read[n])]]
    behind = sum(len(rows[n]) - len(read[n]) for n in told)
    ways = math.lgamma(p.N + 1) - math.lgamma(len(told) + 1) - math.lgamma(p.N - len(told) + 1)
    if behind * np.log(p.C - 1) < UNLIKELY + ways:
        return
    n = max(told, key=lambda n: len(rows[n]) - len(read[n]))
    p.find(
        "short_lengths",
        f"{len(told)} of {p.N} samples read the end of their target after their input length: sample {n} reads "
        f"{brief(list(read[n]))} in {counted(int(p.frames[n]), 'frame')}, and {brief(p.labels[n])}, its target, in all "
        f"{T}",
        "their input lengths are too short: counted otherwise than the network's layers round, or those of other "
        "samples; or the padding stands before the samples, and lengths count from the first frame",
        "pass input_lengths with the number of frames that leave the network, in the order of the samples; pad inputs "
        "at their ends",
        "likely",
        told,
    )
    frames, says = p.frames.copy(), p.winners != p.blank
    for n in told:
        frames[n] = T - int(says[::-1, n].argmax())
    p.change(frames=frames)


def short_lengths(p: Patient) -> None:
    """Input lengths that were divided once too often, while the network goes on speaking after them."""
    T, longest = p.shape[0], int(p.frames.max(initial=0))
    if longest == 1 and T >= FRAMES:
        labels_too = max(map(len, p.labels)) <= 1
        p.find(
            "short_lengths",
            f"all input lengths are 0 or 1, of T = {T} frames" + (", and all target lengths too" if labels_too else ""),
            "these are shares of the longest sample, from 0 to 1, and were cut to whole numbers: all other frames are "
            "left out",
            "multiply the shares by the number of frames first, and round then: (shares * T).round().astype(int)"
            + ("; those of the labels by the labels in the longest row" if labels_too else ""),
            "likely",
        )
        p.change(frames=np.full(p.N, T))
        return
    if not _half_is_left(p) or not any(p.labels):
        return

    def losses(x: Floats, frames: npt.NDArray[np.int64]) -> Floats:
        return np.asarray(ctc_loss(x, p.labels, frames, blank=p.blank, topology=p.topology))

    def median(x: Floats, frames: npt.NDArray[np.int64]) -> float:
        return float(np.median(losses(x, frames)))

    uniform = np.broadcast_to(0.0, p.x.shape)
    now = median(p.x, p.frames)
    if (
        p.N > 1
        and T >= FRAMES
        and p.frames.tolist() == [len(row) for row in p.labels]
        and not now < 0.5 * median(uniform, p.frames)
    ):
        p.find(
            "short_lengths",
            f"each input length is the number of the sample's labels, at most {longest} of T = {T} frames",
            "these are target_lengths, in the place of input_lengths: all other frames are left out",
            "pass them as target_lengths=, and input_lengths with the number of frames of each sample",
            "likely",
        )
        p.change(frames=np.full(p.N, T))
        return
    times = [k for k in DOWN_SAMPLING if k * (longest - 1) < T]
    undone = {k: np.minimum(k * p.frames + k - 1, T) for k in times}  # what a division rounds down is not left out
    tried = {k: losses(p.x, frames) for k, frames in undone.items()}
    # first that all have room: most may be so short that any of these gives them enough
    _, then, factor = min((int(np.isinf(each).sum()), float(np.median(each)), k) for k, each in tried.items())
    frames = undone[factor]
    blurred = np.where(p.inside[:, :, None], p.x, 0.0)  # more frames are more paths, whatever they say
    chance = min(now, median(uniform, frames), median(blurred, frames))
    if not then < 0.5 * chance or (chance - then) * p.N < UNLIKELY:
        return
    p.find(
        "short_lengths",
        f"the longest input length is {longest} of T = {T} frames; with {factor} times these lengths the median loss "
        f"would be {then:.4g} instead of {now:.4g}",
        "the input lengths are too short, and the network speaks after them: they were divided by a down-sampling that "
        "the network does not have, or twice",
        "pass input_lengths with the number of frames that leave the network",
        "certain" if then < 0.2 * now else "likely",
    )
    p.change(frames=frames)


def _half_is_left(p: Patient) -> bool:
    """Whether no sample takes more than half of the frames: a batch is wont to be as wide as its longest sample."""
    return bool(0 < p.frames.max(initial=0) <= p.shape[0] // 2)


def _end(row: list[int]) -> int:
    """How often the last label stands at the end of a target."""
    return next((k for k, label in enumerate(reversed(row)) if label != row[-1]), len(row))


def infeasible(p: Patient) -> None:
    """Samples without a path, and by how many frames."""
    samples = np.flatnonzero(~p.fits)
    if not samples.size:
        return
    short = {int(n): p.required(int(n)) - int(p.frames[n]) for n in samples}
    worst = sorted(short, key=lambda n: -short[n])[:5]
    told = "; ".join(
        f"sample {n}: {counted(len(p.labels[n]), 'label')} for {counted(int(p.frames[n]), 'frame')}, "
        f"{short[n]} fewer than the {p.required(n)} needed"
        for n in worst
    )
    T, again = p.shape[0], ""
    if _half_is_left(p) and all(p.required(int(n)) <= T for n in samples):
        again = f"see that input_lengths were not divided twice: the longest is {p.frames.max()} of T = {T} frames; or "
    if not p.frames[samples].any():
        again = "see where input_lengths are counted: those of these samples are 0; or "
    ends = [n for n in short if _end(p.labels[n]) >= RUN]
    if p.N > 1 and len(set(map(len, p.labels))) == 1 and 2 * len(ends) >= len(short):
        n = ends[0]
        again += (
            f"see whether the {_end(p.labels[n])} times {p.labels[n][-1]} at the end of target {n} are padding; or "
        )
    p.find(
        "infeasible",
        f"{len(samples)} of {p.N} samples have no path; {told}",
        "their labels do not fit into their frames (two equal labels need a blank between them): their loss is inf and "
        "their gradient 0, so that they teach nothing",
        again
        + "reduce the down-sampling of the network, split or drop these samples; zero_infinity=True only hides them",
        "certain",
        samples,
    )
