"""Beam search with a language model: what it is asked, what it may answer, and how it is interrupted."""

from __future__ import annotations

import math
import signal

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
