"""warp-ctc, API version 2, with its own names: include/ctc.h of baidu-research/warp-ctc at commit 94b2fa1.

Faithful to the C functions, apart from four things: sizes come back as return values, a status other than 0
raises NativeError, the struct ctcOptions with its union is the flat value `ctcOptions`, and what would crash the
library or make it read past its arrays is refused before it is called. The library itself checks none of it.

Addresses are ints. Host memory can also be given as a buffer (bytearray, array.array, a NumPy array), which is
then checked for format, gaps and length; what lies behind an address is taken on trust.
"""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import EngineUnavailable, InvalidInput, NativeError
from ._warpctc import ffi
from .find import Found, find_warpctc

__all__ = [
    "compute_ctc_loss",
    "compute_ctc_loss_double",
    "ctcComputeLocation",
    "ctcGetStatusString",
    "ctcOptions",
    "ctcStatus_t",
    "get_warpctc_version",
    "get_workspace_size",
    "get_workspace_size_double",
    "loaded_from",
]

_INT_MAX = 2**31 - 1
_POINTERS = 2 ** (8 * ffi.sizeof("void *"))
_FUNCTIONS = (
    "get_warpctc_version",
    "ctcGetStatusString",
    "get_workspace_size",
    "get_workspace_size_double",
    "compute_ctc_loss",
    "compute_ctc_loss_double",
)
# NOW, not LAZY: a symbol that is missing is an OSError here, and would end the process at the first call
_FLAGS = getattr(os, "RTLD_NOW", 0) | getattr(os, "RTLD_LOCAL", 0)


class ctcComputeLocation(IntEnum):  # noqa: N801
    """Where activations, gradients and workspace are."""

    CTC_CPU = 0
    CTC_GPU = 1


class ctcStatus_t(IntEnum):  # noqa: N801
    """What the C functions return."""

    CTC_STATUS_SUCCESS = 0
    CTC_STATUS_MEMOPS_FAILED = 1
    CTC_STATUS_INVALID_VALUE = 2
    CTC_STATUS_EXECUTION_FAILED = 3
    CTC_STATUS_UNKNOWN_ERROR = 4


_MEANING = {
    1: "a copy or a memset on the device failed",
    2: "an argument is NULL or a size is below 1",
    3: "the computation failed; a library that was built without CUDA answers so where the location is CTC_GPU",
    4: "the library names no reason; on a GPU it answers so to a label of more than 639",
}


@dataclass(frozen=True, slots=True)
class ctcOptions:  # noqa: N801
    """struct ctcOptions, its union flattened: `num_threads` counts for CTC_CPU, `stream` for CTC_GPU.

    `num_threads` 0 means OpenMP's own number; any other is set as OpenMP's number for the calling thread and
    stays so after the call. `stream` is a CUstream as an int (0: the default stream).
    """

    loc: ctcComputeLocation = ctcComputeLocation.CTC_CPU
    num_threads: int = 0
    stream: int = 0
    blank_label: int = 0


class _Library(NamedTuple):
    lib: Any
    found: Found


class _Ints(NamedTuple):
    pointer: Any
    values: list[int]
    keep: object


_lock = threading.Lock()
_loaded: _Library | None = None


def _load() -> _Library:
    global _loaded
    with _lock:
        if _loaded is None:
            found = find_warpctc()  # which also asks for the API version
            try:
                lib = ffi.dlopen(found.path, _FLAGS)
            except OSError as error:
                raise EngineUnavailable(f"{found.path} ({found.how}) could not be loaded: {error}") from error
            missing = [name for name in _FUNCTIONS if not _has(lib, name)]
            if missing:
                raise EngineUnavailable(f"{found.path} ({found.how}) lacks {', '.join(missing)} of warp-ctc's ctc.h")
            _loaded = _Library(lib, found)
        return _loaded


def _has(lib: Any, name: str) -> bool:
    try:
        return getattr(lib, name) is not None
    except (AttributeError, ffi.error):  # which one depends on cffi's version
        return False


def loaded_from() -> Found:
    """The library file in use and how it was found; loads it at first. Raises EngineUnavailable with every reason."""
    return _load().found


def get_warpctc_version() -> int:
    """The API version, 2. Raises EngineUnavailable where no library of that version can be loaded."""
    return int(_load().lib.get_warpctc_version())


def ctcGetStatusString(status: int) -> str:
    """The library's own words for a status; it has the same for every number that is not in ctcStatus_t."""
    return _string(_load().lib, _int32("status", status))


