"""Targets of which something was made that a CTC loss is not to be given, and a network that tells it."""

from __future__ import annotations

import re
from itertools import chain, groupby

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from test_diagnose_mismatch import sure_of

from ctcbind import check, diagnose

C = 12


def words(seed: int, count: int = 16) -> list[list[int]]:
    """Labels of 1..9 of which two are equal somewhere in each row."""
    rng = np.random.default_rng([SEED, seed])
    rows = [rng.integers(1, 10, size=int(rng.integers(3, 7))).tolist() for _ in range(count)]
    for row in rows:
        row.insert(1, row[0])
    return rows


HABITS = {
    "class 11 after it": lambda rows: [[*row, 11] for row in rows],
    "class 10 before it and class 11 after it": lambda rows: [[10, *row, 11] for row in rows],
    "class 10 before it": lambda rows: [[10, *row] for row in rows],
    "class 3 after it": lambda rows: [[*row, 3] for row in rows],
    "the first 4 labels": lambda rows: [row[:4] for row in rows],
    "without its first label": lambda rows: [row[1:] for row in rows],
    "without its last label": lambda rows: [row[:-1] for row in rows],
    "without its last 2 labels": lambda rows: [row[:-2] for row in rows],
    "without its first 3 labels": lambda rows: [row[3:] for row in rows],
    "each label once": lambda rows: [list(dict.fromkeys(row)) for row in rows],
    "each label once, sorted": lambda rows: [sorted(set(row)) for row in rows],
    "without its second, fourth label and so on": lambda rows: [row[::2] for row in rows],
    "without its first, third label and so on": lambda rows: [row[1::2] for row in rows],
    "with class 10 between its labels": lambda rows: [[j for k in row for j in (k, 10)][:-1] for row in rows],
    "sorted": lambda rows: [sorted(row) for row in rows],
    "with equal labels in a row made one": lambda rows: [[k for k, _ in groupby(row)] for row in rows],
    "and class 11 among its labels, which": lambda rows: [[j for k in row for j in (k, 11)] for row in rows],
    "and classes 10, 11 among its": lambda rows: [[j for k in row for j in (k, 10 + k % 2)] for row in rows],
    "without class 4": lambda rows: [[k for k in row if k != 4] for row in rows],
    "without classes 2, 4": lambda rows: [[k for k in row if k not in (2, 4)] for row in rows],
    "other classes: 9 for 1, 8 for 2, 7 for 3": lambda rows: [[10 - k for k in row] for row in rows],
    "fewer classes: 1 for 6, 2 for 7, 3 for 8, 4 for 9": lambda rows: [[(k - 1) % 5 + 1 for k in row] for row in rows],
}


@pytest.mark.parametrize("habit", HABITS)
def test_what_was_done_to_targets(habit):
    for seed in range(8):
        rows = [[*row, 4, 2, 7] for row in words(seed)]
        rows[1] = [5, 3, 9, 6, 8, 1, *rows[1]]  # all classes are said
        rows[0].append(7)  # else equal labels may stand at the front alone: made one, they are a row without its first
        x = sure_of(rows, C)
        assert diagnose(x, rows).ok
        given = HABITS[habit](rows)
        assert check(x, given).ok
        found = diagnose(x, given)
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert f"{len(finding.samples)} of 16 samples have " in finding.seen
        assert habit in finding.seen
        assert len(finding.samples) == sum(a != b for a, b in zip(rows, given))
        assert found.measures.loss < 0.1 * found.measures.constant_loss, "it is put right for what comes after"


def test_a_network_that_says_few_classes_yet_lacks_no_mark():
    """On its way from the plateau it says the most frequent ones: the rest are no spaces or marks."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 113, seed])
        rows = [rng.integers(1, 12, size=12).tolist() for _ in range(32)]
        for known in range(2, 5):
            read = [[label for label in row if label <= known] for row in rows]
            assert "which it never reads" not in str(diagnose(sure_of(read, 12), rows))


def test_a_class_that_the_network_thinks_of_is_about_to_be_learned():
    for seed in range(8):
        rng = np.random.default_rng([SEED, 114, seed])
        rows = [rng.integers(1, 10, size=12).tolist() for _ in range(16)]
        x = sure_of([[label for label in row if label != 3] for row in rows], 12)
        assert "class 3 among its labels, which it never reads" in str(diagnose(x, rows))
        x[:, :, 3] += 6 * (x[:, :, 0] > 4)  # an eighth of the blank's probability
        assert "which it never reads" not in str(diagnose(x, rows))


def test_padding_with_a_label_up_to_the_longest_targets():
    """Which end in others. That it stands in runs inside them as well hides it from those who have only the targets."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 125, seed])
        rows = [[5, 5, 5, *rng.integers(1, 10, size=int(rng.integers(1, 4))).tolist(), 8] for _ in range(32)]
        rows[3], rows[9] = [5, 5, 2, 5, 5, 5, 1, 2], [1, 5, 5, 8, 5, 5, 5, 4]
        x = sure_of(rows, C)
        (finding,) = diagnose(x, [row + [5] * (8 - len(row)) for row in rows]).findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert "and class 5 after it up to 8 labels" in finding.seen
        assert len(finding.samples) == 30


