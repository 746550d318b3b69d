"""A plan that is used, or closed, by the thread that is computing with it: in a signal's handler, or a finalizer.

Between two samples of a long call Python's signal handlers run; whatever makes an array may run a finalizer. Here it is
the function that makes the arrays of the results, so that the moment is the same each time, and once a real signal.

Batches are wide enough to be taken in turns. A small one is computed at once, and no Python runs meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module

import numpy as np
import pytest
from native_arrays import make_arrays_by
from short_way import LABELS, MANY, same, warm, x_of
from short_way import x as small
from test_forks import in_child
from test_native_threads import process

import ctcbind

native = import_module("ctcbind.engines.native")
OTHER = [[3, 3], [6, 5, 1], [2]]


def x(seed=0):
    return x_of(MANY, seed=seed)


@pytest.fixture
def between(monkeypatch):
    """Has what is in the list done, once each, when the next array is made."""
    todo = []

    def empty(shape, dtype):
        array = np.empty(shape, dtype)
        if todo:
            todo.pop()()
        array.fill(np.nan)
        return array

    make_arrays_by(monkeypatch, empty)
    return todo


def a_plan(way, **options):
    plan = warm(**options) if way == "short" else ctcbind.CTCLoss(engine="native", **options)
    if way == "long":
        plan._shortened = True  # which it has not
    assert (plan._both is None) == (way == "long")
    return plan


def is_free(plan):
    """Asked by another thread, as the lock would let its own in."""
    found = []

    def ask():
        found.append(plan._turn.lock.acquire(blocking=False))
        if found[0]:
            plan._turn.lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0] and plan._turn.state[0] == 0


both_ways = pytest.mark.parametrize("way", ["long", "short"])


@both_ways
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("reduction", ["none", "label_mean"])
def test_a_call_within_a_call(between, way, with_grad, reduction):
    inner, seen = x(seed=1), []
    want = ctcbind.ctc_loss_and_grad(x(), LABELS, reduction=reduction)
    want_inner = ctcbind.ctc_loss_and_grad(inner, OTHER, reduction=reduction)
    plan = a_plan(way, reduction=reduction)

    def again():
        assert not is_free(plan)
        seen.append(plan(inner, OTHER))
        between.append(deeper)
        seen.append(plan(inner, OTHER))

    def deeper():
        seen.append(plan.loss(inner, OTHER))

    between.append(again)
    got = plan(x(), LABELS) if with_grad else plan.loss(x(), LABELS)
    same(got if with_grad else (got, want.grad, "native"), want)
    first, loss, second = seen
    same(first, want_inner)
    same(second, want_inner)
    np.testing.assert_array_equal(loss, want_inner.loss)
    assert is_free(plan)
    same(plan(x(), LABELS), want)


@both_ways
def test_closed_within_a_call_the_call_ends_first(between, way):
    want = ctcbind.ctc_loss_and_grad(x(), LABELS)
    plan, seen = a_plan(way), []
    session = None if way == "long" else plan._sessions["native"]

    def close():
        seen.append(plan._sessions["native"])
        plan.close()
        plan.close()
        assert plan.closed
        assert not seen[0]._problem.closed
        for call in (plan, plan.loss, lambda *_: plan.__enter__()):
            with pytest.raises(ctcbind.ClosedError):
                call(x(), LABELS)

    between.append(close)
    same(plan(x(), LABELS), want)
    assert session in (None, seen[0])
    assert seen[0]._problem.closed
    assert is_free(plan)
    with pytest.raises(ctcbind.ClosedError):
        plan(x(), LABELS)


class Turns:
    """A plan's lock; what is in `then` is done, once each, as soon as it is open again."""

    def __init__(self, lock):
        self.lock, self.then = lock, []

    def acquire(self, blocking=True):
        return self.lock.acquire(blocking)

    def release(self):
        self.lock.release()
        if self.then:
            self.then.pop()()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


