"""OpenMP's number of threads, which belongs to the calling thread and not to one library: PyTorch reads it too."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

__all__ = ["num_threads_kept"]


@contextmanager
def num_threads_kept(path: str) -> Iterator[None]:
    """Undoes, after this block, what the library loaded from `path` has set in it, where its OpenMP can be found."""
    functions = _functions(path)
    if functions is None:
        yield
        return
    get, put = functions
    before = get()
    try:
        yield
    finally:
        put(before)


@cache
def _functions(path: str) -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """omp_get_max_threads and omp_set_num_threads of the library or of what it was linked with; nothing is loaded."""
    try:
        loaded = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        get, put = loaded.omp_get_max_threads, loaded.omp_set_num_threads
    except (OSError, AttributeError):  # Windows has no RTLD_NOLOAD
        return None
    put.restype = None
    return get, put
