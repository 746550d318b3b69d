"""A stream that CuPy has destroyed, with work or without, and another that CUDA has given its address."""

from __future__ import annotations

import threading

import pytest
from repeated_calls import anew, arrays, same

from ctcbind import CTCLoss, EngineUnsupported
from ctcbind.cuda.by_stream import PER_THREAD, ByStream
from ctcbind.cuda.common import DeviceMemory

pytest_plugins = ["emulated_fixture"]

ADDRESS = 0x7000


def stream_at(cupy, address=ADDRESS):
    made = cupy.cuda.Stream(non_blocking=True)
    made.ptr = address
    return made


class Lent:
    """As PyTorch lends a stream."""

    def __cuda_stream__(self):
        return 0, ADDRESS


def workspace(cupy, kept):
    return kept.of_current(cupy, lambda: DeviceMemory(cupy, "cuda"))


def test_it_waits_for_what_the_one_before_may_still_do(cupy):
    """Once; and the memory goes back to the pool after that."""
    kept = ByStream()
    with stream_at(cupy):
        first = workspace(cupy, kept)
        assert workspace(cupy, kept) is first
    before = len(cupy.synchronized)
    with stream_at(cupy):
        second = workspace(cupy, kept)
        assert second is not first
        assert cupy.synchronized[before:] == [0]  # the device
        assert workspace(cupy, kept) is second
        assert len(cupy.synchronized) == before + 1
    assert len(kept) == 1


def test_streams_that_live_and_those_of_others_wait_for_none(cupy):
    kept, before = ByStream(), len(cupy.synchronized)
    stream = stream_at(cupy)
    with stream:
        first = workspace(cupy, kept)
    for _ in range(2):
        with cupy.cuda.Stream.from_external(Lent()):  # the same by another object
            assert workspace(cupy, kept) is first
    kept.clear()
    found = set()
    for _ in range(3):
        with cupy.cuda.Stream.from_external(Lent()):
            found.add(workspace(cupy, kept))
        with cupy.cuda.Stream(null=True):
            found.add(workspace(cupy, kept))
    assert len(found) == len(kept) == 2
    assert len(cupy.synchronized) == before


def test_a_graph_may_go_on_with_the_workspace_of_a_stream_that_is_gone(cupy):
    kept = ByStream()
    with stream_at(cupy):
        first = workspace(cupy, kept)
        first.of(100, False)
        first.of(100, True)
    before = len(cupy.synchronized)
    with stream_at(cupy):
        assert workspace(cupy, kept) is not first
    assert len(cupy.synchronized) == before
    assert len(kept) == 2
    kept.clear()
    assert not len(kept)


@pytest.mark.parametrize("captured", [False, True])
def test_a_graph_outlives_the_thread_on_whose_own_stream_it_was_captured(cupy, captured):
    kept, found = ByStream(), []

    def work():
        with stream_at(cupy, PER_THREAD):
            found.append(workspace(cupy, kept))
            found[0].of(100, False)
            if captured:
                found[0].of(100, True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    workspace(cupy, kept)
    assert any(each is found[0] for each, _ in kept._kept.values()) == captured


@pytest.mark.parametrize("graph_safe", [True, False])
def test_no_call_takes_what_was_kept_for_the_one_before(cupy, graph_safe):
    """Not even those that are like one before. What is remembered of the new stream's calls is its own."""
    with CTCLoss(engine="cuda", graph_safe=graph_safe) as plan:
        states = set()
        for key in range(3):
            given = arrays(cupy, key)
            expected = anew(plan, given)
            before = len(cupy.synchronized)
            with stream_at(cupy):
                for _ in range(3):
                    same(cupy, (*plan(*given), plan.loss(*given)), (*expected[0], expected[1]))
                ((state, _),) = plan._sessions["cuda"]._states._kept.values()
                states.add(state)
                assert cupy.synchronized[before:].count(0) == (key > 0)
        assert len(states) == 3
        assert len(plan._sessions["cuda"]._states) == 1


def test_labels_on_the_host(cupy):
    """Those of the call before may still be on their way."""
    given = arrays(cupy, 5, lengths=False, frames=False)
    host = [given[0], cupy.asnumpy(given[1])]
    with CTCLoss(engine="cuda") as plan:
        expected = plan(*host)
        for _ in range(3):
            before = len(cupy.synchronized)
            with stream_at(cupy):
                same(cupy, plan(*host), expected)
                same(cupy, plan(*host), expected)
        assert cupy.synchronized[before:].count(0) == 1


def test_a_capture_before_its_first_call_is_refused(cupy):
    given = arrays(cupy, 6)
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        with stream_at(cupy):
            expected = plan(*given)
        stream = stream_at(cupy)
        with stream:
            stream.begin_capture()
            with pytest.raises(EngineUnsupported, match="call it once with the same shapes before the capture"):
                plan(*given)
            stream.end_capture()
            found = plan(*given)
        same(cupy, found, expected)
