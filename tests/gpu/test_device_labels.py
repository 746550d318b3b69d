"""Labels on the device, CUDA graphs, gradients in place: what the engines that leave labels there promise of a device.

What can be seen without one is in tests/cuda. Here: capture and replay with other data, memory and waiting, the same
bits, large sizes.
"""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED, random_case, scores
from cudnn_lab import dry

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda.kernels import PROBLEM, as_argument, batch_module

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture(params=["cuda", "cudnn"])
def name(request):
    info = ctcbind.engines()[request.param]
    if not info.available:
        pytest.skip(f"engine {request.param} is not available: {(info.reason or '').splitlines()[0]}")
    return request.param


def padded(labels):
    rows = np.full((len(labels), max(map(len, labels), default=0)), -1, dtype=np.int32)
    for n, row in enumerate(labels):
        rows[n, : len(row)] = row
    return rows


def drawn(N, L, C, key=0):
    return np.random.default_rng([SEED, key]).integers(1, C, size=(N, L)).astype(np.int32)


def busy(cupy):
    """Work for the current stream, some tens of milliseconds of it."""
    block = cupy.zeros(2**10 if dry() else 2**26, dtype=np.float32)
    for _ in range(2 if dry() else 500):
        block += 1
    return block


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_small_batches(cupy, name, dtype, graph_safe):
    for number in range(40):
        case = random_case([SEED, 80, number], dtype=dtype, topology="ctc", how="C")
        wide = np.int64 if number % 2 else np.int32
        arrays = cupy.asarray(padded(case.labels).astype(wide)), cupy.asarray(np.array(case.frames, dtype=wide))
        with CTCLoss(engine=name, graph_safe=graph_safe, **case.options) as plan:
            result = plan(cupy.asarray(case.logits), *arrays)
        on_host = ctcbind.Result(cupy.asnumpy(result.loss), cupy.asnumpy(result.grad), name)
        case.check(on_host, dtype, case.expected())


