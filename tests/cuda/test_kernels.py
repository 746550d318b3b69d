"""The kernels, as they stand, on the host: against the reference, in every shape that a launch may have.

The block's threads are fibres whose turns are drawn anew for each batch. What is asked for here holds for the device
as far as its arithmetic is IEEE 754's, which --fmad=false and the source see to.
"""

from __future__ import annotations

import itertools
import re
import threading

import emulated
import numpy as np
import planted
import pytest
from batches import SEED, logits_without_sense, random_case
from test_extremes import EXTREMES

import ctcbind
from ctcbind.cuda import common, kernels
from ctcbind.cuda import layout as layouts
from ctcbind.cuda.kernels import LANES, MODULES, PROBLEM, Lanes, as_argument, part
from ctcbind.engines import cudnn_device

pytest_plugins = ["emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")

DTYPES = ("float32", "float64", "float16", "bfloat16")


def run(case, **options):
    return ctcbind.ctc_loss_and_grad(*case.args, **case.options, **options, engine="cuda")


def check(case):
    """Losses and gradient within their bounds; the losses alone to the same bits."""
    dtype = np.dtype(case.logits.dtype).name
    result = run(case)
    case.check(result, dtype, case.expected())
    alone = ctcbind.ctc_loss(*case.args, **case.options, engine="cuda")
    np.testing.assert_array_equal(alone, result.loss)
    return result


@pytest.fixture
def shapes(monkeypatch):
    """Sets how launches are laid out: small batches then take the ways of great ones."""

    def set_to(*lanes, rows=None, stretch=None, shared=None):
        if lanes:
            monkeypatch.setattr(layouts, "LANES", lanes)
        for name, value in planted.ROWS[rows].items() if rows else ():
            monkeypatch.setattr(layouts, name, value)
        if stretch is not None:
            monkeypatch.setattr(layouts, "WARPS", 1)
            monkeypatch.setattr(layouts, "STRETCH", stretch)
        if shared:
            monkeypatch.setattr(layouts, "SHARED", shared)
        layouts.plan_layout.cache_clear()

    yield set_to
    monkeypatch.undo()
    layouts.plan_layout.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_batches_of_every_kind(dtype):
    for number in range(50):
        emulated.turns[0] = number % 7
        check(random_case([SEED, 40, number], dtype=dtype))


@pytest.mark.parametrize("warps", [1, 2, 4])
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_long_labels_take_several_warps_and_several_strips(shapes, dtype, ways, warps):
    shapes(Lanes(warps, ways), Lanes(warps, 1))
    width = warps * layouts.WARP
    for number, L in enumerate((width - 2, width - 1, width, 2 * width + 3, 2 * width - 1, 5 * width)):
        emulated.turns[0] = 2 + number
        T = L + L // 2 + 17
        case = random_case([SEED, 41, ways, warps, number], dtype=dtype, size=(T, 2, 5), how="C", blank=number % 5)
        rng = np.random.default_rng([SEED, 42, L])
        others = [c for c in range(5) if c != case.blank]
        # L labels with repeats, as many frames as they need and more, and beside it a short sample
        long = [int(each) for each in rng.choice(others, size=L)]
        needed = L + sum(a == b for a, b in itertools.pairwise(long))
        case.labels, case.frames = [long, long[:3]], [max(T, needed), 9]
        if needed > T:
            long = [others[i % 4] for i in range(L)]
            case.labels, case.frames = [long, long[:3]], [T, 9]
        case.args = (case.logits, case.labels, case.frames, None)
        check(case)


@pytest.mark.parametrize("shared", [256 + 4 * 8 * 8, 256 + 4 * 8 * 16])
@pytest.mark.parametrize("rows", ["warp", "block"])
@pytest.mark.parametrize("C", [3, 40])
def test_classes_and_labels_that_shared_memory_cannot_hold_are_summed_in_tiles(shapes, shared, rows, C):
    shapes(shared=shared, rows=rows)
    for number, dtype in enumerate(DTYPES):
        emulated.turns[0] = 2 + number
        check(random_case([SEED, 43, C, number], dtype=dtype, size=(70, 2, C), scale=2.0))