def test_who_comes_next_finds_the_plan_closed(between):
    """It was closed after its turn: another thread could begin to compute in the workspace, which then went."""
    plan = ctcbind.CTCLoss(engine="native")
    turns = Turns(plan._turn.lock)
    plan._turn = plan._turn._replace(lock=turns)
    for _ in range(2):
        want = plan(x(), LABELS)
    both, seen = plan._both, []
    thread = threading.Thread(target=lambda: seen.append(both(x(), LABELS, None, None)))

    def next_one():
        thread.start()
        thread.join(10)

    def close():
        plan.close()
        turns.then.append(next_one)

    between.append(close)
    same(plan(x(), LABELS), want)
    assert seen == [None]


@both_ways
def test_what_fails_while_it_is_closed_is_raised(between, way):
    plan = a_plan(way)

    def close():
        plan.close()
        raise LookupError("a handler's own")

    between.append(close)
    session = plan._sessions.get("native")
    with pytest.raises(LookupError, match="a handler's own"):
        plan(x(), LABELS)
    assert plan.closed
    assert is_free(plan)
    assert session is None or session._problem.closed


@both_ways
def test_what_closing_raises_is_raised(between, way, monkeypatch):
    plan = a_plan(way)

    def fail(session):
        raise LookupError("closing failed")

    monkeypatch.setattr(native.NativeSession, "close", fail)
    between.append(plan.close)
    with pytest.raises(LookupError, match="closing failed"):
        plan(x(), LABELS)
    assert plan.closed
    assert is_free(plan)


@both_ways
def test_other_threads_wait_for_the_whole_of_it(between, way):
    want, plan, order = ctcbind.ctc_loss_and_grad(x(), LABELS), a_plan(way), []

    def other():
        same(plan(x(), LABELS), want)
        order.append("other")

    thread = threading.Thread(target=other)

    def again():
        thread.start()
        thread.join(0.2)
        same(plan(x(), LABELS), want)
        thread.join(0.2)
        order.append("within")

    between.append(again)
    same(plan(x(), LABELS), want)
    thread.join(10)
    assert not thread.is_alive()
    assert order == ["within", "other"]


@pytest.mark.parametrize("with_grad", [True, False])
def test_a_small_call_has_touched_nothing_while_python_runs(between, with_grad):
    plan, seen = a_plan("short"), []
    want, want_wide = ctcbind.ctc_loss_and_grad(small(), LABELS), ctcbind.ctc_loss_and_grad(x(), OTHER)

    def within():
        assert is_free(plan)
        seen.extend((plan(x(), OTHER), plan(small(), LABELS)))

    for _ in range(2):
        between.append(within)
        got = plan(small(), LABELS) if with_grad else plan.loss(small(), LABELS)
        same(got if with_grad else (got, want.grad, "native"), want)
    for got, right in zip(seen, [want_wide, want] * 2):
        same(got, right)
    assert len(seen) == 4


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
@pytest.mark.parametrize("logits", [small, x])
def test_logits_that_are_turned_meanwhile(between, logits):
    """The call goes on with the shape that it has seen."""
    given, plan = logits(), a_plan("short")
    want = ctcbind.ctc_loss_and_grad(given, LABELS)

    def turn():
        given.shape = given.shape[::-1]

    between.append(turn)
    same(plan(given, LABELS), want)
    assert given.shape[0] > given.shape[1]


def test_a_small_call_of_a_plan_that_was_closed_before_it_began(between):
    plan = a_plan("short")
    between.append(plan.close)
    with pytest.raises(ctcbind.ClosedError):
        plan(small(), LABELS)
    assert is_free(plan)


