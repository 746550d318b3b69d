"""The lattice: α, β, γ against every path and the reference; added scores; gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED, random_case
from beyond import STORED, close, largest_log, rounding, sample, state_paths
from test_native_threads import process

import ctcbind
from ctcbind.engines.reference import log_softmax
from ctcbind.engines.reference_lattice import lattice, make_graph
from ctcbind.lattice import losses_alone, losses_and_shares
from ctcbind.scores import check_scores, lattice_batch

TINY = [(4, [1, 2]), (4, [1, 1]), (5, [2]), (3, []), (5, [1, 1, 2]), (1, [2]), (2, [1, 2])]


def fresh(*key: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *key])


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("case", range(len(TINY)))
@pytest.mark.parametrize("added", ["nothing", "bonus", "prior", "both"])
def test_every_path(case, topology, added):
    """Z, α, β and γ as sums over all state paths, and the loss's gradients from them."""
    T, labels = TINY[case]
    rng = fresh(case)
    C, S = 3, 2 * len(labels) + 1
    x = rng.normal(size=(T, 1, C))
    bonus = rng.normal(size=(1, T, S)) if added in ("bonus", "both") else None
    prior = rng.normal(size=C) if added in ("prior", "both") else None
    options = {"path_bonus": bonus, "log_prior": prior, "prior_weight": 0.7, "topology": topology}
    graph = make_graph(np.array(labels, np.int32), 0, merge_repeats=topology == "ctc")
    y = np.exp(x[:, 0]) / np.exp(x[:, 0]).sum(axis=1, keepdims=True)
    score = y[:, graph.extended]
    if bonus is not None:
        score = score * np.exp(bonus[0])
    if prior is not None:
        score = score / np.exp(0.7 * prior)[graph.extended]
    paths = state_paths(graph, T)
    weights = score[np.arange(T), paths].prod(axis=1)
    got = ctcbind.ctc_lattice(x, [labels], **options)
    loss = ctcbind.lattice_loss_and_grad(x, [labels], **options)
    assert got.extended[0].tolist() == graph.extended.tolist()
    with np.errstate(divide="ignore"):
        assert got.log_z[0] == pytest.approx(np.log(weights.sum()), abs=1e-12)
    if not len(paths):
        assert loss.loss[0] == np.inf
        assert not loss.grad.any()
        assert np.isneginf(got.log_gamma).all()
        return
    gamma = np.zeros((T, S))
    for path, weight in zip(paths, weights):
        gamma[np.arange(T), path] += weight / weights.sum()
    np.testing.assert_allclose(np.exp(got.log_gamma[0]), gamma, atol=1e-12)
    np.testing.assert_allclose(ctcbind.posteriors(x, [labels], **options)[0], gamma, atol=1e-12)
    reaching = np.isfinite(got.log_alpha[0]) & np.isfinite(got.log_beta[0])
    product = (got.log_alpha[0] + got.log_beta[0] - np.log(score))[reaching]  # γ Z = α β / score
    np.testing.assert_allclose(np.exp(product), (gamma * weights.sum())[reaching], rtol=1e-11)
    for t, s in np.ndindex(T, S):  # α: all beginnings that lead here, whether or not they reach the end
        walks = walks_to(graph, t, s)
        alpha = sum(score[np.arange(t + 1), walk].prod() for walk in walks)
        assert np.exp(got.log_alpha[0, t, s]) == pytest.approx(alpha, rel=1e-12, abs=1e-300)
    counts = np.zeros((T, C))
    np.add.at(counts.T, graph.extended, gamma.T)
    assert loss.loss[0] == pytest.approx(-np.log(weights.sum()), abs=1e-12)
    np.testing.assert_allclose(loss.grad[:, 0], y - counts, atol=1e-12)
    assert (loss.bonus_grad is None) == (bonus is None)
    assert (loss.prior_grad is None) == (prior is None)
    if bonus is not None:
        np.testing.assert_allclose(loss.bonus_grad[0], -gamma, atol=1e-12)
    if prior is not None:
        np.testing.assert_allclose(loss.prior_grad, 0.7 * counts.sum(axis=0), atol=1e-12)


def walks_to(graph, t, s):
    walks = [[first] for first in range(min(2, len(graph.extended)))]
    for _ in range(t):
        walks = [[*walk, to] for walk in walks for to in range(len(graph.extended)) if graph.moves[walk[-1], to] == 0]
    return [walk for walk in walks if walk[-1] == s]


