"""A network that is sure of other labels: which, and where nothing tells it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from batches import SEED
from good_batches import smooth

from ctcbind import ctc_loss, diagnose, edit_distance


def sure_of(targets: list[list[int]], C: int) -> np.ndarray:
    """What a network says that knows them: two frames a label, five of the blank between."""
    x = np.random.default_rng(len(targets)).normal(size=(7 * max(map(len, targets)) + 6, len(targets), C)) * 0.3
    for n, row in enumerate(targets):
        path = np.zeros(len(x), int)
        for i, label in enumerate(row):
            path[3 + 7 * i : 5 + 7 * i] = label
        x[np.arange(len(x)), n, path] += 8
    return x


OTHER_LABELS = {
    "lowered by 1": lambda targets: [[label % 8 + 1 for label in row] for row in targets],
    "raised by 1": lambda targets: [[(label - 2) % 8 + 1 for label in row] for row in targets],
    "reversed": lambda targets: [row[::-1] for row in targets],
    "another order": lambda targets: targets[1:] + targets[:1],
}


@pytest.mark.parametrize("mistake", [*OTHER_LABELS, "the sign of the logits", "others"])
def test_a_network_that_is_sure_of_other_labels(mistake):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(3, 7))).tolist() for _ in range(16)]
        x, given = sure_of(targets, 9), targets
        assert diagnose(x, targets).ok
        if mistake in OTHER_LABELS:
            given = OTHER_LABELS[mistake](targets)
        elif mistake == "others":
            given = [rng.integers(1, 9, size=len(row)).tolist() for row in targets]
        else:
            x = -x
        (finding,) = diagnose(x, given, history=[0.1] * 50).findings  # and not that it does not learn
        assert (finding.kind, finding.sure) == ("mismatch", "possible" if mistake == "others" else "likely")
        assert mistake == "others" or mistake in finding.seen


@pytest.mark.parametrize("said", ["lowered by 1", "raised by 1"])
def test_labels_that_are_off_by_one_leave_out_the_last_blank(said):
    for seed in range(4):
        rng = np.random.default_rng([SEED, 53, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(3, 7))).tolist() for _ in range(16)]
        x = np.roll(sure_of(targets, 9), -1, axis=2)
        right, wrong = ([[k - 1 for k in row] for row in rows] for rows in (targets, OTHER_LABELS[said](targets)))
        assert diagnose(x, right, blank=8).ok
        (finding,) = diagnose(x, wrong, blank=8).findings
        assert (finding.kind, said in finding.seen) == ("mismatch", True)


def test_labels_that_are_off_by_one_and_lost_where_they_became_padding():
    """Counted from 0, and the zeros taken out. Where the network overlooks another label beside a lost one, that one is
    read in the place of its neighbour: which makes no map of fewer classes of all."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 54, seed])
        targets = [rng.integers(2, 30, size=int(rng.integers(4, 9))).tolist() for _ in range(24)]
        said = [list(row) for row in targets]
        for n in range(4):
            targets[n][:2] = said[n][:2] = 1, 5 + n
            said[n].pop()
        given = [[k - 1 for k in row if k > 1] for row in targets]
        (finding,) = diagnose(sure_of(said, 30), given).findings
        assert (finding.kind, "the labels are off by one" in finding.means) == ("mismatch", True)


def test_the_sample_that_is_shown_is_one_that_differs():
    """Not the one whose loss or label is largest, where that is read as its target."""
    rng = np.random.default_rng([SEED, 2])
    targets = [rng.integers(1, 9, size=9).tolist(), *(rng.integers(1, 9, size=4).tolist() for _ in range(15))]
    x = sure_of(targets, 9)
    x[:, 0] /= 2
    (finding,) = diagnose(x, [targets[0], *([targets[1]] * 15)]).findings
    shown = int(finding.do.partition("sample ")[2].partition(" ")[0])
    assert shown not in (0, 1)


