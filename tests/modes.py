"""What probabilities in place of logits must give, and a cuDNN that gives what it should not: for the tests of both."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from batches import Case


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """In the dtype of x; the sum of a frame is 1 as far as that allows."""
    wide = np.asarray(x, dtype=np.float64)
    e = np.exp(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))
    return np.asarray((e / e.sum(axis=axis, keepdims=True)).astype(x.dtype))


def of_probabilities(case: Case) -> tuple[Case, tuple[np.ndarray, np.ndarray]]:
    """The batch with y = softmax(logits) in the place of the logits, C order, and the right (losses, gradients).

    Right is what y says as it was rounded: the reference takes ln y as logits and divides by the sum s of each frame.
    Without that, each frame costs ln s less, and its gradient is y - occupancy in place of y / s - occupancy.
    """
    y = softmax(case.logits)
    tnc = np.array(y.transpose(1, 0, 2) if case.layout == "NTC" else y, dtype=np.float64, order="C")
    same = {**vars(case), "x": np.log(tnc), "args": (y, *case.args[1:]), "name": f"softmax of {case.name}"}
    made = Case(**same)
    losses, grads = made.expected()
    sums = tnc.sum(axis=2)
    for n, frames in enumerate(made.frames):
        losses[n] -= np.log(sums[:frames, n]).sum()
        if np.isfinite(losses[n]):
            grads[:frames, n] += tnc[:frames, n] - tnc[:frames, n] / sums[:frames, n, None]
    return made, (np.maximum(losses, 0), grads)


def spoiled(
    call: Callable[..., None], where: int, spoil: Callable[[np.ndarray], None], size: int
) -> Callable[..., None]:
    """The binding's function `call`; what it writes as the gradient, argument `where`, goes through `spoil`."""

    def calling(*arguments: Any) -> None:
        call(*arguments)
        if arguments[where]:
            memory = (ctypes.c_float * size).from_address(int(arguments[where]))
            spoil(np.frombuffer(memory, dtype=np.float32))

    return calling


#: Of 100 frames of 10 classes, all alike, and the labels 1 to 4, whose loss is large: which logits are how low, and
#: whether cuDNN's float32 may lose a path for it. Of two samples the second has 90 frames, and ln 10 counts too.
LOW: list[tuple[dict[tuple[int, int, int], float], bool]] = [
    ({(50, 1, 0): -86}, True),
    ({(50, 1, 4): -86}, True),
    ({(50, 1, 0): -84, (89, 1, 4): -84}, False),
    ({(50, 1, 9): -500, (95, 1, 0): -500, (95, 1, 4): -500}, False),
    ({(50, 1, 9): -500, (89, 1, 1): -500}, True),
]


def low_logits(cells: dict[tuple[int, int, int], float]) -> tuple[np.ndarray, list[list[int]], list[int]]:
    """(logits, labels, frames) of one of them."""
    x = np.zeros((100, 2, 10), np.float32)
    for cell, value in cells.items():
        x[cell] = value
    return x, [[1, 2, 3, 4]] * 2, [100, 90]
