"""`ctcbind compare` in a terminal: its files, its options, its exit status."""

import io
import json
import math
import os
import re
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import ctcbind
from ctcbind.__main__ import main
from ctcbind.compare import compare
from ctcbind.compare_text import render
from ctcbind.engines import get
from ctcbind.problems import KEYS, KEYS_WITH_HISTORY, default_problems, load

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


@pytest.mark.parametrize(
    ("command", "names"), [("compare", KEYS), ("diagnose", ("compare", *set(KEYS_WITH_HISTORY) - set(KEYS)))]
)
def test_help_names_what_a_file_may_hold(command, names, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert set(names) <= set(re.findall(r"\w+", capsys.readouterr().out))


def test_help_says_what_exit_status_2_is_of(capsys):
    """Each option whose names must all run."""
    with pytest.raises(SystemExit):
        main(["--help"])
    of_2 = capsys.readouterr().out.rpartition("\n2 ")[2]
    assert {"--engines", "--peers"} <= set(of_2.split())


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


@pytest.mark.parametrize(
    "words", [[], ["compare", "none.npz"], ["lattice", "--text", "a", "--out", "a.png", "--seed", "-1"]]
)
def test_nothing_is_told_among_the_results_where_standard_error_is_closed(words, capsys, monkeypatch):
    if "lattice" in words:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "stderr", None)  # what Python makes of `2>&-`
    assert main(words) == 2
    assert capsys.readouterr().out == ""


def test_the_json_is_alone_where_standard_error_is_closed(tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["compare", "--engines", "native", "--json", "--plot", str(tmp_path / "out.png")]) == 0
    assert json.loads(capsys.readouterr().out)["agree"] is True


def test_without_a_command_it_says_what_there_is(capsys):
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("usage: ctcbind ")
    assert said.err.endswith("\nctcbind: say what to do: compare, diagnose, doctor or lattice\n")


@pytest.mark.parametrize(
    ("raised", "status", "said"),
    [
        (MemoryError("96 GB"), 2, "ctcbind: not enough memory: 96 GB\n"),
        (KeyboardInterrupt(), 130, ""),
        (ctcbind.EngineUnavailable("no library"), 2, "ctcbind: no library\n"),
    ],
)
def test_what_stops_it_has_an_exit_status(raised, status, said, monkeypatch, capsys):
    def stop():
        raise raised

    monkeypatch.setattr("ctcbind.doctor.examine", stop)
    assert main(["doctor"]) == status
    assert capsys.readouterr() == ("", said)


