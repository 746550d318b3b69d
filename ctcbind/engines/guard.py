"""What a bound library must not be shown, and what it leaves unwritten.

Libraries answer a sample without a path with 0, with garbage or with a write outside their buffers, and most
leave the gradient past the input length as it was. So such a sample is given a harmless stand-in before the
call, and the one meaning's values after it.

Libraries that work with probabilities, not with their logarithms, also lose those below their dtype's range:
`floor_may_matter` says for which samples that can have made the loss wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..batch import Batch
from ..reduction import set_where

__all__ = ["Shielded", "floor", "floor_may_matter", "shield", "tolerance"]

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Shielded:
    """Labels and lengths that a library can be handed; `replaced` (N,) marks the samples that are stand-ins."""

    labels: Ints
    label_lengths: Ints
    input_lengths: Ints
    replaced: npt.NDArray[np.bool_]

    def settle(self, batch: Batch, losses: Any, grad: Any | None, xp: Any = np) -> None:
        """Write the one meaning over what the library left: stand-ins' losses and gradients, padded time.

        `losses` is (N,), `grad` (T, N, C), both arrays of the module `xp`, both changed in place.
        """
        if self.replaced.any():
            fill = np.where(batch.feasible, 0.0, np.inf)
            xp.copyto(losses, xp.asarray(fill, dtype=losses.dtype), where=xp.asarray(self.replaced))
        if grad is not None:
            frames = np.where(self.replaced, 0, batch.input_lengths)
            if (frames < batch.T).any():
                set_where(grad, xp.asarray(np.arange(batch.T)[:, None] >= frames), 0, xp)


def shield(batch: Batch, *, empty_labels: bool) -> Shielded:
    """The batch's labels and lengths with a stand-in for each sample that no library computes.

    Stand-ins take the place of samples without a path, of samples of no frames and, unless `empty_labels`, of
    samples without labels; each is one frame with no label, or with one where a label is a must. T must be at
    least 1, and C at least 2 where a label is a must.
    """
    replaced = ~batch.feasible | (batch.input_lengths == 0)
    if not empty_labels:
        replaced |= batch.label_lengths == 0
    if not replaced.any():
        return Shielded(batch.labels, batch.label_lengths, batch.input_lengths, replaced)
    label = 0 if batch.blank else 1
    count = 0 if empty_labels else 1
    rows = [
        np.full(count, label, dtype=np.int32) if stand_in else batch.targets(n) for n, stand_in in enumerate(replaced)
    ]
    return Shielded(
        np.concatenate(rows),
        np.where(replaced, count, batch.label_lengths).astype(np.int32),
        np.where(replaced, 1, batch.input_lengths).astype(np.int32),
        replaced,
    )


def floor(dtype: Any) -> float:
    """ln of the least probability that this dtype holds with all its digits."""
    return float(np.log(np.finfo(dtype).tiny))


def tolerance(dtype: Any) -> float:
    """The part of a sample's probability that may be wrong: the rounding of a handful of operations."""
    return 8 * float(np.finfo(dtype).eps)


def floor_may_matter(losses: npt.NDArray[Any], frames: Ints, label_lengths: Ints) -> npt.NDArray[np.bool_]:
    """(N,): whether paths through classes below the floor can be more than the tolerance of what a library summed.

    All paths through one such class at one frame have at most the floor's probability together, since the other
    frames' sum to 1; and there are T (L + 1) such places at most. One nat is left for rounding.
    """
    places = np.log(np.maximum(frames, 1)) + np.log(label_lengths + 1.0)
    limit = -floor(losses.dtype) + np.log(tolerance(losses.dtype)) - 1.0
    return np.asarray(~(losses + places < limit))
