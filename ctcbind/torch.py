"""The CTC loss for PyTorch: `CTCLoss` and `ctc_loss` with the arguments, defaults and results of `torch.nn`; and
`lattice_loss`, with scores added to the lattice.

For PyTorch 2.4 or later; tested with 2.13. Nothing is copied on the way in: a CPU tensor is read where it is. CUDA
tensors go through DLPack to CuPy, on PyTorch's current stream; that way has not yet been run on a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import rules
from .batch import Topology
from .errors import InvalidInput
from .lattice import losses_and_shares
from .plan import CTCLoss as Plan
from .reduction import Reduction
from .scores import check_scores, check_weight, lattice_batch
from .second_order import ctc_hvp
from .streams import device_stream

__all__ = ["CTCLoss", "InvalidTorchInput", "ctc_loss", "lattice_loss"]

Lengths: TypeAlias = "Tensor | Sequence[int] | int"


class InvalidTorchInput(InvalidInput, RuntimeError):
    """An InvalidInput that is a RuntimeError as well, for that is what PyTorch's own function raises."""


class CTCLoss(torch.nn.Module):
    """`torch.nn.CTCLoss` on ctcbind's engines.

    Call it with `(log_probs, targets, input_lengths, target_lengths)`; shapes, options and errors are those of
    `ctcbind.torch.ctc_loss`.

    >>> import torch, ctcbind.torch
    >>> logits = torch.zeros(50, 2, 5, requires_grad=True)
    >>> ctc = ctcbind.torch.CTCLoss(from_logits=True)
    >>> ctc(logits, torch.tensor([[1, 2], [3, 3]]), [50, 40], [2, 2]).backward()
    >>> tuple(logits.grad.shape)
    (50, 2, 5)
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        *,
        from_logits: bool = False,
        topology: Topology = "ctc",
        engine: str = "auto",
    ) -> None:
        super().__init__()
        reduction_here = _reduction(reduction)
        try:
            rules.flag("from_logits", from_logits)
            Plan(blank=blank, reduction=reduction_here, zero_infinity=zero_infinity, topology=topology, engine=engine)
        except InvalidInput as error:
            raise _as_torch(error) from error
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.topology = topology
        self.engine = engine

    def extra_repr(self) -> str:
        """The options, for `repr`."""
        names = ("blank", "reduction", "zero_infinity", "from_logits", "topology", "engine")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
        """`ctcbind.torch.ctc_loss` with this module's options."""
        return ctc_loss(
            log_probs,
            targets,
            input_lengths,
            target_lengths,
            self.blank,
            self.reduction,
            self.zero_infinity,
            from_logits=self.from_logits,
            topology=self.topology,
            engine=self.engine,
        )


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
    *,
    from_logits: bool = False,
    topology: Topology = "ctc",
    engine: str = "auto",
) -> Tensor:
    """The CTC loss of a batch, with the signature of `torch.nn.functional.ctc_loss`; differentiable twice.

    | argument | shape and dtype |
    |---|---|
    | log_probs | (T, N, C), or (T, C) for one sample; float32, float64, float16 or bfloat16; the output of log_softmax, or with `from_logits` its input |
    | targets | (N, S) padded, or all labels in one row; (S,) for one sample. Any integer dtype |
    | input_lengths, target_lengths | (N,), a tensor or a sequence of ints; one number for one sample |
    | returns | (N,) for reduction="none", else one number, in nats; "mean" divides each loss by its number of labels and then takes the mean of the batch |

    `from_logits=True` takes what stands before the log_softmax, and spares it, its memory and its backward pass.

    The loss is a function of softmax(log_probs), with `from_logits` and without: for the output of log_softmax the
    values, and the gradients once they have gone back through it, are those of PyTorch. For tensors that are no
    log-probabilities they are not: PyTorch's CPU code takes the sums as they come, where this (as cuDNN does)
    normalises them. The gradient with respect to log_probs is exp(log_probs) less the share of the paths, which is what
    PyTorch returns too; here it is the derivative of the value (`torch.autograd.gradcheck` agrees), and has one of its
    own through `ctcbind.ctc_hvp`. Of PyTorch's transforms, `torch.compile` and `torch.export` work; `torch.func` does
    not differentiate it.

    A sample without a path has loss inf, or 0 with `zero_infinity`, and gradient 0 where PyTorch's is NaN. Half
    precision is computed, and returned, in float32, under autocast too.

    Raises InvalidTorchInput (an InvalidInput, so a ValueError, and a RuntimeError), EngineUnavailable and
    EngineUnsupported as `ctcbind.ctc_loss` does; labels that are the blank or no class are refused.

    Source: torch.nn.functional.ctc_loss of PyTorch 2.13; Graves et al., ICML 2006, equation 16.

    >>> import torch, ctcbind.torch
    >>> x = torch.zeros(100, 5, 10).log_softmax(2)
    >>> ctcbind.torch.ctc_loss(x, torch.tensor([[1, 2, 3, 4]] * 5), [100] * 5, [4] * 5, reduction="none")
    tensor([203.9839, 203.9839, 203.9839, 203.9839, 203.9839])
    """  # noqa: E501
    reduction_here = _reduction(reduction)
    if type(from_logits) is not bool:
        _flag("from_logits", from_logits)
    _check_tensors("log_probs", log_probs, targets)
    if log_probs.dim() not in (2, 3):
        raise InvalidTorchInput(
            f"log_probs have {log_probs.dim()} dimensions; they must have 3, (T, N, C), or 2, (T, C)",
            rule="logits_rank",
            value=log_probs.dim(),
        )
    single = log_probs.dim() == 2
    x = log_probs.unsqueeze(1) if single else log_probs
    if x.dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    labels = targets.reshape(1, -1) if single else targets
    frames, counts = _lengths("input_lengths", input_lengths), _lengths("target_lengths", target_lengths)
    options = blank, reduction_here, zero_infinity, topology, engine
    if not ((x.requires_grad and torch.is_grad_enabled()) or _has_tangent(x)):
        loss = (_loss if _traced(x) else _loss_now)(x, labels, frames, counts, *options)
    elif _traced(x):
        loss, _ = _loss_and_grad(x, labels, frames, counts, *options)
    else:
        loss, _ = _LossAndGrad.apply(x, labels, frames, counts, options)
    return loss[0] if single and reduction == "none" else loss


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
    in float64 on the host; half precision is returned in float32. There is no second derivative. `torch.compile` takes
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
    _reduction(reduction)
    zero = _flag("zero_infinity", zero_infinity)
    _check_tensors("logits", logits, targets)
    if logits.dim() != 3:
        raise InvalidTorchInput(
            f"logits have {logits.dim()} dimensions; they must have 3, (T, N, C)",
            rule="logits_rank",
            value=logits.dim(),
        )
    try:
        blank, weight = rules.blank_index(blank, None), check_weight(prior_weight)
        rules.option("topology", topology, ("ctc", "simple"))
    except InvalidInput as error:
        raise _as_torch(error) from error
    x = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    frames, counts = _lengths("input_lengths", input_lengths), _lengths("target_lengths", target_lengths)
    bonus, prior = _as_scores("path_bonus", x, path_bonus), _as_scores("log_prior", x, log_prior)
    if any(map(_has_tangent, (x, bonus, prior))):
        raise NotImplementedError("ctcbind.torch.lattice_loss has no forward derivative")
    T, N, _ = x.shape
    if path_bonus is not None and counts.numel() and (bonus.dim() < 3 or 1 in bonus.shape):
        shape = (N, T, 2 * int(counts.max()) + 1)
        if bonus.dim() <= 3 and all(a in (1, b) for a, b in zip(reversed(bonus.shape), reversed(shape), strict=False)):
            bonus = bonus.expand(shape)
    added = (path_bonus is not None) + 2 * (log_prior is not None)
    losses = _lattice(x, bonus, prior, targets, frames, counts, blank, topology, weight, added)[0]
    if zero:
        losses = torch.where(losses.isposinf(), torch.zeros_like(losses), losses)
    if reduction == "mean":
        return (losses / counts.to(losses).clamp_min(1)).mean()
    return losses.sum() if reduction == "sum" else losses


