"""The loss of a batch of logits: ctcbind's, which PyTorch differentiates through ten lines, or PyTorch's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

import ctcbind

LOSSES = ("ctcbind", "torch")


class CTC(torch.autograd.Function):
    """ctcbind gives loss and gradient at once; the gradient waits for the way back.

    That is all a network needs of its loss. (`ctcbind.torch` is the same for every device, dtype and reduction, and
    for second derivatives.)
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, plan: ctcbind.CTCLoss, targets: list[list[int]], frames: Tensor) -> Tensor:
        loss, grad, _ = plan(logits.detach().numpy(), targets, frames.numpy())
        ctx.save_for_backward(torch.from_numpy(grad))
        return torch.tensor(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors  # with respect to the logits: the softmax is behind it already
        return upstream * grad, None, None, None


class CtcbindLoss:
    """The loss of a line over its characters, then the mean of the lines. Logits (N, T, C), no softmax."""

    def __init__(self) -> None:
        self.plan = ctcbind.CTCLoss(engine="native", layout="NTC", reduction="label_mean", zero_infinity=True)

    def __call__(self, logits: Tensor, targets: list[list[int]], frames: Tensor) -> Tensor:
        return CTC.apply(logits, self.plan, targets, frames)


class TorchLoss:
    """The same from torch.nn.CTCLoss, which wants log-probabilities, time first."""

    def __init__(self) -> None:
        self.ctc = torch.nn.CTCLoss(reduction="mean", zero_infinity=True)

    def __call__(self, logits: Tensor, targets: Sequence[Sequence[int]], frames: Tensor) -> Tensor:
        in_a_row = torch.tensor(list(chain.from_iterable(targets)))
        counts = torch.tensor([len(labels) for labels in targets])
        return self.ctc(logits.log_softmax(-1).transpose(0, 1), in_a_row, frames, counts)


def make_loss(name: str) -> CtcbindLoss | TorchLoss:
    """The loss of that name, one of LOSSES."""
    return CtcbindLoss() if name == "ctcbind" else TorchLoss()
