"""csrc/python/packer.c: labels and lengths of the host in one row of bytes, or declined."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from batches import SEED, random_case
from short_way import C, N, T
from test_direct import FORMS, complaint, slip

import ctcbind
from ctcbind.bindings.native_direct import open_packer


def found(packed):
    """Label lengths, input lengths and labels; that they lie where they are said to."""
    staged, address, longest = packed
    assert ctypes.string_at(address, len(staged)) == staged
    numbers = np.frombuffer(staged, np.int32)
    return numbers, longest


def expected(shape, given, blank=0, layout="TNC", topology="ctc"):
    batch = ctcbind.batch.make_batch(np.broadcast_to(np.float32(0), shape), *given, blank, layout, topology)
    numbers = np.concatenate([batch.label_lengths, batch.input_lengths, batch.labels])
    return numbers, batch.longest


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_every_plain_form(form, layout):
    shape = (T, N, C) if layout == "TNC" else (N, T, C)
    pack = open_packer(0, layout).pack
    for _ in range(2):  # the second finds room
        numbers, longest = found(pack(shape, *FORMS[form]))
        wanted, most = expected(shape, FORMS[form], layout=layout)
        np.testing.assert_array_equal(numbers, wanted)
        assert longest == most


def test_random_batches_and_slips():
    taken = declined = raised = 0
    for seed in range(600):
        rng = np.random.default_rng([SEED, 145, seed])
        case = random_case([SEED, 146, seed])
        shape, given = np.shape(case.args[0]), list(case.args)
        if rng.random() < 0.4:
            given = slip(rng, given)
        wrong = complaint(ctcbind.ctc_loss, case.args[0], *given[1:], engine="reference", **case.options)
        options = {name: case.options[name] for name in ("blank", "layout") if name in case.options}
        packed = open_packer(**{"blank": 0, "layout": "TNC"} | options).pack(shape, *given[1:])
        if wrong is not None:
            assert packed is None, wrong
            raised += 1
        elif packed is None:
            declined += 1
        else:
            numbers, longest = found(packed)
            wanted, most = expected(shape, given[1:], **options)
            np.testing.assert_array_equal(numbers, wanted)
            assert longest == most
            taken += 1
    assert min(taken, declined, raised) > 40, (taken, declined, raised)


@pytest.mark.parametrize("blank", [-2, C, 2**40])
def test_a_blank_that_is_no_class(blank):
    assert open_packer(blank, "TNC").pack((T, N, C), [[1]] * N, None, None) is None


@pytest.mark.parametrize("blank", [-1, C - 1])
def test_the_last_class_as_blank(blank):
    pack = open_packer(blank, "TNC").pack
    assert pack((T, N, C), [[0, C - 2]] * N, None, None) is not None
    assert pack((T, N, C), [[0, C - 1]] * N, None, None) is None


@pytest.mark.parametrize("shape", [(T, 0, C), (T, N, 0), (2**31, N, C), (T, 2**31, C), (T, N, 2**31)])
def test_sizes_that_are_none(shape):
    """Or that no int32 holds."""
    assert open_packer(0, "TNC").pack(shape, [[1]] * min(shape[1], N), None, None) is None


def test_no_frames_at_all():
    numbers, longest = found(open_packer(0, "TNC").pack((0, N, C), [[1], [], []], None, None))
    np.testing.assert_array_equal(numbers, [1, 0, 0, 0, 0, 0, 1])
    assert longest == 1


LENGTHS = [
    (None, None, [0, 0, 0, 0, 0, 0], 5),
    ([12, 0, 7], None, [0, 0, 0, 12, 0, 7], 5),
    (None, (5, 0, 2), [5, 0, 2, 0, 0, 0], 5),
    (np.array([12, 0, 7], "uint8"), np.array([[2, 9], [4, 9], [1, 9]])[:, 0], [2, 4, 1, 12, 0, 7], 4),
    (np.full(3, 12)[::-1], np.zeros(3, "int16"), [0, 0, 0, 12, 12, 12], 0),
]


@pytest.mark.parametrize(("frames", "counts", "wanted", "most"), LENGTHS)
def test_lengths_alone(frames, counts, wanted, most):
    for layout, shape in (("TNC", (T, N, C)), ("NTC", (N, T, C))):
        lengths = open_packer(0, layout).lengths
        for _ in range(2):
            numbers, longest = found(lengths(shape, 5, frames, counts))
            np.testing.assert_array_equal(numbers, wanted)
            assert longest == most


@pytest.mark.parametrize(
    "wrong", [[1, 2], [1, 2, -1], [1, 2, 13], [1, 2, 3.0], [[1, 2, 3]], np.float32([1, 2, 3]), 3, "abc"]
)
def test_lengths_that_are_none(wrong):
    lengths = open_packer(0, "TNC").lengths
    assert lengths((T, N, C), 12, [1, 2, 12], [1, 2, 12]) is not None
    assert lengths((T, N, C), 12, wrong, None) is None
    assert lengths((T, N, C), 12, None, wrong) is None
    assert lengths((T, N, C), 11, [1, 2, 12], [1, 2, 12]) is None
    assert lengths((11, N, C), 12, [1, 2, 12], [1, 2, 12]) is None
    assert lengths((T, N, C), -1, None, None) is None
    assert lengths((T, N, C), 2**31, None, None) is None


def test_what_is_no_shape_or_no_call():
    pack, lengths = open_packer(0, "TNC").pack, open_packer(0, "TNC").lengths
    for shape in ((T, N), [T, N, C], None):
        assert pack(shape, [[1]] * N, None, None) is None
    with pytest.raises(TypeError):
        pack((T, "3", C), [[1]] * N, None, None)
    with pytest.raises(OverflowError):
        pack((2**70, N, C), [[1]] * N, None, None)
    with pytest.raises(TypeError, match="four arguments"):
        pack((T, N, C), [[1]] * N)
    with pytest.raises(TypeError, match="four arguments"):
        lengths((T, N, C), 5, None)
    with pytest.raises(TypeError):
        lengths((T, N, C), None, None, None)
    assert lengths((T, N), 5, None, None) is None
