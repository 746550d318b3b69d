"""benchmarks/bridge.py measures what it says."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "bridge.py"


def run(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)


def test_times_and_ratios_of_what_is_installed():
    done = run("--size", "12x3x5x2", "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = {row["name"]: row for row in told["rows"]}
    assert all(row["ms"] > 0 for row in rows.values())
    expected = {"ctcbind.CTCLoss on NumPy"}
    for package, names in {
        "torch": {"ctcbind.torch, from logits", "ctcbind.torch, from log_softmax", "torch.nn.functional.ctc_loss"},
        "optax": {name + what for name in ("ctcbind.jax", "optax.ctc_loss") for what in ("", ", Hessian product")},
    }.items():
        if importlib.util.find_spec(package):
            expected |= names
        else:
            assert "is left out: No module named" in done.stderr
    assert set(rows) == expected
    assert {name for name, row in rows.items() if "times_ctcbind" in row} == {
        name for name in expected if ".ctc_loss" in name
    }


def test_a_wrong_gradient_stops_it(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("bridge_under_test", SCRIPT)
    bridge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bridge)
    problem = bridge.Problem("12x3x5x2", 0)
    right = problem.truth("label_mean")
    bridge.check("it", bridge.bare(problem)(), right, (0, 1, 2))
    with pytest.raises(ValueError, match="the result of it is off by"):
        bridge.check("it", right * 1.01, right, (0, 1, 2))


def test_bad_arguments_get_a_sentence():
    for arguments, says in {
        ("--size", "3x2"): "must be TxLxCxN",
        ("--rounds", "0"): "at least 1",
    }.items():
        done = run(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("bridge.py: ")
        assert says in done.stderr
