"""The rules that a batch must keep. Each breach is an InvalidInput that names the sample, the rule and the value."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import as_host
from .errors import InvalidInput

__all__ = ["blank_index", "input_lengths", "integers", "labels", "option", "target_lengths"]

Ints = npt.NDArray[np.integer[Any]]

#: A sample has fewer labels than this.
MAX_LABELS = 2**30


def option(name: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    if not isinstance(value, str) or value not in allowed:
        choices = ", ".join(repr(each) for each in allowed)
        raise InvalidInput(f"{name} is {value!r}; it must be one of {choices}{hint}", rule=name, value=value)


def blank_index(blank: Any, C: int) -> int:
    """The blank as a class of 0..C-1; -1 means the last."""
    if type(blank) is int and 0 <= blank < C:
        return blank
    try:
        if isinstance(blank, (bool, np.bool_)):
            raise TypeError
        index = operator.index(blank)
    except TypeError:
        raise InvalidInput(
            f"blank is {blank!r} ({type(blank).__name__}); it must be an int", rule="blank", value=blank
        ) from None
    if index == -1:
        index = C - 1
    if not 0 <= index < C:
        raise InvalidInput(
            f"blank is {blank}, but there are {C} classes (0..{C - 1}, or -1 for the last)",
            rule="blank",
            value=blank,
        )
    return index


def integers(name: str, value: Any) -> Ints:
    """`value` as a NumPy array of integers, without a copy where it is one; floats and the like are refused."""
    value = as_host(value)
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name} is a masked array; pass plain integers", rule="integers")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidInput(f"{name} cannot be read as integers: {error}", rule="integers") from error
    if array.dtype.kind in "iu" or array.size == 0:
        return array if array.dtype.kind in "iu" else array.astype(np.int64)
    if array.dtype.kind == "f":
        wrong = np.argwhere(array != np.trunc(array))
        if wrong.size:
            where = "".join(f"[{i}]" for i in wrong[0])
            raise InvalidInput(
                f"{name}{where} is {array[tuple(wrong[0])]}; it must be an integer",
                rule="integers",
                sample=int(wrong[0][0]) if array.ndim else None,
                value=float(array[tuple(wrong[0])]),
            )
    kind = {"b": "booleans", "c": "complex numbers", "O": "Python objects", "U": "strings", "S": "bytes"}
    what = kind.get(array.dtype.kind, str(array.dtype))
    first = f" (the first is {array.flat[0]!r})" if array.dtype.kind in "OUS" else ""
    raise InvalidInput(f"{name} holds {what}{first}; it must hold integers", rule="integers", value=str(array.dtype))


def _per_sample(name: str, value: Any, N: int) -> Ints:
    array = integers(name, value)
    if array.ndim != 1:
        raise InvalidInput(
            f"{name} has shape {array.shape}; it must be one-dimensional, one length a sample",
            rule="length_rank",
            value=array.shape,
        )
    if array.shape[0] != N:
        raise InvalidInput(
            f"{name} has {array.shape[0]} entries, but the batch has {N} samples",
            rule="length_count",
            value=array.shape[0],
        )
    if N and array.min() < 0:
        sample = int(np.argmax(array < 0))
        raise InvalidInput(
            f"{name}[{sample}] is {array[sample]}; a length cannot be negative",
            rule="length_negative",
            sample=sample,
            value=int(array[sample]),
        )
    return array


def input_lengths(value: Any, T: int, N: int) -> npt.NDArray[np.int32]:
    """Frames of each sample, (N,) int32; None means T for all."""
    if value is None:
        return np.full(N, T, dtype=np.int32)
    array = _per_sample("input_lengths", value, N)
    if N and array.max() > T:
        sample = int(np.argmax(array > T))
        raise InvalidInput(
            f"input_lengths[{sample}] is {array[sample]}, but the logits have only T = {T} time steps",
            rule="input_length",
            sample=sample,
            value=int(array[sample]),
        )
    return np.ascontiguousarray(array, dtype=np.int32)


def target_lengths(value: Any, N: int) -> npt.NDArray[np.int64]:
    """Labels of each sample, (N,) int64, each small enough for the 2L + 1 states to be counted in an int32."""
    array = _per_sample("target_lengths", value, N)
    if N and array.max() >= MAX_LABELS:
        sample = int(np.argmax(array >= MAX_LABELS))
        raise too_many_labels(f"target_lengths[{sample}] is {array[sample]}", sample, int(array[sample]))
    return array.astype(np.int64)


def too_many_labels(what: str, sample: int, count: int) -> InvalidInput:
    return InvalidInput(f"{what}; 2L + 1 must be below 2**31", rule="size_limit", sample=sample, value=count)


def labels(flat: Ints, lengths: npt.NDArray[np.int64], C: int, blank: int) -> None:
    """Each label is in 0..C-1, and none of them is the blank."""
    if not flat.size:
        return
    lowest, highest = flat.min(), flat.max()
    # a blank at either end of the classes is met by the range alone
    between = 0 < blank < C - 1
    if lowest >= (blank == 0) and highest < C - (blank == C - 1) and not (between and blank in flat):
        return
    wrong = (flat < 0) | (flat >= C) | (flat == blank)
    if wrong.any():
        raise _wrong_label(flat, lengths, C, blank, int(np.argmax(wrong)))


def _wrong_label(flat: Ints, lengths: npt.NDArray[np.int64], C: int, blank: int, index: int) -> InvalidInput:
    ends = np.cumsum(lengths)
    sample = int(np.searchsorted(ends, index, side="right"))
    position = index - int(ends[sample] - lengths[sample])
    value = int(flat[index])
    where = f"targets[{sample}][{position}] is {value}"
    if value == blank:
        rule, why = "label_blank", f"{where}, which is the blank; a target holds labels only (blank={blank})"
    elif value < 0:
        rule, why = "label_negative", f"{where}; a label cannot be negative"
    elif C == 1:
        rule, why = "label_range", f"{where}, but there is only one class, the blank"
    else:
        rule, why = "label_range", f"{where}, but there are {C} classes (0..{C - 1})"
    return InvalidInput(why, rule=rule, sample=sample, value=value)
