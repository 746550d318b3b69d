"""The yardstick of the accuracy table: float64 in log space, arranged so that its own rounding stays below 1e-8.

ctcbind's reference engine keeps ln alpha as it comes. Over thousands of frames of logits in the thousands that is a
number beyond 1e7, whose last place in float64 is as large as the errors looked for here. So three shifts, none of which
changes what is computed: the logits of a frame are taken relative to the largest among the classes that the labels
use; alpha and beta relative to the largest of their frame, what is taken off being summed apart, exactly; and the
occupancies of a frame are divided by their sum, which is p in every frame.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .cases import Problem
from .verify import Truth

__all__ = ["answer", "sample"]

Floats = npt.NDArray[np.float64]


def answer(problem: Problem) -> Truth:
    """Losses (N,) and gradient (T, N, C) of a batch, in float64."""
    losses, grad = np.empty(problem.logits.shape[1]), np.zeros(problem.logits.shape)
    for n in range(len(losses)):
        T = problem.input_lengths[n]
        labels = problem.labels[n, : problem.label_lengths[n]]
        losses[n], grad[:T, n] = sample(problem.logits[:T, n].astype(np.float64), labels)
    return Truth(losses, grad)


def sample(x: Floats, labels: Any, blank: int = 0) -> tuple[float, Floats]:
    """(loss, gradient) of one sample that has a path: x (T, C), labels (L,)."""
    T = len(x)
    extended = np.full(2 * len(labels) + 1, blank)
    extended[1::2] = labels
    differs = np.zeros(len(extended), bool)  # a label may follow the one before it without a blank between
    differs[3::2] = extended[3::2] != extended[1:-2:2]
    emit = x[:, extended]
    top = emit.max(axis=1, keepdims=True)
    emit = emit - top

    alpha, off = _recursion(emit, differs)
    backwards = np.zeros_like(differs)
    backwards[:-2] = differs[2:]
    beta, _ = _recursion(emit[::-1, ::-1], backwards[::-1])
    beta = beta[::-1, ::-1] - np.where(np.isfinite(emit), emit, 0.0)  # both hold the emission at t

    joint = alpha + beta
    joint -= joint.max(axis=1, keepdims=True)
    weight = np.exp(joint)
    weight /= weight.sum(axis=1, keepdims=True)
    occupancy = np.zeros(x.shape)
    np.add.at(occupancy.T, extended, weight.T)

    highest = x.max(axis=1, keepdims=True)
    share = np.exp(x - highest)
    total = share.sum(axis=1, keepdims=True)
    others = share.copy()
    others[np.arange(T), x.argmax(axis=1)] = 0.0
    # ln of the sum relative to the largest used class: log1p keeps what a certain frame has left
    normaliser = np.log1p(others.sum(axis=1)) + (highest - top)[:, 0]
    log_p = [*off, float(np.logaddexp.reduce(alpha[-1, -2:]))]
    return math.fsum([*normaliser, *(-each for each in log_p)]), share / total - occupancy


def _recursion(emit: Floats, differs: npt.NDArray[np.bool_]) -> tuple[Floats, list[float]]:
    """ln alpha of each frame, its largest 0, and what was taken off of each."""
    rows, off = np.full(emit.shape, -np.inf), []
    skip = np.where(differs, 0.0, -np.inf)
    row = np.full(emit.shape[1], -np.inf)
    row[:2] = 0.0
    for t in range(len(emit)):
        if t:
            before = row
            row = before.copy()
            row[1:] = np.logaddexp(row[1:], before[:-1])
            row[2:] = np.logaddexp(row[2:], before[:-2] + skip[2:])
        row = row + emit[t]
        highest = float(row.max())
        row = row - highest
        rows[t] = row
        off.append(highest)
    return rows, off
