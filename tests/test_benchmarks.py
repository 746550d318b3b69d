"""The benchmark suite runs without any peer, says what it measured, and notices an engine that is wrong."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ctcbind
from ctcbind.engines.native import NativeSession

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # at the end: the installed ctcbind stays the one that is tested

from benchmarks import accuracy, cases, copyrate, cpu, exact, growth, pages, peers, results, tables, verify, worker  # noqa: E402
from benchmarks.__main__ import main  # noqa: E402

OURS = peers.OURS
SMALL = [
    cases.find("28x1x11x1"),
    cases.Case("ragged", 40, 12, 9, 5, ragged=True),
    cases.Case("sure", 60, 12, 9, 3, sure=6.0),
]


@pytest.fixture
def here():
    """Everything in this process, and nothing left of it."""
    home = worker.Here(1)
    yield worker.Here
    home.close()


def quick(tmp_path, *more):
    """`cpu --quick` in a process of its own, as a person starts it: (exit status, output, what the JSON holds)."""
    file = tmp_path / "cpu.json"
    command = [sys.executable, "-m", "benchmarks", "cpu", "--quick", "--peers", OURS, "--json", str(file), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    return done, json.loads(file.read_text()) if file.exists() else None


def wrong(monkeypatch, change):
    """Let `change(losses, grad)` spoil what the native engine returns."""
    true = NativeSession.run

    def run(self, batch, **options):
        losses, grad = true(self, batch, **options)
        change(losses, grad)
        return losses, grad

    monkeypatch.setattr(NativeSession, "run", run)


# --- the whole, as it is started ------------------------------------------------------------------------------


def test_quick_run(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "cpu.png"
    done, data = quick(tmp_path, "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "all losses and gradients are the reference's" in done.stdout
    assert "letters-4, 2 threads" in done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert data["same"] is True
    assert set(data["versions"]) == {OURS}
    names = {case.name for case in cases.QUICK}
    told = {(t["case"], t["threads"], t["with_grad"]) for t in data["timings"]}
    assert told == {(name, threads, mode) for name in names for threads in (1, 2) for mode in (True, False)}
    for timing in data["timings"]:
        for which in ("hot", "cold", "processor"):
            spread = timing[which]
            assert 0 <= spread["least"] <= spread["lower"] <= spread["median"] <= spread["upper"]
        assert timing["hot"]["least"] > 0
        assert timing["ratio"]["median"] == timing["cold_ratio"]["median"] == 1
        assert timing["roofline"] > 0
        assert timing["check"]["loss_error"] <= verify.LOSS
        assert (timing["check"]["grad_error"] is None) == (not timing["with_grad"])
    assert all(rate > 1e8 for _, _, rate in data["copy_rates"])
    # the same tables and picture from the file alone
    again = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cpu", "--from", str(tmp_path / "cpu.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert again.stdout == done.stdout


def test_accuracy_and_growth_run(here, capsys):
    assert main(["accuracy", "--quick", "--peers", OURS], here) == 0
    out = capsys.readouterr().out
    assert out.count("150, 40, 28, 4") == 4
    assert "at most" in out
    assert main(["growth", "--quick", "--mode", "gradient"], here) == 0
    out = capsys.readouterr().out
    assert "the others at T=40, L=4, C=8, N=2" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(OURS)]
    assert [row[4] for row in rows] == ["T", "L", "C", "N"]
    assert all(np.isfinite(float(row[6])) for row in rows)


@pytest.mark.parametrize("short", ["--quick", "--mode gradient"])
def test_a_table_of_less_is_not_written(here, capsys, short):
    for command in ("cpu", "growth") if "mode" in short else ("cpu", "growth", "accuracy"):
        assert main([command, *short.split(), "--write", "--peers", OURS], here) == 2
        assert "--quick" in capsys.readouterr().err


@pytest.mark.parametrize("short", [["--quick"], ["--sizes", "28x1x11x1", "28x1x11x1"], ["--mode", "loss"]])
def test_a_table_of_less_is_not_written_from_a_file_either(here, capsys, monkeypatch, tmp_path, short):
    """It once took the place of the README's."""
    monkeypatch.setattr(cases, "CASES", SMALL[:2])
    monkeypatch.setattr(cpu, "FULL", dataclasses.replace(cpu.HASTE, rounds=1))
    written = []
    monkeypatch.setattr(pages, "renew", lambda name, text: written.append(text))
    monkeypatch.setattr(cases, "find", {case.name: case for case in (*SMALL, *cases.QUICK)}.get)
    kept = str(tmp_path / "less.json")
    run = ["cpu", "--threads", "1", "--peers", OURS, "--no-memory", "--json", kept]
    assert main([*run, *short], here) == 0
    capsys.readouterr()
    assert main(["cpu", "--from", kept, "--write"], here) == 2
    assert "of all sizes and both modes" in capsys.readouterr().err
    assert not written
    assert main(run, here) == 0
    assert main(["cpu", "--from", kept, "--write"], here) == 0
    assert len(written) == 1


