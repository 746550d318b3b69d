"""Probabilities in place of logits, and the non-deterministic algorithm: `CTCLoss(probabilities=, deterministic=)`.

On the fake libcudnn, labels on the host; tests/cuda/test_cudnn_device_modes.py has them on the device.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from batches import SEED, random_case, scores
from fake_device import PLACES, at, begin_again, case_of, to_host
from modes import of_probabilities, softmax, spoiled

import ctcbind
from ctcbind import CTCLoss
from ctcbind.bindings import cudnn
from ctcbind.engines import NAMES

pytest_plugins = ["fake_cudnn.fixture"]
pytestmark = pytest.mark.usefixtures("poison")

NONE, SOFTMAX = 0, 1
LAYOUTS = ("C", "F", "strided", "negative", "read-only", "permuted")


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


def run(place, x, *args, **options):
    with CTCLoss(engine="cudnn", **options) as plan:
        result = plan(at(place, x), *args)
        losses = to_host(plan.loss(at(place, x), *args))
    result = ctcbind.Result(to_host(result.loss), to_host(result.grad), result.engine)
    assert np.array_equal(losses, result.loss, equal_nan=True)
    return result


def of(fake, call):
    return [entry for entry in fake.log if entry["call"].startswith(call)]


@pytest.mark.parametrize("version", [92800, 8906])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_probabilities_mean_the_logits_behind_them(use_device, place, dtype, version):
    """Ragged, repeats, empty, infeasible, every blank, both layouts: against the reference on ln y."""
    use_device(version)
    for i in range(60):
        how = LAYOUTS[i % len(LAYOUTS)]
        case, expected = of_probabilities(random_case([SEED, 31, i], dtype=dtype, how=how, topology="ctc"))
        result = run(place, *case.args, probabilities=True, **case.options)
        assert result.grad.dtype == dtype
        case.check(result, dtype, expected)


def test_of_the_same_batch_in_float32_they_are_the_same(device, place):
    x = scores(9, 3, 5)
    labels, frames = [[1, 2, 2], [], [4]], [9, 7, 3]
    left = run(place, x, labels, frames)
    right = run(place, softmax(x), labels, frames, probabilities=True)
    np.testing.assert_allclose(right.loss, left.loss, rtol=1e-5)
    np.testing.assert_allclose(right.grad, left.grad, atol=1e-5)


def test_the_mode_reaches_the_descriptor_and_the_probabilities_the_call(device):
    for probabilities, norm in ((False, SOFTMAX), (True, NONE), (False, SOFTMAX)):
        x = at("device", softmax(scores(6, 2, 4)))
        begin_again(device)
        with CTCLoss(engine="cudnn", probabilities=probabilities) as plan:
            plan(x, [[1], [2]])
        assert {entry["normMode"] for entry in of(device, "cudnnSetCTCLossDescriptor_v9")} == {norm}
        (call,) = of(device, "cudnnCTCLoss")
        assert call["probs"] == x.data.ptr, "read where they lie"


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_algorithm_reaches_the_query_and_the_call(device, place, deterministic):
    case = case_of(scores(6, 2, 4), [[1, 3], [2]])
    result = run(place, *case.args, deterministic=deterministic)
    case.check(result, "float32", case.expected())
    for name in ("cudnnGetCTCLossWorkspaceSize", "cudnnCTCLoss"):
        assert [entry["algo"] for entry in of(device, name)] == [0 if deterministic else 1] * 2


def test_sizes_that_the_other_algorithm_declines_are_computed_by_the_first(device, place):
    device.fail("cudnnGetCTCLossWorkspaceSize", 3000)
    x, labels = scores(6, 2, 4), [[1, 3], [2]]
    with CTCLoss(engine="cudnn", deterministic=False) as plan:
        plan(at(place, x), labels)
    *declined, taken = [entry["algo"] for entry in of(device, "cudnnGetCTCLossWorkspaceSize")]
    assert (set(declined), taken) == ({1}, 0)  # the binding asks again for the reason
    assert [entry["algo"] for entry in of(device, "cudnnCTCLoss")] == [0]


def test_another_failure_of_the_query_is_told(device, place):
    device.fail("cudnnGetCTCLossWorkspaceSize", 2000)
    with CTCLoss(engine="cudnn", deterministic=False) as plan, pytest.raises(ctcbind.NativeError, match="2000"):
        plan(at(place, scores(6, 2, 4)), [[1, 3], [2]])
    assert not of(device, "cudnnCTCLoss")


@pytest.mark.parametrize("deterministic", [True, False])
def test_256_labels_are_refused_whatever_the_algorithm(device, deterministic):
    x, said = at("device", scores(300, 2, 3)), "sample 1 has 256 labels, and its limit is 255"
    with (
        CTCLoss(engine="cudnn", deterministic=deterministic) as plan,
        pytest.raises(ctcbind.EngineUnsupported, match=said),
    ):
        plan(x, [[1], [1, 2] * 128])
    assert device.calls == []


# --- what cannot be right ------------------------------------------------------------------------------------


def test_what_is_no_probability_is_named(device, place):
    y = softmax(scores(6, 3, 4))
    for change, said in (
        (lambda y: y.__setitem__((2, 1, 0), -0.25), r"sample 1 at frame 2 hold -0.25"),
        (lambda y: y.__setitem__((4, 2), 0.5), r"sample 2 at frame 4 sum to 2; .* 0.00035 in float32"),
        (lambda y: y.__setitem__((0, 0), 0), r"sample 0 at frame 0 sum to 0"),
        (lambda y: y.__setitem__((3, 1, 2), np.inf), r"sample 1 at frame 3 sum to inf"),
        (lambda y: np.log(y, out=y), r"sample 0 at frame 0 hold -.*are these logits\?"),
        (lambda y: y.__imul__(np.float32(1.0004)), r"sample 0 at frame 0 sum to 1\.0004"),
    ):
        wrong = y.copy()
        change(wrong)
        device.reset(92800)
        with pytest.raises(ctcbind.InvalidInput, match=said) as raised:
            run(place, wrong, [[1], [2], []], probabilities=True)
        assert raised.value.rule == "probabilities"
        assert not of(device, "cudnnCTCLoss"), "before any C code"
    slightly = run(place, y * np.float32(1.0003), [[1], [2], []], probabilities=True)
    assert np.isfinite(slightly.loss).all()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rounding_alone_is_never_refused(device, dtype):
    """Sums of many classes, each rounded: far within the half of the digits that is allowed."""
    for C, scale in itertools.product((2, 300, 20000), (0.1, 8.0)):
        y = softmax((scale * scores(1, 1, C)).astype(dtype))
        most = int(y.argmax())  # a class that is not 0, in whatever dtype
        result = run("device", y, [[most] if most else []], probabilities=True)
        assert result.loss[0] == pytest.approx(-np.log(float(y.max())), rel=1e-5, abs=1e-6)


def test_padded_time_and_samples_without_a_path_may_hold_anything(device, place):
    y = softmax(scores(6, 3, 4))
    labels, frames = [[1, 2], [3, 3, 3], []], [4, 4, 3]
    clean = run(place, y, labels, frames, probabilities=True)
    y[4:, 0] = y[:, 1] = y[3:, 2] = -7
    result = run(place, y, labels, frames, probabilities=True)
    assert np.array_equal(result.loss, clean.loss)
    assert np.array_equal(result.grad, clean.grad)


def test_nan_stays_in_its_sample(device, place):
    y = softmax(scores(6, 3, 4))
    y[2, 1, 0] = np.nan
    result = run(place, y, [[1], [2], [3]], probabilities=True)
    assert list(np.isnan(result.loss)) == [False, True, False]
    assert np.isnan(result.grad[:, 1]).all()
    assert not np.isnan(result.grad[:, [0, 2]]).any()


def test_a_probability_of_0_is_taken_where_no_path_needs_it(device, place):
    y = np.zeros((4, 2, 3), np.float32)
    y[np.arange(4), 0, [0, 1, 1, 0]] = 1
    y[:, 1] = [0.5, 0.5, 0]
    result = run(place, y, [[1], [1]], probabilities=True)
    exact = [0, -np.log(10 / 16)]  # the 10 of 16 paths of blank and 1 in which the 1s are one run
    np.testing.assert_allclose(result.loss, exact, atol=1e-6)
    assert not result.grad[:, 0].any()
    np.testing.assert_allclose(result.grad[0, 1], [0.5 - 6 / 10, 0.5 - 4 / 10, 0], atol=1e-6)
    for labels in ([[1], [1, 2]], [[2], [1]], [[1], [1, 2]]):
        with pytest.raises(ctcbind.EngineUnsupported, match="has a probability that cuDNN's float32 arithmetic loses"):
            run(place, y, labels, probabilities=True)
    with pytest.raises(ctcbind.EngineUnsupported, match="sample 0 has a probability"):
        run(place, y, [[], [1]], probabilities=True)  # y(blank) is 0 in a frame


# --- what cuDNN must not get away with -----------------------------------------------------------------------


@pytest.mark.parametrize("blank", [0, 2])
def test_a_gradient_of_the_activations_is_taken_for_one(device, place, monkeypatch, blank):
    """As the Developer Guide 7.5 promises it for probabilities."""
    x, labels = softmax(scores(6, 2, 4)), [[1, 3], [3]]
    right = run(place, x, labels, probabilities=True, blank=blank)
    y = np.concatenate([x[:, :, blank, None], np.delete(x, blank, axis=2)], axis=2)  # as cuDNN has them

    def spoil(grad):
        rows = grad.reshape(x.shape)
        rows[...] = y + y * np.minimum(rows, 0)

    monkeypatch.setattr(cudnn, "cudnnCTCLoss", spoiled(cudnn.cudnnCTCLoss, 8, spoil, x.size))
    result = run(place, x, labels, probabilities=True, blank=blank)
    assert np.array_equal(result.loss, right.loss)
    np.testing.assert_allclose(result.grad, right.grad, rtol=0, atol=3e-7)


@pytest.mark.parametrize("probabilities", [False, True])
def test_certain_classes_of_a_certain_sample(device, place, probabilities):
    """The library has 1 for each of them."""
    x = scores(5, 2, 4)
    x[range(5), 0, [1, 1, 0, 3, 0]] += 200
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1, 3], [1, 3]], engine="reference")
    result = run(place, softmax(x) if probabilities else x, [[1, 3], [1, 3]], probabilities=probabilities)
    np.testing.assert_allclose(result.loss, exact.loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.grad, exact.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("probabilities", [False, True])
def test_a_certain_class_of_another_path(device, place, probabilities):
    """Its gradient, of nearly 1, is right as it is."""
    x, labels = scores(5, 2, 4), [[1, 3], [1]]
    x[[1, 3], 0, 2] += 15
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    result = run(place, softmax(x) if probabilities else x, labels, probabilities=probabilities)
    np.testing.assert_allclose(result.loss, exact.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad, exact.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"deterministic": False}, {"probabilities": True}, {}])
@pytest.mark.parametrize("what", ["nan", "inf", "of the probabilities"])
def test_a_gradient_that_is_not_of_the_activations_is_refused(device, place, monkeypatch, what, options):
    """As cuDNN's other algorithm gives NaN (PyTorch 21680)."""
    x, labels = softmax(scores(6, 2, 4)), [[1, 3], [2]]
    right = run(place, x, labels, **options)
    y = x if options.get("probabilities") else softmax(x)

    def spoil(grad):
        rows = grad.reshape(x.shape)
        if what == "of the probabilities":
            rows[...] = (rows - y) / y
        else:
            rows[3, 1, 2] = float(what)

    monkeypatch.setattr(cudnn, "cudnnCTCLoss", spoiled(cudnn.cudnnCTCLoss, 8, spoil, x.size))
    with CTCLoss(engine="cudnn", **options) as plan:
        if options:
            with pytest.raises(
                ctcbind.EngineUnsupported, match=r"sample [01] has a gradient from cuDNN whose rows do not"
            ):
                plan(at(place, x), labels)
        else:
            plan(at(place, x), labels)  # the deterministic algorithm is not in doubt, and nothing more is read
        assert np.array_equal(to_host(plan.loss(at(place, x), labels)), right.loss), "the loss is as right as ever"


