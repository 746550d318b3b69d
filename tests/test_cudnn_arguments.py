"""What the cuDNN binding refuses, so that it never reaches C: the library would misread it, or die of it."""

from __future__ import annotations

import array
import re
import subprocess
import sys

import numpy as np
import pytest
from fake_cudnn.problem import (
    CALLS,
    DETERMINISTIC,
    FLOAT,
    KEEP_NAN,
    MAKERS,
    NOTHING_ALIVE,
    SOFTMAX,
    VERSIONS,
    ZERO,
    Problem,
    uniform,
)

from ctcbind.bindings import cudnn
from ctcbind.bindings.cudnn_status import StatusCategory
from ctcbind.errors import ClosedError, InvalidInput, NativeError

pytest_plugins = ["fake_cudnn.fixture"]


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture
def problem(fake):
    with uniform(T=10, N=2, A=5) as made:
        yield made


def loss_arguments(p):
    return {
        "handle": p.handle,
        "probsDesc": p.probs,
        "probs": p.x.ctypes.data,
        "hostLabels": p.host[0],
        "hostLabelLengths": p.host[1],
        "hostInputLengths": p.host[2],
        "costs": p.costs.ctypes.data,
        "gradientsDesc": p.grads,
        "gradients": p.grad.ctypes.data,
        "algo": DETERMINISTIC,
        "ctcLossDesc": p.desc,
        "workspace": 0x7F0000000000,
        "workSpaceSizeInBytes": 1 << 20,
    }


def loss_arguments_v8(p):
    labels, label_lengths, input_lengths = (each.ctypes.data for each in p.device)
    given = loss_arguments(p)
    for name in ("hostLabels", "hostLabelLengths", "hostInputLengths"):
        del given[name]
    return {**given, "labels": labels, "labelLengths": label_lengths, "inputLengths": input_lengths}


def size_arguments(p):
    given = loss_arguments(p)
    keep = ("handle", "probsDesc", "gradientsDesc", "algo", "ctcLossDesc")
    host = {"labels": p.host[0], "labelLengths": p.host[1], "inputLengths": p.host[2]}
    return {**{name: given[name] for name in keep}, **host}


def size_arguments_v8(p):
    given = size_arguments(p)
    return {name: given[name] for name in ("handle", "probsDesc", "gradientsDesc", "algo", "ctcLossDesc")}


LOSSES = {
    cudnn.cudnnCTCLoss: loss_arguments,
    cudnn.cudnnCTCLoss_v8: loss_arguments_v8,
    cudnn.cudnnGetCTCLossWorkspaceSize: size_arguments,
    cudnn.cudnnGetCTCLossWorkspaceSize_v8: size_arguments_v8,
}


def refused(fake, call, error, **arguments):
    before = len(fake.calls)
    with pytest.raises(error) as caught:
        call(**arguments)
    assert len(fake.calls) == before, "it reached C"
    assert fake.stray == 0
    return str(caught.value)


@pytest.mark.parametrize("call", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["handle", "probsDesc", "gradientsDesc", "ctcLossDesc"])
def test_null_closed_and_foreign_things_never_reach_c(fake, problem, call, name):
    given = LOSSES[call](problem)
    kind = type(given[name])
    makers = (make for make, _ in MAKERS.values())
    others = [made for made in (make() for make in makers) if not isinstance(made, kind)]
    for wrong in (*others, 0, given[name].address, "handle", object()):
        assert name in refused(fake, call, InvalidInput, **{**given, name: wrong})
    if name != "gradientsDesc":  # NULL there is for costs alone
        assert "NULL" in refused(fake, call, InvalidInput, **{**given, name: None})
    elif "gradients" in given:
        assert "gradientsDesc" in refused(fake, call, InvalidInput, **{**given, name: None})
    given[name].close()
    assert "was closed" in refused(fake, call, ClosedError, **given)
    for other in others:
        other.close()


@pytest.mark.parametrize("name", [name for name in CALLS if "Descriptor" in name and "Create" not in name])
def test_null_and_closed_descriptors_never_reach_c(fake, problem, name):
    stand_ins = {"probs": problem.probs, "desc": problem.desc}
    attribute = "probs" if "Tensor" in name else "desc"
    for wrong, error in ((None, InvalidInput), (problem.handle, InvalidInput), (stand_ins[attribute], ClosedError)):
        if error is ClosedError:
            wrong.close()
        setattr(problem, attribute, wrong)
        refused(fake, lambda: CALLS[name](problem), error)
        setattr(problem, attribute, stand_ins[attribute])