def get_workspace_size(
    label_lengths: Any, input_lengths: Any, alphabet_size: int, minibatch: int, options: ctcOptions
) -> int:
    """The bytes of workspace that compute_ctc_loss (float) needs.

    `label_lengths` and `input_lengths` hold `minibatch` int32 values each in host memory: a sequence of ints, an
    int32 buffer, or an address. Raises InvalidInput for what the library would misread, NativeError for a status.
    """
    return _size("get_workspace_size", label_lengths, input_lengths, alphabet_size, minibatch, options)


def get_workspace_size_double(
    label_lengths: Any, input_lengths: Any, alphabet_size: int, minibatch: int, options: ctcOptions
) -> int:
    """The bytes of workspace that compute_ctc_loss_double needs; arguments and errors as get_workspace_size."""
    return _size("get_workspace_size_double", label_lengths, input_lengths, alphabet_size, minibatch, options)


def compute_ctc_loss(
    activations: Any,
    gradients: Any,
    flat_labels: Any,
    label_lengths: Any,
    input_lengths: Any,
    alphabet_size: int,
    minibatch: int,
    costs: Any,
    workspace: Any,
    options: ctcOptions,
) -> None:
    """Costs in nats and, unless `gradients` is None, their gradients with respect to the activations; float32.

    | argument | shape | memory |
    |---|---|---|
    | activations, gradients | (T, minibatch, alphabet_size), no gaps | options.loc |
    | flat_labels | all labels, sample after sample | host |
    | label_lengths, input_lengths | (minibatch,) | host |
    | costs | (minibatch,) | host, on a GPU too |
    | workspace | get_workspace_size(...) bytes | options.loc |

    The softmax is inside. The cost of a sample without a path is 0, and its gradient is not written; nor is any
    gradient past the input length. Nothing is copied; a GPU call waits for the device.

    Raises InvalidInput, before C, for NULL, for lengths and labels out of range, for an empty label with no
    frame, for buffers that are too short, and for sizes that the library's int indices cannot hold; NativeError
    for a status; EngineUnavailable where there is no library.
    """
    _compute(
        "compute_ctc_loss",
        activations,
        gradients,
        (flat_labels, label_lengths, input_lengths),
        (alphabet_size, minibatch),
        costs,
        workspace,
        options,
    )


def compute_ctc_loss_double(
    activations: Any,
    gradients: Any,
    flat_labels: Any,
    label_lengths: Any,
    input_lengths: Any,
    alphabet_size: int,
    minibatch: int,
    costs: Any,
    workspace: Any,
    options: ctcOptions,
) -> None:
    """compute_ctc_loss in float64, with workspace of get_workspace_size_double(...) bytes.

    On the CPU more than one sample needs `num_threads=1`, and everything else raises InvalidInput: the function
    counts each sample's workspace in floats, so that threads write over each other's and crash
    (include/detail/cpu_ctc.h, cost_and_grad).
    """
    _compute(
        "compute_ctc_loss_double",
        activations,
        gradients,
        (flat_labels, label_lengths, input_lengths),
        (alphabet_size, minibatch),
        costs,
        workspace,
        options,
    )


def _size(
    call: str, label_lengths: Any, input_lengths: Any, alphabet_size: int, minibatch: int, options: ctcOptions
) -> int:
    lib = _load().lib
    C, N = _sizes(alphabet_size, minibatch)
    label_ints = _lengths("label_lengths", label_lengths, N)
    input_ints = _lengths("input_lengths", input_lengths, N)
    _fits(label_ints.values, input_ints.values, C, N)
    size = ffi.new("size_t *")
    struct = _struct(options, C)
    status = getattr(lib, call)(label_ints.pointer, input_ints.pointer, C, N, struct, size)
    _check(lib, call, status)
    return int(size[0])


