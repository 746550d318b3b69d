"""Ten thousand calls, failing ones included, leave no workspace, no plan and no memory behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest

import ctcbind
from ctcbind.bindings import native

CALLS = 10_000


class Counted:
    """Stands in for the engine's library in the binding: the workspaces that it has given and not got back."""

    def __init__(self, lib):
        self.lib, self.live, self.made = lib, set(), 0

    def __getattr__(self, name):
        return getattr(self.lib, name)

    def ctcbind_workspace_new(self, size):
        workspace = self.lib.ctcbind_workspace_new(size)
        self.made += 1
        self.live.add(int(native.ffi.cast("uintptr_t", workspace)))
        return workspace

    def ctcbind_workspace_free(self, workspace):
        self.live.remove(int(native.ffi.cast("uintptr_t", workspace)))
        self.lib.ctcbind_workspace_free(workspace)


@pytest.fixture
def workspaces(monkeypatch):
    counted = Counted(native.lib)
    monkeypatch.setattr(native, "lib", counted)
    return counted


def test_one_workspace_a_plan_and_none_after_it(workspaces):
    with ctcbind.CTCLoss(engine="native") as plan:
        for T in (5, 50, 20, 400, 5):
            plan(np.zeros((T, 2, 9), np.float32), [[1, 2], [3]])
            assert len(workspaces.live) == 1
        assert workspaces.made >= 2, "the sizes must have made it grow"
    gc.collect()
    assert workspaces.live == set()


def test_a_plan_that_is_forgotten_frees_its_workspace(workspaces):
    for _ in range(20):
        plan = ctcbind.CTCLoss(engine="native")
        plan(np.zeros((30, 2, 9), np.float32), [[1, 2], [3]])
        del plan
    gc.collect()
    assert workspaces.made == 20
    assert workspaces.live == set()


def test_workspaces_do_not_pile_up_over_functions_and_failures(workspaces):
    x = np.zeros((30, 2, 9), np.float32)
    for i in range(300):
        ctcbind.ctc_loss_and_grad(x, [[1, 2], [3]], engine="native")
        with pytest.raises(ctcbind.InvalidInput):
            ctcbind.ctc_loss(x, [[1, 9], [3]], engine="native")
        if i == 10:
            gc.collect()
            few = len(workspaces.live)
    gc.collect()
    assert len(workspaces.live) <= few


@pytest.mark.parametrize(
    "refused",
    [
        lambda x: ctcbind.ctc_loss(x, [[1, 9], [3]]),
        lambda x: ctcbind.ctc_loss_and_grad(x, [[1, 9], [3]]),
        lambda x: ctcbind.ctc_loss_and_grad(x, [[1, 2], [3]], [30, 31]),
        lambda x: ctcbind.ctc_loss_and_grad(x, [[1, 2.5], [3]]),
        lambda x: ctcbind.ctc_loss(x, [[1, 9], [3]], engine="reference"),
        lambda x: ctcbind.CTCLoss()(x, [[1, 9], [3]]),
        lambda x: ctcbind.ctc_loss(x.astype(int), [[1], [3]]),
        lambda x: ctcbind.ctc_loss(x[0], [[1], [3]]),
        lambda x: ctcbind.align(x, [[1, 9], [3]]),
        lambda x: ctcbind.greedy_decode(x, [30, 31]),
        lambda x: ctcbind.beam_search(x, [30, 31]),
        lambda x: ctcbind.posteriors(x, [[1, 9], [3]]),
    ],
)
def test_a_refused_batch_is_let_go(refused):
    """And not when the garbage collector comes round: a loop that skips bad batches would hold many."""
    gc.collect()
    gc.disable()
    try:
        x = np.zeros((30, 2, 9), np.float32)
        held = weakref.ref(x)
        try:
            refused(x)
        except ctcbind.InvalidInput:
            pass
        else:
            pytest.fail("it was not refused")
        del x
        assert held() is None
    finally:
        gc.enable()


#: After `settle` calls memory must stand still: every call makes results of 40 kB, or fails at one of five stages.
SCRIPT = """
    import gc, os, sys
    import numpy as np, ctcbind
    ctcbind.set_num_threads(2)
    rng = np.random.default_rng(0)
    batches = [rng.normal(size=(T, 4, 20)).astype(np.float32) for T in (60, 90, 125)]
    targets = [[1, 2, 3], [4] * 5, [], [5, 6]]
    def resident():
        gc.collect()
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    def fails(call, error):
        try:
            call()
        except error:
            return
        raise SystemExit(f"{error.__name__} was expected")
    shared = ctcbind.CTCLoss(engine="native")
    closed = ctcbind.CTCLoss(engine="native")
    closed(batches[0], targets)
    closed.close()
    def call(i):
        x, how = batches[i % 3], i % 10
        if how < 4:
            shared(x, targets)
        elif how == 4:
            ctcbind.ctc_loss_and_grad(x, targets, engine="native")
        elif how == 5:
            with ctcbind.CTCLoss(engine="native") as plan:
                plan(x[:, :, ::-1], targets)
        elif how == 6:
            fails(lambda: shared(x, [[1, 99]] * 4), ctcbind.InvalidInput)
        elif how == 7:
            fails(lambda: shared(x, targets, [1000] * 4), ctcbind.InvalidInput)
        elif how == 8:
            fails(lambda: shared(x.astype(int), targets), (ctcbind.InvalidInput, TypeError))
        else:
            fails(lambda: closed(x, targets), ctcbind.ClosedError)
    count = int(sys.argv[1])
    for i in range(count // 10):
        call(i)
    open_now = lambda: [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]
    before, files = resident(), open_now()
    for i in range(count):
        call(i)
    print(resident() - before, *(now - then for now, then in zip(open_now(), files)))
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="memory is read from Linux's /proc")
def test_memory_files_and_threads_over_ten_thousand_calls():
    """One leaked gradient a hundred calls would be 4 MB, one leaked workspace of 30 kB 3 MB."""
    here = os.path.dirname(os.path.abspath(__file__))
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    grown, files, threads = map(int, done.stdout.split())
    assert grown < 2_000_000, f"{grown} bytes more after {CALLS} calls"
    assert (files, threads) == (0, 0)
