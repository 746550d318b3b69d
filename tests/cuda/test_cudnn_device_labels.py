"""cudnnCTCLoss_v8 with labels on the device: the fake libcudnn, and the kernels around it on the emulator."""

from __future__ import annotations

import logging
import math
from contextlib import suppress

import fake_cupy
import numpy as np
import pytest
from batches import SEED, random_case, scores
from device_batches import here, of, on_device, on_host, padded, there
from modes import LOW, low_logits

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda.kernels import part
from ctcbind.engines import cudnn_device, guard

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_small_batches_of_every_kind(device, dtype, graph_safe):
    """Ragged, repeats, empty, infeasible, no frames, every blank, both layouts, memory in every order."""
    for number in range(60):
        how = ("C", "read-only")[number % 2] if graph_safe else None
        case = random_case([SEED, 60, number], dtype=dtype, topology="ctc", how=how)
        case.args = on_device(case, number)
        fake_cupy.synchronized.clear()
        with CTCLoss(engine="cudnn", graph_safe=graph_safe, **case.options) as plan:
            result = plan(*case.args)
            losses = plan.loss(*case.args)
        in_one_row = case.args[1].ndim == 1
        assert len(fake_cupy.synchronized) == (0 if graph_safe else 2 * (2 + in_one_row))
        case.check(on_host(result), dtype, case.expected())
        np.testing.assert_allclose(here(losses), here(result.loss), rtol=1e-6)
        assert not of(device, "cudnnCTCLoss")
    assert of(device, "cudnnCTCLoss_v8")


