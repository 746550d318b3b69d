"""The native engine's promise of accuracy: against float64, a float32 loss is within 1e-6 (relative, absolute below 1)
and each element of a gradient within 2e-6, whatever the logits and the lengths.

The judge is the reference engine (float64 log space) or, where log space itself loses too many digits or takes too
long, one of `float64.py`, which are held against the reference here.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from batches import SEED, logits_without_sense
from float64 import exact_ctc, tilted_ctc
from promise import hold

import ctcbind

#: (T, L, C, N)
SIZES = {
    "28/1/11": (28, 1, 11, 2),
    "64/8/11": (64, 8, 11, 3),
    "150/40/28": (150, 40, 28, 2),
    "150/20/5000": (150, 20, 5000, 1),
    "255/127/32": (255, 127, 32, 1),
    "500/60/1024": (500, 60, 1024, 1),
    "1000/200/32": (1000, 200, 32, 1),
}

KINDS = (
    "N(0, 1)", "N(0, 10²)", "x 1000", "zeros", "right", "wrong", "shift", "unused -inf", "some -inf", "1e10", "1e30",
    "unused 500", "unused 1e10", "unused 1e30",
)  # fmt: skip

#: log space in float64 rounds |ln alpha| * 2^-53 a frame: too much for these. (At 1e30 the best path beats the next by
#: 1e25, and it does not matter.)
LARGE = ("1e10", "unused 1e10", "unused 1e30")


def batch(kind, T, L, C, N):
    """(logits float32 (T, N, C), labels); the blank is class 0."""
    rng = np.random.default_rng([SEED, T, L, C, KINDS.index(kind)])
    labels = [rng.integers(1, max(C - 1, 2), size=L).tolist() for _ in range(N)]  # the last class is never a label
    x = rng.normal(size=(T, N, C))
    if kind == "N(0, 10²)":
        x *= 10
    elif kind == "x 1000":
        x *= 1000
    elif kind == "zeros":
        x[:] = 0
    elif kind == "shift":
        x += 1e4
    elif kind == "unused -inf":
        x[..., -1] = -np.inf
    elif kind == "some -inf":  # a path is left open: blanks, and its label in each label's turn
        x[rng.random(x.shape) < 0.3] = -np.inf
    elif kind.startswith("unused"):
        x[rng.random((T, N)) < 0.5, -1] = float(kind.split()[1])
    elif kind in ("1e10", "1e30"):
        x *= float(kind)
    path = np.zeros((T, N), dtype=int)
    for n, row in enumerate(labels):
        path[np.arange(L) * (T // L) + T // L // 2, n] = row
    if kind in ("right", "wrong", "some -inf"):
        t, n = np.indices(path.shape)
        x[t, n, path if kind != "wrong" else (path + 1) % C] = 20 if kind != "some -inf" else 1
    return x.astype(np.float32), labels


def judge(kind, x, labels):
    if kind in LARGE:
        judged = [exact_ctc(x[:, n], row) for n, row in enumerate(labels)]
        return np.array([loss for loss, _ in judged]), np.stack([grad for _, grad in judged], axis=1)
    result = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    return result.loss, result.grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_the_promise(size, kind):
    T, L, C, N = SIZES[size]
    if kind in LARGE and T > 150:
        T, L = T // 5, L // 5  # the exact judge is slow
    x, labels = batch(kind, T, L, C, N)
    hold(x, labels, *judge(kind, x, labels))


@pytest.mark.parametrize("kind", ["N(0, 1)", "zeros"])
def test_the_promise_at_4000_frames(kind):
    x, labels = batch(kind, 4000, 800, 64, 1)
    loss, grad = tilted_ctc(x[:, 0], labels[0])
    hold(x, labels, np.array([loss]), grad[:, None])


def test_the_promise_at_20000_frames_and_2000_labels():
    x, labels = batch("N(0, 1)", 20000, 2000, 32, 1)
    loss, grad = tilted_ctc(x[:, 0], labels[0])
    hold(x, labels, np.array([loss]), grad[:, None])
    # and the engine in float64, which judges the other kinds, is as near as the judge's own rounding
    double = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
    assert abs(double.loss[0] / loss - 1) < 1e-12
    assert np.abs(double.grad[:, 0] - grad).max() < 1e-11


@pytest.mark.parametrize("kind", ["N(0, 10²)", "x 1000", "zeros", "right", "wrong", "shift", "some -inf"])
def test_other_logits_at_20000_frames(kind):
    """Against the engine's own float64, which other tests hold against the judges."""
    x, labels = batch(kind, 20000, 2000, 8, 1)
    double = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
    assert np.isfinite(double.loss).all()
    hold(x, labels, double.loss, double.grad)


