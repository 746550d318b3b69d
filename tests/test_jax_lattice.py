"""ctcbind.jax.lattice_loss: derivatives in all that is added, beside lattice_loss_and_grad."""

from __future__ import annotations

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402
import jax_bits  # noqa: E402
from jax_bits import enable_x64  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.jax import ctc_loss, lattice_loss  # noqa: E402
from ctcbind.jax import lattice as of_jax  # noqa: E402

rng, way = jax_bits.rng, jax_bits.way
B, T, K, N = 3, 7, 4, 4
LABELS = np.array([[1, 2, 2, 9], [3, 1, -4, 0], [1, 1, 1, 9]])
LABEL_PADDINGS = np.array([[0, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]])
#: Of the first sample one frame in the middle does not count; the last sample has no path.
FRAME_PADDINGS = np.array([[0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1, 1]])
COUNTS = [3, 2, 3]
BATCH = FRAME_PADDINGS, LABELS, LABEL_PADDINGS


def directly(x, bonus, prior, weight, topology):
    """lattice_loss_and_grad of each sample's frames that count."""
    losses, of_x, of_bonus, of_prior = [], np.zeros_like(x), np.zeros((B, T, 2 * N + 1)), np.zeros(K)
    for n in range(B):
        counts, S = FRAME_PADDINGS[n] == 0, 2 * COUNTS[n] + 1
        got = ctcbind.lattice_loss_and_grad(
            x[n : n + 1, counts], [LABELS[n, : COUNTS[n]].tolist()], layout="NTC", topology=topology,
            path_bonus=None if bonus is None else bonus[n : n + 1, counts, :S],
            log_prior=prior, prior_weight=weight,
        )  # fmt: skip
        losses.append(got.loss[0])
        of_x[n, counts] = got.grad[0]
        if bonus is not None:
            of_bonus[n, counts, :S] = got.bonus_grad[0]
        if prior is not None:
            of_prior += got.prior_grad
    return np.array(losses), of_x, of_bonus, of_prior


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("given", ["nothing", "bonus", "prior", "both"])
def test_losses_and_gradients(rng, given, topology, compiled):
    with enable_x64(True):
        x = rng.normal(size=(B, T, K))
        bonus = rng.normal(size=(B, T, 2 * N + 1)) if given in ("bonus", "both") else None
        prior = rng.normal(size=K) if given in ("prior", "both") else None

        def losses(x, bonus, prior):
            return lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior, prior_weight=0.7, topology=topology)

        def total(*args):
            return losses(*args).sum(where=jnp.array([True, True, topology == "simple"]))

        through = jax.jit if compiled else (lambda function: function)
        places = tuple(i for i, each in enumerate((x, bonus, prior)) if each is not None)
        got = through(losses)(x, bonus, prior)
        grads = dict(zip(places, through(jax.grad(total, places))(x, bonus, prior)))
        right = directly(x, bonus, prior, 0.7, topology)
        assert np.isinf(got[2]) == (topology == "ctc")
        np.testing.assert_allclose(got, right[0], rtol=1e-13)
        for place, grad in grads.items():
            np.testing.assert_allclose(grad, right[1 + place], rtol=0, atol=1e-13)
        if given == "nothing" and topology == "ctc":
            np.testing.assert_allclose(got, ctc_loss(x, *BATCH), rtol=1e-13)


def test_the_blank_may_be_another_class(rng):
    """The last, where all classes are moved by one."""
    x, (late, labels, ends) = rng.normal(size=(B, T, K)).astype(np.float32), BATCH
    right = lattice_loss(x, late, labels, ends)
    own = lattice_loss(np.roll(x, -1, axis=2), late, np.asarray(labels) - 1, ends, blank_id=-1)
    np.testing.assert_allclose(own, right, rtol=1e-5)


def test_what_is_broadcast_gets_the_sum(rng):
    """Differences tell, of float64."""
    from jax.test_util import check_grads

    with enable_x64(True):
        args = (
            jnp.asarray(rng.normal(size=(B, T, K))),
            jnp.asarray(rng.normal(size=(T, 1))),
            jnp.asarray(rng.normal(size=K)),
        )
        some = jnp.array([2.0, -1.0, 0.0])

        def function(x, bonus, prior):
            losses = lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior, prior_weight=-0.3)
            return (jnp.where(jnp.isinf(losses), 0, losses) * some).sum()

        check_grads(function, args, order=1, modes=["fwd", "rev"], rtol=1e-6)


