"""Each field of the cudnn engine's Contract against the library: the fake one everywhere, the real one under `gpu`.

The contract says what cuDNN's own function takes and gives, so it is called directly here, past the engine. Where a
real library answers otherwise, the contract (and perhaps what the engine puts right) is what has to change.
"""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext

import fake_cupy
import numpy as np
import pytest
from cudnn_lab import DOUBLE, FILL, FLOAT, HALF, NONE, SKIP, SOFTMAX, ZERO, Lab, largest, reference, scores, softmax

import ctcbind
from ctcbind.bindings import cudnn
from ctcbind.engines.cudnn import ENGINE

pytest_plugins = ["fake_cudnn.fixture"]

CONTRACT = ENGINE.contract
LABELS, FRAMES = [[1, 2, 2], [3], [4, 1]], [9, 4, 7]
#: cuDNN's gradients were 1e-4 off in the worst case that is known (pytorch 21680, 159106).
NEAR = 1e-4


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def lab(request):
    """Direct calls of the one library or the other."""
    if request.param == "fake":
        request.getfixturevalue("device")
        cupy = fake_cupy
    else:
        import cupy
    with Lab(cupy) as made:
        yield made


def refused(answer):
    """Whether the library said that it cannot do it."""
    last = answer.steps[-1]["status"]
    return cudnn.status_category(last) in (
        cudnn.StatusCategory.NOT_SUPPORTED,
        cudnn.StatusCategory.BAD_PARAM,
    )


def test_each_field_has_a_test_here():
    fields = {each.name for each in dataclasses.fields(CONTRACT)}
    assert {name.removeprefix("test_") for name in globals() if name.startswith("test_")} >= fields


def test_native_name(lab):
    assert CONTRACT.native_name == "cudnnCTCLoss, cudnnCTCLoss_v8"
    assert all(lab.library.has(name) for name in CONTRACT.native_name.split(", "))
    assert lab.ctc(scores(9, 3, 5), LABELS, FRAMES).steps[-1] == {
        "call": "cudnnCTCLoss",
        "status": 0,
        "name": "CUDNN_STATUS_SUCCESS",
    }


def test_takes(lab):
    """Activations or softmax probabilities, as the descriptor says; one for the other is another loss."""
    assert CONTRACT.takes == "activations or softmax probabilities"
    x = scores(9, 3, 5)
    exact = reference(x, LABELS, FRAMES)[0]
    assert largest(lab.ctc(x, LABELS, FRAMES, norm=SOFTMAX).costs - exact) < NEAR
    assert largest(lab.ctc(softmax(x), LABELS, FRAMES, norm=NONE).costs - exact) < NEAR
    assert largest(lab.ctc(softmax(x), LABELS, FRAMES, norm=SOFTMAX).costs - exact) > 0.1


def test_gradient_of(lab):
    """The activations before the softmax, where that is inside."""
    assert CONTRACT.gradient_of == "pre-softmax activations"
    x = scores(9, 3, 5)
    exact = reference(x, LABELS, FRAMES)[1]
    answer = lab.ctc(x, LABELS, FRAMES, norm=SOFTMAX)
    for n, frames in enumerate(FRAMES):
        assert largest(answer.grad[:frames, n] - exact[:frames, n]) < NEAR


def test_gradient_for_probabilities(lab):
    """-occupancy / y where a path goes, y elsewhere: with respect to nothing."""
    (told,) = [limit for limit in CONTRACT.limits if "CUDNN_LOSS_NORMALIZATION_NONE" in limit]
    assert "-occupancy / y for the classes that paths go through, y for the others" in told
    x = scores(9, 3, 5)
    y = softmax(x)  # in float32: to 6e-8
    occupancy = y - reference(x, LABELS, FRAMES)[1]
    answer = lab.ctc(y, LABELS, FRAMES, norm=NONE)
    expected = np.where(occupancy > 1e-6, -occupancy / y, y)
    for n, frames in enumerate(FRAMES):
        assert largest(answer.grad[:frames, n] - expected[:frames, n]) < NEAR * float(abs(expected).max())


