"""Padded targets, exchanged lengths, axes and masks: what is not what the loss takes it for."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from mistakes import LAST, N, T, padded_frames, well
from test_diagnose_mismatch import sure_of

from ctcbind import diagnose


@pytest.mark.parametrize("pad", [0, -1, 9])
def test_padding_of_every_kind(pad):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 8, 10))
    rows = [rng.integers(1, 9, size=size).tolist() for size in (9, 3, 5, 2, 6, 7, 4, 8)]
    padded = np.array([row + [pad] * (9 - len(row)) for row in rows])
    (finding,) = diagnose(x, padded, None, [9] * 8).findings
    assert finding.kind == "padding_in_targets"
    assert f"times {pad}," in finding.seen
    assert finding.samples == (1, 2, 3, 4, 5, 6, 7)


def test_labels_that_end_alike_are_no_padding():
    """An end mark on every row, and digits that end in zeros as others hold zeros."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 8, 12))
    assert diagnose(x, [[*rng.integers(1, 9, size=5).tolist(), 9] for _ in range(8)]).ok
    prices = [[4, 9, 9], [1, 9, 5], [7, 2, 9], [9, 9, 9], [3, 1, 9], [2, 9, 9], [5, 9, 1], [8, 9, 9]]
    assert diagnose(x, prices).ok


