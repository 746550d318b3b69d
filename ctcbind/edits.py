"""How far readings are from the truth: edit distance, CER and WER."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import rules
from .arrays import as_host
from .decode import Hypothesis
from .engines import native_decode
from .errors import InvalidInput, brief, counted
from .kinds import is_masked, not_compiled
from .options import option

__all__ = ["edit_distance", "error_rate"]

#: Of text: its code points as int32.
CODE_POINTS = "utf-32-le" if sys.byteorder == "little" else "utf-32-be"


@not_compiled
def edit_distance(a: Any, b: Any) -> int:
    """Insertions, deletions and substitutions that turn `a` into `b`: the Levenshtein distance.

    Strings, lists of words, rows of labels: any two sequences of hashable symbols, one-dimensional arrays of integers,
    or hypotheses. Raises InvalidInput for anything else, and for text beside numbers.

    Source: Myers, Journal of the ACM 46, 1999: 64 symbols at once.

    >>> import ctcbind
    >>> ctcbind.edit_distance("watermelon", "watermellon")
    1
    >>> ctcbind.edit_distance([3, 1, 4], [1, 4, 1])
    2
    """
    if type(a) is str and type(b) is str:
        return native_decode.edit_distance(_code_points(a), _code_points(b))
    a, b = _symbols("a", a), _symbols("b", b)
    _refuse_text_beside_numbers(a, b)
    return native_decode.edit_distance(*_numbered(([a], [b])))


def _code_points(text: str) -> bytes:
    return text.encode(CODE_POINTS, "surrogatepass")


def _refuse_text_beside_numbers(a: Any, b: Any, sample: int | None = None) -> None:
    """Raises InvalidInput where one is text and the other is not: they would differ in every symbol."""
    if type(a) is type(b) and type(a) in (str, array):
        return
    names = ("one sequence", "the other") if sample is None else (f"readings[{sample}]", f"truths[{sample}]")
    for one, other, (name, beside) in ((a, b, names), (b, a, names if sample is None else names[::-1])):
        if one and other and _of(str, one) and not _of(str, other):
            strange = next((each for each in other if not isinstance(each, str)), None)
            if strange is not None and not any(isinstance(each, str) for each in other):
                raise InvalidInput(
                    f"{name} holds text, as {brief(one[0])}, and {beside} {brief(strange)}; give both in the same "
                    "symbols",
                    rule="sequences",
                    sample=sample,
                )


def _of(kind: type, symbols: Any) -> bool:
    """Whether all are of this kind, or one derived from it."""
    return type(symbols) is kind or all(issubclass(each, kind) for each in set(map(type, symbols)))


def _numbered(sides: Sequence[list[Any]]) -> list[bytes]:
    """The symbols of all rows of each side in a row, as int32, equal where the symbols are."""
    kinds = {type(row) for rows in sides for row in rows}
    if kinds == {str}:
        return [_code_points("".join(rows)) for rows in sides]
    if kinds == {array}:
        return [b"".join(row.tobytes() for row in rows) for rows in sides]
    every = [list(chain.from_iterable(rows)) for rows in sides]
    numbers = {symbol: number for number, symbol in enumerate(dict.fromkeys(chain(*every)))}
    return [array("i", map(numbers.__getitem__, symbols)).tobytes() for symbols in every]


@not_compiled
def error_rate(
    readings: Sequence[Sequence[Any]] | npt.NDArray[Any],
    truths: Sequence[Sequence[Any]] | npt.NDArray[Any],
    target_lengths: Any = None,
    *,
    unit: Literal["symbol", "word"] = "symbol",
) -> float:
    """All edits divided by all symbols of the truths: CER of strings, WER with unit="word", or the same of labels.

    `readings` and `truths` hold one sequence, or one `Hypothesis`, for each sample. With unit="word" these are strings,
    and are split at white space. Either may also be an (N, L) array of integers, padded with negative numbers at the
    ends of its rows. Truths that are padded with anything else, or that are all in one row, need `target_lengths` (N,),
    as the targets of a loss do; without them, padding with 0 counts as labels.

    Edits and lengths are summed before the division, so that long samples count for more. The rate can exceed 1. If the
    truths hold no symbol at all, it is 0 if nothing was read either, and inf otherwise.

    Raises InvalidInput for counts that differ, for lengths that do not fit, for text beside numbers, and for anything
    that is not a sequence of hashable symbols.

    >>> import ctcbind
    >>> ctcbind.error_rate(["orange", "aple"], ["orange", "apple"])  # 1 of 11 letters
    0.09090909090909091
    >>> ctcbind.error_rate(["an orange"], ["the orange"], unit="word")
    0.5
    >>> import numpy as np
    >>> logits = np.eye(3)[[0, 1, 0, 2]][:, None] * 9.0
    >>> ctcbind.error_rate(ctcbind.greedy_decode(logits), [[1, 2]])
    0.0
    >>> ctcbind.error_rate(ctcbind.greedy_decode(logits), [[1, 2, 0, 0]], [2])
    0.0
    """
    option("unit", unit, ("symbol", "word"))
    _refuse_single("readings", readings)
    _refuse_single("truths", truths)
    if unit == "word" and target_lengths is not None:
        raise InvalidInput(
            'target_lengths count labels; with unit="word" truths are strings, which need none', rule="sequences"
        )
    readings = _rows("readings", readings)
    truths = _rows("truths", truths) if target_lengths is None else _cut(truths, target_lengths, len(readings))
    if len(readings) != len(truths):
        raise InvalidInput(
            f"readings hold {counted(len(readings), 'sequence')}, truths {len(truths)}; each sample needs one of both",
            rule="sequences",
            value=len(readings),
        )
    pairs = _pairs(readings, truths, unit)
    a, b = _numbered(pairs)
    a_lengths, b_lengths = (array("q", map(len, rows)) for rows in pairs)
    edits, symbols = native_decode.edits(a, a_lengths.tobytes(), b, b_lengths.tobytes()), sum(b_lengths)
    if not symbols:
        return math.inf if edits else 0.0
    return edits / symbols


def _pairs(readings: Any, truths: Any, unit: str) -> tuple[list[Any], list[Any]]:
    """The symbols of each sample's reading, and of each truth."""
    if (
        unit == "symbol"
        and type(readings) is type(truths) is list
        and {*map(type, readings), *map(type, truths)} == {str}
    ):
        return readings, truths
    pairs: tuple[list[Any], list[Any]] = ([], [])
    for sample, (reading, truth) in enumerate(zip(readings, truths)):
        if unit == "word":
            reading, truth = _words(sample, reading), _words(sample, truth)
        reading, truth = _symbols(f"readings[{sample}]", reading), _symbols(f"truths[{sample}]", truth)
        _refuse_text_beside_numbers(reading, truth, sample)
        pairs[0].append(reading)
        pairs[1].append(truth)
    return pairs


