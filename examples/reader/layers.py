"""Layers with their gradients by hand: convolution in time, batch normalisation, ReLU, dense, and how they nest.

Activations are (N, T, C): samples, time steps (columns of the image), channels. `lengths` (N,) says how many of the
T steps belong to each sample; what lies past them is 0 on the way forward and passes nothing on the way back.

A layer's `forward(x, lengths, train)` keeps what `backward(dy)` needs; `backward` takes the gradient of the loss with
respect to the layer's output, leaves those of its parameters in `grads`, and returns the one with respect to its
input. `xp` is NumPy or CuPy: nothing else differs between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Array = Any


def valid(xp: Any, lengths: Array, T: int, dtype: Any) -> Array:
    """(N, T, 1): 1 at the time steps that belong to their sample, 0 past its end."""
    return (xp.arange(T)[None, :] < lengths[:, None]).astype(dtype)[:, :, None]


class Layer:
    """Parameters that are learnt, their gradients, and buffers that are kept but not learnt; all under names."""

    def __init__(self, xp: Any = np) -> None:
        self.xp = xp
        self.params: dict[str, Array] = {}
        self.grads: dict[str, Array] = {}
        self.buffers: dict[str, Array] = {}

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        raise NotImplementedError

    def backward(self, dy: Array) -> Array:
        raise NotImplementedError

    def frames(self, lengths: Array) -> Array:
        """How many time steps come out for so many that go in."""
        return lengths

    def parts(self) -> dict[str, Layer]:
        """The layers inside this one."""
        return {}

    def named_layers(self, prefix: str = "") -> Iterator[tuple[str, Layer]]:
        """This layer and all inside it, each with the prefix of its parameters' names."""
        yield prefix, self
        for name, part in self.parts().items():
            yield from part.named_layers(f"{prefix}{name}.")


