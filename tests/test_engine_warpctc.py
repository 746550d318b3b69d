"""The warpctc engine: what it puts right, its agreement with the reference, its memory and its session."""

from __future__ import annotations

import ctypes
import logging
import os
from importlib import import_module

import numpy as np
import pytest
from batches import SEED
from warpctc_lab import FLOATS, bound, build, call, close, exact, real, rng

import ctcbind
from ctcbind import EngineUnsupported
from ctcbind.bindings import warpctc
from ctcbind.bindings.openmp import num_threads_kept
from ctcbind.engines import get
from ctcbind.engines.warpctc import WarpctcSession

INF, NAN = np.inf, np.nan
CONTRACT = get("warpctc").contract

# --- what the engine puts right --------------------------------------------------------------------------------


def engine(x, labels, *args, **more):
    return ctcbind.ctc_loss_and_grad(x, labels, *args, engine="warpctc", **more)


def certain(T, C, path, dtype, sharp=1000.0):
    x = np.zeros((T, 1, C), dtype)
    x[np.arange(T), 0, path] = sharp
    return x


#: Labels that leave one path only (T = L + repeats, or no label): certain where each of its frames is.
ONE_PATH = [([], [0, 0, 0]), ([1], [1]), ([2, 1, 3], [2, 1, 3]), ([2, 2, 1], [2, 0, 2, 1])]


@real
@FLOATS
@pytest.mark.parametrize(("labels", "path"), ONE_PATH)
def test_a_certain_class_is_off_by_one_in_the_library_and_right_in_the_engine(dtype, labels, path):
    """Log-mass exactly 0.0 is read as "nothing written": p is left where p - occupancy belongs."""
    T = len(path)
    x = certain(T, 4, path, dtype)
    costs, grad = call(x, [labels])
    assert costs[0] == 0
    assert (grad[np.arange(T), 0, path] == 1).all(), "the library's own answer"
    result = engine(x, [labels])
    assert result.loss[0] == 0
    assert np.abs(result.grad).max() <= np.finfo(dtype).tiny
    halved = engine(x, [labels], reduction="label_mean")
    assert np.abs(halved.grad).max() <= np.finfo(dtype).tiny


@real
@FLOATS
def test_a_path_beside_others_is_not_exactly_certain(dtype):
    """The floor gives the other paths a mass of e^-87, which keeps the log-mass off 0.0: nothing to put right."""
    path, labels = [0, 2, 2, 0, 1, 0], [2, 1]
    x = certain(6, 4, path, dtype)
    costs, grad = call(x, [labels])
    assert -1e-36 < costs[0] < 0
    assert np.abs(grad).max() < 1e-6
    assert engine(x, [labels]).loss[0] == 0


@real
@FLOATS
@pytest.mark.parametrize(("labels", "path"), [*ONE_PATH, ([2, 1], [0, 2, 2, 0, 1, 0])])
def test_only_certain_frames_are_repaired(dtype, labels, path):
    """From uncertain to certain in small steps, and confident but wrong: the gradient is true on every step."""
    T, repaired = len(path), 0
    other = [3, 1] if len(labels) == 2 else [k % 3 + 1 for k in labels]  # as many repeats as in labels
    for sharp in np.linspace(0, 45, 181):
        x = certain(T, 4, path, dtype, sharp)
        _, raw = call(x, [labels])
        result = engine(x, [labels])
        loss, grad = exact(x[:, 0], labels)
        assert abs(result.loss[0] - loss) <= bound(x[:, 0])
        assert np.abs(result.grad[:, 0] - grad).max() <= 3 * bound(x[:, 0])
        changed = result.grad != raw
        assert (raw[changed] > 0.5).all()
        repaired += bool(changed.any())
        if labels:  # sure of other labels: gradients near 1 that must stay
            wrong = engine(x, [other])
            loss, grad = exact(x[:, 0], other)
            assert abs(wrong.loss[0] - loss) <= bound(x[:, 0])
            assert np.abs(wrong.grad[:, 0] - grad).max() <= 3 * bound(x[:, 0])
            assert sharp == 0 or (wrong.grad == call(x, [other])[1]).all()
    assert (repaired > 10) == (len(labels) != 2)


