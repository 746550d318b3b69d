"""What the cudnn engine calls, in which order, with which arguments; and what is left when a call fails."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from importlib import import_module

import fake_cupy
import numpy as np
import pytest
from batches import scores
from fake_device import NOTHING_ALIVE, ONE_HANDLE, PLACES, at, begin_again, case_of, release, run, to_host

import ctcbind
from ctcbind import CTCLoss
from ctcbind.bindings import cudnn, cudnn_objects
from ctcbind.engines.guard import Shielded

pytest_plugins = ["fake_cudnn.fixture"]

CREATE = [
    "cudnnCreate",
    "cudnnCreateTensorDescriptor",
    "cudnnCreateTensorDescriptor",
    "cudnnCreateCTCLossDescriptor",
]
DESTROY = [
    "cudnnDestroyCTCLossDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnDestroy",
]
SETTERS = {92800: "cudnnSetCTCLossDescriptor_v9", 90000: "cudnnSetCTCLossDescriptor_v9"}
SETTERS |= {8906: "cudnnSetCTCLossDescriptor_v8", 8500: "cudnnSetCTCLossDescriptor_v8"}


@pytest.fixture(params=PLACES)
def place(request):
    return request.param


def work(version, with_grad=True):
    """The calls of one batch."""
    describe = ["cudnnSetTensorNdDescriptor"] * (2 if with_grad else 1)
    return ["cudnnSetStream", *describe, SETTERS[version], "cudnnGetCTCLossWorkspaceSize", "cudnnCTCLoss"]


def of(fake, call):
    return [entry for entry in fake.log if entry["call"] == call]


# --- sequence and arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", SETTERS)
def test_the_sequence_of_calls(use_device, place, version):
    device = use_device(version)
    x = scores(7, 2, 5)
    with CTCLoss(engine="cudnn") as plan:
        plan(at(place, x), [[1, 2], [3]])
        assert device.calls == CREATE + work(version)
        assert device.live == ONE_HANDLE
        plan.loss(at(place, x), [[1, 2], [3]])
        plan(at(place, x), [[4], [3]])
        assert device.calls == CREATE + work(version) + work(version, False) + work(version)
    made = [entry["made"] for entry in device.log[:4]]
    assert device.live == ONE_HANDLE, "the thread's, whatever plan is closed"
    release()
    assert device.calls[-4:] == DESTROY
    assert [entry["thing"] for entry in device.log[-4:]] == made[::-1]
    assert device.live == NOTHING_ALIVE
    assert all(entry["status"] == 0 for entry in device.log)


@pytest.mark.parametrize("version", SETTERS)
def test_the_arguments(use_device, version):
    device = use_device(version)
    x = at("device", scores(7, 3, 5))
    stream = fake_cupy.cuda.Stream(non_blocking=True)
    with stream:
        result = ctcbind.ctc_loss_and_grad(x, [[1, 2, 2], [3], [4, 1]], [7, 1, 5], engine="cudnn")
    handle, probs, grads, ctc = (entry["made"] for entry in device.log[:4])
    assert of(device, "cudnnSetStream")[0]["stream"] == stream.ptr
    for entry, desc in zip(of(device, "cudnnSetTensorNdDescriptor"), (probs, grads)):
        assert entry["desc"] == desc
        assert (entry["type"], entry["dims"], entry["strides"]) == (0, [7, 3, 5], [15, 5, 1])
    (setter,) = of(device, SETTERS[version])
    # activations, cuDNN takes their softmax; gradients of what has no path are to be zeros
    assert (setter["desc"], setter["compType"], setter["normMode"], setter["gradMode"]) == (ctc, 0, 1, 0)
    assert setter["maxLabelLength"] == 3
    (query,), (call,) = of(device, "cudnnGetCTCLossWorkspaceSize"), of(device, "cudnnCTCLoss")
    for entry in (query, call):
        assert (entry["handle"], entry["stream"]) == (handle, stream.ptr)
        assert (entry["probsDesc"], entry["gradientsDesc"], entry["ctcLossDesc"]) == (probs, grads, ctc)
        assert entry["algo"] == 0, "deterministic: the other gave NaN gradients for peaked logits (pytorch 21680)"
        assert entry["labels"] == [1, 2, 2, 3, 4, 1]
        assert entry["labelLengths"] == [3, 1, 2]
        assert entry["inputLengths"] == [7, 1, 5]
    assert call["probs"] == x.data.ptr, "the caller's own memory, not a copy"
    assert len({call["probs"], call["gradients"], call["costs"], call["workspace"]}) == 4
    assert call["workSpaceSizeInBytes"] == query["size"] > 0
    assert result.grad.data.ptr != x.data.ptr
    assert stream.ptr in fake_cupy.synchronized


def test_the_call_is_waited_for_before_anything_is_made_of_it(device, place, monkeypatch):
    """Its labels, its lengths and logits that were moved are of nobody else until then."""
    done, waited, stream = [], [], fake_cupy.cuda.Stream()
    compute, settle = cudnn.cudnnCTCLoss, Shielded.settle

    def called(*arguments):
        compute(*arguments)
        done.append(len(fake_cupy.synchronized))

    def settled(*arguments):
        waited.append(fake_cupy.synchronized[done[-1] :])
        settle(*arguments)

    monkeypatch.setattr(cudnn, "cudnnCTCLoss", called)
    monkeypatch.setattr(Shielded, "settle", settled)
    with stream:
        ctcbind.ctc_loss_and_grad(at(place, scores(7, 2, 5)), [[1, 2], [3]], blank=4, engine="cudnn")
    assert waited == [[stream.ptr]]


def test_batch_first_memory_is_described_not_copied(device):
    x = at("device", scores(3, 7, 5))  # (N, T, C)
    ctcbind.ctc_loss(x, [[1], [2], [3]], layout="NTC", engine="cudnn")
    (entry,), (call,) = of(device, "cudnnSetTensorNdDescriptor"), of(device, "cudnnCTCLoss")
    assert (entry["dims"], entry["strides"]) == ([7, 3, 5], [5, 35, 1])
    assert call["probs"] == x.data.ptr


def test_the_gradient_lies_as_the_logits_do(device):
    """That cuDNN reads one order and writes another is nowhere said, so that it is never asked to."""
    for x, layout in ((scores(3, 7, 5), "NTC"), (scores(3, 7, 5), "TNC"), (scores(3, 9, 5)[:, 1:8], "NTC")):
        begin_again(device)
        ctcbind.ctc_loss_and_grad(at("device", x), [[1]] * x.shape[layout.index("N")], layout=layout, engine="cudnn")
        given, made = of(device, "cudnnSetTensorNdDescriptor")
        order = [sorted(range(3), key=lambda axis: -entry["strides"][axis]) for entry in (given, made)]
        assert given["dims"] == made["dims"]
        assert order[0] == order[1]


def test_a_gap_between_rows_is_described_not_copied(device):
    x = at("device", scores(7, 4, 9))[:, ::2, 1:6]
    ctcbind.ctc_loss(x, [[1], [2]], engine="cudnn")
    (entry,), (call,) = of(device, "cudnnSetTensorNdDescriptor"), of(device, "cudnnCTCLoss")
    assert (entry["dims"], entry["strides"]) == ([7, 2, 5], [36, 18, 1])
    assert call["probs"] == x.data.ptr


def test_the_blank_is_brought_to_class_0(device, place):
    """Its column moves to the front, and the labels below it up by one."""
    run(place, scores(6, 2, 5), [[0, 1, 3], [4]], blank=2)
    (call,) = of(device, "cudnnCTCLoss")
    assert call["labels"] == [1, 2, 3, 4]
    begin_again(device)
    run(place, scores(6, 2, 5), [[1, 2, 3], [4]], blank=0)
    assert of(device, "cudnnCTCLoss")[0]["labels"] == [1, 2, 3, 4]


def test_what_has_no_path_no_label_or_no_time_is_not_sent(device, place):
    """In its place one frame with one label, whose loss and gradient nobody sees."""
    run(place, scores(6, 5, 5), [[1, 1, 1, 1], [], [2], [3, 4], [1] * 30], [6, 6, 0, 5, 2])
    (call,) = of(device, "cudnnCTCLoss")
    assert call["labelLengths"] == [1, 1, 1, 2, 1]
    assert call["inputLengths"] == [1, 1, 1, 5, 1]
    assert call["labels"] == [1, 1, 1, 3, 4, 1]
    assert device.hazards == 0


# --- workspace ----------------------------------------------------------------------------------------------


@pytest.fixture
def allocations(monkeypatch):
    """The bytes of every workspace, as they are asked for."""
    asked, alloc = [], fake_cupy.cuda.alloc

    def counted(size):
        asked.append(size)
        return alloc(size)

    monkeypatch.setattr(fake_cupy.cuda, "alloc", counted)
    return asked


def test_the_workspace_grows_only(device, place, allocations):
    sizes = [(4, 2, 3), (4, 2, 3), (30, 4, 5), (6, 1, 3), (30, 4, 5), (40, 4, 5)]
    with CTCLoss(engine="cudnn") as plan:
        for T, N, C in sizes:
            x, labels = scores(T, N, C), [[1, 2]] * N
            got, case = plan(at(place, x), labels), case_of(x, labels)
            got = ctcbind.Result(to_host(got.loss), to_host(got.grad), got.engine)
            case.check(got, "float32", case.expected())
            plan.loss(at(place, x), labels)  # which needs less
        calls = of(device, "cudnnCTCLoss")
        needed = [entry["size"] for entry in of(device, "cudnnGetCTCLossWorkspaceSize")]
        assert [entry["workSpaceSizeInBytes"] for entry in calls] == needed
        # a new one for a larger batch only, and each call has it whole
        assert allocations == [needed[0], needed[4], needed[10]]
        assert len({entry["workspace"] for entry in calls[:4]}) == 1
        assert len({entry["workspace"] for entry in calls[4:10]}) == 1


def test_a_workspace_that_cannot_be_had_leaves_the_plan_usable(device, allocations, monkeypatch):
    small, large = scores(4, 1, 3), scores(50, 8, 3)
    with CTCLoss(engine="cudnn") as plan:
        before = plan(small, [[1]])
        counted = fake_cupy.cuda.alloc
        monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            plan(large, [[1]] * 8)
        monkeypatch.setattr(fake_cupy.cuda, "alloc", counted)
        assert np.array_equal(plan(small, [[1]]).grad, before.grad)
        plan(large, [[1]] * 8)
    assert len(allocations) == 3


@pytest.fixture
def few_to_collect():
    """What was there before is left out of each collection, of which there are hundreds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


