"""The short way to a batch's integers, beside the rules in full: the same numbers, or none where a rule is broken."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import rules
from ctcbind.arrays import view_logits
from ctcbind.batch import inspect
from ctcbind.errors import InvalidInput
from ctcbind.targets import pack_plain

T, C = 30, 9


def in_full(targets, frames, lengths, N, blank):
    view = view_logits(np.zeros((T, N, C), np.float32), "TNC")
    try:
        return rules.first(inspect(view, targets, frames, lengths, blank, "ctc")).integers
    except InvalidInput:
        return None


def laid_out(rng, array):
    """The same values in another memory order, dtype or place."""
    how = rng.integers(6)
    array = array.astype(rng.choice(["int32", "int64"]))
    if how == 0:
        return np.asfortranarray(array)
    if how == 1:
        return array[::-1].copy()[::-1]
    if how == 2:
        wide = np.zeros((*array.shape, 3), array.dtype)
        wide[..., 1] = array
        return wide[..., 1]
    if how == 3:
        array.setflags(write=False)
    return array


@pytest.mark.parametrize("N", [1, 3, 40])
@pytest.mark.parametrize("blank", [0, 4, C - 1])
def test_the_short_way_is_the_long_one(N, blank):
    rng = np.random.default_rng([SEED, N, blank])
    known = [c for c in range(C) if c != blank]
    packed = refused = 0
    for _ in range(300):
        width = int(rng.integers(0, 25))
        lengths = rng.integers(0, width + 1, size=N) if rng.random() < 0.6 else np.full(N, width)
        frames = rng.integers(0, T + 1, size=N)
        padded = rng.choice(known, size=(N, width))
        padded[np.arange(width) >= lengths[:, None]] = rng.choice([-1, 0, blank, 10**6])
        targets = padded if rng.random() < 0.6 else padded[np.arange(width) < lengths[:, None]]
        if rng.random() < 0.4 and targets.size:  # one slip
            which = rng.choice(["label", "length", "frame", "count"])
            if which == "label":
                targets[tuple(rng.integers(s) for s in targets.shape)] = rng.choice([-1, C, blank, -(2**31), 2**31 - 1])
            elif which == "length":
                lengths[rng.integers(N)] = rng.choice([-1, width + 1, -(2**31), 2**31 - 1])
            elif which == "frame":
                frames[rng.integers(N)] = rng.choice([-1, T + 1, -(2**31), 2**31 - 1])
            else:
                lengths = lengths[:-1]
        if targets.ndim == 2 and rng.random() < 0.3:  # the padding tells, or is wrong
            given = laid_out(rng, targets), laid_out(rng, frames), None
        else:
            given = laid_out(rng, targets), laid_out(rng, frames), laid_out(rng, lengths)
        if targets.ndim == 2 and rng.random() < 0.3 and lengths.shape == (N,) and (abs(lengths - 12) < 14).all():
            rows = [laid_out(rng, row[:length]) for row, length in zip(targets, lengths)]
            rows = [rng.choice([np.asarray, list, tuple])(row) if rng.random() < 0.3 else row for row in rows]
            given = rng.choice([list, tuple])(rows), given[1], None
        want = in_full(*given, N, blank)
        got = pack_plain(*given, T, N, C, blank)
        if got is None:
            refused += want is None
        else:
            np.testing.assert_array_equal(got, want)
            packed += 1
    assert packed > 100
    assert refused > 20


def test_many_integers_are_packed():
    """Where every integer is right, arrays large and small go the short way: else nothing here is tested."""
    for N in (2, 200):
        targets, lengths = np.full((N, 5), 3), np.full(N, 5)
        assert pack_plain(targets, None, lengths, T, N, C, 0) is not None
        assert pack_plain(targets.reshape(-1), lengths, lengths, T, N, C, 0) is not None
        targets[::2, 2:] = -1
        packed = pack_plain(targets, None, None, T, N, C, 0)
        assert packed is not None
        assert list(packed[-2 * N : -N]) == [2, 5] * (N // 2)


def test_one_row_is_not_taken_for_padded_rows():
    """Not even where there are as many labels as samples, of which not all are counted."""
    lengths = np.ones(300, int)
    lengths[7] = 0
    assert pack_plain(np.full(300, 3), None, lengths, T, 300, C, 0) is None
    with pytest.raises(InvalidInput, match=r"^target_lengths sum to 299, but targets hold 300 labels"):
        ctcbind.ctc_loss(np.zeros((T, 300, C), np.float32), np.full(300, 3), None, lengths)


def test_unsigned_and_narrow_integers_go_the_long_way():
    for dtype in ("uint8", "int16", "uint64"):
        targets = np.full((200, 5), 3, dtype)
        assert pack_plain(targets, None, np.full(200, 5), T, 200, C, 0) is None
        loss = ctcbind.ctc_loss(np.zeros((T, 200, C), np.float32), targets, None, np.full(200, 5))
        assert np.isfinite(loss).all()