def test_contracts_say_which_modes_an_engine_has():
    contracts = {name: info.contract for name, info in ctcbind.engines().items()}
    assert [name for name in NAMES if contracts[name].other_algorithm] == ["cudnn"]
    assert [name for name in NAMES if "probabilities" in contracts[name].takes] == ["cudnn"]
    assert [name for name in NAMES if contracts[name].overwrites] == ["cuda"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cudnn"])
def test_other_engines_refuse_both(name):
    y = softmax(scores(5, 1, 3))
    for options, said in (
        ({"probabilities": True}, "it takes logits, not probabilities"),
        ({"deterministic": False}, "it has no algorithm but its deterministic one"),
    ):
        plan = CTCLoss(engine=name, **options)
        with plan, pytest.raises(ctcbind.EngineUnsupported, match=f"'{name}' cannot take this batch: {said}"):
            plan(y, [[1]])
    with CTCLoss(engine=name, probabilities=False, deterministic=True) as plan:
        if ctcbind.engines()[name].available and name != "cuda":
            assert np.isfinite(plan(y, [[1]]).loss).all()


def test_auto_takes_the_engine_that_can(device):
    y = softmax(scores(5, 1, 3))
    with CTCLoss(probabilities=True) as plan:
        assert plan(y, [[1]]).engine == plan(at("device", y), [[1]]).engine == "cudnn"
    with CTCLoss(deterministic=False) as plan:
        assert plan(y, [[1]]).engine == "cudnn"


def test_their_logarithms_say_the_same_to_other_engines():
    y = softmax(scores(7, 2, 4).astype(np.float64))
    left = ctcbind.ctc_loss_and_grad(np.log(y), [[1, 2], []], engine="native")
    right = ctcbind.ctc_loss_and_grad(np.log(y) + 3, [[1, 2], []], engine="reference")
    np.testing.assert_allclose(left.grad, right.grad, atol=1e-12)
