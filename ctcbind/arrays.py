"""The person's arrays, seen without a copy: where they are, how they lie, and of which kind results must be."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import Found, InvalidInput, counted, first
from .extras import import_cupy
from .kinds import Back, as_numpy, back_to, cuda_array, is_masked, on_device, packed, plain_array

__all__ = [
    "LOSS_DTYPE",
    "ArrayView",
    "Empty",
    "Layout",
    "as_host",
    "between_elements",
    "device_scope",
    "empty_like",
    "look_at_logits",
    "on_device",
    "to_cupy",
    "view_logits",
    "whole_elements",
]

Layout = Literal["TNC", "NTC"]
#: numpy.empty, or what makes arrays as it does.
Empty = Callable[[tuple[int, ...], Any], Any]

log = logging.getLogger("ctcbind")

#: The name of a dtype costs NumPy microseconds.
_PLAIN = {np.dtype(name): name for name in ("float16", "float32", "float64")}
#: The dtypes of logits and, for each, the dtype in which losses are computed and returned.
LOSS_DTYPE = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}


class ArrayView(NamedTuple):
    """Logits in the order (T, N, C), whatever the caller's layout; nothing is copied.

    `array` is a transposed view of the caller's own array (NumPy, or CuPy for device memory), `dtype` its
    name, `device` "cpu" or "cuda:0", "cuda:1", ..., and `copied` says why the array is a copy after all ("" where
    it is not). `back` makes arrays of the caller's kind from those of NumPy or CuPy; None: they are that.
    """

    array: Any
    dtype: str
    device: str
    layout: Layout
    copied: str = ""
    back: Back | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.array.shape  # type: ignore[no-any-return]

    @property
    def strides(self) -> tuple[int, int, int]:
        """In elements, of any sign, 0 for a broadcast axis."""
        size = self.array.itemsize
        t, n, c = self.array.strides
        return t // size, n // size, c // size

    @property
    def given_shape(self) -> tuple[int, int, int]:
        """The shape in the caller's layout."""
        T, N, C = self.shape
        return (T, N, C) if self.layout == "TNC" else (N, T, C)

    @property
    def xp(self) -> Any:
        """The module that makes arrays of this kind: numpy, or cupy."""
        return np if self.device == "cpu" else sys.modules["cupy"]

    @property
    def loss_dtype(self) -> str:
        return LOSS_DTYPE[self.dtype]


def to_cupy(value: Any) -> Any:
    """The same memory as a CuPy array, for what is `on_device`. Raises InvalidInput where there is no CuPy."""
    return cuda_array(value, _cupy())


def as_host(value: Any) -> Any:
    """A device array copied to the host, or another library's array seen, as NumPy; anything else as it is.

    Synchronises for a device array.
    """
    return _cupy().asnumpy(to_cupy(value)) if on_device(value) else as_numpy(value)


def view_logits(logits: Any, layout: Layout) -> ArrayView:
    """The caller's logits as an ArrayView.

    Raises InvalidInput for a rank other than 3, a dtype other than float16, bfloat16, float32 and float64,
    foreign byte order, masked arrays, object arrays, ragged lists and axes that do not fit an int32.
    """
    array = logits if type(logits) is np.ndarray else plain_array(logits)
    if type(array) is np.ndarray and layout in ("TNC", "NTC") and array.ndim == 3:
        name = _PLAIN.get(array.dtype)
        if name is not None and max(array.shape) < 2**31 and not _lies_between_elements(array):
            # a view of our own, whose shape nobody else can change
            own = array[...] if layout == "TNC" else array.transpose(1, 0, 2)
            return ArrayView(own, name, "cpu", layout, back=None if array is logits else back_to(logits))
    if layout == "TNC" and type(logits) is getattr(sys.modules.get("cupy"), "ndarray", None) and logits.ndim == 3:
        name = _PLAIN.get(logits.dtype)
        if name is not None and max(logits.shape) < 2**31:
            return ArrayView(logits, name, f"cuda:{logits.device.id}", layout)
    view = first(look_at_logits(logits, layout))
    assert view is not None, "no rule is broken, and still there is no view"
    return view


