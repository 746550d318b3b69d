"""Adam, with weight decay, a learning rate that rises and falls, and a bound on the gradient's norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .layers import Array


def clip(grads: dict[str, Array], bound: float) -> float:
    """Scale all gradients, in place, so that their joint norm is at most `bound`; returns the norm before."""
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
    if norm > bound:
        for g in grads.values():
            g *= bound / norm
    return norm


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Rises for the first twentieth of the steps, then falls along a cosine to nothing."""
    warm = max(1, steps // 20)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


class Adam:
    """Adam with the decay apart from the gradient; matrices decay, biases and scales do not.

    Sources: Kingma and Ba, ICLR 2015, algorithm 1; Loshchilov and Hutter, ICLR 2019, algorithm 2.
    """

    BETAS = (0.9, 0.99)
    #: Greater than the paper's 1e-8: a gradient that is nothing but rounding must not become a step of full size, or
    #: two engines that agree to the last bit but one would soon train two networks.
    EPSILON = 1e-5

    def __init__(self, params: dict[str, Array], decay: float = 0.01, xp: Any = np) -> None:
        self.params, self.decay, self.xp = params, decay, xp
        self.steps = 0
        self.m = {name: xp.zeros_like(p) for name, p in params.items()}
        self.v = {name: xp.zeros_like(p) for name, p in params.items()}

    def step(self, grads: dict[str, Array], rate: float) -> None:
        """One step down, in place."""
        self.steps += 1
        beta, gamma = self.BETAS
        rescale = math.sqrt(1 - gamma**self.steps) / (1 - beta**self.steps)
        for name, p in self.params.items():
            g, m, v = grads[name], self.m[name], self.v[name]
            m += (1 - beta) * (g - m)
            v += (1 - gamma) * (g * g - v)
            if name.rpartition(".")[2] in ("W", "U", "Wo"):
                p *= 1 - rate * self.decay
            p -= rate * rescale * m / (self.xp.sqrt(v) + self.EPSILON)
