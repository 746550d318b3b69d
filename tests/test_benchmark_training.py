"""benchmarks/training.py measures what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ctcbind

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "training.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)


def test_shares_of_a_step():
    done = run("--engines", "native,reference", "--steps", "2", "--batch", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [row["engine"] for row in told["rows"]] == ["native", "reference"]
    for row in told["rows"]:
        assert 0 < row["loss_ms"] < row["step_ms"]
        assert 0 < row["share"] < 1
    one, other = (row["last_loss"] for row in told["rows"])
    assert one == pytest.approx(other, rel=1e-3)


def test_bad_arguments_get_a_sentence():
    for arguments, says in {
        ("--engines", "elsewhere"): "has no engine 'elsewhere'",
        ("--steps", "0"): "at least 1",
    }.items():
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("training.py: ")
        assert says in done.stderr
    absent = [name for name, info in ctcbind.engines().items() if not info.available]
    for name in absent[:1]:
        assert f"engine '{name}' is not available" in run("--engines", name).stderr
