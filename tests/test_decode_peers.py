"""Decoding beside fast-ctc-decode, pyctcdecode and PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind.engines.reference import log_softmax

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