def _as_scores(name: str, x: Tensor, value: Any) -> Tensor:
    if value is None:
        return x.new_empty(0)
    try:
        scores = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTorchInput(f"{name} cannot be read as numbers: {error}", rule=name) from error
    if scores.layout is not torch.strided:
        raise InvalidTorchInput(f"{name} is of layout {scores.layout}; pass {name}.to_dense()", rule=name)
    return scores


def _check_tensors(name: str, scores: Tensor, targets: Tensor) -> None:
    if not isinstance(scores, Tensor):
        raise InvalidTorchInput(
            f"{name} are of type {type(scores).__name__}; they must be a tensor (ctcbind.ctc_loss takes arrays)",
            rule="logits_dtype",
        )
    if not isinstance(targets, Tensor):
        raise InvalidTorchInput(
            f"targets are of type {type(targets).__name__}; they must be a tensor: of rows padded to one length, or "
            "of all labels in one row",
            rule="targets_rank",
        )
    for each, tensor in ((name, scores), ("targets", targets)):
        if tensor.layout is not torch.strided:
            raise InvalidTorchInput(
                f"{each} are of layout {tensor.layout}; pass {each}.to_dense()", rule="layout", value=tensor.layout
            )
    _refuse_other_numbers(targets)


def _refuse_other_numbers(targets: Tensor) -> None:
    """Which of them are no whole numbers, ctcbind says itself."""
    floats = targets.is_floating_point()
    if not (floats or targets.is_complex() or targets.dtype == torch.bool) or targets.numel() == 0:
        return
    if not floats or bool((targets == targets.trunc()).all()):
        raise InvalidTorchInput(
            f"targets hold {targets.dtype}; they must hold integers: pass targets.long()", rule="integers"
        )


