"""One validated problem, the thing that every engine is handed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from . import forks, rules
from .arrays import ArrayView, Empty, Layout, empty_like, on_device, view_logits
from .errors import Found, InvalidInput, first, reworded, with_hint
from .kinds import plain_arrays
from .options import blank_index
from .targets import flatten_targets, pack_plain

__all__ = ["COUNTS", "Batch", "Topology", "batch_of", "inspect", "make_batch"]

Topology = Literal["ctc", "simple"]

T_ = TypeVar("T_")

_INT32 = np.dtype(np.int32)
#: The rules about how many targets or lengths there are; the `value` of their breaches is the number found.
COUNTS = ("targets_count", "length_count")


@forks.open_properties
@dataclass(eq=False)
class Batch:
    """A batch in which every rule holds: not to be changed, but that who makes it sets the options behind `topology`.

    `logits` are (T, N, C) in the caller's memory; `integers` on the host: the labels, sample after sample without
    padding, then N label lengths, then N input lengths, int32 (or, of a small batch, a list); `blank` is in
    0..C-1.
    """

    logits: ArrayView
    integers: npt.NDArray[np.int32] | list[int]
    blank: int
    topology: Topology = "ctc"
    overwrite: bool = False  #: the gradient is to be written over the logits
    probabilities: bool = field(default=False, kw_only=True)  #: `logits` are what comes after the softmax
    deterministic: bool = field(default=True, kw_only=True)  #: the same input must give the same bits
    reduction: str = field(default="none", kw_only=True)  #: what the engine itself makes of the losses,
    zero_infinity: bool = field(default=False, kw_only=True)  #: and of those that are inf

    on_device = False  #: whether labels and lengths are on the device, where the host has not seen them

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

    @property
    def _int32(self) -> npt.NDArray[np.int32]:
        integers = self.integers
        if type(integers) is list:
            integers = self.integers = np.array(integers, _INT32)
        return cast("npt.NDArray[np.int32]", integers)

    @cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """(N + 1,): labels of sample n are labels[starts[n] : starts[n + 1]]."""
        starts = np.zeros(self.N + 1, dtype=np.int64)
        np.cumsum(self.label_lengths, dtype=np.int64, out=starts[1:])
        return starts

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

    @property
    def longest(self) -> int:
        """How many labels the longest sample has; an upper bound where only the device knows."""
        return int(self.label_lengths.max(initial=0))

    @property
    def states(self) -> int:
        """S = 2L + 1 of the longest sample."""
        return 2 * self.longest + 1

    @cached_property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """(N,): whether any path exists."""
        return self.required <= self.input_lengths

    def targets(self, sample: int) -> npt.NDArray[np.int32]:
        return self.labels[self.starts[sample] : self.starts[sample + 1]]

    def empty_losses(self) -> Any:
        return self.logits.xp.empty(self.N, dtype=self.logits.loss_dtype)

    @property
    def to_reduce(self) -> bool:
        """Whether the engine has anything to do with the losses."""
        return self.zero_infinity or self.reduction != "none"

    def empty_reduced(self) -> Any:
        """Room for the reduced loss, a scalar; None where the losses stay as they are."""
        return None if self.reduction == "none" else self.logits.xp.empty((), dtype=self.logits.loss_dtype)

    def empty_grad(self, empty: Empty = np.empty, *, keep_order: bool = False) -> tuple[Any, Any]:
        """Room for the gradient: (in the caller's layout, the same memory as (T, N, C)), as `empty_like` makes it."""
        if self.overwrite:
            array = self.logits.array
            return (array if self.logits.layout == "TNC" else array.transpose(1, 0, 2)), array
        return empty_like(self.logits, empty, keep_order=keep_order)


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
    return batch_of(view, targets, input_lengths, target_lengths, blank, topology, overwrite)


def batch_of(
    view: ArrayView,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    blank: int = 0,
    topology: Topology = "ctc",
    overwrite: bool = False,
) -> Batch:
    """The same of logits that have been looked at."""
    T, N, C = view.shape
    if N and type(blank) is int and -1 <= blank < C:
        index = blank if blank >= 0 else C - 1
        arrays = plain_arrays(targets), plain_arrays(input_lengths), plain_arrays(target_lengths)
        plain: Any = pack_plain(*arrays, T, N, C, index) if C else None
        if plain is not None:
            return Batch(view, plain, index, topology, overwrite)
    batch = first(inspect(view, targets, input_lengths, target_lengths, blank, topology))
    assert batch is not None, "no rule is broken, and still there is no batch"
    batch.overwrite = overwrite
    return batch


def inspect(
    view: ArrayView | None,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: Any,
    topology: Topology,
    *,
    wrong_blank: bool = False,
) -> Found[Batch | None]:
    """Every rule in turn, as far as what it needs is available (`view` is None where the logits themselves are wrong;
    `wrong_blank` says that the blank is invalid, and that this was reported already).

    Where labels are wrong but lengths are not, a batch is returned all the same: it tells which samples have a path.
    """
    found = _rules(view, targets, input_lengths, target_lengths, blank, wrong_blank, topology)
    if view is not None:
        found = reworded(found, partial(_with_layout, view))
    return (yield from found)


def _with_layout(view: ArrayView, problem: InvalidInput) -> InvalidInput:
    """Adds a hint at the layout where there are as many targets or lengths as another axis is long."""
    T, _, C = view.shape
    if problem.rule not in COUNTS or problem.value not in (T, C):
        return problem
    if problem.value == T:
        seen = f'by layout="{view.layout}" the logits have {T} time steps: if those are the samples, pass '
        other = "NTC" if view.layout == "TNC" else "TNC"
        cure = f'layout="{other}" or transpose them' + (
            ", by (2, 0, 1) if they are (N, C, T)" if other == "NTC" else ""
        )
    else:
        seen = f"the last axis of the logits is {C}, and holds the classes: if those are the samples, "
        cure = "transpose them"
    return with_hint(problem, f"; {seen}{cure}")


def _rules(
    view: ArrayView | None,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: Any,
    wrong_blank: bool,
    topology: Topology,
) -> Found[Batch | None]:
    T, N, C = yield from _sizes(view)
    index = None if wrong_blank else (yield from rules.attempt(blank_index, blank, C))
    given = {"targets": targets, "input_lengths": input_lengths, "target_lengths": target_lengths}
    away: set[str] = set()
    if view is not None and view.device == "cpu":
        away = yield from _in_gpu_memory(given)
    layout = "TNC" if view is None else view.layout
    frames = None if "input_lengths" in away else (yield from rules.input_lengths(input_lengths, T, N, C, layout))
    lengths = None
    broken = "target_lengths" in away
    if target_lengths is not None and not broken:
        lengths, broken = yield from _noticed(rules.target_lengths(target_lengths, N))
        broken = broken or lengths is None
    if "targets" in away:
        return None
    flattened = flatten_targets(targets, lengths, N, broken=broken)
    if (
        input_lengths is not None
        and frames is not None
        and lengths is not None
        and len(frames) == len(lengths)
        and (lengths > frames).all()
    ):
        flattened = _with_order(flattened)
    found, misfit = yield from _noticed(flattened)
    if found is None:
        return None
    flat, counts = found
    if counts is not None and int(counts.max(initial=0)) >= rules.MAX_LABELS:
        sample = int(counts.argmax())
        yield rules.too_many_labels(f"targets[{sample}] has {counts[sample]} labels", sample, int(counts[sample]))
        return None
    if C is not None:
        yield from rules.labels(flat, counts, C, index, counted=lengths is not None)
    if view is None or C is None or frames is None or counts is None or len(counts) != N or index is None:
        return None
    if broken or misfit:
        return None
    return Batch(view, _packed(flat, counts, frames), index, topology)


def _sizes(view: ArrayView | None) -> Found[tuple[int | None, int | None, int | None]]:
    """(T, N, C) of the logits; None for each that is unknown, or wrong."""
    if view is None:
        return None, None, None
    T, N, C = view.shape
    if N == 0:
        yield InvalidInput(f"the batch is empty: N = 0 in logits of shape {view.given_shape}", rule="batch_size")
    if C == 0:
        yield InvalidInput("there are no classes: C = 0, but the blank alone needs one", rule="classes")
    return T, N or None, C or None


def _in_gpu_memory(given: dict[str, Any]) -> Found[set[str]]:
    """The names of the arrays that are there; each is a breach where the logits are on the host."""
    away = [name for name, value in given.items() if on_device(value)]
    for name in away:
        yield InvalidInput(
            f"{name} are in GPU memory while the logits are on the host; bring both to one place", rule="device"
        )
    return set(away)


def _packed(flat: rules.Ints, counts: npt.NDArray[np.int64], frames: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`Batch.integers`. Wrong labels that no int32 holds are cut off; right ones are all smaller."""
    N = len(counts)
    integers = np.empty(flat.size + 2 * N, _INT32)
    integers[: flat.size] = np.clip(flat, -(2**31), 2**31 - 1) if flat.dtype.itemsize > 4 else flat
    integers[flat.size : -N] = counts
    integers[-N:] = frames
    return integers


def _with_order(found: Found[T_]) -> Found[T_]:
    """Adds a hint at the order of the two lengths to the first breach that having exchanged them would explain."""
    told = False

    def reword(problem: InvalidInput) -> InvalidInput:
        nonlocal told
        if told or problem.rule not in ("target_length", "target_lengths_sum"):
            return problem
        told = True
        hint = "each of target_lengths is more than its input length: input_lengths, those of the frames, come first"
        return with_hint(problem, f"; {hint}")

    return reworded(found, reword)


def _noticed(found: Found[T_]) -> Found[tuple[T_, bool]]:
    """What a rule returns, and whether it yielded anything."""
    any_yet = False

    def notice(problem: InvalidInput) -> InvalidInput:
        nonlocal any_yet
        any_yet = True
        return problem

    value = yield from reworded(found, notice)
    return value, any_yet
