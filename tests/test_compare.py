"""`ctcbind compare`: what it measures, what it says, and how it fails."""

import io
import json
import math
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from itertools import pairwise

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind.__main__ import main
from ctcbind.compare import Comparison, compare
from ctcbind.compare_text import render, summary
from ctcbind.engines import NAMES, get
from ctcbind.engines import native as native_module
from ctcbind.engines.reference import ReferenceSession
from ctcbind.problems import default_problems, load

FORUM = {"logits": np.zeros((100, 5, 10), np.float32), "targets": [[1, 2, 3, 4]] * 5}
HERE = ["native", "reference"]  # on every machine


def run(*arguments, **environment):
    """The command as a process, its output as bytes; away from the source tree, so that the installed one runs."""
    environment = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-m", "ctcbind", *map(str, arguments)],
        capture_output=True,
        cwd=environment.pop("cwd", os.path.dirname(sys.executable)),
        env=environment,
        timeout=120,
    )


@pytest.fixture
def batch_file(tmp_path):
    def write(**arrays):
        path = tmp_path / "batch.npz"
        np.savez(path, **arrays)
        return path

    return write


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


@pytest.mark.parametrize("scale", [1e13, 1e15, 1e17, 1e30, 1e190])
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


def test_a_batch_without_a_finite_loss_is_not_praised(capsys, batch_file):
    x = np.zeros((4, 2, 5), np.float32)
    path = batch_file(logits=x * np.nan, targets=[[1], [2]])
    assert main(["compare", str(path), "--engines", "native,reference"]) == 0
    assert capsys.readouterr().out.endswith("\nAll agree that no loss is finite; ctcbind diagnose may say why.\n")
    path = batch_file(logits=x, targets=[[1, 1, 1], [2, -1, -1]])
    assert main(["compare", str(path), "--engines", "native,reference"]) == 0
    said = capsys.readouterr().out
    assert " 4.135, 1 inf " in said, "one finite loss is no range"
    assert "Agreement" in said


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


def test_losses_past_the_range_of_float32_are_told_as_that(capsys, batch_file):
    """The loss is finite in float64, and inf in float32: nobody is wrong."""
    logits = np.full((5, 3, 4), -2e38, np.float32)
    logits[:, :, 0] = 2e38
    logits[:, 2] = 0
    targets = [[1, 2], [3, 1], [1, 1]]
    result = compare(logits, targets, engines=HERE, repeats=1, name="huge")
    assert result.agree
    assert math.isfinite(result.reference_losses[0])
    assert (result.rows[0].status, result.rows[0].losses[0], result.rows[0].loss_diff < 1e-5) == (
        "agrees", math.inf, True,
    )  # fmt: skip
    assert result.rows[0].reason.startswith("2 losses are past the largest number of float32, 3.4e+38, and so inf here")
    assert "native agrees on huge: 2 losses are past" in render([result])
    json.dumps(result.to_dict(), allow_nan=False)
    padded = np.array(targets)
    assert main(["compare", str(batch_file(logits=logits, targets=padded)), "--engines", "native,reference"]) == 0
    assert "DISAGREE" not in capsys.readouterr().out
    wide = compare(logits.astype(np.float64), targets, engines=HERE, repeats=1)
    assert wide.agree
    assert wide.rows[0].reason is None


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
    assert "CTCBIND_NO_MEMORY" in render([result])


def test_a_slow_reference_runs_once(monkeypatch):
    calls = []
    run = ReferenceSession.run
    monkeypatch.setattr(ReferenceSession, "run", lambda self, *a, **k: calls.append(1) or run(self, *a, **k))
    assert (compare(**FORUM).rows[-1].runs, len(calls)) == (5, 7)
    calls.clear()
    monkeypatch.setattr("ctcbind.compare.SECONDS", 0.0)
    row = compare(**FORUM).rows[-1]
    assert (row.runs, row.status, len(calls)) == (1, "agrees", 1)
    assert row.milliseconds > 0


