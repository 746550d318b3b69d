"""`diagnose` finds each planted mistake, alone and beside every other, and nothing in a thousand good batches."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import SEED
from good_batches import good, kind_of
from test_check import MINE
from test_check import given as arguments

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


def test_nothing_is_found_in_a_thousand_good_batches():
    wrong = [(seed, kind_of(seed), found) for seed in range(1000) if (found := diagnose(**good(seed)).kinds)]
    assert not wrong


@pytest.mark.parametrize("edge", range(1, 5))
def test_padding_is_seen_where_convolutions_have_changed_its_last_frames(edge):
    given = well(SEED)
    T, lengths = len(given["logits"]), given["input_lengths"]
    padded_frames(given)
    rng = np.random.default_rng(SEED)
    for n, length in enumerate(lengths):
        if length < T:
            changed = given["logits"][max(length, T - edge) :, n]
            changed[:] = rng.normal(size=changed.shape)
    found = diagnose(**given)
    assert found.kinds == {"padded_frames"}
    assert f"but for the last {edge}" in str(found)


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_logarithms_to_another_base(base, dtype):
    for seed in range(4):
        given = well(seed)
        x = log_softmax(given["logits"].astype(np.float64))
        natural = diagnose(**given | {"logits": x.astype(dtype)})
        found = diagnose(**given | {"logits": (x / np.log(base)).astype(dtype)})
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("log_base", "certain")
        assert finding.do.startswith(f"multiply them by ln {base} = {np.log(base):.4f}")
        # a path adds T logits up, each of them rounded once here, and once before it is divided
        rounded = T * np.finfo(dtype).eps * np.abs(x).max()
        assert abs(found.measures.loss - natural.measures.loss) < rounded


@pytest.mark.parametrize("padding", [0.0, 1e-4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padding_is_seen_where_recurrent_layers_come_to_rest(padding, dtype):
    """To which it is no frame like the one before: they remember what came before the padding, and see its end."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        lengths = np.array([240, *rng.integers(80, 200, size=5)])
        for counted in (None, lengths):
            x = rng.normal(size=(240, 6, 16))
            for n, length in enumerate(lengths):
                x[length:, n] *= padding
            both = np.concatenate([remembered(x), remembered(x[::-1])[::-1]], axis=2)
            logits = ((0.03 if seed % 2 else 1) * both @ rng.normal(size=(32, C))).astype(dtype)
            found = diagnose(logits, [[1, 2, 3]] * 6, counted)
            assert found.kinds == ({"padded_frames"} if counted is None else set())
            if counted is None:
                assert found.findings[0].samples == (1, 2, 3, 4, 5)
                # it takes some frames until it rests, and what it says of the padding before is not known for that
                assert lengths.sum() < found.measures.frames < lengths.sum() + 6 * 16


def remembered(x: np.ndarray) -> np.ndarray:
    """What a recurrent layer makes of its input: half of what it was, and what comes."""
    state = np.zeros_like(x)
    for t in range(len(x)):
        state[t] = np.tanh(x[t] + 0.5 * state[t - 1] * (t > 0))
    return state


def test_quiet_ends_are_no_padding():
    for seed in range(50):
        rng = np.random.default_rng([SEED, seed])
        x = rng.normal(size=(120, 6, 16))
        for n, length in enumerate(rng.integers(40, 120, size=6)):
            x[length:, n] *= 0.03
        logits = remembered(x) @ rng.normal(size=(16, C))
        assert diagnose(logits, [[1, 2, 3]] * 6).ok
    for seed in range(8):
        blank = 8.0 * (np.arange(C) == 0) + np.random.default_rng(seed).normal(size=(120, 6, C))
        for n, length in enumerate((120, 60, 70, 80, 90, 100)):
            blank[length:, n] = blank[length:, n] * 0.3 + 14 * (np.arange(C) == 0)
        for x in (blank, softmax(blank), np.tanh(blank - 3), 1 / (1 + np.exp(-blank))):
            assert "padded_frames" not in diagnose(x, [[1, 2, 3]] * 6).kinds


def test_few_classes_whose_biases_lie_between_0_and_1_are_no_sigmoid():
    """A fresh network's, of three classes, as it was drawn once."""
    assert not diagnose(**good(3935643351)).kinds


