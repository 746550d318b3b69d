"""Arrays that hold more than numbers, or none that can be read, are refused: a gradient or a trace would be lost."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
import pytest
from batches import SEED

import ctcbind

T, N, C = 9, 3, 5
TARGETS = [[1, 2, 2], [4], []]
FRAMES, COUNTS = [9, 7, 8], [3, 1, 0]
PADDED = np.array([[1, 2, 2], [4, 0, 0], [0, 0, 0]])


@pytest.fixture
def x():
    return np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)


def test_a_tensor_that_requires_grad_is_read_where_nothing_has_a_gradient(x):
    torch = pytest.importorskip("torch")
    logits = torch.tensor(x, requires_grad=True)
    for given in (logits, logits * 1):
        assert ctcbind.greedy_decode(given) == ctcbind.greedy_decode(x)
        assert ctcbind.beam_search(given) == ctcbind.beam_search(x)
        assert ctcbind.check(given, TARGETS, FRAMES) == ctcbind.check(x, TARGETS, FRAMES)
        assert str(ctcbind.diagnose(given, TARGETS, FRAMES)) == str(ctcbind.diagnose(x, TARGETS, FRAMES))
        assert ctcbind.explain(given, TARGETS, FRAMES) == ctcbind.explain(x, TARGETS, FRAMES)


def test_a_tensor_that_requires_grad_is_not_detached_silently(x):
    torch = pytest.importorskip("torch")
    logits = torch.tensor(x, requires_grad=True)
    with pytest.raises(ctcbind.InvalidInput, match=r"^logits are int64; .*: pass logits\.float\(\)$"):
        ctcbind.ctc_loss(logits.long(), TARGETS, FRAMES)
    for call in (ctcbind.ctc_loss, ctcbind.ctc_loss_and_grad, ctcbind.align):
        with pytest.raises(ctcbind.InvalidInput, match=r"pass tensor\.detach\(\), or take a loss with ctcbind\.torch"):
            call(logits, TARGETS, FRAMES)
    with pytest.raises(ctcbind.InvalidInput, match="requires grad"):
        ctcbind.ctc_hvp(x, TARGETS, logits, FRAMES)
    right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
    np.testing.assert_array_equal(ctcbind.ctc_loss(logits.detach(), TARGETS, FRAMES).numpy(), right)
    with torch.no_grad():
        np.testing.assert_array_equal(ctcbind.ctc_loss(logits, TARGETS, FRAMES).numpy(), right)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
def test_a_tensor_with_a_tangent_is_not_detached_silently(x):
    torch = pytest.importorskip("torch")
    forward_ad = torch.autograd.forward_ad
    right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
    with forward_ad.dual_level():
        plain = torch.tensor(x)
        dual = forward_ad.make_dual(plain, torch.ones_like(plain))
        for call in (ctcbind.ctc_loss, ctcbind.ctc_loss_and_grad, ctcbind.align):
            with pytest.raises(ctcbind.InvalidInput, match=r"a tensor with a tangent.*unpack_dual\(tensor\)\.primal"):
                call(dual, TARGETS, FRAMES)
        for primal in (forward_ad.unpack_dual(dual).primal, plain):
            np.testing.assert_array_equal(ctcbind.ctc_loss(primal, TARGETS, FRAMES).numpy(), right)
        assert ctcbind.greedy_decode(dual) == ctcbind.greedy_decode(x)
        assert ctcbind.check(dual, TARGETS, FRAMES) == ctcbind.check(x, TARGETS, FRAMES)
    with pytest.raises(ctcbind.InvalidInput, match="a tensor with a tangent"):
        torch.func.jvp(lambda logits: ctcbind.ctc_loss(logits, TARGETS, FRAMES), (plain,), (plain,))


@pytest.mark.parametrize("module", ["numpy", "torch", "jax"])
def test_the_class_of_arrays_is_no_array(x, module):
    """It has what each of them has to be read by, and none of their values."""
    module = pytest.importorskip(module)
    for kind in (getattr(module, name) for name in ("ndarray", "float32", "Tensor", "Array") if hasattr(module, name)):
        if not isinstance(kind, type):
            continue
        with pytest.raises(ctcbind.InvalidInput, match=r"^logits are of type "):
            ctcbind.ctc_loss(kind, TARGETS)
        with pytest.raises(ctcbind.InvalidInput, match=r"^targets is .*; it must hold integers$"):
            ctcbind.ctc_loss(x, kind)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_what_pytorch_traces_is_no_constant(x):
    torch = pytest.importorskip("torch")

    class Losses(torch.nn.Module):
        def forward(self, logits):
            return ctcbind.ctc_loss(logits, TARGETS, FRAMES)

    logits, words = torch.tensor(x), r"that PyTorch is tracing.*ctcbind\.torch has losses"
    with pytest.raises(ctcbind.InvalidInput, match=words):
        torch.jit.trace(Losses(), (logits,))
    with pytest.raises(Exception, match=words):  # torch.export wraps it
        torch.export.export(Losses(), (logits,), strict=False)
    np.testing.assert_array_equal(Losses()(logits).numpy(), ctcbind.ctc_loss(x, TARGETS, FRAMES))


def test_tensors_that_cannot_be_read(x):
    torch = pytest.importorskip("torch")
    logits = torch.tensor(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of prototypes and of what it means to remove
        cures = {
            "on the device meta, and has no values": torch.empty(T, N, C, device="meta"),
            r"of layout torch\.sparse_coo; pass tensor\.to_dense\(\)": logits.to_sparse(),
            r"quantised; pass tensor\.dequantize\(\)": torch.quantize_per_tensor(logits.float(), 1, 0, torch.qint8),
            r"nested; pass tensor\.to_padded_tensor\(0\), or for targets \(-1\)": torch.nested.nested_tensor(
                list(logits)
            ),
            r"NumPy has no torch\.float8_e4m3fn; pass tensor\.float\(\)": logits.to(torch.float8_e4m3fn),
        }
    for words, tensor in cures.items():
        with pytest.raises(ctcbind.InvalidInput, match=f"^logits .* cannot be read as one array: .*{words}$"):
            ctcbind.ctc_loss(tensor, TARGETS)
        with pytest.raises(ctcbind.InvalidInput, match=f"^input_lengths: .*{words}$"):
            ctcbind.ctc_loss(x, TARGETS, tensor)
    conjugate = torch.complex(torch.tensor(x), torch.tensor(-x)).conj().imag  # PyTorch notes the sign, and writes none
    assert conjugate.is_neg()
    np.testing.assert_array_equal(ctcbind.ctc_loss(conjugate, TARGETS).numpy(), ctcbind.ctc_loss(x, TARGETS))


@pytest.mark.parametrize("name", ["logits", "targets"])
def test_what_pytorch_packs_is_no_row_of_samples(x, name):
    """A tuple of four fields: the batch was said to have three samples, or NumPy's error came through."""
    torch = pytest.importorskip("torch")
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(5, 7), torch.ones(2, 7)])
    given = {"logits": x, "targets": TARGETS} | {name: packed}
    with pytest.raises(ctcbind.InvalidInput, match=rf"^{name} are a PackedSequence; pass .*pad_packed_sequence"):
        ctcbind.ctc_loss(**given)
    assert f"{name} are a PackedSequence" in str(ctcbind.check(**given))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fn", "bfloat16"])
