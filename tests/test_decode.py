"""Decoding: exhaustive search on tiny problems, the reference, memory of its own, and what is no input."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import signal
import sys
import time

import fake_cupy
import numpy as np
import pytest
from batches import SEED, paths_of, random_case
from beyond import IN_FLOATS, run_script
from test_native_threads import process

import ctcbind
from ctcbind.engines import native_decode, reference_decode
from ctcbind.engines.reference import log_softmax

DTYPES: list[object] = ["float16", "float32", "float64"]
with contextlib.suppress(ImportError):
    DTYPES.append(importlib.import_module("ml_dtypes").bfloat16)
FUNCTIONS = {"greedy_decode": ctcbind.greedy_decode, "beam_search": ctcbind.beam_search}


def every_labelling(x, blank, topology):
    """{labels: ln p} of one sample, x (T, C), from every path."""
    T, C = x.shape
    y = np.exp(log_softmax(x))
    return {
        labels: float(np.log(y[np.arange(T), paths].prod(axis=1).sum()))
        for labels, paths in paths_of(T, C, blank, topology).items()
    }


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize(("T", "C", "blank"), [(1, 3, 0), (3, 3, 1), (5, 3, 0), (4, 4, -1), (6, 2, 0), (3, 1, 0)])
def test_exhaustive_search(T, C, blank, topology):
    """With room for every prefix the beam holds every labelling, each with its exact probability."""
    x = np.random.default_rng([SEED, 91, T, C]).normal(size=(T, 1, C))
    right = every_labelling(x[:, 0], blank % C, topology)
    got = ctcbind.beam_search(x, beam_width=1000, blank=blank, topology=topology)[0]
    assert len(got) == len(right)
    assert {tuple(each.labels) for each in got} == set(right)
    for labels, log_p, score in got:
        assert log_p == pytest.approx(right[tuple(labels)], abs=1e-12)
        assert score == log_p
        loss = ctcbind.ctc_loss(x, [labels], blank=blank, topology=topology, engine="reference")[0]
        assert log_p == pytest.approx(-loss, abs=1e-12)
    assert [each.score for each in got] == sorted((each.score for each in got), reverse=True)
    assert sum(math.exp(each.log_p) for each in got) == pytest.approx(1)
    best = ctcbind.beam_search(x, beam_width=1000, blank=blank, topology=topology, n_best=2)[0]
    assert best == got[:2]


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_exhaustive_search_with_a_language_model(topology):
    x = np.random.default_rng([SEED, 92]).normal(size=(5, 1, 3))

    def lm(prefix):
        return -0.8 * len(prefix) + (1.5 if prefix[:2] == (2, 1) else 0.0)

    right = every_labelling(x[:, 0], 0, topology)
    got = ctcbind.beam_search(x, beam_width=1000, lm=lm, topology=topology)[0]
    assert len(got) == len(right)
    for labels, log_p, score in got:
        assert log_p == pytest.approx(right[tuple(labels)], abs=1e-12)
        assert score == pytest.approx(log_p + lm(tuple(labels)), abs=1e-12)
    assert tuple(got[0].labels) == max(right, key=lambda labels: right[labels] + lm(labels))


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("width", [1, 2, 3, 7, 40, 80, 81, 200])
@pytest.mark.parametrize("seed", range(5))
def test_against_the_reference(seed, width, topology):
    """The same beam at every frame: the dictionary's hypotheses, scores and order, with and without lm and prune."""
    rng = np.random.default_rng([SEED, 93, seed, width])
    T, C = int(rng.integers(1, 60)), int(rng.integers(2, 12))
    blank = int(rng.integers(0, C))
    x = rng.normal(scale=float(rng.choice([0.3, 1, 4])), size=(T, 1, C))
    log_y = log_softmax(x[:, 0])
    weights = rng.normal(size=C)

    def lm(prefix):
        return float(sum(weights[label] for label in prefix)) * 0.5 - (0.3 if len(prefix) % 3 else 0)

    for model, prune in itertools.product((None, lm), (0.0, 0.05)):
        got = ctcbind.beam_search(x, beam_width=width, blank=blank, lm=model, prune=prune, topology=topology)[0]
        right = reference_decode.beam_search(
            log_y,
            width,
            blank,
            merge_repeats=topology == "ctc",
            lm=model,
            log_prune=math.log(prune) if prune else -np.inf,
        )
        assert [tuple(each.labels) for each in got] == [labels for labels, _, _ in right]
        for one, (_, log_p, score) in zip(got, right):
            assert one.log_p == pytest.approx(log_p, rel=1e-12, abs=1e-12)
            assert one.score == pytest.approx(score, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 4, 7, 10, 100])