def test_nothing_is_found_in_fresh_good_batches():
    wrong = [(seed, found) for seed in range(SEED, SEED + 100) if (found := diagnose(**good(seed)).kinds)]
    assert not wrong
    assert all(planted(seed).ok for seed in range(10))


@pytest.mark.parametrize("axis", [0, 1], ids=["over time", "over the batch"])
@pytest.mark.parametrize("log", [False, True])
def test_a_softmax_over_another_axis_is_found(axis, log):
    words = ["over time, not over the classes", "over the samples of the batch, not over the classes"]
    for seed in range(4):
        given = well(seed)
        x = given["logits"].astype(np.float64)
        log_p = x - np.logaddexp.reduce(x, axis=axis, keepdims=True)
        given["logits"] = (log_p if log else np.exp(log_p)).astype(np.float32)
        (finding,) = (each for each in diagnose(**given).findings if each.kind == "probabilities")
        assert words[axis] in finding.means
        assert finding.sure == "certain"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sure", [1, 4])
def test_a_sigmoid_is_found(dtype, sure):
    """Also one that its dtype has rounded to 1 in places."""
    for seed in range(4):
        given = well(seed)
        given["logits"] = (1 / (1 + np.exp(-sure * given["logits"].astype(np.float64)))).astype(dtype)
        assert sure == 1 or given["logits"].max() == 1
        (finding,) = (each for each in diagnose(**given).findings if each.kind == "probabilities")
        assert "a sigmoid" in finding.means
        assert finding.sure == "likely"


@pytest.mark.parametrize(("dtype", "scale"), [("float16", 4), ("float32", 30)])
def test_a_sigmoid_that_is_rounded_to_0_is_found(dtype, scale):
    """And is no ReLU, which gives 0 too, but goes on above 1."""
    for seed in range(8):
        given = well(seed)
        x = given["logits"].astype(np.float64)
        given["logits"] = (1 / (1 + np.exp(np.minimum(scale * (2 - 3 * x), 700)))).astype(dtype)
        assert (given["logits"].min(), given["logits"].max()) == (0, 1)
        (finding,) = (each for each in diagnose(**given).findings if each.kind in ("probabilities", "activation"))
        assert "a sigmoid" in finding.means
        assert not finding.harmless
        for top in (1.0, 3.0):
            given["logits"] = (np.maximum(x, 0) * (top / x.max())).astype(dtype)
            assert "a sigmoid" not in str(diagnose(**given))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_each_mistake_is_found_alone(mistake):
    for seed in range(4):
        found = planted(seed, mistake)
        assert found.kinds == {mistake.__name__}, found
        for finding in found.findings:
            assert finding.sure in ("certain", "likely", "possible")
            assert any(letter.isdigit() for letter in finding.seen), "seen in numbers"
            assert finding.means
            assert finding.do


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(each.__name__ for each in pair))
def test_mistakes_are_found_in_pairs(pair):
    found = planted(len(pair[0].__name__), *pair)
    assert found.kinds == {each.__name__ for each in pair}, found


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_softmax_under_another_is_found_before_the_network_is_sure(scale, log):
    for seed in range(4):
        inner = softmax(scale * np.random.default_rng([SEED, seed]).normal(size=(80, 8, 28)))
        outer = softmax(inner)
        found = diagnose(np.log(outer) if log else outer, [[1, 2, 3, 4]] * 8)
        assert [each.kind for each in found.findings] == ["softmax_twice"], found


@pytest.mark.parametrize("C", [2, 3, 5, 28, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1e-2, 0.1, 0.3, 1, 3])
def test_no_softmax_is_seen_under_small_logits(scale, C):
    x = scale * np.random.default_rng([SEED, C]).normal(size=(80, 4, C))
    assert [each.kind for each in diagnose(log_softmax(x), [[1]] * 4).findings] == ["log_probabilities"]
    assert [each.kind for each in diagnose(softmax(x), [[1]] * 4).findings] == ["probabilities"]


