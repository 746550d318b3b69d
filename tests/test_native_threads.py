"""The native engine's threads: the same bits however many, beside others, after idling, after fork, at the exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

import ctcbind

#: (T, N, C, L): over samples; over the rows of one sample; over those of two; little work, which stays on one thread;
#: over the halves of one sample; over those of three
SHAPES = [
    (50, 67, 30, 12), (200, 1, 900, 20), (100, 2, 1500, 9), (12, 3, 5, 2), (1200, 1, 40, 150), (1800, 3, 40, 200),
]  # fmt: skip


def batch(T, N, C, L, dtype="float32"):
    rng = np.random.default_rng([T, N, C, L])
    x = rng.normal(size=(T, N, C)).astype(dtype)
    labels = [rng.integers(1, C, size=L - n % L).tolist() for n in range(N)]
    return x, labels, [T - n % 3 for n in range(N)]


def bits(x, labels, lengths):
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, lengths, engine="native")
    return loss.tobytes(), grad.tobytes(), ctcbind.ctc_loss(x, labels, lengths, engine="native").tobytes()


def process(script, *args, timeout=60, **options):
    """A Python process, away from the working folder: -c looks for ctcbind there first."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *map(str, args)]
    where = os.path.dirname(os.path.abspath(__file__))
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, cwd=where, **options)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_same_bits_for_one_to_eight_threads(shape, dtype):
    arguments = batch(*shape, dtype=dtype)
    seen = set()
    for threads in (1, 2, 3, 4, 5, 6, 7, 8, 1):
        ctcbind.set_num_threads(threads)
        seen.add(bits(*arguments))
        seen.add(bits(*arguments))
    assert len(seen) == 1


