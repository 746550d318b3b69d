"""The CTC loss for JAX, with the signature of `optax.ctc_loss`.

The arithmetic is ctcbind's on the host. On the CPU a compiled program calls the native engine itself (JAX's FFI); on
other devices, and for second derivatives, it calls back into Python. `jit`, `grad`, `vmap` and a second `grad` work.
For JAX 0.6 or later; tested with 0.6.2 and 0.10.2 on the CPU.
"""

from __future__ import annotations

import math
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental.custom_partitioning import custom_partitioning
    from jax.sharding import NamedSharding, PartitionSpec
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "ctcbind.jax is for JAX, which is not installed: pip install 'ctcbind[jax]'", name="jax"
    ) from None

from .errors import InvalidInput
from .loss import ctc_loss as losses_of
from .loss import ctc_loss_and_grad
from .rules import blank_index
from .second_order import ctc_hvp

__all__ = ["ctc_loss"]

Array = npt.NDArray[Any]


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    blank_id: int = 0,
    log_epsilon: float = -1e5,
) -> jax.Array:
    """The CTC loss of each sample, (B,) in nats; differentiable twice with respect to the logits.

    | argument | shape and dtype |
    |---|---|
    | logits | (B, T, K), before any softmax; float32, float64, float16 or bfloat16 |
    | logit_paddings | (B, T), 1 for a padded frame, 0 for one that counts, in any order |
    | labels | (B, N) integers |
    | label_paddings | (B, N), 0 for each label and then 1 for the padding, which may have any value in `labels` |
    | returns | (B,), float32, or float64 for float64 logits |

    A sample without a path has loss inf and gradient 0 (optax: a loss of about 1e5, -log_epsilon). `log_epsilon` is
    there for optax's sake and means nothing: no logarithm of 0 has to be replaced. float16 and bfloat16 are computed
    in float32. `blank_id` is a Python int, -1 the last class, fixed when the function is compiled.

    Derivatives are in reverse mode: `jacrev(jacrev(...))` in place of `hessian`, no `jvp`. Under `vmap` the mapped axes
    join the batch, in one call. On the CPU arrays that are sharded along the batch stay so, each device taking its
    samples: under `jit`, `jax.shard_map`, and with shardings in types. For second derivatives `jit` brings them
    together. Arrays of other devices are copied to the host and back.

    Raises InvalidInput for what cannot be right: ranks, shapes, dtypes, a blank that does not fit, and, of labels and
    paddings whose values are there, a label that is the blank or no class, and paddings that are neither 0 nor 1. Where
    `jit` or `vmap` keep the values away until the compiled program runs, that is an error of JAX from within it, which
    quotes the InvalidInput: a JaxRuntimeError, or a ValueError from a program that has run before. Of int64 labels that
    are handed to a function under `jit`, JAX itself keeps 32 bits, unless `jax_enable_x64` is on.

    Source: optax.ctc_loss of optax 0.2.8; Graves et al., ICML 2006, equation 16.

    >>> import jax, jax.numpy as jnp
    >>> from ctcbind.jax import ctc_loss
    >>> logits, labels = jnp.zeros((5, 100, 10)), jnp.tile(jnp.arange(1, 5), (5, 1))
    >>> loss = jax.jit(ctc_loss)(logits, jnp.zeros((5, 100)), labels, jnp.zeros((5, 4)))
    >>> [round(float(each), 3) for each in loss]
    [203.984, 203.984, 203.984, 203.984, 203.984]
    """
    scores = jnp.asarray(logits)
    batch = Padded(*map(jnp.asarray, (logit_paddings, _within_int32(labels), label_paddings)))
    _check_shapes(scores, batch)
    blank = blank_index(blank_id, scores.shape[2])
    if not any(isinstance(each, jax.core.Tracer) for each in batch):
        _check_labels(_rows(batch.labels), _paddings(*batch[::2])[1], scores.shape[2], blank)
    if scores.dtype in (jnp.float16, jnp.bfloat16):
        scores = scores.astype(jnp.float32)
    if (sharding := _explicit_sharding(scores)) and any(sharding.spec[1:]):
        scores = jax.sharding.reshard(scores, PartitionSpec(sharding.spec[0], None, None))
    # here, and not further in: the way back from there adds up what a replicated array has had from each device
    scores, *rest = _varying_alike((scores, *batch), _varies(scores, *batch))
    return _loss(blank, scores, Padded(*rest))


