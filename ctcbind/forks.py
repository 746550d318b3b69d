"""After fork: the child has one thread, and must find every lock open, whatever its parent's other threads held."""

from __future__ import annotations

import os
import sys
import threading
from functools import cached_property
from types import TracebackType
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

__all__ = ["Lock", "forked", "open_properties", "watch"]

_Class = TypeVar("_Class", bound=type)


class Forked(Protocol):
    """An object that must put itself right in a child of fork before it is used there."""

    def _after_fork(self) -> None: ...


#: By id, not in a set: a class derived from CTCLoss may have an equality of its own, and no hash.
_watched: WeakValueDictionary[int, Forked] = WeakValueDictionary()
_forked: bool | None = None  # where that is known


def watch(owner: Forked) -> None:
    """Has `owner._after_fork()` called in every child, as long as the owner lives."""
    _watched[id(owner)] = owner


def forked() -> bool:
    """Whether this process began with a fork, so that an OpenMP used by its parent would wait for threads that do not
    exist here."""
    global _forked
    if _forked is None:
        _forked = sys.platform.startswith("linux") and _begun_by_fork()
    return _forked


#: Of the kernel's flags of a process (PF_FORKNOEXEC): begun by fork, and no program loaded since.
_FORK_NO_EXEC = 0x40


def _begun_by_fork() -> bool:
    """Whoever called fork, and also where that was before this module was imported."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as stat:
            flags = int(stat.read().rpartition(")")[2].split()[6])
    except (OSError, ValueError, IndexError):
        return True
    return bool(flags & _FORK_NO_EXEC)


def _in_child() -> None:
    global _forked
    _forked = True
    for owner in list(_watched.values()):
        owner._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Lock:
    """A lock that is open in a child of fork, and to the thread that holds it: a signal's handler may enter where it
    interrupts who is inside."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        watch(self)

    def _after_fork(self) -> None:
        if self._lock.acquire(blocking=False):  # no other thread had it: the one that forked may, and gives it back
            self._lock.release()
        else:
            self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def open_properties(owner: _Class) -> _Class:
    """Returns the class, having made sure that a child of fork can use its cached properties: before Python 3.12 each
    has a lock."""
    for attribute in vars(owner).values():
        if isinstance(attribute, cached_property) and hasattr(attribute, "lock"):
            attribute.lock = Lock()
    return owner
