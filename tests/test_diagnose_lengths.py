"""The bounds of what is said of lengths: of samples without a path, of down-sampling, of alignments for targets."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from mistakes import spoken, well
from test_diagnose_mismatch import sure_of

import ctcbind
from ctcbind import diagnose
from ctcbind.down_sampling import down_sampling


def infeasible(targets, frames, T=40):
    """What is said of samples that have no path."""
    x = np.random.default_rng([SEED, 111]).normal(size=(T, len(targets), 8))
    (finding,) = (each for each in diagnose(x, targets, frames).findings if each.kind == "infeasible")
    return finding


def test_the_five_worst_of_the_samples_without_a_path_are_shown():
    rows = [[1, 2, 3, 4, 5, 6, 7, 1, 2, 3]] * 8
    finding = infeasible(rows, [9, 3, 8, 4, 7, 5, 6, 40])
    assert finding.samples == (0, 1, 2, 3, 4, 5, 6)
    assert [part.partition(":")[0] for part in finding.seen.split("; ")[1:]] == [f"sample {n}" for n in (1, 3, 5, 6, 4)]


def test_samples_of_0_frames_are_told_beside_others_that_have_some():
    finding = infeasible([[1, 2], [1, 2], [3]], [0, 40, 30])
    assert finding.samples == (0,)
    assert finding.do.startswith("see where input_lengths are counted: those of these samples are 0; or ")


def test_lengths_are_not_doubted_where_all_frames_are_too_few():
    """Or where a sample alone has half of them: a batch is wont to be as wide as its longest."""
    assert "divided twice" in infeasible([[1, 2, 3, 4]] * 2, [3, 20]).do
    assert "divided twice" not in infeasible([[1, 2, 3, 4]] * 2, [3, 21]).do
    assert "divided twice" not in infeasible([[1, 2] * 21, [1, 2, 3, 4]], [20, 2]).do


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1, 2, 3, 3, 3], [3, 1, 4, 2, 1]], "the 3 times 3 at the end of target 0"),
        ([[3, 3, 3, 3, 3], [3, 1, 4, 2, 1]], "the 5 times 3 at the end of target 0"),
        ([[1, 2, 4, 3, 3], [3, 1, 4, 2, 1]], ""),  # that short a run is none
        ([[1, 2, 3, 3, 3], [3, 1, 4, 2]], ""),  # rows of different lengths are not padded
        ([[1, 2, 3, 3, 3]], ""),  # nothing to be padded to
        ([[1, 2, 3, 3, 3], [3, 1, 4, 2, 1], [4, 3, 1, 2, 1]], ""),  # most samples without a path have another end
    ],
)
def test_equal_labels_at_the_end_may_be_padding(rows, told):
    finding = infeasible(rows, [4] * len(rows))
    assert ("are padding" in finding.do) == bool(told)
    assert told in finding.do


@pytest.mark.parametrize(
    ("longest", "T", "factor"),
    [
        (160, 40, 4),
        (162, 40, 4),  # half a frame more, which layers leave out at their edges
        (168, 40, 4),  # two
        (169, 40, None),  # more than that
        (41, 40, None),
        (40, 40, None),
        (20, 10, 2),
        (18, 9, None),  # in so few frames any length is as many times as another
        (22, 10, 2),  # one frame of ten may be left out
        (24, 10, None),  # two are too many
        (7600, 100, 75),  # a rounder number than those beside it
        (400_000, 40, 9600),
        (400_001, 40, None),  # no network makes one frame of so many samples
    ],
)
def test_by_what_lengths_are_to_be_divided(longest, T, factor):
    assert down_sampling(np.array([longest // 2, longest]), T) == factor


@pytest.mark.parametrize(("lengths", "times"), [([80, 79, 8], "2 times"), ([8, 81, 79], "about 2 times")])
def test_the_error_says_once_by_what_lengths_are_to_be_divided(lengths, times):
    x, targets = np.zeros((40, 3, 4)), [[1]] * 3
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.ctc_loss(x, targets, lengths)
    first, second = (n for n in range(3) if lengths[n] > 40)
    beyond = "but the logits have only T = 40 time steps"
    assert str(caught.value) == (
        f"input_lengths[{first}] is {lengths[first]}, {beyond}: divide input_lengths by 2, rounded as the network's "
        f"layers round: the longest, {max(lengths)}, is {times} T, and so they were counted before its down-sampling"
    )
    here, there = ctcbind.check(x, targets, lengths).problems
    assert (here.message, here.value) == (str(caught.value), lengths[first])
    assert there.message == f"input_lengths[{second}] is {lengths[second]}, {beyond}"


def test_the_error_does_not_divide_lengths_that_are_too_long_for_another_reason():
    x = np.zeros((40, 2, 4))
    for lengths in ([41, 40], [60, 100], np.array([2**63 + 5, 3], np.uint64)):
        with pytest.raises(ctcbind.InvalidInput, match=r"only T = 40 time steps$"):
            ctcbind.ctc_loss(x, [[1], [2]], lengths)


def test_negative_lengths_are_divided_by_nothing():
    assert down_sampling(np.array([160, 120]), 40) == 4
    assert down_sampling(np.array([160, -1]), 40) is None


def test_lengths_that_were_divided_by_16():
    rng = np.random.default_rng([SEED, 112])
    targets = [rng.integers(1, 12, size=int(rng.integers(20, 24))).tolist() for _ in range(6)]
    frames = np.array([7 * len(row) + 6 for row in targets])
    (finding, *_) = diagnose(sure_of(targets, 12), targets, frames // 16).findings
    assert finding.kind == "short_lengths"
    assert "; with 16 times these lengths" in finding.seen


@pytest.mark.parametrize(("scale", "sure"), [(0.3, "certain"), (0.25, "likely")])
def test_how_sure_it_is_that_lengths_were_divided(scale, sure):
    """By how much less the loss would be: a sixth of it is left, or more than a quarter."""
    for seed in range(3):
        given = well(seed)
        half = {"logits": scale * given["logits"], "input_lengths": np.maximum(spoken(given) // 2, 1)}
        (finding,) = (each for each in diagnose(**given | half).findings if each.kind == "short_lengths")
        assert "instead of" in finding.seen
        assert finding.sure == sure


def alignments(rows, C=6):
    """The rows as labels of frames, and what a fresh network says there."""
    return np.random.default_rng([SEED, 113]).normal(size=(len(rows[0]), len(rows), C)), rows


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([[1, 1, 2, 2, 2], [3, 3, 3, 4, 4], [5, 5, 1, 1, 1], [2, 2, 2, 2, 2]], True),
        ([[1, 1, 2, 2, 2], [3, 3, 3, 4, 4], [5, 5, 1, 1, 1]], False),  # 15 labels may be as many by chance
        ([[1, 2, 3, 2, 2], [3, 4, 3, 4, 4], [5, 5, 1, 2, 1], [2, 1, 2, 2, 3]], False),  # few are held
        ([[1, 2, 2, 3, 3], [3, 3, 4, 4, 4], [5, 5, 1, 2, 2], [2, 2, 2, 3, 3]], True),  # half of them are
    ],
)
def test_labels_of_frames_are_held(rows, told):
    assert ("frame_labels" in diagnose(*alignments(rows)).kinds) == told


def test_labels_of_frames_are_well_where_each_frame_counts():
    """Such a loss may be given one for each."""
    x, rows = alignments([[1, 1, 2, 2, 2]] * 4)
    assert "frame_labels" in diagnose(x, rows).kinds
    assert "frame_labels" not in diagnose(x, rows, topology="simple").kinds