def test_labels_out_of_range(cupy, name):
    """Raised where something may wait, NaN for the sample where nothing may; and the device lives on."""
    x, labels = cupy.asarray(scores(6, 3, 5)), padded([[1, 2], [3], [4]])
    for wrong in (5, 0, -(2**31), 2**31 - 1):
        labels[1, 0] = wrong
        lengths = cupy.asarray(np.array([2, 1, 1], dtype=np.int32))
        with CTCLoss(engine=name) as plan, pytest.raises(ctcbind.InvalidInput):
            plan(x, cupy.asarray(labels), None, lengths)
        with CTCLoss(engine=name, graph_safe=True) as plan:
            losses = cupy.asnumpy(plan.loss(x, cupy.asarray(labels), None, lengths))
        assert np.isnan(losses).tolist() == [False, True, False]
    cupy.cuda.runtime.deviceSynchronize()


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("reduction", ["none", "label_mean"])
def test_capture_and_replay(cupy, name, reduction, calls):
    """Logits, labels and lengths change in place, and each replay gives what a call of its own gives. After several
    calls that are alike the captured one takes a shorter way."""
    T, N, C, L = 40, 5, 30, 9
    x, labels = cupy.asarray(scores(T, N, C)), cupy.asarray(drawn(N, L, C))
    frames, lengths = cupy.full(N, T, dtype=np.int32), cupy.full(N, L, dtype=np.int32)
    cupy.cuda.runtime.deviceSynchronize()  # a stream that does not block waits for nothing of the default one's
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, CTCLoss(engine=name, graph_safe=True, reduction=reduction, zero_infinity=True) as plan:
        for _ in range(calls):
            plan(x, labels, frames, lengths)
        stream.synchronize()
        stream.begin_capture()
        try:
            result = plan(x, labels, frames, lengths)
        finally:
            graph = stream.end_capture()
        others = [cupy.full(size // 4, 7, dtype=np.float32) for size in (512, 1024, 4096) for _ in range(8)]
        for key in range(1, 6):
            if not dry():  # whose graphs do nothing
                x[...] = cupy.asarray(scores(T, N, C, key=key))
                labels[...] = cupy.asarray(drawn(N, L, C, key=key))
                frames[...] = cupy.asarray(np.random.default_rng(key).integers(0, T + 1, size=N).astype(np.int32))
                lengths[...] = cupy.asarray(np.random.default_rng(key).integers(0, L + 1, size=N).astype(np.int32))
            graph.launch(stream)
            stream.synchronize()
            again = ctcbind.ctc_loss_and_grad(
                cupy.asnumpy(x).astype(np.float64),
                cupy.asnumpy(labels),
                cupy.asnumpy(frames),
                cupy.asnumpy(lengths),
                reduction=reduction,
                zero_infinity=True,
            )
            np.testing.assert_allclose(cupy.asnumpy(result.loss), again.loss, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(cupy.asnumpy(result.grad), again.grad, atol=2e-4)
        assert all((cupy.asnumpy(each) == 7).all() for each in others), "the graph writes where others are by now"
        del graph


def test_after_the_first_call_only_results_are_allocated(cupy, name):
    pool, stream = cupy.get_default_memory_pool(), cupy.cuda.Stream(non_blocking=True)
    with stream, CTCLoss(engine=name, graph_safe=True) as plan:
        x, labels = cupy.asarray(scores(50, 4, 20)), cupy.asarray(drawn(4, 7, 20))
        plan(x, labels)
        used, total = pool.used_bytes(), pool.total_bytes()
        for _ in range(50):
            result = plan(x, labels)
            del result
        assert pool.used_bytes() <= used
        assert pool.total_bytes() <= total + x.nbytes + 4096  # the results' own, once


def test_a_graph_safe_call_does_not_wait(cupy, name):
    """When it returns, what was queued before it is still going on."""
    x, labels = cupy.asarray(scores(50, 4, 20)), cupy.asarray(drawn(4, 7, 20))
    cupy.cuda.runtime.deviceSynchronize()
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    with stream, CTCLoss(engine=name, graph_safe=True) as plan:
        plan(x, labels)
        stream.synchronize()
        block = busy(cupy)
        event.record(stream)
        plan(x, labels)
        assert not event.done
        stream.synchronize()
        assert event.done
        del block


@pytest.mark.parametrize("labels", [6, 20000])
def test_labels_on_the_host_are_not_waited_for(cupy, labels):
    """Few or many: CUDA waits for the stream before it reads more than 64 kB that are not page-locked."""
    x = scores(50, 4, 20)  # each call has other labels, as many as the one before
    rows = [[[1 + (i + k) % 19 for i in range(labels)], [3, 3 + k], [], [4 + k]] for k in range(4)]
    exact = [ctcbind.ctc_loss_and_grad(x.astype(np.float64), each) for each in rows]
    there = cupy.asarray(x)
    cupy.cuda.runtime.deviceSynchronize()
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    with stream, CTCLoss(engine="cuda") as plan:
        plan(there, rows[0])
        stream.synchronize()
        block = busy(cupy)
        event.record(stream)
        results = [plan(there, each) for each in rows]
        assert not event.done
        plan(there, [[1], [2], [3], [4]])
        stream.synchronize()
        for result, right in zip(results, exact):
            np.testing.assert_allclose(cupy.asnumpy(result.loss), right.loss, rtol=1e-6)
            assert np.abs(cupy.asnumpy(result.grad) - right.grad).max() < 1e-5
        del block


@pytest.mark.parametrize("form", ["lists", "host", "device", "lengths of the host", "one row, lengths of the host"])
def test_calls_like_one_before(cupy, form):
    """Many at once, with other scores and labels each, on a stream that is busy: none takes those of another."""
    T, N, C, L = 60, 4, 20, 7
    exact, given = [], []
    for key in range(12):
        x, labels = scores(T, N, C, key=key), drawn(N, L, C, key)
        frames, counts = np.arange(T, T - N, -1), np.array([L, key % L, 2, 0])
        exact.append(ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, counts))
        arrays = [x, labels, frames, counts]
        if form == "lists":
            arrays = [x, [row[:count].tolist() for row, count in zip(labels, counts)], frames.tolist(), None]
        elif form.startswith("one row"):
            arrays[1] = np.concatenate([row[:count] for row, count in zip(labels, counts)])
        there = {"device": 4, "lists": 1, "host": 1}.get(form, 2)
        given.append([cupy.asarray(each) for each in arrays[:there]] + arrays[there:])
    cupy.cuda.runtime.deviceSynchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, CTCLoss(engine="cuda") as plan:
        for warm in given[:3]:
            plan(*warm)
        block = busy(cupy)
        results = [plan(*each) for each in given]
        losses = [plan.loss(*each) for each in given]
        stream.synchronize()
        del block
    for result, loss, right in zip(results, losses, exact):
        np.testing.assert_allclose(cupy.asnumpy(result.loss), right.loss, rtol=1e-6)
        np.testing.assert_allclose(cupy.asnumpy(loss), right.loss, rtol=1e-6)
        assert np.abs(cupy.asnumpy(result.grad) - right.grad).max() < 1e-5


@pytest.mark.parametrize("labels_on", ["host", "device"])
def test_streams_that_are_destroyed_at_work(cupy, labels_on):
    """CUDA gives their address to the next stream at once, and nothing of the one before may be taken for its own."""
    T, N, C, L = 60, 4, 20, 7
    given = [(scores(T, N, C, key=key), drawn(N, L, C, key)) for key in range(6)]
    there = [(cupy.asarray(x), cupy.asarray(labels) if labels_on == "device" else labels) for x, labels in given]
    blocks, results = [], []  # held until all is done: CuPy's pool, too, goes by the address
    with CTCLoss(engine="cuda", graph_safe=labels_on == "device") as plan:
        plan(*there[0])
        cupy.cuda.runtime.deviceSynchronize()
        for arrays in there:
            with cupy.cuda.Stream(non_blocking=True):
                blocks.append(busy(cupy))
                results.append(plan(*arrays))
        cupy.cuda.runtime.deviceSynchronize()
    for (x, labels), result in zip(given, results):
        exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels)
        np.testing.assert_allclose(cupy.asnumpy(result.loss), exact.loss, rtol=1e-6)
        assert np.abs(cupy.asnumpy(result.grad) - exact.grad).max() < 1e-5


def test_the_same_bits_a_hundred_times(cupy, name):
    x, labels = cupy.asarray(scores(60, 6, 12)), cupy.asarray(drawn(6, 20, 12))
    with CTCLoss(engine=name) as plan:
        first = plan(x, labels)
        for _ in range(3 if dry() else 100):
            again = plan(x, labels)
            assert cupy.asnumpy(again.loss).tobytes() == cupy.asnumpy(first.loss).tobytes()
            assert cupy.asnumpy(again.grad).tobytes() == cupy.asnumpy(first.grad).tobytes()


def test_streams_by_address(cupy, name):
    x, labels = cupy.asarray(scores(20, 3, 6)), cupy.asarray(drawn(3, 4, 6))
    right = ctcbind.ctc_loss_and_grad(x, labels, engine=name)
    cupy.cuda.runtime.deviceSynchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    for given in (stream, stream.ptr, 0):
        with CTCLoss(engine=name, stream=given) as plan:
            result = plan(x, labels)
            cupy.cuda.runtime.deviceSynchronize()
            assert cupy.asnumpy(result.grad).tobytes() == cupy.asnumpy(right.grad).tobytes()


# --- the cuda engine's own -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize(("T", "C", "L"), [(30, 20, 6), (30, 50, 6), (130, 50, 60), (20, 1100, 6)])
def test_the_gradient_in_the_place_of_the_logits(cupy, dtype, layout, T, C, L):
    """A lane has a class; a warp has a row, with fewer labels than classes and with more; a block has one."""
    x = scores(T, 4, C).astype(dtype)
    x = x if layout == "TNC" else np.ascontiguousarray(x.transpose(1, 0, 2))
    labels = drawn(4, L, C)
    apart = ctcbind.ctc_loss_and_grad(cupy.asarray(x), labels, layout=layout, engine="cuda")
    there = cupy.asarray(x)
    with CTCLoss(engine="cuda", layout=layout, overwrite_logits=True) as plan:
        result = plan(there, labels)
    assert result.grad.data.ptr == there.data.ptr
    assert cupy.asnumpy(there).tobytes() == cupy.asnumpy(apart.grad).tobytes()
    assert cupy.asnumpy(result.loss).tobytes() == cupy.asnumpy(apart.loss).tobytes()


CONVERT = """
extern "C" __global__ void ctc_convert(const Problem p)
{
    for (int64 i = threadIdx.x; i < p.N; i += 128) {
        p.losses[i] = real_of(p.logits[i]);
        p.grad[i] = stored(((const Real *)p.labels)[i]);
    }
}
"""


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_devices_own_conversions(cupy, dtype):
    """Of every number of half precision, and to it: to the bit, with subnormal numbers and ties, under -ftz too."""
    module = batch_module(dtype)
    convert = cupy.RawModule(code=module.source + CONVERT, options=module.options).get_function("ctc_convert")
    bits = np.arange(1 << 16, dtype=np.uint16)
    if dtype == "float16":
        wide = bits.view(np.float16).astype(np.float32)
    else:
        wide = (bits.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        near = wide.view(np.uint32)[:, None] + np.array([-1, 0, 1], dtype=np.int32).astype(np.uint32)
        halfway = near + np.uint32(0x1000 if dtype == "float16" else 0x8000)
        low = np.random.default_rng(SEED).integers(0, 1 << 32, size=(1 << 16, 2), dtype=np.uint32)  # of all kinds
        from_wide = np.concatenate([near, halfway, low], axis=1).ravel().view(np.float32)
        if dtype == "float16":
            narrow = from_wide.astype(np.float16).view(np.uint16)
        else:
            word = from_wide.view(np.uint32).astype(np.uint64)
            narrow = (word + 0x7FFF + (word >> 16 & 1) >> 16).astype(np.uint16)
    normal = (np.abs(wide) >= 2.0**-126) | (wide == 0)  # bfloat16 has others, which nothing needs
    given = np.resize(bits, from_wide.shape)
    x, wider, y = cupy.asarray(given), cupy.empty(given.shape, dtype=np.float32), cupy.asarray(from_wide)
    grad = cupy.empty(given.shape, dtype=np.uint16)
    problem = PROBLEM | {"logits": x.data.ptr, "losses": wider.data.ptr, "labels": y.data.ptr, "grad": grad.data.ptr}
    convert((1,), (128,), (as_argument(problem | {"N": given.size}),))
    found = cupy.asnumpy(wider)[: 1 << 16]
    assert np.array_equal(np.isnan(found), np.isnan(wide))
    same = found.view(np.uint32) == wide.view(np.uint32)
    assert same[normal & ~np.isnan(wide)].all()
    found = cupy.asnumpy(grad)
    number = ~np.isnan(from_wide) & ((np.abs(from_wide) >= 2.0**-126) | (from_wide == 0))
    assert np.array_equal(found[number], narrow[number])
    infinity = 0x7C00 if dtype == "float16" else 0x7F80
    assert ((found[np.isnan(from_wide)] & 0x7FFF) > infinity).all()


SIZES = [
    (150, 4, 28, 40),
    (64, 16, 11, 8),
    (1000, 2, 32, 200),
    (500, 2, 1024, 60),
    (150, 4, 5000, 20),
    (4000, 1, 64, 800),
]


@pytest.mark.parametrize(("T", "N", "C", "L"), SIZES)
def test_within_1e_5_of_float64_at_every_size(cupy, T, N, C, L):
    if dry():
        T, C, L = T // 10, min(C, 60), L // 10
    x, labels = scores(T, N, C), drawn(N, L, C)
    result = ctcbind.ctc_loss_and_grad(cupy.asarray(x), labels, engine="cuda")
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels)
    np.testing.assert_allclose(cupy.asnumpy(result.loss), exact.loss, rtol=1e-6)
    assert np.abs(cupy.asnumpy(result.grad) - exact.grad).max() < 1e-5


@pytest.mark.parametrize("L", [31, 32, 63, 127, 255, 256, 257, 1023, 1024, 2100])
def test_labels_at_the_edges_of_warps_and_strips(cupy, L):
    if dry() and L > 300:
        pytest.skip("a stand-in for a device takes minutes for this")
    T, row = 2 * L + 3, [1 + i % 3 for i in range(L)]
    x = scores(T, 2, 5)
    result = ctcbind.ctc_loss_and_grad(cupy.asarray(x), [row, row[: L // 2]], engine="cuda")
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [row, row[: L // 2]])
    np.testing.assert_allclose(cupy.asnumpy(result.loss), exact.loss, rtol=1e-6)
    assert np.abs(cupy.asnumpy(result.grad) - exact.grad).max() < 1e-5


# --- warp-ctc ----------------------------------------------------------------------------------------------------


def test_warpctc_on_the_device(cupy):
    info = ctcbind.engines()["warpctc"]
    if not info.available:
        pytest.skip(f"engine warpctc is not available: {(info.reason or '').splitlines()[0]}")
    for number in range(30):
        case = random_case([SEED, 81, number], dtype="float32", topology="ctc")
        try:
            result = ctcbind.ctc_loss_and_grad(
                cupy.asarray(case.logits), *case.args[1:], **case.options, engine="warpctc"
            )
        except ctcbind.EngineUnsupported as error:
            assert "was built without CUDA" in str(error)  # noqa: PT017
            pytest.skip("engine warpctc is not available: its library was built without CUDA")
        on_host = ctcbind.Result(cupy.asnumpy(result.loss), cupy.asnumpy(result.grad), "warpctc")
        case.check(on_host, "float32", case.expected())