def _compute(
    call: str,
    activations: Any,
    gradients: Any,
    ints: tuple[Any, Any, Any],
    sizes: tuple[int, int],
    costs: Any,
    workspace: Any,
    options: ctcOptions,
) -> None:
    lib = _load().lib
    C, N = _sizes(*sizes)
    struct = _struct(options, C)
    on_host = options.loc == ctcComputeLocation.CTC_CPU
    double = call.endswith("_double")
    if double and on_host and N > 1 and options.num_threads != 1:
        raise InvalidInput(
            f"num_threads is {options.num_threads}, but {call} is right with 1 only for more than one sample: its "
            "threads write over each other's workspace",
            rule="threads",
            value=options.num_threads,
        )
    label_ints = _lengths("label_lengths", ints[1], N)
    input_ints = _lengths("input_lengths", ints[2], N)
    T = _fits(label_ints.values, input_ints.values, C, N)
    for n, (L, frames) in enumerate(zip(label_ints.values, input_ints.values)):
        if L == frames == 0:
            raise InvalidInput(
                f"sample {n} has no label and no frame; the library would write in front of its workspace",
                rule="input_length",
                sample=n,
                value=0,
            )
    labels = _labels(ints[0], label_ints.values, C)
    kind = "double" if double else "float"
    x = _memory("activations", activations, kind, T * N * C, on_host=on_host)
    grad = ffi.NULL
    if gradients is not None and not (isinstance(gradients, int) and gradients == 0):
        grad = _memory("gradients", gradients, kind, T * N * C, on_host=on_host, write=True)
    cost = _memory("costs", costs, kind, N, on_host=True, write=True)
    needed = 0
    if not isinstance(workspace, int):  # only a buffer's length can be compared
        needed = _size("get_workspace_size" + "_double" * double, ints[1], ints[2], C, N, options)
    space = _memory("workspace", workspace, "void", needed, on_host=on_host, write=True)
    status = getattr(lib, call)(
        x, grad, labels.pointer, label_ints.pointer, input_ints.pointer, C, N, cost, space, struct
    )
    _check(lib, call, status)


def _check(lib: Any, call: str, status: int) -> None:
    if status == 0:
        return
    try:
        name = ctcStatus_t(status).name
    except ValueError:
        name = "a status that ctc.h does not name"
    meaning = _MEANING.get(status, "no meaning is known")
    raise NativeError(call, status, name, f"{_string(lib, status)}: {meaning}")


def _string(lib: Any, status: int) -> str:
    text = lib.ctcGetStatusString(status)
    return "" if text == ffi.NULL else ffi.string(text).decode("utf-8", "replace")


def _struct(options: ctcOptions, C: int) -> Any:
    try:
        location = ctcComputeLocation(options.loc)
    except ValueError:
        raise InvalidInput(
            f"loc is {options.loc!r}; it must be CTC_CPU (0) or CTC_GPU (1)", rule="location", value=options.loc
        ) from None
    blank = _int32("blank_label", options.blank_label)
    if not 0 <= blank < C:
        raise InvalidInput(f"blank_label is {blank}, not in 0..{C - 1}", rule="blank", value=blank)
    if location == ctcComputeLocation.CTC_CPU:
        union = _int32("num_threads", options.num_threads)
        if union < 0:
            raise InvalidInput(f"num_threads is {union}; it must not be negative", rule="threads", value=union)
    else:
        union = _address("stream", options.stream)
    return ffi.new("struct ctcOptions *", (int(location), union, blank))[0]


