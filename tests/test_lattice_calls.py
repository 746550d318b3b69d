"""Calls of what is on the lattice: arrays of any kind, scores that are refused, every value written, Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys

import fake_cupy
import numpy as np
import pytest
from batches import SEED, random_case
from test_native_threads import process

import ctcbind
from ctcbind.bindings import native_decode, native_lattice
from ctcbind.engines import native_samples

FUNCTIONS = {
    "ctc_lattice": ctcbind.ctc_lattice,
    "posteriors": ctcbind.posteriors,
    "lattice_loss_and_grad": ctcbind.lattice_loss_and_grad,
    "align": ctcbind.align,
    "ctc_hessian": ctcbind.ctc_hessian,
    "ctc_hvp": lambda logits, targets, *rest, **options: ctcbind.ctc_hvp(logits, targets, logits, *rest, **options),
}


def fresh(*key: int) -> np.random.Generator:
    return np.random.default_rng([SEED, *key])


def test_arrays_of_the_callers_kind(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    x = fresh(67).normal(size=(2, 6, 4)).astype(np.float32)
    device = fake_cupy.asarray(x)
    options = {"layout": "NTC", "path_bonus": fake_cupy.asarray(np.zeros((2, 6, 5))), "log_prior": [0.0] * 4}
    labels = fake_cupy.asarray(np.array([[1, 2], [3, -1]]))
    for name in ("ctc_lattice", "lattice_loss_and_grad", "align"):
        got = FUNCTIONS[name](device, labels, **options)
        host = FUNCTIONS[name](x, [[1, 2], [3]], layout="NTC", path_bonus=np.zeros((2, 6, 5)), log_prior=[0.0] * 4)
        for one, other in zip(got, host):
            assert isinstance(one, fake_cupy.ndarray)
            assert np.array_equal(one.get(), other, equal_nan=True)
    for name in ("posteriors", "ctc_hvp", "ctc_hessian"):
        got = FUNCTIONS[name](device, labels, layout="NTC")
        assert isinstance(got, fake_cupy.ndarray)
        assert np.array_equal(got.get(), FUNCTIONS[name](x, [[1, 2], [3]], layout="NTC"))
    seconds = ctcbind.frames_to_seconds(ctcbind.align(device, labels, layout="NTC").starts, 50)
    assert isinstance(seconds, fake_cupy.ndarray)


@pytest.mark.parametrize(
    ("options", "rule", "words"),
    [
        ({"path_bonus": np.zeros((2, 6, 4))}, "path_bonus", "shape (2, 6, 4); it must be (N, T, S) = (2, 6, 5)"),
        ({"path_bonus": np.full((2, 6, 5), np.nan)}, "path_bonus", "path_bonus[0][0][0] is nan"),
        ({"path_bonus": np.full((6, 5), np.inf)}, "path_bonus", "path_bonus[0][0] is inf"),
        ({"path_bonus": [["a"]]}, "path_bonus", "cannot be read as numbers"),
        ({"path_bonus": 1j}, "path_bonus", "complex128"),
        ({"path_bonus": np.zeros((6, 5), [("a", "f4")])}, "path_bonus", "cannot be read as numbers"),
        ({"log_prior": np.zeros(3)}, "log_prior", "shape (3,); it must be (4,)"),
        ({"log_prior": [0.1, 0.2, 0.3, 0.4]}, "log_prior", "these are probabilities; pass their logarithms"),
        ({"log_prior": [0, 0, -np.inf, 0]}, "log_prior", "log_prior[2] is -inf"),
        ({"log_prior": np.zeros(4), "prior_weight": np.nan}, "prior_weight", "prior_weight is nan"),
        ({"log_prior": np.zeros(4), "prior_weight": "1"}, "prior_weight", "'1'"),
    ],
)
@pytest.mark.parametrize("function", ["ctc_lattice", "posteriors", "lattice_loss_and_grad", "align"])
def test_wrong_scores(function, options, rule, words):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        FUNCTIONS[function](np.zeros((6, 2, 4)), [[1, 2], [3]], **options)
    assert caught.value.rule == rule
    assert words in str(caught.value)


def test_the_bonus_of_all_samples_may_be_wrong_where_one_of_them_reads_it():
    """In its last frame, or its last state; what is told is where it stands in what was given."""
    x = fresh(74).normal(size=(6, 2, 4))
    for shape, place in (((1, 6, 5), (0, 5, 0)), ((1, 6, 5), (0, 0, 4)), ((6, 5), (5, 4)), ((6, 1), (5, 0))):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.ctc_lattice(x, [[3], [1, 2]], [5, 6], path_bonus=one(shape, place, np.inf))
        where = "".join(f"[{i}]" for i in place)
        assert str(caught.value).startswith(f"path_bonus{where} is inf; it must be finite")
        assert caught.value.sample is None


def one(shape: tuple[int, ...], place: tuple[int, ...], value: float, rest: float = 0.0) -> np.ndarray:
    array = np.full(shape, rest)
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("scores", "sample", "value", "words"),
    [
        ({"path_bonus": one((2, 6, 5), (1, 4, 2), np.inf)}, 1, np.inf, "path_bonus[1][4][2] is inf;"),
        ({"path_bonus": one((2, 6, 1), (1, 4, 0), np.nan)}, 1, np.nan, "path_bonus[1][4][0] is nan;"),
        ({"path_bonus": one((1, 6, 5), (0, 4, 2), np.nan)}, None, np.nan, "path_bonus[0][4][2] is nan;"),
        ({"path_bonus": one((6, 1), (4, 0), np.inf)}, None, np.inf, "path_bonus[4][0] is inf;"),
        ({"path_bonus": np.inf}, None, np.inf, "path_bonus is inf;"),
        ({"path_bonus": np.array("1e400", np.longdouble)}, None, np.inf, "path_bonus is inf;"),
        ({"path_bonus": -1e308}, None, 1e308, "path_bonus comes to 1e+308; over T = 6 frames"),
        ({"path_bonus": one((5,), (2,), -np.inf, -1e308)}, None, 1e308, "path_bonus comes to 1e+308; over T = 6"),
        ({"path_bonus": np.zeros((6, 4))}, None, (6, 4), "path_bonus has shape (6, 4);"),
        ({"log_prior": np.zeros((4, 1))}, None, (4, 1), "log_prior has shape (4, 1);"),
        ({"log_prior": [0, 0, np.inf, -np.inf]}, None, np.inf, "log_prior[2] is inf;"),
        ({"log_prior": [0.9, 0, 0.1, 0]}, None, 1.0, "log_prior lies between 0 and 0.9 and sums to 1:"),
        ({"log_prior": [1e308] * 4}, None, 1e308, "log_prior times prior_weight comes to 1e+308; over T = 6 frames"),
        ({"log_prior": [0.0] * 4, "prior_weight": np.nan}, None, np.nan, "prior_weight is nan;"),
    ],
)
def test_which_of_the_scores_is_wrong(scores, sample, value, words):
    """A sample is named where the bonus has one for each."""
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.ctc_lattice(fresh(70).normal(size=(6, 2, 4)), [[1, 2], [3]], **scores)
    error = caught.value
    assert str(error).startswith(words)
    assert error.sample == sample
    assert type(error.value) is type(value)  # and no scalar of NumPy's
    np.testing.assert_equal(error.value, value)


@pytest.mark.parametrize(
    ("function", "name"),
    [("ctc_lattice", "log_z"), ("posteriors", ""), ("lattice_loss_and_grad", "loss"), ("align", "log_p")],
)
def test_a_prior_counts_once(function, name):
    rng = fresh(73)
    x, prior = rng.normal(size=(6, 2, 4)), rng.normal(size=4)

    def found(log_prior: np.ndarray, **weight: float) -> np.ndarray:
        result = FUNCTIONS[function](x, [[1, 2], [3]], log_prior=log_prior, **weight)
        return getattr(result, name) if name else result

    np.testing.assert_array_equal(found(prior), found(prior, prior_weight=1))
    np.testing.assert_array_equal(found(prior * 2), found(prior, prior_weight=2))
    assert not np.array_equal(found(prior), found(prior * 2))


@pytest.mark.parametrize("total", [0.9995, 1.0005])
def test_probabilities_that_were_rounded_are_no_prior(total):
    x, prior = fresh(74).normal(size=(3, 1, 4)), np.array([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(ctcbind.InvalidInput, match="these are probabilities; pass their logarithms") as told:
        ctcbind.align(x, [[1]], log_prior=prior * total)
    assert told.value.value == pytest.approx(total)
    ctcbind.align(x, [[1]], log_prior=prior * 1.002)  # scores, as far as one can see


def test_the_prior_of_one_class_is_no_probability():
    """0 is its logarithm, and 1 a score like any other; what -inf forbids counts as no score either."""
    x = fresh(71).normal(size=(3, 1, 1))
    np.testing.assert_allclose(ctcbind.ctc_lattice(x, [[]], log_prior=[1.0]).log_z, -3.0)
    x = fresh(72).normal(size=(6, 1, 4))
    forbidden = one((3,), (2,), -np.inf)  # the path must end in the label
    low = ctcbind.ctc_lattice(x, [[1]], path_bonus=forbidden - 3.0).log_z
    np.testing.assert_allclose(low, ctcbind.ctc_lattice(x, [[1]], path_bonus=forbidden).log_z - 18.0)


@pytest.mark.parametrize("function", ["ctc_lattice", "posteriors", "lattice_loss_and_grad", "align"])
def test_a_bonus_is_not_read_past_a_sample(function):
    rng = fresh(67)
    x, labels, frames = rng.normal(size=(6, 3, 4)), [[1, 2], [3], []], [5, 6, 4]
    bonus, poisoned = rng.normal(size=(2, 3, 6, 5))
    poisoned[:] = rng.choice([np.nan, np.inf, 1e308, -1e308], size=poisoned.shape)
    for n, length in enumerate(frames):
        read = np.s_[n, :length, : 2 * len(labels[n]) + 1]
        poisoned[read] = bonus[read]
    given, other = (FUNCTIONS[function](x, labels, frames, path_bonus=each) for each in (bonus, poisoned))
    for one, same in zip(given, other):
        np.testing.assert_array_equal(one, same)
    for wrong, rule in ((np.nan, r"path_bonus\[2\]\[3\]\[0\] is nan"), (1e308, "comes to 1e.308")):
        poisoned[2, 3, 0] = wrong
        with pytest.raises(ctcbind.InvalidInput, match=rule):
            FUNCTIONS[function](x, labels, frames, path_bonus=poisoned)


@pytest.mark.parametrize("function", ["ctc_lattice", "posteriors", "lattice_loss_and_grad", "align"])
def test_a_bonus_of_no_frames(function: str) -> None:
    found = FUNCTIONS[function](np.zeros((0, 2, 4)), [[], []], path_bonus=np.zeros((2, 0, 1)))
    np.testing.assert_equal(found, FUNCTIONS[function](np.zeros((0, 2, 4)), [[], []], path_bonus=0.0))


def test_a_bonus_of_any_stride():
    rng = fresh(68)
    x = rng.normal(size=(6, 2, 4))
    bonus = rng.normal(size=(2, 6, 5))
    right = ctcbind.ctc_lattice(x, [[1, 2], [3]], path_bonus=bonus).log_z
    for same in (np.asfortranarray(bonus), np.repeat(bonus, 2, axis=1)[:, ::2], bonus[:, ::-1].copy()[:, ::-1]):
        np.testing.assert_array_equal(ctcbind.ctc_lattice(x, [[1, 2], [3]], path_bonus=same).log_z, right)


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ({"path_bonus": np.ma.array(np.full((5, 5), -np.inf), mask=True)}, "path_bonus cannot be read.*masked array"),
        ({"path_bonus": 1e308}, "path_bonus comes to 1e\\+308; over T = 5 frames"),
        ({"log_prior": np.full(4, -1e308), "prior_weight": 10}, "log_prior times prior_weight comes to inf"),
        ({"log_prior": np.full(4, 1e300)}, "log_prior times prior_weight comes to 1e\\+300"),
        ({"log_prior": np.zeros(4), "prior_weight": 10**400}, "prior_weight is 1000"),
        ({"log_prior": np.zeros(4), "prior_weight": np.complex64(1 + 5j)}, "prior_weight is"),
        ({"prior_weight": np.inf}, "prior_weight is inf; it must be a finite number"),
        ({"prior_weight": np.timedelta64(1, "s")}, "prior_weight is .*; it must be a finite number"),
    ],
)
def test_scores_that_do_not_add_up_are_refused(scores, words):
    logits = np.random.default_rng(SEED).normal(size=(5, 1, 4))
    for function in (ctcbind.lattice_loss_and_grad, ctcbind.align, ctcbind.ctc_lattice):
        with pytest.raises(ctcbind.InvalidInput, match=words):
            function(logits, [[1, 2]], **scores)


def test_what_leaves_float32_is_infinite_without_a_warning():
    logits = np.full((5, 1, 3), [3e38, -3e38, -3e38], np.float32)
    assert ctcbind.ctc_loss(logits, [[1, 2]]) == np.inf
    assert ctcbind.lattice_loss_and_grad(logits, [[1, 2]]).loss == np.inf
    assert ctcbind.align(logits, [[1, 2]]).log_p == -np.inf
    assert ctcbind.ctc_lattice(logits, [[1, 2]]).log_z == -np.inf


@pytest.mark.parametrize("seed", range(12))
def test_every_value_is_written(seed, monkeypatch):
    """Whatever memory held before, the results are the same."""
    case, empty, seen = random_case([SEED, 68, seed]), np.empty, []

    def full_of(garbage):
        def filled(*args, **options):
            array = empty(*args, **options)
            array.fill(garbage)
            return array

        return filled

    for garbage in (7, -3):
        with monkeypatch.context() as patch:
            patch.setattr(np, "empty", full_of(garbage))
            bonus = np.arange(2 * max(map(len, case.labels)) + 1) / 8
            lattice_, shares = (
                ctcbind.ctc_lattice(*case.args, **case.options),
                ctcbind.posteriors(*case.args, **case.options),
            )
            loss = ctcbind.lattice_loss_and_grad(*case.args, path_bonus=bonus, **case.options)
            path = ctcbind.align(*case.args, **case.options)
            product = FUNCTIONS["ctc_hvp"](*case.args, **case.options)
        seen.append([*lattice_, shares, *loss[:3], *path, product])
    for one, other in zip(*seen):
        assert one.tobytes() == other.tobytes()


LONG_CALL = """
    import os, signal, sys, threading, time
    import numpy as np, ctcbind
    call = {
        "ctc_lattice": lambda x, y: ctcbind.ctc_lattice(x, y)[3],
        "align": lambda x, y: ctcbind.align(x, y)[2],
        "ctc_hvp": lambda x, y: ctcbind.ctc_hvp(x, y, x),
        "greedy_decode": lambda x, y: [each.log_p for each in ctcbind.greedy_decode(x)],
    }[sys.argv[1]]
    row = np.random.default_rng(0).normal(size=40).astype(np.float32)
    def run(N):
        start = time.perf_counter()
        result = call(np.broadcast_to(row, (400, N, 40)), [[1, 2, 3] * 40] * N)
        return time.perf_counter() - start, result
    whole, N = 0, 20
    while whole < 0.7:  # whatever this machine needs so long for
        N *= 2
        whole, right = run(N)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    begun = time.perf_counter()
    try:
        run(N)
    except KeyboardInterrupt:
        print(whole, time.perf_counter() - begun)
    assert np.array_equal(run(40)[1], right[:, :40] if sys.argv[1] == "ctc_hvp" else right[:40])
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no SIGINT to itself")
@pytest.mark.parametrize("name", ["ctc_lattice", "align", "ctc_hvp", "greedy_decode"])
def test_ctrl_c_is_answered_between_samples(name):
    done = process(LONG_CALL, name)
    assert (done.returncode, done.stderr) == (0, "")
    whole, took = map(float, done.stdout.split())
    assert took < 0.2 + 0.5 * whole


