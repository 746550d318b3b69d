"""The operators behind the CTC loss: it, its gradient and its second derivative, as PyTorch registers them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from math import isfinite
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..second_order import ctc_hvp
from . import mapped
from .call import Call
from .mapped import under_func
from .tensors import has_tangent

__all__ = ["UNGRAPHED", "reduced_loss", "refuse_forward", "traced", "uncompiled"]

#: blank, reduction, zero_infinity, topology, engine
Options: TypeAlias = tuple[int, str, bool, str, str]


def reduced_loss(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, options: Options
) -> Tensor:
    """The loss of a batch, differentiable twice; without a gradient to come, no work is done for one."""
    if has_tangent(logits):  # a registered operator would give a derivative of 0
        refuse_forward()
    if under_func():  # where no tensor tells whether a gradient is to come
        loss, _ = uncompiled(_Transformed, logits, targets, input_lengths, target_lengths, options)
        return loss
    if not (logits.requires_grad and torch.is_grad_enabled()):
        alone = _loss if traced(logits) else _loss_now
        return alone(logits, targets, input_lengths, target_lengths, *options)
    if traced(logits):
        loss, _ = _loss_and_grad(logits, targets, input_lengths, target_lengths, *options)
    else:
        loss, _ = _LossAndGrad.apply(logits, targets, input_lengths, target_lengths, options)
    return loss


def traced(x: Tensor) -> bool:
    """Whether this call is being traced and not run, so that it must be a registered operator. Otherwise it need not go
    through PyTorch's dispatcher, which takes longer than a small batch."""
    known = type(x) in (Tensor, torch.nn.Parameter) and (x.is_cpu or x.is_cuda)
    return not known or torch.compiler.is_compiling() or _modes() > 0


#: How many of PyTorch's modes (make_fx, FakeTensorMode) look at each operator.
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def _loss_now(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
    topology: str,
    engine: str,
) -> Tensor:
    with Call(logits) as call:
        plan = call.plan(blank, reduction, zero_infinity, topology, engine)
        return call.tensor(plan.loss(*call.arrays(logits, targets, input_lengths, target_lengths)))


def _loss_and_grad_now(
    logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, *options: Any
) -> tuple[Tensor, Tensor]:
    """The reduced loss, and its gradient."""
    with Call(logits) as call:
        plan = call.plan(*options)
        loss, grad, _ = plan(*call.arrays(logits, targets, input_lengths, target_lengths))
        return call.tensor(loss), call.tensor(grad)


#: On a device the operators wait for the stream, so torch.compile must not put them into a CUDA graph (newer PyTorch
#: has a tag for that).
UNGRAPHED: dict[str, Any] = {"tags": (torch.Tag.cudagraph_unsafe,)} if hasattr(torch.Tag, "cudagraph_unsafe") else {}

_loss = torch.library.custom_op("ctcbind::loss", _loss_now, mutates_args=(), **UNGRAPHED)


@torch.library.custom_op("ctcbind::loss_and_grad", mutates_args=(), **UNGRAPHED)
def _loss_and_grad(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    reduction: str,
    zero_infinity: bool,
    topology: str,
    engine: str,
) -> tuple[Tensor, Tensor]:
    """A trace knows of a gradient in C order."""
    options = blank, reduction, zero_infinity, topology, engine
    loss, grad = _loss_and_grad_now(logits, targets, input_lengths, target_lengths, *options)
    return loss, grad.contiguous()


@_loss.register_fake
def _(logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(logits.shape[1] if rest[4] == "none" else ())


@_loss_and_grad.register_fake
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[1] if rest[4] == "none" else ()), logits.new_empty(logits.shape)


def _hvp_now(
    logits: Tensor,
    targets: Tensor,
    direction: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
) -> Tensor:
    with Call(logits) as call:
        arrays = call.arrays(logits, targets, direction, input_lengths, target_lengths)
        return call.tensor(ctc_hvp(*arrays, blank=blank, topology=topology))  # type: ignore[arg-type]


_hvp = torch.library.custom_op("ctcbind::hvp", _hvp_now, mutates_args=(), **UNGRAPHED)


@_hvp.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _is_asked_for(node: Any) -> bool:
    """Whether the backward pass at hand goes on to a node, None for that of a constant."""
    try:
        return node is not None and torch._C._will_engine_execute_node(node)
    except (AttributeError, RuntimeError):  # PyTorch does not tell it of leaves that are
        return True


def _product(logits: Tensor, targets: Tensor, direction: Tensor, *rest: Any) -> Tensor:
    if has_tangent(direction):  # the operator would give a tangent of 0
        refuse_forward()
    return _hvp(logits, targets, direction, *rest)


