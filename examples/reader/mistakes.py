"""The classic faults of training with CTC, each on purpose.

Every fault is a loss in the place of `loss.Loss`: it takes the right logits, targets and frames, makes its mistake,
and gives back what the person who makes it would train with. ctcbind refuses or puts right most of this, so that
faults which it cannot make are computed here from what it does give, by the formula beside each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import ctcbind

from .loss import Outcome, like, to_host

Floats = Any


def softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_sum_exp(x: Floats) -> Floats:
    top = x.max(axis=-1)
    return top + np.log(np.exp(x - top[..., None]).sum(axis=-1))


def back_through_softmax(p: Floats, dp: Floats) -> Floats:
    """dL/dx where p = softmax(x) and dp = dL/dp."""
    return p * (dp - (dp * p).sum(axis=-1, keepdims=True))


def softmax_missing(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """Activations go to a function that takes probabilities, such as cudnnCTCLoss as it was before version 7.6.

    It takes x for p, and returns the loss of these "probabilities" and x - occupancy. The occupancy does not change
    when all of a frame is scaled, so that it is softmax(ln x) - gradient(ln x). Negative numbers, of which there is
    no logarithm, count as the smallest float.
    """
    p = np.maximum(x, np.finfo(np.float32).tiny)
    log_p = np.log(p)
    loss, grad, _ = ctc(log_p, targets, frames)
    inside = np.arange(x.shape[1]) < frames[:, None]
    loss = loss - (log_sum_exp(log_p) * inside).sum(axis=1)
    occupancy = softmax(log_p) - grad
    return loss, (x - occupancy) * inside[..., None], (x, targets, frames, "NTC")


def double_softmax(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """The network ends in a softmax, and the loss, which has one inside, takes its probabilities for logits."""
    p = softmax(x)
    loss, grad, _ = ctc(p, targets, frames)
    return loss, back_through_softmax(p, grad), (p, targets, frames, "NTC")


def gradient_through_softmax(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """The gradient with respect to the logits is taken for the one with respect to the probabilities.

    cudnnCTCLoss takes probabilities, and returns p - occupancy: what belongs before the softmax goes through it.
    """
    loss, grad, _ = ctc(x, targets, frames)
    return loss, back_through_softmax(softmax(x), grad), (x, targets, frames, "NTC")


def batch_major(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """Memory that holds (N, T, C) is declared as (T, N, C): a reshape where a transpose was meant."""
    N, T, C = x.shape
    taken = np.ascontiguousarray(x).reshape(T, N, C)
    loss, grad, _ = ctc(taken.transpose(1, 0, 2), targets, frames)
    return loss, np.ascontiguousarray(grad.transpose(1, 0, 2)).reshape(N, T, C), (taken, targets, frames, "TNC")


def padded_with_blank(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """Targets are filled up to eight labels with the blank, and the filling is counted as labels.

    ctcbind refuses a blank among the labels. So the filling is a class of its own here that has the blank's logit
    (C + 1 classes, of which the last is a copy of the first), and what the copy adds to the softmax is taken out.
    """
    longest = max(8, *map(len, targets))
    C = x.shape[-1]
    filled = [row + [C] * (longest - len(row)) for row in targets]
    doubled = np.concatenate([x, x[..., :1]], axis=-1)
    loss, grad, _ = ctc(doubled, filled, frames)
    found = np.isfinite(loss)
    inside = (np.arange(x.shape[1]) < frames[:, None]) & found[:, None]
    loss = loss - ((log_sum_exp(doubled) - log_sum_exp(x)) * inside).sum(axis=1)
    occupancy = softmax(doubled) - grad
    occupancy[..., 0] += occupancy[..., C]
    shown = [row + [0] * (longest - len(row)) for row in targets]
    return loss, (softmax(x) - occupancy[..., :C]) * inside[..., None], (x, shown, frames, "NTC")


def wrong_T(ctc: Any, x: Floats, targets: list[list[int]], frames: Any) -> tuple[Floats, Floats, Any]:
    """The input lengths are counted for a network that halves the time once more than this one does."""
    halved = frames // 2
    loss, grad, _ = ctc(x, targets, halved)
    return loss, grad, (x, targets, halved, "NTC")


MISTAKES: dict[str, Callable[..., tuple[Floats, Floats, Any]]] = {
    "softmax-missing": softmax_missing,
    "double-softmax": double_softmax,
    "gradient-through-softmax": gradient_through_softmax,
    "batch-major": batch_major,
    "padded-with-blank": padded_with_blank,
    "wrong-T": wrong_T,
}

#: What each looked like after 400 steps with seed 0 on the default data, where 94.9% of held-out words are read
#: without a mistake; docs/asymmetry.md has the curves.
LOOKS_LIKE = {
    "softmax-missing": "nothing but blanks for nearly half of the steps; a loss that goes below 0 at times; then some "
    "digits are read and others (5, 3, 9) left out of every word. 23.1% of words were read.",
    "double-softmax": "the loss falls to a floor far above 0 and stays there, all frames are blank, and the gradient "
    "vanishes. Nothing was ever read.",
    "gradient-through-softmax": "it learns, only later and worse: a gradient of a third of its size, a longer stage of "
    "blanks, twice the loss. 92.6% of words were read, and Adam hides the fault.",
    "batch-major": "all frames are blank and the loss stands still far above 0, but the gradient does not vanish. "
    "Nothing was ever read.",
    "padded-with-blank": "it reads only the first character or two, then blanks; short words have no path at all, and "
    "the loss goes below 0. 23.1% of words were read, none of the long ones.",
    "wrong-T": "the loss falls, while what is read has too many labels: the frames past the length that was told are "
    "never put right. 22.2% of words were read, none of the long ones.",
}


class FaultyLoss:
    """`loss.Loss` with a mistake in it."""

    def __init__(self, mistake: str, engine: str) -> None:
        self.mistake = MISTAKES[mistake]
        self.ctc = ctcbind.CTCLoss(engine=engine, layout="NTC")

    def __call__(self, logits: Any, targets: list[list[int]], frames: Any) -> Outcome:
        with np.errstate(all="ignore"):  # a diverging training is what some of these look like
            loss, grad, given = self.mistake(self.ctc, to_host(logits), targets, frames)
            found = np.isfinite(loss)
            grad = np.where(found[:, None, None], grad, 0).astype(np.float32) / len(targets)
        return Outcome(float(loss[found].mean()) if found.any() else float("nan"), like(logits, grad), given)

    def close(self) -> None:
        self.ctc.close()
