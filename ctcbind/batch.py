"""One validated problem, the thing that every engine is handed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import check
from .arrays import ArrayView, Layout, empty_like, on_device, view_logits
from .errors import InvalidInput
from .targets import flatten_targets, pack_plain

__all__ = ["Batch", "Topology", "make_batch"]

Topology = Literal["ctc", "simple"]

_INT32 = np.dtype(np.int32)


@dataclass(eq=False)
class Batch:
    """A batch in which every rule holds; not to be changed.

    `logits` are (T, N, C) in the caller's memory; `integers` on the host: the labels, sample after sample without
    padding, then N label lengths, then N input lengths, int32 (or, of a small batch, a list); `blank` is in
    0..C-1.
    """

    logits: ArrayView
    integers: npt.NDArray[np.int32] | list[int]
    blank: int
    topology: Topology = "ctc"
    overwrite: bool = False  #: the gradient is to lie where the logits are

    on_device = False  #: labels and lengths are, and the host has not seen them

    @property
    def T(self) -> int:
        return self.logits.shape[0]

    @property
    def N(self) -> int:
        return self.logits.shape[1]

    @property
    def C(self) -> int:
        return self.logits.shape[2]

    @property
    def labels(self) -> npt.NDArray[np.int32]:
        return self._int32[: -2 * self.N]

    @property
    def label_lengths(self) -> npt.NDArray[np.int32]:
        return self._int32[-2 * self.N : -self.N]

    @property
    def input_lengths(self) -> npt.NDArray[np.int32]:
        return self._int32[-self.N :]

    @cached_property
    def _int32(self) -> npt.NDArray[np.int32]:
        return np.asarray(self.integers, _INT32)

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

    def weights_there(self, reduction: str) -> Any:
        """What each sample counts, (N,) on the device; None where all count 1."""
        raise NotImplementedError

    def targets(self, sample: int) -> npt.NDArray[np.int32]:
        return self.labels[self.starts[sample] : self.starts[sample + 1]]

    def empty_losses(self) -> Any:
        return self.logits.xp.empty(self.N, dtype=self.logits.loss_dtype)

    def empty_grad(self) -> tuple[Any, Any]:
        """Room for the gradient: (in the caller's layout, the same memory as (T, N, C))."""
        if self.overwrite:
            array = self.logits.array
            return (array if self.logits.layout == "TNC" else array.transpose(1, 0, 2)), array
        return empty_like(self.logits)


def make_batch(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
    overwrite: bool = False,
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
    plain = pack_plain(targets, input_lengths, target_lengths, T, N, C, blank)
    if plain is not None:
        return Batch(view, plain, blank, topology, overwrite)
    return Batch(view, _pack(view, targets, input_lengths, target_lengths, blank), blank, topology, overwrite)


def _pack(view: ArrayView, targets: Any, input_lengths: Any, target_lengths: Any, blank: int) -> npt.NDArray[np.int32]:
    T, N, C = view.shape
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
    check.labels(flat, lengths, C, blank)
    integers = np.empty(flat.size + 2 * N, _INT32)
    integers[: flat.size] = flat
    integers[flat.size : -N] = lengths
    integers[-N:] = frames
    return integers
