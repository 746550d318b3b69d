"""The cuDNN binding against a fake libcudnn: the calls it makes, its arguments, its settings and versions."""

from __future__ import annotations

import array
import ctypes
import doctest
import importlib
import re
from enum import IntEnum
from pathlib import Path

import numpy as np
import pytest
from batches import SEED
from fake_cudnn import unload
from fake_cudnn.problem import (
    FLOAT,
    KEEP_NAN,
    NONE,
    NOTHING_ALIVE,
    ONLY_9,
    SKIP,
    SOFTMAX,
    VERSIONS,
    ZERO,
    Problem,
    uniform,
)

import ctcbind
from ctcbind.bindings import cudnn, cudnn_enums, cudnn_library
from ctcbind.errors import EngineUnavailable, EngineUnsupported, InvalidInput

pytest_plugins = ["fake_cudnn.fixture"]


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def test_what_the_documents_make_of_the_gradient_for_probabilities(fake):
    """Of a ragged batch, one sample of which has no path: its rows, and those of padded time, are 0 and stay so."""
    page = (Path(__file__).parents[1] / "docs" / "asymmetry.md").read_text(encoding="utf-8")
    lines = re.findall(r"^    ((?:of_y|gradient) = .*)$", page, re.MULTILINE)
    x = np.random.default_rng(SEED).normal(size=(9, 3, 5)).astype(np.float32)
    y = np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)
    rows, frames = [[1, 2], [3], [4, 4]], [9, 5, 2]
    with Problem(y, [1, 2, 3, 4, 4], [2, 1, 2], frames, norm=NONE) as problem:
        problem.grad[...] = 0
        given = {"np": np, "y": y, "returned": problem.run()[1]}
    exec("\n".join(lines), given)
    right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), rows, frames, engine="reference")
    assert np.abs(given["gradient"] - right.grad).max() < 1e-5


@pytest.mark.parametrize("call", ["run", "run_v8"])
def test_the_forum_example(use_fake, version, call):
    fake = use_fake(version)
    with uniform(version=version) as problem:
        costs, grad = getattr(problem, call)()
    assert costs == pytest.approx([203.984] * 5, abs=1e-3)
    assert np.abs(grad.sum(axis=2)).max() < 1e-6
    assert fake.live == NOTHING_ALIVE
    assert fake.stray == 0
    setter = "cudnnSetCTCLossDescriptor_v9" if version >= 90000 else "cudnnSetCTCLossDescriptor_v8"
    v8 = "_v8" if call == "run_v8" else ""
    assert fake.calls == [
        "cudnnCreate",
        *["cudnnCreateTensorDescriptor"] * 2,
        "cudnnCreateCTCLossDescriptor",
        *["cudnnSetTensorNdDescriptor"] * 2,
        setter,
        f"cudnnGetCTCLossWorkspaceSize{v8}",
        f"cudnnCTCLoss{v8}",
        "cudnnDestroyCTCLossDescriptor",
        *["cudnnDestroyTensorDescriptor"] * 2,
        "cudnnDestroy",
    ]