@pytest.mark.parametrize("name", ["cudnnSetStream", "cudnnGetStream", "cudnnDestroy"])
def test_null_and_closed_handles_never_reach_c(fake, problem, name):
    handle = problem.handle
    for wrong, error in ((None, InvalidInput), (problem.probs, InvalidInput), (handle, ClosedError)):
        if error is ClosedError:
            handle.close()
        problem.handle = wrong
        refused(fake, lambda: CALLS[name](problem), error)
        problem.handle = handle


def test_a_closed_handle_in_a_with_statement(fake):
    with cudnn.cudnnCreate() as handle:
        handle.close()
        with pytest.raises(ClosedError), handle:
            pass
    assert fake.live == NOTHING_ALIVE


SETTERS = {
    cudnn.cudnnSetTensorNdDescriptor: {"dataType": FLOAT, "dimA": (2, 2, 2), "strideA": (4, 2, 1)},
    cudnn.cudnnSetCTCLossDescriptor: {"compType": FLOAT},
    cudnn.cudnnSetCTCLossDescriptorEx: {"compType": FLOAT, "normMode": SOFTMAX, "gradMode": KEEP_NAN},
    cudnn.cudnnSetCTCLossDescriptor_v8: {
        "compType": FLOAT,
        "normMode": SOFTMAX,
        "gradMode": KEEP_NAN,
        "maxLabelLength": 5,
    },
    cudnn.cudnnSetCTCLossDescriptor_v9: {
        "compType": FLOAT,
        "normMode": SOFTMAX,
        "ctcGradMode": ZERO,
        "maxLabelLength": 5,
    },
}
ENUMS = {
    "dataType": cudnn.cudnnDataType_t,
    "compType": cudnn.cudnnDataType_t,
    "normMode": cudnn.cudnnLossNormalizationMode_t,
    "gradMode": cudnn.cudnnNanPropagation_t,
    "ctcGradMode": cudnn.cudnnCTCGradMode_t,
}


def setter_target(problem, setter):
    return {"tensorDesc": problem.probs} if "Tensor" in setter.__name__ else {"ctcLossDesc": problem.desc}


@pytest.mark.parametrize("setter", SETTERS, ids=lambda f: f.__name__)
def test_garbage_is_no_member_of_an_enum(fake, problem, setter):
    given = {**setter_target(problem, setter), **SETTERS[setter]}
    for name in [each for each in given if each in ENUMS]:
        other = cudnn.cudnnSeverity_t.CUDNN_SEV_ERROR
        for wrong in (-1, 99, 2**31, 2**70, True, None, 0.0, "CUDNN_DATA_FLOAT", other, [0]):
            message = refused(fake, setter, InvalidInput, **{**given, name: wrong})
            assert name in message
            assert next(iter(ENUMS[name])).name in message, "the message lists what is right"
        for right in (SETTERS[setter][name], int(SETTERS[setter][name]), np.int32(SETTERS[setter][name])):
            setter(**{**given, name: right})


@pytest.mark.parametrize("call", LOSSES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("wrong", [2, -1, None, 1.0, True, SOFTMAX])
def test_garbage_is_no_algorithm(fake, problem, call, wrong):
    assert "algo" in refused(fake, call, InvalidInput, **{**LOSSES[call](problem), "algo": wrong})


def test_a_property_is_asked_for_by_its_enum(fake):
    assert [cudnn.cudnnGetProperty(each) for each in cudnn.libraryPropertyType] == [9, 28, 0]
    refused(fake, cudnn.cudnnGetProperty, InvalidInput, type=3)


@pytest.mark.parametrize("wrong", [-1, 2**31, 1.5, "4", None, True])
def test_the_longest_label_is_a_length(fake, problem, wrong):
    for setter in (cudnn.cudnnSetCTCLossDescriptor_v8, cudnn.cudnnSetCTCLossDescriptor_v9):
        given = {**setter_target(problem, setter), **SETTERS[setter]}
        assert "maxLabelLength" in refused(fake, setter, InvalidInput, **{**given, "maxLabelLength": wrong})


@pytest.mark.parametrize(
    ("dims", "strides"),
    [
        ((2, 2), (4, 2, 1)),
        ((), ()),
        ((1,) * 9, (1,) * 9),
        ((2, 2, 2**31), (4, 2, 1)),
        ((2, 2, 2), (4, 2, -(2**31) - 1)),
        ((2, 2, 2.0), (4, 2, 1)),
        ("222", (4, 2, 1)),
        (b"222", (4, 2, 1)),
        (np.ones((3, 3), int), (4, 2, 1)),
        (5, (4, 2, 1)),
        (None, None),
        ((2, 2, True), (4, 2, 1)),
    ],
)
def test_dimensions_that_c_would_misread(fake, problem, dims, strides):
    call = cudnn.cudnnSetTensorNdDescriptor
    refused(fake, call, InvalidInput, tensorDesc=problem.probs, dataType=FLOAT, dimA=dims, strideA=strides)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        (memoryview(np.ones((3, 1), np.int32)), "dimA must have one dimension, not 2"),
        (np.ones((3, 3), int), "dimA must have one dimension, not 2"),
        (np.array([2, 2, 2], np.dtype(np.int32).newbyteorder()), r"dimA has items of format '[<>]i'"),
        (memoryview(np.array([2, 2, 2], np.dtype(np.int64).newbyteorder())), r"dimA has items of format '[<>][lq]'"),
        (np.ones(3), r"dimA\[0\] must be an int, not float"),
    ],
)
def test_what_is_wrong_with_an_array_of_dimensions(fake, problem, dims, said):
    call = cudnn.cudnnSetTensorNdDescriptor
    message = refused(fake, call, InvalidInput, tensorDesc=problem.probs, dataType=FLOAT, dimA=dims, strideA=(4, 2, 1))
    assert re.match(said, message)


