"""Which frames say which label: the best path through the lattice of one word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def extended(labels: Sequence[int]) -> list[int]:
    """The labels with a blank before, between and after: the states of the lattice."""
    return [0, *(each for label in labels for each in (label, 0))]


def best_path(log_p: npt.NDArray[Any], labels: Sequence[int]) -> list[int]:
    """The state of every frame on the most probable path; empty where there is none.

    log_p is (T, C). From frame to frame a path stays, goes on by one state, or leaves out a blank between two
    labels that differ.
    """
    states = extended(labels)
    T, S = len(log_p), len(states)
    score = np.full((T, S), -np.inf)
    came = np.zeros((T, S), dtype=int)  # how many states back each path was one frame before
    if T == 0:
        return []
    score[0, :2] = log_p[0, states[:2]]
    for t in range(1, T):
        for s, label in enumerate(states):
            reach = 3 if s >= 2 and label not in (0, states[s - 2]) else min(2, s + 1)
            before = [score[t - 1, s - back] for back in range(reach)]
            came[t, s] = int(np.argmax(before))
            score[t, s] = before[came[t, s]] + log_p[t, label]
    s = S - 1 if S == 1 or score[-1, -1] >= score[-1, -2] else S - 2
    if score[-1, s] == -np.inf:
        return []
    path = [s]
    for t in range(T - 1, 0, -1):
        s -= came[t, s]
        path.append(s)
    return path[::-1]


def spans(path: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For the number of each label in the word: its first frame, and the one past its last."""
    found: dict[int, tuple[int, int]] = {}
    for t, s in enumerate(path):
        if s % 2:
            found[s // 2] = (found.get(s // 2, (t, t))[0], t + 1)
    return found
