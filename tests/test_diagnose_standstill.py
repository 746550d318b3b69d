"""Steps that lead nowhere: losses that stand still, gradients that do not reach the weights, or are never set to 0."""

from __future__ import annotations

import warnings

import numpy as np
from batches import SEED
from good_batches import good
from mistakes import well
from test_diagnose_history import plateau

from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax


def test_the_plateau_of_blanks_is_no_standstill_yet():
    """On which all trainings are for some hundred steps."""
    for steps, sure in ((40, "possible"), (150, "possible"), (299, "possible"), (300, "likely"), (900, "likely")):
        history = [13.0 + 0.5 * np.sin(7 * step) for step in range(steps)]
        blank, finding = diagnose(**plateau(), history=history).findings
        assert (blank.kind, finding.kind, finding.sure) == ("all_blank", "not_learning", sure)
        assert ("for some hundred steps" in finding.means) == (sure == "possible")
    often = plateau()  # of labels that take more of the frames: the blank wins all of them, and is not sure
    often["logits"] = np.asarray(often["logits"]) - np.where(np.arange(10) == 0, np.log(8 / 1.5), 0)
    often["targets"] = [(row * 4)[:12] for row in ([1, 2, 3], [4, 6, 8], [5, 6, 7], [7, 8, 9, 1])]
    for steps, sure in ((40, "possible"), (300, "likely")):
        (finding,) = diagnose(**often, history=[34.0 + 0.5 * np.sin(7 * step) for step in range(steps)]).findings
        assert (finding.kind, finding.sure) == ("not_learning", sure)
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    (finding,) = diagnose(**fresh, history=[42.0] * 40).findings
    assert (finding.kind, finding.sure) == ("not_learning", "likely"), "no blanks, no plateau"


def test_a_loss_that_falls_from_batch_to_batch_unlike_is_no_standstill_yet():
    """Of a few samples a step: it has fallen, and not so much that it were sure."""
    rng = np.random.default_rng(3)
    history = (15 * 0.99 ** np.arange(40) * rng.uniform(0.6, 1.4, size=40)).tolist()
    assert diagnose(**plateau(), history=history).kinds == {"all_blank"}
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    (finding,) = diagnose(**fresh, history=(42 * rng.uniform(0.8, 1.2, size=28)).tolist()).findings
    assert (finding.kind, finding.sure) == ("not_learning", "possible")
    late = (15 * 0.9995 ** np.arange(800) * rng.uniform(0.6, 1.4, size=800)).tolist()
    assert diagnose(**plateau(), history=[*late[:-1], 15.0]).kinds == {"all_blank"}


def test_a_few_hard_samples_are_no_standstill():
    """Of which the network is sure, and wrong: they cost as much as all cost one that ignores its input."""
    targets = [[1 + (n + i) % 8 for i in range(4)] for n in range(8)]
    x = np.zeros((32, 8, 9))
    x[:, :, 0] = 9.0
    for n, row in enumerate(targets):
        for i, label in enumerate(row):
            x[3 + 7 * i, n, 0], x[3 + 7 * i, n, label] = 0.0, 9.0
    x[:, 6:, 0], x[:, 6:, 1:] = 25.0, 0.0  # blanks alone
    history = (8 + np.random.default_rng(0).normal(size=350)).tolist()
    found = diagnose(x, targets, history=history)
    assert found.measures is not None
    assert found.measures.loss > found.measures.constant_loss
    assert "not_learning" not in found.kinds


def test_gradients_that_do_not_reach_the_weights():
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    for norm in (0.0, 1e-12):
        (finding,) = diagnose(**fresh, history=[{"loss": 42.0, "grad_norm": norm}] * 30).findings
        assert (finding.kind, finding.means) == ("not_learning", "no gradient reaches the weights")
    assert "of all 30 steps are at most 1e-12" in finding.seen
    once = [{"grad_norm": 0.0}] * 9
    once[4] = {"grad_norm": 1e-3}
    assert diagnose(**fresh, history=once).ok
    given = well(0)
    given["logits"] = 4 * given["logits"]
    assert max(diagnose(**given).measures.grad_norms) < 1e-3
    assert diagnose(**given, history=[{"loss": 0.0, "grad_norm": 0.0}] * 9).ok, "there is nothing left to learn"
    given["logits"][2:, 0] = np.nan  # what stands in its place says blanks
    assert diagnose(**given, history=[{"loss": 0.0, "grad_norm": 0.0}] * 9).kinds == {"not_finite"}


