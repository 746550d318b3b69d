"""Peak extra memory of a first call: how far the process's resident memory rises above what it had with the inputs.

A fresh process for each peer and size. The library is loaded and has run a small batch on as many threads; the inputs
of the large one are made, code is compiled, free memory is given back (malloc_trim), and Linux is told to forget the
peak it had seen (5 into /proc/self/clear_refs). Then comes one call, and VmHWM less VmRSS before it is its peak. malloc
is told (mallopt) to take anything from 64 kB from the system and to give it back at once, so that nothing is hidden in
free lists. The results themselves, losses and gradient, are taken off. Linux counts resident pages for each processor
and adds them up now and then: 0.25 MB on two processors are its resolution.
"""

from __future__ import annotations

import ctypes
import gc
import re
from pathlib import Path

from . import cases
from .peers import PEERS
from .worker import Process

__all__ = ["available", "extra"]

_WARM_UP = cases.Case("warm-up", 64, 8, 11, 64)
_MALLOC = {"M_MMAP_THRESHOLD": (-3, 65536), "M_TRIM_THRESHOLD": (-1, 0), "M_TOP_PAD": (-2, 0)}  # glibc's malloc.h
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def available() -> bool:
    """Whether this system has /proc as Linux has it."""
    try:
        return "VmHWM" in _STATUS.read_text() and _CLEAR.exists() and hasattr(ctypes.CDLL(None), "malloc_trim")
    except OSError:
        return False


def extra(name: str, case: cases.Case, threads: int, with_grad: bool) -> int:
    """Bytes beyond inputs and results at the peak of a first call, measured in a process of its own."""
    process = Process(threads)
    try:
        return int(process.run(_measure, name, case, threads, with_grad))
    finally:
        process.close()


def _measure(name: str, case: cases.Case, threads: int, with_grad: bool) -> int:
    c = ctypes.CDLL(None)
    for parameter, value in _MALLOC.values():
        c.mallopt(parameter, value)
    peer = PEERS[name](threads)
    warm_up = peer.call(cases.make(_WARM_UP), with_grad)
    for _ in range(3):
        warm_up()
    del warm_up
    problem = cases.make(case)
    call = peer.call(problem, with_grad)
    gc.collect()
    c.malloc_trim(0)
    _CLEAR.write_text("5")
    before = _kilobytes("VmRSS")
    result = call()
    peak = _kilobytes("VmHWM")
    losses, grad = peer.result(result, with_grad)
    return max((peak - before) * 1024 - losses.nbytes - (0 if grad is None else grad.nbytes), 0)


def _kilobytes(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1])
