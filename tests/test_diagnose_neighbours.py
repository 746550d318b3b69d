"""A reshape in the place of a transposition is seen in what a network says before it has learned anything."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good

from ctcbind import diagnose
from ctcbind.diagnose_neighbours import _nearer
from ctcbind.engines.reference import log_softmax


def fresh(rng, T=80, N=8, C=20, width=8):
    """What a network with a view of `width` frames says when it begins, with biases of its own."""
    noise = rng.normal(size=(T + width - 1, N, 16))
    features = sum(noise[i : i + T] for i in range(width)) / np.sqrt(width)
    x = features @ rng.normal(size=(16, C)) * 0.3 + rng.normal(size=C) * 0.3
    targets = [rng.integers(1, C, size=int(rng.integers(2, 9))).tolist() for _ in range(N)]
    return x, targets, rng.integers(T // 2, T + 1, size=N)


@pytest.mark.parametrize("plateau", [0, 7])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_reshape_is_told_before_anything_is_learned(plateau, dtype):
    """Of nearly all networks: of 960 such the log-probabilities of 4 told nothing, and all logits did."""
    told = {}
    for seed in range(6):
        x, targets, frames = fresh(np.random.default_rng([SEED, 80, seed]))
        x = (x + plateau * (np.arange(20) == 0)).astype(dtype)
        T, N, C = x.shape
        rest = diagnose(x, targets, frames).kinds
        assert rest <= {"all_blank"}
        for given, layout, shapes, axes in (
            (x.transpose(1, 0, 2).reshape(T, N, C), "TNC", "(N, T, C) to (T, N, C)", "(1, 0, 2)"),
            (log_softmax(x.astype(float)).transpose(1, 0, 2).reshape(T, N, C), "TNC", "(N, T, C) to", "(1, 0, 2)"),
            (x.transpose(1, 2, 0).reshape(T, N, C), "TNC", "(N, C, T) to (T, N, C)", "(2, 0, 1)"),
            (x.transpose(1, 2, 0).reshape(N, T, C), "NTC", "(N, C, T) to (N, T, C)", "(0, 2, 1)"),
        ):
            found = diagnose(given, targets, frames, layout=layout)
            if "swapped_axes" not in found.kinds:
                continue
            told[shapes] = told.get(shapes, 0) + 1
            (finding,) = (each for each in found.findings if each.kind == "swapped_axes")
            assert shapes in finding.means
            assert f"transpose by {axes}" in finding.do
            assert finding.sure == "likely"
            assert found.kinds - rest <= {"swapped_axes", "log_probabilities"}
            assert found.measures.loss == pytest.approx(diagnose(x, targets, frames).measures.loss, rel=1e-6)
    assert len(told) == 4
    assert min(told.values()) >= 4, told  # of 6


def test_what_depends_on_the_place_in_time_alone_is_not_reshaped():
    """A fresh network with positions among its input says nearly the same in all samples."""
    for seed in range(20):
        rng = np.random.default_rng([SEED, 81, seed])
        x, targets, frames = fresh(rng, N=int(rng.integers(2, 9)), width=int(rng.integers(1, 9)))
        for share in (0.01, 0.1, 0.3):
            assert diagnose(x[:, :1] + share * x, targets, frames).ok


def test_classes_that_follow_one_number_are_not_in_the_order_of_time():
    """All of a frame by one feature, and by biases: few classes may have their weights in order by chance."""
    for seed in range(60):
        rng = np.random.default_rng([SEED, 82, seed])
        C = int(rng.integers(8, 20))
        x, targets, frames = fresh(rng, C=C)
        x = x[:, :, :1] * rng.normal(size=C) + 0.01 * x + rng.normal(size=C)
        assert "swapped_axes" not in diagnose(x, targets, frames).kinds
        x = x[:, :, :1] + 0.01 * x  # what all classes have in common a softmax does not show
        assert "swapped_axes" not in diagnose(x, targets, frames).kinds


def test_classes_in_an_order_of_their_own_are_not_in_that_of_time():
    """Notes of a scale: neighbours are alike, and the last is unlike the first."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 83, seed])
        x, targets, frames = fresh(rng, C=40)
        assert diagnose(np.cumsum(x, axis=2) / 4, targets, frames).kinds <= {"exploding_gradients"}