@pytest.mark.parametrize("rows", ["warp", "block"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_warp_or_a_block_to_a_row(shapes, dtype, rows):
    shapes(rows=rows)
    for number in range(6):
        emulated.turns[0] = number
        check(random_case([SEED, 44, number], dtype=dtype))
    check(random_case([SEED, 45], dtype=dtype, size=(4, 2, 700), how="C"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stretch", [0, 1, 3])
def test_a_lane_to_a_class_and_several_rows_to_a_warp(shapes, dtype, stretch):
    """Classes up to those of a warp, more labels than lanes, frames that no stretch divides."""
    shapes(stretch=stretch)
    for number, (T, C) in enumerate([(1, 1), (7, 2), (8, 31), (9, 32), (67, 32), (90, 5), (131, 28)]):
        emulated.turns[0] = number
        check(random_case([SEED, 53, number], dtype=dtype, size=(T, 3, C)))
    case = random_case([SEED, 54], dtype=dtype, size=(150, 3, 32), how="C", blank=0, scale=2.0)
    case.labels, case.frames = [(np.arange(L) % 31 + 1).tolist() for L in (33, 64, 1)], [150, 70, 3]
    case.args = (case.logits, case.labels, case.frames, None)
    check(case)


def test_the_same_bits_however_many_rows_a_warp_takes(shapes):
    case = random_case([SEED, 55], dtype="float32", size=(70, 5, 29), how="C")
    found = set()
    for stretch in range(4):
        shapes(stretch=stretch)
        emulated.turns[0] = stretch
        result = run(case)
        found.add((result.loss.tobytes(), result.grad.tobytes()))
    assert len(found) == 1


def test_many_rows_are_taken_together(shapes):
    assert [layouts.plan_layout(T, 64, 28, 5, 4, True).stretch for T in (1, 64, 127, 128, 300, 600)] == [
        0,
        0,
        0,
        1,
        2,
        3,
    ]
    assert layouts.plan_layout(9000, 64, 28, 5, 4, True).stretch == layouts.STRETCH
    assert layouts.plan_layout(9000, 64, 33, 5, 4, True).stretch == 0
    assert layouts.plan_layout(1001, 64, 32, 5, 4, True).row_blocks == -(-1001 // 8) * 64 // 4


@pytest.mark.parametrize("ways", [2, 1])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extreme_logits_have_the_exact_values_of_the_one_meaning(shapes, dtype, ways):
    shapes(Lanes(1, ways))
    eps = np.finfo(dtype).eps
    for name, (rows, labels, loss, grad) in EXTREMES.items():
        x = np.array(rows, dtype=dtype)[:, None]
        beside = np.random.default_rng([SEED, 46]).normal(size=x.shape).astype(dtype)
        result = ctcbind.ctc_loss_and_grad(np.concatenate([beside, x], axis=1), [[], labels], engine="cuda")
        np.testing.assert_allclose(result.loss[1], loss, rtol=4 * eps, atol=0, err_msg=name)
        np.testing.assert_allclose(result.grad[:, 1], grad, rtol=0, atol=4 * eps, err_msg=name)
        assert np.isfinite(result.loss[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [30.0, 1e3, 1e6])
def test_sharp_logits(dtype, scale):
    """At 1e6 the binades of 300 frames are more than an int counts, and the recursion runs on logarithms."""
    rng = np.random.default_rng([SEED, 47])
    x = (rng.normal(size=(300, 2, 6)) * scale).astype(dtype)
    labels = [[1, 2, 2, 5, 4] * 8, [3] * 20]
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, engine="cuda")
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="reference")
    eps = np.finfo(dtype).eps
    # the reference rounds logarithms as large as the loss, 300 times; this engine x - high, exactly, and mantissas
    np.testing.assert_allclose(loss, exact.loss, rtol=8 * eps + 2.0**-52 * np.sqrt(300))
    own = 2.0**-53 * float(exact.loss.max()) * 300
    np.testing.assert_allclose(grad, exact.grad, rtol=0, atol=300 * eps + own)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("gain", "seeds"), [(40, [14571, 104414]), (150, [5023, 8590, 10306])])
def test_states_that_lie_hundreds_of_binades_apart(dtype, gain, seeds):
    eps = np.finfo(dtype).eps
    for seed in seeds:
        x, labels = logits_without_sense(seed, gain)
        loss, grad, _ = ctcbind.ctc_loss_and_grad(x.astype(dtype), labels, engine="cuda")
        exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
        np.testing.assert_allclose(loss, exact.loss, rtol=8 * eps)
        np.testing.assert_allclose(grad, exact.grad, rtol=0, atol=len(x) * eps)


@pytest.mark.parametrize(("T", "L", "C", "scale"), [(1500, 150, 32, 1.0), (600, 100, 20, 10.0), (800, 60, 500, 0.0)])
def test_long_inputs_stay_within_1e_5(T, L, C, scale):
    """Peers in float32 log space drift by 1e-3 and more here."""
    rng = np.random.default_rng([SEED, 48, T])
    x = (rng.normal(size=(T, 1, C)) * scale).astype(np.float32)
    labels = [rng.integers(1, C, size=L).tolist()]
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, engine="cuda")
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, engine="native")
    np.testing.assert_allclose(loss, exact.loss, rtol=1e-6)
    assert np.abs(grad - exact.grad).max() < 1e-5


def test_thousands_of_frames_in_which_many_classes_are_alike():
    """The sums of those rows that fall to one thread of the lattice have a product past the largest double."""
    x = (np.random.default_rng([SEED, 58]).normal(size=(8000, 1, 500)) / 100).astype(np.float32)
    exact = ctcbind.ctc_loss(x.astype(np.float64), [[1, 2, 3]], engine="native")
    np.testing.assert_allclose(ctcbind.ctc_loss(x, [[1, 2, 3]], engine="cuda"), exact, rtol=1e-6)


def test_the_same_bits_whatever_the_turns():
    case = random_case([SEED, 49], dtype="float32", size=(120, 3, 7), how="C")
    results = []
    for turns in range(6):
        emulated.turns[0] = turns
        result = run(case)
        results.append((result.loss.tobytes(), result.grad.tobytes()))
    assert len(set(results)) == 1


def test_launches_are_as_few_as_promised():
    case = random_case([SEED, 50], dtype="float32", size=(9, 3, 7), how="C")
    run(case)
    names = ["ctc_prepare", "ctc_rows_by_lane", "ctc_lattice", "ctc_gradient_by_lane"]
    assert [launch[0] for launch in emulated.launches] == names
    emulated.launches.clear()
    ctcbind.ctc_loss(*case.args, **case.options, engine="cuda")
    assert [launch[0] for launch in emulated.launches] == names[:3]


def test_long_labels_have_a_block_to_each_direction():
    """And so a launch for each half of its way."""
    L = LANES[2].width
    ctcbind.ctc_loss(np.zeros((L, 2, 2), np.float32), [[1] * 9, [1]], engine="cuda")
    assert [launch[1:] for launch in emulated.launches if launch[0] == "ctc_lattice"] == [(2, 64)]
    emulated.launches.clear()
    rng = np.random.default_rng([SEED, 51])
    x = rng.normal(size=(L + 4, 2, 4)).astype(np.float32)
    labels = [(np.arange(L) % 3 + 1).tolist(), [1, 2]]
    got = ctcbind.ctc_loss_and_grad(x, labels, engine="cuda")
    assert [launch[1:] for launch in emulated.launches if launch[0] == "ctc_lattice"] == [(4, 256), (4, 256)]
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels)
    np.testing.assert_allclose(got.loss, exact.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, exact.grad, rtol=0, atol=1e-5)


