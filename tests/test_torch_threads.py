"""Threads: PyTorch's that the engine works on, forked children, and a workspace for each that calls."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make  # noqa: E402

import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import call  # noqa: E402

ON_PYTORCHS_THREADS = """
import os, sys
import numpy as np, torch
torch.set_num_threads(3)
import ctcbind
rng = np.random.default_rng(int(sys.argv[1]))
x, y = rng.normal(size=(150, 64, 28)).astype(np.float32), rng.integers(1, 28, size=(64, 40))
def loss_and_grad(threads):
    ctcbind.set_num_threads(threads)
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, y, [150] * 64, [40] * 64)
    return loss.tobytes() + grad.tobytes()
def crew():
    return len(os.listdir("/proc/self/task"))
alone = loss_and_grad(1)
before = crew()
torch.ones(1 << 20).exp()
with_torchs = crew()
assert with_torchs > before, "PyTorch has started no threads"
"""


def python(script):
    here = os.path.dirname(sys.executable)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return subprocess.run(
        [sys.executable, "-c", script, str(SEED)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=here,
        env=environment,
        check=False,
    )


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PyTorch's OpenMP is libgomp on Linux")


@linux
def test_the_engine_works_on_pytorchs_threads():
    done = python(
        ON_PYTORCHS_THREADS
        + """
import time
assert loss_and_grad(3) == alone
assert crew() == with_torchs, "threads of its own beside as many of PyTorch's"
assert loss_and_grad(2) == alone  # as many as PyTorch does not take: they are its own
assert crew() == with_torchs + 1
time.sleep(1)  # PyTorch's sleep by now, and to wait for them would take longer
assert loss_and_grad(3) == alone
assert crew() == with_torchs + 2
torch.set_num_threads(2)
assert loss_and_grad(2) == alone
"""
    )
    assert done.returncode == 0, done.stderr


@linux
def test_a_child_that_is_the_first_to_import_it_has_threads_of_its_own():
    done = python(
        """
import os, signal, warnings, sys, torch
torch.set_num_threads(3)
torch.ones(1 << 20).exp()
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(30)
    import numpy as np, ctcbind
    ctcbind.set_num_threads(3)
    with ctcbind.CTCLoss() as ctc:
        for _ in range(3):
            loss = ctc(np.zeros((150, 64, 28), np.float32), [[1] * 40] * 64).loss
    os._exit(0 if np.isfinite(loss).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    assert done.returncode == 0, done.stderr


@linux
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child_has_threads_of_its_own(used):
    """PyTorch's are not in it, and OpenMP would wait for them for ever."""
    done = python(
        ON_PYTORCHS_THREADS
        + f"""
import signal, warnings
if {used}:
    assert loss_and_grad(3) == alone
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if loss_and_grad(3) == alone else 1)
assert os.waitpid(child, 0)[1] == 0
assert loss_and_grad(3) == alone
"""
    )
    assert done.returncode == 0, done.stderr


def test_threads_have_workspaces_of_their_own(rng):
    from concurrent.futures import ThreadPoolExecutor

    cases = [make(rng, T=40 + n, N=8, L=9) for n in range(24)]

    def run(case):
        return torch.autograd.grad(ct.ctc_loss(*case, from_logits=True), case[0])[0]

    right = [run(case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for grad, wanted in zip(pool.map(run, cases), right):
            assert torch.equal(grad, wanted)


def test_threads_have_memory_for_gradients_of_their_own():
    """Which says by its references whether it is free: two threads may both find it so."""
    from concurrent.futures import ThreadPoolExecutor

    def kept():
        options = 0, "label_mean", False, "ctc", "auto"
        plan = call.Call(torch.zeros(1)).plan(*options)
        return plan, plan._room

    here = kept()
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(kept).result()
    assert all(one is not other for one, other in zip(here, there))
    assert all(one is other for one, other in zip(here, kept()))