@real
@FLOATS
def test_one_certain_frame_beside_uncertain_ones(dtype):
    """A certain frame alone does not make the log-mass 0.0; the whole path must be."""
    x = rng().normal(size=(5, 1, 3)).astype(dtype)
    x[2, 0] = [0, 80, 0]
    _, raw = call(x, [[1]])
    result = engine(x, [[1]])
    assert np.array_equal(raw, result.grad)
    assert np.abs(result.grad[:, 0] - exact(x[:, 0], [1])[1]).max() <= 3 * bound(x[:, 0])


@real
@FLOATS
def test_one_class_and_empty_labels(dtype):
    x = rng().normal(size=(4, 2, 1)).astype(dtype)
    assert (call(x, [[], []])[1] == 1).all(), "the library's own answer"
    result = engine(x, [[], []], [4, 2])
    assert list(result.loss) == [0, 0]
    assert not result.grad.any()
    for blank in range(3):
        x = rng(blank).normal(size=(4, 2, 3)).astype(dtype)
        result = engine(x, [[], []], [4, 0], blank=blank)
        close(x[:, 0], [], result.loss[0], result.grad[:, 0], blank)
        assert result.loss[1] == 0
        assert not result.grad[:, 1].any()
    none = engine(np.zeros((0, 2, 3), dtype), [[], [1]])
    assert list(none.loss) == [0, INF]
    assert none.grad.shape == (0, 2, 3)


@real
def test_the_librarys_own_floor():
    """Below e^-87.34, the smallest normal float, probabilities count as that much; in double below e^-708.4."""
    for dtype, floor in ((np.float32, 87.33655), (np.float64, 708.39642)):
        for depth in (floor - 1, floor + 1, 2 * floor, 1e10):
            costs, _ = call(np.array([[[depth, 0]]], dtype), [[1]])
            assert abs(costs[0] - min(depth, floor)) < 1e-3


@real
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("depth", [80, 87, 88, 100, 300, 700])
def test_float32_samples_beyond_the_floor_are_computed_in_double(depth, with_grad, caplog):
    x = rng().normal(size=(6, 3, 4)).astype(np.float32)
    labels = [[1, 2], [3], [2]]
    x[3, 1] = [0, depth, 0, 0]  # class 1 is sure there, and no path of [3] has it
    library = call(x, labels)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        if with_grad:
            result = engine(x, labels)
        else:
            result = ctcbind.Result(ctcbind.ctc_loss(x, labels, engine="warpctc"), library[1], "")
    loss, grad = exact(x[:, 1], [3])
    assert abs(result.loss[1] - loss) <= bound(x[:, 1])
    if with_grad:
        assert np.abs(result.grad[:, 1] - grad).max() <= 3 * bound(x[:, 1])
    assert ("samples [1] computed again in double" in caplog.text) == (depth > 87.3)
    for n in (0, 2):
        assert result.loss[n] == library[0][n]
        assert np.array_equal(result.grad[:, n], library[1][:, n])
    if depth >= 100:
        assert abs(library[0][1] - loss) > 5, "the library's own answer is far off"


@real
@FLOATS
@pytest.mark.parametrize("with_grad", [True, False])
def test_what_double_cannot_hold_is_refused_by_name(dtype, with_grad):
    x = rng().normal(size=(6, 3, 4)).astype(dtype)
    x[3, 1] = [0, 1000, 0, 0]
    run = engine if with_grad else lambda *args: ctcbind.ctc_loss(*args, engine="warpctc")
    with pytest.raises(EngineUnsupported, match=r"sample 1: at frame 3 class [03].* ln p = -1000.*engine='native'"):
        run(x, [[1, 2], [3], [2]])
    x[3, 1] = -INF
    x[3, 1, 1] = 0
    with pytest.raises(EngineUnsupported, match=r"sample 1: at frame 3 class [03].* ln p = -inf"):
        run(x, [[1, 2], [3], [2]])
    run(x, [[1, 2], [1], [2]])  # the same logits are fine where the paths do not need the class
    run(x, [[1, 2], [3], [2]], [6, 3, 6])  # nor past the input length


