"""Arrays of other libraries: read as NumPy's or CuPy's where they lie, and results given back as their own kind.

No library is imported for it: a PyTorch tensor can only turn up where PyTorch has been imported already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import numpy as np

from .errors import InvalidInput

__all__ = [
    "Back",
    "as_numpy",
    "back_to",
    "cuda_array",
    "gpu_number",
    "is_masked",
    "not_compiled",
    "on_device",
    "packed",
    "plain_array",
    "plain_arrays",
    "torch_form",
    "without_grad",
]

#: Makes an array of the caller's kind from one of NumPy's or CuPy's.
Back = Callable[[Any], Any]

_Call = TypeVar("_Call", bound=Callable[..., Any])

#: What is no array of another library; a class may have all that its arrays have.
_NO_OTHERS = (np.ndarray, np.generic, list, tuple, int, str, type)

#: DLPack's numbers of devices (dlpack.h): memory of CUDA, and that which the driver moves.
_CUDA = (2, 13)


def not_compiled(function: _Call) -> _Call:
    """The function, which torch.compile is told to run as it is, between two graphs: in it are calls of C that PyTorch
    cannot follow, and fails at."""

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        compiler = getattr(sys.modules.get("torch"), "compiler", None)
        compiling = getattr(compiler, "is_compiling", None)  # from PyTorch 2.1 on, and not while it is being imported
        if compiling is not None and compiling():
            return sys.modules["torch"].compiler.disable(function)(*args, **named)
        return function(*args, **named)

    return cast("_Call", call)


def on_device(value: Any) -> bool:
    """Whether `value` is an array in a GPU's memory."""
    if isinstance(value, _NO_OTHERS):
        return False
    if _is_a("torch", "Tensor", value):  # whose __cuda_array_interface__ raises for one that requires grad
        return bool(value.is_cuda) and not getattr(sys.modules["torch"].version, "hip", None)  # ROCm's are called so
    if hasattr(value, "__cuda_array_interface__"):
        return True
    return _dlpack_device(value) in _CUDA


def as_numpy(value: Any) -> Any:
    """A host array of another library as NumPy's, without a copy where it can be had; anything else as it is.

    Raises InvalidInput for tensors whose gradient would get lost, for values that are not there yet, and by the rule
    "unreadable" for what cannot be read (sparse, deleted, without memory of its own).
    """
    if isinstance(value, _NO_OTHERS):
        return value
    try:
        if _is_a("torch", "Tensor", value):
            return _from_torch(value)
        if _is_a("jax", "Array", value):
            _refuse_traced(value)
            return np.asarray(value)
        _refuse_tensorflow(value)
        seen_otherwise = hasattr(value, "__array__") or hasattr(value, "__array_interface__")
        if hasattr(value, "__dlpack__") and not seen_otherwise:
            return np.from_dlpack(value)
        if hasattr(value, "asnumpy") and not seen_otherwise:  # MXNet's, which NumPy reads number by number for minutes
            raise TypeError("pass its asnumpy()")
    except InvalidInput:
        raise
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InvalidInput(
            f"an object of type {type(value).__name__} cannot be read as an array: {error}", rule="unreadable"
        ) from error
    return value


def plain_array(value: Any) -> Any:
    """A PyTorch tensor or a JAX array about which nothing needs to be said as NumPy's array, in its memory; anything
    else as it is.

    `as_numpy`, which says what there is to be said, takes more than twice as long.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not getattr(torch, "Tensor", None):
        return _plain_jax(value) if _is_a("jax", "Array", value) else value
    if not value.is_cpu or value.requires_grad or torch._C._get_tracing_state() is not None:
        return value
    if _is_mapped(value) or _has_tangent(value):
        return value
    try:
        return value.numpy()
    except (TypeError, ValueError, RuntimeError):  # NumPy has nothing like it
        return value


def _plain_jax(array: Any) -> Any:
    try:
        return np.asarray(array) if all(device.platform == "cpu" for device in array.devices()) else array
    except (TypeError, ValueError, RuntimeError):  # traced, deleted, of random keys, in part in another process
        return array


def plain_arrays(value: Any) -> Any:
    """The same of labels or lengths, which may also be a list of them."""
    if type(value) not in (list, tuple):
        return plain_array(value)
    if value and (_is_a("torch", "Tensor", value[0]) or _is_a("jax", "Array", value[0])):
        return list(map(plain_array, value))
    return value


def without_grad(value: Any) -> Any:
    """A PyTorch tensor, detached from its graph; anything else as it is. For functions whose results have no gradient
    and do not depend on the dtype: bfloat16 is widened where NumPy lacks it."""
    if not _is_a("torch", "Tensor", value):
        return value
    value = value.detach()  # from a tangent too
    if value.dtype != sys.modules["torch"].bfloat16 or value.is_cuda or find_spec("ml_dtypes"):
        return value
    return value.float()


def packed(value: Any) -> str | None:
    """What it is and what to pass in its place, of a PackedSequence, a tuple of PyTorch's whose fields are none of the
    samples; None for anything else."""
    if not (isinstance(value, tuple) and hasattr(value, "batch_sizes")):
        return None
    return f"a {type(value).__name__}; pass what torch.nn.utils.rnn.pad_packed_sequence makes of it, (padded, lengths)"


def is_masked(value: Any) -> bool:
    """Whether it is NumPy's masked array. numpy.ma is not imported for it: after a `fork` the import might hang."""
    return _is_a("numpy.ma", "MaskedArray", value)


