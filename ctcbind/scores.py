"""What a caller adds to the lattice, checked: a bonus for each state at each frame, and label priors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from . import rules
from .arrays import Layout, as_host
from .batch import Batch, Topology, make_batch
from .engines.native_samples import Scores
from .errors import InvalidInput, brief
from .kinds import is_masked

__all__ = ["check_scores", "lattice_batch"]

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
    rules.option("layout", layout, ("TNC", "NTC"))
    rules.option("topology", topology, ("ctc", "simple"))
    return make_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)


def check_scores(batch: Batch, path_bonus: Any, log_prior: Any, prior_weight: Any) -> Scores:
    """`path_bonus` broadcast to (N, T, S), below +inf; `log_prior` (C,), finite, times the weight."""
    bonus = prior = None
    weight = check_weight(prior_weight)
    if path_bonus is not None:
        bonus = _floats("path_bonus", path_bonus)
        _check_bonus(bonus, batch.T)
        shape = (batch.N, batch.T, batch.states)
        try:
            bonus = np.broadcast_to(bonus, shape)
        except ValueError:
            raise InvalidInput(
                f"path_bonus has shape {bonus.shape}; it must be (N, T, S) = {shape}, with S = 2L + 1 states of the "
                "longest target, or broadcast to it",
                rule="path_bonus",
                value=bonus.shape,
            ) from None
    if log_prior is not None:
        prior = _floats("log_prior", log_prior)
        if prior.shape != (batch.C,):
            raise InvalidInput(
                f"log_prior has shape {prior.shape}; it must be ({batch.C},), one value a class",
                rule="log_prior",
                value=prior.shape,
            )
        if not np.isfinite(prior).all():
            k = int(np.argmin(np.isfinite(prior)))
            raise InvalidInput(f"log_prior[{k}] is {prior[k]}; it must be finite", rule="log_prior", value=prior[k])
        if prior.size > 1 and prior.min() >= 0 and abs(prior.sum() - 1) < 1e-3:
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
    number = rules.real(weight)
    if not math.isfinite(number):
        raise InvalidInput(
            f"prior_weight is {brief(weight)}; it must be a finite number", rule="prior_weight", value=weight
        )
    return number


def _floats(name: str, value: Any) -> npt.NDArray[np.float64]:
    try:
        array = np.asarray(given := as_host(value))
        if is_masked(given):
            raise TypeError("it is a masked array; fill it, with 0 where nothing is to be added")
        if array.dtype.kind not in "fiuV":
            raise TypeError(f"it holds {array.dtype}")
        # contiguous, so that the strides are whole numbers of elements
        with np.errstate(over="ignore"):  # of more digits than float64: infinite, which is looked for next
            return np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{name} cannot be read as numbers: {error}", rule=name) from error


def _check_bonus(bonus: npt.NDArray[np.float64], T: int) -> None:
    top = float(bonus.max(initial=0))
    if not top < np.inf:  # or NaN
        wrong = np.isnan(bonus) | (bonus == np.inf)
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = "".join(f"[{i}]" for i in where)
        raise InvalidInput(
            f"path_bonus{place} is {bonus[where]}; it must be finite, or -inf to forbid the state",
            rule="path_bonus",
            sample=where[0] if bonus.ndim == 3 and bonus.shape[0] > 1 else None,
            value=float(bonus[where]),
        )
    low = float(bonus.min(initial=0))
    if low == -np.inf:
        low = float(bonus.min(initial=0, where=bonus > -np.inf))
    _check_sum("path_bonus", "path_bonus", max(top, -low), T)
