"""ctcbind.jax beside optax: values, gradients, paddings, dtypes, refusals."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402
import jax_bits  # noqa: E402
from jax_bits import enable_x64, make, optax, paddings, truth  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.jax import ctc_loss, lattice_loss  # noqa: E402

rng, way = jax_bits.rng, jax_bits.way


def test_losses_and_gradients_are_optaxs(rng):
    for blank in (0, 3, 6):
        args = make(rng, blank=blank)
        safe = (*args[:2], np.where(args[3] == 1, 0, args[2]), args[3])  # optax reads the padding too

        def both(function, given, blank=blank):
            return jax.value_and_grad(lambda x: (function(x, *given[1:], blank_id=blank) * jnp.arange(1.0, 5)).sum())(
                given[0]
            )

        (own, grad), (right, right_grad) = both(ctc_loss, args), both(optax().ctc_loss, safe)
        np.testing.assert_allclose(own, right, rtol=1e-5)  # a float32 sum over 20 frames
        exact = truth(*args, blank)
        # optax rounds numbers as large as the loss at each of 20 frames
        bound = 4 * 20 * exact.loss.max() * np.finfo(np.float32).eps / 2
        np.testing.assert_allclose(grad, right_grad, rtol=0, atol=bound)
        np.testing.assert_allclose(grad, exact.grad * np.arange(1.0, 5)[:, None, None], rtol=0, atol=4 * 2e-6)
        np.testing.assert_allclose(ctc_loss(*args, blank_id=blank), exact.loss, rtol=1e-6)


def test_signature_is_optaxs():
    """Names, order and defaults; positions too, which optax took before it asked for keywords."""
    import inspect

    own, right = (inspect.signature(each) for each in (ctc_loss, optax().ctc_loss))
    assert list(own.parameters) == list(right.parameters)
    assert [p.default for p in own.parameters.values()] == [p.default for p in right.parameters.values()]


def test_paddings_may_stand_between_frames(rng):
    args = make(rng)
    holes = (rng.random((4, 20)) < 0.3).astype(np.float32)
    given = args[0], holes, np.where(args[3] == 1, 0, args[2]), args[3]

    def both(function):
        return jax.value_and_grad(lambda x: function(x, *given[1:]).sum())(given[0])

    (own, grad), (right, right_grad) = both(ctc_loss), both(optax().ctc_loss)
    np.testing.assert_allclose(own, right, rtol=1e-5)
    # optax rounds numbers as large as the loss at each of 20 frames
    np.testing.assert_allclose(grad, right_grad, rtol=0, atol=20 * own / 4 * np.finfo(np.float32).eps)
    assert not np.asarray(grad)[holes == 1].any()


@pytest.mark.parametrize("sample", [0, 1, 2])
def test_paddings_may_stand_between_frames_of_one_sample(rng, sample):
    """It has the loss and derivatives that it has with its frames put together."""
    x, labels = rng.normal(size=(3, 7, 4)).astype(np.float32), np.array([[1, 2], [3, 3], [2, 1]])
    holes = np.zeros((3, 7))
    holes[sample, [0, 3]] = 1
    order = np.argsort(holes[sample], kind="stable")
    together, moved = holes.copy(), x.copy()
    together[sample], moved[sample] = holes[sample, order], x[sample, order]

    def all_of(x, padded):
        def loss(x):
            return ctc_loss(x, padded, labels, np.zeros((3, 2))).sum()

        return *jax.value_and_grad(loss)(x), jax.grad(lambda x: (jax.grad(loss)(x) ** 2).sum())(x)

    (own, *derivatives), (right, *right_derivatives) = all_of(x, holes), all_of(moved, together)
    assert own == right
    for each, others in zip(map(np.array, derivatives), right_derivatives):
        each[sample] = each[sample, order]
        np.testing.assert_array_equal(each, others)


@pytest.mark.parametrize(("label", "named"), [(2**40 + 1, 2**31 - 1), (2**70, 2**31 - 1), (-(2**70), -1)])
def test_lists_of_labels_past_an_int32_do_not_wrap(label, named):
    with pytest.raises(ctcbind.InvalidInput, match=rf"labels\[0\]\[1\] is {named}[,;]"):
        ctc_loss(np.zeros((1, 5, 4)), np.zeros((1, 5)), [[1, label]], np.zeros((1, 2)))


def test_rows_of_several_lengths_and_no_samples_are_refused():
    ragged, none = [[1, 2], [3]], np.ones((0, 2), int)
    for B, labels, words in ((2, ragged, "^labels cannot be read as numbers"), (0, none, "^the batch is empty: B = 0")):
        with pytest.raises(ctcbind.InvalidInput, match=words):
            ctc_loss(np.zeros((B, 5, 4)), np.zeros((B, 5)), labels, np.zeros((B, 2)))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("place", "rows", "words"),
    [
        (0, [np.zeros((5, 4)), np.zeros((3, 4))], "logits X, from 3 to 5; pad them, and give logit_paddings with 1"),
        (1, [[0, 0], [0] * 5], "logit_paddings X, from 2 to 5; pad them with 1"),
        (2, [[1, 2], [3]], "labels X, from 1 to 2; pad them with any number, and give label_paddings with 1"),
        (2, [np.array([1, 2]), np.array([], int)], "labels X, from 0 to 2; pad them with any number"),
        (3, [[0, 0], [0]], "label_paddings X, from 1 to 2; pad them with 1"),
    ],
)
def test_rows_of_several_lengths_are_told_how_to_become_one_array(place, rows, words, compiled):
    given = [np.zeros((2, 5, 4)), np.zeros((2, 5)), np.ones((2, 2), int), np.zeros((2, 2))]
    given[place] = rows
    words = "^" + words.replace("X", "cannot be read as numbers: rows of several lengths")
    function = jax.jit(ctc_loss) if compiled else ctc_loss
    with pytest.raises(ctcbind.InvalidInput, match=words):
        function(*given)
    if not compiled and all(isinstance(row, np.ndarray) for row in rows):
        given[place] = np.empty(2, object)
        given[place][:] = rows
        with pytest.raises(ctcbind.InvalidInput, match=words):
            function(*given)


def test_an_error_keeps_sample_position_and_value():
    labels = np.array([[1, 2, 3], [3, 9, 1]])
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc_loss(np.zeros((2, 9, 7)), np.zeros((2, 9)), labels, np.zeros((2, 3)))
    error = caught.value
    assert (error.rule, error.sample, error.position, error.value) == ("label_range", 1, 1, 9)
    labels[1] = 3, 1, 0
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc_loss(np.zeros((2, 9, 7)), np.zeros((2, 9)), labels, np.zeros((2, 3)))
    error = caught.value
    assert (error.rule, error.sample, error.position, error.value) == ("label_blank", 1, 2, 0)


@pytest.mark.parametrize(
    ("place", "wrong", "blank", "found"),
    [
        (2, [[1, 2, 3], [3, 1, 9], [9, 1, 1]], 0, ("label_range", 1, 2, 9)),
        (2, [[1, 2, 3], [3, -2, 9], [-2, 1, 1]], 0, ("label_negative", 1, 1, -2)),
        (2, [[1, 0, 3], [3, 2, 2], [2, 1, 1]], 2, ("label_blank", 1, 1, 2)),
        (1, [[0] * 4, [0, 0, 0.5, 2], [2, 0, 0, 0]], 0, ("paddings", 1, 2, 0.5)),
        (3, [[0, 0, 0], [0, 2, 3], [2, 0, 0]], 0, ("paddings", 1, 1, 2)),
        (3, [[0, 0, 0], [1, 0, 0], [0, 1, 0]], 0, ("paddings", 1, 0, None)),
    ],
)
def test_the_first_of_several_errors_is_told(place, wrong, blank, found):
    """In the program too, which has words alone."""
    args = [np.zeros((3, 4, 7)), np.zeros((3, 4)), np.array([[1, 4, 3]] * 3), np.zeros((3, 3))]
    args[place] = np.array(wrong)
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc_loss(*args, blank_id=blank)
    error = caught.value
    assert (error.rule, error.sample, error.position, error.value) == found
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=re.escape(str(error))):
        jax.jit(ctc_loss, static_argnames="blank_id")(*args, blank_id=blank).block_until_ready()


@pytest.mark.parametrize("of", [np.float32, np.int32, bool])
def test_paddings_of_any_dtype(rng, of):
    args = make(rng)
    own = ctc_loss(args[0], args[1].astype(of), args[2], args[3].astype(of))
    np.testing.assert_array_equal(own, ctc_loss(*args))


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "uint64", "int64"])
def test_labels_of_any_integer_dtype(rng, dtype):
    logits, late, labels, padded = make(rng)
    right = ctc_loss(logits, late, labels, padded)
    with enable_x64(dtype.endswith("64")):
        np.testing.assert_array_equal(ctc_loss(logits, late, labels.astype(dtype), padded), right)


@pytest.mark.parametrize("loss", [ctc_loss, lattice_loss])
def test_arrays_of_foreign_byte_order_are_read(rng, loss):
    """As files of other machines have them; JAX has none."""
    args = make(rng)
    swapped = [np.asarray(each).astype(np.asarray(each).dtype.newbyteorder()) for each in args]
    swapped[2] = args[2].astype(np.dtype(np.int32).newbyteorder())
    assert not any(each.dtype.isnative for each in swapped)
    np.testing.assert_array_equal(loss(*swapped), loss(*args))


def test_a_sample_without_a_path_is_inf_and_never_1e5(rng):
    logits, _, labels, _ = make(rng)
    labels = np.full_like(labels, 2)  # 5 labels, 4 repeats: 9 frames
    args = logits, paddings(20, [20, 9, 8, 0]), labels, paddings(5, [5, 5, 5, 5])
    losses, grad = jax.value_and_grad(lambda x: ctc_loss(x, *args[1:])[:2].sum())(logits)
    assert np.isinf(ctc_loss(*args)).tolist() == [False, False, True, True]
    assert np.isfinite(losses)
    grad = jax.grad(lambda x: ctc_loss(x, *args[1:]).sum())(logits)
    assert not np.asarray(grad)[2:].any()
    assert np.asarray(grad)[:2].any(axis=(1, 2)).all()
    assert (optax().ctc_loss(*args)[2:] > 1e4).all()  # what this is not


@pytest.mark.parametrize("compiled", [False, True])
def test_what_comes_back_for_a_sample_without_a_path_makes_no_nan(rng, compiled):
    """A focal loss, whose derivative at inf is NaN."""
    logits, frames, labels, padded = make(rng)
    frames[1], labels[1], padded[1] = paddings(20, [3]), 2, 0

    def focal(x, *others):
        losses = ctc_loss(x, *others)
        weighed = (1 - jnp.exp(-losses)) ** 2 * losses
        return jnp.where(jnp.isfinite(weighed), weighed, 0).sum()

    first = jax.jit(jax.grad(focal)) if compiled else jax.grad(focal)
    grad = np.asarray(first(logits, frames, labels, padded))
    others = np.array([0, 2, 3])
    right = jax.grad(focal)(logits[others], frames[others], labels[others], padded[others])
    np.testing.assert_allclose(grad[others], right, rtol=1e-5, atol=1e-6)
    assert not grad[1].any()
    second = jax.grad(lambda x: (first(x, frames, labels, padded) * logits).sum())(logits)
    assert np.isfinite(second).all()
    assert second[others].any()
    assert not second[1].any()


def test_an_inf_that_comes_back_for_a_sample_without_a_path_makes_no_nan(rng):
    """As of the square of inf."""
    logits, frames, labels, padded = make(rng)
    frames[1], labels[1], padded[1] = paddings(20, [3]), 2, 0
    grad = np.array(jax.grad(lambda x: (ctc_loss(x, frames, labels, padded) ** 2).sum())(logits))
    assert not grad[1].any()
    losses, back = jax.vjp(lambda x: ctc_loss(x, frames, labels, padded), logits)
    np.testing.assert_array_equal(grad, back(jnp.where(jnp.isinf(losses), 0, 2 * losses))[0])


def test_empty_labels(rng):
    args = make(rng)
    args = *args[:3], np.ones_like(args[3])
    np.testing.assert_allclose(ctc_loss(*args), truth(*args).loss, rtol=1e-6)
    without = ctc_loss(*args[:2], args[2][:, :0], args[3][:, :0])
    np.testing.assert_array_equal(without, ctc_loss(*args))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes(rng, dtype):
    args = make(rng)
    with enable_x64(dtype == "float64"):
        logits = jnp.asarray(args[0], dtype)
        assert logits.dtype == dtype
        losses, back = jax.vjp(lambda x: ctc_loss(x, *args[1:]), logits)
        (grad,) = back(jnp.ones_like(losses))
        assert losses.dtype == ("float64" if dtype == "float64" else "float32")
        assert grad.dtype == dtype
    right = truth(np.asarray(logits, np.float64), *args[1:])
    eps = 1e-6 if dtype != "float64" else 1e-13
    np.testing.assert_allclose(losses, right.loss, rtol=eps)
    rounding = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 0)  # of the gradient, which is below 1
    np.testing.assert_allclose(np.asarray(grad, np.float64), right.grad, atol=2 * eps + rounding)


def test_jit_grad_and_vmap(rng):
    cases = [make(rng) for _ in range(6)]
    stacked = [jnp.stack(each).reshape(2, 3, *each[0].shape) for each in zip(*cases)]

    def loss(*args):
        return ctc_loss(*args).sum()

    alone = [jax.value_and_grad(loss)(*map(jnp.asarray, args)) for args in cases]
    for transform in (jax.value_and_grad(loss), jax.jit(jax.value_and_grad(loss))):
        losses, grads = jax.jit(jax.vmap(jax.vmap(transform)))(*stacked)
        assert losses.shape == (2, 3)
        np.testing.assert_allclose(losses.reshape(-1), [each[0] for each in alone], rtol=1e-6)
        for grad, (_, right) in zip(grads.reshape(6, 4, 20, 7), alone):
            np.testing.assert_array_equal(grad, right)
    over_logits = jax.vmap(ctc_loss, in_axes=(0, None, None, None))(
        stacked[0][0], *(each[0, 0] for each in stacked[1:])
    )
    for row, logits in zip(over_logits, stacked[0][0]):
        np.testing.assert_array_equal(row, ctc_loss(logits, *(each[0, 0] for each in stacked[1:])))


def test_losses_alone_ask_for_no_gradient(rng, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a gradient was computed")

    args = make(rng)
    right = ctc_loss(*args)
    monkeypatch.setattr(import_module("ctcbind.jax.loss"), "ctc_loss_and_grad", refuse)
    np.testing.assert_array_equal(ctc_loss(*args), right)
    np.testing.assert_array_equal(jax.jit(ctc_loss)(*args), right)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({2: np.full((2, 3), 7)}, "labels[0][0] is 7, but there are 7 classes (0..6)"),
        ({2: np.zeros((2, 3), int)}, "labels[0][0] is 0, which is the blank; a target holds labels only"),
        ({2: np.full((2, 3), -1)}, "labels[0][0] is -1; a label cannot be negative"),
        ({1: np.full((2, 9), 0.5)}, "logit_paddings[0][0] is 0.5; it must be 0 or 1"),
        ({3: np.full((2, 3), np.nan)}, "label_paddings[0][0] is nan; it must be 0 or 1"),
        (
            {3: np.array([[0, 0, 0], [0, 1, 0]])},
            "label_paddings[1][1] is 1 and a label follows it; the padding must come last: pass 1 - label_paddings if "
            "1 stands for labels",
        ),
        ({3: np.array([[1, 0, 0], [1, 0, 0]])}, "label_paddings[0][0] is 1 and a label follows it"),
        ({4: 7}, "blank is 7, but there are 7 classes"),
        ({0: np.zeros((9, 7), np.float32)}, "they must have 3: (B, T, K); for one sample, also under vmap,"),
        (
            {0: np.zeros((2, 9, 7), int)},
            "float32 or float64: pass logits.astype(jax.numpy.float32)",
        ),
        ({0: np.zeros((2, 9, 0), np.float32)}, "there are no classes: K = 0, but the blank alone needs one"),
        ({1: np.zeros((9, 2))}, "logit_paddings have shape (9, 2); they must have (2, 9)"),
        ({2: np.ones((3, 2), int)}, "labels have shape (3, 2); they must be (B, N), with B = 2"),
        (
            {0: np.zeros((9, 2, 7), np.float32)},
            "labels have shape (2, 3); they must be (B, N), with B = 9 as in the logits; those, read as (B, T, K), "
            "have 2 time steps: if they are the samples, pass logits.swapaxes(0, 1)",
        ),
        (
            {1: np.array([9, 5])},
            "logit_paddings have shape (2,); they must have (2, 9), 1 where there is padding: of lengths pass "
            "jax.numpy.arange(9) >= lengths[:, None]",
        ),
        ({3: np.array([3, 2])}, "of lengths pass jax.numpy.arange(3) >= lengths[:, None]"),
        ({2: np.ones((2, 3))}, "labels hold float32; they must hold integers: pass labels.astype(int)"),
        ({3: np.zeros((2, 4))}, "label_paddings have shape (2, 4); they must have (2, 3)"),
        ({1: np.zeros((2, 9)) * 1j}, "logit_paddings hold complex64; they must hold 0 and 1"),
        ({3: np.zeros((2, 3)) * 1j}, "label_paddings hold complex64; they must hold 0 and 1"),
    ],
)
def test_what_cannot_be_right_is_refused(changes, words, compiled):
    args = [np.zeros((2, 9, 7), np.float32), np.zeros((2, 9)), np.ones((2, 3), int), np.zeros((2, 3)), 0]
    for place, value in changes.items():
        args[place] = value
    function = jax.jit(ctc_loss, static_argnums=4) if compiled else ctc_loss
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        function(*args).block_until_ready()
    assert words in str(caught.value)
    assert "InvalidInput" in f"{type(caught.value)} {caught.value}"
    if not compiled:
        assert type(caught.value) is ctcbind.InvalidInput
        if shape := re.search(r"s have shape (.*?);", str(caught.value)):
            assert str(caught.value.value) == shape[1]
    if not compiled and args[0].dtype != int:
        with pytest.raises(ctcbind.InvalidInput, match=re.escape(words)):  # the labels are there to be looked at
            jax.grad(lambda x: ctc_loss(x, *args[1:]).sum())(args[0])


@pytest.mark.parametrize("loss", [ctc_loss, lattice_loss])
def test_what_holds_no_numbers_is_named(loss):
    """Errors of JAX's own came through, which name no argument."""
    good = np.zeros((2, 9, 7), np.float32), np.zeros((2, 9)), np.ones((2, 3), int), np.zeros((2, 3))
    for place, name in enumerate(("logits", "logit_paddings", "labels", "label_paddings")):
        of_it = jnp.asarray(good[place])
        deleted = of_it + 0
        deleted.delete()
        keys = jax.random.split(jax.random.key(0), of_it.size).reshape(of_it.shape)
        for value, words in (
            (None, "cannot be read as numbers: " + r"it is None; .*zeros_like\(l" * name.endswith("paddings")),
            (deleted, r"cannot be read: .* donated .*; give that function a copy, jax\.numpy\.copy"),
            (keys, r"(are|hold) key<\w+>; they must (be|hold) "),
        ):
            with pytest.raises(ctcbind.InvalidInput, match=f"^{name} {words}"):
                loss(*good[:place], value, *good[place + 1 :])
    with pytest.raises(ctcbind.InvalidInput, match=r"^log_prior cannot be read as numbers: it holds key<"):
        lattice_loss(*good, log_prior=jax.random.split(jax.random.key(0), 7))