def test_the_narrow_dtypes_of_ml_dtypes(x, dtype):
    """Integers are integers; what is none, and no dtype of the logits, is told what to be made."""
    narrow = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype))
    labels, counts = np.array(PADDED).astype(narrow), np.array(COUNTS).astype(narrow)
    if "int" in dtype:
        right = ctcbind.ctc_loss(x, TARGETS, FRAMES)
        np.testing.assert_array_equal(ctcbind.ctc_loss(x, labels, FRAMES, counts), right)
        np.testing.assert_array_equal(ctcbind.ctc_loss(x, [row[:L] for row, L in zip(labels, COUNTS)], FRAMES), right)
    else:
        with pytest.raises(ctcbind.InvalidInput, match=rf"^targets holds {dtype}; .*: pass targets\.astype\(int\)$"):
            ctcbind.ctc_loss(x, labels, FRAMES, COUNTS)
    if dtype != "bfloat16":
        with pytest.raises(
            ctcbind.InvalidInput, match=rf"^logits are {dtype}; .* pass logits\.astype\(numpy.float32\)$"
        ):
            ctcbind.ctc_loss(x.astype(narrow), TARGETS)


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="it is float64 here")
def test_numpys_longest_float_is_to_keep_the_digits_that_it_can(x):
    with pytest.raises(
        ctcbind.InvalidInput, match=r"^logits are \S*float\d+; .* pass logits\.astype\(numpy\.float64\)$"
    ):
        ctcbind.ctc_loss(x.astype(np.longdouble), TARGETS)