def test_wrong_input_raises_as_it_does_everywhere():
    with pytest.raises(ctcbind.InvalidInput, match="there are 10 classes"):
        compare(np.zeros((4, 1, 10)), [[10]])
    with pytest.raises(ctcbind.InvalidInput, match="layout"):
        compare(np.zeros((4, 1, 10)), [[1]], layout="CTN")
    with pytest.raises(ctcbind.InvalidInput, match=r"engines is 'native'; it must be a list of names: \['native'\]"):
        compare(np.zeros((2, 1, 2)), [[1]], engines="native")
    with pytest.raises(ctcbind.InvalidInput, match="engines is 'gpu'"):
        compare(np.zeros((4, 1, 10)), [[1]], engines=["gpu"])


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


def test_command_prints_both_problems(capsys):
    assert main(["compare", "--engines", "native,reference"]) == 0
    out = capsys.readouterr().out
    assert "cuDNN forum example" in out
    assert "203.984 (all 5)" in out
    assert "random ragged batch" in out
    assert "1 inf" in out
    assert out.rstrip().endswith("within tolerance: native.")


def test_command_prints_json(capsys):
    assert main(["compare", "--engines", "native,reference", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agree"] is True
    assert told["ctcbind"] == ctcbind.__version__
    assert [len(each["rows"]) for each in told["comparisons"]] == [2, 2]
    row = told["comparisons"][0]["rows"][0]
    assert row["takes"] == "activations"
    assert row["losses"][0] == pytest.approx(203.984, abs=5e-4)


def test_command_exits_1_when_engines_disagree(wrong_native, capsys):
    assert main(["compare", "--engines", "native"]) == 1
    assert "DISAGREE" in capsys.readouterr().out
    assert main(["compare", "--engines", "native", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["agree"] is False


def test_command_exits_2_when_nothing_could_run(monkeypatch, capsys):
    def absent():
        raise ctcbind.EngineUnavailable("not here")

    monkeypatch.setattr(get("cudnn"), "library", absent)
    assert main(["compare", "--engines", "cudnn"]) == 2
    assert "none of the engines asked for" in capsys.readouterr().err
    assert main(["compare", "--engines", "cudnn", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["agree"] is False


@pytest.mark.parametrize("arguments", [[], ["compare", "--engines", "gpu"], ["compare", "--engines", ","], ["what"]])
def test_wrong_usage_exits_2(arguments, capsys):
    try:
        status = main(arguments)
    except SystemExit as left:
        status = left.code
    assert status == 2
    assert "ctcbind" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "doctor"])
def test_a_wrong_number_of_threads_is_no_engines_fault(command, capsys, monkeypatch):
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "0")
    assert main([command]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("ctcbind: CTCBIND_NUM_THREADS is '0'; it must be an integer")


@pytest.mark.parametrize("command", ["compare", "doctor"])
def test_a_closed_output_exits_2(command, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # what Python makes of `>&-`
    assert main([command]) == 2
    assert capsys.readouterr().err == "ctcbind: the standard output is closed\n"


def test_version(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"ctcbind {ctcbind.__version__}\n"


def test_as_a_process_with_ascii_output_and_a_narrow_terminal(tmp_path):
    result = run("compare", "--engines", "native", COLUMNS="50", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, b"")
    result.stdout.decode("ascii")
    missing = tmp_path / "übung.npz"
    result = run("compare", missing, PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert result.returncode == 2
    assert b"there is no file" in result.stderr
    assert b"\\xfcbung" in result.stderr
    assert b"Traceback" not in result.stderr


def test_stream_without_an_encoding(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["compare", "--engines", "native"]) == 0
    assert "203.984" in stream.getvalue()


@pytest.mark.skipif(os.name == "nt", reason="pipes close otherwise there")
def test_a_reader_who_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-m", "ctcbind", "compare", "--engines", "native"],
        stdout=writing,
        stderr=subprocess.PIPE,
        cwd=os.path.dirname(sys.executable),
        timeout=120,
    )
    os.close(writing)
    assert result.stderr == b""
    assert result.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_told_in_a_sentence():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "ctcbind", "compare", "--engines", "native"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=os.path.dirname(sys.executable),
            timeout=120,
        )
    assert result.returncode == 2
    assert result.stderr.startswith(b"ctcbind: ")
    assert result.stderr.count(b"\n") == 1


# the reader's own batch


def test_own_batch(batch_file, capsys):
    logits = np.random.default_rng(0).normal(size=(2, 9, 4)).astype(np.float32)
    path = batch_file(
        logits=logits,
        targets=np.array([0, 1, 2]),
        target_lengths=np.array([2, 1]),
        input_lengths=np.array([9, 5]),
        blank=np.array(-1),
        layout="NTC",
    )
    assert main(["compare", str(path), "--engines", "native,reference", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["comparisons"][0]
    right = ctcbind.ctc_loss(logits, [[0, 1], [2]], [9, 5], blank=3, layout="NTC")
    assert told["rows"][0]["losses"] == pytest.approx(right.tolist())
    assert (told["T"], told["N"]) == (9, 2)


GOOD = {"logits": np.zeros((3, 1, 4), np.float32), "targets": np.array([[1]])}


def test_a_file_for_diagnose_can_be_compared_too(batch_file, capsys):
    assert main(["compare", str(batch_file(**GOOD, history=[3.5, 3.0]))]) == 0
    assert "within tolerance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"logits": GOOD["logits"]}, "holds no 'targets' \\(it holds logits\\)"),
        ({"targets": GOOD["targets"]}, "holds no 'logits'"),
        ({**GOOD, "input_length": np.array([3])}, "did you mean 'input_lengths'"),
        ({"log_probs": np.zeros((3, 1, 2)), "targets": np.array([[1]])}, "did you mean 'logits'"),
        ({"logits": np.zeros((3, 1, 2)), "labels": np.array([[1]])}, "did you mean 'targets'"),
        ({"arr_0": np.zeros((3, 1, 2))}, "array without a name; write it with numpy.savez"),
        ({"batch/data.pkl": np.zeros(3)}, "it looks like a file of torch.save; write it with numpy.savez"),
        ({**GOOD, "epoch": np.array(7)}, "'epoch', which means nothing here; known are"),
        ({**GOOD, "targets": np.array([[1], [2, 3]], dtype=object)}, "Python objects.*pad ragged targets with -1"),
        ({**GOOD, "target_lengths": None}, "'target_lengths' in .*Python objects.*; leave it out if it is None$"),
        ({**GOOD, "blank": np.array([0, 1])}, "'blank' in .* has shape \\(2,\\)"),
        ({**GOOD, "blank": np.array(0.5)}, "blank is 0.5"),
        ({**GOOD, "layout": np.array("NCT")}, "layout is 'NCT'"),
        ({**GOOD, "targets": np.array([[7]])}, "targets\\[0\\]\\[0\\] is 7, but there are 4 classes"),
        ({**GOOD, "logits": np.zeros((3, 4))}, "2 dimensions"),
        ({**GOOD, "logits": np.zeros((3, 1, 4), "V2")}, "raw bytes \\(\\|V2\\).*astype\\(numpy.float32\\)"),
    ],
)
def test_bad_files_exit_2_with_one_sentence(arrays, said, batch_file, capsys):
    path = batch_file(**arrays)
    assert main(["compare", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    with pytest.raises(ctcbind.InvalidInput, match=said):
        compare(**load(path))


def test_a_history_of_python_objects(batch_file, capsys):
    path = batch_file(**GOOD, history=np.array([{"loss": 3.5}]))
    assert main(["diagnose", str(path)]) == 2
    assert re.search("Python objects.*save the losses alone, or numpy.array", capsys.readouterr().err)


def test_files_that_are_none(tmp_path, capsys):
    text, single, empty = tmp_path / "a.npz", tmp_path / "a.npy", tmp_path / "b.npz"
    text.write_text("no archive")
    np.save(single, np.zeros(3))
    empty.write_bytes(b"")
    for path, said in (
        (tmp_path / "none.npz", "there is no file"),
        (tmp_path / ("n" * 300), "cannot be read as a .npz file"),
        (tmp_path, "is a folder"),
        (text, "cannot be read as a .npz file: it is in another format"),
        (single, "holds one array"),
        (empty, "cannot be read as a .npz file"),
    ):
        assert main(["compare", str(path)]) == 2
        assert said in capsys.readouterr().err


def test_damaged_archive(batch_file):
    path = batch_file(**GOOD)
    data = bytearray(path.read_bytes())
    middle = data.index(b"NUMPY") + 130
    data[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(data)
    with pytest.raises(ctcbind.InvalidInput, match="cannot be read"):
        load(path)


@pytest.mark.parametrize("name", ["logits", "targets"])
@pytest.mark.parametrize("content", [b"junk", b""])
def test_an_archive_of_what_is_no_array(batch_file, capsys, name, content):
    path = batch_file(**{key: value for key, value in GOOD.items() if key != name})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", content)
    for command in ("compare", "diagnose"):
        assert main([command, str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"ctcbind: {name!r} in {path} ")


@pytest.mark.parametrize("command", ["compare", "diagnose"])
def test_a_batch_from_standard_input(batch_file, command):
    """Through a pipe, which cannot be gone back in as a file can."""
    path = batch_file(**GOOD)
    start = [sys.executable, "-m", "ctcbind", command]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": os.path.dirname(sys.executable)}
    piped = subprocess.run([*start, "-"], input=path.read_bytes(), timeout=120, **options)
    assert piped.returncode == 0, piped.stderr
    if command == "compare":
        assert b"<standard input>" in piped.stdout
    else:
        assert piped.stdout == subprocess.run([*start, str(path)], timeout=120, **options).stdout
    for given, said in ((b"", "No data left in file"), (b"no archive", "it is in another format")):
        failed = subprocess.run([*start, "-"], input=given, timeout=120, **options)
        assert (failed.returncode, failed.stdout) == (2, b"")
        assert failed.stderr.decode() == f"ctcbind: <standard input> cannot be read as a .npz file: {said}\n"


def test_standard_input_that_is_closed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["diagnose", "-"]) == 2
    assert capsys.readouterr().err == "ctcbind: the standard input is closed\n"


def test_a_file_without_a_name(capsys):
    assert main(["diagnose", ""]) == 2
    assert capsys.readouterr().err == "ctcbind: the name of the file is empty; a .npz file is needed\n"


# the picture


def test_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    assert main(["compare", "--engines", "native,reference", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    assert str(path) in capsys.readouterr().err


def test_every_engine_has_a_style_of_its_own():
    from ctcbind.plot import STYLE

    assert set(STYLE) == set(NAMES)
    for of_all in zip(*STYLE.values()):
        assert len(set(of_all)) == len(NAMES)


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
    assert "rounding alone explains gradient differences up to 0.3" in " ".join(render([coarse]).split())
    assert "rounding alone" not in render([result])


@pytest.mark.gpu
def test_logits_on_a_device_go_to_every_engine():
    cupy = pytest.importorskip("cupy")
    result = compare(cupy.asarray(FORUM["logits"]), FORUM["targets"], repeats=1)
    assert result.agree
    assert {"native", "cudnn"} <= {row.engine for row in result.ran}
    assert next(row for row in result.ran if row.engine == "cudnn").device.startswith("cuda:")


def test_summary_is_json():
    json.dumps(summary([compare(**FORUM, engines=["native"], repeats=1)]), allow_nan=False)
