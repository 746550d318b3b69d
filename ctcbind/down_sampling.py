"""By what a network has divided the frames of its input, told from lengths that were counted before it did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["advice", "down_sampling"]

#: In fewer frames any length is as many times T as another.
FRAMES = 10
#: The most frames that rounding and the edges of layers take away.
ROUNDED_AWAY = 2
#: No network makes one frame of more samples than this.
SAMPLES_A_FRAME = 10_000


def down_sampling(lengths: npt.NDArray[np.integer[Any]], T: int) -> int | None:
    """By what input lengths beyond T have to be divided, for the longest to end with the last frame; None where they
    are too long for another reason. Layers that do not pad their input leave a frame or two less."""
    longest = int(lengths.max(initial=0))
    if T < FRAMES or not T < longest <= SAMPLES_A_FRAME * T or lengths.min() < 0:
        return None
    away = min(ROUNDED_AWAY, T / FRAMES)
    factors = range(max(2, math.ceil(longest / (T + away))), longest // T + 2)
    fitting = [factor for factor in factors if T - 1 < longest / factor <= T + away]
    return max(fitting, key=_roundness, default=None)


def advice(lengths: npt.NDArray[np.integer[Any]], T: int) -> str:
    """What to do about such lengths, as the end of a sentence; empty where they are too long for another reason."""
    factor = down_sampling(lengths, T)
    if factor is None:
        return ""
    longest = int(lengths.max())
    times = f"{factor}" if longest % factor == 0 else f"about {factor}"
    return (
        f": divide input_lengths by {factor}, rounded as the network's layers round: the longest, {longest}, is "
        f"{times} times T, and so they were counted before its down-sampling"
    )


def _roundness(number: int) -> int:
    """How often a number can be divided by 2, 3 or 5: strides, and samples a frame, are mostly products of these."""
    count = 0
    for prime in (2, 3, 5):
        while number % prime == 0:
            number, count = number // prime, count + 1
    return count
