"""`check` on targets and lengths: all that is said of each that is wrong, where it stands, and the cure."""

from __future__ import annotations

import numpy as np
import pytest

from ctcbind import check

HALVES, PAIRS = np.full((3, 2), 1.5), np.array([[1, 2], [3, 1], [1, 2]])
INT64 = "(int); it does not fit into an int64"
MASK = "{0}.sum(axis=1).astype(int)"
IN_ALL = {
    "a list that is padded": (
        ([[1, -1], [2, 3, 1], [1]],),
        [(0, 1, -1, "a label cannot be negative (only an array (N, L) may be padded with negative numbers)")],
    ),
    "padding that is counted": (
        (np.array([[1, -1, -1], [-1, 3, -1], [1, 2, 3]]), None, [3, 3, 3]),
        [
            (0, 1, -1, "as padding would: target_lengths[0] is 3 and counts it; without it 1"),
            (0, 2, -1, "a label cannot be negative"),
            (1, 0, -1, "a label cannot be negative"),
            (1, 2, -1, "as padding would: target_lengths[1] is 3 and counts it; without it 2"),
        ],
    ),
    "a whole row of padding": (
        (np.array([[1, 2], [-1, -1], [3, -2]]), None, [2, 2, 2]),
        [
            (
                1,
                0,
                -1,
                "Negative numbers end this row as padding would: target_lengths[1] is 2 and counts it; without it 0",
            ),
            (1, 1, -1, "targets[1][1] is -1; a label cannot be negative"),
            (
                2,
                1,
                -2,
                "Negative numbers end this row as padding would: target_lengths[2] is 2 and counts it; without it 1",
            ),
        ],
    ),
    "blanks that are counted": (
        (np.array([[1, 2], [3, 0], [0, 0]]), None, [2, 2, 2]),
        [
            (1, 1, 0, "Blanks end this row as padding would: target_lengths[1] is 2 and counts it; without it 1"),
            (2, 0, 0, "a target holds labels only (blank=0)"),
            (2, 1, 0, "a target holds labels only (blank=0)"),
        ],
    ),
    "blanks at the ends of lists": (
        ([[1, 2], [3, 0], [1, 1]],),
        [(1, 1, 0, "would: pad with -1 in an array, or give target_lengths that count the labels alone")],
    ),
    "masked targets": (
        (np.ma.masked_array(PAIRS, PAIRS == 2),),
        [(None, None, None, "pass plain integers, as targets.filled(-1) where the mask is padding")],
    ),
    "masked lengths": (
        (PAIRS, np.ma.masked_array([4, 4, 4], [0, 0, 1])),
        [(None, None, None, "input_lengths is a masked array; pass plain integers")],
    ),
    "a mask of ones and zeros": (
        (PAIRS, np.array([[1, 1, 1, 0.0]] * 3)),
        [
            (
                None,
                None,
                "float64",
                f"pass {MASK.format('input_lengths')} if they are a mask that is 1 where a frame or label counts, "
                f"4 - {MASK.format('input_lengths')} if 1 stands for padding",
            )
        ],
    ),
    "no mask": (
        (PAIRS, np.array([[1, 1, 1, 2.0]] * 3)),
        [(None, None, "float64", "input_lengths holds float64; it must hold integers: pass input_lengths.astype(int)")],
    ),
    "labels that are booleans": (
        (np.ones((3, 2), bool),),
        [(None, None, "bool", "targets holds booleans; it must hold integers")],
    ),
    "halves": ((HALVES,), [(0, 0, 1.5, "targets[0][0] is 1.5; it must be an integer")]),
    "half a frame": ((PAIRS, [4, 3.5, 4]), [(1, None, 3.5, "input_lengths[1] is 3.5; it must be an integer")]),
    "half a sample": ((PAIRS, 2.5), [(None, None, "float64", "it must hold integers: pass input_lengths as ints")]),
    "boxes": (
        (PAIRS.astype(object),),
        [(None, None, None, "targets holds Python objects; it must hold integers: pass targets.astype(int)")],
    ),
    "half a label": ((np.full((3, 2), 0.5),), [(0, 0, 0.5, "targets[0][0] is 0.5; it must be an integer")]),
    "boxes in a row": (
        (np.array([1, 2, 3], object), None, [1, 1, 1]),
        [(None, None, None, "targets holds Python objects; it must hold integers: pass targets.astype(int)")],
    ),
    "rows of two lengths that are cut": (
        ([[1, 3], [2], [1, 2]], None, [1, 1, 2]),
        [(0, None, 1, "rows of different lengths hold no padding: pass no target_lengths")],
    ),
    "rows of one length that are cut": (([[1, 3], [2, 9], [1, 2]], None, [2, 1, 0]), []),
    "lengths of several types": ((PAIRS, [np.int8(4), np.uint64(4), np.int8(3)]), []),
    "one of several types below 0": (
        (PAIRS, [np.int8(4), np.uint64(4), np.int8(-3)]),
        [(2, None, -3, "input_lengths[2] is -3; a length cannot be negative")],
    ),
    "a label in rows too many": (
        (np.array([[1, 9], [1, 2], [3, 1], [2, 2], [1, 1], [1, 1]]),),
        [(None, None, 6, "the batch has 3 samples"), (0, 1, 9, "(0..4), the blank among them")],
    ),
    "lengths that are wrong and too large": (
        (PAIRS, None, [2, 3, -1]),
        [(2, None, -1, "target_lengths[2] is -1; a length cannot be negative")],
    ),
    "boxes of the ends of int64": (
        (np.array([[1, -(2**63)], [2**63 - 1, 1], [1, 2**63]], object),),
        [(2, 1, 2**63, f"targets[2][1] is {2**63} {INT64}")],
    ),
    "lengths past int64": ((PAIRS, [1, 2**63 - 1, 2**63]), [(2, None, 2**63, f"input_lengths[2] is {2**63} {INT64}")]),
    "one past int64": ((PAIRS, 2**70), [(None, None, 2**70, f"input_lengths is {2**70} {INT64}")]),
    "a set of frames": (
        (PAIRS, [4, {4}, 4]),
        [(1, None, "set", "input_lengths[1] is {4} (set); it must be an integer")],
    ),
    "types that NumPy adds up to floats": (
        (PAIRS, [np.int8(4), np.uint64(2**63), np.int8(3)]),
        [(1, None, "uint64", "(uint64); it does not fit into an int64")],
    ),
    "a row of rows": (
        ([np.ones((2, 2), int), [1], [2]],),
        [(0, None, (2, 2), "targets[0] has shape (2, 2); it must be one row of labels")],
    ),
    "padded rows in one": (
        (np.array([1, 2, 3, 1, 3, 1]), None, [2, 1, 1]),
        [(None, None, 4, "labels: if they are padded rows, one after the other, pass them in shape (3, 2)")],
    ),
    "padded rows in one, none with a label": (
        (np.array([1, 2, 3]), None, [0, 0, 0]),
        [(None, None, 0, "labels: if they are padded rows, one after the other, pass them in shape (3, 1)")],
    ),
    "no padded rows": (
        (np.array([1, 2, 3, 1, 3, 1]), None, [3, 1, 1]),
        [(None, None, 5, "target_lengths sum to 5, but targets hold 6 labels")],
    ),
    "wrong lengths of labels that are wrong": (
        (np.array([1, 9]), None, [-1, 1, 2]),
        [(0, None, -1, "a length cannot be negative"), (None, 1, 9, "(0..4), the blank among them")],
    ),
    "lengths in each other's place": (
        ([[1, 2], [3, 1], [1, 2]], [1, 1, 1], [3, 2, 2]),
        [(0, None, 3, "input_lengths, those of the frames, come first")],
    ),
    "a padded uint8": (
        (np.array([[1, 255], [1, 254], [4, 3]], np.uint8),),
        [
            (0, 1, 255, "(0..4); uint8 makes that of a -1, so pad in a signed type"),
            (1, 1, 254, "(0..4), the blank among them"),
        ],
    ),
}


@pytest.mark.parametrize("name", IN_ALL)
def test_all_that_is_said_of_integers(name):
    """Each problem, where it is, what was found there, and the end of its sentence with the cure."""
    given, expected = IN_ALL[name]
    problems = [each for each in check(np.zeros((4, 3, 5)), *given).problems if each.refused]
    assert [(each.sample, each.position, each.value) for each in problems] == [row[:3] for row in expected]
    for problem, (*_, words) in zip(problems, expected, strict=True):
        assert problem.message.endswith(words)


@pytest.mark.parametrize("label", [2**32 + 1, 1 - 2**32])
def test_a_label_past_32_bits_repeats_none_that_it_would_be_cut_to(label: int) -> None:
    (fit,) = check(np.zeros((4, 1, 5)), [[label, 1]]).fits
    assert fit.repeats == 0