def look_at_logits(logits: Any, layout: Layout) -> Found[ArrayView | None]:
    """As a rule: yields what is wrong with the logits, and returns the view of them if nothing is."""
    given, device, back = logits, "cpu", None
    if type(logits) is not np.ndarray:
        try:
            back = back_to(logits)
            if on_device(logits):
                logits = to_cupy(logits)
                device = f"cuda:{logits.device.id}"
            else:
                logits = _host_array(logits)
        except InvalidInput as problem:
            yield problem
            return None
    name = _PLAIN.get(logits.dtype) or logits.dtype.name
    wrong_dtype = _wrong_dtype(given, logits, name)
    if wrong_dtype is not None:
        yield wrong_dtype
    if not logits.ndim and name == "object":
        return None  # which has no shape to speak of
    if logits.ndim != 3:
        yield _wrong_rank(logits, layout)
        return None
    too_large = [(axis, size) for axis, size in zip(layout, logits.shape, strict=True) if size > 2**31 - 1]
    for axis, size in too_large:
        yield InvalidInput(f"{axis} is {size}; each axis must be below 2**31", rule="size_limit", value=size)
    if wrong_dtype is not None or too_large:
        return None
    logits = logits.transpose(1, 0, 2) if layout == "NTC" else logits[...]  # a view of our own, as above
    copied = "read from Python's own numbers" if isinstance(given, (list, tuple)) else ""
    if device == "cpu" and _lies_between_elements(logits):
        logits = logits.copy()
        copied = "copied, since they lie between elements (misaligned, or with strides that are no whole number)"
    if copied:
        log.debug("%d bytes of logits %s", logits.nbytes, copied)
    return ArrayView(logits, name, device, layout, copied, back)


def _wrong_dtype(given: Any, logits: Any, name: str) -> InvalidInput | None:
    """What is wrong with the dtype of the logits, whose name this is; `given` is what the caller passed."""
    if name not in LOSS_DTYPE:
        what, hint = _no_floats(given, logits, name)
        message = f"logits are {what}; they must be float16, bfloat16, float32 or float64{hint}"
        return InvalidInput(message, rule="logits_dtype", value=name)
    if not logits.dtype.isnative:
        return InvalidInput(
            "logits have foreign byte order; convert them with logits.astype(logits.dtype.newbyteorder('='))",
            rule="logits_dtype",
            value=str(logits.dtype),
        )
    return None


def _wrong_rank(logits: Any, layout: Layout) -> InvalidInput:
    one = "logits[:, None]" if layout == "TNC" else "logits[None]"
    hint = f"; for one sample pass {one}" if logits.ndim == 2 else ""
    return InvalidInput(
        f"logits have {counted(logits.ndim, 'dimension')}, shape {tuple(logits.shape)}; they must have 3: "
        f"({', '.join(layout)}){hint}",
        rule="logits_rank",
        value=tuple(logits.shape),
    )


def _no_floats(given: Any, logits: Any, name: str) -> tuple[str, str]:
    """What logits of another dtype are, and what to pass instead, as far as that shows."""
    dtype = logits.dtype
    if isinstance(given, Mapping):  # a dict, or what numpy.load makes of an .npz file
        return f"a {type(given).__name__}", "".join(f": pass one of its arrays, logits[{k!r}]" for k in list(given)[:1])
    if dtype.kind in "US":
        file = isinstance(given, str) and given.endswith((".npy", ".npz"))
        return "text", ": pass what numpy.load reads from that file" if file else ""
    if dtype.names:
        return "structured", f": pass one of the fields, logits[{dtype.names[0]!r}]"
    if dtype.kind in "iub":
        cure = ": pass logits.float()" if type(given).__module__ == "torch" else ": pass logits.astype(numpy.float32)"
        return name, " (labels and logits swapped?)" if logits.ndim < 3 else cure
    if name.startswith(("float", "int", "uint")):  # NumPy's longest float, and the narrow ones of ml_dtypes
        return name, f": pass logits.astype(numpy.float{64 if dtype.itemsize > 8 else 32})"
    if name == "object":
        return (name, ": pass logits.astype(float)") if logits.ndim else (f"of type {type(logits.item()).__name__}", "")
    return name, ""


def empty_like(view: ArrayView, empty: Empty = np.empty, *, keep_order: bool = False) -> tuple[Any, Any]:
    """An uninitialised array of the logits' kind, dtype and device: (in the caller's layout, as (T, N, C)).

    `empty` makes those on the host: in C order or, with `keep_order`, with the logits' axes in the order that they have
    in memory.
    """
    if view.device == "cpu":
        axes = _axes_in_memory(view) if keep_order else (0, 1, 2)
        array = empty(tuple(view.given_shape[axis] for axis in axes), view.array.dtype)
        if axes != (0, 1, 2):
            array = array.transpose([axes.index(axis) for axis in range(3)])
    else:
        with device_scope(view):
            array = view.xp.empty(view.given_shape, dtype=view.array.dtype)
    return array, array if view.layout == "TNC" else array.transpose(1, 0, 2)


def between_elements(array: Any) -> bool:
    """Whether an array on a device is misaligned, or has strides that are not whole numbers of elements, so that no
    kernel can read it. (Such arrays on the host have been copied before.)"""
    if isinstance(array, np.ndarray) or not array.size:
        return False
    size = array.itemsize
    return bool(array.data.ptr % size or any(stride % size for stride in array.strides))


