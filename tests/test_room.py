"""Gradients in memory that is used again: never while anything sees it, and never more than two blocks."""

from __future__ import annotations

import sys
import threading
import weakref

import numpy as np
import pytest

import ctcbind
from ctcbind.engines import room
from ctcbind.engines.room import KEPT, LARGE, Room

FLOAT = np.dtype(np.float32)
SHAPE = (LARGE // 4 // 8, 2, 4)

counted = pytest.mark.skipif(
    sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="memory is used again only where references are counted under one lock",
)


def place(array):
    return array.__array_interface__["data"][0]


@counted
def test_what_is_dropped_is_used_again():
    room = Room()
    first = room.empty(SHAPE, FLOAT)
    at = place(first)
    del first
    assert place(room.empty(SHAPE, FLOAT)) == at


@counted
def test_a_loop_that_rebinds_its_result_needs_two_blocks():
    room, places = Room(), set()
    for _ in range(10):
        result = room.empty(SHAPE, FLOAT)
        places.add(place(result))
    assert len(places) == KEPT


@pytest.mark.parametrize("see", [lambda a: a[3:], lambda a: a.T, memoryview, lambda a: a.reshape(-1).view(np.uint8)])
def test_what_is_still_seen_is_not(see):
    room = Room()
    arrays = [room.empty(SHAPE, FLOAT) for _ in range(5)]
    seen = [see(array) for array in arrays]
    places = {place(array) for array in arrays}
    assert len(places) == 5
    del arrays
    later = [room.empty(SHAPE, FLOAT) for _ in range(5)]
    assert places.isdisjoint(map(place, later))
    del seen


@counted
def test_no_more_than_two_blocks_are_kept():
    room = Room()
    arrays = [room.empty(SHAPE, FLOAT) for _ in range(5)]
    gone = [weakref.ref(array.base) for array in arrays]
    del arrays
    assert [each() is None for each in gone] == [True] * 3 + [False] * 2
    room.close()
    assert all(each() is None for each in gone)


def test_an_array_outlives_the_room():
    room = Room()
    array = room.empty(SHAPE, FLOAT)
    array[...] = 7
    room.close()
    del room
    assert (array == 7).all()


def test_shapes_and_dtypes():
    room = Room()
    for dtype in ("float16", "float32", "float64"):
        for shape in ((0, 3, 4), (1, 1, 1), (3, 5, 7), (700, 30, 100)):
            array = room.empty(shape, np.dtype(dtype))
            assert array.shape == shape
            assert array.dtype == dtype
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert array.flags.aligned


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_a_plan_gives_no_gradient_away_that_is_held(layout):
    rng = np.random.default_rng(3)
    x = [rng.normal(size=(100, 20, 200)).astype(np.float32) for _ in range(4)]
    shaped = [each if layout == "TNC" else each.transpose(1, 0, 2) for each in x]
    labels = [[1, 2, 3]] * 20
    want = [ctcbind.ctc_loss_and_grad(each, labels, layout=layout).grad for each in shaped]
    with ctcbind.CTCLoss(engine="native", layout=layout) as plan:
        got = [plan(each, labels).grad for each in shaped]
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        kept = got[1][5]
        copy = kept.copy()
        got.clear()
        for each, theirs in zip(shaped, want, strict=True):  # in memory that holds old values
            result = plan(each, labels)
            np.testing.assert_array_equal(result.grad, theirs)
            result.grad[...] = np.nan
        np.testing.assert_array_equal(kept, copy)


def test_a_plan_in_several_threads_gives_each_its_own():
    rng = np.random.default_rng(4)
    x = [rng.normal(size=(100, 20, 200)).astype(np.float32) for _ in range(4)]
    labels = [[1, 2, 3]] * 20
    want = [ctcbind.ctc_loss_and_grad(each, labels).grad for each in x]
    wrong = []

    def work(plan, which):
        for _ in range(20):
            grad = plan(x[which], labels).grad
            if not np.array_equal(grad, want[which]):
                wrong.append(which)

    with ctcbind.CTCLoss(engine="native") as plan:
        threads = [threading.Thread(target=work, args=(plan, which)) for which in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not wrong


def test_where_references_are_not_counted_nothing_is_used_again(monkeypatch):
    monkeypatch.setattr(room, "_counts_references", lambda: False)
    made = Room()
    array = made.empty(SHAPE, FLOAT)
    assert array.flags.owndata
    assert made._blocks == []
