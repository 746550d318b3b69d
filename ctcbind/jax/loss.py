"""The loss as JAX sees it: derivatives, and the call of the native engine inside compiled programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import InvalidInput
from ..loss import ctc_loss as losses_of
from ..loss import ctc_loss_and_grad
from ..second_order import ctc_hvp
from .arguments import prepare
from .axes import callback, explicit_sharding, parts_of, varies, varying_alike
from .host import Array, Call
from .operations import linear, of_losses, operation

__all__ = ["ctc_loss"]


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

    A sample without a path has loss inf, where optax has about 1e5 (-log_epsilon), and gradient 0, whatever is passed
    back for it. `log_epsilon` is accepted because optax has it, and has no effect. float16 and bfloat16 are computed in
    float32. `blank_id` is a Python int, -1 the last class; it is fixed when the function is compiled.

    First and second derivatives work in both modes: `grad`, `jvp`, `hessian`, `jvp(grad(...), ...)`. To use the value
    of a third one raises NotImplementedError. Under `vmap` the mapped axes become part of the batch, in one call.

    On the CPU, arrays that are sharded along the batch stay so, and each device computes its own samples: under `jit`,
    under `jax.shard_map`, and with shardings in types. Arrays of other devices are copied to the host and back.

    Raises InvalidInput for wrong ranks, shapes and dtypes, and for a blank that is not a class. Where the values of
    labels and paddings are known it also raises it for a label that is the blank or not a class, and for paddings other
    than 0 and 1. Under `jit` and `vmap` values are known only when the compiled program runs. Then JAX raises an error
    that quotes the InvalidInput: a JaxRuntimeError, or (JAX 0.10.2) a ValueError from a program whose first call had no
    error. JAX itself keeps 32 bits of int64 labels that are passed to a function under `jit`, unless `jax_enable_x64`
    is on.

    Source: optax.ctc_loss of optax 0.2.8; Graves et al., ICML 2006, equation 16.

    >>> import jax, jax.numpy as jnp
    >>> from ctcbind.jax import ctc_loss
    >>> logits, labels = jnp.zeros((5, 100, 10)), jnp.tile(jnp.arange(1, 5), (5, 1))
    >>> loss = jax.jit(ctc_loss)(logits, jnp.zeros((5, 100)), labels, jnp.zeros((5, 4)))
    >>> [round(float(each), 3) for each in loss]
    [203.984, 203.984, 203.984, 203.984, 203.984]
    """
    scores, batch, blank = prepare(logits, logit_paddings, labels, label_paddings, blank_id)
    if (sharding := explicit_sharding(scores)) and any(sharding.spec[1:]):
        along_batch = NamedSharding(sharding.mesh, PartitionSpec(sharding.spec[0], None, None))
        scores = jax.sharding.reshard(scores, along_batch)
    (losses,) = _operation(scores, *batch, blank=blank, results=1)
    return losses


def _derivative(arrays: Any, tangents: Any, *, results: int, **options: Any) -> Any:
    """Loss and gradient come from one call."""
    if (along := tangents[0]) is None:  # in the paddings there is no derivative
        return _operation(*arrays, results=results, **options), [None] * results
    losses, grad = both = _operation(*arrays, results=2, **options)
    slopes = _slopes(losses, grad, along)
    if results == 1:
        return [losses], [slopes]
    return both, [slopes, _product(*arrays, along, blank=options["blank"])]


@jax.jit  # outside `jit` too it is one operation that is turned around, and reads the gradient once
def _slopes(losses: Any, grad: Any, along: Any) -> Any:
    return of_losses(losses, (grad * along).sum((-2, -1)))


class _InC(NamedTuple):
    """The name under which XLA knows a function of csrc/xla.h, and what it gives: numbers in `_shapes`."""

    target: str
    results: tuple[int, ...]


_LOSSES, _BOTH = _InC("ctcbind_loss", (0,)), _InC("ctcbind_loss", (0, 1))
_PRODUCT = _InC("ctcbind_hessian_product", (1,))


@partial(jax.jit, static_argnames=("blank", "results"))
def _computed(*arrays: Any, blank: int, results: int) -> Any:
    """The losses, and as a second result the gradient."""
    return _on_its_platform(_LOSSES if results == 1 else _BOTH, blank, *arrays)


_operation = operation("ctcbind_loss", _computed, _derivative)


@partial(jax.jit, static_argnames=("blank",))
def _hessian_product(*arrays: Any, blank: int) -> Any:
    return _on_its_platform(_PRODUCT, blank, *arrays)


_product: Callable[..., Any] = linear(
    "ctcbind_hessian_product",
    _hessian_product,
    lambda *arrays, blank: _product(*arrays, blank=blank),  # the Hessian is symmetric
    "ctcbind.jax.ctc_loss has no third derivative",
)


def _on_its_platform(what: _InC, blank: int, *arrays: Any) -> Any:
    """Without Python on the CPU, called back elsewhere."""
    _register()
    shapes = tuple(_shapes(arrays[0])[i] for i in what.results)
    back = partial(callback, _HOST[what], blank, shapes, "broadcast_all")
    return tuple(jax.lax.platform_dependent(*arrays, cpu=partial(_in_c, what, blank), default=back))