@real
@FLOATS
def test_sharp_logits_are_not_refused_without_need(dtype):
    """Forbidden and hopeless classes off the paths that matter: computed, and true."""
    checked = 0
    for i in range(60):
        random = rng(i)
        x = random.normal(size=(12, 1, 6))
        x[np.arange(12), 0, random.integers(0, 6, 12)] += random.choice([50, 120, 800])
        x[random.random(x.shape) < 0.1] = -INF
        x = x.astype(dtype)
        labels = random.integers(1, 6, size=random.integers(0, 4)).tolist()
        loss, grad = exact(x[:, 0], labels)
        try:
            result = engine(x, [labels])
        except EngineUnsupported:
            assert loss > 600  # one step below e^-708 on every path
            continue
        checked += 1
        # e^-inf is no number to round: the bound is that of the finite logits
        slack = bound(np.where(np.isfinite(x[:, 0]), x[:, 0], 0).astype(dtype))
        assert result.loss[0] == loss or abs(result.loss[0] - loss) <= slack
        assert np.abs(result.grad[:, 0] - grad).max() <= 3 * slack
    assert checked >= 15
    x = np.zeros((8, 1, 5), dtype)
    x[:, 0, 4] = -INF  # a masked class
    result = engine(x, [[1, 2]])
    close(x[:, 0, :4], [1, 2], result.loss[0], result.grad[:, 0, :4])
    assert np.abs(result.grad[:, 0, 4]).max() <= np.finfo(dtype).tiny


@real
@FLOATS
def test_nan_stays_in_its_sample_and_its_frames(dtype):
    x = rng().normal(size=(6, 4, 4)).astype(dtype)
    labels, frames = [[1, 2], [3], [2, 2], [1]], [6, 4, 5, 3]
    clean = engine(x, labels, frames)
    x[4:, 1] = NAN  # padded time
    x[3:, 3] = INF
    x[5:, 2] = -INF
    again = engine(x, labels, frames)
    assert np.array_equal(clean.loss, again.loss)
    assert np.array_equal(clean.grad, again.grad)
    x[1, 1, 2] = NAN
    result = engine(x, labels, frames)
    assert np.isnan(result.loss).tolist() == [False, True, False, False]
    assert np.isnan(result.grad[:4, 1]).all()
    assert not result.grad[4:, 1].any()
    for n in (0, 2, 3):
        assert result.loss[n] == clean.loss[n]
        assert np.array_equal(result.grad[:, n], clean.grad[:, n])


@real
@FLOATS
def test_infinite_logits(dtype):
    """+inf shares all the probability of its frame; a frame of nothing but -inf has none to give."""
    x = np.zeros((2, 4, 3), dtype)
    x[0, 0] = [0, INF, INF]
    x[1, 0, 1] = INF
    x[1, 1] = -INF
    x[0, 2] = [0, INF, 0]
    result = engine(x, [[1], [1], [1], [1]])
    assert np.isnan(call(x, [[1]] * 4)[0][:3]).all(), "the library's own answer"
    for n in range(4):
        loss, grad = exact(x[:, n], [1])
        assert np.allclose(result.loss[n], loss, rtol=8 * np.finfo(dtype).eps, atol=0)
        assert np.allclose(result.grad[:, n], grad, rtol=0, atol=8 * np.finfo(dtype).eps)