def test_a_class_on_the_border_is_not_pruned(classes):
    """Whichever way the logarithms of both are rounded."""
    for shift in (0.0, 0.1, 17.3):
        (found,) = ctcbind.beam_search(np.full((1, 1, classes), shift), beam_width=classes, prune=1 / classes)
        assert len(found) == classes


@pytest.mark.parametrize("seed", range(40))
def test_every_array_and_length(seed):
    """Any memory layout, dtype, blank, lengths: as the sample alone, plain and contiguous."""
    case = random_case([SEED, 94, seed])
    logits, _, lengths, _ = case.args
    options = {name: case.options[name] for name in ("blank", "layout", "topology")}
    greedy = ctcbind.greedy_decode(logits, lengths, **options)
    beams = ctcbind.beam_search(logits, lengths, beam_width=6, **options)
    assert len(greedy) == len(beams) == case.x.shape[1]
    merge = case.topology == "ctc"
    for n, frames in enumerate(case.frames):
        log_y = log_softmax(case.x[:frames, n])
        if frames == 0:
            assert greedy[n] == ctcbind.Hypothesis([], 0.0, 0.0)
            assert beams[n] == [ctcbind.Hypothesis([], 0.0, 0.0)]
            continue
        labels, log_p = reference_decode.greedy(log_y, case.blank, merge_repeats=merge)
        if len(np.unique(log_y)) == log_y.size:
            assert greedy[n].labels == labels
        rel = 1e-12 if logits.dtype == np.float64 else IN_FLOATS
        assert greedy[n].log_p == pytest.approx(log_p, rel=rel, abs=1e-12)
        plain = ctcbind.beam_search(case.x[:frames, n : n + 1], beam_width=6, blank=case.blank, topology=case.topology)
        assert beams[n] == plain[0]
        assert all(isinstance(label, int) for label in beams[n][0].labels)


def check_greedy(seed, dtypes):
    """Of the dtypes, for rows of every length and of few numbers and many: the first of the largest, and ln p, relative
    to itself, where it is tiny too. Each frame takes ln of its sum off it, all of one sign, so that its relative
    error is at most that of a frame."""
    rng = np.random.default_rng([SEED, 98, seed])
    for dtype in dtypes:
        for C in (1, 2, 7, 16, 31, 33, 64, 97, 300, 1030, 5003):
            T, scale = int(rng.integers(1, 9)), float(np.exp(rng.uniform(-1, 3)))
            x = (scale * rng.normal(size=(T, 2, C))).astype(dtype)
            x[rng.integers(T), :, rng.integers(C)] += np.asarray(60, x.dtype)  # a sure frame
            x[rng.integers(T), 1] = x[0, 0, 0]  # one that is sure of nothing
            if C > 1:
                x[rng.integers(T), 1, rng.integers(C)] = -np.inf
            how = int(rng.integers(3))
            given = x if how == 0 else x[:, :, ::-1].copy()[:, :, ::-1] if how == 1 else np.asfortranarray(x)
            exact = x.astype(np.float64)
            top, best = exact.max(axis=2), exact.argmax(axis=2)
            terms = np.exp(exact - top[:, :, None])
            np.put_along_axis(terms, best[:, :, None], 0, axis=2)
            log_p = -np.log1p(terms.sum(axis=2)).sum(axis=0)
            rel, least = (1e-12, 1e-300) if dtype == "float64" else (IN_FLOATS, C * T * 1e-38)
            for n, found in enumerate(ctcbind.greedy_decode(given, topology="simple", blank=-1)):
                assert found.labels == [k for k in best[:, n].tolist() if k != C - 1], (dtype, C, how)
                assert found.log_p == pytest.approx(log_p[n], rel=rel, abs=least), (dtype, C, how)
            x[-1, 1, rng.integers(C)] = np.nan
            with pytest.raises(ctcbind.InvalidInput, match=f"sample 1 hold a NaN at frame {T - 1}"):
                ctcbind.greedy_decode(x)


@pytest.mark.parametrize("seed", range(4))
def test_greedy_of_each_dtype(seed):
    check_greedy(seed, DTYPES)


