"""How many processors this process may keep busy: those that it may run on, and no more than its container's limit."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["processors"]

#: Where Linux says which control groups (cgroups) this process is in, and what each may use.
_OWN, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def processors() -> int:
    """At least 1. A part of a processor counts as a whole one."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return math.ceil(min(available, _limit()))


@cache
def _limit() -> float:
    """The least of the limits of this process's control groups, in processors; inf where there is none.

    `docker run --cpus` and Kubernetes set them. With more threads than that all stand still for the rest of a period
    (0.1 s) once they have together used up what they may.
    """
    return min(_limits(), default=math.inf)


def _limits() -> Iterator[float]:
    """Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max), scheduler/sched-bwc.rst (version 1)."""
    for line in _read(_OWN).splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if not controllers:
            for folder in _upwards(_GROUPS, group):
                yield from _ratio(_read(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for folder in _upwards(_GROUPS / "cpu", group):
                yield from _ratio(f"{_read(folder / 'cpu.cfs_quota_us')} {_read(folder / 'cpu.cfs_period_us')}")


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """The group's folder and those around it, up to the root, which in a container is the group itself, whatever name
    the group has outside."""
    folder = root / group.strip("/")
    yield folder
    while folder != root:
        folder = folder.parent
        yield folder


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _ratio(quota_and_period: str) -> Iterator[float]:
    """Of two numbers of microseconds; nothing where there is no limit ("max" or -1)."""
    words = quota_and_period.split()
    if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
        yield int(words[0]) / int(words[1])
