"""The rules that a batch must keep. Each breach is an InvalidInput that names sample, position, rule and value.

A rule is a generator: it yields each breach, and returns its input in the form that the next step needs, or None where
that cannot be had. `first` raises the first breach, as a loss does; `check` collects them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .arrays import as_host
from .down_sampling import advice
from .errors import Found, InvalidInput, brief, counted, first, with_hint
from .kinds import is_masked

__all__ = [
    "BOOLS",
    "MAX_LABELS",
    "Found",
    "Ints",
    "attempt",
    "first",
    "floats",
    "input_lengths",
    "integers",
    "labels",
    "target_lengths",
    "too_many_labels",
]

T_ = TypeVar("T_")
Ints = npt.NDArray[np.integer[Any]]

#: What Python and NumPy count as 0 and 1.
BOOLS = frozenset((bool, np.bool_))
#: What counts the frames and the labels of the samples.
LENGTHS = ("input_lengths", "target_lengths")
#: Integers of ml_dtypes that NumPy does not count among its own.
NARROW = ("int2", "int4", "uint2", "uint4")
#: A sample has fewer labels than this.
MAX_LABELS = 2**30


def attempt(function: Callable[..., T_], *args: Any) -> Found[T_ | None]:
    """Makes a rule of a function that raises."""
    try:
        return function(*args)
    except InvalidInput as problem:
        yield problem
        return None


def floats(name: str, value: Any) -> npt.NDArray[np.float64]:
    """`value` as a contiguous NumPy array of float64; integers will do."""
    try:
        array = np.asarray(given := as_host(value))
        if is_masked(given):
            raise TypeError("it is a masked array; fill it, with 0 where nothing is to be added")
        if array.dtype.kind not in "fiuV" or array.dtype.names:
            nothing = array.dtype == object and not array.ndim
            raise TypeError(f"it is {brief(value)}" if nothing else f"it holds {array.dtype}")
        # contiguous, so that the strides are whole numbers of elements
        with np.errstate(over="ignore"):  # of more digits than float64: infinite, which is looked for next
            return np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(f"{name} cannot be read as numbers: {error}", rule=name) from error


def integers(name: str, value: Any) -> Found[Ints | None]:
    """`value` as a NumPy array of integers that nobody else can write to once it was checked; floats and the like are
    refused."""
    if type(value) is np.ndarray and value.dtype.kind in "iu":
        return value.copy()
    array = yield from _read(name, value)
    if array is None:
        return None
    if array.dtype.kind in "iu":
        return array
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind == "f" and array.ndim and (array != np.trunc(array)).any():
        yield _fraction(name, array)
    elif array.dtype.kind == "O":
        yield _no_integers(name, array)
    elif array.dtype.kind in "US" and isinstance(value, (list, tuple)) and any(map(_is_int, value)):
        yield _no_integers(name, np.array(value, dtype=object))  # one that is no integer made strings of all
    else:
        yield _other_numbers(name, array, isinstance(value, np.ndarray))
    return None


def _read(name: str, value: Any) -> Found[npt.NDArray[Any] | None]:
    """`value` as a new array of NumPy's: of integers where all of it are such, of objects where they are mixed with
    booleans or too large, and else of the dtype that NumPy gives it. None where there is no array to be had."""
    try:
        value = as_host(value)
    except InvalidInput as refused:
        yield InvalidInput(f"{name}: {refused}", rule=refused.rule)
        return None
    if is_masked(value):
        padded = ", as targets.filled(-1) where the mask is padding" if name == "targets" else ""
        yield InvalidInput(f"{name} is a masked array; pass plain integers{padded}", rule="integers")
        return None
    try:
        array = np.array(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        yield _unreadable(name, value, error)
        return None
    if isinstance(value, (list, tuple)) and array.dtype.kind in "iu" and not BOOLS.isdisjoint(map(type, value)):
        return np.array(value, dtype=object)  # NumPy makes integers of booleans that stand beside some
    if array.dtype.kind == "V" and array.dtype.name in NARROW:  # to name a dtype takes NumPy microseconds
        return array.astype(np.int64)
    if array.dtype.kind == "f":  # or of integers that no one type of NumPy's holds
        boxes = np.asarray(value, dtype=object)
        if all(map(_is_int, boxes.flat)):
            fits = all(-(2**63) <= int(each) < 2**63 for each in boxes.flat)  # as int8 beside uint64
            return boxes.astype(np.int64) if fits else boxes
    return array


def _fraction(name: str, array: npt.NDArray[Any]) -> InvalidInput:
    """The first number that is not whole."""
    at = tuple(np.argwhere(array != np.trunc(array))[0])
    where = "".join(f"[{i}]" for i in at)
    return InvalidInput(
        f"{name}{where} is {array[at]}; it must be an integer{_instead(name, array, at)}",
        rule="integers",
        sample=int(at[0]),
        position=int(at[1]) if array.ndim == 2 else None,
        value=float(array[at]),
    )


def _unreadable(name: str, value: Any, error: Exception) -> InvalidInput:
    """What NumPy can make no array of: rows of several lengths, or among numbers, or nothing of the kind."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        entries = np.empty(len(value), object)
        for i, entry in enumerate(value):
            entries[i] = entry
        problem = _no_integers(name, entries)
    else:
        rows = isinstance(error, ValueError) and "inhomogeneous" in str(error)
        why = f"its rows have several lengths: pass a list of them, list({name})" if rows else error
        problem = InvalidInput(f"{name} cannot be read as integers: {why}", rule="integers")
    problem.__cause__ = error
    return problem


