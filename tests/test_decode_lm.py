"""Beam search with a language model: what it is asked, what it may answer, and how it is interrupted."""

from __future__ import annotations

import math
import signal
import threading

import numpy as np
import pytest
from batches import SEED
from test_native_threads import process

import ctcbind
from ctcbind.bindings import native_decode as c
from ctcbind.engines import reference_decode
from ctcbind.engines.reference import log_softmax


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


@pytest.mark.parametrize("model", ["lm", "lm_next"])
def test_a_model_is_asked_about_one_sample_after_the_other(model):
    """By the thread of the caller, however many threads there are; and no more once it has raised."""
    x, begun, on = np.random.default_rng([SEED, 98]).normal(size=(400, 6, 20)), [], set()

    def asked(given):
        on.add(threading.get_ident())
        first = given == () if model == "lm" else given == [()]
        begun.extend([len(begun)] if first else [])
        if len(begun) == raises_at:
            raise LookupError(f"sample {begun[-1]}")
        return 0.0 if model == "lm" else np.zeros((len(given), 20))

    ctcbind.set_num_threads(4)
    try:
        raises_at = 0
        ctcbind.beam_search(x, beam_width=2, **{model: asked})
        assert on == {threading.get_ident()}
        assert len(begun) == 6
        begun.clear()
        raises_at = 3
        with pytest.raises(LookupError, match="sample 2"):
            ctcbind.beam_search(x, beam_width=2, **{model: asked})
        assert len(begun) == 3
    finally:
        ctcbind.set_num_threads(None)


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
    assert all(prefix[:-1] in asked[:i] for i, prefix in enumerate(asked) if prefix), "a model may keep states"
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


def test_no_frame_leaves_the_empty_prefix_with_what_the_model_says_of_it():
    x = np.zeros((3, 1, 3))
    ((one,),) = ctcbind.beam_search(x, [0], lm=lambda prefix: -1.5 - len(prefix))
    assert (list(one.labels), one.log_p, one.score) == ([], 0.0, -1.5)
    assert ctcbind.beam_search(x, [0], lm=lambda prefix: -math.inf) == [[]]


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


@pytest.mark.parametrize("answer", [-(10**400), np.complex128(-1 + 5j), b"1", "1", None, np.nan, np.inf])
def test_what_is_no_score_is_refused(answer):
    with pytest.raises(ctcbind.InvalidInput, match=r"lm\(\(\)\) returned"):
        ctcbind.beam_search(np.zeros((5, 1, 4)), lm=lambda prefix: answer)


def said(rng, C):
    """(lm, lm_next) of one random bigram table, some of which is forbidden; the blank's column is NaN."""
    table = np.where(rng.random((C + 1, C)) < 0.1, -np.inf, rng.normal(size=(C + 1, C)))

    def lm(prefix):
        return float(sum((table[before, label] for before, label in zip((C, *prefix), prefix)), 0.0))

    return lm, lambda prefixes: table[[prefix[-1] if prefix else C for prefix in prefixes]]


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("blank", [0, 2, -1])
@pytest.mark.parametrize("prune", [0.0, 0.1])
def test_all_labels_at_once_are_as_one_after_the_other(prune, blank, topology):
    for width in (1, 2, 7, 60):
        rng = np.random.default_rng([SEED, 101, width])
        T, C = int(rng.integers(1, 40)), int(rng.integers(4, 9))
        x = rng.normal(scale=2, size=(T, 3, C))
        lm, lm_next = said(rng, C)
        options = {"beam_width": width, "blank": blank, "prune": prune, "topology": topology}
        lengths = rng.integers(0, T, 3, endpoint=True)
        one_by_one = ctcbind.beam_search(x, lengths, lm=lm, **options)
        assert ctcbind.beam_search(x, lengths, lm_next=lm_next, **options) == one_by_one


def test_the_blank_is_not_read_of_what_all_labels_get():
    rng = np.random.default_rng([SEED, 102])
    x, (_, lm_next) = rng.normal(size=(9, 1, 5)), said(rng, 5)

    def with_blank(value):
        def model(prefixes):
            scores = lm_next(prefixes)
            scores[:, 3] = value
            return scores

        return ctcbind.beam_search(x, blank=3, lm_next=model)

    assert with_blank(0.0) == with_blank(np.nan) == with_blank(np.inf) == with_blank(-1e300)