def _save_product(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:5], inputs[5:]
    ctx.save_for_backward(*tensors)


def _backward_product(ctx: Any, of_product: Tensor) -> tuple[Tensor | None, ...]:
    """The Hessian is symmetric: of the direction it is a product with it again. Of the logits there is no third."""
    logits, targets, _, input_lengths, target_lengths = ctx.saved_tensors
    if _is_asked_for(ctx.next_functions[0][0]):
        raise NotImplementedError("ctcbind differentiates the CTC loss twice, not three times")
    tensors = logits, targets, of_product, input_lengths, target_lengths
    return None, None, _product(*tensors, *ctx.options), *[None] * 4


_hvp.register_autograd(_backward_product, setup_context=_save_product)


@torch.library.custom_op("ctcbind::scaled", mutates_args=(), **UNGRAPHED)
def _scaled(grad: Tensor, of_loss: Tensor) -> Tensor:
    return _multiply(grad, of_loss.numpy(force=True), torch.empty_like(grad))


@_scaled.register_fake
def _(grad: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(grad)


#: So many numbers and more are multiplied by all of PyTorch's threads; fewer take these longer to wait for each other
#: than one to multiply.
MANY = 1 << 20


def _multiply(grad: Tensor, factor: npt.NDArray[Any], to: Tensor) -> Tensor:
    """The gradient times one number, or each sample's times its own, on the CPU."""
    if not (np.isfinite(factor).all() if factor.ndim else isfinite(factor.item())):  # as `_factor`
        factor = np.where(np.isfinite(factor) | grad.numpy().any(axis=(0, 2)), factor, 0)
    if factor.ndim and (factor == factor[0]).all():
        factor = factor[0]  # long runs of memory, not N short ones a frame
    if to is not grad or factor.ndim or factor != 1:
        by_sample = factor[None, :, None] if factor.ndim else factor
        if grad.numel() >= MANY:
            return torch.mul(grad, torch.from_numpy(np.asarray(by_sample)), out=to)
        with np.errstate(all="ignore"):  # as PyTorch multiplies
            np.multiply(grad.numpy(), by_sample, out=to.numpy())
    return to


def _by_sample(of_loss: Tensor) -> Tensor:
    return of_loss[None, :, None] if of_loss.dim() else of_loss


def _factor(grad: Tensor, of_loss: Tensor) -> Tensor:
    """What multiplies the gradient. Of a sample without a path, whose gradient is 0, so is the product, even where
    inf or NaN comes back for its loss, as from a function of inf, or from the root of the 0 of zero_infinity."""
    factor = _by_sample(of_loss)
    if grad.is_cuda and not of_loss.dim():  # what would be NaN for all others: not worth reading the gradient for it
        return factor
    if grad.is_cpu and not traced(of_loss):
        with suppress(AttributeError, RuntimeError):  # where PyTorch does not say what vmap is given
            if mapped.within(of_loss).isfinite().all():
                return factor
    some = grad.detach().any(2, keepdim=True).any(0, keepdim=True)
    return torch.where(some | factor.isfinite(), factor, 0.0)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.options = inputs[:4], inputs[4:]
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
    return _of_logits(ctx, *of_output), *[None] * (3 + len(ctx.options))


def _of_logits(ctx: Any, of_loss: Tensor | None, of_grad: Tensor | None) -> Tensor | None:
    """Of the loss: its gradient; of that gradient, which backward() hands out, the second derivative."""
    logits, targets, *lengths, grad = ctx.saved_tensors
    result = None if of_loss is None else _times(grad, of_loss)
    if of_grad is not None:
        input_lengths, target_lengths = lengths or map(torch.as_tensor, ctx.lengths)
        blank, reduction, zero_infinity, topology, engine = ctx.options
        if zero_infinity:  # a loss past its dtype counts as nothing, whatever its second derivative is
            anew = blank, "none", False, topology, engine
            infinite = reduced_loss(logits.detach(), targets, input_lengths, target_lengths, anew).isposinf()
            of_grad = torch.where(_by_sample(infinite), torch.zeros_like(of_grad), of_grad)
        if reduction == "label_mean":
            weights = 1 / (target_lengths.clamp_min(1).double() * float(logits.shape[1]))  # 1 / integers are float32
            of_grad = of_grad * _by_sample(weights.to(of_grad))
        tensors = logits, targets, of_grad, input_lengths, target_lengths
        second = (_Second.apply if under_func() else _product)(*tensors, blank, topology)
        result = second if result is None else result + second
    return result


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:4], inputs[4:]
    ctx.save_for_backward(*tensors)