def _shapes(logits: Any) -> Any:
    """Of losses and gradient."""
    sharding = explicit_sharding(logits)
    of_losses = NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:-2])) if sharding else None
    return (
        jax.ShapeDtypeStruct(logits.shape[:-2], logits.dtype, sharding=of_losses),
        jax.ShapeDtypeStruct(logits.shape, logits.dtype, sharding=sharding),
    )


def _in_c(
    what: _InC, blank: int, logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any, *along: Any
) -> Any:
    if labels.dtype != jnp.int32 and labels.dtype.itemsize >= 4:
        least = None if jnp.issubdtype(labels.dtype, jnp.unsignedinteger) else -(2**31)
        labels = jnp.clip(labels, least, 2**31 - 1)  # out of range it stays
    frames, ends = (each.astype(jnp.float32) for each in (logit_paddings, label_paddings))
    mapped = jax.sharding.get_abstract_mesh().manual_axes
    call = _call_of_c(what, blank, True) if mapped else _divided_call_of_c(what, blank)
    results = call(logits, frames, labels.astype(jnp.int32), ends, *along)
    return varying_alike(results, varies(logits))


def _call_of_c(what: _InC, blank: int, divided: bool) -> Any:
    def call(logits: Any, *others: Any) -> Any:
        shapes = tuple(_shapes(logits)[i] for i in what.results)
        in_c = jax.ffi.ffi_call(what.target, shapes, vmap_method="broadcast_all")
        return tuple(in_c(logits, *others, blank=np.int32(blank), divided=np.int32(divided)))

    return call


@cache
def _divided_call_of_c(what: _InC, blank: int) -> Any:
    """The call, of which the partitioner knows that samples have nothing to do with each other. What jax.shard_map has
    divided is not divided again."""

    def spread(mesh: Any, arrays: Any) -> tuple[Any, Any]:
        """The shardings of the arguments and of the results: like the logits along the batch, whole along the rest; and
        along a batch that does not come out even, which XLA would fill up with samples that are none."""
        sharding, sizes = arrays[0].sharding, arrays[0].shape
        batch = sharding.spec[:-2] if isinstance(sharding, NamedSharding) else ()
        batch = tuple(None if size % parts_of(mesh, axes) else axes for size, axes in zip(sizes, batch))
        wide, narrow = (NamedSharding(mesh, PartitionSpec(*batch, *whole)) for whole in ((None, None), (None,)))
        losses = NamedSharding(mesh, PartitionSpec(*batch))
        along = (wide,) * (len(arrays) - 4)
        return (wide, narrow, narrow, narrow, *along), tuple((losses, wide)[i] for i in what.results)

    def partition(mesh: Any, arrays: Any, _results: Any) -> Any:
        of_arrays, of_results = spread(mesh, arrays)
        return mesh, _call_of_c(what, blank, any(of_results[0].spec)), of_results, of_arrays

    arguments = ["... t k", "... t", "... n", "... n", *(["... t k"] if what == _PRODUCT else [])]
    divided = custom_partitioning(_call_of_c(what, blank, False))
    divided.def_partition(
        partition,
        infer_sharding_from_operands=lambda mesh, arrays, _results: spread(mesh, arrays)[1],
        sharding_rule=", ".join(arguments) + " -> " + ", ".join(("...", "... t k")[i] for i in what.results),
    )
    return jax.jit(divided)


@cache
def _register() -> None:
    from ..engines.native_xla import loss_function, product_function

    for what, function in ((_LOSSES, loss_function), (_PRODUCT, product_function)):
        jax.ffi.register_ffi_target(what.target, jax.ffi.pycapsule(function()), platform="cpu")


def _losses(blank: int, *arrays: Any) -> tuple[Array]:
    call = Call(blank, *arrays)
    losses: Array = losses_of(call.logits, call.labels, call.frames, call.counts, blank=blank, layout="NTC")
    return (losses.reshape(call.front),)


def _losses_and_grads(blank: int, *arrays: Any) -> tuple[Array, Array]:
    call = Call(blank, *arrays)
    losses, grad, _ = ctc_loss_and_grad(call.logits, call.labels, call.frames, call.counts, blank=blank, layout="NTC")
    return losses.reshape(call.front), call.in_place(grad)


def _products(blank: int, *arrays: Any) -> tuple[Array]:
    *arrays_of_call, direction = arrays
    call = Call(blank, *arrays_of_call)
    along = call.to_the_front(np.asarray(direction).reshape(call.logits.shape))
    product = ctc_hvp(call.logits, call.labels, along, call.frames, call.counts, blank=blank, layout="NTC")
    return (call.in_place(product),)


_HOST: dict[_InC, Callable[..., tuple[Array, ...]]] = {_LOSSES: _losses, _BOTH: _losses_and_grads, _PRODUCT: _products}


with suppress(InvalidInput):  # of CTCBIND_ISA, which each call raises
    _register()  # for programs that were saved, and are loaded before any is traced
