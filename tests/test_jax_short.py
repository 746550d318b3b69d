"""JAX's arrays given to ctcbind.CTCLoss: from the third call on the short way of NumPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import SEED

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install 'ctcbind[jax]'")

import jax.numpy as jnp  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind import plan  # noqa: E402

T, N, C, L = 30, 5, 12, 5
OPTIONS = [
    {},
    {"layout": "NTC"},
    {"reduction": "sum"},
    {"reduction": "label_mean", "zero_infinity": True},
    {"topology": "simple", "blank": -1},
]


def batch(options: dict[str, Any], dtype: str = "float32") -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """JAX's arrays, and the same as NumPy's; sample 1 has no path."""
    rng = np.random.default_rng([SEED, 47])
    shape = (N, T, C) if options.get("layout") == "NTC" else (T, N, C)
    labels = rng.integers(1, C, size=(N, L), dtype=np.int32) - bool(options.get("blank"))
    frames = np.array([T, 2, *rng.integers(2 * L, T, size=N - 2)], np.int32)
    counts = np.array([L, L, *rng.integers(0, L, size=N - 2)], np.int32)
    arrays = rng.normal(size=shape).astype(dtype), labels, frames, counts
    return tuple(map(jnp.asarray, arrays)), arrays


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("options", OPTIONS)
def test_they_give_what_numpys_give(options, dtype, monkeypatch):
    given, arrays = batch(options, dtype)
    with ctcbind.CTCLoss(**options) as short:
        for _ in range(2):
            short(*given), short.loss(*given)
        right, losses = short(*arrays), short.loss(*arrays)
        # whoever goes the long way makes a batch
        monkeypatch.setattr(plan, "make_batch", lambda *_: pytest.fail("not the short way"))
        rows = [row[:count] for row, count in zip(given[1], arrays[3])]
        for others in given[1:], arrays[1:], (rows, given[2], None):
            found, alone = short(given[0], *others), short.loss(given[0], *others)
            assert all(isinstance(each, jax.Array) for each in (*found[:2], alone))
            np.testing.assert_array_equal(np.asarray(found.loss), right.loss)
            np.testing.assert_array_equal(np.asarray(found.grad), right.grad, strict=True)
            np.testing.assert_array_equal(np.asarray(alone), losses)
        assert (found.engine, found.grad.shape) == ("native", given[0].shape)
        beside = short(arrays[0], *given[1:])
        assert isinstance(beside.grad, np.ndarray)  # results are of the logits' kind
        np.testing.assert_array_equal(beside.grad, right.grad, strict=True)
    np.testing.assert_array_equal(np.asarray(given[0]), arrays[0])


def test_what_is_wrong_is_told_as_before():
    given, arrays = batch({})
    with ctcbind.CTCLoss() as short:
        for _ in range(3):
            short(*given), short.loss(*given)
        for which, value in ((1, C), (1, -1), (2, T + 1), (3, L + 1), (3, -3)):
            said = set()
            for kind in (given, arrays):
                changed = [np.array(each) for each in kind]
                changed[which].flat[0] = value
                changed = [*map(jnp.asarray, changed)] if kind is given else changed
                for call in (short, short.loss):
                    with pytest.raises(ctcbind.InvalidInput) as caught:
                        call(*changed)
                    said.add(str(caught.value))
            assert len(said) == 1


def test_arrays_that_need_more_go_the_long_way():
    (logits, *rest), arrays = batch({})
    with ctcbind.CTCLoss() as short:
        for _ in range(3):
            right = short.loss(*arrays)
        for transform in (jax.jit, jax.vmap):
            with pytest.raises(ctcbind.InvalidInput, match=r"use ctcbind\.jax\.ctc_loss there"):
                transform(lambda x: short.loss(x, *rest))(logits[None] if transform is jax.vmap else logits)
        assert short.loss(logits.astype(jnp.bfloat16), *rest).dtype == jnp.float32
        assert short.loss(logits, *rest) == pytest.approx(right, rel=1e-6, nan_ok=True)
        with pytest.raises(ctcbind.InvalidInput, match="logits are int32"):
            short(logits.astype(int), *rest)
        with pytest.raises(ctcbind.InvalidInput, match="it must hold integers"):
            short(logits, rest[0].astype(float), *rest[1:])
        with pytest.raises(ctcbind.InvalidInput, match="cannot be read as an array"):
            short(logits, jax.random.key(0), *rest[1:])
        gone = jnp.array(logits)
        gone.delete()
        with pytest.raises(ctcbind.InvalidInput, match="deleted"):
            short(gone, *rest)
