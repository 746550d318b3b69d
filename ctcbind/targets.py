"""The labels of a batch, in any of the forms that people keep them in, as one row and one length a sample."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import InvalidInput, brief, counted, reworded
from .kinds import packed
from .rules import BOOLS, Found, Ints, integers

__all__ = ["flatten_targets", "pack_plain"]

#: All labels in one row, and the labels of each sample; None for those where the row cannot be cut into samples.
Flat = tuple[Ints, npt.NDArray[np.int64] | None]
Lengths = npt.NDArray[np.int64]

_ROWS = frozenset((list, tuple))
_INT = frozenset((int,))
#: NumPy's methods of these names cost twice as much.
_SUM, _MOST, _EQUAL = np.add.reduce, np.maximum.reduce, np.equal
_UNSIGNED: dict[Any, Any] = {np.dtype(np.int32): np.dtype(np.uint32), np.dtype(np.int64): np.dtype(np.uint64)}
#: Up to this many entries a Python list is quicker than NumPy's fixed cost of a call.
_FEW = 256
#: From so many on the fast path is not tried: where it declines, its work would be done twice.
_MANY = 1 << 28


def pack_plain(
    targets: Any, input_lengths: Any, target_lengths: Any, T: int, N: int, C: int, blank: int
) -> list[int] | npt.NDArray[np.int32] | None:
    """All labels, then N label lengths, then N input lengths, of a batch that is plain and right; else None.

    "Plain" means lists of lists of ints, integer arrays, and lists of those. None does not say what is wrong:
    `flatten_targets` and the rules find that out.
    """
    if type(targets) is np.ndarray and _FEW < targets.size < _MANY:
        return _pack_arrays(targets, input_lengths, target_lengths, T, N, C, blank)
    if type(targets) in _ROWS and target_lengths is None:
        if len(targets) != N:
            return None
        flat: list[int] = []
        counts = []
        for row in targets:
            if type(row) is np.ndarray and row.ndim == 1 and row.size <= _FEW and row.dtype.kind in "iu":
                row = row.tolist()
            elif type(row) not in _ROWS:
                return None
            flat += row
            counts.append(len(row))
        if not _INT.issuperset(map(type, flat)):
            return None
    else:
        found = _plain_arrays(targets, target_lengths, N)
        if found is None:
            return None
        flat, counts = found
    distinct = set(flat)
    if distinct and (blank in distinct or min(distinct) < 0 or max(distinct) >= C):
        return None
    if input_lengths is None:
        frames = [T] * N
    else:
        given = _plain_ints(input_lengths, N)
        if given is None or min(given) < 0 or max(given) > T:
            return None
        frames = given
    return flat + counts + frames


def _plain_arrays(targets: Any, lengths: Any, N: int) -> tuple[list[int], list[int]] | None:
    if type(targets) is not np.ndarray or targets.size > _FEW or targets.dtype.kind not in "iu":
        return None
    if lengths is None:
        return _before_padding(targets.tolist()) if targets.ndim == 2 and len(targets) == N else None
    counts = _plain_ints(lengths, N)
    if counts is None or min(counts) < 0:
        return None
    if targets.ndim == 1:
        return (targets.tolist(), counts) if sum(counts) == targets.size else None
    if targets.ndim != 2 or len(targets) != N or max(counts) > targets.shape[1]:
        return None
    if sum(counts) == targets.size:
        return targets.reshape(-1).tolist(), counts
    return [label for row, count in zip(targets.tolist(), counts) for label in row[:count]], counts


def _before_padding(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """What stands before the negatives that end each row; any that do not are still among them."""
    flat: list[int] = []
    counts = []
    for row in rows:
        count = len(row)
        while count and row[count - 1] < 0:
            count -= 1
        flat += row[:count]
        counts.append(count)
    return flat, counts


def _pack_arrays(
    targets: npt.NDArray[Any], input_lengths: Any, target_lengths: Any, T: int, N: int, C: int, blank: int
) -> npt.NDArray[np.int32] | None:
    width = targets.shape[-1]
    # copies: another thread of the caller's must not change the arrays between the checks and the packing
    targets, input_lengths, target_lengths = map(_alone, (targets, input_lengths, target_lengths))
    if target_lengths is None and targets.ndim == 2 and targets.dtype in _UNSIGNED:
        target_lengths = _SUM(targets >= 0, axis=1, dtype=np.int64)  # a negative before the end is found below
    counts = _within(target_lengths, (N,), targets.size if targets.ndim == 1 else width)
    frames = T if input_lengths is None else _within(input_lengths, (N,), T)
    if counts is None or frames is None:
        return None
    total = int(_SUM(counts, dtype=np.int64))
    if targets.ndim == 2 and len(targets) == N:
        flat = targets.reshape(-1) if total == targets.size else targets[np.arange(width) < counts[:, None]]
    elif targets.ndim == 1 and total == width:
        flat = targets
    else:
        return None
    first = 1 if blank == 0 else 0  # where the blank is 0, the check of the range covers it
    if total and _within(flat - first if first else flat, (total,), C - 1 - first) is None:
        return None
    if blank and _EQUAL(flat, blank).any():
        return None
    packed = np.empty(total + 2 * N, np.int32)
    packed[:total] = flat
    packed[total:-N] = counts
    packed[-N:] = frames
    return packed


def _alone(value: Any) -> Any:
    return value.copy() if type(value) is np.ndarray else value


def _within(value: Any, shape: tuple[int, ...], high: int) -> Any:
    """The array, if it has this shape and holds integers in 0..high. Read as unsigned, negative ones exceed `high`."""
    if type(value) is not np.ndarray or value.shape != shape:
        return None
    unsigned = _UNSIGNED.get(value.dtype)
    if unsigned is None:
        return None
    most: int = _MOST(value.view(unsigned))
    return value if most <= high else None


def _plain_ints(value: Any, N: int) -> list[int] | None:
    if type(value) is np.ndarray:
        return value.tolist() if value.shape == (N,) and N <= _FEW and value.dtype.kind in "iu" else None
    if type(value) in _ROWS and len(value) == N and _INT.issuperset(map(type, value)):
        return list(value)
    return None


def flatten_targets(
    targets: Any, lengths: Lengths | None, N: int | None, *, broken: bool = False
) -> Found[Flat | None]:
    """Any form of targets as (all labels in one row, labels of each sample).

    `broken`: target_lengths were given and are wrong; what does not depend on them is checked all the same.
    """
    if (what := packed(targets)) is not None:
        yield InvalidInput(f"targets are {what}", rule="targets_rank")
        return None
    targets = _rows_of_objects(targets)
    if isinstance(targets, (list, tuple)) and not _is_flat(targets, lengths):
        return (yield from _from_sequences(targets, lengths, N, broken))
    array = yield from integers("targets", targets)
    if array is None:
        return None
    if array.ndim == 1:
        return (yield from _from_concatenated(array, lengths, broken))
    if array.ndim == 2:
        return (yield from _from_padded(array, lengths, N, broken))
    yield InvalidInput(
        f"targets have {array.ndim} dimensions, shape {array.shape}; they must be a list of sequences, a padded "
        "(N, L) array, or one concatenated row with target_lengths"
        + (": pass targets.argmax(axis=2) if they are one-hot" if array.ndim == 3 else ""),
        rule="targets_rank",
        value=array.shape,
    )
    return None


def _rows_of_objects(targets: Any) -> Any:
    """The rows of an array or a column of a table that holds rows of labels, as a list; others as they are."""
    if str(getattr(targets, "dtype", None)) != "object" or getattr(targets, "ndim", 0) != 1:
        return targets
    rows = list(targets)
    return rows if any(isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in rows) else targets


def _is_flat(targets: Sequence[Any], lengths: Lengths | None) -> bool:
    """Whether it is one row of numbers and not a list of rows. An empty list is a row if there are lengths for it."""
    if not targets:
        return lengths is not None and len(lengths) > 0
    return all(isinstance(each, (int, float, complex)) or getattr(each, "ndim", None) == 0 for each in targets)


def _from_sequences(targets: Sequence[Any], lengths: Lengths | None, N: int | None, broken: bool) -> Found[Flat | None]:
    if N is not None and len(targets) != N:
        yield InvalidInput(
            f"targets hold {counted(len(targets), 'sequence')}, but the batch has {counted(N, 'sample')}",
            rule="targets_count",
            value=len(targets),
        )
        lengths = None
    if lengths is None and (flattened := _from_lists(targets)) is not None:
        return flattened
    rows: list[Ints] = []
    sound = True
    for sample, value in enumerate(targets):
        row = yield from _row(sample, value)
        sound = sound and row is not None
        rows.append(np.empty(0, dtype=np.int64) if row is None else row)
    if lengths is not None and not broken:
        if sound:
            yield from _counts_fit(rows, lengths)
        rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    return _joined(rows), np.array([row.shape[0] for row in rows], dtype=np.int64)


def _from_lists(targets: Sequence[Any]) -> tuple[Ints, Lengths] | None:
    """The same at once for lists of ints; None for others."""
    if not all(type(row) is list for row in targets):
        return None
    labels = list(chain.from_iterable(targets))
    try:
        flat = np.array(labels)
    except (ValueError, TypeError, OverflowError):
        return None
    if flat.ndim != 1 or flat.dtype.kind != "i" or not BOOLS.isdisjoint(map(type, labels)):
        return None
    return flat, np.fromiter(map(len, targets), dtype=np.int64, count=len(targets))


def _counts_fit(rows: list[Ints], lengths: Lengths) -> Found[None]:
    """Each length counts the labels of its row, or fewer where rows of one length may hold padding."""
    padded = len({row.shape[0] for row in rows}) <= 1
    for sample, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
        why = ""
        if length < len(row) and not padded:
            why = ", and rows of different lengths hold no padding: pass no target_lengths"
        if length > len(row) or why:
            has = counted(len(row), "label")
            yield InvalidInput(
                f"target_lengths[{sample}] is {length}, but targets[{sample}] has {has}{why}",
                rule="target_length",
                sample=sample,
                value=int(length),
            )


def _joined(rows: list[Ints]) -> Ints:
    """All labels in one row; as Python's own ints where int64 does not hold one, so that the rules can name it."""
    flat = np.concatenate([row for row in rows if row.size] or [np.empty(0, dtype=np.int64)])
    if flat.dtype.kind == "i":
        return flat
    boxes = np.array([int(label) for row in rows for label in row], dtype=object)  # int64 beside uint64 makes float64
    return boxes.astype(np.int64) if all(label < 2**63 for label in boxes) else boxes


