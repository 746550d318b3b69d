"""The steps before a batch: what they were given as, read as losses and gradient norms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

import numpy as np

from .arrays import as_host
from .errors import InvalidInput, brief
from .kinds import is_masked, without_grad

__all__ = ["history_of"]

#: What a step may hold, in the order of columns without names.
NAMES = ("loss", "grad_norm")

#: What they are called elsewhere, letters alone: names much like the first, and the second as they are.
_ALIKE = {"loss": ("loss", "losses", "trainloss", "trainingloss", "ctcloss"), "grad_norm": ("gradnorm", "gradientnorm")}
_SAME = {"loss": ("nll",), "grad_norm": ("norm", "gnorm")}


def history_of(history: Any) -> tuple[list[float], list[float]]:
    """(losses, gradient norms) of earlier steps, oldest first; raises InvalidInput for what is neither."""
    read: dict[str, list[float]] = {name: [] for name in NAMES}
    steps = [] if history is None else _steps(history)
    seen: tuple[Any, ...] = ()
    for step, entry in enumerate(steps):
        values = _named(entry)
        for name in NAMES:
            if name in values:
                read[name].append(_number(values[name], step, name))
        if not values.keys() & set(NAMES):
            raise InvalidInput(
                f"history[{step}] has neither 'loss' nor 'grad_norm', but {', '.join(map(str, values)) or 'nothing'}",
                rule="history",
            )
        if (names := tuple(values)) != seen:  # as most steps have the same
            _refuse_misnamed(f"history[{step}]", names)
            seen = names
    losses, norms = read["loss"], read["grad_norm"]
    if len(losses) == len(norms) >= 3 and not isinstance(steps[0], (Mapping, np.void)) and _counts(losses):
        raise InvalidInput(
            f"the first numbers of history's steps are {losses[0]:g}, {losses[1]:g}, {losses[2]:g}, ...: they count "
            "steps, where pairs hold loss and gradient norm; pass the losses alone, or dicts with 'loss' and "
            "'grad_norm'",
            rule="history",
        )
    return losses, norms


def _steps(history: Any) -> Any:
    """One entry a step."""
    history = as_host(without_grad(history))
    if is_masked(history):
        raise InvalidInput(
            "history is a masked array; where its mask is on steps without a loss, pass history.compressed()",
            rule="history",
        )
    names = history.keys() if isinstance(history, Mapping) else getattr(history, "columns", None)
    if names is not None:
        return _rows(history, list(names))
    if not isinstance(history, Sequence) and hasattr(history, "__array__"):  # a column of a table
        history = np.asarray(history)
    if (
        not isinstance(history, (Sequence, np.ndarray))
        or isinstance(history, (str, bytes))
        or not getattr(history, "ndim", 1)
    ):
        raise InvalidInput(
            f"history is of type {type(history).__name__}; it must be a sequence of losses, of pairs of loss and "
            "gradient norm, or of dicts with 'loss' and 'grad_norm', or an array with these fields",
            rule="history",
        )
    if isinstance(history, np.ndarray) and history.ndim > 1:
        if history.ndim > 2 or history.shape[1] not in (1, 2):
            turned = ": pass history.T" if history.ndim == 2 and history.shape[0] <= 2 else ""
            raise InvalidInput(
                f"history has shape {history.shape}; it must be (K,), the losses, or (K, 2), losses and gradient "
                f"norms{turned}",
                rule="history",
                value=history.shape,
            )
        return history[:, 0] if history.shape[1] == 1 else history
    return history


def _refuse_misnamed(what: str, names: Collection[Any]) -> None:
    """Raises InvalidInput where a name seems to stand for one of NAMES that is missing; others (a step's number, a
    learning rate) are nobody's business."""
    for meant in NAMES:
        for name in names if meant not in names else ():
            letters = "".join(filter(str.isalpha, str(name).lower()))
            if letters in _SAME[meant] or get_close_matches(letters, _ALIKE[meant], n=1, cutoff=0.75):
                raise InvalidInput(
                    f"{what} has {name!r}, but no {meant!r}: did you mean that? Call it so, or leave it out",
                    rule="history",
                    value=name,
                )


def _rows(table: Any, names: list[Any]) -> list[dict[str, Any]]:
    """The steps of a table that has its columns by name."""
    known = [name for name in NAMES if name in names]
    if not known:
        raise InvalidInput(
            f"history has neither a column 'loss' nor 'grad_norm', but {', '.join(map(str, names)) or 'none'}",
            rule="history",
        )
    _refuse_misnamed("history", names)
    columns = [list(_column(table[name], name)) for name in known]
    if len({len(column) for column in columns}) > 1:
        raise InvalidInput(
            f"history has {len(columns[0])} losses, but {len(columns[1])} gradient norms", rule="history"
        )
    return [dict(zip(known, step)) for step in zip(*columns)]


def _column(values: Any, name: str) -> Iterable[Any]:
    values = as_host(without_grad(values))
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable) or not getattr(values, "ndim", 1):
        raise InvalidInput(f"history has {brief(values)} for its {name}; it must be one number a step", rule="history")
    return values


def _named(entry: Any) -> Mapping[str, Any]:
    """What one step holds, by its name."""
    if isinstance(entry, Mapping):
        return entry
    if isinstance(entry, np.void) and entry.dtype.names:
        return {name: entry[name] for name in entry.dtype.names}
    row = isinstance(entry, (Sequence, np.ndarray)) and not isinstance(entry, (str, bytes))
    if row and getattr(entry, "ndim", 1) == 1 and len(entry) == 2:
        return dict(zip(NAMES, entry))
    return {"loss": entry}


def _number(value: Any, step: int, name: str) -> float:
    try:
        if isinstance(value, (np.complexfloating, str, bytes)):
            raise TypeError
        return float(without_grad(value))
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput(
            f"history[{step}] has {brief(value)} for its {name}; it must be a number", rule="history", value=value
        ) from None


def _counts(numbers: list[float]) -> bool:
    """Whether numbers rise by the same whole number each time."""
    steps = {after - before for before, after in pairwise(numbers)}
    return len(steps) == 1 and (step := steps.pop()) >= 1 and step % 1 == 0 and numbers[0] % 1 == 0