def _sizes(alphabet_size: int, minibatch: int) -> tuple[int, int]:
    C, N = _int32("alphabet_size", alphabet_size), _int32("minibatch", minibatch)
    for name, value in (("alphabet_size", C), ("minibatch", N)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1", rule="size", value=value)
    return C, N


def _fits(label_lengths: list[int], input_lengths: list[int], C: int, N: int) -> int:
    """The longest input, once the products that the library keeps in C's int are known to fit."""
    L, T = max(label_lengths), max(input_lengths)
    for name, product in (
        ("(2 L + 1) T", (2 * L + 1) * max(T, 1)),
        ("T * minibatch * alphabet_size", max(T, 1) * N * C),
        ("the number of labels", sum(label_lengths)),
    ):
        if product > _INT_MAX:
            raise InvalidInput(
                f"{name} is {product}, which the library's int cannot hold (longest label {L}, longest input {T}, "
                f"minibatch {N}, alphabet_size {C})",
                rule="size_limit",
                value=product,
            )
    return T


def _lengths(name: str, value: Any, N: int) -> _Ints:
    ints = _ints(name, value, N)
    if len(ints.values) != N:
        raise InvalidInput(
            f"{name} holds {len(ints.values)} lengths, but minibatch is {N}", rule="lengths", value=len(ints.values)
        )
    if min(ints.values) < 0:
        n = ints.values.index(min(ints.values))
        raise InvalidInput(
            f"{name}[{n}] is {ints.values[n]}; it must not be negative", rule=name, sample=n, value=ints.values[n]
        )
    return ints


def _labels(value: Any, label_lengths: list[int], C: int) -> _Ints:
    count = sum(label_lengths)
    ints = _ints("flat_labels", value, count)
    if len(ints.values) < count:
        raise InvalidInput(
            f"flat_labels holds {len(ints.values)} labels, but label_lengths sum to {count}",
            rule="target_lengths_sum",
            value=len(ints.values),
        )
    read = ints.values[:count]
    if read and not (min(read) >= 0 and max(read) < C):
        i = next(i for i, label in enumerate(read) if not 0 <= label < C)
        raise InvalidInput(f"flat_labels[{i}] is {read[i]}, not in 0..{C - 1}", rule="label_range", value=read[i])
    return ints


def _ints(name: str, value: Any, count: int) -> _Ints:
    """int32 values in host memory; `count` is how many are read where only their address is given."""
    if value is None:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    if isinstance(value, int):
        pointer = ffi.cast("int *", _pointer(name, value, 4))
        return _Ints(pointer, ffi.unpack(pointer, count) if count else [], None)
    try:
        view = None if isinstance(value, (bytes, bytearray, list, tuple)) else memoryview(value)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None:
        if view.itemsize != 4 or (view.format or "B").lstrip("@=<") not in ("i", "l"):
            raise InvalidInput(
                f"{name} must hold int32 values, not items of format {view.format!r}",
                rule="integers",
                value=view.format,
            )
        if view.ndim != 1 or not view.c_contiguous:
            raise InvalidInput(f"{name} must have one dimension and no gaps", rule="contiguous", value=view.shape)
        if view.nbytes:
            array = ffi.from_buffer("int[]", view)
            return _Ints(array, ffi.unpack(array, len(view)), array)
        value = ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise InvalidInput(
            f"{name} is of type {type(value).__name__}; it must be a sequence of ints, an int32 buffer in host memory, "
            "or an address",
            rule="integers",
            value=value,
        )
    values = [_int32(f"{name}[{i}]", each) for i, each in enumerate(value)]
    array = ffi.new("int[]", values or 1)  # never NULL: the library refuses that, even for no labels
    return _Ints(array, values, array)


def _memory(name: str, value: Any, kind: str, count: int, *, on_host: bool, write: bool = False) -> Any:
    """A pointer to `count` floats, doubles or (kind "void") bytes, from an address or a buffer."""
    if value is None:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    item, align = (1, 8) if kind == "void" else (ffi.sizeof(kind),) * 2  # doubles stand at the workspace's start
    if isinstance(value, int):
        return ffi.cast(f"{kind} *", _pointer(name, value, align))
    if not on_host:
        raise InvalidInput(
            f"{name} must be an address in device memory as an int (x.data.ptr in CuPy), not {type(value).__name__}",
            rule="device",
            value=value,
        )
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidInput(f"{name} must be an address or a buffer: {error}", rule="buffer", value=value) from None
    form = (view.format or "B").lstrip("@=<")
    if kind != "void" and form != kind[0]:
        raise InvalidInput(f"{name} must hold {kind} values, not items of format {form!r}", rule="dtype", value=form)
    if not view.c_contiguous:
        raise InvalidInput(f"{name} must have no gaps", rule="contiguous", value=view.strides)
    if write and view.readonly:
        raise InvalidInput(f"{name} is read-only, and the library writes to it", rule="readonly")
    have = math.prod(view.shape or (1,)) * view.itemsize // item
    if have < count:
        unit = "bytes" if kind == "void" else "values"
        raise InvalidInput(f"{name} has {have} {unit}, and {count} are used", rule="buffer_size", value=have)
    # the cdata holds the view, and so the memory, until the call is over
    array = ffi.from_buffer(f"{kind}[]" if kind != "void" else "char[]", view)
    _pointer(name, int(ffi.cast("uintptr_t", array)), align)
    return array


def _pointer(name: str, value: int, align: int) -> Any:
    address = _address(name, value)
    if address == 0:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    if address % align:
        raise InvalidInput(f"{name} ({address:#x}) must be aligned to {align} bytes", rule="pointer", value=value)
    return ffi.cast("void *", address)


def _address(name: str, value: Any) -> int:
    try:
        address = operator.index(value)
    except TypeError:
        address = -1
    if not 0 <= address < _POINTERS:
        raise InvalidInput(f"{name} is {value!r}, which is no address", rule="pointer", value=value)
    return address


def _int32(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be an int, not {type(value).__name__}", rule="integers", value=value) from None
    if not -_INT_MAX - 1 <= number <= _INT_MAX:
        raise InvalidInput(f"{name} is {number}, which C's int cannot hold", rule="int32", value=value)
    return number