def _lengths(name: str, value: Lengths) -> Tensor:
    try:
        lengths = value if isinstance(value, Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        given = "None" if value is None else f"{value!r:.60}"
        raise InvalidTorchInput(f"{name}: {given}; they must be integers, one a sample ({error})", rule=name) from error
    if lengths.numel() and (lengths.is_floating_point() or lengths.dtype == torch.bool):
        raise InvalidTorchInput(f"{name} hold {lengths.dtype}; they must hold integers", rule="integers")
    return lengths if lengths.dim() == 1 else lengths.reshape(-1)


#: The names that ctcbind has for PyTorch's reductions.
_REDUCTIONS: dict[str, Reduction] = {"none": "none", "sum": "sum", "mean": "label_mean"}


def _reduction(name: str) -> Reduction:
    if not isinstance(name, str) or name not in _REDUCTIONS:
        raise InvalidTorchInput(
            f"reduction is {name!r}; it must be one of 'none', 'mean', 'sum'", rule="reduction", value=name
        )
    return _REDUCTIONS[name]


#: What ctcbind says of an argument that PyTorch's function has not, and what is to be done here.
_LAYOUT = {
    'by layout="TNC" the logits': "the log_probs, read as (T, N, C),",
    'pass layout="NTC" or transpose them': "pass log_probs.transpose(0, 1)",
    "pass logits.astype(numpy.float32)": "pass log_probs.float()",
}


def _as_torch(error: InvalidInput) -> InvalidTorchInput:
    text = str(error)
    for there, here in _LAYOUT.items():
        text = text.replace(there, here)
    return InvalidTorchInput(text, rule=error.rule, sample=error.sample, position=error.position, value=error.value)


def _flag(name: str, value: object) -> bool:
    try:
        return rules.flag(name, value)
    except InvalidInput as error:
        raise _as_torch(error) from error


def _has_tangent(x: Tensor) -> bool:
    """Whether forward-mode AD is at work: PyTorch says then that a custom function has none."""
    return getattr(forward_ad, "_current_level", -1) >= 0 and forward_ad.unpack_dual(x).tangent is not None


def _traced(x: Tensor) -> bool:
    """Whether this call is written down, not run: then it must be a registered operator. Else it need not pass
    through PyTorch's dispatcher, which takes longer than a small batch."""
    known = type(x) in (Tensor, torch.nn.Parameter) and (x.is_cpu or x.is_cuda)
    return not known or torch.compiler.is_compiling()


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
    with _Call(logits) as call:
        plan = call.plan(blank, reduction, zero_infinity, topology, engine)
        return call.tensor(plan.loss(*map(call.array, (logits, targets, input_lengths, target_lengths))))


def _loss_and_grad_now(
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
    """The reduced loss, and its gradient."""
    with _Call(logits) as call:
        plan = call.plan(blank, reduction, zero_infinity, topology, engine)
        loss, grad, _ = plan(*map(call.array, (logits, targets, input_lengths, target_lengths)))
        return call.tensor(loss), call.tensor(grad)


_loss = torch.library.custom_op("ctcbind::loss", _loss_now, mutates_args=())
_loss_and_grad = torch.library.custom_op("ctcbind::loss_and_grad", _loss_and_grad_now, mutates_args=())


@torch.library.custom_op("ctcbind::hvp", mutates_args=())
def _hvp(
    logits: Tensor,
    targets: Tensor,
    direction: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
) -> Tensor:
    with _Call(logits) as call:
        arrays = map(call.array, (logits, targets, direction, input_lengths, target_lengths))
        return call.tensor(ctc_hvp(*arrays, blank=blank, topology=topology))  # type: ignore[arg-type]


@torch.library.custom_op("ctcbind::scaled", mutates_args=())
def _scaled(grad: Tensor, of_loss: Tensor) -> Tensor:
    return _multiply(grad, of_loss.numpy(force=True), torch.empty_like(grad))


def _multiply(grad: Tensor, factor: npt.NDArray[Any], to: Tensor) -> Tensor:
    """The gradient times one number, or each sample's times its own, on the CPU.

    By NumPy: so few numbers take PyTorch's threads longer to wait for each other than one to multiply.
    """
    if factor.ndim and factor.size and (factor == factor[0]).all():
        factor = factor[0]  # long runs of memory, not N short ones a frame
    if to is not grad or factor.ndim or factor != 1:
        np.multiply(grad.numpy(), factor[None, :, None] if factor.ndim else factor, out=to.numpy())
    return to


def _by_sample(of_loss: Tensor) -> Tensor:
    return of_loss[None, :, None] if of_loss.dim() else of_loss


@torch.library.custom_op("ctcbind::lattice", mutates_args=())
def _lattice(
    logits: Tensor,
    bonus: Tensor,
    prior: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
    weight: float,
    added: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The samples' losses, the gradient of their sum, posteriors, and frames in each class. `added`: 1 for the bonus,
    2 for the prior; what is not added is empty."""
    arrays = map(_on_host, (logits, targets, input_lengths, target_lengths))
    try:
        batch = lattice_batch(*arrays, blank=blank, layout="TNC", topology=topology)  # type: ignore[arg-type]
        scores = check_scores(
            batch, _on_host(bonus) if added & 1 else None, _on_host(prior) if added & 2 else None, weight
        )
    except InvalidInput as error:
        raise _as_torch(error) from error
    grad, _ = batch.empty_grad()
    loss, counts, gamma = losses_and_shares(batch, scores, grad)
    results = (loss, grad, np.empty(0) if gamma is None else gamma, counts)
    found = [torch.from_numpy(each).to(logits) for each in results]
    return found[0], found[1], found[2], found[3]


def _on_host(tensor: Tensor) -> Any:
    """As an array; bfloat16, which NumPy has not, as float32."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)


@_loss.register_fake
def _(logits: Tensor, *rest: Any) -> Tensor:
    return logits.new_empty(logits.shape[1] if rest[4] == "none" else ())


@_loss_and_grad.register_fake
def _(logits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[1] if rest[4] == "none" else ()), logits.new_empty(logits.shape)


@_lattice.register_fake
def _(logits: Tensor, bonus: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, N, C = logits.shape
    return logits.new_empty(N), logits.new_empty(logits.shape), logits.new_empty(bonus.shape), logits.new_empty((N, C))


@_hvp.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


@_scaled.register_fake
def _(grad: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(grad)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    tensors, ctx.options = inputs[:4], inputs[4:]
    ctx.save_for_backward(*tensors, output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
    return _of_logits(ctx, *of_output), *[None] * (3 + len(ctx.options))


def _of_logits(ctx: Any, of_loss: Tensor | None, of_grad: Tensor | None) -> Tensor | None:
    """Of the loss: its gradient; of that gradient, which backward() hands out, the second derivative."""
    logits, targets, input_lengths, target_lengths, grad = ctx.saved_tensors
    result = None if of_loss is None else _times(grad, of_loss)
    if of_grad is not None:
        blank, reduction, _, topology, _ = ctx.options
        if reduction == "label_mean":
            weights = 1 / (target_lengths.clamp_min(1) * float(logits.shape[1]))
            of_grad = of_grad * _by_sample(weights.to(of_grad))
        second = _hvp(logits, targets, of_grad, input_lengths, target_lengths, blank, topology)
        result = second if result is None else result + second
    return result


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.options = inputs[:4], inputs[4:]
    ctx.save_for_backward(*tensors)


def _backward_anew(ctx: Any, of_loss: Tensor) -> tuple[Tensor | None, ...]:
    """For graphs that were exported for inference and are differentiated all the same."""
    _, grad = _loss_and_grad(*ctx.saved_tensors, *ctx.options)
    return _times(grad, of_loss), *[None] * (3 + len(ctx.options))


def _save_lattice(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:])
    ctx.like, ctx.weight, ctx.added = [(each.device, each.dtype) for each in inputs[1:3]], *inputs[8:]
    ctx.set_materialize_grads(False)


def _backward_lattice(ctx: Any, of_loss: Tensor | None, *of_others: Tensor | None) -> tuple[Tensor | None, ...]:
    if any(each is not None for each in of_others):
        raise NotImplementedError("ctcbind.torch.lattice_loss has no second derivative; ctcbind.torch.ctc_loss has one")
    if of_loss is None:
        return (None,) * 10
    grad, gamma, counts = ctx.saved_tensors
    of_bonus = of_prior = None
    if ctx.added & 1:
        of_bonus = (-gamma * of_loss[:, None, None]).to(*ctx.like[0])
    if ctx.added & 2:
        of_prior = (ctx.weight * (counts * of_loss[:, None]).sum(0)).to(*ctx.like[1])
    return grad * of_loss[None, :, None], of_bonus, of_prior, *[None] * 7


def _times(grad: Tensor, of_loss: Tensor) -> Tensor:
    """Differentiable where autograd asks for it. A graph that ends here has no more use for its gradient."""
    if torch.is_grad_enabled() or grad.is_cuda:
        return grad * _by_sample(of_loss)
    if not _traced(of_loss):
        try:
            factor = of_loss.numpy(force=True)
        except RuntimeError:  # vmap computes many at once, and takes the operator through them
            pass
        else:
            return _multiply(grad, factor, torch.empty_like(grad) if _graph_is_kept() else grad)
    return _scaled(grad, of_loss)


#: Whether the backward pass at hand leaves its graph for another; so where PyTorch does not tell.
_graph_is_kept: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)

_loss_and_grad.register_autograd(_backward, setup_context=_save)
_loss.register_autograd(_backward_anew, setup_context=_save_inputs)
_lattice.register_autograd(_backward_lattice, setup_context=_save_lattice)


class _LossAndGrad(torch.autograd.Function):
    """The operator without PyTorch's dispatcher; `options` are all that follows the tensors."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor, options: Any
    ) -> tuple[Tensor, Tensor]:
        output = _loss_and_grad_now(logits, targets, input_lengths, target_lengths, *options)
        ctx.save_for_backward(logits, targets, input_lengths, target_lengths, output[1])
        ctx.set_materialize_grads(False)
        ctx.options = options
        return output

    @staticmethod
    def backward(ctx: Any, *of_output: Tensor | None) -> tuple[Tensor | None, ...]:
        return _of_logits(ctx, *of_output), None, None, None, None


#: So many plans a thread keeps.
MOST_PLANS = 16


class _Kept(threading.local):
    """This thread's plans: handles and workspace stay from step to step."""

    def __init__(self) -> None:
        self.plans: dict[tuple[str, int, str, bool, str, str], Plan] = {}


_kept = _Kept()


class _Call:
    """Tensors seen as arrays and back, on PyTorch's current stream where they are on a GPU."""

    def __init__(self, logits: Tensor) -> None:
        if not (logits.is_cpu or logits.is_cuda):
            raise InvalidTorchInput(
                f"log_probs are on {logits.device}; ctcbind computes on the CPU and on CUDA", rule="device"
            )
        self._device = "cpu" if logits.is_cpu else str(logits.device)
        self._cupy: Any = None
        self._scope: AbstractContextManager[Any] = nullcontext()
        if logits.is_cuda:
            import cupy

            self._cupy = cupy
            stream = torch.cuda.current_stream(logits.device)
            self._scope = device_stream(cupy, stream.cuda_stream, logits.device.index)

    def __enter__(self) -> _Call:
        self._scope.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._scope.__exit__(kind, error, trace)
        if isinstance(error, InvalidInput):
            raise _as_torch(error) from error

    def plan(self, blank: int, reduction: str, zero_infinity: bool, topology: str, engine: str) -> Plan:
        # 1, 1.0 and True are equal as keys
        blank, zero_infinity = rules.blank_index(blank, None), rules.flag("zero_infinity", zero_infinity)
        key = (self._device, blank, reduction, zero_infinity, topology, engine)
        try:
            return _kept.plans[key]
        except (KeyError, TypeError):  # what is not hashable is refused here
            plan = Plan(
                blank=blank,
                reduction=reduction,  # type: ignore[arg-type]
                zero_infinity=zero_infinity,
                topology=topology,  # type: ignore[arg-type]
                engine=engine,
            )
        if len(_kept.plans) >= MOST_PLANS:
            _kept.plans.clear()
        _kept.plans[key] = plan
        return plan

    def array(self, tensor: Tensor) -> Any:
        if not tensor.is_cuda:
            try:
                return tensor.numpy(force=True)
            except RuntimeError as error:
                raise NotImplementedError(
                    f"ctcbind.torch reads tensors where they are, and this one is nowhere, as under torch.func.vmap or "
                    f"torch.func.jvp: {error}"
                ) from error
        return tensor.detach() if self._cupy is None else self._cupy.from_dlpack(tensor.detach())

    def tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)) if self._cupy is None else torch.from_dlpack(array)
