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


Batch = tuple[npt.NDArray[np.float32], list[list[int]]]

#: Others may use the processor too: of so many rounds the least counts, and again of as many more until it will do.
ROUNDS, TIMES = 60, 10


def takes_less(batch: Batch, share: float, other: Batch) -> bool:
    """Whether a batch takes less than that share of this thread's seconds for the other; they are taken in turns."""
    seconds = [np.inf, np.inf]
    before = ctcbind.get_num_threads()
    ctcbind.set_num_threads(1)
    try:
        with ctcbind.CTCLoss(engine="native") as plan:
            for _ in range(TIMES):
                for _ in range(ROUNDS):
                    for k, (x, labels) in enumerate((batch, other)):
                        start = time.thread_time()
                        plan(x, labels)
                        seconds[k] = min(seconds[k], time.thread_time() - start)
                if seconds[0] < share * seconds[1]:
                    return True
    finally:
        ctcbind.set_num_threads(before)
    print(f"{seconds[0]:.3g} s, {seconds[0] / seconds[1]:.2f} times the other")
    return False


def test_a_frame_less_than_a_block() -> None:
    """Of 15 frames the last three are a run, as the four of 16 are; alone they took nearly as long as all 16."""
    rng = np.random.default_rng(15)
    x = rng.normal(size=(16, 32, 11)).astype(np.float32)
    labels = [(rng.permutation(10)[:4] + 1).tolist() for _ in range(32)]
    assert takes_less((x[:15].copy(), labels), 1.3, (x, labels))


@pytest.mark.parametrize("L", [24, 25])
def test_frames_that_come_again(L: int) -> None:
    """They are computed in doubles from the exponentials on, but each of those once: not for each label, nor for each
    frame by itself, which took 3.1 times as long as frames that do not come again."""
    rng = np.random.default_rng(L)
    x = rng.normal(size=(400, 4, 28)).astype(np.float32)
    labels = [(rng.permutation(27)[:L] + 1).tolist() for _ in range(4)]
    assert takes_less((x[rng.integers(7, size=400)], labels), 2.7, (x, labels))


@pytest.mark.parametrize("C", [192, 1024])
def test_classes_that_lie_far_apart(C: int) -> None:
    """Of (N, C, T), as a convolution leaves it, 16 frames of a class share a line; frame by frame it took 4.5 times as
    long as (T, N, C) (9 times with 1024 classes), as lines 4096 bytes apart take each other's place in the cache."""
    rng = np.random.default_rng(C)
    x = rng.normal(size=(512, 2, C)).astype(np.float32)
    labels = [rng.integers(1, C, 60).tolist() for _ in range(2)]
    apart = np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1)
    assert takes_less((apart, labels), 1.6 if C == 192 else 4, (x, labels))


def test_classes_at_minus_infinity() -> None:
    """Where all states share one exponent nothing is lost that such a frame could bring back: it needs no run of its
    own. With each frame alone it took 11 times as long."""
    rng = np.random.default_rng(10)
    x = rng.normal(size=(160, 4, 28)).astype(np.float32)
    labels = [rng.integers(1, 28, 40).tolist() for _ in range(4)]
    masked = np.where(rng.random(x.shape) < 0.1, np.float32(-np.inf), x)
    masked[..., 0] = x[..., 0]
    assert takes_less((masked, labels), 6, (x, labels))


def test_the_last_frame_of_an_unused_class() -> None:
    """It stands for the rows that its block lacks too, and they once were taken for rows wider than floats hold."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(150, 4, 28)).astype(np.float32)
    labels = [rng.integers(1, 27, 40).tolist() for _ in range(4)]
    sure = x.copy()
    sure[-1, :, 27] = 500
    assert takes_less((sure, labels), 1.5, (x, labels))
