"""Arrays on a device that lie between elements: views of bytes that begin anywhere, or step by any number of them.

A kernel that reads one ends the CUDA context (the stand-in for CuPy raises what CUDA says then), and so does CuPy's own
copy of it. Every engine copies it byte by byte, says so, or refuses it.
"""

from __future__ import annotations

import logging
from pathlib import Path

import emulated
import fake_cupy
import numpy as np
import pytest
from batches import SEED, lay_out, random_case
from device_batches import here
from fake_cudnn import NoCompilerError, compile_c

import ctcbind
from ctcbind import CTCLoss
from ctcbind.arrays import between_elements, whole_elements
from ctcbind.bindings import warpctc as binding

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]

TESTS = Path(__file__).resolve().parent.parent
HOW = ("misaligned", "odd stride")


@pytest.fixture(scope="module")
def warpctc_library(tmp_path_factory):
    try:
        return compile_c(
            TESTS / "fake_warpctc_gpu.c",
            tmp_path_factory.mktemp("fake") / "libfake_warpctc_gpu.so",
            "-fvisibility=default",
        )
    except NoCompilerError as error:
        pytest.skip(f"no fake warp-ctc: {error}")


@pytest.fixture(params=["cudnn", "cuda", "warpctc"])
def name(request, device, cupy, warpctc_library, monkeypatch):
    monkeypatch.setenv("CTCBIND_WARPCTC", str(warpctc_library))
    monkeypatch.setattr(binding, "_loaded", None)
    return request.param


def between(x, how):
    """x on the device, lying there as `how` says; the fake's device does not move what it is given."""
    return fake_cupy.ndarray(lay_out(np.random.default_rng(0), x, how))


def scores(*shape, dtype=np.float32):
    return np.random.default_rng([SEED, *shape]).normal(size=shape).astype(dtype)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_copy_by_bytes(device, how, dtype):
    for x in (scores(4, 3, 5, dtype=dtype), scores(1, 1, 2, dtype=dtype)):
        for order in ((0, 1, 2), (1, 0, 2), (2, 1, 0)):
            given = between(x, how).transpose(order)
            assert between_elements(given)
            whole = whole_elements(given)
            assert not between_elements(whole)
            assert whole.dtype == dtype
            assert np.array_equal(here(whole), x.transpose(order))
    plain = fake_cupy.ndarray(scores(4, 3, 5, dtype=dtype)[::-1, :, ::2])
    assert whole_elements(plain) is plain


def test_the_stand_in_is_as_strict_as_a_device(device):
    for act in (lambda x: x + 1, lambda x: x.copy(), lambda x: x.astype("float64"), lambda x: x.max()):
        with pytest.raises(fake_cupy.CUDARuntimeError, match="MisalignedAddress"):
            act(between(scores(4, 3, 5), "misaligned"))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_logits(name, how, dtype, caplog):
    """Right results, the logits as they were, and what explain says of the copies is what is done."""
    for i in range(20):
        case = random_case([SEED, 91, i], how=how, dtype=dtype, topology="ctc")
        x = fake_cupy.ndarray(case.args[0])
        before = case.args[0].copy()
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "ctcbind"):
            result = ctcbind.ctc_loss_and_grad(x, *case.args[1:], **case.options, engine=name)
        case.check(ctcbind.Result(here(result.loss), here(result.grad), name), dtype, case.expected())
        assert np.array_equal(case.args[0], before)
        if x.size and case.x.shape[0]:
            options = {key: value for key, value in case.options.items() if key != "engine"}
            said = ctcbind.explain(x, *case.args[1:], **options)[name].copies
            assert said, "nothing is copied, it says"
            assert [copy for copy in said if f"{copy.bytes} bytes of {copy.what}" not in caplog.text] == []


@pytest.mark.parametrize("name", ["cudnn", "cuda"], indirect=True)
@pytest.mark.parametrize("how", HOW)
def test_with_labels_on_the_device(name, how):
    x, rows = scores(6, 2, 5), np.array([[1, 2, 2], [3, -1, -1]], dtype=np.int32)
    frames = np.array([6, 4], dtype=np.int64)
    exact = ctcbind.ctc_loss_and_grad(x, rows, frames)
    given = between(x, how), between(rows[:, :, None], how)[:, :, 0], between(frames[:, None, None], how)[:, 0, 0]
    with CTCLoss(engine=name) as plan:
        result = plan(*given)
    np.testing.assert_allclose(here(result.loss), exact.loss, rtol=1e-5)
    np.testing.assert_allclose(here(result.grad), exact.grad, atol=1e-5)


@pytest.mark.parametrize("name", ["cudnn", "cuda"], indirect=True)
@pytest.mark.parametrize("how", HOW)
def test_what_cannot_be_copied_is_refused(name, how):
    """A captured graph would read the copy, not the array."""
    x, rows = fake_cupy.ndarray(scores(6, 2, 5)), np.array([[1, 2], [3, 3]], dtype=np.int32)
    with CTCLoss(engine=name, graph_safe=True) as plan:
        with pytest.raises(ctcbind.EngineUnsupported, match="a copy would not outlive"):
            plan(between(scores(6, 2, 5), how), fake_cupy.ndarray(rows))
        with pytest.raises(ctcbind.InvalidInput, match="a copy would not outlive"):
            plan(x, between(rows[:, :, None], how)[:, :, 0])
        plan(x, fake_cupy.ndarray(rows))


@pytest.mark.parametrize("name", ["cuda"], indirect=True)
@pytest.mark.parametrize("how", HOW)
def test_a_gradient_over_them_is_refused(name, how):
    with (
        CTCLoss(engine=name, overwrite_logits=True) as plan,
        pytest.raises(ctcbind.EngineUnsupported, match="the logits lie between elements, and the gradient"),
    ):
        plan(between(scores(6, 2, 5), how), [[1], [2]])
    assert not emulated.launches


@pytest.mark.parametrize("name", ["cuda"], indirect=True)
def test_a_gradient_over_a_copy_is_refused(name):
    """On the host the arrays have been copied before any engine sees them; it is not the caller's that would change."""
    memory = bytearray(4 * 6 * 2 * 5 + 1)
    misaligned = np.frombuffer(memory, np.float32, offset=1, count=60).reshape(6, 2, 5)
    assert not misaligned.flags.aligned
    for logits in (misaligned, scores(6, 2, 5).tolist()):
        with (
            CTCLoss(engine=name, overwrite_logits=True) as plan,
            pytest.raises(ctcbind.EngineUnsupported, match=r"the logits had to be .*, and the gradient is to be"),
        ):
            plan(logits, [[1], [2]])
    assert not emulated.launches
