"""csrc/rows.h and csrc/graph.h: what the native functions beside the loss take and answer, as arrays of structs."""

from __future__ import annotations

from typing import Any

from ..errors import NativeError, NativeMemoryError
from ._native import ffi, lib
from .native_stop import raise_stopped

__all__ = ["DTYPES", "TOPOLOGIES", "check", "finish", "layout"]

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