@pytest.mark.parametrize(("value", "loss", "slope"), [(np.nan, np.nan, np.nan), (-np.inf, np.inf, 0)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_sample_without_a_loss_leaves_nobody_waiting(shape, value, loss, slope):
    """A frame of it is nothing but that, the third or the last; others have the bits that they have without it."""
    x, labels, lengths = batch(*shape)
    for threads in (1, 2, 3):
        ctcbind.set_num_threads(threads)
        right = ctcbind.ctc_loss_and_grad(x, labels, lengths, engine="native")
        for n, at in {(0, 2), (0, lengths[0] - 1), (len(lengths) - 1, 2)}:
            changed = x.copy()
            changed[at, n] = value
            losses, grad, _ = ctcbind.ctc_loss_and_grad(changed, labels, lengths, engine="native")
            wanted, slopes = right.loss.copy(), right.grad.copy()
            wanted[n], slopes[: lengths[n], n] = loss, slope
            np.testing.assert_array_equal(losses, wanted)
            np.testing.assert_array_equal(grad, slopes)
            np.testing.assert_array_equal(ctcbind.ctc_loss(changed, labels, lengths, engine="native"), wanted)


@pytest.mark.parametrize("threads", [1, 2])
def test_one_long_sample_among_short_ones(threads):
    """It alone is taken in halves: first, in the middle or last, it has the same bits, and the others have theirs."""
    ctcbind.set_num_threads(threads)
    T, C = 1200, 40
    rng = np.random.default_rng([SEED, T])
    x = rng.normal(size=(T, 3, C)).astype(np.float32)
    samples = [(rng.integers(1, C, 150).tolist(), T), ([1, 2], 9), ([3], 20)]
    seen = []
    for order in ([0, 1, 2], [1, 0, 2], [1, 2, 0]):
        labels, lengths = [samples[n][0] for n in order], [samples[n][1] for n in order]
        loss, grad, _ = ctcbind.ctc_loss_and_grad(np.ascontiguousarray(x[:, order]), labels, lengths, engine="native")
        seen.append({n: (loss[k].tobytes(), grad[:, k].tobytes()) for k, n in enumerate(order)})
    assert seen[0] == seen[1] == seen[2]
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x[:, :1], [samples[0][0]], engine="native")
    assert seen[0][0] == (loss[0].tobytes(), grad[:, 0].tobytes())


@pytest.mark.parametrize("shared", [True, False], ids=["one plan", "a plan each"])
def test_eight_threads_at_once(shared):
    """Each call may take the pool's threads or find them taken; the bits are those of a serial call."""
    ctcbind.set_num_threads(1)
    work = [batch(*SHAPES[i % 6], dtype=("float32", "float64")[i % 2]) for i in range(8)]
    serial = [bits(*each) for each in work]
    ctcbind.set_num_threads(3)
    wrong, start = [], threading.Barrier(8)
    plans = [ctcbind.CTCLoss(engine="native") for _ in range(1 if shared else 8)]

    def call(i):
        plan = plans[i % len(plans)]
        start.wait(60)
        for _ in range(10):
            got = plan(*work[i])
            if (got.loss.tobytes(), got.grad.tobytes(), plan.loss(*work[i]).tobytes()) != serial[i]:
                wrong.append(i)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    for plan in plans:
        plan.close()
    assert wrong == []


AFTER_USE = """
    import os, sys, threading
    import numpy as np, ctcbind
    ctcbind.set_num_threads(3)
    x = np.random.default_rng(1).normal(size=(60, 16, 40)).astype(np.float32)
    use = lambda: ctcbind.ctc_loss_and_grad(x, [[1, 2, 3]] * 16, engine="native").grad.tobytes()
    right = use()
    how = sys.argv[1]
    if how == "exit":
        sys.exit(7)
    if how == "raise":
        raise SystemExit(7)
    if how == "thread":  # one that ends while another is in C
        threading.Thread(target=lambda: [use() for _ in range(20)], daemon=True).start()
        use()
        sys.exit(7)
    plan = ctcbind.CTCLoss(engine="native")
    def with_the_same_plan():
        found = {plan(x, [[1, 2, 3]] * 16).grad.tobytes() for _ in range(3)}
        plan.loss(x, [[1, 2, 3]] * 16)
        return found.pop()
    def looking():
        ctcbind.diagnose(x, [[1, 2, 3]] * 16)
        return right
    work = {"the call": use, "the plan": with_the_same_plan, "a look": looking}[how]
    work()  # a child forked while modules are loaded waits for Python's own lock
    def endlessly():
        while True:
            work()
    threading.Thread(target=endlessly, daemon=True).start()
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            done = work() == right
            plan.close()
            os._exit(0 if done else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os._exit(7)
"""


@pytest.mark.parametrize("how", ["exit", "raise", "thread"])
def test_the_process_ends_at_once(how):
    done = process(AFTER_USE, how)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("how", ["the call", "the plan", "a look"])
def test_fork_while_another_thread_works(how):
    """On locks that the thread holds the child would wait for ever."""
    done = process(AFTER_USE, how)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_cold_call_does_not_stall():
    """After 20 ms of idling a call takes no more than a few times its hot time.

    A pool that waits for its workers to wake stalls for the scheduler's milliseconds, whatever the work. Half of
    the calls may meet something else that runs here; the quickest quarter may not take 2 ms and 20 times as long.
    """
    x, labels, lengths = batch(150, 16, 28, 40)
    ctcbind.set_num_threads(2)
    with ctcbind.CTCLoss(engine="native") as plan:

        def once(idle):
            time.sleep(idle)
            start = time.perf_counter()
            plan(x, labels, lengths)
            return time.perf_counter() - start

        once(0)
        hot = sorted(once(0) for _ in range(40))
        cold = sorted(once(0.02) for _ in range(40))
    assert cold[10] <= max(20 * hot[10], 2e-3), f"hot {hot[10]:.6f} s, cold {cold[10]:.6f} s"


def test_nobody_spins_after_the_call():
    """The process uses next to no processor time while it sleeps, right after calls on four threads."""
    x, labels, lengths = batch(50, 67, 30, 12)
    ctcbind.set_num_threads(4)
    with ctcbind.CTCLoss(engine="native") as plan:
        for _ in range(50):
            plan(x, labels, lengths)
    before, start = time.process_time(), time.perf_counter()
    time.sleep(0.3)
    used, slept = time.process_time() - before, time.perf_counter() - start
    assert used <= 0.1 * slept, f"{used:.3f} s of processor time in {slept:.3f} s of sleep"


def test_the_gil_is_released_while_c_works():
    """Another thread's Python runs on between the start and the end of one long call."""
    x, labels, lengths = batch(2000, 8, 200, 400)
    ctcbind.set_num_threads(1)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        with ctcbind.CTCLoss(engine="native") as plan:
            most = 0
            for _ in range(5):
                start = time.perf_counter()
                plan(x, labels, lengths)
                end = time.perf_counter()
                most = max(most, sum(start < t < end for t in ticks))
    finally:
        stop.set()
        thread.join()
    # with the GIL held, a tick falls only into the microseconds of Python around the call
    assert most >= 5, f"{most} ticks in {end - start:.3f} s"


INTERRUPTED = """
    import os, signal, threading, time
    import numpy as np, ctcbind
    x = np.zeros((500, 8, 100), np.float32)
    ctcbind.set_num_threads(2)
    with ctcbind.CTCLoss(engine="native") as plan:
        right = plan(x, [[1, 2, 3]] * 8)
        start = time.perf_counter()  # before the timer: on a busy machine there may be a pause between the two
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            while time.perf_counter() - start < 30:
                plan(x, [[1, 2, 3]] * 8)
        except KeyboardInterrupt:
            pass
        took = time.perf_counter() - start
        assert 0.1 < took < 20, took
        assert plan(x, [[1, 2, 3]] * 8).grad.tobytes() == right.grad.tobytes(), "other bits"
    print("answered")
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no SIGINT to itself")
def test_ctrl_c_is_answered_between_calls():
    """And the plan computes on afterwards. The pool's threads take no signals: the main thread gets it."""
    done = process(INTERRUPTED)
    assert done.stderr == ""
    assert (done.returncode, done.stdout) == (0, "answered\n")


LONG_CALL = """
    import os, signal, sys, threading, time
    import numpy as np, ctcbind
    ctcbind.set_num_threads(int(sys.argv[1]))
    how, shape = sys.argv[2], tuple(map(int, sys.argv[3].split(",")))
    row = np.random.default_rng(0).normal(size=shape[2]).astype(np.float32)
    def call(N):
        x = np.broadcast_to(row, (shape[0], N, shape[2]))
        return ctcbind.ctc_loss(x, [[1, 2, 3] * 100] * N, engine="native")
    def time_of(N):
        start = time.perf_counter()
        result = call(N)
        return time.perf_counter() - start, result
    few = shape[1] // 8
    whole, N = 0, few
    while whole < 0.7:  # whatever this machine needs so long for
        N *= 2
        whole, right = time_of(N)

    seen, entered = [], None
    class Enough(Exception): pass
    def answer(*_):
        seen.append(time.perf_counter() - entered)
        if how == "raises": raise Enough
    if how != "Ctrl-C":
        signal.signal(signal.SIGINT, answer)
    entered = time.perf_counter()
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        result = call(N)
        ended = "returned"
    except (KeyboardInterrupt, Enough) as error:
        ended, result = type(error).__name__, right
    took = time.perf_counter() - entered
    assert (result == right).all()
    assert (call(few) == right[:few]).all()
    print(ended, whole, took, *seen)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no SIGINT to itself")
@pytest.mark.parametrize("shape", [(3000, 800, 40), (3000, 250, 3000)], ids=["samples over threads", "shared samples"])
@pytest.mark.parametrize(("how", "ends"), [("Ctrl-C", "KeyboardInterrupt"), ("raises", "Enough"), ("asks", "returned")])
def test_signals_are_answered_between_samples(how, ends, shape):
    """Within one call of a second or more: KeyboardInterrupt, or what a handler raises, ends it; a handler that raises
    nothing runs while the call goes on. The next call is as if nothing had been."""
    done = process(LONG_CALL, 2, how, ",".join(map(str, shape)))
    assert (done.returncode, done.stderr) == (0, "")
    ended, whole, took, *seen = done.stdout.split()
    assert ended == ends
    if how == "asks":
        assert float(seen[0]) < 0.2 + 0.5 * float(whole)
        assert float(took) > float(seen[0]) + 0.1
    else:
        assert float(took) < 0.2 + 0.5 * float(whole)


LONG_SAMPLE = """
    import os, signal, sys, threading, time
    import numpy as np, ctcbind
    threads, of, where = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    ctcbind.set_num_threads(threads)
    plan = ctcbind.CTCLoss(engine="native")
    call = {"gradient": lambda *b: b"".join(a.tobytes() for a in plan(*b)[:2]), "loss": plan.loss}[of]
    rng = np.random.default_rng(0)
    def batch(T):
        if where == "alone":
            return rng.normal(size=(T, 1, 40)).astype(np.float32), rng.integers(1, 40, (1, T * 2 // 5))
        x, labels = np.zeros((T, 4, 40), np.float32), rng.integers(1, 40, (4, T * 2 // 5))
        return x, labels, [100, 100, 100, T], [9, 9, 9, T * 2 // 5]  # the first two are the calling thread's
    short, T, whole = batch(3000), 10000, 0
    while whole < 0.7:  # whatever this machine needs so long for
        T = 3 * T // 2
        long, start = batch(T), time.perf_counter()
        right = call(*long)
        whole = time.perf_counter() - start
    right_of_short, answers = call(*short), []
    for when in (0.1, 0.15, 0.1, 0.15):
        timer = threading.Timer(when * whole, os.kill, (os.getpid(), signal.SIGINT))
        start = time.perf_counter()
        try:
            timer.start()
            call(*long)
            ended = "returned"
        except KeyboardInterrupt:
            ended = "KeyboardInterrupt"
        answers.append(time.perf_counter() - start - when * whole)
        assert call(*short) == right_of_short, "other bits"
        print(ended, end=" ")
    assert call(*long) == right, "other bits"
    plan.close()
    print(whole, min(answers))
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no SIGINT to itself")
@pytest.mark.parametrize(
    ("threads", "of", "where"),
    [
        (1, "gradient", "alone"),
        (2, "gradient", "alone"),
        (2, "loss", "alone"),
        (2, "gradient", "on another thread"),
    ],
)
def test_ctrl_c_is_answered_within_a_sample(threads, of, where):
    """Soon after the call has begun, with most of it to come; the plan, which takes the short way from its second call
    on, computes on afterwards."""
    done = process(LONG_SAMPLE, threads, of, where, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    *ended, whole, answer = done.stdout.split()
    assert ended == ["KeyboardInterrupt"] * 4
    assert float(answer) < 0.3 * float(whole), done.stdout  # between samples or steps it came after half of it or more


def test_a_choice_that_is_taken_back_ends_in_open_plans_too():
    default = ctcbind.get_num_threads()
    logits, targets = np.zeros((400, 16, 80), np.float32), [[1, 2, 3]] * 16
    ctcbind.set_num_threads(default + 5)
    with ctcbind.CTCLoss(engine="native") as plan:
        for chosen, expected in (
            (default + 5, default + 5),
            (None, default),
            (default + 1, default + 1),
            (None, default),
        ):
            ctcbind.set_num_threads(chosen)
            plan._both = plan._alone = None  # the fast path asks the same
            plan(logits, targets)
            assert plan._sessions["native"]._problem._struct.threads == expected


def test_more_threads_than_there_can_be():
    x, targets = np.random.default_rng(SEED).normal(size=(150, 64, 30)).astype(np.float32), [[1] * 30] * 64
    right = ctcbind.ctc_loss_and_grad(x, targets)
    for count in (257, 2**28, 2**29, 2**30, 2**31 - 1):
        ctcbind.set_num_threads(count)
        try:
            for logits in (x, x[:, :2]):
                found = ctcbind.ctc_loss_and_grad(logits, targets[: logits.shape[1]])
                assert np.array_equal(found.loss, right.loss[: logits.shape[1]])
        finally:
            ctcbind.set_num_threads(None)


@pytest.mark.parametrize("of", ["loss", "align", "hvp"])
def test_labels_that_are_written_to_meanwhile(of):
    """What was checked is what is computed: a result of either labels, or the error, and nothing outside."""
    script = f"""
import sys, threading, time, numpy as np, ctcbind
sys.setswitchinterval(1e-6)
x = np.asfortranarray(np.zeros((600, 2, 30), np.float32))
labels = np.full((2, 400), 3, np.int64)
labels[:, ::2] = 4
lengths, over = np.array([400] * 2), False
def flip():
    good = True
    while not over:
        good = not good
        labels[0, 5] = 3 if good else 2**30
thread = threading.Thread(target=flip)
thread.start()
calls = {{
    "loss": lambda: ctcbind.ctc_loss_and_grad(x, labels, target_lengths=lengths),
    "align": lambda: ctcbind.align(x, labels, target_lengths=lengths),
    "hvp": lambda: ctcbind.ctc_hvp(x, labels, x, target_lengths=lengths),
}}
end = time.monotonic() + 5
while time.monotonic() < end:
    try:
        calls[{of!r}]()
    except ctcbind.InvalidInput:
        pass
over = True
thread.join()
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=Path(sys.executable).parent)
