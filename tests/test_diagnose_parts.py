"""Large batches: a diagnosis looks at a part after the other, and finds what it finds in all of them at once."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from batches import SEED
from good_batches import KINDS, good
from mistakes import MISTAKES, planted

import ctcbind
from ctcbind import diagnose_input, diagnose_lengths, diagnose_order, patient


def alike(one, other):
    """Losses and norms of parts are rounded in another order, and nothing else differs."""
    assert [dataclasses.replace(each, seen="") for each in one.findings] == [
        dataclasses.replace(each, seen="") for each in other.findings
    ]
    assert str(one) == str(other)
    if one.measures is not None:
        numbers = (dataclasses.asdict(each.measures) for each in (one, other))
        for a, b in zip(*(each.values() for each in numbers), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def in_small_parts(monkeypatch):
    """One sample at a time, one frame at a time."""
    for name, value in (("PARTS", 1 << 30), ("IN_A_PART", 1), ("IN_A_BLOCK", 1)):
        monkeypatch.setattr(patient, name, value)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_mistakes_are_found_in_parts(mistake, monkeypatch):
    for seed in range(2):
        whole = planted(seed, mistake)
        in_small_parts(monkeypatch)
        alike(planted(seed, mistake), whole)
        monkeypatch.undo()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["none", "moved", "reversed", "turned", "other order", "reshaped", "halved"])
def test_what_fits_nothing_is_found_in_parts(kind, change, monkeypatch):
    """What is tried with other labels or logits ends where the first samples tell that it explains nothing."""
    rng = np.random.default_rng([SEED, 640, KINDS.index(kind)])
    given = good(int(rng.integers(2**31)), kind)
    x, targets = given["logits"], given["targets"]
    if change == "moved":
        x[:] = np.roll(x, 1, axis=2)
    elif change == "reversed":
        given["targets"] = [row[::-1] for row in targets]
    elif change == "turned":
        x *= -1
    elif change == "other order":
        x[:] = np.roll(x, 1, axis=1)
    elif change == "reshaped" and given.get("layout", "TNC") == "TNC":
        given["logits"] = x.transpose(1, 0, 2).reshape(x.shape)
    elif change == "halved":
        x[:, : x.shape[1] // 2] *= -1
    whole = ctcbind.diagnose(**given)
    in_small_parts(monkeypatch)
    alike(ctcbind.diagnose(**given), whole)


def large(state):
    """(logits, targets) of 38 MB: those of a fresh network, of a trained one, of one whose targets are others'."""
    T, N, C, L = 500, 32, 600, 40
    rng = np.random.default_rng([SEED, 641])
    x = rng.standard_normal((T, N, C), dtype=np.float32)
    targets = rng.integers(1, C, (N, L))
    if state != "fresh":
        x[:, :, 0] += 12
        for n, row in enumerate(targets):
            at = np.arange(L) * (T // L) + rng.integers(0, T // L - 1, L)
            x[at, n, 0] -= 12
            x[at, n, row] += 12
    return x, np.roll(targets, state == "wrong", axis=0).tolist()


@pytest.mark.parametrize("state", ["fresh", "trained", "wrong"])
@pytest.mark.parametrize("ragged", [False, True])
def test_large_batches_are_not_copied(state, ragged):
    """Beside float32 logits it takes less room than one copy of them, and float64 would be two."""
    x, targets = large(state)
    lengths = np.full(x.shape[1], x.shape[0]) - ragged * np.arange(x.shape[1]) % 7
    tracemalloc.start()
    try:
        found = ctcbind.diagnose(x, targets, lengths)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.kinds == ({"mismatch"} if state == "wrong" else set())
    assert most < x.nbytes


def test_losses_are_computed_once(monkeypatch):
    """Of a trained network's batch, as most are: its loss, its gradient, those of two models that know nothing, and by
    the other topology that of some samples, which tell."""
    x, targets = large("trained")
    numbers = []

    def counting(real):
        return lambda logits, *more, **options: numbers.append(logits.size) or real(logits, *more, **options)

    for module in (patient, diagnose_input, diagnose_lengths, diagnose_order):
        monkeypatch.setattr(module, "ctc_loss", counting(module.ctc_loss))
    monkeypatch.setattr(patient, "ctc_loss_and_grad", counting(patient.ctc_loss_and_grad))
    assert ctcbind.diagnose(x, targets).ok
    assert 4 * x.size <= sum(numbers) < 5 * x.size
