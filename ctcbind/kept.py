"""Plans that the functions of loss.py keep between calls: to open one takes longer than a small batch."""

from __future__ import annotations

import sys
from typing import Any

from .errors import InvalidInput
from .options import blank_index, flag
from .plan import CTCLoss, rest

__all__ = ["forget", "run"]

_OPTIONS = ("engine", "blank", "layout", "reduction", "zero_infinity", "topology")
#: The engine that holds nothing but a workspace in host memory, and "auto", which may pick it.
_ON_HOST = ("auto", "native")
#: At most so many sets of options have plans kept, and so many plans each: one for each thread that calls at once.
_SETS, _THREADS = 8, 8
#: A plan whose workspace is larger than this, in bytes, is not kept.
_LARGE = 16 << 20

#: By options, and whether PyTorch was there to lend its threads when the engine was opened.
_idle: dict[tuple[Any, ...], list[CTCLoss]] = {}


def run(with_grad: bool, arrays: tuple[Any, Any, Any, Any], options: tuple[Any, Any, Any, Any, Any, Any]) -> Any:
    """What a new CTCLoss with these options, or the `loss` of it, would make of the arrays."""
    plans = _alike(options)
    plan = None if plans is None else _pop(plans)
    if plan is None:
        plan = CTCLoss(**dict(zip(_OPTIONS, options, strict=True)))
    else:
        short = plan._both if with_grad else plan._alone
        if short is not None and (result := short(*arrays)) is not None:  # a fast path leaves the plan as it was
            _put_back(plan, plans)
            return result
    try:
        result = plan(*arrays) if with_grad else plan.loss(*arrays)
        held = rest(plan)
    except BaseException:
        plan.close()
        raise
    _put_back(plan, plans if held is not None and held <= _LARGE else None)
    return result


def forget() -> None:
    """Keeps none of the plans."""
    _idle.clear()


def _alike(options: tuple[Any, ...]) -> list[CTCLoss] | None:
    """The plans with these options that nobody uses; None where none are kept."""
    engine, blank, layout, reduction, zero_infinity, topology = options
    if not (type(engine) is type(layout) is type(reduction) is type(topology) is str and engine in _ON_HOST):
        return None
    if type(blank) is not int or type(zero_infinity) is not bool:  # 1, 1.0 and True are equal as keys
        try:
            blank, zero_infinity = blank_index(blank, None), flag("zero_infinity", zero_infinity)
        except InvalidInput:  # CTCLoss will raise it, or whatever it checks before
            return None
    given = engine, blank, layout, reduction, zero_infinity, topology
    key = *given, "torch" in sys.modules
    plans = _idle.get(key)
    if plans is None:
        if len(_idle) >= _SETS:
            forget()
        plans = _idle.setdefault(key, [])
    return plans


def _put_back(plan: CTCLoss, plans: list[CTCLoss] | None) -> None:
    if plans is not None and len(plans) < _THREADS:
        plans.append(plan)
    else:
        plan.close()


def _pop(plans: list[CTCLoss]) -> CTCLoss | None:
    try:
        return plans.pop()
    except IndexError:
        return None