def _within_int32(labels: Any) -> Any:
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
    return np.clip(labels, max(-1, np.iinfo(labels.dtype).min), 2**31 - 1)


class Padded(NamedTuple):
    """What is not differentiated."""

    logit_paddings: Any
    labels: Any
    label_paddings: Any


def _check_shapes(logits: Any, batch: Padded) -> None:
    if logits.ndim != 3:
        raise InvalidInput(
            f"logits have {logits.ndim} dimensions, shape {logits.shape}; they must have 3: (B, T, K)",
            rule="logits_rank",
            value=logits.shape,
        )
    if not logits.shape[0]:
        raise InvalidInput(f"the batch is empty: B = 0 in logits of shape {logits.shape}", rule="batch_size")
    if logits.dtype not in (jnp.float16, jnp.bfloat16, jnp.float32, jnp.float64):
        raise InvalidInput(
            f"logits are {logits.dtype}; they must be float16, bfloat16, float32 or float64",
            rule="logits_dtype",
            value=str(logits.dtype),
        )
    if not jnp.issubdtype(batch.labels.dtype, jnp.integer):
        cure = ": pass labels.astype(int)" if jnp.issubdtype(batch.labels.dtype, jnp.floating) else ""
        raise InvalidInput(f"labels hold {batch.labels.dtype}; they must hold integers{cure}", rule="integers")
    if batch.labels.ndim != 2 or batch.labels.shape[0] != logits.shape[0]:
        raise InvalidInput(
            f"labels have shape {batch.labels.shape}; they must be (B, N), with B = {logits.shape[0]} as in the logits",
            rule="targets_rank",
            value=batch.labels.shape,
        )
    for name, paddings in (("logit_paddings", batch.logit_paddings), ("label_paddings", batch.label_paddings)):
        if jnp.issubdtype(paddings.dtype, jnp.complexfloating):
            raise InvalidInput(f"{name} hold {paddings.dtype}; they must hold 0 and 1", rule="paddings")
    for name, given, wanted in (
        ("logit_paddings", batch.logit_paddings.shape, logits.shape[:2]),
        ("label_paddings", batch.label_paddings.shape, batch.labels.shape),
    ):
        if given != wanted:
            raise InvalidInput(f"{name} have shape {given}; they must have {wanted}", rule="paddings", value=given)


# --- what JAX sees --------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(blank: int, logits: Any, batch: Padded) -> Any:
    (losses,) = _computed(_losses, blank, 1, logits, batch)
    return losses


def _loss_forward(blank: int, logits: Any, batch: Padded) -> Any:
    return _loss_and_grad(blank, logits, batch)


def _loss_backward(blank: int, grad: Any, of_losses: Any) -> Any:
    return grad * of_losses[:, None, None], None


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss_and_grad(blank: int, logits: Any, batch: Padded) -> Any:
    return _computed(_losses_and_grads, blank, 2, logits, batch)


def _both_forward(blank: int, logits: Any, batch: Padded) -> Any:
    both = _loss_and_grad(blank, logits, batch)
    return both, (both[1], logits, batch)


def _both_backward(blank: int, saved: Any, of_both: Any) -> Any:
    """Of the losses: the gradient; of the gradient: the Hessian times what comes back."""
    grad, logits, batch = saved
    of_losses, of_grad = of_both
    second = _callback(partial(_products, blank), _shapes(logits)[1], logits, *batch, of_grad)
    return grad * of_losses[:, None, None] + second, None


_loss.defvjp(_loss_forward, _loss_backward)
_loss_and_grad.defvjp(_both_forward, _both_backward)


def _shapes(logits: Any) -> Any:
    """Of losses and gradient."""
    sharding = _explicit_sharding(logits)
    of_losses = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:-2])) if sharding else None
    return (
        jax.ShapeDtypeStruct(logits.shape[:-2], logits.dtype, sharding=of_losses),
        jax.ShapeDtypeStruct(logits.shape, logits.dtype, sharding=sharding),
    )


def _explicit_sharding(array: Any) -> Any:
    """How an array is divided, where its type says so (AxisType.Explicit); JAX 0.6 leaves that to its compiler."""
    if not hasattr(jax.sharding, "reshard"):
        return None
    sharding = jax.typeof(array).sharding
    return sharding if any(sharding.spec) else None


