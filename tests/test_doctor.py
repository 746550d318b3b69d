"""`ctcbind doctor`: what it reports, and that it sees an engine that computes wrongly."""

import json
import math
import sys
import types
from dataclasses import replace

import numpy as np
import pytest

import ctcbind
from ctcbind import doctor
from ctcbind.__main__ import main
from ctcbind.doctor import KNOWN, examine, render
from ctcbind.engines import NAMES, get
from ctcbind.engines import native as native_module

pytest_plugins = ["fake_cudnn.fixture"]


def test_known_values_are_those_of_the_reference():
    for known in KNOWN:
        logits = np.log(np.array(known.probabilities))[:, None, :]
        loss = ctcbind.ctc_loss(logits, [list(known.labels)], blank=known.blank, engine="reference")[0]
        assert loss == known.loss or loss == pytest.approx(known.loss, rel=max(known.digits, 1e-12)), known.name


def test_every_engine_is_reported_and_the_available_ones_are_right():
    examination = examine()
    assert list(examination.engines) == list(NAMES)
    assert examination.healthy, [check for check in examination.checks if not check.passed]
    tested = {check.engine for check in examination.checks}
    assert {"native", "reference"} <= tested
    assert tested == {name for name, info in examination.engines.items() if info.available} - set(examination.skipped)


@pytest.mark.parametrize("width", [None, 60, 100, 160])
def test_text_tells_versions_contracts_and_results(width):
    text = render(examine(), width)
    for word in (ctcbind.__version__, np.__version__, "ctcbind_loss", "cudnnCTCLoss", f"{len(KNOWN)} of {len(KNOWN)}"):
        assert word in text
    assert "pre-softmax activations" in " ".join(text.split())
    assert text.endswith("All is well.")


def test_command(capsys):
    assert main(["doctor"]) == 0
    assert "All is well." in capsys.readouterr().out
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["healthy"] is True
    assert told["engines"]["native"]["contract"]["takes"] == "activations"
    assert "inf" in [check["got"] for check in told["checks"]]


def test_wrong_engine_fails_with_exit_status_1(monkeypatch, capsys):
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        losses[losses == np.inf] = 0  # what warp-ctc and cuDNN say of a sample without a path
        return losses, grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)
    assert main(["doctor"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "FAILED: native, a repeat that does not fit" in out
    assert "expected inf, got 0" in out
    assert main(["doctor", "--json"]) == 1


def test_engine_that_raises_is_a_failed_check(monkeypatch):
    def broken(self, batch, **options):
        raise OSError("the library is broken")

    monkeypatch.setattr(native_module.NativeSession, "run", broken)
    examination = examine()
    mine = [check for check in examination.checks if check.engine == "native"]
    assert not examination.healthy
    assert not any(check.passed for check in mine)
    assert "the library is broken" in render(examination)
    assert all(check.passed for check in examination.checks if check.engine == "reference")


def test_absent_engine_is_no_fault(monkeypatch):
    def absent():
        raise ctcbind.EngineUnavailable("no libwarpctc.so\nGet one with: pip install --no-deps paddlepaddle")

    monkeypatch.setattr(get("warpctc"), "library", absent)
    examination = examine()
    assert examination.healthy
    assert not examination.engines["warpctc"].available
    text = render(examination)
    assert "warpctc is absent: no libwarpctc.so" in text
    assert text.count("pip install --no-deps paddlepaddle") == 1
    assert examination.to_dict()["engines"]["warpctc"]["install"] == "pip install --no-deps paddlepaddle"


def test_broken_cupy_does_not_stop_it(monkeypatch):
    class Broken(types.ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("libcuda.so.1: cannot open shared object file")

    cupy = Broken("cupy")
    cupy.__spec__ = None
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    examination = examine()
    assert examination.versions["CUDA device"] == "none: libcuda.so.1: cannot open shared object file"
    assert examination.healthy


def test_wrong_number_of_threads_is_reported(monkeypatch):
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "many")
    examination = examine()
    assert "CTCBIND_NUM_THREADS is 'many'" in examination.versions["threads"]
    assert not examination.healthy


def test_infinite_loss_is_json():
    json.dumps(examine().to_dict(), allow_nan=False)
    assert any(known.loss == math.inf for known in KNOWN)


def test_without_a_device_it_says_that_nothing_serves_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    examination = examine()
    assert examination.versions["CUDA runtime"] == "not asked for: that needs CuPy"
    assert examination.versions["on a device"] == "no engine serves logits there"
    assert examination.versions["cuDNN"]


def test_the_head_of_a_list_of_reasons_ends_without_a_colon(monkeypatch):
    absent = "no cuDNN library could be used:\n  - the process: no cuDNN is loaded"
    found = {name: replace(info, available=False, reason=absent) for name, info in ctcbind.engines().items()}
    monkeypatch.setattr(doctor, "engines", lambda: found)
    assert examine().versions["cuDNN"] == "no cuDNN library could be used"


def test_what_serves_a_device(device):
    """Beside a CuPy and a libcudnn on host memory."""
    examination = examine()
    assert examination.healthy
    assert examination.versions["CUDA runtime"] == "12.9 (CuPy's); the driver bears up to 12.9"
    assert examination.versions["cuDNN"] == f"9.28.0 ({device.path})"
    told = examination.versions["on a device"]
    assert told == "labels on the host: cuda, cudnn; labels beside them: cuda, cudnn; auto takes cuda"
    assert {check.engine for check in examination.checks} >= {"cuda", "cudnn"}
    assert "on a device  labels on the host: cuda" in render(examination)