def _refuse_single(name: str, value: Any) -> None:
    """Raises InvalidInput for what does not hold one sequence a sample, in the order of the samples."""
    if isinstance(value, (str, bytes)):
        raise InvalidInput(f"{name} are one string; pass a list of them, one a sample", rule="sequences", value=value)
    single = not (hasattr(value, "__len__") or hasattr(value, "__dlpack__")) or getattr(value, "ndim", 1) == 0
    # a dict would be compared by its keys, and a set has no order
    if single or isinstance(value, (Mapping, Set)):
        raise InvalidInput(
            f"{name} are {brief(value)}; pass a list of sequences, one a sample", rule="sequences", value=value
        )


def _words(sample: int, text: Any) -> list[str]:
    text = _plain(text)
    if not isinstance(text, str):
        raise InvalidInput(
            f'sample {sample} holds {brief(text)}; with unit="word" readings and truths are strings',
            rule="sequences",
            sample=sample,
            value=text,
        )
    return str(text).split()


def _plain(value: Any) -> Any:
    """A scalar of Arrow's as Python's, which it does not equal: what the columns of pyarrow hold."""
    return value.as_py() if hasattr(value, "as_py") else value


def _seen(name: str, value: Any) -> Any:
    """As NumPy's array, if it is an array of any library's."""
    try:
        seen = as_host(value)
    except InvalidInput as refused:
        raise InvalidInput(f"{name}: {refused}", rule=refused.rule) from refused
    if is_masked(seen):
        raise InvalidInput(f"{name}: a masked array; pass it filled, with -1 for padding", rule="sequences")
    return seen


