"""`CTCLoss(probabilities=, deterministic=)` of the cudnn engine with labels on the device: what the kernels around
cudnnCTCLoss_v8 do then. (tests/test_engine_cudnn_modes.py has labels on the host.)"""

from __future__ import annotations

import fake_cupy
import numpy as np
import pytest
from batches import SEED, random_case, scores
from device_batches import here
from modes import of_probabilities, softmax, spoiled

import ctcbind
from ctcbind import CTCLoss
from ctcbind.bindings import cudnn
from ctcbind.cuda.kernels import part
from ctcbind.engines import cudnn_modes

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")

NONE, SOFTMAX = 0, 1


def there(value):
    return fake_cupy.ndarray(np.ascontiguousarray(value))


def padded(labels):
    rows = np.full((len(labels), max(map(len, labels), default=0)), -1, dtype=np.int32)
    for n, row in enumerate(labels):
        rows[n, : len(row)] = row
    return there(rows)


def of(fake, call):
    return [entry for entry in fake.log if entry["call"].startswith(call)]


def run(x, labels, frames=None, **options):
    """(losses, gradient) on the host; the losses alone are the same."""
    arrays = there(x), padded(labels), None if frames is None else there(np.array(frames, dtype=np.int32))
    with CTCLoss(engine="cudnn", **options) as plan:
        result = plan(*arrays)
        assert np.array_equal(here(plan.loss(*arrays)), here(result.loss), equal_nan=True)
    return here(result.loss), here(result.grad)


def test_the_numbers_are_the_engines():
    for name in ("ROWS_SUM_TO (Real)", "CERTAIN (Real)", "SURE_LOSS "):
        assert f"#define {name}{getattr(cudnn_modes, name.split()[0])}" in part("around")
    (line,) = [line for line in part("around").splitlines() if line.startswith("#define OFF ")]
    told = [float(each.split()[0].rstrip(")")) for each in line.replace("?", ":").split(":")[1::2]]
    told.append(float(line.rpartition(":")[2].rstrip(") ")))
    float32, _, float16, bfloat16 = told
    for dtype, value in (("float32", float32), ("float16", float16), ("bfloat16", bfloat16)):
        assert value == pytest.approx(cudnn_modes.OFF[dtype], rel=1e-6)


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_probabilities_mean_the_logits_behind_them(device, dtype, graph_safe):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes", reason="bfloat16 arrays come from ml_dtypes")
    for i in range(30):
        case, expected = of_probabilities(random_case([SEED, 61, i], dtype=dtype, how="C", topology="ctc"))
        arrays = there(case.logits), padded(case.labels), there(np.array(case.frames, dtype=np.int32))
        with CTCLoss(engine="cudnn", graph_safe=graph_safe, probabilities=True, **case.options) as plan:
            result = plan(*arrays)
        case.check(ctcbind.Result(here(result.loss), here(result.grad), ""), dtype, expected)
    assert {entry["normMode"] for entry in of(device, "cudnnSetCTCLossDescriptor_v9")} == {NONE}
    assert not [entry for entry in device.log if entry["call"] == "cudnnCTCLoss"]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("probabilities", [True, False])
def test_mode_algorithm_and_pointers_reach_the_call(device, probabilities, deterministic):
    x = there(softmax(scores(6, 2, 4)))
    with CTCLoss(engine="cudnn", probabilities=probabilities, deterministic=deterministic) as plan:
        plan(x, padded([[1, 3], [2]]))
    (setting,), (query,), (call,) = (
        of(device, name)
        for name in ("cudnnSetCTCLossDescriptor_v9", "cudnnGetCTCLossWorkspaceSize_v8", "cudnnCTCLoss_v8")
    )
    assert setting["normMode"] == (NONE if probabilities else SOFTMAX)
    assert query["algo"] == call["algo"] == (0 if deterministic else 1)
    assert call["probs"] == x.data.ptr


def test_sizes_that_the_other_algorithm_declines_are_computed_by_the_first(device):
    device.fail("cudnnGetCTCLossWorkspaceSize_v8", 3000)
    with CTCLoss(engine="cudnn", deterministic=False, graph_safe=True) as plan:
        plan(there(scores(6, 2, 4)), padded([[1, 3], [2]]))
    assert [entry["algo"] for entry in of(device, "cudnnCTCLoss_v8")] == [0]


WRONG = {
    "negative": (lambda y: y.__setitem__((2, 1, 0), -0.25), "at frame 2 hold -0.25"),
    "too much": (lambda y: y.__setitem__((4, 1), 0.5), "at frame 4 sum to 2"),
    "nothing": (lambda y: y.__setitem__((0, 1), 0), "at frame 0 sum to 0"),
    "infinite": (lambda y: y.__setitem__((3, 1, 2), np.inf), "at frame 3 sum to inf"),
    "both infinities": (lambda y: y.__setitem__((3, 1, slice(2)), [np.inf, -np.inf]), "at frame 3 hold -inf"),
    "logarithms": (lambda y: np.log(y[:, 1], out=y[:, 1]), r"at frame 0 hold -.*are these logits\?"),
}


@pytest.mark.parametrize("labels", [[[1], [2], [3]], [[1], [], [3]]])
@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_probability(device, name, labels):
    y = softmax(scores(6, 3, 4))
    change, said = WRONG[name]
    losses, grad = run(y, labels, probabilities=True, graph_safe=True)
    change(y)
    with (
        pytest.raises(ctcbind.InvalidInput, match=f"sample 1 {said}"),
        CTCLoss(engine="cudnn", probabilities=True) as plan,
    ):
        plan(there(y), padded(labels))
    found, grad_found = run(y, labels, probabilities=True, graph_safe=True)
    assert list(np.isnan(found)) == [False, True, False]
    assert np.isnan(grad_found[:, 1]).all()
    assert np.array_equal(grad_found[:, ::2], grad[:, ::2])
    assert np.array_equal(found[::2], losses[::2])