def test_vmap_over_everything(rng):
    """Each mapped batch as alone; what is not mapped is shared."""
    x, bonus = (rng.normal(size=(2, B, T, size)).astype(np.float32) for size in (K, 2 * N + 1))
    prior, labels = rng.normal(size=(2, K)).astype(np.float32), np.stack([LABELS, LABELS[::-1] * 0 + 1])

    def function(x, labels, bonus, prior):
        losses = lattice_loss(x, FRAME_PADDINGS, labels, LABEL_PADDINGS, path_bonus=bonus, log_prior=prior)
        return losses[:2].sum()

    both = jax.value_and_grad(function, (0, 2, 3))
    found = jax.jit(jax.vmap(both))(x, labels, bonus, prior)
    shared = jax.vmap(both, in_axes=(0, None, None, None))(x, LABELS, bonus[0], prior[0])
    for i in range(2):
        for got, right in zip(jax.tree.leaves(found), jax.tree.leaves(both(x[i], labels[i], bonus[i], prior[i]))):
            np.testing.assert_array_equal(got[i], right)
        for got, right in zip(jax.tree.leaves(shared), jax.tree.leaves(both(x[i], LABELS, bonus[0], prior[0]))):
            np.testing.assert_array_equal(got[i], right)


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_in_vmap_along_any_axis(rng, compiled):
    """Where the mapped axes stand makes no difference, nor how many there are."""
    x, bonus = (rng.normal(size=(2, 3, B, T, size)).astype(np.float32) for size in (K, 2 * N + 1))
    prior = rng.normal(size=(3, K)).astype(np.float32)

    def function(x, bonus, prior):
        return lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior)[:2].sum()

    both = jax.value_and_grad(function, (0, 1, 2))
    mapped = jax.vmap(jax.vmap(both, in_axes=(2, 0, 0)), in_axes=(3, 0, None))
    found = (jax.jit(mapped) if compiled else mapped)(x.transpose(2, 3, 1, 0, 4), bonus, prior)
    for i, j in np.ndindex(2, 3):
        right = both(x[i, j], bonus[i, j], prior[j])
        for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
            np.testing.assert_allclose(got[i, j], want, rtol=1e-6, atol=1e-6)


def test_a_nan_that_comes_back_for_a_sample_with_a_path_is_kept(rng):
    """As by ctc_loss; not for the last sample, which has none."""
    x, bonus, prior = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((B, T, K), (B, T, 2 * N + 1), (K,)))
    _, back = jax.vjp(lambda *added: lattice_loss(x, *BATCH, path_bonus=added[0], log_prior=added[1]), bonus, prior)
    of_bonus, of_prior = back(jnp.array([1.0, jnp.nan, jnp.nan], jnp.float32))
    assert np.isnan(of_bonus).any(axis=(1, 2)).tolist() == [False, True, False]
    assert np.isnan(of_prior).any()
    of_bonus, of_prior = back(jnp.array([1.0, 0.0, jnp.nan], jnp.float32))
    assert np.isfinite(of_bonus).all()
    assert np.isfinite(of_prior).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_other_precisions(rng, dtype):
    """What is differentiated keeps its dtype; whole numbers may be added."""
    x, bonus, prior = (jnp.asarray(rng.normal(size=size), dtype) for size in ((B, T, K), (B, T, 2 * N + 1), (K,)))

    def function(x, bonus, prior):
        return lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior)[:2]

    assert function(x, bonus, prior).dtype == jnp.float32
    grads = jax.grad(lambda *args: function(*args).sum(), (0, 1, 2))(x, bonus, prior)
    assert [each.dtype for each in grads] == [dtype] * 3
    wide = [np.asarray(each.astype(jnp.float32), np.float64) for each in (x, bonus, prior)]
    right = directly(*wide, 1.0, "ctc")
    np.testing.assert_allclose(function(x, bonus, prior), right[0][:2], rtol=2e-7)
    eps = float(jnp.finfo(dtype).eps)
    for got, want in zip(grads[:2], right[1:3]):
        np.testing.assert_allclose(got.astype(jnp.float32)[:2], want[:2], rtol=eps, atol=1e-6)
    ints = lattice_loss(x, *BATCH, path_bonus=np.arange(2 * N + 1))
    np.testing.assert_array_equal(ints, lattice_loss(x, *BATCH, path_bonus=np.arange(2.0 * N + 1)))


def test_precisions_may_differ(rng):
    """What is added may be wider or narrower than the logits: each derivative has the dtype of its own."""
    sizes = {"x": (B, T, K), "bonus": (B, T, 2 * N + 1), "prior": (K,)}
    with enable_x64(True):
        for dtypes in (("float32", "float64", "float64"), ("float64", "float32", "float16")):
            args = tuple(jnp.asarray(rng.normal(size=size), dtype) for size, dtype in zip(sizes.values(), dtypes))

            def total(x, bonus, prior):
                return lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior)[:2].sum()

            grads = jax.grad(total, (0, 1, 2))(*args)
            loss, slope = jax.jvp(total, args, args)
            assert [each.dtype for each in grads] == list(dtypes)
            assert loss.dtype == slope.dtype == dtypes[0]
            wide = [np.asarray(each, np.float64) for each in args]
            right = directly(*wide, 1.0, "ctc")[1:]
            for got, want in zip(grads[:2], right):
                np.testing.assert_allclose(got[:2], want[:2], rtol=0, atol=1e-5)
            along = sum((each * value).sum() for each, value in zip(right, wide))
            np.testing.assert_allclose(slope, along, rtol=0, atol=1e-4)


