"""The binding against a real libcudnn: loading, versions, descriptors, errors. No GPU is needed for any of it.

Each test runs in a process of its own, since a process holds one cuDNN; CTCBIND_CUDNN chooses which, as it does
for everybody. Skipped, with the finder's reasons, where there is no cuDNN.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from ctcbind.bindings import find

ROOT = Path(find.__file__).resolve().parents[2]
HEAD = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from ctcbind.bindings import cudnn
from ctcbind.errors import *
FLOAT, DOUBLE = cudnn.CUDNN_DATA_FLOAT, cudnn.CUDNN_DATA_DOUBLE
NONE, SOFTMAX = cudnn.CUDNN_LOSS_NORMALIZATION_NONE, cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX
ZERO, SKIP = cudnn.CUDNN_CTC_ZERO_OOB_GRADIENTS, cudnn.CUDNN_CTC_SKIP_OOB_GRADIENTS
NO_NAN, NAN = cudnn.CUDNN_NOT_PROPAGATE_NAN, cudnn.CUDNN_PROPAGATE_NAN
VERSION = cudnn.cudnnGetVersion()
NINE = VERSION >= 90000

def fails(call, *arguments):
    try:
        call(*arguments)
    except NativeError as error:
        return error
    raise AssertionError("it did not fail")
"""