def test_a_small_call_within_a_large_one_and_one_of_another_thread_beside_it(between):
    want, plan, seen = ctcbind.ctc_loss_and_grad(small(), LABELS), a_plan("short"), []
    want_wide = ctcbind.ctc_loss_and_grad(x(), LABELS)
    thread = threading.Thread(target=lambda: seen.append(plan(small(), LABELS)))

    def within():
        assert plan._both(small(), LABELS, None, None) is None, "the workspace is in use"
        same(plan(small(), LABELS), want)
        thread.start()
        thread.join(0.2)
        assert not seen, "it waits for its turn"

    between.append(within)
    same(plan(x(), LABELS), want_wide)
    thread.join(10)
    same(seen[0], want)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*fork.*:RuntimeWarning")  # JAX's, where another test has imported it
@both_ways
def test_a_child_that_is_forked_within_a_call_has_its_own_workspace(between, way):
    want, plan, exits = ctcbind.ctc_loss_and_grad(x(), LABELS), a_plan(way), []

    def in_the_child():
        assert plan._turn.state[0] == 1, "the call is under way there, too"
        same(plan(x(), LABELS), want)
        return True

    between.append(lambda: exits.append(in_child(in_the_child)))
    same(plan(x(), LABELS), want)
    assert exits == [0]


HANDLER = """
    import os, signal, sys, threading, time
    import numpy as np, ctcbind
    way, what = sys.argv[1:]
    row = np.random.default_rng(0).normal(size=40).astype(np.float32)
    labels, small = np.array([1, 2, 3] * 100, np.int32), np.zeros((5, 1, 3), np.float32)
    right = ctcbind.ctc_loss(small, [[1]])[0]
    plan, seen = ctcbind.CTCLoss(engine="native"), []
    def batch(N):
        return np.ascontiguousarray(np.broadcast_to(row, (1000, N, 40))), np.tile(labels, (N, 1))  # quickly read
    logits, targets = batch(64)
    ctcbind.ctc_loss(logits, targets)
    start = time.perf_counter()
    ctcbind.ctc_loss(logits, targets)
    took = time.perf_counter() - start
    logits, targets = batch(max(64, round(0.5 / took * 64)))  # whatever this machine needs half a second for
    if way == "short":
        for _ in range(3):
            plan.loss(logits, targets)
    def answer(*_):
        if what == "close":
            plan.close()
        else:
            seen.append(bool(plan.loss(small, [[1]])[0] == right))
    signal.signal(signal.SIGINT, answer)
    def send():
        while not plan._turn.state[0]:
            pass
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=send).start()
    losses = plan.loss(logits, targets)
    seen.append(plan.closed)  # behind what the handler found, if that came in time
    assert (losses == losses[0]).all()
    print(*seen)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no signal to itself")
@both_ways
@pytest.mark.parametrize(("what", "words"), [("loss", "True False\n"), ("close", "True\n")])
def test_a_signals_handler_may_use_the_plan(way, what, words):
    done = process(HANDLER, way, what)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", words)


def test_what_interrupts_a_call_between_two_lines_leaves_no_sizes_behind():
    """Python 3.10 looks for signals after any call, later ones where a debugger or a profiler runs."""
    plan, want = ctcbind.CTCLoss(engine="native"), ctcbind.ctc_loss(small(), LABELS)
    plan._shortened = True  # which it has not
    np.testing.assert_array_equal(plan.loss(small(), LABELS), want)

    def interrupt(frame, event, _):
        if frame.f_code.co_name == "_describe" and event == "return":
            raise KeyboardInterrupt
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            plan.loss(np.zeros((30, 2, 40), np.float32), [[1], [2]])
    finally:
        sys.settrace(before)
    np.testing.assert_array_equal(plan.loss(small(), LABELS), want)


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")
def test_logits_that_are_turned_while_the_long_way_waits(between):
    given, plan, seen = small(), a_plan("long"), []
    want = ctcbind.ctc_loss_and_grad(given, LABELS)
    thread = threading.Thread(target=lambda: seen.append(plan(given, LABELS)))
    with plan._turn.lock:
        thread.start()
        thread.join(0.2)
        given.shape = (1, -1, given.shape[2])
    thread.join(10)
    same(seen[0], want)
