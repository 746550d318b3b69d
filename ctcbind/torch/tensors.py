"""The tensors and options that both losses take, as they are read and checked first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence

from .. import kinds, options
from ..errors import InvalidInput, brief
from ..reduction import Reduction
from .errors import InvalidTorchInput, as_torch
from .mapped import under_func, within

__all__ = [
    "FLOATS",
    "Lengths",
    "as_lengths",
    "check_dense",
    "check_tensors",
    "check_values",
    "flag",
    "has_tangent",
    "reduction_of",
]

Lengths: TypeAlias = "Tensor | Sequence[int] | int"


_STRIDED = torch.strided
#: The dtypes of scores, and those that labels and lengths mostly have.
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int64, torch.int32)


def check_tensors(name: str, scores: Tensor, targets: Tensor) -> None:
    """Refuses what is no dense tensor, targets of other numbers than integers, and torch.jit.trace."""
    if torch._C._get_tracing_state() is not None:
        raise NotImplementedError(
            "torch.jit.trace would keep the loss of this batch as a constant: ctcbind.torch is no operator of "
            "TorchScript's; torch.export and torch.compile take it"
        )
    if not isinstance(scores, Tensor):
        raise InvalidTorchInput(
            f"{name} are of type {type(scores).__name__}; they must be a tensor{_tensor_within(name, scores)}",
            rule="logits_dtype",
        )
    if not isinstance(targets, Tensor):
        cure = "; pass torch.as_tensor(targets)" if isinstance(targets, np.ndarray) else ""
        raise InvalidTorchInput(
            f"targets are of type {type(targets).__name__}; they must be a tensor: of rows padded to one length "
            f"(torch.nn.utils.rnn.pad_sequence), or of all labels in one row{cure}",
            rule="targets_rank",
        )
    check_dense(name, scores)
    check_dense("targets", targets)
    if scores.dtype not in FLOATS:
        cure = "" if scores.is_complex() else f": pass {name}.float()"
        if targets.is_floating_point() and not scores.is_complex():
            cure = f"; the targets are {targets.dtype}: the {name} come first, then the targets"
        raise InvalidTorchInput(
            f"{name} are {scores.dtype}; they must be float16, bfloat16, float32 or float64{cure}",
            rule="logits_dtype",
            value=str(scores.dtype),
        )
    if targets.dtype not in _INTEGERS:
        _refuse_other_numbers(targets)


def _tensor_within(name: str, scores: object) -> str:
    """How to come from what networks return to the tensor."""
    if isinstance(scores, PackedSequence):
        return f": pass torch.nn.utils.rnn.pad_packed_sequence({name})[0]"
    if isinstance(scores, tuple) and scores and isinstance(scores[0], Tensor):
        return f": pass {name}[0] if that is the output, as of an RNN, which returns its state as well"
    return " (ctcbind.ctc_loss takes arrays)"


def check_dense(name: str, tensor: Tensor, verb: str = "are", rule: str = "layout") -> None:
    """Refuses tensors that do not hold their numbers one by one, each where strides say."""
    if tensor.layout is _STRIDED and not (tensor.is_nested or tensor.is_quantized):
        return
    if (problem := kinds.torch_form(tensor, name)) is not None:
        raise InvalidTorchInput(f"{name} {verb} {problem}", rule=rule, value=tensor.layout)


def check_values(scores: Tensor, **others: Tensor) -> None:
    """Refuses tensors without values beside scores that have them: PyTorch would hand out memory as it is."""
    if scores.is_meta:
        return
    for name, tensor in others.items():
        if tensor.is_meta:
            raise InvalidTorchInput(f"{name}: a tensor on the device meta has no values", rule="device")


def _refuse_other_numbers(targets: Tensor) -> None:
    """Which of them are no whole numbers, ctcbind says itself."""
    if _told_when_it_runs(targets):
        return
    floats = targets.is_floating_point()
    if floats and targets.dtype not in FLOATS:
        raise InvalidTorchInput(
            f"targets hold {targets.dtype}; they must hold integers: pass targets.long()", rule="integers"
        )
    if not (floats or targets.is_complex() or targets.dtype == torch.bool) or targets.numel() == 0:
        return
    values = within(targets)
    if not floats or targets.is_meta or bool((values == values.trunc()).all()):
        raise InvalidTorchInput(
            f"targets hold {targets.dtype}; they must hold integers: pass targets.long()", rule="integers"
        )


#: The dtypes that NumPy has as well, but for integers.
_NO_INTEGERS = (torch.float32, torch.float64, torch.float16, torch.bool)


def _told_when_it_runs(numbers: Tensor) -> bool:
    """Whether to leave the refusal to the operator: a traced call has no values, and its errors hide what they say."""
    return torch.compiler.is_compiling() and numbers.dtype in _NO_INTEGERS


def _are_mapped(value: object) -> TypeGuard[Sequence[Tensor]]:
    """Whether these are tensors of one number each under torch.func, which does not let them be asked for it."""
    items = value if under_func() and isinstance(value, (list, tuple)) else ()
    return bool(items) and all(isinstance(each, Tensor) and each.dim() == 0 for each in items)


def as_lengths(name: str, value: Lengths, samples: int) -> Tensor:
    """One row of integers, whichever way they are given."""
    if value is None:
        raise InvalidTorchInput(f"{name}: None; they must be integers, one a sample", rule=name)
    try:
        if isinstance(value, Tensor):
            lengths = value
        else:  # torch.compile makes constants of what as_tensor is given, and compiles anew for each list
            make = torch.tensor if isinstance(value, (list, tuple, int)) else torch.as_tensor
            lengths = torch.stack(tuple(value)) if _are_mapped(value) else make(value, device="cpu")
    except (TypeError, ValueError, RuntimeError, OverflowError, BufferError) as error:
        raise InvalidTorchInput(
            f"{name}: {brief(value)}; they must be integers, one a sample ({error})", rule=name
        ) from error
    check_dense(name, lengths)
    others = lengths.dtype not in _INTEGERS and (lengths.is_floating_point() or lengths.dtype == torch.bool)
    if others and lengths.numel() and not _told_when_it_runs(lengths):
        cure = ": pass mask.sum(1) if they are a mask" if lengths.dtype == torch.bool else f": pass {name}.long()"
        cure = cure if lengths is value else ""
        if lengths.is_floating_point() and not lengths.is_meta and within(lengths).double().max() <= 1:
            cure = ": if they are shares of the longest sample, pass them times its length, rounded"
        raise InvalidTorchInput(f"{name} hold {lengths.dtype}; they must hold integers{cure}", rule="integers")
    # of lengths in other shapes that are not one a sample, ctcbind says what they may be
    return lengths.reshape(-1) if lengths.dim() != 1 and lengths.numel() == samples else lengths


#: PyTorch's reductions, and what ctcbind calls them.
_REDUCTIONS: dict[str, Reduction] = {"none": "none", "sum": "sum", "mean": "label_mean"}


def reduction_of(name: str) -> Reduction:
    """What ctcbind calls one of PyTorch's reductions."""
    if not isinstance(name, str) or name not in _REDUCTIONS:
        others = {ours: theirs for theirs, ours in _REDUCTIONS.items() if ours != theirs} | {"elementwise_mean": "mean"}
        hint = f" ({name!r} is PyTorch's {others[name]!r})" if isinstance(name, str) and name in others else ""
        if isinstance(name, str) and name in ("batch_mean", "mean_batch", "batchmean"):
            hint = ": pass 'sum', and divide the loss by the number of samples"
        raise InvalidTorchInput(
            f"reduction is {name!r}; it must be one of 'none', 'mean', 'sum'{hint}", rule="reduction", value=name
        )
    return _REDUCTIONS[name]


def flag(name: str, value: object) -> bool:
    """`options.flag`, with this package's error."""
    try:
        return options.flag(name, value)
    except InvalidInput as error:
        raise as_torch(error) from error


def has_tangent(x: Tensor) -> bool:
    """Whether forward-mode AD is at work: PyTorch says then that a custom function has none."""
    return getattr(forward_ad, "_current_level", -1) >= 0 and forward_ad.unpack_dual(x).tangent is not None
