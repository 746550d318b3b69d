"""The loss with scores added to the lattice, differentiable in logits, bonuses and priors."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..batch import Topology
from ..engines.native_xla import TOPOLOGIES
from ..errors import InvalidInput
from ..lattice import losses_alone, losses_and_shares
from ..options import option
from ..scores import check_scores, check_weight, lattice_batch
from .arguments import Padded, as_jax, numeric, prepare, refuse_traced
from .axes import callback
from .host import Array, Call
from .in_c import BATCH, InC, along_batch, on_its_platform, result_shapes
from .operations import of_losses, operation, refused

__all__ = ["lattice_loss"]


def lattice_loss(
    logits: Any,
    logit_paddings: Any,
    labels: Any,
    label_paddings: Any,
    blank_id: int = 0,
    *,
    path_bonus: Any = None,
    log_prior: Any = None,
    prior_weight: float = 1.0,
    topology: Topology = "ctc",
) -> jax.Array:
    """-ln of the sum over all paths with scores added, (B,); differentiable in logits, `path_bonus` and `log_prior`.

    | argument | shape and dtype |
    |---|---|
    | logits, logit_paddings, labels, label_paddings, blank_id | as for `ctcbind.jax.ctc_loss` |
    | path_bonus | (B, T, S), S = 2N + 1 states of N labels, or what broadcasts to it: added to the score of state s at frame t; -inf forbids it |
    | log_prior | (K,): prior_weight * log_prior[k] is taken from the score of every state of class k |
    | prior_weight, topology | fixed when the function is compiled |
    | returns | (B,), float32, or float64 for float64 logits |

    As `ctcbind.lattice_loss_and_grad`, for `jax.grad`: delay penalties, partial alignments, label priors. Both modes of
    derivatives work; there is no second derivative. Under `vmap`, sharded, and on devices that are no CPUs it does as
    `ctcbind.jax.ctc_loss`; what is added may differ between the mapped batches.

    Raises InvalidInput as `ctcbind.jax.ctc_loss` does, and where what is added is refused.

    Source: Graves et al., ICML 2006; for priors Huang et al., arXiv:2406.02560.

    >>> import jax, jax.numpy as jnp
    >>> from ctcbind.jax import lattice_loss
    >>> logits, labels = jnp.zeros((2, 50, 5)), jnp.array([[1, 2], [3, 3]])
    >>> prior = jnp.log(jnp.array([0.6, 0.1, 0.1, 0.1, 0.1]))
    >>> def loss(x):
    ...     return lattice_loss(x, jnp.zeros((2, 50)), labels, jnp.zeros((2, 2)), log_prior=prior).mean()
    >>> jax.jit(jax.grad(loss))(logits).shape
    (2, 50, 5)
    """  # noqa: E501
    x, batch, blank = prepare(logits, logit_paddings, labels, label_paddings, blank_id)
    option("topology", topology, ("ctc", "simple"))
    refuse_traced("prior_weight", prior_weight)
    options = _Options(blank, topology, check_weight(prior_weight))
    given = x, batch, _Added(_bonus_of(path_bonus, x, batch), _prior_of(log_prior, x))
    arrays, structure = jax.tree.flatten(given)
    if not any(isinstance(each, jax.core.Tracer) for each in arrays):
        _OnHost(options, *given)  # refuses what is wrong in its own words
    arrays = [along_batch(each, x, dims) for each, dims in zip(arrays, _arguments(given[2]))]
    (losses,) = _operation(*arrays, wanted=_LOSSES, structure=structure, options=options)
    return losses


class _Options(NamedTuple):
    blank: int
    topology: Topology
    weight: float


class _Added(NamedTuple):
    """What is differentiated beside the logits, None where it was not given."""

    bonus: Any
    prior: Any


def _bonus_of(value: Any, x: Any, batch: Padded) -> Any:
    """In all of its shape."""
    bonus = _as_floats("path_bonus", value, x)
    shape = (*x.shape[:2], 2 * batch.labels.shape[1] + 1)
    try:
        return None if bonus is None else jnp.broadcast_to(bonus, shape)
    except ValueError:
        raise InvalidInput(
            f"path_bonus has shape {bonus.shape}; it must be (B, T, S) = {shape}, with S = 2N + 1 states of N labels, "
            "or broadcast to it",
            rule="path_bonus",
            value=bonus.shape,
        ) from None


def _prior_of(value: Any, x: Any) -> Any:
    prior = _as_floats("log_prior", value, x)
    if prior is not None and prior.shape != x.shape[2:]:
        raise InvalidInput(
            f"log_prior has shape {prior.shape}; it must be {x.shape[2:]}, one value a class",
            rule="log_prior",
            value=prior.shape,
        )
    return prior


def _as_floats(name: str, value: Any, x: Any) -> Any:
    """float32 or float64."""
    if value is None:
        return None
    scores = as_jax(name, value, rule=name)
    if not numeric(scores.dtype) or scores.dtype == bool:
        raise InvalidInput(f"{name} cannot be read as numbers: it holds {scores.dtype}", rule=name)
    if not jnp.issubdtype(scores.dtype, jnp.floating):
        return scores.astype(x.dtype)
    return scores if scores.dtype.itemsize >= 4 else scores.astype(jnp.float32)


# --- what JAX sees --------------------------------------------------------------------------------------------

#: What is computed: so many results, each with what the ones before it have.
_LOSSES, _GRADIENT, _POSTERIORS = 1, 3, 4


def _arguments(added: _Added) -> tuple[str, ...]:
    return *BATCH, *(dims for dims, each in zip(("b t s", "k"), added) if each is not None)


def _derivative(arrays: Any, tangents: Any, *, wanted: int, structure: Any, options: _Options) -> Any:
    """Loss and gradients come from one call."""
    of_x, _, (of_bonus, of_prior) = jax.tree.unflatten(structure, tangents)
    needed = max(wanted, _GRADIENT if of_bonus is None else _POSTERIORS)
    found = _operation(*arrays, wanted=needed, structure=structure, options=options)
    losses, grad, counts, *gamma = found
    found = found[:wanted]
    slopes = []
    if of_x is not None:
        slopes.append((grad * of_x).sum((-2, -1)))
    if of_bonus is not None:
        slopes.append(-(gamma[0] * of_bonus.astype(grad.dtype)).sum((-2, -1)))
    if of_prior is not None:
        slopes.append((counts * (options.weight * of_prior.astype(grad.dtype))[..., None, :]).sum(-1))
    if not slopes:  # in the paddings there is no derivative
        return found, [None] * len(found)
    slope = of_losses(losses, sum(slopes[1:], slopes[0]))
    words = "ctcbind.jax.lattice_loss has no second derivative; ctcbind.jax.ctc_loss has one"
    return found, [slope, *(refused(slope.sum(), each, words) for each in found[1:])]


@partial(jax.jit, static_argnames=("wanted", "structure", "options"))
def _computed(*arrays: Any, wanted: int, structure: Any, options: _Options) -> Any:
    """(losses (B,), the gradient of their sum, frames in each class (B, K), posteriors (B, T, S)), as many of them as
    are wanted; the last of a bonus alone."""
    _, _, added = jax.tree.unflatten(structure, arrays)
    what = InC("ctcbind_lattice", _arguments(added), ("b", "b t k", "b k", "b t s")[:wanted])

    def called_back(*arrays: Any) -> Any:
        shapes = result_shapes(what, arrays)
        return callback(_on_host, (structure, options, shapes), shapes, "broadcast_all", *arrays)

    in_c = ("blank", options.blank), ("topology", TOPOLOGIES[options.topology]), ("weight", options.weight)
    return on_its_platform(what, in_c, called_back, *arrays)


_operation = operation("ctcbind_lattice_loss", _computed, _derivative)


# --- on the host ----------------------------------------------------------------------------------------------


def _on_host(how: Any, *arrays: Any) -> tuple[Array, ...]:
    """Each of the mapped batches in a call of its own: what is added may differ."""
    structure, options, shapes = how
    results = tuple(np.empty(each.shape, each.dtype) for each in shapes)
    own = [np.asarray(each) for each in arrays]
    for at in np.ndindex(own[0].shape[:-3]):
        of_one = _OnHost(options, *jax.tree.unflatten(structure, [each[at] for each in own]))
        for result, computed in zip(results, of_one.computed(len(results))):
            result[at] = computed
    return results


class _OnHost:
    """The batch and its scores as the lattice takes them, checked."""

    def __init__(self, options: _Options, x: Any, batch: Padded, added: _Added) -> None:
        self.call = call = Call(options.blank, x, *batch)
        self.batch = lattice_batch(
            call.logits, call.labels, call.frames, call.counts, blank=options.blank, layout="NTC",
            topology=options.topology,
        )  # fmt: skip
        bonus, prior = (None if each is None else np.asarray(each) for each in added)
        self.states = 0
        if bonus is not None:
            self.states = bonus.shape[2]
            bonus = call.to_the_front(bonus)[:, :, : self.batch.states]
        self.scores = check_scores(self.batch, bonus, prior, options.weight)

    def computed(self, wanted: int) -> tuple[Array, ...]:
        dtype = self.batch.logits.loss_dtype
        if wanted == _LOSSES:
            return (losses_alone(self.batch, self.scores).astype(dtype),)
        grad, grad_tnc = self.batch.empty_grad()
        losses, counts, gamma = losses_and_shares(self.batch, self.scores, grad_tnc, with_gamma=wanted == _POSTERIORS)
        results = losses.astype(dtype), self.call.in_place(grad), counts.astype(dtype)
        if gamma is None:
            return results
        past = self.states - gamma.shape[2]  # the longest label may be shorter than its row
        return *results, self.call.in_place(np.pad(gamma.astype(dtype), ((0, 0), (0, 0), (0, past))))
