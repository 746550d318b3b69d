"""Mistakes that are told by undoing them, and what looks like one and is none."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from test_diagnose_mismatch import random_targets, sure_of

from ctcbind import diagnose


@pytest.mark.parametrize("far", [False, True])
def test_labels_that_count_from_0_are_told_by_a_network_that_counts_from_1(far):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(4, 9))).tolist() for _ in range(16)]
        targets[0][1] = 1  # a blank among the labels, if they count from 0
        x = sure_of(targets, 9)
        if far:  # a network that errs: in every third sample at one label
            x = sure_of([row if n % 3 else [*row[:-1], row[-1] % 8 + 1] for n, row in enumerate(targets)], 9)
        assert far or diagnose(x, targets).ok
        from_0 = [[label - 1 for label in row] for row in targets]
        padded = np.full((16, 9), -1)
        for row, labels in zip(padded, from_0):
            row[: len(labels)] = labels
        for given in from_0, padded:
            finding = diagnose(x, given).findings[0]
            assert (finding.kind, finding.do) == ("blank_in_targets", "add 1 to every label")
            assert finding.sure == "certain"
            assert "with each label raised by 1 the median loss of" in finding.seen
            assert far or len(diagnose(x, given).findings) == 1
        shown = diagnose(x, from_0)
        right = diagnose(x, targets)
        assert shown.measures is not None
        assert right.measures is not None
        assert shown.measures.loss == right.measures.loss


def test_labels_that_count_from_1_are_told_by_a_network_that_counts_from_0():
    """As from Keras, whose blank is the last class."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 16, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(4, 9))).tolist() for _ in range(16)]
        targets[0][1] = 8  # a blank among the labels
        x = np.roll(sure_of(targets, 9), -1, axis=2)
        assert diagnose(x, [[label - 1 for label in row] for row in targets], blank=-1).ok
        (finding,) = diagnose(x, targets, blank=-1).findings
        assert (finding.kind, finding.sure) == ("blank_in_targets", "certain")
        assert finding.do == "subtract 1 from every label"
        assert finding.means == "the labels count from 1, where the network's count from 0: its blank is the last class"


