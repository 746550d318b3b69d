"""Decoding: exhaustive search on tiny problems, the reference, language models, memory of its own, and the peers."""

from __future__ import annotations

import itertools
import math
import signal
import sys
import time

import fake_cupy
import numpy as np
import pytest
from batches import SEED, paths_of, random_case
from beyond import run_script
from test_native_threads import process

import ctcbind
from ctcbind.bindings import native_decode as c
from ctcbind.engines import native_decode, reference_decode
from ctcbind.engines.reference import log_softmax

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


class Counting:
    """cffi's functions, and how many values `unpack` has read."""

    def __init__(self, ffi):
        self.ffi = ffi
        self.read = 0

    def __getattr__(self, name):
        return getattr(self.ffi, name)

    def unpack(self, pointer, count):
        self.read += count
        return self.ffi.unpack(pointer, count)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_language_model_is_given_whole_prefixes_of_which_what_is_new_is_read(width, topology, monkeypatch):
    """The front that a prefix shares with the one before is copied, in a tenth of the time."""
    x = np.random.default_rng([SEED, 99, width]).normal(scale=3, size=(150, 1, 6))
    asked, known = [], []

    def model(seen):
        return lambda prefix: seen.append(prefix) or hash(prefix) % 1000 / 500  # the order of the labels counts

    with monkeypatch.context() as patch:
        counting = Counting(c.ffi)
        patch.setattr(c, "ffi", counting)
        got = ctcbind.beam_search(x, beam_width=width, lm=model(asked), topology=topology, n_best=1)[0]
    log_y, merge = log_softmax(x[:, 0]), topology == "ctc"
    right = reference_decode.beam_search(log_y, width, 0, merge_repeats=merge, lm=model(known))
    assert tuple(got[0].labels) == right[0][0]
    assert set(asked) <= set(known)
    assert {type(label) for prefix in asked for label in prefix} == {int}
    assert counting.read < sum(map(len, asked)) / 2  # it was all of it


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
        assert greedy[n].log_p == pytest.approx(log_p, rel=1e-12, abs=1e-12)
        plain = ctcbind.beam_search(case.x[:frames, n : n + 1], beam_width=6, blank=case.blank, topology=case.topology)
        assert beams[n] == plain[0]
        assert all(isinstance(label, int) for label in beams[n][0].labels)


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
    for seed in range(30):
        x = np.random.default_rng([SEED, 96, seed]).normal(scale=3, size=(40, 1, 3))
        got = ctcbind.beam_search(x, beam_width=4)[0]
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


# --- the language model -------------------------------------------------------------------------------------


def test_what_the_model_is_asked():
    asked = []

    def lm(prefix):
        asked.append(prefix)
        return 0.0

    x = np.random.default_rng([SEED, 98]).normal(size=(6, 2, 3))
    with_model = ctcbind.beam_search(x, beam_width=4, lm=lm)
    assert [[each[:2] for each in one] for one in with_model] == [
        [each[:2] for each in one] for one in ctcbind.beam_search(x, beam_width=4)
    ]
    assert asked[0] == ()
    assert all(isinstance(each, tuple) and set(each) <= {1, 2} for each in asked)
    assert {tuple(each.labels) for one in with_model for each in one} <= set(asked)


def test_a_model_may_forbid():
    x = np.random.default_rng([SEED, 99]).normal(size=(8, 1, 4))
    words = [(1, 2), (1, 3), (2,)]
    allowed = {word[:k] for word in words for k in range(len(word) + 1)}
    got = ctcbind.beam_search(x, beam_width=10, lm=lambda prefix: 0.0 if prefix in allowed else -math.inf)[0]
    assert {tuple(each.labels) for each in got} == allowed
    for labels, log_p, _ in got:
        assert log_p == pytest.approx(-ctcbind.ctc_loss(x, [labels], engine="reference")[0], abs=1e-12)
    assert ctcbind.beam_search(x, lm=lambda prefix: -math.inf) == [[]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, "high", "0.5", None, 1j])
def test_a_model_that_says_nothing(bad):
    with pytest.raises(ctcbind.InvalidInput, match="lm") as caught:
        ctcbind.beam_search(np.zeros((3, 1, 3)), lm=lambda prefix: bad if len(prefix) == 2 else 0.0)
    assert caught.value.rule == "lm"


def test_what_a_model_raises_passes_through():
    class OwnError(Exception):
        pass

    def lm(prefix):
        if len(prefix) == 2:
            raise OwnError(prefix)
        return 0.0

    with pytest.raises(OwnError):
        ctcbind.beam_search(np.zeros((4, 2, 3)), lm=lm)
    with pytest.raises(KeyboardInterrupt):
        ctcbind.beam_search(np.zeros((4, 2, 3)), lm=lambda prefix: (_ for _ in ()).throw(KeyboardInterrupt))
    assert ctcbind.beam_search(np.zeros((1, 1, 2)))  # nothing is left over


def test_a_model_may_search_itself():
    x = np.random.default_rng([SEED, 100]).normal(size=(4, 1, 3))
    inner = ctcbind.beam_search(x, lm=lambda prefix: -float(len(prefix)))

    def lm(prefix):
        assert ctcbind.beam_search(x, lm=lambda p: -float(len(p))) == inner
        return -float(len(prefix))

    assert ctcbind.beam_search(x, lm=lm) == inner


