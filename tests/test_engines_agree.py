"""Every engine against the reference on a thousand random batches, and on sizes at the edges.

Two judgements. Each loss and each element of each gradient lies within a bound derived from the arithmetic
(`Case.loss_bound`, `Case.grad_bound`). And over all batches together the root mean square of the relative
error is at most twice that of a plain float32 log-space implementation on the same numbers.
"""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from batches import LAYOUTS, SEED, plain_float32, random_case

BATCHES = {"float32": 500, "float64": 250, "float16": 250}

#: (T, N, C): one class, one frame, and around the sizes at which vectors, tiles and bytes end
EDGES = [
    (1, 1, 1), (1, 1, 2), (2, 1, 2), (1, 7, 3), (7, 1, 3), (3, 33, 2), (15, 2, 15), (16, 2, 16), (17, 2, 17),
    (31, 3, 33), (32, 3, 32), (33, 3, 31), (63, 2, 64), (64, 2, 65), (65, 2, 63), (9, 2, 127), (9, 2, 129),
    (5, 2, 255), (5, 2, 256), (5, 2, 257), (4, 65, 5), (2, 1, 1000), (150, 2, 28),
]  # fmt: skip


@cache
def batches(dtype):
    """[(case, expected, plain)]: the same for every engine of a run."""
    made = []
    for i in range(BATCHES[dtype]):
        case = random_case([SEED, i, len(dtype), ord(dtype[5])], dtype=dtype)
        plain = plain_float32(case) if dtype != "float64" else None
        made.append((case, case.expected(), plain))
    return made


def rms(pairs):
    """Root mean square of the error over that of the exact values."""
    wrong = sum(float(((got - exact) ** 2).sum()) for got, exact in pairs)
    size = sum(float((exact**2).sum()) for _, exact in pairs)
    return (wrong / size) ** 0.5


def test_the_thousand_batches_have_everything_in_them():
    cases = [case for dtype in BATCHES for case, _, _ in batches(dtype)]
    assert len(cases) == 1000
    samples = [(case, n) for case in cases for n in range(len(case.labels))]
    assert len({case.x.shape[0] - max(case.frames) for case in cases}) > 3, "ragged"
    count = {
        "repeats": sum(any(a == b for a, b in itertools.pairwise(c.labels[n])) for c, n in samples),
        "empty": sum(not c.labels[n] for c, n in samples),
        "infeasible": sum(not c.feasible(n) for c, n in samples),
        "no frames": sum(c.frames[n] == 0 for c, n in samples),
        "simple": sum(c.topology == "simple" for c in cases),
        "NTC": sum(c.layout == "NTC" for c in cases),
        "blank last": sum(c.options["blank"] == -1 for c in cases),
        "blank inside": sum(0 < c.blank < c.x.shape[2] - 1 for c in cases),
        "read-only": sum(not c.logits.flags.writeable for c in cases),
        "strided": sum(not (c.logits.flags.c_contiguous or c.logits.flags.f_contiguous) for c in cases),
        "misaligned": sum(not c.logits.flags.aligned for c in cases),
    }
    assert min(count.values()) >= 20, f"{count}, seed {SEED}"


@pytest.mark.parametrize("dtype", BATCHES)
def test_a_thousand_random_batches(engine, dtype):
    losses, grads, plain_losses, plain_grads, refused = [], [], [], [], 0
    for case, expected, plain in batches(dtype):
        result = engine.run(case)
        if result is None:
            refused += 1
            continue
        case.check(result, dtype, expected)
        if plain is None:
            continue
        finite = np.isfinite(expected[0])
        losses.append((result.loss[finite].astype(np.float64), expected[0][finite]))
        plain_losses.append((plain[0][finite].astype(np.float64), expected[0][finite]))
        grads.append((case.in_order(result.grad), expected[1]))
        plain_grads.append((plain[1].astype(dtype).astype(np.float64), expected[1]))
    # nothing in these batches is extreme: only a topology that the contract lacks may be refused
    assert refused == sum(case.topology not in engine.contract.topologies for case, _, _ in batches(dtype))
    if losses:
        assert rms(losses) <= 2 * rms(plain_losses), f"seed {SEED}"
        assert rms(grads) <= 2 * rms(plain_grads), f"seed {SEED}"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", EDGES, ids=str)
