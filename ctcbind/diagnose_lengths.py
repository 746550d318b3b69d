"""Input lengths that are too short, and too few frames. Each finding puts right what it finds."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from .errors import brief, counted
from .loss import ctc_loss
from .patient import Floats, Patient

__all__ = ["cut_short", "infeasible", "short_lengths"]

#: What is taken for a mistake (such a gain in the losses) has at most this probability by chance, as -ln p.
UNLIKELY = 14.0
#: So many equal labels at the end of a target that does not fit may be padding.
RUN = 3
#: In fewer frames each sample may well have as many labels as frames.
FRAMES = 10
#: What networks divide the number of frames by.
DOWN_SAMPLING = (2, 3, 4, 6, 8, 16)


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
