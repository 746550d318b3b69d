"""cudnnCTCLoss_v8 with labels on the device: the fake libcudnn, and the kernels around it on the emulator."""

from __future__ import annotations

import logging
import math
import re
import threading
from contextlib import suppress

import fake_cupy
import numpy as np
import pytest
from batches import SEED, random_case
from fake_device import NOTHING_ALIVE, ONE_HANDLE, begin_again, release

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda import launch
from ctcbind.cuda.kernels import as_argument, part
from ctcbind.engines import cuda, cudnn_device, guard
from ctcbind.streams import device_stream

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")


def there(value, dtype=None):
    return fake_cupy.ndarray(np.ascontiguousarray(value, dtype=dtype))


def here(value):
    return np.asarray(fake_cupy.asnumpy(value))


def padded(labels, width=None):
    width = max(map(len, labels), default=0) if width is None else width
    rows = np.full((len(labels), width), -1, dtype=np.int32)
    for n, row in enumerate(labels):
        rows[n, : len(row)] = row
    return rows


def scores(*shape, key=0):
    return np.random.default_rng([SEED, key, *shape]).normal(size=shape).astype(np.float32)


def of(fake, call):
    return [entry for entry in fake.log if entry["call"] == call]


def on_host(result):
    return ctcbind.Result(here(result.loss), here(result.grad), result.engine)


def on_device(case, number):
    """The batch with labels and lengths on the device, in one of the ways to write them."""
    lengths = [len(row) for row in case.labels]
    wide = np.int64 if number % 2 else np.int32
    frames = there(case.frames, wide)
    logits = fake_cupy.ndarray(case.args[0])
    if number % 3 == 0:
        return logits, there(np.concatenate([[], *case.labels]), wide), frames, there(lengths, np.int32)
    if number % 3 == 1:
        return logits, there(padded(case.labels), wide), frames, None
    return logits, there(np.maximum(padded(case.labels, 14), 0), wide), frames, there(lengths, np.int64)


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
        assert len(fake_cupy.synchronized) == (0 if graph_safe else 4)
        case.check(on_host(result), dtype, case.expected())
        np.testing.assert_allclose(here(losses), here(result.loss), rtol=1e-6)
        assert not of(device, "cudnnCTCLoss")
    assert of(device, "cudnnCTCLoss_v8")


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
        for graph_safe in (False, True):
            with CTCLoss(graph_safe=graph_safe) as plan:
                result = plan(there(x), labels)
            assert result.engine == ("cudnn" if right else "cuda")
            np.testing.assert_allclose(here(result.loss), exact, rtol=1e-5)
        assert ctcbind.explain(there(x), labels).auto == result.engine
    assert not device.poisoned


def test_auto_takes_cudnn_for_labels_that_cannot_be_too_long(device):
    """By the width of the rows, the lengths, or the frames; in one row nobody can tell where nothing may wait."""
    x, rows = scores(300, 2, 3), [[1, 2] * 128, [1]]
    one, lengths = np.concatenate(rows), [256, 1]
    for logits, labels, counts, engine in (
        (x, there(padded([[1, 2], [1]])), None, "cudnn"),
        (x, there(padded([[1, 2], [1]], 256)), None, "cuda"),
        (x[:200], there(padded([[1, 2], [1]], 256)), None, "cudnn"),
        (x, there(np.concatenate([[1] * 200, [2] * 100])), [200, 100], "cudnn"),
        (x, there(np.concatenate([[1] * 200, [2] * 100])), there([200, 100], np.int32), "cudnn"),
        (x, there(one), lengths, "cuda"),
    ):
        with CTCLoss() as plan:
            assert plan(there(logits), labels, None, counts).engine == engine
    with CTCLoss(graph_safe=True) as plan:
        assert plan(there(x), there(one), None, there([200, 57], np.int32)).engine == "cuda"


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


