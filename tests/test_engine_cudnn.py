"""The cudnn engine against the reference, through a libcudnn and a CuPy that work on host memory.

The fake libcudnn answers as the real one is known to: 0 for samples without a path or without labels, nothing written
past an input length. So what comes out right here was put right by the engine. Its arithmetic is its own: that cuDNN
computes well is for the tests marked `gpu`.
"""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
from batches import SEED, plain_float32, random_case
from fake_device import PLACES, at, begin_again, case_of, loss, run
from modes import LOW, low_logits

import ctcbind
from ctcbind.bindings import cudnn
from ctcbind.engines import get
from ctcbind.engines.cudnn import ENGINE, describable

pytest_plugins = ["fake_cudnn.fixture"]
pytestmark = pytest.mark.usefixtures("poison")

INF, NAN = np.inf, np.nan
VERSIONS = (92800, 90100, 8906, 8500)
#: As arrays can lie on a device: always on a whole number of elements.
LAYOUTS = ("C", "F", "strided", "negative", "read-only", "broadcast", "permuted")


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


def scores(*shape, dtype=np.float32, key=0):
    return np.random.default_rng([SEED, key, *shape]).normal(size=shape).astype(dtype)


def rms(pairs):
    wrong = sum(float(((got - exact) ** 2).sum()) for got, exact in pairs)
    return (wrong / sum(float((exact**2).sum()) for _, exact in pairs)) ** 0.5


# --- against the reference ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_random_batches(use_device, place, version):
    """Ragged, repeats, empty and infeasible labels, no time at all, every blank, both layouts, float16 and float32."""
    use_device(version)
    losses, grads, plain_losses, plain_grads = [], [], [], []
    for i in range(150):
        dtype, how = ("float16", "float32")[i % 2], LAYOUTS[i % len(LAYOUTS)]
        case = random_case([SEED, version, i], dtype=dtype, how=how, topology="ctc")
        (exact, exact_grad), (plain, plain_grad) = case.expected(), plain_float32(case)
        result = run(place, *case.args, **case.options)
        case.check(result, dtype, (exact, exact_grad))
        finite = np.isfinite(exact)
        losses.append((result.loss[finite].astype(np.float64), exact[finite]))
        plain_losses.append((plain[finite].astype(np.float64), exact[finite]))
        grads.append((case.in_order(result.grad), exact_grad))
        plain_grads.append((plain_grad.astype(dtype).astype(np.float64), exact_grad))
    assert rms(losses) <= 2 * rms(plain_losses), f"seed {SEED}"
    assert rms(grads) <= 2 * rms(plain_grads), f"seed {SEED}"


CASES = {
    "ragged": ([[1, 2], [3], [4, 1, 2]], [7, 2, 5], {}),
    "repeats": ([[1, 1], [2, 2, 2], [3, 3, 1, 1]], None, {}),
    "just enough time": ([[1, 1], [2, 3, 2], [4, 4, 4, 4]], [3, 3, 7], {}),
    "one frame too few": ([[1, 1], [2, 3, 2], [4, 4, 4, 4]], [2, 2, 6], {}),
    "more labels than time": ([[1, 2, 3, 4, 1, 2, 3, 4], [1], [2] * 40], [3, 1, 7], {}),
    "empty first": ([[], [1], [2, 3]], [5, 6, 7], {}),
    "empty last": ([[1], [2, 3], []], [5, 6, 1], {}),
    "all empty": ([[], [], []], [7, 1, 4], {}),
    "all infeasible": ([[1] * 5, [2] * 5, [3] * 5], [3, 4, 1], {}),
    "no time for some": ([[1], [], [2]], [0, 0, 7], {}),
    "no time for any": ([[1], [], [2]], [0, 0, 0], {}),
    "blank last": ([[0, 1], [3, 3], []], [7, 5, 2], {"blank": -1}),
    "blank inside": ([[0, 1], [3, 4, 4], [1]], [7, 5, 2], {"blank": 2}),
    "blank inside, stand-ins": ([[0] * 9, [], [4]], [7, 5, 0], {"blank": 2}),
}


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("name", CASES)
def test_named_cases(device, place, name, layout):
    labels, frames, options = CASES[name]
    x = scores(*((7, 3, 5) if layout == "TNC" else (3, 7, 5)))
    case = case_of(x, labels, frames, layout=layout, **options)
    case.check(run(place, *case.args, **case.options), "float32", case.expected())