def test_greedy_takes_the_lowest_of_equals():
    x = np.zeros((4, 1, 3))
    assert ctcbind.greedy_decode(x, blank=2)[0].labels == [0]
    assert ctcbind.greedy_decode(x, blank=2, topology="simple")[0].labels == [0] * 4
    assert ctcbind.greedy_decode(x)[0].log_p == pytest.approx(4 * math.log(1 / 3))


def test_ties_are_the_same_on_every_run():
    x = np.zeros((12, 3, 6))
    first = ctcbind.beam_search(x, beam_width=20)
    assert all(ctcbind.beam_search(x, beam_width=20) == first for _ in range(3))
    assert first[0] == first[1] == first[2]
    ctcbind.set_num_threads(1)
    assert ctcbind.beam_search(x, beam_width=20) == first


@pytest.mark.parametrize("width", [1, 2, 79, 80, 81, 150, 499, 500, 997, 1200])
@pytest.mark.parametrize("kinds", [1, 2, 10, 1000])
@pytest.mark.parametrize("order", ["mixed", "rising", "falling"])
def test_the_first_of_equals_is_kept(width, kinds, order):
    """Of one frame of alike classes: by the model's score, and as they come where that is the same."""
    C = 998
    kind = {
        "mixed": lambda label: label * 7919 % 1009 % kinds,
        "rising": lambda label: label * kinds // C,
        "falling": lambda label: -(label * kinds // C),
    }[order]
    scores = {(): 0.0} | {(label,): float(kind(label)) for label in range(1, C)}
    got = ctcbind.beam_search(np.zeros((1, 1, C)), beam_width=width, lm=lambda prefix: scores[prefix])[0]
    right = sorted(scores, key=lambda prefix: -scores[prefix])[:width]  # a stable sort
    assert [tuple(each.labels) for each in got] == right


def test_many_classes():
    """More than any beam looks at; the classes come from a heap in order."""
    rng = np.random.default_rng([SEED, 95])
    x = rng.normal(scale=2, size=(15, 1, 3000)).astype(np.float32)
    got = ctcbind.beam_search(x, beam_width=5, blank=-1)[0]
    right = reference_decode.beam_search(log_softmax(x[:, 0].astype(np.float64)), 5, 2999)
    assert [tuple(each.labels) for each in got] == [labels for labels, _, _ in right]


def test_prefixes_that_come_back():
    """A prefix that leaves the beam and returns, while longer ones stayed, is the same prefix."""
    x = np.random.default_rng([SEED, 96]).normal(scale=6, size=(40, 150, 3))  # such a one is left in some 25 of them
    for got in ctcbind.beam_search(x, beam_width=20):
        assert len({tuple(each.labels) for each in got}) == len(got)


def test_many_prefixes_of_one_parent():
    """8 times as wide a beam takes some 9 times as long; looking for a child among all others it took 64 times."""

    def seconds(width):
        x, took = np.zeros((2, 1, width + 1)), []
        for _ in range(5):
            begin = time.perf_counter()
            ctcbind.beam_search(x, beam_width=width, n_best=1)
            took.append(time.perf_counter() - begin)
        return min(took)

    assert seconds(16_000) < 24 * seconds(2000)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of this process from the kernel")
def test_prefixes_that_fell_out_take_no_memory():
    """64 new prefixes at each of 30,000 frames would be 90 MB of nodes; those that are left are a few."""
    script = """
        import numpy as np, ctcbind
        x = np.random.default_rng(0).standard_normal((30_000, 1, 8), dtype=np.float32)
        ctcbind.beam_search(x[:100], beam_width=64, n_best=1)
        before = peak()
        found = ctcbind.beam_search(x, beam_width=64, n_best=1)[0][0]
        print(len(found.labels), peak() - before)
    """
    labels, grown = run_script(script)
    assert labels > 10_000
    assert grown < 10e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of this process from the kernel")
def test_the_memory_of_a_beam_is_what_is_told_where_it_cannot_be_had():
    """Of address space: beams of one frame touch little of it. Blocks of this size are mapped each for itself."""
    script = """
        import numpy as np, ctcbind
        def mapped(what):
            with open("/proc/self/status") as status:
                return 1024 * next(int(line.split()[1]) for line in status if line.startswith(what))
        x = np.zeros((1, 1, 5))
        ctcbind.beam_search(x)
        before = mapped("VmSize")  # imports may have had more for a moment
        ctcbind.beam_search(x, beam_width=2**22)
        print(mapped("VmPeak") - before)
    """
    (grown,) = run_script(script)
    told = 2**22 * (native_decode.A_PREFIX + 5)
    assert told <= grown < 1.01 * told


def test_special_values():
    x = np.zeros((3, 2, 3))
    x[1, 0] = -np.inf  # a frame without any class: nothing can be read
    x[1, 1, 2] = np.inf  # a class that is certain
    found = ctcbind.beam_search(x, beam_width=9)
    assert found[0] == []
    assert all(2 in each.labels for each in found[1])
    assert ctcbind.greedy_decode(x)[0].log_p == -np.inf
    x[2, 1, 0] = np.nan
    for function in FUNCTIONS.values():
        with pytest.raises(ctcbind.InvalidInput, match="sample 1 hold a NaN at frame 2") as caught:
            function(x)
        assert (caught.value.rule, caught.value.sample) == ("nan", 1)
        assert len(function(x, [3, 2])) == 2  # past the end it is not looked at


def test_extreme_scores_do_not_underflow():
    x = np.random.default_rng([SEED, 97]).normal(scale=3000, size=(50, 1, 5))
    got = ctcbind.beam_search(x, beam_width=8)[0]
    assert len(got) == 8
    assert got[0].labels == ctcbind.greedy_decode(x)[0].labels
    assert all(math.isfinite(each.log_p) for each in got)


# --- input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2.0}, "beam_width"),
        ({"beam_width": 2**30}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"beam_width": np.True_}, "beam_width"),
        ({"n_best": 0}, "n_best"),
        ({"n_best": "all"}, "n_best"),
        ({"prune": 1}, "prune"),
        ({"prune": -0.1}, "prune"),
        ({"prune": math.nan}, "prune"),
        ({"prune": True}, "prune"),
        ({"prune": "0.1"}, "prune"),
        ({"lm": "a model"}, "lm"),
        ({"topology": "simplex"}, "topology"),
    ],
)
def test_wrong_options(options, rule):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.beam_search(np.zeros((2, 1, 3)), **options)
    assert caught.value.rule == rule
    assert caught.value.value is options[rule]
    assert str(caught.value).startswith(f"{rule} is {options[rule]!r}; it must be ")


