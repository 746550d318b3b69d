"""The one meaning: what every engine gives for the cases on which libraries differ."""

from __future__ import annotations

import copy
import doctest
import importlib
import inspect
import itertools
import math
import os
import pickle
import pkgutil
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest
from batches import SEED, random_case

import ctcbind
from ctcbind import CTCLoss, ctc_loss, ctc_loss_and_grad

F32, INF, NAN = np.float32, np.inf, np.nan


def scores(*shape, dtype=F32, key=0):
    return np.random.default_rng([SEED, key, *shape]).normal(size=shape).astype(dtype)


def same(a, b):
    """The same bits, NaN included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


# --- samples without a path, without labels, without time ---------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_infeasible_is_inf_and_its_gradient_zero(engine, dtype):
    x = scores(3, 4, 5, dtype=dtype)
    targets = [[1, 2, 3, 4], [1, 1, 2], [1, 1], [1, 2, 3]]
    loss, grad, _ = engine(x, targets, [3, 3, 3, 3])
    assert list(np.isinf(loss)) == [True, True, False, False]
    assert (loss[:2] > 0).all()
    assert not grad[:, :2].any()
    assert grad[:, 2:].any(axis=(0, 2)).all()
    assert list(np.isinf(engine.loss(x, targets))) == [True, True, False, False]


def test_infeasible_because_the_input_is_short(engine):
    x = scores(6, 2, 4)
    loss, grad, _ = engine(x, [[1, 2, 2], [1, 2, 2]], [3, 4])
    assert loss[0] == INF
    assert np.isfinite(loss[1])
    assert not grad[:, 0].any()


def test_zero_infinity(engine):
    x = scores(3, 3, 4)
    targets = [[1, 1, 1], [1], [2, 3, 1, 2]]
    plain, zeroed = engine(x, targets), engine(x, targets, zero_infinity=True)
    assert list(zeroed.loss) == [0, plain.loss[1], 0]
    assert same(zeroed.grad, plain.grad)
    assert np.isinf(plain.loss[[0, 2]]).all()
    for reduction in ("sum", "batch_mean", "label_mean"):
        assert engine.loss(x, targets, reduction=reduction) == INF
        assert 0 < engine.loss(x, targets, reduction=reduction, zero_infinity=True) < INF
    assert engine.loss(x, targets, reduction="sum", zero_infinity=True) == plain.loss[1]


def test_zero_infinity_leaves_nan(engine):
    x = scores(4, 2, 3)
    x[1, 0, 1] = NAN
    assert np.isnan(engine.loss(x, [[1], [1, 2]], zero_infinity=True)[0])


def test_a_batch_of_infeasible_samples_only(engine):
    loss, grad, _ = engine(scores(2, 3, 3), [[1, 1], [1, 2, 1], [2, 2]])
    assert (loss == INF).all()
    assert not grad.any()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_padded_time_is_ignored_and_its_gradient_zero(engine, dtype):
    """Whatever stands there, NaN and infinities included."""
    x = scores(9, 4, 4, dtype=dtype)
    targets, lengths = [[1, 2], [3], [], [1, 1]], [5, 2, 3, 9]
    clean = engine(x, targets, lengths)
    for rubbish in (NAN, INF, -INF, 60000.0):
        padded = x.copy()
        for n, length in enumerate(lengths):
            padded[length:, n] = rubbish
        loss, grad, _ = engine(padded, targets, lengths)
        assert same(loss, clean.loss)
        assert same(grad, clean.grad)
    for n, length in enumerate(lengths):
        assert not clean.grad[length:, n].any()
        cut = engine(x[:length, n : n + 1], [targets[n]])
        np.testing.assert_allclose(clean.loss[n], cut.loss[0], rtol=2**-20)
        np.testing.assert_allclose(clean.grad[:length, n], cut.grad[:, 0], rtol=2**-9, atol=1e-6)


@pytest.mark.parametrize("blank", [0, 2, -1])
def test_empty_label_is_the_all_blank_path(engine, blank):
    x = scores(7, 3, 4, dtype=engine.dtype)
    loss, grad, _ = engine(x, [[], [1], []], [7, 7, 4], blank=blank)
    log_y = x.astype(np.float64)
    log_y -= np.log(np.exp(log_y).sum(axis=2, keepdims=True))
    bound = np.finfo(engine.dtype).eps / 2 * 7 * 40  # 7 frames, a row of 4 within 10 of its maximum, a loss below 30
    np.testing.assert_allclose(loss[[0, 2]], [-log_y[:, 0, blank].sum(), -log_y[:4, 2, blank].sum()], rtol=bound)
    expected = np.exp(log_y)
    expected[:, :, blank] -= 1
    np.testing.assert_allclose(grad[:, 0], expected[:, 0], rtol=0, atol=bound)
    np.testing.assert_allclose(grad[:4, 2], expected[:4, 2], rtol=0, atol=bound)


def test_all_labels_empty(engine):
    x = scores(5, 2, 3)
    for targets, lengths in ([[[], []], None], [np.empty((2, 0), int), None], [np.empty(0, int), [0, 0]]):
        loss, grad, _ = engine(x, targets, None, lengths)
        assert (loss > 0).all()
        assert (grad[:, :, 0] < 0).all()
        assert (grad[:, :, 1:] > 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_no_time_at_all(engine, dtype):
    """An empty label is certain in no frames; anything else is impossible."""
    loss, grad, _ = engine(np.empty((0, 2, 3), dtype), [[], [1]])
    assert list(loss) == [0, INF]
    assert grad.shape == (0, 2, 3)
    assert engine(np.empty((2, 0, 3), dtype), [[], [1]], layout="NTC").grad.shape == (2, 0, 3)


def test_input_lengths_of_zero(engine):
    x = scores(4, 3, 3)
    x[:, :2] = NAN  # not one of their frames is looked at
    loss, grad, _ = engine(x, [[], [1], [2]], [0, 0, 4])
    assert list(loss[:2]) == [0, INF]
    assert not grad[:, :2].any()
    assert 0 < loss[2] < INF


def test_one_class_is_certain(engine):
    result = engine(scores(5, 2, 1), [[], []], [5, 3])
    assert list(result.loss) == [0, 0]
    assert not result.grad.any()


def test_blank_of_minus_one_is_the_last_class(engine):
    x = scores(6, 2, 5)
    a, b = engine(x, [[0, 1], [3]], blank=-1), engine(x, [[0, 1], [3]], blank=4)
    assert same(a.loss, b.loss)
    assert same(a.grad, b.grad)
    rolled = engine(np.roll(x, 1, axis=2), [[1, 2], [4]], blank=0)
    np.testing.assert_allclose(a.loss, rolled.loss, rtol=2**-20)
    np.testing.assert_allclose(a.grad, np.roll(rolled.grad, -1, axis=2), atol=2**-18)


@pytest.mark.parametrize("blank", [np.int8(1), np.uint64(1), np.int64(1)])
def test_blank_of_any_integer_type(engine, blank):
    x = scores(4, 1, 3)
    assert same(engine.loss(x, [[0, 2]], blank=blank), engine.loss(x, [[0, 2]], blank=1))


def test_topology_simple_does_not_merge_repeats(engine):
    """a b b c over four frames is one path in "simple", and no path in "ctc"."""
    x = scores(4, 1, 4, dtype=engine.dtype)
    call = lambda: engine(x, [[1, 2, 2, 3]], topology="simple")  # noqa: E731
    result = engine.stated_refusal(call, topology="simple", x=x)
    assert engine.loss(x, [[1, 2, 2, 3]])[0] == INF
    if result is not None:
        log_y = x[:, 0] - np.log(np.exp(x[:, 0]).sum(axis=1, keepdims=True))
        rel = 50 * float(np.finfo(engine.dtype).eps)
        assert result.loss[0] == pytest.approx(-log_y[range(4), [1, 2, 2, 3]].sum(), rel=rel)


def test_a_topology_that_an_engine_lacks_is_refused_by_name(engine):
    if "simple" in engine.contract.topologies:
        assert engine.loss(scores(3, 1, 3), [[1]], topology="simple") > 0
        return
    with pytest.raises(ctcbind.EngineUnsupported, match="topology 'simple'"):
        engine(scores(3, 1, 3), [[1]], topology="simple")


# --- reductions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_reductions(engine, dtype):
    x = scores(8, 4, 5, dtype=dtype)
    targets, lengths = [[1, 2, 3], [4], [], [2, 2]], [8, 6, 3, 7]
    each = engine(x, targets, lengths)
    L = np.array([3, 1, 1, 2])  # PyTorch counts an empty label as one: loss / max(L, 1), then the mean
    weights = {"none": np.ones(4), "sum": np.ones(4), "batch_mean": np.full(4, 1 / 4), "label_mean": 1 / (4 * L)}
    eps = np.finfo(dtype).eps
    for reduction, weight in weights.items():
        loss, grad, _ = engine(x, targets, lengths, reduction=reduction)
        alone = engine.loss(x, targets, lengths, reduction=reduction)
        assert loss.dtype == alone.dtype == dtype
        if reduction == "none":
            assert same(loss, each.loss)
        else:
            assert loss.shape == alone.shape == ()
            exact = (each.loss.astype(np.float64) * weight).sum()
            np.testing.assert_allclose(loss, exact, rtol=eps)  # summed in float64, rounded once
            np.testing.assert_allclose(alone, exact, rtol=4 * eps)  # losses alone may be found another way
        np.testing.assert_allclose(grad, each.grad * weight[:, None].astype(dtype), rtol=4 * eps, atol=4 * eps)


def test_label_mean_is_pytorchs_mean(engine):
    """The figures of torch.nn.CTCLoss(reduction="mean") by hand: uniform scores have a closed form."""
    x = np.zeros((10, 2, 6), dtype=engine.dtype)
    value = engine.loss(x, [[1, 2, 3, 4], [5]], reduction="label_mean")
    one = 10 * math.log(6) - math.log(math.comb(14, 8))
    two = 10 * math.log(6) - math.log(math.comb(11, 2))
    assert float(value) == pytest.approx((one / 4 + two / 1) / 2, rel=450 * float(np.finfo(engine.dtype).eps))


def test_a_reduction_of_infeasible_samples_has_no_nan(engine):
    x = scores(2, 2, 3)
    for reduction in ("sum", "batch_mean", "label_mean"):
        loss, grad, _ = engine(x, [[1, 1], [2]], reduction=reduction)
        assert loss == INF
        assert np.isfinite(grad).all()
        assert grad[:, 1].any()


@pytest.mark.parametrize(
    ("dtype", "sure", "total"),
    [
        (np.float32, [2.0**127, 2.0**126, 2.0**125], 2.0**127 + 2.0**126 + 2.0**125),
        (np.float32, [2.0**127, 2.0**127, 0.0], INF),
        (np.float32, [2.0**127, 2.0**127 * (1 - 2.0**-23), 2.0**102], np.finfo(F32).max),  # just rounds to a number
        (np.float32, [2.0**127, 2.0**127 * (1 - 2.0**-23), 2.0**103], INF),
        (np.float32, [2.0**127, NAN, 2.0**127], NAN),
        (np.float64, [2.0**1023, 2.0**1022, 0.0], 1.5 * 2.0**1023),
        (np.float64, [2.0**1023, 2.0**1023, 0.0], INF),
        (np.float64, [NAN, 1.0, 0.0], NAN),
    ],
)
def test_a_sum_of_losses_past_the_dtype_is_inf_without_a_word(dtype, sure, total):
    """One frame, sure of another class than the label by that much: the loss."""
    x = np.zeros((1, 3, 3), dtype)
    x[0, :, 2] = sure
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (CTCLoss(reduction="sum").loss, lambda *args: CTCLoss(reduction="sum")(*args).loss):
            loss = function(x, [[1]] * 3)
            assert loss.dtype == dtype
            np.testing.assert_equal(loss, dtype(total))


@pytest.mark.parametrize("call", [ctc_loss, ctc_loss_and_grad, lambda *_, reduction: CTCLoss(reduction=reduction)])
def test_a_bare_mean_is_refused_naming_the_two(call):
    with pytest.raises(ctcbind.InvalidInput, match=r'"batch_mean" is the mean.*"label_mean".*PyTorch') as caught:
        call(scores(3, 1, 3), [[1]], reduction="mean")
    assert caught.value.rule == "reduction"


# --- numbers at the edges -----------------------------------------------------------------------------------


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


# --- what comes back ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_are_of_the_logits_kind(engine, dtype, layout):
    shape = (6, 2, 4) if layout == "TNC" else (2, 6, 4)
    for x in (scores(*shape, dtype=dtype), np.asfortranarray(scores(*shape, dtype=dtype))):
        result = engine(x, [[1], [2, 3]], [6, 4], layout=layout)
        wide = np.float64 if dtype == "float64" else np.float32
        assert type(result.loss) is type(result.grad) is np.ndarray
        assert result.loss.dtype == wide
        assert result.loss.shape == (2,)
        assert result.grad.dtype == dtype
        assert result.grad.shape == shape
        assert result.grad.flags.c_contiguous
        assert result.grad.flags.writeable
        assert not np.isnan(result.grad).any(), "not every element was written"
        assert not np.isnan(result.loss).any(), "not every loss was written"
        total = engine(x, [[1], [2, 3]], layout=layout, reduction="sum").loss
        assert (total.dtype, total.shape) == (wide, ())


def test_both_layouts_agree(engine):
    x = scores(7, 3, 5)
    targets, lengths = [[1], [2, 2], []], [7, 5, 0]
    a = engine(x, targets, lengths)
    b = engine(np.ascontiguousarray(x.transpose(1, 0, 2)), targets, lengths, layout="NTC")
    np.testing.assert_allclose(a.loss, b.loss, rtol=2**-22)
    np.testing.assert_allclose(a.grad, b.grad.transpose(1, 0, 2), atol=2**-22)


def test_the_outputs_were_poisoned(engine, poison):
    """The NaN checks of this suite mean something: results lie in the arrays that began as NaN."""
    engine(scores(3, 1, 3), [[1]])
    # a device engine's losses are made by arithmetic on the device, which has no room for what it has not written
    assert set(poison) >= ({"grad", "losses"} if engine.contract.arrays != "device" else {"grad"})


def test_lists_and_subclasses_give_plain_arrays():
    class Mine(np.ndarray):
        pass

    nested = [[[0.1, 0.2, 0.3]], [[0.0, 1.0, 0.0]]]
    for x in (nested, tuple(map(tuple, nested)), np.array(nested).view(Mine)):
        result = ctc_loss_and_grad(x, [[1]])
        assert type(result.loss) is type(result.grad) is np.ndarray
        assert result.loss.dtype == np.float64
        assert same(result.loss, ctc_loss(np.array(nested), [[1]]))


def test_anything_that_numpy_can_read():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array([[[0.1, 0.2, 0.3]]])

    assert ctc_loss(Tensor(), [[1]])[0] == ctc_loss(np.array([[[0.1, 0.2, 0.3]]]), [[1]])[0]

    class Empty:
        def __array__(self, dtype=None, copy=None):
            return np.empty((3, 0, 2))

    with pytest.raises(ctcbind.InvalidInput, match="batch is empty"):
        ctc_loss(Empty(), [])


def test_inputs_are_not_modified_and_may_be_read_only(engine):
    rng = np.random.default_rng([SEED, 3])
    for i in range(20):
        dtype = None if engine.dtype == "float64" else engine.dtype
        case = random_case([SEED, i, 77], dtype=dtype, topology="ctc", size=(int(rng.integers(1, 9)), 3, 4))
        arrays = [a for a in case.args if isinstance(a, np.ndarray)]
        arrays += [row for row in case.args[1] if isinstance(row, np.ndarray)]
        before = [a.copy() for a in arrays]
        for array in arrays:
            array.flags.writeable = False
        assert engine.run(case) is not None
        engine.loss(*case.args, **case.options)
        engine.loss(*case.args, **case.options, reduction="label_mean", zero_infinity=True)
        for array, kept in zip(arrays, before):
            assert array.tobytes() == kept.tobytes(), case.name


def test_the_gradient_is_not_the_logits_memory(engine):
    x = scores(4, 2, 3)
    first = engine(x, [[1], [2]])
    copy = first.grad.copy(), first.loss.copy()
    engine(x * 2, [[2], [1]])
    assert not np.shares_memory(first.grad, x)
    assert same(first.grad, copy[0])
    assert same(first.loss, copy[1])


def test_result_has_three_fields():
    result = ctc_loss_and_grad(scores(3, 1, 3), [[1]])
    assert isinstance(result, ctcbind.Result)
    loss, grad, name = result
    assert result._fields == ("loss", "grad", "engine")
    assert loss is result.loss
    assert grad is result.grad
    assert name == result.engine == "native"


def test_loss_alone_is_the_loss_with_gradient(engine):
    for i in range(30):
        case = random_case([SEED, i, 5], topology="ctc", dtype=engine.dtype)
        result = engine.run(case)
        if result is not None:
            alone = engine.loss(*case.args, **case.options)
            for n, value in enumerate(alone):
                if np.isinf(value):
                    assert result.loss[n] == value
                else:
                    bound = 2 * case.loss_bound(n, value, np.finfo(engine.dtype).eps / 2)
                    assert abs(result.loss[n] - value) <= bound, case.name


# --- forms of targets ---------------------------------------------------------------------------------------

LABELS = [[1, 2, 2], [], [3], [1, 1]]
PADDED = np.array([[1, 2, 2], [-1, -1, -1], [3, -1, -1], [1, 1, -1]])
FLAT = np.array([1, 2, 2, 3, 1, 1])
LENGTHS = [3, 0, 1, 2]
FORMS = {
    "tuples": (tuple(map(tuple, LABELS)), None),
    "arrays": ([np.array(row, dtype=np.int16) for row in LABELS], None),
    "ranges": ([[1, 2, 2], range(0), range(3, 4), (1, 1)], None),
    "rows of two dtypes": ([np.array([1, 2, 2], np.uint64), [], np.array([3], np.int8), [1, 1]], None),
    "lists and lengths": (LABELS, LENGTHS),
    "longer lists and lengths": ([[1, 2, 2, 3], [1], [3, 0, 99], [1, 1, -5]], LENGTHS),
    "padded": (PADDED, None),
    "padded list": (PADDED.tolist(), LENGTHS),
    "padded and lengths": (np.where(PADDED < 0, 77, PADDED), np.array(LENGTHS, np.uint8)),
    "padded with anything negative": (np.where(PADDED < 0, -100, PADDED).astype(np.int16), None),
    "padded wider": (np.pad(PADDED, ((0, 0), (0, 2)), constant_values=-1), None),
    "padded, Fortran order": (np.asfortranarray(PADDED), None),
    "padded, every second column": (np.repeat(PADDED, 2, axis=1)[:, ::2], None),
    "flat": (FLAT, LENGTHS),
    "flat list": (FLAT.tolist(), tuple(LENGTHS)),
    "flat uint64": (FLAT.astype(np.uint64), np.array(LENGTHS, dtype=np.uint64)),
    "flat backwards in memory": (FLAT[::-1].copy()[::-1], LENGTHS),
    "flat, foreign byte order": (FLAT.astype(">i4"), np.array(LENGTHS, dtype=">i8")),
    "flat of NumPy integers": ([np.int8(label) for label in FLAT], LENGTHS),
    "flat, read-only": (np.broadcast_to(FLAT, (1, 6))[0], LENGTHS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_targets_means_the_same(form):
    x = scores(6, 4, 4)
    targets, lengths = FORMS[form]
    plain, other = ctc_loss_and_grad(x, LABELS), ctc_loss_and_grad(x, targets, None, lengths)
    assert np.isfinite(plain.loss).all()
    assert same(plain.loss, other.loss)
    assert same(plain.grad, other.grad)


# --- a loop -------------------------------------------------------------------------------------------------


def test_a_plan_for_sizes_that_grow_and_shrink(engine):
    if engine.contract.arrays == "device":
        pytest.skip("a plan of device arrays is tested beside its engine")
    rng = np.random.default_rng([SEED, 21])
    sizes = [(2, 1, 2), (9, 3, 5), (1, 1, 2), (40, 2, 9), (3, 8, 3), (40, 2, 9), (5, 1, 60), (2, 1, 2)]
    with CTCLoss(engine=engine.name) as plan:
        for T, N, C in sizes:
            for dtype in (np.float32, np.float64):
                x = rng.normal(size=(T, N, C)).astype(dtype)
                targets = [rng.integers(1, C, size=int(rng.integers(0, T // 2 + 1))) for _ in range(N)]
                kept, fresh = plan(x, targets), engine(x, targets)
                assert kept.engine == engine.name
                assert same(kept.loss, fresh.loss), f"seed {SEED}"
                assert same(kept.grad, fresh.grad), f"seed {SEED}"
                assert same(plan.loss(x, targets), engine.loss(x, targets)), f"seed {SEED}"


def test_a_plan_keeps_its_options():
    x = scores(2, 6, 4)
    options = {"blank": -1, "layout": "NTC", "reduction": "label_mean", "zero_infinity": True, "topology": "simple"}
    with CTCLoss(**options) as plan:
        a, b = plan(x, [[1, 1], [0] * 9]), ctc_loss_and_grad(x, [[1, 1], [0] * 9], **options)
        assert a.loss == plan.loss(x, [[1, 1], [0] * 9]) == b.loss
        assert same(a.grad, b.grad)


def test_every_option_is_shown_and_copied():
    others = {
        "engine": "cuda", "blank": 2, "layout": "NTC", "reduction": "sum", "zero_infinity": True, "topology": "simple",
        "graph_safe": True, "overwrite_logits": True, "probabilities": True, "deterministic": False,
    }  # fmt: skip
    assert {*others, "stream"} == set(inspect.signature(CTCLoss).parameters)
    for name, value in others.items():
        plan = CTCLoss(**{name: value})
        assert repr(plan) == repr(copy.copy(plan)) == f"CTCLoss({name}={value!r})"


def test_a_plan_shows_its_options_and_can_be_copied_and_pickled():
    """As part of a model that is copied, or of what a worker process is handed."""
    logits = np.random.default_rng(3).normal(size=(9, 2, 5))
    with ctcbind.CTCLoss(blank=-1, reduction="sum", layout="NTC", zero_infinity=True) as plan:
        want = plan(logits.transpose(1, 0, 2), [[1, 2], [3] * 9])
        assert repr(plan) == "CTCLoss(blank=-1, layout='NTC', reduction='sum', zero_infinity=True)"
        copies = [copy.copy(plan), copy.deepcopy([plan])[0], pickle.loads(pickle.dumps(plan))]
    assert repr(plan).endswith("), closed")
    for each in copies:  # the first is closed, and they are not
        assert repr(each) + ", closed" == repr(plan)
        again = each(logits.transpose(1, 0, 2), [[1, 2], [3] * 9])
        assert again.loss == want.loss
        assert (again.grad == want.grad).all()
    assert copy.copy(plan).closed
    with pytest.raises(TypeError, match="a stream belongs to its process"):
        pickle.dumps(ctcbind.CTCLoss(stream=1))
    assert repr(ctcbind.CTCLoss()) == "CTCLoss()"


def test_a_plan_survives_a_refused_batch():
    x = scores(4, 1, 3)
    with CTCLoss() as plan:
        before = plan(x, [[1]])
        with pytest.raises(ctcbind.InvalidInput):
            plan(x, [[7]])
        assert same(plan(x, [[1]]).grad, before.grad)


def test_closing():
    plan = CTCLoss()
    assert plan.closed is False
    with plan as same_plan:
        assert same_plan is plan
        plan(scores(3, 1, 3), [[1]])
    assert plan.closed is True
    plan.close()
    plan.close()
    for use in (lambda: plan(scores(3, 1, 3), [[1]]), lambda: plan.loss(scores(3, 1, 3), [[1]]), plan.__enter__):
        with pytest.raises(ctcbind.ClosedError, match="was closed"):
            use()
    assert issubclass(ctcbind.ClosedError, RuntimeError)
    never_used = CTCLoss()
    never_used.close()
    assert never_used.closed


def test_a_plan_is_closed_when_its_block_raises():
    plan = CTCLoss()
    with pytest.raises(ZeroDivisionError), plan:
        plan(scores(3, 1, 3), [[1 // 0]])
    assert plan.closed


def test_one_plan_from_several_threads(engine):
    """The same bits as alone, whoever else calls; and each thread has its own results."""
    if engine.contract.arrays == "device":
        pytest.skip("a plan of device arrays is tested beside its engine")
    work = []
    for i in range(8):
        x = scores(30 + i, 3, 5 + i, key=i)
        targets = [[1, 2, 3], [4] * (i + 1), []]
        work.append((x, targets, engine(x, targets)))
    failures = []
    start = threading.Barrier(8)

    def call(plan, x, targets, alone):
        start.wait()
        for _ in range(5):
            got = plan(x, targets)
            if not (same(got.loss, alone.loss) and same(got.grad, alone.grad)):
                failures.append(x.shape)

    for shared in (True, False):
        with CTCLoss(engine=engine.name) as plan:
            plans = [plan if shared else CTCLoss(engine=engine.name) for _ in work]
            threads = [threading.Thread(target=call, args=(p, *each)) for p, each in zip(plans, work)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_closing_while_another_thread_calls():
    """The call that is under way finishes; the next raises ClosedError; nothing is freed under anyone's feet."""
    x, targets = scores(400, 4, 20), [[1, 2, 3] * 20] * 4
    for _ in range(5):
        plan, outcome = CTCLoss(), []
        alone = plan(x, targets)
        started = threading.Event()

        def loop(plan=plan, outcome=outcome, started=started, alone=alone):
            try:
                while True:
                    started.set()
                    outcome.append(same(plan(x, targets).grad, alone.grad))
            except ctcbind.ClosedError as error:
                outcome.append(str(error))

        thread = threading.Thread(target=loop)
        thread.start()
        started.wait(60)
        plan.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "was closed" in outcome.pop()
        assert all(each is True for each in outcome)


