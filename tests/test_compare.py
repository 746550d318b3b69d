"""`compare`: what it measures, and what it says of it."""

import json
import math
import re
import sys
import tracemalloc
from dataclasses import replace
from importlib import import_module, metadata
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from batches import SEED
from cudnn_lab import scores

import ctcbind
from ctcbind import peers
from ctcbind.__main__ import main
from ctcbind.arrays import view_logits
from ctcbind.compare import Comparison, compare
from ctcbind.compare_text import render, summary
from ctcbind.engines import NAMES, get
from ctcbind.engines import native as native_module
from ctcbind.engines.reference import ReferenceSession
from ctcbind.problems import default_problems
from ctcbind.tolerance import beyond, difference, nearest, tolerances

FORUM = {"logits": np.zeros((100, 5, 10), np.float32), "targets": [[1, 2, 3, 4]] * 5}

HERE = ["native", "reference"]  # on every machine


@pytest.fixture
def wrong_native(monkeypatch):
    """The native engine, its gradient off by a thousandth: a bug that no eye would see."""
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        if grad is not None:
            grad *= 1.001
        return losses, grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)


# what it measures


def test_forum_example_on_every_engine_of_this_machine():
    result = compare(**FORUM, name="forum")
    assert [row.engine for row in result.rows] == list(NAMES)
    assert result.agree
    assert {"native", "reference"} <= {row.engine for row in result.ran}
    for row in result.ran:
        assert row.losses == pytest.approx([203.98393049135646] * 5, rel=1e-5)
        assert row.runs >= 1
        assert row.milliseconds > 0
    for row in result.rows:
        if row not in result.ran:
            assert row.status in ("absent", "refused")
            assert row.reason
    reference = result.rows[-1]
    assert max(reference.loss_tolerance, reference.grad_tolerance) < 1e-11, "it stores float64, whatever the logits are"


def test_default_problems_hold_what_their_titles_say():
    (_, forum), (_, ragged) = default_problems()
    assert forum["logits"].shape == (100, 5, 10)
    result = compare(**ragged, engines=HERE, repeats=1)
    assert result.agree
    assert sum(loss == math.inf for loss in result.reference_losses) == 1
    assert [] in ragged["targets"]
    assert max(ragged["input_lengths"]) == len(ragged["logits"])
    assert min(ragged["input_lengths"]) < len(ragged["logits"])
    assert any(a == b for row in ragged["targets"] for a, b in pairwise(row))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_every_dtype_and_layout(dtype, layout):
    logits = np.random.default_rng(3).normal(size=(30, 3, 7)).astype(dtype)
    logits = logits if layout == "TNC" else np.ascontiguousarray(logits.transpose(1, 0, 2))
    result = compare(logits, [[1, 2], [3, 3], []], layout=layout, blank=-1, repeats=1, name=dtype)
    assert result.agree, render([result])
    assert (result.T, result.N, result.C, result.dtype) == (30, 3, 7, dtype)


@pytest.mark.parametrize("scale", [1e13, 1e15, 1e17, 1e30, 1e190, 1e307])
def test_logits_that_are_counted_in_steps_stay_within_tolerance(scale):
    for seed in range(40):
        logits = np.random.default_rng([SEED, seed]).normal(size=(6, 1, 3)) * scale
        row = compare(logits, [[1, 2]], engines=["native"], repeats=1).rows[0]
        assert row.loss_diff <= row.loss_tolerance < 1e-12 * scale


def test_long_input_stays_within_tolerance():
    random = np.random.default_rng(11)
    logits = random.normal(size=(1500, 2, 12)).astype(np.float32)
    targets = [random.integers(1, 12, size=length).tolist() for length in (200, 240)]
    result = compare(logits, targets, repeats=1)
    assert result.agree, render([result])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("T", [1, 2, 3, 5, 8])
def test_few_frames_and_logits_far_apart_stay_within_tolerance(T, dtype):
    random = np.random.default_rng([SEED, T])
    for scale in (3, 10, 20):
        logits = (scale * random.normal(size=(T, 60, 6))).astype(dtype)
        targets = [random.integers(1, 6, size=size).tolist() for size in random.integers(1, T + 1, size=60)]
        result = compare(logits, targets, engines=["native", "warpctc"], repeats=1)
        assert result.agree, render([result])