def _row(sample: int, row: Any) -> Found[Ints | None]:
    name = f"targets[{sample}]"
    if isinstance(getattr(row, "labels", None), list):
        yield InvalidInput(
            f"{name} is of type {type(row).__name__}; it must be one row of labels: pass its labels",
            rule="integers",
            sample=sample,
            value=type(row).__name__,
        )
        return None
    if isinstance(row, (str, bytes)):
        yield InvalidInput(
            f"{name} is {brief(row)}; labels are integers: map each symbol to its class first",
            rule="integers",
            sample=sample,
            value=row,
        )
        return None
    array = yield from reworded(integers(name, row), partial(_within_sample, sample))
    if array is not None and array.ndim != 1:
        is_now = f"has shape {array.shape}" if array.ndim else f"is {array}"
        yield InvalidInput(
            f"{name} {is_now}; it must be one row of labels",
            rule="targets_rank",
            sample=sample,
            value=array.shape,
        )
        return None
    return array


def _within_sample(sample: int, problem: InvalidInput) -> InvalidInput:
    """Of a breach in one row: what counts as the sample there is the position in it."""
    problem.position, problem.sample = problem.sample, sample
    return problem


def _from_concatenated(array: Ints, lengths: Lengths | None, broken: bool) -> Found[Flat]:
    if broken:
        return array, None
    if lengths is None:
        yield InvalidInput(
            "targets are one row of labels, so target_lengths must say how many belong to each sample (or pass "
            "a list of sequences, [[...]] for one sample)",
            rule="target_lengths_missing",
        )
    elif sum(lengths.tolist()) != array.shape[0]:
        total = sum(lengths.tolist())
        N, L = len(lengths), array.shape[0] // max(len(lengths), 1)
        padded = N > 1 and array.shape[0] == N * L and L >= lengths.max() >= 0
        cure = f": if they are padded rows, one after the other, pass them in shape ({N}, {L})" if padded else ""
        yield InvalidInput(
            f"target_lengths sum to {total}, but targets hold {counted(array.shape[0], 'label')}{cure}",
            rule="target_lengths_sum",
            value=total,
        )
        lengths = None
    return array, lengths