ONE_SAMPLE = """
    import signal, sys, time
    import numpy as np, ctcbind
    row = np.random.default_rng(0).normal(size=40).astype(np.float32)
    calls = {
        "greedy_decode": lambda: ctcbind.greedy_decode(np.broadcast_to(row, (240_000_000, 1, 40))),
        "ctc_hessian": lambda: ctcbind.ctc_hessian(np.broadcast_to(row[:2], (3500, 1, 2)), [[1] * 1700]),
        "lattice_loss_and_grad": lambda: ctcbind.lattice_loss_and_grad(
            np.broadcast_to(row, (120_000, 1, 40)), [[1, 2, 3] * 16_000]
        ),
    }
    heard, over = [time.process_time()], []
    def hear(*_):
        heard.append(time.process_time())
        if heard[-1] - heard[0] > 3 and not over:
            over.append("that is long enough to tell")
            raise TimeoutError  # once: the next signal may come before the timer is stopped
    signal.signal(signal.SIGPROF, hear)
    signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)
    try:
        calls[sys.argv[1]]()
    except TimeoutError:
        pass
    signal.setitimer(signal.ITIMER_PROF, 0)
    heard.append(time.process_time())
    print(heard[-1] - heard[0], np.diff(heard).max())
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that send a signal")
@pytest.mark.parametrize("name", ["greedy_decode", "ctc_hessian", "lattice_loss_and_grad"])
def test_signals_are_heard_within_a_sample(name):
    """By the time of the process, which stands still while other programs have the machine."""
    done = process(ONE_SAMPLE, name, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    whole, longest = map(float, done.stdout.split())
    assert whole > 0.5, "too short a call to tell"
    assert longest < max(0.4, 0.15 * whole)


def test_an_instruction_set_that_is_not_there_is_refused():
    code = """
        import numpy as np, ctcbind
        x = np.zeros((4, 1, 3))
        def hvp(x, targets):
            ctcbind.ctc_hvp(x, targets, v=x)
        def read(x, _):
            ctcbind.greedy_decode(x)
        def search(x, _):
            ctcbind.beam_search(x)
        for function in (ctcbind.ctc_lattice, ctcbind.posteriors, ctcbind.lattice_loss_and_grad, ctcbind.align, hvp,
                         ctcbind.ctc_hessian, read, search):
            try:
                function(x, [[1]])
            except ctcbind.InvalidInput as problem:
                print(problem.rule)
    """
    done = process(code, env={**os.environ, "CTCBIND_ISA": "none such"})
    assert (done.returncode, done.stdout) == (0, 8 * "CTCBIND_ISA\n"), done.stderr


@pytest.mark.parametrize("function", ["align", "posteriors", "greedy_decode"])
@pytest.mark.parametrize(("T", "threads"), [(20, 1), (60_000, 3)])
def test_threads_are_asked_for_where_there_is_work_for_them(function, T, threads, monkeypatch):
    module, name = {
        "align": (native_lattice, "align"),
        "posteriors": (native_lattice, "lattices"),
        "greedy_decode": (native_decode, "greedy"),
    }[function]
    asked, real = [], getattr(module, name)

    def call(*arguments, **named):
        asked.append(named["threads"] if named else arguments[-1])
        return real(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    monkeypatch.setattr(native_samples, "get_num_threads", lambda: 3)
    x = np.broadcast_to(np.float32(0), (T, 2, 4))
    getattr(ctcbind, function)(x, *([] if function == "greedy_decode" else [[[1], [2, 3]]]))
    assert asked == [threads]
