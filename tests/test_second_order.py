"""Second derivatives: brute force, the reference, finite differences, symmetry, the null space, the size guard."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from batches import SEED, brute_force, paths_of, random_case
from beyond import EPS, close, largest_log, rounding, run_script, sample

import ctcbind
from ctcbind.engines.reference import log_softmax
from ctcbind.engines.reference_lattice import hessian, hvp, make_graph


def brute_hessian(x, labels, blank, topology):
    """The Hessian of one sample, x (T, C), from every path: E[1 1'] - E[1] E[1]' of the paths' indicators."""
    T, C = x.shape
    y = np.exp(x - x.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    H = np.zeros((T, C, T, C))
    paths = paths_of(T, C, blank, topology).get(tuple(labels))
    if paths is None:
        return H
    each = y[np.arange(T), paths].prod(axis=1)
    each /= each.sum()
    one_hot = np.zeros((len(paths), T, C))
    for t in range(T):
        one_hot[np.arange(len(paths)), t, paths[:, t]] = 1
        H[t, :, t] += np.diag(y[t]) - np.outer(y[t], y[t])
    mean = np.einsum("p,ptc->tc", each, one_hot)
    return H - np.einsum("p,ptc,pud->tcud", each, one_hot, one_hot) + np.multiply.outer(mean, mean)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize(
    ("T", "labels"), [(1, []), (1, [1]), (2, [1]), (4, [1]), (4, [1, 1]), (5, [1, 3]), (5, [3, 3, 1]), (3, [1, 1, 1])]
)
def test_every_path(T, labels, blank, topology):
    rng = np.random.default_rng([SEED, 81, T, len(labels), blank])
    x, v = rng.normal(size=(2, T, 1, 4))
    right = brute_hessian(x[:, 0], labels, blank, topology)
    options = {"blank": blank, "topology": topology}
    np.testing.assert_allclose(ctcbind.ctc_hessian(x, [labels], **options)[0], right, atol=1e-13)
    product = ctcbind.ctc_hvp(x, [labels], v, **options)
    np.testing.assert_allclose(product[:, 0], np.einsum("tcud,ud->tc", right, v[:, 0]), atol=1e-12)
    # where there is a path, some class is uncertain in truth or in the softmax, and the curvature is not all zero
    assert right.any() == np.isfinite(brute_force(x[:, 0], labels, blank, topology)[0])


@pytest.mark.parametrize("seed", range(60))
def test_against_the_reference(seed, poison):
    """Any memory layout, dtype, blank, lengths, way of writing targets; both topologies. v lies in another way."""
    case = random_case([SEED, 82, seed])
    rng = np.random.default_rng([SEED, 83, seed])
    T, N, C = case.x.shape
    v = rng.normal(size=case.logits.shape).astype(str(rng.choice(["float32", "float64"])))
    along = (v.transpose(1, 0, 2) if case.layout == "NTC" else v).astype(np.float64)
    logits, targets, *lengths = case.args
    got = ctcbind.ctc_hvp(logits, targets, np.asfortranarray(v), *lengths, **case.options)
    H = ctcbind.ctc_hessian(*case.args, **case.options)
    assert poison
    assert got.dtype == logits.dtype
    assert got.shape == logits.shape
    kind = "float64" if logits.dtype == np.float64 else "float32"
    assert H.dtype == kind
    assert H.shape == (N, T, C, T, C)
    got = case.in_order(got)
    # occupancies are off by the rounding of three logarithms; a slope of the log is a mean of sums over T of |v|
    bound = 6 * rounding(T, C, largest_log(case)) * (1 + T * np.abs(v).max(initial=0.0))
    for n in range(N):
        frames = case.frames[n]
        assert not got[frames:, n].any()
        assert not H[n, frames:].any()
        assert not H[n, :, :, frames:].any()
        if frames == 0 or not case.feasible(n):
            assert not got[:, n].any()
            assert not H[n].any()
            continue
        log_y, graph = sample(case, n)
        right = hvp(log_y, graph, along[:frames, n])
        smallest = 2.0**-25 if logits.dtype == np.float16 else 2.0**-150
        close(got[:frames, n], right, bound + smallest, str(logits.dtype))
        whole = hessian(log_y, graph)
        close(H[n, :frames, :, :frames], whole, bound, kind)
        close(np.einsum("tcud,ud->tc", whole, along[:frames, n]), right, bound)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("seed", range(6))
def test_finite_differences(seed, topology):
    rng = np.random.default_rng([SEED, 84, seed])
    T, C = 20, 6
    labels = [rng.integers(1, C, size=int(k)).tolist() for k in (8, 0, 3)]
    x, v = rng.normal(size=(2, T, 3, C))
    h = 1e-5
    grads = [
        ctcbind.ctc_loss_and_grad(x + sign * h * v, labels, [T, 7, T], topology=topology, engine="reference").grad
        for sign in (1, -1)
    ]
    product = ctcbind.ctc_hvp(x, labels, v, [T, 7, T], topology=topology)
    # a central difference of gradients below 1: h^2 times a third derivative along v, and 1e-16 T / h
    np.testing.assert_allclose(product, (grads[0] - grads[1]) / (2 * h), atol=2e-7)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_symmetry_and_null_space(topology):
    rng = np.random.default_rng([SEED, 85])
    T, N, C = 12, 3, 5
    x = rng.normal(size=(T, N, C))
    labels = [[1, 1, 2], [4], [3, 2, 1, 3]]
    H = ctcbind.ctc_hessian(x, labels, topology=topology)
    np.testing.assert_allclose(H, H.transpose(0, 3, 4, 1, 2), atol=1e-14)
    np.testing.assert_allclose(H.sum(axis=2), 0, atol=1e-13)  # a constant on a step changes nothing
    v, w = rng.normal(size=(2, T, N, C))
    left, right = ctcbind.ctc_hvp(x, labels, v, topology=topology), ctcbind.ctc_hvp(x, labels, w, topology=topology)
    np.testing.assert_allclose((w * left).sum(axis=(0, 2)), (v * right).sum(axis=(0, 2)), atol=1e-11)
    constant = np.broadcast_to(rng.normal(size=(T, N, 1)), (T, N, C))
    np.testing.assert_allclose(ctcbind.ctc_hvp(x, labels, constant, topology=topology), 0, atol=1e-12)
    np.testing.assert_allclose(ctcbind.ctc_hvp(x, labels, v + 3 * constant, topology=topology), left, atol=1e-11)
    np.testing.assert_allclose(ctcbind.ctc_hvp(x, labels, 2 * v - w, topology=topology), 2 * left - right, atol=1e-11)
    np.testing.assert_allclose(np.einsum("ntcud,und->tnc", H, v), left, atol=1e-12)


def test_long_input():
    """T = 2000, L = 120, float32 and float64 logits."""
    rng = np.random.default_rng([SEED, 86])
    x = rng.normal(size=(2000, 1, 12)).astype(np.float32)
    v = rng.normal(size=x.shape)
    labels = rng.integers(1, 12, size=120)
    log_y = log_softmax(x[:, 0].astype(np.float64))
    right = hvp(log_y, make_graph(labels.astype(np.int32), 0), v[:, 0])
    # as above; a slope's mean is a sum of |v| over random signs, whose size is the root of T
    bound = 6 * rounding(2000, 12, -log_y.min(axis=1).sum()) * np.sqrt(2000)
    for logits, kind in ((x, "float32"), (x.astype(np.float64), "float64")):
        close(ctcbind.ctc_hvp(logits, [labels], v)[:, 0], right, bound, kind)
    assert np.abs(right).max() > 1e4 * bound


@pytest.mark.parametrize(("T", "L"), [(4000, 100), (1030, 1000)])
@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_blocks_of_frames(T, L, topology):
    """Too much to keep of all frames at once: the way back is gone once more, a block at a time. Against differences of
    gradients; in the second shape few labels are within reach at a frame."""
    rng = np.random.default_rng([SEED, 91, T])
    x, v = rng.normal(size=(2, T, 1, 8))
    v /= np.sqrt(T)
    labels = np.where(np.arange(L) % 2, 1, rng.integers(2, 8, size=L))
    h = 1e-4
    up, down = (ctcbind.ctc_loss_and_grad(x + s * h * v, [labels], topology=topology).grad for s in (1, -1))
    product = ctcbind.ctc_hvp(x, [labels], v, topology=topology)
    # h^2 of a third derivative along a direction of length 3, and the 1e-13 of two gradients, over h
    np.testing.assert_allclose(product, (up - down) / (2 * h), atol=1e-6)
    assert np.abs(product).max() > 1e-3


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize(("scale", "masked"), [(0.01, 0.0), (10.0, 0.1), (300.0, 0.0), (1000.0, 0.05)])
def test_logits_far_apart(scale, masked, topology):
    """A few hundred frames of probabilities down to e^-5000 and 0, which have no exponential in float64."""
    rng = np.random.default_rng([SEED, 89, int(scale), int(100 * masked)])
    T, C, L = 200, 9, 45
    x, v = rng.normal(size=(2, T, 1, C))
    x *= scale
    x[rng.random(size=x.shape) < masked] = -np.inf
    labels = rng.integers(1, C, size=L)
    x[:, 0, 0] = np.maximum(x[:, 0, 0], -5 * scale)  # paths may wait anywhere, so that there is one
    x[np.arange(2, 2 + 4 * L, 4), 0, labels] = scale
    x[-5] = 0  # a frame with a curvature, however certain the others are
    log_y = log_softmax(x[:, 0])
    graph = make_graph(labels.astype(np.int32), 0, merge_repeats=topology == "ctc")
    right = hvp(log_y, graph, v[:, 0])
    largest = np.abs(log_y[np.isfinite(log_y)]).max() * T
    bound = 6 * rounding(T, C, largest) * (1 + T * np.abs(v).max())
    close(ctcbind.ctc_hvp(x, [labels], v, topology=topology)[:, 0], right, bound)
    assert np.abs(right).max() > 1e-2


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_probabilities_without_all_their_bits(topology):
    """All that paths go through lies between e^-700 and e^-745, below the least normal number and near it."""
    rng = np.random.default_rng([SEED, 95])
    T, C = 30, 5
    x, v = rng.uniform(-745, -700, size=(T, 1, C)), rng.normal(size=(T, 1, C))
    x[..., -1] = 0  # no label
    labels = rng.integers(1, C - 1, size=8)
    log_y = log_softmax(x[:, 0])
    graph = make_graph(labels.astype(np.int32), 0, merge_repeats=topology == "ctc")
    bound = 6 * rounding(T, C, 745 * T) * (1 + T * np.abs(v).max())
    right = hvp(log_y, graph, v[:, 0])
    close(ctcbind.ctc_hvp(x, [labels], v, topology=topology)[:, 0], right, bound)
    assert np.abs(right).max() > 1e-3
    hessian = ctcbind.ctc_hessian(x, [labels], topology=topology)[0]
    close(np.tensordot(hessian, v[:, 0], 2), right, bound)


@pytest.mark.parametrize(("blank", "label"), [(-720, -690), (-800, -690), (-690, -720), (-690, -800)])
def test_one_class_of_a_frame_has_no_exponential(blank, label):
    """The blank, or the label beside it: paths through either are as probable, as the next frame makes up for it."""
    rng = np.random.default_rng([SEED, 96])
    x, v = rng.normal(size=(2, 5, 1, 4))
    labels = [1, 2, 2]
    x[2, 0, [0, 2]] += blank, label
    x[3, 0, [0, 2]] -= max(label - blank, 0), max(blank - label, 0)
    log_y = log_softmax(x[:, 0])
    right = hvp(log_y, make_graph(np.array(labels, np.int32), 0, merge_repeats=True), v[:, 0])
    bound = 6 * rounding(5, 4, 1000) * (1 + 5 * np.abs(v).max())
    close(ctcbind.ctc_hvp(x, [labels], v)[:, 0], right, bound)
    close(np.tensordot(ctcbind.ctc_hessian(x, [labels])[0], v[:, 0], 2), right, bound)
    assert np.abs(right).max() > 1e-2


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_a_large_loss_rounds_no_more_than_a_small_one(topology):
    """A class that no path goes through takes all of the softmax: what is left of the product is that of the paths, and
    they are the same at a loss of a million nats."""
    rng = np.random.default_rng([SEED, 90])
    T, C, far = 60, 6, 2.0**14
    x = np.round(rng.normal(size=(T, 1, C)) * 1024) / 1024  # differences of 2^14 leave nothing of them out
    v = rng.normal(size=x.shape)
    labels = rng.integers(1, C - 1, size=20)
    y = np.exp(log_softmax(x[:, 0]))
    alone = y * (v[:, 0] - (y * v[:, 0]).sum(axis=1, keepdims=True))
    near = ctcbind.ctc_hvp(x, [labels], v, topology=topology)[:, 0] - alone
    x[..., -1] += far
    got = ctcbind.ctc_hvp(x, [labels], v, topology=topology)[:, 0]
    # eight roundings of each share of each frame; and of a frame's softmax, C of them and of its logarithm
    bound = EPS * T * (8 + C + 8) * (1 + np.abs(v).max() * np.sqrt(T))
    np.testing.assert_allclose(got[:, :-1], near[:, :-1], rtol=0, atol=bound)
    assert np.abs(near).max() > 1e10 * bound


def test_special_values():
    x = np.zeros((4, 4, 3))
    x[1, 0] = np.nan
    x[1, 1] = -np.inf
    x[2, 2, 1] = 1000.0
    x[2, 3, 0] = -np.inf
    labels = [[1]] * 4
    v = np.ones_like(x) * [1.0, 2.0, 3.0]
    got, H = ctcbind.ctc_hvp(x, labels, v), ctcbind.ctc_hessian(x, labels)
    assert np.isnan(got[:, 0]).all()
    assert np.isnan(H[0]).all()
    assert not got[:, 1].any()
    assert not H[1].any()
    assert np.isfinite(got[:, 2:]).all()
    assert np.isfinite(H[2:]).all()
    np.testing.assert_allclose(np.einsum("ntcud,und->tnc", H[2:], v[:, 2:]), got[:, 2:], atol=1e-12)
    partly = ctcbind.ctc_hessian(x.astype(np.float32), labels, [4, 4, 3, 1])
    assert np.isnan(partly[0]).all()
    assert not partly[2, 3:].any()
    assert not partly[3, 1:].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_no_zero_is_negative(classes, dtype):
    """Where there is one class, or one that takes all, no derivative has a sign."""
    x = np.zeros((3, 2, classes), dtype)
    x[:, 1, 0] = np.inf
    v = np.random.default_rng([SEED, 88]).normal(size=x.shape)
    for found in (ctcbind.ctc_hessian(x, [[], []]), ctcbind.ctc_hvp(x, [[], []], v)):
        assert np.isfinite(found).all()
        assert not np.signbit(found[found == 0]).any()


def test_the_size_guard_names_the_bytes():
    x = np.broadcast_to(np.float32(0), (1000, 2, 100))
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.ctc_hessian(x, [[1], [2]])
    assert caught.value.rule == "hessian_size"
    assert caught.value.value == 2 * (1000 * 100) ** 2 * 4
    assert "80000000000 bytes" in str(caught.value)
    small = np.zeros((3, 1, 2))
    with pytest.raises(ctcbind.InvalidInput, match="288 bytes, more than max_bytes=287"):
        ctcbind.ctc_hessian(small, [[1]], max_bytes=287)
    n = 2  # labels and blanks, L + 1 of each: moves from 4 frames, shares at 3, and of single frames 9 n + 9, 6 n + 2
    scratch = 8 * (4 * 5 * n + 3 * 2 * n + 9 * n + 9 + 6 * n + 2 + 2 * 3 * 2 + 2 * 2) + 4 * 2  # T C, C; and C ints
    told = f"T=3, C=2 takes 288 bytes, and {scratch} more"
    for less in (288, 288 + scratch - 1):
        with pytest.raises(ctcbind.InvalidInput, match=f"{told} .* max_bytes={less};") as caught:
            ctcbind.ctc_hessian(small, [[1]], max_bytes=less)
        assert (caught.value.rule, caught.value.value) == ("hessian_size", 288 + scratch)
    for enough in (288 + scratch, 10**400, float("inf")):
        assert ctcbind.ctc_hessian(small, [[1]], max_bytes=enough).nbytes == 288
    for wrong in ("1GB", None, float("nan"), -1, -(10**400), True):
        with pytest.raises(ctcbind.InvalidInput, match="max_bytes is"):
            ctcbind.ctc_hessian(small, [[1]], max_bytes=wrong)
    for T, C in ((2**20, 2**14), (2**13, 2**13)):  # past NumPy's largest array, and past any memory
        with pytest.raises(ctcbind.OutOfMemory, match="so much memory could not be had; ctc_hvp"):
            ctcbind.ctc_hessian(np.broadcast_to(0.0, (T, 1, C)), [[1]], max_bytes=2**100)


@pytest.mark.parametrize("lengths", [[3, 1], [1, 3]])
def test_the_size_guard_counts_the_largest_of_those_that_follow_each_other(lengths):
    def scratch(x, labels, lengths):
        result = x.shape[1] * (x.shape[0] * x.shape[2]) ** 2 * 8
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.ctc_hessian(x, labels, lengths, max_bytes=result)
        return caught.value.value - result

    alone = scratch(np.zeros((3, 1, 2)), [[1]], [3])
    assert alone > scratch(np.zeros((3, 1, 2)), [[1]], [1])
    assert scratch(np.zeros((3, 2, 2)), [[1], [1]], lengths) == alone


@pytest.mark.parametrize(("labels", "topology"), [([1, 1, 2], "ctc"), ([1, 2, 1, 2], "ctc"), ([1, 1, 1, 1], "simple")])
def test_a_sample_without_a_path_takes_no_scratch_memory(labels, topology):
    """Neither one of too many labels nor one of too many repeats: the result, of zeros, is all that is counted."""
    x = np.random.default_rng([SEED, 89]).normal(size=(3, 1, 3))
    found = ctcbind.ctc_hessian(x, [labels], topology=topology, max_bytes=81 * 8)
    assert found.nbytes == 81 * 8
    assert not found.any()
    with pytest.raises(ctcbind.InvalidInput, match=r"648 bytes, and [0-9]+ more"):  # one with a path does
        ctcbind.ctc_hessian(x, [[1, 2]], topology=topology, max_bytes=81 * 8)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of this process from the kernel")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_size_guard_counts_what_is_taken(threads):
    """Few classes and long labels: scratch is the larger part, and as much of it is had as there are threads."""
    T, N, C, L = 500, 2, 2, 250
    script = f"""
        import numpy as np, ctcbind
        ctcbind.set_num_threads({threads})
        x, labels, result = np.zeros(({T}, {N}, {C}), np.float32), [[1] * {L}] * {N}, {N * (T * C) ** 2 * 4}
        try:
            ctcbind.ctc_hessian(x, labels, max_bytes=result)
        except ctcbind.InvalidInput as error:
            counted = error.value
        before = peak()
        ctcbind.ctc_hessian(x, labels, max_bytes=counted)
        print(counted - result, peak() - before - result)
    """
    counted, taken = run_script(script)
    assert counted > threads * 28 * T * (2 * L + 1)
    assert abs(taken - counted) < 2**21, "the stacks of threads, and what Python takes meanwhile"


@pytest.mark.parametrize("shape", [(6, 2, 5), (2, 6, 4), (6, 2), ()])
def test_wrong_v(shape):
    with pytest.raises(ctcbind.InvalidInput, match=r"must be that of the logits, \(6, 2, 4\)") as caught:
        ctcbind.ctc_hvp(np.zeros((6, 2, 4)), [[1], [2]], np.zeros(shape))
    assert (caught.value.rule, caught.value.value) == ("v_shape", shape)


@pytest.mark.parametrize("lengths", [[6, 5], np.array([6, 5]), (6, 5)])
def test_lengths_in_the_place_of_v(lengths):
    """Else the label lengths would be taken for those of the input, and the padding for labels."""
    logits, padded = np.zeros((6, 2, 4)), np.array([[1, 0], [2, 3]])
    with pytest.raises(ctcbind.InvalidInput, match=r"^v has 1 dimension; it must have the shape of the logits") as told:
        ctcbind.ctc_hvp(logits, padded, lengths, [1, 2])
    assert told.value.rule == "v_shape"
    with pytest.raises(ctcbind.InvalidInput, match=r"^targets\[0\]\[1\] is 0"):
        ctcbind.ctc_hvp(logits, padded, logits, lengths, [2, 2])


def test_v_that_has_the_shape_of_wrong_logits_is_not_blamed():
    one = np.zeros((6, 4))
    with pytest.raises(ctcbind.InvalidInput, match=r"^logits have 2 dimensions, .*; for one sample pass") as told:
        ctcbind.ctc_hvp(one, [[1, 2]], one)
    assert told.value.rule == "logits_rank"


def test_v_of_a_wrong_kind():
    class OnDevice:
        __cuda_array_interface__ = {"shape": (6, 2, 4)}  # noqa: RUF012

    x = np.zeros((6, 2, 4))
    with pytest.raises(ctcbind.InvalidInput, match="v is in GPU memory"):
        ctcbind.ctc_hvp(x, [[1], [2]], OnDevice())
    with pytest.raises(ctcbind.InvalidInput, match="v is int64"):
        ctcbind.ctc_hvp(x, [[1], [2]], np.zeros((6, 2, 4), int))


@pytest.mark.parametrize(
    ("v", "words"),
    [
        ([[1], [1, 2]], "v cannot be read as an array"),
        (np.ones((5, 1, 4), int), r"v is int64; it must be .*: pass v\.astype\(numpy\.float32\)"),
        (np.ma.ones((5, 1, 4)), r"v is a masked array; pass v\.filled\(0\)"),
        (np.ones((5, 1, 4), np.dtype(float).newbyteorder()), r"v has foreign byte order; convert it with v\.astype\("),
    ],
)
def test_a_direction_that_is_none(v, words):
    with pytest.raises(ctcbind.InvalidInput, match=words):
        ctcbind.ctc_hvp(np.zeros((5, 1, 4)), [[1, 2]], v)
