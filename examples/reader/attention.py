"""Self-attention by hand, with what it needs beside it: layer normalisation and marks of position."""

from __future__ import annotations

from typing import Any

import numpy as np

from .layers import Array, Layer, drawn, valid


class SelfAttention(Layer):
    """Every step asks all steps of its own sample, with `heads` questions at once.

        A = softmax(q k^T / sqrt(D)), over the valid steps alone      y = (A v) Wo + b

    (N, T, C) in and out; q, k and v are x times a matrix each, split into heads of D = C / heads channels.

    Source: Vaswani et al., NeurIPS 2017, section 3.2.
    """

    def __init__(self, rng: np.random.Generator, C: int, heads: int, xp: Any = np) -> None:
        super().__init__(xp)
        if C % heads:
            raise ValueError(f"{C} channels cannot be split into {heads} heads")
        self.heads = heads
        self.params = {
            "W": drawn(xp, rng, (C, 3 * C), C**-0.5),
            "Wo": drawn(xp, rng, (C, C), C**-0.5),
            "b": xp.zeros(C, dtype=np.float32),
        }

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        xp = self.xp
        N, T, C = x.shape
        D = C // self.heads
        self.x = x
        self.mask = valid(xp, lengths, T, x.dtype)
        heads = (x @ self.params["W"]).reshape(N, T, 3, self.heads, D).transpose(2, 0, 3, 1, 4)
        self.q, self.k, self.v = (xp.ascontiguousarray(each) for each in heads)  # (N, heads, T, D) each
        scores = self.q @ self.k.transpose(0, 1, 3, 2) * D**-0.5
        scores += (self.mask.reshape(N, 1, 1, T) - 1) * 1e9  # no question reaches past the end
        weights = xp.exp(scores - scores.max(axis=-1, keepdims=True))
        self.A = weights / weights.sum(axis=-1, keepdims=True)
        self.answers = (self.A @ self.v).transpose(0, 2, 1, 3).reshape(N, T, C)
        return (self.answers @ self.params["Wo"] + self.params["b"]) * self.mask

    def backward(self, dy: Array) -> Array:
        xp = self.xp
        N, T, C = self.x.shape
        D = C // self.heads
        dy = (dy * self.mask).reshape(-1, C)
        danswers = (dy @ self.params["Wo"].T).reshape(N, T, self.heads, D).transpose(0, 2, 1, 3)
        dA = danswers @ self.v.transpose(0, 1, 3, 2)
        dscores = self.A * (dA - (dA * self.A).sum(axis=-1, keepdims=True)) * D**-0.5  # back through the softmax
        dheads = xp.stack(
            [dscores @ self.k, dscores.transpose(0, 1, 3, 2) @ self.q, self.A.transpose(0, 1, 3, 2) @ danswers]
        )
        dheads = dheads.transpose(1, 3, 0, 2, 4).reshape(-1, 3 * C)
        self.grads = {
            "W": self.x.reshape(-1, C).T @ dheads,
            "Wo": self.answers.reshape(-1, C).T @ dy,
            "b": dy.sum(axis=0),
        }
        return (dheads @ self.params["W"].T).reshape(N, T, C)


class LayerNorm(Layer):
    """y = gamma (x - mean) / deviation + beta, with mean and deviation over the channels of each step by itself."""

    EPSILON = 1e-5

    def __init__(self, C: int, xp: Any = np) -> None:
        super().__init__(xp)
        self.params = {"gamma": xp.ones(C, dtype=np.float32), "beta": xp.zeros(C, dtype=np.float32)}

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        self.mask = valid(self.xp, lengths, x.shape[1], x.dtype)
        centred = x - x.mean(axis=-1, keepdims=True)
        self.scale = 1 / self.xp.sqrt((centred * centred).mean(axis=-1, keepdims=True) + self.EPSILON)
        self.x_hat = centred * self.scale
        return (self.x_hat * self.params["gamma"] + self.params["beta"]) * self.mask

    def backward(self, dy: Array) -> Array:
        dy = dy * self.mask
        self.grads = {"gamma": (dy * self.x_hat).sum(axis=(0, 1)), "beta": dy.sum(axis=(0, 1))}
        dy = dy * self.params["gamma"]
        dy -= dy.mean(axis=-1, keepdims=True) + self.x_hat * (dy * self.x_hat).mean(axis=-1, keepdims=True)
        return dy * self.scale


class Positions(Layer):
    """Adds sines and cosines of the step's number, so that attention can tell near from far. Nothing is learnt."""

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        _, T, C = x.shape
        pairs = (C + 1) // 2
        angles = np.arange(T)[:, None] / 1000.0 ** (np.arange(pairs)[None, :] / pairs)
        marks = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :C]
        return (x + self.xp.asarray(marks.astype(x.dtype))) * valid(self.xp, lengths, T, x.dtype)

    def backward(self, dy: Array) -> Array:
        return dy