def test_a_size_that_is_named_twice_is_measured_once(here, capsys):
    size = "28x1x11x1"
    assert main(["cpu", "--quick", "--threads", "1", "--peers", OURS, "--sizes", size, size], here) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith(size)]) == 6  # hot, cold and processor times, of two modes


class Broken(worker.Here):
    """A process that ends, by what `error` says."""

    error: BaseException

    def run(self, function, *arguments):
        raise self.error


def test_a_picture_that_cannot_be_drawn_is_told_before_anything_is_measured(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(Broken, "error", AssertionError("measured"), raising=False)
    for name, told in (("nowhere/cpu.png", "there is no folder"), ("cpu.txt", "must end in .png")):
        assert main(["cpu", "--quick", "--plot", str(tmp_path / name)], Broken) == 2
        assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cpu", "accuracy", "growth"])
@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (worker.Ended("it ended"), 2, "it ended"),
        (MemoryError("1 GB"), 2, "1 GB"),
        (KeyboardInterrupt(), 130, "sto"),
    ],
)
def test_the_end_of_a_process_gets_a_sentence(command, error, status, said, capsys, monkeypatch):
    monkeypatch.setattr(Broken, "error", error, raising=False)
    assert main([command, "--quick", "--peers", OURS], Broken) == status
    assert capsys.readouterr().err.startswith(f"python -m benchmarks {command}: {said}")


def test_what_a_spawned_process_raises_and_how_it_ends():
    process = worker.Process(1)
    try:
        assert process.run(os.getpid) != os.getpid()
        assert process.run(os.getenv, "NPROC") == "1"
        with pytest.raises(ZeroDivisionError) as caught:
            process.run(operator.truediv, 1, 0)
        assert "in the spawned process" in str(caught.value.__cause__)
        assert "function(*arguments)" in str(caught.value.__cause__)
        assert process.run(operator.truediv, 1, 2) == 0.5
        for _ in range(2):  # it stays ended
            with pytest.raises(worker.Ended, match=r"the process that ran _exit\(3\) ended with exit code 3"):
                process.run(os._exit, 3)
    finally:
        process.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of a process group")
def test_ctrl_c_stops_cleanly():
    """As in a terminal: the processes of the peers hear it too. They were waited for without an end, now and then."""
    command = [sys.executable, "-m", "benchmarks", "cpu", "--sizes", "letters-16", "--peers", OURS, "--rounds", "1000"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        seen = process.stderr.readline()  # that it measures
        os.killpg(process.pid, signal.SIGINT)
        try:
            out, rest = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    assert seen.startswith("[1/"), seen + rest
    assert (process.returncode, out, rest) == (130, "", "python -m benchmarks cpu: stopped\n")


def test_logits_of_a_trained_network(here, capsys, tmp_path):
    kept = str(tmp_path / "sure.json")
    assert main(["cpu", "--quick", "--sure", "7.5", "--threads", "1", "--peers", OURS, "--json", kept], here) == 0
    out = capsys.readouterr().out
    assert "the right class 7.5 nats above" in out
    assert "letters-4" in out
    assert main(["cpu", "--quick", "--sure", "7.5", "--write", "--peers", OURS], here) == 2
    assert "without --sure" in capsys.readouterr().err
    assert main(["cpu", "--from", kept, "--write"], here) == 2
    assert "without --sure" in capsys.readouterr().err
    assert main(["cpu", "--quick", "--scale", "30", "--threads", "1", "--peers", OURS, "--json", kept], here) == 0
    assert "logits 30 times as large" in capsys.readouterr().out
    assert main(["cpu", "--from", kept, "--write"], here) == 2
    assert "--scale" in capsys.readouterr().err
    assert main(["cpu", "--quick", "--blank", "6", "--threads", "1", "--peers", OURS, "--json", kept], here) == 0
    assert "the blank 6 nats above" in capsys.readouterr().out
    assert main(["cpu", "--from", kept, "--write"], here) == 2
    assert "--blank" in capsys.readouterr().err
    for wrong in ("-1", "nan", "much"):
        with pytest.raises(SystemExit):
            main(["cpu", "--sure", wrong], here)
        assert f"{wrong} is not a finite number from 0 on" in capsys.readouterr().err


def test_usage(here, capsys):
    assert main(["cpu", "--sizes", "enormous"], here) == 2
    assert "there is no size 'enormous'" in capsys.readouterr().err
    assert main(["cpu", "--sizes", "10x9x5x1"], here) == 2
    assert "at least 2 L" in capsys.readouterr().err
    assert main(["cpu", "--from", __file__], here) == 2
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["cpu", "--threads", "0"], here)