def test_blanks_that_were_written_are_no_labels_that_count_from_0():
    """A network tells it: with its blanks left out, it reads the rest as it is given."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 8, size=6).tolist() for _ in range(16)]
        x = sure_of(targets, 9)
        written = [[*row[:3], 0, *row[3:]] if n % 3 else row for n, row in enumerate(targets)]
        (finding,) = diagnose(x, written).findings
        assert finding.kind == "blank_in_targets"
        assert "raised" not in finding.seen
        assert "leave the blanks out of the targets" in finding.do


def sure_of_each_frame(targets: list[list[int]], C: int) -> np.ndarray:
    """What a network says to which each frame is a label of its own: equal ones side by side, blanks before others."""
    x = np.random.default_rng(len(targets)).normal(size=(7 * max(map(len, targets)) + 6, len(targets), C)) * 0.3
    for n, row in enumerate(targets):
        frame = 0
        for before, label in zip([None, *row], row):
            x[frame : frame + 3, n, 0] += 8 * (label != before)
            frame += 1 if label == before else 4
            x[frame - 1, n, label] += 8
        x[frame:, n, 0] += 8
    return x


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_a_network_of_the_other_topology(topology):
    other = "simple" if topology == "ctc" else "ctc"
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        words = [rng.permutation(8)[:5] + 1 for _ in range(12)]
        targets = [np.repeat(word, rng.integers(1, 3, size=5)).tolist() for word in words]
        x = (sure_of if topology == "ctc" else sure_of_each_frame)(targets, 9)
        assert diagnose(x, targets, topology=topology).ok
        (finding,) = diagnose(x, targets, topology=other).findings
        assert (finding.kind, finding.sure, finding.do) == ("other_topology", "likely", f'pass topology="{topology}"')
        assert f'with topology="{topology}" the median loss of ' in finding.seen


@pytest.mark.parametrize("history", [None, [0.1] * 50])
def test_the_blank_at_the_other_end_and_the_labels_with_it(history):
    for seed in range(8):
        targets = random_targets(np.random.default_rng([SEED, seed]))
        x = sure_of(targets, 10)
        last, from_0 = np.roll(x, -1, axis=2), [[label - 1 for label in row] for row in targets]
        assert diagnose(last, from_0, blank=-1).ok
        for given, labels, blank, do in (
            (last, targets, 0, "pass blank=9 (or -1, the last), and subtract 1 from every label"),
            (x, from_0, -1, "pass blank=0, and add 1 to every label"),
        ):
            (finding,) = diagnose(given, labels, blank=blank, history=history).findings
            assert (finding.kind, finding.sure, finding.do) == ("blank_unused", "certain", do)


def test_a_shifted_blank_that_wins_most_frames_is_no_dominant_class():
    for seed in range(8):
        targets = random_targets(np.random.default_rng([SEED, seed]))
        x = np.zeros((60, 16, 10))
        x[:, :, 9] = 8
        for n, row in enumerate(targets):
            for i, label in enumerate(row):
                x[3 + 8 * i, n, [9, label - 1]] = 0, 8
        (finding,) = diagnose(x, targets).findings
        assert (finding.kind, "pass blank=9" in finding.do) == ("blank_unused", True)


@pytest.mark.parametrize("ragged", [False, True])
def test_a_reshape_in_the_place_of_a_transposition(ragged):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = random_targets(rng)
        x = sure_of(targets, 10)
        T, N, C = x.shape
        lengths = [min(7 * len(row) + int(rng.integers(3, 9)), T) for row in targets] if ragged else None
        assert diagnose(x, targets, lengths).ok
        for given, layout, shapes in (
            (x.transpose(1, 0, 2).reshape(x.shape), "TNC", "(N, T, C) to (T, N, C)"),
            (x.reshape(N, T, C), "NTC", "(T, N, C) to (N, T, C)"),
            (x.transpose(1, 2, 0).reshape(T, N, C), "TNC", "(N, C, T) to (T, N, C)"),
            (x.transpose(1, 2, 0).reshape(N, T, C), "NTC", "(N, C, T) to (N, T, C)"),
        ):
            (finding,) = diagnose(given, targets, lengths, layout=layout).findings
            assert (finding.kind, finding.sure) == ("swapped_axes", "certain")
            assert f"a reshape from {shapes} undone" in finding.seen


@pytest.mark.parametrize("backwards", [False, True])
def test_inputs_that_are_padded_in_front(backwards):
    for seed in range(8):
        targets = random_targets(np.random.default_rng([SEED, seed]))
        targets[3] = [*targets[3], 1, 2, 3, 4]  # one is the longest
        x = 2 * sure_of(targets, 10)
        T, lengths = len(x), np.array([7 * len(row) + 4 for row in targets])
        assert diagnose(x, targets, lengths).ok
        given = np.zeros_like(x)
        for n, length in enumerate(lengths):
            given[T - length :, n] = x[:length, n][::-1] if backwards else x[:length, n]
        (finding,) = diagnose(given, targets, lengths).findings
        assert (finding.kind, finding.sure) == ("padded_frames", "certain")
        assert finding.seen.startswith("with all T frames in reverse" if backwards else "of the last frames")


@pytest.mark.parametrize("axes", ["NCT", "TCN", "CTN", "CNT"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_axes_in_an_order_that_is_no_layout(axes, layout):
    targets = random_targets(np.random.default_rng(SEED), 16)
    x = 2 * sure_of(targets, 12)
    lengths = [7 * len(row) + 6 for row in targets]
    given = x.transpose(tuple(map("TNC".index, axes)))
    (finding,) = diagnose(given, targets, lengths, layout=layout).findings
    assert (finding.kind, finding.sure) == ("swapped_axes", "likely")
    assert f"read as ({', '.join(axes)}), they fit" in finding.seen
    moved = tuple(map(int, finding.do.partition("(")[2].partition(")")[0].split(", ")))
    assert (given.transpose(moved) == x).all()


def test_lengths_that_are_too_long_are_no_order_of_axes():
    """Where no axis is as long as the longest of them, also where classes are as many as samples."""
    targets = random_targets(np.random.default_rng(SEED), 16)
    for C in (12, 16, 200):
        x = 2 * sure_of(targets, C)
        lengths = np.array([7 * len(row) + 6 for row in targets])
        for given in (lengths + 1, lengths * 2):
            assert diagnose(x, targets, given).kinds == {"invalid"}


def test_as_many_frames_as_samples_that_are_swapped():
    """What is flat between its peaks hardly differs from one frame to the next, nor from one sample to the next."""
    for seed in range(4):
        targets = random_targets(np.random.default_rng([SEED, seed]), 55)
        flat = np.where((x := sure_of(targets, 10)) > 4, 8.0, -4.0)
        assert x.shape[0] == x.shape[1]
        assert diagnose(flat, targets).ok
        (finding,) = diagnose(flat.transpose(1, 0, 2), targets).findings
        assert (finding.kind, finding.seen.split(";")[0]) == ("swapped_axes", "T = N = 55")


def test_a_pair_of_equal_labels_that_is_read_as_one_is_no_topology():
    """The network errs there, and there alone."""
    targets = [[1, 2, 2, 3], [4, 5, 6], [7, 7, 1], [2, 8]]
    said = sure_of_each_frame(targets, 9)
    assert diagnose(said, targets).ok


def test_a_network_that_has_not_left_off_holding_labels_is_of_its_own_topology():
    """It is to say each in one frame, and is in doubt about a second one at some of them."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [(rng.permutation(8)[:6] + 1).tolist() for _ in range(12)]
        x = sure_of_each_frame(targets, 9)
        for n, row in enumerate(targets):
            i, k = rng.permutation(6)[:2].tolist()
            x[4 * i + 4, n, row[i]] += 10
            x[4 * k + 3, n, row[k] % 8 + 1] += 8.2  # and takes another for its like
        assert diagnose(x, targets, topology="simple").ok


