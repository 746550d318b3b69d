"""CuPy's build for ROCm: its arrays are read, and no engine that computes on CUDA's devices takes them."""

from __future__ import annotations

import sys

import fake_cupy
import numpy as np
import pytest

import ctcbind
from ctcbind import doctor
from ctcbind.device import to_device

WORDS = r"CuPy 14\.0\.0 is a build for ROCm, .*; cupy\.asnumpy copies arrays to the host$"
LOGITS = np.random.default_rng(0).normal(size=(6, 2, 4)).astype(np.float32)


@pytest.fixture(autouse=True)
def rocm(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr(fake_cupy.runtime, "is_hip", True)


@pytest.mark.parametrize("engine", ["cuda", "cudnn", "warpctc"])
def test_an_engine_says_that_it_is_for_cuda(engine):
    """The first said that its kernels do not compile, the second how to install cuDNN, the third that it lacks CUDA."""
    if engine == "warpctc" and not ctcbind.engines()[engine].available:
        pytest.skip("no warp-ctc is installed")
    with pytest.raises(ctcbind.EngineUnavailable, match=WORDS):
        ctcbind.ctc_loss(fake_cupy.asarray(LOGITS), [[1], [2]], engine=engine)


@pytest.mark.parametrize("engine", ["cuda", "cudnn"])
def test_so_it_does_where_the_arrays_are_on_the_host(engine):
    with pytest.raises(ctcbind.EngineUnavailable, match=WORDS):
        ctcbind.ctc_loss(LOGITS, [[1], [2]], engine=engine)
    info = ctcbind.engines()[engine]
    assert not info.available
    assert "is a build for ROCm" in info.reason
    with pytest.raises(ctcbind.EngineUnavailable, match=WORDS):
        to_device(LOGITS)


def test_auto_lists_why_no_engine_takes_it():
    with pytest.raises(ctcbind.EngineUnsupported, match=r"native: .*copy them with cupy\.asnumpy\n") as caught:
        ctcbind.ctc_loss(fake_cupy.asarray(LOGITS), [[1], [2]])
    assert str(caught.value).count("is a build for ROCm") == 2


def test_what_computes_on_the_host_takes_it():
    found = ctcbind.greedy_decode(fake_cupy.asarray(LOGITS))
    assert found == ctcbind.greedy_decode(LOGITS)


def test_the_doctor_sees_no_cuda_device():
    versions = doctor._versions()
    assert versions["CUDA device"] == doctor._runtime() == "none: CuPy is a build for ROCm"
    assert doctor._device_count() == 0
    assert doctor._on_devices(ctcbind.engines())["on a device"] == "no engine serves logits there"
