"""The CTC loss for JAX, with the signature of `optax.ctc_loss`.

The arithmetic is ctcbind's, called back from the compiled program: `jit`, `grad`, `vmap` and a second `grad`
work, on arrays in host memory. Needs JAX 0.4.34 or later.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from .loss import ctc_loss as losses_of
from .loss import ctc_loss_and_grad
from .second_order import ctc_hvp

__all__ = ["ctc_loss"]

Floats = npt.NDArray[Any]


def ctc_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    blank_id: int = 0,
    log_epsilon: float | None = None,
) -> Any:
    """The CTC loss of each sample, (B,) in nats; differentiable twice with respect to the logits.

    | argument | shape and dtype |
    |---|---|
    | logits | (B, T, K), before any softmax; float32, float64, float16 or bfloat16 |
    | logit_paddings | (B, T), 1 for a padded frame, 0 for one that counts; padding stands at the end |
    | labels | (B, N) integers |
    | label_paddings | (B, N), as logit_paddings |

    A sample without a path has loss inf and gradient 0 (optax: about 1e5 a step). `log_epsilon` is accepted for
    optax's sake and has no effect: nothing needs it. Half precision is computed in float32. Labels that cannot be
    right raise from within the callback, as an error of JAX that quotes `InvalidInput`.

    Source: optax.ctc_loss of optax 0.2.4; Graves et al., ICML 2006, equation 16.

    >>> import jax, jax.numpy as jnp
    >>> from ctcbind.jax import ctc_loss
    >>> logits, labels = jnp.zeros((5, 100, 10)), jnp.tile(jnp.arange(1, 5), (5, 1))
    >>> loss = jax.jit(ctc_loss)(logits, jnp.zeros((5, 100)), labels, jnp.zeros((5, 4)))
    >>> [round(float(each), 3) for each in loss]
    [203.984, 203.984, 203.984, 203.984, 203.984]
    """
    logits = jnp.asarray(logits)
    wide = logits if logits.dtype in (jnp.float32, jnp.float64) else logits.astype(jnp.float32)
    frames = logits.shape[-2] - jnp.sum(jnp.asarray(logit_paddings), axis=-1).astype(jnp.int32)
    counts = jnp.asarray(labels).shape[-1] - jnp.sum(jnp.asarray(label_paddings), axis=-1).astype(jnp.int32)
    return _loss(int(blank_id), wide, jnp.asarray(labels).astype(jnp.int32), frames, counts)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss(blank: int, logits: Any, labels: Any, frames: Any, counts: Any) -> Any:
    shape = jax.ShapeDtypeStruct(logits.shape[:1], logits.dtype)
    return _callback(partial(_losses, blank), shape, logits, labels, frames, counts)


def _loss_forward(blank: int, logits: Any, labels: Any, frames: Any, counts: Any) -> Any:
    losses, grad = _loss_and_grad(blank, logits, labels, frames, counts)
    return losses, grad


def _loss_backward(blank: int, grad: Any, of_losses: Any) -> Any:
    return grad * of_losses[:, None, None], None, None, None


_loss.defvjp(_loss_forward, _loss_backward)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _loss_and_grad(blank: int, logits: Any, labels: Any, frames: Any, counts: Any) -> Any:
    shapes = jax.ShapeDtypeStruct(logits.shape[:1], logits.dtype), jax.ShapeDtypeStruct(logits.shape, logits.dtype)
    return _callback(partial(_losses_and_grads, blank), shapes, logits, labels, frames, counts)


def _both_forward(blank: int, logits: Any, labels: Any, frames: Any, counts: Any) -> Any:
    both = _loss_and_grad(blank, logits, labels, frames, counts)
    return both, (both[1], logits, labels, frames, counts)


def _both_backward(blank: int, saved: Any, of_both: Any) -> Any:
    """Of the losses: the gradient; of the gradient: the Hessian times what comes back."""
    grad, logits, labels, frames, counts = saved
    of_losses, of_grad = of_both
    shape = jax.ShapeDtypeStruct(logits.shape, logits.dtype)
    second = _callback(partial(_products, blank), shape, logits, labels, frames, counts, of_grad)
    return grad * of_losses[:, None, None] + second, None, None, None


_loss_and_grad.defvjp(_both_forward, _both_backward)


def _callback(function: Any, shapes: Any, *arrays: Any) -> Any:
    return jax.pure_callback(function, shapes, *arrays, vmap_method="broadcast_all")


def _as_one_batch(*arrays: Any) -> tuple[tuple[int, ...], list[npt.NDArray[Any]]]:
    """Axes that vmap has put in front join the batch."""
    host = [np.asarray(each) for each in arrays]
    front = host[0].shape[:-2]
    kept = (2, 1, 0, 0, 2)
    return front, [each.reshape(-1, *each.shape[each.ndim - keep :]) for each, keep in zip(host, kept)]


def _losses(blank: int, *arrays: Any) -> Floats:
    front, (logits, labels, frames, counts) = _as_one_batch(*arrays)
    losses: Floats = losses_of(logits, labels, frames, counts, blank=blank, layout="NTC")
    return losses.reshape(front)


def _losses_and_grads(blank: int, *arrays: Any) -> tuple[Floats, Floats]:
    front, (logits, labels, frames, counts) = _as_one_batch(*arrays)
    losses, grad, _ = ctc_loss_and_grad(logits, labels, frames, counts, blank=blank, layout="NTC")
    return losses.reshape(front), grad.reshape(np.shape(arrays[0]))


def _products(blank: int, *arrays: Any) -> Floats:
    _, (logits, labels, frames, counts, direction) = _as_one_batch(*arrays)
    product = ctc_hvp(logits, labels, direction, frames, counts, blank=blank, layout="NTC")
    return np.asarray(product).reshape(np.shape(arrays[0]))
