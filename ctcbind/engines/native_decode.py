"""Greedy decoding and prefix beam search by csrc/decode.c and beam.c. Batches on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..batch import Batch
from ..bindings import native_decode as c
from ..errors import InvalidInput
from .native_samples import each_sample, rows_args

__all__ = ["beam_search", "edit_distance", "greedy"]

Found = tuple[list[int], float, float]

edit_distance: Callable[[Sequence[int], Sequence[int]], int] = c.edit_distance


def greedy(batch: Batch) -> list[Found]:
    """(labels, ln p, the same) of each sample's most probable path."""

    def run(n: int) -> Found:
        rows = rows_args(batch.logits, n, int(batch.input_lengths[n]))
        found = c.greedy(rows, blank=batch.blank, simple=batch.topology == "simple")
        if isinstance(found, c.NanFrame):
            raise _nan(n, found.frame)
        return found

    return each_sample(batch, run)


def beam_search(
    batch: Batch, *, width: int, n_best: int, prune: float, lm: Callable[[tuple[int, ...]], float] | None
) -> list[list[Found]]:
    """Up to `n_best` (labels, ln p, score) of each sample, the best first."""

    def run(n: int) -> list[Found]:
        found = c.beam_search(
            rows_args(batch.logits, n, int(batch.input_lengths[n])),
            width=width,
            n_best=n_best,
            blank=batch.blank,
            simple=batch.topology == "simple",
            log_prune=math.log(prune) if prune > 0 else -math.inf,
            lm=lm,
        )
        if isinstance(found, c.NanFrame):
            raise _nan(n, found.frame)
        return list(found)

    if lm is not None:  # it is the caller's, and may not bear more than one question at a time
        return [run(n) for n in range(batch.N)]
    return each_sample(batch, run)


def _nan(sample: int, frame: int) -> InvalidInput:
    return InvalidInput(
        f"the logits of sample {sample} hold a NaN at frame {frame}; there is no reading of it",
        rule="nan",
        sample=sample,
        value=math.nan,
    )
