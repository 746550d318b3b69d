"""The same bits: once more, on any number of threads, whatever else is in the batch."""

from __future__ import annotations

import os

import numpy as np
import pytest
from batches import same, scores

import ctcbind
from ctcbind import ctc_loss, ctc_loss_and_grad


def test_the_same_bits_fifty_times(engine):
    if not engine.contract.deterministic:
        pytest.skip(f"the contract of {engine.name} does not promise it")
    x = scores(40, 9, 11)
    targets = [[1 + (i + n) % 10 for i in range(n)] for n in range(9)]
    first = engine(x, targets, [40 - n for n in range(9)])
    for _ in range(50):
        again = engine(x, targets, [40 - n for n in range(9)])
        assert same(again.loss, first.loss)
        assert same(again.grad, first.grad)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_same_bits_for_any_number_of_threads(dtype):
    x = scores(50, 67, 30, dtype=dtype)
    targets = [[1 + (i * 7 + n) % 29 for i in range(n % 25)] for n in range(67)]
    lengths = [50 - n % 30 for n in range(67)]
    seen = set()
    for threads in (1, 2, 3, 4, 1, None):
        ctcbind.set_num_threads(threads)
        for _ in range(5):
            loss, grad, _ = ctc_loss_and_grad(x, targets, lengths, engine="native")
            seen.add((loss.tobytes(), grad.tobytes(), ctc_loss(x, targets, lengths, engine="native").tobytes()))
    assert len(seen) == 1


def test_a_sample_has_the_same_bits_in_any_batch():
    """What stands beside it in the batch is of no consequence to a sample."""
    x = scores(20, 6, 9)
    targets = [[1, 2], [], [3, 3, 3], [8], [1, 2, 3, 4, 5, 6], [7]]
    whole = ctc_loss_and_grad(x, targets, engine="native")
    for n in range(6):
        alone = ctc_loss_and_grad(x[:, n : n + 1].copy(), [targets[n]], engine="native")
        assert same(alone.loss[0], whole.loss[n])
        assert same(alone.grad[:, 0].copy(), whole.grad[:, n].copy())


def test_threads_default_and_bounds(monkeypatch):
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    monkeypatch.delenv("CTCBIND_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert ctcbind.get_num_threads() == available
    for text, threads in (
        ("1", 1),
        (" 1,4", 1),
        ("0", 1),
        (str(available + 1), available),
        ("", available),
        ("x", available),
        ("9" * 5000, available),  # more digits than Python makes an int of
    ):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert ctcbind.get_num_threads() == threads
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "3")
    assert ctcbind.get_num_threads() == 3
    ctcbind.set_num_threads(2)
    assert ctcbind.get_num_threads() == 2
    ctcbind.set_num_threads(None)
    assert ctcbind.get_num_threads() == 3
    for text in ("0", "-1", "many", "1.5", "9" * 5000):
        monkeypatch.setenv("CTCBIND_NUM_THREADS", text)
        with pytest.raises(ctcbind.InvalidInput, match="CTCBIND_NUM_THREADS"):
            ctcbind.get_num_threads()
    monkeypatch.delenv("CTCBIND_NUM_THREADS")
    for wrong in (0, -1, "many", 1.5, np.nan, np.inf, [2], 2**31, 2**64):
        with pytest.raises(ctcbind.InvalidInput, match="an integer from 1") as caught:
            ctcbind.set_num_threads(wrong)
        assert caught.value.rule == "threads"
        assert ctcbind.get_num_threads() == available
