"""What a caller gives, as JAX arrays whose shapes, dtypes and, where they are there, values are right."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidInput, counted
from ..options import blank_index
from .host import check_labels, paddings, rows

__all__ = ["Padded", "as_jax", "numeric", "prepare", "refuse_traced"]


class Padded(NamedTuple):
    """What is not differentiated."""

    logit_paddings: Any
    labels: Any
    label_paddings: Any


def prepare(logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, blank_id: int) -> Any:
    """(logits in float32 or float64, the rest, the blank's index), checked as far as values are there."""
    scores = as_jax("logits", logits)
    batch = Padded(*map(as_jax, Padded._fields, (logit_paddings, within_int32(labels), label_paddings)))
    check_shapes(scores, batch)
    refuse_traced("blank_id", blank_id)
    blank = blank_index(blank_id, scores.shape[2])
    if not any(isinstance(each, jax.core.Tracer) for each in batch):
        check_labels(rows(batch.labels), paddings(*batch[::2])[1], scores.shape[2], blank)
    if scores.dtype in (jnp.float16, jnp.bfloat16):
        scores = scores.astype(jnp.float32)
    return scores, batch, blank


def as_jax(name: str, value: Any, rule: str = "unreadable") -> Any:
    """A JAX array, whose values are there unless it is being traced."""
    if value is None and name.endswith("_paddings"):
        like = "labels" if name == "label_paddings" else "logits[:, :, 0]"
        raise InvalidInput(
            f"{name} cannot be read as numbers: it is None; where nothing is padding pass jax.numpy.zeros_like({like})",
            rule=rule,
        )
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} cannot be read as numbers: {_ragged(name, value) or error}", rule=rule) from error
    if not isinstance(array, jax.core.Tracer) and array.is_deleted():
        raise InvalidInput(
            f"{name} cannot be read: that array was deleted, or donated to a compiled function (donate_argnums); give "
            f"that function a copy, jax.numpy.copy({name})",
            rule="unreadable",
        )
    return array


def _ragged(name: str, value: Any) -> str:
    """What is wrong with rows of several lengths, and the cure; "" for anything else."""
    try:
        lengths = sorted({len(row) for row in value})
    except TypeError:
        return ""
    if len(lengths) < 2:
        return ""
    cures = {
        "logits": "; pad them, and give logit_paddings with 1 for each frame that is padding",
        "labels": "; pad them with any number, and give label_paddings with 1 for each label that is padding",
        "logit_paddings": "; pad them with 1",
        "label_paddings": "; pad them with 1",
    }
    return f"rows of several lengths, from {lengths[0]} to {lengths[-1]}{cures.get(name, '')}"


def numeric(dtype: Any) -> bool:
    """Whether it is of real numbers or booleans: not of complex ones, nor of random keys."""
    return bool(jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating) or dtype == jnp.bool_)


def refuse_traced(name: str, value: Any) -> None:
    if isinstance(value, jax.core.Tracer):
        raise InvalidInput(
            f"{name} has no value inside jit, grad or vmap, and is fixed when the function is compiled: pass "
            f"static_argnames={name!r} to jax.jit, or leave it out of the arguments",
            rule="traced",
        )


def within_int32(labels: Any) -> Any:
    """NumPy's or Python's own, of which JAX without 64 bits would keep the low half: out of range they stay."""
    if isinstance(labels, (list, tuple)):
        try:
            given = np.asarray(labels)
        except (TypeError, ValueError):  # rows of several lengths, or what is being traced: that is JAX's matter
            return labels
        if given.dtype == object and all(isinstance(each, int) for each in given.flat):
            given = given.clip(-1, 2**31 - 1).astype(np.int64)
        labels = given if given.dtype.kind in "iu" else labels if given.size else given.astype(np.int32)
    if not isinstance(labels, np.ndarray) or labels.dtype.kind not in "iu" or labels.dtype.itemsize <= 4:
        return labels
    return np.clip(labels, max(-(2**31), np.iinfo(labels.dtype).min), 2**31 - 1)


def check_shapes(logits: Any, batch: Padded) -> None:
    if logits.ndim != 3:
        raise InvalidInput(
            f"logits have {counted(logits.ndim, 'dimension')}, shape {logits.shape}; they must have 3: (B, T, K)"
            + ("; for one sample, also under vmap, pass logits[None] and the others so" if logits.ndim == 2 else ""),
            rule="logits_rank",
            value=logits.shape,
        )
    if not logits.shape[0]:
        raise InvalidInput(f"the batch is empty: B = 0 in logits of shape {logits.shape}", rule="batch_size")
    if not logits.shape[2]:
        raise InvalidInput("there are no classes: K = 0, but the blank alone needs one", rule="classes")
    if logits.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
        cure = ": pass logits.astype(jax.numpy.float32)" if numeric(logits.dtype) else ""
        raise InvalidInput(
            f"logits are {logits.dtype}; they must be float16, bfloat16, float32 or float64{cure}",
            rule="logits_dtype",
            value=str(logits.dtype),
        )
    if not jnp.issubdtype(batch.labels.dtype, jnp.integer):
        cure = ": pass labels.astype(int)" if jnp.issubdtype(batch.labels.dtype, jnp.floating) else ""
        raise InvalidInput(f"labels hold {batch.labels.dtype}; they must hold integers{cure}", rule="integers")
    if batch.labels.ndim != 2 or batch.labels.shape[0] != logits.shape[0]:
        B, T = logits.shape[:2]
        swapped = (
            f"; those, read as (B, T, K), have {counted(T, 'time step')}: if they are the samples, pass "
            "logits.swapaxes(0, 1)"
        )
        raise InvalidInput(
            f"labels have shape {batch.labels.shape}; they must be (B, N), with B = {B} as in the logits"
            + (swapped if batch.labels.ndim == 2 and batch.labels.shape[0] == T else ""),
            rule="targets_rank",
            value=batch.labels.shape,
        )
    for name, flags in (("logit_paddings", batch.logit_paddings), ("label_paddings", batch.label_paddings)):
        if not numeric(flags.dtype):
            raise InvalidInput(f"{name} hold {flags.dtype}; they must hold 0 and 1", rule="paddings")
    for name, given, wanted in (
        ("logit_paddings", batch.logit_paddings.shape, logits.shape[:2]),
        ("label_paddings", batch.label_paddings.shape, batch.labels.shape),
    ):
        if given != wanted:
            lengths = f", 1 where there is padding: of lengths pass jax.numpy.arange({wanted[1]}) >= lengths[:, None]"
            raise InvalidInput(
                f"{name} have shape {given}; they must have {wanted}{lengths if given == wanted[:1] else ''}",
                rule="paddings",
                value=given,
            )
