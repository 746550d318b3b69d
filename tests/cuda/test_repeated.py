"""Graph-safe calls of the cuda engine that are like one before: from the third on they take a short way, with the same
results; what differs in anything but addresses and values takes the long way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from batches import SEED
from repeated_calls import OPTIONS, anew, arrays, same

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda import device_batch, repeated

pytest_plugins = ["emulated_fixture"]


@pytest.fixture
def long_ways(monkeypatch):
    """A list with an entry for each batch that was looked at."""
    seen, make = [], device_batch.make_device_batch

    def counted(*arguments, **options):
        seen.append(1)
        return make(*arguments, **options)

    monkeypatch.setattr(device_batch, "make_device_batch", counted)
    return seen


def warm(plan, cupy, **options):
    for key in range(2):
        plan(*arrays(cupy, key, **options))
        plan.loss(*arrays(cupy, key, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", [{}, {"lengths": False}, {"frames": False}, {"flat": True}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_only_addresses_and_values_differ(cupy, long_ways, options, form, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    with CTCLoss(engine="cuda", graph_safe=True, **options) as plan:
        form = {**form, "dtype": dtype, "ntc": plan.layout == "NTC"}
        warm(plan, cupy, **form)
        for key in range(2, 5):
            given = arrays(cupy, key, **form)
            expected = anew(plan, given)
            before = len(long_ways)
            both, alone = plan(*given), plan.loss(*given)
            assert len(long_ways) == before
            same(cupy, (*both, alone), (*expected[0], expected[1]))


def test_wrong_labels_are_nan_here_too(cupy, long_ways):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        before = len(long_ways)
        x, labels, _, lengths = arrays(cupy, 5)
        labels[1, 0], lengths[1] = 99, 2
        losses, grad, _ = plan(x, labels, cupy.full(3, 9, dtype=np.int32), lengths)
        assert len(long_ways) == before
        assert np.isnan(cupy.asnumpy(losses)).tolist() == [False, True, False]
        assert np.isnan(cupy.asnumpy(grad)).any(axis=(0, 2)).tolist() == [False, True, False]


def strided(cupy, given):
    x, *others = given
    wide = cupy.empty((x.shape[0], 2 * x.shape[1], x.shape[2]), x.dtype)
    wide[:, ::2] = x
    return [wide[:, ::2], *others]


def between(cupy, given):
    """One byte further, where no kernel can read it."""
    x, *others = given
    memory = cupy.empty(x.nbytes + 16, np.uint8)
    memory[1 : 1 + x.nbytes] = cupy.asarray(np.frombuffer(cupy.asnumpy(x).tobytes(), np.uint8))
    return [cupy.ndarray(x.shape, dtype=x.dtype, memptr=memory[1:].data, strides=x.strides), *others]


OTHERS = {
    "shape": lambda cupy, given: arrays(cupy, 9, T=10),
    "samples": lambda cupy, given: arrays(cupy, 9, N=4),
    "width of labels": lambda cupy, given: arrays(cupy, 9, L=4),
    "dtype": lambda cupy, given: arrays(cupy, 9, dtype="float64"),
    "integers": lambda cupy, given: arrays(cupy, 9, wide="int64"),
    "no lengths": lambda cupy, given: [*given[:3], None],
    "no frames": lambda cupy, given: [*given[:2], None, given[3]],
    "strides": strided,
}


@pytest.mark.parametrize("how", OTHERS)
def test_anything_else_takes_the_long_way(cupy, long_ways, how):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        given = OTHERS[how](cupy, arrays(cupy, 7))
        expected = anew(plan, given)
        before = len(long_ways)
        same(cupy, plan(*given), expected[0])
        assert len(long_ways) == before + 1
        same(cupy, plan(*given), expected[0])
        assert len(long_ways) == before + 1  # by now it is known too


def test_what_lies_between_elements_or_on_the_host_is_refused_as_ever(cupy):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        given = arrays(cupy, 7)
        with pytest.raises(ctcbind.EngineUnsupported, match="a copy would not outlive"):
            plan(*between(cupy, given))
        for place in range(4):
            mixed = [cupy.asnumpy(each) if at == place else each for at, each in enumerate(given)]
            with pytest.raises(ctcbind.InvalidInput, match="host"):
                plan(*mixed)


def test_integers_that_are_none_are_refused_as_ever(cupy):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        x, labels, *lengths = arrays(cupy, 7)
        with pytest.raises(ctcbind.InvalidInput, match="float32"):
            plan(x, labels.astype("float32"), *lengths)


def test_streams_and_devices_have_workspaces_of_their_own(cupy, long_ways, monkeypatch):
    monkeypatch.setattr(cupy, "device_count", 2)
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        stream, given = cupy.cuda.Stream(), arrays(cupy, 7)
        expected, _ = anew(plan, given)
        with stream:
            for known in (False, True):
                before = len(long_ways)
                same(cupy, plan(*given), expected)
                assert len(long_ways) == before + (not known)
        with cupy.cuda.Device(1):
            there = arrays(cupy, 7)
        for known in (False, False):  # the current device is another than theirs: they are not taken for known
            before = len(long_ways)
            result = plan(*there)
            assert result.grad.device.id == 1
            same(cupy, result, expected)
            assert len(long_ways) == before + (not known)
        with cupy.cuda.Device(1):
            before = len(long_ways)
            same(cupy, plan(*there), expected)
            assert len(long_ways) == before
        assert len(plan._sessions["cuda"]._states) == 3


def test_one_address_for_the_streams_of_all_threads_is_not_relied_on(cupy, long_ways, monkeypatch):
    stream = cupy.cuda.Stream()
    stream.ptr = 2
    with stream, CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        before = len(long_ways)
        plan(*arrays(cupy, 7))
        assert len(long_ways) == before + 1


def test_a_captured_graph_keeps_its_workspace(cupy, long_ways):
    stream = cupy.cuda.Stream()
    with stream, CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        ((state, _),) = plan._sessions["cuda"]._states._kept.values()
        memory, before = state._workspace._memory, len(long_ways)
        given = arrays(cupy, 7)
        stream.begin_capture()
        plan(*given)
        stream.end_capture()
        assert len(long_ways) == before
        assert all(one is other for one, other in zip(state._staged, given[1:]))  # held until the next call
        plan(*arrays(cupy, 8, T=90, N=7))
        assert state._workspace._memory is not memory
        assert any(each is memory for each in state._workspace._kept)


def test_a_workspace_that_has_moved_meanwhile(cupy, long_ways):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        plan(*arrays(cupy, 8, T=90, N=7))
        given = arrays(cupy, 7)
        expected, before = anew(plan, given)[0], len(long_ways)
        same(cupy, plan(*given), expected)
        assert len(long_ways) == before


def test_only_so_many_calls_are_known(cupy):
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        for T in range(1, repeated.MOST + 20):
            plan(*arrays(cupy, T, T=T, N=1))
            assert len(plan._sessions["cuda"]._repeated) <= repeated.MOST


def test_logits_that_are_written_over(cupy):
    with CTCLoss(engine="cuda", graph_safe=True, overwrite_logits=True) as plan:
        for key in range(4):
            given = arrays(cupy, key)
            with CTCLoss(engine="cuda", graph_safe=True) as other:
                expected = other(*given)
            result = plan(*given)
            assert result.grad.data.ptr == given[0].data.ptr
            same(cupy, result, expected)


def test_a_closed_plan_says_so(cupy):
    plan = CTCLoss(engine="cuda", graph_safe=True)
    warm(plan, cupy)
    both = plan._both
    plan.close()
    with pytest.raises(ctcbind.ClosedError):
        plan(*arrays(cupy, 7))
    assert both(*arrays(cupy, 7)) is None  # a thread that had come so far when another closed it


@pytest.mark.parametrize("does", ["calls", "closes"])
def test_from_within_a_call(cupy, does):
    """As a signal's handler may."""
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        warm(plan, cupy)
        given, inner = arrays(cupy, 7), arrays(cupy, 8)
        expected, of_inner = anew(plan, given)[0], anew(plan, inner)[0]
        ((state, _),) = plan._sessions["cuda"]._states._kept.values()
        heard, start, calls = [], state.start, itertools.count()

        def interrupted(*arguments, **options):
            if not next(calls):
                heard.append(plan(*inner) if does == "calls" else plan.close())
            return start(*arguments, **options)

        state.start = interrupted
        same(cupy, plan(*given), expected)
        assert len(heard) == 1
        if does == "calls":
            same(cupy, heard[0], of_inner)
        else:
            assert plan.closed
            with pytest.raises(ctcbind.ClosedError):
                plan(*given)


def test_any_order_of_calls(cupy):
    rng = np.random.default_rng([SEED, 121])
    with CTCLoss(engine="cuda", graph_safe=True, reduction="batch_mean") as plan:
        for number in range(60):
            options = {
                "T": int(rng.integers(1, 4)) * 5,
                "N": int(rng.integers(1, 3)),
                "dtype": ("float32", "float16")[rng.integers(2)],
                "wide": ("int32", "int64")[rng.integers(2)],
                "frames": bool(rng.integers(2)),
            }
            given = arrays(cupy, 1000 + number, **options)
            both, alone = anew(plan, given)
            if rng.integers(3):
                same(cupy, plan(*given), both)
            else:
                same(cupy, (plan.loss(*given),), (alone,))
