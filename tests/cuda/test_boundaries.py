"""The kernels at the sizes from which on a launch is another: longest labels, frames, classes, and where a row begins.

A frame of the recursion takes some eight roundings of half a unit in the last place, and so does a softmax. They go
either way, so that of T frames sqrt(T) times that is left, relative to p: in the loss, beside the rounding of the loss
itself, and in gradients, which are at most 1. The reference rounds logarithms as large as the loss, in each frame.
"""

from __future__ import annotations

import fake_cupy
import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import CTCLoss
from ctcbind.cuda import layout as layouts
from ctcbind.cuda.kernels import LANES
from ctcbind.cuda.layout import plan_layout

pytest_plugins = ["emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")

DTYPES = ("float32", "float64", "float16", "bfloat16")
EPS = {"float64": 2.0**-53}
#: Half a unit in the last place of a gradient of at most 1, where that is not what it is computed in.
STORED = {"float16": 2.0**-12, "bfloat16": 2.0**-9}


def numbers(dtype):
    return np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype) if dtype == "bfloat16" else dtype)


def scores(*shape, dtype="float32", scale=1.0):
    values = np.random.default_rng([SEED, *shape]).normal(size=shape) * scale
    return values.astype(numbers(dtype))


def there(array):
    """On the device as it lies: its device does not move what it is given."""
    return fake_cupy.ndarray(array)


def compare(x, labels, frames=None, *, given=None, **options):
    """Loss and gradient of `given` (or else of x), and the loss alone to the same bits."""
    given = there(x) if given is None else given
    with CTCLoss(engine="cuda", **options) as plan:
        alone = fake_cupy.asnumpy(plan.loss(given, labels, frames))
        result = plan(given, labels, frames)
    right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, **options, engine="reference")
    np.testing.assert_array_equal(alone, fake_cupy.asnumpy(result.loss))
    check(result.loss, result.grad, right, x)


def check(loss, grad, right, x):
    """The bound above."""
    T, dtype = x.shape[0], x.dtype.name
    eps, largest = EPS.get(dtype, 2.0**-24), float(right.loss[np.isfinite(right.loss)].max(initial=0))
    bound = 8 * np.sqrt(T) * eps + T * largest * 2.0**-53
    np.testing.assert_allclose(fake_cupy.asnumpy(loss), right.loss, rtol=2 * eps, atol=bound)
    found = np.asarray(fake_cupy.asnumpy(grad)).astype(np.float64)
    np.testing.assert_allclose(found, right.grad, rtol=0, atol=bound + STORED.get(dtype, 0))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lanes", LANES, ids=str)
def test_the_longest_label_at_the_edge_of_each_lattice(lanes, dtype):
    """The last that fits, and one more; beside it few labels, none, and a label more than there are frames."""
    for L in (lanes.width - 1, lanes.width):
        T, C = L + 7, 4
        row = [1 + i % 2 for i in range(L)]
        next_width = next((each.width for each in LANES if each.width > L), LANES[-1].width)
        layout = plan_layout(T, 4, C, L, 8 if dtype == "float64" else 4, True)
        assert (layout.lanes.width, layout.strips) == (next_width, L // next_width + 1)
        compare(scores(T, 4, C, dtype=dtype), [row, [2, 2, 0], [], row], [T, T, T - 3, L - 1], blank=3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65])