def cuda_array(value: Any, cupy: Any) -> Any:
    """An array in GPU memory as CuPy's, without a copy; by DLPack where it can, so that streams wait for each other."""
    if isinstance(value, cupy.ndarray):
        return value
    if _is_a("torch", "Tensor", value):
        _refuse_grad(value)
        value = value.detach()
    if not (hasattr(value, "__dlpack__") and _dlpack_device(value) in _CUDA):
        return cupy.asarray(value)
    try:
        return cupy.from_dlpack(value)
    except NotImplementedError as error:
        raise InvalidInput(
            f"CuPy {cupy.__version__} cannot read this array in GPU memory ({error}); bfloat16 takes CuPy 14 and "
            "ml_dtypes",
            rule="logits_dtype",
        ) from error


def gpu_number(value: Any, cupy: Any) -> int:
    """The number of the device that an array in GPU memory is on; no stream is made to wait for another."""
    if isinstance(value, cupy.ndarray) or not hasattr(value, "__dlpack_device__"):
        return int(cuda_array(value, cupy).device.id)
    return int(value.__dlpack_device__()[1])


def back_to(value: Any) -> Back | None:
    """What turns results into arrays of the kind of `value`; None where they stay arrays of NumPy or CuPy.

    They do for those two, for Python's own sequences, and for objects that can be read but not made.
    """
    if isinstance(value, (np.ndarray, np.generic, list, tuple, type)):
        return None
    if _is_a("torch", "Tensor", value):
        return _to_torch
    if _is_a("jax", "Array", value):
        return partial(_to_jax, value)
    if _is_a("tensorflow", "Tensor", value):
        return sys.modules["tensorflow"].convert_to_tensor  # type: ignore[no-any-return]
    if isinstance(value, memoryview):
        return _to_memoryview
    if hasattr(value, "__array_namespace__") and not _is_a("cupy", "ndarray", value):
        return _to_namespace(value.__array_namespace__())
    return None


def _is_a(module: str, name: str, value: Any) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _dlpack_device(value: Any) -> int | None:
    try:
        return int(value.__dlpack_device__()[0])
    except Exception:  # any library may raise anything here; as far as can be told it is not on a device
        return None


def _from_torch(tensor: Any) -> Any:
    torch = sys.modules["torch"]
    if torch._C._get_tracing_state() is not None or _is_a("torch._subclasses.fake_tensor", "FakeTensor", tensor):
        raise InvalidInput(
            "a tensor was given that PyTorch is tracing (torch.jit.trace, torch.export), so that what is computed of "
            "it would be a constant: ctcbind.torch has losses for torch.export and torch.compile",
            rule="traced",
        )
    _refuse_grad(tensor)
    if (problem := torch_form(tensor, "tensor")) is not None:
        raise TypeError(f"it is {problem}")
    if not tensor.is_cpu:
        where = f"it is on the device {tensor.device}"
        raise TypeError(f"{where}, and has no values" if tensor.is_meta else f"{where}; pass tensor.cpu()")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(_bfloat16())
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        raise TypeError(f"NumPy has no {tensor.dtype}; pass tensor.float()")
    return tensor.numpy()


def torch_form(tensor: Any, name: str) -> str | None:
    """What a PyTorch tensor called `name` is, and the cure, where it does not hold its numbers one by one, each where
    strides say; None where it does."""
    if tensor.is_nested:
        padding = {"targets": "(-1)", "tensor": "(0), or for targets (-1)"}.get(name, "(0)")
        return f"nested; pass {name}.to_padded_tensor{padding}"
    if tensor.layout is not sys.modules["torch"].strided:
        return f"of layout {tensor.layout}; pass {name}.to_dense()"
    return f"quantised; pass {name}.dequantize()" if tensor.is_quantized else None


