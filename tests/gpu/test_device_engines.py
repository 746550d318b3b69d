"""Engines that compute on a device, on CuPy arrays. (The tests of the one meaning, of the thousand batches and of the
published vectors take every engine, these among them; here is what only arrays on a device can show.)"""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from batches import SEED, Case, random_case, scores
from cudnn_lab import dry

import ctcbind
from ctcbind import CTCLoss
from ctcbind.engines import NAMES, get

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "02_cudnn_c_example.py"
LAYOUTS = ("C", "F", "strided", "backwards", "broadcast", "permuted")


@pytest.fixture
def cupy():
    import cupy

    return cupy


@pytest.fixture(params=[name for name in NAMES if get(name).contract.arrays == "device"])
def name(request, poison):
    """Each engine whose arrays are on a device; its results begin as NaN."""
    info = ctcbind.engines()[request.param]
    if not info.available:
        pytest.skip(f"engine {request.param} is not available: {(info.reason or '').splitlines()[0]}")
    return request.param


def lay(cupy, x, how):
    """x on the device, lying there as `how` says; "broadcast" has other values."""
    x = cupy.asarray(x)
    if how == "C":
        return cupy.ascontiguousarray(x)
    if how == "F":
        return cupy.ascontiguousarray(x.T).T  # asfortranarray needs cuBLAS
    if how == "broadcast":
        return cupy.broadcast_to(x[:, :, :1] if x.shape[2] else x, x.shape)
    if how == "strided":
        out = cupy.full([2 * size for size in x.shape], cupy.nan, dtype=x.dtype)[1::2, ::2, 1::2]
    elif how == "permuted":
        out = cupy.empty([x.shape[i] for i in (2, 0, 1)], dtype=x.dtype).transpose(1, 2, 0)
    else:
        out = cupy.empty(x.shape, dtype=x.dtype)[::-1, :, ::-1]
    out[...] = x
    return out


def result_on_host(cupy, result):
    return ctcbind.Result(cupy.asnumpy(result.loss), cupy.asnumpy(result.grad), result.engine)


@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_device_arrays_however_they_lie(cupy, name, how, dtype):
    """Ragged, repeats, empty, infeasible, every blank, both layouts; logits unchanged, results beside them."""
    for i in range(25):
        case = random_case([SEED, i], dtype=dtype, how="C", topology="ctc")
        x = lay(cupy, case.logits, how)
        before = cupy.asnumpy(x)
        tnc = before.transpose(1, 0, 2) if case.layout == "NTC" else before
        case = Case(**{**vars(case), "x": np.array(tnc, dtype=np.float64, order="C"), "args": (x, *case.args[1:])})
        result = ctcbind.ctc_loss_and_grad(*case.args, **case.options, engine=name)
        assert isinstance(result.loss, cupy.ndarray)
        assert isinstance(result.grad, cupy.ndarray)
        assert result.loss.device == result.grad.device == x.device
        assert result.grad.dtype == x.dtype
        assert result.loss.dtype == np.float32
        assert np.array_equal(cupy.asnumpy(x), before, equal_nan=True)
        case.check(result_on_host(cupy, result), dtype, case.expected())


def test_host_arrays_come_back_to_the_host(cupy, name):
    x, labels, frames = scores(9, 3, 5), [[1, 2, 2], [], [4, 1]], [9, 4, 7]
    host = ctcbind.ctc_loss_and_grad(x, labels, frames, engine=name)
    there = ctcbind.ctc_loss_and_grad(cupy.asarray(x), labels, frames, engine=name)
    assert type(host.loss) is type(host.grad) is np.ndarray
    assert np.array_equal(host.loss, cupy.asnumpy(there.loss))
    assert np.array_equal(host.grad, cupy.asnumpy(there.grad))