def test_traced_arrays_are_told_where_to_go(x):
    jax = pytest.importorskip("jax")
    for transform in (jax.jit, jax.grad):
        with pytest.raises(ctcbind.InvalidInput, match=r"use ctcbind\.jax\.ctc_loss there"):
            transform(lambda y: ctcbind.ctc_loss(y, TARGETS, FRAMES).sum())(x)
    with pytest.raises(ctcbind.InvalidInput, match=r"input_lengths: .*use ctcbind\.jax"):
        jax.jit(lambda frames: ctcbind.ctc_loss(x, TARGETS, frames).sum())(np.array(FRAMES))
    with pytest.raises(ctcbind.InvalidInput, match="and call what gives no loss outside"):
        jax.jit(ctcbind.greedy_decode)(x)


class StandIn:
    """Modules of TensorFlow and Keras as far as ctcbind asks them; TensorFlow is installed in few places."""

    class Tensor: ...

    class Variable: ...

    class RaggedTensor: ...

    class SparseTensor: ...

    class KerasTensor: ...

    convert_to_tensor = staticmethod(np.asarray)

    @staticmethod
    def executing_eagerly() -> bool:
        return False


#: What each is told, as a pattern.
OF_TENSORFLOW = {
    "Tensor": r"without values was given, inside tf\.function .* tf\.numpy_function and tf\.custom_gradient, as docs",
    "Variable": r"without values was given, inside tf\.function .* tf\.numpy_function and tf\.custom_gradient, as docs",
    "KerasTensor": r"no values while the model is built: take the loss where it is trained",
    "RaggedTensor": r"it is ragged; pass tensor\.to_tensor\(-1\), and .* tensor\.row_lengths\(\) as input_lengths$",
    "SparseTensor": r"it is sparse; pass tf\.sparse\.to_dense\(tensor, -1\)$",
}


@pytest.mark.parametrize("name", OF_TENSORFLOW)
def test_what_tensorflow_has_no_array_of_is_told_how(x, name, monkeypatch):
    for module in ("tensorflow", "keras"):
        monkeypatch.setitem(sys.modules, module, StandIn)
    value, words = getattr(StandIn, name)(), OF_TENSORFLOW[name]
    for args in ((value, TARGETS), (x, value), (x, TARGETS, value)):
        with pytest.raises(ctcbind.InvalidInput, match=words):
            ctcbind.ctc_loss(*args)


def test_what_tensorflow_itself_has_no_array_of(x):
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed: pip install tensorflow-cpu")
    keras = pytest.importorskip("keras", reason="keras is not installed: pip install keras")
    variable = tf.Variable(x)
    for graph in (lambda y: ctcbind.ctc_loss(y, TARGETS), lambda y: ctcbind.ctc_loss(variable, TARGETS)):
        with pytest.raises(Exception, match=OF_TENSORFLOW["Tensor"]):  # TensorFlow wraps it
            tf.function(graph, autograph=False)(x)
    ragged, right = tf.ragged.constant(TARGETS), ctcbind.ctc_loss(x, TARGETS)
    given = {"RaggedTensor": ragged, "SparseTensor": ragged.to_sparse(), "KerasTensor": keras.Input((T, C))}
    for name, value in given.items():
        with pytest.raises(ctcbind.InvalidInput, match=OF_TENSORFLOW[name]):
            ctcbind.ctc_loss(x, value)
    for cured in (ragged.to_tensor(-1), tf.sparse.to_dense(ragged.to_sparse(), -1), variable):
        args = (cured, TARGETS) if cured is variable else (x, cured)
        np.testing.assert_array_equal(ctcbind.ctc_loss(*args), right)


