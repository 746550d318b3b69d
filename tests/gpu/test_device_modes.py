"""What a device must show of `CTCLoss(probabilities=, deterministic=)`: that cuDNN's other mode and its other algorithm
mean what the engine says, with labels on the host and on the device, captured and not."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED, random_case, scores
from cudnn_lab import dry
from modes import of_probabilities, softmax

import ctcbind
from ctcbind import CTCLoss

pytestmark = pytest.mark.gpu


@pytest.fixture
def cupy():
    import cupy

    info = ctcbind.engines()["cudnn"]
    if not info.available:
        pytest.skip(f"engine cudnn is not available: {(info.reason or '').splitlines()[0]}")
    return cupy


def padded(labels):
    rows = np.full((len(labels), max(map(len, labels), default=0)), -1, dtype=np.int32)
    for n, row in enumerate(labels):
        rows[n, : len(row)] = row
    return rows


def arrays_of(cupy, case, labels_on):
    if labels_on == "host":
        return cupy.asarray(case.logits), *case.args[1:]
    frames = cupy.asarray(np.array(case.frames, dtype=np.int32))
    return cupy.asarray(case.logits), cupy.asarray(padded(case.labels)), frames


@pytest.mark.parametrize("labels_on", ["host", "device"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_probabilities(cupy, dtype, labels_on):
    """Losses and gradients with respect to the activations; were the gradient another, the engine would refuse it."""
    for i in range(40):
        case, expected = of_probabilities(random_case([SEED, 82, i], dtype=dtype, how="C", topology="ctc"))
        with CTCLoss(engine="cudnn", probabilities=True, **case.options) as plan:
            result = plan(*arrays_of(cupy, case, labels_on))
        on_host = ctcbind.Result(cupy.asnumpy(result.loss), cupy.asnumpy(result.grad), "cudnn")
        case.check(on_host, dtype, expected)


@pytest.mark.parametrize("labels_on", ["host", "device"])
@pytest.mark.parametrize("probabilities", [False, True])
def test_the_non_deterministic_algorithm(cupy, labels_on, probabilities):
    """Within the bounds of the other one; losses and gradients of logits that do not lie far apart."""
    for i in range(40):
        case = random_case([SEED, 83, i], dtype="float32", how="C", topology="ctc")
        expected = case.expected()
        if probabilities:
            case, expected = of_probabilities(case)
        options = {"probabilities": probabilities, "deterministic": False, **case.options}
        with CTCLoss(engine="cudnn", **options) as plan:
            result = plan(*arrays_of(cupy, case, labels_on))
        on_host = ctcbind.Result(cupy.asnumpy(result.loss), cupy.asnumpy(result.grad), "cudnn")
        case.check(on_host, "float32", expected)


@pytest.mark.parametrize("labels_on", ["host", "device"])
def test_logits_that_lie_far_apart(cupy, labels_on):
    """PyTorch 21680: the answer of the non-deterministic algorithm is right, or refused; it is never NaN."""
    x = scores(30, 2, 20)
    x[:, :, 5] += 60
    labels = [[5, 1, 5], [5]]
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    targets = labels if labels_on == "host" else cupy.asarray(padded(labels))
    with CTCLoss(engine="cudnn", deterministic=False) as plan:
        try:
            result = plan(cupy.asarray(x), targets)
        except ctcbind.EngineUnsupported as error:
            assert "sample" in str(error)  # noqa: PT017
            return
    np.testing.assert_allclose(cupy.asnumpy(result.loss), exact.loss, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(cupy.asnumpy(result.grad), exact.grad, atol=1e-4)


def test_capture_and_replay_with_other_probabilities(cupy):
    rows = [[1, 2, 2], [], [4, 1]]
    y, labels = cupy.asarray(softmax(scores(9, 3, 5))), cupy.asarray(padded(rows))
    cupy.cuda.runtime.deviceSynchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    options = {"graph_safe": True, "probabilities": True, "deterministic": False}
    with stream, CTCLoss(engine="cudnn", **options) as plan:
        plan(y, labels)
        stream.synchronize()
        stream.begin_capture()
        try:
            result = plan(y, labels)
        finally:
            graph = stream.end_capture()
        for key in range(1, 4):
            if not dry():  # whose graphs do nothing
                y[...] = cupy.asarray(softmax(scores(9, 3, 5, key=key)))
            graph.launch(stream)
            stream.synchronize()
            exact = ctcbind.ctc_loss_and_grad(np.log(cupy.asnumpy(y).astype(np.float64)), rows)
            np.testing.assert_allclose(cupy.asnumpy(result.loss), exact.loss, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(cupy.asnumpy(result.grad), exact.grad, atol=2e-4)
        del graph
