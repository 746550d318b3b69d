"""The warpctc engine on a device: a warp-ctc "built with CUDA" and a CuPy, both on host memory."""

from __future__ import annotations

import ctypes
import logging
import sys
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from batches import SEED, random_case, scores
from fake_cudnn import NoCompilerError, compile_c
from fake_device import to_host as here

import ctcbind
from ctcbind import CTCLoss
from ctcbind.__main__ import main
from ctcbind.bindings import warpctc as binding
from ctcbind.compare import compare
from ctcbind.compare_text import render
from ctcbind.engines import get
from ctcbind.engines.warpctc_device import OnDevice

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fake_warpctc")
    try:
        return {
            name: compile_c(HERE / f"{name}.c", folder / f"lib{name}.so", "-fvisibility=default")
            for name in ("fake_warpctc_gpu", "fake_warpctc")
        }
    except NoCompilerError as error:
        pytest.skip(f"no fake warp-ctc: {error}")


def use(monkeypatch, path):
    monkeypatch.setenv("CTCBIND_WARPCTC", str(path))
    monkeypatch.setattr(binding, "_loaded", None)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    return ctypes.CDLL(str(path))


@pytest.fixture
def library(built, monkeypatch):
    lib = use(monkeypatch, built["fake_warpctc_gpu"])
    for name in ("fake_calls", "fake_on_host"):
        ctypes.c_int64.in_dll(lib, name).value = 0
    return lib


def noted(library, name):
    return ctypes.c_int64.in_dll(library, name).value


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_small_batches_of_every_kind(library, dtype):
    for number in range(60):
        case = random_case([SEED, 70, number], dtype=dtype, topology="ctc")
        x = fake_cupy.ndarray(case.args[0])
        result = ctcbind.ctc_loss_and_grad(x, *case.args[1:], **case.options, engine="warpctc")
        assert isinstance(result.loss, fake_cupy.ndarray)
        assert isinstance(result.grad, fake_cupy.ndarray)
        assert result.grad.dtype == x.dtype
        case.check(ctcbind.Result(here(result.loss), here(result.grad), ""), dtype, case.expected())
        losses = ctcbind.ctc_loss(x, *case.args[1:], **case.options, engine="warpctc")
        np.testing.assert_allclose(here(losses), here(result.loss), rtol=1e-6)
    assert noted(library, "fake_calls") > 60  # of 120, but for batches of which the guards leave nothing


@pytest.mark.parametrize("reduction", ["sum", "label_mean"])
def test_reductions(library, reduction):
    x, labels = scores(6, 4, 5), [[1, 2, 2], [], [3], [4] * 6]
    options = {"reduction": reduction, "zero_infinity": True}
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, **options)
    got = ctcbind.ctc_loss_and_grad(fake_cupy.ndarray(x), labels, engine="warpctc", **options)
    np.testing.assert_allclose(here(got.loss), right.loss, rtol=1e-5)
    np.testing.assert_allclose(here(got.grad), right.grad, atol=1e-5)


def test_it_is_called_on_the_stream_with_the_callers_memory(library, monkeypatch):
    called = []
    compute = binding.compute_ctc_loss
    monkeypatch.setattr(binding, "compute_ctc_loss", lambda *a: called.append(a) or compute(*a))
    x, stream = fake_cupy.ndarray(scores(6, 2, 5)), fake_cupy.cuda.Stream()
    with stream:
        result = ctcbind.ctc_loss_and_grad(x, [[1], [2]], engine="warpctc")
    assert noted(library, "fake_stream") == stream.ptr
    assert called[0][:2] == (x.data.ptr, result.grad.data.ptr)
    with CTCLoss(engine="warpctc", stream=0x7070) as plan:
        plan(x, [[1], [2]])
    assert noted(library, "fake_stream") == 0x7070


@pytest.mark.parametrize(("value", "again"), [(np.nan, 0), (-np.inf, 0), (500.0, 1), (np.inf, 1), (1e10, 1)])
def test_what_its_floor_and_its_infinities_spoil_is_computed_again_on_the_host(library, value, again):
    x = scores(5, 3, 4)
    x[1, 1, 2] = value  # a class that is on no path of the sample
    labels = [[1, 2], [1, 3, 1], [2]]
    if value > 1e9:  # nor is that enough: its paths have next to no probability
        with pytest.raises(ctcbind.EngineUnsupported, match="cannot compute sample 1: at frame 1 class"):
            ctcbind.ctc_loss_and_grad(fake_cupy.ndarray(x), labels, engine="warpctc")
        return
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels)
    result = ctcbind.ctc_loss_and_grad(fake_cupy.ndarray(x), labels, engine="warpctc")
    np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5)
    np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-5)
    assert noted(library, "fake_on_host") == again


