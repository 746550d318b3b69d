"""From logits to text, and how far that is from what was written."""

from __future__ import annotations

from typing import Any, NamedTuple

import ctcbind


class Score(NamedTuple):
    """`cer` and `wer`, edits over characters and over words; `read`, what was read of each line."""

    cer: float
    wer: float
    read: list[str]


def decode(logits: Any, frames: Any, alphabet: str, beam: int | None = None) -> list[str]:
    """The text that each sample of logits (N, T, C) reads as: greedy, or by a beam search of that width."""
    if beam is None:
        found = ctcbind.greedy_decode(logits, frames, layout="NTC")
    else:
        lists = ctcbind.beam_search(logits, frames, beam_width=beam, n_best=1, layout="NTC")
        found = [hypotheses[0] for hypotheses in lists]
    return ["".join(alphabet[label - 1] for label in hypothesis.labels) for hypothesis in found]


def score(read: list[str], said: list[str]) -> Score:
    """CER and WER over all lines."""
    return Score(ctcbind.error_rate(read, said), ctcbind.error_rate(read, said, unit="word"), read)