def run(script: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout, done.stderr


@cache
def absent() -> str | None:
    """Why there is no cuDNN to test with; None where there is one."""
    done = subprocess.run([sys.executable, "-c", HEAD], capture_output=True, text=True, env=os.environ, check=False)
    if done.returncode == 0:
        return None
    return " ".join(done.stderr.rpartition("EngineUnavailable: ")[2].split())


@pytest.fixture(autouse=True)
def present():
    reason = absent()
    if reason:
        pytest.skip(reason)


def test_it_loads_in_silence():
    out, err = run("""
        library = cudnn.load()
        assert library.version == VERSION >= 8000
        print(library.found.path, "|", library.found.how)
    """)
    path, _, how = out.strip().partition(" | ")
    assert Path(path).is_file()
    assert how
    assert err == ""


def test_a_found_one_is_the_loaded_one():
    run("""
        from ctcbind.bindings.find import find_cudnn, loaded_cudnn
        found = find_cudnn()
        assert found == cudnn.loaded_from(), (found, cudnn.loaded_from())
        assert find_cudnn() == found
        import os
        assert os.path.realpath(found.path) in map(os.path.realpath, loaded_cudnn())
    """)


def test_versions():
    run("""
        thousand = 10000 if NINE else 1000
        parts = [cudnn.cudnnGetProperty(each) for each in cudnn.libraryPropertyType]
        assert parts == [VERSION // thousand, VERSION % thousand // 100, VERSION % 100]
        assert cudnn.version_text(VERSION) == ".".join(map(str, parts))
        assert 10000 <= cudnn.cudnnGetCudartVersion() < 20000
        if VERSION >= 90000 or VERSION >= 8600:
            assert cudnn.cudnnGetMaxDeviceVersion() >= 900
        checks = ("Graph", "Ops", "Adv") if NINE else ("OpsInfer", "OpsTrain", "AdvInfer", "AdvTrain")
        for name in checks:
            getattr(cudnn, f"cudnn{name}VersionCheck")()
        others = ("OpsInfer", "AdvTrain") if NINE else ("Graph", "Adv")
        for name in others:
            try:
                getattr(cudnn, f"cudnn{name}VersionCheck")()
            except EngineUnsupported as error:
                assert cudnn.version_text(VERSION) in str(error)
            else:
                raise AssertionError(name)
    """)


def test_every_status_has_the_librarys_name():
    """The lists in cudnn_status.py, against what the library says of the numbers."""
    out, _ = run("""
        for status in cudnn.cudnnStatus_t if NINE else cudnn.cudnnStatus_v8_t:
            name = cudnn.cudnnGetErrorString(status)
            newer = NINE and VERSION < 92800 and name == "CUDNN_UNKNOWN_STATUS"
            assert name == status.name or newer, (status, name)
        print(cudnn.cudnnGetErrorString(99999))
    """)
    assert out.strip() == "CUDNN_UNKNOWN_STATUS"


def test_a_fresh_ctc_descriptor():
    run("""
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (FLOAT, NONE, NO_NAN, 0)
            assert cudnn.cudnnGetCTCLossDescriptorEx(desc) == (FLOAT, NONE, NO_NAN)
            assert cudnn.cudnnGetCTCLossDescriptor(desc) == FLOAT
    """)


def test_each_setter_and_getter_round_trip():
    run("""
        import itertools
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            for kind, norm, mode in itertools.product((FLOAT, DOUBLE), (NONE, SOFTMAX), (0, 1)):
                cudnn.cudnnSetCTCLossDescriptor(desc, kind)
                assert cudnn.cudnnGetCTCLossDescriptor(desc) is kind
                cudnn.cudnnSetCTCLossDescriptorEx(desc, kind, norm, mode)
                assert cudnn.cudnnGetCTCLossDescriptorEx(desc) == (kind, norm, mode)
                for longest in (0, 1, 255, 256, 2**31 - 1):  # the library checks none
                    cudnn.cudnnSetCTCLossDescriptor_v8(desc, kind, norm, mode, longest)
                    assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (kind, norm, mode, longest)
                    if NINE:
                        assert cudnn.cudnnGetCTCLossDescriptor_v9(desc) == (kind, norm, mode, longest)
                        cudnn.cudnnSetCTCLossDescriptor_v9(desc, kind, norm, 1 - mode, longest)
                        assert cudnn.cudnnGetCTCLossDescriptor_v9(desc) == (kind, norm, 1 - mode, longest)
                        assert cudnn.cudnnGetCTCLossDescriptor_v8(desc).gradMode == 1 - mode
    """)


def test_the_nan_mode_of_8_is_the_gradient_mode_of_9():
    run("""
        if not NINE:
            for call in (cudnn.cudnnSetCTCLossDescriptor_v9, cudnn.cudnnGetCTCLossDescriptor_v9):
                with cudnn.cudnnCreateCTCLossDescriptor() as desc:
                    try:
                        call(*([desc, FLOAT, SOFTMAX, SKIP, 9] if "Set" in call.__name__ else [desc]))
                    except EngineUnsupported:
                        continue
                raise AssertionError(call)
            raise SystemExit
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            for nan, mode in ((NO_NAN, ZERO), (NAN, SKIP)):
                cudnn.cudnnSetCTCLossDescriptor_v8(desc, FLOAT, SOFTMAX, nan, 7)
                assert cudnn.cudnnGetCTCLossDescriptor_v9(desc).ctcGradMode is mode
    """)


def test_the_older_setters_reset_what_they_do_not_take():
    run("""
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            cudnn.cudnnSetCTCLossDescriptor_v8(desc, FLOAT, SOFTMAX, NAN, 200)
            cudnn.cudnnSetCTCLossDescriptorEx(desc, FLOAT, SOFTMAX, NAN)
            assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (FLOAT, SOFTMAX, NAN, 0)
            cudnn.cudnnSetCTCLossDescriptor_v8(desc, FLOAT, SOFTMAX, NAN, 200)
            cudnn.cudnnSetCTCLossDescriptor(desc, FLOAT)
            assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (FLOAT, NONE, NO_NAN, 0)
    """)


def test_a_setter_that_fails_changes_nothing():
    run("""
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            cudnn.cudnnSetCTCLossDescriptor_v8(desc, DOUBLE, SOFTMAX, NAN, 200)
            for kind in cudnn.cudnnDataType_t:
                if kind not in (FLOAT, DOUBLE):
                    error = fails(cudnn.cudnnSetCTCLossDescriptor_v8, desc, kind, NONE, NO_NAN, 3)
                    assert cudnn.status_category(error.status) is cudnn.StatusCategory.NOT_SUPPORTED
                    assert error.name == "CUDNN_STATUS_NOT_SUPPORTED"
            assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (DOUBLE, SOFTMAX, NAN, 200)
    """)


def test_tensor_descriptors():
    run("""
        with cudnn.cudnnCreateTensorDescriptor() as desc:
            assert cudnn.cudnnGetTensorNdDescriptor(desc).nbDims == 0
            for dims, strides in (
                ([2, 3, 4], [12, 4, 1]),
                ([2, 3, 4], [4, 8, 1]),  # (N, T, A) in memory
                ([2, 3, 4], [20, 6, 1]),  # gaps
                ([1, 1, 1], [1, 1, 1]),
                ([2047, 1024, 1024], [1 << 20, 1 << 10, 1]),
            ):
                for kind in (FLOAT, DOUBLE):
                    cudnn.cudnnSetTensorNdDescriptor(desc, kind, dims, strides)
                    assert cudnn.cudnnGetTensorNdDescriptor(desc) == (kind, 3, dims, strides)
                    span = 1 + sum((d - 1) * s for d, s in zip(dims, strides))
                    assert cudnn.cudnnGetTensorSizeInBytes(desc) == span * (4 if kind is FLOAT else 8)
    """)


def test_what_a_tensor_descriptor_refuses():
    run("""
        with cudnn.cudnnCreateTensorDescriptor() as desc:
            for dims, strides, kind in (
                ([0, 1, 1], [1, 1, 1], "BAD_PARAM"),
                ([2, 0, 2], [4, 2, 1], "BAD_PARAM"),
                ([-1, 2, 2], [4, 2, 1], "BAD_PARAM"),
                ([2, 2, 2], [0, 2, 1], "BAD_PARAM"),
                ([2], [1], "BAD_PARAM"),
                ([2048, 1024, 1024], [1 << 20, 1 << 10, 1], "NOT_SUPPORTED"),
            ):
                error = fails(cudnn.cudnnSetTensorNdDescriptor, desc, FLOAT, dims, strides)
                assert cudnn.status_category(error.status).name == kind, error
                assert error.call == "cudnnSetTensorNdDescriptor"
                assert "cuDNN says: " in error.explanation, error
    """)


def test_the_reason_of_a_not_supported_is_in_the_error():
    """8.5 keeps it to itself (8.9 does not)."""
    out, err = run("""
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            error = fails(cudnn.cudnnSetCTCLossDescriptorEx, desc, 2, SOFTMAX, NAN)
            assert error.status == (3000 if NINE else 9)
            assert "CUDNN_DATA_FLOAT != compType" in str(error) or VERSION < 8900, error
            print(error)
            # what was done to hear it leaves no trace
            try:
                cudnn.cudnnCreate().close()
            except NativeError as error:
                pass
    """)
    assert "cudnnSetCTCLossDescriptorEx returned CUDNN_STATUS_NOT_SUPPORTED" in out
    assert err == ""


def test_what_others_do_wrong_later_is_not_written_to_stderr():
    """cudnnSetCallback(0, NULL, NULL) of 9.x turns silence into errors on stderr, of every user of the library."""
    _, err = run("""
        lib, ffi = cudnn.load().lib, cudnn.ffi
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            fails(cudnn.cudnnSetCTCLossDescriptor, desc, 2)
            with cudnn.collect_log():
                pass
            cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_ERROR_EN, None, lambda *message: None)
            cudnn.cudnnSetCallback(0, None, None)
        assert lib.cudnnSetCTCLossDescriptor(ffi.NULL, 0) != 0
    """)
    assert err == ""


def test_the_log_callback():
    run("""
        heard = []
        with cudnn.cudnnCreateTensorDescriptor() as desc:
            cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_ERROR_EN, "mine", lambda *message: heard.append(message))
            error = fails(cudnn.cudnnSetTensorNdDescriptor, desc, FLOAT, [0, 1, 1], [1, 1, 1])
            cudnn.cudnnSetCallback(0, None, None)
            fails(cudnn.cudnnSetTensorNdDescriptor, desc, FLOAT, [0, 1, 1], [1, 1, 1])
        (severity, udata, debug, message), = heard
        assert (severity, udata) == (cudnn.CUDNN_SEV_ERROR, "mine")
        assert debug.cudnn_version == VERSION
        assert debug.cudnnStatus == error.status
        import os, threading
        assert debug.pid == os.getpid()
        assert "function cudnnSetTensorNdDescriptor() called" in message
        assert "dimA[i] <= 0" in message
        assert "dimA[i] <= 0" in error.explanation
    """)


def test_calls_can_be_traced():
    run("""
        with cudnn.cudnnCreateTensorDescriptor() as desc, cudnn.collect_log(cudnn.CUDNN_SEV_INFO_EN) as lines:
            cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, [5, 3, 4], [12, 4, 1])
        assert len(lines) == 1, lines
        assert "function cudnnSetTensorNdDescriptor() called" in lines[0]
    """)


def test_a_log_that_goes_elsewhere_is_left_alone(tmp_path):
    """CUDNN_LOGDEST_DBG asks for a file: a callback would take the messages away from it."""
    log = tmp_path / "cudnn.log"
    script = """
        with cudnn.cudnnCreateCTCLossDescriptor() as desc:
            fails(cudnn.cudnnSetCTCLossDescriptor, desc, 2)
            with cudnn.collect_log() as lines:
                fails(cudnn.cudnnSetCTCLossDescriptor, desc, 2)
            assert lines == [] or not NINE
    """
    # 8 has other variables and levels
    run(script, CUDNN_LOGLEVEL_DBG="2", CUDNN_LOGWARN_DBG="1", CUDNN_LOGDEST_DBG=str(log))
    out, _ = run("print(VERSION)")
    if int(out) >= 90000:
        assert log.read_text(encoding="utf-8").count("CUDNN_STATUS_NOT_SUPPORTED") >= 2


def test_the_last_error_string():
    run("""
        if not NINE:
            raise SystemExit
        lib, ffi = cudnn.load().lib, cudnn.ffi
        assert lib.cudnnSetCTCLossDescriptor(ffi.NULL, 0) == 2000
        assert "ctcLossDesc" in cudnn.cudnnGetLastErrorString()
        assert cudnn.cudnnGetLastErrorString() == ""
    """)


def test_a_machine_without_a_gpu_is_told_so():
    run("""
        try:
            handle = cudnn.cudnnCreate()
        except NativeError as error:
            assert error.name == "CUDNN_STATUS_NOT_INITIALIZED", error
            assert error.status == (1001 if NINE else 1)
            assert "no CUDA device or driver" in error.explanation
            if NINE:
                assert "cudaGetDeviceCount" in error.explanation
        else:
            with handle:
                assert cudnn.cudnnGetStream(handle) == 0
    """)


def test_many_descriptors_in_many_threads():
    run("""
        import threading
        def work():
            for i in range(300):
                with cudnn.cudnnCreateCTCLossDescriptor() as desc, cudnn.cudnnCreateTensorDescriptor() as tensor:
                    cudnn.cudnnSetCTCLossDescriptor_v8(desc, FLOAT, SOFTMAX, NAN, i)
                    assert cudnn.cudnnGetCTCLossDescriptor_v8(desc).maxLabelLength == i
                    error = fails(cudnn.cudnnSetTensorNdDescriptor, tensor, FLOAT, [0, 1, 1], [1, 1, 1])
                    assert "dim" in error.explanation, error
        seen = []
        threading.excepthook = lambda args: seen.append(args.exc_value)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not seen, seen[0]
    """)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="links are made to a Linux installation")
