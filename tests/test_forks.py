"""Locks in a child of fork: open, whatever a thread of the parent was doing."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import threading
import time
import weakref
from functools import cached_property
from importlib import import_module

import numpy as np
import pytest
from test_native_threads import process
from warpctc_lab import real

import ctcbind
from ctcbind import forks, kept

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning"),  # JAX's, where another test has imported it
]


def in_child(work) -> int:
    """The child's exit status: 0 where `work` returned True within ten seconds, that of a signal where it hung."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Held:
    """A thread that holds a lock until the block ends."""

    def __init__(self, lock):
        self.lock, self.has, self.enough = lock, threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.hold)

    def hold(self):
        with self.lock:
            self.has.set()
            self.enough.wait(60)

    def __enter__(self):
        self.thread.start()
        assert self.has.wait(60)

    def __exit__(self, *_):
        self.enough.set()
        self.thread.join(60)


def take(lock):
    with lock:
        return True


def test_a_lock_that_a_thread_holds_is_open_in_the_child():
    lock = forks.Lock()
    with Held(lock):
        assert in_child(lambda: take(lock)) == 0
    assert take(lock)


def test_a_thread_that_forks_holds_its_lock_in_the_child_too():
    """As a signal's handler may that interrupts it: the child comes back from there, and gives it back."""
    lock = forks.Lock()

    def go_on():
        lock.__exit__(None, None, None)
        return take(lock)

    with lock:
        assert in_child(go_on) == 0
    assert take(lock)


def test_a_plain_lock_is_not():
    """So the tests here can fail."""
    lock = threading.Lock()
    with Held(lock):
        assert in_child(lambda: lock.acquire(timeout=0.2)) == 2


def test_the_lock_still_excludes():
    lock, order = forks.Lock(), []

    def second():
        with lock:
            order.append("second")

    with lock:
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_a_property_that_a_thread_computes_can_be_computed_in_the_child():
    begun, enough = threading.Event(), threading.Event()
    parent = os.getpid()

    @forks.open_properties
    class Slow:
        @cached_property
        def value(self):
            if os.getpid() == parent:
                begun.set()
                enough.wait(60)
            return 7

    first, second = Slow(), Slow()
    thread = threading.Thread(target=lambda: first.value)
    thread.start()
    assert begun.wait(60)
    try:
        assert in_child(lambda: second.value == 7) == 0
    finally:
        enough.set()
        thread.join(60)
    assert (first.value, second.value) == (7, 7)


def test_what_is_dropped_is_not_kept():
    lock = forks.Lock()
    gone = weakref.ref(lock)
    del lock
    gc.collect()
    assert gone() is None
    assert in_child(lambda: True) == 0


def test_what_the_functions_keep_is_of_use_in_the_child():
    """The child goes on with it, and with what another thread of the parent was using it makes its own."""
    logits, labels = np.random.default_rng(0).normal(size=(12, 3, 7)), [[1, 2], [3], [4, 4, 5]]
    expected = [ctcbind.ctc_loss_and_grad(logits, labels) for _ in range(3)][2]
    (plan,) = next(iter(kept._idle.values()))

    def same():
        got = ctcbind.ctc_loss_and_grad(logits, labels)
        return np.array_equal(got.grad, expected.grad) and np.array_equal(got.loss, expected.loss)

    assert in_child(same) == 0
    with Held(plan._turn.lock):
        assert in_child(same) == 0


@real
def test_warp_ctc_computes_in_the_child(monkeypatch):
    """libgomp would wait there for its threads, which are not there."""
    monkeypatch.setattr(import_module("ctcbind.engines.warpctc"), "processors", lambda: 2)
    ctcbind.set_num_threads(2)
    logits, labels = np.random.default_rng(0).normal(size=(12, 8, 7)).astype(np.float32), [[1, 2]] * 8
    expected = ctcbind.ctc_loss(logits, labels, engine="warpctc")
    assert in_child(lambda: np.array_equal(ctcbind.ctc_loss(logits, labels, engine="warpctc"), expected)) == 0


def test_a_child_knows_that_it_is_one():
    """And one that was begun with a program of its own knows that it is none."""
    assert in_child(forks.forked) == 0
    assert in_child(forks._begun_by_fork) == 0
    assert process("from ctcbind.forks import forked; print(forked())").stdout == "False\n"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells how a process began")
def test_a_process_is_read_whatever_its_name():
    """The system writes it in parentheses, as it is."""
    script = """
        import ctypes
        from ctcbind import forks
        assert ctypes.CDLL(None).prctl(15, "é) 1 1 1 1 1 1".encode(), 0, 0, 0) == 0
        print(forks._begun_by_fork())
    """
    assert process(script).stdout == "False\n"


@pytest.mark.parametrize("text", ["", "7 (x) S 1 1", "7 (x) S 1 1 1 0 -1 many", None])
def test_what_cannot_be_read_is_taken_for_a_child(monkeypatch, text):
    """Which costs it threads, where the other mistake would let it wait for ever."""

    def read(*_, **__):
        if text is None:
            raise FileNotFoundError
        return io.StringIO(text)

    monkeypatch.setattr(forks, "open", read, raising=False)
    assert forks._begun_by_fork()


def test_a_property_may_ask_another_objects_for_its_own():
    @forks.open_properties
    class Node:
        def __init__(self, below=None):
            self.below = below

        @cached_property
        def depth(self):
            return 0 if self.below is None else 1 + self.below.depth

    assert in_child(lambda: Node(Node()).depth == 1) == 0  # where a lock that is taken ends in time


def test_plans_of_ones_own_class_may_be_equal_and_have_no_hash():
    class Equal(ctcbind.CTCLoss):
        def __eq__(self, other):
            return isinstance(other, Equal)

    x, targets = np.zeros((4, 1, 3)), [[1, 2]]
    plans = [Equal(), Equal()]
    assert plans[0] == plans[1]
    right = plans[0](x, targets).loss
    with Held(plans[0]._turn.lock), Held(plans[1]._turn.lock):
        assert in_child(lambda: all(plan(x, targets).loss == right for plan in plans)) == 0
    watched = len(forks._watched)
    plans.clear()
    gc.collect()
    assert len(forks._watched) < watched
