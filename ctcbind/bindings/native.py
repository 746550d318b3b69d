"""csrc/ctcbind.h, the native engine, compiled into this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from ..errors import ClosedError, NativeError, NativeMemoryError
from ._native import ffi, lib
from .native_stop import ask, raise_stopped

__all__ = ["DTYPES", "TOPOLOGIES", "Problem", "fail", "instruction_set"]

DTYPES = {
    "float32": lib.CTCBIND_FLOAT32,
    "float64": lib.CTCBIND_FLOAT64,
    "float16": lib.CTCBIND_FLOAT16,
    "bfloat16": lib.CTCBIND_BFLOAT16,
}
TOPOLOGIES = {"ctc": lib.CTCBIND_TOPOLOGY_CTC, "simple": lib.CTCBIND_TOPOLOGY_SIMPLE}

_BYTES, _INTS, _DOUBLES = ffi.typeof("char[]"), ffi.typeof("int32_t[]"), ffi.typeof("double[]")
_VOID = ffi.typeof("void *")
_NULL, _FROM_BUFFER = ffi.NULL, ffi.from_buffer
_RUN, _OK = lib.ctcbind_run, lib.CTCBIND_OK

_STATUS = {
    lib.CTCBIND_NO_MEMORY: ("CTCBIND_NO_MEMORY", "the workspace could not be allocated"),
    lib.CTCBIND_INVALID: ("CTCBIND_INVALID", "the problem has a dtype, topology or size that the engine lacks"),
    lib.CTCBIND_SMALL: ("CTCBIND_SMALL", "the workspace is too small"),
}


def instruction_set() -> str | None:
    """avx512, avx2, neon or scalar; None where CTCBIND_ISA asks for one that is not to be had here."""
    name = ffi.string(lib.ctcbind_isa()).decode()
    return None if name == "none" else name


class Problem:
    """One ctcbind_problem and the workspace that its calls share, growing only, until closed.

    What lies in memory is given as an address, or as a contiguous buffer. `threads` bounds those of a call.
    """

    def __init__(self) -> None:
        self._struct: Any = ffi.new("ctcbind_problem *")
        self._struct.stop = ask
        self._workspace: Any = ffi.NULL
        self._bytes = 0
        self._told: Callable[[int, int], None] | None = None
        self._closing: Callable[[], None] | None = None

    def follow(self, told: Callable[[int, int], None], closing: Callable[[], None]) -> None:
        """Tells address and bytes of the workspace, now and whenever it has grown, and of its end."""
        self._told, self._closing = told, closing
        self._tell(self._workspace)

    @property
    def closed(self) -> bool:
        return self._struct is None

    @property
    def workspace_bytes(self) -> int:
        return self._bytes

    def close(self) -> None:
        if self._closing is not None:
            self._closing()
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
        problem = self._open()
        problem.T, problem.N, problem.C = shape
        problem.logits_t, problem.logits_n, problem.logits_c = logits_strides
        problem.grad_t, problem.grad_n, problem.grad_c = grad_strides
        problem.blank = blank
        problem.dtype = dtype
        problem.topology = topology
        problem.threads = threads

    def loss(
        self, logits: Any, grad: Any, losses: Any, integers: Sequence[int] | Any, weights: Any, labels: int
    ) -> None:
        """ctcbind_loss; `integers` are `labels` labels, N label lengths and N input lengths. None is NULL.

        Raises NativeError where the engine returns a status, ClosedError after close(), and what a signal's handler
        raises in the course of a long call: KeyboardInterrupt at Ctrl-C.
        """
        # the names keep the buffers alive for the call
        x = _FROM_BUFFER(_BYTES, logits) if type(logits) is not int else ffi.cast(_VOID, logits)
        y = _FROM_BUFFER(_BYTES, losses)
        g = _NULL if grad is None else _FROM_BUFFER(_BYTES, grad) if type(grad) is not int else ffi.cast(_VOID, grad)
        w = _NULL if weights is None else _FROM_BUFFER(_DOUBLES, weights)
        ints = integers if type(integers) is list else _FROM_BUFFER(_INTS, integers)
        problem = self._struct or self._open()
        status = _RUN(problem, x, g, y, ints, labels, w, self._workspace, self._bytes)
        if status < 0:
            self._grow(-status)
            status = _RUN(problem, x, g, y, ints, labels, w, self._workspace, self._bytes)
        if status != _OK:
            fail(status)

    def _grow(self, size: int) -> None:
        self._bytes = 0
        self._tell(_NULL)
        self._workspace = _NULL  # the old one goes before the new one comes
        self._workspace = ffi.gc(_allocate(size), lib.ctcbind_workspace_free, size)
        self._bytes = size
        self._tell(self._workspace)

    def _tell(self, workspace: Any) -> None:
        if self._told is not None:
            self._told(int(ffi.cast("intptr_t", workspace)), self._bytes)

    def _open(self) -> Any:
        if self._struct is None:
            raise ClosedError("the native engine's workspace was closed; open a new one")
        return self._struct


def fail(status: int) -> NoReturn:
    """Raises what a status of ctcbind_loss stands for."""
    if status == lib.CTCBIND_STOPPED:
        raise_stopped()
    name, why = _STATUS.get(status, ("CTCBIND_UNKNOWN", "an unknown status"))
    error = NativeMemoryError if status == lib.CTCBIND_NO_MEMORY else NativeError
    raise error("ctcbind_loss", status, name, why)


def _allocate(size: int) -> Any:
    workspace = lib.ctcbind_workspace_new(size)
    if workspace == ffi.NULL:
        name, why = _STATUS[lib.CTCBIND_NO_MEMORY]
        raise NativeMemoryError("ctcbind_workspace_new", lib.CTCBIND_NO_MEMORY, name, f"{why} ({size} bytes)")
    return workspace
