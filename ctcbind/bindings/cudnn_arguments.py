"""Arguments on their way to C: what cuDNN would misread, read past, or die of is refused before it.

cuDNN checks no label (one of 0 or >= A is read past the buffer up to 9.8 and ends the CUDA context since 9.25,
pytorch issues 189670 and 195492), cannot know how long an array is, and takes any int for an enum.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import InvalidInput, brief
from .address import LOWEST, as_address, check_int32, pointer_to
from .cudnn_library import ffi
from .cudnn_objects import TensorDescriptor

__all__ = ["HostInts", "check_labels", "device_pointer", "host_ints", "int32", "int32_list", "workspace"]

_INT32 = range(-(2**31), 2**31)
_POINTERS = 2 ** (8 * ffi.sizeof("void *"))


class HostInts(NamedTuple):
    """An int array in host memory: `pointer` for C, `values` (None where only an address was given), and what
    must live as long as the pointer."""

    pointer: Any
    values: list[int] | None
    keep: object


def int32(name: str, value: object) -> int:
    """An int that C's int holds; raises InvalidInput for every other thing."""
    number = _index(name, value, "an int")
    if number not in _INT32:
        raise InvalidInput(f"{name} is {number}, which C's int cannot hold", rule="int32", value=value)
    return number


def int32_list(name: str, values: object) -> list[int]:
    """A sequence of ints that C's int holds, or an array of them with one dimension."""
    if not isinstance(values, (str, bytes, bytearray)):
        if not isinstance(values, Sequence) or isinstance(values, memoryview):
            with contextlib.suppress(TypeError):
                values = _items(name, memoryview(values))  # type: ignore[arg-type]
        if isinstance(values, Sequence):
            return [int32(f"{name}[{i}]", value) for i, value in enumerate(values)]
    kind = type(values).__name__
    raise InvalidInput(f"{name} must be a sequence of ints, not {kind}", rule="sequence", value=values)


def _items(name: str, view: memoryview) -> list[Any]:
    if view.ndim != 1:
        message = f"{name} must have one dimension, not {view.ndim}"
        raise InvalidInput(message, rule="sequence", value=view.shape)
    try:
        return view.tolist()
    except NotImplementedError:  # foreign byte order among them
        message = f"{name} has items of format {view.format!r}, which are not read as ints; give a list of ints"
        raise InvalidInput(message, rule="sequence", value=view.format) from None


_DEVICE = "a device address as an int (x.data.ptr in CuPy, x.data_ptr() in PyTorch)"
_HOST = "a sequence of ints, an int32 buffer, or an address as an int"


def device_pointer(
    name: str, value: object, *, null: bool = False, align: int = 4, wanted: str = _DEVICE, lowest: int = LOWEST
) -> Any:
    """A device address as a `void *`; None or 0 is NULL and refused unless `null`."""
    address = 0 if value is None else _index(name, value, wanted)
    if not 0 <= address < _POINTERS:
        raise InvalidInput(f"{name} is {address}, which is no address", rule="pointer", value=value)
    if address == 0 and not null:
        raise InvalidInput(f"{name} must not be NULL", rule="pointer", value=value)
    if 0 < address < lowest:
        raise InvalidInput(f"{name} is {address}, which is no address; give {wanted}", rule="pointer", value=value)
    if address % align:
        raise InvalidInput(f"{name} ({address:#x}) must be aligned to {align} bytes", rule="pointer", value=value)
    return ffi.cast("void *", address)


def workspace(pointer: object, size: object) -> tuple[Any, int]:
    """The workspace's pointer and its bytes; NULL goes with 0 bytes only."""
    count = _index("workSpaceSizeInBytes", size, "a number of bytes")
    # no device has a tebibyte, but an address on one easily looks like more
    if not 0 <= count < 2**40:
        raise InvalidInput(
            f"workSpaceSizeInBytes is {count}; the workspace and its size swap places between cudnnCTCLoss and "
            "cudnnCTCLoss_v8",
            rule="workspace",
            value=size,
        )
    return device_pointer("workspace", pointer, null=count == 0, align=1), count


