"""One validated problem, the thing that every engine is handed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import check
from .arrays import ArrayView, Layout, empty_like, on_device, view_logits
from .errors import InvalidInput

__all__ = ["Batch", "Topology", "make_batch"]

Topology = Literal["ctc", "simple"]
Flat = tuple[check.Ints, npt.NDArray[np.int64]]


@dataclass(frozen=True)
class Batch:
    """A batch in which every rule holds.

    `logits` are (T, N, C) in the caller's memory; `labels` are int32 on the host, sample after sample without
    padding; `label_lengths` and `input_lengths` are (N,) int32 on the host; `blank` is in 0..C-1.
    """

    logits: ArrayView
    labels: npt.NDArray[np.int32]
    label_lengths: npt.NDArray[np.int32]
    input_lengths: npt.NDArray[np.int32]
    blank: int
    topology: Topology = "ctc"

    @property
    def T(self) -> int:
        return self.logits.shape[0]

    @property
    def N(self) -> int:
        return self.logits.shape[1]

    @property
    def C(self) -> int:
        return self.logits.shape[2]

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """(N + 1,): labels of sample n are labels[starts[n] : starts[n + 1]]."""
        return np.concatenate(([0], np.cumsum(self.label_lengths, dtype=np.int64)))

    @cached_property
    def repeats(self) -> npt.NDArray[np.int64]:
        """(N,): adjacent equal labels of each sample."""
        before = np.zeros(self.labels.size + 1, dtype=np.int64)
        np.cumsum(self.labels[1:] == self.labels[:-1], out=before[2:] if self.labels.size else before[:0])
        first, last = self.starts[:-1], self.starts[1:]
        # pairs that end inside the sample, less the pair that reaches back into the sample before
        return np.where(last > first, before[last] - before[np.minimum(first + 1, last)], 0)

    @cached_property
    def required(self) -> npt.NDArray[np.int64]:
        """(N,): the fewest frames that can carry the labels: L + repeats, or L where repeats are not merged."""
        return self.label_lengths + (self.repeats if self.topology == "ctc" else 0)

    @cached_property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """(N,): whether any path exists."""
        return self.required <= self.input_lengths

    def targets(self, sample: int) -> npt.NDArray[np.int32]:
        return self.labels[self.starts[sample] : self.starts[sample + 1]]

    def empty_losses(self) -> Any:
        return self.logits.xp.empty(self.N, dtype=self.logits.loss_dtype)

    def empty_grad(self) -> tuple[Any, Any]:
        """Room for the gradient: (in the caller's layout, the same memory as (T, N, C))."""
        return empty_like(self.logits)


def make_batch(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Batch:
    """Check everything once and flatten the labels once; raises InvalidInput for whatever cannot be right."""
    view = view_logits(logits, layout)
    T, N, C = view.shape
    if N == 0:
        shape = (T, N, C) if layout == "TNC" else (N, T, C)
        raise InvalidInput(f"the batch is empty: N = 0 in logits of shape {shape}", rule="batch_size")
    if C == 0:
        raise InvalidInput("there are no classes: C = 0, but the blank alone needs one", rule="classes")
    blank = check.blank_index(blank, C)
    if view.device == "cpu":
        for name, value in (
            ("targets", targets),
            ("input_lengths", input_lengths),
            ("target_lengths", target_lengths),
        ):
            if on_device(value):
                raise InvalidInput(
                    f"{name} are in GPU memory while the logits are on the host; bring both to one place",
                    rule="device",
                )
    frames = check.input_lengths(input_lengths, T, N)
    lengths = None if target_lengths is None else check.target_lengths(target_lengths, N)
    flat, lengths = flatten_targets(targets, lengths, N)
    if int(lengths.max()) >= check.MAX_LABELS:
        sample = int(lengths.argmax())
        raise check.too_many_labels(f"targets[{sample}] has {lengths[sample]} labels", sample, int(lengths[sample]))
    labels = check.labels(flat, lengths, C, blank)
    return Batch(view, labels, lengths.astype(np.int32), frames, blank, topology)


def flatten_targets(targets: Any, lengths: npt.NDArray[np.int64] | None, N: int) -> Flat:
    """Any form of targets as (all labels in one row, labels of each sample)."""
    if isinstance(targets, (list, tuple)) and not _is_flat(targets):
        return _from_sequences(targets, lengths, N)
    array = check.integers("targets", targets)
    if array.ndim == 1:
        return _from_concatenated(array, lengths, N)
    if array.ndim == 2:
        return _from_padded(array, lengths, N)
    raise InvalidInput(
        f"targets have {array.ndim} dimensions, shape {array.shape}; they must be a list of sequences, a padded "
        "(N, L) array, or one concatenated row with target_lengths",
        rule="targets_rank",
        value=array.shape,
    )


def _is_flat(targets: Sequence[Any]) -> bool:
    """One row of numbers, as against a list of rows."""
    return len(targets) > 0 and all(isinstance(each, (int, float, complex, np.generic)) for each in targets)


def _from_sequences(targets: Sequence[Any], lengths: npt.NDArray[np.int64] | None, N: int) -> Flat:
    if len(targets) != N:
        raise InvalidInput(
            f"targets hold {len(targets)} sequences, but the batch has {N} samples",
            rule="targets_count",
            value=len(targets),
        )
    if all(type(row) is list for row in targets):
        row_lengths = np.fromiter(map(len, targets), dtype=np.int64, count=N)
        try:
            flat = np.array(list(chain.from_iterable(targets)))
        except (ValueError, TypeError, OverflowError):
            flat = np.empty(0, dtype=object)
        if flat.ndim == 1 and flat.dtype.kind == "i" and lengths is None:
            return flat, row_lengths
    rows = [_row(sample, row) for sample, row in enumerate(targets)]
    if lengths is not None:
        for sample, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if length > row.shape[0]:
                raise InvalidInput(
                    f"target_lengths[{sample}] is {length}, but targets[{sample}] has {row.shape[0]} labels",
                    rule="target_length",
                    sample=sample,
                    value=int(length),
                )
        rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    flat = np.concatenate([row for row in rows if row.size] or [np.empty(0, dtype=np.int64)])
    if flat.dtype.kind != "i":  # int64 beside uint64 makes float64, which rounds
        flat = np.array([int(label) for row in rows for label in row], dtype=object)
        flat = np.clip(flat, -(2**63), 2**63 - 1).astype(np.int64)
    return flat, np.array([row.shape[0] for row in rows], dtype=np.int64)


def _row(sample: int, row: Any) -> check.Ints:
    name = f"targets[{sample}]"
    if isinstance(row, (str, bytes)):
        raise InvalidInput(
            f"{name} is {row!r}; labels are integers: map each symbol to its class first",
            rule="integers",
            sample=sample,
            value=row,
        )
    try:
        array = check.integers(name, row)
    except InvalidInput as error:
        error.sample = sample
        raise
    if array.ndim != 1:
        raise InvalidInput(
            f"{name} has shape {array.shape}; it must be one row of labels",
            rule="targets_rank",
            sample=sample,
            value=array.shape,
        )
    return array


def _from_concatenated(array: check.Ints, lengths: npt.NDArray[np.int64] | None, N: int) -> Flat:
    if lengths is None:
        raise InvalidInput(
            "targets are one row of labels, so target_lengths must say how many belong to each sample (or pass "
            "a list of sequences, [[...]] for one sample)",
            rule="target_lengths_missing",
        )
    if int(lengths.sum()) != array.shape[0]:
        raise InvalidInput(
            f"target_lengths sum to {int(lengths.sum())}, but targets hold {array.shape[0]} labels",
            rule="target_lengths_sum",
            value=int(lengths.sum()),
        )
    return array, lengths


def _from_padded(array: check.Ints, lengths: npt.NDArray[np.int64] | None, N: int) -> Flat:
    rows, width = array.shape
    if rows != N:
        raise InvalidInput(
            f"targets have {rows} rows (shape {array.shape}), but the batch has {N} samples",
            rule="targets_count",
            value=rows,
        )
    if lengths is None:
        padding = array < 0
        lengths = width - padding.sum(axis=1, dtype=np.int64)
        inside = padding & (np.arange(width) < lengths[:, None])
        if inside.any():
            sample, position = (int(i) for i in np.argwhere(inside)[0])
            raise InvalidInput(
                f"targets[{sample}][{position}] is {array[sample, position]} and a label follows it; negative "
                "padding may stand only at the end of a row",
                rule="label_negative",
                sample=sample,
                value=int(array[sample, position]),
            )
    elif lengths.max() > width:
        sample = int(np.argmax(lengths > width))
        raise InvalidInput(
            f"target_lengths[{sample}] is {lengths[sample]}, but targets have only {width} columns",
            rule="target_length",
            sample=sample,
            value=int(lengths[sample]),
        )
    return array[np.arange(width) < lengths[:, None]], lengths