def test_frames_at_the_edge_of_a_phase(T, dtype):
    """As many labels as frames, half as many, one more, and a sample of one frame less."""
    row = [1 + i % 3 for i in range(T + 1)]
    labels = [row[:T], row[: T // 2], row, [1] * ((T + 1) // 2), row[: T - 1], []]
    compare(scores(T, 6, 5, dtype=dtype), labels, [T, T, T, T, T - 1, T - 1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C", [1, 2, 31, 33, 63, 65, 127, 129, 255, 257, 511, 513, 1023, 1024, 1025, 1537])
def test_classes_at_the_edge_of_reads_of_16_bytes(C, dtype):
    """By rows that begin at each place of such a read; the blank last, and every class that is a label there."""
    row = [c % C for c in (0, C // 2, C - 2, 1, C // 3) if C > 1 and c % C != C - 1]
    x = scores(9, 2, C, dtype=dtype)
    for begin in range(0, 16 // x.itemsize, 3):
        wide = np.full((9, 2, C + begin), np.nan, dtype=x.dtype)
        wide[:, :, begin:] = x
        compare(x, [row, row[:1]], [9, 6], given=there(wide[:, :, begin:]), blank=C - 1)


@pytest.mark.parametrize("scale", [1, 1e7], ids=["linear", "logarithms"])
@pytest.mark.parametrize("L", [31, 32, 33, 64, 65])
@pytest.mark.parametrize("C", [9, 32, 40])
def test_labels_that_all_come_early_or_late(C, L, scale):
    """And so those beyond the lanes of a warp, and the blank behind them, in each of their halves: before the middle,
    in it, and behind."""
    T, late = 3 * L + 8, 2 * L + 8
    rows = np.stack([np.arange(L), np.arange(L) + L // 2]) % (C - 1) + 1
    x = scores(T, 2, C)
    x[:, :, 0] += 6
    for n, begin in enumerate((0, late)):
        x[begin + np.arange(L), n, rows[n]] += 12
    compare(x * np.float32(scale), rows.tolist())


@pytest.mark.parametrize("size", [1e5, 1e7, 1e9])
@pytest.mark.parametrize("C", [3, 40, 1040])
def test_a_path_that_is_far_off_in_every_frame(C, size):
    """The only one there is; from 1e7 on its binades are more than an int counts."""
    T, t = 99, np.arange(99)
    x = np.zeros((T, 1, C), np.float32)
    x[t, 0, 1 - t % 2], x[t, 0, t % 2] = -size, size
    grad = np.zeros(x.shape)
    grad[t, 0, 1 - t % 2], grad[t, 0, t % 2] = -1, 1
    result = ctcbind.ctc_loss_and_grad(x, [[1] * 50], engine="cuda")
    np.testing.assert_allclose(result.loss, [2 * T * size], rtol=2.0**-23)
    np.testing.assert_array_equal(result.grad, grad)


@pytest.fixture
def stretches(monkeypatch):
    """A warp whose lanes have classes takes eight frames, however few there are."""
    monkeypatch.setattr(layouts, "WARPS", 1)
    plan_layout.cache_clear()
    yield
    plan_layout.cache_clear()


@pytest.mark.usefixtures("stretches")
@pytest.mark.parametrize("C", [5, 32, 40, 1040])
def test_nan_stays_in_its_sample_and_what_is_no_frame_is_not_read(C):
    """NaN of a label, of a class that nobody uses, of one that was far off in the frame before; and behind the frames
    of a sample, or where labels are too many for it."""
    labels, frames = [[1, 2], [1, 2], [1, 2], [2], [1] * 40, [3]], [18, 13, 18, 18, 16, 11]
    x = scores(18, 6, C)
    right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, engine="reference")
    x[17, 0, 1] = x[9, 1, C - 1] = x[9, 2, 2] = np.nan
    x[8, 2, 2] = 1e9
    x[:, 4, 1] = x[11:, 5] = np.nan
    with CTCLoss(engine="cuda") as plan:
        result = plan(there(x), labels, frames)
    assert np.isinf(right.loss).tolist() == [False, False, False, False, True, False]
    right.loss[:3], right.grad[:, :3], right.grad[13:, 1] = np.nan, np.nan, 0
    check(result.loss, result.grad, right, x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_many_labels_as_classes(dtype):
    """Where emissions stand in a table of all classes: the last that shared memory holds, and one more."""
    real = 8 if dtype == "float64" else 4
    C = (layouts.SHARED - layouts.SCRATCH) // (4 * 2 * 2 * real)
    for classes, table in ((C, True), (C + 1, False)):
        T = classes + 2
        assert plan_layout(T, 1, classes, classes - 1, real, True).table is table
        row = np.random.default_rng(SEED).permutation(classes - 1).tolist()
        compare(scores(T, 1, classes, dtype=dtype), [row], blank=classes - 1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_least_and_the_largest_halves(dtype):
    """Each alone in its frame, among 0: what float16 counts as subnormal, its largest numbers, infinities below."""
    kind = numbers(dtype)
    bits = np.array([0x0001, 0x03FF, 0x0400, 0x7BFF, 0x8001, 0x83FF, 0xFBFF, 0xFC00 if dtype == "float16" else 0xFF80])
    x = np.zeros((len(bits) + 30, 2, 7), dtype=kind)
    x[: len(bits), :, 3] = bits.astype(np.uint16).view(kind)[:, None]
    compare(x, [[1, 2, 3, 1], []])


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("C", [28, 40])
def test_places_past_2_to_the_31(tmp_path, C, layout, over):
    """Elements, of which a file with holes has the few that count; the gradient beside them and in their place."""
    T, N, step = 3, 3, 2**30 + 5
    labels, frames = [[1], [], [2, C - 1]], [T, T, T - 1]
    for dtype, scale in (("float32", 1.0), ("float32", 1e9), ("float16", 1.0)):  # the second in logarithms
        places = np.memmap(tmp_path / "places", dtype=dtype, mode="w+", shape=(2 * step + 4 * C,))
        strides = (step, C, 1) if layout == "TNC" else (C, step, 1)  # of (T, N, C)
        whole = np.lib.stride_tricks.as_strided(places, (T, N, C), [each * places.itemsize for each in strides])
        x = scores(T, N, C, dtype=dtype, scale=scale)
        whole[...] = x
        given = whole if layout == "TNC" else whole.transpose(1, 0, 2)
        with CTCLoss(engine="cuda", layout=layout, overwrite_logits=over) as plan:
            result = plan(there(given), labels, frames)
        right = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, engine="reference")
        check(result.loss, result.grad if layout == "TNC" else result.grad.transpose(1, 0, 2), right, x)
        assert not over or np.array_equal(given, fake_cupy.asnumpy(result.grad))
        del places, whole, given, result
