"""How many threads the engines on the host may use."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable

import numpy as np

from .errors import InvalidInput, brief
from .forks import Lock
from .processors import processors

__all__ = ["chosen_threads", "default_threads", "get_num_threads", "set_num_threads", "tell_threads"]

_threads: int | None = None
_told: list[Callable[[int], None]] = []
#: Held until all are told: of two threads that choose at once, the one whose choice stays is told last.
_lock = Lock()


def get_num_threads() -> int:
    """The most threads that one call of the engines native and warpctc uses.

    This is the number given to `set_num_threads`; without one, the environment variable CTCBIND_NUM_THREADS; and
    without that, the number of processors that this process may run on, or less if its container is limited to fewer
    (Linux's cgroups: `docker run --cpus`, Kubernetes) or OMP_NUM_THREADS is lower (as torchrun sets it). A `CTCLoss`
    asks for the last two when it is first used.

    The engine warpctc uses no more threads than there are samples or processors, and one for float64 and in a child of
    fork. Results have the same bits for any number of threads. Raises InvalidInput where CTCBIND_NUM_THREADS is no
    positive integer.

    >>> import ctcbind
    >>> ctcbind.get_num_threads() >= 1
    True
    """
    chosen = _threads  # read once: another thread may take it back
    return default_threads() if chosen is None else chosen


def chosen_threads() -> int | None:
    """What `set_num_threads` said; None for the default."""
    return _threads


def set_num_threads(count: int | None) -> None:
    """Bound the threads that one call of the engines native and warpctc uses; None goes back to the default.

    Raises InvalidInput for what is no integer from 1 to 2**31 - 1, be it `count` or, for None, CTCBIND_NUM_THREADS.
    The number stays as it was then.

    >>> import ctcbind
    >>> ctcbind.set_num_threads(1)
    >>> ctcbind.get_num_threads()
    1
    >>> ctcbind.set_num_threads(None)
    """
    global _threads
    number = None if count is None else _positive(count)
    with _lock:
        now = default_threads() if number is None else number  # which is refused before anything changes
        _threads = number
        for tell in _told:
            tell(now)


def tell_threads(tell: Callable[[int], None]) -> None:
    """Calls `tell` with the number of threads now, and whenever `set_num_threads` changes it."""
    with _lock:
        tell(get_num_threads())
        _told.append(tell)


def _positive(count: object) -> int:
    try:
        if isinstance(count, (bool, np.bool_)):
            raise TypeError
        number = operator.index(count)  # type: ignore[arg-type]
    except TypeError:
        number = 0
    return _in_range("the number of threads", count, number)


def default_threads() -> int:
    """The number where `set_num_threads` says none; raises InvalidInput as `get_num_threads` does."""
    variable = os.environ.get("CTCBIND_NUM_THREADS")
    if variable:
        return _in_range("CTCBIND_NUM_THREADS", variable, _whole(variable) or 0)
    outermost = _whole(os.environ.get("OMP_NUM_THREADS", "").split(",")[0])
    return processors() if outermost is None else min(processors(), max(1, outermost))


def _whole(text: str) -> int | None:
    """The number that is written there; None for anything else, and for more digits than Python reads."""
    try:
        return int(text) if text.strip().isdecimal() else None
    except ValueError:
        return None


def _in_range(name: str, value: object, number: int) -> int:
    if not 1 <= number < 2**31:
        raise InvalidInput(
            f"{name} is {brief(value)}; it must be an integer from 1 to 2**31 - 1", rule="threads", value=value
        )
    return number