def _other_numbers(name: str, array: npt.NDArray[Any], given: bool) -> InvalidInput:
    """Of another type than integers; `given` says that the caller has the array, and not a list of which it was
    made."""
    kind = {"b": "booleans", "c": "complex numbers", "U": "strings", "S": "bytes"}
    what = kind.get(array.dtype.kind, str(array.dtype))
    shown = f" (the first is {brief(array.flat[0].item())})" if array.dtype.kind in "US" else ""
    cure = ""
    if array.dtype.kind in "fb" and array.ndim == 3 and name == "targets":
        cure = ": pass targets.argmax(axis=2) if they are one-hot"
    elif name in LENGTHS and array.dtype.kind == "b" and array.ndim == 2:
        cure = f": pass {name}.sum(axis=1) if they are a mask that is True where a frame or label counts"
    elif name in LENGTHS and array.ndim == 2 and array.dtype.kind == "f" and np.isin(array, (0, 1)).all():
        whole = f"{name}.sum(axis=1).astype(int)"
        cure = (
            f": pass {whole} if they are a mask that is 1 where a frame or label counts, {array.shape[1]} - {whole} if "
            "1 stands for padding"
        )
    elif array.dtype.kind == "f":
        cure = _of_a_length(name, array) or f": pass {name}.astype(int)" if given else f": pass {name} as ints"
    elif "float" in array.dtype.name:  # of ml_dtypes
        cure = f": pass {name}.astype(int)"
    return InvalidInput(
        f"{name} holds {what}{shown}; it must hold integers{cure}", rule="integers", value=str(array.dtype)
    )


def _instead(name: str, array: npt.NDArray[Any], at: tuple[Any, ...]) -> str:
    """What to do with a number that is not whole."""
    if np.isnan(array[at]) and name.startswith("targets"):  # pandas pads with it
        return ": pad rows with negative numbers, such as -1"
    return _of_a_length(name, array)


def _of_a_length(name: str, array: npt.NDArray[Any]) -> str:
    """What to do with lengths up to 1 that are floats, as of toolkits where 1 is the longest sample."""
    if name not in LENGTHS or not array.size or not (array.min() >= 0 and 0 < array.max() <= 1):
        return ""
    whole = "T" if name == "input_lengths" else "the width of the targets"
    return f": if they are shares of {whole}, pass them times that, rounded"


