"""How a failed call of the cuDNN binding ends: the right error, with cuDNN's own reason, and nothing left alive."""

from __future__ import annotations

import atexit
import gc
import logging
import pickle
import threading

import pytest
from fake_cudnn.problem import (
    CALLS,
    FLOAT,
    NOTHING_ALIVE,
    ONLY_8,
    ONLY_9,
    VERSIONS,
    uniform,
)

from ctcbind.bindings import cudnn
from ctcbind.bindings.cudnn_status import (
    StatusCategory,
    category,
    cudnnStatus_t,
    cudnnStatus_v8_t,
    explain,
    status_name,
)
from ctcbind.errors import EngineUnsupported, InvalidInput, NativeError

pytest_plugins = ["fake_cudnn.fixture"]


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


NOT_A_STATUS = {
    "cudnnGetVersion",
    "cudnnGetCudartVersion",
    "cudnnGetMaxDeviceVersion",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudnnGetCallback",
}
STATUSES = {90000: (1001, 2006, 3000, 4003, 5000), 0: (1, 3, 9, 4, 8)}


def test_every_function_of_the_binding_is_in_these_tables():
    functions = {name for name in cudnn.__all__ if name.startswith("cudnn") and name[-2:] != "_t"}
    assert functions == set(CALLS) | NOT_A_STATUS


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("version", [92800, 8500])
def test_each_call_failing_raises_its_own_error_and_nothing_leaks(use_fake, version, call):
    fake = use_fake(version)
    if call in (ONLY_9 if version < 90000 else ONLY_8):
        with uniform(version=version) as p, pytest.raises(EngineUnsupported, match=f"has no {call}"):
            CALLS[call](p)
        return
    for status in STATUSES[90000 if version >= 90000 else 0]:
        with uniform(version=version) as p:
            fake.fail(call, status)
            with pytest.raises(NativeError) as caught:
                CALLS[call]() if call.startswith("cudnnCreate") else CALLS[call](p)
            if call.startswith("cudnnDestroy"):
                # what could not be destroyed is not tried again
                left = fake.live
                assert sum(left.values()) == 4
        error = caught.value
        assert (error.call, error.status) == (call, status)
        assert error.name == status_name(status, version)
        assert error.explanation
        assert call in str(error)
        assert str(status) in str(error)
        assert isinstance(error, RuntimeError)
        assert pickle.loads(pickle.dumps(error)).status == status
        if call.startswith("cudnnDestroy"):
            assert sum(fake.live.values()) == 1
            fake.reset(version)
        assert fake.live == NOTHING_ALIVE
        assert fake.stray == 0


@pytest.mark.parametrize("nth", range(1, 10))
def test_the_nth_call_failing_leaves_nothing_alive(fake, nth):
    """Whatever call fails, what was made before it is given back when it goes out of scope."""

    def attempt():
        with uniform(T=10) as p:
            p.run()

    fake.fail("", 5000, nth)
    with pytest.raises(NativeError) as caught:
        attempt()
    assert caught.value.status == 5000
    del caught
    gc.collect()
    assert fake.live == NOTHING_ALIVE
    assert fake.stray == 0


def test_statuses_are_read_by_category():
    for known, version in ((cudnnStatus_t, 92800), (cudnnStatus_v8_t, 8500)):
        for status in known:
            assert category(status, version) is not StatusCategory.UNKNOWN
            assert status_name(status, version) == status.name
    same = {"SUCCESS", "BAD_PARAM", "NOT_SUPPORTED", "INTERNAL_ERROR", "EXECUTION_FAILED"}
    for name in same:
        old, new = cudnnStatus_v8_t[f"CUDNN_STATUS_{name}"], cudnnStatus_t[f"CUDNN_STATUS_{name}"]
        assert category(old, 8907) is category(new, 90000) is StatusCategory[name]
    for name in cudnnStatus_t.__members__.keys() & cudnnStatus_v8_t.__members__.keys():
        assert category(cudnnStatus_v8_t[name], 8907) is category(cudnnStatus_t[name], 90000), name
    assert category(cudnnStatus_v8_t.CUDNN_STATUS_ALLOC_FAILED, 8907) is StatusCategory.INTERNAL_ERROR
    assert cudnn.CUDNN_STATUS_SUCCESS == cudnnStatus_v8_t.CUDNN_STATUS_SUCCESS == 0
    with pytest.raises(AttributeError, match=r"CUDNN_STATUS_BAD_PARAM.*compare status_category\(error.status\)"):
        _ = cudnn.CUDNN_STATUS_BAD_PARAM
    with pytest.raises(AttributeError, match=r"it is cudnnDataType_t.CUDNN_DATA_HALF, which the CTC loss"):
        _ = cudnn.CUDNN_DATA_HALF
    with pytest.raises(AttributeError, match=r"no attribute 'cudnnRNNForward'$"):
        _ = cudnn.cudnnRNNForward
    # a number means another thing in the other numbering
    assert category(3, 92800) is StatusCategory.UNKNOWN
    assert category(3000, 8500) is StatusCategory.UNKNOWN
    # newer than any header known here
    assert category(2999, 99900) is StatusCategory.BAD_PARAM
    assert status_name(2999, 99900) == "CUDNN_STATUS_BAD_PARAM"
    assert category(6000, 99900) is StatusCategory.UNKNOWN
    assert category(-1, 92800) is StatusCategory.UNKNOWN


