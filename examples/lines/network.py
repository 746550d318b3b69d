"""The network: five convolutions, a bidirectional LSTM, a dense layer; lines of every width in one batch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: Columns of the image that one frame stands for.
COLUMNS = 4
#: Rows of the image. The pools of the five convolutions make one of them.
HEIGHT = 32


@dataclass(frozen=True)
class Shape:
    """`channels` of the first convolution (each further one has as many more), `units` of the LSTM each way, and
    `classes`, the blank among them."""

    classes: int
    channels: int = 16
    units: int = 96

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Block(nn.Module):
    """A 3 by 3 convolution, batch normalisation, a leaky ReLU, and the largest of each `pool` (rows, columns)."""

    def __init__(self, inputs: int, outputs: int, pool: tuple[int, int]) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.normalise = nn.BatchNorm2d(outputs)
        self.activation = nn.LeakyReLU(0.01, inplace=True)
        self.pool = nn.MaxPool2d(pool)

    def forward(self, x: Tensor, widths: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / pool, W / pool); nothing, exactly 0, in the columns from `widths` on.

        Without that last step a line would be read differently beside a longer one: the next convolution would
        see what this one made of the padding.
        """
        x = self.pool(self.activation(self.normalise(self.convolution(x))))
        inside = torch.arange(x.shape[3]) < widths[:, None]
        return x * inside[:, None, None, :]


class LineNetwork(nn.Module):
    """Images of lines to logits."""

    POOLS = ((2, 2), (2, 2), (2, 1), (2, 1), (2, 1))

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        sizes = [1, *(shape.channels * (i + 1) for i in range(5))]
        self.blocks = nn.ModuleList(Block(a, b, pool) for a, b, pool in zip(sizes, sizes[1:], self.POOLS))
        self.recurrent = nn.LSTM(sizes[-1], shape.units, bidirectional=True, batch_first=True)
        self.dense = nn.Linear(2 * shape.units, shape.classes)

    def forward(self, images: Tensor, frames: Tensor) -> Tensor:
        """(N, HEIGHT, W) images, of which line n fills `COLUMNS * frames[n]` columns, to logits (N, W / 4, classes)."""
        x, widths = images[:, None], COLUMNS * frames
        for block in self.blocks:
            widths = widths // block.pool.kernel_size[1]
            x = block(x, widths)
        columns = x[:, :, 0].transpose(1, 2)
        # packed, so that the direction that reads from the right begins at each line's own end
        packed = nn.utils.rnn.pack_padded_sequence(columns, frames, batch_first=True, enforce_sorted=False)
        seen, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        return self.dense(seen)