def drawn(xp: Any, rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    """Normal random numbers, drawn on the host so that a seed means the same weights on every device."""
    return xp.asarray(rng.normal(0.0, deviation, shape).astype(np.float32))


class Dense(Layer):
    """y = x W + b at every time step."""

    def __init__(self, rng: np.random.Generator, C: int, D: int, xp: Any = np) -> None:
        super().__init__(xp)
        self.params = {"W": drawn(xp, rng, (C, D), C**-0.5), "b": xp.zeros(D, dtype=np.float32)}

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        self.mask = valid(self.xp, lengths, x.shape[1], x.dtype)
        self.x = x
        return (x @ self.params["W"] + self.params["b"]) * self.mask

    def backward(self, dy: Array) -> Array:
        dy = (dy * self.mask).reshape(-1, dy.shape[-1])
        x = self.x.reshape(-1, self.x.shape[-1])
        self.grads = {"W": x.T @ dy, "b": dy.sum(axis=0)}
        return (dy @ self.params["W"].T).reshape(self.x.shape)


class Convolution(Layer):
    """y[t] = b + sum over j of x[stride t + j - width // 2] W[j]; zeros stand before the first step and after the last.

    The windows are laid side by side ("im2col"), so that the convolution is one matrix product; the way back takes
    that product back and adds up what each window says about the steps that it shares with others.
    """

    def __init__(
        self, rng: np.random.Generator, C: int, D: int, width: int, stride: int = 1, *, bias: bool = True, xp: Any = np
    ) -> None:
        super().__init__(xp)
        self.width, self.stride = width, stride
        self.params = {"W": drawn(xp, rng, (width * C, D), (2 / (width * C)) ** 0.5)}
        if bias:
            self.params["b"] = xp.zeros(D, dtype=np.float32)

    def frames(self, lengths: Array) -> Array:
        return (lengths + self.stride - 1) // self.stride

    def _steps(self, T: int) -> list[slice]:
        """For each place j in a window: the padded steps that stand there in the windows, first to last."""
        last = self.stride * (self.frames(T) - 1)
        return [slice(j, j + last + 1, self.stride) for j in range(self.width)]

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        N, T, C = x.shape
        before = self.width // 2
        padded = self.xp.zeros((N, T + self.width - 1, C), dtype=x.dtype)
        padded[:, before : before + T] = x
        windows = self.xp.concatenate([padded[:, steps] for steps in self._steps(T)], axis=-1)
        self.shape = x.shape
        self.windows = windows.reshape(-1, windows.shape[-1])
        y = (self.windows @ self.params["W"]).reshape(*windows.shape[:2], -1)
        if "b" in self.params:
            y += self.params["b"]
        self.mask = valid(self.xp, self.frames(lengths), y.shape[1], x.dtype)
        y *= self.mask
        return y

    def backward(self, dy: Array) -> Array:
        N, T, C = self.shape
        flat = (dy * self.mask).reshape(-1, dy.shape[-1])
        self.grads = {"W": self.windows.T @ flat}
        if "b" in self.params:
            self.grads["b"] = flat.sum(axis=0)
        dwindows = (flat @ self.params["W"].T).reshape(N, -1, self.width, C)
        dpadded = self.xp.zeros((N, T + self.width - 1, C), dtype=dy.dtype)
        for j, steps in enumerate(self._steps(T)):
            dpadded[:, steps] += dwindows[:, :, j]
        before = self.width // 2
        return dpadded[:, before : before + T]


def whole(*sums: Array) -> Sequence[Array]:
    """Sums over the batch, where the batch is here in whole."""
    return sums


class BatchNorm(Layer):
    """y = gamma (x - mean) / deviation + beta, with mean and deviation of each channel over the batch's valid steps.

    While it trains it keeps a running mean and variance, and reads with those. Source: Ioffe and Szegedy, ICML 2015.
    """

    EPSILON = 1e-5
    MOMENTUM = 0.05

    def __init__(self, C: int, xp: Any = np) -> None:
        super().__init__(xp)
        self.params = {"gamma": xp.ones(C, dtype=np.float32), "beta": xp.zeros(C, dtype=np.float32)}
        self.buffers = {"mean": xp.zeros(C, dtype=np.float32), "variance": xp.ones(C, dtype=np.float32)}
        #: Where only a part of the batch is here, this adds what the other parts have (examples/distributed).
        self.total: Callable[..., Sequence[Array]] = whole

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        xp = self.xp
        self.mask = valid(xp, lengths, x.shape[1], x.dtype)
        self.train = train
        if train:
            self.count, sums = self.total(self.mask.sum(), x.sum(axis=(0, 1)))  # past the end x is 0
            mean = sums / self.count
            centred = (x - mean) * self.mask
            (squares,) = self.total((centred * centred).sum(axis=(0, 1)))
            variance = squares / self.count
            for name, value in (("mean", mean), ("variance", variance)):
                self.buffers[name] = (1 - self.MOMENTUM) * self.buffers[name] + self.MOMENTUM * value
        else:
            centred = (x - self.buffers["mean"]) * self.mask
            variance = self.buffers["variance"]
        self.scale = 1 / xp.sqrt(variance + self.EPSILON)
        self.x_hat = centred
        self.x_hat *= self.scale
        return (self.x_hat * self.params["gamma"] + self.params["beta"]) * self.mask

    def backward(self, dy: Array) -> Array:
        dy = dy * self.mask
        dbeta = dy.sum(axis=(0, 1))
        dgamma = (dy * self.x_hat).sum(axis=(0, 1))
        self.grads = {"gamma": dgamma, "beta": dbeta}
        if self.train:  # mean and deviation moved with x: take out what moves all of a channel, and what scales it
            dbeta, dgamma = self.total(dbeta, dgamma)
            dy -= (dbeta / self.count + self.x_hat * (dgamma / self.count)) * self.mask
        dy *= self.params["gamma"] * self.scale
        return dy


class ReLU(Layer):
    """y = max(x, 0)."""

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        self.y = self.xp.maximum(x, 0)
        return self.y

    def backward(self, dy: Array) -> Array:
        return dy * (self.y > 0)


class Chain(Layer):
    """One layer after the other."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(layers[0].xp)
        self.layers = layers

    def parts(self) -> dict[str, Layer]:
        return {str(i): layer for i, layer in enumerate(self.layers)}

    def frames(self, lengths: Array) -> Array:
        for layer in self.layers:
            lengths = layer.frames(lengths)
        return lengths

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        for layer in self.layers:
            x = layer.forward(x, lengths, train)
            lengths = layer.frames(lengths)
        return x

    def backward(self, dy: Array) -> Array:
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return dy


class Residual(Layer):
    """y = x + inside(x): the layers inside learn what to add to their input."""

    def __init__(self, *layers: Layer) -> None:
        super().__init__(layers[0].xp)
        self.inside = Chain(*layers)

    def parts(self) -> dict[str, Layer]:
        return {"inside": self.inside}

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        return x + self.inside.forward(x, lengths, train)

    def backward(self, dy: Array) -> Array:
        return dy + self.inside.backward(dy)