# --- failures -----------------------------------------------------------------------------------------------

STATUSES = {92800: (1001, 2006, 3000, 4003, 5000), 8500: (1, 3, 9, 4, 8)}


@pytest.mark.parametrize("with_grad", [True, False], ids=["gradient", "loss"])
@pytest.mark.parametrize("version", STATUSES)
def test_each_call_failing_in_turn_leaves_nothing_half_made(use_device, place, version, with_grad, few_to_collect):
    """The kth call, from the creation of the handle on, fails with each kind of status."""
    device = use_device(version)
    compute = ctcbind.ctc_loss_and_grad if with_grad else ctcbind.ctc_loss
    x = at(place, scores(5, 2, 4))
    for k, name in enumerate(CREATE + work(version, with_grad), start=1):
        for status in STATUSES[version]:
            device.fail("", status, nth=k)
            with pytest.raises(ctcbind.NativeError) as caught:
                compute(x, [[1, 2], []], engine="cudnn")
            assert (caught.value.call, caught.value.status) == (name, status)
            del caught
            gc.collect()
            assert device.live == (NOTHING_ALIVE if name in CREATE else ONE_HANDLE)
            release()
            assert device.live == NOTHING_ALIVE
            assert device.stray == 0
            device.reset(version)


def test_what_fails_to_be_destroyed_keeps_nothing_else(use_device):
    """It is not tried again, and the others are given back; nobody waits for them, and hears of it."""
    for version in STATUSES:
        device = use_device(version)
        for k, name in enumerate(DESTROY, start=1):
            run("host", scores(5, 2, 4), [[1, 2], []])
            device.fail(name, STATUSES[version][0], nth=2 if DESTROY[:k].count(name) == 2 else 1)
            release()
            assert [call for call in device.calls if call in DESTROY] == DESTROY
            assert sum(device.live.values()) == 1
            assert device.stray == 0
            device.reset(version)