@pytest.mark.parametrize("seed", range(60))
def test_against_the_reference(seed):
    """Any memory layout, dtype, blank, lengths, way of writing targets; both topologies."""
    case = random_case([SEED, 61, seed])
    got = ctcbind.ctc_lattice(*case.args, **case.options)
    shares = ctcbind.posteriors(*case.args, **case.options)
    kind = "float64" if case.logits.dtype == np.float64 else "float32"
    T, N, C = case.x.shape
    S = 2 * max(map(len, case.labels)) + 1
    assert got.log_alpha.shape == got.log_beta.shape == got.log_gamma.shape == shares.shape == (N, T, S)
    assert {got.log_alpha.dtype, got.log_gamma.dtype, got.log_z.dtype, shares.dtype} == {np.dtype(kind)}
    bound = 2 * rounding(T, C, largest_log(case))
    for n in range(N):
        frames, states = case.frames[n], 2 * len(case.labels[n]) + 1
        own = np.zeros((T, S), dtype=bool)
        own[:frames, :states] = True
        for array in (got.log_alpha[n], got.log_beta[n], got.log_gamma[n]):
            assert np.isneginf(array[~own]).all()
        assert (got.extended[n, states:] == -1).all()
        assert not shares[n][~own].any()
        if frames == 0:
            assert got.log_z[n] == (0 if states == 1 else -np.inf)
            continue
        log_y, graph = sample(case, n)
        assert got.extended[n, :states].tolist() == graph.extended.tolist()
        alpha, beta, gamma, log_z = lattice(graph, log_y[:, graph.extended])
        close(got.log_alpha[n, :frames, :states], alpha, bound, kind)
        close(got.log_beta[n, :frames, :states], beta, bound, kind)
        close(got.log_gamma[n, :frames, :states], gamma, 3 * bound, kind)
        close(got.log_z[n], log_z, bound, kind)
        close(shares[n, :frames, :states], np.exp(gamma), 3 * bound, kind)


@pytest.mark.parametrize("seed", range(30))
def test_without_added_scores_it_is_the_loss(seed, poison):
    case = random_case([SEED, 62, seed])
    got = ctcbind.lattice_loss_and_grad(*case.args, **case.options)
    assert poison, "the gradient's memory was not poisoned"
    assert got.bonus_grad is None
    assert got.prior_grad is None
    assert got.grad.dtype == case.logits.dtype
    assert got.grad.shape == case.logits.shape
    result = ctcbind.Result(got.loss, got.grad, "")
    case.check(result, str(case.logits.dtype), case.expected())


@pytest.mark.parametrize("seed", range(12))
def test_gradients_are_differences(seed):
    rng = fresh(63, seed)
    T, C = 5, 4
    topology = ["ctc", "simple"][seed % 2]
    labels = [[1, 1, 3], [2]]
    S = 7
    given = {
        "logits": rng.normal(size=(T, 2, C)),
        "path_bonus": rng.normal(size=(2, T, S)),
        "log_prior": rng.normal(size=C),
    }

    def total(**arguments):
        logits = arguments.pop("logits")
        result = ctcbind.lattice_loss_and_grad(logits, labels, [T, 3], prior_weight=1.3, topology=topology, **arguments)
        return result.loss.sum()

    result = ctcbind.lattice_loss_and_grad(
        given["logits"],
        labels,
        [T, 3],
        path_bonus=given["path_bonus"],
        log_prior=given["log_prior"],
        prior_weight=1.3,
        topology=topology,
    )
    for name, gradient in (
        ("logits", result.grad),
        ("path_bonus", result.bonus_grad),
        ("log_prior", result.prior_grad),
    ):
        along = rng.normal(size=given[name].shape)
        h = 1e-5
        up, down = (total(**{**given, name: given[name] + sign * h * along}) for sign in (1, -1))
        # the central difference is off by h^2 times a third derivative (of order T) and by rounding / h
        assert (up - down) / (2 * h) == pytest.approx((gradient * along).sum(), abs=1e-8)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("added", ["nothing", "bonus", "prior", "both"])