@pytest.mark.parametrize("without", ["graph", "ops", "adv", "all"])
def test_a_broken_installation_is_an_exception_and_no_abort(tmp_path, without):
    """The main file aborts the process at its first call where it finds no libcudnn_graph."""
    out, _ = run("print(VERSION, cudnn.loaded_from().path)")
    version, path = out.split()
    if int(version) < 90000:
        without = {"graph": "ops_infer", "ops": "ops_train", "adv": "adv_train"}.get(without, without)
    for file in Path(path).parent.glob("libcudnn*.so.*"):
        wanted = file.name == Path(path).name or (without != "all" and f"_{without}." not in file.name)
        if wanted:
            # the main file must be one of its own: a link to it would lead back to the whole installation
            main = file.name == Path(path).name
            (shutil.copyfile if main else os.symlink)(file, tmp_path / file.name)
    script = """
        import sys
        sys.path.insert(0, ROOT)
        from ctcbind.bindings import cudnn
        from ctcbind.errors import EngineUnavailable
        try:
            cudnn.cudnnGetVersion()
        except EngineUnavailable as error:
            print(error)
    """
    searched = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    searched = [each for each in searched if not any(Path(each).glob("libcudnn*"))]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script).replace("ROOT", repr(str(ROOT)))],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "CTCBIND_CUDNN": str(tmp_path / Path(path).name),
            "LD_LIBRARY_PATH": ":".join(searched),
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout
    if without == "all":
        assert "only the front of cuDNN" in done.stdout
    else:
        assert f"libcudnn_{without}.so" in done.stdout