def test_every_argument_arrives_where_it_belongs(fake):
    x = np.zeros((4, 2, 3), dtype=np.float32)
    with Problem(x, [1, 2, 1], [2, 1], [4, 3]) as p:
        cudnn.cudnnSetStream(p.handle, 0x1230)
        assert cudnn.cudnnGetStream(p.handle) == 0x1230
        p.run()
        p.run_v8()
        addresses = {
            "stream": 0x1230,
            "probs": x.ctypes.data,
            "costs": p.costs.ctypes.data,
            "gradients": p.grad.ctypes.data,
        }
    by_call = {entry["call"]: entry for entry in fake.log}
    ids = [entry["made"] for entry in fake.log if "made" in entry]
    for call in ("cudnnCTCLoss", "cudnnCTCLoss_v8"):
        entry = by_call[call]
        assert [entry[name] for name in ("handle", "probsDesc", "gradientsDesc", "ctcLossDesc")] == ids
        assert {name: entry[name] for name in addresses} == addresses
        assert (entry["labels"], entry["labelLengths"], entry["inputLengths"]) == ([1, 2, 1], [2, 1], [4, 3])
        assert entry["algo"] == 0
        asked = by_call[call.replace("cudnnCTCLoss", "cudnnGetCTCLossWorkspaceSize")]
        assert [asked[name] for name in ("handle", "probsDesc", "gradientsDesc", "ctcLossDesc")] == ids
        assert (asked["algo"], asked["size"]) == (0, entry["workSpaceSizeInBytes"])
    assert by_call["cudnnSetTensorNdDescriptor"]["dims"] == [4, 2, 3]
    assert by_call["cudnnSetTensorNdDescriptor"]["strides"] == [6, 3, 1]
    assert by_call["cudnnSetCTCLossDescriptor_v9"] | {"desc": 0} == {
        "call": "cudnnSetCTCLossDescriptor_v9",
        "desc": 0,
        "compType": 0,
        "normMode": 1,
        "gradMode": 0,
        "maxLabelLength": 2,
        "status": 0,
    }


def test_probabilities_and_activations_give_the_same_costs(fake):
    """And gradients of which the one can be made of the other."""
    x = np.random.default_rng(1).normal(size=(6, 2, 4)).astype(np.float32)
    p = np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)
    with (
        Problem(x, [1, 2, 3], [2, 1], [6, 4]) as activations,
        Problem(p, [1, 2, 3], [2, 1], [6, 4], norm=NONE) as probs,
    ):
        a, b = activations.run(), probs.run()
    np.testing.assert_allclose(a[0], b[0], rtol=1e-6)
    inside = np.arange(6)[:, None] < [6, 4]
    np.testing.assert_allclose(a[1][inside], (p + p * np.minimum(b[1], 0))[inside], atol=1e-6)