def test_gradient_of_a_certain_class(lab):
    """1 too much where the loss is 0."""
    assert any("the gradient of a class with probability 1 is off by exactly 1" in limit for limit in CONTRACT.limits)
    x = scores(4, 1, 5)
    x[range(4), 0, [1, 0, 2, 0]] += 200
    answer = lab.ctc(x, [[1, 2]])
    assert answer.costs[0] == 0
    assert largest(answer.grad[:, 0] - softmax(x)[:, 0]) < NEAR


def test_arrays(lab):
    """Logits and gradients are read and written where device pointers say."""
    assert CONTRACT.arrays == "device"
    x = lab.cupy.asarray(scores(9, 3, 5))
    grad = lab.cupy.full((9, 3, 5), FILL, dtype=np.float32)
    assert lab.ctc(x, LABELS, [9, 9, 9], grad=grad).ok
    exact = reference(scores(9, 3, 5), LABELS)[1]
    assert largest(lab.cupy.asnumpy(grad) - exact) < NEAR
    assert np.array_equal(lab.cupy.asnumpy(x), scores(9, 3, 5)), "the logits are as they were"


def test_labels(lab):
    """Labels and both lengths are read from host memory by the one call, from device memory by the other."""
    assert CONTRACT.labels == "host or device"
    x = scores(9, 3, 5)
    for api, where in (("host", "host"), ("v8", "device")):
        answer = lab.ctc(x, LABELS, FRAMES, api=api, labels_in=where)
        assert largest(answer.costs - reference(x, LABELS, FRAMES)[0]) < NEAR


def test_losses(lab):
    """Costs are written to device memory: all of them, and nothing was there before."""
    assert CONTRACT.losses == "device"
    x = scores(9, 3, 5)
    lab.ctc(x, LABELS, FRAMES, wait=False)
    costs = lab.costs
    assert isinstance(costs, lab.cupy.ndarray)
    lab.cupy.cuda.get_current_stream().synchronize()
    assert largest(lab.cupy.asnumpy(costs) - reference(x, LABELS, FRAMES)[0]) < NEAR


def test_blank(lab):
    assert CONTRACT.blank == "0"
    x = scores(9, 1, 5)
    cost = lab.ctc(x, [[1, 2]]).costs[0]
    exact = [float(ctcbind.ctc_loss(x, [[1, 2]], blank=blank)[0]) for blank in (0, 3, 4)]
    assert abs(cost - exact[0]) < NEAR
    assert min(abs(cost - other) for other in exact[1:]) > 10 * NEAR


def test_dtypes(lab):
    """float32 is what its documents promise, and all that ctcbind asks of it. 9.19 takes DOUBLE too."""
    assert CONTRACT.dtypes == ("float32",)
    x = scores(9, 3, 5)
    assert lab.ctc(x, LABELS, FRAMES).ok
    double = lab.ctc(x.astype(np.float64), LABELS, FRAMES, kind=DOUBLE, comp=DOUBLE)
    assert refused(double) or largest(double.costs - reference(x, LABELS, FRAMES)[0]) < NEAR
    for comp in (FLOAT, HALF):
        half = lab.ctc(x.astype(np.float16), LABELS, FRAMES, kind=HALF, comp=comp)
        assert refused(half) or largest(half.costs - reference(x, LABELS, FRAMES)[0]) < 0.1


def test_layouts(lab):
    assert CONTRACT.layouts == ("TNC", "NTC")
    x = scores(9, 3, 5)
    exact = reference(x, LABELS)
    for order in ((0, 1, 2), (1, 0, 2)):
        given = lab.cupy.asarray(np.ascontiguousarray(x.transpose(order))).transpose(order)
        grad = lab.cupy.zeros([x.shape[i] for i in order], dtype=np.float32).transpose(order)
        answer = lab.ctc(given, LABELS, grad=grad)
        assert largest(answer.costs - exact[0]) < NEAR
        assert largest(answer.grad - exact[1]) < NEAR


def test_topologies(lab):
    """Repeats are merged: a second 1 needs a blank before it."""
    assert CONTRACT.topologies == ("ctc",)
    x = scores(4, 1, 3)
    cost = lab.ctc(x, [[1, 1]]).costs[0]
    assert abs(cost - ctcbind.ctc_loss(x, [[1, 1]])[0]) < NEAR
    assert abs(cost - ctcbind.ctc_loss(x, [[1, 1]], topology="simple")[0]) > 10 * NEAR