def test_as_many_dimensions_as_strides(fake, problem):
    given = {"tensorDesc": problem.probs, "dataType": FLOAT, "dimA": [2, 3, 4], "strideA": [4, 1]}
    message = refused(fake, cudnn.cudnnSetTensorNdDescriptor, InvalidInput, **given)
    assert message == "3 dimensions with 2 strides; equal numbers of 1 to 8 are right"


def test_dimensions_may_be_arrays(problem):
    for dims in (array.array("i", [2, 3, 4]), memoryview(array.array("l", [2, 3, 4])), range(2, 5)):
        cudnn.cudnnSetTensorNdDescriptor(problem.probs, FLOAT, dims, [12, 4, 1])
        assert cudnn.cudnnGetTensorNdDescriptor(problem.probs) == (FLOAT, 3, [2, 3, 4], [12, 4, 1])
    cudnn.cudnnSetTensorNdDescriptor(problem.probs, FLOAT, np.array([2, 3, 4]), np.array([12, 4, 1], dtype=np.int32))
    assert cudnn.cudnnGetTensorNdDescriptor(problem.probs) == (FLOAT, 3, [2, 3, 4], [12, 4, 1])
    assert cudnn.cudnnGetTensorNdDescriptor(problem.probs, 2) == (FLOAT, 3, [2, 3], [12, 4])
    assert cudnn.cudnnGetTensorNdDescriptor(problem.probs, 0) == (FLOAT, 3, [], [])
    assert cudnn.cudnnGetTensorSizeInBytes(problem.probs) == 96


@pytest.mark.parametrize("wrong", [9, -1, None])
def test_dimensions_asked_for(fake, problem, wrong):
    call = cudnn.cudnnGetTensorNdDescriptor
    refused(fake, call, InvalidInput, tensorDesc=problem.probs, nbDimsRequested=wrong)


def test_descriptors_must_be_set_and_fit(fake, problem):
    """A fresh descriptor, one of other dimensions than (T, N, A), one that failed to be set, gradients of another
    shape."""
    with cudnn.cudnnCreateTensorDescriptor() as fresh:
        for call, arguments in LOSSES.items():
            given = arguments(problem)
            assert "was not set" in refused(fake, call, InvalidInput, **{**given, "probsDesc": fresh})
            assert "was not set" in refused(fake, call, InvalidInput, **{**given, "gradientsDesc": fresh})
        cudnn.cudnnSetTensorNdDescriptor(fresh, FLOAT, (10, 2, 5, 1), (10, 5, 1, 1))
        for call, arguments in LOSSES.items():
            assert "4 dimensions" in refused(fake, call, InvalidInput, **{**arguments(problem), "probsDesc": fresh})
        cudnn.cudnnSetTensorNdDescriptor(fresh, FLOAT, (10, 2, 6), (12, 6, 1))
        for call, arguments in LOSSES.items():
            message = refused(fake, call, InvalidInput, **{**arguments(problem), "gradientsDesc": fresh})
            assert "gradientsDesc has the dimensions (10, 2, 6), probsDesc (10, 2, 5)" in message
        with pytest.raises(NativeError):
            cudnn.cudnnSetTensorNdDescriptor(fresh, FLOAT, (10, 0, 6), (12, 6, 1))
        for call, arguments in LOSSES.items():
            assert "was not set" in refused(fake, call, InvalidInput, **{**arguments(problem), "probsDesc": fresh})