@pytest.mark.parametrize("run", ["run", "run_v8"])
def test_the_fake_computes_the_loss(fake, run):
    """What is built on it is worth as much as its numbers: those of the reference engine."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(12, 5, 6)).astype(np.float32)
    lengths = [3, 5, 1, 6, 4]
    targets = [rng.integers(1, 6, size=length) for length in lengths]
    targets[3] = np.array([2, 2, 2, 1, 1, 5])
    frames = [12, 11, 1, 12, 8]
    flat = [int(label) for each in targets for label in each]
    with Problem(x, flat, lengths, frames) as p:
        costs, grad = getattr(p, run)()
    wanted = ctcbind.ctc_loss_and_grad(x.astype(np.float64), targets, frames, engine="reference")
    np.testing.assert_allclose(costs, wanted.loss, rtol=1e-6)
    for n, count in enumerate(frames):
        np.testing.assert_allclose(grad[:count, n], wanted.grad[:count, n], atol=1e-6)


def test_strides_are_honoured(fake):
    x = np.random.default_rng(2).normal(size=(2, 5, 4)).astype(np.float32)  # (N, T, A) in memory
    with Problem(np.ascontiguousarray(x.transpose(1, 0, 2)), [1, 2, 3], [2, 1], [5, 5]) as plain:
        wanted = plain.run()
    with Problem(x.transpose(1, 0, 2), [1, 2, 3], [2, 1], [5, 5]) as strided:
        got = strided.run()
    np.testing.assert_array_equal(wanted[0], got[0])
    np.testing.assert_array_equal(wanted[1], got[1])


@pytest.mark.parametrize("shape", [(5, 1, 4), (1, 3, 4), (1, 1, 4), (5, 3, 1)])
def test_an_axis_of_one_element_has_no_order(fake, shape):
    """NumPy and CuPy leave any stride there: of one sample out of an array that was turned round, -35 were seen."""
    T, N, A = shape
    x = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    count = min(A - 1, 1)  # of the blank alone, none
    with Problem(x, [1] * N * count, [count] * N, [T] * N) as plain:
        wanted = plain.run()
    with Problem(x, [1] * N * count, [count] * N, [T] * N) as odd:
        strides = [-35 if size == 1 else step // 4 for size, step in zip(shape, x.strides)]
        for desc, first in ((odd.probs, strides[0]), (odd.grads, 7 if T == 1 else strides[0])):
            cudnn.cudnnSetTensorNdDescriptor(desc, FLOAT, shape, [first, *strides[1:]])
        got = odd.run()
    np.testing.assert_array_equal(wanted[0], got[0])
    np.testing.assert_array_equal(wanted[1], got[1])


@pytest.mark.parametrize("mode", [ZERO, SKIP])
def test_the_oddities_are_those_of_the_real_one(fake, mode):
    """What an engine has to put right: it is not hidden here."""
    x = np.zeros((6, 3, 4), dtype=np.float32)
    with Problem(x, [2, 2, 3, 1], [3, 0, 1], [3, 6, 2], mode=mode) as p:  # sample 0 needs 4 time steps
        costs, grad = p.run()
    assert costs[0] == 0
    assert costs[1] == 0
    assert costs[2] == pytest.approx(-np.log(3 / 16), rel=1e-6)
    assert (grad[:3, 0] == (0 if mode == ZERO else 7)).all()
    assert (grad[3:, 0] == 7).all()
    assert (grad[2:, 2] == 7).all(), "past the input length nothing is written"


def test_costs_without_gradients(fake):
    with uniform() as p:
        size = cudnn.cudnnGetCTCLossWorkspaceSize(p.handle, p.probs, None, *p.host, 0, p.desc)
        p.grow(size)
        costs, w = p.costs.ctypes.data, p.workspace.ctypes.data
        cudnn.cudnnCTCLoss(p.handle, p.probs, p.x.ctypes.data, *p.host, costs, None, None, 0, p.desc, w, size)
    assert p.costs == pytest.approx([203.984] * 5, abs=1e-3)
    assert (p.grad == 7).all()
    assert fake.log[-5]["gradientsDesc"] == 0


@pytest.mark.parametrize(
    "kind",
    [
        list,
        tuple,
        lambda v: np.array(v, dtype=np.int32),
        lambda v: array.array("i", v),
        lambda v: (ctypes.c_int * len(v))(*v),
        lambda v: memoryview(array.array("i", v)),
        lambda v: [np.int64(each) for each in v],
    ],
    ids=["list", "tuple", "numpy", "array", "ctypes", "memoryview", "numpy ints"],
)
def test_host_arrays_of_every_kind(fake, kind):
    with uniform(T=20, N=2) as p:
        p.host = tuple(kind(each) for each in p.host)
        costs, _ = p.run()
        assert np.isfinite(costs).all()
        assert fake.log[-1]["labels"] == [1, 2, 3, 4] * 2


def test_host_arrays_as_addresses_are_taken_on_trust(fake):
    with uniform(T=20, N=2) as p:
        host = [np.array(each, dtype=np.int32) for each in p.host]
        p.host = tuple(each.ctypes.data for each in host)
        p.run()
        assert fake.log[-1]["labels"] == [1, 2, 3, 4] * 2


def test_buffers_are_not_copied(fake):
    """The device may read them later than the call: what it reads is the caller's own memory."""
    labels = np.array([1, 2, 3, 4] * 5, dtype=np.int32)
    given = cudnn_library.ffi.cast("uintptr_t", _host_pointer(labels))
    assert int(given) == labels.ctypes.data


def _host_pointer(values):
    from ctcbind.bindings.cudnn_arguments import host_ints

    return host_ints("labels", values).pointer


