"""Labels on the device: capture, streams, threads and workspaces, on the fake libcudnn and the emulator."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from functools import partial
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest
from batches import SEED, scores
from device_batches import here, of, on_host, padded, there
from fake_device import NOTHING_ALIVE, ONE_HANDLE, begin_again, release

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda import kernels, launch
from ctcbind.cuda.kernels import as_argument
from ctcbind.engines import cuda, cudnn_device, cudnn_handles
from ctcbind.streams import device_stream

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_capture(device, engine, monkeypatch):
    """After one call with the same shapes nothing is allocated but results; before it, that it is needed is said."""
    x, labels, stream = there(scores(9, 2, 5)), there(padded([[1, 2], [3]])), fake_cupy.cuda.Stream()
    with stream, CTCLoss(engine=engine, graph_safe=True) as plan:
        stream.begin_capture()
        with pytest.raises(ctcbind.EngineUnsupported, match="before the capture"):
            plan(x, labels)
        stream.end_capture()
        right = on_host(plan(x, labels))
        monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: pytest.fail("workspace was allocated"))
        stream.begin_capture()
        captured = plan(x, labels)
        stream.end_capture().launch(stream)
        assert np.array_equal(here(captured.loss), right.loss)
        assert np.array_equal(here(captured.grad), right.grad)


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_the_workspace_of_a_graph_stays_when_a_larger_one_takes_its_place(device, engine, monkeypatch):
    """And none takes it in a capture."""
    blocks, alloc = [], fake_cupy.cuda.alloc

    def noted(size):
        made = alloc(size)
        blocks.append(weakref.ref(made.mem))
        return made

    monkeypatch.setattr(fake_cupy.cuda, "alloc", noted)
    labels, stream = there(padded([[1, 2], [3]])), fake_cupy.cuda.Stream()
    small, large = there(scores(9, 2, 5)), there(scores(90, 2, 5))
    with stream, CTCLoss(engine=engine, graph_safe=True) as plan:
        plan(small, labels)
        of_graph = list(blocks)
        stream.begin_capture()
        plan(small, labels)
        with pytest.raises(ctcbind.EngineUnsupported, match="bytes of workspace and has"):
            plan(large, labels)
        stream.end_capture()
        plan(large, labels)
        gc.collect()
        assert len(blocks) > len(of_graph) > 0
        assert all(each() is not None for each in of_graph)


@pytest.mark.parametrize("captured", [False, True])
def test_a_call_within_a_call(device, captured, monkeypatch):
    """As in a signal's handler: it has a handle of its own, which cannot be made in a capture."""
    x, inner, labels = there(scores(30, 2, 5)), there(scores(6, 2, 7, key=1)), there(padded([[1, 2], [3]]))
    stream, seen, describe = fake_cupy.cuda.Stream(), [], cudnn_device.set_ctc
    with stream, CTCLoss(engine="cudnn", graph_safe=True) as plan, CTCLoss(engine="cudnn", graph_safe=True) as other:
        want, want_inner = on_host(plan(x, labels)), on_host(other(inner, labels))

        def interrupted(*about):
            describe(*about)
            monkeypatch.setattr(cudnn_device, "set_ctc", describe)
            if captured:
                with pytest.raises(ctcbind.EngineUnsupported, match="within a call"):
                    other(inner, labels)
            else:
                seen.append((on_host(other(inner, labels)), want_inner))

        monkeypatch.setattr(cudnn_device, "set_ctc", interrupted)
        if captured:
            stream.begin_capture()
        seen.append((plan(x, labels), want))
        if captured:
            stream.end_capture()
    for got, right in seen:
        np.testing.assert_array_equal(here(got.loss), right.loss)
        np.testing.assert_array_equal(here(got.grad), right.grad)
    assert device.live == ONE_HANDLE


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
@pytest.mark.parametrize("flat", [False, True])
def test_a_capture_without_graph_safe_is_refused_and_goes_on(device, engine, flat):
    """To wait in it would end it, and all that was captured with it."""
    x, stream = there(scores(9, 2, 5)), fake_cupy.cuda.Stream()
    arrays = (there(np.array([1, 2, 3])), None, there(np.array([2, 1]))) if flat else (there(padded([[1, 2], [3]])),)
    with stream, CTCLoss(engine=engine) as plan, CTCLoss(engine=engine, graph_safe=True) as safe:
        right = on_host(plan(x, *arrays))
        safe(x, *arrays)
        stream.begin_capture()
        for call in (plan, plan.loss):
            with pytest.raises(ctcbind.EngineUnsupported, match=r"CTCLoss\(graph_safe=True\)"):
                call(x, *arrays)
        captured = safe(x, *arrays)
        stream.end_capture().launch(stream)
        assert np.array_equal(here(captured.loss), right.loss)


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_labels_on_the_host_are_refused_before_anything_gets_into_the_graph(device, engine, monkeypatch):
    """A copy of the logits, say, whose memory would be somebody else's by the replay."""
    x, stream = scores(9, 2, 10), fake_cupy.cuda.Stream()
    given = (x, there(x), there(x)[:, :, ::2])
    with stream, CTCLoss(engine=engine) as plan:
        for logits in given:
            plan(logits, [[1, 2], [3]])
        monkeypatch.setattr(cuda, "lay_side_by_side", lambda _: pytest.fail("the logits were copied"))
        stream.begin_capture()
        for logits in given:
            for call in (plan, plan.loss):
                with pytest.raises(ctcbind.EngineUnsupported, match=r"labels on the host.*CTCLoss\(graph_safe=True\)"):
                    call(logits, [[1, 2], [3]])
        stream.end_capture()