def test_a_peer_asked_for_by_name_must_be_there(here, capsys, monkeypatch):
    monkeypatch.setattr(peers.Torch, "packages", ("no_such_package",))
    arguments = ["cpu", "--quick", "--threads", "1", "--mode", "loss", "--sizes", "28x1x11x1", "--peers", OURS]
    assert main([*arguments, "torch"], here) == 2
    assert 'torch: no_such_package not installed: pip install ".[benchmarks]"' in capsys.readouterr().err
    report = cpu.measure(SMALL[:1], [OURS, "torch"], [1], [False], cpu.HASTE, here)
    assert set(report.absent) == {"torch"}
    assert "absent: torch: no_such_package" in tables.render(report)


# --- the check ------------------------------------------------------------------------------------------------


def spoil_loss(losses, grad):
    losses *= 1 + 1e-5


def spoil_one_gradient(losses, grad):
    if grad is not None:
        grad[-1, 0, -1] += 1e-5


def spoil_with_nan(losses, grad):
    if grad is not None:
        grad[0, 0, 0] = np.nan


@pytest.mark.parametrize("change", [spoil_loss, spoil_one_gradient, spoil_with_nan])
def test_a_wrong_engine_fails_the_check(change, here, monkeypatch, capsys):
    arguments = ["cpu", "--quick", "--threads", "1", "--mode", "gradient", "--sizes", "28x1x11x1", "--peers", OURS]
    assert main(arguments, here) == 0
    assert "DIFFERS" not in capsys.readouterr().out
    here(1).close()
    wrong(monkeypatch, change)
    assert main(arguments, here) == 1
    out = capsys.readouterr().out
    assert "DIFFERS from the reference: ctcbind on 28x1x11x1, 1 thread" in out
    assert "all losses and gradients are the reference's" not in out


@pytest.mark.parametrize("change", [spoil_loss, spoil_one_gradient, spoil_with_nan])
def test_a_wrong_engine_fails_the_accuracy_table(change, here, monkeypatch, capsys):
    wrong(monkeypatch, change)
    assert main(["accuracy", "--quick", "--peers", OURS], here) == 1
    assert "does not keep it in 4 of 4 rows" in capsys.readouterr().out


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_peers_bounds_hold_for_plain_float32_and_for_no_other_loss(case):
    """The bounds of a peer: float32 log space passes; another blank, labels shifted, log-probabilities do not."""
    problem = cases.make(case)
    right = verify.truth(problem)
    frames = int(problem.input_lengths.max())
    losses, grad = right.losses.astype(np.float32), right.grad
    assert verify.check("torch", right, losses, grad, frames).same
    assert not verify.check("torch", right, losses, 2 * grad, frames).same
    assert not verify.check("torch", right, losses, np.roll(grad, 1, axis=2), frames).same
    assert not verify.check("torch", right, losses + 0.01 * losses, grad, frames).same
    assert not verify.check("torch", right, np.full_like(losses, np.nan), grad, frames).same


# --- its parts ------------------------------------------------------------------------------------------------