def test_max_label_length(lab):
    longest = CONTRACT.max_label_length
    assert longest == 255
    labels = [1 + i % 3 for i in range(longest + 1)]
    x = scores(270, 1, 4)
    answer = lab.ctc(x, [labels[:longest]])
    exact = reference(x, [labels[:longest]])[0]
    assert largest(answer.costs / exact - 1) < 1e-5
    over = lab.ctc(x, [labels])
    assert cudnn.status_category(over.steps[-1]["status"]) is cudnn.StatusCategory.NOT_SUPPORTED
    assert over.steps[-1]["call"] == "cudnnGetCTCLossWorkspaceSize"


@pytest.mark.parametrize("mode", [ZERO, SKIP])
def test_infeasible(lab, mode):
    """2 2 3 needs four frames: the cost is 0, not inf, and the gradient 0 (or as it was). Others are not touched."""
    assert CONTRACT.infeasible == "loss 0, gradient 0 (or left as it was)"
    x = scores(3, 3, 5)
    answer = lab.ctc(x, [[1, 2], [2, 2, 3], [4]], mode=mode)
    exact = reference(x, [[1, 2], [2, 2, 3], [4]])
    assert answer.costs[1] == 0
    assert np.isin(answer.grad[:, 1], [0, FILL]).all()
    assert largest((answer.costs - exact[0])[[0, 2]]) < NEAR
    assert largest((answer.grad - exact[1])[:, [0, 2]]) < NEAR


def test_empty_label(lab):
    """The cost is 0, where the all-blank path has one."""
    assert CONTRACT.empty_label == "loss 0 (wrong)"
    x = scores(6, 3, 5)
    answer = lab.ctc(x, [[1, 2], [], [4]])
    exact = reference(x, [[1, 2], [], [4]])[0]
    assert answer.costs[1] == 0 < exact[1]
    assert largest((answer.costs - exact)[[0, 2]]) < NEAR


def test_padded_time(lab):
    assert CONTRACT.padded_time == "gradient left as it was"
    answer = lab.ctc(scores(9, 3, 5), LABELS, FRAMES)
    for n, frames in enumerate(FRAMES):
        assert (answer.grad[frames:, n] == FILL).all()
        assert not (answer.grad[:frames, n] == FILL).any()


def test_deterministic(lab):
    assert CONTRACT.deterministic is True
    x, labels = scores(60, 8, 30), [[1 + (i * n) % 29 for i in range(20)] for n in range(8)]
    first = lab.ctc(x, labels)
    for _ in range(20):
        again = lab.ctc(x, labels)
        assert again.costs.tobytes() == first.costs.tobytes()
        assert again.grad.tobytes() == first.grad.tobytes()


def test_graph_capture(lab):
    """Labels on the host cannot be captured, which is said; and it works again after. (Labels on the device can:
    tests/gpu/test_device_labels.py.)"""
    assert CONTRACT.graph_capture is True
    cupy = lab.cupy
    x = cupy.asarray(scores(9, 3, 5))
    before = cupy.asnumpy(ctcbind.ctc_loss(x, LABELS, engine="cudnn"))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(ctcbind.EngineUnsupported, match="cannot be captured"):
                ctcbind.ctc_loss(x, LABELS, engine="cudnn")
        finally:
            end_capture(cupy, stream)
        after = cupy.asnumpy(ctcbind.ctc_loss(x, LABELS, engine="cudnn"))
    assert np.array_equal(before, after)


def end_capture(cupy, stream):
    """A capture in which a call failed is invalid, and ending it says so."""
    try:
        stream.end_capture()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        assert "apture" in str(error)  # noqa: PT017


def test_synchronises(lab):
    """When the engine returns, what was queued on the stream before it is done."""
    assert CONTRACT.synchronises is True
    cupy = lab.cupy
    x = cupy.asarray(scores(9, 3, 5))
    stream, event = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Event(disable_timing=True)
    ctcbind.ctc_loss(x, LABELS, engine="cudnn")
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        lab.busy()
        event.record(stream)
        assert not event.done, "the stream had nothing to do, so that nothing can be seen"
        ctcbind.ctc_loss(x, LABELS, engine="cudnn")
        assert event.done


