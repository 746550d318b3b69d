"""Mistakes that are told by undoing them: the network then reads most of its samples, as it does not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .batch import Topology
from .diagnose_order import BETTER, EVIDENCE
from .errors import counted
from .patient import Floats, Patient

__all__ = [
    "FRAMES",
    "MORE_EVIDENCE",
    "MOST",
    "mixed_axes",
    "moved_by_one",
    "other_topology",
    "padded_in_front",
    "read_by_class",
    "readable",
    "shifted_blank",
]

#: Fewer frames than this do not show what the network usually does.
FRAMES = 20
#: So many nats of evidence leave no doubt, where EVIDENCE is not enough: a network that reads a part yet, no known
#: mistake.
MORE_EVIDENCE = 20.0
#: So many of all samples together, most of which gain some: a long sample pays for each blank, however well it is read.
LONG_EVIDENCE = 3 * MORE_EVIDENCE
#: At least so many labels, or pairs of equal ones, must speak for the other topology, in this share of the samples that
#: have any: errors of a network are at a few places only.
PLACES, MOST = 5, 0.8
#: More than this share of them is enough where all samples together leave no doubt.
HALF = 0.5
#: And each of them must cost so many nats more by the topology that was named: a network that holds labels pays ln 2
#: where it wavers, and more where it is sure; one that has not learned yet to say each label once wavers at some.
A_PLACE = 0.5

Look = Callable[[slice], npt.NDArray[Any]]


def moved_by_one(p: Patient) -> None:
    """Labels that count from 0 beside a blank of 0, or from 1 beside one that is the last class: the network reads each
    of them one class further. `wrong_labels` has left out those that are taken for the blank."""
    step = 1 if p.blank == 0 else -1
    left_out = [[k - step for k in row if k - step != p.blank] for row in p.moved]
    if not p.moved or p.labels != left_out:  # or corrected since
        return
    turned = p.turned(labels=p.moved)
    if not (told := readable(p)) or (losses := _put_right(p, turned, told)) is None:
        return
    now, then = losses
    at = next(i for i, finding in enumerate(p.findings) if finding.kind == "blank_in_targets")
    way, do = ("raised", "add 1 to") if step > 0 else ("lowered", "subtract 1 from")
    p.findings[at] = replace(
        p.findings[at],
        seen=f"{p.findings[at].seen}; with each label {way} by 1 the median loss of {counted(len(told), 'sample')} "
        f"would be {then:.4g}, and without those {now:.4g}",
        means=f"the labels count from {int(step < 0)}, where the network's count from {int(step > 0)}: its blank is "
        f"the {'first' if step > 0 else 'last'} class",
        do=f"{do} every label",
        sure="certain" if then < 0.2 * now else "likely",
    )
    p.change(labels=p.moved)


def shifted_blank(p: Patient) -> None:
    """The blank at the other end of the classes, and each label one class further: it is last in Keras, and mostly
    first elsewhere."""
    if p.blank not in (0, p.C - 1) or not (told := readable(p)):
        return
    blank, step = (p.C - 1, -1) if p.blank == 0 else (0, 1)
    turned = p.turned(blank=blank, labels=[[k + step for k in row] for row in p.labels])
    if (losses := _put_right(p, turned, told)) is None:
        return
    now, then = losses
    labels, which = ("lowered", "last") if step < 0 else ("raised", "first")
    p.find(
        "blank_unused",
        f"with blank={blank} and each label {labels} by 1 the median loss of {counted(len(told), 'sample')} would be "
        f"{then:.4g} instead of {now:.4g}",
        f"the network was trained with its {which} class as the blank, and with labels that count from {int(step > 0)}",
        f"pass blank={blank}{' (or -1, the last)' if step < 0 else ''}, and "
        + ("subtract 1 from" if step < 0 else "add 1 to")
        + " every label",
        "certain" if then < 0.2 * now else "likely",
    )
    p.change(blank=blank, labels=turned.labels)


def mixed_axes(p: Patient) -> None:
    """Time and batch that were exchanged by a reshape, which mixes the samples; of as many frames as samples, time and
    batch in each other's place."""
    T, N, _ = p.shape
    if min(T, N) < 2 or not (told := readable(p)):
        return
    # where the numbers of some samples lie: by frames, as they follow on each other in (T, N, C), or in (N, T, C)
    at, x = np.arange(T * N).reshape(T, N), p.given
    undone: dict[str, Look] = {
        "(N, T, C) to (T, N, C)": lambda some: _frames(x, at.reshape(N, T)[some].T),
        "(T, N, C) to (N, T, C)": lambda some: _frames(x, at.T.reshape(T, N)[:, some]),
        "(N, C, T) to (T, N, C)": lambda some: _by_class(_frames(x, at.reshape(N, T)[some])),
        "(N, C, T) to (N, T, C)": lambda some: _by_class(_frames(x, at.T.reshape(N, T)[some])),
    }
    if T == N:  # a reshape changes nothing there
        undone = {"": lambda some: x[some].transpose(1, 0, 2)} | {
            shapes: part for shapes, part in undone.items() if "C, T" in shapes
        }
    for shapes, look in undone.items():

        def part(some: slice, look: Look = look) -> Floats:
            return np.array(look(some), np.float64, order="C")

        if (losses := _put_right(p, p, told, part)) is None:
            continue
        now, then = losses
        would = f"the median loss of {counted(len(told), 'sample')} would be {then:.4g} instead of {now:.4g}"
        if shapes:
            seen, means = f"with a reshape from {shapes} undone {would}", "a reshape leaves the numbers where they lie"
            means = f"{means}: it mixes frames of different samples, where a transposition is needed"
            do = "transpose by (1, 0, 2) where the logits are reshaped, or pass them as they were with their own layout"
            if shapes.startswith("(N, C, T)"):
                means = means.replace("of different samples", "and classes")
                do = f"transpose by {(0, 2, 1) if shapes.endswith('(N, T, C)') else (2, 0, 1)} where they are reshaped"
        else:
            seen, means = f"T = N = {T}; with the two exchanged {would}", "the axes of time and batch are swapped"
            do = 'pass the other layout: layout="NTC" for (N, T, C), layout="TNC" for (T, N, C)'
        p.find("swapped_axes", seen, means, do, "certain" if then < 0.2 * now else "likely")
        p.change(x=part(slice(N)))
        return