def test_padding_with_a_class_that_is_a_label_too():
    """Spaces, say: common inside the rows, but hardly ever two of them side by side."""
    for seed, (size, width) in enumerate([(24, 16), (32, 20), (48, 24)]):
        rng = np.random.default_rng([SEED, seed])
        rows = [rng.integers(2, 27, size=int(rng.integers(width // 3, width + 1))).tolist() for _ in range(size)]
        for row in rows:
            row[1:-1:6] = [1] * len(row[1:-1:6])
        rows[0] = [*rows[0], *([2] * width)][:width]
        rows[1] = [*rows[1][: width // 3 - 1], 2]
        x = rng.normal(size=(100, size, 28))
        assert diagnose(x, rows).ok
        (finding,) = diagnose(x, [row + [1] * (width - len(row)) for row in rows]).findings
        assert (finding.kind, finding.sure) == ("padding_in_targets", "possible")
        assert "times 1, which stands inside them" in finding.seen
    amounts = [[int(digit) + 1 for digit in f"{n}000"] for n in [101, *rng.integers(100, 1000, size=31)]]
    assert diagnose(rng.normal(size=(100, 32, 28)), amounts).ok, "thousands end in zeros"


@pytest.mark.parametrize("more", [1, 3, 20])
def test_padding_with_a_letter_to_more_than_the_longest_row_needs(more):
    """As for Keras, whose first letter is class 0: every row ends in it."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 131, seed])
        rows = [rng.integers(1, 27, size=int(rng.integers(3, 9))).tolist() for _ in range(32)]
        for row in rows[::4]:
            row[1] = 0
        width = max(map(len, rows)) + more
        padded = np.array([row + [0] * (width - len(row)) for row in rows])
        x = rng.normal(size=(80, 32, 28))
        assert diagnose(x, rows, blank=-1).ok
        (finding,) = diagnose(x, padded, blank=-1).findings
        assert finding.kind == "padding_in_targets"
        assert finding.sure == ("likely" if more > 1 else "possible")
        assert finding.samples == tuple(np.flatnonzero(padded[:, -1] == 0))


def test_rows_of_one_length_that_are_mostly_padding():
    rng = np.random.default_rng([SEED, 132])
    rows = rng.integers(1, 27, size=(16, 5)).tolist()
    rows[0][2] = 3  # a letter
    (finding,) = diagnose(rng.normal(size=(80, 16, 28)), [row + [3] * 15 for row in rows]).findings
    assert (finding.kind, finding.sure) == ("padding_in_targets", "likely")
    assert diagnose(rng.normal(size=(80, 16, 28)), [row + [3] * 5 for row in rows]).ok, "no more than half of each"


def test_lengths_in_each_others_place():
    x, labels = well(0)["logits"], well(0)["targets"]  # all of them: it reads no more than these
    counts, width = [len(row) for row in labels], max(map(len, labels))
    padded = np.array([row + [-1] * (width - len(row)) for row in labels])
    for targets in (padded, np.concatenate(labels)):
        found = diagnose(x, targets, counts, [T] * N).findings
        assert (found[0].kind, found[0].sure) == ("swapped_lengths", "certain")
        assert {each.kind for each in found} == {"swapped_lengths"}


def test_as_many_frames_as_samples():
    rng = np.random.default_rng(6)
    walk = rng.normal(size=(40, 40, 9)).cumsum(axis=0)
    labels = [rng.integers(1, 9, size=4).tolist() for _ in range(40)]
    assert diagnose(walk, labels).ok
    (finding,) = diagnose(walk.transpose(1, 0, 2), labels).findings
    assert (finding.kind, finding.sure) == ("swapped_axes", "likely")
    assert diagnose(walk.transpose(1, 0, 2), labels, layout="NTC").ok
    again = walk[:, :1] + 0.1 * rng.normal(size=(40, 40, 9))
    assert diagnose(again, [labels[0]] * 40).ok, "one sample many times"


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_counts_that_neither_layout_explains_are_no_swapped_axes(layout):
    """As many lengths as time steps, as of a mask that was summed over the wrong axis, beside as many targets as
    samples; and the other way round."""
    x, labels = np.random.default_rng(SEED).normal(size=(40, 6, 9)), [[1, 2]] * 6
    x = x if layout == "TNC" else x.transpose(1, 0, 2)
    for targets, lengths, said in (
        (labels, [6] * 40, "input_lengths has 40 lengths"),
        ([[1, 2]] * 40, [40] * 6, "targets hold 40"),
    ):
        (finding,) = diagnose(x, targets, lengths, layout=layout).findings
        assert finding.kind == "invalid"
        assert finding.seen.startswith(said)
        assert finding.do.startswith("pass as many "), "by which of the two is not known"


def test_labels_that_one_order_of_axes_has_no_room_for_tell_the_other():
    """Of (N, C, T), whose classes are fewer than the labels of a sample, so that they are no time."""
    rng = np.random.default_rng(SEED)
    targets = rng.integers(1, 12, size=(16, 13))
    (finding,) = diagnose(rng.normal(size=(16, 12, 90)), targets).findings
    assert (finding.kind, finding.seen.endswith("read as (N, C, T), they fit")) == ("swapped_axes", True)
    found = diagnose(rng.normal(size=(16, 16, 90)), targets, [90] * 16)
    assert "swapped_axes" not in found.kinds, "(N, C, T), or (C, N, T)"


@pytest.mark.parametrize(("layout", "order"), [("NTC", (0, 2, 1)), ("TNC", (2, 1, 0))])
@pytest.mark.parametrize("classes", [12, 34, 60])
def test_time_and_classes_in_each_others_place(classes, layout, order):
    """No count tells, and a network that reads its labels does; of 34 classes there are as many frames, and of 60 some
    labels lie past them."""
    rng = np.random.default_rng([SEED, 120])
    targets = [rng.integers(1, classes, size=4).tolist() for _ in range(8)]
    targets[0][0] = classes - 1
    x = sure_of(targets, classes)
    given = x.transpose(1, 2, 0) if layout == "NTC" else x.transpose(2, 1, 0)
    for blank, labels, array in (
        (0, targets, given),
        (-1, [[k - 1 for k in row] for row in targets], np.roll(given, -1, axis=1 if layout == "NTC" else 0)),
    ):
        found = diagnose(array, labels, blank=blank, layout=layout)
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("swapped_axes", "certain")
        assert finding.do == f'transpose the logits by {order}, for layout="{layout}"'
        assert ("there are 34 classes" in finding.seen) == (classes == 60)
        right = diagnose(array.transpose(order), labels, blank=blank, layout=layout)
        assert right.ok
        assert found.measures.loss == pytest.approx(right.measures.loss)


def test_time_and_classes_in_each_others_place_in_long_samples():
    """Which pay for each of their blanks: half of what the best constant network does."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 134, seed])
        T, C = ((150, 28), (100, 40))[seed % 2]
        targets = [rng.integers(1, C, size=int(rng.integers(3, 7))).tolist() for _ in range(16)]
        x = np.full((T, 16, C), -3.0)
        x[:, :, 0] = 3
        for n, row in enumerate(targets):
            for i, label in enumerate(row):
                x[5 + 8 * i, n, [0, label]] = -2, 6
        x += 0.3 * rng.normal(size=x.shape)
        assert diagnose(x, targets).ok
        (finding,) = diagnose(x.transpose(1, 2, 0), targets, layout="NTC").findings
        assert (finding.kind, finding.sure) == ("swapped_axes", "certain")
        assert finding.do == 'transpose the logits by (0, 2, 1), for layout="NTC"'


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_a_network_that_reads_neither_way_tells_nothing_of_classes(layout):
    for seed in range(6):
        rng = np.random.default_rng([SEED, 121, seed])
        targets = rng.integers(1, 12, size=(8, 4)).tolist()
        x = rng.normal(scale=rng.choice([0.1, 1, 5]), size=(34, 8, 34))
        assert "swapped_axes" not in diagnose(x if layout == "TNC" else x.swapaxes(0, 1), targets, layout=layout).kinds


def test_labels_past_the_classes_are_no_padding_for_one_that_comes_twice():
    x = np.random.default_rng(SEED).normal(size=(50, 2, 28))
    for targets, sure in (
        ([[3, 1, 48, 48], [8, 9, 45, 36]], "possible"),
        ([[3, 1, 99, 99], [8, 9, 45, 99]], "certain"),
    ):
        found = diagnose(x, targets).findings
        assert [(each.kind, each.sure) for each in found if each.kind != "invalid"] == [("padding_in_targets", sure)]


def test_turned_over_by_the_counts_is_one_sentence():
    x = np.random.default_rng(5).normal(size=(4, 50, 12))
    for lengths, counted in (None, "targets hold 4 sequences"), ([50] * 4, "input_lengths has 4 lengths"):
        (finding,) = diagnose(x, [[1, 2]] * 4, lengths).findings
        assert finding.seen == f'layout="TNC" reads 4 time steps and 50 samples, but {counted}'
        assert finding.do.startswith('pass layout="NTC", or transpose the logits')


@pytest.mark.parametrize("factor", [2, 3, 4, 8, 320])
@pytest.mark.parametrize("left", [0, 1])
def test_lengths_that_were_not_divided_are_told_by_what(factor, left):
    """With what layers leave of them: all frames, begun ones too, or one less at the edges."""
    for seed in range(4):
        given = well(seed)
        before = factor * given["input_lengths"] + left * factor - left
        (finding,) = diagnose(**given | {"input_lengths": before}).findings
        assert finding.kind == "invalid"
        assert finding.do.startswith(f"divide input_lengths by {factor}, rounded as the network's layers round")
        times = f"{'about ' * left}{factor} times T,"
        assert f"the longest, {before.max()}, is {times}" in finding.do
        right, found = diagnose(**given).measures, diagnose(**given | {"input_lengths": before}).measures
        assert found.loss == pytest.approx(right.loss, rel=0.1), "it is put right for what comes after"
    (finding,) = diagnose(**given | {"input_lengths": before, "blank": LAST, "targets": [[2]] * N}).findings[:1]
    assert finding.do.startswith("divide input_lengths")


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_lengths_that_were_not_divided_are_rounded_up(factor):
    """As layers do that pad: what is left of a last frame is a frame, and may say a label."""
    for seed in range(4):
        given = well(seed)
        lengths = given["input_lengths"]
        before = factor * lengths - np.random.default_rng([SEED, seed]).integers(factor, size=N)
        found = diagnose(**given | {"input_lengths": before})
        assert found.kinds == {"invalid"}
        assert found.measures.frames == lengths.sum()
        padded_frames(given)  # which is seen all the same
        assert diagnose(**given | {"input_lengths": [factor * T] * N}).kinds == {"invalid", "padded_frames"}


def test_lengths_that_are_too_long_otherwise_are_divided_by_nothing():
    given = well(SEED)
    for longest in (T + 1, T + 20, T + 100, 2 * T - 30, 2 * T + 30):
        lengths = given["input_lengths"].copy()
        lengths[0] = longest
        assert "divide" not in str(diagnose(**given | {"input_lengths": lengths}))
    assert "divide" not in str(diagnose(np.zeros((2, 1, 4)), [[1]], [400]))
    assert "divide" not in str(diagnose(np.zeros((20, 1, 4)), [[1]], [2**62]))


def test_nothing_is_said_of_lengths_that_were_wrong():
    """Too large or negative, whatever stands in their place."""
    given = well(0)
    padded_frames(given)
    (finding,) = diagnose(**given | {"input_lengths": [T + 20 + n for n in range(N)]}).findings
    assert finding.kind == "invalid"
    x = np.random.default_rng(SEED).normal(size=(40, 3, 8))
    for lengths in ([-1, 40, 30], [-1, -2, -3]):
        found = diagnose(x, [[1, 2, 2], [3], [4]], lengths)
        assert found.kinds == {"invalid"}
        assert "no sample has a path" not in str(found)
    (finding,) = [each for each in diagnose(x, [[1, 2] * 30, [3], [4]], [-1, 40, 0]).findings if each.kind != "invalid"]
    assert finding.samples == (0, 2), "40 frames are the most that it can have"


def test_lengths_that_fit_the_other_way_round_by_chance():
    """A length that is off by one, and targets that are padded to more than T."""
    x = np.random.default_rng(SEED).normal(size=(50, 2, 20))
    padded = np.full((2, 60), 19)
    padded[0, :3], padded[1, :2] = [1, 2, 3], [4, 5]
    (finding, *_) = diagnose(x, padded, [51, 50], [3, 2]).findings
    assert finding.kind == "invalid"
    assert "input_lengths[0] is 51" in finding.seen


def test_endings_of_few_classes_are_no_padding():
    """Of two labels each second row ends in the same, and often in more than one of it."""
    for seed in range(16):
        rng = np.random.default_rng([SEED, 43, seed])
        width = int(rng.integers(8, 12))
        targets = rng.integers(1, 3, size=(64, width))
        targets[0, -(width // 2) :] = 2
        x = rng.normal(size=(3 * width, 64, 3))
        assert "padding_in_targets" not in diagnose(x, targets).kinds, seed


@pytest.mark.parametrize("mask", [-65504.0, -1e4, -1e9, -1e3])
@pytest.mark.parametrize("added", [False, True])
def test_labels_of_a_masked_class(mask, added):
    """Set to a large number, or with one added, as masks of attention are; not seen where no target has the class."""
    for seed in range(6):
        given = good(SEED + seed, "trained", size=(60, 8, 12), plain=True)
        given["targets"][1] = [3, 5]
        x = given["logits"]
        x[..., 3] = x[..., 3] + np.float32(mask) if added else mask
        found = diagnose(**given)
        (finding,) = (each for each in found.findings if each.kind == "masked_labels")
        told = tuple(n for n, row in enumerate(given["targets"]) if 3 in row)
        assert (finding.samples, finding.sure) == (told, "certain")
        assert "class 3, whose logits are" in finding.seen
        assert "exploding_gradients" not in found.kinds
        assert found.measures.given_loss > 3 * found.measures.loss
        given["targets"] = [[k for k in row if k != 3] for row in given["targets"]]
        assert "masked_labels" not in diagnose(**given).kinds


def test_a_mask_is_seen_beside_a_sample_that_is_lost():
    """What stands in the place of its logits is not masked, and tells nothing."""
    given = good(SEED, "trained", size=(60, 8, 12), plain=True)
    given["targets"][1] = given["targets"][2] = [3, 5]
    given["logits"][..., 3] = -1e4
    given["logits"][:, 2] = np.nan
    (finding,) = (each for each in diagnose(**given).findings if each.kind == "masked_labels")
    assert finding.samples == tuple(n for n, row in enumerate(given["targets"]) if 3 in row and n != 2)


def test_a_class_that_is_seldom_said_is_not_masked():
    """Far below the others at most frames: in one of them it is not."""
    given = good(SEED, "trained", size=(60, 8, 12), plain=True)
    given["targets"][1] = [3, 5]
    given["logits"][..., 3] = -1e4
    given["logits"][7, 1, 3] = 0
    assert "masked_labels" not in diagnose(**given).kinds
