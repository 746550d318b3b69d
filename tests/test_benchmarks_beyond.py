"""The benchmarks of what lies beyond the loss run, and say what they lack."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.mark.parametrize(
    ("name", "tables", "peers"),
    [
        ("decoding.py", 6, ("fast-ctc-decode", "pyctcdecode", "NumPy", "PyTorch")),
        ("alignment.py", 1, ("torchaudio", "NumPy Viterbi")),
        ("lattice.py", 1, ("PyTorch",)),
        ("second_order.py", 4, ("tf_seq2seq_losses",)),
    ],
)
def test_quick_run(name, tables, peers, tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / name), "--quick"], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len([line for line in lines if re.fullmatch(r"  ctcbind +[\d.]+ ms", line)]) == tables
    for peer in peers:
        measured = [line for line in lines if re.match(rf"  {peer}.* ms +[\d.]+ times ctcbind", line)]
        assert measured or any(line.startswith(f"not here: {peer}: ") for line in lines), peer


@pytest.mark.parametrize("name", ["decoding.py", "alignment.py", "lattice.py", "second_order.py"])
def test_no_rounds_are_refused(name, tmp_path):
    """There was a median of nothing, after the first size was measured."""
    command = [sys.executable, str(FOLDER / name), "--quick", "--rounds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 2
    assert "argument --rounds: 0 is no positive integer" in done.stderr
    assert not done.stdout
