"""Calls on CuPy arrays that are like one before, and what a plan that knows of none makes of them."""

from __future__ import annotations

import numpy as np
from batches import SEED

from ctcbind import CTCLoss

OPTIONS = [
    {},
    {"reduction": "label_mean", "zero_infinity": True},
    {"reduction": "sum", "layout": "NTC"},
    {"zero_infinity": True, "blank": -1, "topology": "simple"},
]


def arrays(
    cupy, key, T=9, N=3, C=5, L=3, *, dtype="float32", wide="int32", flat=False, lengths=True, frames=True, ntc=False
):
    rng = np.random.default_rng([SEED, 120, key])
    x = rng.normal(size=(N, T, C) if ntc else (T, N, C)).astype(dtype)
    labels = rng.integers(1, C - 1, N * L if flat else (N, L)).astype(wide)
    given = rng.integers(0, T + 1, N).astype(wide) if frames else None
    counts = None if not (lengths or flat) else np.full(N, L, wide) if flat else rng.integers(0, L + 1, N).astype(wide)
    return [None if each is None else cupy.asarray(each) for each in (x, labels, given, counts)]


def same(cupy, result, expected):
    for one, other in zip(result, expected):
        if isinstance(one, str):
            assert one == other
            continue
        assert (type(one), one.shape, one.dtype, one.strides) == (type(other), other.shape, other.dtype, other.strides)
        assert cupy.asnumpy(one).tobytes() == cupy.asnumpy(other).tobytes()


def anew(plan, given):
    """By a plan that knows of no call before."""
    with CTCLoss(**plan._options()) as other:
        return other(*given), other.loss(*given)