def test_what_is_no_frame_does_not_decide_whether_a_sample_is_computed_again(library):
    """Beside a loss so large that its floor could matter."""
    x, labels, frames = scores(9, 2, 4), [[1, 2], [1, 3]], [9, 5]
    x[:5, 1, 2] += 40  # of no path
    x[5:, 1] = [1e9, 0, -1e9, 0]
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, frames)
    assert right.loss[1] > 100
    for given in (x, fake_cupy.ndarray(x)):
        result = ctcbind.ctc_loss_and_grad(given, labels, frames, engine="warpctc")
        np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5)
        np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-5)
    assert noted(library, "fake_on_host") == 1  # the first of the two alone


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_certain_class(library, dtype):
    x = np.zeros((4, 2, 3), dtype)
    x[np.arange(4), 1, [2, 0, 2, 1]] = 1000
    right = ctcbind.ctc_loss_and_grad(x.astype(float), [[1], [2, 2, 1]])
    result = ctcbind.ctc_loss_and_grad(fake_cupy.ndarray(x), [[1], [2, 2, 1]], engine="warpctc")
    np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-6)


@pytest.mark.parametrize("rounded", [-1e-7, 1e-7])
def test_a_certain_sample_whose_loss_is_rounded(library, monkeypatch, rounded):
    """The library sums logarithms in float32, and is as far off: no loss is negative, nor any gradient near 1."""
    compute = binding.compute_ctc_loss

    def off(*arguments):
        compute(*arguments)
        np.ctypeslib.as_array((ctypes.c_float * 2).from_address(arguments[7]))[1] = rounded

    x, labels = scores(4, 2, 3), [[1], [2, 2, 1]]
    x[np.arange(4), 1, [2, 0, 2, 1]] += 1000
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels)
    monkeypatch.setattr(binding, "compute_ctc_loss", off)
    result = ctcbind.ctc_loss_and_grad(fake_cupy.ndarray(x), labels, engine="warpctc")
    assert here(result.loss)[1] >= 0
    np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-6)


def test_639_labels_and_one_more(library):
    x = fake_cupy.ndarray(scores(700, 1, 3))
    row = [1, 2] * 320
    exact = ctcbind.ctc_loss(here(x).astype(float), [row[:639]])
    np.testing.assert_allclose(here(ctcbind.ctc_loss(x, [row[:639]], engine="warpctc")), exact, rtol=1e-5)
    with pytest.raises(ctcbind.EngineUnsupported, match="sample 0 has 640 labels, and its limit on a device is 639"):
        ctcbind.ctc_loss(x, [row], engine="warpctc")
    assert ctcbind.ctc_loss(here(x), [row], engine="warpctc").shape == (1,), "on the host there is no limit"
    contract = get("warpctc").contract
    assert any("639" in limit and "waits" in limit for limit in contract.limits)


def test_the_workspace_grows_only_and_each_stream_has_its_own(library, monkeypatch):
    asked, alloc = [], fake_cupy.cuda.alloc
    monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: asked.append(size) or alloc(size))
    with CTCLoss(engine="warpctc") as plan:
        for T in (5, 20, 5, 20):
            plan(fake_cupy.ndarray(scores(T, 2, 4)), [[1], [2]])
        assert len(asked) == 2
        with fake_cupy.cuda.Stream():
            plan(fake_cupy.ndarray(scores(20, 2, 4)), [[1], [2]])
        assert len(asked) == 3


def test_copies_are_told_as_they_are_made(library, caplog):
    """Of logits in the library's order behind another layout the gradient alone is copied, where there is one."""
    x = scores(4, 2, 3)
    for given, layout, with_grad, told in (
        (x, "TNC", True, []),
        (x.transpose(1, 0, 2), "NTC", True, ["gradient"]),
        (x.transpose(1, 0, 2), "NTC", False, []),
        (x.astype(np.float16), "TNC", False, ["logits"]),
        (x.astype(np.float16), "TNC", True, ["logits", "gradient"]),
    ):
        caplog.clear()
        call = ctcbind.ctc_loss_and_grad if with_grad else ctcbind.ctc_loss
        with caplog.at_level(logging.DEBUG, "ctcbind"):
            call(fake_cupy.ndarray(given), [[1], [2]], layout=layout, engine="warpctc")
        said = [record.message.split()[4] for record in caplog.records if " bytes of " in record.message]
        assert said == told, (layout, with_grad)


