"""What stands between the last layer and a log-softmax: a tanh, a sigmoid, a clamp, a normalisation, a factor."""

from __future__ import annotations

import re

import numpy as np
import pytest
from batches import SEED
from good_batches import good, smooth
from mistakes import C, well
from test_diagnose_mismatch import random_targets, sure_of

from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax

BOUNDED = {
    "a sigmoid": (lambda x: 1 / (1 + np.exp(-2 * x)), 1),
    "a tanh": (np.tanh, 2),
    "clamped to -1 and 1": (lambda x: np.clip(x, -1, 1), 2),
    "clamped to 0 and 1": (lambda x: np.clip(0.5 + x, 0, 1), 1),
    "a clamp": (lambda x: np.clip(x, -0.7, 0.8), 1.5),
}


def logs(x, dtype="float32"):
    """As PyTorch gives them: half precision is rounded from float32."""
    return log_softmax(np.asarray(x, np.float64)).astype("float64" if dtype == "float64" else "float32").astype(dtype)


def others(given, x):
    """What is found beside log-probabilities."""
    first, *rest = diagnose(**given | {"logits": x}).findings
    assert (first.kind, first.harmless) == ("log_probabilities", True)
    return rest


def kinds(given, x):
    return diagnose(**given | {"logits": x}).kinds


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", BOUNDED)
def test_what_leaves_the_log_softmax_no_room(name, dtype):
    """Of a trained network that is at both ends, and of one on the plateau of blanks."""
    activation, width = BOUNDED[name]
    for seed in range(6):
        rng = np.random.default_rng([SEED, 98, seed])
        given = well(seed)
        trained = 4 * (given["logits"].astype(np.float64) - given["logits"].mean())
        plateau = 2 * smooth(rng, 60, 6, C, 1.0) - 2 + 5 * (np.arange(C) == 0)
        fresh = {"targets": [[1, 2, 3]] * 6}
        for of, x in (given, trained), (fresh, plateau):
            found = diagnose(**of | {"logits": logs(activation(x), dtype)}).findings
            if width == 1 and of is given and "softmax_twice" in {each.kind for each in found}:
                continue  # one class near 1, the others near 0: what a softmax gives, and does the same harm
            (finding,) = (each for each in found if each.kind == "activation")
            assert (finding.sure, finding.harmless) == ("likely", False)
            assert name in finding.means
            most = float(re.findall(r"no class gets more than (\S+),", finding.means)[0])
            assert most == pytest.approx(np.exp(width) / (np.exp(width) + C - 1), rel=0.01)
            assert "activation" not in kinds(of, logs(x, dtype))
            roomy = diagnose(**of | {"logits": logs(20 * activation(x), dtype)}).findings
            assert all(each.harmless for each in roomy if each.kind == "activation")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_normalisation_under_a_log_softmax(dtype):
    """A LayerNorm without weights, whose frames have a mean of 0."""
    for seed in range(6):
        targets = random_targets(np.random.default_rng([SEED, 99, seed]))
        x = sure_of(targets, 12)
        unit = (x - x.mean(axis=2, keepdims=True)) / x.std(axis=2, keepdims=True)
        (finding,) = others({"targets": targets}, logs(0.5 * unit, dtype))
        assert (finding.kind, finding.sure, finding.harmless) == ("activation", "certain", False)
        assert finding.seen.startswith(
            "the vector of log-probabilities less their mean of each frame has the Euclidean"
        )
        assert not others({"targets": targets}, logs(30 * unit, dtype))
        moved = unit * np.linspace(1, 1.01, len(x))[:, None, None]
        assert "activation" not in kinds({"targets": targets}, logs(0.5 * moved, dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_logits_that_were_made_smaller_before_a_log_softmax(dtype):
    for seed in range(6):
        targets = random_targets(np.random.default_rng([SEED, 100, seed]))
        x = sure_of(targets, 12)
        assert not others({"targets": targets}, logs(x, dtype))
        (finding,) = others({"targets": targets}, logs(0.1 * x, dtype))
        assert (finding.kind, finding.sure) == ("scaled_logits", "likely")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_nothing_is_found_under_a_log_softmax_where_nothing_is_wrong(dtype):
    for seed in range(60):
        given = good(SEED + seed, plain=True)
        if given["logits"].shape[2] > 2 and given["logits"].size > 500:
            assert not others(given, logs(given["logits"], dtype)), seed


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("C", [5, 28, 200])
def test_biases_that_are_so_far_apart_are_no_ends(C, dtype):
    """What is left of the features is small beside them, in some dtypes smaller than their rounding."""
    for seed in range(2):
        rng = np.random.default_rng([SEED, 101, seed])
        spread = rng.uniform(size=C)
        spread[:2] = 0, 1
        for bias in (2 * np.eye(C)[0], np.eye(C)[0], 2 * spread, spread, 1.999 * np.eye(C)[0]):
            for least in (0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5):
                if least < np.finfo(dtype).eps:
                    continue  # nothing but the biases is left
                x = bias + least * rng.normal(size=(60, 8, C))
                assert "activation" not in kinds({"targets": [[1, 2, 3]] * 8}, logs(x, dtype)), (least, bias[:3])


@pytest.mark.parametrize("name", ["a tanh", "clamped to -1 and 1", "clamped to 0 and 1"])
def test_a_network_that_has_come_to_the_ends_and_stays_there(name):
    """Trainings end so: blanks at all frames, and nothing else, to the last bit or nearly."""
    activation, _ = BOUNDED[name]
    few_come_nearest = [[seed, 103, 0] for seed in (100355, 100421, 100487)]
    for drawn in [[SEED, 103, seed] for seed in range(6)] + few_come_nearest:
        rng = np.random.default_rng(drawn)
        x = smooth(rng, 60, 6, C, 1.0) - 6 + 12 * (np.arange(C) == 0)
        told = [each for each in diagnose(logs(activation(x)), [[1, 2, 3]] * 6).findings if not each.harmless]
        assert any(name in each.means or each.kind == "softmax_twice" for each in told)


def test_frames_that_do_not_crowd_at_what_is_farthest_apart():
    """They go up to it alike, as by chance; and too few tell nothing."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 104, seed])
        ends = rng.uniform(-0.7, 0.7, size=(60, 6, C))
        ends[:, :, :6] = [-1, 1] * 3
        ends = rng.permuted(ends, axis=2)
        size = np.append(rng.uniform(0.95, 1, size=359), 1).reshape(60, 6, 1)
        labels = [[1, 2, 3]] * 6
        assert "activation" not in kinds({"targets": labels}, logs(size * ends))
        assert "activation" in kinds({"targets": labels}, logs(ends))
        assert "activation" not in kinds({"targets": [[1]]}, logs(ends[:8, :1]))