class Unreadable:
    """Says that it can be had by DLPack, and cannot."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it has been given away")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def unreadable():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")
    return torch.ones(2, 3, dtype=torch.long).to_sparse(), torch.ones(2, 3, device="meta")


@pytest.mark.parametrize("which", ["buffer", "sparse", "meta"])
def test_what_cannot_be_read_is_named_wherever_it_is_given(x, which):
    wrong = Unreadable() if which == "buffer" else unreadable()[which == "meta"]
    calls = {
        "logits": lambda: ctcbind.ctc_loss(wrong, TARGETS),
        "targets": lambda: ctcbind.ctc_loss(x, wrong, FRAMES, COUNTS),
        "input_lengths": lambda: ctcbind.ctc_loss(x, TARGETS, wrong),
        "target_lengths": lambda: ctcbind.ctc_loss(x, PADDED, FRAMES, wrong),
        "path_bonus": lambda: ctcbind.ctc_lattice(x, TARGETS, FRAMES, path_bonus=wrong),
        "v": lambda: ctcbind.ctc_hvp(x, TARGETS, wrong, FRAMES),
        "frames": lambda: ctcbind.frames_to_seconds(wrong, 50),
        "a": lambda: ctcbind.edit_distance(wrong, [1]),
        "readings": lambda: ctcbind.error_rate(wrong, [[1], [2]]),
        r"truths\[0\]\[1\]": lambda: ctcbind.error_rate([[1], [2]], [[1, wrong], [2]]),
    }
    for name, call in calls.items():
        with pytest.raises(ctcbind.InvalidInput, match=f"^{name}\\b" if name.isalpha() else f"^{name}"):
            call()
    for report in (ctcbind.check(x, wrong), ctcbind.check(x, TARGETS, wrong), ctcbind.check(wrong, TARGETS)):
        assert report.refused


class Broken:
    """Says that it is an array, and raises where it is asked for."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [ValueError, TypeError, RuntimeError, BufferError])
def test_what_made_logits_unreadable_is_told_in_its_own_words(error):
    for wrong in (Broken(error("it is away")), Unreadable()):
        with pytest.raises(
            ctcbind.InvalidInput, match=rf"^logits \({type(wrong).__name__}\) cannot be read as one array: it"
        ) as caught:
            ctcbind.ctc_loss(wrong, TARGETS)
        assert str(caught.value).endswith(f": {caught.value.__cause__}")
        assert type(caught.value.__cause__) is (error if isinstance(wrong, Broken) else BufferError)


class WithoutNumPy:
    """As MXNet's arrays: rows of rows down to arrays of no dimension, each of which takes long to read."""

    def __init__(self, array: Any) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def asnumpy(self) -> Any:
        return self.array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, at: Any) -> WithoutNumPy:
        raise AssertionError("read number by number")


def test_arrays_that_numpy_would_read_number_by_number_are_not(x):
    for name, call in {
        "logits": lambda: ctcbind.ctc_loss(WithoutNumPy(x), TARGETS),
        "targets": lambda: ctcbind.ctc_loss(x, WithoutNumPy(PADDED), FRAMES, COUNTS),
        "input_lengths": lambda: ctcbind.ctc_loss(x, TARGETS, WithoutNumPy(np.array(FRAMES))),
    }.items():
        with pytest.raises(ctcbind.InvalidInput, match=rf"^{name}\b.*pass its asnumpy\(\)"):
            call()


def test_masks_in_a_list_are_not_dropped(x):
    masked = np.ma.array(x, mask=x > 0)
    rows = [[np.ma.array(row) if n else row for n, row in enumerate(frame)] for frame in x]
    for given in (list(masked), tuple(masked), [x[0], *masked[1:]], rows):
        with pytest.raises(ctcbind.InvalidInput, match=r"logits hold masked arrays.*logits\.filled\(-numpy\.inf\)"):
            ctcbind.ctc_loss(given, TARGETS)
