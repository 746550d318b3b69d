"""Arrays of every kind that installs here go in, are read where they lie, and come out as what they were."""

from __future__ import annotations

import array
import ctypes
import importlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import fake_cupy
import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind.engines.native import NativeSession

T, N, C = 9, 3, 5
TARGETS = [[1, 2, 2], [4], []]
FRAMES, COUNTS = [9, 7, 8], [3, 1, 0]
PADDED = np.array([[1, 2, 2], [4, 0, 0], [0, 0, 0]])
DTYPES = ("float16", "bfloat16", "float32", "float64")


class Exporter:
    """One that offers an array by the protocol of that name, and is none itself."""

    def __init__(self, host: np.ndarray) -> None:
        self.host = host


class ByInterface(Exporter):
    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.host.__array_interface__


class ByDLPack(Exporter):
    def __dlpack__(self, **options: Any) -> Any:
        return self.host.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.host.__dlpack_device__()


class ByNamespace(ByDLPack):
    """The least that the array API standard asks of an array and its module, as far as it is used here."""

    def __dlpack__(self, **options: Any) -> Any:
        # NumPy 1 reads by DLPack what it does not let write, and hands none of that on
        host = self.host if self.host.flags.writeable else self.host.copy()
        return host.__dlpack__(**options)

    def __array_namespace__(self) -> type[ByNamespace]:
        return ByNamespace

    @classmethod
    def from_dlpack(cls, value: Any) -> ByNamespace:
        return cls(np.from_dlpack(value))


class Kind(NamedTuple):
    """How to make an array of it from NumPy's, how to see one as NumPy's, and which type results have."""

    make: Callable[[np.ndarray], Any]
    see: Callable[[Any], np.ndarray]
    result: Callable[[], Any]
    dtypes: tuple[str, ...] = DTYPES[:1] + DTYPES[2:]
    needs: str = ""
    aligned: bool = False  # results are only copied where memory does not begin where the library wants it