def test_arrays_on_a_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    x = np.random.default_rng([SEED, 101]).normal(size=(2, 9, 4)).astype(np.float32)
    for function in FUNCTIONS.values():
        assert function(fake_cupy.asarray(x), layout="NTC") == function(x, layout="NTC")


WIDE = """
    import signal, time
    import numpy as np, ctcbind
    logits = np.random.default_rng(0).normal(size=(5, 1, 30))
    heard = [time.perf_counter()]
    signal.signal(signal.SIGALRM, lambda *_: heard.append(time.perf_counter()))
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    ctcbind.beam_search(logits, beam_width=1_000_000, n_best=1)  # the last frame adds 29 to 29**4 prefixes
    signal.setitimer(signal.ITIMER_REAL, 0)
    heard.append(time.perf_counter())
    print(heard[-1] - heard[0], np.diff(heard).max())
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no timers that send a signal")
def test_signals_are_heard_within_a_frame():
    """The last frame takes three quarters of the time."""
    done = process(WIDE)
    assert (done.returncode, done.stderr) == (0, "")
    whole, longest = map(float, done.stdout.split())
    assert longest < 0.4 * whole


def test_a_sample_with_a_nan_ends_the_search():
    """The first of them is named, and what comes after it is not searched."""
    x = np.random.default_rng(SEED).normal(size=(400, 64, 30))
    begin = time.perf_counter()
    ctcbind.beam_search(x, beam_width=50)
    whole = time.perf_counter() - begin
    x[0, [1, 40]] = np.nan
    begin = time.perf_counter()
    with pytest.raises(ctcbind.InvalidInput, match="logits of sample 1 hold a NaN at frame 0"):
        ctcbind.beam_search(x, beam_width=50)
    assert time.perf_counter() - begin < whole / 2


def test_a_width_in_the_place_of_the_lengths_is_asked_for_by_name():
    x = np.zeros((5, 3, 4))
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.beam_search(x, 10)
    assert str(caught.value) == (
        "input_lengths is 10; it must hold one length a sample: pass [10] * 3, or beam_width=10 if that is meant"
    )
    assert (caught.value.rule, caught.value.value) == ("length_rank", 10)
    with pytest.raises(ctcbind.InvalidInput, match=r"pass \[10\] \* 3$"):
        ctcbind.greedy_decode(x, 10)
    with pytest.raises(ctcbind.InvalidInput, match=r"pass numpy\.ravel\(input_lengths\)$"):
        ctcbind.beam_search(x, [[5, 4, 3]])
