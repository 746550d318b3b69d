"""Runs every row in a forked process of its own, so that a crash or a hang is an outcome like any other.

`python runner.py ENGINE` (in a fresh interpreter, which has no threads yet) prints one JSON object a row.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bad_inputs import beside
from bad_inputs.refused import GOOD, REFUSED, Fresh, OnDevice, Row
from bad_inputs.values import VALUES, Value

#: What a row may take; an emulator in a device's place takes minutes over long samples.
SECONDS = 300 if os.environ.get("CTCBIND_GPU_DRY") == "1" else 60
WORKERS = max(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
#: In an engine's place: the decoders, the alignment, the lattice and second order.
BESIDE = "beside"
ON_DEVICE = ("cuda", "cudnn")
OPTIONS = ("blank", "layout", "topology", "reduction", "engine", "zero_infinity")

Outcome = dict[str, Any]


def made(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of one call: what a call uses up is made anew."""
    return {name: value.make() if isinstance(value, Fresh) else value for name, value in arguments.items()}


# --- ctcbind ------------------------------------------------------------------------------------------------


def ways(engine: str) -> dict[str, Callable[..., Any]]:
    import ctcbind

    def carried(arguments: dict[str, Any]) -> dict[str, Any]:
        arguments = {"engine": engine, **arguments}
        logits = arguments["logits"]
        plain = type(logits) is np.ndarray and logits.dtype.name in ("float16", "float32", "float64")
        plain = plain and logits.dtype.isnative  # CuPy would make it so
        if engine in ON_DEVICE and plain and logits.nbytes < 2**30:
            import cupy

            arguments["logits"] = cupy.asarray(logits)
        return arguments

    def plan(**arguments: Any) -> Any:
        arguments = carried(arguments)
        options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
        once = getattr(arguments["logits"], "nbytes", 0) > 2**24
        with ctcbind.CTCLoss(**options) as ctc:
            for _ in range(0 if once else 2):  # the third call may go another way than the first
                ctc(**arguments)
            return ctc(**arguments)

    return {
        "ctc_loss": lambda **arguments: ctcbind.ctc_loss(**carried(arguments)),
        "ctc_loss_and_grad": lambda **arguments: ctcbind.ctc_loss_and_grad(**carried(arguments)),
        "CTCLoss": plan,
    }


def refused(engine: str, name: str) -> Outcome:
    """All three ways must raise the row's error, and none may come as far as an engine."""
    import ctcbind
    import ctcbind.plan

    def never(*_: Any) -> None:
        raise AssertionError("an engine was asked for a batch that cannot be right")

    ctcbind.plan.choose = never
    calls = ways(engine) if engine != BESIDE else _beside(name)
    faults, said = [], ""
    for way, call in calls.items():
        try:
            call(**made({**GOOD, **REFUSED[name].changes}))
        except ctcbind.InvalidInput as error:
            said = str(error)
            faults += [f"{way}: {fault}" for fault in wrong_error(REFUSED[name], error)]
        except Exception as error:
            faults.append(f"{way}: {type(error).__name__}: {error}")
        else:
            faults.append(f"{way}: nothing was raised")
    return {"ok": not faults, "did": "raised", "said": said, "faults": faults}


def wrong_error(row: Row, error: Any) -> list[str]:
    faults = []
    if row.words not in str(error):
        faults.append(f"says {str(error)!r}")
    if error.rule not in row.rule.split("|"):
        faults.append(f"rule {error.rule!r}")
    if row.sample is not None and error.sample != row.sample:
        faults.append(f"sample {error.sample}")
    if row.value is not None and error.value != row.value:
        faults.append(f"value {error.value!r}")
    if not isinstance(error, ValueError):
        faults.append("no ValueError")
    return faults


def _beside(name: str) -> dict[str, Callable[..., Any]]:
    return {each: lambda each=each, **given: beside.call(each, given) for each in beside.functions_that_refuse(name)}


def value(engine: str, name: str) -> Outcome:
    """All three ways must give the row's losses, with a gradient as it must be; or refuse, where that is stated."""
    import ctcbind

    if engine == BESIDE:
        row, arguments = VALUES[name], made(VALUES[name].arguments)
        found = ctcbind.lattice_loss_and_grad(**arguments)
        faults = [*wrong_losses(row, _host(found.loss)), *wrong_grad(row, _host(found.grad)), *beside.wrong(name, made)]
        return {"ok": not faults, "did": "value", "said": "", "faults": faults[:5]}
    row, faults, did = VALUES[name], [], "value"
    for way, call in ways(engine).items():
        if way != "ctc_loss" and "grad" not in row.ways:
            continue
        try:
            result = call(**made(row.arguments))
        except ctcbind.EngineUnsupported as error:
            did = "refused"
            if engine not in row.may_refuse:
                faults.append(f"{way}: refused: {error}")
            continue
        except Exception as error:
            faults.append(f"{way}: {type(error).__name__}: {error}")
            continue
        if way == "ctc_loss":
            faults += [f"{way}: {fault}" for fault in wrong_losses(row, _host(result), engine)]
        else:
            faults += [f"{way}: {fault}" for fault in wrong_losses(row, _host(result.loss), engine)]
            faults += [f"{way}: {fault}" for fault in wrong_grad(row, _host(result.grad), engine)]
    return {"ok": not faults, "did": did, "said": "", "faults": faults}


def _host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else np.asarray(array)