def test_a_traced_blank_is_told_how_to_be_fixed(rng):
    args = make(rng)
    words = "blank_id has no value inside jit.*pass static_argnames='blank_id' to jax.jit"
    with pytest.raises(ctcbind.InvalidInput, match=words) as caught:
        jax.jit(ctc_loss)(*args, blank_id=0)
    assert caught.value.rule == "traced"
    np.testing.assert_allclose(jax.jit(ctc_loss, static_argnames="blank_id")(*args, blank_id=0), ctc_loss(*args))
    with pytest.raises(ctcbind.InvalidInput, match="prior_weight has no value inside jit"):
        jax.jit(lattice_loss)(*args, prior_weight=0.5)


def test_large_batches_do_not_wait_for_themselves():
    """A callback whose arguments are still being computed must not block the threads that compute them."""
    script = """
import jax, jax.numpy as jnp
from ctcbind.jax import ctc_loss
@jax.jit
def step(weight, x):
    def loss(weight):
        return ctc_loss(x @ weight, jnp.zeros(x.shape[:2]), jnp.ones((32, 20), int), jnp.zeros((32, 20))).sum()
    return weight - 1e-3 * jax.grad(loss)(weight)
weight, x = jnp.eye(64), jnp.ones((32, 400, 64)) * jnp.arange(64)
for _ in range(5):
    weight = step(weight, x)
assert jnp.isfinite(weight).all()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=os.path.dirname(sys.executable))


def test_a_large_gradient_comes_in_large_pages(rng, way):
    """A page of 4 kB at a time, the memory that XLA asks for took several times as long as the gradient."""
    modes = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if way != "in C" or not modes.exists() or "[never]" in modes.read_text():
        pytest.skip("there are no transparent large pages to ask for" if way == "in C" else "NumPy asks for its own")
    import resource

    args = tuple(map(jnp.asarray, make(rng, B=8, T=100, K=20_000)))  # 64 MB, past the largest that malloc keeps
    step = jax.jit(jax.grad(lambda x: ctc_loss(x, *args[1:]).sum()))
    step(args[0]).block_until_ready()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    grad = step(args[0]).block_until_ready()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < grad.nbytes // resource.getpagesize() // 4


def test_it_learns(rng):
    args = make(rng)
    step = jax.jit(lambda x: x - 0.5 * jax.grad(lambda x: ctc_loss(x, *args[1:]).mean())(x))
    logits = jnp.asarray(args[0])
    for _ in range(20):
        logits = step(logits)
    assert ctc_loss(logits, *args[1:]).sum() < 0.6 * ctc_loss(*args).sum()


def test_ctcbind_does_not_import_jax():
    script = "import sys, ctcbind; assert 'jax' not in sys.modules; import ctcbind.jax; sys.modules['jax']"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=os.path.dirname(sys.executable))