@pytest.mark.parametrize("version", STATUSES)
def test_a_plan_goes_on_after_a_failure(use_device, place, version):
    device = use_device(version)
    x = at(place, scores(5, 2, 4))
    right = ctcbind.ctc_loss_and_grad(x, [[1, 2], [3]], engine="cudnn")
    for k in range(1, len(CREATE + work(version)) + 1):
        release()
        with CTCLoss(engine="cudnn") as plan:
            device.fail("", STATUSES[version][1], nth=k)
            with pytest.raises(ctcbind.NativeError):
                plan(x, [[1, 2], [3]])
            again = plan(x, [[1, 2], [3]])
            assert np.array_equal(to_host(again.grad), to_host(right.grad))
            assert np.array_equal(to_host(again.loss), to_host(right.loss))
        assert device.live == ONE_HANDLE


def test_a_failure_says_which_call_and_why(device):
    device.fail("cudnnCTCLoss", 5000)
    with pytest.raises(ctcbind.NativeError, match=r"cudnnCTCLoss.*EXECUTION_FAILED.*failed on demand") as caught:
        run("host", scores(5, 2, 4), [[1, 2], []])
    assert caught.value.name == "CUDNN_STATUS_EXECUTION_FAILED"
    assert caught.value.explanation


def test_refused_after_the_call_leaves_nothing_else_alive(device, place):
    x = scores(5, 2, 4)
    x[0, 0, 0] = np.inf
    with pytest.raises(ctcbind.EngineUnsupported):
        run(place, x, [[1], [2]])
    assert device.live == ONE_HANDLE