def test_labels_outlive_the_call(fake):
    """The device may read them after it: a copy made here is kept, and so is the owner of a buffer."""
    with uniform(T=20, N=2) as p:
        p.run()
        assert all(isinstance(each, cudnn.ffi.CData) for each in p.handle._in_use)
        arrays = [array.array("i", each) for each in p.host]
        p.host = tuple(map(memoryview, arrays))
        p.run()
        assert all(kept is given for kept, given in zip(p.handle._in_use, arrays, strict=True))
        del p.host
        arrays[0].append(1)  # not locked


def test_a_batch_without_labels(fake):
    x = np.zeros((3, 2, 4), dtype=np.float32)
    with Problem(x, [], [0, 0], [3, 3]) as p:
        p.run()
        p.host = tuple(np.array(each, dtype=np.int32) for each in p.host)
        p.run()
    assert fake.log[-5]["labels"] == []


def test_the_descriptor_gives_back_what_was_set(fake):
    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        assert cudnn.cudnnGetCTCLossDescriptor_v9(desc) == (FLOAT, NONE, ZERO, 0)
        cudnn.cudnnSetCTCLossDescriptor_v9(desc, cudnn.CUDNN_DATA_DOUBLE, SOFTMAX, SKIP, 77)
        got = cudnn.cudnnGetCTCLossDescriptor_v9(desc)
        assert got == (cudnn.CUDNN_DATA_DOUBLE, SOFTMAX, SKIP, 77)
        assert got._fields == ("compType", "normMode", "ctcGradMode", "maxLabelLength")
        assert got.ctcGradMode is SKIP
        old = cudnn.cudnnGetCTCLossDescriptor_v8(desc)
        assert old.gradMode is KEEP_NAN
        assert cudnn.cudnnGetCTCLossDescriptorEx(desc) == (cudnn.CUDNN_DATA_DOUBLE, SOFTMAX, KEEP_NAN)
        assert cudnn.cudnnGetCTCLossDescriptor(desc) is cudnn.CUDNN_DATA_DOUBLE


@pytest.mark.parametrize(("norm", "keep"), [(SOFTMAX, False), (NONE, True)])
def test_norm_and_gradient_mode_keep_their_places(fake, norm, keep):
    """Where the two are the same number, an exchange would not show; and 0 is a longest label that may be set."""
    old, mode = cudnn.cudnnNanPropagation_t(keep), cudnn.cudnnCTCGradMode_t(keep)
    setters = (cudnn.cudnnSetCTCLossDescriptor_v8, old), (cudnn.cudnnSetCTCLossDescriptor_v9, mode)
    with cudnn.cudnnCreateCTCLossDescriptor() as desc:
        cudnn.cudnnSetCTCLossDescriptorEx(desc, FLOAT, norm, old)
        assert cudnn.cudnnGetCTCLossDescriptorEx(desc) == (FLOAT, norm, old)
        for longest in (7, 0):
            for setter, given in setters:
                setter(desc, FLOAT, norm, given, longest)
                assert cudnn.cudnnGetCTCLossDescriptor_v8(desc) == (FLOAT, norm, old, longest)
                assert cudnn.cudnnGetCTCLossDescriptor_v9(desc) == (FLOAT, norm, mode, longest)