def _torch(x: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype.name == "bfloat16" else torch.tensor(x)


def _of_torch(x: Any) -> np.ndarray:
    import ml_dtypes
    import torch

    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def _jax(x: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(x)


def _strict(x: np.ndarray) -> Any:
    import array_api_strict

    return array_api_strict.asarray(x)


def _tensorflow(x: np.ndarray) -> Any:
    import tensorflow

    return tensorflow.convert_to_tensor(x)


def _ctypes(x: np.ndarray) -> Any:
    return np.ctypeslib.as_ctypes(np.ascontiguousarray(x))


def _of_type(module: str, name: str) -> Callable[[], Any]:
    return lambda: getattr(importlib.import_module(module), name)


def _numpy() -> Any:
    return (np.ndarray, np.generic)


KINDS = {
    "numpy": Kind(lambda x: x, np.asarray, _numpy, DTYPES),
    "memoryview": Kind(memoryview, np.asarray, lambda: memoryview),
    "ctypes": Kind(_ctypes, np.asarray, _numpy, ("float32", "float64")),
    "__array_interface__": Kind(ByInterface, np.asarray, _numpy),
    "DLPack": Kind(ByDLPack, np.asarray, _numpy),
    "array API": Kind(ByNamespace, lambda x: x.host, lambda: ByNamespace),
    "torch": Kind(_torch, _of_torch, _of_type("torch", "Tensor"), DTYPES, "torch"),
    "jax": Kind(_jax, np.asarray, _of_type("jax", "Array"), DTYPES[:3], "jax", aligned=True),
    "array_api_strict": Kind(
        _strict, np.from_dlpack, _of_type("array_api_strict._array_object", "Array"), DTYPES[2:], "array_api_strict"
    ),
    "tensorflow": Kind(_tensorflow, np.asarray, _of_type("tensorflow", "Tensor"), DTYPES, "tensorflow", aligned=True),
}


@pytest.fixture(params=KINDS)
def kind(request):
    found = KINDS[request.param]
    if found.needs:
        pytest.importorskip(found.needs, reason=f"{found.needs} is not installed: pip install {found.needs}")
    return found


@pytest.fixture
def x():
    return np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)


def as_dtype(x, dtype):
    if dtype == "bfloat16":
        return x.astype(pytest.importorskip("ml_dtypes").bfloat16)
    return x.astype(dtype)


def same(kind, got, right):
    """Of that kind, and the very numbers that NumPy arrays give."""
    assert isinstance(got, kind.result())
    seen = kind.see(got)
    assert seen.dtype == right.dtype
    assert seen.shape == np.shape(right)
    np.testing.assert_array_equal(seen, right)


@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_and_gradients(kind, x, dtype):
    if dtype not in kind.dtypes:
        return  # this kind has no such dtype
    x = as_dtype(x, dtype)
    right = ctcbind.ctc_loss_and_grad(x, TARGETS, FRAMES)
    given = kind.make(x)
    for reduction in ("none", "sum", "label_mean"):
        right = ctcbind.ctc_loss_and_grad(x, TARGETS, FRAMES, reduction=reduction)
        got = ctcbind.ctc_loss_and_grad(given, TARGETS, FRAMES, reduction=reduction)
        same(kind, got.loss, right.loss)
        same(kind, got.grad, right.grad)
        same(kind, ctcbind.ctc_loss(given, TARGETS, FRAMES, reduction=reduction), right.loss)
    with ctcbind.CTCLoss(engine="reference") as plan:
        same(kind, plan(given, TARGETS, FRAMES).grad, plan(x, TARGETS, FRAMES).grad)
        same(kind, plan.loss(given, TARGETS, FRAMES), plan.loss(x, TARGETS, FRAMES))


def test_layout_ntc(kind, x):
    swapped = np.ascontiguousarray(x.transpose(1, 0, 2))
    got = ctcbind.ctc_loss_and_grad(kind.make(swapped), TARGETS, FRAMES, layout="NTC")
    right = ctcbind.ctc_loss_and_grad(swapped, TARGETS, FRAMES, layout="NTC")
    same(kind, got.grad, right.grad)


def test_targets_and_lengths(kind, x):
    """In any integer dtype, padded and in one row, of the logits' kind or beside NumPy's logits."""
    right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
    flat = np.concatenate([np.array(row, np.int64) for row in TARGETS])
    for dtype in (np.int32, np.int64, np.uint8):
        frames, counts, padded, row = (kind.make(np.array(each, dtype)) for each in (FRAMES, COUNTS, PADDED, flat))
        for logits in (x, kind.make(x)):
            for targets in (padded, row):
                losses = ctcbind.ctc_loss(logits, targets, frames, counts)
                np.testing.assert_array_equal(losses if logits is x else kind.see(losses), right)
    rows = [kind.make(np.array(row, np.int32)) for row in TARGETS[:2]] + [[]]
    np.testing.assert_array_equal(ctcbind.ctc_loss(x, rows, FRAMES), right)
    if hasattr(row, "__iter__"):
        np.testing.assert_array_equal(ctcbind.ctc_loss(x, list(row), FRAMES, COUNTS), right)


def test_what_is_beyond_the_loss(kind, x):
    given, v = kind.make(x), kind.make(np.flip(x).copy())
    args = TARGETS, FRAMES
    same(kind, ctcbind.ctc_hvp(given, TARGETS, v, FRAMES), ctcbind.ctc_hvp(x, TARGETS, np.flip(x), FRAMES))
    small = x[:3, :1].copy(), [[1, 2]]
    same(kind, ctcbind.ctc_hessian(kind.make(small[0]), small[1]), ctcbind.ctc_hessian(*small))
    same(kind, ctcbind.posteriors(given, *args), ctcbind.posteriors(x, *args))
    same(kind, ctcbind.ctc_lattice(given, *args).log_gamma, ctcbind.ctc_lattice(x, *args).log_gamma)
    prior = np.log(np.full(C, 1 / C)).astype(np.float32)
    own, right = (
        ctcbind.lattice_loss_and_grad(logits, *args, log_prior=log_prior)
        for logits, log_prior in ((given, kind.make(prior)), (x, prior))
    )
    same(kind, own.loss, right.loss)
    same(kind, own.grad, right.grad)
    path, other = ctcbind.align(given, *args), ctcbind.align(x, *args)
    assert isinstance(path.starts, kind.result())
    np.testing.assert_array_equal(kind.see(path.starts), other.starts)
    seconds = ctcbind.frames_to_seconds(path.starts, 50)
    assert isinstance(seconds, kind.result())
    np.testing.assert_allclose(kind.see(seconds), ctcbind.frames_to_seconds(other.starts, 50), rtol=1e-6)


def test_what_gives_no_arrays(kind, x):
    given = kind.make(x)
    assert [h.labels for h in ctcbind.greedy_decode(given)] == [h.labels for h in ctcbind.greedy_decode(x)]
    assert [b[0].labels for b in ctcbind.beam_search(given)] == [b[0].labels for b in ctcbind.beam_search(x)]
    assert ctcbind.check(given, TARGETS, FRAMES).ok
    assert str(ctcbind.explain(given, TARGETS, FRAMES)) == str(ctcbind.explain(x, TARGETS, FRAMES))
    assert str(ctcbind.diagnose(given, TARGETS, FRAMES)) == str(ctcbind.diagnose(x, TARGETS, FRAMES))
    word = kind.make(np.array([1, 2, 3]))
    assert ctcbind.edit_distance(word, [1, 3]) == 1


@pytest.fixture
def addresses(monkeypatch):
    """Where the native engine read the logits, and where it wrote the gradient."""
    found: dict[str, int] = {}
    run = NativeSession.run

    def spy(self: NativeSession, batch: Any, **options: Any) -> Any:
        losses, grad = run(self, batch, **options)
        found.update(logits=batch.logits.array.ctypes.data, grad=grad.ctypes.data, loss=losses.ctypes.data)
        return losses, grad

    monkeypatch.setattr(NativeSession, "run", spy)
    return found


def test_nothing_is_copied(kind, x, addresses):
    given = kind.make(x)
    result = ctcbind.ctc_loss_and_grad(given, TARGETS, FRAMES)
    seen = given.host if isinstance(given, Exporter) else kind.see(given)
    assert addresses["logits"] == seen.ctypes.data
    if not kind.aligned:
        assert addresses["grad"] == kind.see(result.grad).ctypes.data
        assert addresses["loss"] == kind.see(result.loss).ctypes.data


@pytest.mark.parametrize("how", ["every second class", "samples first", "backwards"])
@pytest.mark.parametrize("name", ["numpy", "memoryview", "__array_interface__", "DLPack", "array API"])
def test_strides_are_no_reason_to_copy(name, how, x, addresses):
    kind = KINDS[name]
    lain = {
        "every second class": lambda: np.repeat(x, 2, axis=2)[:, :, ::2],
        "samples first": lambda: np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
        "backwards": lambda: np.ascontiguousarray(x[::-1])[::-1],
    }[how]()
    assert not lain.flags.c_contiguous
    got = ctcbind.ctc_loss_and_grad(kind.make(lain), TARGETS, FRAMES)
    assert addresses["logits"] == lain.ctypes.data
    same(kind, got.grad, ctcbind.ctc_loss_and_grad(x, TARGETS, FRAMES).grad)


def test_read_only_memory(x):
    right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
    frozen = memoryview(x.tobytes()).cast("f", x.shape)
    assert frozen.readonly
    np.testing.assert_array_equal(ctcbind.ctc_loss(frozen, TARGETS, FRAMES), right)


def test_rows_of_the_standard_library(x):
    """array.array holds labels and lengths; ctypes and memoryview.cast give it the three axes of logits."""
    right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
    flat = array.array("i", [1, 2, 2, 4])
    losses = ctcbind.ctc_loss(x, flat, array.array("h", FRAMES), array.array("B", COUNTS))
    np.testing.assert_array_equal(losses, right)
    scores = memoryview(array.array("f", x.ravel().tolist())).cast("B").cast("f", x.shape)
    got = ctcbind.ctc_loss(scores, TARGETS, FRAMES)
    assert isinstance(got, memoryview)
    assert got.tolist() == right.tolist()
    table = (ctypes.c_float * C * N * T).from_buffer_copy(x.tobytes())
    np.testing.assert_array_equal(ctcbind.ctc_loss(table, TARGETS, FRAMES), right)


def test_a_file_in_memory(tmp_path, x):
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap)
    result = ctcbind.ctc_loss_and_grad(mapped, TARGETS, FRAMES)
    np.testing.assert_array_equal(result.grad, ctcbind.ctc_loss_and_grad(x, TARGETS, FRAMES).grad)
    assert type(result.grad) is np.ndarray


