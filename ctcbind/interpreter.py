"""Where ctcbind does not run: refused on import, before anything else of it is loaded.

In a sub-interpreter NumPy is not supported, and cffi may answer for a Python callback with 0 (seen with cffi 2.1 on
CPython 3.11): a language model would be ignored. A free-threaded Python loads no module of the stable ABI, even with
its GIL on, and nothing has been run there.
"""

from __future__ import annotations

import sys
from importlib import import_module

__all__ = ["refuse"]


def refuse() -> None:
    """Raises ImportError in a sub-interpreter, and in a free-threaded Python."""
    if _number() != 0:
        raise ImportError(
            "ctcbind does not run in a sub-interpreter, as NumPy does not: import it in the main interpreter (threads "
            "and processes are fine; under mod_wsgi, WSGIApplicationGroup %{GLOBAL})"
        )
    if "t" in getattr(sys, "abiflags", ""):
        raise ImportError(
            "ctcbind is built with Python's stable ABI, which a free-threaded Python does not have, and has not been "
            "tested there: take one with the GIL (python3.14, not python3.14t; its C code lets go of the GIL and takes "
            "threads of its own)"
        )


def _number() -> int:
    """0 for the main interpreter."""
    for name in ("_interpreters", "_xxsubinterpreters"):  # CPython from 3.13 on, and before
        try:
            current = import_module(name).get_current()
        except ImportError:
            continue
        return int(current[0] if isinstance(current, tuple) else current)
    return 0  # another Python


refuse()
