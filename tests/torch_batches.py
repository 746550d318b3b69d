"""Batches of tensors for the tests of ctcbind.torch, and PyTorch's own loss of them.

PyTorch's float64 log-space code on the CPU is the yardstick where it is right; tolerances are those of float32 sums
over the T frames where an operand is float32, and of float64 otherwise.
"""

from __future__ import annotations

import torch


def make(rng, T=20, N=4, C=7, L=5, dtype=torch.float64):
    """Logits, padded targets and both lengths, where every sample has a path."""
    logits = torch.tensor(rng.normal(size=(T, N, C)) * 2, dtype=dtype, requires_grad=True)
    targets = torch.tensor(rng.integers(1, C, size=(N, L)))
    frames = torch.tensor(rng.integers(2 * L + 1, T + 1, size=N))
    counts = torch.tensor(rng.integers(0, L + 1, size=N))
    return logits, targets, frames, counts


def theirs(logits, *args, **options):
    return torch.nn.functional.ctc_loss(logits.log_softmax(-1), *args, **options)


class Broken:
    """Says that it can be had by DLPack, and cannot."""

    def __init__(self, error):
        self.error = error

    def __dlpack__(self, **_):
        raise self.error

    def __dlpack_device__(self):
        return 1, 0
