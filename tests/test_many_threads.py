"""Many threads that use all of it at once, while numbers of threads are chosen and garbage is collected: the bits are
those of one thread. And what two threads could leave wrong between them, with one of them held at the worst moment.

With the GIL one thread's Python runs at a time; it is made to change hands as often as it can. C runs on all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import sys
import threading
import time

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import threads
from ctcbind.bindings import native_stop

#: Of small batches, which a warm plan computes at once, and of others, for which threads are woken.
SHAPES = [(12, 3, 7, 4), (40, 20, 30, 8), (600, 2, 30, 50)]
#: For what computes in Python, where each instruction may wait for all other threads.
SHORT = [(12, 3, 7, 4), (14, 4, 30, 4), (24, 2, 30, 5)]
SECONDS = 1.0


def batch(i, shapes=SHAPES):
    T, N, C, L = shapes[i % len(shapes)]
    rng = np.random.default_rng([SEED, i])
    x = rng.normal(size=(T, N, C)).astype(("float32", "float64")[i % 2])
    return x, [rng.integers(1, C, L - n % 3).tolist() for n in range(N)], [T - n % 2 for n in range(N)]


def language_model(prefix):
    return -0.5 * len(prefix) + 0.01 * sum(prefix)


def bits(value):
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return tuple(bits(getattr(value, field.name)) for field in dataclasses.fields(value))
    return tuple(map(bits, value)) if isinstance(value, (list, tuple)) else repr(value)


@pytest.fixture
def changing_hands():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    ctcbind.set_num_threads(None)


def all_at_once(works, seconds=SECONDS):
    """Has each of `works`, functions without arguments, done again and again on a thread of its own, and checks that
    all its results have the bits of one computed alone. Meanwhile others choose a number of threads, and collect."""
    expected = [bits(work()) for work in works]
    failures, counts, over = [], [0] * len(works), threading.Event()
    start = threading.Barrier(len(works) + 2)

    def on_a_thread(once):
        def run():
            start.wait(60)
            try:
                while not over.is_set():
                    once()
            except BaseException as error:
                failures.append(error)
                raise

        return threading.Thread(target=run)

    def repeat(i):
        assert bits(works[i]()) == expected[i], i
        counts[i] += 1

    def choose(number=itertools.cycle((1, 2, None, 3))):  # noqa: B008 - it goes on from call to call
        ctcbind.set_num_threads(next(number))
        assert ctcbind.get_num_threads() >= 1
        time.sleep(0.001)

    def collect():
        gc.collect()
        time.sleep(0.001)

    runs = [lambda i=i: repeat(i) for i in range(len(works))]
    every = [on_a_thread(once) for once in (*runs, choose, collect)]
    late = time.monotonic() + 60
    for thread in every:
        thread.start()
    time.sleep(seconds)
    while not (min(counts) or failures) and time.monotonic() < late:  # a busy machine lets some wait for their turn
        time.sleep(0.05)
    over.set()
    for thread in every:
        thread.join(60)
    assert not any(thread.is_alive() for thread in every)
    assert failures == []
    assert min(counts) > 0


@pytest.mark.parametrize("engine", ["auto", "native", "reference"])
def test_the_functions(changing_hands, engine):
    """Half of the threads have options in common, and so the plans that are kept; half change theirs at each call."""
    calls, shapes = itertools.count(), SHORT if engine == "reference" else SHAPES

    def many_options(i):
        x, labels, lengths = batch(i, shapes)
        k = next(calls)
        ctcbind.ctc_loss(x, labels, lengths, topology=("ctc", "simple")[k % 2], zero_infinity=k % 3 == 0)
        return ctcbind.ctc_loss_and_grad(x, labels, lengths, reduction=("sum", "label_mean")[i % 2], engine=engine)

    all_at_once(
        [lambda i=i: ctcbind.ctc_loss_and_grad(*batch(i, shapes), engine=engine) for i in range(4)]
        + [lambda i=i: many_options(i) for i in range(4)]
    )


@pytest.mark.parametrize("shared", [True, False], ids=["one plan", "a plan each"])
@pytest.mark.parametrize("reduction", ["none", "label_mean"])
def test_plans(changing_hands, shared, reduction):
    plans = [ctcbind.CTCLoss(engine="native", reduction=reduction) for _ in range(1 if shared else 6)]
    given = [batch(i) for i in range(6)]

    def both(i):
        plan = plans[i % len(plans)]
        return plan(*given[i]), plan.loss(*given[i])

    all_at_once([lambda i=i: both(i) for i in range(6)])


def test_plans_that_come_and_go(changing_hands):
    """A plan is made, used until it takes the short way, closed by one thread and used on by another."""
    plans = [ctcbind.CTCLoss(engine="native") for _ in range(2)]
    given = [batch(i) for i in range(6)]

    def one(i):
        while True:
            plan = plans[i % 2]
            try:
                return plan(*given[i])
            except ctcbind.ClosedError:
                assert plan.closed

    def renew():
        for i in range(2):
            old, plans[i] = plans[i], ctcbind.CTCLoss(engine="native")
            old.close()

    all_at_once([*(lambda i=i: one(i) for i in range(6)), renew])


def test_what_stands_beside_the_loss(changing_hands):
    x, labels, lengths = batch(0)
    long = batch(2)
    v = np.random.default_rng(SEED).normal(size=x.shape)
    all_at_once(
        [
            lambda: ctcbind.beam_search(x, lengths, lm=language_model),
            lambda: ctcbind.beam_search(long[0][:40], lm=language_model, beam_width=4, n_best=2),
            lambda: ctcbind.beam_search(long[0], beam_width=5),
            lambda: ctcbind.greedy_decode(long[0]),
            lambda: (ctcbind.align(*long), ctcbind.lattice_loss_and_grad(*long)),
            lambda: (ctcbind.ctc_hvp(x, labels, v, lengths), ctcbind.ctc_hessian(x[:, :1], labels[:1])),
            lambda: (ctcbind.check(x, labels, lengths).to_dict(), ctcbind.diagnose(x, labels, lengths).to_dict()),
            lambda: [ctcbind.edit_distance([*row], [1, 2, 3]) for row in labels],
        ]
    )


def test_each_thread_hears_of_its_own_failure():
    """Also where another's language model fails between the failure of one's own and the end of the call."""
    x, heard = batch(1)[0], []

    def search(name):
        def lm(prefix):
            raise LookupError(name)

        with pytest.raises(LookupError) as error:
            ctcbind.beam_search(x, lm=lm)
        heard.append((name, *error.value.args))

    other = threading.Thread(target=search, args=("other",))

    def trace(frame, event, _):
        if frame.f_code is native_stop.keep.__code__ and event == "return":
            other.start()
            other.join(60)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        search("one")
    finally:
        sys.settrace(before)
    assert heard == [("other", "other"), ("one", "one")]


def test_lists_that_change_meanwhile(changing_hands):
    """A batch of lists of either length, or the error; what has left a list is not read any more."""
    x = batch(0)[0][:, :2]
    rows = [[1, 2, 3], [6, 5]]
    right = {bits(ctcbind.ctc_loss(x, [rows[0][:k], rows[1]])) for k in range(4)}
    with ctcbind.CTCLoss(engine="native") as plan:

        def compute():
            with contextlib.suppress(ctcbind.InvalidInput):  # for a moment there are three rows
                assert bits(plan.loss(x, rows)) in right

        def change():
            rows[0].pop()
            rows[0].append(3)
            rows.append([4])
            rows.pop()
            rows[0] = list(rows[0])

        all_at_once([compute, compute, change])


@pytest.mark.parametrize("when", ["at first", "later"])
def test_the_last_choice_is_what_all_are_told(monkeypatch, when):
    """Another thread chooses 15 while one is being told of 12."""
    monkeypatch.setattr(threads, "_told", [])
    told = []
    other = threading.Thread(target=ctcbind.set_num_threads, args=(15,))

    def tell(count):
        if count == 12:
            other.start()
            other.join(0.3)
        told.append(count)

    ctcbind.set_num_threads(12 if when == "at first" else 13)
    try:
        threads.tell_threads(tell)
        if when == "later":
            ctcbind.set_num_threads(12)
        other.join(10)
        assert not other.is_alive()
        assert told[-1] == ctcbind.get_num_threads() == 15
    finally:
        ctcbind.set_num_threads(None)


def test_a_choice_is_not_taken_back_for_a_wrong_default(monkeypatch):
    """It was half: the choice was gone, and not all had been told."""
    told = []
    monkeypatch.setattr(threads, "_told", [told.append])
    ctcbind.set_num_threads(5)
    try:
        monkeypatch.setenv("CTCBIND_NUM_THREADS", "many")
        with pytest.raises(
            ctcbind.InvalidInput, match=r"^CTCBIND_NUM_THREADS is 'many'; it must be an integer"
        ) as caught:
            ctcbind.set_num_threads(None)
        assert (caught.value.rule, caught.value.value) == ("threads", "many")
        assert ctcbind.get_num_threads() == 5
        ctcbind.set_num_threads(6)
    finally:
        monkeypatch.setenv("CTCBIND_NUM_THREADS", "3")
        ctcbind.set_num_threads(None)
    assert told == [5, 6, 3]
    assert ctcbind.get_num_threads() == 3


def test_a_choice_that_is_taken_back_meanwhile():
    """By another thread, between any two instructions: None was answered where the number had been read twice."""

    def taken_back(at):
        """The answer where the choice is taken back before instruction `at`; "past" where there are fewer."""
        seen = itertools.count()
        done = False

        def trace(frame, event, _):
            nonlocal done
            if frame.f_code is not threads.get_num_threads.__code__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode" and next(seen) == at:
                threads._threads, done = None, True
            return trace

        ctcbind.set_num_threads(12345)
        before = sys.gettrace()
        sys._getframe().f_trace_opcodes = True  # before the trace begins, or Python 3.12 tells of no instruction
        sys.settrace(trace)
        try:
            answer = threads.get_num_threads()
        finally:
            sys.settrace(before)
            ctcbind.set_num_threads(None)
        return answer if done else "past"

    default = ctcbind.get_num_threads()
    answers = list(itertools.takewhile(lambda answer: answer != "past", map(taken_back, itertools.count())))
    assert len(answers) > 2
    assert set(answers) <= {12345, default}
