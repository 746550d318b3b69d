"""`ctcbind doctor`: what it reports, and that it sees an engine that computes wrongly."""

import importlib.metadata
import json
import math
import platform
import re
import sys
import types
from dataclasses import replace

import fake_cupy
import numpy as np
import pytest

import ctcbind
from ctcbind import doctor
from ctcbind.__main__ import main
from ctcbind.device import to_device
from ctcbind.doctor import KNOWN, examine, render
from ctcbind.engines import NAMES, get
from ctcbind.engines import native as native_module
from ctcbind.errors import CtcbindError

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
    text = render(examination)
    last = KNOWN[-1]
    assert (
        f"\nFAILED: native, {last.name} [{last.source}]: expected 4.15888, got nothing "
        "(OSError: the library is broken)\n"
    ) in text
    assert text.endswith("\n\nA self-test FAILED.")
    assert re.search(rf"\nnative +yes +0 of {len(KNOWN)} right ", text)
    assert re.search(rf"\nreference +yes +{len(KNOWN)} of {len(KNOWN)} right ", text)
    assert all(check.passed for check in examination.checks if check.engine == "reference")
    told = examination.to_dict()
    assert told["healthy"] is False
    assert told["versions"] == examination.versions
    assert len(told["checks"]) == len(examination.checks)
    assert told["checks"][0] == {
        "engine": "native", "name": KNOWN[0].name, "source": KNOWN[0].source, "expected": KNOWN[0].loss, "got": None,
        "passed": False, "error": "OSError: the library is broken",
    }  # fmt: skip


@pytest.mark.parametrize("off", [1e-4, -1e-4])
def test_a_loss_that_is_off_by_more_than_float32_fails(off, monkeypatch):
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        return losses * (1 + off), grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)
    examination = examine()
    failed = [check.name for check in examination.checks if not check.passed]
    assert failed == [known.name for known in KNOWN if math.isfinite(known.loss)]
    name, source, loss = KNOWN[0].name, KNOWN[0].source, KNOWN[0].loss
    assert f"\nFAILED: native, {name} [{source}]: expected 203.984, got {loss * (1 + off):.6g}\n" in render(examination)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_value_of_a_gradient_that_is_not_finite_fails(value, monkeypatch):
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        grad[-1, 0, -1] = value
        return losses, grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)
    checks = [check for check in examine().checks if check.engine == "native"]
    assert [(check.passed, check.error) for check in checks] == [(False, "the gradient is not finite")] * len(KNOWN)


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


def test_engines_of_a_device_are_tested_with_arrays_there(device, monkeypatch):
    carried = []

    def carry(array):
        carried.append(array.ndim)
        return to_device(array)

    monkeypatch.setattr(doctor, "to_device", carry)
    assert examine().healthy
    assert carried.count(3) == 2 * len(KNOWN)  # cuda and cudnn


def test_a_device_that_takes_no_array_leaves_its_engines_untested(device, monkeypatch):
    def full(array):
        raise CtcbindError("the device is full")

    monkeypatch.setattr(doctor, "to_device", full)
    examination = examine()
    assert examination.healthy, "nobody has seen that they are wrong"
    assert examination.skipped == {"cuda": "the device is full", "cudnn": "the device is full"}
    assert examination.to_dict()["skipped"] == examination.skipped
    assert {check.engine for check in examination.checks}.isdisjoint(examination.skipped)
    text = render(examination)
    assert "\ncuda was not tested: the device is full\n" in text
    assert re.search(r"\ncudnn +yes +not run ", text)


@pytest.mark.parametrize(
    ("there", "devices", "built_with_cuda", "said"),
    [
        (
            ("cudnn", "warpctc"),
            1,
            True,
            "labels on the host: warpctc, cudnn; labels beside them: cudnn; auto takes cudnn",
        ),
        (("cudnn", "warpctc"), 1, False, "labels on the host: cudnn; labels beside them: cudnn; auto takes cudnn"),
        (("warpctc",), 1, True, "labels on the host: warpctc; auto takes none"),
        (("warpctc",), 0, True, "no engine serves logits there"),
        ((), 1, True, "no engine serves logits there"),
    ],
)
def test_warpctc_serves_a_device_where_both_are_there(there, devices, built_with_cuda, said, monkeypatch):
    monkeypatch.setattr(doctor, "_device_count", lambda: devices)
    monkeypatch.setattr(doctor, "built_with_cuda", lambda: built_with_cuda)
    here = (*there, "native", "reference")
    found = {name: replace(info, available=name in here) for name, info in ctcbind.engines().items()}
    assert doctor._on_devices(found)["on a device"] == said


