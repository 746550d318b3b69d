"""Numbers at the edges: NaN, infinities, logits as large as their dtype holds, losses that are 0 or past it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from batches import SEED, same, scores

from ctcbind import ctc_loss

F32, INF, NAN = np.float32, np.inf, np.nan


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_nan_stays_in_its_sample(engine, dtype):
    x = scores(6, 4, 4, dtype=dtype)
    targets, lengths = [[1, 2], [3, 3], [], [2]], [6, 5, 6, 4]
    clean = engine(x, targets, lengths)
    for place in [(0, 0), (3, 2), (4, 3)]:  # a label's class, an unused one, whatever
        dirty = x.copy()
        dirty[place[0], 1, place[1]] = NAN
        loss, grad, _ = engine(dirty, targets, lengths)
        assert np.isnan(loss[1])
        assert same(loss[[0, 2, 3]], clean.loss[[0, 2, 3]])
        assert same(grad[:, [0, 2, 3]], clean.grad[:, [0, 2, 3]])
        assert np.isnan(grad[:5, 1]).all()
        assert not grad[5:, 1].any()
        assert np.isnan(engine.loss(dirty, targets, lengths)[1])


@pytest.mark.parametrize("C", [4, 200])
@pytest.mark.parametrize("T", [6, 40])
def test_nan_beside_a_frame_without_any_probability(engine, T, C):
    """The one does not hide the other, whichever comes first."""
    for impossible, frame in [(1, 4), (4, 1), (1, T - 1), (T - 1, 1)]:
        x = scores(T, 2, C)
        x[impossible, 0] = -INF
        x[frame, 0, 3] = NAN
        loss, grad, _ = engine(x, [[1, 2], [2]])
        assert np.isnan(loss[0])
        assert np.isfinite(loss[1])
        assert np.isnan(grad[:, 0]).all()
        assert np.isnan(engine.loss(x, [[1, 2], [2]])[0])


def test_nan_in_an_empty_label(engine):
    x = scores(3, 2, 3)
    x[1, 0, 2] = NAN
    loss = engine.loss(x, [[], []])
    assert np.isnan(loss[0])
    assert np.isfinite(loss[1])


def test_an_infeasible_sample_is_inf_whatever_its_logits(engine):
    """No path exists before any logit is looked at: inf and zeros, never NaN."""
    for rubbish in (NAN, INF, -INF):
        x = scores(3, 2, 3)
        x[:, 0] = rubbish
        loss, grad, _ = engine(x, [[1, 1, 1], [2]])
        assert loss[0] == INF
        assert not grad[:, 0].any()


#: name: (logits (T, C), labels, exact loss, exact gradient), blank 0; in float32 unless it says otherwise
EXTREMES = {
    "certain path": ([[-INF, 0, -INF], [0, -INF, -INF]], [1], 0, np.zeros((2, 3))),
    "forbidden label": ([[0, -INF, 0], [0, -INF, 0]], [1], INF, np.zeros((2, 3))),
    "forbidden other": ([[0, 0, -INF]], [1], math.log(2), [[0.5, -0.5, 0]]),
    "+inf on the path": ([[0, INF, 0]], [1], 0, np.zeros((1, 3))),
    "+inf off the path": ([[0, 0, INF]], [1], INF, np.zeros((1, 3))),
    "two +inf share": ([[0, INF, INF]], [1], math.log(2), [[0, -0.5, 0.5]]),
    "+inf and -inf": ([[-INF, INF, INF]], [2], math.log(2), [[0, 0.5, -0.5]]),
    "a row of -inf": ([[0, 0, 0], [-INF, -INF, -INF]], [1], INF, np.zeros((2, 3))),
    "all -inf, empty label": ([[-INF, -INF, -INF]], [], INF, np.zeros((1, 3))),
    "1e10 beside 0": ([[1e10, 0, 0]], [1], 1e10, [[1, -1, 0]]),
    "1e10 twice": ([[1e10, 0, 0], [0, 1e10, 0]], [], 1e10, [[0, 0, 0], [-1, 1, 0]]),
    "1e30 beside 0": ([[0, 0, 1e30]], [1], 1e30, [[0, -1, 1]]),
    "-1e30 beside 0": ([[0, -1e30, 0]], [1], 1e30, [[0.5, -1, 0.5]]),
    "3e38 beside 0": ([[0, 3e38, 0]], [], 3e38, [[-1, 1, 0]]),
    "3e38 on the path": ([[0, 3e38, 0]], [1], 0, np.zeros((1, 3))),
    "all at 3e38": ([[3e38, 3e38, 3e38]], [1], math.log(3), [[1 / 3, -2 / 3, 1 / 3]]),
    "all at -3e38": ([[-3e38, -3e38, -3e38]], [1], math.log(3), [[1 / 3, -2 / 3, 1 / 3]]),
    "the better of two bad": ([[1e10, 0, 0], [1e10, 102400, 0]], [1], 1e10 - 102400, [[0, 0, 0], [1, -1, 0]]),
    "88 nats, where float32's exp ends": ([[88, 0, 0], [104, 0, 0]], [1, 2], 192, [[1, -1, 0], [1, 0, -1]]),
    "750 nats, where float64's exp ends": ([[0, -750, 0]], [1], 750 + math.log(2), [[0.5, -1, 0.5]]),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_logits_have_exact_values(engine, name, dtype):
    rows, labels, loss, grad = EXTREMES[name]
    x = np.array(rows, dtype=dtype)[:, None]
    beside = np.concatenate([scores(*x.shape, dtype=dtype), x], axis=1)
    result = engine.stated_refusal(lambda: engine(beside, [[], labels]), x=beside)
    if result is None:
        return
    eps = np.finfo(dtype).eps  # a few roundings of numbers that are exact, or of logs of small integers
    np.testing.assert_allclose(result.loss[1], loss, rtol=4 * eps, atol=0)
    np.testing.assert_allclose(result.grad[:, 1], grad, rtol=0, atol=4 * eps)
    assert np.isfinite(result.loss[0])
    assert np.isfinite(result.grad[:, 0]).all()
    np.testing.assert_allclose(engine.loss(beside, [[], labels])[1], loss, rtol=4 * eps, atol=0)


def test_extreme_logits_in_float16(engine):
    x = np.array([[[65504, -65504, 0]], [[-INF, 0, -INF]]], dtype=np.float16)
    result = engine.stated_refusal(lambda: engine(x, [[1]]), x=x)
    if result is not None:  # the blank, then 1
        assert list(result.loss) == [0]
        assert not result.grad.any()
    x = np.array([[[65504, -65504, 0]]], dtype=np.float16)
    result = engine.stated_refusal(lambda: engine(x, [[1]]), x=x)
    if result is not None:
        assert list(result.loss) == [131008]
        assert result.grad.tolist() == [[[1, -1, 0]]]


@pytest.mark.parametrize(("dtype", "big"), [("float32", 3e38), ("float64", 1.5e308)])
def test_a_loss_that_its_dtype_cannot_hold_is_inf(engine, dtype, big):
    """Twice the largest number: inf, without a warning, and nowhere NaN."""
    x = np.array([[[big, -big, 0]]], dtype=dtype)
    result = engine.stated_refusal(lambda: engine(x, [[1]]), x=x)
    if result is not None:
        assert list(result.loss) == [INF]
        assert not np.isnan(result.grad).any()


def test_a_sum_that_its_dtype_cannot_hold_is_inf():
    x = np.full((1, 2, 2), 3e38, dtype=np.float32)
    x[:, :, 1] = 0
    assert list(ctc_loss(x, [[1], [1]])) == [F32(3e38)] * 2
    assert ctc_loss(x, [[1], [1]], reduction="batch_mean") == F32(3e38)
    assert ctc_loss(x, [[1], [1]], reduction="sum") == INF


def test_numpys_error_state_does_not_matter(engine):
    """A caller may have set np.seterr(all="raise"); underflow is everyday work here."""
    x = scores(60, 2, 5, dtype=engine.dtype) * 300
    x[0, 0] = [0, -INF, 0, 0, 0]
    call = lambda: engine(x, [[1, 2], [3]])  # noqa: E731
    calm = engine.stated_refusal(call, x=x)
    with np.errstate(all="raise"):
        strict = engine.stated_refusal(call, x=x)
    if calm is not None:
        assert same(calm.grad, strict.grad)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_loss_is_never_below_zero(engine, dtype):
    """Confident networks: p rounds to 1 and beyond."""
    rng = np.random.default_rng([SEED, 9])
    for T, C in itertools.product([1, 2, 10, 100], [2, 3, 33]):
        path = rng.integers(1, C, size=T)
        path[1::2] = 0
        labels = path[0::2].tolist()
        for height in (3, 8, 14, 20, 40):
            x = rng.normal(size=(T, 1, C)) * 0.1
            x[np.arange(T), 0, path] += height
            x = x.astype(dtype)
            for loss in (engine(x, [labels]).loss, engine.loss(x, [labels])):
                assert loss[0] >= 0, f"seed {SEED}, T={T} C={C} height={height}"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_certain_loss_is_plus_zero(engine, dtype):
    """-0.0 is not below 0, but it prints as if it were. An exact engine has a trace of the other classes left."""
    x = np.zeros((2, 3, 4), dtype=dtype)
    x[[0, 1], 0, [1, 2]] = 100  # one path alone, as long as the input
    x[:, 1, 0] = 100
    certain, blanks, nothing = engine(x, [[1, 2], [], []], [2, 2, 0]).loss
    half = 2.0**-150  # of the least float32: as little as these are, each may be that far off, and the loss too
    trace = 2 * 3 * (math.exp(-100) + half) + half  # two frames, three other classes
    for loss in (certain, blanks, nothing):
        assert not np.signbit(loss)
        assert 0 <= loss <= trace
    assert nothing == 0


def test_rows_of_the_gradient_sum_to_zero(engine):
    for dtype in ("float32", engine.dtype):
        x = scores(40, 3, 7, dtype=dtype)
        _, grad, _ = engine(x, [[1, 2, 3, 3], [], [6] * 5], [40, 12, 30])
        # a row of y and one of occupancies, each rounded T times at most
        np.testing.assert_allclose(grad.sum(axis=2), 0, atol=40 * 12 * np.finfo(dtype).eps)