def test_what_is_said_of_infeasible_samples():
    x = np.random.default_rng(0).normal(size=(5, 3, 8))
    (finding,) = diagnose(x, [[1, 2], [1, 1, 1], [1, 2, 3, 4, 5, 6, 7]]).findings
    assert finding.samples == (2,)
    assert "7 labels for 5 frames, 2 fewer than the 7 needed" in finding.seen


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("round_up", [False, True])
def test_lengths_that_were_divided_once_too_often(factor, round_up):
    for seed in range(5):
        given = well(seed)
        given["input_lengths"] = np.maximum((spoken(given) + round_up * (factor - 1)) // factor, 1)
        (finding,) = diagnose(**given).findings
        assert finding.kind == "short_lengths"
        assert f"is {given['input_lengths'].max()} of T = {T} frames; with " in finding.seen


def test_target_lengths_in_the_place_of_input_lengths():
    x = np.random.default_rng(12).normal(size=(40, 3, 8))
    (finding,) = diagnose(x, [[1, 2, 2, 4], [3], [5, 6]], [4, 1, 2]).findings
    assert (finding.kind, finding.sure) == ("short_lengths", "likely")
    assert finding.seen == "each input length is the number of the sample's labels, at most 4 of T = 40 frames"
    assert "pass them as target_lengths=" in finding.do
    assert diagnose(x[:4], [[1, 2, 3, 4], [3], [5, 6]], [4, 1, 2]).ok


def test_frames_that_are_padded_to_a_fixed_width_are_well():
    """After its input lengths a network says anything, but not its labels."""
    for seed in range(200):
        given = good(SEED + seed, plain=True)
        x = given["logits"]
        for noise in (0.0, 1.0, 10.0):
            wide = np.random.default_rng(seed).normal(size=(2 * len(x) + 1, *x.shape[1:])) * noise
            wide[: len(x)] = x
            assert not {"short_lengths", "infeasible"} & diagnose(**{**given, "logits": wide}).kinds


def test_lengths_that_make_a_fresh_batch_infeasible():
    """A fresh network does not show that it goes on: what is not known is asked."""
    x = np.random.default_rng(12).normal(size=(40, 3, 8))
    (finding,) = diagnose(x, [[1, 2, 3, 4]] * 3, [3, 5, 2]).findings
    assert finding.kind == "infeasible"
    assert "input_lengths were not divided twice: the longest is 5 of T = 40 frames; or reduce" in finding.do
    (finding,) = diagnose(x, [[1, 2, 3, 4]] * 3, [3, 40, 2]).findings
    assert finding.do.startswith("reduce the down-sampling")


@pytest.mark.parametrize("pad", [0, -1, 9])
def test_padding_of_every_kind(pad):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(40, 8, 10))
    rows = [rng.integers(1, 9, size=size).tolist() for size in (9, 3, 5, 2, 6, 7, 4, 8)]
    padded = np.array([row + [pad] * (9 - len(row)) for row in rows])
    (finding,) = diagnose(x, padded, None, [9] * 8).findings
    assert finding.kind == "padding_in_targets"
    assert f"times {pad}," in finding.seen
    assert finding.samples == (1, 2, 3, 4, 5, 6, 7)