#: Of Problem: what is no address.
NUMBER = re.compile(
    "[xgr]_[tn]|label_(width|total)|wide|[TNC]|blank|simple|weighing|pitch|sparse|table|width_bits|strips|zeroing|"
    "element|rotated|probabilities|doubted"
)


@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("zero_infinity", [True, False])
@pytest.mark.parametrize("reduction", ["none", "sum", "batch_mean", "label_mean"])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_a_captured_call_goes_nowhere_but_to_what_is_kept(
    device, engine, reduction, zero_infinity, with_grad, monkeypatch
):
    """Arrays, results and the plan's workspace: what went back to the pool would be somebody else's by the replay."""
    x, labels, stream = there(scores(9, 2, 5)), there(padded([[1, 2], [3]])), fake_cupy.cuda.Stream()
    blocks, problems = [], []
    alloc = fake_cupy.cuda.alloc
    monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: blocks.append((alloc(size), size)) or blocks[-1][0])
    for place in (launch, cudnn_device):
        monkeypatch.setattr(place, "as_argument", lambda problem: problems.append(problem) or as_argument(problem))
    with stream, CTCLoss(engine=engine, graph_safe=True, reduction=reduction, zero_infinity=zero_infinity) as plan:
        call = plan if with_grad else plan.loss
        call(x, labels)
        stream.begin_capture()
        found = call(x, labels)
        stream.end_capture()
        results = (found.loss, found.grad) if with_grad else (found,)
        kept = [(each.data.ptr, each.nbytes) for each in (x, labels, *results)]
        kept += [(memory.ptr, size) for memory, size in blocks]
        for name in (name for name in problems[-1] if not NUMBER.fullmatch(name)):
            to = problems[-1][name]
            assert to == 0 or any(begin <= to <= begin + size for begin, size in kept), name  # at the end: of no size
        assert problems[-1]["losses"] != 0


def test_what_would_not_outlive_a_capture_is_refused(device):
    x, labels = there(scores(9, 2, 5)), padded([[1, 2], [3]])
    for engine in ("cudnn", "cuda"):
        with CTCLoss(engine=engine, graph_safe=True) as plan:
            for wrong, why in ((labels, "on the host"), (there(labels, np.int16), "int32 or int64")):
                with pytest.raises(ctcbind.InvalidInput, match=why):
                    plan(x, wrong)
    with (
        CTCLoss(engine="cuda", graph_safe=True) as plan,
        pytest.raises(ctcbind.EngineUnsupported, match="side by side"),
    ):
        plan(there(scores(9, 2, 10))[:, :, ::2], there(labels))


