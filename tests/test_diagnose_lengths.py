"""What is said of lengths: too short ones, samples without a path, down-sampling, alignments for targets."""

from __future__ import annotations

import re

import numpy as np
import pytest
from batches import SEED
from mistakes import T, spoken, well
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


@pytest.mark.parametrize(("layout", "axes", "order"), [("NTC", "N, C, T", (0, 2, 1)), ("TNC", "C, N, T", (2, 1, 0))])
def test_lengths_as_long_as_the_last_axis_are_of_logits_whose_classes_and_time_are_exchanged(layout, axes, order):
    x = np.zeros((3, 10, 40) if layout == "NTC" else (10, 3, 40))
    hint = f"the last axis of the logits is that long; if they are ({axes}), transpose them by {order}"
    with pytest.raises(ctcbind.InvalidInput, match=re.escape(f"only T = 10 time steps: {hint}") + "$"):
        ctcbind.ctc_loss(x, [[1]] * 3, [40, 30, 20], layout=layout)
    assert ctcbind.ctc_loss(x.transpose(order), [[1]] * 3, [40, 30, 20], layout=layout).shape == (3,)


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
    """By how much less the loss would be: a sixth of it is left, or more than a quarter. Few labels tell less."""
    for seed in range(6):
        given = well(seed)
        if np.median(list(map(len, given["targets"]))) < 5:
            continue
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


def test_what_is_said_of_infeasible_samples():
    x = np.random.default_rng(0).normal(size=(5, 3, 8))
    (finding,) = diagnose(x, [[1, 2], [1, 1, 1], [1, 2, 3, 4, 5, 6, 7]]).findings
    assert finding.samples == (2,)
    assert "7 labels for 5 frames, 2 fewer than the 7 needed" in finding.seen


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("round_up", [False, True])
def test_lengths_that_were_divided_once_too_often(factor, round_up):
    for seed in range(5):
        given = well(seed)
        given["input_lengths"] = np.maximum((spoken(given) + round_up * (factor - 1)) // factor, 1)
        (finding,) = diagnose(**given).findings
        assert finding.kind == "short_lengths"
        assert f"is {given['input_lengths'].max()} of T = {T} frames; with " in finding.seen


def test_target_lengths_in_the_place_of_input_lengths():
    x = np.random.default_rng(12).normal(size=(40, 3, 8))
    (finding,) = diagnose(x, [[1, 2, 2, 4], [3], [5, 6]], [4, 1, 2]).findings
    assert (finding.kind, finding.sure) == ("short_lengths", "likely")
    assert finding.seen == "each input length is the number of the sample's labels, at most 4 of T = 40 frames"
    assert "pass them as target_lengths=" in finding.do
    assert diagnose(x[:4], [[1, 2, 3, 4], [3], [5, 6]], [4, 1, 2]).ok


def test_shares_that_were_cut_to_whole_numbers():
    """As those of SpeechBrain: the longest sample has 1, all others are cut to 0."""
    x = np.random.default_rng([SEED, 133]).normal(size=(50, 4, 20))
    targets = np.array([[1, 2, 3, 4], [5, 6, 7, 0], [8, 9, 0, 0], [3, 0, 0, 0]])
    frames, counts = [1, 0, 0, 0], [1, 0, 0, 0]
    found = diagnose(x, targets, frames, counts)
    (finding,) = found.findings
    assert (finding.kind, finding.sure) == ("short_lengths", "likely")
    assert finding.seen == "all input lengths are 0 or 1, of T = 50 frames, and all target lengths too"
    assert "(shares * T).round().astype(int); those of the labels" in finding.do
    assert found.measures.frames == 200
    finding = diagnose(x, targets, frames, [4, 3, 2, 1]).findings[0]
    assert finding.seen == "all input lengths are 0 or 1, of T = 50 frames"
    assert diagnose(x[:9], targets[:, :1], [9, 9, 9, 9]).ok


def test_lengths_that_make_a_fresh_batch_infeasible():
    """A fresh network does not show that it goes on: what is not known is asked."""
    x = np.random.default_rng(12).normal(size=(40, 3, 8))
    (finding,) = diagnose(x, [[1, 2, 3, 4]] * 3, [3, 5, 2]).findings
    assert finding.kind == "infeasible"
    assert "input_lengths were not divided twice: the longest is 5 of T = 40 frames; or reduce" in finding.do
    (finding,) = diagnose(x, [[1, 2, 3, 4]] * 3, [3, 40, 2]).findings
    assert finding.do.startswith("reduce the down-sampling")


def test_input_lengths_that_are_all_0():
    finding = diagnose(np.zeros((9, 3, 5)), [[1, 2]] * 3, [0, 0, 0]).findings[0]
    assert (finding.kind, finding.samples) == ("infeasible", (0, 1, 2))
    assert finding.do.startswith("see where input_lengths are counted: those of these samples are 0; or ")
    assert "counted" not in diagnose(np.zeros((9, 3, 5)), [[1, 2]] * 3, [0, 1, 0]).findings[0].do


def test_lengths_that_are_all_a_fifth_less_are_not_in_another_order():
    """Though those of others would do for most samples."""
    told = 0
    for seed in range(20):
        rng = np.random.default_rng([SEED, 116, seed])
        targets = [rng.integers(1, 20, size=int(rng.integers(3, 11))).tolist() for _ in range(16)]
        paths = [[k for label in row for k in (label, *[0] * int(rng.integers(2, 12)))] for row in targets]
        frames = np.array(list(map(len, paths)))
        x = rng.normal(size=(frames.max(), 16, 20))
        for n, path in enumerate(paths):
            x[np.arange(len(x)), n, np.pad(path, (0, len(x) - len(path)))] += 25
        found = diagnose(x, targets, 4 * frames // 5).kinds
        assert found <= {"short_lengths"}
        told += len(found)
    assert told > 16, "in few samples it may be chance"


@pytest.mark.parametrize("how", ["some frames less", "in another order"])
def test_targets_that_are_read_to_their_end_after_the_input_lengths(how):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 20, size=int(rng.integers(3, 9))).tolist() for _ in range(16)]
        x = sure_of(targets, 20)
        frames = np.array([7 * len(row) + 3 for row in targets])
        assert not diagnose(x, targets, frames).findings
        given = np.maximum(frames - 9, 3) if how == "some frames less" else rng.permutation(frames)
        cut = [n for n in range(16) if given[n] < frames[n] - 5]
        behind = np.maximum(frames - given, 0) // 7  # labels after the ends
        found = [each for each in diagnose(x, targets, given).findings if each.kind in ("short_lengths", "mismatch")]
        if behind.sum() < 8 and not found:  # more, of 20 classes, in any of 16 samples, are no chance
            continue
        (finding, *_) = found
        if finding.kind == "mismatch":  # which tells the order itself
            assert how == "in another order"
            assert "input lengths in another order" in finding.seen
            continue
        assert finding.sure == "likely"
        assert set(finding.samples) >= set(cut)
        assert "read the end of their target after their input length" in finding.seen
