"""Numbers too small to be normal are flushed to 0 inside the native engine, and nowhere else."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import ctcbind

#: Where the processor has a mode for it that leaves operands alone (csrc/flush.h).
FLUSHES = platform.machine().lower() in ("x86_64", "amd64", "i686", "i386", "x86")


def subnormal_results(dtype):
    """Whether this thread's arithmetic still has numbers below the normal ones."""
    tiny = np.full(16, np.finfo(dtype).tiny)
    return bool(np.all(tiny * dtype(0.5) > 0))


def batch(T, L, C, N, dtype=np.float32):
    rng = np.random.default_rng([T, L, C, N])
    return rng.normal(size=(T, N, C)).astype(dtype), rng.integers(1, C, (N, L))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(  # whole samples; few long ones, in halves; few of many classes, whose rows are shared
    "size", [(64, 8, 11, 16), (1000, 200, 32, 1), (64, 8, 3000, 1)], ids=["whole", "halves", "rows"]
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_callers_arithmetic_stays_as_it_is(size, dtype, threads):
    logits, labels = batch(*size, dtype)
    seen = []

    def call():
        ctcbind.ctc_loss_and_grad(logits, labels, engine="native")
        seen.append(subnormal_results(dtype))

    try:
        ctcbind.set_num_threads(threads)
        call()
        other = threading.Thread(target=call)
        other.start()
        other.join()
    finally:
        ctcbind.set_num_threads(None)
    assert seen == [True, True]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that send signals")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("size", "dtype"), [((30000, 12000, 40, 1), np.float32), ((60000, 60, 3000, 1), np.float64)])
def test_a_signals_handler_has_the_callers_arithmetic(size, dtype, threads):
    """It runs in the middle of a sample, which goes on with its own."""
    T, L, C, N = size
    logits = np.broadcast_to(np.random.default_rng(0).normal(size=C).astype(dtype), (T, N, C))
    labels, seen = [[1, 2] * (L // 2)], []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(subnormal_results(dtype)))
    try:
        ctcbind.set_num_threads(threads)
        right = ctcbind.ctc_loss(logits, labels, engine="native")
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for _ in range(3):
            assert np.array_equal(ctcbind.ctc_loss(logits, labels, engine="native"), right)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ctcbind.set_num_threads(None)
    assert seen
    assert all(seen)


@pytest.mark.parametrize("C", [5, 400], ids=["dense", "sparse"])
@pytest.mark.parametrize(("dtype", "below"), [(np.float32, 95), (np.float64, 720)])
def test_a_softmax_below_the_normal_numbers(dtype, below, C):
    logits, labels = batch(30, 3, C, 2, dtype)
    logits[..., -1] = logits.max(-1) - below
    labels[labels == C - 1] = 1
    share = ctcbind.ctc_loss_and_grad(logits, labels, engine="native").grad[..., -1]
    assert (share >= 0).all()
    assert (share < np.finfo(dtype).tiny).all()
    if FLUSHES:
        assert (share == 0).all()


#: What PyTorch's set_flush_denormal does, and a library that was linked with -ffast-math.
FLUSH = """
#include <xmmintrin.h>
void flush(void) { _mm_setcsr(_mm_getcsr() | 0x8040); }
"""

HALVES = """
import ctypes, sys
import numpy as np, ctcbind
rng = np.random.default_rng(0)
logits = (rng.integers(-1000, 1001, (30, 4, 6)) * 2.0**-24).astype(np.float16)  # below the normal halves, nearly all
call = lambda: ctcbind.ctc_loss_and_grad(logits, [[1, 2], [3], [4, 5, 1], [2, 2]], engine="native")
right = call()
ctypes.CDLL(sys.argv[1]).flush()
assert np.float32(1e-40) * np.float32(1) == 0, "operands are flushed"
found = call()
assert np.float32(1e-40) * np.float32(1) == 0, "the mode stays"
np.testing.assert_array_equal(found.loss, right.loss)
np.testing.assert_array_equal(found.grad, right.grad)
"""


@pytest.mark.parametrize("isa", ["", "scalar"])
def test_small_halves_count_where_the_caller_flushes_operands(isa, tmp_path):
    """The plain kernel widens them by way of subnormal floats."""
    if not FLUSHES or not (compiler := shutil.which("gcc")):
        pytest.skip("no gcc, or no processor that has such a mode")
    (tmp_path / "flush.c").write_text(FLUSH)
    command = [compiler, "-shared", "-fPIC", "-msse2", "flush.c", "-o", "flush.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    environment = {**os.environ, "CTCBIND_ISA": isa} if isa else None
    alone = [sys.executable, "-c", HALVES, str(tmp_path / "flush.so")]
    subprocess.run(alone, cwd=tmp_path, env=environment, check=True, timeout=120)
