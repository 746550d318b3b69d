"""One process that holds peers and runs them on command, so that the one who asks can take them in turns.

The functions are called in the process where the peers live: a spawned one at the other end of a pipe, whose
environment bounds the threads of libraries that can be bound in no other way, or, for tests, right here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np

from . import cases, copyrate, verify
from .peers import PEERS, Absent, Call, Peer, variables

__all__ = ["Burst", "Ended", "Here", "Homes", "Process"]

#: OpenMP's workers spin for milliseconds after a call; the next peer is not to share its processor with them.
SETTLE = 0.01
#: XLA's threads are busy for some 40 ms after a call has returned, OpenMP's may spin for 200 ms.
QUIET = 0.25
IDLE = 0.02
WARM_UP, MOST_CALLS = 0.005, 1000


@dataclass(frozen=True)
class Burst:
    """Seconds of consecutive calls; of all together the seconds and the processor seconds of all threads."""

    seconds: list[float]
    wall: float
    processor: float


@dataclass
class _State:
    threads: int = 0
    problem: cases.Problem | None = None
    with_grad: bool = True


_peers: dict[str, Peer] = {}
_calls: dict[str, Call] = {}
_truths: dict[str, verify.Truth] = {}
_state = _State()


def open_peers(names: list[str], threads: int) -> dict[str, tuple[bool, str]]:
    """For each name whether its library is there, and its version or what is missing."""
    found = {}
    _state.threads = threads
    for name in names:
        try:
            _peers[name] = PEERS[name](threads)
            found[name] = (True, _peers[name].version())
        except Absent as reason:
            found[name] = (False, str(reason))
    return found


def load(case: cases.Case, with_grad: bool) -> None:
    """Make the batch; the calls of the one before are let go."""
    _calls.clear()
    gc.collect()
    _state.problem, _state.with_grad = cases.make(case), with_grad
    for name in [name for name in _truths if name != case.name]:
        del _truths[name]


def check(name: str, case: cases.Case) -> verify.Check:
    """Prepare the peer for the batch, call it once, and hold the answer against the reference."""
    problem = _problem()
    if case.name not in _truths:
        _truths[case.name] = verify.truth(problem)
    call = _calls[name] = _peers[name].call(problem, _state.with_grad)
    losses, grad = _peers[name].result(call(), _state.with_grad)
    return verify.check(name, _truths[case.name], losses, grad, int(problem.input_lengths.max()))


def burst(name: str, seconds: float, warm_up: bool = True) -> Burst:
    """Calls one after the other until the time is over, at least one; before them some that are not counted."""
    call, now = _calls[name], time.perf_counter
    time.sleep(SETTLE)
    begin = now()
    while warm_up:
        call()
        warm_up = now() - begin < WARM_UP
    taken: list[float] = []
    cpu, begin = time.process_time(), now()
    end = begin + seconds
    for _ in range(MOST_CALLS):
        before = now()
        call()
        after = now()
        taken.append(after - before)
        if after > end:
            break
    return Burst(taken, after - begin, time.process_time() - cpu)


def cold(name: str) -> float:
    """Seconds of one call 20 ms after another, with nothing else of the comparison at work."""
    call = _calls[name]
    time.sleep(QUIET)
    call()
    time.sleep(IDLE)
    before = time.perf_counter()
    call()
    return time.perf_counter() - before


def copy_rate(name: str, case: cases.Case) -> float:
    """Beside the bursts of peer `name`: the copy rate for as many bytes as the logits have, on as many threads."""
    time.sleep(SETTLE)
    return copyrate.measure(case.logits_bytes, _state.threads)


def growth(name: str, case: cases.Case, with_grad: bool, seconds: float) -> Burst:
    """A burst of a peer on a case of its own, without the check."""
    load(case, with_grad)
    _calls[name] = _peers[name].call(_problem(), with_grad)
    return burst(name, seconds)


def answer(name: str, problem: cases.Problem) -> tuple[Any, Any]:
    """Losses and gradient of a peer for a batch that comes from outside."""
    call = _peers[name].call(problem, True)
    losses, grad = _peers[name].result(call(), True)
    return np.asarray(losses), np.asarray(grad)


def _serve(line: Connection, environment: dict[str, str]) -> None:
    """What the spawned process does: call what comes through the pipe and send back what it returns or raises."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches this process too: the one that asks ends it
    os.environ.update(environment)
    try:
        while True:
            function, arguments = line.recv()
            try:
                answer = (True, function(*arguments), "")
            except Exception as error:
                answer = (False, error, traceback.format_exc())
            line.send(answer)
    except (EOFError, BrokenPipeError):  # nobody asks any more
        pass


