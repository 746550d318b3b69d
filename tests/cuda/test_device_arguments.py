"""Labels and lengths on the device, of every form: what cannot be right is refused by shape and dtype alone, and what
lies or is written otherwise means the same."""

from __future__ import annotations

import fake_cupy
import numpy as np
import pytest
from batches import SEED, scores
from device_batches import here, padded, there

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda.common import Statuses

pytest_plugins = ["fake_cudnn.fixture", "emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy", "device")

T, N, C = 7, 3, 5
ROWS = [[1, 2, 2], [3], [4, 1]]
FLAT = [1, 2, 2, 3, 4, 1]
GOOD = {"targets": padded(ROWS), "input_lengths": [7, 2, 5], "target_lengths": [3, 1, 2]}

#: Arguments that take the place of those above, on the device; the rule that they break, and what is said.
REFUSED = {
    "no row": ({"targets": 1}, "targets_rank", r"shape \(\)"),
    "rows of rows": ({"targets": np.ones((N, 2, 1), np.int32)}, "targets_rank", r"shape \(3, 2, 1\)"),
    "a row more": ({"targets": padded([*ROWS, [1]])}, "targets_rank", r"shape \(4, 3\).*N = 3"),
    "a row less": ({"targets": padded(ROWS[:2])}, "targets_rank", r"shape \(2, 3\).*N = 3"),
    "one row alone": ({"targets": FLAT, "target_lengths": None}, "target_lengths", "must be given"),
    "a length less": ({"target_lengths": [3, 1]}, "length_count", r"target_lengths has shape \(2,\)"),
    "a length more": ({"targets": FLAT, "target_lengths": [3, 1, 2, 0]}, "length_count", r"shape \(4,\)"),
    "lengths in rows": ({"target_lengths": [[3], [1], [2]]}, "length_count", r"shape \(3, 1\)"),
    "frames of fewer": ({"input_lengths": [7, 2]}, "length_count", r"input_lengths has shape \(2,\)"),
    "frames for all": ({"input_lengths": 7}, "length_count", r"input_lengths has shape \(\)"),
    "float labels": ({"targets": padded(ROWS).astype(np.float32)}, "integers", "targets holds float32"),
    "truth values": ({"target_lengths": [True, True, False]}, "integers", "target_lengths holds bool"),
    "float frames": ({"input_lengths": [7.0, 2.0, 5.0]}, "integers", "input_lengths holds float64"),
}