@pytest.mark.parametrize(
    ("experiment", "variant", "shape", "labels"),
    [
        ("E8", {"algo": 0, "L": 255}, (275, 2, 8), [[1 + i % 7 for i in range(255)], [1, 2]]),
        (
            "E15",
            {"api": "host", "case": "T=10000, L=255"},
            (10000, 2, 30),
            [[1 + (i + n) % 29 for i in range(255)] for n in (0, 1)],
        ),
    ],
)
def test_what_cudnn_was_seen_to_be_off_by_is_within_its_tolerance(experiment, variant, shape, labels):
    """By the record of docs/gpu; the batches are those of tests/gpu/experiments_limits.py."""
    record = Path(__file__).parents[1] / "docs/gpu/2026-11-27-nvidia-h200/experiments.jsonl"
    every = map(json.loads, record.read_text(encoding="utf-8").splitlines())
    (told,) = [each for each in every if each["experiment"] == experiment]
    (seen,) = [each["observed"] for each in told["observed"] if each["variant"] == variant]
    logits = scores(*shape)
    losses = ctcbind.ctc_loss(logits.astype(np.float64), labels)
    loss, grad = tolerances(ctcbind.engines()["cudnn"], view_logits(logits, "TNC"), losses)
    assert 0 < seen["loss_off"] <= loss[0] < 100 * seen["loss_off"]
    assert 0 < seen["grad_off"] <= grad[0] < 100 * seen["grad_off"]


def test_the_native_engine_is_held_to_its_promise_on_long_inputs(monkeypatch):
    """Float32 log space would explain errors of 0.04 here."""
    random = np.random.default_rng([SEED, 12])
    logits = random.normal(size=(1000, 1, 12)).astype(np.float32)
    labels = [random.integers(1, 12, size=100).tolist()]
    assert compare(logits, labels, engines=["native"], repeats=1).agree
    right = native_module.NativeSession.run

    def slightly_wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        grad[500, 0, 3] += 1e-5
        return losses, grad

    with monkeypatch.context() as patch:
        patch.setattr(native_module.NativeSession, "run", slightly_wrong)
        (row,) = (row for row in compare(logits, labels, engines=["native"], repeats=1).rows if row.engine == "native")
    assert row.status == "differs"
    off = re.match(r"the gradient of sample 0 by (\S+) \(allowed 2\.1e-06\)", row.reason)
    assert float(off[1]) == pytest.approx(1e-5, abs=2.1e-6)


def test_nan_and_infinite_losses_agree_with_themselves():
    logits = np.zeros((4, 3, 3), np.float32)
    logits[1, 0, 1] = np.nan
    result = compare(logits, [[1], [1, 1, 1], [2]], engines=HERE, repeats=1)
    assert result.agree
    assert math.isnan(result.rows[0].losses[0])
    assert result.rows[0].losses[1] == math.inf
    assert result.rows[0].loss_diff < 1e-6
    told = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert told["rows"][0]["losses"][:2] == ["nan", "inf"]


@pytest.mark.parametrize("settings", ["warn", "raise"])
def test_numpy_has_nothing_to_say_of_losses_near_the_largest_number(settings):
    logits = np.zeros((6, 3, 4))
    logits[2, 1, 2] = np.finfo(np.float64).max
    with np.errstate(all=settings):
        result = compare(logits, [[1, 2], [3, 3], []], engines=HERE, repeats=1)
    assert result.agree
    assert result.reference_losses[1] > 1e308


def test_a_loss_that_is_inf_well_within_float32_differs(monkeypatch):
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        losses[0] = np.inf
        return losses, grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)
    assert not compare(**FORUM, engines=HERE, repeats=1).agree