def test_limits(lab):
    elements, waits, labels, arithmetic, probabilities, certain, other = CONTRACT.limits
    assert "graph_safe" in waits
    assert elements == "at most 2**31 - 1 elements and 65535 samples"
    many = lab.cupy.asarray(np.zeros((2, 2**16, 2), np.float32))
    for count, refuses in ((2**16 - 1, False), (2**16, True)):
        plan = ctcbind.CTCLoss(engine="cudnn")
        with plan, pytest.raises(ctcbind.EngineUnsupported, match="65536 samples") if refuses else nullcontext():
            plan.loss(many[:, :count], np.ones((count, 1), np.int32))
    for shape, allowed in (((1, 1, 2**31 - 1), True), ((2, 1, 2**30), False), ((2**16, 2**8, 2**7), False)):
        told = lab.describe(lab.x_desc, shape, [shape[1] * shape[2], shape[2], 1])
        assert (told["status"] == 0) is allowed
        if not allowed:
            assert cudnn.status_category(told["status"]) is cudnn.StatusCategory.NOT_SUPPORTED

    assert labels.startswith("labels out of range read outside the buffers")
    for label in (5, 0, -1):  # what becomes of one that is sent is experiment E2; here: none is
        with pytest.raises(ctcbind.InvalidInput, match=r"targets\[1\]"):
            ctcbind.ctc_loss(lab.cupy.asarray(scores(9, 3, 5)), [[1], [label], [2]], engine="cudnn")

    assert arithmetic.startswith("float32 arithmetic on probabilities: gradients to about 1e-4")
    assert "no probability below 1.2e-38" in arithmetic
    x = np.zeros((3, 2, 4), np.float32)
    x[1, 1, 0] = 120  # label 2 has e^-120 at the only frame that it can have
    cost = lab.ctc(x, [[1, 2, 3], [1, 2, 3]]).costs
    assert abs(cost[0] - reference(x, [[1, 2, 3]] * 2)[0][0]) < NEAR
    assert not abs(cost[1] - reference(x, [[1, 2, 3]] * 2)[0][1]) < 1

    assert probabilities.startswith("probabilities are read with CUDNN_LOSS_NORMALIZATION_NONE")
    y = softmax(scores(9, 3, 5))
    doubled = lab.ctc(2 * y, LABELS, FRAMES, norm=NONE)
    assert largest(doubled.costs - (lab.ctc(y, LABELS, FRAMES, norm=NONE).costs - np.log(2) * np.array(FRAMES))) < NEAR
    assert certain.startswith("the gradient of a class with probability 1")  # test_gradient_of_a_certain_class
    assert other.startswith("a non-deterministic algorithm can be asked for")  # test_other_algorithm


def test_overwrites(lab):
    """Nowhere does cuDNN say that the gradient may lie where the probabilities are."""
    assert CONTRACT.overwrites is False
    x = lab.cupy.asarray(scores(9, 3, 5))
    with (
        ctcbind.CTCLoss(engine="cudnn", overwrite_logits=True) as plan,
        pytest.raises(ctcbind.EngineUnsupported, match="it cannot write the gradient over the logits"),
    ):
        plan(x, LABELS, FRAMES)


def test_other_algorithm(lab):
    assert CONTRACT.other_algorithm is True
    answer, exact = lab.ctc(scores(9, 3, 5), LABELS, FRAMES, algo=1), reference(scores(9, 3, 5), LABELS, FRAMES)
    if not refused(answer):  # its workspace query declines some sizes
        assert largest(answer.costs - exact[0]) < NEAR
        for n, frames in enumerate(FRAMES):
            assert largest((answer.grad - exact[1])[:frames, n]) < NEAR


def test_out_of_range_is_what_the_fake_says(device):
    """The fake stands for a device that is lost then: no later call succeeds. (E2 records what a real one does.)"""
    for api in ("host", "v8"):
        with Lab(fake_cupy) as lab:
            assert lab.ctc(scores(4, 1, 3), [[3]], api=api).steps[-1]["status"] == 5000
            assert device.poisoned
            assert lab.ctc(scores(4, 1, 3), [[1]], api=api).steps[-1]["status"] == 5000
        device.reset(92800)