def test_labels_that_are_mostly_said_twice_are_not_held():
    """Where each frame counts as another label, and the targets have them all."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        words = [rng.permutation(8)[:5] + 1 for _ in range(12)]
        targets = [np.repeat(word, 1 + (rng.random(5) < 0.75)).tolist() for word in words]
        assert diagnose(sure_of_each_frame(targets, 9), targets, topology="simple").ok


def test_labels_that_are_held_a_frame_too_long_are_no_repeats():
    """The second frame of one is nearly as likely the blank, in each sample; one that a network is sure of is told."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 52, seed])
        targets = [(rng.permutation(8)[:6] + 1).tolist() for _ in range(12)]
        x = sure_of_each_frame(targets, 9)
        assert diagnose(x, targets, topology="simple").ok
        for odds in (0.2, 2, 8):
            for n, row in enumerate(targets):
                second = 4 * (n % 6) + 4
                x[second, n, row[n % 6]] = x[second, n, 0] + odds
            assert diagnose(x, targets, topology="simple").ok == (odds < 8)


@pytest.mark.parametrize("share", [0.6, 0.7])
def test_the_last_blank_is_told_of_a_network_that_reads_a_part(share):
    """Samples of which it says but half are no better for it than for one that says blanks."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 46, seed])
        targets = random_targets(rng, 20)
        x = sure_of(targets, 11)
        silent = rng.permutation(20) >= share * 20
        for n in np.flatnonzero(silent):
            x[3 : 3 + 7 * ((len(targets[n]) + 1) // 2), n, 0] += 20
        assert diagnose(x, targets).ok
        (finding,) = diagnose(np.roll(x, -1, axis=2), targets).findings
        assert (finding.kind, finding.do) == (
            "blank_unused",
            "pass blank=10 (or -1, the last), and subtract 1 from every label",
        )