@pytest.mark.parametrize("count", [6, 16, 40])
def test_input_lengths_in_another_order(count):
    """The shortest sample has the longest's, and so on: half of them lose what they say, whatever the order drawn."""
    for seed in range(4):
        rng = np.random.default_rng([SEED, 1, seed, count])
        targets = [rng.integers(1, 9, size=size).tolist() for size in rng.permutation(np.arange(count) % 6 + 3)]
        x, lengths = sure_of(targets, 9), np.array([7 * len(row) + 3 for row in targets])
        x[np.arange(len(x))[:, None] >= lengths] = 0
        assert diagnose(x, targets, lengths).ok
        given = np.empty_like(lengths)
        given[np.argsort(lengths)] = np.sort(lengths)[::-1]
        (finding,) = diagnose(x, targets, given).findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert "input lengths in another order" in finding.seen
        assert finding.samples == tuple(np.flatnonzero(given != lengths))
    fresh = np.random.default_rng(SEED).normal(size=x.shape)
    assert "another order" not in str(diagnose(fresh, targets, given))


def test_input_lengths_in_another_order_where_no_sample_has_the_last_frame():
    """And padding is read as blanks, so that all frames would do as well."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 128, seed])
        targets = [rng.integers(1, 9, size=size).tolist() for size in rng.permutation(np.arange(16) % 8 + 3)]
        lengths = np.array([7 * len(row) + 3 for row in targets])
        x = np.pad(2 * sure_of(targets, 9), ((0, 20), (0, 0), (0, 0)))
        x[np.arange(len(x))[:, None] >= lengths] = 16.0 * (np.arange(9) == 0)
        assert diagnose(x, targets, lengths).ok
        given = np.empty_like(lengths)
        given[np.argsort(lengths)] = np.sort(lengths)[::-1]
        finding = diagnose(x, targets, given).findings[0]
        assert "input lengths in another order" in finding.seen


def test_too_few_frames_are_no_lengths_of_others():
    """In another order more samples would have room for their labels; what the network says has no part in that."""
    for seed in range(30):
        rng = np.random.default_rng([SEED, 118, seed])
        frames = rng.integers(20, 160, size=16)
        targets = [rng.integers(1, 30, size=max(3, int(count) // 8)).tolist() for count in frames]
        given = -(-frames // 12)
        found = diagnose(rng.normal(size=(given.max(), 16, 30)), targets, given)
        assert found.kinds == {"infeasible"}


@pytest.mark.parametrize("cut", [slice(4), slice(-1), slice(-2)], ids=["to 4", "the last", "the last two"])
def test_targets_that_were_cut_are_no_lengths_of_others(cut):
    """Shorter samples' lengths fit them as well: the network then says less of what is missing."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 17, seed])
        targets = [rng.integers(1, 9, size=size).tolist() for size in rng.permutation(np.arange(16) % 8 + 3)]
        lengths = np.array([7 * len(row) + 3 for row in targets])
        given = [row[cut] for row in targets]
        found = diagnose(sure_of(targets, 9), given, lengths)
        assert "another order" not in str(found)
        if cut != slice(-2):
            assert found.findings[0].kind == "mismatch"
            assert "cut" in found.findings[0].means


