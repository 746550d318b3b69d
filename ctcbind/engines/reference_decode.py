"""The reference for decoding: greedy, and prefix beam search as in the papers, in NumPy float64 and a dictionary."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["beam_search", "greedy"]

Floats = npt.NDArray[np.float64]
Prefix = tuple[int, ...]


def greedy(log_y: Floats, blank: int, *, merge_repeats: bool = True) -> tuple[list[int], float]:
    """(labels, ln p) of the best path; log_y is (T, C)."""
    path = log_y.argmax(axis=1)
    keep = path != blank
    if merge_repeats:
        keep[1:] &= path[1:] != path[:-1]
    return path[keep].tolist(), float(log_y.max(axis=1).sum())


def beam_search(
    log_y: Floats,
    width: int,
    blank: int,
    *,
    merge_repeats: bool = True,
    lm: Callable[[Prefix], float] | None = None,
    log_prune: float = -np.inf,
) -> list[tuple[Prefix, float, float]]:
    """[(labels, ln p, score)], the best first. Hannun et al., arXiv:1408.2873, algorithm 1."""
    score = lm or (lambda prefix: 0.0)
    #: prefix -> [ln p of paths that end in a blank, ln p of those that end in its last label]
    beam: dict[Prefix, Floats] = {(): np.array([0.0, -np.inf])}
    for row in log_y:
        grown: dict[Prefix, Floats] = {}

        def add(prefix: Prefix, place: int, log_p: float, to: dict[Prefix, Floats] = grown) -> None:
            pair = to.setdefault(prefix, np.full(2, -np.inf))
            pair[place] = np.logaddexp(pair[place], log_p)

        for prefix, (of_blank, of_label) in beam.items():
            total = float(np.logaddexp(of_blank, of_label))
            add(prefix, 0, total + row[blank])
            if prefix and merge_repeats:
                add(prefix, 1, of_label + row[prefix[-1]])
            for label, log_p in enumerate(row):
                longer = (*prefix, label)
                if label == blank or (log_p < log_prune and longer not in beam):
                    continue
                again = merge_repeats and prefix[-1:] == (label,)
                add(longer, 1, (of_blank if again else total) + log_p)
        ranked = sorted(grown, key=lambda each: -(np.logaddexp(*grown[each]) + score(each)))
        beam = {
            prefix: grown[prefix] for prefix in ranked[:width] if np.logaddexp(*grown[prefix]) + score(prefix) > -np.inf
        }
    found = [(prefix, float(np.logaddexp(*pair))) for prefix, pair in beam.items()]
    return [(prefix, log_p, log_p + score(prefix)) for prefix, log_p in found]