def test_every_case_has_paths_and_is_the_same_everywhere():
    for case in (*cases.QUICK, cases.find("ragged"), cases.find("ocr")):
        problem, again = cases.make(case), cases.make(case)
        assert (problem.logits == again.logits).all()
        assert (problem.labels == again.labels).all()
        assert problem.logits.shape == (case.T, case.N, case.C)
        assert problem.logits.nbytes == case.logits_bytes
        assert problem.input_lengths.max() == case.T
        assert problem.label_lengths.max() == case.L
        assert (2 * problem.label_lengths <= problem.input_lengths).all()
        assert len(problem.flat_labels) == problem.label_lengths.sum()
        assert problem.flat_labels.min() > 0
        assert (len(set(problem.input_lengths.tolist())) > 1) == case.ragged
    sizes = {(case.T, case.L, case.C, case.N) for case in cases.CASES}
    assert {(500, 60, 1024, 32), (255, 127, 32, 256), (4000, 800, 64, 4), (28, 1, 11, 1)} <= sizes
    assert {(150, 20, 5000, n) for n in (1, 64, 128)} | {(150, 40, 28, n) for n in (1, 64, 128)} <= sizes


def test_a_sure_case_is_read_without_a_fault():
    case = cases.Case("sure", 90, 20, 7, 4, ragged=True, sure=20.0)
    problem, unsure = cases.make(case), cases.make(dataclasses.replace(case, sure=0.0))
    assert (problem.labels == unsure.labels).all()
    assert ((problem.logits != unsure.logits).sum(2) == 1).all()
    larger = cases.make(dataclasses.replace(case, scale=4.0))
    np.testing.assert_array_equal(larger.logits, 4 * problem.logits)
    early = cases.make(dataclasses.replace(case, sure=0.0, blank=6.0)).logits
    np.testing.assert_array_equal(early[..., 0], unsure.logits[..., 0] + np.float32(6))
    np.testing.assert_array_equal(early[..., 1:], unsure.logits[..., 1:])
    read = ctcbind.greedy_decode(problem.logits, problem.input_lengths)
    for n, length in enumerate(problem.label_lengths):
        assert (read[n].labels == problem.labels[n, :length]).all()


def test_the_yardstick_is_the_reference_where_that_is_exact():
    rng = np.random.default_rng(5)
    for labels in ([], [1], [1, 1, 2], [3, 1, 3, 3, 2]):
        x = rng.normal(scale=3, size=(14, 5))
        loss, grad = exact.sample(x, labels)
        result = ctcbind.ctc_loss_and_grad(x[:, None], [labels], engine="reference")
        assert loss == pytest.approx(result.loss[0], rel=1e-13)
        np.testing.assert_allclose(grad, result.grad[:, 0], atol=1e-13)


def test_the_yardstick_at_the_ends():
    """By hand: a frame of its own for each label, all else far away; and minus infinity beside it."""
    x = np.array([[0.0, 1e30, 3.0], [0.0, 5.0, 1e30]])
    loss, grad = exact.sample(x, [1, 2])
    assert loss == 0
    assert not grad.any()
    x = np.array([[-np.inf, 0.0, 0.0], [-np.inf, 0.0, 0.0]])  # the blank cannot be
    loss, grad = exact.sample(x, [1])
    assert loss == pytest.approx(2 * np.log(2))
    np.testing.assert_allclose(grad, [[0, -0.5, 0.5]] * 2, atol=1e-15)
    shifted, grad_of_shifted = exact.sample(x + 1e10, [1])
    assert shifted == loss
    np.testing.assert_array_equal(grad_of_shifted, grad)


def test_the_kinds_of_logits_are_what_they_say():
    case = cases.Case("some", 30, 6, 8, 3)
    for name in accuracy.INPUTS:
        problem = accuracy.batch(case, name)
        assert problem.logits.dtype == np.float32
        assert problem.flat_labels.max() < case.C - 1, "the last class is unused"
        right = exact.answer(problem)
        assert np.isfinite(right.losses).all(), name
        assert np.isfinite(right.grad).all(), name
        assert np.abs(right.grad.sum(axis=2)).max() < 1e-12, name
    certain = exact.answer(accuracy.batch(case, "confident, right")).losses
    assert (certain < 1e-4).all()
    assert (exact.answer(accuracy.batch(case, "confident, wrong")).losses > 100).all()
    minus = accuracy.batch(case, "-inf on 1/7 of entries").logits
    assert 0.05 < np.isinf(minus).mean() < 0.25


