"""What a run of the suite found, as data: written to JSON, and made into tables and a picture from there."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import ctcbind
from ctcbind.text import plain

from .cases import Case
from .peers import OURS
from .verify import Check

__all__ = ["Memory", "Report", "Spread", "Timing", "load", "machine", "spread"]


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and least of some measurements, and how many there were."""

    median: float
    lower: float
    upper: float
    least: float
    count: int


@dataclass(frozen=True)
class Timing:
    """One peer on one case. Times are milliseconds: of calls in a row, of calls after a rest, and of the processor,
    all threads together, for a call. The ratios say how many times ctcbind's they are, round by round (None where
    ctcbind was not asked). `cores` are processor seconds a second; `roofline` is the share of the time that moving the
    needed bytes takes at the machine's copy rate."""

    case: str
    threads: int
    with_grad: bool
    peer: str
    check: Check
    hot: Spread
    ratio: Spread | None
    cold: Spread
    cold_ratio: Spread | None
    processor: Spread
    processor_ratio: Spread | None
    cores: float
    roofline: float


@dataclass(frozen=True)
class Memory:
    """Peak bytes of a peer beyond inputs and results."""

    case: str
    threads: int
    peer: str
    extra: int


@dataclass
class Report:
    machine: dict[str, Any]
    cases: list[Case]
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    copy_rates: list[tuple[str, int, float]] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    @property
    def busy(self) -> float | None:
        """The share of a processor that ctcbind had while it ran on one thread; None where it did not."""
        shares = [t.cores for t in self.timings if t.threads == 1 and t.peer == OURS]
        return min(sum(shares) / len(shares), 1.0) if shares else None

    @property
    def same(self) -> bool:
        """Whether every answer was the reference's, within its bounds."""
        return all(timing.check.same for timing in self.timings)

    def write(self, path: str | Path) -> None:
        text = json.dumps(plain({**asdict(self), "same": self.same})).replace('{"case"', '\n{"case"')  # a line each
        Path(path).write_text(text + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | Path) -> Report:
        """What `write` wrote. Raises OSError, or ValueError for a file that it did not write."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        try:
            return Report(
                data["machine"],
                [Case(**each) for each in data["cases"]],
                data["versions"],
                data["absent"],
                [(case, threads, rate) for case, threads, rate in data["copy_rates"]],
                [_timing(each) for each in data["timings"]],
                [Memory(**each) for each in data["memory"]],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is no report of this suite: {error}") from error


def _timing(data: dict[str, Any]) -> Timing:
    spreads = {
        name: data[name] and Spread(**data[name])
        for name in ("hot", "ratio", "cold", "cold_ratio", "processor", "processor_ratio")
    }
    numbers = {name: _number(value) for name, value in data["check"].items()}
    return Timing(**{**data, **spreads, "check": Check(**numbers)})


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, str) else value


def spread(values: Sequence[float]) -> Spread:
    lower, upper = np.percentile(values, (25, 75)).tolist()
    return Spread(statistics.median(values), lower, upper, min(values), len(values))


def machine() -> dict[str, Any]:
    """What the times depend on."""
    found = ctcbind.engines()["native"].found
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "ctcbind": f"{ctcbind.__version__} ({found})",
        "load": load(),
    }


def load() -> float | None:
    """How many programs ran or wanted to in the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"model name\s*:\s*(.+)", info)
    return name[1] if name else platform.machine()