# --- input --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 2.0}, "beam_width"),
        ({"beam_width": 2**30}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"n_best": 0}, "n_best"),
        ({"n_best": "all"}, "n_best"),
        ({"prune": 1}, "prune"),
        ({"prune": -0.1}, "prune"),
        ({"prune": math.nan}, "prune"),
        ({"prune": True}, "prune"),
        ({"prune": "0.1"}, "prune"),
        ({"lm": "a model"}, "lm"),
    ],
)
def test_wrong_options(options, rule):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.beam_search(np.zeros((2, 1, 3)), **options)
    assert caught.value.rule == rule


def test_arrays_on_a_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    x = np.random.default_rng([SEED, 101]).normal(size=(2, 9, 4)).astype(np.float32)
    for function in FUNCTIONS.values():
        assert function(fake_cupy.asarray(x), layout="NTC") == function(x, layout="NTC")


# --- the peers ----------------------------------------------------------------------------------------------

ALPHABET = "_abcdefg"


def spoken(seed, T=80):
    """Scores of a network that mostly knows what it sees: (T, 1, C), no ties."""
    rng = np.random.default_rng([SEED, 103, seed])
    C = len(ALPHABET)
    x = rng.normal(size=(T, 1, C))
    frames = np.where(rng.random(T) < 0.6, 0, rng.integers(1, C, size=T))
    x[np.arange(T), 0, frames] += 5
    return x.astype(np.float32)


def text(labels):
    return "".join(ALPHABET[label] for label in labels)


@pytest.mark.parametrize("seed", range(8))
def test_fast_ctc_decode_agrees(seed):
    peer = pytest.importorskip("fast_ctc_decode")
    x = spoken(seed)
    y = np.exp(log_softmax(x[:, 0].astype(np.float64))).astype(np.float32)
    assert text(ctcbind.greedy_decode(x)[0].labels) == peer.viterbi_search(y, ALPHABET)[0]
    theirs = peer.beam_search(y, ALPHABET, beam_size=20, beam_cut_threshold=0.0)[0]
    assert text(ctcbind.beam_search(x, beam_width=20)[0][0].labels) == theirs


@pytest.mark.parametrize("seed", range(4))
def test_pyctcdecode_agrees(seed):
    """Acoustic only, its own pruning switched off."""
    peer = pytest.importorskip("pyctcdecode")
    x = spoken(seed, T=30)
    log_y = log_softmax(x[:, 0].astype(np.float64))
    decoder = peer.build_ctcdecoder(["", *ALPHABET[1:]])
    theirs = decoder.decode(log_y, beam_width=50, beam_prune_logp=-1e9, token_min_logp=-1e9)
    assert text(ctcbind.beam_search(x, beam_width=50)[0][0].labels) == theirs


@pytest.mark.parametrize("seed", range(4))
def test_torch_agrees(seed):
    """What is read has, by PyTorch's own loss, the probability that the beam says."""
    torch = pytest.importorskip("torch")
    x = spoken(seed)
    scores = torch.tensor(x.astype(np.float64)).log_softmax(2)

    def theirs(labels, T):
        target, lengths = torch.tensor([labels]), (torch.tensor([T]), torch.tensor([len(labels)]))
        return float(torch.nn.functional.ctc_loss(scores[:T], target, *lengths, reduction="none")[0])

    for labels, log_p, _ in ctcbind.beam_search(x[:5], beam_width=20_000)[0][:50]:  # room for every prefix
        if labels:
            assert -log_p == pytest.approx(theirs(labels, 5), rel=1e-12)
    labels, log_p, _ = ctcbind.beam_search(x, beam_width=100)[0][0]
    assert labels
    assert -log_p >= theirs(labels, len(x)) - 1e-9  # no path that the word does not have
    greedy = scores[:, 0].argmax(dim=1)
    collapsed = torch.unique_consecutive(greedy)
    assert ctcbind.greedy_decode(x)[0].labels == collapsed[collapsed != 0].tolist()


INTERRUPTED = """
    import os, signal, threading, time
    import numpy as np, ctcbind
    logits = np.random.default_rng(0).normal(size=(300, 1, 32)).astype(np.float32)
    def search():
        return ctcbind.beam_search(logits, beam_width=20, lm=lambda prefix: -0.1 * len(prefix))[0][0]
    start = time.perf_counter()
    right = search()
    took = time.perf_counter() - start
    answered = 0
    for k in range(20):
        sender = threading.Timer(took * (k + 1) / 30, os.kill, (os.getpid(), signal.SIGINT))
        sender.start()
        try:
            found = search()
        except KeyboardInterrupt:
            answered += 1
            continue
        assert found == right
        try:
            time.sleep(10)  # it was over before the signal came
            assert False, "the signal was lost"
        except KeyboardInterrupt:
            pass
    print(answered)
"""


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows sends no SIGINT to itself")
def test_ctrl_c_ends_a_search_with_a_language_model():
    """Wherever it comes, also between C and the language model; never does it change the result instead."""
    done = process(INTERRUPTED)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) >= 10


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


@pytest.mark.parametrize("answer", [-(10**400), np.complex128(-1 + 5j), b"1", "1", None, np.nan, np.inf])
def test_what_is_no_score_is_refused(answer):
    with pytest.raises(ctcbind.InvalidInput, match=r"lm\(\(\)\) returned"):
        ctcbind.beam_search(np.zeros((5, 1, 4)), lm=lambda prefix: answer)


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