def test_losses_alone_are_those_beside_gradients(seed, added):
    """To the last bit, whatever else is asked for; NaN and -inf among the logits and the bonuses too."""
    rng = fresh(70, seed)
    T, N, C = (int(each) for each in rng.integers(1, [30, 4, 9]))
    labels = [rng.integers(1, C, rng.integers(0, 6)).tolist() if C > 1 else [] for _ in range(N)]
    logits = rng.normal(size=(T, N, C))
    logits[rng.random(logits.shape) < 0.03] = rng.choice([np.nan, -np.inf])
    batch = lattice_batch(logits, labels, None, None, blank=0, layout="TNC", topology="ctc")
    bonus = rng.normal(size=(N, T, batch.states))
    bonus[rng.random(bonus.shape) < 0.05] = -np.inf
    bonus = bonus if added in ("bonus", "both") else None
    scores = check_scores(batch, bonus, rng.normal(size=C) if added in ("prior", "both") else None, 0.7)
    alone = losses_alone(batch, scores)
    for with_gamma in (False, True):
        beside, _, gamma = losses_and_shares(batch, scores, np.empty_like(logits), with_gamma)
        assert (gamma is None) == (not with_gamma)
        if bonus is None and with_gamma:  # by states, and not by the loss of the classes
            np.testing.assert_allclose(alone, beside, rtol=1e-12, atol=1e-12)
        else:
            assert alone.tobytes() == beside.tobytes()


def test_a_forbidden_state_is_left_out():
    """Partial alignment: label 0 may only be seen in frames 0 to 2."""
    rng = fresh(64)
    x = rng.normal(size=(8, 1, 4))
    bonus = np.zeros((8, 5))
    bonus[3:, 1] = -np.inf
    shares = ctcbind.posteriors(x, [[1, 2]], path_bonus=bonus)[0]
    assert not shares[3:, 1].any()
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-12)
    path = ctcbind.align(x, [[1, 2]], path_bonus=bonus)
    assert path.ends[0, 0] <= 3
    everything = ctcbind.lattice_loss_and_grad(x, [[1, 2]], path_bonus=np.full((8, 5), -np.inf))
    assert everything.loss[0] == np.inf
    assert not everything.grad.any()
    assert not everything.bonus_grad.any()


def test_a_constant_bonus_moves_the_loss_alone():
    x = fresh(65).normal(size=(6, 1, 4))
    plain = ctcbind.lattice_loss_and_grad(x, [[1, 2]])
    moved = ctcbind.lattice_loss_and_grad(x, [[1, 2]], path_bonus=0.25)
    assert moved.loss[0] == pytest.approx(plain.loss[0] - 6 * 0.25)
    np.testing.assert_allclose(moved.grad, plain.grad, atol=1e-12)
    assert moved.bonus_grad.sum() == pytest.approx(-6)
    prior = ctcbind.lattice_loss_and_grad(x, [[1, 2]], log_prior=np.full(4, 2.0), prior_weight=0.5)
    assert prior.loss[0] == pytest.approx(plain.loss[0] + 6)
    assert prior.prior_grad.sum() == pytest.approx(3)


@pytest.mark.parametrize("seed", range(40))
def test_by_the_loss_of_the_classes_it_is_the_same(seed):
    """As it is computed where no state has a bonus; with a bonus of 0 it is computed state by state."""
    case = random_case([SEED, 68, seed])
    rng = fresh(69, seed)
    C = case.x.shape[2]
    logits, *rest = case.args
    scale = [0.1, 3.0, 100.0][seed % 3]
    options = {**case.options, "log_prior": None if seed % 5 == 0 else scale * rng.normal(size=C)}
    options = {name: value for name, value in options.items() if name not in ("reduction", "zero_infinity")}
    classes = ctcbind.lattice_loss_and_grad(logits, *rest, **options)
    states = ctcbind.lattice_loss_and_grad(logits, *rest, **options, path_bonus=0.0)
    dtype = classes.loss.dtype.name
    T = case.x.shape[0]
    bound = 8 * rounding(T, C, largest_log(case) + T * 4 * scale)
    close(classes.loss, states.loss, bound, dtype)
    stored = states.grad.dtype.name
    close(classes.grad, states.grad, bound + STORED[stored], stored)  # both are rounded, and at most 1
    if seed % 5:
        close(classes.prior_grad, states.prior_grad, bound * T * len(case.labels), dtype)


