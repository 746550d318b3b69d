"""Plans that have the short way, and batches that go it.

A plan goes the long way first; `warm` makes one that has the short way. What goes which way is seen by taking the long
one off.
"""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind

T, N, C = 12, 3, 7
#: More classes than a batch has that is computed at once, without the plan's lock and with the GIL.
MANY = 100
both_sizes = pytest.mark.parametrize("classes", [C, MANY])
LABELS = [[1, 2], [3], [4, 4, 5]]
PADDED = np.array([[1, 2, 6], [3, 6, 6], [4, 4, 5]])


class Long(Exception):
    """The long way was taken."""


def warm(**options):
    """A plan with the short way, and a workspace as large as these tests need."""
    plan = ctcbind.CTCLoss(**{"engine": "native", **options})
    for _ in range(2):
        plan(np.zeros((64, 64, 64)), [[1] * 20] * 64)
    assert plan._both is not None
    return plan


def short_only(plan):
    def long(*_):
        raise Long

    plan._run = plan._run_loss = long
    return plan


def x(dtype="float32", shape=(T, N, C), seed=0):
    return np.random.default_rng([SEED, seed]).normal(size=shape).astype(dtype)


def x_of(classes, dtype="float32", seed=0):
    return x(dtype, (T, N, classes), seed)


def same(got, want):
    for a, b in zip(got[:2], want[:2]):
        assert type(a) is type(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_array_equal(a, b)
    assert got[2:] == want[2:]


def warm_with(options):
    plan = ctcbind.CTCLoss(**options)
    for _ in range(2):
        plan(np.zeros((64, 64, 64)), [[]] * 64)
    return plan
