"""The two readers, and their parameters by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .attention import LayerNorm, Positions, SelfAttention
from .layers import Array, BatchNorm, Chain, Convolution, Dense, Layer, ReLU, Residual
from .recurrent import BidirectionalGRU

CLASSES = 11  #: the blank, which is class 0, and the digits: digit d is class d + 1

KINDS = ("gru", "attention")


@dataclass(frozen=True)
class Shape:
    """What fixes the shapes of all parameters."""

    kind: str = "gru"
    height: int = 28  #: rows of the image, which are the channels of the first convolution
    channels: int = 128
    blocks: int = 2  #: residual blocks of two convolutions each
    units: int = 96  #: of the GRU in each direction

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _block(rng: np.random.Generator, C: int, xp: Any) -> list[Layer]:
    inside = [
        Convolution(rng, C, C, 5, bias=False, xp=xp),  # the normalisation that follows takes any bias out again
        BatchNorm(C, xp),
        ReLU(xp),
        Convolution(rng, C, C, 3, bias=False, xp=xp),
        BatchNorm(C, xp),
    ]
    return [Residual(*inside), ReLU(xp)]


def build(shape: Shape, seed: int, xp: Any = np) -> Chain:
    """A network of that shape with weights from that seed: (N, T, height) columns in, (N, T / 2, 11) logits out.

    There is no softmax at its end: the loss has it inside, and the loss's gradient enters `backward` as it is.
    """
    rng = np.random.default_rng(seed)
    C = shape.channels
    layers: list[Layer] = [
        Convolution(rng, shape.height, C // 2, 7, bias=False, xp=xp),
        BatchNorm(C // 2, xp),
        ReLU(xp),
        Convolution(rng, C // 2, C, 5, stride=2, bias=False, xp=xp),
        BatchNorm(C, xp),
        ReLU(xp),
    ]
    for _ in range(shape.blocks):
        layers += _block(rng, C, xp)
    if shape.kind == "gru":
        layers += [BidirectionalGRU(rng, C, shape.units, xp), Dense(rng, 2 * shape.units, CLASSES, xp)]
    else:
        layers += [
            Positions(xp),
            Residual(LayerNorm(C, xp), SelfAttention(rng, C, 4, xp)),
            Residual(LayerNorm(C, xp), Dense(rng, C, 2 * C, xp), ReLU(xp), Dense(rng, 2 * C, C, xp)),
            LayerNorm(C, xp),
            Dense(rng, C, CLASSES, xp),
        ]
    return Chain(*layers)


def arrays_of(network: Layer, what: str) -> dict[str, Array]:
    """All `params`, `grads` or `buffers` under names such as 6.inside.0.W."""
    return {
        prefix + name: array for prefix, layer in network.named_layers() for name, array in getattr(layer, what).items()
    }


def put(network: Layer, what: str, arrays: dict[str, Array]) -> None:
    """The inverse of `arrays_of`."""
    for prefix, layer in network.named_layers():
        mine = getattr(layer, what)
        for name in mine:
            mine[name] = layer.xp.asarray(arrays[prefix + name])
