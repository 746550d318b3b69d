"""`python -m benchmarks cpu`: check that all compute the same, time them in turns, measure their memory."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import memory, worker
from .cases import Case
from .copyrate import needed
from .peers import OURS
from .results import Memory, Report, Spread, Timing, load, machine, spread
from .verify import Check

__all__ = ["FULL", "HASTE", "Plan", "Progress", "measure"]

#: From here on a call is its own warm-up.
_SLOW = 0.05


@dataclass(frozen=True)
class Plan:
    """How long to measure: rounds a case, fewer once `budget` seconds are over; seconds of a peer's burst."""

    rounds: int = 9
    least_rounds: int = 3
    budget: float = 15.0
    burst: float = 0.06
    least_memory: int | None = 10**6  # bytes of logits from which on memory is measured; None: never

    def with_rounds(self, rounds: int) -> Plan:
        return replace(self, rounds=rounds, least_rounds=rounds)

    def without_memory(self) -> Plan:
        return replace(self, least_memory=None)


FULL, HASTE = Plan(), Plan(rounds=2, least_rounds=1, budget=0.2, burst=0.005, least_memory=None)


class Progress:
    """One line on stderr that says what runs; a line a case where stderr is no terminal."""

    def __init__(self, steps: int) -> None:
        self._steps, self._done = steps, 0
        self._live = sys.stderr.isatty()

    def step(self, what: str) -> None:
        self._done += 1
        self.say(what, True)

    def say(self, what: str, always: bool = False) -> None:
        text = f"[{self._done}/{self._steps}] {what}"
        if self._live:
            print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)
        elif always:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def measure(
    chosen: Sequence[Case],
    peers: Sequence[str],
    threads: Sequence[int],
    with_grads: Sequence[bool],
    plan: Plan = FULL,
    process: Callable[[int], Any] = worker.Process,
    keep: Callable[[Report], None] = lambda report: None,
) -> Report:
    """The whole run. Peers that are not installed are listed as absent, with what brings them.

    `keep` is given the report after every case, as far as it has come: a long run may be cut off.
    """
    report = Report(machine(), list(chosen))
    remembered = [case for case in chosen if plan.least_memory is not None and case.logits_bytes >= plan.least_memory]
    progress = Progress(len(threads) * len(chosen) * len(with_grads) + len(remembered))
    for count in threads:
        with worker.Homes(peers, count, process) as homes:
            report.versions, report.absent = homes.versions, homes.absent
            for case in chosen:
                for with_grad in with_grads:
                    progress.step(f"{case.name}, {_threads(count)}, {'gradient' if with_grad else 'loss only'}")
                    rate, timings = _in_turns(homes, case, count, with_grad, plan, progress)
                    report.copy_rates.append((case.name, count, rate))
                    report.timings += timings
                    report.machine["load_at_end"] = load()
                    keep(report)
    if memory.available():
        for case in remembered:
            progress.step(f"{case.name}, memory")
            for name in report.versions:
                progress.say(f"{case.name}, memory: {name}")
                report.memory.append(
                    Memory(case.name, max(threads), name, memory.extra(name, case, max(threads), True))
                )
            keep(report)
    progress.end()
    report.machine["load_at_end"] = load()
    return report


def _in_turns(
    homes: worker.Homes, case: Case, threads: int, with_grad: bool, plan: Plan, progress: Progress
) -> tuple[float, list[Timing]]:
    """The machine's copy rate, and the peers' times, of one case in one mode."""
    names, title = list(homes.versions), f"{case.name}, {_threads(threads)}"
    homes.everywhere(worker.load, case, with_grad)
    checks: dict[str, Check] = {}
    for name in names:
        progress.say(f"{title}: checking {name}")
        checks[name] = homes.run(worker.check, name, case)
    hot: dict[str, list[worker.Burst]] = {name: [] for name in names}
    cold: dict[str, list[float]] = {name: [] for name in names}
    rates: list[float] = []
    begin = time.perf_counter()
    for turn in range(plan.rounds):
        if turn >= plan.least_rounds and time.perf_counter() - begin > plan.budget:
            break
        order = names[turn % len(names) :] + names[: turn % len(names)]
        rates.append(homes.run(worker.copy_rate, order[0], case))
        for name in order:
            progress.say(f"{title}: round {turn + 1} of {plan.rounds}, {name}")
            warm_up = not hot[name] or min(hot[name][-1].seconds) < _SLOW
            hot[name].append(homes.run(worker.burst, name, plan.burst, warm_up))
        for name in order:
            cold[name].append(homes.run(worker.cold, name))
    rate = statistics.median(rates)
    least = needed(case.logits_bytes, with_grad) / rate
    medians = {name: [statistics.median(burst.seconds) for burst in bursts] for name, bursts in hot.items()}
    processor = {name: [burst.processor / len(burst.seconds) for burst in bursts] for name, bursts in hot.items()}
    timings = []
    for name in names:
        seconds = [each for burst in hot[name] for each in burst.seconds]
        timings.append(
            Timing(
                case.name,
                threads,
                with_grad,
                name,
                checks[name],
                hot=spread([1e3 * each for each in seconds]),
                ratio=_ratio(medians, name),
                cold=spread([1e3 * each for each in cold[name]]),
                cold_ratio=_ratio(cold, name),
                processor=spread([1e3 * each for each in processor[name]]),
                processor_ratio=_ratio(processor, name),
                cores=sum(burst.processor for burst in hot[name]) / sum(burst.wall for burst in hot[name]),
                roofline=least / statistics.median(seconds),
            )
        )
    return rate, timings


def _ratio(rounds: dict[str, list[float]], name: str) -> Spread | None:
    """How many times ctcbind's a peer's time is, round by round; None where ctcbind was not asked."""
    if OURS not in rounds:
        return None
    return spread([theirs / ours for theirs, ours in zip(rounds[name], rounds[OURS])])


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count > 1)}"
