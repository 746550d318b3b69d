"""What the native engine promises of float32 logits, for every sample of a batch."""

from __future__ import annotations

import numpy as np
from batches import SEED

import ctcbind

LOSS, GRAD = 1e-6, 2e-6


def hold(x, labels, losses, grads, **options):
    """The promise, for every sample."""
    got = ctcbind.ctc_loss_and_grad(x, labels, engine="native", **options)
    off = np.abs(got.loss - losses) / np.maximum(1, losses)
    assert off.max() <= LOSS, f"loss {got.loss} is {off.max()} from {losses}, seed {SEED}"
    wrong = np.abs(got.grad - grads).max()
    assert wrong <= GRAD, f"gradient off by {wrong}, seed {SEED}"
    sums = np.abs(got.grad.sum(axis=2, dtype=np.float64)).max()
    assert sums <= GRAD, f"a row of the gradient sums to {sums}, seed {SEED}"
    return got
