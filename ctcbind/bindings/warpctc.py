"""warp-ctc, API version 2, with its own names: include/ctc.h of baidu-research/warp-ctc at commit 94b2fa1.

Faithful to the C functions, apart from four things: sizes come back as return values, a status other than 0
raises NativeError, the struct ctcOptions with its union is the flat value `ctcOptions`, and what would crash the
library or make it read past its arrays is refused before it is called. The library itself checks none of it.

Addresses are ints. Host memory can also be given as a buffer (bytearray, array.array, a NumPy array), which is
then checked for format, gaps and length; what lies behind an address is taken on trust.
"""

from __future__ import annotations

import mmap
import os
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

from ..errors import EngineUnavailable, InvalidInput, NativeError
from ..forks import Lock
from ._warpctc import ffi
from .address import as_address
from .find import Found, find_warpctc
from .warpctc_arguments import (
    ctcComputeLocation,
    ctcOptions,
    fits,
    int32,
    labels_of,
    lengths_of,
    memory,
    sizes_of,
    struct_of,
)

__all__ = [
    "CTC_CPU",
    "CTC_GPU",
    "CTC_STATUS_EXECUTION_FAILED",
    "CTC_STATUS_INVALID_VALUE",
    "CTC_STATUS_MEMOPS_FAILED",
    "CTC_STATUS_SUCCESS",
    "CTC_STATUS_UNKNOWN_ERROR",
    "compute_ctc_loss",
    "compute_ctc_loss_double",
    "ctcComputeLocation",
    "ctcGetStatusString",
    "ctcOptions",
    "ctcStatus_t",
    "get_warpctc_version",
    "get_workspace_size",
    "get_workspace_size_double",
    "has_gpu_code",
    "loaded_from",
]

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


class ctcStatus_t(IntEnum):  # noqa: N801
    """What the C functions return."""

    CTC_STATUS_SUCCESS = 0
    CTC_STATUS_MEMOPS_FAILED = 1
    CTC_STATUS_INVALID_VALUE = 2
    CTC_STATUS_EXECUTION_FAILED = 3
    CTC_STATUS_UNKNOWN_ERROR = 4


CTC_CPU = ctcComputeLocation.CTC_CPU
CTC_GPU = ctcComputeLocation.CTC_GPU
CTC_STATUS_SUCCESS = ctcStatus_t.CTC_STATUS_SUCCESS
CTC_STATUS_MEMOPS_FAILED = ctcStatus_t.CTC_STATUS_MEMOPS_FAILED
CTC_STATUS_INVALID_VALUE = ctcStatus_t.CTC_STATUS_INVALID_VALUE
CTC_STATUS_EXECUTION_FAILED = ctcStatus_t.CTC_STATUS_EXECUTION_FAILED
CTC_STATUS_UNKNOWN_ERROR = ctcStatus_t.CTC_STATUS_UNKNOWN_ERROR

_MEANING = {
    1: "a copy or a memset on the device failed",
    2: "an argument is NULL or a size is below 1",
    3: "the computation failed; a library that was built without CUDA answers so where the location is CTC_GPU",
    4: "the library names no reason; on a GPU it answers so to a label of more than 639",
}


class _Library(NamedTuple):
    lib: Any
    found: Found


_lock = Lock()
_loaded: _Library | None = None


def _load() -> _Library:
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                found = _open()
                _loaded = _loaded or found  # a signal's handler may have loaded it meanwhile
    return _loaded


def _open() -> _Library:
    found = find_warpctc()  # which also asks for the API version
    try:
        lib = ffi.dlopen(found.path, _FLAGS)
    except OSError as error:
        raise EngineUnavailable(f"{found.path} ({found.how}) could not be loaded: {error}") from error
    missing = [name for name in _FUNCTIONS if not _has(lib, name)]
    if missing:
        raise EngineUnavailable(f"{found.path} ({found.how}) lacks {', '.join(missing)} of warp-ctc's ctc.h")
    return _Library(lib, found)


def _has(lib: Any, name: str) -> bool:
    try:
        return getattr(lib, name) is not None
    except (AttributeError, ffi.error):  # which one depends on cffi's version
        return False


def loaded_from() -> Found:
    """The library file in use and how it was found; loads it at first. Raises EngineUnavailable with every reason."""
    return _load().found


def has_gpu_code() -> bool:
    """Whether the library carries code for a GPU (nvcc's section .nv_fatbin): asked of the file, for a library without
    it says so only by failing, on standard error."""
    return _has_gpu_code(_load().found.path)


@cache
def _has_gpu_code(path: str) -> bool:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b".nv_fatbin") >= 0


def get_warpctc_version() -> int:
    """The API version, 2. Raises EngineUnavailable where no library of that version can be loaded."""
    return int(_load().lib.get_warpctc_version())


def ctcGetStatusString(status: int) -> str:
    """The library's own words for a status; it has the same for every number that is not in ctcStatus_t."""
    return _string(_load().lib, int32("status", status))


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
    gradient past the input length. A blank among the labels is taken as it is, and the cost is then no -ln p. Nothing
    is copied; a GPU call waits for the device.

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
    C, N = sizes_of(alphabet_size, minibatch)
    label_ints = lengths_of("label_lengths", label_lengths, N)
    input_ints = lengths_of("input_lengths", input_lengths, N)
    fits(label_ints.values, input_ints.values, C, N)
    size = ffi.new("size_t *")
    struct = struct_of(options, C)
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
    C, N = sizes_of(*sizes)
    struct = struct_of(options, C)
    on_host = options.loc == ctcComputeLocation.CTC_CPU
    double = call.endswith("_double")
    if double and on_host and N > 1 and options.num_threads != 1:
        raise InvalidInput(
            f"num_threads is {options.num_threads}, but {call} is right with 1 only for more than one sample: its "
            "threads write over each other's workspace",
            rule="threads",
            value=options.num_threads,
        )
    label_ints = lengths_of("label_lengths", ints[1], N)
    input_ints = lengths_of("input_lengths", ints[2], N)
    T = fits(label_ints.values, input_ints.values, C, N)
    for n, (L, frames) in enumerate(zip(label_ints.values, input_ints.values)):
        if L == frames == 0:
            raise InvalidInput(
                f"sample {n} has no label and no frame; the library would write in front of its workspace",
                rule="input_length",
                sample=n,
                value=0,
            )
    labels = labels_of(ints[0], label_ints.values, C)
    kind = "double" if double else "float"
    x = memory("activations", activations, kind, T * N * C, on_host=on_host, frame=(N, C))
    grad = ffi.NULL
    if gradients is not None and as_address(gradients) != 0:
        grad = memory("gradients", gradients, kind, T * N * C, on_host=on_host, write=True, frame=(N, C))
    cost = memory("costs", costs, kind, N, on_host=True, write=True)
    needed = 0
    if as_address(workspace) is None:  # only a buffer's length can be compared
        needed = _size("get_workspace_size" + "_double" * double, ints[1], ints[2], C, N, options)
    space = memory("workspace", workspace, "void", needed, on_host=on_host, write=True)
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
