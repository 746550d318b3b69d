"""Several batches at once, as torch.func.vmap hands them over: made one batch, or taken one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .errors import InvalidTorchInput

__all__ = ["as_one", "can_be_one", "check_batches", "one_by_one", "reduced", "under_func", "within"]


#: Whether torch.func transforms this call: its tensors then wrap others, one level for each transform.
under_func: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)


def within(x: Tensor) -> Tensor:
    """The numbers of all batches that torch.func.vmap maps; of one, it tells none."""
    while under_func() and torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def can_be_one(dims: Sequence[int | None], tensors: Sequence[Tensor]) -> bool:
    """Whether logits, targets and lengths have a row of labels and two lengths for each sample. Others are left to be
    taken, or refused, one by one: among them labels in one row, whose borders are known from the lengths' values alone.
    """
    logits, targets, *lengths = ((each.dim() - (dim is not None), each) for each, dim in zip(tensors, dims))
    if (logits[0], targets[0], *(rank for rank, _ in lengths)) != (3, 2, 1, 1):
        return False
    samples = _without(logits[1], dims[0])[1]
    return all(_without(each, dim)[0] == samples for each, dim in zip(tensors[1:], dims[1:]))


def _without(tensor: Tensor, dim: int | None) -> list[int]:
    """The shape of one of the batches."""
    return [size for axis, size in enumerate(tensor.shape) if axis != dim]


def as_one(batches: int, axis: int, dim: int | None, tensor: Tensor) -> Tensor:
    """All batches' samples along the axis that samples have in one: sample n of batch b is the b N + n-th."""
    first = tensor.expand(batches, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return first.movedim(0, axis).flatten(axis, axis + 1)


def reduced(
    reduction: str, batches: int, losses: Tensor, grad: Tensor, target_lengths: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """What each batch's reduction makes of the samples' losses and gradients, and their dimensions of batches."""
    losses, grad = losses.unflatten(0, (batches, -1)), grad.unflatten(1, (batches, -1))
    if reduction == "sum":
        losses = losses.double().sum(1).to(losses)
    elif reduction == "label_mean":
        weights = 1 / (target_lengths.to(losses.device).clamp_min(1).double() * losses.shape[1]).view_as(losses)
        losses, grad = (losses * weights).sum(1).to(losses), grad * weights.to(grad)[..., None]
    return (losses, grad), (0, 1)


def check_batches(batches: int) -> None:
    if not batches:
        raise InvalidTorchInput(
            "the batch is empty: torch.func.vmap maps a dimension of size 0", rule="batch_size", value=0
        )


def one_by_one(apply: Callable[..., Any], batches: int, dims: Sequence[Any], arguments: Sequence[Any]) -> Any:
    """The results for each batch, stacked, and their dimensions of batches; what is no tensor is for all of them."""
    pairs = list(zip(arguments, dims))
    results = [
        apply(*(each.select(dim, i) if isinstance(dim, int) else each for each, dim in pairs)) for i in range(batches)
    ]
    if isinstance(results[0], Tensor):
        return torch.stack(results), 0
    return tuple(map(torch.stack, zip(*results))), (0,) * len(results[0])
