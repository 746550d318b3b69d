"""Alignment: every path of tiny lattices, the reference, ties, blocks, bounded memory, and torchaudio's where it is."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from batches import SEED, random_case
from beyond import EPS, IN_FLOATS, close, largest_log, rounding, run_script, sample, state_paths

import ctcbind
from ctcbind.bindings.native_lattice import align_bytes
from ctcbind.engines.reference import log_softmax
from ctcbind.engines.reference_lattice import best_path, make_graph


def spans(states, length):
    """(starts, ends) of the labels of one row of states."""
    found = [np.flatnonzero(states == 2 * i + 1) for i in range(length)]
    return [int(each[0]) for each in found], [int(each[-1]) + 1 for each in found]


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("labels", [[], [1], [1, 2], [1, 1], [2, 1, 1], [1, 2, 1]])
@pytest.mark.parametrize("T", [1, 3, 5])
def test_no_path_is_better(labels, topology, T):
    rng = np.random.default_rng([SEED, 71, T, len(labels)])
    x = rng.normal(size=(T, 1, 3))
    bonus, prior = rng.normal(size=(T, 2 * len(labels) + 1)), rng.normal(size=3)
    graph = make_graph(np.array(labels, np.int32), 0, merge_repeats=topology == "ctc")
    paths = state_paths(graph, T)
    for added in ({}, {"path_bonus": bonus}, {"path_bonus": bonus, "log_prior": prior, "prior_weight": 0.5}):
        emit = log_softmax(x[:, 0])[:, graph.extended] + (bonus if "path_bonus" in added else 0)
        emit = emit - (0.5 * prior[graph.extended] if "log_prior" in added else 0)
        got = ctcbind.align(x, [labels], topology=topology, **added)
        if not len(paths):
            assert got.log_p[0] == -np.inf
            assert (got.states == -1).all()
            assert (got.classes == -1).all()
            assert (got.starts == -1).all()
            assert np.isnan(got.scores).all()
            continue
        each = emit[np.arange(T), paths].sum(axis=1)
        assert got.log_p[0] == pytest.approx(each.max(), abs=1e-12)
        assert got.states[0].tolist() == paths[each.argmax()].tolist()
        assert got.classes[0].tolist() == graph.extended[got.states[0]].tolist()


@pytest.mark.parametrize("seed", range(60))
def test_against_the_reference(seed):
    case = random_case([SEED, 72, seed])
    got = ctcbind.align(*case.args, **case.options)
    kind = "float64" if case.logits.dtype == np.float64 else "float32"
    assert got.log_p.dtype == got.scores.dtype == np.dtype(kind)
    assert got.states.dtype == got.starts.dtype == got.ends.dtype == got.classes.dtype == np.int32
    bound = 2 * rounding(case.x.shape[0], case.x.shape[2], largest_log(case))
    for n, labels in enumerate(case.labels):
        frames = case.frames[n]
        assert (got.states[n, frames:] == -1).all()
        assert (got.starts[n, len(labels) :] == -1).all()
        assert np.isnan(got.scores[n, len(labels) :]).all()
        if frames == 0 or not case.feasible(n):
            assert got.log_p[n] == (0 if frames == 0 and not labels else -np.inf)
            assert (got.starts[n] == -1).all()
            continue
        log_y, graph = sample(case, n)
        states, log_p = best_path(graph, log_y[:, graph.extended])
        tops = log_y.max(axis=1)
        sums = 0 if kind == "float64" else IN_FLOATS * -tops[tops > -np.inf].sum()  # what frames take off their logits
        close(got.log_p[n], log_p, bound + sums, kind)
        own = got.states[n, :frames]
        # where two paths are closer than rounding either may be taken; it has to be a path, and as good
        assert (graph.moves[own[:-1], own[1:]] == 0).all()
        assert own[0] < 2
        assert own[-1] >= len(graph.extended) - 2
        close(log_y[np.arange(frames), graph.extended[own]].sum(), log_p, bound)
        starts, ends = spans(own, len(labels))
        assert got.starts[n, : len(labels)].tolist() == starts
        assert got.ends[n, : len(labels)].tolist() == ends
        means = [log_y[a:b, label].mean() for a, b, label in zip(starts, ends, labels)]
        close(got.scores[n, : len(labels)], means, bound + sums, kind)
        if len(np.unique(case.x)) == case.x.size:  # no ties: the path is one
            assert own.tolist() == states.tolist()


@pytest.mark.parametrize("C", [1, 2, 31, 33, 97, 300, 1030, 5003])
@pytest.mark.parametrize("how", ["classes together", "classes from behind", "classes apart"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_many_classes(dtype, how, C):
    """Of which few are labels: read where they stand."""
    rng = np.random.default_rng([SEED, 78, C])
    T, L = 40, 6 if C > 1 else 0
    x = (3 * rng.normal(size=(T, 2, C))).astype(dtype)
    x[3, 1, C // 2] = np.inf if C > 1 else 0
    labels = rng.integers(1, C, size=(2, L)) if C > 1 else np.zeros((2, 0), int)
    given = {"classes together": x, "classes from behind": x[:, :, ::-1].copy()[:, :, ::-1]}.get(
        how, np.asfortranarray(x)
    )
    got = ctcbind.align(given, labels)
    for n in range(2):
        log_y = log_softmax(x[:, n].astype(np.float64))
        graph = make_graph(labels[n].astype(np.int32), 0, merge_repeats=True)
        states, log_p = plain_viterbi(log_y[:, graph.extended], graph)
        sums = 0 if dtype == "float64" else IN_FLOATS * -log_y.max(axis=1).sum()
        size = abs(log_p) if log_p > -np.inf else 0
        close(got.log_p[n], log_p, rounding(T, C, size) + sums, "float64" if dtype == "float64" else "float32")
        if log_p == -np.inf:
            assert (got.states[n] == -1).all()
        elif dtype == "float16":  # of so few numbers two paths may have the same sum
            close(log_y[np.arange(T), graph.extended[got.states[n]]].sum(), log_p, rounding(T, C, size))
        else:
            assert got.states[n].tolist() == states.tolist()


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("seed", range(8))
def test_ties_are_those_of_the_reference(seed, topology):
    """Logits of three values make many equal paths. Rounding of their ln y may tell some of them apart, so that the
    states are compared where all are equal, and the sums of the logits, which are exact, everywhere else."""
    rng = np.random.default_rng([SEED, 73, seed])
    T, C = int(rng.integers(6, 30)), 4
    labels = rng.integers(1, C, size=int(rng.integers(1, 4))).tolist()
    x = np.zeros((T, 1, C))
    frame = np.array([0.0, 1.0, 1.0, 2.0])
    for t in range(T):
        x[t, 0] = rng.permutation(frame) if seed else 0
    graph = make_graph(np.array(labels, np.int32), 0, merge_repeats=topology == "ctc")
    states, _ = best_path(graph, log_softmax(x[:, 0])[:, graph.extended])
    got = ctcbind.align(x, [labels], topology=topology)
    again = ctcbind.align(x, [labels], topology=topology)
    assert np.array_equal(got.states, again.states)
    if not seed:
        assert got.states[0].tolist() == states.tolist()
    paths = got.states[0]
    assert x[np.arange(T), 0, graph.extended[paths]].sum() == x[np.arange(T), 0, graph.extended[states]].sum()


def test_a_tie_stays_in_the_last_label():
    assert ctcbind.align(np.zeros((5, 1, 3)), [[1, 2]]).states[0].tolist() == [1, 3, 3, 3, 3]
    assert ctcbind.align(np.zeros((5, 1, 3)), [[1, 1]]).states[0].tolist() == [1, 2, 3, 3, 3]
    assert ctcbind.align(np.zeros((3, 1, 3)), [[]]).states[0].tolist() == [0, 0, 0]


def plain_viterbi(emit, graph):
    """(states, score) a row at a time, with a table of choices: `best_path` for lattices too large for it."""
    T, S = emit.shape
    stay, skip = np.diag(graph.moves), np.full(S, -np.inf)
    skip[2:] = np.diag(graph.moves, 2)
    came = np.zeros((T, S), dtype=np.int8)
    score = np.full(S + 2, -np.inf)
    score[2:4] = emit[0, :2]
    for t in range(1, T):
        same, step, over = score[2:] + stay, score[1:-1], score[:-2] + skip
        best = np.maximum(same, step)
        came[t] = np.where(over > best, 2, step > same)
        score[2:] = np.maximum(best, over) + emit[t]
    state = S - 1 if score[-1] > score[-2] else S - 2
    states = np.empty(T, dtype=np.int32)
    for t in range(T - 1, -1, -1):
        states[t] = state
        state -= int(came[t, state])
    return states, float(score[2:][states[-1]])


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize(
    ("T", "L"),
    [
        (64, 20),
        (300, 120),
        (260, 250),
        (1000, 0),
        # beyond 2^17 labels of all frames, scores are kept at every 64th frame: at the edges of a block, and of a table
        (271, 480),
        (272, 480),
        (2048, 62),
        (2049, 62),
        (1088, 480),
        (1089, 480),
        (1090, 480),
        (1151, 454),
        (60_000, 7),
        (5000, 1100),  # at every 192nd
        (1500, 1490),
    ],
)
def test_blocks(T, L, topology):
    """In one table, or in blocks: the path is that of the plain recursion, state for state."""
    rng = np.random.default_rng([SEED, 74, T, L])
    x = rng.normal(size=(T, 1, 40))
    labels = rng.permutation(np.arange(L) % 39 + 1)  # few repeats, so that 1490 labels fit into 1500 frames sometimes
    graph = make_graph(labels.astype(np.int32), 0, merge_repeats=topology == "ctc")
    log_y = log_softmax(x[:, 0])
    prior = rng.normal(size=40)
    bonus = rng.normal(size=(T, 2 * L + 1)) if T * L < 10**6 else rng.normal(size=(1, 2 * L + 1))
    for added in ({}, {"path_bonus": bonus, "log_prior": prior}):
        emit = (log_y - prior if added else log_y)[:, graph.extended] + (bonus if added else 0)
        states, log_p = plain_viterbi(emit, graph)
        got = ctcbind.align(x, [labels.tolist()], topology=topology, **added)
        # rounding of T additions of numbers as large as the sum, and of the softmax
        assert got.log_p[0] == pytest.approx(log_p, abs=rounding(T, 40, abs(log_p) if log_p > -np.inf else 0))
        if log_p > -np.inf:
            assert got.states[0].tolist() == states.tolist()
        else:
            assert (got.states == -1).all()


def test_blocks_of_an_empty_target():
    x = np.random.default_rng([SEED, 77]).normal(size=(263_000, 1, 2))
    got = ctcbind.align(x, [[]])
    assert not got.states.any()
    assert got.log_p[0] == pytest.approx(log_softmax(x[:, 0])[:, 0].sum(), rel=1e-12)


def test_special_values():
    x = np.zeros((4, 4, 3))
    x[1, 0] = np.nan
    x[1, 1] = -np.inf
    x[2, 2, 1] = np.inf
    x[2, 3, :2] = np.inf
    got = ctcbind.align(x, [[1]] * 4)
    assert np.isnan(got.log_p[0])
    assert got.log_p[1] == -np.inf
    assert got.log_p[2] == pytest.approx(3 * np.log(1 / 3))
    assert got.log_p[3] == pytest.approx(3 * np.log(1 / 3) + np.log(1 / 2))
    assert (got.states[:2] == -1).all()
    assert got.states[2, 2] == 1
    assert ctcbind.align(x, [[1]] * 4, [1] * 4).log_p.tolist() == pytest.approx([np.log(1 / 3)] * 4)


def test_alignment_of_sharp_scores():
    """What a certain network says is what is found."""
    rng = np.random.default_rng([SEED, 75])
    frames = np.repeat(rng.permutation([1, 2, 3, 0, 4, 0, 4, 5]), rng.integers(1, 9, size=8))
    x = (12.0 * np.eye(6)[frames])[:, None]
    labels = ctcbind.greedy_decode(x)[0].labels
    got = ctcbind.align(x, [labels])
    assert got.classes[0].tolist() == frames.tolist()


def test_memory_is_bounded():
    """An hour of speech at 50 frames a second: no T * S table, whatever form it may have (5.4 GB of bytes)."""
    T, L, C = 180_000, 15_000, 32
    assert align_bytes(T, L, C) < 51e6
    assert align_bytes(4 * T, L, C) < 4 * 51e6


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of this process from the kernel")
def test_memory_as_measured():
    """A quarter of that hour in a process of its own: the peak grows by what is promised, with room for the results."""
    script = """
        import numpy as np, ctcbind
        from ctcbind.bindings.native_lattice import align_bytes
        T, L, C = 45_000, 3_750, 8
        x = np.random.default_rng(0).standard_normal((T, 1, C), dtype=np.float32)
        labels = (np.arange(L) % (C - 1) + 1).tolist()
        ctcbind.align(x[:10], [labels[:3]])
        before = peak()
        got = ctcbind.align(x, [labels])
        grown = peak() - before
        assert np.isfinite(got.log_p).all()
        print(grown, align_bytes(T, L, C), T * (2 * L + 1))
    """
    grown, promised, table = run_script(script)
    assert grown > promised / 2, "the peak was not seen"
    assert grown < promised + 8e6
    assert promised < table / 20


@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, np.inf, "50", None, True])
def test_wrong_rate(wrong):
    with pytest.raises(ctcbind.InvalidInput, match="frames_per_second"):
        ctcbind.frames_to_seconds([1], wrong)


def test_frames_to_seconds():
    frames = np.array([[0, 5], [7, -1]], dtype=np.int32)
    got = ctcbind.frames_to_seconds(frames, 12.5, offset=1.0)
    np.testing.assert_array_equal(got, [[1.0, 1.4], [1.56, np.nan]])
    with pytest.raises(ctcbind.InvalidInput, match="float64"):
        ctcbind.frames_to_seconds([0.5], 10)
    for wrong in ("1", None, np.nan, np.inf, True):
        with pytest.raises(ctcbind.InvalidInput, match="offset"):
            ctcbind.frames_to_seconds([1], 10, offset=wrong)
    assert ctcbind.frames_to_seconds([], 10).shape == (0,)
    counts = ctcbind.frames_to_seconds(np.array([0, 2**64 - 1], np.uint64), 0.5)
    np.testing.assert_array_equal(counts, [0.0, 2.0**65])
    np.testing.assert_array_equal(ctcbind.frames_to_seconds([-1, -2], 10), [np.nan, np.nan])
    with pytest.raises(ctcbind.InvalidInput, match="frames are bool; they must be integers"):
        ctcbind.frames_to_seconds(np.array([True]), 10)


def test_the_times_of_a_whole_alignment_are_asked_for_by_name():
    path = ctcbind.align(np.zeros((4, 1, 3)), [[1]])
    with pytest.raises(ctcbind.InvalidInput, match="frames are a whole Alignment; pass its starts or its ends"):
        ctcbind.frames_to_seconds(path, 50)


def test_times_past_the_range_of_a_double_are_infinite_without_a_warning():
    np.testing.assert_array_equal(ctcbind.frames_to_seconds([0, 9], 1e-308), [0.0, np.inf])


@pytest.mark.parametrize("seed", range(10))
def test_torchaudio_agrees(seed):
    """Its best path has the same score in float64 and, where paths are not tied, the same classes."""
    try:
        import torch
        from torchaudio.functional import forced_align
    except (ImportError, OSError) as error:
        pytest.skip(f"torchaudio is not here: {error}")
    rng = np.random.default_rng([SEED, 76, seed])
    T, C = int(rng.integers(5, 200)), 8
    labels = rng.integers(1, C, size=int(rng.integers(1, max(2, T // 3))))
    if len(labels) + (labels[1:] == labels[:-1]).sum() > T:
        labels = labels[:1]
    x = rng.normal(scale=2, size=(T, 1, C))
    log_y = torch.tensor(log_softmax(x[:, 0]))[None]
    path, scores = forced_align(log_y, torch.tensor(labels[None], dtype=torch.int32))
    got = ctcbind.align(x, [labels.tolist()])
    total = float(scores.sum())
    assert got.log_p[0] == pytest.approx(total, abs=T * EPS * 64 * abs(total))
    assert got.classes[0].tolist() == path[0].tolist()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((np.ma.array([5, 9], mask=[0, 1]), 50), "frames are a masked array"),
        (([[1], [1, 2]], 50), "frames cannot be read as integers: they are rows of different lengths; pass one"),
        ((None, 50), "frames are None; they must be integers"),
        (([2**70], 50), r"frames are \[1180591620717411303424\]; they must be integers, of at most 64 bits"),
        (([1], 10**400), "frames_per_second is 1000"),
        (([25], np.complex128(50)), "frames_per_second is"),
    ],
)
def test_what_is_no_time_is_refused(args, words):
    with pytest.raises(ctcbind.InvalidInput, match=words):
        ctcbind.frames_to_seconds(*args)
    with pytest.raises(ctcbind.InvalidInput, match="offset is"):
        ctcbind.frames_to_seconds([1], 50, offset=-(10**400))