@pytest.mark.parametrize("C", [1, 2, 3, 7])
def test_every_blank(device, place, C):
    for blank in range(-1, C):
        for i in range(4):
            how = LAYOUTS[(i + C) % len(LAYOUTS)]
            case = random_case([SEED, i, C], dtype="float32", topology="ctc", how=how, size=(6, 3, C), blank=blank)
            case.check(run(place, *case.args, **case.options), "float32", case.expected())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("how", LAYOUTS)
def test_every_way_an_array_can_lie(device, place, how, dtype):
    for i in range(8):
        case = random_case([SEED, i], dtype=dtype, how=how, topology="ctc", size=(9, 3, 5))
        before = case.logits.copy()
        case.check(run(place, *case.args, **case.options), dtype, case.expected())
        assert np.array_equal(case.logits, before)


def test_bfloat16(device):
    pytest.importorskip("ml_dtypes", reason="bfloat16 arrays come from ml_dtypes")
    for i in range(40):
        case = random_case([SEED, i], dtype="bfloat16", topology="ctc")
        case.check(run("host", *case.args, **case.options), "bfloat16", case.expected())


def test_no_time_steps(device, place):
    result = run(place, np.empty((0, 3, 4), np.float32), [[], [1], [2, 2]])
    assert list(result.loss) == [0, INF, INF]
    assert result.grad.shape == (0, 3, 4)
    assert "cudnnSetTensorNdDescriptor" not in device.calls, "no tensor has a dimension of 0"


def test_one_class_makes_no_call(device, place):
    result = run(place, scores(4, 2, 1), [[], []], [4, 2])
    assert list(result.loss) == [0, 0]
    assert not result.grad.any()
    assert "cudnnCTCLoss" not in device.calls


def test_255_labels(device, place):
    """The longest that cuDNN takes, in as many frames as it needs, and one fewer."""
    labels = [1 + i % 2 for i in range(255)]
    case = case_of(scores(256, 3, 3), [labels, labels, [1] * 128], [255, 254, 255])
    case.check(run(place, *case.args), "float32", case.expected())


# --- not a number, infinity, and beyond what float32 holds ---------------------------------------------------


def test_nan_stays_in_its_sample(device, place):
    x = scores(6, 4, 5)
    labels, frames = [[1, 2], [3, 3, 3, 3, 3], [], [4]], [6, 6, 5, 4]
    clean = run(place, x, labels, frames)
    dirty = x.copy()
    dirty[2, 0, 4] = dirty[3, 1, 0] = dirty[0, 2, 1] = dirty[5, 3, 2] = NAN  # the last one in padded time
    dirty[4, 0, 1], dirty[4, 2, 3] = INF, -INF  # alone they would be refused
    result = run(place, dirty, labels, frames)
    assert np.isnan(result.loss[[0, 2]]).all()
    assert np.isnan(result.grad[:6, 0]).all()
    assert np.isnan(result.grad[:5, 2]).all()
    assert not result.grad[5, 2].any()
    assert result.loss[1] == INF, "no path exists, whatever the logits are"
    assert not result.grad[:, 1].any()
    assert result.loss[3] == clean.loss[3]
    assert np.array_equal(result.grad[:, 3], clean.grad[:, 3])
    assert np.isnan(loss(place, dirty, labels, frames)[[0, 2]]).all()


@pytest.mark.parametrize("value", [NAN, INF, -INF, 3e38])
def test_padded_time_and_samples_without_a_path_are_not_looked_at(device, place, value):
    x = scores(6, 3, 4)
    labels, frames = [[1, 2], [3, 3, 3], []], [4, 4, 3]
    clean = run(place, x, labels, frames)
    x[4:, 0] = x[:, 1] = x[3:, 2] = value
    result = run(place, x, labels, frames)
    assert list(result.loss) == list(clean.loss)
    assert np.array_equal(result.grad, clean.grad)