def test_the_longest_labels_have_a_block_to_each_strip():
    L = 2 * LANES[3].width
    ctcbind.ctc_loss(np.zeros((L, 2, 2), np.float32), [[1] * (L // 2 - 1), [1]], engine="cuda")
    ctcbind.ctc_loss(np.zeros((L, 2, 3), np.float32), [[1, 2] * (L // 2), [1]], engine="cuda")
    found = [launch[1:] for launch in emulated.launches if launch[0] == "ctc_lattice"]
    assert found == [(4, 256), (4, 256), (12, 256), (12, 256)]


def test_numbers_of_the_layout_are_those_of_the_kernels():
    """They stand in both languages."""
    text = "".join(part(name) for parts, _ in MODULES.values() for name in parts)
    for name in ("WARP", "THREADS", "PHASE", "MARGIN"):
        assert f"#define {name} {getattr(layouts, name)}" in text
    assert f"#define SCRATCH_BYTES {layouts.SCRATCH}" in text
    assert f"BAD_LABELS = {common.BAD_LABELS}," in text
    assert f"TOO_LONG = {common.TOO_LONG}," in text
    assert f"LOST = {cudnn_device.LOST}," in text
    assert f"NO_PROBABILITIES = {cudnn_device.NO_PROBABILITIES} " in text
    assert [lanes.width for lanes in LANES] == sorted(lanes.width for lanes in LANES)
    assert all(lanes.width.bit_count() == 1 for lanes in LANES)  # places are found by shifts
    assert all(
        layouts.WARP * lanes.warps * lanes.ways <= 256 for lanes in LANES
    )  # so that there are 255 registers each


def test_float16_below_its_normal_numbers():
    """Which are subnormal as floats too when their bits are moved over, and so 0 on a device."""
    x = np.zeros((60, 1, 4), np.float16)
    x[:, 0, 1] = 5.5e-5
    labels = [[1] * 20]
    exact = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels)
    assert abs(exact.loss - ctcbind.ctc_loss(np.zeros(x.shape), labels))[0] > 5e-4  # what 0 in their place would be
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, labels, engine="cuda")
    np.testing.assert_allclose(loss, exact.loss, rtol=1e-6)
    np.testing.assert_allclose(grad.astype(np.float64), exact.grad, atol=1e-3)  # a half's last place


@pytest.mark.parametrize("reduction", ["batch_mean", "label_mean"])
def test_weights_beside_any_number_of_labels(reduction):
    """Doubles behind ints: a device reads them at multiples of 8 alone, and the stand-in for it says so."""
    x = np.random.default_rng([SEED, 57]).normal(size=(9, 3, 5)).astype(np.float32)
    for labels in ([[1, 2], [3], []], [[1, 2], [3], [4]]):
        got = ctcbind.ctc_loss_and_grad(x, labels, reduction=reduction, engine="cuda")
        want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, reduction=reduction, engine="reference")
        np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
        np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rows", ["lane", "warp", "block"])
@pytest.mark.parametrize("C", [20, 1040])
def test_extreme_logits_among_many_classes(shapes, C, rows):
    """More than there are labels, by whatever takes a row, and enough for reads of 16 bytes: the others have none of
    the probability, but for infinities beside which nothing is left."""
    eps = np.finfo(np.float32).eps
    shapes(rows=rows)
    for name, (few, labels, loss, grad) in EXTREMES.items():
        few = np.array(few, np.float32)
        x = np.full((len(few), 2, C), -np.inf, np.float32)
        x[:, :, : few.shape[1]] = few[:, None]
        want = np.zeros(x.shape)
        want[:, :, : few.shape[1]] = np.array(grad)[:, None]
        result = ctcbind.ctc_loss_and_grad(x, [labels, labels], engine="cuda")
        np.testing.assert_allclose(result.loss, [loss, loss], rtol=4 * eps, atol=0, err_msg=name)
        np.testing.assert_allclose(result.grad, want, rtol=0, atol=4 * eps, err_msg=name)


def workspace(plan):
    ((state, _),) = plan._sessions["cuda"]._states._kept.values()
    return state._workspace._size


def test_labels_in_one_row_take_no_more_room_than_the_longest_of_them(cupy):
    x, row, L = cupy.asarray(np.zeros((40, 6, 9), np.float32)), np.arange(24, dtype=np.int32) % 8 + 1, [4] * 6
    sizes = {}
    for name, labels, lengths in (
        ("rows", row.reshape(6, 4), L),
        ("lengths on the host", row, L),
        ("lengths on the device", row, cupy.asarray(np.array(L, np.int32))),
    ):
        with ctcbind.CTCLoss(engine="cuda") as plan:
            plan(x, cupy.asarray(labels), None, lengths)
            sizes[name] = workspace(plan)
    assert len(set(sizes.values())) == 1, sizes
    with ctcbind.CTCLoss(engine="cuda", graph_safe=True) as plan:  # which cannot look
        plan(x, cupy.asarray(row), None, cupy.asarray(np.array(L, np.int32)))
        assert workspace(plan) > sizes["rows"]


@pytest.mark.parametrize("lengths", [[4, -3], [4, 99]])
def test_wrong_lengths_of_labels_in_one_row(cupy, lengths):
    x, row = cupy.asarray(np.zeros((9, 2, 5), np.float32)), cupy.asarray(np.array([1, 2, 1, 2, 3], np.int32))
    for given in (lengths, cupy.asarray(np.array(lengths, np.int32))):
        with ctcbind.CTCLoss(engine="cuda") as plan, pytest.raises(ctcbind.InvalidInput, match=r"-3|sum to 103"):
            plan(x, row, None, given)


def test_nothing_is_compiled_while_a_graph_is_captured(cupy):
    labels, other = cupy.asarray(np.array([[1, 2]], np.int32)), cupy.asarray(np.zeros((9, 1, 5), np.float16))
    stream = cupy.cuda.Stream()
    with stream, ctcbind.CTCLoss(engine="cuda", graph_safe=True) as plan:
        plan(cupy.asarray(np.zeros((30, 1, 5), np.float32)), labels)
        stream.begin_capture()
        with pytest.raises(ctcbind.EngineUnsupported, match="has not compiled its kernels for this dtype"):
            plan(other, labels)
        stream.end_capture()


@pytest.fixture
def made(cupy, monkeypatch):
    """The options of each module that is compiled."""
    options, module = [], cupy.RawModule

    def counted(**given):
        options.append(given["options"])
        return module(**given)

    monkeypatch.setattr(cupy, "RawModule", counted)
    return options


def test_kernels_are_compiled_once_for_all_plans(cupy, made):
    x, labels = cupy.asarray(np.zeros((9, 1, 5), np.float32)), cupy.asarray(np.array([[1, 2]], np.int32))
    for _ in range(3):
        ctcbind.ctc_loss(x, labels, engine="cuda")
        ctcbind.ctc_loss_and_grad(x, [[1]], engine="cuda")
        with ctcbind.CTCLoss(engine="cuda", graph_safe=True) as plan:
            plan(x, labels)
    assert len(made) == len(set(made)) == 2
    ctcbind.ctc_loss(x.astype(np.float64), labels, engine="cuda")
    assert len(made) == len(set(made)) == 4


def test_all_that_a_batch_needs_is_compiled_at_the_same_time(cupy, monkeypatch):
    together, module = threading.Barrier(2, timeout=60), cupy.RawModule

    def waits(**given):
        together.wait()
        return module(**given)

    monkeypatch.setattr(cupy, "RawModule", waits)
    kernels._compiled.clear()
    ctcbind.ctc_loss(np.zeros((9, 1, 5), np.float32), [[1, 2]], engine="cuda")


def test_kernels_are_compiled_for_the_device_of_the_batch(cupy, monkeypatch):
    """Each thread has a current device of its own. That of the threads that compile is not set back to the first one,
    which CUDA would then set up too."""
    monkeypatch.setattr(cupy, "device_count", 2)
    seen, module, used = [], cupy.RawModule, cupy.Device.use

    def asked(**given):
        seen.append(cupy.Device().id)
        return module(**given)

    monkeypatch.setattr(cupy, "RawModule", asked)
    monkeypatch.setattr(cupy.Device, "use", lambda self: seen.append(("use", self.id)) or used(self))
    kernels._compiled.clear()
    with cupy.cuda.Device(1):
        x = cupy.asarray(np.zeros((9, 1, 5), np.float32))
    ctcbind.ctc_loss(x, [[1, 2]], engine="cuda")
    assert sorted(map(str, seen)) == sorted(map(str, [1, 1, ("use", 1), ("use", 1)]))
    assert cupy.cuda.Device().id == 0


def test_what_another_batch_has_in_common_is_not_compiled_again(made):
    """A step of training waits seconds for each of them."""
    x = np.zeros((80, 1, 5), np.float32)
    ctcbind.ctc_loss(x, [[1, 2]], engine="cuda")
    made.clear()
    ctcbind.ctc_loss(x, [[1, 2] * 20], engine="cuda")
    assert len(made) == 1
    assert "-DCTC_W=2" in made[0]
    ctcbind.ctc_loss(x.astype(np.float16), [[1, 2] * 20], engine="cuda")
    assert len(made) == 2
    assert not any("CTC_W" in each for each in made[1])
    ctcbind.ctc_loss(x, [[1, 2]], topology="simple", engine="cuda")
    assert made[2][-4:] == ("-DCTC_X=0", "-DCTC_W=1", "-DCTC_WAYS=2", "-DCTC_SIMPLE=1")
    assert len(made) == 3


def test_an_argument_holds_the_fields_of_problem_and_no_others():
    """In the order of types.cuh, 8 bytes each; what is misspelt is not left out in silence."""
    argument = as_argument(PROBLEM | {name: number - 7 for number, name in enumerate(PROBLEM)})
    assert np.frombuffer(argument.tobytes(), np.int64).tolist() == [number - 7 for number in range(len(PROBLEM))]
    text = part("types")
    fields = re.search(r"struct Problem \{(.*?)\n\};", text, re.DOTALL)
    assert fields
    told = re.findall(r"(\w+)(?:\[\d+\])?\s*[,;]", re.sub(r"/\*.*?\*/|//[^\n]*", "", fields[1], flags=re.DOTALL))
    assert told == list(PROBLEM)
    with pytest.raises(AssertionError, match="no such field"):
        as_argument(PROBLEM | {"logit": 1})


@pytest.mark.parametrize("T", [300, 9990])
@pytest.mark.parametrize("row", [[0, 0], [-1, 0, 0, 1, 1], [-1, -1, 0, 0, 0], [9, 2, 2]], ids=str)
def test_frames_alike_do_not_round_one_way(T, row):
    """As a padded utterance or a fresh network has them. One frame in the beginning is no label; labels may stand early
    and late. Roundings of sqrt(T) steps are left, of half a unit in the last place each, of numbers up to 1/4."""
    C = len(row) + 1
    x = np.zeros((T, 1, C), np.float32)
    x[:, 0, :-1], x[:, 0, -1] = row, -40
    x[1, 0, 1] = x[T - 2, 0, 1] = max(row)
    targets = [list(range(1, C - 1))]
    got = ctcbind.ctc_loss_and_grad(x, targets, engine="cuda")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), targets, engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rounded", ["sums", "exponentials"])
def test_frames_that_come_again_do_not_round_one_way(rounded):
    """Paths that stay apart for thousands of frames were 7.2e-6 and 1.6e-5 off: two frames in turns; and four, in each
    of which the exponential is rounded to the good of the label."""
    T = 9990
    x = np.resize(np.array([[0.3, 0.3, 5], [1.1, 1.1, 7]], np.float32), (T, 1, 3))
    if rounded == "exponentials":
        below = np.float32([-1.1702308654785156, -1.173155665397644, -1.177069067955017, -1.1741442680358887])
        t = np.arange(T)
        x[...] = -np.inf
        x[t, 0, t % 2] = 0
        x[t, 0, 1 - t % 2] = below[t % 4]
    got = ctcbind.ctc_loss_and_grad(x, [[1]], engine="cuda")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[1]], engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize("scale", [1, 3e6, 1e30, np.inf])
def test_frames_alike_of_any_size(scale):
    """In logarithms too, where no exponent would do."""
    x = np.zeros((100, 1, 3), np.float32)
    x[:, 0, 1:] = [-scale, scale]
    got = ctcbind.ctc_loss_and_grad(x, [[2, 1]], engine="cuda")
    want = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [[2, 1]], engine="reference")
    np.testing.assert_allclose(got.loss, want.loss, rtol=1e-6)
    np.testing.assert_allclose(got.grad, want.grad, rtol=0, atol=2e-6)


