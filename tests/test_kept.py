"""What ctc_loss and ctc_loss_and_grad keep between calls: plans of the native engine, and nobody notices."""

from __future__ import annotations

import itertools
import sys
import threading
import types
from importlib import import_module

import numpy as np
import pytest
from native_arrays import make_arrays_by

import ctcbind
from ctcbind import kept
from ctcbind.engines import get
from ctcbind.engines.room import LARGE
from ctcbind.plan import rest
from ctcbind.threads import get_num_threads

T, N, C = 12, 3, 7
LABELS = [[1, 2], [3], [4, 4, 5]]


def x(seed=0, shape=(T, N, C), dtype="float32"):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def plans():
    return [plan for alike in kept._idle.values() for plan in alike]


@pytest.fixture
def opened(monkeypatch):
    """The sessions that were opened."""
    sessions, engine = [], type(get("native"))
    opens = engine.open

    def counted(self):
        sessions.append(opens(self))
        return sessions[-1]

    monkeypatch.setattr(engine, "open", counted)
    return sessions


@pytest.mark.parametrize("function", [ctcbind.ctc_loss, ctcbind.ctc_loss_and_grad])
def test_one_session_for_many_calls(opened, function):
    for seed in range(5):
        function(x(seed), LABELS)
    assert len(opened) == 1
    assert len(plans()) == 1


def test_the_two_functions_share_it(opened):
    ctcbind.ctc_loss(x(), LABELS)
    ctcbind.ctc_loss_and_grad(x(), LABELS)
    assert len(opened) == 1


def test_every_call_gives_what_a_new_plan_gives():
    for reduction, blank, layout, zero, topology in itertools.product(
        ("none", "sum", "batch_mean", "label_mean"), (0, -1), ("TNC", "NTC"), (False, True), ("ctc", "simple")
    ):
        options = {
            "reduction": reduction,
            "blank": blank,
            "layout": layout,
            "zero_infinity": zero,
            "topology": topology,
        }
        for seed in range(3):
            logits = x(seed, (T, N, C) if layout == "TNC" else (N, T, C))
            with ctcbind.CTCLoss(**options) as plan:
                expected = plan(logits, LABELS)
            got = ctcbind.ctc_loss_and_grad(logits, LABELS, **options)
            np.testing.assert_array_equal(got.grad, expected.grad)
            np.testing.assert_array_equal(got.loss, expected.loss)
            np.testing.assert_array_equal(ctcbind.ctc_loss(logits, LABELS, **options), expected.loss)
    assert len(kept._idle) <= kept._SETS


def test_each_set_of_options_has_its_plan_kept():
    kept.forget()
    for _ in range(2):
        for blank in range(3):
            ctcbind.ctc_loss(x(), [[3], [3, 4], [4]], blank=blank)
    assert len(plans()) == len(kept._idle) == 3


