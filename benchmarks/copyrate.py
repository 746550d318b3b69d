"""The machine's own copy rate, the yardstick of the roofline: NumPy's copy (memcpy) of as many bytes as the logits."""

from __future__ import annotations

import threading
import time

import numpy as np

__all__ = ["LEAST", "measure", "needed"]

#: Less than this a thread is mostly the call of NumPy.
LEAST = 1 << 18
_SECONDS = 0.02


def measure(size: int, threads: int) -> float:
    """Bytes a second, read and written together, when each of the threads copies its part of `size` bytes again
    and again; less than 256 kB a thread are rounded up to that."""
    part = max(size // threads, LEAST)
    buffers = [(np.ones(part, np.uint8), np.ones(part, np.uint8)) for _ in range(threads)]
    barrier = threading.Barrier(threads)
    rates = [0.0] * threads

    def copy(index: int) -> None:
        source, target = buffers[index]
        np.copyto(target, source)
        barrier.wait()
        copies, begin = 0, time.perf_counter()
        while (taken := time.perf_counter() - begin) < _SECONDS:
            np.copyto(target, source)
            copies += 1
        rates[index] = 2 * part * copies / taken

    others = [threading.Thread(target=copy, args=(index,)) for index in range(1, threads)]
    for each in others:
        each.start()
    copy(0)
    for each in others:
        each.join()
    return sum(rates)


def needed(logits_bytes: int, with_grad: bool) -> int:
    """The bytes that have to move: the logits read twice and the gradient written, or the logits read once."""
    return 3 * logits_bytes if with_grad else logits_bytes