@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_nothing_is_written_past_an_array_of_the_workspace(device, monkeypatch, reduction):
    """Where each ends as soon as it may, and nothing that is used begins behind it."""
    gaps, lay_out = [], cudnn_device._layout

    def apart(*sizes):
        offsets, size = lay_out(*sizes)
        names, begins = zip(*offsets.items())
        moved, at = {}, 0
        gaps.clear()
        for name, begin, end in zip(names, begins, (*begins[1:], size)):
            moved[name] = at
            gaps.append((name, at + end - begin, at + end - begin + 1024))
            at = -(-gaps[-1][2] // 256) * 256
        return moved, at

    monkeypatch.setattr(cudnn_device, "ALIGNED", 4)  # the width of the narrowest: no room is left
    monkeypatch.setattr(cudnn_device, "_layout", apart)
    cases = [random_case([SEED, 11, number], dtype="float32", how="C", topology="ctc") for number in range(30)]
    for number, case in enumerate(cases):
        arrays = on_device(case, number)
        if number % 5 == 0:
            arrays = arrays[0], there(np.empty((case.logits.shape[case.layout.index("N")], 0), np.int32)), None, None
        with CTCLoss(engine="cudnn", graph_safe=True, **{**case.options, "reduction": reduction}) as plan:
            plan(*arrays)
            (own,) = (each._own for each, _ in plan._sessions["cudnn"]._by_stream._kept.values())
            for name, begin, end in gaps:
                assert len(set(own._memory.mem[begin:end].tolist())) == 1, (name, case.name)


@pytest.mark.parametrize("reduction", ["sum", "batch_mean", "label_mean"])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_reductions(device, engine, reduction):
    x, labels = scores(6, 4, 5), [[1, 2, 2], [], [3], [4] * 6]
    for zero_infinity in (True, False):
        options = {"reduction": reduction, "zero_infinity": zero_infinity}
        right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, **options)
        with CTCLoss(engine=engine, graph_safe=True, **options) as plan:
            got = plan(there(x), there(padded(labels)))
            assert got.loss.shape == () and isinstance(got.loss, fake_cupy.ndarray)  # noqa: PT018
            np.testing.assert_allclose(here(got.loss), right.loss, rtol=1e-5)
            np.testing.assert_allclose(here(got.grad), right.grad, atol=1e-5)
            np.testing.assert_allclose(here(plan.loss(there(x), there(padded(labels)))), right.loss, rtol=1e-5)
    with CTCLoss(engine=engine, graph_safe=True, zero_infinity=True) as plan:
        assert here(plan.loss(there(x), there(padded(labels))))[3] == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_so_many_classes_that_rows_are_read_by_16_bytes(device, dtype):
    """By what puts right what cuDNN makes of an empty label; some columns are left over on both sides."""
    for C in (300, 531):
        x, labels = scores(5, 4, C).astype(dtype), [[], [1, C - 1], [C // 2], []]
        right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, [5, 5, 4, 3])
        with CTCLoss(engine="cudnn") as plan:
            got = on_host(plan(there(x), there(padded(labels)), there(np.array([5, 5, 4, 3]))))
        np.testing.assert_allclose(got.loss, right.loss, rtol=1e-5)
        np.testing.assert_allclose(got.grad, right.grad, rtol=0, atol=1e-3 if dtype == "float16" else 1e-5)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("where", ["host", "device", "graph"])
def test_a_loss_past_float32_counts_as_nothing_where_infinity_is_zero(device, where, reduction):
    """Nor does its gradient, wherever labels and logits are."""
    x, labels = scores(6, 3, 4), [[1, 2], [3], [1] * 6]
    x[:, 0] = -1.5e38
    x[:, 0, 0] = 1.5e38
    right = ctcbind.ctc_loss_and_grad(x[:, 1:2], labels[1:2])
    targets, options = there(padded(labels)), {"reduction": reduction, "graph_safe": where == "graph"}
    with CTCLoss(engine="cuda", **options) as plan:
        got = plan(there(x), targets)
        assert np.isinf(here(got.loss)).any()
        assert here(got.grad)[:, 0].any()
    with CTCLoss(engine="cuda", zero_infinity=True, **options) as plan:
        got = plan(x, labels) if where == "host" else plan(there(x), targets)
        loss, grad = here(got.loss), here(got.grad)
        alone = here(plan.loss(x, labels) if where == "host" else plan.loss(there(x), targets))
    assert not grad[:, [0, 2]].any()
    np.testing.assert_allclose(grad[:, 1], right.grad[:, 0], atol=1e-6)
    wanted = np.array([0, right.loss[0], 0])
    for each in (loss, alone):
        np.testing.assert_allclose(each, wanted if reduction == "none" else wanted.sum(), rtol=1e-6)


def test_the_arguments_are_addresses_on_the_device(device):
    x, stream = there(scores(7, 3, 5)), fake_cupy.cuda.Stream(non_blocking=True)
    with stream, CTCLoss(engine="cudnn") as plan:
        result = plan(x, there(padded([[1, 2, 2], [3], [4, 1]])), there([7, 1, 5], np.int32))
    (call,), (query,) = of(device, "cudnnCTCLoss_v8"), of(device, "cudnnGetCTCLossWorkspaceSize_v8")
    assert call["stream"] == stream.ptr
    assert (call["probs"], call["gradients"]) == (x.data.ptr, result.grad.data.ptr), "no copy of either"
    assert call["labels"] == [1, 2, 2, 3, 4, 1]
    assert (call["labelLengths"], call["inputLengths"]) == ([3, 1, 2], [7, 1, 5])
    assert call["workSpaceSizeInBytes"] == query["size"]
    assert of(device, "cudnnSetCTCLossDescriptor_v9")[-1]["maxLabelLength"] == 3
    assert call["algo"] == 0


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("as_layout", [True, False])
def test_memory_in_either_order_behind_either_layout(device, layout, as_layout):
    """The library reads logits where they lie, and writes their gradient in the same order."""
    shape = (7, 3, 5) if layout == "TNC" else (3, 7, 5)
    x = scores(*shape) if as_layout else scores(shape[1], shape[0], 5).transpose(1, 0, 2)
    labels, given = [[1, 2, 2], [3], [4, 1]], fake_cupy.ndarray(x)
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, layout=layout)
    with CTCLoss(engine="cudnn", layout=layout) as plan:
        result = on_host(plan(given, there(padded(labels))))
    np.testing.assert_allclose(result.loss, right.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad, right.grad, atol=1e-5)
    (call,) = of(device, "cudnnCTCLoss_v8")
    assert call["probs"] == given.data.ptr