def test_prefixes_are_asked_about_together_and_once_while_they_are_in_the_beam():
    x = np.random.default_rng([SEED, 103]).normal(scale=2, size=(30, 1, 5))
    asked, answers = [], {}

    def lm_next(prefixes):
        asked.append(prefixes)
        assert type(prefixes) is list
        return [answers.setdefault(prefix, np.random.default_rng(len(answers)).normal(size=5)) for prefix in prefixes]

    ctcbind.beam_search(x, beam_width=4, lm_next=lm_next)
    assert asked[0] == [()]
    assert len(asked) <= 30
    assert max(map(len, asked)) > 1
    assert all(1 <= len(prefixes) <= 4 and len(set(prefixes)) == len(prefixes) for prefixes in asked)
    everything = [prefix for prefixes in asked for prefix in prefixes]
    assert len(everything) <= 1 + 4 * 29
    assert all(not prefix or prefix[:-1] in everything[:i] for i, prefix in enumerate(everything))
    kept = np.full((20, 1, 3), -50.0)
    kept[0, 0, 1] = kept[1:, 0, 0] = 0
    asked.clear()
    ctcbind.beam_search(kept, beam_width=1, lm_next=lambda prefixes: asked.append(prefixes) or np.zeros((1, 3)))
    assert asked == [[()], [(1,)]]
    asked.clear()
    ctcbind.beam_search(kept, lm_next=lambda prefixes: asked.append(prefixes) or np.zeros((1, 3)), prune=0.5)
    assert asked == [[()]], "no label is probable enough to be added after the first"


@pytest.mark.parametrize("score", [1e308, -1e308])
def test_scores_that_leave_the_range_of_a_double(score):
    x = np.random.default_rng([SEED, 104]).normal(size=(6, 1, 3))
    lm_next = lambda prefixes: np.full((len(prefixes), 3), score)  # noqa: E731
    found = ctcbind.beam_search(x, beam_width=1000, lm_next=lm_next)[0]
    assert len(found) > 1
    for labels, log_p, ranked in found:
        assert math.isfinite(ranked)
        assert log_p == pytest.approx(-ctcbind.ctc_loss(x, [labels], engine="reference")[0], abs=1e-9)


@pytest.mark.parametrize(
    ("answer", "value", "says"),
    [
        (np.zeros(3), (3,), r"shape \(3,\) for a list of 1 prefix; it must be \(1, 3\)"),
        (np.zeros((2, 3)), (2, 3), r"shape \(2, 3\)"),
        (None, None, "lm_next cannot be read as numbers: it is None"),
        ("high", None, "lm_next cannot be read as numbers"),
        ([[0, 1j, 0]], None, "lm_next cannot be read as numbers"),
        ([[0, 0, np.nan]], math.nan, r"lm_next returned nan for class 2 after \(\); it must be a logarithm"),
        ([[0, np.inf, np.nan]], math.inf, r"lm_next returned inf for class 1 after \(\)"),
    ],
)
def test_what_is_no_score_of_each_class_is_refused(answer, value, says):
    with pytest.raises(ctcbind.InvalidInput, match=says) as caught:
        ctcbind.beam_search(np.zeros((4, 1, 3)), lm_next=lambda prefixes: answer)
    assert caught.value.rule == "lm_next"
    np.testing.assert_equal(caught.value.value, value)


def test_one_model_at_a_time_and_a_function():
    x = np.zeros((4, 1, 3))
    with pytest.raises(ctcbind.InvalidInput, match="both lm and lm_next"):
        ctcbind.beam_search(x, lm=len, lm_next=len)
    with pytest.raises(ctcbind.InvalidInput, match="lm_next is 3; it must be a function of a list of tuples"):
        ctcbind.beam_search(x, lm_next=3)


def test_what_a_model_of_all_labels_raises_passes_through():
    def lm_next(prefixes):
        if any(map(len, prefixes)):
            raise KeyError(prefixes)
        return np.zeros((1, 3))

    with pytest.raises(KeyError):
        ctcbind.beam_search(np.zeros((4, 2, 3)), lm_next=lm_next)
    with pytest.raises(KeyboardInterrupt):
        ctcbind.beam_search(np.zeros((4, 2, 3)), lm_next=lambda prefixes: (_ for _ in ()).throw(KeyboardInterrupt))
    assert ctcbind.beam_search(np.zeros((1, 1, 2)))  # nothing is left over


def test_a_network_answers_with_its_own_tensors():
    torch = pytest.importorskip("torch")
    net = torch.nn.Linear(1, 4)
    x = np.random.default_rng([SEED, 105]).normal(size=(8, 2, 4))

    def lm_next(prefixes):
        return net(torch.tensor([[float(len(prefix))] for prefix in prefixes])).log_softmax(-1)

    plain = ctcbind.beam_search(x, lm_next=lambda prefixes: lm_next(prefixes).detach().numpy().astype(float))
    assert ctcbind.beam_search(x, lm_next=lm_next) == plain


# --- the end of a sample ------------------------------------------------------------------------------------