def test_the_device_call_needs_a_longest_label(fake, problem):
    for setter, given in SETTERS.items():
        if "v" in setter.__name__[-2:] or "Tensor" in setter.__name__:
            continue
        cudnn.cudnnSetCTCLossDescriptor_v9(problem.desc, FLOAT, SOFTMAX, ZERO, 4)
        setter(problem.desc, **given)  # resets it to 0
        for call in (cudnn.cudnnCTCLoss_v8, cudnn.cudnnGetCTCLossWorkspaceSize_v8):
            assert "maxLabelLength" in refused(fake, call, InvalidInput, **LOSSES[call](problem))
    cudnn.cudnnSetCTCLossDescriptor_v9(problem.desc, FLOAT, SOFTMAX, ZERO, 4)
    problem.run_v8()


def test_what_does_not_fit_has_its_rule_and_value(problem):
    """Of the gradients' descriptor, where that is the wrong one."""
    T, N, A = dims = problem.x.shape
    time_first, batch_first, apart = (N * A, A, 1), (A, T * A, 1), (2 * N * A, 2 * A, 2)
    given = loss_arguments(problem)

    def told(dims=dims, strides=time_first, **others):
        cudnn.cudnnSetTensorNdDescriptor(problem.grads, FLOAT, dims, strides)
        with pytest.raises(InvalidInput) as caught:
            cudnn.cudnnCTCLoss(**{**given, **others})
        return caught.value.rule, caught.value.value

    assert told(gradientsDesc=None) == ("pointer", given["gradients"])
    assert told((T, N, A, 1), (*time_first, 1)) == ("dims", (T, N, A, 1))
    assert told((T, N, A + 1), (N * A + N, A + 1, 1)) == ("dims", (T, N, A + 1))
    assert told(strides=apart) == ("strides", apart)
    assert told(strides=batch_first) == ("strides", batch_first)
    cudnn.cudnnSetCTCLossDescriptor(problem.desc, FLOAT)  # resets the longest label to 0
    with pytest.raises(InvalidInput) as caught:
        cudnn.cudnnCTCLoss_v8(**loss_arguments_v8(problem))
    assert (caught.value.rule, caught.value.value) == ("label_length", 0)


@pytest.mark.parametrize("call", LOSSES, ids=lambda f: f.__name__)
def test_strides_that_cudnn_does_not_follow(fake, problem, call):
    """Experiment E14 in docs/gpu: 9.19 answers them with success and wrong results."""
    T, N, A = dims = problem.x.shape
    time_first, batch_first = (N * A, A, 1), (A, T * A, 1)

    def told(probs, grads):
        for desc, strides in ((problem.probs, probs), (problem.grads, grads)):
            cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, dims, strides)
        return refused(fake, call, InvalidInput, **LOSSES[call](problem))

    apart = tuple(2 * each for each in time_first)
    assert f"probsDesc has the strides {apart}; the last must be 1" in told(apart, apart)
    assert "gradientsDesc has the strides" in told(time_first, apart)
    backwards = (-N * A, A, 1)
    assert "none negative" in told(backwards, backwards)
    for probs, grads in ((time_first, batch_first), (batch_first, time_first)):
        assert f"gradientsDesc has the strides {grads}, probsDesc {probs}: one is time first" in told(probs, grads)
    gaps = (N * A + 7, A + 1, 1)
    for strides in (gaps, batch_first, time_first):
        for desc in (problem.probs, problem.grads):
            cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, dims, strides)
        cudnn.cudnnGetCTCLossWorkspaceSize(**size_arguments(problem))


@pytest.mark.parametrize("call", [cudnn.cudnnCTCLoss, cudnn.cudnnCTCLoss_v8], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["probs", "costs", "gradients", "workspace"])
def test_pointers(fake, problem, call, name):
    given = LOSSES[call](problem)
    for wrong in (-4, 2**64, 1.0, "0x100", True, problem.x, [given[name]]):
        assert name in refused(fake, call, InvalidInput, **{**given, name: wrong})
    assert "no address" in refused(fake, call, InvalidInput, **{**given, name: 4092})
    if name != "workspace":
        assert "aligned" in refused(fake, call, InvalidInput, **{**given, name: given[name] + 2})
    if name != "gradients":
        for null in (None, 0):
            assert "NULL" in refused(fake, call, InvalidInput, **{**given, name: null})