def test_a_thousandth_in_the_gradient_is_seen(wrong_native):
    result = compare(**FORUM, engines=HERE, repeats=1)
    assert not result.agree
    row = result.rows[0]
    assert row.status == "differs"
    assert row.grad_diff == pytest.approx(1e-3 * 0.8231, rel=0.01)
    assert row.grad_diff > row.grad_tolerance
    assert "differs from the reference beyond tolerance" in render([result])


def test_the_sample_that_differs_is_named_and_a_loss_that_agrees_is_not(monkeypatch):
    """The largest difference and the tolerance beside it may be of two samples: what is said must be of one."""
    right = native_module.NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        if grad is not None:
            grad[:, 1] += 1e-3
            grad[:, 2] += 8e-4
        losses[0] += 0.1
        losses[3] += 1e-4
        return losses, grad

    monkeypatch.setattr(native_module.NativeSession, "run", wrong)
    large = {**FORUM, "logits": FORUM["logits"].copy()}
    large["logits"][:, 0, 9] = 3000  # the loss of sample 0 is so large that a tenth is rounding
    result = compare(**large, engines=HERE, repeats=1)
    row = result.rows[0]
    assert row.status == "differs"
    assert row.loss_diff > row.loss_tolerance
    assert row.reason.startswith("the gradient of sample 1 by 1.0e-03 (allowed ")
    assert row.reason.endswith("), and 1 other sample")
    assert f"beyond tolerance on batch: {row.reason}" in " ".join(render([result]).split())


def test_cudnns_gradient_is_held_to_what_pytorchs_own_tests_hold_it_to():
    """Also in a few frames, of which log space alone would allow less."""
    view, losses = view_logits(np.zeros((4, 1, 3), np.float32), "TNC"), np.array([1.0])
    allowed = {name: tolerances(ctcbind.engines()[name], view, losses)[1].item() for name in ("cudnn", "warpctc")}
    assert 1e-4 <= allowed["cudnn"] < 1.01e-4
    assert allowed["warpctc"] < 1e-5


def test_the_sample_furthest_beyond_its_own_limit_is_named():
    """Not the one that is off by the most, of which more is allowed."""
    diffs, limits = np.array([2.0, 1.0, 0.5]), np.array([1.5, 0.1, 1.0])
    assert beyond("loss", diffs, limits) == "the loss of sample 1 by 1.0e+00 (allowed 1.0e-01), and 1 other sample"
    assert beyond("loss", diffs[2:], limits[2:]) is None
    assert nearest(diffs, limits) == 0.1
    inf, nan = np.inf, np.nan
    losses, others = np.array([inf, -inf, nan, inf, 1.0, nan]), np.array([inf, inf, nan, 1.0, nan, inf])
    assert difference(losses, others).tolist() == [0, inf, 0, inf, inf, inf]


def test_absent_engine_says_why_and_what_brings_it(monkeypatch):
    def absent():
        raise ctcbind.EngineUnavailable("no libwarpctc.so:\n  - wheels: none\nGet one with: pip install something")

    monkeypatch.setattr(get("warpctc"), "library", absent)
    result = compare(**FORUM, engines=["warpctc", "reference"], repeats=1)
    row = result.rows[0]
    assert (row.status, row.losses, row.command) == ("absent", None, "pip install --no-deps paddlepaddle")
    assert result.agree
    text = render([result])
    assert "warpctc is absent: no libwarpctc.so; pip install --no-deps paddlepaddle\n" in text
    assert "wheels: none" not in text, "which doctor says"
    assert text.endswith("ctcbind doctor says where each was looked for.")
    assert "doctor" not in render([compare(**FORUM, engines=HERE, repeats=1)])