def last_word(prefixes):
    """A number for each that follows no order; it forbids about every fourth."""
    numbers = [hash(prefix) % 1009 for prefix in prefixes]
    return np.array([-np.inf if number % 4 == 0 else -number / 100 for number in numbers])


@pytest.mark.parametrize("n_best", [1, 3, None])
@pytest.mark.parametrize("model", [None, "lm", "lm_next"])
@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_the_end_ranks_what_is_left_of_the_beam(topology, model, n_best):
    rng = np.random.default_rng([SEED, 106])
    x, lengths = rng.normal(scale=2, size=(9, 3, 5)), [9, 0, 6]
    models = dict(zip(("lm", "lm_next"), said(rng, 5)))
    options = {"topology": topology, "beam_width": 20, "blank": 3, **({model: models[model]} if model else {})}
    left = ctcbind.beam_search(x, lengths, **options)
    got = ctcbind.beam_search(x, lengths, lm_end=last_word, n_best=n_best, **options)
    for before, after in zip(left, got):
        scores = [each.score + last_word([tuple(each.labels)])[0] for each in before]
        order = sorted((i for i, score in enumerate(scores) if score > -np.inf), key=lambda i: -scores[i])
        assert after == [before[i]._replace(score=scores[i]) for i in order][:n_best]
    assert sum(map(len, ctcbind.beam_search(x, lengths, lm_end=last_word, **options))) < sum(map(len, left))


def test_those_that_the_end_makes_alike_stay_in_their_order():
    rng = np.random.default_rng([SEED, 107])
    x, (lm, _) = rng.normal(size=(6, 1, 4)), said(rng, 4)
    left = {tuple(each.labels): each for each in ctcbind.beam_search(x, beam_width=9, lm=lm)[0]}
    alike = ctcbind.beam_search(x, beam_width=9, lm=lm, lm_end=lambda prefixes: [-left[p].score for p in prefixes])[0]
    assert alike == [each._replace(score=0.0) for each in left.values()]


def test_the_end_is_asked_about_once_a_sample_before_the_next_is_begun():
    """With the prefixes of its beam, the best first; a model may forget what it knows of a sample then."""
    told = []
    x = np.random.default_rng([SEED, 108]).normal(size=(5, 3, 3))
    found = ctcbind.beam_search(
        x,
        beam_width=4,
        lm=lambda prefix: told.append(prefix) or 0.0,
        lm_end=lambda prefixes: told.append(list(prefixes)) or [0.0] * len(prefixes),
        n_best=2,
    )
    ends = [i for i, each in enumerate(told) if isinstance(each, list)]
    assert [told[i] for i in ends] == [
        [tuple(each.labels) for each in one] for one in ctcbind.beam_search(x, beam_width=4, lm=lambda prefix: 0.0)
    ]
    assert len(ends) == 3
    assert ends[-1] == len(told) - 1
    assert [told[i + 1] for i in ends[:-1]] == [(), ()]
    assert [len(one) for one in found] == [2, 2, 2]


def test_where_nothing_can_be_read_the_end_is_not_asked_about():
    asked = []
    x = np.zeros((4, 2, 3))
    x[2, 0] = -np.inf
    found = ctcbind.beam_search(x, lm_end=lambda prefixes: asked.append(len(prefixes)) or [-np.inf] * len(prefixes))
    assert found == [[], []]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ([0.0], r"lm_end returned an array of shape \(1,\) for a list of 2 prefixes; it must be \(2,\), a number for"),
        (np.zeros((2, 1)), r"lm_end returned an array of shape \(2, 1\)"),
        (0.0, r"lm_end returned an array of shape \(\)"),
        ([0.0, np.nan], r"lm_end returned nan for \(\); it must be a logarithm, finite or -inf"),
        ([np.inf, 0.0], r"lm_end returned inf for \(1,\)"),
        (None, "lm_end cannot be read as numbers"),
        (["0", "1"], "lm_end cannot be read as numbers"),
    ],
)
def test_what_is_no_score_of_an_end_is_refused(answer, says):
    x = np.log([[[0.6, 0.4]], [[0.6, 0.4]]])  # what is left: (1,) with 0.64, () with 0.36
    with pytest.raises(ctcbind.InvalidInput, match=says) as caught:
        ctcbind.beam_search(x, lm_end=lambda prefixes: answer)
    assert caught.value.rule == "lm_end"


def test_the_end_must_be_a_function_and_what_it_raises_passes_through():
    with pytest.raises(ctcbind.InvalidInput, match="lm_end is 3; it must be a function of a list of tuples"):
        ctcbind.beam_search(np.zeros((4, 1, 3)), lm_end=3)
    with pytest.raises(KeyError, match="absent"):
        ctcbind.beam_search(np.zeros((4, 2, 3)), lm_end=lambda prefixes: {}["absent"])