def test_devices_and_cudas_versions(device, monkeypatch):
    runtime = fake_cupy.cuda.runtime
    monkeypatch.setattr(runtime, "runtimeGetVersion", lambda: 12040)
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 13010)
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 2)
    monkeypatch.setattr(runtime, "getDeviceProperties", lambda index: {"name": (b"the first", "the second")[index]})
    assert doctor._runtime() == "12.4 (CuPy's); the driver bears up to 13.1"
    assert doctor._device() == "the first, the second"


def test_versions_of_python_and_the_system(monkeypatch):
    monkeypatch.setattr(doctor, "_cupy_version", lambda: None)
    versions = doctor._versions()
    assert versions["Python"] == f"{platform.python_version()} ({sys.executable})"
    assert versions["CuPy"] == "not installed"
    assert versions["system"].split() == [platform.system(), platform.machine()]
    assert versions["threads"] == str(ctcbind.get_num_threads())


@pytest.mark.parametrize("name", ["cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x", "cupy-rocm-7-0", "cupy"])
def test_cupys_version_is_that_of_whichever_build_is_installed(name, monkeypatch):
    def version(asked):
        if asked != name:
            raise importlib.metadata.PackageNotFoundError(asked)
        return "14.1.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert doctor._cupy_version() == f"14.1.0 ({name})"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            b"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19\nGCC version:  gcc 12.3.0\n",
            "NVIDIA UNIX x86_64 Kernel Module 535.129.03 Thu Oct 19",
        ),
        (b"NVRM version: NVIDIA\xff 1\n", "NVIDIA\N{REPLACEMENT CHARACTER} 1"),
        (b"", "none seen"),
        (None, "none seen"),
    ],
)
def test_the_driver_is_what_the_kernel_says(content, said, tmp_path, monkeypatch):
    file = tmp_path / "version"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(doctor, "Path", lambda path: file if path == "/proc/driver/nvidia/version" else None)
    assert doctor._driver() == said


def test_the_kernel_is_asked_for_the_driver(monkeypatch):
    monkeypatch.setattr(doctor, "_driver", lambda: "its own words")
    assert doctor._versions()["CUDA driver"] == "its own words"


def test_engines_in_a_table():
    infos = ctcbind.engines()
    library = "/a/folder/with/a/long/name/and/then/some/libwarpctc.so.2"
    there = replace(infos["warpctc"], available=True, version="API 2", found="the folder", library=library, reason=None)
    gone = replace(
        infos["cudnn"], available=False, version=None, found=None, library=None, reason="no cuDNN:\n  - none"
    )
    engines = {"warpctc": there, "cudnn": gone}
    checks = tuple(
        doctor.Check("warpctc", known.name, known.source, known.loss, 1.0, passed=k != 1)
        for k, known in enumerate(KNOWN[:3])
    )
    examination = doctor.Examination({"ctcbind": "1"}, engines, checks, {})
    wide = render(examination)
    lines = wide.splitlines()
    assert lines[0] == "ctcbind      1"
    assert [re.split(" {2,}", line) for line in lines[2:6:2]] == [
        ["engine", "here", "self-test", "version", "found", "library"],
        ["warpctc", "yes", "2 of 3 right", "API 2", "the folder", library],
    ]
    assert re.split(" {2,}", lines[5]) == ["cudnn", "no", "not run", "-", "-", "-"]
    assert "\n\ncudnn is absent: no cuDNN:\n  - none\n" in wide
    assert "warpctc is absent" not in wide
    said = " ".join(wide.split())
    for name, info in engines.items():
        assert info.contract.limits
        assert all(f"{name}: {limit}" in said for limit in info.contract.limits)
    narrow = render(examination, 60).splitlines()
    assert "engine" not in {line.split(" ")[0] for line in narrow}, "the table has become paragraphs"


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_contracts_are_as_wide_as_the_terminal(width):
    contracts = {name: info.contract for name, info in ctcbind.engines().items()}
    lines = doctor._contracts(contracts, width)
    assert max(map(len, lines)) <= width
    if width < 100:  # a paragraph an engine
        assert [line for line in lines if line in contracts] == list(contracts)
        labels = [line.partition("labels in")[2].strip() for line in lines if line.startswith("  labels in")]
        assert labels == [f"{contract.labels} memory" for contract in contracts.values()]
