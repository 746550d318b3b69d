"""The engines, and the rule by which "auto" picks one.

The rule of "auto": the first of AUTO_ORDER that is available and does not refuse the batch. (An engine of the host
refuses logits on a device.) For NumPy arrays that is `native`; for CuPy arrays `cuda`, which is faster than `cudnn`
and nearer to the right gradient (docs/gpu), and `cudnn` for what only that has: probabilities in place of logits, an
algorithm that is not deterministic.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module

from ..batch import Batch
from ..errors import CtcbindError, EngineUnavailable, EngineUnsupported
from ..options import option
from .contract import Contract, Copy, Engine, EngineInfo, Library, Session, Shortened, Shorter

__all__ = [
    "AUTO_ORDER",
    "NAMES",
    "Contract",
    "Copy",
    "Engine",
    "EngineInfo",
    "Library",
    "Session",
    "Shortened",
    "Shorter",
    "choose",
    "engines",
    "get",
    "labels_stay",
    "obstacle",
    "refusal",
]

NAMES = ("native", "cuda", "warpctc", "cudnn", "reference")
AUTO_ORDER = ("native", "cuda", "cudnn", "reference")

log = logging.getLogger("ctcbind")


@cache
def get(name: str) -> Engine:
    """The engine of that name; nothing is loaded yet."""
    option("engine", name, ("auto", *NAMES))
    engine: Engine = import_module(f".{name}", __name__).ENGINE
    return engine


def labels_stay(name: str) -> bool:
    """Whether an engine, or one that "auto" may take, reads labels where they are, on the device."""
    return name == "auto" or "device" in get(name).contract.labels


def engines() -> dict[str, EngineInfo]:
    """Every engine: whether it is available here, in which version, from where, and its contract.

    Loads each library that can be found (one that was loaded stays loaded). Raises nothing: the reason why an
    engine is absent, with the command that would bring it, is in `EngineInfo.reason`.

    >>> import ctcbind
    >>> ctcbind.engines()["native"].available
    True
    """
    return {name: _info(get(name)) for name in NAMES}


def _info(engine: Engine) -> EngineInfo:
    try:
        library = engine.library()
    except (CtcbindError, OSError) as error:  # a library that is there but broken is no reason to tell nothing
        return EngineInfo(engine.name, False, str(error), None, None, None, engine.contract)
    return EngineInfo(engine.name, True, None, library.version, library.path, library.found, engine.contract)


def choose(name: str, batch: Batch) -> Engine:
    """The engine that will run this batch.

    Raises EngineUnavailable where the named engine's library cannot be had, EngineUnsupported where it refuses
    the batch or, for "auto", where every engine does.
    """
    if name != "auto":
        engine = get(name)
        if (reason := refusal(engine, batch)) is not None:
            raise EngineUnsupported(f"engine {name!r} cannot take this batch: {reason}")
        _load(name)
        return engine
    reasons: list[str] = []
    for candidate in AUTO_ORDER:
        if (reason := obstacle(candidate, batch)) is None:
            if reasons:
                log.debug("engine %s chosen; passed over: %s", candidate, reasons)
            return get(candidate)
        reasons.append(f"{candidate}: {reason}")
    lines = (reason.replace("\n", "\n    ") for reason in reasons)  # some list where a library was looked for
    raise EngineUnsupported("no engine can take this batch:\n  " + "\n  ".join(lines))


def obstacle(name: str, batch: Batch) -> str | None:
    """The first reason why an engine cannot take this batch here; None if it can. Loads its library."""
    if (reason := refusal(get(name), batch)) is not None:
        return reason
    try:
        _load(name)
    except EngineUnavailable as error:
        return str(error)
    return None


@cache
def _load(name: str) -> None:
    """Loads an engine's library. Success is remembered; a failure is not, and is tried again at the next call."""
    get(name).library()


def refusal(engine: Engine, batch: Batch) -> str | None:
    """Why an engine cannot compute this batch, wherever its library is; None if it can."""
    contract = engine.contract
    on_host = batch.logits.device == "cpu"
    if not on_host and contract.arrays == "host":
        return f"the logits are on {batch.logits.device} and it computes on the host: copy them with cupy.asnumpy"
    if batch.overwrite and not contract.overwrites:
        return "it cannot write the gradient over the logits (overwrite_logits)"
    if batch.probabilities and "probabilities" not in contract.takes:
        return "it takes logits, not probabilities: pass their logarithms as logits, without probabilities=True"
    if not batch.deterministic and not contract.other_algorithm:
        return "it has no algorithm but its deterministic one (deterministic=False)"
    if batch.topology not in contract.topologies:
        return f"topology {batch.topology!r} is not among its own ({', '.join(contract.topologies)})"
    if batch.on_device:
        if contract.labels == "host":
            return "the labels are on the device and it reads them on the host: copy them with cupy.asnumpy"
        return engine.refuses(batch)
    if contract.max_label_length is not None and batch.N:
        longest = int(batch.label_lengths.argmax())
        if batch.label_lengths[longest] > contract.max_label_length:
            return (
                f"sample {longest} has {batch.label_lengths[longest]} labels, and its limit is "
                f"{contract.max_label_length}"
            )
    return engine.refuses(batch)
