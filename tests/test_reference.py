"""The reference against every path, against finite differences, and against what its equations imply."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from batches import SEED, brute_force, collapse, paths_of

import ctcbind
from ctcbind.engines.reference import forward_backward, log_softmax

#: Sums of at most 4^5 products of 5 probabilities, each of which a float64 carries to 2^-53: the brute force is
#: good to 1e-13; the recursion's logs, below 40 in magnitude, add 40 * 2^-53 a frame.
EXACT = 1e-12

TOPOLOGIES = ("ctc", "simple")


def run(x, labels, blank, topology="ctc"):
    """(loss, gradient (T, C)) of one sample, x (T, C), by the reference engine."""
    options = {"blank": blank, "topology": topology, "engine": "reference"}
    loss, grad, _ = ctcbind.ctc_loss_and_grad(np.asarray(x, dtype=np.float64)[:, None], [labels], **options)
    return float(loss[0]), grad[:, 0]


def logits(T, C, *key):
    return np.random.default_rng([SEED, T, C, *key]).normal(size=(T, C)) * 2


def test_collapse_is_the_map_of_the_paper():
    """ICML 2006, section 3.1: B(a-ab-) = B(-aa--abb) = aab."""
    a, b, _ = 1, 2, 0
    assert collapse((a, 0, a, b, 0), 0) == collapse((0, a, a, 0, 0, a, b, b), 0) == (a, a, b)
    assert collapse((a, 0, b, b, 0, 2), 0, "simple") == (a, b, b, 2)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("T", "C"), [(1, 1), (3, 1), (1, 2), (2, 2), (6, 2), (1, 3), (2, 3), (5, 3), (4, 4), (3, 5)])
def test_every_label_and_every_blank_against_every_path(T, C, topology):
    for blank in range(C):
        x = logits(T, C, blank)
        others = [c for c in range(C) if c != blank]
        total = 0.0
        for L in range(T + 2):
            for labels in itertools.product(others, repeat=L):
                loss, grad = run(x, list(labels), blank, topology)
                exact, exact_grad = brute_force(x, labels, blank, topology)
                where = f"seed {SEED}, blank {blank}, labels {labels}"
                assert loss == pytest.approx(exact, rel=EXACT, abs=EXACT), where
                np.testing.assert_allclose(grad, exact_grad, rtol=0, atol=EXACT, err_msg=where)
                total += math.exp(-loss)
        assert total == pytest.approx(1, abs=EXACT), f"the labels' probabilities do not sum to 1 (blank {blank})"


@pytest.mark.parametrize("size", [1e15, 1e30, 2e38, 1e300])
def test_huge_logits_that_many_paths_pay_alike(size):
    """Their sums have no digits left for how many paths there are: occupancies of a frame add up to 1 all the same."""
    x = np.full((5, 4), -size)
    x[:, 0] = size
    loss, grad = run(x, [1, 2], 0)
    assert loss == pytest.approx(4 * size)
    np.testing.assert_allclose(grad.sum(axis=1), 0, atol=1e-12)
    assert np.abs(grad).max() <= 1


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("labels", [[], [1], [1, 1], [1, 2], [1, 1, 1], [2, 1, 1], [1, 2, 1], [1, 2, 2, 1]])
def test_feasible_exactly_where_a_path_exists(labels, topology):
    needed = len(labels) + (sum(a == b for a, b in itertools.pairwise(labels)) if topology == "ctc" else 0)
    for T in range(1, 8):
        exists = tuple(labels) in paths_of(T, 3, 0, topology)
        assert exists == (needed <= T)
        loss, grad = run(logits(T, 3), labels, 0, topology)
        assert math.isfinite(loss) == exists
        assert exists or not grad.any()


def test_a_single_path_is_a_product():
    x = logits(3, 4)
    log_y = log_softmax(x)
    assert run(x, [1, 2, 1], 0)[0] == pytest.approx(-(log_y[0, 1] + log_y[1, 2] + log_y[2, 1]), abs=EXACT)
    assert run(x, [1, 1], 0)[0] == pytest.approx(-(log_y[0, 1] + log_y[1, 0] + log_y[2, 1]), abs=EXACT)
    assert run(x, [], 2)[0] == pytest.approx(-log_y[:, 2].sum(), abs=EXACT)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize(("T", "C", "L"), [(4, 3, 2), (7, 5, 3), (12, 4, 4), (5, 2, 2), (6, 3, 0)])
def test_gradient_is_the_slope_of_the_loss(T, C, L, topology):
    rng = np.random.default_rng([SEED, T, C, L])
    blank = int(rng.integers(C))
    labels = rng.choice([c for c in range(C) if c != blank], size=L)
    labels = labels[:1].repeat(L) if L == 2 else labels  # a repeat among them
    x = logits(T, C, L)
    _, grad = run(x, labels, blank, topology)
    # central difference: h^2/6 times a third derivative below 10 is 2e-10; T roundings of logs below 40, over h, 6e-9
    h = 1e-5
    nudged = x[:, None, None] + h * np.eye(T * C).reshape(T, C, T, C).transpose(2, 0, 1, 3)
    lowered = x[:, None, None] - h * np.eye(T * C).reshape(T, C, T, C).transpose(2, 0, 1, 3)
    both = np.concatenate([nudged.reshape(T, T * C, C), lowered.reshape(T, T * C, C)], axis=1)
    losses = ctcbind.ctc_loss(both, [labels] * (2 * T * C), blank=blank, topology=topology, engine="reference")
    slope = ((losses[: T * C] - losses[T * C :]) / (2 * h)).reshape(T, C)
    np.testing.assert_allclose(grad, slope, rtol=0, atol=1e-8, err_msg=f"seed {SEED}")


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("L", [0, 1, 2, 7, 15])
def test_alpha_times_beta_sums_to_p_at_every_time(L, merge):
    """Equation 14's remark: any t gives the same p, so the occupancies of each frame sum to 1."""
    T, C = 31, 5
    labels = np.random.default_rng([SEED, L]).integers(1, C, size=L)
    log_p, occupancy = forward_backward(log_softmax(logits(T, C, L)), labels, 0, merge_repeats=merge)
    assert math.isfinite(log_p)
    np.testing.assert_allclose(occupancy.sum(axis=1), 1, rtol=0, atol=EXACT, err_msg=f"seed {SEED}")
    assert (occupancy >= 0).all()
    # each label is emitted at least once, and no class beyond the labels and the blank at all
    assert (occupancy[:, 1:].sum(axis=0) >= np.bincount(labels, minlength=C)[1:] - EXACT).all()
    assert not occupancy[:, [c for c in range(1, C) if c not in labels]].any()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_symmetries(topology):
    rng = np.random.default_rng([SEED, 5])
    for _ in range(20):
        T, C = int(rng.integers(1, 15)), int(rng.integers(2, 6))
        x = rng.normal(size=(T, C)) * 3
        labels = rng.integers(1, C, size=int(rng.integers(0, T // 2 + 1)))
        loss, grad = run(x, labels, 0, topology)
        near = {"rtol": 1e-10, "atol": 1e-11, "err_msg": f"seed {SEED}"}
        np.testing.assert_allclose(grad.sum(axis=1), 0, **near)
        backwards, turned = run(x[::-1], labels[::-1], 0, topology)
        np.testing.assert_allclose(backwards, loss, **near)
        np.testing.assert_allclose(turned[::-1], grad, **near)
        order = rng.permutation(C)  # class c is called order[c] now
        renamed, moved = run(x[:, np.argsort(order)], order[labels], int(order[0]), topology)
        np.testing.assert_allclose(renamed, loss, **near)
        np.testing.assert_allclose(moved[:, order], grad, **near)
        shifted, same = run(x + rng.normal(size=(T, 1)), labels, 0, topology)
        np.testing.assert_allclose(shifted, loss, **near)
        np.testing.assert_allclose(same, grad, **near)


def test_uniform_scores_have_a_closed_form():
    """C^T equally likely paths, binom(T + L, 2L) of which collapse to L labels without repeats."""
    for T, C, L in [(1, 2, 0), (5, 4, 3), (100, 10, 4), (40, 7, 6)]:
        loss, _ = run(np.zeros((T, C)), list(range(1, L + 1)), 0)
        assert loss == pytest.approx(T * math.log(C) - math.log(math.comb(T + L, 2 * L)), rel=1e-12)


def test_log_softmax_with_infinities():
    inf = np.inf
    rows = np.array([[0.0, 0, -inf], [inf, 1, inf], [-inf, -inf, -inf], [inf, -inf, 3e300], [-inf, 7, -inf]])
    half = -math.log(2)
    expected = [[half, half, -inf], [half, -inf, half], [-inf] * 3, [0, -inf, -inf], [-inf, 0, -inf]]
    np.testing.assert_allclose(log_softmax(rows), expected, rtol=1e-15)


@pytest.mark.parametrize("magnitude", [1e10, 1e15, 1e17, 1e100, 1e300])
def test_huge_logits_give_a_distribution_over_paths(magnitude):
    """Near 1e17 the logarithm of p is some hundreds of nats off; what each class takes of a frame is not."""
    x = np.random.default_rng(SEED).normal(size=(20, 3, 7)).astype(np.float32).astype(np.float64) * magnitude
    labels = [[1, 2, 3], [4, 4], [5]]
    got = ctcbind.ctc_loss_and_grad(x, labels, engine="reference")
    native = ctcbind.ctc_loss_and_grad(x, labels, engine="native")
    assert np.abs(got.grad).max() <= 1 + 1e-12
    assert np.abs(got.grad.sum(axis=2)).max() < 1e-12
    np.testing.assert_allclose(got.loss, native.loss, rtol=1e-12)