def test_targets_and_lengths_on_the_device(cupy, name):
    x = scores(9, 3, 5)
    padded, lengths, frames = np.array([[1, 2, 2], [3, -1, -1], [4, 1, -1]]), np.array([3, 1, 2]), np.array([9, 4, 7])
    right = ctcbind.ctc_loss(cupy.asarray(x), padded, frames, lengths, engine=name)
    flat = np.array([1, 2, 2, 3, 4, 1], dtype=np.int32)
    for targets in (padded, flat):
        got = ctcbind.ctc_loss(
            cupy.asarray(x), cupy.asarray(targets), cupy.asarray(frames), cupy.asarray(lengths), engine=name
        )
        assert np.array_equal(cupy.asnumpy(got), cupy.asnumpy(right))


def test_the_c_example(cupy, name):
    """NVIDIA's forum, topic 56058: each loss is 203.984; the first frame leads to the blank or to label 1."""
    result = ctcbind.ctc_loss_and_grad(cupy.zeros((100, 5, 10), dtype=np.float32), [[1, 2, 3, 4]] * 5, engine=name)
    loss, grad, _ = result_on_host(cupy, result)
    exact = ctcbind.ctc_loss_and_grad(np.zeros((100, 5, 10)), [[1, 2, 3, 4]] * 5, engine="reference")
    assert loss == pytest.approx([203.984] * 5, abs=1e-3)
    assert grad[0, 0] == pytest.approx([-0.8231, 0.0231, *[0.1] * 8], abs=1e-4)
    np.testing.assert_allclose(grad, exact.grad, atol=1e-4)


def test_the_c_example_call_by_call():
    """The program itself, ported line by line, on cuDNN."""
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    version, costs, gradient, _ = done.stdout.splitlines()
    assert re.fullmatch(r"cuDNN \d+", version)
    assert costs == "costs: " + " ".join(["203.984"] * 5)
    numbers = [float(word) for word in gradient.partition(": ")[2].split()]
    assert numbers == pytest.approx([-0.8231, 0.0231, *[0.1] * 8], abs=2e-4)


# --- streams, threads, memory, devices ----------------------------------------------------------------------


def busy(cupy):
    """Work for the current stream, some tens of milliseconds of it."""
    block = cupy.zeros(2**10 if dry() else 2**26, dtype=np.float32)
    for _ in range(2 if dry() else 300):
        block += 1
    return block


def test_the_work_is_on_the_current_stream(cupy, name):
    """Logits that are written on a busy stream are read after that, and the results can be used on it at once."""
    x, labels = scores(40, 4, 9), [[1, 2, 2], [], [4, 1], [8] * 30]
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels)
    source = cupy.asarray(x)
    with CTCLoss(engine=name) as plan:
        for _ in range(3):
            there = cupy.full(x.shape, cupy.nan, dtype=np.float32)
            cupy.cuda.runtime.deviceSynchronize()
            stream = cupy.cuda.Stream(non_blocking=True)
            with stream:
                block = busy(cupy)
                there[...] = source
                result = plan(there, labels)
                doubled = result.grad * 2
            stream.synchronize()
            del block
            np.testing.assert_allclose(cupy.asnumpy(result.loss), right.loss, rtol=1e-5)
            np.testing.assert_allclose(cupy.asnumpy(doubled), 2 * right.grad, atol=2e-4)


