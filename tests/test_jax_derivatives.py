"""Derivatives of ctcbind.jax's loss: second ones, in forward mode, through transforms."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402
import jax_bits  # noqa: E402
from jax_bits import enable_x64, make, optax, paddings, truth  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.jax import ctc_loss  # noqa: E402

rng, way = jax_bits.rng, jax_bits.way


MODES = {
    "reverse": (jax.jacrev, jax.jacrev),
    "forward over reverse": (jax.jacfwd, jax.jacrev),  # jax.hessian
    "reverse over forward": (jax.jacrev, jax.jacfwd),
    "forward": (jax.jacfwd, jax.jacfwd),
}


@pytest.mark.parametrize("modes", MODES)
def test_second_derivatives(rng, modes):
    second, first = MODES[modes]
    args = make(rng, B=2, T=5, K=3, N=2, dtype=np.float64)
    args = args[0], paddings(5, [5, 4]), *args[2:]
    with enable_x64(True):
        hessian = second(first(lambda x: ctc_loss(x, *args[1:]).sum()))
        x = jnp.asarray(args[0])
        found = hessian(x), jax.jit(hessian)(x), jax.vmap(hessian)(jnp.stack([x, x]))[1]
    right = ctcbind.ctc_hessian(args[0], args[2], [5, 4], (1 - args[3]).sum(1).astype(int), layout="NTC")
    for got in found:
        for n in range(2):
            np.testing.assert_allclose(got[n, :, :, n], right[n], atol=1e-12)
            assert not np.asarray(got)[n, :, :, 1 - n].any()


def test_derivatives_are_differences(rng):
    from jax.test_util import check_grads

    x, _, *labels = make(rng, B=2, T=5, K=3, N=2, dtype=np.float64)
    with enable_x64(True):
        for frames in (paddings(5, [5, 4]), np.array([[0, 1, 0, 0, 0], [0, 0, 0, 1, 0.0]])):
            args = frames, *labels
            check_grads(lambda x, args=args: ctc_loss(x, *args), (jnp.asarray(x),), order=2, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_forward_mode(rng, dtype):
    """Slopes, and products of the Hessian: those of ctc_hvp, rounded."""
    args = make(rng)
    with enable_x64(dtype == "float64"):
        x, v = (jnp.asarray(each, dtype) for each in (args[0], rng.normal(size=args[0].shape)))
        losses, slopes = jax.jvp(lambda x: ctc_loss(x, *args[1:]), (x,), (v,))
        np.testing.assert_array_equal(losses, ctc_loss(x, *args[1:]))
        assert losses.dtype == slopes.dtype == ("float64" if dtype == "float64" else "float32")
        grad, product = jax.jvp(jax.grad(lambda x: ctc_loss(x, *args[1:]).sum()), (x,), (v,))
        assert grad.dtype == product.dtype == dtype
        kind, own = jnp.finfo(dtype), jnp.finfo(losses.dtype)
        wide, v, slopes, product = (np.asarray(each, np.float64) for each in (x, v, slopes, product))
    right = truth(wide, *args[1:]).grad
    # the gradient's own error, and a float sum of as many numbers as a sample has
    unit = (1e-13 if dtype == "float64" else 2e-6) + x[0].size * float(own.eps) / 2
    assert (abs(slopes - (right * v).sum((1, 2))) <= unit * abs(v).sum((1, 2))).all()
    frames, counts = ((1 - each).sum(1).astype(int) for each in args[1::2])
    right = ctcbind.ctc_hvp(wide, args[2], v, frames, counts, layout="NTC")
    atol = max(1e-12, float(kind.smallest_subnormal))
    np.testing.assert_allclose(product, right, rtol=float(kind.eps), atol=atol)


def test_products_by_the_hessian_are_optaxs(rng):
    """Of a mean, along a direction in weights that all samples share."""
    with enable_x64(True):
        args = make(rng, dtype=np.float64)
        args = tuple(map(jnp.asarray, (*args[:2], np.where(args[3] == 1, 0, args[2]), args[3])))
        weight, v = (jnp.asarray(rng.normal(size=(7, 7))) for _ in range(2))

        def product(function):
            mean = jax.jit(lambda weight: function(args[0] @ weight, *args[1:]).mean())
            return jax.jvp(jax.grad(mean), (weight,), (v,))[1]

        # optax rounds what is as large as the loss at each of 20 frames, for each number of the Hessian
        scores = args[0] @ weight
        rounding = 20 * float(ctc_loss(scores, *args[1:]).max()) * np.finfo(float).eps
        bound = rounding * float((abs(args[0]).sum((1, 2)) * abs(args[0] @ v).sum((1, 2))).max())
        np.testing.assert_allclose(product(ctc_loss), product(optax().ctc_loss), rtol=0, atol=bound)


def test_loss_and_derivatives_come_from_one_call(rng):
    x, *rest = map(jnp.asarray, make(rng))

    def loss(x):
        return ctc_loss(x, *rest).sum()

    for function in (
        jax.value_and_grad(loss),
        jax.jit(jax.value_and_grad(loss)),
        lambda x: jax.jvp(loss, (x,), (x,)),
        lambda x: jax.jvp(jax.value_and_grad(loss), (x,), (x,)),
    ):
        assert str(jax.make_jaxpr(function)(x)).count(" ctcbind_loss[") == 1


def test_paddings_have_no_derivative(rng):
    """Though they may be floats; nor have labels, whose tangents JAX has a dtype for."""
    x, frames, labels, padded = make(rng)
    along = np.ones_like(frames), np.zeros(labels.shape, jax.dtypes.float0), np.ones_like(padded)
    assert not jax.jvp(lambda *rest: ctc_loss(x, *rest), (frames, labels, padded), along)[1].any()
    grads = jax.grad(lambda *args: ctc_loss(*args).sum(), (0, 1, 2, 3), allow_int=True)(x, frames, labels, padded)
    assert grads[2].dtype == jax.dtypes.float0
    assert np.asarray(grads[0]).any()
    assert not any(np.asarray(each).any() for each in grads[1::2])
    both = jax.value_and_grad(lambda x, frames: ctc_loss(x, frames, labels, padded).sum())
    for each in jax.jvp(lambda frames: both(x, frames), (frames,), along[:1])[1]:
        assert not each.any()


def test_derivatives_of_what_is_mapped(rng):
    """Taken outside of vmap: there the batch has more than one axis."""
    cases = [make(rng, B=2, T=11, K=4, N=5) for _ in range(3)]
    axes = 1, 0, 2, 0
    x, *rest = (jnp.stack(each, axis) for each, axis in zip(zip(*cases), axes))
    along, weights = rng.normal(size=x.shape).astype(np.float32), np.arange(1.0, 7).reshape(3, 2)

    def loss(x):
        return (jax.vmap(ctc_loss, in_axes=axes)(x, *rest) * weights).sum()

    slope, (grad, product) = jax.jvp(loss, (x,), (along,))[1], jax.jvp(jax.grad(loss), (x,), (along,))
    slopes = []
    for n, (one, *others) in enumerate(cases):

        def alone(x, n=n, others=others):
            return (ctc_loss(x, *others) * weights[n]).sum()

        slopes.append(jax.jvp(alone, (one,), (along[:, n],))[1])
        for got, right in zip((grad, product), jax.jvp(jax.grad(alone), (one,), (along[:, n],))):
            np.testing.assert_allclose(got[:, n], right, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(slope, sum(slopes), rtol=1e-4, atol=1e-4)


def test_forward_mode_of_a_sample_without_a_path(rng):
    logits, frames, labels, padded = make(rng)
    frames[1], labels[1], padded[1] = paddings(20, [3]), 2, 0

    def focal(x):
        losses = ctc_loss(x, frames, labels, padded)
        weighed = (1 - jnp.exp(-losses)) ** 2 * losses
        return jnp.where(jnp.isfinite(weighed), weighed, 0).sum()

    losses, slopes = jax.jvp(lambda x: ctc_loss(x, frames, labels, padded), (logits,), (logits,))
    assert np.isinf(losses).tolist() == [False, True, False, False]
    assert slopes[1] == 0
    assert np.isfinite(slopes).all()
    grad, product = jax.jvp(jax.grad(focal), (logits,), (logits,))
    for each in map(np.asarray, (grad, product)):
        assert np.isfinite(each).all()
        assert not each[1].any()
        assert each[[0, 2, 3]].any(axis=(1, 2)).all()


def test_a_nan_that_comes_back_for_a_sample_with_a_path_is_kept(rng):
    """It says that something went wrong after the loss; 0 would hide it."""
    logits, frames, labels, padded = make(rng)
    losses, back = jax.vjp(lambda x: ctc_loss(x, frames, labels, padded), jnp.asarray(logits))
    (grad,) = back(jnp.array([1.0, jnp.nan, jnp.inf, 0.0], losses.dtype))
    counts = (1 - frames).sum(1).astype(int)
    assert np.isnan(grad[1, : counts[1]]).all()
    assert not np.isfinite(grad[2, : counts[2]]).any()
    assert np.isfinite(grad[jnp.array([0, 3])]).all()


def test_a_third_derivative_is_refused(rng):
    """Where it is asked for: not where it is cut off."""
    x, *rest = map(jnp.asarray, make(rng))

    def product(x, v):
        return jax.jvp(jax.grad(lambda x: ctc_loss(x, *rest).sum()), (x,), (v,))[1]

    def curvature(x):
        return jnp.vdot(x, product(x, x))

    def along_what_stays(x):
        return product(x, jnp.ones_like(x)).sum()

    for function in (
        jax.grad(curvature),
        jax.jit(jax.grad(curvature)),
        lambda x: jax.jvp(curvature, (x,), (x,)),
        jax.grad(along_what_stays),
        lambda x: jax.jvp(along_what_stays, (x,), (x,)),
    ):
        with pytest.raises(NotImplementedError, match="ctc_loss has no third derivative"):
            function(x)
    grad = jax.grad(lambda x: jax.lax.stop_gradient(curvature(x)) * ctc_loss(x, *rest).sum())(x)
    right = curvature(x) * jax.grad(lambda x: ctc_loss(x, *rest).sum())(x)
    np.testing.assert_allclose(grad, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "checkpoint"])
def test_second_derivatives_through_a_scan(rng, way):
    """Out of its loop JAX takes what is the same in each turn, such as the number of the platform."""
    x, logit_paddings, labels, label_paddings = make(rng, B=2, T=5, K=3, N=2, dtype=np.float64)
    along, scales = rng.normal(size=x.shape), [0.5, 1.0, 2.0]
    with enable_x64(True):

        def scanned(x):
            def turn(total, scale):
                return total + ctc_loss(scale * x, logit_paddings, labels, label_paddings).sum(), None

            return jax.lax.scan(turn, 0.0, jnp.asarray(scales))[0]

        got = way(jax.grad(lambda x: jnp.vdot(jax.grad(scanned)(x), along)))(jnp.asarray(x))
        forward = jax.jvp(way(jax.grad(scanned)), (jnp.asarray(x),), (along,))[1]
    counts = (1 - label_paddings).sum(1).astype(int)
    right = sum(scale**2 * ctcbind.ctc_hvp(scale * x, labels, along, None, counts, layout="NTC") for scale in scales)
    np.testing.assert_allclose(got, right, rtol=0, atol=1e-12)
    np.testing.assert_allclose(forward, right, rtol=0, atol=1e-12)