LIES = {
    "one frame for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "one sample for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "frames backwards": lambda x: x[::-1],
    "samples backwards": lambda x: x[:, ::-1],
}


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("lie", LIES)
def test_logits_that_no_descriptor_holds_are_copied(device, lie, graph_safe):
    """Though their classes lie side by side, with strides of 0 or below."""
    x, labels = LIES[lie](scores(6, 3, 5)), [[1, 2, 2], [3], [4, 1]]
    given = fake_cupy.ndarray(x)
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels)
    with CTCLoss(engine="cudnn", graph_safe=graph_safe) as plan:
        result = on_host(plan(given, there(padded(labels))))
    np.testing.assert_allclose(result.loss, right.loss, rtol=1e-5)
    np.testing.assert_allclose(result.grad, right.grad, atol=1e-5)
    assert all(min(entry["strides"]) > 0 for entry in of(device, "cudnnSetTensorNdDescriptor"))
    (call,) = of(device, "cudnnCTCLoss_v8")
    assert call["probs"] != given.data.ptr
    (copy,) = (each for each in ctcbind.explain(given, there(padded(labels)))["cudnn"].copies if "logits" in each.what)
    assert "as float32" in copy.what


@pytest.mark.parametrize("shape", [(0, 2, 5), (6, 2, 1)])
def test_nothing_is_said_to_be_copied_where_the_library_is_not_called(device, shape):
    given = there(scores(*shape).astype(np.float16)), there(np.full((2, 1), -1, np.int32))
    assert ctcbind.explain(*given)["cudnn"].copies == ()
    with CTCLoss(engine="cudnn") as plan:
        assert not here(plan.loss(*given)).any()
    assert not of(device, "cudnnCTCLoss_v8")


def test_what_cannot_be_sent_has_a_stand_in(device):
    with CTCLoss(engine="cudnn", blank=2, graph_safe=True) as plan:
        labels = [[1, 1, 1, 1], [], [0], [3, 4], [1] * 30, [9, 1], [2]]
        frames = [6, 6, 0, 5, 2, 6, 6]
        result = on_host(plan(there(scores(6, 7, 5)), there(padded(labels)), there(frames, np.int32)))
    (call,) = of(device, "cudnnCTCLoss_v8")
    assert call["labelLengths"] == [1, 1, 1, 2, 1, 1, 1]
    assert call["inputLengths"] == [1, 1, 1, 5, 1, 1, 1]
    assert call["labels"] == [1, 1, 1, 3, 4, 1, 1, 1]
    assert np.isinf(result.loss[[0, 2, 4]]).all()
    assert np.isfinite(result.loss[[1, 3]]).all()
    assert np.isnan(result.loss[5:]).all(), "a label out of range, and the blank as a label"
    assert np.isnan(result.grad[:, 5:]).all()
    assert not np.isnan(result.grad[:, :5]).any()


@pytest.mark.parametrize("engine", ["cudnn", "cuda", "auto"])
def test_labels_out_of_range_are_refused_before_the_call(device, engine):
    for labels, match in (([[1], [5]], r"targets\[1\]\[0\] is 5"), ([[1], [0]], "which is the blank")):
        with pytest.raises(ctcbind.InvalidInput, match=match) as caught, CTCLoss(engine=engine) as plan:
            plan(there(scores(4, 2, 5)), there(padded(labels)))
        assert caught.value.sample == 1
    with pytest.raises(ctcbind.InvalidInput, match=r"input_lengths\[0\] is 9"), CTCLoss(engine=engine) as plan:
        plan(there(scores(4, 2, 5)), there(padded([[1], [2]])), there([9, 1], np.int32))
    with pytest.raises(ctcbind.InvalidInput, match=r"a label follows it"), CTCLoss(engine=engine) as plan:
        plan(there(scores(8, 2, 5)), there([[1, 2, -1, -1], [1, -1, 2, 3]], np.int32))
    assert "cudnnCTCLoss_v8" not in device.calls


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**63 - 1])
def test_unsigned_labels_do_not_become_negative(device, engine, value):
    """As padding they would be passed over."""
    x, labels, two = there(scores(6, 2, 5)), np.array([[1, 2], [3, value]], np.uint64), np.array([2, 2], np.uint64)
    for lengths in (None, there(two)):
        with pytest.raises(ctcbind.InvalidInput, match=r"targets\[1\]\[1\] is \d+"), CTCLoss(engine=engine) as plan:
            plan(x, there(labels), None, lengths)
    two[1] = value
    for lengths in ((there(two), None), (None, there(two))):
        with (
            pytest.raises(ctcbind.InvalidInput, match=r"put_lengths\[1\]|target_lengths"),
            CTCLoss(engine=engine) as plan,
        ):
            plan(x, there(np.array([[1, 2], [3, 4]])), *lengths)


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_a_label_behind_padding_is_nan_where_nothing_may_raise(device, engine):
    with CTCLoss(engine=engine, graph_safe=True) as plan:
        losses = plan.loss(there(scores(8, 2, 5)), there([[1, 2, -1, -1], [1, -1, 2, 3]], np.int32)).get()
    assert np.isnan(losses).tolist() == [False, True]