def test_sizes_at_the_edges(engine, size, dtype):
    for topology in ("ctc", "simple"):
        case = random_case([SEED, *size], dtype=dtype, size=size, topology=topology, scale=1.0)
        result = engine.run(case)
        if result is not None:
            case.check(result, dtype, case.expected())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("L", [0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257])
def test_label_lengths_at_the_edges(engine, L, dtype):
    """Just as many frames as the labels need, one fewer, and some more; repeats in the third sample."""
    rng = np.random.default_rng([SEED, L])
    alternating = [1 + i % 3 for i in range(L)]
    repeating = [1 + i // 2 % 3 for i in range(L)]
    need = L + sum(a == b for a, b in itertools.pairwise(repeating))
    T = max(need + 5, 1)
    labels = [alternating, alternating, repeating, repeating, alternating]
    frames = [L, max(L - 1, 0), need, max(need - 1, 0), T]
    case = random_case([SEED, L], dtype=dtype, size=(T, 5, 4), topology="ctc", blank=0, scale=1.0)
    x = rng.normal(size=(T, 5, 4)).astype(dtype)
    case.x, case.labels, case.frames = x.astype(np.float64), labels, frames
    case.args, case.options, case.name = (x, labels, frames), {}, f"L = {L}, seed {SEED}"
    limit = engine.contract.max_label_length
    if limit is not None and limit < L:
        with pytest.raises(NotImplementedError, match=f"{L} labels"):
            engine.run(case)
        return
    result = engine.run(case)
    exact = case.expected()
    assert [bool(np.isfinite(loss)) for loss in exact[0]] == [case.feasible(n) for n in range(5)]
    assert result is not None
    case.check(result, dtype, exact)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("how", LAYOUTS)
def test_every_way_an_array_can_lie(engine, how, dtype):
    for i in range(6):
        case = random_case([SEED, i], dtype=dtype, how=how, topology="ctc", size=(9, 3, 5))
        result = engine.run(case)
        assert result is not None
        case.check(result, dtype, case.expected())


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("C", [1, 2, 3, 6])
def test_every_blank(engine, C, topology):
    for blank in range(-1, C):
        for i in range(4):
            case = random_case([SEED, i, C], dtype="float32", topology=topology, size=(6, 3, C), blank=blank)
            result = engine.run(case)
            if result is not None:
                case.check(result, "float32", case.expected())


def test_bfloat16(engine):
    pytest.importorskip("ml_dtypes", reason="bfloat16 arrays come from ml_dtypes")
    for i in range(60):
        case = random_case([SEED, i], dtype="bfloat16")
        result = engine.run(case)
        if result is not None:
            case.check(result, "bfloat16", case.expected())


@pytest.mark.parametrize(("T", "L"), [(1000, 100), (2000, 20)])
def test_long_inputs_stay_accurate(engine, T, L):
    """No worse than twice plain float32 where rounding has many frames in which to gather."""
    rng = np.random.default_rng([SEED, T])
    case = random_case([SEED, T], dtype="float32", size=(T, 1, 8), topology="ctc", blank=0, scale=1.0)
    x = rng.normal(size=(T, 1, 8)).astype(np.float32)
    labels = [rng.integers(1, 8, size=L).tolist()]
    case.x, case.labels, case.frames, case.args, case.options = x.astype(float), labels, [T], (x, labels), {}
    case.name = f"T = {T}, seed {SEED}"
    result, exact, plain = engine.run(case), case.expected(), plain_float32(case)
    assert result is not None
    case.check(result, "float32", exact)
    assert rms([(result.grad, exact[1])]) <= 2 * rms([(plain[1], exact[1])])
