"""csrc/threads.h: the native engine on the threads of an OpenMP that is in the process already."""

from __future__ import annotations

import ctypes
import os
import sys

from ..forks import forked
from ._native import ffi, lib

__all__ = ["borrow_openmp"]

#: GOMP_parallel is part of libgomp's interface to compiled programs since GCC 4.9.
_NAMES = ("GOMP_parallel", "omp_get_thread_num", "omp_get_max_threads", "omp_in_parallel")


def borrow_openmp() -> bool:
    """From now on the engine works on the threads of libgomp while they spin, if it has been loaded; else False.

    PyTorch brings it on Linux. After each work its threads spin for some milliseconds, on processors that other threads
    wait for in that time.
    """
    if not sys.platform.startswith("linux") or forked():  # in a child libgomp would wait for its parent's threads
        return False
    try:
        loaded = ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        addresses = [ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value for name in _NAMES]
    except (OSError, AttributeError):
        return False
    parallel, *others = (ffi.cast("void *", address) for address in addresses)
    lib.ctcbind_borrow_threads(
        ffi.cast("ctcbind_gomp_parallel", parallel), *(ffi.cast("ctcbind_omp_get", each) for each in others)
    )
    return True