def test_255_labels_and_one_more(device):
    x, row = scores(600, 2, 3), [1, 2] * 128
    for L, right in ((255, True), (256, False)):
        labels = there(padded([row[:L], [1]]))
        with CTCLoss(engine="cudnn", graph_safe=True) as plan:
            losses = here(plan.loss(there(x), labels))
        exact = ctcbind.ctc_loss(x.astype(float), [row[:L], [1]])
        assert np.isnan(losses[0]) == (not right)
        np.testing.assert_allclose(losses[1], exact[1], rtol=1e-5)
        with CTCLoss(engine="cudnn") as plan:
            if right:
                np.testing.assert_allclose(here(plan.loss(there(x), labels)), exact, rtol=1e-5)
            else:
                with pytest.raises(ctcbind.EngineUnsupported, match="sample 0 has more than 255 labels"):
                    plan.loss(there(x), labels)
    assert not device.poisoned


@pytest.mark.parametrize("reduction", ["none", "label_mean"])
@pytest.mark.parametrize("where", ["host", "device", "graph"])
def test_auto_takes_cuda_which_can_all_of_it(device, where, reduction):
    """Long labels, scores that lie far apart, masks: cudnn can none of these three."""
    x, labels = scores(260, 3, 6), padded([[1 + i % 5 for i in range(256)], [3, 3], [1] * 131])
    masked, shorter = x.copy(), labels[:, :20].copy()
    masked[7, 1, 4] = -np.inf
    options = {"reduction": reduction, "zero_infinity": True, "graph_safe": where == "graph"}
    with CTCLoss(**options) as plan, CTCLoss(engine="cudnn", **{**options, "graph_safe": False}) as named:
        for values, targets, cudnn_can in (
            (x, shorter, True),
            (x, labels, False),
            (60 * x, shorter, False),
            (masked, shorter, False),
        ):
            given = there(values), targets if where == "host" else there(targets)
            found = plan(*given)
            assert found.engine == ctcbind.explain(*given).auto == "cuda"
            exact = {"reduction": reduction, "zero_infinity": True, "engine": "reference"}
            right = ctcbind.ctc_loss_and_grad(values.astype(np.float64), targets, **exact)
            np.testing.assert_allclose(here(found.loss), right.loss, rtol=1e-5)
            np.testing.assert_allclose(here(found.grad), right.grad, atol=1e-5)
            np.testing.assert_array_equal(here(plan.loss(*given)), here(found.loss))
            for call in (named, named.loss):
                if cudnn_can:
                    call(*given)
                else:
                    with pytest.raises(ctcbind.EngineUnsupported, match="engine 'cudnn' cannot take this batch"):
                        call(*given)


def test_auto_takes_cudnn_for_what_that_alone_has(device):
    y = np.exp(scores(7, 2, 5))
    y /= y.sum(axis=2, keepdims=True)
    given = there(y), there(padded([[1, 2], [3]]))
    for options in ({"probabilities": True}, {"deterministic": False}):
        with CTCLoss(**options) as plan:
            assert plan(*given).engine == "cudnn"


def test_copies_are_told_as_they_are_made(device, caplog):
    kinds = set()
    for number in range(60):
        how = ("C", "F", "negative", "strided", "permuted")[number % 5]
        case = random_case([SEED, 8, number], how=how, topology="ctc")
        if case.logits.dtype == np.float64 or not case.logits.size:
            continue
        logits, labels, frames, lengths = on_device(case, number)
        caplog.clear()
        values_lost = suppress(ctcbind.EngineUnsupported)  # by cuDNN's arithmetic: it ends past the work
        with caplog.at_level(logging.DEBUG, "ctcbind"), CTCLoss(engine="cudnn", **case.options) as plan, values_lost:
            plan(logits, labels, frames, lengths)
        said = [record.message for record in caplog.records if " bytes of " in record.message]
        options = {name: value for name, value in case.options.items() if name in ("blank", "layout", "topology")}
        seen = ctcbind.explain(logits, labels, frames, lengths, **options)["cudnn"].copies
        assert [f"cudnn: {copy.bytes} bytes of {copy.what}" for copy in seen] == said, case.name
        kinds |= {copy.what for copy in seen}
    assert len(kinds) == 3