@pytest.mark.parametrize("place", ["device", "host"])
def test_an_older_device_is_refused_by_name(cupy, monkeypatch, place):
    """NVRTC knows neither the naps nor the reads of another block's word there, and said so in CuPy's own error."""
    x = np.random.default_rng([SEED, 56]).normal(size=(9, 2, 5)).astype(np.float32)
    given = cupy.asarray(x) if place == "device" else x
    expected = ctcbind.ctc_loss(x, [[1, 2], [3]])
    for capability, told in (("61", r"6\.1"), ("53", r"5\.3")):
        monkeypatch.setattr(cupy.Device, "compute_capability", property(lambda self, is_=capability: is_))
        with pytest.raises(ctcbind.EngineUnsupported, match=rf"capability {told}, and its kernels need 7\.0 or more"):
            ctcbind.ctc_loss(given, [[1, 2], [3]], engine="cuda")
        assert "capability" in ctcbind.explain(given, [[1, 2], [3]])["cuda"].reason
    for capability in ("70", "121"):
        monkeypatch.setattr(cupy.Device, "compute_capability", property(lambda self, is_=capability: is_))
        found = ctcbind.ctc_loss(given, [[1, 2], [3]], engine="cuda")
        np.testing.assert_allclose(cupy.asnumpy(found), expected, rtol=1e-6)


def test_of_several_devices_that_of_the_logits_counts(cupy, monkeypatch):
    monkeypatch.setattr(cupy, "device_count", 2)
    monkeypatch.setattr(cupy.Device, "compute_capability", property(lambda self: ("61", "90")[self.id]))
    for current in (0, 1):
        for own in (0, 1):
            with cupy.cuda.Device(own):
                x = cupy.asarray(np.zeros((3, 1, 2), np.float32))
            with cupy.cuda.Device(current):
                if own:
                    (found,) = cupy.asnumpy(ctcbind.ctc_loss(x, [[1]], engine="cuda"))
                    assert found == pytest.approx(-np.log(6 / 8), rel=1e-6)
                else:
                    with pytest.raises(ctcbind.EngineUnsupported, match=r"has compute capability 6\.1"):
                        ctcbind.ctc_loss(x, [[1]], engine="cuda")
