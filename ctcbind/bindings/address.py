"""Addresses as they are given: Python's ints, and NumPy's numbers and arrays of no dimension, which are buffers too."""

from __future__ import annotations

import operator
import struct
from typing import Any

__all__ = ["as_address"]

_BYTES = struct.calcsize("P")


def as_address(value: Any) -> int | None:
    """The int that stands for an address; None for an array, and for an item that is too narrow to hold one."""
    if getattr(value, "ndim", 0) or getattr(value, "itemsize", _BYTES) < _BYTES:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
