"""How a long call of the native engine is ended from Python: by a signal's handler, or by what C calls back."""

from __future__ import annotations

from threading import get_ident
from typing import Any, NoReturn

from ._native import ffi, lib

__all__ = ["ask", "keep", "raise_stopped"]

#: By thread: what was raised while C waited for Python, last that of the innermost call. For once C has ended one, a
#: signal's handler may make another call before it is raised.
_raised: dict[int, list[BaseException]] = {}


def keep(_kind: Any, error: BaseException, _trace: Any) -> None:
    """C knows no exceptions: what was raised is kept, and raised once C has ended the call."""
    _raised.setdefault(get_ident(), []).append(error)


def raise_stopped() -> NoReturn:
    """Raises what ended a call of this thread: KeyboardInterrupt, or what a handler or a callback has raised."""
    raise _kept(get_ident()) or KeyboardInterrupt


def _kept(thread: int) -> BaseException | None:
    errors = _raised.get(thread)
    if not errors:
        return None
    error = errors.pop()
    if not errors:
        del _raised[thread]
    return error


# Python's own signal handlers run when its main thread comes back from C. A long call comes back here between samples,
# or frames, so that Ctrl-C is answered; any other handler runs, and the call goes on.
@ffi.def_extern(error=1, onerror=keep)  # type: ignore[untyped-decorator]
def ctcbind_interrupted() -> int:
    for _ in range(2):  # Python runs pending signal handlers when a loop jumps back, if not before
        pass
    return 0


#: The C function to give where C asks whether to stop.
ask: Any = lib.ctcbind_interrupted