@pytest.mark.parametrize("kind", KINDS)
def test_float64(kind):
    """A frame of log space rounds values as large as the loss: the bound of a gradient is that, over the frames."""
    T, L, C, N = SIZES["64/8/11"]
    x, labels = batch(kind, T, L, C, N)
    losses, grads = judge(kind, x, labels)
    got = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
    largest = float(np.abs(x[np.isfinite(x)]).max())
    step = largest * 4 * T * 2.0**-51 if kind == "1e30" else 0  # of the grid, at most: a frame is off by half of it
    assert (np.abs(got.loss - losses) <= np.maximum(1e-14 * np.maximum(1, losses), T * step / 2)).all()
    bound = 2.0**-53 * T * (largest + float(losses.max()) + 16)
    assert np.abs(got.grad - grads).max() <= min(bound, 1e-9)


@pytest.mark.parametrize("C", [11, 400], ids=["dense", "sparse"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_frames_far_from_0_and_near_in_one_block(dtype, C):
    """Around +-256 in float32, and +-2048 in float64, exponentials begin to be taken against the largest logit."""
    rng = np.random.default_rng([SEED, C])
    shifts = [0, 9, 135, 255.9, 256.1, 300, 1e3, 2047.9, 2048.1, 2900, 1e6]
    x = rng.normal(size=(64, 3, C)) * 3
    x += rng.choice([*shifts, *(-shift for shift in shifts)], (64, 3, 1))
    x[rng.random(x.shape) < 0.2] -= 90  # far below the largest: beyond 256 when that is not
    x, labels = x.astype(dtype), rng.integers(1, C, (3, 9))
    right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    if dtype is np.float32:
        hold(x, labels, right.loss, right.grad)
    else:  # what log space rounds: see test_float64
        got = ctcbind.ctc_loss_and_grad(x, labels, engine="native")
        assert (np.abs(got.loss - right.loss) <= 1e-14 * right.loss).all()
        assert np.abs(got.grad - right.grad).max() <= 2.0**-53 * 64 * float(right.loss.max() + 16)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("first", [16, 64, 80, 128])
def test_a_block_computed_again_goes_on_from_the_one_before(first, dtype):
    """Frames that do not go together make a block too many runs to be kept; of the block before, alpha is at hand."""
    rng = np.random.default_rng([SEED, first])
    x, labels = rng.normal(size=(150, 4, 28)).astype(dtype), rng.integers(1, 28, (4, 20))
    for frame in range(first, first + 16, 2):
        x[frame, range(4), labels[:, frame % 20]] = -np.inf
    right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    hold(x, labels, right.loss, right.grad)


@pytest.mark.parametrize(
    ("gain", "seeds"),
    [(40, [14571, 100737, 104414, 106842, 112606]), (150, [1374, 5023, 7700, 8590, 10306, 11223, 11995, 13100])],
    ids=["floats", "doubles"],
)
def test_the_frame_after_a_run_brings_far_more_weight(gain, seeds):
    """Between these states lie hundreds of binades. Where a run of frames ends and the next frame lifts states by far
    more than the run did, what beta brings from there must not fall below the numbers of the run's units."""
    for seed in seeds:
        x, labels = logits_without_sense(seed, gain)
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("scale", [0, 1, 30, 1000])
def test_the_judges_are_right(scale, simple):
    rng = np.random.default_rng([SEED, scale])
    for T, L, C in ((1, 0, 1), (1, 1, 3), (7, 0, 4), (9, 4, 3), (60, 20, 6)):
        x = rng.normal(size=(T, C)) * scale
        labels = rng.permutation(np.arange(L) % max(C - 1, 1) + 1).tolist()
        while L + sum(a == b for a, b in itertools.pairwise(labels)) > T:
            labels = rng.permutation(labels).tolist()
        topology = "simple" if simple else "ctc"
        right = ctcbind.ctc_loss_and_grad(x[:, None], [labels], topology=topology, engine="reference")
        loss, grad = exact_ctc(x, labels, simple=simple)
        bound = 2.0**-53 * T * (8 * scale + 8) * 4  # what log space rounds
        assert abs(loss - right.loss[0]) <= bound
        assert np.abs(grad - right.grad[:, 0]).max() <= 8 * bound
        if not simple and scale <= 1:
            loss, grad = tilted_ctc(x, labels)
            assert abs(loss - right.loss[0]) <= bound
            assert np.abs(grad - right.grad[:, 0]).max() <= 8 * bound


def test_the_tilted_judge_refuses_sharp_logits():
    x, labels = batch("x 1000", 400, 100, 16, 1)
    with pytest.raises(ValueError, match="too sharp"), np.errstate(all="ignore"):
        tilted_ctc(x[:, 0], labels[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_that_cannot_stay(dtype):
    """In the simple topology a label gives all that it has to its neighbours in one frame: beside a blank that lies far
    below, alpha falls out of the numbers there, and beta must not rise out of them."""
    for seed in range(150):
        rng = np.random.default_rng([SEED, 3, seed])
        T = int(rng.integers(20, 120))
        x = rng.normal(size=(T, 1, 2)) * rng.choice([100, 200])
        x[..., 0] -= rng.choice([100, 300, 1000])
        x, labels = x.astype(dtype), [[1] * int(rng.integers(1, T // 3))]
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference", topology="simple")
        hold(x, labels, judged.loss, judged.grad, topology="simple")


def any_batch(rng):
    """Logits of some kind that no network gives, or one does on a bad day, and labels that may leave no path."""
    T, C = int(rng.integers(1, rng.choice([20, 80, 300]))), int(rng.integers(2, rng.choice([4, 12, 40])))
    N, longest = int(rng.integers(1, 4)), int(rng.integers(0, min(rng.choice([4, 10, 300]), T + 1)))
    scale = rng.choice([0, 0.1, 1, 1, 3, 10, 10, 30, 100, 1000])
    x = rng.normal(size=(T, N, C)) * scale
    how = rng.integers(6)
    if how == 0:
        x[rng.random(x.shape) < rng.choice([0.02, 0.2, 0.6])] = -np.inf
    elif how == 1:
        x[..., rng.integers(C)] += rng.choice([-1000, -300, 300, 1000])
    elif how == 2:
        x *= rng.random((T, 1, 1)) ** 4 * 3
    elif how == 3:
        x[rng.integers(T)] = -50 * rng.random((N, C)) * scale
    elif how == 4:
        x[np.arange(T)[:, None], np.arange(N), rng.integers(0, C, (T, N))] += 20 * scale
    labels = [rng.integers(1, C, int(rng.integers(0, longest + 1))).tolist() for _ in range(N)]
    return x.astype(np.float32), labels if rng.random() < 0.7 else [[1] * len(row) for row in labels]


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_batches_of_any_kind(topology):
    for seed in range(250):
        rng = np.random.default_rng([SEED, 4, seed])
        x, labels = any_batch(rng)
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference", topology=topology)
        got = ctcbind.ctc_loss_and_grad(x, labels, engine="native", topology=topology)
        np.testing.assert_array_equal(np.isinf(got.loss), np.isinf(judged.loss))
        some = np.isfinite(judged.loss)
        if some.any():
            possible = [labels[n] for n in np.flatnonzero(some)]
            hold(x[:, some], possible, judged.loss[some], judged.grad[:, some], topology=topology)


# --- four traps of linear space with an exponent a state ----------------------------------------------------


@pytest.mark.parametrize("C", [4, 300])
@pytest.mark.parametrize("cost", [60, 400])
def test_a_dead_state_leaves_no_exponent_behind(cost, C):
    """Three frames give the blank -inf and the labels within reach 2^-87 (2^-577): the blanks' states are empty, and
    their exponents stand 2^261 (2^1731) above all others. Sums aligned to those would lose what a float (double) can
    hold of the living. The class that such frames favour comes last, and cannot be reached so early."""
    x = np.random.default_rng(SEED).normal(size=(60, 1, C))
    x[45:48, 0, 0] = -np.inf
    x[45:48, 0, 1:3] -= cost
    x = x.astype(np.float32)
    labels = [[1, 2] * 24 + [1, 3]]
    result = ctcbind.ctc_loss_and_grad(x.astype(float), labels, engine="reference")
    assert 3 * cost < result.loss[0] < np.inf
    hold(x, labels, result.loss, result.grad)


@pytest.mark.parametrize("C", [4, 300])
@pytest.mark.parametrize("gap", [80, 90, 150, 700, 5000])
def test_rows_wider_than_a_float(gap, C):
    """Classes on the path so many nats apart in one row: more than 2^120 from 84 nats on, where a float is 0."""
    rng = np.random.default_rng([SEED, gap])
    x = rng.normal(size=(50, 1, C))
    x[:, 0, 1] -= gap  # both labels must be passed through, on the way and back,
    x[20:30, 0, 2] += gap  # and one of them is far above the rest for a while
    x = x.astype(np.float32)
    labels = [[1, 2, 1, 3, 1]]
    result = ctcbind.ctc_loss_and_grad(x.astype(float), labels, engine="reference")
    assert result.loss[0] > 2 * gap
    hold(x, labels, result.loss, result.grad)


@pytest.mark.parametrize("C", [8, 300])
def test_exponents_past_the_24_bits_of_a_float(C):
    """Logits of 30,000 over 4000 frames: exponents come past 2^26, where a float counts in steps of 8."""
    x = (np.random.default_rng(SEED).normal(size=(4000, 1, C)) * 30000).astype(np.float32)
    labels = [np.random.default_rng(SEED).integers(1, 8, size=400).tolist()]
    result = ctcbind.ctc_loss_and_grad(x.astype(float), labels, engine="reference")
    assert result.loss[0] > 2**26
    hold(x, labels, result.loss, result.grad)


@pytest.mark.parametrize("C", [4, 300])
def test_logits_up_to_the_largest_double(C):
    """Counted nat by nat, such exponents would come past those that mark a state as unreachable.

    Of the paths of [1, 2, 1] the best is 1, 2, 1, blank, blank. It pays 1e290 and 7.7e301; what the others pay
    more is far beyond rounding.
    """
    x = np.full((5, 1, C), -1.5e308)
    x[:, 0, :3] = [[1e290, 0, 0], [1e290, 0, 5e290], [0, 8e301, 7e301], [1e308, -1e307, 0], [0, 0, 7.7e301]]
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, [[1, 2, 1]], engine="native")
    right = np.zeros((5, 1, C))
    right[0, 0, :2] = 1, -1
    right[4, 0, :3] = -1, 0, 1
    np.testing.assert_allclose(loss, [7.7e301 + 1e290], rtol=4 * 5**2 * np.finfo(float).eps)  # T steps of 4 T eps
    np.testing.assert_allclose(grad, right, rtol=0, atol=4 * np.finfo(float).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("C", [6, 300])
def test_a_loss_of_nearly_the_largest_double(C, dtype):
    """1.7e308 nats are more binades than a double can count."""
    x = np.zeros((20, 1, C), dtype)
    x[0, 0, :2] = -1.7e308 if dtype == "float64" else -3.4e38
    loss = ctcbind.ctc_loss(x, [[1, 2]], engine="native")
    step = 2.0**-51 * 4 * len(x)  # of the grid, at most, relative to the largest logit; a frame is off by half of it
    rtol = step / 2 if dtype == "float64" else 2.0**-23
    np.testing.assert_allclose(loss.astype(float), -x[0, 0, 0].astype(float), rtol=rtol)


@pytest.mark.parametrize("C", [3, 300])
@pytest.mark.parametrize("cost", [1e11, 1e12, 1e13, 1e14, 1e15])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_decides_beside_a_huge_logit(dtype, cost, C):
    """The label costs as much in either frame, so that the other frame's blank decides: less that, a cost of 1e12 would
    be rounded to 2^-13. Allowed are four roundings: of an emission, a sum, a quotient, and of what is stored."""
    x = np.full((2, 1, C), -1, dtype)
    x[:, 0, 0] = 0.3, 0.7
    x[:, 0, 1] = -cost
    first = 1 / (1 + np.exp(float(x[0, 0, 0]) - float(x[1, 0, 0])))
    grad = ctcbind.ctc_loss_and_grad(x, [[1]], engine="native").grad
    np.testing.assert_allclose(grad[:, 0, 1], [-first, first - 1], rtol=0, atol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("C", [4, 300])
@pytest.mark.parametrize("big", [1e10, 1e14, 1e16, 1e18, 1e25, 1e30, 3e38])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_huge_logit_on_the_path_costs_nothing(dtype, big, C):
    """Exponents that are whole steps of what the largest logit needs would leave nothing of a loss of 100,000."""
    x = np.zeros((4, 1, C), dtype)
    x[0, 0, 1] = big
    x[2, 0, 0] = 1e5  # each label must be read in its own frame, so this is paid for
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, [[1, 2, 1, 2]], engine="native")
    np.testing.assert_allclose(loss, [1e5 + 2 * np.log(C)], rtol=2 * np.finfo(dtype).eps)
    right = np.full((4, 1, C), 1 / C)
    right[[0, 2]] = 0
    right[2, 0, 0] = 1
    right[[1, 2, 3], 0, [2, 1, 2]] -= 1
    np.testing.assert_allclose(grad, right, rtol=0, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_magnitudes_side_by_side(dtype):
    """A few logits between 1e3 and 1e35, and at -inf, among those of a fresh network: where float64 log space rounds
    away which path is best, loss and gradient are still those of some distribution over paths.

    In float64 the loss is nearly always right to a few units; where one logit is so large that all exponents are
    counted in steps of its rounding, a loss far below it keeps the six digits that are promised, and not many more.
    """
    rng = np.random.default_rng([SEED, 35])
    off = []
    for _ in range(500):
        T, C = int(rng.integers(1, 300)), int(rng.choice([4, 150]))
        x = rng.normal(size=(T, 1, C))
        for _ in range(int(rng.integers(1, 4))):
            t = rng.integers(T)
            x[t, 0, rng.integers(min(C, 4))] = 10.0 ** rng.integers(3, 36) * rng.choice([-1, 1])
            if rng.random() < 0.3:
                x[t, 0, rng.integers(min(C, 4))] = -np.inf
        x = x.astype(dtype)
        labels = [rng.integers(1, 4, size=int(rng.integers(0, min(T, 5)))).tolist()]
        loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, engine="native")
        right = ctcbind.ctc_loss(x.astype(float), labels, engine="reference")
        if loss[0] == right[0] == np.inf:
            assert not grad.any()
            continue
        off.append(abs(float(loss[0]) - right[0]) / max(right[0], 1))
        assert np.abs(grad).max() <= 1 + 4 * np.finfo(dtype).eps
        assert np.abs(grad.astype(float).sum(axis=2)).max() <= (C + 16) * np.finfo(dtype).eps
    assert len(off) > 400
    assert max(off) <= 1e-6
    assert dtype == "float32" or np.quantile(off, 0.95) <= 1e-12


@pytest.mark.parametrize(("C", "below"), [(11, 13), (28, 14), (128, 15), (129, 15), (1024, 18), (5000, 20)])
def test_a_loss_near_zero_is_not_lost_in_the_row_sum(C, below):
    """ln(1 + r) of 1e-5: a row sum that holds the 1 keeps three digits of r, and 300 rows lose 1e-5 of the loss."""
    rng = np.random.default_rng([SEED, C])
    x = (rng.normal(size=(300, 2, C)) - below).astype(np.float32)
    x[:, 1] = -below  # equal rows err alike
    labels = [[1, 2, 3], []]
    x[:, :, 0] = 4
    for t, label in ((50, 1), (150, 2), (250, 3)):
        x[t, 0, [0, label]] = -below, 4
    result = ctcbind.ctc_loss_and_grad(x.astype(float), labels, engine="reference")
    assert (result.loss < 1).all()
    hold(x, labels, result.loss, result.grad)


def of_frames(T, C, classes, masked, sure):
    """(T, 1, C) logits: of each frame one class by `sure` nats, and -inf at the (frame, class) in `masked`."""
    x = np.zeros((T, 1, C))
    x[np.arange(T), 0, classes] = sure
    for t, k in masked:
        x[t, 0, k] = -np.inf
    return x


MANY = [(1, 1), (6, 0), (6, 1), (14, 0), (15, 3), (20, 2), (23, 1), (23, 2), (24, 0), (25, 3)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (of_frames(13, 2, 1, [(11, 1), (12, 0)], 150), [1]),
        (of_frames(24, 2, [1] * 5 + [0] + [1] * 18, [(19, 1), (20, 0)], 8), [1]),
        (of_frames(28, 4, 1, MANY, 100), [3, 3, 1]),
        (of_frames(48, 3, 1, [(31, 1), (32, 0)], 8), [1]),
    ],
    ids=["smallest", "8 nats", "many masks", "in the second half"],
)  # fmt: skip
def test_a_mask_that_leaves_only_what_had_no_weight(x, labels, dtype):
    """Its last frame forbids all states of a run but those that were flushed beside their neighbours."""
    x = x.astype(dtype)
    got = ctcbind.ctc_loss_and_grad(x, [labels], engine="native")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [labels], engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6 if dtype == "float32" else 1e-11)


def test_masks_at_random_beside_sure_frames():
    for seed in range(400):
        rng = np.random.default_rng([SEED, seed])
        T, C = int(rng.integers(4, 80)), int(rng.integers(2, 6))
        labels = rng.integers(1, C, int(rng.integers(1, 4)))
        masked = [(rng.integers(T), rng.integers(C)) for _ in range(int(rng.integers(1, T // 3 + 2)))]
        classes = np.where(rng.random(T) < 0.8, labels[-1], rng.integers(0, C, T))
        x = of_frames(T, C, classes, masked, rng.choice([8, 12, 30, 100, 150]))
        for dtype, atol in (("float32", 2e-6), ("float64", 1e-10)):
            got = ctcbind.ctc_loss_and_grad(x.astype(dtype), [labels], engine="native")
            want = ctcbind.ctc_loss_and_grad(x, [labels], engine="reference")
            np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6, atol=1e-6, err_msg=str(seed))
            np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=atol, err_msg=str(seed))


@pytest.mark.parametrize(("T", "far"), [(7, 5e13), (100, 3e12), (2000, 3e11), (20000, 3e10)])
def test_hundreds_of_nats_in_each_row_beside_a_logit_counted_in_steps(T, far):
    """There is one path, which pays 500 nats and the choice of two classes in each row, and `far` in one."""
    x = np.zeros((T, 1, 3))
    labels = 1 + np.arange(T) % 2
    x[np.arange(T), 0, labels] = -500
    x[T // 2, 0, 1:] = -far
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, [labels], engine="native")
    paid = far + (T - 1) * (500 + np.log(2))
    steps = T / 2 * max(1, far * 4 * T * 2.0**-51)  # half a step in each row: steps are of a binade, or bits 52 and on
    np.testing.assert_allclose(loss, [paid], rtol=0, atol=steps)
    right = np.full((T, 1, 3), 0.5)
    right[T // 2] = 1, 0, 0
    right[np.arange(T), 0, labels] = -1
    np.testing.assert_allclose(grad, right, rtol=0, atol=4 * np.finfo(float).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gap", [41, 100, 599])
@pytest.mark.parametrize("big", [1e14, 1e15, 1e17])
def test_what_is_less_than_a_step_below_beside_what_is_far_below(big, gap, dtype):
    """Logits so large are counted in steps of hundreds of nats; a class that is `gap` nats below counts as that."""
    x = np.array([[-big, -big, 0], [0, -gap, -big], [0, 0, 0]], dtype)[:, None]
    got = ctcbind.ctc_loss_and_grad(x, [[1, 2]], engine="native")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1, 2]], engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)