def test_labels_that_end_alike_are_no_padding():
    """An end mark on every row, and digits that end in zeros as others hold zeros."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 8, 12))
    assert diagnose(x, [[*rng.integers(1, 9, size=5).tolist(), 9] for _ in range(8)]).ok
    prices = [[4, 9, 9], [1, 9, 5], [7, 2, 9], [9, 9, 9], [3, 1, 9], [2, 9, 9], [5, 9, 1], [8, 9, 9]]
    assert diagnose(x, prices).ok


def test_padding_with_a_class_that_is_a_label_too():
    """Spaces, say: common inside the rows, but hardly ever two of them side by side."""
    for seed, (size, width) in enumerate([(24, 16), (32, 20), (48, 24)]):
        rng = np.random.default_rng([SEED, seed])
        rows = [rng.integers(2, 27, size=int(rng.integers(width // 3, width + 1))).tolist() for _ in range(size)]
        for row in rows:
            row[1:-1:6] = [1] * len(row[1:-1:6])
        rows[0] = [*rows[0], *([2] * width)][:width]
        x = rng.normal(size=(100, size, 28))
        assert diagnose(x, rows).ok
        (finding,) = diagnose(x, [row + [1] * (width - len(row)) for row in rows]).findings
        assert (finding.kind, finding.sure) == ("padding_in_targets", "possible")
        assert "times 1, which stands inside them" in finding.seen
    amounts = [[int(digit) + 1 for digit in f"{n}000"] for n in [101, *rng.integers(100, 1000, size=31)]]
    assert diagnose(rng.normal(size=(100, 32, 28)), amounts).ok, "thousands end in zeros"


def test_lengths_in_each_others_place():
    x, labels = well(0)["logits"], well(0)["targets"]  # all of them: it reads no more than these
    counts, width = [len(row) for row in labels], max(map(len, labels))
    padded = np.array([row + [-1] * (width - len(row)) for row in labels])
    for targets in (padded, np.concatenate(labels)):
        found = diagnose(x, targets, counts, [T] * N).findings
        assert (found[0].kind, found[0].sure) == ("swapped_lengths", "certain")
        assert {each.kind for each in found} == {"swapped_lengths"}


def test_as_many_frames_as_samples():
    rng = np.random.default_rng(6)
    walk = rng.normal(size=(40, 40, 9)).cumsum(axis=0)
    labels = [rng.integers(1, 9, size=4).tolist() for _ in range(40)]
    assert diagnose(walk, labels).ok
    (finding,) = diagnose(walk.transpose(1, 0, 2), labels).findings
    assert (finding.kind, finding.sure) == ("swapped_axes", "likely")
    assert diagnose(walk.transpose(1, 0, 2), labels, layout="NTC").ok


def test_turned_over_by_the_counts_is_one_sentence():
    (finding,) = diagnose(np.random.default_rng(5).normal(size=(4, 50, 12)), [[1, 2]] * 4).findings
    assert finding.seen == 'layout="TNC" reads 4 time steps and 50 samples, but targets hold 4 sequences'


def test_the_first_character_then_blanks():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 8, 12)) * 0.3
    x[:, :, 0] += 4
    x[1, :, 5] += 7
    labels = [[int(rng.integers(1, 12)) for _ in range(10)] for _ in range(8)]
    (finding,) = diagnose(x, labels).findings
    assert finding.kind == "dominant_class"
    assert "8 of 8 samples read [5] and then blanks" in finding.seen


def test_the_last_class_is_the_networks_blank():
    given = well(1)
    x = given["logits"][:, :, [*range(1, C), 0]]  # the network's blank is its last class
    labels = [[k - 1 for k in row] for row in given["targets"]]
    assert diagnose(x, labels, given["input_lengths"], blank=-1).ok
    (finding,) = diagnose(x, labels, given["input_lengths"]).findings
    assert finding.kind == "blank_in_targets"
    assert finding.do == f"pass blank={LAST} (or -1, the last)"


def test_an_untrained_network_does_not_tell_its_blank():
    """Any class may be the most probable by a little: none is named for it."""
    rng = np.random.default_rng(11)
    for _ in range(50):
        (finding,) = diagnose(rng.normal(size=(40, 3, 8)), [[0, 2], [1], [2]]).findings
        assert finding.kind == "blank_in_targets"
        assert finding.do.startswith("leave the blanks out of the targets")


def test_broken_rules_say_what_to_do():
    x = np.zeros((20, 2, 8))
    for given, do in (
        (([[1], [9]],), "give the network a class for every label"),
        (([[1], [2]], [25, 23]), "count the frames that leave the network, after its own down-sampling; ctcbind.check"),
        ((np.ones((2, 3), int), [4, 4], [20, 3]), "pass the number of labels before the padding"),
        (([[1.0], [2]],), "pass targets[0] as ints"),
        (([["a"], ["b"]],), "pass arrays of an integer dtype"),
        (([[1], [2]], [1.0, 0.5]), "if they are shares of T, pass them times that, rounded"),
        (([[1], [2]], np.ones((2, 20), bool)), "pass input_lengths.sum(axis=1) if they are a mask that is True"),
        (([[1], [2]], np.ones((2, 20), int)), "pass input_lengths.sum(axis=1) if they are a mask that is 1"),
        (([[1], [2]], np.ones((2, 20))), "pass input_lengths.sum(axis=1).astype(int) if they are a mask that is 1"),
        (([[1], [2]], np.zeros((2, 20))), "pass input_lengths.sum(axis=1).astype(int) if they are a mask that is 1"),
        (([[1], [2]], np.ma.array([20, 20], mask=[0, 1])), "pass plain integers"),
    ):
        finding = diagnose(x, *given).findings[0]
        assert finding.kind == "invalid"
        assert finding.do.startswith(do)
        assert ("integer dtype" in finding.do) == ("integer dtype" in do)


@pytest.mark.parametrize("factor", [2, 3, 4, 8, 320])
@pytest.mark.parametrize("left", [0, 1])
def test_lengths_that_were_not_divided_are_told_by_what(factor, left):
    """With what layers leave of them: all frames, begun ones too, or one less at the edges."""
    for seed in range(4):
        given = well(seed)
        before = factor * given["input_lengths"] + left * factor - left
        (finding,) = diagnose(**given | {"input_lengths": before}).findings
        assert finding.kind == "invalid"
        assert finding.do.startswith(f"divide input_lengths by {factor}, rounded as the network's layers round")
        times = f"{'about ' * left}{factor} times T,"
        assert f"the longest, {before.max()}, is {times}" in finding.do
        right, found = diagnose(**given).measures, diagnose(**given | {"input_lengths": before}).measures
        assert found.loss == pytest.approx(right.loss, rel=0.1), "it is put right for what comes after"
    (finding,) = diagnose(**given | {"input_lengths": before, "blank": LAST, "targets": [[2]] * N}).findings[:1]
    assert finding.do.startswith("divide input_lengths")


def test_lengths_that_are_too_long_otherwise_are_divided_by_nothing():
    given = well(SEED)
    for longest in (T + 1, T + 20, T + 100, 2 * T - 30, 2 * T + 30):
        lengths = given["input_lengths"].copy()
        lengths[0] = longest
        assert "divide" not in str(diagnose(**given | {"input_lengths": lengths}))
    assert "divide" not in str(diagnose(np.zeros((2, 1, 4)), [[1]], [400]))
    assert "divide" not in str(diagnose(np.zeros((20, 1, 4)), [[1]], [2**62]))


def test_what_the_rule_says_is_not_said_twice():
    """A finding without advice of its own has no line for it; none says only that one is to obey."""
    for given in (np.zeros((20, 8)), [[1]]), (np.zeros((20, 2, 8)), [1, 2]), (np.zeros((20, 2, 8)), [[1]], 7):
        found = diagnose(*given)
        assert found.kinds == {"invalid"}
        for finding, lines in zip(found.findings, str(found).split("\n\n")):
            assert finding.do != "give what that asks for"
            assert ("  do:" in lines) == bool(finding.do)
        assert json.loads(json.dumps(found.to_dict()))["findings"][0]["do"] == found.findings[0].do
    (finding,) = diagnose(np.zeros((20, 2, 8)), [[1], [2], [3]]).findings
    assert finding.do.startswith("pass as many targets as the logits have samples")
    assert not [
        each for row in MINE.values() if row.rule not in ("layout", "topology")
        for each in diagnose(**arguments(row)).findings if "what that asks for" in each.do
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_logits_make_no_noise(dtype):
    """Differences, losses and their sum past the largest double, and a history that is."""
    big = float(np.finfo(dtype).max)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(30, 4, 6))
    x, labels = (signs * big).astype(dtype), [[1, 2]] * 4
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        found = diagnose(x, labels, history=[1e308] * 30)
        assert "exploding_gradients" in found.kinds
        assert ctcbind.check(x, labels).ok
    finding = next(each for each in found.findings if each.kind == "exploding_gradients")
    assert len(max(finding.seen.split(), key=len)) < 20
    if dtype == "float64":
        assert found.measures.loss == np.inf
        assert "is past the range of float64, with logits more than 1.8e+308 apart" in finding.seen
    x = np.zeros((20, 4, 6))
    x[0, :, 1] = -1.7e308
    x[0, :, 0] = -1.7e308
    assert diagnose(x, [[1, 2]] * 4).measures.loss == pytest.approx(1.7e308), "the sum is past it, the mean is not"


def test_losses_that_masks_make_infinite():
    x = np.random.default_rng(9).normal(size=(10, 3, 6))
    x[:, 1, 2] = -np.inf
    assert diagnose(x, [[1], [1], [2]]).ok
    (finding,) = diagnose(x, [[1], [1, 2], [2]]).findings
    assert (finding.kind, finding.samples) == ("not_finite", (1,))
    assert np.isinf(ctcbind.ctc_loss(x, [[1], [1, 2], [2]])[1])


def test_what_overflows_is_not_called_a_mask():
    rng = np.random.default_rng([SEED, 9])
    with np.errstate(over="ignore"):
        x = (2e5 * rng.choice([-1, 1], size=(20, 4, 6))).astype(np.float16)
    x[:, 1] = np.minimum(x[:, 1], 0)  # what overflows downwards alone
    x[:, 1, 2] = -np.inf
    found = diagnose(x, [[1, 2]] * 4).findings
    upwards, downwards = (each for each in found if each.kind == "not_finite")
    assert "float16 ends at 65504" in upwards.means
    assert upwards.do.startswith("compute the last layer in float32")
    assert downwards.samples == (1,)
    assert "have left the range of float16 downwards" in downwards.means
    assert downwards.do.startswith("look for the first layer that overflows")
    (masked,) = diagnose(x[:, 1:2], [[1, 2]]).findings
    assert masked.means.endswith("enough: a mask forbids what the labels need")
    assert "float16" not in str(diagnose(np.where(x == np.inf, np.inf, 0.0), [[1, 2]] * 4))


def test_nothing_is_said_of_lengths_that_were_wrong():
    """Too large or negative, whatever stands in their place."""
    given = well(0)
    padded_frames(given)
    (finding,) = diagnose(**given | {"input_lengths": [T + 20 + n for n in range(N)]}).findings
    assert finding.kind == "invalid"
    x = np.random.default_rng(SEED).normal(size=(40, 3, 8))
    for lengths in ([-1, 40, 30], [-1, -2, -3]):
        found = diagnose(x, [[1, 2, 2], [3], [4]], lengths)
        assert found.kinds == {"invalid"}
        assert "no sample has a path" not in str(found)
    (finding,) = [each for each in diagnose(x, [[1, 2] * 30, [3], [4]], [-1, 40, 0]).findings if each.kind != "invalid"]
    assert finding.samples == (0, 2), "40 frames are the most that it can have"


def test_what_is_not_finite_is_not_measured():
    rng = np.random.default_rng([SEED, 21])
    x, labels = rng.normal(size=(20, 4, 6)), [[1, 2], [3], [2, 4, 1], [5, 5]]
    right = diagnose(x[:, [0, 3]], [labels[0], labels[3]]).measures
    broken = x.copy()
    broken[4, 1, 2] = np.nan
    broken[:, 2, 4] = -np.inf
    found = diagnose(broken, labels)
    norms = found.measures.grad_norms
    assert np.isnan(norms[1:3]).all()
    assert norms[::3] == right.grad_norms
    assert replace(found.measures, grad_norms=(), left_out=0) == replace(right, grad_norms=())
    assert found.measures.left_out == 2
    assert "\nWithout the 2 samples whose logits are not finite:\n4 labels and 40 frames" in str(found)
    named = next(each for each in diagnose(broken, labels, history=[3.0, np.nan]).findings if "step" in each.seen)
    assert named.samples == tuple(sorted((0, 3), key=lambda n: -norms[n])), "made-up gradients are not told"
    told = str(diagnose(x * np.nan, labels, history=[3.0, np.nan]))
    assert "the loss of step 1 is nan; no gradient is finite here" in told
    nothing = diagnose(x * np.nan, labels)
    assert np.isnan([nothing.measures.loss, nothing.measures.blank_wins, *nothing.measures.grad_norms]).all()
    assert str(nothing).endswith("\nThe logits of no sample are finite, and so nothing is measured.")
    padded = x.copy()
    padded[15:] = np.nan
    measures = diagnose(padded, labels, [15] * 4).measures
    assert measures.left_out == 0, "what is behind the last frame is in no measure"
    assert measures == diagnose(x, labels, [15] * 4).measures


def test_measures_are_what_they_say():
    x = np.zeros((10, 2, 4))
    found = diagnose(x, [[1], [2, 3]], [10, 6])
    m = found.measures
    assert (m.frames, m.labels, m.blank_posterior) == (16, 3, 0.25)
    loss = ctcbind.ctc_loss(x, [[1], [2, 3]], [10, 6]).mean()
    assert m.loss == m.uniform_loss == pytest.approx(loss)
    assert m.constant_loss < m.uniform_loss
    assert json.loads(json.dumps(found.to_dict()))["measures"]["frames"] == 16
    assert "Nothing suspicious" in str(found)
    assert "3 labels and 16 frames; the blank wins 100.0% of them" in str(found)


def test_no_number_is_told_of_what_is_not_there():
    nothing_fits, no_frames = (
        diagnose(np.zeros((2, 2, 4)), [[1, 1], [2, 3, 1]]),
        diagnose(np.zeros((0, 2, 4)), [[], []]),
    )
    assert str(nothing_fits).endswith("no sample has a path, and so none a loss")
    assert "nan" not in str(nothing_fits) + str(no_frames)


@pytest.mark.parametrize("name", [name for name, row in MINE.items() if row.rule not in ("layout", "topology")])
def test_whatever_a_loss_refuses_is_told(name):
    """But for wrong options, which it refuses too."""
    found = diagnose(**arguments(MINE[name]))
    assert not found.ok
    assert found.findings


def test_what_is_too_wrong_is_told_all_the_same():
    found = diagnose(np.zeros((4, 3), int), [[1.5]])
    assert found.kinds == {"invalid"}
    assert found.measures is None
    assert len(found.findings) == 3
    assert diagnose(np.zeros((4, 2, 3)), [[1], [-1, 1]]).kinds == {"invalid"}
    assert diagnose(np.zeros((0, 2, 3)), [[], []]).ok
    assert diagnose(np.zeros((3, 1, 1)), [[]]).ok
    with pytest.raises(ctcbind.InvalidInput, match="layout"):
        diagnose(np.zeros((4, 2, 3)), [[1], [1]], layout="CTN")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Away from the source tree, so that the installed one runs."""
    start = [sys.executable, "-m", "ctcbind", *words]
    return subprocess.run(start, capture_output=True, text=True, timeout=120, cwd=Path(sys.executable).parent)


