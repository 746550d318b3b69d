"""A plan that has the short way (csrc/python/direct.c): its workspace, its threads, its end, and what it holds."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import numpy as np
import pytest
from native_arrays import make_arrays_by
from short_way import LABELS, MANY, PADDED, C, Long, N, T, both_sizes, same, short_only, warm, warm_with, x, x_of

import ctcbind
from ctcbind.bindings import native_direct

native = import_module("ctcbind.engines.native")


def test_the_workspace_grows_by_the_long_way():
    with ctcbind.CTCLoss(engine="native") as plan:
        for T in (4, 4, 4, 400, 4, 4000, 4000):
            logits = x(shape=(T, 2, C))
            same(plan(logits, [[1], [2]]), ctcbind.ctc_loss_and_grad(logits, [[1], [2]], engine="native"))
        short_only(plan)
        plan(x(shape=(4000, 2, C)), [[1], [2]])
        with pytest.raises(Long):
            plan(x(shape=(4000, 2, 5 * C)), [[1] * 900, [2]])


def test_the_number_of_threads_is_asked_for_each_time_that_it_matters(monkeypatch):
    asked = []
    monkeypatch.setattr(native, "chosen_threads", lambda: asked.append(1) or (1 if len(asked) % 2 else None))
    with short_only(warm()) as plan:
        before = len(asked)
        for _ in range(5):
            plan(x_of(MANY), LABELS)
        assert len(asked) == before + 5
        plan(x(), LABELS)
        assert len(asked) == before + 5


@both_sizes
def test_a_closed_plan_says_so(classes):
    plan = warm()
    both, alone = plan._both, plan._alone
    plan.close()
    assert both(x_of(classes), LABELS, None, None) is None
    assert alone(x_of(classes), LABELS, None, None) is None
    with pytest.raises(ctcbind.ClosedError):
        plan(x_of(classes), LABELS)
    with pytest.raises(ctcbind.ClosedError):
        plan.loss(x_of(classes), LABELS)


@both_sizes
def test_what_makes_arrays_may_raise_and_the_lock_is_free_again(monkeypatch, classes):
    calls = []

    def empty(shape, dtype):
        calls.append(shape)
        if len(calls) % 3 == 0:
            raise MemoryError("no room")
        if len(calls) % 5 == 0:
            return "no array"
        return np.empty(shape, dtype)

    make_arrays_by(monkeypatch, empty)
    plan = ctcbind.CTCLoss(engine="native")
    done = 0
    for _ in range(60):
        try:
            plan(x_of(classes), LABELS)
            done += 1
        except (MemoryError, TypeError):
            pass
        with ThreadPoolExecutor(1) as other:  # the lock would let its own thread in
            assert other.submit(lambda: plan._turn.lock.acquire(False) and plan._turn.lock.release() is None).result()
        assert plan._turn.state[0] == 0
    assert plan._both is not None
    assert 10 < done < 50


def test_threads_share_a_plan_and_close_it_at_any_moment():
    """Batches of both sizes at once."""
    wants = [(x_of(classes), ctcbind.ctc_loss_and_grad(x_of(classes), LABELS)) for classes in (C, MANY)]
    failures = []
    for _ in range(30):
        plan = warm()
        begin = threading.Barrier(4)

        def work(plan=plan, begin=begin):
            begin.wait()
            try:
                for k in range(200):
                    logits, want = wants[k % 3 == 0]
                    same(plan(logits, LABELS), want)
            except ctcbind.ClosedError:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for each in threads:
            each.start()
        begin.wait()
        plan.close()
        for each in threads:
            each.join()
    assert not failures


@both_sizes
def test_nothing_is_held_and_nothing_leaks(classes):
    plan = warm(reduction="label_mean", zero_infinity=True)
    logits, targets, frames, counts = x_of(classes), PADDED.astype("int32"), np.full(N, T), np.array([2, 1, 3])
    bad = PADDED * 1000
    given = logits, targets, frames, counts, bad, np.dtype("float32"), np.float32, np.ndarray, ctcbind.Result
    held = [sys.getrefcount(each) for each in given]
    for _ in range(5):
        plan(logits, targets, frames, counts)
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        plan(logits, targets, frames, counts)
        plan._both(logits, bad, frames, counts)
        plan._both(logits, LABELS, [1, 2], None)
        plan._alone(logits, [*LABELS[:2], np.array(["a"])], None, None)
    assert sys.getallocatedblocks() - blocks < 100
    assert held == [sys.getrefcount(each) for each in given]
    made_of = type(plan._both.__self__)
    gc.collect()
    blocks, references = sys.getallocatedblocks(), sys.getrefcount(made_of)
    for _ in range(200):
        warm_with({}).close()
    gc.collect()  # which empties Python's own stores of tuples too
    assert sys.getallocatedblocks() - blocks < 200
    assert sys.getrefcount(made_of) <= references  # a plan of another test may have gone meanwhile


def test_a_plan_that_is_forgotten_is_gone_at_once():
    """Without the collector: its workspace may be large."""
    import weakref

    gc.collect()
    gc.disable()
    try:
        plan = warm()
        gone = weakref.ref(plan._sessions["native"]._problem)
        del plan
        assert gone() is None
    finally:
        gc.enable()


def test_its_own_arguments_are_checked():
    with warm() as plan:
        for arguments in ((), (x(),), (x(), LABELS), (1, 2, 3, 4, 5)):
            with pytest.raises(TypeError, match="four arguments"):
                plan._both(*arguments)
        made_of = type(plan._both.__self__)
        with pytest.raises(TypeError):
            made_of()
        with pytest.raises(TypeError):
            made_of((1, 2), 3)
    assert callable(native_direct.open_direct)
