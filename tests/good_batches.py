"""Batches with which nothing is wrong: of networks fresh and trained, sharp, long, short, with few and many classes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

KINDS = ("fresh", "biased", "trained", "halfway", "sharp", "long", "short", "tight", "many classes", "two classes")


def kind_of(seed: int) -> str:
    return KINDS[seed % len(KINDS)]


def needed(labels: list[int]) -> int:
    return len(labels) + sum(a == b for a, b in pairwise(labels))


def smooth(rng: np.random.Generator, T: int, N: int, C: int, scale: float) -> np.ndarray:
    """What a recurrent or convolutional network gives before it has learned: features that vary slowly in time."""
    width = int(rng.integers(1, 6))
    noise = rng.normal(size=(T + width - 1, N, 16))
    features = sum(noise[i : i + T] for i in range(width)) / np.sqrt(width)
    return features @ rng.normal(size=(16, C)) * scale / 4 + rng.normal(size=C) * 0.2


def aligned(rng: np.random.Generator, labels: list[int], T: int, blank: int) -> list[int]:
    """A path of T frames through the labels, blanks where they must be and where there is room."""
    states: list[int] = []
    for before, label in zip([None, *labels], labels):
        states += [blank, label] if before == label else [label]
    path, extra = [], rng.multinomial(T - len(states), np.full(len(states) + 1, 1 / (len(states) + 1)))
    path += [blank] * int(extra[0])
    for state, more in zip(states, extra[1:].tolist()):
        stay = int(rng.integers(0, min(more, 2) + 1))
        path += [state] * (1 + stay) + [blank] * (more - stay) if state != blank else [blank] * (1 + more)
    return path


def good(
    seed: int, kind: str | None = None, *, size: tuple[int, int, int] | None = None, plain: bool = False
) -> dict[str, Any]:
    """The arguments of `diagnose` for a batch that is well; `plain`: float32 TNC logits, lists of labels."""
    rng = np.random.default_rng([71, seed])
    kind = kind or kind_of(seed)
    T, N, C = int(rng.integers(12, 60)), int(rng.integers(1, 9)), int(rng.integers(3, 30))
    if kind == "long":
        T, N = int(rng.integers(200, 600)), int(rng.integers(1, 4))
    elif kind == "short":
        T = int(rng.integers(1, 7))
    elif kind == "many classes":
        C = int(rng.integers(200, 2000))
    elif kind == "two classes":
        C = 2
    T, N, C = size or (T, N, C)
    blank = 0 if plain else int(rng.choice([0, C - 1, rng.integers(C)]))
    classes = [k for k in range(C) if k != blank]
    frames = rng.integers(max(T // 2, 1), T + 1, size=N)
    frames[rng.integers(N)] = T
    labels: list[list[int]] = []
    for most in frames.tolist():
        length = int(rng.integers(0 if kind != "long" else 1, max(most // 3, 1) + 1))
        row = [int(k) for k in rng.choice(classes, size=most if kind == "tight" else length)]
        while needed(row) > most:
            row.pop()
        labels.append(row)
    if kind in ("trained", "halfway", "long", "tight"):
        height = float(rng.uniform(3, 5) if kind == "halfway" else rng.uniform(8, 20))
        x = rng.normal(size=(T, N, C)) * rng.uniform(0.2, 1)
        for n, row in enumerate(labels):
            for t, k in enumerate(aligned(rng, row, int(frames[n]), blank)):
                x[t, n, k] += height
    elif kind == "sharp":
        x = rng.normal(size=(T, N, C)) * 10
    else:
        x = smooth(rng, T, N, C, float(rng.uniform(0.05, 1.5)))
        if kind == "biased":
            x += np.clip(rng.normal(size=C) * 0.7, -1, 1)  # a class that always wins would be a finding
    dtype = "float32" if plain else str(rng.choice(["float16", "float32", "float64"]))
    x = x.astype(dtype)
    given: dict[str, Any] = {"logits": x, "targets": labels, "input_lengths": frames, "blank": blank}
    if plain:
        return given
    if rng.integers(2):
        given |= {"logits": np.ascontiguousarray(x.transpose(1, 0, 2)), "layout": "NTC"}
    form = rng.integers(3)
    if form:
        width = max(map(len, labels)) + int(rng.integers(0, 3))
        padded = np.full((N, width), -1 if form == 1 else blank)
        for row, room in zip(labels, padded):
            room[: len(row)] = row
        given["targets"] = padded
        if form == 2:
            given["target_lengths"] = [len(row) for row in labels]
    if rng.integers(3) == 0:
        steps = np.arange(30)
        losses = 100 * np.exp(-steps / 20) * rng.uniform(0.9, 1.1, size=30)
        given["history"] = [{"loss": a, "grad_norm": b} for a, b in zip(losses, rng.lognormal(0, 0.4, size=30))]
    return given
