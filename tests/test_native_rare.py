"""Rows whose emissions the native engine does not take from its table: wide, masked, infinite, or far below a class
that no path uses. They stand beside usual ones here, in the same blocks."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind

#: Of the loss, relative (absolute below 1), and of the gradient: the promise for float32 states; of float64 what the
#: judge's own logarithms lose, some 200 frames * 10^4 nats * 2^-53, and as much again.
NEAR = {"float32": (1e-6, 2e-6), "float64": (1e-11, 1e-9)}

#: Nats: about REFERENCE_SLACK, about the ranges of a float's and of a double's table, and far beyond.
DISTANCES = [8, 8.5, 20, 66, 66.6, 67, 90, 300, 620, 624, 640, 1000, 10000]


def of_all_kinds(rng, dtype):
    T, C = int(rng.choice([3, 17, 40, 90, 200])), int(rng.choice([3, 5, 11, 28, 60, 200]))
    x = rng.normal(size=(T, 2, C)) * rng.choice([1, 8, 12, 15, 20, 30, 100])
    for _ in range(int(rng.integers(1, 4))):
        frames, c, by = rng.random((T, 2)) < rng.choice([0.02, 0.1, 0.5, 1]), rng.integers(C), rng.choice(DISTANCES)
        match rng.integers(7):
            case 0:
                x[frames, c] = -np.inf
            case 1:
                x[frames, c] -= by
            case 2:
                x[frames, c] += by
            case 3:
                x[frames] += by * rng.choice([-1, 1])
            case 4:
                x[frames] = 0
            case 5:
                x[frames] = x[0, 0]
            case 6:
                x[frames, c] = np.inf if rng.random() < 0.2 else by
    labels = rng.integers(1, C, (2, int(rng.integers(0, T // 2 + 1))))
    return x.astype(dtype), labels[:, :60], rng.integers(T // 2 + 1, T + 1, 2)


def compare(x, labels, frames, topology="ctc"):
    loss, grad = NEAR[x.dtype.name]
    got = ctcbind.ctc_loss_and_grad(x, labels, frames, engine="native", topology=topology)
    want = ctcbind.ctc_loss_and_grad(x.astype(float), labels, frames, engine="reference", topology=topology)
    np.testing.assert_allclose(got.loss.astype(float), want.loss, rtol=loss, atol=loss)
    np.testing.assert_allclose(got.grad.astype(float), want.grad, rtol=0, atol=grad)
    alone = ctcbind.ctc_loss(x, labels, frames, engine="native", topology=topology)
    np.testing.assert_allclose(alone.astype(float), want.loss, rtol=loss, atol=loss)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_rows_of_all_kinds(topology, dtype):
    for k in range(150):
        compare(*of_all_kinds(np.random.default_rng([SEED, k, len(topology)]), dtype), topology)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("C", [5, 300])
@pytest.mark.parametrize("first", [0, 30])
def test_an_unused_class_takes_a_frame_whose_used_ones_are_0(first, C, dtype):
    """The largest of the used logits is then just the number that stands for an infinite reference."""
    x = np.random.default_rng([SEED, C, first]).normal(size=(60, 2, C)) * 30  # wide rows all around
    x[first + 7] = 0
    x[first + 7, 0, -1] = np.inf
    x = x.astype(dtype)
    compare(x, [[1, 2], [3, 1]], [60, 60])
    assert ctcbind.ctc_loss(x, [[1, 2], [3, 1]], engine="native")[0] == np.inf


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("C", [5, 300])
@pytest.mark.parametrize("backward", [False, True])
def test_huge_logits_come_blocks_before_or_after_wide_rows(backward, C, dtype):
    """In the huge frame all but one class cost 2e15 nats, past what binades count exactly in a double."""
    x = np.random.default_rng([SEED, C]).normal(size=(80, 1, C)) * 100
    x[70] = -1e15
    x[70, 0, 2] = 1e15
    x = np.ascontiguousarray(x[::-1] if backward else x).astype(dtype)
    compare(x, [[1, 2, 3, 2]], [80])


# --- states that no path is in for a frame stand beside others --------------------------------------------------


def few_at_a_time(rng, dtype):
    """Frames in which most classes cannot be, or hardly, and after which labels are all that is left to say."""
    L, C = int(rng.integers(2, 70)), int(rng.choice([3, 4, 5, 8, 40]))
    T = int(L * rng.uniform(1, 2.2)) + int(rng.integers(0, 40))
    x = rng.normal(size=(T, 1, C)) * rng.choice([0, 0.1, 1, 3, 10])
    x[..., 0] += rng.choice([5, 10, 20, 30, 40, 60, 90, 120, 200]) * rng.choice([1, 1, 1, -1])
    by = rng.choice([20, 80, 300, 700, np.inf, np.inf, np.inf])
    for t in np.flatnonzero(rng.random(T) < rng.choice([0.01, 0.03, 0.1, 0.3])):
        left = rng.integers(0, C, int(rng.integers(1, max(2, C // 2))))
        others = np.setdiff1d(np.arange(rng.random() < 0.9, C), left)
        x[t, 0, others] -= by
        x[t, 0, 0] -= rng.choice([0, 0, 0, 5, 20, 60, 90, 150])
        x[t, 0, left] += rng.choice([0, 0, 0, 0, 5, 20, 60, 90, 150])
    return x.astype(dtype), rng.integers(1, C, (1, L)), [T]


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_few_classes_at_a_time(topology, dtype):
    for k in range(200):
        compare(*few_at_a_time(np.random.default_rng([SEED, k, len(topology)]), dtype), topology)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("T", range(29, 36))
@pytest.mark.parametrize("gap", [20, 60, 120])
def test_a_frame_that_only_the_blank_can_have(gap, T, dtype):
    """All labels are empty after it. The first of them gets what the first blank has, and the last ones 2^-1000 of
    that, from blanks of their own: they must not have the exponent of the first."""
    x = np.zeros((T, 1, 5))
    x[..., 0] = gap
    x[23, 0, 1:] = -np.inf
    compare(x.astype(dtype), [[1, 1, 3, 2, 2, 1, 4, 1, 3, 4, 3, 4, 3, 2, 4, 4, 3]], [T])


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("T", [38, 39, 40])
@pytest.mark.parametrize("logit", [60, 70, 80, 89])
def test_a_frame_that_leaves_early_labels_only(logit, T, dtype):
    """The same in the simple topology, where a label can follow the one before without a blank."""
    x = np.zeros((T, 1, 3))
    x[..., 0] = 90
    x[31, 0] = [logit, -np.inf, 0]
    compare(x.astype(dtype), [[1, 2, 2, 1, 1, 1, 1, 1, 1, 1]], [T], "simple")
