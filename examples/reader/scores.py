"""From logits to digits, and how far those are from what was written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import ctcbind


def decode(
    logits: npt.NDArray[Any], frames: Sequence[int] | npt.NDArray[Any], beam: int | None = None
) -> list[list[int]]:
    """The labels that each sample of logits (N, T, C) reads as.

    Greedy, which is written out here: the best class of every frame, repeats merged, blanks taken out. Or, with the
    width of a `beam`, those whose paths together have the highest probability that ctcbind's beam search finds.
    """
    if beam is not None:
        found = ctcbind.beam_search(logits, frames, beam_width=beam, n_best=1, layout="NTC")
        return [hypotheses[0].labels for hypotheses in found]
    best = logits.argmax(axis=-1)
    starts = best != 0
    starts[:, 1:] &= best[:, 1:] != best[:, :-1]
    starts &= np.arange(best.shape[1]) < np.asarray(frames)[:, None]
    return [row[start].tolist() for row, start in zip(best, starts)]


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """The fewest labels to put in, take out or replace that make one sequence the other."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        corner, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (x != y))
    return row[-1]


def label_error_rate(read: Sequence[Sequence[int]], said: Sequence[Sequence[int]]) -> float:
    """Edits over labels: 0 is perfect, and what reads nothing at all has 1."""
    return sum(map(edit_distance, read, said)) / max(1, sum(map(len, said)))
