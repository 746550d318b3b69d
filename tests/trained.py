"""Batches as a trained network makes them: each label is probable at a frame of its own, the blank at all others. Some
have a stretch where the network is wrong: what was probable before is not afterwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import ctcbind


class Trained(NamedTuple):
    logits: np.ndarray
    labels: np.ndarray
    frames: np.ndarray
    lengths: np.ndarray


def spoil(x: np.ndarray, rng: np.random.Generator, fault: int) -> None:
    """Makes a stretch of one sample's logits (frames, C) wrong, in one of seven ways, or in none."""
    a = int(rng.integers(len(x)))
    b = a + int(rng.integers(1, max(2, len(x) // 3)))
    stretch = x[a:b]
    if fault == 0:
        stretch[:] = rng.normal(size=stretch.shape)
    elif fault == 1:
        stretch *= -1
    elif fault == 2:
        stretch[:] = stretch[::-1].copy()
    elif fault == 3:
        x[:] = np.roll(x, a, axis=0)
    elif fault == 4:
        stretch *= 5
    elif fault == 5:
        stretch[:, 0] += 20
    elif fault == 6:
        x[a, 1:] = rng.choice([-200, -np.inf])


def trained(seed: object, dtype: str, T: int | None = None, N: int | None = None) -> Trained:
    rng = np.random.default_rng(seed)
    T, C = T or int(rng.integers(30, 1000)), int(rng.choice([5, 12, 28, 64, 400]))
    some, L = int(rng.choice([1, 3, 6, 9])), int(rng.integers(12, max(13, min(T // 2, 250))))
    N = N or some
    sure, noise = rng.choice([2, 4, 6, 8, 10, 15, 25, 60]), rng.choice([0.1, 1, 1, 3])
    x, labels = noise * rng.normal(size=(T, N, C)), rng.integers(1, C, (N, L))
    frames = rng.integers(T * 2 // 3, T + 1, N)
    lengths = np.minimum(rng.integers(L // 2, L + 1, N), frames // 2)
    x[:, :, 0] += sure
    for n in range(N):
        at = np.sort(rng.choice(frames[n], lengths[n], replace=False))
        x[at, n, 0] -= sure
        x[at, n, labels[n, : lengths[n]]] += sure
        spoil(x[: frames[n], n], rng, int(rng.integers(8)))
    with np.errstate(over="ignore"):
        return Trained(x.astype(dtype), labels, frames, lengths)


#: Of the losses, relative where above 1, and of the gradients: the promise for float32 and what storing in half
#: precision takes; for float64 the judge's own logarithms, some 1000 frames * 1000 nats * 2^-53, and as much again.
NEAR = {"float32": (1e-6, 2e-6), "float16": (2.0**-10, 2.0**-11), "float64": (2e-10, 2e-10)}


def check(seed: object, dtype: str, topology: str, T: int | None = None, N: int | None = None) -> None:
    check_batch(trained(seed, dtype, T, N), topology, str((seed, dtype, topology, T, N)))


def check_batch(batch: Trained, topology: str, name: str = "") -> None:
    """Against the reference; the same bits on any number of threads, which keep more or less of the way forward."""
    found, alone = set(), set()
    with ctcbind.CTCLoss(engine="native", topology=topology) as plan:
        for threads in (1, 2, 3):
            ctcbind.set_num_threads(threads)
            got = plan(*batch)
            found.add((got.loss.tobytes(), got.grad.tobytes()))
            alone.add(plan.loss(*batch).tobytes())
    assert len(found) == len(alone) == 1, name
    logits = batch.logits.astype(float)
    exact = ctcbind.ctc_loss_and_grad(logits, *batch[1:], engine="reference", topology=topology)
    of_loss, of_grad = NEAR[str(batch.logits.dtype)]
    scale = np.maximum(1, np.where(np.isfinite(exact.loss), exact.loss, 1))
    for losses in (got.loss, np.frombuffer(alone.pop(), got.loss.dtype)):
        np.testing.assert_allclose(losses / scale, exact.loss / scale, rtol=0, atol=of_loss, err_msg=name)
    np.testing.assert_allclose(got.grad.astype(float), exact.grad, rtol=0, atol=of_grad, err_msg=name)
