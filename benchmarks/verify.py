"""Whether a peer computes the same thing: its losses and gradients beside the reference's, before any timing.

The reference is ctcbind's float64 log-space engine. ctcbind is held to what it promises. A peer is only asked whether
it computes the same loss, so its bounds follow from float32 log space: each of T steps rounds a logarithm of up to
`loss` nats by u = 2^-24 relative. Such errors, of either sign, sum to u loss sqrt(T) after T steps; they are the loss's
error, and in alpha and in beta the error of an exponent of the gradient. So the loss may be off by u sqrt(T), relative,
and a gradient by 2 u loss sqrt(T) of its own length, the root of the sum of squares, and both by a few u more; times 4
for the constant that this leaves out. A wrong blank, softmax or layout is off by the order of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import ctcbind
from ctcbind.tolerance import PROMISED

from .cases import Problem
from .peers import OURS

__all__ = ["GRADIENT", "LOSS", "Check", "Truth", "check", "errors", "truth"]

#: What ctcbind promises: the loss relative, absolute below 1; the gradient's largest absolute error.
LOSS, GRADIENT = PROMISED["native"]

U = 2.0**-24
_FLOOR = 1e-5  # a few hundred u: a softmax over many classes, an exp, a log

Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class Truth:
    """Losses (N,) float64; the gradient (T, N, C), rounded to float32 where `make` was told so."""

    losses: Floats
    grad: Floats


@dataclass(frozen=True)
class Check:
    """What a peer is off by and may be off by; `grad_error` is relative for a peer, absolute for ctcbind."""

    same: bool
    loss_error: float
    loss_limit: float
    grad_error: float | None
    grad_limit: float | None
    largest_grad_error: float | None


def truth(problem: Problem, dtype: Any = np.float32) -> Truth:
    """The reference's answer, one sample after the other, as its float64 gradient of a large batch would not fit."""
    T, N, C = problem.logits.shape
    losses, grad = np.empty(N), np.zeros((T, N, C), dtype)
    for n in range(N):
        row, frames = problem.labels[n, : problem.label_lengths[n]], problem.input_lengths[n : n + 1]
        result = ctcbind.ctc_loss_and_grad(
            problem.logits[:, n : n + 1].astype(np.float64), [row], frames, engine="reference"
        )
        losses[n], grad[:, n] = result.loss[0], result.grad[:, 0]
    return Truth(losses, grad)


def errors(exact: Truth, losses: Floats, grad: Floats | None) -> tuple[float, float | None, float | None]:
    """(loss error, largest gradient error, that of the whole relative to its length); NaN counts as infinite.

    A loss's error is relative, absolute below 1 nat.
    """
    with np.errstate(all="ignore"):
        off = np.abs(losses.astype(np.float64) - exact.losses) / np.maximum(np.abs(exact.losses), 1.0)
        off[losses == exact.losses] = 0.0
        loss_error = _number(off.max())
        if grad is None:
            return loss_error, None, None
        largest = squares = length = 0.0
        for t in range(0, len(grad), 64):  # in slices: no second copy of a large gradient in float64
            right = exact.grad[t : t + 64].astype(np.float64)
            difference = grad[t : t + 64] - right
            largest = max(largest, _number(np.abs(difference).max()))
            squares += _number(np.square(difference).sum())
            length += float(np.square(right).sum())
        return loss_error, largest, (squares / length) ** 0.5 if length else largest


def check(name: str, exact: Truth, losses: Floats, grad: Floats | None, frames: int) -> Check:
    """The answer of peer `name` to a batch whose longest sample has `frames` time steps."""
    loss_error, largest, relative = errors(exact, losses, grad)
    grad_error, grad_limit = relative, None
    if name == OURS:
        loss_limit, grad_error, grad_limit = LOSS, largest, GRADIENT
    else:
        roots = 4 * U * frames**0.5
        loss_limit = roots + _FLOOR
        grad_limit = 2 * roots * float(exact.losses.max()) + _FLOOR
    if grad is None:
        grad_limit = None
    same = loss_error <= loss_limit and (grad_error is None or grad_limit is None or grad_error <= grad_limit)
    return Check(same, loss_error, loss_limit, grad_error, grad_limit, largest)


def _number(value: Any) -> float:
    number = float(value)
    return number if number == number else float("inf")