@pytest.mark.parametrize("mistake", [*OTHER_LABELS, "others", "two samples"])
def test_samples_without_a_path_hide_no_mismatch(mistake):
    """Targets of other samples are too long for some; and the others are named by their own numbers."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(3, 7))).tolist() for _ in range(16)]
        if mistake == "two samples":
            targets[9], targets[12] = [8, 7, 6, 5, 1], [4, 3, 2, 1, 8]
        x, given = sure_of(targets, 9), list(targets)
        if mistake in OTHER_LABELS:
            given = OTHER_LABELS[mistake](targets)
        elif mistake == "others":
            given = [rng.integers(1, 9, size=len(row)).tolist() for row in targets]
        else:
            given[9], given[12] = [1, 2, 3, 4], [5, 6, 7, 6]
        lengths = [len(x)] * 16
        given[2], lengths[2] = [1, 2, 3, 4], 3
        short, finding = diagnose(x, given, lengths).findings
        assert (short.kind, short.samples, finding.kind) == ("infeasible", (2,), "mismatch")
        if mistake == "two samples":
            assert finding.samples == (9, 12)
            assert finding.do.startswith("look at samples 9, 12,")
        elif mistake == "another order":
            order = finding.seen.partition("another order (")[2].partition(")")[0]
            assert "2" not in re.findall(r"\d+", f"{order}; {finding.means}")
        elif mistake == "others":
            worst = int(finding.do.partition("sample ")[2].partition(" ")[0])
            assert f"its target is {given[worst]}" in finding.do
        else:
            assert mistake in finding.seen


def random_targets(rng: np.random.Generator, count: int = 16) -> list[list[int]]:
    """Labels of all classes of ten but the blank, the last among them."""
    return [[*rng.integers(1, 10, size=int(rng.integers(3, 7))).tolist(), 9] for _ in range(count)]


UNLIKE = {
    "classes in another order": lambda x, rng: x[:, :, [3, 0, 5, 1, 9, 2, 8, 4, 7, 6]],
    "a reshape and a delay": lambda x, rng: np.roll(x.transpose(1, 0, 2).reshape(x.shape), 5, axis=0),
}


@pytest.mark.parametrize("mistake", UNLIKE)
def test_a_sure_network_that_nothing_explains_is_told_all_the_same(mistake):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = random_targets(rng)
        x = np.where(sure_of(targets, 10) > 4, 8.0, -4.0)
        (finding,) = diagnose(UNLIKE[mistake](x, rng), targets).findings
        assert (finding.kind, finding.sure) == ("mismatch", "possible")


def test_targets_of_another_length_are_told():
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        x = 2 * sure_of(random_targets(rng), 10)
        for size in (2, 14):
            (finding,) = diagnose(x, [rng.integers(1, 10, size=size).tolist() for _ in range(16)]).findings
            assert (finding.kind, finding.sure) == ("mismatch", "possible")
            assert "class 0, the blank, wins" in finding.seen


@pytest.mark.parametrize("turn", [lambda x: np.roll(x, 1, axis=2), lambda x: x[:, :, ::-1]], ids=["rolled", "reversed"])
def test_classes_in_another_order_are_told_by_how_many_labels_are_read(turn):
    """By a network that is not quite sure: with its own blank it reads as many labels as there are."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [[*rng.integers(1, 13, size=2 + n % 4).tolist(), 1 + 11 * (n % 2)] for n in range(16)]
        x = 0.55 * sure_of(targets, 13)
        assert diagnose(x, targets).ok
        blank = int(turn(np.eye(13)[None, :1])[0, 0].argmax())
        (finding,) = diagnose(turn(x), targets).findings
        assert (finding.kind, finding.sure) == ("mismatch", "possible")
        assert f"or class {blank} is the network's blank" in finding.means


