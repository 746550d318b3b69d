"""What is written about examples/reader: it runs, and is what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import ctcbind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader import command
from reader.mistakes import MISTAKES
from reader_lab import EXAMPLES

PAGES = {name: EXAMPLES.parent / name for name in ("docs/asymmetry.md", "examples/reader/README.md")}


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_what_they_show(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        path = PAGES[page].parent / target
        assert path.exists(), target
        if path.suffix == ".png":
            assert path.stat().st_size < 100_000, target


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_pages_have_the_options_they_use(page):
    known = command.parser()
    text = PAGES[page].read_text(encoding="utf-8").replace("$mistake", "wrong-T")
    used = re.findall(r"examples/reader/train\.py(.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(used) >= 2
    for options in used:
        if "--help" not in options:
            known.parse_args(options.split())


def test_python_on_the_page_runs(capsys):
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES["docs/asymmetry.md"].read_text(encoding="utf-8"), re.M | re.S)
    for block in blocks:
        exec(compile(block, "asymmetry.md", "exec"), names)
    quoted = re.findall(r"print\(.*\)  # (.*)", "".join(blocks))
    assert len(blocks) == 2
    assert capsys.readouterr().out.splitlines() == quoted


def test_the_page_quotes_what_ctcbind_says():
    with pytest.raises(ctcbind.InvalidInput) as refused:
        ctcbind.ctc_loss(np.zeros((9, 1, 11)), [[3, 1, 0, 0]])
    text = " ".join(PAGES["docs/asymmetry.md"].read_text(encoding="utf-8").split())
    assert str(refused.value) in text


def test_every_mistake_is_on_the_page():
    text = PAGES["docs/asymmetry.md"].read_text(encoding="utf-8")
    assert set(re.findall(r"^\*\*([\w-]+)\*\*: ", text, re.M)) == set(MISTAKES) == set(command.LOOKS_LIKE)
