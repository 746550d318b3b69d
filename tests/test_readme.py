"""The README tells the truth: its Python runs, its commands exist, its table is that of the Contracts of today."""

import importlib.metadata
import math
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import ctcbind
from ctcbind.bindings.native_lattice import align_bytes

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "tools"))

import readme_table  # noqa: E402


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_python_blocks_run_in_turn(folder, capsys):
    names = {}
    for block in blocks("python"):
        if "import torch" not in block:  # which tests/test_torch.py runs
            exec(compile(block, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert out.startswith("native [")
    assert "targets[0][3] is 28, but there are 28 classes (0..27), the blank among them" in out
    assert names["result"].engine == "native"
    assert names["grad"].shape == names["logits"].shape
    assert (folder / "batch.npz").exists()


@pytest.mark.parametrize("page", ["README.md", "docs/guide/beyond.md"])
def test_a_sample_without_any_reading_has_an_error_rate(page):
    """As where all its logits are -inf: its list of hypotheses is empty."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (line,) = re.findall(r"^(?:>>> )?(rate = .*beams.*)$", text, re.MULTILINE)
    logits = np.zeros((4, 2, 3))
    logits[:, 0, 1] = 9
    logits[:, 1] = -np.inf
    names = {"ctcbind": ctcbind, "beams": ctcbind.beam_search(logits), "targets": [[1], [1, 2]]}
    assert names["beams"][1] == []
    exec(line, names)
    assert names["rate"] == 2 / 3


def test_first_block_is_ten_lines():
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 10
    assert any("ctc_loss_and_grad" in line for line in lines)


def test_errors_that_are_quoted_are_said():
    for block in blocks("python"):
        for quoted in re.findall(r"print\(error\)\s+# (.*)", block):
            assert quoted == "targets[0][3] is 28, but there are 28 classes (0..27), the blank among them"


def test_commands_exist(folder):
    logits = np.random.default_rng(0).normal(size=(50, 2, 28)).astype(np.float32)
    np.savez(folder / "batch.npz", logits=logits, targets=[[3, 1, 20], [8, 9, -1]])
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ctcbind")]
    assert len(commands) >= 4
    for command in commands:
        words = shlex.split(command, comments=True)
        if "--plot" in words or "lattice" in words:
            pytest.importorskip("matplotlib")
        result = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, cwd=folder, timeout=120)
        absent = [name for name in ("torch", "optax") if "--peers" in words and find_spec(name) is None]
        assert result.returncode == (2 if absent else 0), (command, result.stderr)
        assert all(name in result.stderr for name in absent)
    assert (folder / "out.png").exists()


def test_memory_of_an_hour_is_what_is_said():
    said = re.search(r"\(([\d,]+) frames, ([\d,]+) labels\) takes (\d+) MB", README.replace("\n", " "))
    T, L, megabytes = (int(each.replace(",", "")) for each in said.groups())
    assert megabytes == math.ceil(align_bytes(T, L, 32) / 1e6)


def test_first_commands_are_the_two():
    assert blocks("sh")[0].splitlines() == ["pip install . && ctcbind compare", 'pip install ".[test]" && pytest']


def test_table_is_current():
    assert readme_table.renewed(README) == README, "run: python tools/readme_table.py --write"


def test_markers_are_needed():
    with pytest.raises(ValueError, match="must have the lines"):
        readme_table.renewed("no table here")


def test_links_and_extras_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in set(re.findall(r'"\.\[(\w+)\]"', README)):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE), extra


def test_a_package_index_shows_no_link_into_the_checkout():
    """Which leads nowhere there; and no picture. All else stays, code above all."""
    try:
        shown = importlib.metadata.metadata("ctcbind").get_payload()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("ctcbind is not installed here, only importable")
    assert not re.findall(r"\]\((?!https?:)[^)]*\)", re.sub(r"(?ms)^```.*?^```$", "", shown))
    assert "docs/frameworks.md has the rest" in shown
    for language in ("python", "sh"):
        assert re.findall(rf"^```{language}\n(.*?)^```", shown, re.MULTILINE | re.DOTALL) == blocks(language)
    assert shown.count("\n|") == README.count("\n|")


def test_variables_are_read_somewhere():
    code = "".join(path.read_text(encoding="utf-8") for path in Path(ctcbind.__file__).parent.rglob("*.py"))
    for variable in set(re.findall(r"CTCBIND_[A-Z_]+", README)):
        assert variable in code, variable


def test_write_replaces_what_stands_between(tmp_path, monkeypatch):
    copy = tmp_path / "README.md"
    copy.write_text(README.replace("| takes |", "| took |"), encoding="utf-8")
    monkeypatch.setattr(readme_table, "README", copy)
    monkeypatch.setattr(sys, "argv", ["readme_table.py", "--write"])
    assert readme_table.main() == 0
    assert copy.read_text(encoding="utf-8") == readme_table.renewed(README)
    assert os.listdir(tmp_path) == ["README.md"]