@contextmanager
def _deaf() -> Iterator[None]:
    """A process that is started in it does not hear Ctrl-C; the one that starts it hears it a little later."""
    if sys.platform == "win32":
        yield
        return
    resource_tracker.ensure_running()  # which start() does too, and which lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _problem() -> cases.Problem:
    assert _state.problem is not None
    return _state.problem


class Here:
    """What Process does, in this process: for tests, which can make an engine wrong in it."""

    def __init__(self, threads: int) -> None:
        pass

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    def close(self) -> None:
        _calls.clear()
        _peers.clear()
        _truths.clear()


class Ended(RuntimeError):
    """A spawned process is no more: killed, for memory as a rule, or crashed."""


class _Elsewhere(Exception):
    """The traceback of an exception in a spawned process, as that one's cause."""

    def __str__(self) -> str:
        return f"in the spawned process:\n\n{self.args[0]}"


class Process:
    """A spawned process; `run(function, *arguments)` calls a function of a module there and returns its value.

    Its environment is set before any peer is imported: libraries read theirs when they are loaded. A pipe and no pool
    of `concurrent.futures`: KeyboardInterrupt may come between any two steps of the one that asks, and pools keep locks
    in several threads.
    """

    def __init__(self, threads: int) -> None:
        context = get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, variables(threads)), daemon=True)
        with _deaf():
            self._process.start()
        theirs.close()

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            self._line.send((function, arguments))
            well, value, where = self._line.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            what = f"{function.__name__}({', '.join(str(each) for each in arguments[:1])})"
            raise Ended(f"the process that ran {what} ended with exit code {self._process.exitcode}") from None
        if not well:
            raise value from _Elsewhere(where)
        return value

    def close(self) -> None:
        self._line.close()
        self._process.kill()  # it waits for work, or its work is wanted no more
        self._process.join()


class Homes:
    """The processes in which some peers live, one for all of them that can share one.

    `versions` of those that are there, in the order asked for; `absent` says of the others what brings them.
    """

    def __init__(self, names: Sequence[str], threads: int, process: Callable[[int], Any] = Process) -> None:
        self.versions: dict[str, str] = {}
        self.absent: dict[str, str] = {}
        self._processes: dict[str, Any] = {}
        self._home: dict[str, Any] = {}
        try:
            for group in dict.fromkeys(PEERS[name].process for name in names):
                home = self._processes[group] = process(threads)
                here = [name for name in names if PEERS[name].process == group]
                for name, (there, what) in home.run(open_peers, here, threads).items():
                    (self.versions if there else self.absent)[name] = what
                    if there:
                        self._home[name] = home
        except BaseException:
            self.close()
            raise

    def run(self, function: Callable[..., Any], name: str, *arguments: Any) -> Any:
        """function(name, *arguments) in the process where the peer lives."""
        return self._home[name].run(function, name, *arguments)

    def everywhere(self, function: Callable[..., Any], *arguments: Any) -> None:
        """function(*arguments) in each process that has a peer."""
        for home in dict.fromkeys(self._home.values()):
            home.run(function, *arguments)

    def close(self) -> None:
        for home in self._processes.values():
            home.close()

    def __enter__(self) -> Homes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
