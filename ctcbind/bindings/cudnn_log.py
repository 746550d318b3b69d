"""cuDNN's log callback: the only place where the reason of a NOT_SUPPORTED can be read.

cudnnGetLastErrorString has nothing to say about a NOT_SUPPORTED, since that is logged as a warning; the callback
of cudnnSetCallback is told, with no environment variable set (cuDNN 8.5 to 9.28). The callback is one for the
whole process and not ours alone, so it is set only when somebody listens, and one that another library has set,
or a log that was asked for by environment variables, is left alone.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple

from ..forks import Lock
from ._cudnn import ffi
from .cudnn_enums import CUDNN_SEV_ERROR_EN, CUDNN_SEV_INFO, CUDNN_SEV_WARNING_EN, cudnnSeverity_t

__all__ = ["Callback", "Log", "Window", "cudnnDebug_t"]

logger = logging.getLogger("ctcbind")


class cudnnDebug_t(NamedTuple):  # noqa: N801
    """What cuDNN tells of the moment of a message (cudnn_graph.h, 9.28); handle and stream are addresses."""

    cudnn_version: int
    cudnnStatus: int
    time_sec: int
    time_usec: int
    time_delta: int
    handle: int
    stream: int
    pid: int
    tid: int
    cudaDeviceId: int


Callback = Callable[[cudnnSeverity_t, object, cudnnDebug_t, str], object]

_LOUD = CUDNN_SEV_ERROR_EN | CUDNN_SEV_WARNING_EN


class Window:
    """A stretch of time in which the messages of this thread's calls are collected into a list."""

    __slots__ = ("_heard", "_log", "_mask")

    def __init__(self, log: Log, mask: int) -> None:
        self._log = log
        self._mask = mask
        self._heard: list[str] = []

    def __enter__(self) -> list[str]:
        self._log._open(self._heard, self._mask)
        return self._heard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log._close(self._heard, self._mask)


class Log:
    """The callback of one library. In C it is always the same function; what it does is decided here."""

    def __init__(self, set_callback: Any, get_callback: Any, version: int) -> None:
        self._set_callback = set_callback
        self._get_callback = get_callback
        # From 9.0 on there is no way back to silence: a mask of 0 is taken for errors alone, and with no callback
        # they are written to stderr, those of other libraries' calls too. So ours stays, with nothing to do.
        self._stays = version >= 90000
        self._lock = Lock()  # a message may come while it is held
        self._sinks = threading.local()
        self._masks: list[int] = []
        self._user: tuple[int, object, Callback] | None = None
        self._mask = 0  # what we last set; 0: nobody listens
        self._leaves = False
        self._out = ffi.new("unsigned *"), ffi.new("void **"), ffi.new("cudnnCallback_t *")
        self._callback = ffi.NULL
        if set_callback is not None and get_callback is not None:
            try:
                self._callback = ffi.callback("cudnnCallback_t", self._receive, onerror=_report)
            except (MemoryError, SystemError):  # a system that forbids code made at run time
                logger.debug("no callback can be made here, so errors of cuDNN come without its reasons")

    @property
    def listening(self) -> bool:
        """Whether messages come in, because of a window that is open or the person's own callback."""
        return self._mask != 0

    def window(self, mask: int = _LOUD) -> Window:
        return Window(self, mask)

    def user(self) -> tuple[int, object, Callback] | None:
        return self._user

    def set_user(self, mask: int, udata: object, fptr: Callback | None) -> int:
        """cudnnSetCallback for the person's own function; returns the status."""
        with self._lock:
            user = None if fptr is None or mask == 0 else (mask, udata, fptr)
            status = self._set(self._wanted(user))
            if status == 0:
                self._user = user
            return status

    def _open(self, heard: list[str], mask: int) -> None:
        self._sinks.__dict__.setdefault("all", []).append(heard)
        if self._callback != ffi.NULL:
            with self._lock:
                self._masks.append(mask)
                self._adapt()

    def _close(self, heard: list[str], mask: int) -> None:
        sinks = self._sinks.__dict__["all"]
        sinks[:] = [each for each in sinks if each is not heard]
        if self._callback != ffi.NULL:
            with self._lock:
                self._masks.remove(mask)
                self._adapt()

    def _wanted(self, user: tuple[int, object, Callback] | None) -> int:
        wanted = 0 if user is None else user[0]
        for mask in self._masks:
            wanted |= mask
        return wanted

    def _adapt(self) -> None:
        """Sets the callback and its mask to what the open windows and the person's function need together."""
        wanted = self._wanted(self._user)
        if wanted == self._mask:
            return
        mask, udata, fptr = self._out
        status = self._get_callback(mask, udata, fptr)
        # no callback but a mask: the log goes where CUDNN_LOGDEST_DBG says, and a callback would divert it
        theirs = fptr[0] != self._callback and (fptr[0] != ffi.NULL or mask[0] != 0)
        if status != 0 or theirs:
            self._mask = 0
        else:
            self._set(wanted)

    def _set(self, wanted: int) -> int:
        own = self._callback if wanted or self._stays else ffi.NULL
        status: int = self._set_callback(wanted, ffi.NULL, own)
        if status == 0:
            self._mask = wanted
            # A message that comes while the interpreter goes down would find nobody to take it. Once: atexit keeps
            # the place of what is unregistered.
            if own != ffi.NULL and not self._leaves:
                self._leaves = True
                atexit.register(self._leave)
        return status

    def _leave(self) -> None:
        if self._get_callback(*self._out) != 0 or self._out[2][0] != self._callback:
            return
        self._set_callback(0, ffi.NULL, ffi.NULL)

    def _receive(self, sev: int, udata: Any, dbg: Any, msg: Any) -> None:
        text = _lines(msg)
        if sev == CUDNN_SEV_INFO and ("function cudnnGetCallback()" in text or "function cudnnSetCallback()" in text):
            return  # of the window itself
        for heard in self._sinks.__dict__.get("all", ()):
            heard.append(text)
        user = self._user
        if user is not None and user[0] >> sev & 1:
            _, own, fptr = user
            fptr(cudnnSeverity_t(sev), own, _debug(dbg), text)


def _lines(msg: Any) -> str:
    """The message: C strings one after the other, up to an empty one (seen with 8.5, 9.0 and 9.28)."""
    lines: list[str] = []
    while msg != ffi.NULL and len(lines) < 100:
        line = ffi.string(msg)
        if not line:
            break
        lines.append(line.decode("utf-8", "replace"))
        msg += len(line) + 1
    return "\n".join(lines)


def _debug(dbg: Any) -> cudnnDebug_t:
    return cudnnDebug_t(
        dbg.cudnn_version,
        dbg.cudnnStatus,
        dbg.time_sec,
        dbg.time_usec,
        dbg.time_delta,
        int(ffi.cast("uintptr_t", dbg.handle)),
        int(ffi.cast("uintptr_t", dbg.stream)),
        dbg.pid,
        dbg.tid,
        dbg.cudaDeviceId,
    )


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType) -> None:
    logger.error("the callback given to cudnnSetCallback failed", exc_info=(kind, error, trace))
