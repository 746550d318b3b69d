"""A ReLU under a log-softmax, and a dropout after the last layer, are seen by numbers that are equal."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from mistakes import T, well

from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax


def logs(x, dtype=np.float32):
    return log_softmax(np.asarray(x, np.float64)).astype(np.float32).astype(dtype)


def found(given, x):
    return [each for each in diagnose(**given | {"logits": x}).findings if each.kind != "log_probabilities"]


def test_a_relu_under_a_log_softmax():
    """As in PyTorch, whose loss takes log-probabilities."""
    for seed in range(6):
        given = well(seed)
        x = np.maximum(given["logits"], 0)
        (finding,) = found(given, logs(x))
        assert (finding.kind, finding.harmless) == ("activation", True)
        assert "through a ReLU, or were clamped" in finding.means
        x[:, :, 2] = 0
        given["targets"][0][0] = 2
        finding = found(given, logs(x))[0]
        assert (finding.kind, finding.harmless) == ("activation", False)
        assert "those of class 2 at every frame" in finding.seen
        x[:, :, 0] = 0
        assert "those of classes 0, 2 at every frame" in found(given, logs(x))[0].seen


@pytest.mark.parametrize("share", [0.2, 0.5])
@pytest.mark.parametrize("lower", [0, 4])
@pytest.mark.parametrize("log", [False, True])
def test_a_dropout_after_the_last_layer(share, lower, log):
    """Of numbers around 0, and of labels that are below it, as on the plateau of blanks."""
    for seed in range(4):
        rng = np.random.default_rng([SEED, 90, seed])
        given = good(SEED + seed, "fresh", size=(60, 8, 20), plain=True)
        x = given["logits"] - lower * (np.arange(20) > 0) + rng.normal(size=given["logits"].shape)
        x = (x * (rng.random(x.shape) >= share) / (1 - share)).astype(np.float32)
        finding = found(given, logs(x) if log else x)[0]
        assert (finding.kind, finding.sure, finding.harmless) == ("activation", "likely", False)
        assert "a dropout after the last layer" in finding.means


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_what_is_neither(dtype):
    """Rounded numbers, floors of probabilities, masks, classes that are copies of each other, a ReLU before the last
    layer, the largest few of each frame."""
    for seed in range(30):
        given = good(SEED + seed, ("fresh", "biased", "trained", "halfway")[seed % 4], plain=True)
        x, rng = given["logits"].astype(np.float64), np.random.default_rng([SEED, 91, seed])
        C = x.shape[2]
        used = {label for row in given["targets"] for label in row} | {0}
        free = [k for k in range(C) if k not in used]
        masked, copied, largest = x.copy(), x.copy(), x.copy()
        masked[:, :, free[: C // 2]] = -1e4
        copied[:, :, free] = x[:, :, free[:1]]
        largest[x < np.partition(x, -3, axis=2)[:, :, -3:-2]] = 0
        floor = np.log(np.maximum(np.exp(logs(8 * x)), 1e-6))
        sparse = np.maximum(rng.normal(size=(*x.shape[:2], 16)), 0) @ rng.normal(size=(16, C))
        for each in (x, logs(x), logs(masked), logs(copied), floor, logs(sparse), copied, np.round(x, 3), np.round(x)):
            told = found(given, each.astype(dtype))
            assert not any("dropout" in one.means or "log-softmax" in one.means for one in told)
        assert not any("dropout" in one.means for one in found(given, largest.astype(dtype)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_without_labels_hardly_anything_does_harm(dtype):
    """A network that knows nothing says only blanks, and pays next to nothing: a floor of probabilities costs more than
    that, but not much. And classes that no label tells apart may be copies of each other."""
    for seed, how in ((1041, "fresh"), (1044, "biased"), (1089, "biased"), (5046, "fresh"), (5074, "fresh")):
        given = good(seed, how, plain=True)
        assert not any(given["targets"])
        x = given["logits"].astype(np.float64)
        floor = np.log(np.maximum(np.exp(logs(8 * x)), 1e-6))
        assert not any(one.kind == "activation" for one in found(given, floor.astype(dtype)))
        copied = np.concatenate([x[:, :, :1], np.repeat(x[:, :, 1:2], x.shape[2] - 1, axis=2)], axis=2)
        assert not any(one.kind == "softmax_twice" for one in found(given, logs(copied).astype(dtype)))
        clipped = logs(np.clip(8 * x, -1, 1)).astype(dtype)
        assert [one.kind for one in found(given, clipped)] == ["activation"], "which costs nats"


def test_a_large_batch_is_seen_by_a_part():
    given = well(1)
    x = np.tile(np.maximum(given["logits"], 0), (80, 1, 1))
    assert x.size > 1 << 20
    given["input_lengths"] = np.full(x.shape[1], 80 * T)
    assert found(given, logs(x))[0].kind == "activation"