def _to_torch(array: Any) -> Any:
    torch = sys.modules["torch"]
    if not isinstance(array, (np.ndarray, np.generic)):
        return torch.from_dlpack(array)
    array = np.asarray(array)
    if array.dtype.kind == "V" and array.dtype.name == "bfloat16":  # the name takes longer than all the rest
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_jax(like: Any, array: Any) -> Any:
    """Results lie where `like` lies, if that is on one device, and where JAX puts them otherwise."""
    jax = sys.modules["jax"]
    if not isinstance(array, (np.ndarray, np.generic)):
        return jax.dlpack.from_dlpack(array)
    device, *more = like.devices()
    with nullcontext() if more else jax.default_device(device):
        return jax.numpy.asarray(array)


def _to_memoryview(array: Any) -> memoryview:
    return np.asarray(array).data


def _to_namespace(xp: Any) -> Back:
    def back(array: Any) -> Any:
        array = np.asarray(array) if isinstance(array, np.generic) else array
        try:
            return xp.from_dlpack(array)
        except (AttributeError, BufferError, TypeError, ValueError, RuntimeError):  # a dtype that DLPack cannot carry
            return xp.asarray(array)

    return back


def _is_mapped(tensor: Any) -> bool:
    """Whether it is what torch.func.vmap hands on, which has no values of its own."""
    mapped = getattr(getattr(sys.modules["torch"]._C, "_functorch", None), "is_batchedtensor", None)
    return mapped is not None and bool(mapped(tensor))


def _refuse_grad(tensor: Any) -> None:
    if _is_mapped(tensor):
        raise InvalidInput(
            "a tensor without values of its own was given, inside torch.func.vmap: use ctcbind.torch there, and call "
            "what gives no loss outside",
            rule="traced",
        )
    if tensor.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise InvalidInput(
            "a tensor that requires grad was given, and autograd cannot follow it here: pass tensor.detach(), or take "
            "a loss with ctcbind.torch",
            rule="requires_grad",
        )
    if _has_tangent(tensor):
        raise InvalidInput(
            "a tensor with a tangent was given, and forward-mode AD cannot follow it here: pass "
            "torch.autograd.forward_ad.unpack_dual(tensor).primal",
            rule="requires_grad",
        )


def _has_tangent(tensor: Any) -> bool:
    forward_ad = sys.modules["torch"].autograd.forward_ad
    return getattr(forward_ad, "_current_level", -1) >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def _refuse_traced(value: Any) -> None:
    if _is_a("jax.core", "Tracer", value):
        raise InvalidInput(
            "an array without values was given, inside jit, grad or vmap of JAX: use ctcbind.jax.ctc_loss there, and "
            "call what gives no loss outside",
            rule="traced",
        )


def _refuse_tensorflow(value: Any) -> None:
    """What TensorFlow or Keras has no values of yet, or holds otherwise than as one array."""
    symbolic = _is_a("tensorflow", "Tensor", value) and not hasattr(value, "numpy")
    if symbolic or (_is_a("tensorflow", "Variable", value) and not sys.modules["tensorflow"].executing_eagerly()):
        raise InvalidInput(
            "a tensor without values was given, inside tf.function or the training step of Keras: for a loss there "
            "wrap ctcbind in tf.numpy_function and tf.custom_gradient, as docs/frameworks.md does (TensorFlow), and "
            "call what gives no loss outside",
            rule="traced",
        )
    if _is_a("keras", "KerasTensor", value):
        raise InvalidInput(
            "a KerasTensor was given, which has no values while the model is built: take the loss where it is trained, "
            'as in compile(loss=...) (docs/frameworks.md, "Keras 3")',
            rule="traced",
        )
    if _is_a("tensorflow", "RaggedTensor", value):
        raise TypeError(
            "it is ragged; pass tensor.to_tensor(-1), and where it holds logits tensor.row_lengths() as input_lengths"
        )
    if _is_a("tensorflow", "SparseTensor", value):
        raise TypeError("it is sparse; pass tf.sparse.to_dense(tensor, -1)")


def _bfloat16() -> Any:
    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise InvalidInput(
            "bfloat16 was given, and NumPy has it from ml_dtypes alone: pip install ml_dtypes, or pass logits.float()",
            rule="logits_dtype",
        ) from error
    return bfloat16