def _no_integers(name: str, array: npt.NDArray[Any]) -> InvalidInput:
    """Which of Python's objects is no integer, or too large for one of 64 bits."""
    for at, each in np.ndenumerate(array):
        if _is_int(each) and -(2**63) <= each < 2**63:
            continue
        if _is_int(each):
            why = "it does not fit into an int64"
        elif isinstance(each, (list, tuple, np.ndarray)) and name == "targets":
            why = "pass rows as a list of them, list(targets)"
        elif isinstance(each, Iterable) and not isinstance(each, (str, bytes, Mapping)) and not at:
            why = "pass a list"
        else:
            why = "it must be an integer" if at else "it must hold integers"
        where = "".join(f"[{i}]" for i in at)
        return InvalidInput(
            f"{name}{where} is {brief(each)} ({type(each).__name__}); {why}",
            rule="integers",
            sample=at[0] if at else None,
            position=at[1] if len(at) == 2 else None,
            value=each if isinstance(each, (int, float, str)) else type(each).__name__,
        )
    # integers, each in a box of its own
    return InvalidInput(f"{name} holds Python objects; it must hold integers: pass {name}.astype(int)", rule="integers")


def _is_int(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _per_sample(name: str, value: Any, N: int | None) -> Found[Ints | None]:
    """(N,) integers; None where they are none. Negative ones are yielded and left as they are."""
    array = yield from integers(name, value)
    if array is None:
        return None
    if not array.ndim:
        cure = "" if N is None else f": pass [{array}] * {N}"
        said = f"{name} is {array}; it must hold one length a sample{cure}"
        yield InvalidInput(said, rule="length_rank", value=int(array))
        return None
    if array.ndim != 1:
        cure = f": pass numpy.ravel({name})" if array.size in array.shape else ""
        if array.ndim == 2 and not cure and np.isin(array, (0, 1)).all():
            cure = f": pass {name}.sum(axis=1) if they are a mask that is 1 where a frame or label counts"
        yield InvalidInput(
            f"{name} has shape {array.shape}; it must be one-dimensional, one length a sample{cure}",
            rule="length_rank",
            value=array.shape,
        )
        return None
    if N is not None and array.shape[0] != N:
        yield InvalidInput(
            f"{name} has {counted(array.shape[0], 'length')}, but the batch has {counted(N, 'sample')}",
            rule="length_count",
            value=array.shape[0],
        )
        N = None
    if array.size and array.min() < 0:
        for sample in np.flatnonzero(array < 0).tolist():
            yield InvalidInput(
                f"{name}[{sample}] is {array[sample]}; a length cannot be negative",
                rule="length_negative",
                sample=sample,
                value=int(array[sample]),
            )
    return None if N is None else array


def input_lengths(
    value: Any, T: int | None, N: int | None, C: int | None = None, layout: str = "TNC"
) -> Found[npt.NDArray[np.int32] | None]:
    """Frames of each sample, (N,) int32; None in means T for all. Wrong ones are cut to 0..T."""
    if value is None:
        return None if T is None or N is None else np.full(N, T, dtype=np.int32)
    array = yield from _per_sample("input_lengths", value, N)
    if array is None or T is None:
        return None
    if array.max() > T:
        hint = _exchanged(layout) if array.max() == C else advice(array, T)
        for sample in np.flatnonzero(array > T).tolist():
            yield InvalidInput(
                f"input_lengths[{sample}] is {array[sample]}, but the logits have only T = {T} time steps{hint}",
                rule="input_length",
                sample=sample,
                value=int(array[sample]),
            )
            hint = ""  # said once
        array = np.minimum(array, T)
    return np.ascontiguousarray(np.maximum(array, 0), dtype=np.int32)


def _exchanged(layout: str) -> str:
    axes, order = ("(N, C, T)", (0, 2, 1)) if layout == "NTC" else ("(C, N, T)", (2, 1, 0))
    return f": the last axis of the logits is that long; if they are {axes}, transpose them by {order}"


def target_lengths(value: Any, N: int | None) -> Found[npt.NDArray[np.int64] | None]:
    """Labels of each sample, (N,) int64, each small enough for the 2L + 1 states to be counted in an int32.

    Wrong ones are cut to 0..MAX_LABELS.
    """
    array = yield from _per_sample("target_lengths", value, N)
    if array is None:
        return None
    if array.max(initial=0) >= MAX_LABELS:
        for sample in np.flatnonzero(array >= MAX_LABELS).tolist():
            yield too_many_labels(f"target_lengths[{sample}] is {array[sample]}", sample, int(array[sample]))
    return np.clip(array, 0, MAX_LABELS).astype(np.int64)


def too_many_labels(what: str, sample: int, count: int) -> InvalidInput:
    return InvalidInput(f"{what}; 2L + 1 must be below 2**31", rule="size_limit", sample=sample, value=count)


def labels(
    flat: Ints, lengths: npt.NDArray[np.int64] | None, C: int, blank: int | None, *, counted: bool
) -> Found[None]:
    """Each label is in 0..C-1, and none of them is the blank; `lengths` None: whose they are is not known. `counted`:
    they are the caller's own."""
    if not flat.size or _are_classes(flat, C, blank):
        return
    wrong = (flat < 0) | (flat >= C)
    if blank is not None:
        wrong |= flat == blank
    if lengths is None:
        for index in np.flatnonzero(wrong).tolist():
            value = int(flat[index])
            yield _wrong_label(f"targets[{index}] is {value}", None, index, value, C, blank, flat.dtype)
        return
    ends = np.cumsum(lengths)
    padded_from = _padding(flat, lengths, blank)
    for index in np.flatnonzero(wrong).tolist():
        sample = int(np.searchsorted(ends, index, side="right"))
        position = index - int(ends[sample] - lengths[sample])
        value = int(flat[index])
        where = f"targets[{sample}][{position}] is {value}"
        problem = _wrong_label(where, sample, position, value, C, blank, flat.dtype)
        fewer = f"target_lengths[{sample}] is {lengths[sample]} and counts it; without it {position}"
        if padded_from is not None and index >= padded_from[sample]:
            padded_from = None  # said once
            cure = fewer if counted else "pad with -1 in an array, or give target_lengths that count the labels alone"
            problem = with_hint(problem, f". Blanks end this row as padding would: {cure}")
        elif value < 0 and not counted:
            problem = with_hint(problem, " (only an array (N, L) may be padded with negative numbers)")
        elif value < 0 and (position == 0 or flat[index - 1] >= 0) and (flat[index : ends[sample]] < 0).all():
            problem = with_hint(problem, f". Negative numbers end this row as padding would: {fewer}")
        yield problem


def _are_classes(flat: Ints, C: int, blank: int | None) -> bool:
    """Whether all are in 0..C-1, and none is the blank."""
    first = 1 if blank == 0 else 0
    end = C - 1 if blank == C - 1 else C
    if flat.min() < first or flat.max() >= end:
        return False
    return blank in (None, 0, C - 1) or blank not in flat  # at either end of the classes the range has met it


def _padding(flat: Ints, lengths: npt.NDArray[np.int64] | None, blank: int | None) -> npt.NDArray[np.int64] | None:
    """Of rows that are all as long: where in `flat` the blanks begin that end each row; None for other rows."""
    if blank is None or lengths is None or (lengths != lengths[0]).any():
        return None
    others = np.append(-1, np.flatnonzero(flat != blank))
    ends = np.cumsum(lengths)
    return np.asarray(np.maximum(others[np.searchsorted(others, ends) - 1] + 1, ends - lengths))


def _wrong_label(
    where: str, sample: int | None, position: int, value: int, C: int, blank: int | None, dtype: np.dtype[Any]
) -> InvalidInput:
    if value == blank:
        rule, why = "label_blank", f"{where}, which is the blank; a target holds labels only (blank={blank})"
    elif value < 0:
        rule, why = "label_negative", f"{where}; a label cannot be negative"
    elif C == 1:
        rule, why = "label_range", f"{where}, but there is only one class, the blank"
    else:
        rule, why = "label_range", f"{where}, but there are {C} classes (0..{C - 1})"
        if dtype.kind == "u" and value == np.iinfo(dtype).max:
            why += f"; {dtype} makes that of a -1, so pad in a signed type"
        else:
            why += ", the blank among them"
    return InvalidInput(why, rule=rule, sample=sample, position=position, value=value)