@pytest.mark.parametrize("kind", ["fresh", "biased", "trained"])
def test_nothing_is_found_in_good_batches_of_many_shapes(kind):
    for seed in range(40):
        rng = np.random.default_rng([SEED, 84, seed])
        size = tuple(int(rng.integers(*ends)) for ends in ((13, 90), (1, 20), (8, 60)))
        assert "swapped_axes" not in diagnose(**good(SEED + seed, kind, size=size)).kinds


def test_a_network_that_reads_its_labels_is_not_reshaped():
    """Where frames say one of few things, neighbours of most samples may be alike by chance; as it was drawn once."""
    assert diagnose(**good(603277)).ok


def test_frames_that_say_one_of_few_things_are_not_reshaped():
    """A fifth of all more or less may turn the median of what is either 0 or large."""
    for seed in range(60):
        rng = np.random.default_rng([SEED, 85, seed])
        T, N, C = int(rng.integers(13, 40)), int(rng.integers(2, 6)), int(rng.integers(3, 6))
        x = 9 * np.eye(C)[rng.integers(C, size=(T, N))] + 0.1 * rng.normal(size=(T, N, C))
        targets = [rng.integers(1, C, size=4).tolist() for _ in range(N)]
        assert "swapped_axes" not in diagnose(x, targets).kinds


def test_the_differences_that_are_told_are_those_of_whole_frames():
    """Summed over all classes: medians along the batch, from the last sample to the first, and in time."""
    x, targets, _ = fresh(np.random.default_rng([SEED, 86]), T=60, N=8, C=6, width=12)
    x = x.transpose(1, 0, 2).reshape(x.shape)
    finding = next(each for each in diagnose(x, targets).findings if each.kind == "swapped_axes")
    in_batch, over, in_time = (
        np.median(np.abs(one - other).sum(axis=-1))
        for one, other in ((x[:, 1:], x[:, :-1]), (x[1:, 0], x[:-1, -1]), (x[1:], x[:-1]))
    )
    assert f"along the batch differ by {in_batch:.3g}, the last sample" in finding.seen
    assert f"at the next frame by {over:.3g}, but neighbours in time by {in_time:.3g}" in finding.seen


def test_differences_are_nearer_by_medians_and_by_means():
    ones = np.ones(5)
    assert _nearer(0.4 * ones, ones)
    assert not _nearer(np.array([0, 0, 0, 0, 5.0]), ones)
    assert not _nearer(np.array([0, 0, 0.6, 0.6, 0.6]), ones)
    assert not _nearer(0.5 * ones, ones)


def test_windows_of_one_recording_that_are_read_are_not_reshaped():
    """Each begins a little after the one before, so that neighbours along the batch are alike, and all is well."""
    T, N, C = 60, 6, 12
    path = np.repeat([[0], [4], [0], [2], [0], [7], [0], [9], [0], [3], [0], [5]], 5)
    frames = np.minimum(np.arange(T)[:, None] + (np.arange(N) >= 3), T - 1)
    drift = 0.01 * np.arange(T * N).reshape(T, N, 1) * np.cos(np.arange(C))
    x, row = 9 * np.eye(C)[path[frames]] + drift, [4, 2, 7, 9, 3, 5]
    assert "swapped_axes" not in diagnose(x, [row] * N).kinds
    assert "swapped_axes" in diagnose(x, [[8, 1, 6, 10, 11, 1]] * N).kinds, "where it reads nothing they tell"


def test_few_frames_do_not_tell_a_reshape():
    """Of the last sample with the next frame of the first: as many as both have."""
    for last, told in ((11, False), (12, True)):
        rng = np.random.default_rng(88)
        x, _, _ = fresh(rng, width=20)
        x = x.transpose(1, 0, 2).reshape(x.shape)
        kinds = diagnose(x, [[1, 2, 3]] * 8, [80] * 7 + [last]).kinds
        assert ("swapped_axes" in kinds) == told