def _callback(function: Any, shapes: Any, *arrays: Any) -> Any:
    arrays = _varying_alike(arrays, axes := _varies(*arrays))
    return _varying_alike(jax.pure_callback(function, shapes, *arrays, vmap_method="broadcast_all"), axes)


def _computed(function: Any, blank: int, results: int, logits: Any, batch: Padded) -> Any:
    """The losses, and as a second result the gradient: without Python on the CPU, by `function` elsewhere."""
    _register()
    back = partial(_callback, partial(function, blank), _shapes(logits)[:results])
    return jax.lax.platform_dependent(logits, *batch, cpu=partial(_in_c, blank, results), default=back)


def _in_c(blank: int, results: int, logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any) -> Any:
    if labels.dtype != jnp.int32 and labels.dtype.itemsize >= 4:
        least = None if jnp.issubdtype(labels.dtype, jnp.unsignedinteger) else -1
        labels = jnp.clip(labels, least, 2**31 - 1)  # out of range it stays
    frames, ends = (each.astype(jnp.float32) for each in (logit_paddings, label_paddings))
    call = _call_of_c if jax.sharding.get_abstract_mesh().manual_axes else _divided_call_of_c
    both = call(blank, results)(logits, frames, labels.astype(jnp.int32), ends)
    return _varying_alike(both, _varies(logits))


def _call_of_c(blank: int, results: int) -> Any:
    def call(logits: Any, *padded: Any) -> Any:
        in_c = jax.ffi.ffi_call(TARGET, _shapes(logits)[:results], vmap_method="broadcast_all")
        return tuple(in_c(logits, *padded, blank=np.int32(blank)))

    return call


@cache
def _divided_call_of_c(blank: int, results: int) -> Any:
    """The call, of which the partitioner and vmap know that samples have nothing to do with each other. What
    jax.shard_map has divided is not divided again."""
    call = _call_of_c(blank, results)

    def spread(mesh: Any, arrays: Any) -> tuple[Any, Any]:
        """The shardings of the arguments and of the results: like the logits along the batch, whole along the rest."""
        batch = arrays[0].sharding.spec[:-2] if arrays[0].sharding else ()
        wide, narrow = (NamedSharding(mesh, PartitionSpec(*batch, *whole)) for whole in ((None, None), (None,)))
        losses = NamedSharding(mesh, PartitionSpec(*batch))
        return (wide, narrow, narrow, narrow), (losses, wide)[:results]

    def partition(mesh: Any, arrays: Any, _results: Any) -> Any:
        of_arrays, of_results = spread(mesh, arrays)
        return mesh, call, of_results, of_arrays

    divided = custom_partitioning(call)
    divided.def_partition(
        partition,
        infer_sharding_from_operands=lambda mesh, arrays, _results: spread(mesh, arrays)[1],
        sharding_rule="... t k, ... t, ... n, ... n -> " + ", ".join(("...", "... t k")[:results]),
    )
    mapped = jax.custom_batching.custom_vmap(divided)

    @mapped.def_vmap
    def over_one_axis_more(size: int, batched: Any, *arrays: Any) -> Any:
        arrays = tuple(
            x if has else jnp.broadcast_to(x, (size, *x.shape)) for x, has in zip(arrays, batched, strict=True)
        )
        return mapped(*arrays), (True,) * results

    return jax.jit(mapped)


def _varies(*arrays: Any) -> frozenset[Any]:
    """The axes of jax.shard_map's mesh along which any of the arrays differs."""
    axes: frozenset[Any] = frozenset()
    for each in arrays:
        kind = jax.typeof(each) if hasattr(jax, "typeof") else None
        axes |= getattr(getattr(kind, "manual_axis_type", None), "varying", getattr(kind, "vma", axes))
    return axes


def _varying_alike(arrays: Any, axes: frozenset[Any]) -> Any:
    """The same arrays, taken for different along all of the axes; JAX cannot know it of what it does not compute."""

    def vary(each: Any) -> Any:
        if not (missing := tuple(axes - _varies(each))):
            return each
        return jax.lax.pcast(each, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(each, missing)

    return jax.tree.map(vary, arrays)


#: The name under which XLA knows the function of csrc/xla.h.
TARGET = "ctcbind_loss"


@cache
def _register() -> None:
    from .engines.native_xla import loss_function

    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(loss_function()), platform="cpu")