def test_another_device_than_the_current_one(library, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    with fake_cupy.cuda.Device(1):
        x = fake_cupy.asarray(scores(6, 2, 5))
    result = ctcbind.ctc_loss_and_grad(x, [[1], [2] * 9], engine="warpctc", zero_infinity=True)
    assert result.loss.device == result.grad.device == x.device


def test_it_cannot_be_captured(library):
    stream = fake_cupy.cuda.Stream()
    with stream:
        stream.begin_capture()
        with pytest.raises(ctcbind.EngineUnsupported, match="cannot be captured"):
            ctcbind.ctc_loss(fake_cupy.ndarray(scores(4, 1, 3)), [[1]], engine="warpctc")
        stream.end_capture()


def test_a_build_without_cuda_is_told_before_the_call(built, monkeypatch):
    use(monkeypatch, built["fake_warpctc"])
    assert not binding.has_gpu_code()
    x = fake_cupy.ndarray(scores(4, 1, 3))
    with pytest.raises(ctcbind.EngineUnsupported, match="was built without CUDA; the wheel of paddlepaddle-gpu"):
        ctcbind.ctc_loss(x, [[1]], engine="warpctc")
    seen = ctcbind.explain(x, [[1]])["warpctc"]
    assert not seen.usable
    assert "was built without CUDA" in seen.reason
    assert ctcbind.explain(here(x), [[1]])["warpctc"].usable
    use(monkeypatch, built["fake_warpctc_gpu"])
    assert ctcbind.explain(x, [[1]])["warpctc"].usable


def test_no_engine_of_the_device_is_chosen_for_it(library):
    """Only by its name: "auto" has better ones."""
    assert ctcbind.ctc_loss_and_grad(scores(4, 1, 3), [[1]]).engine == "native"


def test_compare_has_a_row_for_the_host_and_one_for_the_device(library, capsys):
    calls = noted(library, "fake_calls")
    result = compare(
        np.zeros((100, 5, 10), np.float32), [[1, 2, 3, 4]] * 5, engines=["warpctc", "reference"], repeats=2
    )
    assert noted(library, "fake_calls") > calls
    host, device, reference = result.rows
    assert (host.engine, host.device, host.label) == ("warpctc", "cpu", "warpctc")
    assert (device.engine, device.device, device.label) == ("warpctc", "cuda:0 a stand-in", "warpctc on cuda:0")
    assert reference.label == "reference"
    for row in (host, device):
        assert row.status == "agrees"
        assert row.losses == pytest.approx([203.98393049135646] * 5, rel=1e-5)
        assert row.runs >= 1
    assert main(["compare", "--engines", "warpctc"]) == 0
    out = capsys.readouterr().out
    assert "cuda:0 a stand-in" in out
    assert out.rstrip().endswith("within tolerance: warpctc, warpctc on cuda:0.")


def test_compare_draws_both(library, tmp_path):
    pytest.importorskip("matplotlib")
    from ctcbind.plot import draw

    result = compare(scores(6, 2, 4), [[1, 2], [3]], engines=["warpctc"], repeats=1)
    draw([result], tmp_path / "out.svg")
    assert (tmp_path / "out.svg").stat().st_size > 1000


def test_compare_sees_an_error_on_the_device_alone(library, monkeypatch):
    right = OnDevice.run

    def wrong(self, batch, with_grad, weights):
        losses, grad = right(self, batch, with_grad, weights)
        return losses, grad if grad is None else grad * np.float32(1.01)

    monkeypatch.setattr(OnDevice, "run", wrong)
    result = compare(scores(20, 2, 6), [[1, 2], [3]], engines=["warpctc"], repeats=1)
    assert [row.status for row in result.rows] == ["agrees", "differs"]
    assert "warpctc on cuda:0 differs from the reference" in render([result])


@pytest.mark.parametrize("why", ["a build without CUDA", "no device", "no CuPy"])
def test_compare_has_the_host_alone_where_there_is_nothing_else(built, library, monkeypatch, why):
    if why == "a build without CUDA":
        use(monkeypatch, built["fake_warpctc"])
    elif why == "no device":
        monkeypatch.setattr(fake_cupy, "device_count", 0)
    else:
        monkeypatch.setitem(sys.modules, "cupy", None)
    result = compare(scores(6, 2, 4), [[1, 2], [3]], engines=["warpctc"], repeats=1)
    assert [row.device for row in result.rows] == ["cpu"]
    if why != "a build without CUDA":  # the stand-in for which computes no losses
        assert result.agree