# --- closing, threads, streams, devices ---------------------------------------------------------------------


def test_closing(device, place):
    x = at(place, scores(5, 2, 4))
    plan = CTCLoss(engine="cudnn")
    plan(x, [[1], [2]])
    plan.close()
    plan.close()
    calls = len(device.calls)
    with pytest.raises(ctcbind.ClosedError, match="was closed"):
        plan(x, [[1], [2]])
    assert len(device.calls) == calls


def test_one_handle_for_all_calls_and_plans_of_a_thread(device, place):
    """To make one takes milliseconds, and to destroy it waits for the whole device."""
    x = at(place, scores(5, 2, 4))
    for _ in range(50):
        ctcbind.ctc_loss(x, [[1], [2]], engine="cudnn")
        ctcbind.ctc_loss_and_grad(x, [[1], [2]], engine="cudnn", reduction="sum")
        with CTCLoss(engine="cudnn") as plan:
            plan(x, [[1], [2]])
    assert [call for call in device.calls if call in CREATE] == CREATE
    assert device.live == ONE_HANDLE


def test_no_workspace_stays_when_nobody_uses_it(device, monkeypatch):
    held, alloc = [], fake_cupy.cuda.alloc

    def noted(size):
        memory = alloc(size)
        held.append(weakref.ref(memory))
        return memory

    monkeypatch.setattr(fake_cupy.cuda, "alloc", noted)
    plan = CTCLoss(engine="cudnn")
    plan(scores(5, 2, 4), [[1], [2]])
    assert [memory() is None for memory in held] == [False]
    plan.close()
    run("host", scores(5, 2, 4), [[1], [2]])
    plan = CTCLoss(engine="cudnn")
    plan(scores(5, 2, 4), [[1], [2]])
    del plan
    gc.collect()
    assert [memory() is None for memory in held] == [True] * 3


def test_a_thread_that_has_ended_leaves_its_handle_to_the_next(device, monkeypatch):
    """Who destroys it, on the device that it was made for."""
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    current, invoke = [], cudnn_objects.invoke

    def noting(library, name, *arguments):
        if name in ("cudnnCreate", "cudnnDestroy"):
            current.append((name, int(fake_cupy.cuda.Device())))
        invoke(library, name, *arguments)

    monkeypatch.setattr(cudnn_objects, "invoke", noting)

    def work():
        with fake_cupy.cuda.Device(1):
            x = fake_cupy.asarray(scores(5, 2, 4))
        ctcbind.ctc_loss(x, [[1], [2]], engine="cudnn")

    for _ in range(5):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    assert device.live == ONE_HANDLE
    run("host", scores(5, 2, 4), [[1], [2]])
    assert device.live == ONE_HANDLE
    made, destroyed = ("cudnnCreate", 1), ("cudnnDestroy", 1)
    assert current == [made, *[destroyed, made] * 4, destroyed, ("cudnnCreate", 0)]


def test_several_threads(device, place):
    """One plan for all, taken in turns, and one for each: everybody gets the result of his own batch."""
    batches = [(scores(20 + i, 3, 5 + i, key=i), [[1, 2, 3], [4] * (i + 1), []]) for i in range(6)]
    alone = [run(place, *batch) for batch in batches]
    failures = []

    def call(plan, batch, right):
        for _ in range(5):
            got = plan(at(place, batch[0]), batch[1])
            if not np.array_equal(to_host(got.grad), right.grad):
                failures.append(batch[0].shape)

    for shared in (True, False):
        with CTCLoss(engine="cudnn") as one:
            plans = [one if shared else CTCLoss(engine="cudnn") for _ in batches]
            threads = [threading.Thread(target=call, args=each) for each in zip(plans, batches, alone)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)
            for plan in plans:
                plan.close()
    assert not failures
    assert 1 <= device.live["handle"] <= 7, "those of threads that have ended may wait for the next that is made"