def test_paddings_have_no_derivative(rng):
    """Though they may be floats; nor has the gradient any in them."""
    x, frames, ends = rng.normal(size=(B, T, K)).astype(np.float32), *(np.float32(each) for each in BATCH[::2])

    def total(frames, ends, x):
        return lattice_loss(x, frames, LABELS, ends)[:2].sum()

    along = np.ones_like(frames), np.ones_like(ends)
    for function in (total, jax.grad(total, 2)):
        value, slope = jax.jvp(lambda *given, function=function: function(*given, x), (frames, ends), along)
        np.testing.assert_array_equal(value, function(frames, ends, x))
        assert slope.shape == value.shape
        assert not np.asarray(slope).any()


@pytest.mark.parametrize("compiled", [False, True])
def test_a_prior_of_one_class_may_be_1(compiled):
    """Of more, these were no logarithms."""
    with enable_x64(True):

        def loss(prior):
            return lattice_loss(
                np.zeros((1, 3, 1)), np.zeros((1, 3)), np.zeros((1, 0), int), np.zeros((1, 0)), log_prior=prior
            )

        np.testing.assert_allclose((jax.jit(loss) if compiled else loss)(np.ones(1)), [3])


def test_vmap_over_no_batch():
    losses = jax.vmap(lambda x: lattice_loss(x, *BATCH))(np.zeros((0, B, T, K), np.float32))
    assert losses.shape == (0, B)


def test_forbidden_states_leave_the_others(rng):
    """-inf: the first label is said in the first frame, or there is no path."""
    x, bonus = rng.normal(size=(1, 4, 3)).astype(np.float32), np.zeros((4, 5), np.float32)
    bonus[0, [0, 2, 3, 4]] = -np.inf
    batch = np.zeros((1, 4)), np.array([[1, 2]]), np.zeros((1, 2))
    grad = jax.grad(lambda x: lattice_loss(x, *batch, path_bonus=bonus).sum())(x)
    first = np.exp(x[0, 0]) / np.exp(x[0, 0]).sum() - [0, 1, 0]
    np.testing.assert_allclose(grad[0, 0], first, atol=1e-6)
    closed = jax.value_and_grad(lambda x: lattice_loss(x, *batch, path_bonus=np.full((4, 5), -np.inf)).sum())(x)
    assert np.isinf(closed[0])
    assert not closed[1].any()

    def focal(x, bonus, prior):
        """Its derivative at inf is NaN."""
        losses = lattice_loss(x, *batch, path_bonus=bonus, log_prior=prior)
        return ((1 - jnp.exp(-losses)) ** 2 * losses).sum()

    added = np.full((4, 5), -np.inf, np.float32), np.zeros(3, np.float32)
    for grad in jax.grad(focal, (0, 1, 2))(x, *added):
        assert not grad.any()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"path_bonus": np.full((B, T, 2 * N + 1), np.nan)}, "path_bonus[0][0][0] is nan; it must be finite"),
        (
            {"path_bonus": np.zeros((2, T, 2 * N + 1))},
            "path_bonus has shape (2, 7, 9); it must be (B, T, S) = (3, 7, 9)",
        ),
        ({"path_bonus": [["words"]]}, "path_bonus cannot be read as numbers"),
        ({"path_bonus": np.zeros((T, 1), complex)}, "path_bonus cannot be read as numbers: it holds complex64"),
        ({"path_bonus": np.ones((T, 1), bool)}, "path_bonus cannot be read as numbers: it holds bool"),
        ({"log_prior": np.zeros(3)}, "log_prior has shape (3,); it must be (4,)"),
        ({"log_prior": np.full(4, 0.25)}, "these are probabilities"),
        ({"log_prior": np.array([0, np.inf, 0, 0])}, "log_prior[1] is inf; it must be finite"),
        ({"prior_weight": np.inf}, "prior_weight is inf"),
        ({"topology": "other"}, "topology is 'other'; it must be one of 'ctc', 'simple'"),
        ({"blank_id": 1}, "labels[0][0] is 1, which is the blank"),
    ],
)
def test_what_is_refused(added, words, compiled):
    def function(x):
        return lattice_loss(x, *BATCH, **added)

    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=re.escape(words)) as caught:
        (jax.jit(function) if compiled else function)(np.zeros((B, T, K), np.float32)).block_until_ready()
    assert "InvalidInput" in f"{type(caught.value)} {caught.value}"
    assert compiled or type(caught.value) is ctcbind.InvalidInput