@pytest.mark.parametrize("value", [INF, -INF])
def test_infinite_logits_are_refused_by_name(device, place, value):
    x = scores(5, 3, 4)
    x[2, 1, 3] = value
    for labels in ([[1], [2], [3]], [[1], [3], [2]], [[1], [], [2]]):
        with pytest.raises(ctcbind.EngineUnsupported, match=r"'cudnn'.* sample 1 has infinite logits; .*'native'"):
            run(place, x, labels)


def test_a_probability_below_the_range_of_float32_is_refused_by_name(device, place):
    """e^-95 is a denormal number in float32, and e^-120 is none: a path through either cannot be told."""
    for nats in (90.0, 95.0, 120.0, 1e4, 1e30):
        x = np.zeros((3, 2, 4), np.float32)
        x[1, 1, 0] = nats  # the frame of label 2
        assert np.isfinite(ctcbind.ctc_loss(x, [[1], [1, 2, 3]])).all()
        with pytest.raises(ctcbind.EngineUnsupported, match=r"sample 1 has a probability that .*float32"):
            run(place, x, [[1], [1, 2, 3]])
        with pytest.raises(ctcbind.EngineUnsupported, match="sample 1"):
            loss(place, x, [[1], [1, 2, 3]])


def test_wide_logits_that_cost_nothing_are_computed(device, place):
    """A class below float32's range matters only where the labels need it: confident networks are taken."""
    x = scores(8, 2, 5)
    x[np.arange(8), :, [0, 1, 0, 2, 2, 0, 3, 0]] += 200
    for labels in ([[1, 2, 3], [1, 2, 3]], [[1, 2, 3], []]):
        case = case_of(x, labels)
        if labels[1]:
            case.check(run(place, *case.args), "float32", case.expected())
        else:  # the all-blank path is found in log space
            np.testing.assert_allclose(loss(place, *case.args), case.expected()[0], rtol=1e-5, atol=1e-5)
    x = scores(8, 1, 5)
    x[:, :, 4] -= 500  # a class of no label
    case = case_of(x, [[1, 2, 3]])
    case.check(run(place, *case.args), "float32", case.expected())


def test_large_losses_within_the_range_are_computed(device, place):
    """203.984 is e^-204, and yet no frame goes below a tenth."""
    case = case_of(np.zeros((100, 5, 10), np.float32), [[1, 2, 3, 4]] * 5)
    result = run(place, *case.args)
    case.check(result, "float32", case.expected())
    assert result.loss == pytest.approx([203.984] * 5, abs=1e-3)


@pytest.mark.parametrize(("cells", "lost"), LOW)
def test_beside_a_large_loss_no_class_of_a_path_may_be_below_the_range(device, place, cells, lost):
    x, labels, frames = low_logits(cells)
    if lost:
        with pytest.raises(ctcbind.EngineUnsupported, match="sample 1 has a probability that"):
            run(place, x, labels, frames)
    else:
        case = case_of(x, labels, frames)
        case.check(run(place, *case.args), "float32", case.expected())


@pytest.mark.parametrize("answer", [0.0, INF, NAN, -INF])
def test_an_answer_that_cannot_be_is_refused(device, place, monkeypatch, answer):
    """Should cuDNN answer 0 or no number for a sample that has a path, nobody is told that it is the loss."""
    real, costs = cudnn.cudnnCTCLoss, []

    def lying(*arguments):
        real(*arguments)
        costs[-1][1] = answer

    zeros = fake_cupy.zeros

    def watched(shape, dtype=float):
        costs.append(zeros(shape, dtype=dtype))
        return costs[-1]

    monkeypatch.setattr(cudnn, "cudnnCTCLoss", lying)
    monkeypatch.setattr(fake_cupy, "zeros", watched, raising=False)
    with pytest.raises(ctcbind.EngineUnsupported, match=r"sample 1 has a probability that"):
        run(place, scores(5, 3, 4), [[1], [2], [3]])


def test_a_certain_path_may_cost_nothing(device, place):
    x = np.full((4, 1, 3), -50, np.float32)
    x[np.arange(4), 0, [1, 0, 2, 2]] = 50
    result = run(place, x, [[1, 2]])
    assert list(result.loss) == [0]
    assert math.copysign(1, result.loss[0]) == 1