def test_a_long_sample_alone_has_the_same_bits_on_one_thread_and_two():
    """On two they take halves of it."""
    code = """
        import numpy as np, ctcbind
        rng = np.random.default_rng(0)
        x, labels, prior = rng.normal(size=(1500, 1, 30)), [rng.integers(1, 30, size=300).tolist()], rng.normal(size=30)
        found = []
        for threads in (1, 2):
            ctcbind.set_num_threads(threads)
            found.append(ctcbind.lattice_loss_and_grad(x, labels, log_prior=prior))
        one, two = found
        assert one.loss == two.loss and (one.grad == two.grad).all() and (one.prior_grad == two.prior_grad).all()
        right = ctcbind.lattice_loss_and_grad(x, labels, log_prior=prior, path_bonus=0.0)
        bound = 2.0**-53 * 1500 * (30 + 8) * right.loss  # as `rounding` has it
        assert abs(one.loss - right.loss) < bound and abs(one.grad - right.grad).max() < bound
        print("fine")
    """
    done = process(code)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("C", [1, 2, 31, 33, 97, 300, 1030, 5003])
@pytest.mark.parametrize("how", ["classes together", "classes from behind", "classes apart"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_many_classes(dtype, how, C):
    """Of which few are labels: ln Z from sums in doubles, and the softmax in the gradient as the loss takes it."""
    rng = fresh(79, C)
    T, L = 40, 6 if C > 1 else 0
    x = (3 * rng.normal(size=(T, 2, C))).astype(dtype)
    x[3, 1, C // 2] = np.inf if C > 1 else 0
    x[:, 1, -1] = -np.inf if C > 2 else 0
    labels = rng.integers(1, max(C - 1, 2), size=(2, L)) if C > 1 else np.zeros((2, 0), int)
    prior = rng.normal(size=C)
    given = {"classes together": x, "classes from behind": x[:, :, ::-1].copy()[:, :, ::-1]}.get(
        how, np.asfortranarray(x)
    )
    for added in ({"log_prior": prior}, {"log_prior": prior, "path_bonus": 0.0}):  # by classes, and by states
        got = ctcbind.lattice_loss_and_grad(given, labels, **added)
        assert got.grad.dtype == dtype
        for n in range(2):
            log_y = log_softmax(x[:, n].astype(np.float64))
            graph = make_graph(labels[n].astype(np.int32), 0, merge_repeats=True)
            _, _, gamma, log_z = lattice(graph, (log_y - prior)[:, graph.extended])
            size = abs(log_z) if log_z > -np.inf else 0
            bound = 2 * rounding(T, C, size + T * np.abs(prior).max())
            close(got.loss[n], -log_z, bound, "float64" if dtype == "float64" else "float32")
            right = np.exp(log_y) * (log_z > -np.inf)
            # in floats an exponent of up to 88 is rounded, its exponential (2 u), the factor and the product
            softmax = 0 if dtype == "float64" else (88 + 4) * STORED["float32"]
            if log_z > -np.inf:
                np.subtract.at(right.T, graph.extended, np.exp(gamma).T)
            close(got.grad[:, n], right, 3 * bound + softmax, dtype)


def test_a_state_that_is_alone_has_all_of_its_frame():
    """To the last bit: ln of it is not above 0, and the gradient is 0."""
    rng = fresh(91)
    for bonus in rng.uniform(-50, 5, size=200):
        only = {"logits": np.zeros((1, 1, 1)), "targets": [[]], "path_bonus": bonus}
        assert ctcbind.ctc_lattice(**only).log_gamma[0, 0, 0] == 0
        assert ctcbind.posteriors(**only)[0, 0, 0] == 1
        assert ctcbind.lattice_loss_and_grad(**only).grad[0, 0, 0] == 0


@pytest.mark.parametrize("size", [2.0**k for k in (30, 45, 49, 51, 52)])
def test_differences_of_scores_count_beside_large_ones(size):
    """Up to where doubles have no halves: the blank at frame 0 is e^(1/2) times as probable as the label."""
    rng = fresh(92, int(size))
    for _ in range(50):
        whole = np.floor(size * rng.uniform(0.9, 1))
        bonus = np.array([[-whole, -whole - 0.5, 0], [0, 0, -np.inf]])
        share = ctcbind.posteriors(np.zeros((2, 1, 2)), [[1]], path_bonus=bonus)[0, 0, 0]
        # of both scores half a unit in the last place is lost where their exponents are taken off
        least, most = (1 / (1 + np.exp(-(0.5 + off))) for off in (-np.spacing(whole), np.spacing(whole)))
        assert least - 1e-15 <= share <= most + 1e-15


@pytest.mark.parametrize("size", [1e20, 1e150, 1e300])
def test_where_doubles_have_no_halves_a_frame_is_shared_all_the_same(size):
    """The best path has all of its frames, of scores whose least difference is far more than a few nats."""
    x = size * fresh(93).normal(size=(6, 20, 4))
    got = ctcbind.ctc_lattice(x, [[1, 2]] * 10 + [[3, 3]] * 10)
    best = ctcbind.align(x, [[1, 2]] * 10 + [[3, 3]] * 10)
    np.testing.assert_allclose(got.log_z, best.log_p, rtol=1e-12)
    np.testing.assert_allclose(np.exp(got.log_gamma).sum(axis=-1), 1, rtol=1e-12)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("bonus", [None, 0.0])
def test_a_nan_where_no_path_could_be(topology, bonus):
    """Three labels in two frames have no path, whatever the logits."""
    x = np.zeros((4, 1, 4))
    x[1] = np.nan
    one = {"logits": x, "targets": [[1, 2, 3]], "input_lengths": [2], "topology": topology, "path_bonus": bonus}
    got, result = ctcbind.ctc_lattice(**one), ctcbind.lattice_loss_and_grad(**one, log_prior=np.zeros(4))
    assert np.isneginf(got.log_z).all()
    assert np.isneginf(got.log_gamma).all()
    assert np.isposinf(result.loss).all()
    assert not result.grad.any()
    assert not result.prior_grad.any()
    assert not ctcbind.posteriors(**one).any()


def test_a_loss_near_0_keeps_its_digits():
    T, far = 50, 40.0
    x = np.zeros((T, 1, 3))
    x[:, 0, 1] = far  # the label at every frame, sure
    loss = ctcbind.lattice_loss_and_grad(x, [[1]], log_prior=np.zeros(3)).loss[0]
    # beside that path those with the blank at the first frames or the last: a frame's other classes are 2 e^-far
    assert loss == pytest.approx(ctcbind.ctc_loss(x, [[1]])[0], rel=1e-6)
    assert 0 < loss < 1e-14


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_special_values(topology):
    x = np.zeros((5, 5, 3))
    x[2, 1, 1] = np.nan
    x[1, 2] = -np.inf  # a frame without any class
    x[3, 3, 1] = np.inf
    x[3, 4, :2] = np.inf  # half of the frame each
    labels, frames = [[1]] * 5, [5] * 5
    got = ctcbind.ctc_lattice(x, labels, frames, topology=topology)
    right = ctcbind.ctc_loss_and_grad(x, labels, frames, topology=topology, engine="reference")
    np.testing.assert_allclose(-got.log_z, right.loss, rtol=1e-12)
    assert np.isnan(got.log_gamma[1]).all()
    assert np.isneginf(got.log_gamma[2]).all()
    result = ctcbind.lattice_loss_and_grad(x, labels, frames, topology=topology)
    np.testing.assert_allclose(result.grad, right.grad, atol=1e-12)
    cut = ctcbind.lattice_loss_and_grad(x, labels, [2] * 5, topology=topology)
    assert not cut.grad[2:].any()  # the NaN past the end is not looked at
    assert np.isfinite(cut.loss[1])


def test_threads_change_no_bit():
    rng = fresh(66)
    x = rng.normal(size=(200, 6, 20)).astype(np.float32)
    labels = [rng.integers(1, 20, size=int(k)).tolist() for k in rng.integers(10, 60, size=6)]
    results = []
    for threads in (1, 5):
        ctcbind.set_num_threads(threads)
        lattice_ = ctcbind.ctc_lattice(x, labels)
        results.append([*lattice_, ctcbind.ctc_hvp(x, labels, x), *ctcbind.align(x, labels)])
    for one, other in zip(*results):
        assert np.array_equal(one, other, equal_nan=True)


def test_a_lattice_that_no_memory_can_hold_is_told_by_its_bytes():
    T, N = 2**30, 100_000
    x = np.broadcast_to(np.float32(0), (T, N, 2))
    size = N * T * 3 * 4
    with pytest.raises(ctcbind.OutOfMemory, match=rf"S = 3 states takes {size} bytes \(1 array of float32\)"):
        ctcbind.posteriors(x, [[1]] * N)
    with pytest.raises(ctcbind.OutOfMemory, match=rf"S = 3 states takes {3 * size} bytes \(3 arrays of float32\)"):
        ctcbind.ctc_lattice(x, [[1]] * N)
