"""What people do wrong to a good batch, one function each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from batches import SEED
from good_batches import good

import ctcbind
from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax

T, N, C = 300, 6, 12

#: Classes that no good label has: what padding and other blanks are made of.
PAD, LAST = C - 2, C - 1

Given = dict[str, Any]


def well(seed: int) -> Given:
    """A trained network's batch with labels 1..C-3, blank 0."""
    rng = np.random.default_rng([SEED, seed])
    given = good(int(rng.integers(2**31)), "trained", size=(T, N, C), plain=True)
    x, renamed = given["logits"], [[1 + (k - 1) % (C - 3) for k in row] for row in given["targets"]]
    for n, (before, after) in enumerate(zip(given["targets"], renamed)):
        for old, new in zip(before, after):
            if old != new:  # the network says the new name wherever it said the old one
                frames = x[:, n].argmax(axis=1) == old
                x[frames, n, new], x[frames, n, old] = x[frames, n, old], x[frames, n, new]
        after[:] = [key for key, _ in itertools.groupby(after)] or [1, 2]
        path = np.zeros(T, int)
        path[2 : 2 * len(after) + 2 : 2] = after  # there is room: a third of the frames have labels at most
        x[:, n] = rng.normal(size=(T, C)) * 0.5
        x[np.arange(T), n, path] += 12
    lengths = np.array([2 * len(row) + 4 + int(rng.integers(0, 40)) for row in renamed])
    lengths[int(rng.integers(N))] = T
    return {"logits": x, "targets": renamed, "input_lengths": lengths, "blank": 0}


# --- the mistakes, in the order in which people make them -------------------------------------------------------


def blank_in_targets(given: Given) -> None:
    given["targets"] = [[k for label in row for k in (0, label)] + [0] for row in given["targets"]]


def infeasible(given: Given) -> None:
    rng = np.random.default_rng(1)
    given["targets"][2] = rng.integers(1, C - 2, size=T + 5).tolist()


def engine_limit(given: Given) -> None:
    given["targets"][3] = [1 + k % 5 for k in range(257)]
    given["input_lengths"][3] = T
    given["engine"] = "cudnn"


def padding_in_targets(given: Given) -> None:
    width = max(map(len, given["targets"])) + 2
    given["targets"] = [row + [PAD] * (width - len(row)) for row in given["targets"]]


def invalid(given: Given) -> None:
    given["targets"][1][0] = C + 3


def all_blank(given: Given) -> None:
    given["logits"] = np.random.default_rng(2).normal(size=(T, N, C)).astype(np.float32)
    given["logits"][:, :, 0] += 8


def dominant_class(given: Given) -> None:
    given["logits"] = np.random.default_rng(3).normal(size=(T, N, C)).astype(np.float32)
    given["logits"][:, :, 4] += 8


def blank_unused(given: Given) -> None:
    given["logits"] = given["logits"][:, :, [LAST, *range(1, LAST), 0]]


def short_lengths(given: Given) -> None:
    given["input_lengths"] = spoken(given) // 2


def spoken(given: Given) -> np.ndarray:
    """Frames until the last label of each sample is said."""
    labels = [sum(k not in (0, PAD) for k in row) for row in given["targets"]]
    return np.minimum(2 * np.array(labels) + 2, given["input_lengths"])


def padded_frames(given: Given) -> None:
    for n, length in enumerate(given["input_lengths"]):
        given["logits"][length:, n] = 0
    given["input_lengths"] = None


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(x.astype(np.float64)))


def probabilities(given: Given) -> None:
    given["logits"] = softmax(given["logits"]).astype(np.float32)


def log_probabilities(given: Given) -> None:
    given["logits"] = log_softmax(given["logits"].astype(np.float64)).astype(np.float32)


def negated_log_probabilities(given: Given) -> None:
    given["logits"] = -log_softmax(given["logits"].astype(np.float64)).astype(np.float32)


def softmax_twice(given: Given) -> None:
    given["logits"] = log_softmax(softmax(given["logits"])).astype(np.float32)


def not_finite(given: Given) -> None:
    given["logits"][1, 1, 2] = np.nan


def exploding_gradients(given: Given) -> None:
    given["history"] = [{"loss": 50.0 - step, "grad_norm": 3.0} for step in range(20)] + [{"grad_norm": 4e4}]


def swapped_axes(given: Given) -> None:
    given["logits"] = np.ascontiguousarray(given["logits"].transpose(1, 0, 2))


MISTAKES: list[Callable[[Given], None]] = [
    blank_in_targets, infeasible, engine_limit, padding_in_targets, invalid, all_blank, dominant_class, blank_unused,
    short_lengths, padded_frames, probabilities, log_probabilities, negated_log_probabilities, softmax_twice,
    not_finite, exploding_gradients, swapped_axes,
]  # fmt: skip

#: These cannot be made together: a network says one thing, logits have been through one thing, and only a network
#: that knows its labels and its blank shows that it goes on after the input lengths.
ONE_OF = [
    {all_blank, dominant_class},
    {dominant_class, blank_unused},
    {blank_in_targets, blank_unused},
    *({short_lengths, each} for each in (all_blank, dominant_class, blank_unused, padded_frames)),
    {probabilities, log_probabilities, negated_log_probabilities, softmax_twice},
]

PAIRS = [pair for pair in itertools.combinations(MISTAKES, 2) if not any(set(pair) <= each for each in ONE_OF)]


def planted(seed: int, *mistakes: Callable[[Given], None]) -> ctcbind.Diagnosis:
    given = well(seed)
    for mistake in mistakes:
        mistake(given)
    return diagnose(**given)