@real
def test_the_test_of_doubt_needs_few_looks(monkeypatch):
    """Small losses settle it without a look at the logits; so does a small spread, without one at the gradient."""
    module = __import__("ctcbind.engines.warpctc", fromlist=["lost_place"])
    looked = []
    for name in ("_spread", "lost_place"):
        before = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, f=before: looked.append(name) or f(*a))
    engine(certain(9, 5, [0, 1, 1, 0, 2, 0, 3, 3, 0], np.float32, 500.0), [[1, 2, 3]])
    assert looked == []
    engine(np.zeros((400, 1, 5), np.float32), [[1, 2, 3]])  # a loss of hundreds
    assert looked == ["_spread"]
    x = np.zeros((400, 1, 5), np.float32)
    x[7, 0, 3] = -200
    engine(x, [[1, 2]])
    assert looked == ["_spread", "_spread", "lost_place"]


# --- agreement, memory and the session -------------------------------------------------------------------------


def random_batch(i, dtype):
    random = rng(i, np.dtype(dtype).num)
    T, N, C = (int(random.integers(low, high)) for low, high in ((1, 30), (1, 7), (2, 9)))
    blank = int(random.integers(0, C))
    scale = float(random.choice([0.3, 1, 4, 12]))
    x = (scale * random.normal(size=(T, N, C))).astype(dtype)
    frames = random.integers(0, T + 1, N)
    classes = [k for k in range(C) if k != blank]
    labels = [random.choice(classes[: 1 + i % 3], random.integers(0, T // 2 + 2)).tolist() for _ in range(N)]
    return x, labels, frames, blank, random


@real
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_agrees_with_the_reference_on_random_batches(dtype):
    for i in range(200):
        x, labels, frames, blank, random = random_batch(i, dtype)
        N = x.shape[1]
        ways = {
            "C": x, "Fortran": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=2)[:, :, ::2],
            "backwards": x[::-1, :, ::-1].copy()[::-1, :, ::-1], "read-only": x.copy(),
        }  # fmt: skip
        ways["read-only"].flags.writeable = False
        how = list(ways)[i % 5]
        layout = "NTC" if random.integers(2) else "TNC"
        given = ways[how].transpose(1, 0, 2) if layout == "NTC" else ways[how]
        before = given.copy()
        result = engine(given, labels, frames, blank=blank, layout=layout)
        assert np.array_equal(given, before), "the caller's logits were changed"
        assert result.grad.dtype == dtype
        assert result.grad.shape == given.shape
        grad = result.grad.transpose(1, 0, 2) if layout == "NTC" else result.grad
        losses = ctcbind.ctc_loss(given, labels, frames, blank=blank, layout=layout, engine="warpctc")
        assert np.array_equal(losses, result.loss), f"loss alone differs: batch {i}, seed {SEED}"
        for n in range(N):
            T = int(frames[n])
            assert not grad[T:, n].any()
            if T == 0:
                assert result.loss[n] == (INF if labels[n] else 0)
                continue
            true_loss, true_grad = exact(x[:T, n], labels[n], blank)
            rows = x[:T, n].astype(np.result_type(dtype, np.float32))
            stored = 2.0**-11 if dtype == np.float16 else 0.0  # half a unit in the last place of a gradient below 1
            assert result.loss[n] == true_loss or abs(result.loss[n] - true_loss) <= bound(rows), f"{i}, seed {SEED}"
            assert result.loss[n] >= 0
            assert np.abs(grad[:T, n] - true_grad).max() <= 3 * bound(rows) + stored, f"batch {i}, seed {SEED}"


@real
def test_weights_of_a_reduction():
    x, labels, frames, blank, _ = random_batch(3, np.float32)
    for reduction in ("sum", "batch_mean", "label_mean"):
        loss, grad, _ = engine(x, labels, frames, blank=blank, reduction=reduction, zero_infinity=True)
        options = {"blank": blank, "reduction": reduction, "zero_infinity": True, "engine": "reference"}
        true = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, **options)
        assert abs(loss - true.loss) <= len(labels) * max(bound(x[:, n]) for n in range(x.shape[1]))
        assert np.abs(grad - true.grad).max() <= 3 * bound(x.reshape(-1, x.shape[2]))


@real
def test_copies_are_told_and_only_made_where_they_must_be(caplog):
    x = np.zeros((4, 2, 3), np.float32)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        engine(x, [[1], [2]])
        assert "copied" not in caplog.text
        engine(x, [[1], [2], [1], [2]], layout="NTC")
        assert "96 bytes of logits copied" in caplog.text


@real
def test_the_workspace_grows_only_and_goes_with_the_session():
    session = get("warpctc").open()
    assert isinstance(session, WarpctcSession)
    sizes = []
    for T in (4, 40, 8):
        batch = ctcbind.batch.make_batch(np.zeros((T, 2, 3), np.float32), [[1], [2]])
        session.run(batch, with_grad=True, weights=None)
        sizes.append(session._workspace.nbytes)
    assert sizes[0] < sizes[1] == sizes[2]
    session.close()
    session.close()
    assert session._workspace is None
    with pytest.raises(ctcbind.errors.ClosedError):
        session.run(batch, with_grad=True, weights=None)


@real
def test_float64_batches_are_the_same_on_any_number_of_threads():
    """The library's double function is wrong, or crashes, with more than one; the engine never asks for it."""
    x = rng().normal(size=(50, 8, 6))
    labels = [rng(n).integers(1, 6, 10).tolist() for n in range(8)]
    ctcbind.set_num_threads(4)
    try:
        many = [engine(x, labels) for _ in range(20)]
    finally:
        ctcbind.set_num_threads(None)
    alone = [engine(x[:, n : n + 1], labels[n : n + 1]) for n in range(8)]
    for result in many:
        assert result.loss.tolist() == [each.loss[0] for each in alone]
        assert np.array_equal(result.grad, np.concatenate([each.grad for each in alone], axis=1))


@pytest.fixture
def asked(monkeypatch):
    """The number of threads of each call."""
    seen, options = [], warpctc.ctcOptions

    def noted(*args, **given):
        seen.append(given["num_threads"])
        return options(*args, **given)

    monkeypatch.setattr(warpctc, "ctcOptions", noted)
    return seen


@real
def test_no_more_threads_than_samples_and_processors(asked, monkeypatch):
    """libgomp ends the process where it gets no thread."""
    monkeypatch.setattr(import_module("ctcbind.engines.warpctc"), "processors", lambda: 3)
    for threads in (2, 2**31 - 1):
        ctcbind.set_num_threads(threads)
        for N in (1, 2, 8):
            engine(np.zeros((5, N, 4), np.float32), [[1]] * N)
    assert asked == [1, 2, 2, 1, 2, 3]


@real
@FLOATS
def test_openmp_has_its_number_of_threads_again(dtype):
    """PyTorch has it from there, and would go on with one thread after a call in float64."""
    openmp = ctypes.CDLL(warpctc.loaded_from().path)
    if not hasattr(openmp, "omp_get_max_threads"):
        pytest.skip("this build of warp-ctc has no OpenMP")
    before = openmp.omp_get_max_threads()
    ctcbind.set_num_threads(2)
    try:
        for number in (1, 3):
            openmp.omp_set_num_threads(number)
            engine(np.zeros((5, 2, 4), dtype), [[1], [2]])
            assert openmp.omp_get_max_threads() == number
    finally:
        openmp.omp_set_num_threads(before)


def test_a_library_without_openmp_has_no_number_of_threads(tmp_path):
    path = str(build(tmp_path))
    with num_threads_kept(path):
        pass
    with pytest.raises(OSError, match=r"\w"):  # it was not loaded to be asked
        ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_NOLOAD)


@real
def test_float32_gradients_drift_as_the_contract_says():
    """Long inputs: the loss stays right; the gradient's error is float32 log space's own."""
    assert any("drift" in limit for limit in CONTRACT.limits)
    labels = rng().integers(1, 6, 400).tolist()
    x = rng().normal(size=(4000, 1, 6)).astype(np.float32)
    loss, grad, _ = engine(x, [labels])
    true = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [labels], engine="native")
    assert abs(loss[0] - true.loss[0]) <= 1e-5 * true.loss[0]
    assert 0 < np.abs(grad - true.grad).max() < 0.1
