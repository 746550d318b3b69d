"""The loss as JAX sees it, and its derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from ..loss import ctc_loss as losses_of
from ..loss import ctc_loss_and_grad
from ..second_order import ctc_hvp
from .arguments import prepare
from .axes import callback
from .host import Array, Call
from .in_c import BATCH, InC, along_batch, on_its_platform, result_shapes
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
    scores = along_batch(scores, scores, "b t k")
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


_LOSSES, _BOTH = InC("ctcbind_loss", BATCH, ("b",)), InC("ctcbind_loss", BATCH, ("b", "b t k"))
_PRODUCT = InC("ctcbind_hessian_product", (*BATCH, "b t k"), ("b t k",))


@partial(jax.jit, static_argnames=("blank", "results"))
def _computed(*arrays: Any, blank: int, results: int) -> Any:
    """The losses, and as a second result the gradient."""
    return _called(_LOSSES if results == 1 else _BOTH, blank, *arrays)


_operation = operation("ctcbind_loss", _computed, _derivative)


@partial(jax.jit, static_argnames=("blank",))
def _hessian_product(*arrays: Any, blank: int) -> Any:
    return _called(_PRODUCT, blank, *arrays)


_product: Callable[..., Any] = linear(
    "ctcbind_hessian_product",
    _hessian_product,
    lambda *arrays, blank: _product(*arrays, blank=blank),  # the Hessian is symmetric
    "ctcbind.jax.ctc_loss has no third derivative",
)


def _called(what: InC, blank: int, *arrays: Any) -> tuple[Any, ...]:
    back = partial(callback, _HOST[what], blank, result_shapes(what, arrays), "broadcast_all")
    return on_its_platform(what, (("blank", blank),), back, *arrays)


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


_HOST: dict[InC, Callable[..., tuple[Array, ...]]] = {_LOSSES: _losses, _BOTH: _losses_and_grads, _PRODUCT: _products}