def test_a_last_label_that_a_network_overlooks_is_no_padding():
    """Of targets that are all as long, and mostly end in the same label."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 130, seed])
        rows = [[*rng.integers(2, 10, size=5).tolist(), 1 if n > 1 else 2] for n in range(32)]
        said = [row[:-1] if n % 5 else row for n, row in enumerate(rows)]
        assert "the targets were padded" not in str(diagnose(sure_of(said, C), rows))


def test_padding_with_a_label_that_stands_in_runs_inside_targets_too():
    """By the targets alone it might be another of its runs: that it is padding, the network tells."""
    for seed in range(8):
        rows = [[*row[:2], *[5] * 8, *row[2:], 4, 2, 7] for row in words(seed)]
        x, width = sure_of(rows, C), max(map(len, rows)) + 1
        assert diagnose(x, rows).ok
        (finding,) = diagnose(x, [[*row, *[5] * (width - len(row))] for row in rows]).findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert finding.seen.startswith("16 of 16 samples have ")
        assert f"and class 5 after it up to {width} labels" in finding.seen
        assert finding.do.startswith("pass target_lengths")


@pytest.mark.parametrize("habit", [each for each in HABITS if not re.search("second|third", each)])
def test_what_was_done_to_targets_beside_errors_of_the_network(habit):
    """A label is read wrong in most texts: few are explained to the last label, and still it is told."""
    for seed in range(4):
        rng = np.random.default_rng([SEED, 111, seed])
        rows = [rng.integers(1, 10, size=int(rng.integers(18, 22))).tolist() for _ in range(16)]
        for row in rows[: 16 if "equal" in habit else 0]:
            row[5:5] = [row[5]] * 4  # of the repeats that a network says by mistake there are fewer
        rows[1][:9] = range(1, 10)
        read = [list(row) for row in rows]
        for row in read[:12]:
            i = int(rng.integers(6, len(row) - 1))
            row[i] = (row[i] + int(rng.integers(1, 8)) - 1) % 9 + 1
        x = sure_of(read, C)
        assert diagnose(x, rows).ok
        found = [each for each in diagnose(x, HABITS[habit](rows)).findings if habit in each.seen]
        assert [(each.kind, each.sure) for each in found] == [("mismatch", "likely")], seed
        assert len(found[0].samples) > 8


def by_mistake(rng, kind, label):
    """What is read in the place of one label of 300 classes."""
    if rng.random() < {"other labels": 0.04, "labels twice": 0.12}.get(kind, 0):
        return [int(rng.integers(1, 300))]
    if rng.random() < 0.12 and kind == "labels twice":
        return [label, label]
    return [label]


@pytest.mark.parametrize("kind", ["other labels", "labels twice"])
def test_what_is_read_by_mistake_was_not_done_to_targets(kind):
    """Of many classes each that is read by mistake may be in no target; a network that says labels twice makes other
    errors too."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 113, seed])
        words = [rng.integers(1, 300, size=3).tolist() for _ in range(20)]
        rows = [[label for word in rng.integers(20, size=6) for label in words[word]] for _ in range(32)]
        read = [[each for label in row for each in by_mistake(rng, kind, label)] for row in rows]
        assert diagnose(sure_of(read, 300), rows).ok


def test_a_network_that_says_much_more_than_its_targets_has_not_seen_its_classes_left_out():
    """Noise is read as labels of any class, most of which are in no target."""
    for seed in range(4):
        rng = np.random.default_rng([SEED, 114, seed])
        rows = [rng.choice([1, 2, 3, 5, 8, 13], size=12).tolist() for _ in range(64)]
        x = rng.normal(size=(150, 64, 300))
        for n, row in enumerate(rows):
            said = np.zeros(150, int)
            said[6 : 6 + 12 * len(row) : 12] = row
            x[np.arange(150), n, said] += 4.1
        assert "without" not in "".join(each.seen for each in diagnose(x, rows).findings)