def _backward_anew(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
    """For graphs that were exported for inference and are differentiated all the same."""
    _, grad = _loss_and_grad(*ctx.saved_tensors, *ctx.options)
    return _times(grad, of_loss), *[None] * (3 + len(ctx.options))


def _times(grad: Tensor, of_loss: Tensor) -> Tensor:
    """Differentiable where autograd, or a factor in forward mode, asks for it. A graph that ends here has no more use
    for its gradient."""
    if torch.is_grad_enabled() or has_tangent(of_loss):
        return grad * _factor(grad, of_loss)
    grad = grad.detach()  # what was saved knows its graph, and would keep it
    if grad.is_cuda:
        kept = traced(of_loss) or under_func() or _graph_is_kept()
        factor = _factor(grad, of_loss)
        return grad * factor if kept else grad.mul_(factor)
    if not traced(of_loss):
        try:
            if not of_loss.dim() and of_loss.item() == 1 and not _graph_is_kept():  # of loss.backward()
                return grad
            factor = of_loss.numpy(force=True)
        except RuntimeError:  # vmap computes many at once, and would take the operator through them one by one
            return grad * _factor(grad, of_loss)
        else:
            return _multiply(grad, factor, torch.empty_like(grad) if _graph_is_kept() else grad)
    return _scaled(grad, of_loss)


#: Whether the graph of the current backward pass is kept (retain_graph); True where PyTorch does not tell.
_graph_is_kept: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)

_loss_and_grad.register_autograd(_backward, setup_context=_save)
_loss.register_autograd(_backward_anew, setup_context=_save_inputs)


def refuse_forward(*_: Any) -> NoReturn:
    raise NotImplementedError(
        "ctcbind.torch has no derivatives in forward mode: take them in reverse mode (torch.func.grad, vjp, jacrev), a "
        "product with a direction by torch.autograd.functional.jvp, and one with the Hessian by ctcbind.ctc_hvp"
    )


def _copied(lengths: Tensor, array: Any) -> Any:
    """For a second derivative, before which the caller may write to theirs; by NumPy, which takes less time for it."""
    return array.copy() if lengths.is_cpu else lengths.clone()


class _LossAndGrad(torch.autograd.Function):
    """The operator without PyTorch's dispatcher; `options` are all that follows the tensors."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, options: Any
    ) -> tuple[Tensor, Tensor]:
        with Call(logits) as call:
            arrays = call.arrays(logits, targets, input_lengths, target_lengths)
            loss, grad, _ = call.plan(*options)(*arrays)
            output = call.tensor(loss), call.tensor(grad)
        ctx.lengths = _copied(input_lengths, arrays[2]), _copied(target_lengths, arrays[3])
        ctx.save_for_backward(logits, targets, output[1])
        ctx.set_materialize_grads(False)
        ctx.options = options
        return output

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return _of_logits(ctx, *of_output), None, None, None, None


def uncompiled(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Applies a function of ours under torch.func. PyTorch differentiates none where it compiles such transforms: there
    it is told to go on uncompiled."""
    if "torch._dynamo" in sys.modules:  # or else nothing is compiled; to import it takes seconds
        return torch.compiler.disable(function.apply)(*arguments)
    return function.apply(*arguments)


class _Transformed(torch.autograd.Function):
    """The same for torch.func, whose way of saving takes longer than a small batch."""

    @staticmethod
    def forward(
        logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, options: Any
    ) -> tuple[Tensor, Tensor]:
        both = _loss_and_grad if traced(logits) else _loss_and_grad_now
        return both(logits, targets, input_lengths, target_lengths, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _save(ctx, (*inputs[:4], *inputs[4]), output)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        """For many batches at once: all their samples as one batch."""
        mapped.check_batches(batches := info.batch_size)
        logits, targets, *lengths, options = arguments
        lengths = [each.clone() for each in lengths]  # which the caller may write to
        if not mapped.can_be_one(in_dims[:4], tensors := (logits, targets, *lengths)):
            return mapped.one_by_one(_Transformed.apply, batches, in_dims, (*tensors, options))
        samples = [mapped.as_one(batches, axis, *each) for axis, each in zip((1, 0, 0, 0), zip(in_dims, tensors))]
        blank, reduction, *others = options
        loss, grad = _Transformed.apply(*samples, (blank, "none", *others))
        return mapped.reduced(reduction, batches, loss, grad, samples[3])

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return _of_logits(ctx, *of_output), None, None, None, None

    jvp = staticmethod(refuse_forward)


class _Second(torch.autograd.Function):
    """The second derivative for torch.func; there is no third."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return _hvp_now(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        """For jacrev, which asks for many directions at once: one after the other."""
        return mapped.one_by_one(_Second.apply, info.batch_size, in_dims, arguments)

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        raise NotImplementedError("ctcbind differentiates the CTC loss twice, not three times")

    jvp = staticmethod(refuse_forward)