def test_a_handle_for_each_thread_and_device(device, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    closed, close = [], cudnn_handles.DeviceHandle.close
    monkeypatch.setattr(
        cudnn_handles.DeviceHandle, "close", lambda it: closed.append(fake_cupy.Device().id) or close(it)
    )
    x, labels = scores(5, 2, 4), padded([[1], [2]])
    arrays = []
    for number in (0, 1):
        with fake_cupy.cuda.Device(number):
            arrays.append((there(x), there(labels)))
    with CTCLoss(engine="cudnn") as plan:

        def work():
            for pair in arrays:
                plan(*pair)

        work()
        work()
        assert device.live == {"handle": 2, "tensor": 4, "ctcloss": 2}
        for _ in range(3):  # those of threads that have ended are given back
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert device.live["handle"] == 4
        by_thread = [entry["handle"] for entry in of(device, "cudnnCTCLoss_v8")]
        assert len(set(by_thread[:4])) == 2
        assert not set(by_thread[:4]) & set(by_thread[4:])
    release()
    assert device.live == NOTHING_ALIVE
    assert sorted(closed) == [0] * 4 + [1] * 4, "each on its own device"


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_arrays_of_the_host_go_to_the_device_that_is_current(device, engine, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    on, alloc = [], fake_cupy.cuda.alloc
    monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: on.append(fake_cupy.Device().id) or alloc(size))
    x, labels = scores(5, 2, 4), [[1, 2], [3]]
    right = ctcbind.ctc_loss(x.astype(float), labels)
    with CTCLoss(engine=engine) as plan:
        for number in (1, 0):
            on.clear()
            with fake_cupy.cuda.Device(number):
                np.testing.assert_allclose(plan(x, labels).loss, right, rtol=1e-5)
            assert set(on) == {number}


def test_a_workspace_for_each_stream(device):
    """Work of one stream may still be going on when the next begins on another; threads share none by the name 2."""
    x, labels = there(scores(5, 2, 4)), there(padded([[1], [2]]))
    streams = [fake_cupy.cuda.Stream(), fake_cupy.cuda.Stream()]
    with CTCLoss(engine="cudnn") as plan:
        for stream in (*streams, *streams):
            with stream:
                plan(x, labels)
        used = [entry["workspace"] for entry in of(device, "cudnnCTCLoss_v8")]
        assert used[0] == used[2] != used[1] == used[3]

        def on_its_own():
            with device_stream(fake_cupy, 2, 0):
                plan(x, labels)

        for _ in range(2):
            thread = threading.Thread(target=on_its_own)
            thread.start()
            thread.join()
        assert len(plan._sessions["cudnn"]._by_stream) == 3  # the first thread's is given back


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_what_a_thread_has_left_is_given_back_once_its_device_is_done(device, engine, monkeypatch):
    """Its work may still be going on, and nobody else waits for it; that of another device does not count."""
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    waited = []
    monkeypatch.setattr(fake_cupy.Device, "synchronize", lambda it: waited.append((it.id, fake_cupy.Device().id)))
    arrays = []
    for number in (0, 1):
        with fake_cupy.cuda.Device(number):
            arrays.append((there(scores(5, 2, 4)), there(padded([[1], [2]]))))
    with CTCLoss(engine=engine) as plan:

        def work(number):
            with device_stream(fake_cupy, 2, number):
                plan(*arrays[number])

        for number, expected in ((1, []), (0, [(1, 1)]), (1, [(1, 1), (0, 0)])):
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            thread.join()
            assert waited == expected


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_labels_and_lengths_stay_until_the_next_call(device, engine, graph_safe):
    """The pool may give their memory to another stream while kernels of this one have yet to read it."""
    x, left = there(scores(5, 2, 4)), []
    with CTCLoss(engine=engine, graph_safe=graph_safe) as plan:
        for _ in range(3):  # the second is like the first, and goes a shorter way
            given = there(padded([[1], [2]])), there([5, 4], np.int32), there([1, 1], np.int32)
            kept = [weakref.ref(each) for each in given]
            plan(x, *given)
            del given
            gc.collect()
            assert all(each() is not None for each in kept)
            assert all(each() is None for each in left)
            left += kept


def test_wrong_labels_are_seen_before_the_logits_are_written_over(device):
    given = scores(5, 2, 4)
    x, labels = there(given), padded([[1], [9]])
    with CTCLoss(engine="cuda", overwrite_logits=True) as plan:
        with pytest.raises(ctcbind.InvalidInput, match=r"targets\[1\]\[0\] is 9"):
            plan(x, there(labels))
        assert np.array_equal(here(x), given)
        with fake_cupy.cuda.Stream():
            result = plan(x, there(np.minimum(labels, 3)))
    assert result.grad.data.ptr == x.data.ptr


class OfPtr:
    def __init__(self, address):
        self.ptr = address


class OfTorch:
    def __init__(self, address):
        self.cuda_stream = address


class OfProtocol:
    def __init__(self, address):
        self.address = address

    def __cuda_stream__(self):
        return 0, self.address


@pytest.mark.parametrize("kind", [int, OfPtr, OfTorch, OfProtocol])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_a_stream_by_its_address(device, engine, kind, monkeypatch):
    copied = []
    copy = fake_cupy.runtime.memcpyAsync
    monkeypatch.setattr(fake_cupy.runtime, "memcpyAsync", lambda *a: copied.append(a[4]) or copy(*a))
    x, labels = there(scores(5, 2, 4)), there(padded([[1], [2]]))
    with CTCLoss(engine=engine, stream=kind(0x7070)) as plan:
        plan(x, labels)
        plan.loss(x, labels)
        plan(x, [[1], [2]])
    assert set(copied) == {0x7070} if copied else engine == "cudnn"
    if engine == "cudnn":
        assert {entry["stream"] for entry in device.log if entry["call"].startswith("cudnnCTCLoss")} == {0x7070}
    assert fake_cupy.cuda.get_current_stream().ptr == 0


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_a_stream_that_nobody_else_refers_to_lives_as_long_as_the_plan(device, engine):
    """CuPy destroys it otherwise, and the plan would go on with its address."""
    x, stream = there(scores(5, 2, 4)), fake_cupy.cuda.Stream(non_blocking=True)
    plan, life = CTCLoss(engine=engine, stream=stream), weakref.ref(stream)
    del stream
    plan(x, there(padded([[1], [2]])))
    gc.collect()
    assert life() is not None
    assert life().ptr == plan.stream
    plan.close()
    del plan
    gc.collect()
    assert life() is None


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_a_stream_by_its_address_is_one_of_the_logits_device(device, engine, monkeypatch):
    """Of the current one for logits on the host."""
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    on, alloc = set(), fake_cupy.cuda.alloc

    def noted(size):
        on.add((fake_cupy.Device().id, fake_cupy.cuda.get_current_stream().ptr))
        return alloc(size)

    monkeypatch.setattr(fake_cupy.cuda, "alloc", noted)
    for own, current, place in ((0, 1, "device"), (1, 0, "device"), (1, 1, "host"), (0, 0, "host")):
        with fake_cupy.cuda.Device(own):
            x = there(scores(5, 2, 4)) if place == "device" else scores(5, 2, 4)
        on.clear()
        with fake_cupy.cuda.Device(current), CTCLoss(engine=engine, stream=0x7070) as plan:
            plan(x, [[1], [2]])
            plan.loss(x, [[1], [2]])
        assert on == {(own, 0x7070)}


@pytest.mark.parametrize("wrong", ["a stream", 1.5, True, -1, 2**64, object(), np.zeros(3)])
def test_what_is_no_stream(wrong):
    with pytest.raises(ctcbind.InvalidInput, match="stream is"):
        CTCLoss(stream=wrong)


@pytest.mark.parametrize("pair", [(np.zeros(2), 0x7070), (1, 0x7070), (None, 0x7070), (0,), [0, 0x7070], np.zeros(2)])
def test_what_is_no_answer_of_the_protocol(pair):
    """What has no one truth value gave NumPy's ValueError."""
    with pytest.raises(ctcbind.InvalidInput, match=r"^stream: __cuda_stream__ gives .*, which is not \(0, address\)$"):
        CTCLoss(stream=SimpleNamespace(__cuda_stream__=lambda: pair))


def test_each_call_failing_in_turn_leaves_nothing_half_made(device):
    x, labels = there(scores(5, 2, 4)), there(padded([[1, 2], []]))
    with CTCLoss(engine="cudnn") as plan:
        right = on_host(plan(x, labels))
    for k in range(1, len(device.calls) + 1):
        begin_again(device)
        device.fail("", 5000, nth=k)
        with CTCLoss(engine="cudnn") as plan:
            with pytest.raises(ctcbind.NativeError):
                plan(x, labels)
            assert np.array_equal(here(plan(x, labels).grad), right.grad)
        assert device.live == ONE_HANDLE
        release()
        assert device.live == NOTHING_ALIVE


class OfDlpack:
    """An array of another library that speaks DLPack alone."""

    def __init__(self, array, kind=2):
        self.array, self.kind, self.streams = array, kind, []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, **options):
        self.streams.append(fake_cupy.cuda.get_current_stream().ptr)
        return self.array