# --- on the host ----------------------------------------------------------------------------------------------


def _losses(blank: int, *arrays: Any) -> tuple[Array]:
    call = _Call(blank, *arrays)
    losses: Array = losses_of(call.logits, call.labels, call.frames, call.counts, blank=blank, layout="NTC")
    return (losses.reshape(call.front),)


def _losses_and_grads(blank: int, *arrays: Any) -> tuple[Array, Array]:
    call = _Call(blank, *arrays)
    losses, grad, _ = ctc_loss_and_grad(call.logits, call.labels, call.frames, call.counts, blank=blank, layout="NTC")
    return losses.reshape(call.front), call.in_place(grad)


def _products(blank: int, *arrays: Any) -> Array:
    *arrays_of_call, direction = arrays
    call = _Call(blank, *arrays_of_call)
    along = call.to_the_front(np.asarray(direction).reshape(call.logits.shape))
    return call.in_place(ctc_hvp(call.logits, call.labels, along, call.frames, call.counts, blank=blank, layout="NTC"))


class _Call:
    """A batch as ctcbind takes it: axes that vmap has put in front are part of it, frames that count come first."""

    def __init__(self, blank: int, logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any) -> None:
        x = np.asarray(logits)
        self.front, self.shape = x.shape[:-2], x.shape
        self.labels = _rows(labels)
        padded, self.counts = _paddings(logit_paddings, label_paddings)
        _check_labels(self.labels, self.counts, x.shape[-1], blank)
        self.frames = np.sum(~padded, axis=1)
        self.order: Array | None = None
        if (padded[:, :-1] & ~padded[:, 1:]).any():
            self.order = np.argsort(padded, axis=1, kind="stable")[:, :, None]
        self.logits = self.to_the_front(x.reshape(math.prod(self.front), *x.shape[-2:]))

    def to_the_front(self, array: Array) -> Array:
        return array if self.order is None else np.take_along_axis(array, self.order, axis=1)

    def in_place(self, array: Array) -> Array:
        """Frames back to where they were, and the shape that JAX waits for."""
        if self.order is not None:
            moved, array = array, np.empty_like(array)
            np.put_along_axis(array, self.order, moved, axis=1)
        return array.reshape(self.shape)


def _rows(value: Any) -> Array:
    array = np.asarray(value)
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def _paddings(logit_paddings: Any, label_paddings: Any) -> tuple[npt.NDArray[np.bool_], Array]:
    """(which frames are padding, how many labels each sample has)."""
    padded = _zeros_and_ones("logit_paddings", logit_paddings)
    unlabelled = _zeros_and_ones("label_paddings", label_paddings)
    if (late := unlabelled[:, :-1] & ~unlabelled[:, 1:]).any():
        sample, position = (int(i) for i in np.argwhere(late)[0])
        raise InvalidInput(
            f"label_paddings[{sample}][{position}] is 1 and a label follows it; the padding must come last",
            rule="paddings",
            sample=sample,
            position=position,
        )
    return padded, np.sum(~unlabelled, axis=1)


def _check_labels(labels: Array, counts: Array, C: int, blank: int) -> None:
    """In the words of csrc/xla.c."""
    inside = np.arange(labels.shape[1]) < counts[:, None]
    wrong = inside & ((labels < 0) | (labels >= C) | (labels == blank))
    if not wrong.any():
        return
    sample, position = (int(i) for i in np.argwhere(wrong)[0])
    value = int(labels[sample, position])
    if value == blank:
        rule, why = "label_blank", ", which is the blank; a target holds labels only"
    elif value < 0:
        rule, why = "label_negative", "; a label cannot be negative"
    else:
        rule, why = "label_range", f", but there are {C} classes (0..{C - 1}), the blank among them"
    where = f"labels[{sample}][{position}] is {value}"
    raise InvalidInput(where + why, rule=rule, sample=sample, position=position, value=value)


def _zeros_and_ones(name: str, value: Any) -> npt.NDArray[np.bool_]:
    array = _rows(value)
    ones = array.astype(bool)
    if (wrong := array != ones).any():
        sample, position = (int(i) for i in np.argwhere(wrong)[0])
        raise InvalidInput(
            f"{name}[{sample}][{position}] is {array[sample, position]}; it must be 0 or 1",
            rule="paddings",
            sample=sample,
            position=position,
            value=float(array[sample, position]),
        )
    return ones