@pytest.mark.parametrize(
    ("status", "version", "name"),
    [
        (2002, 90000, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"),
        (11, 8907, "CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING"),
        (1999, 99900, "CUDNN_UNKNOWN_STATUS"),  # headers name no CUDNN_STATUS_LIBRARY
        (6000, 99900, "CUDNN_UNKNOWN_STATUS"),
        (99, 8907, "CUDNN_UNKNOWN_STATUS"),
    ],
)
def test_the_name_of_a_status(status, version, name):
    assert status_name(status, version) == name


@pytest.mark.parametrize(
    ("call", "status", "reason", "told"),
    [
        ("cudnnCreate", 1001, "", "no CUDA device or driver that this cuDNN can use"),
        ("cudnnCreate", 4000, "", "cuDNN failed inside, or memory ran out"),
        ("cudnnCTCLoss", 1001, "", "the library is not ready to work"),
        ("cudnnCTCLoss", 2000, "T is 0", "cuDNN holds an argument for wrong; cuDNN says: T is 0"),
    ],
)
def test_what_a_status_means(call, status, reason, told):
    assert explain(call, status, 92800, reason) == told


def test_the_numbering_goes_by_the_version_that_runs(use_fake):
    use_fake(92800)
    assert cudnn.status_category(3000) is StatusCategory.NOT_SUPPORTED
    use_fake(8500)
    assert cudnn.status_category(9) is StatusCategory.NOT_SUPPORTED
    assert cudnn.status_category(3000) is StatusCategory.UNKNOWN


REASON = "CUDNN_DATA_FLOAT != compType && CUDNN_DATA_DOUBLE != compType"


def test_the_reason_of_a_not_supported_is_in_the_error(use_fake, version, capfd):
    fake = use_fake(version)
    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        with pytest.raises(NativeError) as caught:
            cudnn.cudnnSetCTCLossDescriptor(desc, cudnn.cudnnDataType_t.CUDNN_DATA_HALF)
        assert caught.value.name == "CUDNN_STATUS_NOT_SUPPORTED"
        assert REASON in caught.value.explanation
        assert fake.live["ctcloss"] == 1
    assert capfd.readouterr().err == ""


def test_the_reason_of_a_bad_parameter_is_in_the_error(use_fake, version, capfd):
    use_fake(version)
    with cudnn.cudnnCreateTensorDescriptor() as desc, pytest.raises(NativeError) as caught:
        cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, (0, 1, 1), (1, 1, 1))
    assert "dimA[i] <= 0" in caught.value.explanation
    assert capfd.readouterr().err == ""


def test_an_older_error_is_not_taken_for_the_reason(fake):
    with cudnn.cudnnCreateTensorDescriptor() as tensor, cudnn.cudnnCreateCTCLossDescriptor() as desc:
        pointer, lib = tensor._pointer, cudnn.load().lib
        lib.cudnnSetTensorNdDescriptor(pointer, 0, 3, [0, 1, 1], [1, 1, 1])  # leaves its text behind
        with pytest.raises(NativeError) as caught:
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        assert "dimA" not in caught.value.explanation
        assert "dimA" in cudnn.cudnnGetLastErrorString()
        assert cudnn.cudnnGetLastErrorString() == ""


def test_a_machine_without_a_device(use_fake, version):
    fake = use_fake(version)
    fake.fail("cudnnCreate", 1001 if version >= 90000 else 1)
    with pytest.raises(NativeError, match="no CUDA device or driver"):
        cudnn.cudnnCreate()