# --- GPU memory, with a stand-in for CuPy -----------------------------------------------------------------------


class Elsewhere(ByNamespace):
    """An array in GPU memory of a library that is not CuPy, known by DLPack alone."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __array_namespace__(self) -> type[Elsewhere]:
        return Elsewhere

    @classmethod
    def from_dlpack(cls, value: Any) -> Elsewhere:
        assert isinstance(value, fake_cupy.ndarray)
        return cls(value._host)


def test_an_array_of_another_library_in_gpu_memory(monkeypatch, x):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr(fake_cupy, "from_dlpack", lambda each: fake_cupy.ndarray(each.host), raising=False)
    given, v = Elsewhere(x), Elsewhere(np.flip(x).copy())
    got = ctcbind.ctc_hvp(given, TARGETS, v, FRAMES)  # which is computed on the host
    assert isinstance(got, Elsewhere)
    np.testing.assert_array_equal(got.host, ctcbind.ctc_hvp(x, TARGETS, np.flip(x), FRAMES))
    assert isinstance(ctcbind.align(given, TARGETS, FRAMES).states, Elsewhere)
    with pytest.raises(ctcbind.InvalidInput, match="targets are in GPU memory"):
        ctcbind.ctc_loss(x, Elsewhere(PADDED), FRAMES, COUNTS)
    with pytest.raises(ctcbind.EngineUnsupported, match="logits are on cuda:0"):
        ctcbind.ctc_loss(given, TARGETS, FRAMES, engine="native")
    seconds = ctcbind.frames_to_seconds(Elsewhere(np.array([0, 25])), 50)
    assert isinstance(seconds, Elsewhere)
    assert seconds.host.tolist() == [0, 0.5]


class Capsule:
    """A host array that can be had by DLPack and in no other way; it tells not even its shape."""

    def __init__(self, host: Any) -> None:
        self.host = np.asarray(host)

    def __dlpack__(self, **options: Any) -> Any:
        return self.host.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_an_array_that_tells_no_shape(x):
    """Two of them were taken for arrays of one shape, and C read past the smaller one."""
    v = np.flip(x).copy()
    right = ctcbind.ctc_hvp(x, TARGETS, v, FRAMES)
    for logits, along in ((Capsule(x), v), (x, Capsule(v)), (Capsule(x), Capsule(v))):
        np.testing.assert_array_equal(ctcbind.ctc_hvp(logits, TARGETS, along, FRAMES), right)
    for wrong in (x[:1, :1], x[:, :, :2], x[0]):
        for logits in (x, Capsule(x)):
            with pytest.raises(ctcbind.InvalidInput, match=r"v has shape .*; it must be that of the logits, \("):
                ctcbind.ctc_hvp(logits, TARGETS, Capsule(wrong), FRAMES)
    over = x.transpose(1, 0, 2), TARGETS, v.transpose(1, 0, 2), FRAMES
    np.testing.assert_array_equal(
        ctcbind.ctc_hvp(*map(Capsule, over[:1]), *over[1:], layout="NTC"), right.transpose(1, 0, 2)
    )
    assert ctcbind.error_rate(Capsule([[1, 2], [3, -1]]), Capsule([[1, 2], [4, -1]])) == 1 / 3
    assert ctcbind.edit_distance(Capsule([1, 2]), Capsule([1, 3])) == 1


def test_bfloat16_is_looked_at_without_ml_dtypes(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x, targets = torch.randn(30, 2, 6, generator=torch.Generator().manual_seed(SEED)).bfloat16(), [[1, 2], [3, 4]]
    plain = x.float().numpy()
    assert str(ctcbind.diagnose(x, targets)) == str(ctcbind.diagnose(plain, targets))
    assert ctcbind.check(x, targets).ok
    assert ctcbind.greedy_decode(x) == ctcbind.greedy_decode(plain)
    with pytest.raises(ctcbind.InvalidInput, match=r"pip install ml_dtypes, or pass logits\.float\(\)"):
        ctcbind.ctc_loss(x, targets)
