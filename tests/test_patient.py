"""The batch as a diagnosis looks at it: its numbers by plain formulas, and measured anew where something changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import patient
from ctcbind.patient import Patient

T, N, C = 9, 6, 5
CHANGES = ["x", "labels", "frames", "blank", "topology"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng([SEED, 733])


@pytest.fixture(autouse=True, params=["in parts", "at once"])
def parts(request, monkeypatch):
    if request.param == "in parts":
        for name, value in (("PARTS", 4), ("IN_A_PART", 1), ("IN_A_BLOCK", 3 * N * C)):
            monkeypatch.setattr(patient, name, value)


def given(rng: np.random.Generator) -> dict[str, Any]:
    """The first sample has a path by the topology "simple" alone, the second has as many frames as it needs, the third
    has no path; none of their labels is a blank."""
    labels = [[1, 1, 2], [1, 1, 2], [1, 2] * 3, *(rng.integers(1, 3, size=size).tolist() for size in (0, 2, 4))]
    frames = np.array([3, 4, 5, *rng.integers(7, T + 1, size=3)])
    x = (3 * rng.normal(size=(T, N, C))).astype(np.float32)
    return {"x": x, "labels": labels, "frames": frames, "blank": 0, "topology": "ctc", "dtype": "float32"}


def changed(rng: np.random.Generator, name: str) -> dict[str, Any]:
    others = {
        "x": 2 * rng.normal(size=(T, N, C)),
        "labels": [[2], [1, 2, 1, 2, 1], [1], [2, 2], [], [1]],
        "frames": np.array([8, 3, 7, 6, 9, 8]),
        "blank": 4,
        "topology": "simple",
    }
    return {name: others[name]}


def measured(p: Patient) -> dict[str, Any]:
    names = (
        "fits losses uniform_losses constant_losses grad_norms inside count ends surest winners best rows posteriors"
    )
    means = {"loss", "uniform_loss", "constant_loss"}
    found = {name: np.copy(getattr(p, name)) for name in (*names.split(), *means)}
    return found | {"of class 1": p.posterior_of(1), "outputs": p.outputs()}


def alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    for name, value in one.items():
        if name == "outputs":
            assert value == other[name]
        else:
            np.testing.assert_array_equal(value, other[name], err_msg=name)


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_measured_is_measured_anew(rng, name):
    batch, change = given(rng), changed(rng, name)
    p, right = Patient(**batch), measured(Patient(**(batch | change)))
    before = measured(p)
    assert any(not np.array_equal(before[each], right[each]) for each in ("losses", "outputs", "best", "fits"))
    alike(measured(p.turned(**change)), right)
    alike(measured(p), before)
    p.change(**change)
    alike(measured(p), right)


def test_what_did_not_change_is_not_measured_again(rng):
    batch = given(rng)
    p = Patient(**batch)
    losses, winners = p.losses, p.winners
    p.change(labels=[list(row) for row in batch["labels"]])
    assert p.losses is losses
    p.change(frames=np.full(N, T))
    assert p.winners is winners
    assert p.turned(blank=4).winners is winners


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("blank", [0, 3])
def test_the_numbers_are_what_they_say(rng, topology, blank):
    batch = given(rng) | {"topology": topology, "blank": blank}
    p, x = Patient(**batch), batch["x"].astype(np.float64)
    labels, frames = batch["labels"], batch["frames"]
    inside = np.array([[t < frames[n] for n in range(N)] for t in range(T)])
    y = np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)
    options = {"blank": blank, "topology": topology}
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, frames, **options)
    fits = np.isfinite(loss)
    assert fits.tolist() == [topology == "simple", True, False, True, True, True]
    np.testing.assert_array_equal(p.fits, fits)
    np.testing.assert_allclose(p.losses, loss, rtol=1e-12)
    np.testing.assert_allclose(p.grad_norms, np.sqrt((grad**2).sum(axis=(0, 2))), rtol=1e-9)
    np.testing.assert_allclose(p.loss, loss[fits].mean(), rtol=1e-12)
    np.testing.assert_allclose(p.uniform_loss, ctcbind.ctc_loss(0 * x, labels, frames, **options)[fits].mean())
    assert p.count == inside.sum() == frames.sum()
    assert p.ends == (x[inside].min(), x[inside].max())
    np.testing.assert_array_equal(p.rows, x[inside])
    np.testing.assert_allclose(p.posteriors, y[inside], rtol=1e-12)
    np.testing.assert_allclose(p.surest, y[inside].max(axis=1), rtol=1e-12)
    np.testing.assert_allclose(p.posterior_of(2), y[inside][:, 2], rtol=1e-12)
    np.testing.assert_array_equal(p.best, x[inside].argmax(axis=1))
    for n, read in enumerate(p.outputs()):
        path = x[: frames[n], n].argmax(axis=1).tolist()
        merged = [k for t, k in enumerate(path) if not t or topology == "simple" or k != path[t - 1]]
        assert list(read) == [k for k in merged if k != blank]
    share = sum(len(labels[n]) for n in np.flatnonzero(fits)) / frames[fits].sum()
    of_constant = np.exp(p.constant)
    np.testing.assert_allclose(of_constant.sum(axis=2), 1)
    np.testing.assert_allclose(of_constant[..., blank], 1 - share)
    np.testing.assert_allclose(np.delete(of_constant, blank, axis=2), share / (C - 1))
    constant_losses = ctcbind.ctc_loss(p.constant, labels, frames, **options)
    np.testing.assert_allclose(p.constant_loss, constant_losses[fits].mean(), rtol=1e-12)


def test_the_batch_of_other_samples(rng):
    batch = given(rng) | {"topology": "simple", "blank": 3}
    p = Patient(**batch, lost=frozenset({1, 4}), made_up=frozenset({2}))
    for part, kept in ((p.without_lost(), [0, 2, 3, 5]), (p.without_made_up(), [0, 1, 3, 4, 5])):
        few = {"x": batch["x"][:, kept], "frames": batch["frames"][kept]}
        alike(measured(part), measured(Patient(**batch | few | {"labels": [batch["labels"][n] for n in kept]})))
        assert part.findings is p.findings
    assert p.without(frozenset()) is p
    assert len(p.without(frozenset(range(N))).every_loss_of(np.empty((T, 0, C)))) == 0


@pytest.mark.parametrize("told", [None, [0, 1, 4, 5], [1, 3, 5]])
def test_a_median_below_a_bound(rng, told):
    """Where it is not below, half of the samples may have told so."""
    p = Patient(**given(rng) | {"topology": "simple", "frames": np.full(N, T)})
    losses = p.losses[told] if told else p.losses
    right = np.median(losses)
    for bound in (
        *np.sort(losses),
        *(np.sort(losses) + 1e-9),
        right,
        right + 1e-9,
        *rng.uniform(0, 30, size=20),
        np.inf,
    ):
        found = p.median_in_parts(bound, told=told)
        assert found == right or (found == np.inf and right >= bound), bound
        if (losses >= bound).sum() * 2 > len(losses):
            assert found == np.inf


def test_what_a_model_that_says_the_same_everywhere_needs():
    """A share of labels, and of the blank, even where there are no labels, nothing else, or a single class."""
    one = Patient(np.zeros((4, 2, 1)), [[], []], np.array([4, 4]), 0, "ctc", "float64")
    assert one.constant_loss == one.uniform_loss == 0
    none = Patient(np.zeros((4, 2, 3)), [[], []], np.array([4, 4]), 0, "ctc", "float64")
    assert 0 < none.constant_loss < 1e-5
    full = Patient(np.zeros((4, 2, 3)), [[1, 2, 1, 2]] * 2, np.array([4, 4]), 0, "ctc", "float64")
    assert np.isfinite(full.constant_loss)
    hopeless = Patient(np.zeros((1, 2, 3)), [[1, 1]] * 2, np.array([1, 1]), 0, "ctc", "float64")
    assert np.isnan([hopeless.loss, hopeless.uniform_loss, hopeless.constant_loss]).all()


def test_the_surest_fresh_network():
    """Odds of e^3 among few classes, three quarters among many."""
    assert patient.confident(2) == pytest.approx(np.e**3 / (np.e**3 + 1))
    assert patient.confident(1000) == 0.75
