"""csrc/rows.h, graph.h and batch.h: what the native functions beside the loss take and answer, as arrays of structs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import NativeError, NativeMemoryError
from ._native import ffi, lib
from .native_stop import raise_stopped

__all__ = [
    "DTYPES",
    "TOPOLOGIES",
    "any_kernels",
    "check",
    "finish",
    "layout",
    "memory",
    "narrow",
    "set_frames",
    "set_labels",
    "structs",
]

DTYPES = {
    "float32": lib.CTCBIND_ROWS_FLOAT32,
    "float64": lib.CTCBIND_ROWS_FLOAT64,
    "float16": lib.CTCBIND_ROWS_FLOAT16,
    "bfloat16": lib.CTCBIND_ROWS_BFLOAT16,
}
TOPOLOGIES = {"ctc": lib.CTCBIND_GRAPH_CTC, "simple": lib.CTCBIND_GRAPH_SIMPLE}

_STATUS = {
    lib.CTCBIND_ROWS_NO_MEMORY: ("CTCBIND_ROWS_NO_MEMORY", "the scratch memory could not be allocated"),
    lib.CTCBIND_ROWS_NAN: ("CTCBIND_ROWS_NAN", "a frame of the logits holds a NaN"),
}

_VOID, _BYTES, _INTS = ffi.typeof("void *"), ffi.typeof("char[]"), ffi.typeof("int32_t[]")
_FLOATS, _DOUBLES = ffi.typeof("float[]"), ffi.typeof("double[]")
_NO_KERNELS = b"none"


def any_kernels() -> bool:
    """Whether there are kernels for the instruction set asked for."""
    return bool(ffi.string(lib.ctcbind_isa()) != _NO_KERNELS)


def structs(kind: str, count: int, fields: dict[str, Any]) -> Any:
    """The C structs of so many samples. An int is the same in all; of an array each sample gets the address of its own
    part; the fields of a struct within are a dict. What is not given is 0.

    The arrays are not kept.
    """
    made = ffi.new(f"{kind}[]", count)
    _fill(made[0], fields)
    if count > 1:
        pointers = list(_pointers(kind, fields))
        offsets, steps = [offset for offset, _ in pointers], [step for _, step in pointers]
        lib.ctcbind_repeat(made, ffi.sizeof(kind), count, offsets, steps, len(pointers))
    return made


def _fill(struct: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if type(value) is int:
            setattr(struct, name, value)
        elif type(value) is dict:
            _fill(getattr(struct, name), value)
        else:
            setattr(struct, name, _address(value))


def _address(array: Any) -> Any:
    """A `void *`; NumPy's own way to it takes three times as long."""
    return ffi.cast(_VOID, ffi.from_buffer(_BYTES, array) if array.flags.c_contiguous else array.ctypes.data)


def _pointers(kind: str, fields: dict[str, Any], within: tuple[str, ...] = ()) -> Iterator[tuple[int, int]]:
    """(offset, bytes from sample to sample) of those that are arrays."""
    for name, value in fields.items():
        if type(value) is dict:
            yield from _pointers(kind, value, (*within, name))
        elif type(value) is not int:
            yield ffi.offsetof(kind, *within, name), value.strides[0]


def narrow(values: Any, to: Any) -> None:
    """Doubles as floats, infinite past their range; without the warning that NumPy gives for it."""
    lib.ctcbind_narrow(ffi.from_buffer(_DOUBLES, values), ffi.from_buffer(_FLOATS, to), values.size)


def set_frames(rows: Any, frames: Any) -> None:
    """How many frames each of some `ctcbind_rows` has; int32."""
    lib.ctcbind_set_frames(rows, ffi.from_buffer(_INTS, frames), len(frames))


def set_labels(graphs: Any, labels: Any, lengths: Any, frames: Any) -> None:
    """The labels of each `ctcbind_graph`, one sample after the other, how many, and the frames; int32. They are not
    kept."""
    c_labels, c_lengths = ffi.from_buffer(_INTS, labels), ffi.from_buffer(_INTS, lengths)
    lib.ctcbind_set_labels(graphs, c_labels, c_lengths, ffi.from_buffer(_INTS, frames), len(frames))


def memory(structs: Any) -> Any:
    """That of an array of structs, as a buffer; it keeps them."""
    return ffi.buffer(structs)


def layout(struct: str) -> dict[str, Any]:
    """How a C struct lies in memory, as NumPy describes it; pointers are integers."""
    return _layout(ffi.typeof(struct))


def _layout(kind: Any) -> dict[str, Any]:
    fields = [(name, field) for name, field in kind.fields if name]
    return {
        "names": [name for name, _ in fields],
        "formats": [_format(field.type) for _, field in fields],
        "offsets": [field.offset for _, field in fields],
        "itemsize": ffi.sizeof(kind),
    }


def _format(kind: Any) -> Any:
    if kind.kind == "struct":
        return _layout(kind)
    letter = "f" if kind.cname == "double" else "u" if kind.kind == "pointer" else "i"
    return f"{letter}{ffi.sizeof(kind)}"


def finish(status: int) -> None:
    """Raises what ended a batch: what a signal's handler has raised, or a language model."""
    if status == lib.CTCBIND_ROWS_STOPPED:
        raise_stopped()


def check(call: str, status: int) -> bool:
    """Whether the sample was computed; False for one with a NaN. Raises NativeError for any other status."""
    if status == lib.CTCBIND_ROWS_OK:
        return True
    if status == lib.CTCBIND_ROWS_NAN:
        return False
    name, why = _STATUS.get(status, ("CTCBIND_UNKNOWN", "an unknown status"))
    error = NativeMemoryError if status == lib.CTCBIND_ROWS_NO_MEMORY else NativeError
    raise error(call, status, name, why)
