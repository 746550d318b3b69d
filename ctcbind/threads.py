"""How many threads the native engine may use."""

from __future__ import annotations

import os

from .errors import InvalidInput

__all__ = ["get_num_threads", "set_num_threads"]

_threads: int | None = None


def get_num_threads() -> int:
    """The most threads that one call of the native engine uses.

    What `set_num_threads` said, else the environment variable CTCBIND_NUM_THREADS, else the processors that
    this process may run on. Results have the same bits for any number. Raises InvalidInput where the variable
    is no positive integer.
    """
    return _default() if _threads is None else _threads


def set_num_threads(count: int | None) -> None:
    """Bound the threads that one call of the native engine uses; None goes back to the default.

    Raises InvalidInput for a count below 1.

    >>> import ctcbind
    >>> ctcbind.set_num_threads(1)
    >>> ctcbind.get_num_threads()
    1
    >>> ctcbind.set_num_threads(None)
    """
    global _threads
    _threads = None if count is None else _positive("the number of threads", count)


def _default() -> int:
    variable = os.environ.get("CTCBIND_NUM_THREADS")
    if variable:
        return _positive("CTCBIND_NUM_THREADS", variable)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _positive(name: str, value: int | str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise InvalidInput(f"{name} is {value!r}; it must be a positive integer", rule="threads", value=value)
    return count