def test_names_may_stand_apart_and_twice(capsys):
    assert main(["compare", "--engines", "native, reference,,native", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["engine"] for row in told["comparisons"][0]["rows"]] == HERE


def test_one_of_several_engines_that_did_not_run_exits_2(monkeypatch, capsys):
    def absent():
        raise ctcbind.EngineUnavailable("not here")

    monkeypatch.setattr(get("cudnn"), "library", absent)
    assert main(["compare", "--engines", "native,cudnn,cudnn"]) == 2
    said = capsys.readouterr()
    assert said.out.endswith("within tolerance: native.\n"), "what ran is told all the same"
    assert said.err == "ctcbind: of what was asked for, cudnn did not run\n"


def test_the_reference_alone_agrees_with_nobody(capsys):
    assert main(["compare", "--engines", "reference"]) == 0
    assert capsys.readouterr().out.endswith("\nOnly the reference ran: there is nothing to compare it with.\n")


def test_one_problem_of_two_that_differs_exits_1(monkeypatch, capsys):
    from ctcbind.engines.native import NativeSession

    right = NativeSession.run

    def wrong(self, batch, **options):
        losses, grad = right(self, batch, **options)
        return (losses * 1.01 if batch.N == 5 else losses), grad

    monkeypatch.setattr(NativeSession, "run", wrong)
    assert main(["compare", "--engines", "native,reference"]) == 1
    assert capsys.readouterr().out.endswith("\nDISAGREEMENT with the float64 reference beyond tolerance: native.\n")


def test_an_engine_that_fails_is_named_in_the_verdict(monkeypatch, capsys):
    from ctcbind.engines.native import NativeSession

    def broken(self, batch, **options):
        raise RuntimeError("the library is broken")

    monkeypatch.setattr(NativeSession, "run", broken)
    assert main(["compare", "--engines", "native,reference"]) == 2
    said = capsys.readouterr()
    assert "\nDISAGREEMENT with the float64 reference beyond tolerance: native.\n" in said.out
    assert said.err == "ctcbind: of what was asked for, native did not run\n"


def test_without_a_topology_repeats_need_a_blank(batch_file, capsys):
    """For diagnose too, whose defaults are its own."""
    for options, status in (({}, 1), ({"topology": "simple"}, 0)):
        path = batch_file(logits=np.zeros((2, 1, 3)), targets=[[1, 1]], **options)
        assert main(["diagnose", str(path)]) == status
        assert ("2 labels for 2 frames, 1 fewer than" in capsys.readouterr().out) == (status == 1)


def test_a_batch_that_is_too_wrong_is_not_drawn(batch_file, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, picture = batch_file(logits=np.zeros((3, 4)), targets=[[1]]), tmp_path / "out.png"
    assert main(["diagnose", str(path), "--plot", str(picture)]) == 2
    said = capsys.readouterr()
    assert "2 dimensions" in said.out
    assert said.err == "ctcbind: there is nothing to draw: the batch is too wrong to be looked at\n"
    assert not picture.exists()


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


def buffered():
    """The environment in which what is printed waits for the end, as it does for most users."""
    return {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}


@pytest.mark.skipif(os.name == "nt", reason="pipes close otherwise there")
def test_a_reader_who_leaves_early_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, "-m", "ctcbind", "compare", "--engines", "native"],
        stdout=writing,
        stderr=subprocess.PIPE,
        env=buffered(),
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
            env=buffered(),
            cwd=os.path.dirname(sys.executable),
            timeout=120,
        )
    assert result.returncode == 2
    assert result.stderr.startswith(b"ctcbind: ")
    assert result.stderr.count(b"\n") == 1


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), BrokenPipeError()])
def test_a_stream_of_the_callers_that_cannot_be_written(error, monkeypatch, capsys):
    """It has no file descriptor that could be led elsewhere."""

    class Full(io.StringIO):
        def write(self, _):
            raise error

    monkeypatch.setattr(sys, "stdout", Full())
    assert main(["compare", "--engines", "native"]) == (141 if isinstance(error, BrokenPipeError) else 2)
    assert capsys.readouterr().err == ("" if isinstance(error, BrokenPipeError) else f"ctcbind: {error}\n")


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
        (
            {"log_probs": np.zeros((3, 1, 2)), "labels": np.array([[1]]), "label_lengths": np.array([1]), "lr": 0.1},
            "did you mean 'logits', and 'targets' by 'labels', 'target_lengths' by 'label_lengths'\\?$",
        ),
        ({"arr_0": np.zeros((3, 1, 2))}, "array without a name; write it with numpy.savez"),
        ({"batch/data.pkl": np.zeros(3)}, "it looks like a file of torch.save; write it with numpy.savez"),
        ({"batch/data/10": np.zeros(3)}, "it looks like a file of torch.save"),
        ({"batch/version": np.zeros(3)}, "it looks like a file of torch.save"),
        ({"batch/byteorder": np.zeros(3)}, "it looks like a file of torch.save"),
        ({"version": np.zeros(3)}, "'version', which means nothing here; known are"),
        ({**GOOD, "blank": np.zeros(0, int)}, "'blank' in .* has shape \\(0,\\); it must be one value"),
        ({**GOOD, "topology": np.array(["ctc", "simple"])}, "'topology' in .* has shape \\(2,\\)"),
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
        (text, "it is in another format; write it with numpy.savez(path, logits=..., targets=...)"),
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
    with pytest.raises(ctcbind.InvalidInput, match="cannot be read") as caught:
        load(path)
    assert (caught.value.rule, caught.value.value) == ("file", "logits")


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
    written = "it is in another format; write it with numpy.savez(path, logits=..., targets=...)"
    empty = written.replace("in another format", "empty")
    cut_off = "it is damaged or was cut off (File is not a zip file)"
    for given, said in ((b"", empty), (path.read_bytes()[:-99], cut_off), (b"no archive", written)):
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


