"""Times of several functions side by side: one call of each in turn, so that a slow moment hits all of them alike."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

__all__ = ["measure", "positive", "show"]


def positive(text: str) -> int:
    """What an option that counts takes."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no positive integer")
    return int(text)


def measure(functions: dict[str, Callable[[], Any]], rounds: int, seconds: float = 60.0) -> dict[str, list[float]]:
    """Seconds of each call, round after round, after one call of each that is not counted. Ends after `seconds`, but
    not before three rounds."""
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    begin = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - begin > seconds:
            break
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return taken


def show(title: str, taken: dict[str, list[float]], first: str) -> None:
    """The median of each, and the median over the rounds of its ratio to the first."""
    print(f"{title} ({len(taken[first])} rounds)")
    for name, times in taken.items():
        ratio = median(theirs / own for theirs, own in zip(times, taken[first]))
        print(f"  {name:<44}{1e3 * median(times):12.3f} ms{'' if name == first else f'{ratio:10.1f} times ctcbind'}")