@pytest.mark.parametrize("shared", [True, False], ids=["one plan", "a plan each"])
def test_threads(cupy, name, shared):
    """Each on a stream of its own, and each with the results of its own batch, to the bit."""
    batches = [(scores(30 + i, 3, 5 + i, key=i), [[1, 2, 3], [4] * (i + 1), []]) for i in range(4)]
    alone = [result_on_host(cupy, ctcbind.ctc_loss_and_grad(cupy.asarray(x), y, engine=name)) for x, y in batches]
    failures = []

    def work(plan, batch, right):
        with cupy.cuda.Device(0), cupy.cuda.Stream(non_blocking=True):
            there = cupy.asarray(batch[0])
            for _ in range(10):
                got = result_on_host(cupy, plan(there, batch[1]))
                if not (np.array_equal(got.loss, right.loss) and np.array_equal(got.grad, right.grad)):
                    failures.append(batch[0].shape)

    with CTCLoss(engine=name) as one:
        plans = [one if shared else CTCLoss(engine=name) for _ in batches]
        threads = [threading.Thread(target=work, args=each) for each in zip(plans, batches, alone)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
        for plan in plans:
            plan.close()
    assert not failures


def test_a_plan_keeps_its_workspace_and_nothing_else(cupy, name):
    """Sizes that grow and shrink give what a fresh plan gives; a loop over one size takes no more memory."""
    sizes = [(2, 1, 2), (9, 3, 5), (40, 6, 30), (3, 8, 3), (40, 6, 30), (5, 1, 600), (2, 1, 2)]
    pool = cupy.get_default_memory_pool()
    with CTCLoss(engine=name) as plan:
        for T, N, C in sizes:
            x, labels = cupy.asarray(scores(T, N, C)), [[1] * (1 + n % 2) for n in range(N)]
            kept, fresh = plan(x, labels), ctcbind.ctc_loss_and_grad(x, labels, engine=name)
            assert np.array_equal(cupy.asnumpy(kept.loss), cupy.asnumpy(fresh.loss))
            assert np.array_equal(cupy.asnumpy(kept.grad), cupy.asnumpy(fresh.grad))
            losses = plan.loss(x, labels)
            np.testing.assert_allclose(cupy.asnumpy(losses), cupy.asnumpy(kept.loss), rtol=1e-5)
        x, used = cupy.asarray(scores(40, 6, 30)), []
        for _ in range(10):
            kept = plan(x, [[1, 2]] * 6)
            used.append(pool.used_bytes())
        assert used[1:] == used[1:2] * 9


def test_a_function_keeps_no_workspace(cupy, name):
    """Whose size for this batch is some megabytes; what staging labels takes is less than 64 kB."""
    pool = cupy.get_default_memory_pool()
    x, labels = cupy.asarray(scores(300, 16, 64)), [[1 + n, 2 + n] * 20 for n in range(16)]
    ctcbind.ctc_loss_and_grad(x, labels, engine=name)
    cupy.cuda.runtime.deviceSynchronize()
    before = pool.used_bytes()
    for _ in range(5):
        result = ctcbind.ctc_loss_and_grad(x, labels, engine=name)
        cupy.cuda.runtime.deviceSynchronize()
        del result
    assert pool.used_bytes() - before < 1 << 16


def test_results_are_on_the_callers_device(cupy, name):
    """Another device's logits, while device 0 is the current one."""
    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two CUDA devices: one found")
    x, labels = scores(9, 3, 5), [[1, 2, 2], [2] * 9, [4, 1]]
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, reduction="label_mean", zero_infinity=True)
    with cupy.cuda.Device(1):
        there = cupy.asarray(x)
    with CTCLoss(engine=name, reduction="label_mean", zero_infinity=True) as plan:
        result = plan(there, labels)
        plan(cupy.asarray(x), labels)
    assert result.loss.device == result.grad.device == there.device
    with cupy.cuda.Device(1):
        np.testing.assert_allclose(cupy.asnumpy(result.loss), right.loss, rtol=1e-5)
        np.testing.assert_allclose(cupy.asnumpy(result.grad), right.grad, atol=1e-4)
    assert cupy.cuda.runtime.getDevice() == 0


def test_logits_of_another_library_on_the_device(cupy, name):
    """A PyTorch tensor, say, is taken where it lies, and its kind comes back."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    x = scores(9, 3, 5)
    result = ctcbind.ctc_loss_and_grad(torch.from_numpy(x).cuda(), [[1], [2], [3]], engine=name)
    exact = ctcbind.ctc_loss_and_grad(x.astype(float), [[1], [2], [3]])
    assert isinstance(result.loss, torch.Tensor)
    assert result.loss.is_cuda
    assert result.grad.is_cuda
    np.testing.assert_allclose(result.loss.cpu().numpy(), exact.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad.cpu().numpy(), exact.grad, atol=1e-4)


def test_auto_takes_cuda(cupy):
    assert ctcbind.ctc_loss_and_grad(cupy.asarray(scores(4, 1, 3)), [[1]]).engine == "cuda"