# --- the log --------------------------------------------------------------------------------------------


def test_the_log_can_be_collected(use_fake, version):
    use_fake(version)
    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        with cudnn.collect_log() as lines, pytest.raises(NativeError, match="compType"):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        assert len(lines) == 1
        assert REASON in lines[0]
        with pytest.raises(NativeError, match="compType"):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        assert len(lines) == 1, "collected after the end"


def test_a_call_is_not_made_twice_when_somebody_listens(fake):
    with cudnn.cudnnCreateCTCLossDescriptor() as desc, cudnn.collect_log(), pytest.raises(NativeError):
        cudnn.cudnnSetCTCLossDescriptor(desc, 2)
    assert fake.calls.count("cudnnSetCTCLossDescriptor") == 1


def test_only_the_calls_of_this_thread_are_collected(fake):
    seen = {}

    def other():
        with cudnn.collect_log() as lines, cudnn.cudnnCreateTensorDescriptor() as desc:
            with pytest.raises(NativeError):
                cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, (0, 1, 1), (1, 1, 1))
            seen["other"] = list(lines)

    with cudnn.collect_log() as lines:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert lines == []
    assert len(seen["other"]) == 1


def test_the_end_of_the_interpreter_is_watched_once(fake):
    """atexit keeps a place for each that was ever registered, and looks through all of them."""
    with cudnn.collect_log():
        pass
    before = atexit._ncallbacks()
    for _ in range(10):
        with cudnn.collect_log():
            pass
    assert atexit._ncallbacks() == before


def test_at_the_end_of_the_interpreter_the_callback_goes_and_that_of_somebody_else_stays(fake):
    """Called here as atexit would."""
    library = cudnn.load()
    mask, udata, fptr = cudnn.ffi.new("unsigned *"), cudnn.ffi.new("void **"), cudnn.ffi.new("cudnnCallback_t *")
    theirs = cudnn.ffi.callback("cudnnCallback_t", lambda *args: None)
    with cudnn.collect_log():
        library.log._leave()
        library.lib.cudnnGetCallback(mask, udata, fptr)
        assert fptr[0] == cudnn.ffi.NULL
        library.lib.cudnnSetCallback(6, cudnn.ffi.NULL, theirs)
        library.log._leave()
        library.lib.cudnnGetCallback(mask, udata, fptr)
        assert fptr[0] == theirs
    library.lib.cudnnSetCallback(0, cudnn.ffi.NULL, cudnn.ffi.NULL)


def test_a_callback_of_ones_own(use_fake, version, capfd):
    use_fake(version)
    heard = []

    def listen(severity, udata, debug, message):
        heard.append((severity, udata, debug.cudnnStatus, message))

    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_WARNING_EN, "me", listen)
        assert cudnn.cudnnGetCallback() == (cudnn.CUDNN_SEV_WARNING_EN, "me", listen)
        with pytest.raises(NativeError, match="compType"):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        status = 3000 if version >= 90000 else 9
        assert [each[:3] for each in heard] == [(cudnn.CUDNN_SEV_WARNING, "me", status)]
        assert REASON in heard[0][3]
        cudnn.cudnnSetCallback(0, None, None)
        assert cudnn.cudnnGetCallback() == (0, None, None)
        with pytest.raises(NativeError):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        assert len(heard) == 1
    assert capfd.readouterr().err == ""


def callback_in_c():
    """The mask and the function that the library itself holds."""
    mask, udata, fptr = cudnn.ffi.new("unsigned *"), cudnn.ffi.new("void **"), cudnn.ffi.new("cudnnCallback_t *")
    assert cudnn.load().lib.cudnnGetCallback(mask, udata, fptr) == 0
    return mask[0], fptr[0]


def test_all_who_listen_are_told_what_they_asked_for(use_fake):
    """Whoever came last, and whoever goes first, as threads may."""
    use_fake(8500)  # a later one has errors in every mask
    error, warning, info = cudnn.CUDNN_SEV_ERROR_EN, cudnn.CUDNN_SEV_WARNING_EN, cudnn.CUDNN_SEV_INFO_EN
    first, second = cudnn.collect_log(info), cudnn.collect_log(error)
    cudnn.cudnnSetCallback(warning, None, print)
    with first:
        with cudnn.collect_log(error):
            assert callback_in_c()[0] == warning | info | error
        assert callback_in_c()[0] == warning | info
        second.__enter__()
        assert callback_in_c()[0] == warning | info | error
    assert callback_in_c()[0] == warning | error
    cudnn.cudnnSetCallback(0, None, None)
    assert callback_in_c()[0] == error
    second.__exit__(None, None, None)
    assert callback_in_c() == (0, cudnn.ffi.NULL)