def test_a_call_within_a_call_has_a_handle_of_its_own(device, place, monkeypatch):
    """In a signal's handler, when the call that it interrupts has described its arrays and not yet computed."""
    outer, inner, labels = scores(30, 3, 5), scores(6, 3, 7, key=1), [[1, 2, 3], [4], []]
    want, want_inner = run(place, outer, labels), run(place, inner, labels)
    engine, seen = import_module("ctcbind.engines.cudnn"), []
    describe = engine.set_ctc

    def interrupted(*about):
        describe(*about)
        monkeypatch.setattr(engine, "set_ctc", describe)
        seen.append(run(place, inner, labels))
        device.fail("cudnnCTCLoss", 5000)
        with pytest.raises(ctcbind.NativeError):
            run(place, inner, labels)
        seen.append(device.live)

    monkeypatch.setattr(engine, "set_ctc", interrupted)
    got = run(place, outer, labels)
    for one, right in ((got, want), (seen[0], want_inner)):
        np.testing.assert_array_equal(one.loss, right.loss)
        np.testing.assert_array_equal(one.grad, right.grad)
    assert seen[1] == ONE_HANDLE, "what it had is closed"
    run(place, outer, labels)
    handles = [entry["handle"] for entry in of(device, "cudnnCTCLoss")]
    assert len({*handles[:2], *handles[-2:]}) == 1
    assert handles[0] not in handles[2:4]


def test_threads_that_come_and_go(device):
    """What several find to be left at once is released once, and never what a new thread has made since: threads'
    numbers are used again."""
    x, failures = scores(5, 2, 4), []

    def call():
        try:
            for _ in range(2):
                ctcbind.ctc_loss(x, [[1], [2]], engine="cudnn")
        except Exception as error:
            failures.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            threads = [threading.Thread(target=call) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    release()
    assert device.live == NOTHING_ALIVE


def test_every_call_is_on_the_stream_that_is_current_then(device, place):
    x = at(place, scores(5, 2, 4))
    streams = [fake_cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    with CTCLoss(engine="cudnn") as plan:
        for stream in (*streams, streams[0]):
            with stream:
                plan(x, [[1], [2]])
        plan(x, [[1], [2]])
    wanted = [*(stream.ptr for stream in (*streams, streams[0])), 0]
    assert [entry["stream"] for entry in of(device, "cudnnCTCLoss")] == wanted


def test_each_device_has_its_own_handle_and_results_stay_there(device, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    host, labels = scores(5, 3, 4), [[1], [2, 2], [3] * 9]
    right = ctcbind.ctc_loss_and_grad(host.astype(float), labels, reduction="label_mean", zero_infinity=True)
    arrays = []
    for number in (0, 1):
        with fake_cupy.cuda.Device(number):
            arrays.append(fake_cupy.asarray(host))
    options = {"reduction": "label_mean", "zero_infinity": True}
    with CTCLoss(engine="cudnn", **options) as plan:
        for array in (*arrays, arrays[1], arrays[0]):
            result = plan(array, labels)  # device 0 is the current one all the while
            assert result.loss.device == result.grad.device == plan.loss(array, labels).device == array.device
            np.testing.assert_allclose(to_host(result.loss), right.loss, rtol=1e-5)
            np.testing.assert_allclose(to_host(result.grad), right.grad, rtol=1e-5, atol=1e-5)
        assert device.live == {"handle": 2, "tensor": 4, "ctcloss": 2}
        handles = [entry["handle"] for entry in of(device, "cudnnCTCLoss")]
        assert handles == [handles[0]] * 2 + [handles[2]] * 4 + [handles[0]] * 2
    assert int(fake_cupy.cuda.Device()) == 0


def test_a_handle_is_destroyed_on_its_own_device(device, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    current, invoke = {}, cudnn_objects.invoke

    def noting(library, name, *arguments):
        current.setdefault(name, []).append(int(fake_cupy.cuda.Device()))
        invoke(library, name, *arguments)

    monkeypatch.setattr(cudnn_objects, "invoke", noting)
    with CTCLoss(engine="cudnn") as plan:
        for number in (0, 1):
            with fake_cupy.cuda.Device(number):
                x = fake_cupy.asarray(scores(5, 2, 4))
            plan(x, [[1], [2]])
    release()
    assert current["cudnnCreate"] == [0, 1]
    assert sorted(current["cudnnDestroy"]) == [0, 1]