def host_ints(name: str, value: object) -> HostInts:
    """int32 values in host memory: a sequence of ints (copied), an int32 buffer (not copied), or an address.

    An address is taken on trust: nothing behind it is looked at.
    """
    if isinstance(value, (str, bytes, bytearray)) or value is None:
        given = "NULL (None)" if value is None else type(value).__name__
        raise InvalidInput(f"{name} must be ints in host memory, not {given}", rule="host_ints", value=value)
    if hasattr(value, "__cuda_array_interface__"):
        raise InvalidInput(f"{name} must be in host memory, this is on a device", rule="host_ints", value=value)
    if isinstance(value, (list, tuple, range)):
        return _copied(name, value)
    if as_address(value) is None:
        with contextlib.suppress(TypeError):
            return _shared(name, memoryview(value))  # type: ignore[arg-type]
    if isinstance(value, Sequence):
        return _copied(name, value)
    pointer = device_pointer(name, value, wanted=_HOST)  # the same rules for an address in host memory
    return HostInts(ffi.cast("int *", pointer), None, None)


def _copied(name: str, value: Sequence[Any]) -> HostInts:
    values = [int32(f"{name}[{i}]", each) for i, each in enumerate(value)]
    array = ffi.new("int[]", values or 1)  # never NULL, even for none
    return HostInts(array, values, array)


def _shared(name: str, view: memoryview) -> HostInts:
    check_int32(name, view, rule="host_ints", shape_rule="host_ints")
    if view.nbytes == 0:
        return _copied(name, ())
    pointer = pointer_to(ffi, "int", view)
    # tolist() knows no "<i", which ctypes gives. What is kept is the owner: a buffer held cannot be resized.
    return HostInts(pointer, ffi.unpack(pointer, len(view)), view.obj)


def check_labels(desc: TensorDescriptor, labels: HostInts, label_lengths: HostInts, input_lengths: HostInts) -> None:
    """What cuDNN reads of the host arrays must be there and in range; raises InvalidInput naming the sample.

    `desc` gives (T, N, A). Every label must be in [1, A - 1], 0 being the blank (cudnn_adv.h, 9.28).
    """
    T, N, A = desc._dims
    for what, array in (("label lengths", label_lengths), ("input lengths", input_lengths)):
        if array.values is not None and len(array.values) != N:
            message = f"{len(array.values)} {what} for a batch of {N} (the second dimension of probsDesc)"
            raise InvalidInput(message, rule="lengths", value=len(array.values))
    for n, length in enumerate(input_lengths.values or ()):
        if not 0 <= length <= T:
            message = f"sample {n}: input length {length} is not in [0, {T}]"
            raise InvalidInput(message, rule="input_length", sample=n, value=length)
    start = 0
    for n, length in enumerate(label_lengths.values or ()):
        if length < 0:
            raise InvalidInput(f"sample {n}: label length {length}", rule="label_length", sample=n, value=length)
        if labels.values is not None:
            if start + length > len(labels.values):
                message = f"sample {n}: its labels end at {start + length}, and there are {len(labels.values)}"
                raise InvalidInput(message, rule="label_length", sample=n, value=length)
            own = labels.values[start : start + length]
            if own and not (min(own) >= 1 and max(own) < A):
                label = next(each for each in own if not 1 <= each < A)
                message = f"sample {n}: label {label} is not in [1, {A - 1}] (cuDNN's blank is 0)"
                raise InvalidInput(message, rule="label_range", sample=n, value=label)
        start += length


def _index(name: str, value: object, wanted: str) -> int:
    # True and an enum's member are ints to Python; as a length or an address they are mistakes
    if isinstance(value, bool):
        raise InvalidInput(f"{name} must be {wanted}, not {brief(value)}", rule="type", value=value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise InvalidInput(f"{name} must be {wanted}, not {kind}", rule="type", value=value) from None