def on_device(arguments):
    return {name: None if each is None else fake_cupy.ndarray(np.array(each)) for name, each in arguments.items()}


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("engine", ["cudnn", "cuda", "auto"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right(name, engine, graph_safe):
    """It would be read past its end, or as what it is not."""
    changes, rule, said = REFUSED[name]
    with CTCLoss(engine=engine, graph_safe=graph_safe) as plan:
        arguments = on_device({**GOOD, **changes})
        for call in (plan, plan.loss):
            with pytest.raises(ctcbind.InvalidInput, match=said) as caught:
                call(there(scores(T, N, C)), **arguments)
            assert caught.value.rule == rule


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_logits_that_no_labels_can_belong_to(engine, graph_safe):
    labels = there(padded(ROWS))
    for shape, rule in (((T, 0, C), "batch_size"), ((T, N, 0), "classes")):
        with CTCLoss(engine=engine, graph_safe=graph_safe) as plan:
            with pytest.raises(ctcbind.InvalidInput) as caught:
                plan(there(np.zeros(shape, np.float32)), labels)
            assert caught.value.rule == rule
    with CTCLoss(engine=engine, graph_safe=graph_safe, blank=C) as plan:
        with pytest.raises(ctcbind.InvalidInput) as caught:
            plan(there(scores(T, N, C)), labels)
        assert caught.value.rule == "blank"


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_what_is_on_the_host_is_named_where_nothing_may_be_copied(engine):
    x = scores(T, N, C)
    with CTCLoss(engine=engine, graph_safe=True) as plan:
        with pytest.raises(ctcbind.InvalidInput, match="logits are on the host") as caught:
            plan(x, **on_device(GOOD))
        assert caught.value.rule == "device"
        for name in GOOD:
            with pytest.raises(ctcbind.InvalidInput, match=f"{name} are on the host; with graph_safe") as caught:
                plan(there(x), **on_device(GOOD) | {name: GOOD[name]})
            assert caught.value.rule == "device"


@pytest.mark.parametrize("graph_safe", [False, True])
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_what_is_on_another_device(engine, graph_safe, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    x = there(scores(T, N, C))
    for name in GOOD:
        for dtype in (np.int32, np.int16):
            with fake_cupy.cuda.Device(1):
                far = there(GOOD[name], dtype)
            with CTCLoss(engine=engine, graph_safe=graph_safe) as plan:
                said = f"{name} are on .*Device 1.*, the logits on .*Device 0"
                with pytest.raises(ctcbind.InvalidInput, match=said) as caught:
                    plan(x, **on_device(GOOD) | {name: far})
                assert caught.value.rule == "device"


def lay_out(values, how):
    """The same numbers on the device; what lies in between is out of range."""
    values = np.asarray(values)
    if how in ("int8", "uint8", "int16", "uint16", "uint32", "uint64"):
        return there(values, how)
    if how == "columns":
        return fake_cupy.ndarray(np.asfortranarray(values, dtype=np.int32))
    if how == "backwards":
        return fake_cupy.ndarray(np.ascontiguousarray(values[..., ::-1], dtype=np.int64)[..., ::-1])
    wide = np.full((*values.shape, 2), 99, np.int32)
    wide[..., 0] = values
    return fake_cupy.ndarray(wide)[..., 0]


@pytest.mark.parametrize(
    "how", ["int8", "uint8", "int16", "uint16", "uint32", "uint64", "columns", "backwards", "gaps"]
)
@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_labels_and_lengths_in_every_order_and_width(engine, how):
    x, rng = scores(T, N, C), np.random.default_rng([SEED, 140])
    rows, lengths, frames = rng.integers(1, C, (N, 3)), rng.integers(0, 4, N), rng.integers(0, T + 1, N)
    right = ctcbind.ctc_loss_and_grad(x.astype(float), rows, frames, lengths)
    given = [lay_out(each, how) for each in (rows, frames, lengths)]
    with CTCLoss(engine=engine) as plan:
        result = plan(there(x), *given)
    np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5)
    np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-5)
    if how not in ("columns", "backwards", "gaps"):
        said = f"{how} .*; with graph_safe they must be int32 or int64 without gaps"
    else:
        said = "with strides .*; with graph_safe they must be int32 or int64 without gaps"
    with CTCLoss(engine=engine, graph_safe=True) as plan, pytest.raises(ctcbind.InvalidInput, match=said):
        plan(there(x), *given)


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_lengths_of_the_host_beside_labels_of_the_device(engine):
    """Any of them may be there, and of any form; the longest may be none, or more than fit."""
    x = scores(T, N, C)
    for targets, counts in ((padded(ROWS), [3, 1, 2]), (FLAT, [3, 1, 2]), (padded(ROWS), [0, 0, 0])):
        right = ctcbind.ctc_loss_and_grad(x.astype(float), targets, [7, 2, 5], counts)
        for frames in ([7, 2, 5], np.array([7, 2, 5], np.int16), there([7, 2, 5])):
            for lengths in (counts, np.array(counts, np.uint8), there(counts)):
                with CTCLoss(engine=engine) as plan:
                    for _ in range(2):
                        result = plan(there(x), there(targets), frames, lengths)
                        np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5)
                        np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-5)
    for counts, said in (([3, 1, 4], r"target_lengths\[2\] is 4"), ([-5, -5, -5], r"target_lengths\[0\] is -5")):
        with CTCLoss(engine=engine) as plan, pytest.raises(ctcbind.InvalidInput, match=said):
            plan(there(x), there(padded(ROWS)), None, counts)


@pytest.mark.parametrize("engine", ["cudnn", "cuda"])
def test_labels_in_one_row_take_the_room_of_the_longest_sample(engine, monkeypatch):
    """And not that of all labels together, for which their lengths are waited for."""
    sizes, alloc = [], fake_cupy.cuda.alloc
    monkeypatch.setattr(fake_cupy.cuda, "alloc", lambda size: sizes.append(size) or alloc(size))
    x, rows = there(scores(50, 40, C)), np.random.default_rng([SEED, 141]).integers(1, C, (40, 3))
    lengths, taken = there(np.full(40, 3)), []
    for targets in (rows, rows.ravel()):
        sizes.clear()
        with CTCLoss(engine=engine) as plan:
            plan(x, there(targets), None, lengths)
        taken.append(list(sizes))
    assert taken[0] == taken[1] != []


def test_where_statuses_go_is_kept_until_they_are_there():
    """Of a call that ended before it waited for them, as by Ctrl-C; a later one with more samples needs more room."""
    statuses, memory, stream = Statuses(fake_cupy), fake_cupy.cuda.alloc(40), fake_cupy.cuda.Stream()
    with stream:
        for count, waits in ((2, 0), (2, 0), (10, 1), (3, 0)):
            before = len(fake_cupy.synchronized)
            statuses.ask(memory.ptr, count)
            assert fake_cupy.synchronized[before:] == [stream.ptr] * waits
