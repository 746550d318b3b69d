"""What lies side by side in memory, where a reshape has stood in the place of a transposition: whatever the network
says, fresh, on the plateau of blanks or trained, it says much the same at the next frame."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .patient import Floats, Patient

__all__ = ["reshaped"]

#: Neighbours in memory are neighbours in time if they differ by less than this share of what others do. In batches that
#: are well they differ by 0.8 times as much or more.
NEARER = 0.5
#: The same for classes, which a test of their order keeps from chance.
CLOSE = 0.7
#: A network reads its labels if its loss is below this share of that of one which knows nothing.
READS = 0.8
#: From so few frames to the next, or among so few classes, it does not tell.
STEPS, CLASSES = 12, 8
#: Classes are in the order of time if the way through them is so many standard deviations shorter than in so many
#: orders at random: few of them cannot be so by chance, whatever their biases. So many are looked at.
SHORTER, ORDERS, SOME = 6.0, 400, 32
#: So many numbers are looked at.
NUMBERS = 1 << 20


def reshaped(p: Patient) -> None:
    """Time and batch, or time and classes, that a reshape has exchanged. Where the network knows its labels
    `mixed_axes` has told that; this is seen before it has learned anything."""
    if "swapped_axes" in p.kinds or p.unknown or p.lost or not p.loss >= READS * min(p.constant_loss, p.uniform_loss):
        return
    _time_and_batch(p)
    if "swapped_axes" not in p.kinds:
        _time_and_classes(p)


def _time_and_batch(p: Patient) -> None:
    T, N, C = p.shape
    if N < 2 or T <= STEPS:
        return
    x = p.given[:, :, :: max(1, T * N * C // NUMBERS)]
    inside = p.inside
    over = inside[1:, 0] & inside[:-1, -1]  # from the last sample to the next frame of the first
    if over.sum() < STEPS:
        return
    wrapped = _apart(x[1:, 0], x[:-1, -1])[over]
    at_ends = np.concatenate([_apart(x[1:, n], x[:-1, n])[over] for n in (0, -1)])
    if not _nearer(wrapped, at_ends):
        return
    in_time = _apart(x[1:], x[:-1])[inside[1:]]
    in_batch = _apart(x[:, 1:], x[:, :-1])[inside[:, 1:] & inside[:, :-1]]
    if not _nearer(in_batch, in_time) or not np.median(in_batch):  # samples that are all alike are not in time
        return
    p.find(
        "swapped_axes",
        f"what follows in memory is alike: neighbours along the batch differ by {np.median(in_batch):.3g}, the last "
        f"sample from the first at the next frame by {np.median(wrapped):.3g}, but neighbours in time by "
        f"{np.median(in_time):.3g}",
        "the batch varies like time, on from frame to frame: a reshape from (N, T, C) to (T, N, C) leaves the numbers "
        "where they lie, and mixes frames of different samples, where a transposition is needed",
        "transpose by (1, 0, 2) where the logits are reshaped, or pass them as they were with their own layout",
        "likely",
    )
    p.change(x=np.ascontiguousarray(p.x.reshape(N, T, C).transpose(1, 0, 2)))


def _nearer(some: Floats, others: Floats) -> bool:
    """By medians and by means: of frames that say one thing or another a few more may turn the median."""
    return bool(np.median(some) < NEARER * np.median(others) and some.mean() < NEARER * others.mean())


def _time_and_classes(p: Patient) -> None:
    T, N, C = p.shape
    if C < CLASSES or T * N <= STEPS:
        return
    for by_sample in (False, True):
        x, inside = (p.given.swapaxes(0, 1), p.inside.T) if by_sample else (p.given, p.inside)
        most = max(NUMBERS // (x.shape[1] * C), 2)
        x, inside = x[:most], inside[:most].ravel()
        rows, after = x.reshape(-1, C), inside[1:] & inside[:-1]
        if after.sum() < STEPS:
            continue
        wrapped = float(np.median(np.abs(rows[1:, 0].astype(np.float64) - rows[:-1, -1])[after]))
        rows = rows[inside].astype(np.float64)
        others = float(np.median(np.abs(rows[:, C // 2 :] - rows[:, : C - C // 2])))
        beside = float(np.median(np.abs(rows[:, 1:] - rows[:, :-1])))
        if not (0 < beside < CLOSE * others and wrapped < CLOSE * others):
            continue
        far = np.array([np.abs(rows[:, :SOME] - column[:, None]).mean(axis=0) for column in rows[:, :SOME].T])
        if not _in_order(far):
            continue
        shapes, axes = ("(N, T, C)", (0, 2, 1)) if by_sample else ("(T, N, C)", (2, 0, 1))
        p.find(
            "swapped_axes",
            f"what follows in memory is alike: neighbours among the classes differ by {beside:.3g}, the last class "
            f"from the first of the next frame by {wrapped:.3g}, but classes that are far apart by {others:.3g}",
            f"the classes vary like time, on from frame to frame: a reshape from (N, C, T) to {shapes} leaves the "
            "numbers where they lie, and mixes frames and classes, where a transposition is needed",
            f"transpose by {axes} where they are reshaped",
            "likely",
        )
        whole = p.x.swapaxes(0, 1) if by_sample else p.x
        p.change(x=np.ascontiguousarray(whole.reshape(N, C, T).transpose(2, 0, 1)))
        return


def _in_order(far: Floats) -> bool:
    """Whether, by these distances, each is nearer to the next than in any other order."""
    rng = np.random.default_rng(0)
    orders = (rng.permutation(len(far)) for _ in range(ORDERS))
    lengths = np.array([far[order[1:], order[:-1]].sum() for order in orders])
    return bool(np.diag(far, 1).sum() < lengths.mean() - SHORTER * lengths.std())


def _apart(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> Floats:
    """How far frames are apart, in sum over their classes."""
    return np.asarray(np.abs(one.astype(np.float64) - other).sum(axis=-1))