@pytest.mark.parametrize("cuda", [12, 13])
def test_the_extra_is_that_of_the_cudnn_that_is_installed(monkeypatch, cuda):
    """As PyTorch's own dependencies bring one, on a machine without CuPy."""
    known = metadata.distribution

    def distribution(name):
        if not name.startswith("nvidia-cudnn-cu"):
            return known(name)
        if name != f"nvidia-cudnn-cu{cuda}":
            raise metadata.PackageNotFoundError(name)
        return known("numpy")

    monkeypatch.setitem(sys.modules, "cupy", None)
    for there in (True, False):
        monkeypatch.setattr(metadata, "distribution", distribution)
        if not there:
            monkeypatch.setattr(metadata, "distribution", lambda name: distribution(name.replace("-cu1", "-cu9")))
        (row,) = compare(**FORUM, engines=["cuda"], repeats=1).rows
        wanted = f"pip install 'ctcbind[cuda{cuda if there else 12}]'"
        assert row.command == wanted
        assert ("cuda12" in row.reason, "cuda13" in row.reason) == (cuda == 12 or not there, cuda == 13 or not there)
        told = render([Comparison("one", 1, 1, 2, "float32", (0.0,), (row,))]).splitlines()
        assert [line for line in told if " is absent" in line] == [
            f"cuda is absent: CuPy, which holds its arrays and compiles its kernels, is not installed: {wanted}"
        ]


def test_no_command_is_offered_where_none_helps(monkeypatch):
    def absent():
        raise ctcbind.EngineUnavailable("no CUDA device")

    monkeypatch.setattr(get("cudnn"), "library", absent)
    row = compare(**FORUM, engines=["cudnn"], repeats=1).rows[0]
    assert (row.status, row.reason, row.command) == ("absent", "no CUDA device", None)


def test_an_engine_that_fails_when_it_is_run_again_is_a_row_that_says_so(monkeypatch):
    run, runs = native_module.NativeSession.run, []

    def run_twice(self, batch, **options):
        runs.append(batch)
        if len(runs) > 2:
            raise ctcbind.NativeMemoryError("ctcbind_loss", 1, "CTCBIND_NO_MEMORY", "no memory any more")
        return run(self, batch, **options)

    monkeypatch.setattr(native_module.NativeSession, "run", run_twice)
    monkeypatch.setattr(native_module.NativeSession, "direct", lambda *_, **__: (lambda *_: None, lambda *_: None))
    result = compare(np.zeros((4, 2, 3), np.float32), [[1], [2]], engines=["native", "reference"])
    native, reference = result.rows
    assert (native.status, native.runs, reference.status, reference.runs) == ("failed", 1, "agrees", 5)
    assert "no memory any more" in native.reason
    assert len(runs) == 3, "the first, one that was timed, and the one that failed"
    assert native.losses == pytest.approx(reference.losses)
    assert not result.agree


def test_refusing_and_failing_engines_are_rows(monkeypatch):
    monkeypatch.setattr(get("native"), "refuses", lambda batch: "it is Monday")
    result = compare(**FORUM, engines=["native"], repeats=1)
    assert (result.rows[0].status, result.agree) == ("refused", True)
    assert "it is Monday" in result.rows[0].reason
    monkeypatch.undo()

    def broken(self, batch, **options):
        raise ctcbind.NativeError("ctcbind_loss", 1, "CTCBIND_NO_MEMORY", "the workspace could not be allocated")

    monkeypatch.setattr(native_module.NativeSession, "run", broken)
    result = compare(**FORUM, engines=["native"], repeats=1)
    assert (result.rows[0].status, result.agree) == ("failed", False)
    assert result.rows[0].reason.startswith("NativeError: ")
    assert "CTCBIND_NO_MEMORY" in render([result])


def test_a_slow_reference_runs_once(monkeypatch):
    calls = []
    run = ReferenceSession.run
    monkeypatch.setattr(ReferenceSession, "run", lambda self, *a, **k: calls.append(1) or run(self, *a, **k))
    assert (compare(**FORUM).rows[-1].runs, len(calls)) == (5, 6)
    calls.clear()
    monkeypatch.setattr(import_module("ctcbind.compare"), "SECONDS", 0.0)
    row = compare(**FORUM).rows[-1]
    assert (row.runs, row.status, len(calls)) == (1, "agrees", 1)
    assert row.milliseconds > 0


def test_gradients_are_compared_some_samples_at_a_time():
    """Or each engine's would be there in float64 several times."""
    x = np.zeros((40, 64, 2000), np.float32)
    tracemalloc.start()
    assert compare(x, [[1, 2]] * 64, engines=["native"]).agree
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 4 * x.nbytes < most < 8 * x.nbytes  # float64 logits and gradient, and those of the engine