def test_from_9_0_on_the_callback_stays(use_fake):
    """Without one, errors of other libraries' calls go to stderr."""
    use_fake(90000)
    with cudnn.collect_log():
        ours = callback_in_c()[1]
    assert callback_in_c()[1] == ours != cudnn.ffi.NULL


def test_a_callback_is_not_told_what_others_asked_for(fake):
    heard = []
    cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_ERROR_EN, None, lambda *told: heard.append(told))
    desc = cudnn.cudnnCreateCTCLossDescriptor()
    with desc, cudnn.collect_log() as lines, pytest.raises(NativeError, match="NOT_SUPPORTED"):  # a warning
        cudnn.cudnnSetCTCLossDescriptor(desc, 2)
    cudnn.cudnnSetCallback(0, None, None)
    assert (len(lines), heard) == (1, [])


def test_a_callback_without_a_mask_is_none(fake):
    cudnn.cudnnSetCallback(0, "me", print)
    assert cudnn.cudnnGetCallback() == (0, None, None)


def test_a_callback_that_could_not_be_set_leaves_the_one_before(fake):
    before = cudnn.CUDNN_SEV_WARNING_EN, "me", print
    cudnn.cudnnSetCallback(*before)
    fake.fail("cudnnSetCallback", 2000)
    with pytest.raises(NativeError, match="cudnnSetCallback"):
        cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_ERROR_EN, "you", repr)
    assert cudnn.cudnnGetCallback() == before
    cudnn.cudnnSetCallback(0, None, None)


def test_a_log_that_the_environment_asked_for_is_left_alone(fake):
    """A mask and no callback: where CUDNN_LOGDEST_DBG says."""
    cudnn.load().lib.cudnnSetCallback(2, cudnn.ffi.NULL, cudnn.ffi.NULL)
    with cudnn.cudnnCreateCTCLossDescriptor() as desc, cudnn.collect_log() as lines:
        assert callback_in_c() == (2, cudnn.ffi.NULL)
        with pytest.raises(NativeError, match="NOT_SUPPORTED"):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
    assert lines == []
    assert callback_in_c() == (2, cudnn.ffi.NULL)
    cudnn.load().lib.cudnnSetCallback(0, cudnn.ffi.NULL, cudnn.ffi.NULL)


def test_a_callback_that_raises_harms_nobody(fake, caplog, capfd):
    def broken(*args):
        raise ZeroDivisionError("in the callback")

    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        cudnn.cudnnSetCallback(cudnn.CUDNN_SEV_WARNING_EN, None, broken)
        with caplog.at_level(logging.ERROR, "ctcbind"), pytest.raises(NativeError, match="NOT_SUPPORTED"):
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        cudnn.cudnnSetCallback(0, None, None)
    assert "in the callback" in caplog.text
    assert capfd.readouterr().err == ""


def test_a_callback_of_somebody_else_is_left_alone(fake):
    library = cudnn.load()
    theirs = cudnn.ffi.callback("cudnnCallback_t", lambda *args: None)
    library.lib.cudnnSetCallback(6, cudnn.ffi.NULL, theirs)
    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        with cudnn.collect_log() as lines, pytest.raises(NativeError) as caught:
            cudnn.cudnnSetCTCLossDescriptor(desc, 2)
        assert lines == []
        assert REASON not in caught.value.explanation
    mask, udata, fptr = cudnn.ffi.new("unsigned *"), cudnn.ffi.new("void **"), cudnn.ffi.new("cudnnCallback_t *")
    library.lib.cudnnGetCallback(mask, udata, fptr)
    assert (mask[0], fptr[0]) == (6, theirs)
    library.lib.cudnnSetCallback(0, cudnn.ffi.NULL, cudnn.ffi.NULL)


def test_callbacks_refused():
    with pytest.raises(InvalidInput, match="mask"):
        cudnn.cudnnSetCallback(16, None, print)
    with pytest.raises(InvalidInput, match="mask"):
        cudnn.cudnnSetCallback(-2, None, print)
    with pytest.raises(InvalidInput, match="mask"):
        cudnn.collect_log(1)
    with pytest.raises(InvalidInput, match="callable"):
        cudnn.cudnnSetCallback(2, None, 5)
