"""What tests of JAX have in common: batches, the ways from a program to the engine, float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax
import numpy as np
import pytest
from batches import SEED

import ctcbind


def optax():
    return pytest.importorskip("optax", reason="optax, the yardstick, is not installed: pip install optax")


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


@pytest.fixture(autouse=True, params=["in C", "called back"])
def way(request, monkeypatch):
    """How a compiled program gets to the engine."""
    if request.param == "called back":
        monkeypatch.setattr(jax.lax, "platform_dependent", elsewhere)
        jax.clear_caches()  # which would go on to call what was compiled before, in C
    yield request.param
    if request.param == "called back":
        jax.clear_caches()


def elsewhere(*arrays, cpu, default):
    """As on a device that is no CPU."""
    return default(*arrays)


def paddings(size, lengths):
    return (np.arange(size) >= np.asarray(lengths)[:, None]).astype(np.float32)


def make(rng, B=4, T=20, K=7, N=5, dtype=np.float32, blank=0):
    """logits, logit_paddings, labels, label_paddings; every sample has a path; the padding of the labels is wild."""
    labels = (blank + rng.integers(1, K, size=(B, N))) % K
    counts = rng.integers(0, N + 1, size=B)
    padded = paddings(N, counts)
    labels[padded == 1] = -100
    frames = rng.integers(2 * N + 1, T + 1, size=B)
    return rng.normal(size=(B, T, K)).astype(dtype) * 2, paddings(T, frames), labels, padded


def truth(logits, logit_paddings, labels, label_paddings, blank=0):
    frames, counts = ((1 - each).sum(axis=1).astype(int) for each in (logit_paddings, label_paddings))
    return ctcbind.ctc_loss_and_grad(
        np.asarray(logits, np.float64), labels, frames, counts, blank=blank, layout="NTC", engine="reference"
    )


@contextmanager
def enable_x64(on: bool) -> Iterator[None]:
    """float64 in all threads, until all is computed: with `jax.enable_x64`, which is of one thread, a callback that
    another one makes gets float64 as float32 (JAX 0.10.2)."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", on)
    try:
        yield
        for array in jax.live_arrays():
            with suppress(Exception):  # which the test has met
                array.block_until_ready()
    finally:
        jax.config.update("jax_enable_x64", before)
