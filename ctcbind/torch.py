"""The CTC loss for PyTorch: `CTCLoss` and `ctc_loss` with the arguments, defaults and results of `torch.nn`.

Needs PyTorch 2.4 or later, and CuPy for CUDA tensors. Nothing is copied on the way in: a CPU tensor is read
where it is, a CUDA tensor through DLPack, on PyTorch's current stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from .batch import Topology
from .errors import InvalidInput
from .plan import CTCLoss as Plan
from .second_order import ctc_hvp

__all__ = ["CTCLoss", "InvalidTorchInput", "ctc_loss"]

Lengths = Tensor | Sequence[int] | int


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
        self.blank = blank
        self.reduction = reduction
        self.zero_infinity = zero_infinity
        self.from_logits = from_logits
        self.topology = topology
        self.engine = engine

    def extra_repr(self) -> str:
        return f"blank={self.blank}, reduction={self.reduction!r}, zero_infinity={self.zero_infinity}"

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Lengths, target_lengths: Lengths) -> Tensor:
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

    `from_logits=True` spares the log_softmax, its memory and its backward pass. Without it the engine's own
    normalisation finds nothing to do; log_probs that are no log-probabilities are normalised, as cuDNN does.
    The gradient of a sample without a path is 0 where PyTorch's is NaN. Half precision is computed in float32,
    under autocast too.

    Raises InvalidTorchInput (an InvalidInput, a ValueError and a RuntimeError), EngineUnavailable and
    EngineUnsupported as `ctcbind.ctc_loss` does.

    Source: torch.nn.functional.ctc_loss of PyTorch 2.13; Graves et al., ICML 2006, equation 16.

    >>> import torch, ctcbind.torch
    >>> x = torch.zeros(100, 5, 10).log_softmax(2)
    >>> ctcbind.torch.ctc_loss(x, torch.tensor([[1, 2, 3, 4]] * 5), [100] * 5, [4] * 5, reduction="none")
    tensor([203.9841, 203.9841, 203.9841, 203.9841, 203.9841])
    """  # noqa: E501
    if reduction not in ("none", "mean", "sum"):
        raise InvalidTorchInput(f"reduction is {reduction!r}; it must be one of 'none', 'mean', 'sum'")
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
    if x.requires_grad and torch.is_grad_enabled():
        losses, _ = _loss_and_grad(x, labels, frames, counts, blank, topology, engine)
    else:
        losses = _loss(x, labels, frames, counts, blank, topology, engine)
    if zero_infinity:
        losses = torch.where(losses == torch.inf, 0.0, losses)
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        return (losses / counts.to(losses.device).clamp_min(1)).mean()
    return losses[0] if single else losses


def _lengths(name: str, value: Lengths) -> Tensor:
    lengths = value if isinstance(value, Tensor) else torch.as_tensor(value)
    if lengths.is_floating_point() or lengths.dtype == torch.bool:
        raise InvalidTorchInput(f"{name} hold {lengths.dtype}; they must hold integers", rule="integers")
    return lengths.reshape(-1)


@torch.library.custom_op("ctcbind::loss", mutates_args=())
def _loss(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
    engine: str,
) -> Tensor:
    with _Call(logits) as call, Plan(blank=blank, topology=topology, engine=engine) as plan:  # type: ignore[arg-type]
        return call.tensor(plan.loss(*map(call.array, (logits, targets, input_lengths, target_lengths))))


@torch.library.custom_op("ctcbind::loss_and_grad", mutates_args=())
def _loss_and_grad(
    logits: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int,
    topology: str,
    engine: str,
) -> tuple[Tensor, Tensor]:
    with _Call(logits) as call, Plan(blank=blank, topology=topology, engine=engine) as plan:  # type: ignore[arg-type]
        losses, grad, _ = plan(*map(call.array, (logits, targets, input_lengths, target_lengths)))
        return call.tensor(losses), call.tensor(grad)


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


@_loss.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape[1])


@_loss_and_grad.register_fake
def _(logits: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[1]), logits.new_empty(logits.shape)


@_hvp.register_fake
def _(logits: Tensor, *_: Any) -> Tensor:
    return logits.new_empty(logits.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, targets, input_lengths, target_lengths, blank, topology, _ = inputs
    ctx.save_for_backward(logits, targets, input_lengths, target_lengths, output[1])
    ctx.set_materialize_grads(False)
    ctx.options = blank, topology


def _backward(ctx: Any, of_losses: Tensor | None, of_grad: Tensor | None) -> tuple[Tensor | None, ...]:
    """Of the losses: each sample's gradient; of that gradient, which backward() hands out, the second derivative."""
    logits, targets, input_lengths, target_lengths, grad = ctx.saved_tensors
    result = None
    if of_losses is not None:
        result = grad * of_losses[None, :, None]
    if of_grad is not None:
        second = _hvp(logits, targets, of_grad.contiguous(), input_lengths, target_lengths, *ctx.options)
        result = second if result is None else result + second
    return result, None, None, None, None, None, None


_loss_and_grad.register_autograd(_backward, setup_context=_save)


class _Call:
    """Tensors seen as arrays and back, on PyTorch's current stream where they are on a GPU."""

    def __init__(self, logits: Tensor) -> None:
        self._cuda = logits.is_cuda
        self._scope: AbstractContextManager[Any] = nullcontext()
        if self._cuda:
            import cupy

            self._cupy = cupy
            stream = torch.cuda.current_stream(logits.device)
            self._scope = cupy.cuda.ExternalStream(stream.cuda_stream, logits.device.index)

    def __enter__(self) -> _Call:
        self._scope.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._scope.__exit__(kind, error, trace)
        if isinstance(error, InvalidInput):
            raise InvalidTorchInput(
                str(error), rule=error.rule, sample=error.sample, value=error.value
            ) from error

    def array(self, tensor: Tensor) -> Any:
        if tensor.is_cuda and self._cuda:
            return self._cupy.from_dlpack(tensor.detach())
        return tensor.detach() if tensor.is_cuda else tensor.detach().numpy()

    def tensor(self, array: Any) -> Tensor:
        return torch.from_dlpack(array) if self._cuda else torch.from_numpy(array)
