"""Rows of up to 32 classes on a device: a lane has a class, and a warp takes several frames of a sample in turn.

How many it takes goes by the size of the batch, and only sizes that no other test here has make it the most: either
batches are large, or a warp takes as many of small ones too.
"""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED, random_case, same, scores
from cudnn_lab import dry

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda import layout as layouts

pytestmark = pytest.mark.gpu

#: Frames, some of them no multiple of eight, and classes, most of which leave lanes without one.
SIZES = [(1, 1), (7, 2), (8, 31), (9, 32), (67, 32), (90, 5), (131, 28)]


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture
def stretches(monkeypatch):
    """Called, it has a warp take eight frames, however few there are."""

    def begin():
        monkeypatch.setattr(layouts, "WARPS", 1)
        layouts.plan_layout.cache_clear()

    yield begin
    layouts.plan_layout.cache_clear()


def call(cupy, logits, *args, **options):
    """What the engine gives for arrays on the device, on the host."""
    loss, grad, name = ctcbind.ctc_loss_and_grad(logits, *args, engine="cuda", **options)
    return ctcbind.Result(cupy.asnumpy(loss), cupy.asnumpy(grad), name)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_few_classes(cupy, stretches, dtype):
    """Of both topologies and layouts, ragged; and with the gradient in the place of the logits, the same bits."""
    if dtype == "bfloat16" and int(cupy.__version__.partition(".")[0]) < 14:
        pytest.skip("bfloat16 arrays come from CuPy 14 on")
    stretches()
    for number, (T, C) in enumerate(SIZES if dry() else SIZES * 5):
        case = random_case([SEED, 84, number], dtype=dtype, size=(T, 5, C), how="C")
        logits = cupy.ascontiguousarray(cupy.asarray(case.logits))
        apart = call(cupy, logits, *case.args[1:], **case.options)
        case.check(apart, dtype, case.expected())
        with CTCLoss(engine="cuda", overwrite_logits=True, **case.options) as plan:
            over = plan(logits, *case.args[1:])
        assert over.grad.data.ptr == logits.data.ptr
        assert same(cupy.asnumpy(logits), apart.grad)
        assert same(cupy.asnumpy(over.loss), apart.loss)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [30.0, 1e6])
def test_few_classes_of_sharp_logits(cupy, stretches, dtype, scale):
    """At 1e6 the binades of 300 frames are more than an int counts, and the gradient is made of logarithms. NaN stays
    in its sample."""
    stretches()
    x = (scores(300, 4, 6, dtype=np.float64, key=85) * scale).astype(dtype)
    labels, frames = [[1, 2, 2, 5, 4] * 8, [3] * 20, [1], [2, 1] * 30], [300, 300, 300, 171]
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, engine="reference")
    x[77, 2, 5], x[171:, 3] = np.nan, np.nan
    found = call(cupy, cupy.asarray(x), labels, frames)
    eps = np.finfo(dtype).eps
    sound = [0, 1, 3]
    # the reference rounds logarithms as large as the loss, 300 times; this engine x - high, exactly, and mantissas
    np.testing.assert_allclose(found.loss[sound], exact.loss[sound], rtol=8 * eps + 2.0**-52 * np.sqrt(300))
    own = 2.0**-53 * float(exact.loss.max()) * 300
    np.testing.assert_allclose(found.grad[:, sound], exact.grad[:, sound], rtol=0, atol=300 * eps + own)
    assert np.isnan(found.loss[2])
    assert np.isnan(found.grad[:, 2]).all()


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize(("T", "N", "C", "L", "stretch"), [(517, 64, 32, 100, 3), (150, 128, 28, 40, 2)])
def test_few_classes_in_many_rows(cupy, stretches, layout, T, N, C, L, stretch):
    """So many that all warps of a device are at work at once; with more labels than lanes; each time the same bits."""
    if dry():
        T, N, L, stretch = T // 2, 5, L // 2, 3
        stretches()
    assert layouts.plan_layout(T, N, C, L, 4, True).stretch == stretch
    rng = np.random.default_rng([SEED, 86, T])
    rows = [rng.integers(1, C, size=length) for length in (L, L, 0, *rng.integers(0, L + 1, size=N - 3))]
    frames = [T, 0, T, *(int(each) for each in rng.integers(2 * L, T + 1, size=N - 3))]
    x = scores(T, N, C, key=87)
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), rows, frames)
    there = cupy.asarray(x if layout == "TNC" else np.ascontiguousarray(x.transpose(1, 0, 2)))
    first = call(cupy, there, rows, frames, layout=layout)
    np.testing.assert_allclose(first.loss, exact.loss, rtol=1e-6)
    grad = first.grad if layout == "TNC" else first.grad.transpose(1, 0, 2)
    assert np.abs(grad - exact.grad).max() < 1e-5
    for _ in range(2 if dry() else 50):
        again = call(cupy, there, rows, frames, layout=layout)
        assert same(again.loss, first.loss)
        assert same(again.grad, first.grad)
