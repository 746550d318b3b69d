"""What floats round does not add up: over thousands of frames or classes that are alike, that come again, or between
paths that stay apart."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from promise import hold

import ctcbind


@pytest.mark.parametrize("T", [300, 2000, 9990])
@pytest.mark.parametrize("row", [[0, 0], [-1, 0, 0, 1, 1], [-1, -1, 0, 0, 0], [0, -10.5, -14.5, -14.5], [9, 2, 2]])
def test_frames_alike_do_not_round_one_way(T, row):
    """As a padded utterance or a fresh network has them: the roundings of thousands of sums would all add up. One frame
    in the beginning is no label, so that the loss is large; labels may stand early and late."""
    C = len(row) + 1
    x = np.zeros((T, 1, C), np.float32)
    x[:, 0, :-1], x[:, 0, -1] = row, -40
    for glitch in (0, min(T / 8 + 2, 300) * 1.1):
        x[0, 0, -1] = glitch
        x[1, 0, 1] = x[T - 2, 0, 1] = max(row)
        targets = [list(range(1, C - 1))]
        got = ctcbind.ctc_loss_and_grad(x, targets, engine="native")
        want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), targets, engine="reference")
        np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("T", "N"), [(150, 1), (399, 1), (1000, 1), (3600, 1), (9990, 1), (9990, 3)])
@pytest.mark.parametrize("C", [2, 400])
def test_frames_that_come_again_do_not_round_one_way(T, N, C):
    """Four in turns, none like the one before it, each rounded to the good of the label."""
    below = np.float32([-1.1702308654785156, -1.173155665397644, -1.177069067955017, -1.1741442680358887])
    x = np.full((T, N, C), -np.inf, np.float32)
    t = np.arange(T)
    x[t, :, t % 2] = 0
    x[t, :, 1 - t % 2] = below[t % 4, None]
    judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1]] * N, engine="reference")
    hold(x, [[1]] * N, judged.loss, judged.grad)


@pytest.mark.parametrize("jitter", [0, 1e-6])
@pytest.mark.parametrize(("T", "L"), [(1000, 1), (2500, 30), (9990, 1), (9990, 20), (20000, 5)])
@pytest.mark.parametrize("C", [31, 330])
def test_what_labels_use_comes_again_among_others_that_do_not(T, L, C, jitter):
    """No two frames have the same sum; but what labels and blank emit is rounded the same way again and again."""
    rng = np.random.default_rng([T, L, C])
    classes = min(L, 10) + 1
    labels = [[i % (classes - 1) + 1 for i in range(L)]]
    for period in (2, 3, 4):
        frames = rng.normal(size=(period, classes))
        x = rng.normal(size=(T, 1, C)) - 2
        x[:, 0, :classes] = np.resize(frames - frames.mean(0), (T, classes)) + jitter * rng.normal(size=(T, classes))
        x = x.astype(np.float32)
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize(("T", "C", "L"), [(40, 128, 1), (40, 192, 0), (40, 192, 1), (200, 318, 80)])
def test_many_classes_alike(T, C, L):
    """Each of their terms is rounded the same way when it is added, where each class has a column, too."""
    for below in (5.3145433, 6.6522621, 6.6127599, 7.7297275, 6.6368863, *(14 * np.random.default_rng(C).random(60))):
        x = np.full((T, 1, C), -below, np.float32)
        x[:, 0, 0] = 0
        x[1 : 2 * L : 2, 0, 0], x[1 : 2 * L : 2, 0, 1] = -below, 0
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1] * L], engine="native")
        hold(x, [[1] * L], judged.loss, judged.grad)


@pytest.mark.parametrize(("T", "longest"), [(150, 40), (300, 60), (1000, 200), (3000, 400), (9990, 2000)])
def test_random_frames_that_come_again(T, longest):
    """With periods that are looked for and longer ones, and in an order that has none."""
    rng = np.random.default_rng([SEED, T])
    for period in rng.integers(2, longest + 1, size=20):
        frames = (rng.choice([0.1, 0.5]) * rng.normal(size=(period, 1, 28))).astype(np.float32)
        mixed = rng.random() < 0.3
        x = frames[rng.integers(period, size=T)] if mixed else np.resize(frames, (T, 1, 28))
        labels = [rng.integers(1, 28, 2).tolist()]
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize(("T", "L", "C", "period", "seeds"), [
    (32, 2, 20, 2, [26463]),
    (47, 2, 20, 2, [59908]),
    (64, 4, 20, 2, [19691, 38272]),
    (80, 3, 28, 2, [33375, 17561]),
    (100, 2, 12, 2, [39721]),
    (130, 2, 28, 3, [18676, 33028]),
    (160, 3, 28, 2, [1103]),
    (199, 2, 28, 2, [25373]),
    (199, 4, 20, 5, [25666]),
])  # fmt: skip
def test_few_frames_that_come_again(T, L, C, period, seeds):
    """With these seeds, one in ten thousand, floats are off by 2.5e-6 to 8e-6."""
    for seed in seeds:
        rng = np.random.default_rng([T, L, C, period, seed])
        x = np.resize(4 * rng.normal(size=(period, 1, C)), (T, 1, C)).astype(np.float32)
        labels = [rng.integers(1, C, L).tolist()]
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize(
    ("T", "L", "C", "seed"), [(150, 3, 20, 11487), (199, 1, 8, 9135), (300, 5, 20, 8110), (300, 15, 20, 15673)]
)
def test_few_frames_of_whose_logits_those_of_labels_come_again(T, L, C, seed):
    """Two in turns, none of whose other classes is the largest. With these seeds floats are off by 2.5e-6 to 4.7e-6."""
    rng = np.random.default_rng([T, L, C, 2, seed])
    used = np.resize(4 * rng.normal(size=(2, 1, 3)), (T, 1, 3))
    x = np.minimum(used.max(2, keepdims=True), rng.normal(size=(T, 1, C)) * 4)
    x[..., :3] = used
    x, labels = x.astype(np.float32), [rng.integers(1, 3, L).tolist()]
    judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    hold(x, labels, judged.loss, judged.grad)


def test_two_frames_that_have_one_place_in_the_table_of_frames_seen():
    """In turns, each would overwrite what is kept of the other."""
    x = np.random.default_rng(0).normal(size=(3900, 1, 4)).astype(np.float32) - 3
    x[:, 0, :2] = np.resize(np.float32([[-0.81554866, -0.36589977], [-0.77850276, -1.2259928]]), (3900, 2))
    judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1]], engine="native")
    hold(x, [[1]], judged.loss, judged.grad)


@pytest.mark.parametrize("T", [60, 300, 5000])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([-7.95, -4.8273812, -4.1339839, 3.16008593], [-7.95, -3.9505786, -4.6439759, 3.16008593]),
        ([-8, -1.3857286, -0.6795051, 0], [-8, -0.4372327, -1.1434563, 0]),
    ],
    ids=["below a class that is not used", "beside it"],
)
def test_paths_that_stay_apart_through_frames_alike(T, first, second):
    """1 2 2 ... 2 and 1 1 ... 1 2 are as probable as each other: what is rounded in one frame is rounded in each of
    them, the differences from the largest logit too."""
    x = np.zeros((T, 1, 4), np.float32)
    x[: T // 2, 0], x[T // 2 :, 0] = first, second
    got = ctcbind.ctc_loss_and_grad(x, [[1, 2]], engine="native")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1, 2]], engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("T", "L", "C", "scale", "seeds"), [
    (3000, 110, 8, 1, [2320]),
    (3500, 2, 8, 0.1, [356, 1418]),
    (3500, 10, 30, 1, [515]),
    (5000, 10, 5, 0.3, [680, 1071]),
    (6900, 10, 8, 0.1, [165, 668]),
    (6900, 120, 8, 1, [151, 506]),
    (9900, 80, 5, 2, [232, 2451]),
])  # fmt: skip
def test_few_labels_of_which_each_may_come_early_or_late(T, L, C, scale, seeds):
    """As of a fresh network. What floats round adds up at random: with these seeds, one in a thousand or fewer, to over
    2.1e-6 of the gradient."""
    for seed in seeds:
        rng = np.random.default_rng([T, L, C, seed])
        x = (scale * rng.normal(size=(T, 1, C))).astype(np.float32)
        labels = [rng.integers(1, C, L).tolist()]
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize("C", [40, 400])
@pytest.mark.parametrize("kinds", [1, 2, 5])
@pytest.mark.parametrize("T", [1000, 4000])
def test_a_class_that_stays_while_others_do_not(T, kinds, C):
    """Blank and the first label are nearly as probable as each other in most frames, and always by the same few
    numbers, so that the label may go on for any time. No two frames are alike, nor those of the classes of all labels,
    which are many."""
    L = T // 16 + 2
    stay = T - 2 * L - 6
    labels = [[1, *(2 + k % 9 for k in range(L - 1))]]
    for k in range(10):
        rng = np.random.default_rng([T, kinds, C, k])
        x = rng.normal(size=(T, 1, C)) * 0.3 - 1.5
        x[:, 0, 0] = 0
        x[:stay, 0, 2:11] -= 6
        x[:stay, 0, 1] = -np.resize(rng.random(kinds) / T, stay)
        x = (x + 6 * rng.random() - 3).astype(np.float32)
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
        hold(x, labels, judged.loss, judged.grad)


@pytest.mark.parametrize("N", [1, 3])
def test_what_is_just_below_a_floats_last_bit_frame_after_frame(N):
    """One path is nearly all; at each of thousands of frames another joins it with 0.49 of a last bit. One frame costs
    300 nats, so that the loss is not small; noise keeps the frames from being alike."""
    T, low = 9990, -8.0
    x = np.zeros((T, N, 5), np.float32)
    x[:, :, 1:3] = np.log(0.49 * 2.0**-23) - low
    x[:, :, 3] = -6 - 4 * np.random.default_rng(SEED).random((T, N))
    x[:, :, 4] = -40
    x[0, :, :3], x[-1, :, :3] = (low, 0, -40), (low, -40, 0)
    x[3, :, 4] = 300
    got = ctcbind.ctc_loss_and_grad(x, [[1, 2]] * N, engine="native")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1, 2]] * N, engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("T", "L", "logits"), [(88, 22, (-0.6930855, -0.6924539)), (80, 20, (-0.65369654, -0.6525939))]
)
def test_sums_and_emissions_that_round_apart(T, L, logits):
    """Of many classes a row is summed by other exponentials than the few of them that labels have emit."""
    x = np.full((T, 1, 400), -np.inf, np.float32)
    x[:, 0, 0], x[:, 0, 1] = 0, np.resize(logits, T)
    judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1] * L], engine="reference")
    hold(x, [[1] * L], judged.loss, judged.grad)


@pytest.mark.parametrize("C", [2049, 32768, 131_073, 1_000_000])
def test_very_many_classes_alike(C):
    """Each term of the sum is rounded the same way when it is added."""
    for below in (*(12 * np.random.default_rng([SEED, C]).random(5)), 5.3369, 6.7181):
        x = np.full((2, 1, C), -below, np.float32)
        x[:, 0, 0] = 0
        judged = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1]], engine="native")
        hold(x, [[1]], judged.loss, judged.grad)


@pytest.mark.parametrize("noise", [0, 0.3])
@pytest.mark.parametrize(("T", "C", "L", "label", "rest"), [
    (129, 4, 32, -0.291581243, -8.05422688),
    (129, 330, 31, -0.326640369, -100),
    (2000, 4, 418, -0.856997916, -11.9313107),
    (2000, 330, 492, -0.256409241, -100),
])  # fmt: skip
def test_a_loss_that_is_a_small_difference(T, C, L, label, rest, noise):
    """Each frame's sum takes half a nat out of the probability, and the paths are so many that all but a few nats of
    that come back: what the sums round is a larger part of the loss."""
    x = np.full((T, 1, C), rest, np.float32)
    x[:, 0, 0], x[:, 0, 1] = 0, label
    x[:, 0, :2] += (noise * np.random.default_rng([SEED, T, C]).normal(size=(T, 1))).astype(np.float32)
    got = ctcbind.ctc_loss_and_grad(x, [[1] * L], engine="native")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1] * L], engine="reference")
    assert want.loss[0] < 20
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)
    np.testing.assert_array_equal(ctcbind.ctc_loss(x, [[1] * L], engine="native"), got.loss)
