"""The CTC loss with the arguments of `torch.nn`: the module, and the function."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import options
from ..batch import Topology
from ..errors import InvalidInput, counted
from ..plan import CTCLoss as Plan
from .errors import InvalidTorchInput, as_torch
from .operators import reduced_loss
from .tensors import Lengths, as_lengths, check_tensors, check_values, flag, reduction_of

__all__ = ["CTCLoss", "ctc_loss"]

_HALVES = (torch.float16, torch.bfloat16)


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
        reduction_here = reduction_of(reduction)
        try:
            plan = Plan(
                blank=blank, reduction=reduction_here, zero_infinity=zero_infinity, topology=topology, engine=engine
            )
            self.from_logits = options.flag("from_logits", from_logits)
        except InvalidInput as error:
            raise as_torch(error) from error
        # Python's own int and bool, which torch.compile takes where it would not take NumPy's
        self.blank = plan.blank
        self.reduction = reduction
        self.zero_infinity = plan.zero_infinity
        self.topology = topology
        self.engine = engine

    def extra_repr(self) -> str:
        """The options, for `repr`."""
        names = ("blank", "reduction", "zero_infinity", "from_logits", "topology", "engine")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in names)

    @torch.jit.unused  # so that TorchScript takes a module that holds this one
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
    | targets | (N, L) padded, or all labels in one row; (L,) for one sample. Any integer dtype |
    | input_lengths, target_lengths | (N,), a tensor or a sequence of ints; one number for one sample |
    | returns | (N,) for reduction="none", else one number, in nats; "mean" divides each loss by its number of labels and then takes the mean of the batch |

    With `from_logits=True` pass the input of log_softmax instead of its output. This saves the log_softmax, its memory
    and its backward pass.

    The loss is a function of softmax(log_probs), with `from_logits` and without. For the output of log_softmax, values
    and gradients (once passed back through log_softmax) are those of PyTorch. For other tensors they differ: this loss,
    like cuDNN, normalises each frame first, and PyTorch's CPU code does not. The gradient with respect to log_probs is
    exp(log_probs) less the share of the paths, as PyTorch's is. Here it is the true derivative of the value
    (`torch.autograd.gradcheck` agrees), and can be differentiated once more, through `ctcbind.ctc_hvp`.

    `torch.compile`, `torch.export`, `torch.func.vmap` and the reverse mode of `torch.func` work.

    A sample without a path has loss inf (0 with `zero_infinity`) and gradient 0, where PyTorch's gradient is NaN. Half
    precision is computed and returned in float32, under autocast too.

    Raises InvalidTorchInput (which is an InvalidInput, and so a ValueError, and also a RuntimeError), EngineUnavailable
    and EngineUnsupported as `ctcbind.ctc_loss` does. Labels that are the blank, or not a class, are refused.

    Source: torch.nn.functional.ctc_loss of PyTorch 2.13; Graves et al., ICML 2006, equation 16.

    >>> import torch, ctcbind.torch
    >>> x = torch.zeros(100, 5, 10).log_softmax(2)
    >>> ctcbind.torch.ctc_loss(x, torch.tensor([[1, 2, 3, 4]] * 5), [100] * 5, [4] * 5, reduction="none")
    tensor([203.9839, 203.9839, 203.9839, 203.9839, 203.9839])
    """  # noqa: E501
    if not isinstance(log_probs, Tensor) and has_torch_function((log_probs,)):  # torch.fx writes the call down
        every = log_probs, targets, input_lengths, target_lengths, blank, reduction, zero_infinity
        by_name = {"from_logits": from_logits, "topology": topology, "engine": engine}
        return handle_torch_function(ctc_loss, (log_probs,), *every, **by_name)
    reduction_here = reduction_of(reduction)
    if type(from_logits) is not bool:
        flag("from_logits", from_logits)
    check_tensors("log_probs", log_probs, targets)
    if log_probs.dim() not in (2, 3):
        raise InvalidTorchInput(
            f"log_probs have {counted(log_probs.dim(), 'dimension')}, shape {tuple(log_probs.shape)}; they must have "
            "3, (T, N, C), or 2, (T, C)",
            rule="logits_rank",
            value=log_probs.dim(),
        )
    single = log_probs.dim() == 2
    x = log_probs.unsqueeze(1) if single else log_probs
    if x.dtype in _HALVES:
        x = x.float()
    if single and targets.dim() > 1 and targets.shape != (1, targets.shape[-1]):
        raise InvalidTorchInput(
            f"log_probs of shape {tuple(log_probs.shape)} are one sample, (T, C), but targets have shape "
            f"{tuple(targets.shape)}; they must be one row of labels",
            rule="targets_rank",
            value=tuple(targets.shape),
        )
    labels = targets.reshape(1, -1) if single else targets
    frames = as_lengths("input_lengths", input_lengths, x.shape[1])
    counts = as_lengths("target_lengths", target_lengths, x.shape[1])
    check_values(x, targets=labels, input_lengths=frames, target_lengths=counts)
    loss = reduced_loss(x, labels, frames, counts, (blank, reduction_here, zero_infinity, topology, engine))
    return loss[0] if single and reduction == "none" else loss
