"""Networks that prefer the blank, as all do early in training. Runs of rows are long there: a blank keeps what it has,
and labels live on what blanks give them. Not where paths have not come yet, and not past rows that hardly have it."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from test_native_rare import compare

KINDS = ["even", "rows without", "classes without", "masked", "right", "two minds"]


def held(rng, labels, T):
    """The label of each of T frames, in an alignment without blanks."""
    starts = np.sort(rng.choice(np.arange(1, T), len(labels) - 1, replace=False))
    return labels[np.searchsorted(starts, np.arange(T), side="right")]


def prefers_blank(rng, dtype, kind, L, C):
    T = int(L * rng.uniform(1.1, 5)) + int(rng.integers(0, 40))
    x = rng.normal(size=(T, 2, C)) * rng.choice([0.1, 1, 3, 8])
    x[..., 0] += rng.choice([5, 10, 25, 60, 90, 200])
    labels = rng.integers(1, C, (2, L))
    some, by = rng.random((T, 2)) < rng.choice([0.02, 0.1, 0.5]), rng.choice([5, 20, 80, 300, 2000])
    match kind:
        case "rows without":
            x[some, 0] -= by
        case "classes without":
            x[rng.random(x.shape) < 0.05] -= by
        case "masked":
            x[rng.random(x.shape) < 0.01] = -np.inf
            x[some & (rng.random((T, 2)) < 0.1), 0] = -np.inf
        case "right":
            for n in range(2):
                x[np.sort(rng.choice(T, L, replace=False)), n, labels[n]] += by
        case "two minds":  # frames up to one say that labels came early, and all after it that they come late
            turn = int(T * rng.uniform(0.2, 0.8))
            for n in range(2):
                early, late = held(rng, labels[n], T), held(rng, labels[n], T)
                x[np.arange(turn), n, early[:turn]] += rng.choice([10, 40, 120, 300])
                x[np.arange(turn, T), n, late[turn:]] += rng.choice([10, 40, 120, 300])
    return x.astype(dtype), labels, rng.integers(T * 3 // 4, T + 1, 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_labels(kind, topology, dtype):
    for k in range(30):
        rng = np.random.default_rng([SEED, k, KINDS.index(kind), len(topology)])
        compare(*prefers_blank(rng, dtype, kind, int(rng.integers(1, 70)), int(rng.choice([3, 11, 28, 300]))), topology)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_labels(kind, dtype):
    """States no longer share one exponent."""
    for k in range(2):
        rng = np.random.default_rng([SEED, k, KINDS.index(kind)])
        compare(*prefers_blank(rng, dtype, kind, int(rng.integers(100, 300)), 32))