def _rows(name: str, sequences: Any) -> Any:
    """The rows of an array of integers without the negative numbers that pad them; anything else as it is."""
    array = _seen(name, sequences)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        return array
    _refuse_numbers(name, array)
    if array.dtype.kind not in "iu":
        return sequences
    return [row[: len(row) - np.argmax(np.append(row[::-1] >= 0, True))] for row in array]


def _cut(truths: Any, target_lengths: Any, samples: int) -> list[Any]:
    """The first labels of each row, as many as its length says; or of one row of all labels the pieces."""
    lengths = rules.first(rules.target_lengths(target_lengths, samples))
    assert lengths is not None, "no rule is broken, and still there are no lengths"
    counts = lengths.tolist()
    rows = _seen("truths", truths)
    if len(rows) and all(isinstance(each, (int, np.integer)) for each in rows):
        if (total := sum(counts)) != len(rows):
            raise InvalidInput(
                f"target_lengths sum to {total}, but truths hold {counted(len(rows), 'label')}",
                rule="target_lengths_sum",
                value=total,
            )
        return np.split(np.asarray(rows), np.cumsum(lengths)[:-1])
    rows = [_symbols(f"truths[{sample}]", row) for sample, row in enumerate(rows)]
    for sample, (row, count) in enumerate(zip(rows, counts)):
        if count > len(row):
            raise InvalidInput(
                f"target_lengths[{sample}] is {count}, but truths[{sample}] holds {counted(len(row), 'label')}",
                rule="target_length",
                sample=sample,
                value=count,
            )
    return [row[:count] for row, count in zip(rows, counts)] + rows[samples:]


def _refuse_numbers(name: str, array: npt.NDArray[Any]) -> None:
    """Labels are integers; padding, among other things, would be taken for a symbol."""
    if array.size and array.dtype.kind in "fc":
        raise InvalidInput(f"{name} are {array.dtype}; symbols are integers or text", rule="sequences")


def _symbols(name: str, sequence: Any) -> Any:
    """Text as it is, integers of up to 32 bits as an array of Python's, other symbols as a list."""
    if type(sequence) is str:
        return sequence
    if isinstance(sequence, Hypothesis):
        sequence = sequence.labels
    if type(sequence) not in (list, tuple):
        if type(sequence) is not np.ndarray:
            sequence = _seen(name, _plain(sequence))
        if not isinstance(sequence, Sequence) and np.ndim(seen := np.asarray(sequence)):
            sequence = seen
        if isinstance(sequence, np.ndarray):
            if sequence.ndim != 1:
                raise InvalidInput(
                    f"{name} has shape {sequence.shape}; it must be one row of symbols", rule="sequences"
                )
            _refuse_numbers(name, sequence)
            if sequence.dtype.kind in "iu" and ((narrow := sequence.astype(np.int32)) == sequence).all():
                return array("i", narrow.tobytes())
            sequence = sequence.tolist()
        if not isinstance(sequence, Sequence):
            raise InvalidInput(f"{name} is {brief(sequence)}; it must be a sequence of symbols", rule="sequences")
        if isinstance(sequence, str) and type(sequence).__iter__ is str.__iter__:
            return str.__str__(sequence)  # of NumPy's, for one
    symbols = list(sequence)
    kinds = set(map(type, symbols))
    if kinds <= {int}:
        try:
            return array("i", symbols)
        except OverflowError:
            return symbols
    return symbols if kinds == {str} else [_symbol(name, position, each) for position, each in enumerate(symbols)]


def _symbol(name: str, position: int, each: Any) -> Any:
    if isinstance(each, (int, str, bytes)):
        return each
    each = _plain(each)
    host = _seen(f"{name}[{position}]", each)
    if isinstance(host, np.ndarray) and host.ndim == 0:  # as PyTorch's, which hash by identity
        return host.item()
    if isinstance(host, np.ndarray):
        raise InvalidInput(
            f"{name}[{position}] has shape {host.shape}, which is no symbol", rule="sequences", position=position
        )
    try:
        hash(each)
    except TypeError:
        hint = ": pass the labels of one" if isinstance(each, Hypothesis) else ""
        raise InvalidInput(
            f"{name}[{position}] is of type {type(each).__name__}, which is no symbol{hint}",
            rule="sequences",
            position=position,
        ) from None
    return each
