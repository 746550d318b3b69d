"""What a child of fork begins with: open locks, and no threads but one; those of its parent are not there."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

__all__ = ["Lock", "forked", "open_properties", "watch"]

_Class = TypeVar("_Class", bound=type)


class Forked(Protocol):
    """What has something to do in a child of fork before anyone uses it there."""

    def _after_fork(self) -> None: ...


_watched: WeakSet[Forked] = WeakSet()
_forked: bool | None = None  # where that is known


def watch(owner: Forked) -> None:
    """Has `owner._after_fork()` called in every child, as long as the owner lives."""
    _watched.add(owner)


def forked() -> bool:
    """Whether an OpenMP in this process may be its parent's, whose threads are not here: it would wait for them."""
    global _forked
    if _forked is None:
        _forked = sys.platform.startswith("linux") and _begun_by_fork()
    return _forked


#: Of the kernel's flags of a process (PF_FORKNOEXEC): begun by fork, and no program loaded since.
_FORK_NO_EXEC = 0x40


def _begun_by_fork() -> bool:
    """By whomever, and before this was imported too."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            flags = int(stat.read().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return True
    return bool(flags & _FORK_NO_EXEC)


def _in_child() -> None:
    global _forked
    _forked = True
    for owner in list(_watched):
        owner._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Lock:
    """A lock, or what `kind` makes, that is open in a child of fork."""

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._after_fork()
        watch(self)

    def _after_fork(self) -> None:
        self._lock = self._kind()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def open_properties(owner: _Class) -> _Class:
    """The same class; in a child of fork its cached properties are open: before Python 3.12 each has a lock."""
    for attribute in vars(owner).values():
        if isinstance(attribute, cached_property) and hasattr(attribute, "lock"):
            attribute.lock = Lock(threading.RLock)
    return owner