@pytest.mark.parametrize("kind", [np.intp, np.uintp, np.array])
def test_numbers_of_numpy_are_addresses(problem, kind):
    """They are buffers as well, of one item."""
    given = loss_arguments(problem)
    right = cudnn.cudnnGetCTCLossWorkspaceSize(**size_arguments(problem))
    arrays = [np.array(each, np.int32) for each in problem.host]
    addresses = dict(zip(("labels", "labelLengths", "inputLengths"), (kind(each.ctypes.data) for each in arrays)))
    assert cudnn.cudnnGetCTCLossWorkspaceSize(**{**size_arguments(problem), **addresses}) == right
    space = np.zeros(right, np.uint8)
    cudnn.cudnnCTCLoss(**{**given, "workspace": kind(space.ctypes.data), "workSpaceSizeInBytes": right})


@pytest.mark.parametrize("name", ["labels", "labelLengths", "inputLengths"])
def test_the_device_call_takes_addresses_only(fake, problem, name):
    given = loss_arguments_v8(problem)
    for wrong in (None, 0, [1, 2], np.zeros(3, np.int32), given[name] + 1, -1, 40):
        assert name in refused(fake, cudnn.cudnnCTCLoss_v8, InvalidInput, **{**given, name: wrong})


@pytest.mark.parametrize("call", [cudnn.cudnnCTCLoss, cudnn.cudnnCTCLoss_v8], ids=lambda f: f.__name__)
def test_workspace_and_size_swapped(fake, problem, call):
    given = LOSSES[call](problem)
    swapped = {**given, "workspace": given["workSpaceSizeInBytes"], "workSpaceSizeInBytes": given["workspace"]}
    assert "swap places" in refused(fake, call, InvalidInput, **swapped)
    for wrong in (-1, None, 2.0, True):
        refused(fake, call, InvalidInput, **{**given, "workSpaceSizeInBytes": wrong})


def test_a_workspace_too_small_is_the_librarys_to_refuse(use_fake, version):
    use_fake(version)
    with uniform(T=10, version=version) as p:
        for call in (cudnn.cudnnCTCLoss, cudnn.cudnnCTCLoss_v8):
            with pytest.raises(NativeError) as caught:
                call(**{**LOSSES[call](p), "workspace": None, "workSpaceSizeInBytes": 0})
            assert cudnn.status_category(caught.value.status) is StatusCategory.BAD_PARAM


@pytest.mark.parametrize("length", [256, 300])
def test_256_labels_are_the_librarys_to_refuse(use_fake, version, length):
    use_fake(version)
    x = np.zeros((length, 1, 2), dtype=np.float32)
    with Problem(x, [1] * length, [length], [length], version=version) as p:
        for run in (p.run, p.run_v8):
            with pytest.raises(NativeError) as caught:
                run()
            assert cudnn.status_category(caught.value.status) is StatusCategory.NOT_SUPPORTED


HOST_CALLS = {
    cudnn.cudnnCTCLoss: ("hostLabels", "hostLabelLengths", "hostInputLengths"),
    cudnn.cudnnGetCTCLossWorkspaceSize: ("labels", "labelLengths", "inputLengths"),
}


@pytest.mark.parametrize("call", HOST_CALLS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "wrong",
    [
        None,
        "1234",
        b"1234" * 4,
        bytearray(16),
        [1.0],
        [None],
        [True],
        [2**31],
        [-(2**31) - 1],
        np.zeros(8, dtype=np.int64),
        np.zeros(8, dtype=np.uint32),
        np.zeros(8, dtype=np.float32),
        np.zeros((2, 4), dtype=np.int32),
        np.zeros(16, dtype=np.int32)[::2],
        np.int32(4).reshape(()),
        {1, 2},
        3.0,
        -4,
        0,
        40,  # one length for all samples; as an address it would end the process
        4092,
    ],
    ids=repr,
)
def test_what_is_no_host_array_of_ints(fake, problem, call, wrong):
    for name in HOST_CALLS[call]:
        assert name in refused(fake, call, InvalidInput, **{**LOSSES[call](problem), name: wrong})


