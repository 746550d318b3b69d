"""The one meaning: what every engine gives for the cases on which libraries differ."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from batches import SEED, random_case, same, scores

import ctcbind
from ctcbind import CTCLoss, ctc_loss, ctc_loss_and_grad

F32, INF, NAN = np.float32, np.inf, np.nan


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
    adding = 2 * np.finfo(np.float64).eps  # four losses: three additions here, and the one rounding of fsum
    for reduction, weight in weights.items():
        loss, grad, _ = engine(x, targets, lengths, reduction=reduction)
        alone = engine.loss(x, targets, lengths, reduction=reduction)
        assert loss.dtype == alone.dtype == dtype
        if reduction == "none":
            assert same(loss, each.loss)
        else:
            assert loss.shape == alone.shape == ()
            exact = math.fsum(each.loss.astype(np.float64) * weight)
            np.testing.assert_allclose(loss, exact, rtol=eps + adding)  # summed in float64, rounded once
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


class Column:
    """Of a table, as pandas has it: neither an array nor a sequence."""

    dtype, ndim = np.dtype(object), 1

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


class Row:
    """Labels as another library's array holds them."""

    ndim = 1

    def __init__(self, labels):
        self.row = labels

    def __array__(self, dtype=None, copy=None):
        return np.array(self.row, dtype=np.int64)


FORMS = {
    "tuples": (tuple(map(tuple, LABELS)), None),
    "arrays": ([np.array(row, dtype=np.int16) for row in LABELS], None),
    "ranges": ([[1, 2, 2], range(0), range(3, 4), (1, 1)], None),
    "rows of two dtypes": ([np.array([1, 2, 2], np.uint64), [], np.array([3], np.int8), [1, 1]], None),
    "an array of rows": (np.array([*LABELS, None], dtype=object)[:-1], None),
    "an array of another library's rows": (np.array([*map(Row, LABELS), None], dtype=object)[:-1], None),
    "a column of rows": (Column(LABELS), None),
    "lists and lengths": (LABELS, LENGTHS),
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
    "rows of NumPy integers without a type in common": (
        [[np.int8(1), np.uint64(2), np.int64(2)], [], [np.uint64(3)], [1, 1]],
        None,
    ),
    "flat of NumPy integers without a type in common": (
        [np.int8(FLAT[0]), *FLAT[1:].astype(np.uint64)],
        [np.uint64(3), np.int64(0), 1, np.int8(2)],
    ),
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