def wrong_losses(row: Value, losses: Any, engine: str = "") -> list[str]:
    """The expectation is exact. Engines that compute in float64 are off by what storing the loss in float32 costs,
    and 1e-9 of what their own rounding adds up to; float32 in log space rounds numbers as large as the loss at
    every frame."""
    loose = 1e-3 if engine in ("warpctc", "cudnn") else 2.0**-23 if losses.dtype == np.float32 else 1e-9
    faults = []
    if len(losses) != len(row.losses):
        return [f"{len(losses)} losses"]
    for n, (got, expected) in enumerate(zip(losses.tolist(), row.losses)):
        same = got == expected or (math.isnan(got) and math.isnan(expected))
        if not same and not (math.isfinite(expected) and abs(got - expected) <= loose * max(abs(expected), 1)):
            faults.append(f"loss of sample {n} is {got}, not {expected}")
    return faults[:3]


def wrong_grad(row: Value, grad: Any, engine: str = "") -> list[str]:
    arguments = made(row.arguments)
    if arguments.get("layout") == "NTC":
        grad = grad.transpose(1, 0, 2)
    T, faults = grad.shape[0], []
    grad = grad.astype(np.float64)
    frames = arguments.get("input_lengths")
    frames = [T] * grad.shape[1] if frames is None else [int(each) for each in frames]
    for n, (expected, length) in enumerate(zip(row.losses, frames)):
        mine = grad[:, n]
        if mine[length:].any():
            faults.append(f"gradient of sample {n} is not 0 past its length")
        if math.isnan(expected):
            if not np.isnan(mine[:length]).all():
                faults.append(f"gradient of sample {n} is not nan")
        elif not np.isfinite(mine).all():
            faults.append(f"gradient of sample {n} is not finite")
        elif expected == math.inf:
            if mine.any():
                faults.append(f"gradient of sample {n} is not 0")
        elif mine.size and engine not in row.drifts and np.abs(mine.sum(axis=1)).max() > 1e-3 * mine.shape[1] ** 0.5:
            faults.append(f"gradient of sample {n} does not sum to 0: {np.abs(mine.sum(axis=1)).max()}")
    return faults[:3]


# --- processes ----------------------------------------------------------------------------------------------


def rows(engine: str) -> list[tuple[str, str, Callable[[], Outcome]]]:
    """(kind, name, what to do) of every row that this engine, or BESIDE, is to be given."""
    todo: list[tuple[str, str, Callable[[], Outcome]]] = []
    todo += [
        ("refused", name, lambda name=name: refused(engine, name))
        for name in REFUSED
        if (beside.functions_that_refuse(name) if engine == BESIDE else not _is_at_home(engine, name))
    ]
    todo += [
        ("value", name, lambda name=name: value(engine, name))
        for name, row in VALUES.items()
        if (engine not in row.left_out if engine != BESIDE else "grad" in row.ways) and not _too_large(engine, row)
    ]
    return todo


def _is_at_home(engine: str, name: str) -> bool:
    """Whether what is wrong with the row is that it lies on a device, where this engine computes."""
    return engine in ON_DEVICE and any(isinstance(each, OnDevice) for each in REFUSED[name].changes.values())


def _too_large(engine: str, row: Value) -> bool:
    """More than a device's memory takes, or, where an emulator stands in for the device, more than its time."""
    if engine not in ON_DEVICE:
        return False
    logits = made(row.arguments)["logits"]
    return bool(np.size(logits) > (20_000 if os.environ.get("CTCBIND_GPU_DRY") == "1" else 2**28))


def in_processes(todo: list[tuple[str, str, Callable[[], Outcome]]]) -> Iterator[Outcome]:
    """Each outcome, {kind, name, ok, did, said, faults}, as it comes; `did` may be "crashed" or "hung".

    Up to WORKERS at a time, each in a fork of this process, which must have no threads.
    """
    waiting, running = list(reversed(todo)), {}
    while waiting or running:
        while waiting and len(running) < WORKERS:
            kind, name, work = waiting.pop()
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _child(reader, writer, work)
            os.close(writer)
            running[reader] = (child, kind, name, time.monotonic() + SECONDS, [])
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for reader in list(running):
            child, kind, name, deadline, parts = running[reader]
            late = time.monotonic() > deadline
            part = os.read(reader, 65536) if reader in ready else b""
            if part:
                parts.append(part)
            if not late and (part or reader not in ready):
                continue
            if late:
                os.kill(child, signal.SIGKILL)
            os.close(reader)
            del running[reader]
            _, status = os.waitpid(child, 0)
            yield {"kind": kind, "name": name, **_outcome(status, b"".join(parts), late)}


def _outcome(status: int, written: bytes, late: bool) -> Outcome:
    if late:
        return {"ok": False, "did": "hung", "said": "", "faults": [f"no answer in {SECONDS} s"]}
    if os.WIFSIGNALED(status) or not written:
        how = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"exit {status >> 8}"
        return {"ok": False, "did": "crashed", "said": "", "faults": [how]}
    outcome: Outcome = json.loads(written)
    return outcome


def _child(reader: int, writer: int, work: Callable[[], Outcome]) -> None:
    os.close(reader)
    try:
        outcome = work()
    except BaseException:
        outcome = {"ok": False, "did": "failed", "said": "", "faults": [traceback.format_exc()]}
    with os.fdopen(writer, "w") as pipe:
        pipe.write(json.dumps(outcome))
    os._exit(0)


def main() -> None:
    os.environ.setdefault("CTCBIND_NUM_THREADS", "1")
    import ctcbind

    engine = sys.argv[1]
    if engine in ON_DEVICE:  # nothing that asks for the device: it cannot be used on the far side of a fork then
        import cupy  # noqa: F401
    else:
        ctcbind.engines().get(engine)  # loaded once, before the forks
    np.seterr(all="ignore")
    for outcome in in_processes(rows(engine)):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
