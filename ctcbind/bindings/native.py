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

_STATUS = {
    lib.CTCBIND_NO_MEMORY: ("CTCBIND_NO_MEMORY", "the workspace could not be allocated"),
    lib.CTCBIND_INVALID: ("CTCBIND_INVALID", "the problem has a dtype, topology or size that the engine lacks"),
}


class Problem:
    """One ctcbind_problem and the workspace that its calls share, growing only, until closed."""

    def __init__(self) -> None:
        self._struct: Any = ffi.new("ctcbind_problem *")
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

    def loss(
        self,
        logits: int,
        logits_strides: tuple[int, int, int],
        grad: int,
        grad_strides: tuple[int, int, int],
        losses: int,
        labels: int,
        label_lengths: int,
        input_lengths: int,
        weights: int,
        shape: tuple[int, int, int],
        blank: int,
        dtype: int,
        topology: int,
        threads: int,
    ) -> None:
        """ctcbind_loss. Pointers are addresses (0 is NULL), strides count elements, `shape` is (T, N, C).

        Raises NativeError where the engine returns a status, ClosedError after close().
        """
        problem = self._struct
        if problem is None:
            raise ClosedError("the native engine's workspace was closed; open a new one")
        cast = ffi.cast
        problem.logits = cast("void *", logits)
        problem.logits_t, problem.logits_n, problem.logits_c = logits_strides
        problem.grad = cast("void *", grad)
        problem.grad_t, problem.grad_n, problem.grad_c = grad_strides
        problem.losses = cast("void *", losses)
        problem.labels = cast("int32_t *", labels)
        problem.label_lengths = cast("int32_t *", label_lengths)
        problem.input_lengths = cast("int32_t *", input_lengths)
        problem.weights = cast("double *", weights)
        problem.T, problem.N, problem.C = shape
        problem.blank = blank
        problem.dtype = dtype
        problem.topology = topology
        problem.threads = threads
        needed = lib.ctcbind_workspace_size(problem)
        if needed > self._bytes:
            self._workspace = ffi.NULL  # the old one goes before the new one comes
            self._workspace = ffi.gc(_allocate(needed), lib.ctcbind_workspace_free, needed)
            self._bytes = needed
        status = lib.ctcbind_loss(problem, self._workspace, self._bytes)
        if status != lib.CTCBIND_OK:
            raise _error("ctcbind_loss", status)


def _allocate(size: int) -> Any:
    workspace = lib.ctcbind_workspace_new(size)
    if workspace == ffi.NULL:
        name, why = _STATUS[lib.CTCBIND_NO_MEMORY]
        raise NativeError("ctcbind_workspace_new", lib.CTCBIND_NO_MEMORY, name, f"{why} ({size} bytes)")
    return workspace


def _error(call: str, status: int) -> NativeError:
    name, why = _STATUS.get(status, ("CTCBIND_UNKNOWN", "an unknown status"))
    return NativeError(call, status, name, why)
