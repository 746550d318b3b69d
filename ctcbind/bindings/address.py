"""Addresses as they are given: Python's ints, NumPy's numbers and arrays of no dimension, which are buffers too; and
those of buffers, once these hold what C reads there."""

from __future__ import annotations

import operator
import struct
from functools import partial
from typing import Any

from ..errors import InvalidInput, kind_of_items

__all__ = ["LOWEST", "as_address", "check_int32", "pointer_to"]

_BYTES = struct.calcsize("P")
#: No system gives out the first page of memory: what is below is a length or a number of bytes in the wrong place.
LOWEST = 4096


def as_address(value: Any) -> int | None:
    """The int that stands for an address; None for an array, and for an item that is too narrow to hold one."""
    if getattr(value, "ndim", 0) or getattr(value, "itemsize", _BYTES) < _BYTES:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_int32(name: str, view: memoryview, *, rule: str, shape_rule: str) -> None:
    """Raises InvalidInput, by one of the two rules, for a buffer that is not one row of int32 values without gaps."""
    if view.itemsize != 4 or (view.format or "B").lstrip("@=<") not in ("i", "l"):
        kind = kind_of_items(view)
        cure = f": pass {name}.astype(numpy.int32)" if kind.startswith(("int", "uint")) else ""
        raise InvalidInput(f"{name} must hold int32 values, not {kind}{cure}", rule=rule, value=view.format)
    if view.ndim != 1 or not view.c_contiguous:
        padded = view.ndim == 2 and name.lower().endswith("labels")
        row = ": the labels of all samples stand one after the other, unpadded" if padded else ""
        raise InvalidInput(f"{name} must have one dimension and no gaps{row}", rule=shape_rule, value=view.shape)


def pointer_to(ffi: Any, kind: str, view: memoryview) -> Any:
    """A `kind *` to where a buffer begins, which holds the buffer.

    Not what cffi has for that, which is given back at once: where the garbage collector finds one together with its
    memoryview, as in the traceback of an error that somebody keeps, the process ends (cffi 2.1, CPython 3.11).
    """
    with ffi.from_buffer(view) as buffer:
        pointer = ffi.cast(f"{kind} *", buffer)
    return ffi.gc(pointer, partial(_let_go, view))


def _let_go(view: memoryview, pointer: Any) -> None:
    """What cffi calls when the pointer goes; until then it holds this, and so the view."""