def test_errors_are_relative_from_one_on():
    right = verify.Truth(np.array([1e-3, 100.0]), np.zeros((2, 2, 3)))
    assert verify.errors(right, np.array([2e-3, 100.0]), None) == (pytest.approx(1e-3), None, None)
    assert verify.errors(right, np.array([1e-3, 101.0]), None) == (pytest.approx(1e-2), None, None)
    grad = np.zeros((2, 2, 3))
    grad[1, 1, 2] = -0.5
    assert verify.errors(right, right.losses, grad)[1] == 0.5
    grad[0, 0, 0] = np.nan
    assert verify.errors(right, right.losses, grad)[1] == np.inf


def test_exponents_are_slopes():
    values = (2, 4, 8, 16)
    assert growth.fit(values, [3 * v**1.5 for v in values]) == pytest.approx(1.5)


def test_the_bytes_of_the_roofline():
    assert copyrate.needed(1000, True) == 3000
    assert copyrate.needed(1000, False) == 1000
    assert copyrate.measure(1 << 20, 2) > 1e8


def test_a_report_comes_back_as_it_was_written(tmp_path, here):
    report = cpu.measure(SMALL, [OURS], [1], [True, False], cpu.HASTE, here)
    report.write(tmp_path / "report.json")
    assert results.Report.read(tmp_path / "report.json") == report
    (tmp_path / "report.json").write_text('{"machine": {}}')
    with pytest.raises(ValueError, match="no report of this suite"):
        results.Report.read(tmp_path / "report.json")


def test_tables_are_aligned_and_the_readme_table_is_whole(here):
    report = cpu.measure(SMALL, [OURS], [1], [True, False], cpu.HASTE, here)
    lines = tables.render(report).splitlines()
    rules = [i for i, line in enumerate(lines) if set(line) == {"-", " "}]
    assert len(rules) == 6  # hot, cold and processor times, of two modes
    for i in rules:
        starts = [at for at, mark in enumerate(lines[i]) if mark == "-" and lines[i][at - 1 : at] in ("", " ")]
        for line in lines[i + 1 : i + 1 + len(SMALL)]:
            assert all(at == 0 or line[at - 1] == " " for at in starts), line
    rows = [line for line in tables.markdown(report).splitlines() if line.startswith("|")]
    assert len(rows) == 2 * (2 + len(SMALL))
    assert len({row.count("|") for row in rows}) == 1


def test_numbers_keep_three_digits():
    shown = {
        0: "0.00",
        0.0003146: "0.000315",
        0.0031: "0.00310",
        0.9999: "1.00",
        5.678: "5.68",
        56.78: "56.8",
        567.8: "568",
        12345.6: "12346",
    }
    assert {value: tables.number(value) for value in shown} == shown


def test_pages_are_renewed_between_their_marks(tmp_path):
    page, other = tmp_path / "README.md", tmp_path / "other.md"
    page.write_text("a\n<!-- benchmarks cpu: begin -->\nold\n<!-- benchmarks cpu: end -->\nz\n")
    other.write_text("nothing here\n")
    assert pages.renew("cpu", "| new \\1 |", [page, other, tmp_path / "missing.md"]) == [page]
    assert page.read_text() == "a\n<!-- benchmarks cpu: begin -->\n| new \\1 |\n<!-- benchmarks cpu: end -->\nz\n"
    assert other.read_text() == "nothing here\n"
    with pytest.raises(ValueError, match="no README has the lines"):
        pages.renew("growth", "", [page])


def test_the_extra_brings_the_peers():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = next(line for line in project.splitlines() if line.startswith("benchmarks = "))
    for package in {*peers.Torch.packages, *peers.Optax.packages, "matplotlib"}:
        assert f'"{package}>=' in line
    for package in ("torch", "jax"):  # bridge.py takes ctcbind.torch and ctcbind.jax, which need as new a one
        assert len(set(re.findall(rf'"{package}>=[\d.]+"', project))) == 1, package
