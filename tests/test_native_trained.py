"""Where the loss will be small the native engine leaves out paths on the way forward, too, trusting that p will be what
the first frames promise. Where it is not, nothing may be missing in the end."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from test_native_isa import SETS, TESTS, available, run
from trained import Trained, check, check_batch

from ctcbind import CTCLoss

SCRIPT = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    from trained import check
    from ctcbind.bindings.native import instruction_set
    for seed in (19, 32, 47, 58, 61, 68, 161, *([int(sys.argv[2]), number] for number in range(6))):
        for dtype in ("float32", "float64"):
            for topology in ("ctc", "simple"):
                check(seed, dtype, topology)
                check(seed, dtype, topology, T=1200, N=1)
    print(json.dumps(instruction_set()))
"""


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("number", range(10))
def test_batches_of_trained_networks(number, dtype, topology):
    check([SEED, number], dtype, topology)


@pytest.mark.parametrize("isa", SETS)
def test_on_each_instruction_set(isa):
    """With fewer lanes, fewer labels are computed beside those that are to be. The first batches are such that each of
    the rules by which labels are left out, and found again, is seen to be broken on one set at least."""
    if available(isa) is None:
        pytest.skip(f"this build and processor have no {isa}")
    assert run(SCRIPT, isa, TESTS, SEED) == isa


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [11, 29, 30, 41, "new"])
def test_a_long_sample_in_halves(seed, dtype, topology):
    """Each half goes by its own first frames, and where they meet is seen whether both were right."""
    check([SEED, 1] if seed == "new" else seed, dtype, topology, T=1200, N=1)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [7, 10, 34, "new"])
def test_one_half_is_wrong_and_both_are_done_again(seed, dtype):
    """A loss that seems hardly small enough for paths to be left out, and one half where it is not: the other, which
    was computed in floats and left out none, leaves out some when it is done again in doubles."""
    rng = np.random.default_rng([SEED, 2] if seed == "new" else seed)
    T, L, C = 1020, 108, 5
    x, labels, path = 0.1 * rng.normal(size=(T, 1, C)), rng.integers(1, C, (1, L)), np.zeros(T, int)
    path[np.sort(rng.choice(T, L, replace=False))] = labels[0]
    x[np.arange(T), 0, path] += 3.2
    a = int(rng.integers(200, 450))
    x[a : a + 150] *= -3
    check_batch(Trained(x.astype(dtype), labels, np.array([T]), np.array([L])), "ctc")


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_where_every_other_checkpoint_is_left_out(dtype, topology):
    check([SEED, 0], dtype, topology, T=2500)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("silent", [0.5, 0.74, 0.8, 0.9, 0.95])
def test_what_seemed_probable_does_not_come_to_the_end(silent, dtype, topology):
    """Nothing but blanks until there are hardly more frames than labels: those paths that alone can still end were the
    least probable so far."""
    T, L, C = 480, 120, 9
    rng = np.random.default_rng([SEED, L])
    x = rng.normal(size=(T, 3, C))
    x[: int(silent * T), :, 0] += 40
    labels = np.tile(np.arange(L) % (C - 1) + 1, (3, 1))
    check_batch(Trained(x.astype(dtype), labels, np.full(3, T), np.array([L, L - 1, L // 2])), topology)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_not_a_number_after_paths_were_left_out(topology):
    rng = np.random.default_rng([SEED])
    x = rng.normal(size=(400, 4, 12)).astype(np.float32)
    x[:, :, 0] += 12
    at, labels = np.arange(50, 350, 3), rng.integers(1, 12, (4, 100))
    x[at, :, 0] -= 12
    for n in range(4):
        x[at, n, labels[n]] += 12
    with CTCLoss(engine="native", topology=topology) as plan:
        right = plan(x, labels)
        x[380, 1, 3] = np.nan
        got = plan(x, labels)
    assert np.isnan(got.loss[1])
    assert np.isnan(got.grad[:, 1]).all()
    for n in (0, 2, 3):
        assert got.loss[n] == right.loss[n]
        assert np.array_equal(got.grad[:, n], right.grad[:, n])
