"""`python -m benchmarks growth`: how the cost grows with T, L, C and N, as exponents of measured times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import worker
from .cases import Case
from .cpu import Progress
from .tables import number, text

__all__ = ["BASE", "SWEEPS", "Growth", "fit", "markdown", "measure", "render"]

#: What stays while one of the four is swept, and what it goes through: twice as much each time.
BASE = Case("base", 400, 40, 64, 8)
SHORT_BASE = Case("base", 40, 4, 8, 2)
SWEEPS = {
    "T": (100, 200, 400, 800, 1600, 3200),
    "L": (5, 10, 20, 40, 80, 160),
    "C": (16, 32, 64, 128, 256, 512, 1024, 2048),
    "N": (1, 2, 4, 8, 16, 32, 64),
}
SHORT = {"T": (20, 40, 80), "L": (2, 4, 8), "C": (8, 16, 32), "N": (1, 2, 4)}


@dataclass(frozen=True)
class Growth:
    """Of one peer, in one variable: time ~ variable ** exponent, over the whole sweep and over its upper half.

    On one thread the time is that of the processor, which other programs do not lengthen; on more it is that of the
    clock, as threads that spin while they wait use processors without working.
    """

    peer: str
    variable: str
    with_grad: bool
    values: tuple[int, ...]
    milliseconds: tuple[float, ...]
    exponent: float
    upper: float


def fit(values: Sequence[float], times: Sequence[float]) -> float:
    """The slope of the straight line through ln values and ln times, by least squares."""
    return float(np.polyfit(np.log(values), np.log(times), 1)[0])


def measure(
    peers: Sequence[str],
    with_grads: Sequence[bool],
    threads: int = 1,
    quick: bool = False,
    process: Callable[[int], Any] = worker.Process,
) -> tuple[list[Growth], dict[str, str]]:
    """Every sweep for every peer that is there; each time is the median of three bursts, one a round."""
    sweeps, base = (SHORT, SHORT_BASE) if quick else (SWEEPS, BASE)
    found = []
    with worker.Homes(peers, threads, process) as homes:
        progress = Progress(len(homes.versions) * len(with_grads) * len(sweeps))
        for name in homes.versions:
            for with_grad in with_grads:
                for variable, values in sweeps.items():
                    progress.step(f"{name}: {variable}, {'gradient' if with_grad else 'loss only'}")
                    cases = [_changed(base, variable, value) for value in values]
                    times = _sweep(homes, name, cases, with_grad, threads, 0.005 if quick else 0.05)
                    half = len(values) // 2
                    exponents = fit(values, times), fit(values[half:], times[half:])
                    found.append(Growth(name, variable, with_grad, values, times, *exponents))
        progress.end()
        return found, homes.versions


def _changed(base: Case, variable: str, value: int) -> Case:
    sizes = {"T": base.T, "L": base.L, "C": base.C, "N": base.N, variable: value}
    return Case(f"{variable}={value}", sizes["T"], sizes["L"], sizes["C"], sizes["N"])


def _sweep(
    homes: worker.Homes, name: str, cases: Sequence[Case], with_grad: bool, threads: int, seconds: float
) -> tuple[float, ...]:
    rounds = [[homes.run(worker.growth, name, case, with_grad, seconds) for case in cases] for _ in range(3)]

    def milliseconds(burst: worker.Burst) -> float:
        each = burst.processor / len(burst.seconds) if threads == 1 else statistics.median(burst.seconds)
        return 1e3 * each

    return tuple(statistics.median(milliseconds(burst) for burst in bursts) for bursts in zip(*rounds))


def _rows(found: Sequence[Growth]) -> list[list[str]]:
    rows = []
    for each in found:
        first, last = number(each.milliseconds[0]), number(each.milliseconds[-1])
        rows.append(
            [
                each.peer,
                "loss and gradient" if each.with_grad else "loss only",
                f"{each.variable} {each.values[0]}..{each.values[-1]}",
                f"{each.exponent:.2f}",
                f"{each.upper:.2f}",
                f"{first} .. {last}",
            ]
        )
    return rows


_HEAD = ["engine", "mode", "swept", "exponent", "upper half", "ms"]


def render(found: Sequence[Growth], threads: int, quick: bool = False) -> str:
    """An aligned table."""
    at = SHORT_BASE if quick else BASE
    base = f"T={at.T}, L={at.L}, C={at.C}, N={at.N}"
    title = f"time ~ variable ** exponent, the others at {base}, {threads} thread{'s' * (threads > 1)}"
    return "\n".join([title, "", text(_HEAD, _rows(found), left=3)])


def markdown(found: Sequence[Growth]) -> str:
    """The same for a README."""
    lines = ["| " + " | ".join(row) + " |" for row in (_HEAD, ["---"] * len(_HEAD), *_rows(found))]
    return "\n".join(lines)
