"""The loss with scores added to the lattice: its operator, and the derivatives in logits, bonuses and priors."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from ..batch import Topology
from ..errors import InvalidInput, counted
from ..lattice import losses_alone, losses_and_shares
from ..options import blank_index, option
from ..scores import check_scores, check_weight, lattice_batch
from . import mapped
from .errors import InvalidTorchInput, as_torch
from .operators import UNGRAPHED, refuse_forward, traced, uncompiled
from .tensors import (
    FLOATS,
    Lengths,
    as_lengths,
    check_dense,
    check_tensors,
    check_values,
    flag,
    has_tangent,
    reduction_of,
)

__all__ = ["lattice_loss"]

#: What is added to the scores, and what is computed beside the losses: bits of one number, as operators take it.
_BONUS, _PRIOR, _GRADIENT, _POSTERIORS = 1, 2, 4, 8


def lattice_loss(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    *,
    path_bonus: Tensor | None = None,
    log_prior: Tensor | None = None,
    prior_weight: float = 1.0,
    topology: Topology = "ctc",
) -> Tensor:
    """-ln of the sum over all paths with scores added, differentiable in logits, `path_bonus` and `log_prior`.

    | argument | shape and dtype |
    |---|---|
    | logits | (T, N, C); float32, float64, float16 or bfloat16; what stands before a log_softmax, or its output |
    | targets, input_lengths, target_lengths, blank, reduction, zero_infinity, topology | as for `ctcbind.torch.ctc_loss` |
    | path_bonus | (N, T, S), S = 2L + 1 states of the longest target, or what broadcasts to it: added to the score of state s at frame t; -inf forbids it |
    | log_prior | (C,): prior_weight * log_prior[k] is taken from the score of every state of class k |
    | returns | (N,) for reduction="none", else one number |

    As `ctcbind.lattice_loss_and_grad`, for graphs: delay penalties, partial alignments, label priors. With priors
    `torch.nn.functional.ctc_loss(log_probs - prior)` has the same values, but a gradient that is not theirs. Computed
    as there, on the host; half precision is returned in float32. There is no second derivative. `torch.compile` takes
    it into one graph where `path_bonus` has all of its shape.

    Raises InvalidTorchInput as `ctcbind.torch.ctc_loss` does, and where what is added is refused.

    Source: Graves et al., ICML 2006; for priors Huang et al., arXiv:2406.02560.

    >>> import torch, ctcbind.torch
    >>> logits = torch.zeros(50, 2, 5, requires_grad=True)
    >>> prior = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]).log()
    >>> targets = torch.tensor([[1, 2], [3, 3]])
    >>> ctcbind.torch.lattice_loss(logits, targets, [50, 40], [2, 2], log_prior=prior).backward()
    >>> tuple(logits.grad.shape)
    (50, 2, 5)
    """  # noqa: E501
    if not isinstance(logits, Tensor) and has_torch_function((logits,)):  # torch.fx writes the call down
        every = logits, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        by_name = {"path_bonus": path_bonus, "log_prior": log_prior, "prior_weight": prior_weight, "topology": topology}
        return handle_torch_function(lattice_loss, (logits,), *every, **by_name)
    reduction_of(reduction)
    zero = flag("zero_infinity", zero_infinity)
    check_tensors("logits", logits, targets)
    if logits.dim() != 3:
        raise InvalidTorchInput(
            f"logits have {counted(logits.dim(), 'dimension')}, shape {tuple(logits.shape)}; they must have 3, "
            "(T, N, C)",
            rule="logits_rank",
            value=logits.dim(),
        )
    blank, weight = _options(blank, topology, prior_weight)
    x = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    frames = as_lengths("input_lengths", input_lengths, x.shape[1])
    counts = as_lengths("target_lengths", target_lengths, x.shape[1])
    bonus, prior = _as_scores("path_bonus", x, path_bonus), _as_scores("log_prior", x, log_prior)
    check_values(x, targets=targets, input_lengths=frames, target_lengths=counts, path_bonus=bonus, log_prior=prior)
    if any(map(has_tangent, (x, bonus, prior))):
        refuse_forward()
    T, N, _ = x.shape
    # Compared one by one, since under torch.compile the sizes may be symbols; and here, since where its graph ends in a
    # function that is called from here (it does at int), PyTorch warns of gradients of what is no leaf.
    whole = bonus.dim() == 3 and bonus.shape[0] == N and bonus.shape[1] == T and bonus.shape[2] != 1
    if path_bonus is not None and counts.numel() and not whole:
        shape = (N, T, 2 * int(mapped.within(counts).max()) + 1)
        if bonus.dim() <= 3 and all(a in (1, b) for a, b in zip(reversed(bonus.shape), reversed(shape), strict=False)):
            bonus = bonus.expand(shape)
    parts = (_BONUS if path_bonus is not None else 0) | (_PRIOR if log_prior is not None else 0)
    lattice: Any
    if mapped.under_func():  # where no tensor tells whether a gradient is to come
        lattice, gradient, posteriors = partial(uncompiled, _Transformed), True, path_bonus is not None
    else:
        of_x, posteriors, of_prior = (torch.is_grad_enabled() and each.requires_grad for each in (x, bonus, prior))
        gradient = of_x or posteriors or of_prior
        lattice = _lattice if any(map(traced, (x, bonus, prior))) else _Untraced.apply if gradient else _lattice_now
    parts |= (_GRADIENT if gradient else 0) | (_POSTERIORS if posteriors else 0)
    losses = lattice(x, bonus, prior, targets, frames, counts, blank, topology, weight, parts)[0]
    if zero:
        losses = torch.where(losses.isposinf(), torch.zeros_like(losses), losses)
    if reduction == "mean":
        return (losses / counts.to(losses).clamp_min(1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _options(blank: Any, topology: Any, prior_weight: Any) -> tuple[int, float]:
    """The blank and the weight as Python's own numbers; all three are checked."""
    if isinstance(prior_weight, Tensor):
        raise InvalidTorchInput(
            "prior_weight is a tensor; it must be a number: pass prior_weight.item(), or, to learn it, "
            "log_prior=prior_weight * log_prior",
            rule="prior_weight",
        )
    try:
        numbers = blank_index(blank, None), check_weight(prior_weight)
        option("topology", topology, ("ctc", "simple"))
    except InvalidInput as error:
        raise as_torch(error, "logits") from error
    return numbers