def test_what_to_do_with_int64_and_with_padded_labels_is_said(fake, problem):
    call, given = cudnn.cudnnCTCLoss, LOSSES[cudnn.cudnnCTCLoss](problem)
    for labels, cure in (
        (np.ones(8, np.int64), "not int64: pass hostLabels.astype(numpy.int32)"),
        (np.ones((2, 4), np.int32), "the labels of all samples stand one after the other, unpadded"),
    ):
        assert refused(fake, call, InvalidInput, **{**given, "hostLabels": labels}).endswith(cure)


def test_device_arrays_are_no_host_arrays(fake, problem):
    import fake_cupy

    array = fake_cupy.zeros(8, dtype=np.int32)
    for call, names in HOST_CALLS.items():
        for name in names:
            message = refused(fake, call, InvalidInput, **{**LOSSES[call](problem), name: array})
            assert "device" in message


@pytest.mark.parametrize("kind", [list, lambda v: np.array(v, dtype=np.int32)], ids=["list", "numpy"])
@pytest.mark.parametrize("call", HOST_CALLS, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("labels", "label_lengths", "input_lengths", "rule", "sample", "value"),
    [
        ([1, 2, 0, 4], [2, 2], [10, 10], "label_range", 1, 0),
        ([1, 2, 3, 5], [2, 2], [10, 10], "label_range", 1, 5),
        ([-1, 2, 3, 4], [2, 2], [10, 10], "label_range", 0, -1),
        ([1, 2, 3], [2, 2], [10, 10], "label_length", 1, 2),
        ([1, 2, 3, 4], [5, -1], [10, 10], "label_length", 0, 5),
        ([1, 2, 3, 4], [4, -1], [10, 10], "label_length", 1, -1),
        ([1, 2, 3, 4], [2, 2], [10, 11], "input_length", 1, 11),
        ([1, 2, 3, 4], [2, 2], [-1, 10], "input_length", 0, -1),
        ([1, 2, 3, 4], [2, 2, 0], [10, 10], "lengths", None, 3),
        ([1, 2, 3, 4], [4], [10, 10], "lengths", None, 1),
        ([1, 2, 3, 4], [2, 2], [10], "lengths", None, 1),
        ([1, 2, 3, 4], [2, 2], [], "lengths", None, 0),
    ],
)
def test_labels_and_lengths_that_cudnn_would_misread(
    fake, problem, call, kind, labels, label_lengths, input_lengths, rule, sample, value
):
    given = {**LOSSES[call](problem)}
    given |= dict(zip(HOST_CALLS[call], map(kind, (labels, label_lengths, input_lengths)), strict=True))
    before = len(fake.calls)
    with pytest.raises(InvalidInput) as caught:
        call(**given)
    assert (caught.value.rule, caught.value.sample, caught.value.value) == (rule, sample, value)
    assert len(fake.calls) == before


def test_labels_after_the_last_used_one_are_not_looked_at(fake):
    x = np.zeros((10, 2, 5), dtype=np.float32)
    with Problem(x, [1, 2, 3, 4, 0, 99], [2, 2], [10, 10]) as p:
        assert np.isfinite(p.run()[0]).all()
    assert not fake.poisoned


@pytest.mark.parametrize("wrong", [-1, 2**64, 1.0, "0", True])
def test_streams_are_addresses(fake, problem, wrong):
    message = refused(fake, cudnn.cudnnSetStream, InvalidInput, handle=problem.handle, streamId=wrong)
    assert "data.ptr" not in message
    if isinstance(wrong, (float, str)):
        assert "stream.ptr" in message


def test_streams(problem):
    for stream in (None, 0, 1, 2, 0x7F00DEAD0000):  # 1 and 2 are CUDA's legacy and per-thread default streams
        cudnn.cudnnSetStream(problem.handle, stream)
        assert cudnn.cudnnGetStream(problem.handle) == (stream or 0)


IN_A_CIRCLE = """
import gc
import numpy as np
from ctcbind.bindings import cudnn_arguments, warpctc_arguments

ints, floats = np.ones(3, np.int32), np.ones(3, np.float32)
for make in (
    lambda: cudnn_arguments.host_ints("labels", ints),
    lambda: warpctc_arguments.lengths_of("label_lengths", ints, 3),
    lambda: warpctc_arguments.memory("costs", floats, "float", 3, on_host=True),
):
    kept = [make()]
    kept.append(kept)
    del kept
    gc.collect()
"""


def test_the_garbage_collector_may_find_what_points_to_a_buffer(tmp_path):
    """With all that a failed call knew, once somebody has kept its error; cffi's own pointer to a memoryview ended the
    process there."""
    command = [sys.executable, "-c", IN_A_CIRCLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