def test_nan_and_what_is_not_looked_at(device):
    y = softmax(scores(6, 4, 4))
    labels, frames = [[1, 2], [3, 3, 3], [], [2]], [4, 4, 3, 6]
    clean, clean_grad = run(y, labels, frames, probabilities=True)
    y[4:, 0] = y[:, 1] = y[3:, 2] = -7
    losses, grad = run(y, labels, frames, probabilities=True)
    assert np.array_equal(losses, clean)
    assert np.array_equal(grad, clean_grad)
    y[5, 3, 1] = np.nan
    losses, grad = run(y, labels, frames, probabilities=True)
    assert list(np.isnan(losses)) == [False, False, False, True]
    assert np.isnan(grad[:, 3]).all()


def test_a_probability_of_0(device):
    """Taken where no path needs it, refused where it may matter."""
    y = np.zeros((4, 2, 3), np.float32)
    y[np.arange(4), 0, [0, 1, 1, 0]] = 1
    y[:, 1] = [0.5, 0.5, 0]
    losses, grad = run(y, [[1], [1]], probabilities=True)
    np.testing.assert_allclose(losses, [0, -np.log(10 / 16)], atol=1e-6)
    assert not grad[:, 0].any()
    for labels in ([[1], [1, 2]], [[2], [1]], [[], [1]]):
        with pytest.raises(ctcbind.EngineUnsupported, match=r"has a probability that cuDNN's float32 arithmetic loses"):
            run(y, labels, probabilities=True)
    losses, grad = run(y, [[], [1]], probabilities=True, graph_safe=True)
    assert list(np.isnan(losses)) == [True, False]


@pytest.mark.parametrize("blank", [0, 2])
def test_a_gradient_of_the_activations_is_taken_for_one(device, monkeypatch, blank):
    """As the Developer Guide 7.5 promises it for probabilities."""
    x, labels = softmax(scores(6, 3, 4)), [[1, 3], [3], []]
    expected, right = run(x, labels, probabilities=True, blank=blank)
    y = np.concatenate([x[:, :, blank, None], np.delete(x, blank, axis=2)], axis=2)  # as cuDNN has them

    def spoil(grad):
        rows = grad.reshape(x.shape)
        rows[:, :2] = (y + y * np.minimum(rows, 0))[:, :2]

    monkeypatch.setattr(cudnn, "cudnnCTCLoss_v8", spoiled(cudnn.cudnnCTCLoss_v8, 10, spoil, x.size))
    loss, grad = run(x, labels, probabilities=True, blank=blank)
    assert np.array_equal(loss, expected)
    np.testing.assert_allclose(grad, right, rtol=0, atol=3e-7)


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_certain_classes_of_a_certain_sample(device, probabilities, graph_safe):
    """The library has 1 for each of them, and no word of it."""
    x = scores(5, 2, 4)
    x[range(5), 0, [1, 1, 0, 3, 0]] += 200
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1, 3], [1, 3]], engine="reference")
    given = softmax(x) if probabilities else x
    loss, grad = run(given, [[1, 3], [1, 3]], probabilities=probabilities, graph_safe=graph_safe)
    np.testing.assert_allclose(loss, exact.loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grad, exact.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("probabilities", [False, True])
def test_a_certain_class_of_another_path(device, probabilities, graph_safe):
    """Its gradient, of nearly 1, is right as it is."""
    x, labels = scores(5, 2, 4), [[1, 3], [1]]
    x[[1, 3], 0, 2] += 15
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    assert (exact.grad[[1, 3], 0, 2] > cudnn_modes.CERTAIN).all()
    given = softmax(x) if probabilities else x
    loss, grad = run(given, labels, probabilities=probabilities, graph_safe=graph_safe)
    np.testing.assert_allclose(loss, exact.loss, rtol=1e-5)
    np.testing.assert_allclose(grad, exact.grad, rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"deterministic": False}, {"probabilities": True}, {}])
@pytest.mark.parametrize("what", ["nan", "inf", "of the probabilities"])
def test_a_gradient_that_is_not_of_the_activations(device, monkeypatch, what, options):
    x, labels = softmax(scores(6, 3, 4)), [[1, 3], [2], []]
    right, right_grad = run(x, labels, **options)
    y = x if options.get("probabilities") else softmax(x)

    def spoil(grad):
        rows = grad.reshape(x.shape)
        if what == "of the probabilities":
            rows[:, 1] = (rows[:, 1] - y[:, 1]) / y[:, 1]
        else:
            rows[3, 1, 2] = float(what)

    monkeypatch.setattr(cudnn, "cudnnCTCLoss_v8", spoiled(cudnn.cudnnCTCLoss_v8, 10, spoil, x.size))
    with CTCLoss(engine="cudnn", **options) as plan:
        if options:
            said = r"sample 1 has .* a gradient from it whose rows do not sum to 0"
            with pytest.raises(ctcbind.EngineUnsupported, match=said):
                plan(there(x), padded(labels))
        else:
            plan(there(x), padded(labels))
        assert np.array_equal(here(plan.loss(there(x), padded(labels))), right)
    if options:
        with CTCLoss(engine="cudnn", graph_safe=True, **options) as plan:
            result = plan(there(x), padded(labels))
        assert list(np.isnan(here(result.loss))) == [False, True, False]
        assert np.isnan(here(result.grad)[:, 1]).all()
        assert np.array_equal(here(result.grad)[:, ::2], right_grad[:, ::2])
