"""What the warp-ctc binding is given, checked and turned into C's types: the library itself checks next to nothing."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ..errors import InvalidInput, brief, kind_of_items
from ._warpctc import ffi
from .address import LOWEST, as_address, check_int32, pointer_to

__all__ = [
    "ctcComputeLocation",
    "ctcOptions",
    "fits",
    "int32",
    "labels_of",
    "lengths_of",
    "memory",
    "sizes_of",
    "struct_of",
]

_INT_MAX = 2**31 - 1
#: OpenMP ends the process where the system refuses it a thread, as containers do past a thousand or so; no more than
#: this, or than there are processors, is of use.
_MOST_THREADS = max(256, os.cpu_count() or 1)
_POINTERS = 2 ** (8 * ffi.sizeof("void *"))


class ctcComputeLocation(IntEnum):  # noqa: N801
    """Where activations, gradients and workspace are."""

    CTC_CPU = 0
    CTC_GPU = 1


@dataclass(frozen=True, slots=True)
class ctcOptions:  # noqa: N801
    """struct ctcOptions, its union flattened: `num_threads` counts for CTC_CPU, `stream` for CTC_GPU.

    In C the blank is the third of three, and here the fourth of four: name it. What does not count must be 0, and where
    it is not, InvalidInput says so. It is frozen: give all of it at once, where C sets one field after the other.

    `num_threads` 0 means OpenMP's own number; any other is set as OpenMP's number for the calling thread and
    stays so after the call. More than 256, and than the machine has processors, raise InvalidInput: OpenMP ends the
    process where the system refuses it a thread. In a child of fork whose parent has used OpenMP (libgomp), any number
    but 1 waits for ever for the parent's threads. `stream` is a CUstream as an int (0: the default stream).
    """

    loc: ctcComputeLocation = ctcComputeLocation.CTC_CPU
    num_threads: int = 0
    stream: int = 0
    blank_label: int = 0


class _Ints(NamedTuple):
    pointer: Any  # which holds what it points to
    values: list[int]


def struct_of(options: ctcOptions, C: int) -> Any:
    if not isinstance(options, ctcOptions):
        raise InvalidInput(f"options must be ctcOptions, not {brief(options)}", rule="options", value=options)
    try:
        location = ctcComputeLocation(options.loc)
    except ValueError:
        raise InvalidInput(
            f"loc is {brief(options.loc)}; it must be CTC_CPU (0) or CTC_GPU (1)", rule="location", value=options.loc
        ) from None
    blank = int32("blank_label", options.blank_label)
    if not 0 <= blank < C:
        raise InvalidInput(f"blank_label is {blank}, not in 0..{C - 1}", rule="blank", value=blank)
    on_host = location == ctcComputeLocation.CTC_CPU
    name, other = ("stream", "num_threads") if on_host else ("num_threads", "stream")
    if not _is_zero(unused := getattr(options, name)):
        raise InvalidInput(
            f"{name} is {brief(unused)}, but loc is {location.name}, where {other} counts in its place; in C the blank "
            "is the third field, here the fourth: ctcOptions(loc, num_threads, stream, blank_label)",
            rule="options",
            value=unused,
        )
    if on_host:
        union = int32("num_threads", options.num_threads)
        if union < 0:
            raise InvalidInput(f"num_threads is {union}; it must not be negative", rule="threads", value=union)
        if union > _MOST_THREADS:
            raise InvalidInput(
                f"num_threads is {union}; it must be {_MOST_THREADS} at most, for OpenMP ends the process where the "
                "system refuses it a thread",
                rule="threads",
                value=union,
            )
    else:
        union = _address("stream", options.stream)
    return ffi.new("struct ctcOptions *", (int(location), union, blank))[0]


def _is_zero(value: Any) -> bool:
    """Whether it is 0, or None for NULL: arrays, say, have no one truth value."""
    try:
        return value is None or operator.index(value) == 0
    except TypeError:
        return False


def sizes_of(alphabet_size: int, minibatch: int) -> tuple[int, int]:
    C, N = int32("alphabet_size", alphabet_size), int32("minibatch", minibatch)
    for name, value in (("alphabet_size", C), ("minibatch", N)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}; it must be at least 1", rule="size", value=value)
    return C, N


def fits(label_lengths: list[int], input_lengths: list[int], C: int, N: int) -> int:
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


def lengths_of(name: str, value: Any, N: int) -> _Ints:
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


def labels_of(value: Any, label_lengths: list[int], C: int) -> _Ints:
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
    if (address := as_address(value)) is not None:
        pointer = ffi.cast("int *", _pointer(name, address, 4))
        return _Ints(pointer, ffi.unpack(pointer, count) if count else [])
    try:
        view = None if isinstance(value, (bytes, bytearray, list, tuple)) else memoryview(value)
    except (TypeError, ValueError, BufferError):
        view = None
    if view is not None:
        check_int32(name, view, rule="integers", shape_rule="contiguous")
        if view.nbytes:
            pointer = pointer_to(ffi, "int", view)
            return _Ints(pointer, ffi.unpack(pointer, len(view)))
        value = ()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)):
        raise InvalidInput(
            f"{name} is of type {type(value).__name__}; it must be a sequence of ints, an int32 buffer in host memory, "
            "or an address",
            rule="integers",
            value=value,
        )
    values = [int32(f"{name}[{i}]", each) for i, each in enumerate(value)]
    array = ffi.new("int[]", values or 1)  # never NULL: the library refuses that, even for no labels
    return _Ints(array, values)


def memory(
    name: str,
    value: Any,
    kind: str,
    count: int,
    *,
    on_host: bool,
    write: bool = False,
    frame: tuple[int, int] | None = None,
) -> Any:
    """A pointer to `count` floats, doubles or (kind "void") bytes, from an address or a buffer.

    A buffer of three dimensions must end in those of a `frame`, or the library would read it in another order.
    """
    if value is None:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    item, align = (1, 8) if kind == "void" else (ffi.sizeof(kind),) * 2  # doubles stand at the workspace's start
    if (address := as_address(value)) is not None:
        return ffi.cast(f"{kind} *", _pointer(name, address, align))
    if not on_host:
        raise InvalidInput(
            f"{name} must be an address in device memory as an int (x.data.ptr in CuPy, x.data_ptr() in PyTorch), not "
            f"{type(value).__name__}",
            rule="device",
            value=value,
        )
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError) as error:
        tensor = "; x.numpy() or x.data_ptr() of a PyTorch tensor" if hasattr(value, "data_ptr") else ""
        message = f"{name} must be an address or a buffer: {error}{tensor}"
        raise InvalidInput(message, rule="buffer", value=value) from None
    _check_layout(name, view, kind, frame)
    if write and view.readonly:
        raise InvalidInput(f"{name} is read-only, and the library writes to it", rule="readonly")
    have = math.prod(view.shape or (1,)) * view.itemsize // item
    if have < count:
        unit = "bytes" if kind == "void" else "values"
        raise InvalidInput(f"{name} has {have} {unit}, and {count} are used", rule="buffer_size", value=have)
    # it holds the view, and so the memory, until the call is over
    pointer = pointer_to(ffi, kind, view)
    _pointer(name, int(ffi.cast("uintptr_t", pointer)), align)
    return pointer


def _check_layout(name: str, view: memoryview, kind: str, frame: tuple[int, int] | None) -> None:
    """Refuses a buffer of another type than the library reads, with gaps, or in another order."""
    form = (view.format or "B").lstrip("@=<")
    if kind != "void" and form != kind[0]:
        wanted = {"float": "float32", "double": "float64"}[kind]
        raise InvalidInput(f"{name} must hold {wanted} values, not {kind_of_items(view)}", rule="dtype", value=form)
    if not view.c_contiguous:
        raise InvalidInput(f"{name} must have no gaps", rule="contiguous", value=view.strides)
    if frame is not None and view.ndim == 3 and view.shape is not None and view.shape[1:] != frame:
        raise InvalidInput(
            f"{name} has the shape {view.shape}, and the library reads (T, minibatch, alphabet_size) = "
            f"({view.shape[0]}, {frame[0]}, {frame[1]})",
            rule="shape",
            value=view.shape,
        )


def _pointer(name: str, value: int, align: int) -> Any:
    address = _address(name, value)
    if address == 0:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    if address < LOWEST:
        raise InvalidInput(
            f"{name} is {address}, which is no address, and a number is taken for one",
            rule="pointer",
            value=value,
        )
    if address % align:
        raise InvalidInput(f"{name} ({address:#x}) must be aligned to {align} bytes", rule="pointer", value=value)
    return ffi.cast("void *", address)


def _address(name: str, value: Any) -> int:
    try:
        address = operator.index(value)
    except TypeError:
        address = -1
    if not 0 <= address < _POINTERS:
        raise InvalidInput(f"{name} is {brief(value)}, which is no address", rule="pointer", value=value)
    return address


def int32(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} must be an int, not {type(value).__name__}", rule="integers", value=value) from None
    if not -_INT_MAX - 1 <= number <= _INT_MAX:
        raise InvalidInput(f"{name} is {number}, which C's int cannot hold", rule="int32", value=value)
    return number
