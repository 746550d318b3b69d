"""The sizes that are timed, and the batches of them: the same numbers in every process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CASES", "QUICK", "Case", "Problem", "find", "lengths", "make"]

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Case:
    """T time steps, L labels a sample, C classes with the blank, N samples; ragged: shorter ones among them.

    sure: by so many nats each label stands out at a frame of its own, and the blank at all others; blank: by so many
    the blank stands out at all frames; scale: the logits are so many times as large.
    """

    name: str
    T: int
    L: int
    C: int
    N: int
    ragged: bool = False
    sure: float = 0.0
    blank: float = 0.0
    scale: float = 1.0

    @property
    def size(self) -> str:
        """T, L, C, N as they stand in tables."""
        return f"{self.T}{' ragged' * self.ragged}, {'≤' * self.ragged}{self.L}, {self.C}, {self.N}"

    @property
    def logits_bytes(self) -> int:
        return 4 * self.T * self.N * self.C


@dataclass(frozen=True)
class Problem:
    """One batch: logits (T, N, C) float32, labels (N, L) padded with 0, the blank, and lengths (N,), all int32."""

    logits: npt.NDArray[Any]
    labels: Ints
    label_lengths: Ints
    input_lengths: Ints

    @property
    def flat_labels(self) -> Ints:
        inside = np.arange(self.labels.shape[1]) < self.label_lengths[:, None]
        flat: Ints = self.labels[inside]
        return flat


CASES = (
    Case("tiny", 28, 1, 11, 1),
    Case("ocr", 64, 8, 11, 64),
    Case("letters-1", 150, 40, 28, 1),
    Case("letters-16", 150, 40, 28, 16),
    Case("letters-64", 150, 40, 28, 64),
    Case("letters-128", 150, 40, 28, 128),
    Case("speech", 1000, 200, 32, 16),
    Case("ragged", 255, 127, 32, 256, ragged=True),
    Case("long-1", 4000, 800, 64, 1),
    Case("long", 4000, 800, 64, 4),
    Case("pieces", 500, 60, 1024, 32),
    Case("words-1", 150, 20, 5000, 1),
    Case("words-16", 150, 20, 5000, 16),
    Case("words-64", 150, 20, 5000, 64),
    Case("words-128", 150, 20, 5000, 128),
)

#: What `--quick` takes: seconds in all, and nothing to quote.
QUICK = (Case("tiny", 28, 1, 11, 1), Case("letters-4", 150, 40, 28, 4), Case("ragged-6", 60, 20, 12, 6, ragged=True))


def find(name: str) -> Case:
    """A case by its name, or a size of one's own as TxLxCxN. Raises ValueError for anything else."""
    for case in (*CASES, *QUICK):
        if case.name == name:
            return case
    if size := re.fullmatch(r"(\d+)x(\d+)x(\d+)x(\d+)", name):
        T, L, C, N = map(int, size.groups())
        if 2 * L > T or C < 2 or N < 1 or T < 1:
            raise ValueError(f"{name}: T must be at least 2 L, so that every sample has a path, C at least 2, N 1")
        return Case(name, T, L, C, N)
    raise ValueError(f"there is no size {name!r}; it is TxLxCxN or one of {', '.join(case.name for case in CASES)}")


def lengths(case: Case, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """(input lengths, label lengths); ragged ones lie between half and all of T, with at most half as many labels."""
    frames, labels = np.full(case.N, case.T), np.full(case.N, case.L)
    if case.ragged:
        frames = rng.integers(case.T // 2, case.T + 1, size=case.N)
        frames[0] = case.T
        labels = np.minimum(rng.integers(case.L // 4, case.L + 1, size=case.N), frames // 2)
        labels[0] = case.L
    return frames.astype(np.int32), labels.astype(np.int32)


def make(case: Case, seed: int = 0) -> Problem:
    """A batch with N(0, 1) logits and uniform labels, repeats among them; every sample has a path, as 2 L <= T.

    A sure case's are as a trained network makes them, and where the blank stands out as one does early in training; all
    are multiplied by the case's scale.
    """
    rng = np.random.default_rng([seed, case.T, case.L, case.C, case.N])
    logits = rng.standard_normal((case.T, case.N, case.C), dtype=np.float32)
    frames, label_lengths = lengths(case, rng)
    labels = rng.integers(1, case.C, size=(case.N, case.L)).astype(np.int32)
    labels[np.arange(case.L) >= label_lengths[:, None]] = 0
    if case.sure:
        for n in range(case.N):
            path = np.zeros(case.T, np.int64)
            at = rng.choice(frames[n] // 2, size=label_lengths[n], replace=False)
            path[2 * np.sort(at)] = labels[n, : label_lengths[n]]
            logits[np.arange(case.T), n, path] += np.float32(case.sure)
    logits[..., 0] += np.float32(case.blank)
    logits *= np.float32(case.scale)
    return Problem(logits, labels, label_lengths, frames)
