"""csrc/rows.h and csrc/graph.h: one sample as the native functions beside the loss take it."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import NativeError, NativeMemoryError
from ._native import ffi, lib

__all__ = ["DTYPES", "NAN", "TOPOLOGIES", "GraphArgs", "RowsArgs", "check", "fill_graph", "fill_rows"]

DTYPES = {
    "float32": lib.CTCBIND_ROWS_FLOAT32,
    "float64": lib.CTCBIND_ROWS_FLOAT64,
    "float16": lib.CTCBIND_ROWS_FLOAT16,
    "bfloat16": lib.CTCBIND_ROWS_BFLOAT16,
}
TOPOLOGIES = {"ctc": lib.CTCBIND_GRAPH_CTC, "simple": lib.CTCBIND_GRAPH_SIMPLE}
#: The status of a sample with a NaN among its logits.
NAN = lib.CTCBIND_ROWS_NAN

_STATUS = {
    lib.CTCBIND_ROWS_NO_MEMORY: ("CTCBIND_ROWS_NO_MEMORY", "the scratch memory could not be allocated"),
    lib.CTCBIND_ROWS_NAN: ("CTCBIND_ROWS_NAN", "a frame of the logits holds a NaN"),
    lib.CTCBIND_ROWS_STOPPED: ("CTCBIND_ROWS_STOPPED", "the language model's callback ended the search"),
}


class RowsArgs(NamedTuple):
    """The frames of one sample: `data` an address, strides in elements, `dtype` one of DTYPES."""

    data: int
    stride_t: int
    stride_c: int
    T: int
    C: int
    dtype: int


class GraphArgs(NamedTuple):
    """A lattice: addresses of int32 labels, of a float64 prior (0: none) and of a float64 bonus (0: none)."""

    rows: RowsArgs
    labels: int
    L: int
    blank: int
    topology: int
    prior: int = 0
    bonus: int = 0
    bonus_t: int = 0
    bonus_s: int = 0


def fill_rows(struct: Any, rows: RowsArgs) -> Any:
    struct.data = ffi.cast("void *", rows.data)
    struct.stride_t, struct.stride_c = rows.stride_t, rows.stride_c
    struct.T, struct.C, struct.dtype = rows.T, rows.C, rows.dtype
    return struct


def fill_graph(struct: Any, graph: GraphArgs) -> Any:
    fill_rows(struct.rows, graph.rows)
    struct.labels = ffi.cast("int32_t *", graph.labels)
    struct.L, struct.blank, struct.topology = graph.L, graph.blank, graph.topology
    struct.prior = ffi.cast("double *", graph.prior)
    struct.bonus = ffi.cast("double *", graph.bonus)
    struct.bonus_t, struct.bonus_s = graph.bonus_t, graph.bonus_s
    return struct


def check(call: str, status: int) -> bool:
    """Whether the sample was computed; False for one with a NaN. Raises NativeError for any other status."""
    if status == lib.CTCBIND_ROWS_OK:
        return True
    if status == lib.CTCBIND_ROWS_NAN:
        return False
    name, why = _STATUS.get(status, ("CTCBIND_UNKNOWN", "an unknown status"))
    error = NativeMemoryError if status == lib.CTCBIND_ROWS_NO_MEMORY else NativeError
    raise error(call, status, name, why)