@pytest.mark.parametrize("reduction", ["none", "sum", "label_mean"])
@pytest.mark.parametrize("labels_there", [False, True])
def test_auto_passes_on_what_cudnn_finds_that_it_cannot(device, labels_there, reduction, caplog):
    """A training ended in the midst of it otherwise, when its scores lay far enough apart."""
    x, labels = scores(40, 3, 6), padded([[1, 2, 3, 1, 2, 3, 4, 5], [3, 3], [1] * 41])
    masked = x.copy()
    masked[7, 1, 4] = -np.inf
    given, options = there(labels) if labels_there else labels, {"reduction": reduction, "zero_infinity": True}
    with CTCLoss(**options) as plan, CTCLoss(engine="cudnn", **options) as named:
        for values, engine in ((x, "cudnn"), (60 * x, "cuda"), (masked, "cuda"), (x, "cudnn")):
            caplog.clear()
            with caplog.at_level(logging.DEBUG, "ctcbind"):
                found = plan(there(values), given)
            assert found.engine == engine
            told = [each for each in caplog.messages if each.startswith("engine cuda chosen, since: engine 'cudnn' ")]
            assert len(told) == (engine == "cuda")
            right = ctcbind.ctc_loss_and_grad(values.astype(np.float64), labels, **options, engine="reference")
            np.testing.assert_allclose(here(found.loss), right.loss, rtol=1e-5)
            np.testing.assert_allclose(here(found.grad), right.grad, atol=1e-5)
            np.testing.assert_array_equal(here(plan.loss(there(values), given)), here(found.loss))
            if engine == "cuda":
                for call in (named, named.loss):
                    with pytest.raises(ctcbind.EngineUnsupported, match="engine 'cudnn' cannot take this batch"):
                        call(there(values), given)


@pytest.mark.parametrize("call", ["cudnnCreate", "cudnnCTCLoss", "cudnnGetCTCLossWorkspaceSize"])
def test_auto_passes_on_what_cudnn_fails_at(device, call):
    """A cuDNN for a newer driver is there, and makes no handle."""
    x, labels = there(scores(9, 2, 5)), [[1, 2], [3]]
    right = ctcbind.ctc_loss(x, labels, engine="cuda")
    with CTCLoss() as plan, CTCLoss(engine="cudnn") as named:
        device.fail(call, 1001)
        with pytest.raises(ctcbind.NativeError, match=call):
            named(x, labels)
        device.fail(call, 1001)
        result = plan(x, labels)
        assert result.engine == "cuda"
        np.testing.assert_array_equal(here(result.loss), here(right))
        assert plan(x, labels).engine == "cudnn"


@pytest.mark.parametrize("other", [ctcbind.EngineUnsupported("engine 'cuda' cannot either"), OSError("no device")])
def test_what_no_engine_of_auto_can_is_told_by_the_first(device, monkeypatch, other):
    monkeypatch.setattr(cuda.CudaSession, "run", lambda *_, **__: no())
    x = 60 * scores(40, 2, 6)

    def no():
        raise other

    for call in (ctcbind.ctc_loss_and_grad, ctcbind.ctc_loss):
        with pytest.raises(ctcbind.EngineUnsupported, match="engine 'cudnn' cannot take this batch: sample 0 has"):
            call(there(x), [[1, 2, 3], [3, 3]])


def test_the_bounds_in_the_kernels_are_those_of_the_guard():
    tiny = guard.floor(np.float32)
    assert f"#define FLOOR {tiny!r} " in part("around")
    assert f"#define MATTERS {-tiny + math.log(guard.tolerance(np.float32)) - 1.0!r} " in part("around")


# --- capture, streams, threads, workspace ----------------------------------------------------------------------


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


@pytest.mark.parametrize("wrong", ["a stream", 1.5, True, -1, 2**64, object()])
def test_what_is_no_stream(wrong):
    with pytest.raises(ctcbind.InvalidInput, match="stream is"):
        CTCLoss(stream=wrong)


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