def _from_padded(array: Ints, lengths: Lengths | None, N: int | None, broken: bool) -> Found[Flat | None]:
    rows, width = array.shape
    if N is not None and rows != N:
        yield InvalidInput(
            f"targets have {rows} rows (shape {array.shape}), but the batch has {counted(N, 'sample')}"
            + (": pass targets.T if they are (L, N)" if width == N else ""),
            rule="targets_count",
            value=rows,
        )
        if lengths is not None:
            return None
    if lengths is None:
        if broken:
            return None
        padding = array < 0
        lengths = width - padding.sum(axis=1, dtype=np.int64)
        inside = padding & (np.arange(width) < lengths[:, None])
        for sample, position in np.argwhere(inside).tolist() if inside.any() else ():
            yield InvalidInput(
                f"targets[{sample}][{position}] is {array[sample, position]} and a label follows it; negative "
                "padding may stand only at the end of a row",
                rule="label_negative",
                sample=sample,
                position=position,
                value=int(array[sample, position]),
            )
        if inside.any():
            return None
    elif lengths.max(initial=0) > width:
        for sample in np.flatnonzero(lengths > width).tolist():
            if not broken:
                yield InvalidInput(
                    f"target_lengths[{sample}] is {lengths[sample]}, but targets have only {width} columns",
                    rule="target_length",
                    sample=sample,
                    value=int(lengths[sample]),
                )
        lengths = np.minimum(lengths, width)
    if len(lengths) != rows:
        return None
    return array[np.arange(width) < lengths[:, None]], lengths
