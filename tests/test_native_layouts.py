"""However logits lie in memory, the native engine gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED, lay_out, same

import ctcbind

#: (T, N, C, L): every class has a column of a table; rows are summed where they stand; with more labels; a batch larger
#: than the cache; more labels for its classes; one sample, whose rows are shared by threads; and one in halves
SHAPES = [
    (37, 3, 28, 7), (48, 3, 330, 7), (177, 2, 335, 160), (300, 3, 2400, 9), (300, 3, 2400, 90), (67, 1, 1031, 7),
    (1800, 1, 400, 300),
]  # fmt: skip


def layouts(rng, x):
    """(T, N, C) with the classes not side by side, and all of it backwards."""
    yield "N, C, T", np.ascontiguousarray(x.transpose(1, 2, 0)).transpose(2, 0, 1)
    yield "C, T, N", np.ascontiguousarray(x.transpose(2, 0, 1)).transpose(1, 2, 0)
    yield "N, C, T of every other frame", np.repeat(x.transpose(1, 2, 0), 2, axis=2)[:, :, ::2].transpose(2, 0, 1)
    yield "N, C, T, time backwards", np.ascontiguousarray(x[::-1].transpose(1, 2, 0)).transpose(2, 0, 1)[::-1]
    for how in ("F", "strided", "negative"):
        yield how, lay_out(rng, x, how)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("infinite", [False, True], ids=["", "infinite"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_bits_in_every_layout(shape, infinite, dtype):
    T, N, C, L = shape
    rng = np.random.default_rng([SEED, *shape])
    x = (4 * rng.normal(size=(T, N, C))).astype(dtype)
    labels = [(rng.permutation(C - 2)[: L - n] + 1).tolist() for n in range(N)]
    lengths = [T - 5 * n for n in range(N)]
    if infinite:
        x[7, :, 0], x[9:, :, C - 1] = np.inf, -np.inf
    ctcbind.set_num_threads(2)
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, lengths, engine="native")
    assert np.isfinite(loss[:1]).all()
    for name, other in layouts(rng, x):
        assert np.array_equal(other, x), name
        assert same(ctcbind.ctc_loss(other, labels, lengths, engine="native"), loss), name
        again = ctcbind.ctc_loss_and_grad(other, labels, lengths, engine="native")
        assert same(again.loss, loss), name
        assert same(np.ascontiguousarray(again.grad), grad), name


def test_the_gradient_lies_as_the_logits_do():
    """So that what leads back to a convolution's (N, C, T), or to (N, T, C), has nothing to copy."""
    rng = np.random.default_rng([SEED, 7])
    labels = [[1, 2], [3]]
    for shape, axes in (((2, 40, 9), (2, 0, 1)), ((2, 9, 40), (1, 0, 2)), ((2, 400, 33), (2, 0, 1))):
        x = rng.normal(size=shape).astype(np.float32)
        for plan in (ctcbind.CTCLoss(engine="native"), ctcbind.CTCLoss(engine="native", reduction="label_mean")):
            with plan:
                for _ in range(3):
                    assert plan(x.transpose(axes), labels).grad.strides == x.transpose(axes).strides
    x = rng.normal(size=(2, 40, 9)).astype(np.float32)
    grad = ctcbind.ctc_loss_and_grad(x.transpose(0, 2, 1), labels, layout="NTC", engine="native").grad
    assert grad.shape == (2, 9, 40)
    assert grad.transpose(0, 2, 1).flags.c_contiguous
    for how in ("strided", "negative", "broadcast", "permuted", "read-only"):
        y = lay_out(np.random.default_rng(1), rng.normal(size=(9, 3, 40)).astype(np.float32), how)
        grad = ctcbind.ctc_loss_and_grad(y, [[1], [2], [3]], engine="native").grad
        assert grad.flags.c_contiguous, how
    one = rng.normal(size=(1, 40, 9)).astype(np.float32).transpose(2, 0, 1)
    assert ctcbind.ctc_loss_and_grad(one, [[1]], engine="native").grad.strides == one.strides
    part = rng.normal(size=(3, 11, 40)).astype(np.float32)[1:2, :9].transpose(2, 0, 1)
    assert ctcbind.ctc_loss_and_grad(part, [[1]], engine="native").grad.transpose(1, 2, 0).flags.c_contiguous
    gaps = rng.normal(size=(2, 40, 18)).astype(np.float32)[:, :, ::2].transpose(1, 0, 2)
    assert ctcbind.ctc_loss_and_grad(gaps, labels, engine="native").grad.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("C", [5, 28, 110, 200])
def test_every_number_of_frames(C, dtype):
    """A sample's last block may be of 1 to 16 rows: right, and the same bits whatever stands in the frames past it."""
    rng = np.random.default_rng([SEED, 8, C])
    for frames in range(1, 37):
        wide = (3 * rng.normal(size=(40, 3, C))).astype(dtype)
        wide[rng.integers(frames), 0, C - 1] = -np.inf
        wide[frames - 1, 1, C - 2] = rng.choice([60, -60, np.inf])
        labels = [rng.integers(1, C - 2, int(rng.integers(0, frames // 2 + 1))).tolist() for _ in range(3)]
        x, past = wide[:frames].copy(), wide
        past[frames:] = np.nan
        want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
        found = ctcbind.ctc_loss_and_grad(x, labels, engine="native")
        np.testing.assert_allclose(found.loss, want.loss, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.grad, want.grad, rtol=0, atol=2e-6 if dtype != "float16" else 5e-4)
        for logits in (past, np.ascontiguousarray(past.transpose(1, 2, 0)).transpose(2, 0, 1)):
            again = ctcbind.ctc_loss_and_grad(logits, labels, [frames] * 3, engine="native")
            assert same(again.loss, found.loss), frames
            assert same(np.ascontiguousarray(again.grad[:frames]), found.grad), frames
            assert not again.grad[frames:].any(), frames


def test_what_lies_otherwise_leaves_no_sizes_behind() -> None:
    x, labels = np.random.default_rng([SEED, 8]).normal(size=(8, 3, 5)), [[1, 2], [3], []]
    plan = ctcbind.CTCLoss(engine="native")
    plan._shortened = True  # which it has not
    want = plan(x, labels)
    for other in (x[:4, :, ::2], np.asfortranarray(x)):
        plan(other, [[1], [2], []])
        again = plan(x, labels)
        assert same(again.loss, want.loss)
        assert same(again.grad, want.grad)