def test_wrong_input_raises_as_it_does_everywhere():
    with pytest.raises(ctcbind.InvalidInput, match="there are 10 classes"):
        compare(np.zeros((4, 1, 10)), [[10]])
    with pytest.raises(ctcbind.InvalidInput, match="layout"):
        compare(np.zeros((4, 1, 10)), [[1]], layout="CTN")
    with pytest.raises(ctcbind.InvalidInput, match=r"engines is 'native'; it must be a list of names: \['native'\]"):
        compare(np.zeros((2, 1, 2)), [[1]], engines="native")
    with pytest.raises(ctcbind.InvalidInput, match=r"engines\[0\] is 'gpu'"):
        compare(np.zeros((4, 1, 10)), [[1]], engines=["gpu"])
    with pytest.raises(ctcbind.InvalidInput, match=r"engines is 3; it must be a list of names$"):
        compare(np.zeros((4, 1, 10)), [[1]], engines=3)
    with pytest.raises(ctcbind.InvalidInput, match=r"engines is array.*; it must be a list of names"):
        compare(np.zeros((4, 1, 10)), [[1]], engines=np.array("native"))
    with pytest.raises(ctcbind.InvalidInput, match="engines names none; there are native, "):
        compare(np.zeros((4, 1, 10)), [[1]], engines=[])
    for repeats in (-1, 2.0, "5", True):
        with pytest.raises(ctcbind.InvalidInput, match="repeats is "):
            compare(np.zeros((4, 1, 10)), [[1]], engines=HERE, repeats=repeats)


def test_a_tensor_that_requires_grad_is_read():
    torch = pytest.importorskip("torch")
    logits = torch.zeros(5, 1, 3, requires_grad=True)
    assert compare(logits, torch.tensor([[1]]), engines=HERE, repeats=1).agree


def test_the_callers_logits_are_not_touched():
    logits = np.zeros((5, 1, 3), np.float32)
    logits.flags.writeable = False
    assert compare(logits, [[1]], engines=HERE, repeats=1).agree


# what it prints


def test_table_is_aligned_and_tells_takes_and_gradient():
    result = compare(**FORUM, engines=HERE, repeats=1, name="the title")
    text = render([result])
    assert str(result) == text
    lines = text.splitlines()
    assert lines[0] == "the title"
    assert lines[1] == "T=100, N=5, C=10, float32"
    head = next(line for line in lines if line.startswith("engine"))
    row = next(line for line in lines if line.startswith("native"))
    for title, value in (("its call takes", "activations"), ("loss  ", "203.984 (all 5)"), ("verdict", "agrees")):
        assert row.index(value) == head.index(title)
    assert "pre-softmax activations" in row


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_no_line_is_wider_than_the_terminal(width):
    result = compare(**FORUM, engines=HERE, repeats=1, name="a title of several words, and then some more of them")
    assert max(map(len, render([result], width).splitlines())) <= max(width, 40)
    assert "203.984 (all 5)" in render([result], max(width, 60))


