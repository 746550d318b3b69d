"""A little more or less of something must not take the native engine much longer: ratios of its processor time."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
import pytest

import ctcbind
from ctcbind.bindings.native import instruction_set

pytestmark = pytest.mark.skipif(
    instruction_set() == "scalar", reason="without vectors other parts take most of the time"
)


def least(*batches: tuple[npt.NDArray[np.float32], list[list[int]]]) -> list[float]:
    """Seconds of this thread for each, in turns: the least of many, as others may use the processor too."""
    seconds = [np.inf] * len(batches)
    before = ctcbind.get_num_threads()
    ctcbind.set_num_threads(1)
    try:
        with ctcbind.CTCLoss(engine="native") as plan:
            for _ in range(60):
                for k, (x, labels) in enumerate(batches):
                    start = time.thread_time()
                    plan(x, labels)
                    seconds[k] = min(seconds[k], time.thread_time() - start)
    finally:
        ctcbind.set_num_threads(before)
    return seconds


def test_a_frame_less_than_a_block() -> None:
    """Of 15 frames the last three are a run, as the four of 16 are; alone they took nearly as long as all 16."""
    rng = np.random.default_rng(15)
    x = rng.normal(size=(16, 32, 11)).astype(np.float32)
    labels = [(rng.permutation(10)[:4] + 1).tolist() for _ in range(32)]
    whole, less = least((x, labels), (x[:15].copy(), labels))
    assert less < 1.3 * whole


@pytest.mark.parametrize("L", [24, 25])
def test_frames_that_come_again(L: int) -> None:
    """They are computed in doubles from the exponentials on, but each of those once: not for each label, nor for each
    frame by itself, which took 3.1 times as long as frames that do not come again."""
    rng = np.random.default_rng(L)
    x = rng.normal(size=(400, 4, 28)).astype(np.float32)
    labels = [(rng.permutation(27)[:L] + 1).tolist() for _ in range(4)]
    new, again = least((x, labels), (x[rng.integers(7, size=400)], labels))
    assert again < 2.7 * new


@pytest.mark.parametrize("C", [192, 1024])
def test_classes_that_lie_far_apart(C: int) -> None:
    """Of (N, C, T), as a convolution leaves it, 16 frames of a class share a line; frame by frame it took 4.5 times as
    long as (T, N, C) (9 times with 1024 classes), as lines 4096 bytes apart take each other's place in the cache."""
    rng = np.random.default_rng(C)
    x = rng.normal(size=(512, 2, C)).astype(np.float32)
    labels = [rng.integers(1, C, 60).tolist() for _ in range(2)]
    apart = np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1)
    beside, far = least((x, labels), (apart, labels))
    assert far < (1.6 if C == 192 else 4) * beside


def test_classes_at_minus_infinity() -> None:
    """Where all states share one exponent nothing is lost that such a frame could bring back: it needs no run of its
    own. With each frame alone it took 11 times as long."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(160, 4, 28)).astype(np.float32)
    labels = [rng.integers(1, 28, 40).tolist() for _ in range(4)]
    masked = np.where(rng.random(x.shape) < 0.1, np.float32(-np.inf), x)
    masked[..., 0] = x[..., 0]
    plain, some = least((x, labels), (masked, labels))
    assert some < 6 * plain


def test_the_last_frame_of_an_unused_class() -> None:
    """It stands for the rows that its block lacks too, and they once were taken for rows wider than floats hold."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(150, 4, 28)).astype(np.float32)
    labels = [rng.integers(1, 27, 40).tolist() for _ in range(4)]
    sure = x.copy()
    sure[-1, :, 27] = 500
    plain, last = least((x, labels), (sure, labels))
    assert last < 1.5 * plain