def test_large_weights_at_random_are_no_mismatch():
    for seed in range(40):
        rng = np.random.default_rng([SEED, seed])
        T, N, C = (int(rng.integers(*room)) for room in ((10, 80), (2, 20), (6, 30)))
        x = smooth(rng, T, N, C, float(np.exp(rng.uniform(0, 3))))
        given = [rng.integers(1, C, size=int(rng.integers(0, T // 3 + 1))).tolist() for _ in range(N)]
        found = diagnose(x, given)
        assert not {"blank_unused", "swapped_axes"} & found.kinds
        assert "other classes win the rest" not in str(found)


def test_one_wrong_label_is_no_mistake_of_all():
    """Too few labels tell nothing: of two, in another order, half are reversed."""
    for reads, target, C in (([4], [3], 11), ([7, 3], [3, 7], 11), ([1], [2], 4)):
        assert diagnose(sure_of([reads], C), [target]).ok


def apart(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Targets of five labels of eight, of which none is like another by chance."""
    targets: list[list[int]] = []
    while len(targets) < count:
        row = rng.integers(1, 9, size=5).tolist()
        if all(edit_distance(row, other) >= 4 for other in targets):
            targets.append(row)
    return targets


def test_some_targets_of_other_samples_are_named():
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [*apart(rng, 15), rng.integers(1, 5, size=5).tolist()]
        x = sure_of(targets, 9)
        (finding,) = diagnose(x, targets[1:6] + targets[:1] + targets[6:]).findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert set(finding.samples) <= set(range(6))
        assert len(finding.samples) >= 3
        (finding,) = diagnose(x, [*targets[:-1], [4 + label for label in targets[-1]]]).findings
        assert (finding.sure, finding.samples) == ("possible", (15,))
        others = ctc_loss(x, targets)[:15]
        assert f"while that of the others is {np.median(others):.4g}: sample 15 reads" in finding.seen


@pytest.mark.parametrize("wrong", [8, 9, 10])
@pytest.mark.parametrize("moved", [False, True])
def test_targets_of_which_half_are_wrong_are_named(wrong, moved):
    """From some sample on those of the next, or of none."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = apart(rng, 16)
        given = list(targets)
        given[:wrong] = [*targets[1:wrong], targets[0]] if moved else apart(rng, wrong)
        (finding,) = diagnose(sure_of(targets, 9), given).findings
        assert finding.kind == "mismatch"
        assert set(finding.samples) <= set(range(wrong)), "those that are read well are none of them"
        if moved:
            assert finding.sure == "likely"
        assert len(finding.samples) >= 0.5 * wrong or "another order" in finding.seen


def test_a_label_that_is_no_class_is_told_once():
    """What is left of a short target without it is not what the network reads."""
    for seed in range(8):
        read = [[1, 2], *apart(np.random.default_rng([SEED, seed]), 15)]
        assert diagnose(sure_of(read, 9), [[12, 2], *read[1:]]).kinds == {"invalid"}


def test_errors_of_a_network_that_makes_many_are_no_wrong_targets():
    """In a third of long samples one, in the others four, and both labels of a short one: nothing is read well."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=14 if n else 2).tolist() for n in range(16)]
        read = [list(row) for row in targets]
        for n, row in enumerate(read):
            for i in rng.permutation(len(row))[: 2 if n == 0 else 1 if n < 7 else 4]:
                row[i] = (row[i] + 3) % 8 + 1
        x = sure_of(read, 9)
        x[:, 0] *= 1.5
        assert diagnose(x, targets).ok


def test_an_error_of_a_network_that_makes_many_is_no_wrong_target():
    """Sure of what it reads of one short sample, and in doubt at one label of each of the others."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [[1, 2, 2], *(rng.integers(1, 5, size=4).tolist() for _ in range(15))]
        x = sure_of([[3, 1, 4, 1, 3], *targets[1:]], 5)
        wrong = "of 16 samples are read as something else"
        assert wrong in str(diagnose(x, targets)), "among others that are read without one"
        for n in range(1, 16):
            i = int(rng.integers(4))
            x[3 + 7 * i : 5 + 7 * i, n, targets[n][i] % 4 + 1] += 8.5
        assert diagnose(x, targets).ok


def test_a_network_that_has_begun_to_learn_is_told_nothing():
    """Sure of half of each target, and of something else in the other half: its own targets are the nearest."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=6).tolist() for _ in range(16)]
        assert diagnose(sure_of([row[:3] + rng.integers(1, 9, size=3).tolist() for row in targets], 9), targets).ok


@pytest.mark.parametrize("classes", [3, 4])
def test_fresh_weights_of_few_classes_are_as_sure(classes):
    """Of three classes one has 0.8 by random weights, and half of what it reads is wrong by chance."""
    for seed in range(120):
        rng = np.random.default_rng([SEED, 44, seed])
        x = smooth(rng, 20, 16, classes, float(rng.uniform(1.5, 3)))
        targets = [rng.integers(1, classes, size=int(rng.integers(4, 9))).tolist() for _ in range(16)]
        assert "mismatch" not in diagnose(x, targets).kinds, seed


def wavering(targets: list[list[int]], C: int, rng: np.random.Generator) -> np.ndarray:
    """What a network says halfway through its training: of five labels two are others to it, by a little."""
    x = sure_of(targets, C)
    for n, row in enumerate(targets):
        for i, label in enumerate(row):
            if rng.random() < 0.4:
                x[3 + 7 * i : 5 + 7 * i, n, 1 + label % (C - 1)] += rng.uniform(8, 8.6)
    return x


def test_another_order_is_told_of_a_network_that_makes_errors():
    """A sample that is read badly does not take the target of one that is read well."""
    for seed in range(4):
        rng = np.random.default_rng([SEED, 45, seed])
        targets = [rng.integers(1, 10, size=3).tolist() for _ in range(60)]
        x = wavering(targets, 11, rng)
        assert diagnose(x, targets).ok
        (finding,) = diagnose(x, [targets[n] for n in rng.permutation(60)]).findings
        assert finding.means.startswith("inputs and targets are not in the same order"), seed


def test_a_network_that_is_surer_than_it_reads_well():
    """As one is whose inputs are 255 times as large as those of its training: it reads most labels, and is as sure of
    those that it reads wrongly."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 108, seed])
        targets = random_targets(rng)
        read = [list(row) for row in targets]
        for row in read[4:]:
            at = int(rng.integers(len(row)))
            row[at] = 1 + row[at] % 9
        x = sure_of(read, 12) + 0.4 * sure_of(targets, 12)
        assert diagnose(x, targets).ok
        (finding,) = diagnose(50 * x, targets).findings
        assert (finding.kind, finding.sure, finding.harmless) == ("scaled_logits", "possible", False)
        assert "and with the logits divided by " in finding.seen
        assert "pixels up to 255" in finding.means
        assert diagnose(50 * sure_of(targets, 12), targets).ok, "it makes no errors"
        one = [*targets[:-1], read[-1]]
        assert "scaled_logits" not in diagnose(50 * sure_of(one, 12), targets).kinds, "these of one sample tell nothing"
        few = x[:, :2]
        assert "scaled_logits" not in diagnose(50 * few, targets[:2]).kinds, "nor do those of so few labels"


def test_many_labels_that_are_wrong():
    """A network that is sure reads the others, and is told by no known habit."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 119, seed])
        targets = [rng.integers(1, 30, size=12).tolist() for _ in range(16)]
        given = [[int(rng.integers(1, 30)) if rng.random() < 0.3 else k for k in row] for row in targets]
        x = 4 * sure_of(targets, 30)
        assert diagnose(x, targets).ok
        (finding,) = diagnose(x, given).findings
        assert (finding.kind, finding.sure) == ("mismatch", "possible")
        assert "many labels are wrong, or it knows its training set by heart" in finding.means
        shown = int(finding.do.partition("sample ")[2].partition(" ")[0])
        assert given[shown] != targets[shown]


def test_a_network_that_is_not_sure_enough_reads_no_wrong_labels():
    """Of many classes, of which each has a little of the probability at all frames."""
    rng = np.random.default_rng([SEED, 129])
    targets = rng.integers(1, 1000, size=(8, 1)).tolist()
    x = 0.5 * rng.normal(size=(60, 8, 1000))
    for n, (label,) in enumerate(targets):
        x[np.arange(60), n, np.where(np.arange(60) == 30, label, 0)] += 7
    found = diagnose(x, targets)
    assert found.measures.loss > 3 * found.measures.constant_loss
    assert found.ok


def test_inputs_that_a_network_was_not_trained_for():
    """It is sure of its blanks, and in doubt of the labels that it says."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 120, seed])
        targets, said, doubt = ([rng.integers(1, 30, size=12).tolist() for _ in range(16)] for _ in range(3))
        x = 1.5 * np.maximum(sure_of(said, 30), sure_of(doubt, 30))
        (finding,) = diagnose(x, targets).findings
        assert (finding.kind, finding.sure) == ("mismatch", "possible")
        assert "or inputs are prepared otherwise" in finding.means
        assert "class 0, the blank, wins" in finding.seen