def total_of_two(x, bonus, prior):
    losses = lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior)
    return losses.sum(where=jnp.array([True, True, False]))


#: What is asked of a program, and how many results the engine has to give: posteriors for the derivative of a bonus.
ASKED = {
    total_of_two: 1,
    jax.grad(total_of_two, 0): 3,
    jax.grad(total_of_two, 1): 4,
    jax.value_and_grad(total_of_two, 2): 3,
    jax.grad(total_of_two, (0, 1, 2)): 4,
}


@pytest.mark.parametrize("way", ["in C"], indirect=True)
def test_no_more_is_computed_in_c_than_is_asked_for(rng):
    arrays = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((B, T, K), (B, T, 2 * N + 1), (K,))]
    for function, results in ASKED.items():
        program = jax.jit(function).lower(*arrays).compile().as_text()
        (types,) = re.findall(r'= (.*) custom-call\(.*custom_call_target="ctcbind_lattice"', program)
        assert types.count("f32[") == results


@pytest.mark.parametrize("way", ["called back"], indirect=True)
@pytest.mark.parametrize("compiled", [False, True])
def test_no_more_is_computed_than_is_asked_for(rng, monkeypatch, compiled):
    done = []
    for number, name in enumerate(("losses_alone", "losses_and_shares")):
        own = getattr(of_jax, name)

        def spy(*args, own=own, least=1 + 2 * number, **options):
            done.append(least + options.get("with_gamma", 0))
            return own(*args, **options)

        monkeypatch.setattr(of_jax, name, spy)
    arrays = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((B, T, K), (B, T, 2 * N + 1), (K,))]
    for function, results in ASKED.items():
        jax.block_until_ready((jax.jit(function) if compiled else function)(*arrays))
        assert done == [results]
        done.clear()


@pytest.mark.parametrize("compiled", [False, True])
def test_forward_mode(rng, compiled):
    """Sums of gradients by tangents, of what is mapped too."""
    with enable_x64(True):
        args = tuple(rng.normal(size=size) for size in ((2, B, T, K), (2, T, 1), (2, K)))

        def losses(x, bonus, prior):
            return lattice_loss(x, *BATCH, path_bonus=bonus, log_prior=prior, prior_weight=0.7)[:2]

        through = jax.jit if compiled else (lambda function: function)
        slopes = through(jax.vmap(lambda *args: jax.jvp(losses, args, args)[1]))(*args)
        grads = jax.vmap(jax.jacrev(losses, (0, 1, 2)))(*args)
    for n in range(2):
        right = sum(np.tensordot(grad[n], each[n], each[n].ndim) for grad, each in zip(grads, args))
        np.testing.assert_allclose(slopes[n], right, rtol=0, atol=1e-12)


def test_there_is_one_derivative():
    x = np.zeros((B, T, K), np.float32)

    def function(x):
        return lattice_loss(x, *BATCH)[:2].sum()

    for second in (jax.jacrev, jax.jacfwd):
        for first in (jax.jacrev, jax.jacfwd):
            for through in (jax.jit, lambda function: function):
                with pytest.raises(NotImplementedError, match="no second derivative"):
                    through(second(first(function)))(x)


def test_a_second_derivative_that_is_cut_off_is_not_refused():
    """In a scan too, out of whose loop JAX takes what is the same in each turn."""
    x = jnp.zeros((B, T, K))

    def loss(x):
        return lattice_loss(x, *BATCH)[:2].sum()

    def scanned(x):
        def turn(total, scale):
            return total + loss(x) + jax.lax.stop_gradient(jax.grad(loss)(scale * x)).sum(), None

        return jax.lax.scan(turn, 0.0, jnp.ones(2))[0]

    np.testing.assert_allclose(jax.grad(scanned)(x), 2 * jax.grad(loss)(x), rtol=0, atol=1e-6)


def test_a_gradient_that_is_cut_off_beside_another(rng):
    """Posteriors were asked for, and the derivative in the logits alone asks for less."""
    x, bonus = jnp.asarray(rng.normal(size=(B, T, K))), jnp.asarray(rng.normal(size=(B, T, 2 * N + 1)))

    def loss(x, bonus):
        return lattice_loss(x, *BATCH, path_bonus=bonus)[:2].sum()

    def with_cut(x):
        return loss(x, bonus) + jax.lax.stop_gradient(jax.grad(loss, 1)(x, bonus)).sum()

    np.testing.assert_array_equal(jax.grad(with_cut)(x), jax.grad(loss)(x, bonus))
