"""csrc/ctcbind.h, the native engine, compiled into this package."""

from __future__ import annotations

from typing import Any

from ..errors import ClosedError, NativeError
from ._native import ffi, lib

__all__ = ["DTYPES", "TOPOLOGIES", "Problem"]

DTYPES = {
    "float32": lib.CTCBIND_FLOAT32,
    "float64": lib.CTCBIND_FLOAT64,
    "float16": lib.CTCBIND_FLOAT16,
    "bfloat16": lib.CTCBIND_BFLOAT16,
}
TOPOLOGIES = {"ctc": lib.CTCBIND_TOPOLOGY_CTC, "simple": lib.CTCBIND_TOPOLOGY_SIMPLE}

_BYTES, _INTS, _DOUBLES = ffi.typeof("char[]"), ffi.typeof("int32_t[]"), ffi.typeof("double[]")
_VOID = ffi.typeof("void *")

_STATUS = {
    lib.CTCBIND_NO_MEMORY: ("CTCBIND_NO_MEMORY", "the workspace could not be allocated"),
    lib.CTCBIND_INVALID: ("CTCBIND_INVALID", "the problem has a dtype, topology or size that the engine lacks"),
}


class Problem:
    """One ctcbind_problem and the workspace that its calls share, growing only, until closed.

    What lies in memory is given as an address, or as a contiguous buffer. `threads` bounds those of a call.
    """

    def __init__(self) -> None:
        self._struct: Any = ffi.new("ctcbind_problem *")
        self._shape: tuple[Any, ...] = ()
        self._workspace: Any = ffi.NULL
        self._bytes = 0

    @property
    def closed(self) -> bool:
        return self._struct is None

    @property
    def workspace_bytes(self) -> int:
        return self._bytes

    def close(self) -> None:
        self._struct = None
        self._workspace = ffi.NULL
        self._bytes = 0

    def describe(
        self,
        shape: tuple[int, int, int],
        logits_strides: tuple[int, int, int],
        grad_strides: tuple[int, int, int],
        blank: int,
        dtype: int,
        topology: int,
        threads: int,
    ) -> None:
        """What stays from call to call; strides count elements, `shape` is (T, N, C). Raises ClosedError."""
        described = shape, logits_strides, grad_strides, blank, dtype, topology, threads
        if described == self._shape:
            return
        problem = self._open()
        problem.T, problem.N, problem.C = shape
        problem.logits_t, problem.logits_n, problem.logits_c = logits_strides
        problem.grad_t, problem.grad_n, problem.grad_c = grad_strides
        problem.blank = blank
        problem.dtype = dtype
        problem.topology = topology
        problem.threads = threads
        self._shape = described

    def loss(self, logits: Any, grad: Any, losses: Any, integers: Any, weights: Any) -> None:
        """ctcbind_loss; `integers` are int32: all labels, N label lengths, N input lengths. None is NULL.

        Raises NativeError where the engine returns a status, ClosedError after close().
        """
        problem = self._open()
        # the names keep the buffers alive for the call
        problem.logits = x = _pointer(logits)
        problem.grad = g = _pointer(grad)
        problem.losses = y = _pointer(losses)
        ints = ffi.from_buffer(_INTS, integers)
        N = problem.N
        lengths = ints + (len(ints) - 2 * N)
        problem.labels = ints
        problem.label_lengths = lengths
        problem.input_lengths = lengths + N
        problem.weights = w = ffi.NULL if weights is None else ffi.from_buffer(_DOUBLES, weights)
        needed = lib.ctcbind_workspace_size(problem)
        if needed > self._bytes:
            self._workspace = ffi.NULL  # the old one goes before the new one comes
            self._workspace = ffi.gc(_allocate(needed), lib.ctcbind_workspace_free, needed)
            self._bytes = needed
        status = lib.ctcbind_loss(problem, self._workspace, self._bytes)
        del x, g, y, w
        if status != lib.CTCBIND_OK:
            raise _error("ctcbind_loss", status)

    def _open(self) -> Any:
        if self._struct is None:
            raise ClosedError("the native engine's workspace was closed; open a new one")
        return self._struct


def _pointer(memory: Any) -> Any:
    if memory is None:
        return ffi.NULL
    return ffi.cast(_VOID, memory) if isinstance(memory, int) else ffi.from_buffer(_BYTES, memory)


def _allocate(size: int) -> Any:
    workspace = lib.ctcbind_workspace_new(size)
    if workspace == ffi.NULL:
        name, why = _STATUS[lib.CTCBIND_NO_MEMORY]
        raise NativeError("ctcbind_workspace_new", lib.CTCBIND_NO_MEMORY, name, f"{why} ({size} bytes)")
    return workspace


def _error(call: str, status: int) -> NativeError:
    name, why = _STATUS.get(status, ("CTCBIND_UNKNOWN", "an unknown status"))
    return NativeError(call, status, name, why)
