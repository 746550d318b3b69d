"""warp-ctc called through the binding, beside float64: what the tests of the binding and of the engine share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

from ctcbind import EngineUnavailable
from ctcbind.bindings import warpctc as binding
from ctcbind.engines.reference import forward_backward, log_softmax

REASON = None
try:
    binding.loaded_from()
except EngineUnavailable as error:
    REASON = str(error)
real = pytest.mark.skipif(REASON is not None, reason=f"needs the real libwarpctc: {str(REASON).partition(chr(10))[0]}")


def build(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler to build the fake warp-ctc")
    # not by the real name: the finder would take it for one that the process has loaded
    path = folder / f"fake{len(list(folder.iterdir()))}.so"
    source = Path(__file__).with_name("fake_warpctc.c")
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", str(path), str(source)], check=True)
    return path


def options(blank=0, threads=1, **others):
    return binding.ctcOptions(num_threads=threads, blank_label=blank, **others)


def call(x, labels, frames=None, *, blank=0, threads=1, grad=True, fill=99.0):
    """(costs, gradients) as the C function leaves them in memory that held `fill`; the workspace is fenced."""
    x = np.ascontiguousarray(x)
    T, N, C = x.shape
    double = x.dtype == np.float64
    frames = [T] * N if frames is None else frames
    lengths = [len(row) for row in labels]
    flat = [k for row in labels for k in row]
    given = options(blank, threads)
    size = (binding.get_workspace_size_double if double else binding.get_workspace_size)(lengths, frames, C, N, given)
    space = np.full(size + 64, 0xA5, np.uint8)
    costs, gradients = np.full(N, fill, x.dtype), np.full(x.shape, fill, x.dtype)
    function = binding.compute_ctc_loss_double if double else binding.compute_ctc_loss
    function(x, gradients if grad else None, flat, lengths, frames, C, N, costs, space, given)
    assert (space[size:] == 0xA5).all(), "the library wrote past its workspace"
    return costs, gradients


def exact(x, labels, blank=0):
    """(loss, gradient) of one sample (T, C) in float64."""
    log_y = log_softmax(np.asarray(x, np.float64))
    loss, occupancy = forward_backward(log_y, np.array(labels, np.int32), blank)
    return loss, (np.exp(log_y) - occupancy if np.isfinite(loss) else np.zeros(log_y.shape))


def bound(x):
    """What rounding can do to a log-mass: T steps, four operations each, on numbers up to T (spread + ln C).

    The loss is one such number; an occupancy (at most 1) is exp of a sum of three, so its error is 3 times that.
    """
    T, C = x.shape
    eps = 2.0**-53 if x.dtype == np.float64 else 2.0**-24
    spread = float(np.ptp(x)) if x.size else 0.0
    return 4 * eps * (T + 2) * (1 + T * (spread + np.log(C)))


def close(x, labels, loss, grad, blank=0):
    true_loss, true_grad = exact(x, labels, blank)
    if not np.isfinite(true_loss):
        assert loss == true_loss
        assert not grad.any()
        return
    assert abs(loss - true_loss) <= bound(x)
    assert np.abs(grad - true_grad).max(initial=0) <= 3 * bound(x)


def rng(*more):
    return np.random.default_rng([SEED, *more])


FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])
