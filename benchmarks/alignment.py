"""Forced alignment against torchaudio.functional.forced_align where it is installed, and a NumPy Viterbi.

    pip install torch torchaudio && python benchmarks/alignment.py [--hour]

float32, one sample, one thread. ctcbind gets logits and does its softmax within the time, and gives spans and scores
of the labels as well; the others get the log softmax. `--hour` adds T = 180,000 frames with L = 15,000 labels, an hour
of speech at 50 frames a second, for which torchaudio's table takes 5.4 GB (without --peers it is left out there).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from interleave import measure, positive, show

import ctcbind
from ctcbind.bindings.native_lattice import align_bytes

SIZES = [(500, 60, 32), (1000, 100, 64), (4000, 800, 64), (15000, 1250, 32)]
HOUR = (180_000, 15_000, 32)


def numpy_viterbi(log_y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The best path of states, one row of NumPy operations a frame and a table of T * S bytes."""
    T, S = len(log_y), 2 * len(labels) + 1
    extended = np.zeros(S, dtype=np.intp)
    extended[1::2] = labels
    skip = np.full(S, -np.inf, dtype=log_y.dtype)
    skip[3::2][labels[1:] != labels[:-1]] = 0
    came = np.zeros((T, S), dtype=np.int8)
    score = np.full(S + 2, -np.inf, dtype=log_y.dtype)
    score[2:4] = log_y[0, extended[:2]]
    for t in range(1, T):
        stay, step, over = score[2:], score[1:-1], score[:-2] + skip
        best = np.maximum(stay, step)
        came[t] = step > stay
        came[t][over > best] = 2
        score[2:] = np.maximum(best, over) + log_y[t, extended]
    states = np.empty(T, dtype=np.int32)
    state = S - 1 if score[-1] > score[-2] else S - 2
    for t in range(T - 1, -1, -1):
        states[t] = state
        state -= int(came[t, state])
    return states


def torchaudio_align(log_y: np.ndarray, labels: np.ndarray) -> Callable[[], Any] | str:
    try:
        import torch
        from torchaudio.functional import forced_align
    except (ImportError, OSError) as error:
        return f"torchaudio: {error}"
    torch.set_num_threads(1)
    scores, targets = torch.tensor(log_y)[None], torch.tensor(labels[None], dtype=torch.int32)
    return lambda: forced_align(scores, targets)


def run(size: tuple[int, int, int], rounds: int, with_peers: bool) -> str | None:
    T, L, C = size
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((T, 1, C), dtype=np.float32)
    labels = rng.integers(1, C, size=L)
    top = logits[:, 0].max(axis=1, keepdims=True)
    log_y = logits[:, 0] - top - np.log(np.exp(logits[:, 0] - top).sum(axis=1, keepdims=True))
    targets = [labels.tolist()]
    functions: dict[str, Callable[[], Any]] = {"ctcbind": lambda: ctcbind.align(logits, targets)}
    missing = None
    if with_peers:
        theirs = torchaudio_align(log_y, labels)
        if isinstance(theirs, str):
            missing = theirs
        else:
            functions["torchaudio"] = theirs
        if T * L < 10**8:
            functions["NumPy Viterbi"] = lambda: numpy_viterbi(log_y, labels)
            states = ctcbind.align(logits.astype(np.float64), targets).states[0]
            score = [
                log_y[np.arange(T), np.append(0, labels)[(s + 1) // 2 * (s % 2)]].sum()
                for s in (states, numpy_viterbi(log_y, labels))
            ]
            assert abs(score[0] - score[1]) < 1e-3 * abs(score[0]), "the two do not find equally good paths"
    scratch, table = align_bytes(T, L, C) / 1e6, T * (2 * L + 1) / 1e6
    title = f"T={T}, L={L}, C={C}; {scratch:.1f} MB of scratch memory, where a table of T * S bytes has {table:.1f}"
    show(title, measure(functions, rounds), "ctcbind")
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--hour", action="store_true", help="T = 180,000, L = 15,000 as well")
    parser.add_argument("--peers", action="store_true", help="torchaudio at that size too")
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it runs")
    given = parser.parse_args()
    ctcbind.set_num_threads(1)
    missing = [run(size, given.rounds, True) for size in ([(80, 9, 8)] if given.quick else SIZES)]
    if given.hour:
        run(HOUR, 3, given.peers)
    if missing[0]:
        print(f"not here: {missing[0]}")


if __name__ == "__main__":
    main()
