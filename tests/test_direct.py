"""The short way of a plan in a loop (csrc/python/direct.c) beside the long one: the same results and the same errors.

Everything else that tests say of the native engine is asked of a warm plan too (conftest.py).
"""

from __future__ import annotations

import ctypes
import itertools
import re
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from bad_inputs.refused import GOOD, REFUSED
from bad_inputs.runner import OPTIONS, made
from batches import SEED, random_case
from short_way import LABELS, MANY, PADDED, C, N, T, both_sizes, same, short_only, warm, warm_with, x, x_of
from test_csrc import FLAGS, MEMORY, cannot

import ctcbind
from ctcbind.bindings import native_direct

ROOT = Path(__file__).resolve().parent.parent

FORMS = {
    "lists": (LABELS, None, None),
    "tuples": (tuple(map(tuple, LABELS)), None, None),
    "NumPy's integers": (
        [[np.int8(1), 2], (np.uint64(3),), np.array([4, 4, 5])],
        [np.int64(12), 11, np.int16(6)],
        None,
    ),
    "arrays in a list": ([np.array(row, "int16") for row in LABELS], None, None),
    "strided arrays in a list": ([np.repeat(row, 2)[::2] for row in LABELS], None, None),
    "padded": (PADDED, None, np.array([2, 1, 3])),
    "padded, lists of lengths": (PADDED.astype("uint8"), [12, 11, 6], (2, 1, 3)),
    "padded with negatives": (np.where(np.arange(3) < [[2], [1], [3]], PADDED, -1), np.array([12, 11, 6]), None),
    "strided": (np.repeat(np.repeat(PADDED, 2, 0), 3, 1)[::2, ::3], None, np.array([2, 1, 3], "uint16")),
    "Fortran order": (np.asfortranarray(PADDED, "int64"), np.array([12, 11, 6], "uint64"), np.array([2, 1, 3], "int8")),
    "reversed": (PADDED[::-1].copy()[::-1], None, np.array([3, 1, 2])[::-1]),
    "one row": (np.array([1, 2, 3, 4, 4, 5], "int32"), None, np.array([2, 1, 3], "int32")),
    "one row, strided": (np.repeat([1, 2, 3, 4, 4, 5], 3)[1::3], (12, 11, 6), [2, 1, 3]),
    "read-only": (np.broadcast_to(np.array([1, 2]), (3, 2)), None, np.broadcast_to(np.array([2]), (3,))),
    "no labels": ([[], [], []], None, None),
    "no columns": (np.zeros((3, 0), int), None, [0, 0, 0]),
    "no path": ([[1] * 12, [2], [3]], None, None),
    "no frames": (LABELS, [0, 12, 12], None),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@both_sizes
def test_every_plain_form_goes_the_short_way(form, dtype, classes):
    arguments = x_of(classes, dtype), *FORMS[form]
    want = ctcbind.ctc_loss_and_grad(*arguments, engine="native")
    with short_only(warm()) as plan:
        same(plan(*arguments), want)
        np.testing.assert_array_equal(plan.loss(*arguments), want.loss)
        arguments[0].setflags(write=False)
        same(plan(*arguments), want)


@pytest.mark.parametrize("reduction", ["none", "sum", "batch_mean", "label_mean"])
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@both_sizes
def test_every_option(reduction, zero_infinity, dtype, layout, classes):
    for topology, blank in itertools.product(("ctc", "simple"), (0, 5, -1)):
        options = {"reduction": reduction, "zero_infinity": zero_infinity, "layout": layout, "topology": topology}
        labels = [[3] * 11, [2, 1], []]
        logits = x(dtype, (T, N, classes) if layout == "TNC" else (N, T, classes))
        want = ctcbind.ctc_loss_and_grad(logits, labels, engine="native", blank=blank, **options)
        assert topology == "simple" or zero_infinity or np.isinf(want.loss).any()
        with short_only(warm(blank=blank, **options)) as plan:
            same(plan(logits, labels), want)
            same((plan.loss(logits, labels),), (want.loss,))


def laid(logits, axes):
    """The same, with its axes in this order in memory, outermost first."""
    return np.ascontiguousarray(logits.transpose(axes)).transpose([axes.index(axis) for axis in range(3)])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@both_sizes
def test_samples_one_after_the_other_go_the_short_way(dtype, classes):
    for layout, axes in (("TNC", (1, 0, 2)), ("TNC", (1, 2, 0)), ("NTC", (0, 2, 1))):
        for shape, reduction in itertools.product(
            ((T, N), (T, 1), (1, N), (1, 1)), ("none", "sum", "batch_mean", "label_mean")
        ):
            n = shape[1]
            logits = x(dtype, (*shape, classes))
            most = float(ml_dtypes.finfo(dtype).max)
            logits[:, 0] = np.where(np.arange(classes) == 0, most, -most)  # its loss is inf
            labels = [[3], [2, 1], []][:n]
            logits = laid(logits if layout == "TNC" else logits.transpose(1, 0, 2), axes)
            options = {"reduction": reduction, "layout": layout, "zero_infinity": True}
            want = ctcbind.ctc_loss_and_grad(np.ascontiguousarray(logits), labels, engine="native", **options)
            long = ctcbind.ctc_loss_and_grad(logits, labels, engine="native", **options)
            with short_only(warm(**options)) as plan:
                got = plan(logits, labels)
                same(got, want)
                same((plan.loss(logits, labels),), (want.loss,))
            same(long, want)
            assert laid(got.grad, axes).strides == got.grad.strides == long.grad.strides


STRIDED = {
    "a slice of time": lambda wide: wide[3:-2],
    "a slice of the batch": lambda wide: wide[:, 1:-3],
    "a slice of the classes": lambda wide: wide[:, :, 2:-1],
    "a slice of all": lambda wide: wide[1:-1, 2:, :-3],
    "stepped": lambda wide: wide[::3, ::2],
    "stepped classes": lambda wide: wide[:, :, ::2],
    "reversed": lambda wide: wide[::-1, :, ::-1],
    "reversed batch": lambda wide: wide[:, ::-1],
    "Fortran order": np.asfortranarray,
    "classes outermost": lambda wide: laid(wide, (2, 0, 1)),
    "frames innermost": lambda wide: laid(wide, (1, 2, 0))[:, :, 3:],
    "the same for all samples": lambda wide: np.broadcast_to(wide[:, :1], wide.shape),
    "the same for all frames": lambda wide: np.broadcast_to(wide[:1], wide.shape),
    "one sample of many": lambda wide: wide[:, 2:3],
    "one frame of many": lambda wide: wide[2:3],
    "one class of many": lambda wide: wide[:, :, 2:3],
    "one sample": lambda wide: laid(wide[:, :1], (1, 0, 2)),
    "one frame": lambda wide: laid(wide[:1], (2, 1, 0)),
    "one class": lambda wide: laid(wide[:, :, :1], (1, 0, 2)),
}


@pytest.mark.parametrize("how", STRIDED)
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@both_sizes
def test_logits_of_any_strides_go_the_short_way(how, layout, dtype, classes):
    logits = STRIDED[how](x(dtype, (T, N + 4, classes + 2)))
    if layout == "NTC":
        logits = logits.transpose(1, 0, 2)
    samples = logits.shape[layout.index("N")]
    labels = [[], [1], [2, 1]] * samples if logits.shape[2] > 2 else [[]] * samples
    arguments = logits, labels[:samples]
    want = ctcbind.ctc_loss_and_grad(*arguments, engine="native", layout=layout)
    with ctcbind.CTCLoss(engine="native", layout=layout) as fresh:
        long = fresh(*arguments)
    with short_only(warm(layout=layout)) as plan:
        got = plan(*arguments)
        same(got, long)
        same(got, want)
        same((plan.loss(*arguments),), (want.loss,))
    assert got.grad.strides == long.grad.strides


@pytest.mark.parametrize("reduction", ["none", "sum", "batch_mean", "label_mean"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_loss_past_its_dtype_counts_as_nothing_where_infinity_is_zero(engine, dtype, layout, reduction):
    """Nor does its gradient; without zero_infinity the loss is inf, and the gradient what it is."""
    top = float(np.finfo(dtype).max) / 2
    logits = np.full((5, 3, 4), -top, dtype)
    logits[:, :, 0] = top
    logits[:, 1] = np.random.default_rng(SEED).normal(size=(5, 4))
    if dtype == "float64":
        logits[:, 2] = 0
    logits = logits if layout == "TNC" else np.ascontiguousarray(logits.transpose(1, 0, 2))
    labels, options = [[1, 2], [3], [1, 2, 1]], {"layout": layout, "reduction": reduction, "engine": engine}
    plain = ctcbind.ctc_loss_and_grad(logits, labels, **options)
    found = ctcbind.ctc_loss_and_grad(logits, labels, **options, zero_infinity=True)
    before, after = plain.grad, found.grad
    if layout == "TNC":
        before, after = before.transpose(1, 0, 2), after.transpose(1, 0, 2)
    losses = ctcbind.ctc_loss(logits, labels, layout=layout, engine=engine)
    past = np.isinf(losses)
    assert past[0] and not past[1]  # noqa: PT018
    assert dtype == "float64" or before[0].any()
    assert not after[past].any()
    np.testing.assert_array_equal(after[~past], before[~past])
    assert np.isfinite(found.loss).all()
    if reduction == "none":
        np.testing.assert_array_equal(found.loss, np.where(past, 0, losses))
    if engine == "native":
        with short_only(warm(layout=layout, reduction=reduction, zero_infinity=True)) as plan:
            same(plan(logits, labels), found)
            same((plan.loss(logits, labels),), (found.loss,))


def test_a_sum_past_a_float_is_inf_as_on_the_long_way():
    logits = np.zeros((2, 4, 3), np.float32)
    logits[0, :, 1:] = -3e38
    for reduction in ("sum", "batch_mean"):
        want = ctcbind.ctc_loss(logits, [[1, 2]] * 4, engine="native", reduction=reduction)
        with short_only(warm(reduction=reduction)) as plan:
            same((plan.loss(logits, [[1, 2]] * 4),), (want,))


def test_random_batches_and_slips():
    """Forms, layouts, dtypes and slips drawn: both ways give the same bits, or the same error."""
    taken = declined = raised = 0
    plans = {}
    for seed in range(600):
        rng = np.random.default_rng([SEED, 5, seed])
        case = random_case([SEED, 6, seed])
        arguments = list(case.args)
        if rng.random() < 0.4:
            arguments = slip(rng, arguments)
        key = tuple(case.options.items())
        plan = plans.setdefault(key, None) or warm_with({"engine": "native", **case.options})
        plans[key] = plan
        wrong = complaint(ctcbind.ctc_loss_and_grad, *arguments, engine="native", **case.options)
        got = plan._both(*arguments)
        if wrong is not None:
            assert got is None
            assert complaint(plan, *arguments) == wrong
            raised += 1
            continue
        want = ctcbind.ctc_loss_and_grad(*arguments, engine="native", **case.options)
        if got is None:
            declined += 1
            got = plan(*arguments)
        else:
            taken += 1
        same(got, want)
        np.testing.assert_array_equal(plan.loss(*arguments), want.loss)
    assert min(taken, declined, raised) > 40, (taken, declined, raised)


def complaint(call, *arguments, **options):
    """What InvalidInput says of it, None where it is right."""
    try:
        call(*arguments, **options)
    except ctcbind.InvalidInput as error:
        return str(error)
    return None


def slip(rng, arguments):
    """One thing that is wrong, or looks so."""
    which = int(rng.integers(1, 4))
    value = arguments[which]
    odd = [-1, 10**6, 2**31, -(2**31), 2**63, 1.5, True, None, "1", np.int64(1), np.float32(1), [1]]
    odd = [*odd, np.timedelta64(1, "s"), np.bool_(1), np.uint64(2**64 - 1), np.int8(-1)][rng.integers(16)]
    if isinstance(value, np.ndarray) and value.size and isinstance(odd, int):
        value = value.astype(np.int64 if abs(odd) < 2**62 else object)
        value[tuple(rng.integers(s) for s in value.shape)] = odd
    elif isinstance(value, list) and value:
        value = list(value)
        at = int(rng.integers(len(value)))
        if isinstance(value[at], list) and rng.random() < 0.7:
            value[at] = [*value[at], odd]
        else:
            value[at] = odd
    else:
        value = [[1], None, (), np.zeros(()), np.zeros((2, 2, 2), int), {}, np.array([1, 2]), [], "12"][rng.integers(9)]
    arguments[which] = value
    return arguments


@pytest.mark.parametrize("name", sorted(name for name, row in REFUSED.items() if set(row.changes) - set(OPTIONS)))
def test_what_is_wrong_is_told_as_on_the_long_way(name):
    """Where it is no option: those are looked at when the plan is made."""
    arguments = made({**GOOD, **REFUSED[name].changes})
    options = {each: arguments.pop(each) for each in OPTIONS if each in arguments}
    with warm_with(options) as plan:
        short = complaint(plan, **arguments)
    long = complaint(ctcbind.ctc_loss, **made({**GOOD, **REFUSED[name].changes}))
    assert short is not None
    assert re.sub("x[0-9a-f]{6,}", "", short) == re.sub("x[0-9a-f]{6,}", "", long)


class Mine(np.ndarray):
    pass


class MyInt(np.int64):
    pass


def off_by_a_byte(logits):
    room = np.zeros(logits.nbytes + 1, np.uint8)[1:].view(logits.dtype)
    room[:] = logits.ravel()
    return room.reshape(logits.shape)


def in_records(logits):
    """One of two fields, whose elements lie no whole number of elements apart."""
    records = np.zeros(logits.shape, np.dtype({"names": ["a", "x"], "formats": ["u2", "f4"]}))
    records["x"] = logits
    return records["x"]


@pytest.mark.parametrize(
    "arguments",
    [
        (x().tolist(), LABELS),
        (x().view(Mine), LABELS),
        (off_by_a_byte(x()), LABELS),
        (in_records(x()), LABELS),
        (x(), np.array(PADDED).view(Mine), None, [2, 1, 3]),
        (x(), LABELS, None, [2, 1, 3]),
        (x(), [1, 2, 3, 4, 4, 5], None, [2, 1, 3]),
        (x(), [[MyInt(1), 2], [3], [4, 4, 5]]),
        (x(), LABELS, [MyInt(12), 12, 12]),
        (x(), [range(1, 3), [3], [4]]),
        (x(), PADDED.astype(">i4"), None, [2, 1, 3]),
    ],
)
def test_what_is_not_plain_goes_the_long_way_and_is_right(arguments):
    with warm() as plan:
        assert plan._both(*arguments, *[None] * (4 - len(arguments))) is None
        same(plan(*arguments), ctcbind.ctc_loss_and_grad(*arguments, engine="native"))


@both_sizes
def test_results_are_new_arrays_with_nothing_left_unwritten(poison, classes):
    del poison[:]
    with short_only(warm()) as plan:
        logits = x_of(classes)
        first = plan(logits, LABELS, [12, 5, 7])
        kept = first.grad.copy()
        second = plan(logits * 2, LABELS, [12, 5, 7])
        assert poison[-4:] == ["grad", "losses"] * 2
        np.testing.assert_array_equal(first.grad, kept)
        for result in (first, second):
            assert np.isfinite(result.grad).all()
            assert (result.grad[5:, 1] == 0).all()
            assert type(result) is ctcbind.Result


def test_nobody_is_asked_whether_to_stop_a_small_batch(monkeypatch):
    """That is Python: another thread, or a signal's handler, would find the plan idle, and use it."""
    ffi, lib, seen = native_direct.ffi, native_direct.lib, []

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def loss(problem, _workspace, _bytes):
        seen.append(ffi.cast("ctcbind_problem *", problem).stop == ffi.NULL)
        return lib.CTCBIND_SMALL  # the long way computes it

    monkeypatch.setattr(native_direct, "_address", lambda _: ctypes.cast(loss, ctypes.c_void_p).value)
    with warm() as plan:
        for classes in (C, MANY, C):
            seen.clear()
            plan(x_of(classes), LABELS)
            assert seen == [classes == C]


@pytest.mark.parametrize("reduction", ["sum", "batch_mean", "label_mean"])
def test_sums_have_the_same_bits_both_ways(reduction):
    random = np.random.default_rng(SEED)
    with warm(reduction=reduction) as plan:
        for samples in [3] * 500 + [2000] * 50:  # the last with losses of all sizes
            scores = random.normal(size=(1, samples, 3)) * 10.0 ** random.uniform(-3, 3, size=(1, samples, 1))
            with ctcbind.CTCLoss(engine="native", reduction=reduction) as new:
                assert plan.loss(scores, [[1]] * samples) == new.loss(scores, [[1]] * samples)


SCRIPT = """
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader("ctcbind.bindings._direct", sys.argv[1])
spec = importlib.util.spec_from_loader("ctcbind.bindings._direct", loader)
sys.modules["ctcbind.bindings._direct"] = module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
sys.path.insert(0, sys.argv[2])
import short_way, test_direct, test_direct_plan, test_packer
test_direct.test_random_batches_and_slips()
for form in test_direct.FORMS:
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        for classes in (short_way.C, short_way.MANY):
            test_direct.test_every_plain_form_goes_the_short_way(form, dtype, classes)
for dtype in ("float16", "bfloat16", "float32", "float64"):
    for classes in (short_way.C, short_way.MANY):
        test_direct.test_samples_one_after_the_other_go_the_short_way(dtype, classes)
        for how in test_direct.STRIDED:
            test_direct.test_logits_of_any_strides_go_the_short_way(how, "TNC", dtype, classes)
for form in test_direct.FORMS:
    test_packer.test_every_plain_form(form, "NTC")
test_packer.test_random_batches_and_slips()
for each in test_packer.LENGTHS:
    test_packer.test_lengths_alone(*each)
test_packer.test_lengths_that_are_none([1, 2, 13])
test_packer.test_what_is_no_shape_or_no_call()
test_direct_plan.test_threads_share_a_plan_and_close_it_at_any_moment()
assert sys.modules["ctcbind.bindings._direct"] is module
print("fine")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a sanitizer's library")
def test_under_sanitizers(tmp_path):
    """The same random batches through an extension that is built with ASan and UBSan."""
    if (reason := cannot("gcc", MEMORY, tmp_path)) is not None:
        pytest.skip(reason)
    made_here = tmp_path / "_direct.abi3.so"
    include = {f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")}
    include |= {f"-I{ROOT / 'csrc'}", f"-I{np.get_include()}"}
    sources = [str(path) for path in sorted((ROOT / "csrc" / "python").glob("*.c"))]
    command = ["gcc", *FLAGS, f"-fsanitize={MEMORY}", *include, "-shared", "-fPIC", *sources, "-o", str(made_here)]
    subprocess.run(command, check=True)
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        "LD_PRELOAD": library.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
        "CTCBIND_TEST_SEED": str(SEED),
        "PATH": "/usr/bin:/bin",
    }
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(made_here), str(ROOT / "tests")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=600, check=False, cwd=tmp_path
    )  # there is no ctcbind but the installed one
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr[-3000:]