def test_the_command(tmp_path):
    given = well(3)
    all_blank(given)
    labels = given["targets"]
    arrays = {
        "targets": np.concatenate([np.array(row) for row in labels]),
        "target_lengths": [len(row) for row in labels],
        "input_lengths": given["input_lengths"],
    }
    batch, picture = str(tmp_path / "batch.npz"), tmp_path / "out.png"
    np.savez(batch, logits=given["logits"], **arrays)
    done = command("diagnose", batch)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("all_blank (")
    done = command("diagnose", batch, "--json")
    assert [each["kind"] for each in json.loads(done.stdout)["findings"]] == ["all_blank"]
    pytest.importorskip("matplotlib")
    done = command("diagnose", batch, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {picture} (samples 0, 1, 2, 3 of {N})" in done.stderr
    np.savez(batch, logits=well(3)["logits"], **arrays)
    done = command("diagnose", batch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Nothing suspicious was found.")
    np.savez(batch, logits=log_softmax(well(3)["logits"]), **arrays)
    done = command("diagnose", batch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "log_probabilities (certain, harmless)")
    assert command("diagnose", str(tmp_path / "none.npz")).returncode == 2


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_stands_for_lost_logits_says_nothing(wrong):
    """A class that is lost at every frame leaves nothing of which a habit could be told, be
    there frames behind the lengths or not."""
    for seed in range(4):
        given = well(seed)
        given["logits"][:, :, 3] = wrong
        given["logits"][:, :, 0] += 3  # the first frame says blank, and so do those behind the lengths
        for lengths in (given["input_lengths"], given["input_lengths"] - 1, None):
            found = diagnose(**{**given, "input_lengths": lengths})
            assert [each.kind for each in found.findings] == ["not_finite"], found
    given = well(0)
    given["logits"][:, 1:, 3] = wrong  # what the last sample says is all that is known
    given["logits"][:, 0] = np.random.default_rng(2).normal(size=(T, C))
    given["logits"][:, 0, 0] += 8
    found = {each.kind: each for each in diagnose(**given).findings}
    assert found.keys() == {"not_finite", "all_blank"}
    assert f"of {given['input_lengths'][0]} frames" in found["all_blank"].seen


def test_what_is_the_same_at_every_frame_is_told():
    """Of a last layer that begins at zero, and of a dead network, whose biases alone are left."""
    rng, labels = np.random.default_rng(SEED), [[1, 2], [3], [2, 4, 1]]
    for x in (np.zeros((40, 3, 6)), np.broadcast_to(rng.normal(size=(40, 3, 1)), (40, 3, 6)).astype(np.float32)):
        (finding,) = diagnose(x, labels).findings
        assert (finding.kind, finding.sure) == ("constant_output", "likely")
        assert finding.seen.startswith("at all 120 frames each of the 6 classes has the probability 0.167")
        assert "begins at zero" in finding.means
    for biases in (rng.uniform(-1, 1, size=6), rng.uniform(0.05, 0.95, size=6), [0.01, 0.3, 0.2, 0.1, 0.95, 0.4]):
        (finding,) = diagnose(np.broadcast_to(biases, (40, 3, 6)), labels).findings
        assert (finding.kind, finding.sure) == ("constant_output", "certain")
        assert finding.seen.startswith("all 120 frames have the same probabilities")
    dead = np.zeros((40, 3, 6))
    dead[3, 2, 1] = 1e-6
    assert diagnose(dead, labels).ok
    assert diagnose(np.full((40, 3, 6), np.nan), labels).kinds == {"not_finite"}
    assert diagnose(np.zeros((40, 3, 1)), [[]] * 3).ok


@pytest.mark.parametrize("height", [1.5, 4, 6, 8, 40])
@pytest.mark.parametrize("k", [0, 4])
def test_what_is_the_same_at_every_frame_is_no_habit(height, k):
    """That the blank, or another class, is the most probable is what it says, and not why."""
    dead = np.zeros((40, 3, 6))
    dead[:, :, k] = height
    (finding,) = diagnose(dead, [[1, 2], [3], [2, 4, 1]]).findings
    assert (finding.kind, finding.sure) == ("constant_output", "certain")
    assert finding.seen.endswith(f"that of class {k}" + ", the blank" * (k == 0))
    dead[3, 2, 1] += 1e-6
    assert "constant_output" not in diagnose(dead, [[1, 2], [3], [2, 4, 1]]).kinds


def test_labels_that_count_from_0_are_not_surely_blanks():
    """With the blank left at 0, and a fresh network: to leave its first letter out would be the wrong advice."""
    for seed in range(50):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(0, 11, size=8).tolist() for _ in range(8)]
        targets[0][3] = 0
        found = diagnose(rng.normal(size=(60, 8, 12)), targets)
        (finding,) = [each for each in found.findings if each.kind == "blank_in_targets"]
        assert finding.sure == "likely"
        assert "add 1 to every label" in finding.do
        assert "count from 0" in finding.means
        written = diagnose(rng.normal(size=(60, 8, 12)), [[1, 0, 2, 0, 3], [0, 4, 0, 4, 0], *[[5]] * 6])
        assert all("add 1" not in each.do for each in written.findings)


def test_logits_of_a_convolution_are_thought_of():
    found = diagnose(np.random.default_rng(SEED).normal(size=(8, 20, 80)), [[1, 2]] * 8)
    assert "by (2, 0, 1) where they are (N, C, T)" in found.findings[0].do


def test_the_picture_shows_the_samples_of_the_findings(tmp_path):
    pytest.importorskip("matplotlib")
    from ctcbind.plot_diagnosis import draw

    given = good(SEED, "trained", size=(60, 30, 8), plain=True)
    options = {"blank": 0, "layout": "TNC", "topology": "ctc", "engine": "auto", "history": None}

    def drawn() -> list[int]:
        arrays = given["logits"], given["targets"], given["input_lengths"], None
        return draw(import_module("ctcbind.diagnose").examine(*arrays, **options)[1], tmp_path / "out.png")

    assert drawn() == [0, 1, 2, 3]
    given["logits"][5, [20, 21], 3] = np.nan
    assert drawn() == [20, 21, 0, 1]
    given["targets"][25] = [1, 2] * 40
    assert drawn()[:2] in ([20, 25], [25, 20])
    assert len(drawn()) == 4


def test_lengths_that_fit_the_other_way_round_by_chance():
    """A length that is off by one, and targets that are padded to more than T."""
    x = np.random.default_rng(SEED).normal(size=(50, 2, 20))
    padded = np.full((2, 60), 19)
    padded[0, :3], padded[1, :2] = [1, 2, 3], [4, 5]
    (finding, *_) = diagnose(x, padded, [51, 50], [3, 2]).findings
    assert finding.kind == "invalid"
    assert "input_lengths[0] is 51" in finding.seen


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_a_softmax_of_half_precision_is_found_after_a_cast(dtype):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype) if isinstance(dtype, str) else dtype)
    for scale in (0.5, 1, 4):
        x = scale * np.random.default_rng(SEED).normal(size=(50, 16, 11))
        rounded = softmax(x).astype(dtype)
        for each in (rounded, rounded.astype(np.float32), rounded.astype(np.float64)):
            assert diagnose(each, [[1, 2, 3]] * 16).kinds == {"probabilities"}