@pytest.mark.parametrize("kind", [2, 13])
@pytest.mark.parametrize("engine", ["cudnn", "cuda", "auto"])
def test_arrays_that_speak_dlpack_alone(device, engine, kind):
    x, labels = there(scores(5, 2, 4)), there(padded([[1], [2, 3]]))
    right = on_host(ctcbind.ctc_loss_and_grad(x, labels, engine=engine))
    for targets in (OfDlpack(labels, kind), [[1], [2, 3]]):
        with CTCLoss(engine=engine, stream=0) as plan:
            got = plan(OfDlpack(x, kind), targets)
        assert isinstance(got.grad, fake_cupy.ndarray)
        np.testing.assert_allclose(here(got.grad), right.grad, atol=1e-6)
    given = OfDlpack(x), OfDlpack(labels)
    with CTCLoss(engine=engine, graph_safe=True, stream=0x7070) as plan:
        assert np.array_equal(here(plan(*given).loss), right.loss)
    assert {*given[0].streams, *given[1].streams} == {0x7070}  # no other is made to wait


def test_what_the_cuda_engine_waits_for(device):
    """As its Contract says: for nothing with labels on the host, nor with graph_safe."""
    contract = ctcbind.engines()["cuda"].contract
    assert not contract.synchronises
    assert "waits until they are checked" in contract.limits[0]
    x, labels = there(scores(8, 2, 5)), padded([[1, 2], [3]])
    for given, graph_safe, waits in (
        (labels, False, False),
        (there(labels), False, True),
        (there(labels), True, False),
    ):
        for reduction in ("none", "label_mean"):
            for zero in (False, True):
                options = {"graph_safe": graph_safe, "reduction": reduction, "zero_infinity": zero}
                with CTCLoss(engine="cuda", **options) as plan:
                    plan(x, given)
                    before = len(fake_cupy.synchronized)
                    plan(x, given)
                    assert len(fake_cupy.synchronized) - before == waits