def test_command_exits_1_when_engines_disagree(wrong_native, capsys):
    assert main(["compare", "--engines", "native"]) == 1
    assert "DISAGREEMENT with the float64 reference beyond tolerance: native." in capsys.readouterr().out
    assert main(["compare", "--engines", "native", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["agree"] is False


# the picture


def test_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    assert main(["compare", "--engines", "native,reference", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().err


def test_every_engine_has_a_style_of_its_own():
    from ctcbind.plot import STYLE

    assert set(STYLE) == {*NAMES, *peers.NAMES}
    for of_all in zip(*STYLE.values()):
        assert len(set(of_all)) == len(STYLE)


def test_plot_of_an_engine_on_the_host_and_on_a_device(monkeypatch, tmp_path):
    """The device's marks are open, those of an engine that computes there alone are not."""
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    from ctcbind.plot import STYLE, draw

    result = compare(**FORUM, engines=["native"], repeats=1)
    places = [("warpctc", "cpu"), ("warpctc", "cuda:0 A GPU"), ("cuda", "cuda:0 A GPU")]
    rows = tuple(replace(result.rows[0], engine=engine, device=device) for engine, device in places)
    drawn = []
    plot = Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda *each, **options: drawn.append(options) or plot(*each, **options))
    draw([replace(result, rows=rows)], tmp_path / "out.svg")
    for panel in (drawn[:3], drawn[3:]):
        assert [each["label"] for each in panel] == ["warpctc", "warpctc on cuda:0", "cuda"]
        assert [each["markerfacecolor"] for each in panel] == [STYLE["warpctc"][0], "none", STYLE["cuda"][0]]


def test_plot_of_what_a_log_scale_cannot_hold(tmp_path):
    pytest.importorskip("matplotlib")
    from ctcbind.plot import draw

    logits = np.zeros((4, 3, 3), np.float32)
    logits[0, 0, 0] = np.nan
    odd = compare(logits, [[1], [1, 1, 1], [2]], engines=["native"], repeats=1)
    nothing = Comparison("nothing ran", 1, 1, 2, "float32", (0.0,), ())
    draw([odd, nothing], tmp_path / "out.svg")
    assert "inf" in (tmp_path / "out.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "said"),
    [("out.bmp", "must end in"), ("out", "must end in .png"), ("no/out.png", "no folder")],
)
def test_plot_paths_are_checked_before_the_work(name, said, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["compare", "--plot", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_plot_without_matplotlib_names_the_extra(monkeypatch, tmp_path, capsys):
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["compare", "--plot", str(tmp_path / "out.png")]) == 2
    assert "pip install 'ctcbind[plot]'" in capsys.readouterr().err


def test_coarse_tolerance_is_said():
    result = compare(**FORUM, engines=["native"], repeats=1, name="a long batch")
    coarse = replace(result, rows=(replace(result.rows[0], grad_tolerance=0.3),))
    said = " ".join(render([coarse]).split())
    assert "over 100 time steps and 204 nats rounding alone explains gradient differences up to 0.3," in said
    coarse = replace(result, rows=(replace(result.rows[0], grad_tolerance=1e24),))
    assert "rounding alone explains gradient differences of any size," in " ".join(render([coarse]).split())
    lost = replace(coarse, reference_losses=(np.inf,) * 5)
    assert "over 100 time steps and 0 nats rounding" in " ".join(render([lost]).split())
    assert "rounding alone" not in render([result])
    both = compare(**FORUM, engines=HERE, repeats=1, name="a long batch")
    coarse = replace(both, rows=tuple(replace(row, grad_tolerance=0.3) for row in both.rows))
    assert " ".join(render([coarse]).split()).count("native, reference on a long batch: over 100 time steps") == 1


@pytest.mark.gpu
def test_logits_on_a_device_go_to_every_engine():
    cupy = pytest.importorskip("cupy")
    result = compare(cupy.asarray(FORUM["logits"]), FORUM["targets"], repeats=1)
    assert result.agree
    assert {"native", "cudnn"} <= {row.engine for row in result.ran}
    assert next(row for row in result.ran if row.engine == "cudnn").device.startswith("cuda:")


def test_summary_is_json():
    json.dumps(summary([compare(**FORUM, engines=["native"], repeats=1)]), allow_nan=False)


def test_the_engines_are_compared_on_the_topology_that_is_asked_for():
    x = np.random.default_rng([SEED, 79]).normal(size=(7, 2, 4))
    found = {}
    for topology in ("ctc", "simple"):
        rows = compare(x, [[1, 1, 2], [3, 3]], topology=topology, engines=["native", "reference"], repeats=0).rows
        right = ctcbind.ctc_loss(x, [[1, 1, 2], [3, 3]], topology=topology, engine="reference")
        for row in rows:
            assert row.status == "agrees", row
            np.testing.assert_allclose(row.losses, right, rtol=1e-9)
        found[topology] = right
    assert not np.allclose(found["ctc"], found["simple"])