def _as_scores(name: str, x: Tensor, value: Any) -> Tensor:
    if value is None:
        return x.new_empty(0)
    try:
        scores = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError, BufferError) as error:
        raise InvalidTorchInput(f"{name} cannot be read as numbers: {error}", rule=name) from error
    check_dense(name, scores, "is", rule=name)
    if scores.is_floating_point() and scores.dtype not in FLOATS:  # which NumPy has not
        raise InvalidTorchInput(
            f"{name} holds {scores.dtype}; it must hold float16, bfloat16, float32 or float64: pass {name}.float()",
            rule=name,
            value=str(scores.dtype),
        )
    return scores


def _lattice_now(
    logits: Tensor,
    bonus: Tensor,
    prior: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
    weight: float,
    parts: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The samples' losses, the gradient of their sum, posteriors, and frames in each class. What is not added, or not
    wanted, is empty."""
    arrays = map(_on_host, (logits, targets, input_lengths, target_lengths))
    try:
        batch = lattice_batch(*arrays, blank=blank, layout="TNC", topology=topology)  # type: ignore[arg-type]
        scores = check_scores(
            batch, _on_host(bonus) if parts & _BONUS else None, _on_host(prior) if parts & _PRIOR else None, weight
        )
    except InvalidInput as error:
        raise as_torch(error, "logits") from error
    none = partial(logits.new_empty, 0)
    if not parts & _GRADIENT:
        return torch.from_numpy(losses_alone(batch, scores)).to(logits), none(), none(), none()
    grad, _ = batch.empty_grad()
    loss, counts, gamma = losses_and_shares(batch, scores, grad, with_gamma=bool(parts & _POSTERIORS))
    loss, grad, counts = (torch.from_numpy(each).to(logits) for each in (loss, grad, counts))
    return loss, grad, none() if gamma is None else torch.from_numpy(gamma).to(logits), counts


def _on_host(tensor: Tensor) -> Any:
    """As an array; bfloat16, which NumPy has not, as float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


_lattice = torch.library.custom_op("ctcbind::lattice", _lattice_now, mutates_args=(), **UNGRAPHED)


@_lattice.register_fake
def _(logits: Tensor, bonus: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (_, N, C), parts = logits.shape, rest[-1]
    grad, counts = (logits.shape, (N, C)) if parts & _GRADIENT else ((0,), (0,))
    gamma = bonus.shape if parts & _POSTERIORS else (0,)
    return logits.new_empty(N), logits.new_empty(grad), logits.new_empty(gamma), logits.new_empty(counts)


def _save_lattice(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], output[0].detach().isposinf())
    ctx.like, ctx.weight, ctx.parts = [(each.device, each.dtype) for each in inputs[1:3]], *inputs[8:]
    ctx.set_materialize_grads(False)


def _backward_lattice(ctx: Any, of_loss: Tensor | None, *of_others: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(each is not None for each in of_others):
        raise NotImplementedError("ctcbind.torch.lattice_loss has no second derivative; ctcbind.torch.ctc_loss has one")
    if of_loss is None:
        return (None,) * 10
    grad, gamma, counts, infinite = ctx.saved_tensors
    of_loss = torch.where(infinite & ~of_loss.isfinite(), 0.0, of_loss)  # without a path the gradient is 0, never NaN
    of_bonus = of_prior = None
    if ctx.parts & _POSTERIORS:
        of_bonus = (-gamma * of_loss[:, None, None]).to(*ctx.like[0])
    if ctx.parts & _PRIOR:
        of_prior = (ctx.weight * (counts * of_loss[:, None]).sum(0)).to(*ctx.like[1])
    return grad * of_loss[None, :, None], of_bonus, of_prior, *[None] * 7


_lattice.register_autograd(_backward_lattice, setup_context=_save_lattice)


class _Untraced(torch.autograd.Function):
    """The operator without PyTorch's dispatcher."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        output = _lattice_now(*arguments)
        _save_lattice(ctx, arguments, output)
        return output

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward_lattice(ctx, *of_output)


class _Transformed(torch.autograd.Function):
    """The same for torch.func, which takes no registered operator with a derivative of its own."""

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (_lattice if traced(arguments[0]) else _lattice_now)(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _save_lattice(ctx, inputs, output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        """For many batches at once: all their samples as one batch, but for priors of each batch's own."""
        mapped.check_batches(batches := info.batch_size)
        logits, bonus, prior, *tensors, blank, topology, weight, parts = arguments
        with_bonus, with_prior = parts & _BONUS, parts & _PRIOR
        own_priors = with_prior and in_dims[2] is not None
        if own_priors or not mapped.can_be_one((in_dims[0], *in_dims[3:6]), (logits, *tensors)):
            return mapped.one_by_one(_Transformed.apply, batches, in_dims, arguments)
        samples = mapped.as_one(batches, 1, in_dims[0], logits)
        bonus = mapped.as_one(batches, 0, in_dims[1], bonus) if with_bonus else samples.new_empty(0)
        prior = prior if with_prior else samples.new_empty(0)
        rest = [mapped.as_one(batches, 0, *each) for each in zip(in_dims[3:6], tensors)]
        found = _Transformed.apply(samples, bonus, prior, *rest, blank, topology, weight, parts)
        axes = (0, 1, 0 if with_bonus else None, 0)  # of samples, in losses, gradient, posteriors and frames in a class
        found = (x if axis is None else x.unflatten(axis, (batches, -1)) for x, axis in zip(found, axes))
        return tuple(found), axes

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return _backward_lattice(ctx, *of_output)

    jvp = staticmethod(refuse_forward)
