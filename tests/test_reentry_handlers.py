"""A signal's handler in the middle of a call: it runs soon, wherever the work is done, and takes nothing away."""

from __future__ import annotations

import os
import signal
import threading
import time
from importlib import import_module

import numpy as np
import pytest
from short_way import MANY, x_of
from test_native_threads import process

import ctcbind

ONE_SAMPLE = {
    "beam_search": lambda x, labels: ctcbind.beam_search(x[: len(x) * 3 // 16], beam_width=1000),
    "ctc_hvp": lambda x, labels: ctcbind.ctc_hvp(x, labels, x),
    "align": lambda x, labels: ctcbind.align(np.concatenate([x] * 6), [labels[0] * 3]),
    "posteriors": lambda x, labels: ctcbind.posteriors(x, labels),
}


def is_ended_early(call, frames, least):
    """By an alarm's handler that raises, after a quarter of the time that call(frames) takes, or soon after. There are
    as many frames, or more, as this machine needs so long for."""

    def timed():
        begin = time.perf_counter()
        call(frames)
        return time.perf_counter() - begin

    def ended(*_):
        raise TimeoutError("by the alarm")

    while (whole := min(timed() for _ in range(2))) < least:
        frames *= 2
    before = signal.signal(signal.SIGALRM, ended)
    try:
        signal.setitimer(signal.ITIMER_REAL, whole / 4)
        begin = time.perf_counter()
        with pytest.raises(TimeoutError, match="by the alarm"):
            call(frames)
        return time.perf_counter() - begin < 0.75 * whole
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def many_frames(frames, *shape):
    """The same thousand again and again."""
    return np.tile(np.random.default_rng(0).normal(size=(1000, *shape)).astype(np.float32), (frames // 1000, 1, 1))


alarms = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no alarms")


@alarms
@pytest.mark.parametrize("name", list(ONE_SAMPLE))
def test_a_handler_runs_between_the_frames_of_one_sample(name):
    """It took as long as the sample: 26 s of beam search, 6 s of a product with the Hessian."""
    labels = [[1 + i % 23 for i in range(2500)]]
    assert is_ended_early(lambda frames: ONE_SAMPLE[name](many_frames(frames, 1, 24), labels), 8000, 0.2)


@alarms
@pytest.mark.parametrize("long", [0, 1])
def test_a_handler_runs_while_another_thread_has_the_long_sample(long):
    """The calling thread has no more samples then, and must not wait without asking."""

    def call(frames):
        lengths = [20, 20]
        lengths[long] = frames
        ctcbind.beam_search(many_frames(frames, 2, 64), lengths, beam_width=100)

    ctcbind.set_num_threads(2)
    try:
        assert is_ended_early(call, 20000, 0.4)
    finally:
        ctcbind.set_num_threads(None)


FORKING = """
    import os, signal, sys, time, warnings
    import numpy as np, ctcbind
    warnings.simplefilter("ignore")
    what = sys.argv[1]
    ctcbind.set_num_threads(2)
    C, least = (520, 0.15) if what == "rows" else (20, 0.4)  # of so many classes 0.4 s would take a gigabyte
    row = np.random.default_rng(0).normal(size=(100, 1, C)).astype(np.float32)
    N, T = {"samples": (400, 100), "halves": (2, 8000), "rows": (1, 40000)}.get(what, (16, 800))
    def batch(times):
        n, t = (N * times, T) if N > 2 else (N, T * times)
        L = 129 if what == "rows" else 2 * t // 5  # few beside the classes: then rows are what threads share
        return np.tile(row, (t // 100, n, 1)), [[1 + i % 19 for i in range(L)]] * n
    call = {
        "align": lambda x, y: ctcbind.align(x, y)[:2],
        "beam search": lambda x, y: [repr(ctcbind.beam_search(x[:50], beam_width=20))],
    }.get(what, lambda x, y: ctcbind.ctc_loss_and_grad(x, y)[:2])
    whole, times = 0, 1
    while whole < least:  # whatever this machine needs so long for
        x, y = batch(times)
        start = time.perf_counter()
        right = call(x, y)
        whole, times = time.perf_counter() - start, 2 * times
    pids = []
    def fork(*_):
        if not pids:
            pids.append(os.fork())
            if not pids[0]:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(100)  # its end, where it waits for threads that it has not got
    signal.signal(signal.SIGALRM, fork)
    signal.setitimer(signal.ITIMER_REAL, whole / 4)
    found = call(x, y)
    assert pids, "the signal came too late"
    same = all(np.array_equal(one, other) for one, other in zip(found, right, strict=True))
    if not pids[0]:
        again = all(np.array_equal(one, other) for one, other in zip(call(x, y), right, strict=True))
        os._exit(0 if same and again else 3)
    print(same, os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("what", ["samples", "halves", "rows", "align", "beam search"])
def test_a_handler_forks_within_a_call_of_two_threads(what):
    """The child comes back from the handler without the other thread: it waited for that, or lacked its samples."""
    done = process(FORKING, what, timeout=240)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "True 0\n")


class Library:
    """What is loaded: by a signal's handler too, which is called in the middle of it."""

    def __init__(self, load):
        self.load = load
        self.made = []
        self.of_handler = None

    def look(self, *_):
        if not self.made:
            self.made.append(None)
            self.of_handler = self.load()
        self.made.append(object())
        return self.made[-1]


@pytest.mark.parametrize(("name", "load", "look"), [("warpctc", "_load", "_open"), ("cudnn_library", "load", "_load")])
def test_a_handler_may_load_the_library_that_is_being_loaded(name, load, look, monkeypatch):
    """It waited for ever for the call that it had interrupted."""
    module = import_module(f"ctcbind.bindings.{name}")
    library, found = Library(getattr(module, load)), []
    monkeypatch.setattr(module, "_loaded", None)
    monkeypatch.setattr(module, look, library.look)
    thread = threading.Thread(target=lambda: found.append(library.load()), daemon=True)
    thread.start()
    thread.join(60)
    assert found == [library.of_handler]
    assert library.load() is library.of_handler  # the first to be there


def test_what_ended_a_call_is_raised_whatever_ends_another_before(monkeypatch):
    """A handler that comes when C has ended, and Python has not raised yet what ended it, took that away."""
    rows, logits = import_module("ctcbind.bindings.native_rows"), x_of(MANY)[:, :1]
    raise_stopped, seen = rows.raise_stopped, []

    def model(error):
        def lm(prefix):
            raise error

        return lm

    def late(*_):
        if not seen:
            seen.append(None)
            with pytest.raises(LookupError):
                ctcbind.beam_search(logits, lm=model(LookupError()))
        raise_stopped()

    monkeypatch.setattr(rows, "raise_stopped", late)
    with pytest.raises(ArithmeticError):
        ctcbind.beam_search(logits, lm=model(ArithmeticError()))
    assert seen
