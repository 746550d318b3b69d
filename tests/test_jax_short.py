"""JAX's arrays given to ctcbind.CTCLoss and ctc_loss: from the third call on the short way of NumPy's arrays."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402
from jax_bits import enable_x64  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind import plan  # noqa: E402

OPTIONS = [
    {},
    {"layout": "NTC"},
    {"reduction": "sum"},
    {"reduction": "label_mean", "zero_infinity": True},
    {"topology": "simple", "blank": -1},
]


def batch(options, dtype="float32"):
    """JAX's arrays, and the same as NumPy's; sample 1 has no path."""
    rng = np.random.default_rng([SEED, 1214])
    logits = rng.normal(size=(20, 4, 7)).astype(dtype)
    labels = rng.integers(1, 7, size=(4, 5)) - ("blank" in options)
    arrays = logits, labels.astype(np.int32), np.array([20, 2, 15, 18], np.int32), np.array([5, 5, 0, 3], np.int32)
    if options.get("layout") == "NTC":
        arrays = logits.transpose(1, 0, 2).copy(), *arrays[1:]
    return tuple(map(jnp.asarray, arrays)), arrays


def with_short_way(given, **options):
    short = ctcbind.CTCLoss(**options)
    for _ in range(3):
        short(*given), short.loss(*given)
    return short


def no_long_way(monkeypatch):
    # whoever goes the long way makes a batch
    monkeypatch.setattr(plan, "make_batch", lambda *_: pytest.fail("not the short way"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("options", OPTIONS)
def test_they_give_what_numpys_give(options, dtype, monkeypatch):
    with enable_x64(dtype == "float64"):
        given, arrays = batch(options, dtype)
        with with_short_way(given, **options) as short:
            right, losses = short(*arrays), short.loss(*arrays)
            no_long_way(monkeypatch)
            found, alone = short(*given), short.loss(*given)
        assert all(isinstance(each, jax.Array) for each in (*found[:2], alone))
        np.testing.assert_array_equal(np.asarray(found.loss), right.loss, strict=True)
        np.testing.assert_array_equal(np.asarray(found.grad), right.grad, strict=True)
        np.testing.assert_array_equal(np.asarray(alone), losses, strict=True)
        assert found.engine == "native"


@pytest.mark.parametrize("kind", ["JAX's", "NumPy's"])
def test_lists_of_arrays_and_arrays_of_both_kinds(kind, monkeypatch):
    """Labels and lengths that are JAX's, whatever the logits are."""
    given, arrays = batch({})
    logits = (given if kind == "JAX's" else arrays)[0]
    rows = [row[:count] for row, count in zip(given[1], arrays[3])]
    with with_short_way(arrays) as short:
        right, losses = short(*arrays), short.loss(*arrays)
        no_long_way(monkeypatch)
        for rest in ((rows, given[2], None), (tuple(rows), arrays[2], None), given[1:]):
            found, alone = short(logits, *rest), short.loss(logits, *rest)
            assert all(isinstance(each, type(logits)) for each in (found.loss, found.grad, alone))
            np.testing.assert_array_equal(found.loss, right.loss)
            np.testing.assert_array_equal(found.grad, right.grad)
            np.testing.assert_array_equal(alone, losses)


def test_what_needs_more_goes_the_long_way():
    (logits, *rest), arrays = batch({})
    with with_short_way((logits, *rest)) as short:
        right = short.loss(*arrays)
        assert short(logits.astype(jnp.bfloat16), *rest).grad.dtype == jnp.bfloat16
        with pytest.raises(ctcbind.InvalidInput, match=r"use ctcbind\.jax\.ctc_loss there"):
            jax.jit(short.loss)(logits, *rest)
        with pytest.raises(ctcbind.InvalidInput, match=r"input_lengths: .*use ctcbind\.jax"):
            jax.jit(lambda frames: short.loss(logits, rest[0], frames, rest[2]))(rest[1])
        with pytest.raises(ctcbind.InvalidInput, match="logits are int32"):
            short(logits.astype(int), *rest)
        with pytest.raises(ctcbind.InvalidInput, match="float32; it must hold integers"):
            short(logits, rest[0].astype(float), *rest[1:])
        with pytest.raises(ctcbind.InvalidInput, match="cannot be read"):
            short(jax.random.key(0), *rest)
        gone = jnp.copy(logits)
        gone.delete()
        with pytest.raises(ctcbind.InvalidInput, match="deleted"):
            short(gone, *rest)
        np.testing.assert_array_equal(short.loss(logits, *rest), right)


@pytest.mark.parametrize("place", [1, 2, 3])
def test_what_is_wrong_is_told_as_of_numpys(place):
    given, arrays = batch({})
    with with_short_way(given) as short:
        said = set()
        for each in (given, arrays):
            changed = [np.array(value) for value in each]
            changed[place].flat[0] = 70
            if each is given:
                changed = list(map(jnp.asarray, changed))
            for call in (short, short.loss):
                with pytest.raises(ctcbind.InvalidInput) as caught:
                    call(*changed)
                said.add(str(caught.value))
        assert len(said) == 1


def test_a_gradient_that_jax_still_reads_is_not_written_over():
    """The memory of large gradients is used again, but only when nothing refers to it any more."""
    rng = np.random.default_rng([SEED, 1215])
    logits = [jnp.asarray(rng.normal(size=(200, 8, 64)), jnp.float32) for _ in range(3)]
    labels = rng.integers(1, 64, size=(8, 10))
    turned = jax.jit(lambda grad: jax.lax.fori_loop(0, 20, lambda _, x: (x + grad) / 2, grad))
    with ctcbind.CTCLoss() as ctc:
        right = [np.array(ctc(np.asarray(each), labels).grad) for each in logits]
        found = [turned(ctc(logits[i % 3], labels).grad) for i in range(12)]
    for i, each in enumerate(found):
        np.testing.assert_array_equal(each, right[i % 3])
