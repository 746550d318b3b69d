"""What a caller adds to the lattice, checked: a bonus for each state at each frame, and label priors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from . import rules
from .arrays import Layout
from .batch import Batch, Topology, make_batch
from .engines.native_samples import Scores
from .errors import InvalidInput, brief
from .options import layout_option, option, real

__all__ = ["check_scores", "check_weight", "lattice_batch"]

#: The most that a path may collect of bonuses, or of priors: the logits come on top.
LARGEST = 1e300


def lattice_batch(
    logits: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *,
    blank: int,
    layout: Layout,
    topology: Topology,
) -> Batch:
    """`make_batch`, with the options checked first as CTCLoss does."""
    layout_option(layout)
    option("topology", topology, ("ctc", "simple"))
    return make_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)


def check_scores(batch: Batch, path_bonus: Any, log_prior: Any, prior_weight: Any) -> Scores:
    """`path_bonus` broadcast to (N, T, S), below +inf where it is read; `log_prior` (C,), finite, times the weight."""
    bonus = prior = None
    weight = check_weight(prior_weight)
    if path_bonus is not None:
        given = rules.floats("path_bonus", path_bonus)
        shape = (batch.N, batch.T, batch.states)
        try:
            bonus = np.broadcast_to(given, shape)
        except ValueError:
            raise InvalidInput(
                f"path_bonus has shape {given.shape}; it must be (N, T, S) = {shape}, with S = 2L + 1 states of the "
                "longest target, or broadcast to it",
                rule="path_bonus",
                value=given.shape,
            ) from None
        _check_bonus(given, bonus, batch)
    if log_prior is not None:
        prior = rules.floats("log_prior", log_prior)
        if prior.shape != (batch.C,):
            raise InvalidInput(
                f"log_prior has shape {prior.shape}; it must be ({batch.C},), one value a class",
                rule="log_prior",
                value=prior.shape,
            )
        if not np.isfinite(prior).all():
            k = int(np.argmin(np.isfinite(prior)))
            value = float(prior[k])
            raise InvalidInput(f"log_prior[{k}] is {value}; it must be finite", rule="log_prior", value=value)
        if prior.size > 1 and prior.min() >= 0 and prior.max() < 2 and abs(prior.sum() - 1) < 1e-3:
            raise InvalidInput(
                f"log_prior lies between {prior.min():.3g} and {prior.max():.3g} and sums to {prior.sum():.3g}: these "
                "are probabilities; pass their logarithms, numpy.log(prior)",
                rule="log_prior",
                value=float(prior.sum()),
            )
        with np.errstate(over="ignore"):
            prior = np.ascontiguousarray(prior * weight)
        _check_sum("log_prior times prior_weight", "log_prior", float(np.abs(prior).max(initial=0)), batch.T)
    return Scores(prior, bonus)


def _check_sum(what: str, rule: str, most: float, T: int) -> None:
    """What a path collects over its frames must be a number."""
    if most > LARGEST / max(T, 1):
        raise InvalidInput(
            f"{what} comes to {most}; over T = {T} frames that leaves the range of float64", rule=rule, value=most
        )


def check_weight(weight: Any) -> float:
    number = real(weight)
    if not -math.inf < number < math.inf:  # which torch.compile can trace
        raise InvalidInput(
            f"prior_weight is {brief(weight)}; it must be a finite number", rule="prior_weight", value=weight
        )
    return number


def _check_bonus(given: npt.NDArray[np.float64], bonus: npt.NDArray[np.float64], batch: Batch) -> None:
    """What is added must be below +inf, and what a path collects a number; `bonus` is `given`, broadcast."""
    top, low = float(given.max(initial=0)), float(given.min(initial=0))
    if low == -np.inf:
        low = float(given.min(initial=0, where=given > -np.inf))
    if top <= LARGEST / max(batch.T, 1) >= -low:  # not where there is NaN
        return
    states = 2 * batch.label_lengths + 1  # past them, and past the input length, nothing is read
    read = np.arange(batch.T)[:, None] < batch.input_lengths[:, None, None]
    read = read & (np.arange(batch.states) < states[:, None, None])
    if (wrong := read & ~(bonus < np.inf)).any():
        n, *_ = place = [int(i) for i in np.argwhere(wrong)[0]]
        where = tuple(i if size > 1 else 0 for i, size in zip(place[3 - given.ndim :], given.shape))
        raise InvalidInput(
            f"path_bonus{''.join(f'[{i}]' for i in where)} is {given[where]}; it must be finite, or -inf to forbid the "
            "state",
            rule="path_bonus",
            sample=n if given.ndim == 3 and len(given) > 1 else None,
            value=float(given[where]),
        )
    most = float(np.abs(bonus[read & (bonus != -np.inf)]).max(initial=0))
    _check_sum("path_bonus", "path_bonus", most, batch.T)