def test_explain_says_of_labels_on_the_device_what_a_call_does(device):
    x, labels = scores(8, 2, 5), there(padded([[1, 2], [3]]))
    seen = ctcbind.explain(there(x), labels)
    for name in ("cuda", "cudnn"):
        assert seen[name].usable
        with CTCLoss(engine=name) as plan:
            assert plan(there(x), labels).engine == name
    assert "on the host" in seen["native"].reason
    with pytest.raises(ctcbind.InvalidInput, match=r"targets\[1\]\[0\] is 5"):
        ctcbind.explain(there(x), there(padded([[1, 2], [5]])))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, -200.0])
def test_what_its_arithmetic_loses(device, value):
    """NaN logits are NaN; the rest is refused, or NaN where nothing may wait."""
    x = scores(5, 2, 4)
    x[1, 1, 1:] = value
    labels = there(padded([[1, 2], [1, 2, 1]]))
    with CTCLoss(engine="cudnn", graph_safe=True) as plan:
        result = on_host(plan(there(x), labels))
    right = ctcbind.ctc_loss_and_grad(x[:, :1].astype(float), [[1, 2]])
    np.testing.assert_allclose(result.loss[0], right.loss[0], rtol=1e-5)
    np.testing.assert_allclose(result.grad[:, :1], right.grad, atol=1e-5)
    assert np.isnan(result.loss[1]) or value == -200.0
    with CTCLoss(engine="cudnn") as plan:
        if np.isnan(value):
            assert np.isnan(here(plan(there(x), labels).grad)[:, 1]).all()
        elif np.isinf(value):
            with pytest.raises(ctcbind.EngineUnsupported, match="sample 1 has infinite logits"):
                plan(there(x), labels)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_nan_beside_infinity_is_nan(device, value):
    """In its frame or another, and with or without labels."""
    x = scores(5, 3, 4)
    x[1, :2, 2], x[3, 0, 3] = np.nan, value
    x[1, 1, 3] = value
    for labels in ([[1, 2], [1, 2, 1], [3]], [[], [], [3]]):
        with CTCLoss(engine="cudnn") as plan:
            result = on_host(plan(there(x), there(padded(labels))))
        assert np.isnan(result.loss).tolist() == [True, True, False]
        assert np.isnan(result.grad).all(axis=(0, 2)).tolist() == [True, True, False]


@pytest.mark.parametrize(("cells", "lost"), LOW)
def test_beside_a_large_loss_no_class_of_a_path_may_be_below_the_range(device, cells, lost):
    x, labels, frames = low_logits(cells)
    given = there(x), there(padded(labels)), there(frames, np.int32)
    with CTCLoss(engine="cudnn", graph_safe=True) as plan:
        result = on_host(plan(*given))
    right = ctcbind.ctc_loss_and_grad(x.astype(float), labels, frames)
    count = 1 if lost else 2
    np.testing.assert_allclose(result.loss[:count], right.loss[:count], rtol=1e-5)
    np.testing.assert_allclose(result.grad[:, :count], right.grad[:, :count], atol=1e-5)
    assert np.isnan(result.loss[count:]).all()
    assert np.isnan(result.grad[:90, count:]).all()
    if lost:
        with (
            CTCLoss(engine="cudnn") as plan,
            pytest.raises(ctcbind.EngineUnsupported, match="sample 1 has infinite logits, or a probability"),
        ):
            plan(*given)


def test_the_bounds_in_the_kernels_are_those_of_the_guard():
    tiny = guard.floor(np.float32)
    assert f"#define FLOOR {tiny!r} " in part("around")
    assert f"#define MATTERS {-tiny + math.log(guard.tolerance(np.float32)) - 1.0!r} " in part("around")