SCRIPT_AFTER_FORK = """
    import os, sys, threading
    import numpy as np, ctcbind
    ctcbind.set_num_threads(4)
    x = np.random.default_rng(1).normal(size=(60, 16, 12)).astype(np.float32)
    targets = [[1, 2, 3, 3]] * 16
    plan = ctcbind.CTCLoss()
    parent = plan(x, targets)
    for depth in range(2):  # a child, and a child of the child
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            again = plan(x, targets)  # and the parent is as well as before
            assert again.grad.tobytes() == parent.grad.tobytes()
            print("ok" if depth == 0 else "child ok", flush=True)
            os._exit(os.waitstatus_to_exitcode(status))
        child, new = plan(x, targets), ctcbind.ctc_loss_and_grad(x, targets)
        assert child.grad.tobytes() == new.grad.tobytes() == parent.grad.tobytes()
        assert child.loss.tobytes() == parent.loss.tobytes()
    plan.close()
    print("grandchild ok", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_fork(tmp_path):
    """A forked child computes with the plan it inherited and with a new one; no thread it lacks is waited for."""
    script = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(SCRIPT_AFTER_FORK)]
    # in a folder of its own: -c looks for ctcbind in the working folder first
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["grandchild ok", "child ok", "ok", ""]


# --- the same bits ------------------------------------------------------------------------------------------


def test_the_same_bits_fifty_times(engine):
    if not engine.contract.deterministic:
        pytest.skip(f"the contract of {engine.name} does not promise it")
    x = scores(40, 9, 11)
    targets = [[1 + (i + n) % 10 for i in range(n)] for n in range(9)]
    first = engine(x, targets, [40 - n for n in range(9)])
    for _ in range(50):
        again = engine(x, targets, [40 - n for n in range(9)])
        assert same(again.loss, first.loss)
        assert same(again.grad, first.grad)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_same_bits_for_any_number_of_threads(dtype):
    x = scores(50, 67, 30, dtype=dtype)
    targets = [[1 + (i * 7 + n) % 29 for i in range(n % 25)] for n in range(67)]
    lengths = [50 - n % 30 for n in range(67)]
    seen = set()
    for threads in (1, 2, 3, 4, 1, None):
        ctcbind.set_num_threads(threads)
        for _ in range(5):
            loss, grad, _ = ctc_loss_and_grad(x, targets, lengths, engine="native")
            seen.add((loss.tobytes(), grad.tobytes(), ctc_loss(x, targets, lengths, engine="native").tobytes()))
    assert len(seen) == 1


def test_a_sample_has_the_same_bits_in_any_batch():
    """What stands beside it in the batch is of no consequence to a sample."""
    x = scores(20, 6, 9)
    targets = [[1, 2], [], [3, 3, 3], [8], [1, 2, 3, 4, 5, 6], [7]]
    whole = ctc_loss_and_grad(x, targets, engine="native")
    for n in range(6):
        alone = ctc_loss_and_grad(x[:, n : n + 1].copy(), [targets[n]], engine="native")
        assert same(alone.loss[0], whole.loss[n])
        assert same(alone.grad[:, 0].copy(), whole.grad[:, n].copy())


def test_threads_default_and_bounds(monkeypatch):
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    monkeypatch.delenv("CTCBIND_NUM_THREADS", raising=False)
    assert ctcbind.get_num_threads() == available
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "3")
    assert ctcbind.get_num_threads() == 3
    ctcbind.set_num_threads(2)
    assert ctcbind.get_num_threads() == 2
    ctcbind.set_num_threads(None)
    assert ctcbind.get_num_threads() == 3
    for text in ("0", "-1", "many", "1.5"):
        monkeypatch.setenv("CTCBIND_NUM_THREADS", text)
        with pytest.raises(ctcbind.InvalidInput, match="CTCBIND_NUM_THREADS"):
            ctcbind.get_num_threads()
    monkeypatch.delenv("CTCBIND_NUM_THREADS")
    for wrong in (0, -1, "many", 1.5, NAN, INF, [2], 2**31, 2**64):
        with pytest.raises(ctcbind.InvalidInput, match="an integer from 1") as caught:
            ctcbind.set_num_threads(wrong)
        assert caught.value.rule == "threads"
        assert ctcbind.get_num_threads() == available


# --- the engines as data ------------------------------------------------------------------------------------


def test_engines_lists_every_engine():
    listed = ctcbind.engines()
    assert {"native", "reference", "warpctc", "cudnn"} <= set(listed)
    for name, each in listed.items():
        assert each.name == name
        assert each.available == (each.reason is None)
        assert (each.version is None) == (not each.available)
        assert isinstance(each.contract, ctcbind.Contract)
        if not each.available:
            with pytest.raises(ctcbind.EngineUnavailable):
                ctc_loss(scores(3, 1, 3), [[1]], engine=name)
    assert listed["native"].available
    assert listed["reference"].available
    assert listed["native"].version == listed["reference"].version == ctcbind.__version__


def test_auto_is_native_for_numpy():
    assert ctc_loss_and_grad(scores(3, 1, 3), [[1]]).engine == "native"
    assert ctc_loss_and_grad(scores(3, 1, 3), [[1]], topology="simple").engine == "native"


# --- what the docstrings say --------------------------------------------------------------------------------


def modules():
    names = ["ctcbind", *(m.name for m in pkgutil.walk_packages(ctcbind.__path__, "ctcbind."))]
    return [name for name in names if not name.endswith("__main__") and ".bindings._" not in name]


@pytest.mark.parametrize("name", modules())
def test_examples_of_the_docstrings(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if error.name and error.name.split(".")[0] in {"cupy", "torch", "jax", "matplotlib"}:
            pytest.skip(f"needs {error.name}")
        raise
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_the_two_faces_have_an_example():
    for documented in (ctc_loss, ctc_loss_and_grad, CTCLoss):
        assert doctest.DocTestFinder(recurse=False).find(documented)[0].examples
