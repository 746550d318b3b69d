"""From logits to digits."""

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