def test_results_are_the_callers_own():
    """The next call writes into none that is held, however large, and none that was dropped is kept."""
    logits = x(shape=(64, 8, LARGE // 4 // 512 + 1))
    labels = [[1, 2]] * 8
    first = ctcbind.ctc_loss_and_grad(logits, labels)
    before = first.grad.copy()
    for seed in range(4):
        ctcbind.ctc_loss_and_grad(logits * (seed + 2), labels)
    np.testing.assert_array_equal(first.grad, before)
    (plan,) = plans()
    assert plan._sessions["native"]._room._blocks == []


@pytest.mark.parametrize(
    "options",
    [
        {"blank": True},
        {"blank": 1.0},
        {"zero_infinity": 2},
        {"zero_infinity": 1.0},
        {"layout": ["TNC"]},
        {"reduction": "mean"},
        {"engine": "natve"},
        {"engine": np.array(["native", "auto"])},
    ],
    ids=str,
)
def test_what_only_equals_a_good_option_is_refused_as_ever(options):
    for good in ({}, {"blank": 1}, {"zero_infinity": True}):
        ctcbind.ctc_loss(x(), [[2, 3]] * N, **good)
    with pytest.raises(ctcbind.InvalidInput) as error:
        ctcbind.ctc_loss(x(), [[2, 3]] * N, **options)
    with pytest.raises(ctcbind.InvalidInput) as fresh:
        ctcbind.CTCLoss(**options)
    assert str(error.value) == str(fresh.value)


@pytest.mark.parametrize(
    "options", [{"blank": np.int64(0)}, {"zero_infinity": 0}, {"zero_infinity": np.False_}], ids=str
)
def test_what_means_a_good_option_takes_the_same_plan(opened, options):
    for given in ({}, options, {}, options):
        ctcbind.ctc_loss(x(), LABELS, **given)
    assert len(opened) == 1
    with ctcbind.CTCLoss(**options) as plan:
        plan(x(), LABELS)
        plan(x(), LABELS)
        assert plan._both is not None


def test_a_failing_call_costs_the_next_one_nothing():
    ctcbind.ctc_loss(x(), LABELS)
    for _ in range(3):
        (plan,) = plans()
        with pytest.raises(ctcbind.InvalidInput, match=r"\b7\b"):
            ctcbind.ctc_loss(x(), [[1, 2], [7], [3]])
        assert plans() == []
        assert plan.closed
        ctcbind.ctc_loss(x(), LABELS)
        assert len(plans()) == 1


def test_a_call_within_a_call_has_a_plan_of_its_own():
    """As a signal's handler may make one, or an argument's own conversion."""

    class Labels:
        def __array__(self, dtype=None, copy=None):
            inner.append(ctcbind.ctc_loss(x(), LABELS))
            return np.array([[1, 2]] * N)

    inner = []
    for _ in range(3):
        outer = ctcbind.ctc_loss(x(), Labels(), target_lengths=[2] * N)
    np.testing.assert_array_equal(outer, ctcbind.ctc_loss(x(), [[1, 2]] * N))
    assert len(inner) == 3


def test_threads_never_share_one():
    expected = [ctcbind.ctc_loss_and_grad(x(seed), LABELS) for seed in range(8)]
    wrong, start = [], threading.Barrier(8)

    def work(seed):
        start.wait()
        for _ in range(200):
            got = ctcbind.ctc_loss_and_grad(x(seed), LABELS)
            if not (np.array_equal(got.loss, expected[seed].loss) and np.array_equal(got.grad, expected[seed].grad)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(set(map(id, plans()))) == len(plans()) <= kept._THREADS


def test_no_more_are_kept_than_that_whichever_way_a_call_went(monkeypatch):
    """A call within a call stands for another thread's."""
    monkeypatch.setattr(kept, "_THREADS", 1)
    todo = []

    def empty(shape, dtype):
        if todo:
            todo.pop()()
        return np.empty(shape, dtype)

    make_arrays_by(monkeypatch, empty)
    for _ in range(3):
        ctcbind.ctc_loss(x(), LABELS)
    assert plans()[0]._alone is not None
    todo.append(lambda: ctcbind.ctc_loss(x(), LABELS))
    ctcbind.ctc_loss(x(), LABELS)
    assert not todo
    assert len(plans()) == 1


def test_a_large_workspace_is_not_kept(monkeypatch):
    ctcbind.ctc_loss(x(), LABELS)
    (plan,) = plans()
    monkeypatch.setattr(kept, "_LARGE", rest(plan))
    ctcbind.ctc_loss(x(), LABELS)
    assert plans() == [plan]
    ctcbind.ctc_loss(x(shape=(400, 8, C)), [[1] * 100] * 8)
    assert plans() == []
    assert plan.closed


def test_other_engines_are_not_kept():
    ctcbind.ctc_loss(x(), LABELS, engine="reference")
    assert plans() == []


def test_the_number_of_threads_is_asked_for_at_each_call(monkeypatch):
    native = import_module("ctcbind.engines.native")
    used = []
    monkeypatch.setattr(native, "get_num_threads", lambda: used.append(get_num_threads()) or used[-1])
    large = x(shape=(T, N, 100))
    for number in range(1, 6):
        monkeypatch.setenv("CTCBIND_NUM_THREADS", str(number))
        ctcbind.ctc_loss(large, LABELS)
        ctcbind.ctc_loss_and_grad(large, LABELS)
        assert used[-2:] == [number, number]
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "none")
    with pytest.raises(ctcbind.InvalidInput, match="CTCBIND_NUM_THREADS"):
        ctcbind.ctc_loss(large, LABELS)


def test_what_was_opened_before_pytorch_came_is_not_used_after(monkeypatch, opened):
    """An engine opened then borrows its threads (docs/frameworks.md)."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    ctcbind.ctc_loss(x(), LABELS)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    monkeypatch.setattr(import_module("ctcbind.engines.native"), "_borrow", lambda: borrowed.append(1))
    borrowed = []
    ctcbind.ctc_loss(x(), LABELS)
    assert len(opened) == 2
    assert borrowed
