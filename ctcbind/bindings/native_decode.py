"""csrc/decode.h: greedy decoding, prefix beam search and edit distance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ._native import ffi, lib
from .native_rows import check, finish
from .native_stop import ask, keep

__all__ = ["Beam", "LanguageModel", "NanFrame", "NextScores", "beam_search", "edit_distance", "edits", "greedy"]

LanguageModel = Callable[[tuple[int, ...]], float]
#: Of several prefixes at once: float64, what each class adds after each, as bytes.
NextScores = Callable[[list[tuple[int, ...]]], bytes]


class Beam(NamedTuple):
    labels: list[int]
    log_p: float
    score: float


class NanFrame(NamedTuple):
    """In a result's place: this frame of the logits holds a NaN."""

    frame: int


class _Asked:
    """`lm`, and what the prefix that it was asked about last has before its last label."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.front: tuple[int, ...] = ()


# NaN ends the search. To copy a tuple takes a tenth of the time that it takes to read one from C.
@ffi.def_extern(error=float("nan"), onerror=keep)  # type: ignore[untyped-decorator]
def ctcbind_ask_python(context: Any, prefix: Any, length: int, same: int) -> float:
    asked = ffi.from_handle(context)
    if not length:
        return float(asked.lm(()))
    front = asked.front[:same]
    if same < length - 1:
        front += tuple(ffi.unpack(prefix + same, length - 1 - same))
    asked.front = front
    return float(asked.lm(front + (prefix[length - 1],)))  # noqa: RUF005 - which takes half the time of a star


@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def ctcbind_ask_next_python(context: Any, count: int, lengths: Any, labels: Any, scores: Any) -> int:
    ends = list(accumulate(ffi.unpack(lengths, count), initial=0))
    in_a_row = ffi.unpack(labels, ends[-1])
    said = ffi.from_handle(context)([tuple(in_a_row[begin:end]) for begin, end in pairwise(ends)])
    ffi.memmove(scores, said, len(said))
    return 0


def beam_search(
    rows: Any,
    count: int,
    *,
    width: int,
    n_best: int,
    blank: int,
    simple: bool,
    log_prune: float,
    lm: LanguageModel | None,
    lm_next: NextScores | None,
    threads: int,
) -> list[list[Beam] | NanFrame]:
    """ctcbind_beam_searches of `count` ctcbind_rows: hypotheses, the best first, up to the first sample with a NaN.
    Of `lm` and `lm_next` one is None at least; what they raise is raised here."""
    options = ffi.new("ctcbind_beam_options *")
    options.width, options.n_best, options.blank, options.simple = width, n_best, blank, simple
    options.log_prune = log_prune
    if lm is not None:
        options.lm, handle = lib.ctcbind_ask_python, ffi.new_handle(_Asked(lm))
    else:
        handle = ffi.new_handle(lm_next)
        if lm_next is not None:
            options.lm_next = lib.ctcbind_ask_next_python
    options.context = handle
    beams = ffi.new("ctcbind_beams[]", count)
    try:
        finish(lib.ctcbind_beam_searches(rows, options, beams, count, threads, ask))
        found: list[list[Beam] | NanFrame] = []
        for n in range(count):
            found.append(_beams_of(beams[n]))
            if isinstance(found[-1], NanFrame):
                break  # C has not looked at the others
        return found
    finally:
        for n in range(count):
            lib.ctcbind_beams_free(beams + n)


def _beams_of(beams: Any) -> list[Beam] | NanFrame:
    finish(beams.status)
    if not check("ctcbind_beam_search", beams.status):
        return NanFrame(beams.bad_frame)
    lengths = ffi.unpack(beams.lengths, beams.count)
    labels = ffi.unpack(beams.labels, beams.total)
    log_p = ffi.unpack(beams.log_p, beams.count)
    score = ffi.unpack(beams.score, beams.count)
    found, at = [], 0
    for i, length in enumerate(lengths):
        found.append(Beam(labels[at : at + length], log_p[i], score[i]))
        at += length
    return found


def greedy(rows: Any, readings: Any, count: int, *, blank: int, simple: bool, threads: int) -> None:
    """ctcbind_readings of `count` ctcbind_rows into as many ctcbind_reading. Each has a status of its own."""
    finish(lib.ctcbind_readings(rows, blank, simple, readings, count, threads, ask))


def edit_distance(a: bytes, b: bytes) -> int:
    """ctcbind_edit_distance of two rows of int32."""
    return _counted("ctcbind_edit_distance", lib.ctcbind_edit_distance(a, len(a) // 4, b, len(b) // 4, ask))


def edits(a: bytes, a_lengths: bytes, b: bytes, b_lengths: bytes) -> int:
    """ctcbind_edits of rows of int32, one after the other; lengths are int64."""
    return _counted("ctcbind_edits", lib.ctcbind_edits(a, a_lengths, b, b_lengths, len(a_lengths) // 8, ask))


def _counted(call: str, edits: int) -> int:
    if edits < 0:
        finish(-edits)
        check(call, -edits)
    return edits