def test_gradients_that_are_never_set_to_zero():
    """Their norm is that of a sum, which one step more or less hardly changes."""
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    for seed in range(4):
        rng = np.random.default_rng([SEED, 111, seed])
        losses = 42 + 8 * np.sin(np.arange(60) / 6) * rng.uniform(0.8, 1, size=60)
        each = rng.normal(size=(60, 30)) + 1.5 * rng.normal(size=30)
        summed, single = (np.linalg.norm(of, axis=1) for of in (np.cumsum(each, axis=0), each))
        finding = next(f for f in diagnose(**fresh, history=np.stack([losses, summed], 1)).findings)
        assert (finding.kind, finding.sure) == ("not_learning", "possible")
        assert "optimizer.zero_grad()" in finding.do
        assert "zero_grad()" not in str(diagnose(**fresh, history=np.stack([losses, single], 1)))
        noisy = np.geomspace(1, 20, 60) * np.exp(0.4 * rng.normal(size=60))
        assert "zero_grad()" not in str(diagnose(**fresh, history=np.stack([losses, noisy], 1)))
        assert diagnose(**well(seed), history=np.stack([losses, summed], 1)).ok, "it has learned"
        later = np.geomspace(0.1, 1.4, 60)  # as where a deep network begins to leave the plateau of blanks
        a_while = np.concatenate([np.geomspace(1, 20, 20), np.geomspace(18, 1, 40)])  # as of Adam with a large rate
        for healthy in (later, a_while):
            assert "zero_grad()" not in str(diagnose(**fresh, history=np.stack([losses, healthy], 1)))


def test_a_standstill_of_logits_without_room_names_what_takes_it():
    """Of a softsign, whose ends no number reaches; under a log-softmax as well."""
    rng = np.random.default_rng([SEED, 95])
    x = rng.normal(size=(40, 6, 10)) + 6.0 * (np.arange(10) == 0) - 3
    labels = [rng.integers(1, 10, size=5).tolist() for _ in range(6)]
    history = 20 + 0.1 * rng.normal(size=400)
    for each in (x / (1 + np.abs(x)), log_softmax(x / (1 + np.abs(x)))):
        told = [one for one in diagnose(each, labels, history=history).findings if one.kind == "not_learning"]
        assert [one.do.startswith("no frame's logits are more than ") for one in told] == [True]
    unit = x / np.linalg.norm(x, axis=2, keepdims=True)  # of which `activation` tells
    for each in (x, np.zeros_like(x), unit):
        (finding,) = (one for one in diagnose(each, labels, history=history).findings if one.kind == "not_learning")
        assert finding.do.startswith("see that the gradient reaches the weights")


def test_weights_that_are_as_good_as_new_after_many_steps():
    """Of a rate of 1e-7: that the loss seems to fall, from batch to batch unlike, makes no learning of it."""
    rng = np.random.default_rng([SEED, 96])
    x = rng.uniform(-0.5, 0.5, size=(60, 6, 20))
    given = x, [[n + 1, 7, 9] for n in range(6)]
    falls = np.linspace(182, 174, 120)
    (finding,) = diagnose(*given, history=falls).findings
    assert finding.kind == "not_learning"
    assert "apart, and the blank, which is learned first, wins " in finding.do
    assert "raise the learning rate ten times" in finding.do
    assert finding.means.startswith("the network says what it said at first: its steps are too short so far")
    assert diagnose(*given, history=falls[::3]).ok, "a beginning"
    assert diagnose(*given, history=np.linspace(220, 150, 120)).ok, "it does learn"
    uphill = diagnose(*given, history=np.linspace(150, 230, 120)).findings[0]
    assert "uphill" in uphill.means
    assert "raise the learning rate" not in str(uphill)
    many = [
        rng.integers(1, 20, size=18).tolist() for _ in range(6)
    ]  # of which a model that says what is frequent is no better
    assert diagnose(x[:30], many, history=falls).ok
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "as good as new" not in str(diagnose(x[:4, :1], [[]], [0], history=falls)), "of no frame"


def test_a_loss_above_that_of_a_uniform_model_tells_of_long_steps_if_it_stays_there():
    """Not after a few steps, nor where batches are not alike."""
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    wild = {**fresh, "logits": 10 * fresh["logits"]}
    for history, told in (([900.0] * 60, True), ([900.0] * 40, False), ([900.0, 20.0] * 30, False)):
        (finding,) = diagnose(**wild, history=history).findings
        assert finding.kind == "not_learning"
        assert ("worse than one that knows nothing: the steps are too long" in finding.means) == told
