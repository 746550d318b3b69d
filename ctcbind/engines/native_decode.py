"""Greedy decoding and prefix beam search by csrc/decode.c and beam.c. Batches on the host."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ..batch import Batch
from ..bindings import native_decode as c
from ..bindings.native_rows import check, structs
from ..errors import InvalidInput, NativeMemoryError, OutOfMemory
from .native_samples import WORTH_A_THREAD, results, rows_of, threads_for

__all__ = ["beam_search", "edit_distance", "edits", "greedy"]

#: The most that rounding changes the logarithm of a probability: one that equals `prune` must not fall below it.
ROUNDING = 1e-12

#: Bytes of a prefix in three beams and of two candidates (csrc/beam.c, candidates.h); one a class comes on top.
A_PREFIX = 3 * 48 + 2 * 32

#: So many logits take the best path as long as one takes a beam.
GREEDY_VALUES = 16

Found = tuple[list[int], float, float]
Ends = Callable[[list[tuple[int, ...]]], list[float]]

edit_distance: Callable[[bytes, bytes], int] = c.edit_distance
edits: Callable[[bytes, bytes, bytes, bytes], int] = c.edits


def greedy(batch: Batch) -> list[Found]:
    """(labels, ln p, the same) of each sample's most probable path; its rows are read as the loss reads them."""
    labels = np.empty((batch.N, batch.T), dtype=np.int32)
    to = structs("ctcbind_reading", batch.N, {"labels": labels})
    rows, simple = rows_of(batch.logits, batch.input_lengths), batch.topology == "simple"
    c.greedy(rows, to, batch.N, blank=batch.blank, simple=simple, threads=_threads(batch, GREEDY_VALUES))
    found: list[Found] = []
    made = results("ctcbind_reading", to)
    columns = made["status"].tolist(), made["length"].tolist(), made["log_p"].tolist()
    for n, (status, length, log_p) in enumerate(zip(*columns)):
        if not check("ctcbind_readings", status):
            raise _nan(n, length)
        found.append((labels[n, :length].tolist(), log_p, log_p))
    return found


def _threads(batch: Batch, each: int = 1) -> int:
    """Where so many logits take as long as one state of a lattice."""
    if batch.N * batch.T * batch.C // each < WORTH_A_THREAD:  # which the line below takes longer to see
        return 1
    return threads_for(int(batch.input_lengths.sum(dtype=np.int64)) * batch.C // each)


def beam_search(
    batch: Batch,
    *,
    width: int,
    n_best: int,
    prune: float,
    lm: c.LanguageModel | None = None,
    lm_next: c.NextScores | None = None,
    lm_end: Ends | None = None,
) -> list[list[Found]]:
    """Up to `n_best` (labels, ln p, score) of each sample, the best first."""
    rows = rows_of(batch.logits, batch.input_lengths)
    threads = _threads(batch)

    def search(first: int, count: int) -> list[list[c.Beam] | c.NanFrame]:
        return c.beam_search(
            rows + first,
            count,
            width=width,
            n_best=n_best if lm_end is None else width,
            blank=batch.blank,
            simple=batch.topology == "simple",
            log_prune=math.log(prune) - ROUNDING if prune > 0 else -math.inf,
            lm=lm,
            lm_next=lm_next,
            threads=threads,
        )

    try:
        # with a language model one sample after the other: it may raise, or not be safe to call from several threads
        at_once = batch.N if lm is None and lm_next is None else 1
        every = [
            _ended(found, lm_end, n_best) for first in range(0, batch.N, at_once) for found in search(first, at_once)
        ]
    except NativeMemoryError as error:
        raise OutOfMemory(
            f"beam_width is {width}: its beams take about {width * (A_PREFIX + batch.C)} bytes a sample, and so "
            "much memory could not be had; pass a narrower one"
        ) from error
    hypotheses: list[list[Found]] = []
    for n, found in enumerate(every):
        if isinstance(found, c.NanFrame):
            raise _nan(n, found.frame)
        hypotheses.append(list(found))
    return hypotheses


def _ended(found: list[c.Beam] | c.NanFrame, lm_end: Ends | None, n_best: int) -> list[c.Beam] | c.NanFrame:
    """Ranked once more, with what the end of the sample adds to each score."""
    if lm_end is None or isinstance(found, c.NanFrame) or not found:
        return found
    scores = lm_end([tuple(each.labels) for each in found])
    ranked = [each._replace(score=each.score + more) for each, more in zip(found, scores, strict=True)]
    ranked.sort(key=lambda each: -each.score)  # those that are alike stay as they were
    return [each for each in ranked if each.score > -math.inf][:n_best]


def _nan(sample: int, frame: int) -> InvalidInput:
    return InvalidInput(
        f"the logits of sample {sample} hold a NaN at frame {frame}; there is no reading of it",
        rule="nan",
        sample=sample,
        value=math.nan,
    )
