"""Beam search against fast-ctc-decode and pyctcdecode (acoustic only), and best paths, where these are installed.

    pip install fast-ctc-decode pyctcdecode && python benchmarks/decoding.py

T = 500, C = 32, float32, one sample, widths 10 and 100; scores of a network that is mostly sure, and of one that is
not. ctcbind gets logits and does its softmax within the time; the others get the probabilities, or their logs, that
they ask for. fast-ctc-decode without its own pruning (the same search) and with its default, pyctcdecode with its
defaults, which prune.

Best paths of a batch of 16, C = 32 and 1024: greedy_decode, labels and ln p, beside PyTorch with both (log_softmax,
max, unique_consecutive of each sample), and PyTorch and NumPy for the labels alone.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from interleave import measure, positive, show

import ctcbind


def scores(T: int, C: int, sure: bool, N: int = 1) -> np.ndarray:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(T, N, C)) * (1.0 if sure else 2.0)
    if sure:
        said = np.where(rng.random((T, N)) < 0.6, 0, rng.integers(1, C, size=(T, N)))
        np.put_along_axis(logits, said[:, :, None], np.take_along_axis(logits, said[:, :, None], 2) + 8, 2)
    return logits.astype(np.float32)


def peers(logits: np.ndarray, width: int) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """(functions by name, what is missing)."""
    C = logits.shape[2]
    y = np.exp(logits[:, 0] - logits[:, 0].max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    log_y = np.log(y)
    letters = [chr(ord("A") + k) for k in range(C - 1)]
    found: dict[str, Callable[[], Any]] = {
        "ctcbind": lambda: ctcbind.beam_search(logits, beam_width=width, n_best=1),
        "ctcbind, all hypotheses": lambda: ctcbind.beam_search(logits, beam_width=width),
        "ctcbind, prune=0.001": lambda: ctcbind.beam_search(logits, beam_width=width, n_best=1, prune=0.001),
    }
    missing = []
    try:
        import fast_ctc_decode

        alphabet = "_" + "".join(letters)
        found["fast-ctc-decode, nothing pruned"] = lambda: fast_ctc_decode.beam_search(
            y, alphabet, beam_size=width, beam_cut_threshold=0.0
        )
        found["fast-ctc-decode, beam_cut_threshold=0.001"] = lambda: fast_ctc_decode.beam_search(
            y, alphabet, beam_size=width, beam_cut_threshold=0.001
        )
    except ImportError as error:
        missing.append(f"fast-ctc-decode: {error}")
    try:
        logging.disable(logging.WARNING)  # it warns at import about the language models that are not used here
        from pyctcdecode import build_ctcdecoder

        decoder = build_ctcdecoder(["", *letters])
        found["pyctcdecode"] = lambda: decoder.decode(log_y, beam_width=width)
    except ImportError as error:
        missing.append(f"pyctcdecode: {error}")
    return found, missing


def best_paths(logits: np.ndarray) -> tuple[dict[str, Callable[[], Any]], list[str]]:
    """(functions by name, what is missing); they agree on the labels, and on ln p where they say it."""

    def with_numpy() -> list[list[int]]:
        best = logits.argmax(axis=2)
        first = np.ones(best.shape, bool)
        first[1:] = best[1:] != best[:-1]
        keep = first & (best != 0)
        return [best[keep[:, n], n].tolist() for n in range(best.shape[1])]

    found: dict[str, Callable[[], Any]] = {
        "ctcbind": lambda: ctcbind.greedy_decode(logits),
        "NumPy, labels alone": with_numpy,
    }
    hypotheses = ctcbind.greedy_decode(logits)
    labels = [each.labels for each in hypotheses]
    assert with_numpy() == labels
    try:
        import torch
    except ImportError as error:
        return found, [f"PyTorch: {error}"]
    tensor = torch.from_numpy(logits)

    def collapsed(best: torch.Tensor) -> list[list[int]]:
        return [row[row != 0].tolist() for row in map(torch.unique_consecutive, best.unbind(1))]

    def with_torch() -> tuple[list[list[int]], list[float]]:
        log_y, best = tensor.log_softmax(2).max(2)
        return collapsed(best), log_y.sum(0).tolist()

    assert with_torch()[0] == labels
    np.testing.assert_allclose(with_torch()[1], [each.log_p for each in hypotheses], rtol=1e-4)
    found["PyTorch"] = with_torch
    found["PyTorch, labels alone"] = lambda: collapsed(tensor.argmax(2))
    return found, []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it runs")
    given = parser.parse_args()
    T, C = (50, 16) if given.quick else (500, 32)
    missing: list[str] = []
    for sure in (True, False):
        logits = scores(T, C, sure)
        for width in (10, 100):
            functions, missing = peers(logits, width)
            taken = measure(functions, given.rounds)
            show(f"T={T}, C={C}, {'sure' if sure else 'unsure'} scores, width {width}", taken, "ctcbind")
    for C in (16, 64) if given.quick else (32, 1024):
        functions, others = best_paths(scores(T, C, True, 16))
        show(f"T={T}, C={C}, N=16, best paths", measure(functions, given.rounds), "ctcbind")
    for each in missing + others:
        print(f"not here: {each}")


if __name__ == "__main__":
    main()