def test_what_a_file_lacks_is_named_with_the_rest(tmp_path):
    path, known = tmp_path / "batch.npz", ("logits", "history")
    np.savez(path)
    rest = "target_lengths, input_lengths, blank, layout and topology"
    for names, said in (
        ({}, f"(it holds nothing); it must have logits and targets, and may have {rest}"),
        ({"known": known, "needed": known[:1]}, "(it holds nothing); it must have logits, and may have history"),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            load(path, **names)
        assert str(caught.value) == f"{path} holds no 'logits' {said}"
        assert (caught.value.rule, caught.value.value) == ("file", "logits")


@pytest.mark.parametrize(
    ("names", "wrong", "hint"),
    [
        (("log_probs", "targets"), "log_probs", "; did you mean 'logits'?"),
        (("logits", "Labels"), "Labels", "; did you mean 'targets'?"),
        (("logits", "targets", "labels"), "labels", f"; known are {', '.join(KEYS)}"),
        (("logits", "targets", "layout", "layouts"), "layouts", f"; known are {', '.join(KEYS)}"),
        (("logits", "targets", "arrival"), "arrival", f"; known are {', '.join(KEYS)}"),
        (
            ("arr_10",),
            "arr_10",
            ": that is an array without a name; write it with numpy.savez(path, logits=..., targets=...)",
        ),
    ],
)
def test_what_an_unknown_name_may_mean(names, wrong, hint, batch_file):
    """No name that the file holds already."""
    path = batch_file(**dict.fromkeys(names, 0))
    with pytest.raises(ctcbind.InvalidInput) as caught:
        load(path)
    assert str(caught.value) == f"{path} holds {wrong!r}, which means nothing here{hint}"
    assert (caught.value.rule, caught.value.value) == ("file", wrong)


def test_options_of_a_file_are_values_and_no_arrays(batch_file):
    given = {"blank": 2, "layout": "NTC", "topology": "simple"}
    loaded = load(batch_file(**GOOD, **given))
    assert {name: loaded[name] for name in given} == given
    assert [type(loaded[name]) for name in given] == [int, str, str]
    rows = load(batch_file(**GOOD, **{name: np.array([[value]]) for name, value in given.items()}))
    assert {name: rows[name] for name in given} == given


def test_an_archive_that_breaks_off(batch_file):
    path = batch_file(**GOOD)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ctcbind.InvalidInput, match=r"cannot be read as a \.npz file: ") as caught:
        load(path)
    assert (caught.value.rule, caught.value.value) == ("file", str(path))


def test_the_ragged_problem_is_what_its_title_says():
    (_, _), (title, ragged) = default_problems()
    assert title == "random ragged batch: repeats, an empty label, a sample without a path, padded time"
    report = ctcbind.check(**ragged)
    assert [(each.rule, each.sample) for each in report.problems] == [("infeasible", 5)]
    assert report.fits[0].repeats >= 2
    assert 0 in [fit.labels for fit in report.fits]
    assert min(fit.frames for fit in report.fits) < len(ragged["logits"])


def test_a_table_is_read_as_a_history_alone(tmp_path):
    """Its columns have names; of raw bytes nobody can say what they were."""
    path, table = tmp_path / "batch.npz", np.array([(3.5, 0.7)], [("loss", float), ("grad_norm", float)])
    logits, known = np.zeros((3, 1, 4)), ("logits", "history")
    np.savez(path, logits=logits, history=table)
    assert load(path, known=known, needed=known)["history"].dtype == table.dtype
    for name, wrong in (("logits", table), ("history", np.zeros(2, "V2"))):
        np.savez(path, **{"logits": logits, "history": table, name: wrong})
        with pytest.raises(ctcbind.InvalidInput, match=rf"^{name!r} in .* holds raw bytes") as caught:
            load(path, known=known, needed=known)
        assert (caught.value.rule, caught.value.value) == ("file", name)
