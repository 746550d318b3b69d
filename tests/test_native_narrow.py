"""On the way back the native engine leaves out labels that are not probable: what it leaves out must not be seen."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind

#: Of a gradient: the promise in float32; in float64 what the judge's own logarithms lose, some 1000 frames * 1000 nats
#: * 2^-53, and as much again.
NEAR = {"float32": 2e-6, "float64": 2e-10}


def early_or_late(odds, T=900, L=60, wrong=False):
    """Logits where each label may come early or late, at the same odds, so that all shares of the probability occur,
    down to odds**L, and labels far apart are probable at one frame."""
    rng = np.random.default_rng([SEED, T, L])
    labels = rng.permutation(np.arange(1, L + 5))[:L]
    x = rng.normal(scale=0.1, size=(T, 1, L + 5))
    x[:, 0, 0] += 8
    early, late = 60 + 3 * np.arange(L), 620 + 3 * np.arange(L)
    x[early, 0, labels] += 8
    x[late, 0, labels] += 8 + np.log(odds)
    if wrong:
        x *= -1
    return x, labels


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("odds", [1, 0.8, 1.25, 0.5, 2, 0.1])
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_labels_far_apart_that_are_probable_at_once(odds, wrong, dtype):
    x, labels = early_or_late(odds, wrong=wrong)
    x = x.astype(dtype)
    exact = ctcbind.ctc_loss_and_grad(x.astype(float), [labels], engine="reference")
    got = ctcbind.ctc_loss_and_grad(x, [labels], engine="native")
    np.testing.assert_allclose(got.grad.astype(float), exact.grad, rtol=0, atol=NEAR[dtype])


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("dtype", NEAR)
def test_shares_of_all_sizes(dtype, topology):
    """Logits from nearly equal to sharp, labels from few to nearly as many as frames."""
    rng = np.random.default_rng([SEED, len(topology), len(dtype)])
    for scale in (0.01, 0.3, 1, 3, 10):
        T, L, C = int(rng.integers(300, 700)), int(rng.integers(40, 250)), int(rng.choice([3, 12, 40, 200]))
        x = (scale * rng.normal(size=(T, 2, C))).astype(dtype)
        labels, frames = rng.integers(1, C, (2, L)), [T, T - int(rng.integers(40))]
        exact = ctcbind.ctc_loss_and_grad(x.astype(float), labels, frames, engine="reference", topology=topology)
        got = ctcbind.ctc_loss_and_grad(x, labels, frames, engine="native", topology=topology)
        np.testing.assert_allclose(got.grad.astype(float), exact.grad, rtol=0, atol=NEAR[dtype])


def a_batch(seed):
    rng = np.random.default_rng(seed)
    T, C, N = int(rng.integers(32, 1000)), int(rng.choice([3, 11, 28, 64, 200, 700])), int(rng.integers(1, 7))
    L, dtype = int(rng.integers(20, max(21, min(T, 400)))), rng.choice(["float32", "float64", "float16"])
    x = rng.choice([0.1, 1, 3, 10, 100, 1e4]) * rng.normal(size=(T, N, C))
    with np.errstate(over="ignore"):
        x = x.astype(dtype)
    labels, topology = rng.integers(1, C, (N, L)), str(rng.choice(["ctc", "simple"]))
    return (x, labels, rng.integers(max(1, T // 2), T + 1, N), rng.integers(0, L + 1, N)), topology


def bits(batch, **options):
    """Of the results with one thread and with more."""
    found = set()
    with ctcbind.CTCLoss(engine="native", **options) as plan:
        for threads in (1, 2, 5):
            ctcbind.set_num_threads(threads)
            loss, grad, _ = plan(*batch)
            found.add((loss.tobytes(), grad.tobytes()))
    return found


@pytest.mark.parametrize("number", range(40))
def test_the_same_bits_whatever_was_kept(number):
    """With more threads each keeps more of the way forward, of all labels; what is not kept is computed again, of those
    that matter."""
    batch, topology = a_batch([SEED, number])
    assert len(bits(batch, topology=topology)) == 1


@pytest.mark.parametrize("seed", [9, 56, 64, 105, 106, 119])
def test_runs_of_rows_are_those_of_the_way_forward(seed):
    """Where a block has too many to be kept: of fewer labels others would be chosen, and round otherwise."""
    rng = np.random.default_rng(seed)
    T = int(rng.integers(300, 1000))
    L = int(rng.integers(100, min(T, 400)))
    x = (3 * rng.normal(size=(T, 5, 3))).astype(np.float32)
    assert len(bits((x, rng.integers(1, 3, (5, L))))) == 1