# --- what is asked for ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("reduction", ["none", "sum", "batch_mean", "label_mean"])
def test_reductions(device, place, reduction, dtype):
    x = scores(8, 4, 5, dtype=dtype)
    labels, frames = [[1, 2, 3], [4], [], [2, 2]], [8, 6, 3, 7]
    exact = ctcbind.ctc_loss_and_grad(x.astype(float), labels, frames, reduction=reduction, engine="reference")
    result = run(place, x, labels, frames, reduction=reduction)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(result.loss, exact.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad, exact.grad, rtol=2 * eps, atol=1e-5 + eps)
    np.testing.assert_allclose(loss(place, x, labels, frames, reduction=reduction), exact.loss, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum", "batch_mean", "label_mean"])
def test_zero_infinity(device, place, reduction):
    x, labels = scores(3, 3, 4), [[1, 1, 1], [1], [2, 3, 1, 2]]
    options = {"reduction": reduction, "zero_infinity": True}
    exact = ctcbind.ctc_loss_and_grad(x.astype(float), labels, engine="reference", **options)
    result = run(place, x, labels, **options)
    np.testing.assert_allclose(result.loss, exact.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad, exact.grad, rtol=1e-5, atol=1e-5)
    if reduction != "none":
        assert run(place, x, labels, reduction=reduction).loss == INF


def test_losses_alone(device, place):
    """No gradient is computed: cuDNN is given NULL for it."""
    for i in range(20):
        case = random_case([SEED, i, 5], dtype="float32", topology="ctc", how="C")
        both = run(place, *case.args, **case.options)
        begin_again(device)
        alone = loss(place, *case.args, **case.options)
        assert np.array_equal(alone, both.loss), case.name
        for entry in device.log:
            if entry["call"].startswith(("cudnnGetCTCLossWorkspaceSize", "cudnnCTCLoss")):
                assert entry["gradientsDesc"] == entry.get("gradients", 0) == 0


# --- what is refused -----------------------------------------------------------------------------------------


def test_float64_is_refused(device, place):
    message = r"engine 'cudnn' cannot take this batch: the logits are float64 .*logits\.astype\(numpy\.float32\)"
    with pytest.raises(ctcbind.EngineUnsupported, match=message):
        run(place, scores(4, 1, 3, dtype=np.float64), [[1]])
    assert device.calls == []


def test_256_labels_are_refused(device, place):
    with pytest.raises(ctcbind.EngineUnsupported, match="sample 1 has 256 labels, and its limit is 255"):
        run(place, scores(300, 2, 3), [[1], [1, 2] * 128])
    assert device.calls == []


def test_topology_simple_is_refused(device, place):
    with pytest.raises(ctcbind.EngineUnsupported, match="topology 'simple' is not among its own"):
        run(place, scores(4, 1, 3), [[1]], topology="simple")
    assert device.calls == []


def test_more_elements_than_int32_counts_are_refused(device):
    x = np.broadcast_to(np.float32(0), (2**16, 2**8, 2**7))  # one number, shown 2^31 times
    with pytest.raises(ctcbind.EngineUnsupported, match=r"2147483648 elements, and its limit is 2\*\*31 - 1"):
        ctcbind.ctc_loss(x, [[1]] * 2**8, engine="cudnn")
    assert device.calls == []


def test_only_strides_that_a_descriptor_holds_are_described():
    def lies(shape, strides, itemsize=4):
        return describable(SimpleNamespace(shape=shape, strides=strides, itemsize=itemsize))

    assert lies((5, 3, 4), (48, 16, 4))
    assert lies((5, 3, 4), (16, 80, 4)), "batch first"
    assert lies((5, 3, 4), (1000, 100, 4)), "gaps"
    assert not lies((5, 3, 4), (4, 20, 60)), "classes are not side by side"
    assert not lies((5, 3, 4), (-48, 16, 4))
    assert not lies((5, 3, 4), (48, -16, 4))
    assert not lies((5, 3, 4), (48, 16, -4))
    assert not lies((5, 3, 4), (0, 16, 4))
    assert not lies((5, 3, 4), (50, 16, 4)), "between elements"
    assert lies((2, 1, 4), (4 * (2**31 - 5), 16, 4))
    assert not lies((2, 1, 4), (4 * (2**31 - 4), 16, 4)), "a span of 2^31 elements"
    assert lies((2, 2, 4), (16, 4 * (2**31 - 9), 4))
    assert not lies((2, 2, 4), (16, 4 * (2**31 - 8), 4)), "of time and samples together"
    assert not lies((1, 1, 4), (4 * 2**31, 16, 4)), "a stride that C's int does not hold"
    assert not lies((1, 1, 4), (16, 4 * 2**31, 4))


def test_auto_takes_it_for_device_arrays_where_the_cuda_engine_is_not_there(device, monkeypatch):
    def absent(self):
        raise ctcbind.EngineUnavailable("the kernels cannot be compiled here")

    monkeypatch.setattr(type(get("cuda")), "library", absent)
    result = ctcbind.ctc_loss_and_grad(at("device", scores(4, 1, 3)), [[1]])
    assert result.engine == "cudnn"
    assert ctcbind.ctc_loss_and_grad(scores(4, 1, 3), [[1]]).engine == "native"
    with pytest.raises(ctcbind.EngineUnsupported, match=r"(?s)no engine can.*native: .*cuda:0.*cudnn: .*float64"):
        ctcbind.ctc_loss(at("device", scores(4, 1, 3, dtype=np.float64)), [[1]])


# --- whether it is there -------------------------------------------------------------------------------------


def test_available(device):
    info = ctcbind.engines()["cudnn"]
    assert (info.available, info.version, info.found) == (True, "9.28.0", "CTCBIND_CUDNN")
    assert info.library == str(device.path)


@pytest.mark.parametrize(
    ("devices", "reason"), [(0, "there is no CUDA device"), (-1, "no CUDA device: .*InsufficientDriver")]
)
def test_no_device(device, monkeypatch, devices, reason):
    x = at("device", scores(4, 1, 3))
    monkeypatch.setattr(fake_cupy, "device_count", devices)
    info = ctcbind.engines()["cudnn"]
    assert not info.available
    with pytest.raises(ctcbind.EngineUnavailable, match=rf"cuDNN 9.28.0 is here .*, but .*{reason}"):
        ENGINE.library()
    with pytest.raises(ctcbind.EngineUnavailable, match=f"^CuPy is here, but .*{reason}"):
        get("cuda").library()
    for logits in (x, scores(4, 1, 3)):
        with pytest.raises(ctcbind.EngineUnavailable, match=reason):
            ctcbind.ctc_loss(logits, [[1]], engine="cudnn")


def test_no_cupy(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ctcbind.EngineUnavailable, match=r"CuPy, .*is not installed: pip install 'ctcbind\[cuda12\]'"):
        ctcbind.ctc_loss(scores(4, 1, 3), [[1]], engine="cudnn")


CUPYS_OWN = """
================
Failed to import CuPy.

Original error:
  ImportError: libcudart.so.12: cannot open shared object file
================
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            "AttributeError('module numpy has no attribute product')",
            "AttributeError: module numpy has no",
        ),
        (f"ImportError({CUPYS_OWN!r})", "ImportError: libcudart.so.12: cannot open shared object file"),
        (
            "ModuleNotFoundError(\"No module named 'fastrlock'\", name='fastrlock')",
            "ModuleNotFoundError: No module named 'fastrlock'",
        ),
        ("RuntimeError()", "RuntimeError"),
    ],
)
def test_a_broken_cupy(device, monkeypatch, tmp_path, raised, said):
    """It is not told to be missing, and what it raises ends nothing."""
    (tmp_path / "cupy.py").write_text(f"raise {raised}", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "cupy")
    monkeypatch.syspath_prepend(tmp_path)
    found = ctcbind.engines()
    for name in ("cudnn", "cuda"):
        assert not found[name].available
        assert f"CuPy is installed and cannot be imported: {said}" in found[name].reason
        assert "pip install" not in found[name].reason
