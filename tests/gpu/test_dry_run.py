"""The tests for a GPU, run without one: on a CuPy and a libcudnn that work on host memory.

It shows that their code runs and that records are whole, so that a slip of the pen is not found first on a machine
that is lent by the hour. What cuDNN does, it does not show.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_cudnn
import fake_cupy
import pytest
import recording
from cudnn_lab import Lab
from experiments import EXPERIMENTS, MARK, main

pytest_plugins = ["fake_cudnn.fixture"]

TESTS = Path(__file__).resolve().parent.parent


def pytest_for_gpu(cwd, environment, *arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "-m", "gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=1800, check=False)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Processes that are started find a CuPy, two devices and a libcudnn, all on host memory."""
    try:
        library = fake_cudnn.build(tmp_path)
    except fake_cudnn.NoCompilerError as error:
        pytest.skip(str(error))
    folder = tmp_path / "packages"
    folder.mkdir()
    shutil.copy(fake_cupy.__file__, folder / "cupy.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    monkeypatch.setenv("CTCBIND_CUDNN", str(library))
    monkeypatch.setenv("CTCBIND_GPU_DRY", "1")
    monkeypatch.setenv("FAKE_CUPY_DEVICES", "2")
    monkeypatch.setenv("FAKE_CUPY_KERNELS", str(TESTS / "cuda"))


def test_the_script_names_every_file_that_holds_tests_for_a_gpu(tmp_path):
    script = (TESTS.parent / "tools" / "gpu_check.sh").read_text(encoding="utf-8")
    (lines,) = re.findall(r"^files=.*\n.*files\+=.*$", script, re.MULTILINE)
    found_first = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-c", lines + '\necho "${files[@]}"']
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=found_first)
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "--collect-only", str(TESTS)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    files = {Path(line.partition("::")[0]) for line in found.stdout.splitlines() if "::" in line}
    named = {Path(each) for each in told.stdout.split()}
    assert files
    assert all(named & {each, each.parent} for each in files)


def test_every_gpu_test_runs(stand_in, tmp_path):
    """All but the experiments, which follow: each passes, or is skipped for a reason that holds on a GPU too."""
    done = pytest_for_gpu(tmp_path, dict(os.environ), str(TESTS), "-k", "not on_record")
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > 200
    allowed = "declares no float64|bfloat16 arrays come from|tested beside its engine|'torch'|PyTorch sees no"
    allowed += "|engine warpctc is not|takes minutes for this|(JAX|PyTorch) is not installed"
    for line in done.stdout.splitlines():
        if line.startswith("SKIPPED"):
            assert re.search(allowed, line), line


@pytest.fixture
def fakes(use_fake, monkeypatch):
    """This process's own CuPy and libcudnn on host memory; forgets the fake's state."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    monkeypatch.setenv("CTCBIND_GPU_DRY", "1")
    return lambda: use_fake(92800)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_experiment_tells_what_it_observes(fakes, capfd, name):
    """Every variant: it begins, and something is observed, with no error of the experiment's own."""
    known = EXPERIMENTS[name]
    for number in range(len(known.variants)):
        fake = fakes()  # after a label out of range it computes nothing more
        status = main(name, number, 1)
        out, err = capfd.readouterr()
        assert status == 0, err
        lines = [json.loads(line[len(MARK) :]) for line in out.splitlines() if line.startswith(MARK)]
        machine = [line.pop("machine") for line in lines if "machine" in line]
        assert len(machine) == (number == 0)
        assert [line.get("begin") for line in lines if "begin" in line] == [number]
        observed = next(line["observed"] for line in lines if "observed" in line)
        assert observed
        assert "raised" not in observed, observed
        if not any(word in str(observed) for word in ("not_run", "NOT_SUPPORTED", "NULL", "size", "BAD_PARAM", "set")):
            assert "cudnnCTCLoss" in " ".join(fake.calls)


def test_what_the_fake_is_known_to_do_is_what_is_told(fakes, capfd):
    """Numbers of the records, where the fake's ways are known."""

    def told(name, **variant):
        fakes()
        known = EXPERIMENTS[name]
        with Lab(fake_cupy) as lab:
            return known.ask(lab, **variant)

    first = told("E1", api="host", algo=0)
    assert first["loss_off"] < 1e-4
    assert first["grad_off"] < 1e-5
    assert told("E1c", api="v8", c=10.0)["loss_off"] < 1e-4
    assert told("E3", api="v8", algo=0, mode=0)["gradient"] == "zero"
    skipped = told("E3", api="v8", algo=0, mode=1)
    assert (skipped["cost"], skipped["gradient"]) == (0, "untouched")
    assert told("E4", api="host", algo=0, empty="between")["costs"] == [0]
    assert told("E5", api="host", algo=1)["past_the_length"] == ["nothing", "untouched", "untouched"]
    assert told("E8", algo=0, L=256)["name"] == "CUDNN_STATUS_NOT_SUPPORTED"
    assert told("E13b", api="v8", short=1)["name"] == "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"
    assert told("E14", api="host", algo=0, case="logits batch first")["grad_off"] < 1e-5
    assert told("E7", api="host", algo=0, case="only 120")["cost"] == float("inf")
    assert told("E19", api="host", algo=0)["different_gradients"] == 1
    assert told("E25", api="host", what="bits")["sha256"] == told("E25", api="v8", what="bits")["sha256"]
    assert told("E24", api="host", algo=0, gradient="both")["median_ms"] > 0