def test_errors_that_are_left_are_counted_beside_those_that_are_explained():
    rng = np.random.default_rng([SEED, 112])
    rows = [rng.integers(1, 10, size=20).tolist() for _ in range(16)]
    read = [row if n else [*row[:9], row[9] % 9 + 1, *row[10:]] for n, row in enumerate(rows)]
    (finding,) = diagnose(sure_of(read, C), [[10, *row, 11] for row in rows]).findings
    assert finding.seen == (
        "16 of 16 samples have what the network reads for their target, with class 10 before it and class 11 after it; "
        "that leaves 1 error in 352 labels, of 33 as they are given"
    )


HERE_AND_THERE = {
    "with equal labels in a row made one": lambda rows: [[k for k, _ in groupby(row)] for row in rows],
    "without class 4": lambda rows: [[k for k in row if k != 4] for row in rows],
    "and class 11 among its labels": lambda rows: [[j for k in row for j in (k, 11)[: 1 + (k < 3)]] for row in rows],
}


@pytest.mark.parametrize("habit", HERE_AND_THERE)
def test_what_was_done_to_some_targets_beside_errors_of_the_network(habit):
    """Errors in samples that are as they were are not held against it."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 109, seed])
        rows = [rng.permutation([1, 2, 4, *rng.permutation([3, 5, 6, 7, 8, 9])[:3]]).tolist() for _ in range(32)]
        for row in rows[:12]:
            row.insert(1, row[0])
        for row in rows[12:]:
            row[:] = [k for k in row if k not in (1, 2, 4)]
        rows[27:] = [[3, 5, 6], [5, 7, 8], [6, 8, 9], [7, 9, 3], [8, 3, 5]]  # none is another in reverse
        read = [row[::-1] if n >= 27 else row for n, row in enumerate(rows)]
        x = sure_of(read, C)
        assert "mismatch" not in {each.kind for each in diagnose(x, rows).findings if each.sure == "likely"}
        found = [each for each in diagnose(x, HERE_AND_THERE[habit](rows)).findings if habit in each.seen]
        assert [(each.kind, each.sure, len(each.samples)) for each in found] == [("mismatch", "likely", 12)]


def test_rare_classes_that_are_not_read_are_errors():
    for seed in range(8):
        rng = np.random.default_rng([SEED, 110, seed])
        rows = [rng.integers(1, 1000, size=6).tolist() for _ in range(32)]
        read = [row[1:] if n < 6 else row for n, row in enumerate(rows)]
        assert "which it never reads" not in str(diagnose(sure_of(read, 1000), rows))


def test_labels_that_were_added_twice():
    """Where the network holds them for one frame or for two; for two each, they may be labels of another topology."""
    for seed in range(8):
        rows = words(seed)
        x = sure_of(rows, C)
        x[4:-6:14] = x[2:-6:14]  # every other label lasts one frame
        (finding,) = diagnose(x, [[k for k in row for _ in range(2)] for row in rows]).findings
        assert (finding.kind, finding.sure, len(finding.samples)) == ("mismatch", "likely", 16)
        assert "each label of it twice" in finding.seen


JOINED = {
    "those of the next sample": lambda rows: [row + after for row, after in zip(rows, [*rows[1:], rows[0]])],
    "those of the next sample, if there is one": lambda rows: [a + b for a, b in zip(rows, [*rows[1:], []])],
    "those of the one before": lambda rows: [before + row for row, before in zip(rows, [rows[-1], *rows[:-1]])],
    "those of any sample in six of them": lambda rows: [row + rows[9] * (n < 6) for n, row in enumerate(rows)],
    "those of the sample again in six of them": lambda rows: [row * (1 + (n < 6)) for n, row in enumerate(rows)],
}


@pytest.mark.parametrize("mistake", JOINED)
def test_labels_of_two_samples_in_one_target(mistake):
    for seed in range(8):
        rows = words(seed)
        x = np.pad(sure_of(rows, C), [(0, 60), (0, 0), (0, 0)])
        x[-60:, :, 0] += 8
        assert diagnose(x, rows).ok
        given = JOINED[mistake](rows)
        found = diagnose(x, given)
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert finding.samples == tuple(n for n, (a, b) in enumerate(zip(rows, given)) if a != b)
        assert ("twice" in finding.means) == ("again" in mistake)
        if "next" in mistake:
            assert "sample 0 reads " in finding.seen
            assert "its target holds what sample 1 reads as well" in finding.seen
        assert found.measures.loss < 0.1 * found.measures.constant_loss, "it is put right for what comes after"


@pytest.mark.parametrize("sure", [True, False])
def test_targets_that_are_added_up(sure):
    """They tell it by themselves, before the network has learned anything."""
    for seed in range(8):
        rows = words(seed)
        T = 2 * sum(map(len, rows))
        x = np.random.default_rng([SEED, seed]).normal(size=(T, 16, C))
        if sure:
            x = np.concatenate([sure_of(rows, C), np.broadcast_to(8.0 * (np.arange(C) == 0), (T, 16, C))])
        for given, said in (
            ([row + row for row in rows], "each of the 16 targets is a row of labels twice"),
            ([list(chain(*rows[: n + 1])) for n in range(16)], "each target begins with all of the one before it"),
        ):
            found = diagnose(x, given)
            (finding,) = found.findings
            assert (finding.kind, finding.sure) == ("targets_added_up", "likely")
            assert finding.seen.startswith(said)
            assert found.measures.labels == sum(map(len, rows))


def test_targets_that_the_network_reads_are_not_added_up():
    """However they look: each is a row of labels twice, or begins with the one before it."""
    rows = words(5, 8)
    twice = [row + row for row in rows]
    more = [list(chain(*rows[: n + 1])) for n in range(6)]
    for targets in (twice, more):
        assert diagnose(sure_of(targets, C), targets).ok
        fresh = np.random.default_rng([SEED, 115]).normal(size=(300, len(targets), C))
        assert "targets_added_up" in diagnose(fresh, targets).kinds


def test_targets_that_are_alike_by_chance_are_not_added_up():
    fresh = np.random.default_rng(SEED).normal(size=(40, 4, C))
    for given in (
        [[1, 1], [2, 2], [3, 3], [4, 4]],
        [[1, 2, 3, 4, 5, 6] * 2] * 4,
        [[], [1], [1, 2], [1, 2, 3]],
        [[1, 2, 1, 2], [3, 4, 3, 4], [5, 6, 7, 5, 6, 7], [8, 9, 1, 8, 9, 2]],
        [[1] * (n + 5) for n in range(4)],
    ):
        assert diagnose(fresh, given).ok, given


def test_one_row_of_all_labels_that_is_cut_elsewhere():
    for seed in range(8):
        rows = words(seed)
        x, counts = sure_of(rows, C), [len(row) for row in rows]
        assert diagnose(x, np.concatenate(rows), target_lengths=counts).ok
        finding, *_ = diagnose(x, np.concatenate(rows), target_lengths=sorted(counts)).findings
        assert (finding.kind, finding.do) == ("mismatch", "sort and shuffle targets and target_lengths together")


def test_what_is_no_habit_of_the_targets():
    """A network that lacks a label in some places, targets that are all alike, few samples, few labels."""
    rows = [[*row, 4] for row in words(0)]
    x = sure_of(rows, C)
    other = [row if n % 2 else [*row, 11] for n, row in enumerate(rows)]
    assert "class 11" not in str(diagnose(x, other))
    assert "class 11" not in str(diagnose(x[:, :2], [[*row, 11] for row in rows[:2]]))
    alike = sure_of([[1, 2]] * 16, C)
    assert "class 11" not in str(diagnose(alike, [[1, 2, 11]] * 16)), "no frame tells whether it has begun to learn"
    assert "first 0 labels" not in str(diagnose(x, [[]] * 16)), "of no labels none tells what was done to them"
    assert "without classes" not in str(diagnose(x, [[k for k in row if k == 4][:1] for row in rows[:3]] + [[]] * 13))
    silent = 0.3 * np.random.default_rng(SEED).normal(size=(20, 16, C)) + 8 * (np.arange(C) == 0)
    assert diagnose(silent, [[5]] * 16).kinds <= {"all_blank"}


@pytest.mark.parametrize("every", [2, 3])
def test_targets_without_labels_where_the_network_reads_some(every):
    """As of texts that are missing; not where it says something to silence, or reads the others wrong."""
    for seed in range(8):
        rows = words(seed)
        rows[0], rows[6] = rows[0][:1], rows[6][:1]
        x = sure_of(rows, C)
        lost = list(range(0, 16, every))
        (finding,) = diagnose(x, [[] if n in lost else row for n, row in enumerate(rows)]).findings
        assert (finding.kind, finding.sure, finding.samples) == ("mismatch", "likely", tuple(lost))
        assert f"{len(lost)} of 16 samples have no labels for their target" in finding.seen
        silent = sure_of([[row[0]] if n in lost else row for n, row in enumerate(rows)], C)
        assert diagnose(silent, [[] if n in lost else row for n, row in enumerate(rows)]).ok
        others = rows[1:] + rows[:1]
        assert "no labels" not in str(diagnose(x, [[] if n in lost else row for n, row in enumerate(others)]))
        half = sure_of([[] if n in lost[::2] else row for n, row in enumerate(rows)], C)
        assert "no labels" not in str(diagnose(half, [[] if n in lost else row for n, row in enumerate(rows)]))
        few = [row if n in (0, 6) else [] for n, row in enumerate(rows)]
        assert "no labels" not in str(diagnose(x / 4, few)), "two labels may be read by chance"
        for left in ((0, 6), (3,), ()):  # but not by one that is sure
            (finding,) = diagnose(x, [row if n in left else [] for n, row in enumerate(rows)]).findings
            assert f"{16 - len(left)} of 16 samples have no labels for their target" in finding.seen
            assert (" as it does elsewhere" in finding.seen) == bool(left)


@pytest.mark.parametrize("lost", [(4,), (4, 9)])
def test_one_or_two_targets_without_labels(lost):
    """As of a text that was not found, or of silence that is read wrong; not where little is read there, or where the
    network is not sure, or reads others wrong."""
    for seed in range(8):
        rows = [a + b + c for a, b, c in zip(words(seed), words(seed + 8), words(seed + 16))]
        given = [[] if n in lost else row for n, row in enumerate(rows)]
        (finding,) = diagnose(sure_of(rows, C), given).findings
        assert (finding.kind, finding.sure, finding.samples) == ("mismatch", "possible", lost)
        have = "has no labels for its target" if len(lost) == 1 else "have no labels for their target"
        assert f"{len(lost)} of 16 samples {have}, and the network reads some there as it does" in finding.seen
        nearly = [[*row[:4], row[4] % 9 + 1, *row[5:]] for row in rows]
        assert have in str(diagnose(sure_of(nearly, C), given)), "the others need not be read to the last label"
        few = [row[:2] if n in lost else row for n, row in enumerate(rows)]
        assert diagnose(sure_of(few, C), given).ok
        assert "no labels" not in str(diagnose(sure_of(rows, C) / 4, given))
        others = [[] if n in lost else row for n, row in enumerate(rows[1:] + rows[:1])]
        assert "no labels" not in str(diagnose(sure_of(rows, C), others))
        kept = [0, 1, *lost]
        assert "no labels" not in str(diagnose(sure_of([rows[n] for n in kept], C), [given[n] for n in kept]))


def test_labels_that_are_alike_are_no_map_of_classes():
    """Targets of one label tell of no map, nor does a class that is read in the place of another."""
    rows = words(1)
    x = sure_of(rows, C)
    assert "fewer classes" not in str(diagnose(x, [[5] * len(row) for row in rows]))
    for confused in ((4,), (4, 5)):  # 3 is not in them, or 3 and 6
        given = [[{4: 3, 5: 6}[k] if k in confused else k for k in row] for row in rows]
        assert "fewer classes" not in str(diagnose(x, given))


def test_padding_that_is_read_is_told_once():
    """By a network that has been trained to say it: no label of the targets is missing then."""
    for seed in range(8):
        rows = words(seed, 32)
        width = max(map(len, rows)) + 2
        padded = [row + [11] * (width - len(row)) for row in rows]
        assert diagnose(sure_of(padded, C), padded).kinds == {"padding_in_targets"}


@pytest.mark.parametrize("seed", [400223, 403193])
def test_labels_that_are_read_by_mistake_are_left_out_of_no_targets(seed):
    """They are of classes that no target of a small batch has: of one in all samples once, of several in a few."""
    assert diagnose(**good(seed)).ok


@pytest.mark.parametrize("padded", [False, True])
def test_alignments_in_the_place_of_targets(padded):
    for seed in range(8):
        rows = words(seed)
        x = sure_of(rows, C)
        frames = np.array([7 * len(row) + 6 for row in rows])
        labels = x.argmax(axis=2).T
        given = labels if padded else [row[:length] for row, length in zip(labels, frames)]
        found = diagnose(x, given, frames)
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("frame_labels", "certain")
        assert "!= 0]" in finding.do
        assert found.measures.labels == sum(map(len, rows))
    assert "frame_labels" not in diagnose(x[:8], [[1, 2, 1, 2, 1, 2, 1, 2]] * 16).kinds, "as many by chance"


@pytest.mark.parametrize("pad", [0, -1])
@pytest.mark.parametrize("counted", [False, True])
def test_rows_that_are_padded_in_front(pad, counted):
    rows = words(1)
    counts, width = [len(row) for row in rows], max(map(len, rows))
    assert len(set(counts)) > 2
    given = np.array([[pad] * (width - len(row)) + row for row in rows])
    x = sure_of(rows, C)
    finding = diagnose(x, given, target_lengths=counts if counted else None).findings[0]
    assert finding.kind == ("blank_in_targets" if pad == 0 else "invalid")
    assert ("pad rows at their ends" if pad == 0 or counted else "at the ends of rows alone") in finding.do
    inside = [row if n else [0, *row[:2], 0, *row[2:]] for n, row in enumerate(rows)]
    assert "pad rows" not in str(diagnose(x, inside))
    assert "pad rows" not in str(diagnose(x, [[pad, *row] for row in rows])), "one in front of each"


def test_labels_that_are_inserted_at_the_end_are_no_cut():
    """Of two labels one that is read by mistake is mostly one of those beside it, and so is seen at the end alone."""
    for seed in range(20):
        rng = np.random.default_rng([SEED, 47, seed])
        rows = rng.integers(1, 3, size=(16, 5)).tolist()
        said = [row + [3 - row[-1]] * (n % 2) for n, row in enumerate(rows)]
        assert "mismatch" not in diagnose(sure_of(said, 3), rows).kinds


def test_a_fresh_network_of_few_classes_says_another_for_each_by_chance():
    """Where inputs are clear, and it is not sure; one that is sure has been trained."""
    for seed in range(20):
        rng = np.random.default_rng([SEED, 48, seed])
        rows = rng.integers(1, 4, size=(32, 3)).tolist()
        said = [[4 - k for k in row] for row in rows]
        x = sure_of(said, 4)
        assert "other classes" in diagnose(x, rows).findings[0].seen
        assert "mismatch" not in diagnose(0.2 * x, rows).kinds


def test_what_wins_more_often_than_the_blank_is_no_label_that_was_left_out():
    """A fresh network says some class where nothing is said."""
    for seed in range(20):
        rng = np.random.default_rng([SEED, 49, seed])
        rows = rng.integers(1, 10, size=(16, 4)).tolist()
        x = sure_of(rows, C)
        x[:, :, 11], x[:, :, 0] = x[:, :, 0], x[:, :, 11].copy()  # 11 wherever the blank won
        assert "without class 11" not in str(diagnose(0.3 * x, rows))


@pytest.mark.parametrize("classes", [8, 10])
def test_no_more_than_eight_of_the_changed_classes_are_shown(classes):
    rng = np.random.default_rng([SEED, 114])
    rows = [rng.permutation(classes)[:6] + 1 for _ in range(16)]
    given = [(classes + 1 - row).tolist() for row in rows]
    finding = diagnose(sure_of([row.tolist() for row in rows], C), given).findings[0]
    shown = ", ".join(f"{classes + 1 - k} for {k}" for k in range(1, 9))
    assert finding.seen.endswith(f"other classes: {shown}{', ...' if classes > 8 else ''}")


def test_the_first_of_those_that_read_the_same_is_named():
    rows = words(3)
    rows[5], rows[9] = [4, 4, 9, 2, 6, 1, 7], [4, 4, 9, 2, 6, 1, 7]
    given = [row + rows[9] * (n < 4) for n, row in enumerate(rows)]
    (finding,) = diagnose(sure_of(rows, C), given).findings
    assert finding.seen.endswith("its target holds what sample 5 reads as well")


def test_half_of_the_texts_are_missing_only_where_the_others_show_that_it_reads():
    """Beside four labels that it reads; if more are missing, a network that is sure shows it by what it reads there."""
    for seed in range(4):
        rows = [row if n % 2 else row[:1] for n, row in enumerate(words(seed, 8))]
        x = sure_of(rows, C)
        assert diagnose(x, [[] if n % 2 else row for n, row in enumerate(rows)]).ok
        (finding,) = diagnose(x, [[] if n % 2 or n == 0 else row for n, row in enumerate(rows)]).findings
        assert "samples have no labels for their target" in finding.seen