@pytest.mark.parametrize("reduction", ["none", "label_mean"])
def test_long_labels_on_the_host_are_not_waited_for_either(device, reduction):
    """Past 64 kB CUDA waits for the stream before it reads memory of the host that is not page-locked."""
    x, labels = there(scores(40, 3, 5)), [[1 + i % 4 for i in range(length)] for length in (20000, 30, 0)]
    exact = ctcbind.ctc_loss_and_grad(here(x).astype(float), labels, reduction=reduction, zero_infinity=True)
    with CTCLoss(engine="cuda", reduction=reduction, zero_infinity=True) as plan:
        plan(x, labels)
        before = len(fake_cupy.synchronized)
        result = plan(x, labels)
        assert len(fake_cupy.synchronized) == before
        few = plan(x, [[1], [], [2]])
    np.testing.assert_allclose(here(result.loss), exact.loss, rtol=1e-6)
    np.testing.assert_allclose(here(result.grad), exact.grad, atol=1e-6)
    exact = ctcbind.ctc_loss(here(x).astype(float), [[1], [], [2]], reduction=reduction)
    np.testing.assert_allclose(here(few.loss), exact, rtol=1e-6)


def test_a_device_that_reads_the_hosts_memory_may_do_so_late(device, monkeypatch):
    """As Grace Hopper: nothing is copied elsewhere first, and CUDA promises of such a copy the order of its stream."""
    queue, held = [], []
    module, copy, asarray = fake_cupy.RawModule, fake_cupy.runtime.memcpyAsync, fake_cupy.asarray

    def late(run):
        return lambda *arguments, **options: queue.append(partial(run, *arguments, **options))

    def compiled_late(**options):
        made = module(**options)
        return SimpleNamespace(get_function=lambda name: late(made.get_function(name)))

    def kept(array):  # by a pool, until the stream has come so far
        held.append(asarray(array))
        return held[-1]

    x = there(scores(9, 3, 6))
    rows = np.random.default_rng([SEED, 130]).integers(1, 6, size=(5, 3, 4)).tolist()
    expected = [ctcbind.ctc_loss(here(x), each) for each in rows]
    monkeypatch.setattr(fake_cupy.runtime, "deviceGetAttribute", lambda attribute, device: int(attribute == 88))
    monkeypatch.setattr(fake_cupy.runtime, "memcpyAsync", late(copy))
    monkeypatch.setattr(fake_cupy, "RawModule", compiled_late)
    monkeypatch.setattr(fake_cupy, "asarray", kept)
    monkeypatch.setattr(kernels, "_compiled", {})
    with CTCLoss(engine="cuda") as plan:
        losses = [plan.loss(x, each) for each in rows]
        for work in queue:
            work()
    np.testing.assert_allclose([here(each) for each in losses], expected, rtol=1e-5)