def test_a_record(stand_in, tmp_path):
    """One experiment as it is run on a device: in a process of its own, and its line in the file."""
    entry = recording.record("E3")
    recording.check(entry)
    recording.write(tmp_path / "records", entry)
    recording.write(tmp_path / "records", entry)
    lines = (tmp_path / "records" / recording.FILE).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [entry, entry]
    assert (entry["cudnn"], entry["device"], entry["cupy"]) == ("9.28.0", "a stand-in", "14.0.0")
    assert len(entry["observed"]) == 8
    assert all(each["ended"] == "answered" for each in entry["observed"])


SCRIPT = """
import os, sys, time
sys.path[:0] = [{gpu!r}, {tests!r}]
import experiments
from ctcbind import NativeError

@experiments.experiment("X", "What?", "no", how=("well", "dies", "leaves", "loses", "hangs", "well", "raises"))
def x(lab, how):
    if how == "dies":
        os.abort()
    if how == "leaves":
        os._exit(5)
    if how == "hangs":
        time.sleep(100)
    if how == "raises":
        raise NativeError("cudnnCTCLoss", 5000, "CUDNN_STATUS_EXECUTION_FAILED", "it failed")
    if how == "loses":
        lab.alive = lambda: False
    if how == "wrong":
        raise TypeError("a slip of the pen")
    return {{"how": how, "number": float("nan")}}

if __name__ == "__main__":
    sys.exit(experiments.main("X", int(sys.argv[2]), int(sys.argv[3])))
"""


def test_a_process_that_dies_hangs_or_loses_the_device_is_on_record(stand_in, tmp_path, monkeypatch):
    text = SCRIPT.format(gpu=str(Path(__file__).parent), tests=str(TESTS))
    script = tmp_path / "script.py"
    script.write_text(text, encoding="utf-8")
    monkeypatch.setattr(recording, "SCRIPT", script)
    space: dict[str, object] = {"__name__": "a test"}
    before = sys.path[:]
    exec(compile(text, str(script), "exec"), space)
    sys.path[:] = before
    try:
        entry = recording.record("X", limit=5)
        recording.check(entry)
        ended = [(each["variant"]["how"], each["ended"], each.get("by")) for each in entry["observed"]]
        assert ended == [
            ("well", "answered", None),
            ("dies", "died", "SIGABRT"),
            ("leaves", "died", "exit status 5"),
            ("loses", "answered", None),
            ("hangs", "was ended", None),
            ("well", "answered", None),
            ("raises", "answered", None),
        ]
        assert entry["observed"][0]["observed"] == {"how": "well", "number": "nan"}
        assert entry["observed"][3]["device_lost"] is True
        assert "EXECUTION_FAILED" in entry["observed"][6]["observed"]["raised"]
        script.write_text(text.replace('("well", "dies"', '("wrong", "dies"'), encoding="utf-8")
        with pytest.raises(AssertionError, match=r"(?s)X is at fault itself.*a slip of the pen"):
            recording.record("X", limit=5)
        script.write_text("raise SystemExit(3)", encoding="utf-8")
        with pytest.raises(AssertionError, match="ended before anything was asked"):
            recording.record("X", limit=5)
    finally:
        del EXPERIMENTS["X"]


def test_without_a_device_they_are_skipped_and_say_why(tmp_path):
    """Here: a CuPy that finds no device. The reason stands in pytest's summary."""
    folder = tmp_path / "packages"
    folder.mkdir()
    shutil.copy(fake_cupy.__file__, folder / "cupy.py")
    for devices, reason in (("0", "needs a CUDA device: none found"), ("-1", "cudaErrorInsufficientDriver")):
        environment = {**os.environ, "PYTHONPATH": str(folder), "FAKE_CUPY_DEVICES": devices}
        done = pytest_for_gpu(tmp_path, environment, str(Path(__file__).parent))
        assert done.returncode == 0, done.stdout
        assert reason in done.stdout
        assert " passed" not in done.stdout
