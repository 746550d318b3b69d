"""Rows of many classes in the native engine: the largest logit wherever it stands, alone or among its equals, and sizes
on both sides of those at which sums are parted in another way."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind

#: more than have a column of a table each; below, at and above pairs of vectors, parts, and what so many parts hold, on
#: vectors of 1 to 16 lanes
CLASSES = (321, 383, 384, 385, 500, 512, 640, 1023, 1025, 2048, 5000, 7169, 16384, 16385, 32800, 65536, 65553, 131100)


def judge(x, label):
    """Losses and gradients of two frames, the first of which is the label and the second the same or the blank."""
    rows = x.astype(np.float64)
    top = rows.max(1, keepdims=True)
    soft = np.exp(rows - top)
    soft /= soft.sum(1, keepdims=True)
    logs = np.log(soft)
    paths = np.array([[label, label], [label, 0], [0, label]])
    each = logs[0, paths[:, 0]] + logs[1, paths[:, 1]]
    loss = -np.logaddexp.reduce(each)
    shares = np.exp(each + loss)
    for path, share in zip(paths, shares, strict=True):
        soft[[0, 1], path] -= share
    return loss, soft


def check(x, label):
    loss, grad = judge(x, label)
    found = ctcbind.ctc_loss_and_grad(x[:, None], [[label]], engine="native")
    alone = ctcbind.ctc_loss(x[:, None], [[label]], engine="native")
    np.testing.assert_allclose(found.loss, [loss], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.grad[:, 0], grad, rtol=0, atol=2e-6)
    assert alone.tobytes() == found.loss.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("C", CLASSES)
def test_the_largest_logit_anywhere(C, dtype):
    """Far above the others it is neither counted twice nor left out; its equals count once each, wherever they are."""
    rng = np.random.default_rng([SEED, C])
    edges = {0, 1, C - 1, C - 2, C // 2, *(k for k in (15, 16, 127, 128, 255, 256, 511, 512, 16384) if k < C)}
    for at in [*sorted(edges), *rng.integers(0, C, 4)]:
        x = rng.normal(size=(2, C)).astype(dtype)
        x[:, at] = rng.choice([5 + rng.uniform(0, 12), 300])
        check(x, int(rng.integers(1, C)))
        check(x, max(int(at), 1))
    for equals in (2, 3, 40, C // 3, C):
        x = rng.normal(size=(2, C)).astype(dtype)
        for row in x:
            row[rng.permutation(C)[:equals]] = row.max() + rng.choice([0, 1, 9])
        check(x, int(rng.integers(1, C)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("C", CLASSES)
def test_numbers_that_are_none(C, dtype):
    """Classes at -inf have no share, those at +inf all of it; a NaN is found wherever it stands."""
    rng = np.random.default_rng([SEED, C, 1])
    for count in (1, C // 2, C - 1):
        x = rng.normal(size=(2, 1, C)).astype(dtype)
        out = rng.permutation(C - 1)[:count] + 1
        x[:, :, out] = -np.inf
        left = np.setdiff1d(np.arange(1, C), out)
        if not left.size:
            assert ctcbind.ctc_loss(x, [[1]], engine="native") == np.inf
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            loss, grad = judge(x[:, 0], left[0])
        found = ctcbind.ctc_loss_and_grad(x, [[left[0]]], engine="native")
        np.testing.assert_allclose(found.loss, [loss], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.grad[:, 0], grad, rtol=0, atol=2e-6)
        assert not found.grad[:, 0, out].any()
    for at in (0, C - 1, *rng.integers(0, C, 3)):
        x = rng.normal(size=(2, 1, C)).astype(dtype)
        x[1, 0, at] = np.nan
        assert np.isnan(ctcbind.ctc_loss_and_grad(x, [[1]], engine="native").loss).all()
    x = rng.normal(size=(2, 1, C)).astype(dtype)
    x[0, 0, rng.permutation(C)[:3]] = np.inf
    x[0, 0, 1] = np.inf
    infinite = int(np.count_nonzero(x[0] == np.inf))
    found = ctcbind.ctc_loss_and_grad(x, [[1]], engine="native")
    second = np.exp(x[1, 0].astype(np.float64))
    second /= second.sum()
    first_blank = x[0, 0, 0] == np.inf
    total = (second[0] + second[1] + (second[1] if first_blank else 0)) / infinite
    np.testing.assert_allclose(found.loss, [-np.log(total)], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("C", [30000, 3_000_000])
def test_terms_alike_do_not_round_one_way(C):
    """One in each part of a row is the largest, all others are equal, so that the same sum is added again and again."""
    for below in np.float32([0.3, 1.1, 2.7, 7.3, 11.9]):
        x = np.full((2, C), -below, np.float32)
        x[:, ::128] = 0
        check(x, 5)