def test_versions(use_fake):
    use_fake(92800)
    assert cudnn.cudnnGetVersion() == 92800
    assert cudnn.cudnnGetCudartVersion() == 12090
    assert cudnn.cudnnGetMaxDeviceVersion() == 1210
    assert cudnn.cudnnGetErrorString(3000) == "CUDNN_STATUS_NOT_SUPPORTED"
    assert cudnn.cudnnGetErrorString(9) == "CUDNN_UNKNOWN_STATUS"
    assert cudnn.cudnnGetErrorString(cudnn.cudnnStatus_t.CUDNN_STATUS_BAD_PARAM) == "CUDNN_STATUS_BAD_PARAM"
    assert "9.28.0" in repr(cudnn.load())
    assert cudnn.loaded_from().how == "CTCBIND_CUDNN"
    cudnn.cudnnAdvVersionCheck()
    use_fake(8500)
    assert cudnn.cudnnGetErrorString(9) == "CUDNN_STATUS_NOT_SUPPORTED"
    cudnn.cudnnAdvTrainVersionCheck()
    assert cudnn.has("cudnnSetCTCLossDescriptor_v8")
    for name in (*ONLY_9, "CUDNN_DATA_FLOAT", "__class__", ""):  # cffi has members of enums there too
        assert not cudnn.has(name)
    for wrong in (None, b"cudnnCreate", 5):
        with pytest.raises(InvalidInput, match="name must be that of a C function, not"):
            cudnn.has(wrong)
    with pytest.raises(EngineUnsupported, match=r"cuDNN 8\.5\.0 has no cudnnGetLastErrorString \(it came with 9\.0"):
        cudnn.cudnnGetLastErrorString()
    with pytest.raises(EngineUnsupported, match=r"it came with 8\.6"):
        cudnn.cudnnGetMaxDeviceVersion()


def test_a_cut_error_string_is_ended(fake):
    """9.0.0 fills the buffer to its end where the text is longer."""
    library = cudnn.load()
    fake._lib.fake_reset(90000)
    with cudnn.cudnnCreateTensorDescriptor() as desc:
        library.lib.cudnnSetTensorNdDescriptor(desc._pointer, 0, 3, [0, 1, 1], [1, 1, 1])
    assert cudnn.cudnnGetLastErrorString() == "dimA[i] <= 0"


@pytest.mark.parametrize("old", [7605, 7000, 6021])
def test_cudnn_before_8_is_refused(built_fake, monkeypatch, old):
    fake = built_fake(8)
    fake.reset(old)
    monkeypatch.setenv("CTCBIND_CUDNN", str(fake.path))
    unload()
    with pytest.raises(EngineUnavailable, match=rf"is cuDNN {old // 1000}\.\d+\.\d+, and 8\.0 or newer is needed"):
        cudnn.cudnnGetVersion()
    unload()


def test_releases_mixed_are_refused(built_fake, monkeypatch):
    fake = built_fake(9)
    fake.reset(92800)
    monkeypatch.setenv("CTCBIND_CUDNN", str(fake.path))
    unload()
    fake.fail("cudnnAdvVersionCheck", 1002)
    with pytest.raises(EngineUnavailable, match="several releases"):
        cudnn.load()
    unload()


def test_the_enums_are_those_of_the_declarations():
    """One truth: cdef/cudnn.h, which tools/check_headers.py holds against NVIDIA's."""
    for name in cudnn_enums.__all__:
        enum = getattr(cudnn_enums, name)
        if isinstance(enum, type) and issubclass(enum, IntEnum):
            declared = cudnn.ffi.typeof(name).relements
            assert {member.name: member.value for member in enum} == declared
    constants = [name for name in cudnn.__all__ if name.startswith("CUDNN_") and not name.endswith(("_EN", "_MAX"))]
    assert constants
    for name in constants:
        assert getattr(cudnn, name).name == name
    for name in ("CUDNN_SEV_ERROR", "CUDNN_SEV_WARNING", "CUDNN_SEV_INFO"):
        assert getattr(cudnn, f"{name}_EN") == 2 ** getattr(cudnn, name)


def test_every_name_is_there_and_documented():
    assert len(cudnn.__all__) == len(set(cudnn.__all__))
    for name in cudnn.__all__:
        thing = getattr(cudnn, name)
        if callable(thing) and name != "ffi":
            assert (thing.__doc__ or "").strip(), name


def test_examples_in_the_docstrings():
    for name in ("cudnn_enums", "cudnn_library", "cudnn_status"):
        module = importlib.import_module(f"ctcbind.bindings.{name}")
        failed, tried = doctest.testmod(module)
        assert tried
        assert not failed