def _frames(x: npt.NDArray[Any], at: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    """Frames by their numbers in the order of time, and of samples within it."""
    return np.asarray(x[at // x.shape[1], at % x.shape[1]])


def _by_class(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """(a few, T, C), whose numbers lie as those of (a few, C, T), as (T, a few, C)."""
    some, T, C = x.shape
    return x.reshape(some, C, T).transpose(2, 0, 1)


def padded_in_front(p: Patient) -> None:
    """Samples that end with the last frame and begin after their padding, be they reversed or not, while lengths count
    from the first."""
    T = p.shape[0]
    if p.frames.min(initial=T) == T or not (told := readable(p)):
        return
    at = np.arange(T)[:, None]
    as_well = _put_right(p, p.turned(labels=[row[::-1] for row in p.labels]), told)  # which `mismatch` tells
    for backwards in (False, True)[: 1 if as_well else 2]:
        frames = np.broadcast_to(T - 1 - at if backwards else np.minimum(at + T - p.frames, T - 1), (T, p.N))

        def part(some: slice, frames: npt.NDArray[np.int64] = frames) -> Floats:
            return np.take_along_axis(p.part(some), frames[:, some, None], axis=0)

        if (losses := _put_right(p, p, told, part)) is None:
            continue
        now, then = losses
        what, do = "of the last frames of each sample in place of the first", "pad inputs at their ends"
        if backwards:
            what, do = "with all T frames in reverse", "reverse each sample within its own length"
        p.find(
            "padded_frames",
            f"{what} the median loss of {counted(len(told), 'sample')} would be {then:.4g} instead of {now:.4g}",
            "the padding of the input stands before it, and input_lengths count from the first frame: they take in "
            "padding, and leave out as much of the sample",
            do,
            "certain" if then < 0.2 * now else "likely",
        )
        p.change(x=part(slice(p.N)))
        return


def other_topology(p: Patient) -> None:
    """The network was trained with the other topology: it holds a label for several frames, where each frame counts as
    another label; or it says equal labels side by side, where these count as one."""
    other: Topology = "simple" if p.topology == "ctc" else "ctc"
    turned = p.turned(topology=other)
    places = [p.repeats(n) if other == "simple" else len(p.labels[n]) for n in range(p.N)]
    told = [int(n) for n in np.flatnonzero(turned.fits) if places[n] and n not in p.lost]
    if p.count < FRAMES or sum(places[n] for n in told) < PLACES or p.C < 2 or not told:
        return
    if (losses := _put_right(p, turned, told)) is None:
        return
    now, then = losses
    costs = p.losses[told] - turned.losses[told]
    if not costs.sum() >= A_PLACE * sum(places[n] for n in told):
        return
    reads = (
        "equal labels in a row of frames for one" if other == "ctc" else "equal labels in a row of frames for as many"
    )
    p.find(
        "other_topology",
        f'with topology="{other}" the median loss of {counted(len(told), "sample")} would be {then:.4g} instead of '
        f"{now:.4g}",
        f"the network was trained to take {reads}",
        f'pass topology="{other}"',
        "likely",
    )
    p.change(topology=other)


def read_by_class(p: Patient | None, turned: Patient) -> tuple[float, float] | None:
    """The median loss of the samples with labels as they are, or where they cannot be read so (None) that of a network
    which knows nothing, and with time and classes exchanged, where that explains most of them."""
    told = [n for n, row in enumerate(turned.labels) if row]
    labels = sum(len(turned.labels[n]) for n in told)
    if turned.count < FRAMES or turned.C < 3 or labels * np.log(turned.C - 1) < EVIDENCE:
        return None
    if p is not None and not p.loss > min(p.constant_loss, p.uniform_loss):
        return None
    before = np.minimum(turned.constant_losses, turned.uniform_losses)
    if p is not None:
        before = np.minimum(before, p.losses)
    if (then := turned.losses_in_parts()) is None:
        return None
    gained = before[told] - then[told]
    if np.mean(then[told] < BETTER * before[told]) < MOST and not (
        np.mean(gained > 0) >= MOST and gained.sum() >= LONG_EVIDENCE
    ):
        return None
    return float(np.median((before if p is None else p.losses)[told])), float(np.median(then[told]))


def _put_right(
    p: Patient, turned: Patient, told: list[int], part: Callable[[slice], Floats] | None = None
) -> tuple[float, float] | None:
    """The median loss of these samples as they are, and with a mistake put right, where that explains most of them:
    by what is `turned`, whose logits `part` makes for some samples, if they are others."""
    now, among = p.losses, np.isin(np.arange(p.N), told)

    def too_few(then: Floats) -> bool:
        worse = ~(then < BETTER * now[: len(then)]) & among[: len(then)]
        return bool(worse.sum() > (1 - HALF) * len(told))

    if (then := turned.losses_in_parts(part, enough=too_few)) is None:
        return None
    if part is None:
        turned.__dict__["losses"] = then
    before = np.minimum(np.minimum(now, turned.constant_losses), turned.uniform_losses)[told]
    better = float(np.mean(then[told] < BETTER * before))
    # of a network that reads only a part yet, all samples together: they gain so much with this probability by chance
    if better < MOST and not (better > HALF and (before - then[told]).sum() >= MORE_EVIDENCE):
        return None
    return float(np.median(now[told])), float(np.median(then[told]))


def readable(p: Patient) -> list[int]:
    """The samples whose labels can tell; none where there are too few labels in all, or where the network reads them
    already."""
    told = [int(n) for n in np.flatnonzero(p.fits) if p.labels[n] and n not in p.lost]
    if p.count < FRAMES or p.C < 3 or sum(len(p.labels[n]) for n in told) * np.log(p.C - 1) < EVIDENCE:
        return []
    if p.loss <= min(p.constant_loss, p.uniform_loss):
        return []
    now, constant, uniform = (np.median(each[told]) for each in (p.losses, p.constant_losses, p.uniform_losses))
    return told if now > min(constant, uniform) else []