def whole_elements(array: Any) -> Any:
    """An array on a device as it is or, where it lies `between_elements`, a copy in C order. It is copied as bytes, for
    CuPy's own copy reads whole elements, and a misaligned read ends the CUDA context."""
    if not between_elements(array):
        return array
    xp = sys.modules["cupy"]
    shape, strides = (*array.shape, array.itemsize), (*array.strides, 1)
    return xp.ndarray(shape, dtype="uint8", memptr=array.data, strides=strides).copy().view(array.dtype)[..., 0]


def _axes_in_memory(view: ArrayView) -> tuple[int, ...]:
    """The axes of the caller's layout, outermost in memory first, where samples lie one after the other and without
    gaps; elsewhere as they are."""
    array = view.array if view.layout == "TNC" else view.array.transpose(1, 0, 2)
    if array.flags.c_contiguous:
        return 0, 1, 2
    n, shape, strides = view.layout.index("N"), array.shape, array.strides
    anywhere = [-np.inf if axis == n else np.inf for axis in range(3)]  # axes of one element
    axes = sorted(range(3), key=lambda axis: -strides[axis] if shape[axis] > 1 else anywhere[axis])
    step = array.itemsize
    for axis in reversed(axes):
        if shape[axis] > 1 and strides[axis] != step:
            return 0, 1, 2
        step *= shape[axis]
    return tuple(axes) if axes[0] == n else (0, 1, 2)


def _lies_between_elements(array: npt.NDArray[Any]) -> bool:
    """Misaligned, or with strides that are not whole numbers of elements: C cannot address it by index."""
    if not array.flags.aligned:
        return True
    size, (t, n, c) = array.itemsize, array.strides
    return bool(t % size or n % size or c % size)


def _host_array(value: Any) -> npt.NDArray[Any]:
    if (what := packed(value)) is not None:
        raise InvalidInput(f"logits are {what}", rule="logits_dtype")
    if _has_mask(value):
        what = "are a masked array" if is_masked(value) else "hold masked arrays"
        raise InvalidInput(
            f"logits {what}; CTC has no meaning for masked scores: pass logits.filled(-numpy.inf) "
            "to forbid them, and input_lengths for padded time",
            rule="logits_dtype",
        )
    try:
        return np.asarray(as_numpy(value))
    except (ValueError, TypeError, RuntimeError, BufferError) as error:
        if isinstance(error, InvalidInput) and error.rule != "unreadable":
            raise
        reason = error.__cause__ if isinstance(error, InvalidInput) else error
        raise InvalidInput(
            f"logits ({type(value).__name__}) cannot be read as one array: {_uneven(value) or reason}",
            rule="logits_rank",
        ) from reason


def _has_mask(value: Any, depth: int = 2) -> bool:
    """Whether it is a masked array, or a list of such, or of lists of them: NumPy drops the masks of those."""
    if depth and isinstance(value, (list, tuple)):
        return any(_has_mask(each, depth - 1) for each in value)
    return is_masked(value)


def _uneven(value: Any) -> str | None:
    """What a list holds that is no list of equal samples: samples of different lengths, labels, logits and others."""
    if not isinstance(value, (list, tuple)):
        return None
    whole = [i for i, each in enumerate(value) if getattr(each, "ndim", 0) == 3]
    if len(whole) == 1 < len(value):
        return f"it holds an array of 3 dimensions beside others, as networks return them: pass logits[{whole[0]}]"
    try:
        samples = [np.asarray(as_numpy(each)) for each in value]
    except (ValueError, TypeError, RuntimeError, BufferError) as error:  # InvalidInput is a ValueError
        return "its rows have different numbers of classes" if "inhomogeneous" in str(error) else None
    if all(each.ndim == 1 and (each.dtype.kind in "iu" or not each.size) for each in samples):
        return "it holds rows of integers (labels and logits swapped?)"
    if all(each.ndim == 2 for each in samples) and len({each.shape[1] for each in samples}) == 1:
        frames = [len(each) for each in samples]
        told = str(frames) if len(frames) <= 8 else f"[{', '.join(map(str, frames[:4]))}, ...]"
        return (
            "its samples have different numbers of frames; pad them to an array (T, N, C) and pass "
            f"input_lengths={told}"
        )
    return None


def device_scope(view: ArrayView) -> Any:
    """A context in which the logits' device is the current one."""
    return nullcontext() if view.device == "cpu" else view.array.device


def _cupy() -> Any:
    need = "an array in GPU memory was given, and reading it needs CuPy"
    return import_cupy(partial(InvalidInput, rule="device"), need)
