"""What belongs to the samples of a batch, in another order than their logits."""

from __future__ import annotations

from itertools import combinations
from math import lgamma

import numpy as np

from .edits import edit_distance
from .errors import brief
from .finding import quoted
from .loss import ctc_loss
from .patient import Floats, Patient

__all__ = ["BETTER", "EVIDENCE", "TOLD", "exchanged_lengths", "nearest_targets"]

#: Undoing a mistake explains the loss if it brings it down to this share.
BETTER = 0.4
#: The labels must be so many that wrong ones would look like one of a few known mistakes only with this probability, as
#: -ln p. For targets in another order there are N! ways more.
EVIDENCE = 7.0
#: These findings explain by themselves why the network and the labels do not agree.
TOLD = {"all_blank", "dominant_class", "constant_output", "not_finite", "padding_in_targets"}
#: In larger batches what stands in each other's place is not looked for.
SAMPLES = 64
#: For so many logits, those of all samples with each target, it is seen by their losses, and else by what is read.
NUMBERS = 300_000_000
#: So many lengths must differ, and this share of the samples be worse off than under a constant model.
LENGTHS, SOME = 3, 1 / 3
#: At least this share of those that are worse off must gain by more frames.
LONGER = 0.2
#: Two are exchanged for so many nats, which rounding does not make.
CLOSER = 1e-6


def nearest_targets(p: Patient, readings: list[tuple[int, ...]]) -> list[int] | None:
    """For each sample another's target that is nearest to what it says, each target once; None where it is its own."""
    if not 1 < p.N <= SAMPLES:
        return None
    if p.N * p.given.size <= NUMBERS:
        far = np.empty((p.N, p.N))
        for some in p.samples():
            x, here = p.part(some), np.arange(p.N)[some]
            for step in range(p.N):  # the loss of each sample with the target of the one so many further
                others = (here + step) % p.N
                rows = [p.labels[k] for k in others.tolist()]
                far[here, others] = ctc_loss(x, rows, p.frames[some], blank=p.blank, topology=p.topology)
    else:
        far = np.array([[edit_distance(reading, row) for row in p.labels] for reading in readings], np.float64)
    found = _nearest(far)
    return found if found != sorted(found) else None


def _nearest(far: Floats) -> list[int]:
    """For each row its own column, as near as it can be: the nearest of all first, so that a sample that is read badly
    takes what is left."""
    order: dict[int, int] = {}
    left = set(range(len(far)))
    for _, _, n, k in sorted((far[n, k], k != n, n, k) for n in range(len(far)) for k in range(len(far))):
        if n not in order and k in left:
            order[n] = k
            left.remove(k)
    return [order[n] for n in range(len(far))]


def _exchanged(far: Floats, order: list[int]) -> list[int]:
    """Columns that stand in each other's place, exchanged until no two of them would be nearer so."""
    order, changed = list(order), True
    while changed:
        changed = False
        for a, b in combinations(range(len(order)), 2):
            here, there = far[a, order[a]] + far[b, order[b]], far[a, order[b]] + far[b, order[a]]
            if here - there > CLOSER:
                order[a], order[b], changed = order[b], order[a], True
    return order


def exchanged_lengths(p: Patient) -> None:
    """Input lengths in another order than the samples: frames of some are cut off, and padding of others counted."""
    if not 1 < p.N <= SAMPLES or p.N * p.given.size > NUMBERS or p.unknown or TOLD & p.kinds:
        return
    labels = sum(map(len, p.labels))
    if len(set(p.frames.tolist())) < LENGTHS or labels * np.log(max(p.C - 1, 1)) < EVIDENCE + lgamma(p.N + 1):
        return
    now = p.losses
    worse = (now > p.constant_losses) | ~p.fits
    if worse.mean() < SOME:
        return
    far = np.empty((p.N, p.N))
    for k, frames in enumerate(p.frames.tolist()):
        far[:, k] = ctc_loss(p.x, p.labels, np.full(p.N, frames), blank=p.blank, topology=p.topology)
    order = _exchanged(far, _nearest(far))
    then, frames = far[np.arange(p.N), order], p.frames[order]
    ignorant = ctc_loss(p.constant, p.labels, frames, blank=p.blank, topology=p.topology)
    # of samples that only now have room for their labels, any order is better that gives it to them
    roomy = worse & np.isfinite(now) & np.isfinite(then)
    if not (now - then)[roomy].sum() >= EVIDENCE + lgamma(p.N + 1):
        return
    before, after = float(np.median(now[worse])), float(np.median(then[worse]))
    if not after < BETTER * min(float(np.median(now[roomy])), float(np.median(ignorant[worse]))):
        return
    # where all frames do far better still, lengths are too short: those of others leave none for the longest samples
    whole = ctc_loss(p.x, p.labels, np.full(p.N, p.shape[0]), blank=p.blank, topology=p.topology)
    if whole.sum() < BETTER * then.sum():
        return
    # in another order some have lengths that are too short; of targets that were cut less is read in fewer frames
    longer = worse & (frames > p.frames) & (then < now)
    if longer.sum() < LONGER * worse.sum():
        return
    other = np.flatnonzero(p.frames != frames)
    p.find(
        "mismatch",
        f"{worse.sum()} of {p.N} samples are worse off than with a constant model, at a median loss of {before:.4g}; "
        f"with the input lengths in another order ({brief(frames.tolist())}) it would be {after:.4g}",
        f"input_lengths and logits are not in the same order: {quoted(other)} have the lengths of others",
        "sort and shuffle inputs, lengths and targets together, and turn none of them back alone",
        "likely",
        other,
    )
    p.change(frames=frames)
