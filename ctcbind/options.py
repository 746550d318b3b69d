"""Options of a call, one value each. What is wrong raises InvalidInput at once."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from .errors import InvalidInput, brief

__all__ = ["blank_index", "flag", "layout_option", "option", "real"]

#: What the axes of the logits are called elsewhere, and whole layouts.
AXES = dict(zip("TLSWNBCDVFK", "TTTTNNCCCCC"))
LAYOUTS = {"batch_first": "NTC", "batch_major": "NTC", "time_major": "TNC", "time_first": "TNC"}
#: Two names are spelt alike from this ratio of `difflib` on.
SPELT_ALIKE = 0.7


def option(name: str, value: object, allowed: tuple[str, ...], hint: str = "") -> None:
    """One of a few names; of any other it is told which may be meant, or the `hint`."""
    if not isinstance(value, str) or value not in allowed:
        raise _no_option(name, value, allowed, hint or _spelling_meant(value, allowed))


def _no_option(name: str, value: object, allowed: tuple[str, ...], hint: str) -> InvalidInput:
    choices = ", ".join(repr(each) for each in allowed)
    return InvalidInput(f"{name} is {brief(value)}; it must be one of {choices}{hint}", rule=name, value=value)


def _spelling_meant(value: object, allowed: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # a millisecond, of use here alone

    near = get_close_matches(value.lower(), allowed, 1, SPELT_ALIKE) if isinstance(value, str) else []
    return f": did you mean {near[0]!r}?" if near else ""


def layout_option(value: object) -> None:
    """The order of the logits' axes; other names that it goes by are told."""
    known = ("TNC", "NTC")
    if not isinstance(value, str) or value not in known:
        raise _no_option("layout", value, known, _layout_meant(value) if isinstance(value, str) else "")


def _layout_meant(value: str) -> str:
    """What to pass in the place of "BTC", "tnc", "NCT", "batch_first" and the like; "" where nobody knows."""
    axes = LAYOUTS.get(value.lower(), "".join(AXES.get(letter, "?") for letter in value.upper()))
    if axes in ("TNC", "NTC"):
        return f": did you mean {axes!r}?"
    if sorted(axes) != sorted("TNC"):
        return ""
    return f": transpose the logits by {tuple(map(axes.index, 'TNC'))} and pass 'TNC'"


def flag(name: str, value: object) -> bool:
    """A switch: a bool, or 0 or 1. Nothing else, for a string such as "no" would count as True."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, (int, np.integer)) and value in (0, 1)):
        return bool(value)
    raise InvalidInput(
        f"{name} is {brief(value)} ({type(value).__name__}); it must be True or False", rule=name, value=value
    )


def real(value: Any) -> float:
    """One real number as a float, infinite where it is past the range of a double; NaN for anything else."""
    if isinstance(value, (bool, np.bool_, np.complexfloating)) or not isinstance(value, (int, float, np.number)):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except TypeError:  # a timedelta64, which NumPy counts as a number
        return math.nan


def blank_index(blank: Any, C: int | None) -> int:
    """The blank as a class of 0..C-1; -1 means the last. C None: how many there are is not known."""
    if C is not None and type(blank) is int and 0 <= blank < C:
        return blank
    try:
        if isinstance(blank, (bool, np.bool_)):
            raise TypeError
        index = operator.index(blank)
    except TypeError:
        raise InvalidInput(
            f"blank is {brief(blank)} ({type(blank).__name__}); it must be an int", rule="blank", value=blank
        ) from None
    if index < -1:
        raise InvalidInput(
            f"blank is {brief(index)}; it must be a class, or -1 for the last", rule="blank", value=blank
        )
    if C is None:
        return index
    if index == -1:
        index = C - 1
    if not 0 <= index < C:
        raise InvalidInput(
            f"blank is {brief(index)}, but there are {C} classes (0..{C - 1}, or -1 for the last)",
            rule="blank",
            value=blank,
        )
    return index
