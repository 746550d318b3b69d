"""The site's pages: their examples run, the reference holds every public name, and links lead somewhere.

That it can be built without a warning is a stage of .ci/run, where Sphinx is installed.
"""

from __future__ import annotations

import doctest
import importlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import ctcbind

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "gpu" not in page.relative_to(DOCS).parts[:-2])
sys.path[:0] = [str(ROOT / "tools"), str(DOCS / "_extensions")]

import readme_table  # noqa: E402
import site_docstrings  # noqa: E402
import site_pages  # noqa: E402


@pytest.mark.parametrize("page", ["index.md", *(f"guide/{path.name}" for path in (DOCS / "guide").glob("*.md"))])
def test_examples_run(page):
    failed, tried = doctest.testfile(str(DOCS / page), module_relative=False, encoding="utf-8")
    assert tried >= 4
    assert failed == 0


def test_the_reference_has_every_public_name_once():
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    told = Counter(re.findall(r"\.\. auto(?:function|class|exception):: (\w+)", text))
    assert told == Counter(name for name in ctcbind.__all__ if name != "__version__")


def test_the_reference_has_every_binding():
    text = (DOCS / "reference" / "bindings.md").read_text(encoding="utf-8")
    told = set(re.findall(r"\.\. automodule:: ctcbind\.bindings\.(\w+)", text))
    listed = {name for module in told for name in importlib.import_module(f"ctcbind.bindings.{module}").__all__}
    for path in (Path(ctcbind.__file__).parent / "bindings").glob("*.py"):
        name = path.stem
        if name.startswith("_") or name in told:
            continue
        within = set(importlib.import_module(f"ctcbind.bindings.{name}").__all__)
        # what a part of another binding offers is offered there, or is the binding's own tool
        assert within & listed or name in {"address", "cudnn_arguments", "warpctc_arguments"}, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_and_taken_in_files_exist(page):
    text = "".join(re.split(r"(?ms)^ *```.*?^ *``` *$", page.read_text(encoding="utf-8")))
    for target in re.findall(r"\]\((?!\w+:|#)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target
        if target.endswith(".md"):  # in the checkout a page that takes in another file is nothing but a mark
            assert not (page.parent / target).read_text(encoding="utf-8").startswith("<!-- page"), target
    for kind, value in site_pages._MARK.findall(text):
        if kind == "page":
            assert (page.parent / value).is_file(), value
        if kind == "contracts" and value:
            assert readme_table.markdown([row.strip() for row in value.split(",")]).count("\n") > 1


def test_the_page_of_the_native_engine_has_every_file():
    """A header may stand with the file that it belongs to, and `units.inc.h` as `units`."""
    told = set(re.findall(r"`([\w.*]+)`", (ROOT / "csrc" / "README.md").read_text(encoding="utf-8")))
    files = [path.name for path in (ROOT / "csrc").glob("*.[ch]")]
    assert len(files) > 50
    for name in files:
        names = {name, name.split(".")[0], re.sub(r"\.h$", ".c", name), re.sub(r"^kernel_\w+", "kernel_*", name)}
        assert names & told, name


def test_links_become_those_of_the_site():
    page = DOCS / "guide" / "beyond.md"
    for written, shown in (
        ("[a](../../CHANGELOG.md)", "[a](../about/changelog.md)"),
        ("[a](../../examples/reader)", "[a](../reader.md)"),
        ("[a](../../examples/01_first_loss.py)", "[a](../examples.md#01-first-loss)"),
        ("[a](../../csrc)", "[a](../about/native.md)"),
        ("[a](../../tools)", "a"),
        ("[a](../asymmetry.md#x)", "[a](../asymmetry.md#x)"),
        ("![a](../apple.png)", "![a](../apple.png)"),
        ("[a](https://example.org/b)", "[a](https://example.org/b)"),
    ):
        assert site_pages.relinked(written, page.parent, page) == shown
    code = "```\n[a](../../CHANGELOG.md)\n```\n"
    assert site_pages.relinked(code, page.parent, page) == code
    reader = ROOT / "examples" / "reader"
    assert site_pages.relinked("[a](words.png)", reader, DOCS / "reader.md") == "[a](../examples/reader/words.png)"


def test_docstrings_keep_what_they_say():
    assert site_docstrings.prose("`a_`s and 2**31 of T_N") == "``a_``\\ s and 2\\*\\*31 of T\\_N"
    assert site_docstrings.prose("as `ctc_loss`") == "as :py:obj:`~ctcbind.ctc_loss`"
    lines = site_docstrings.rst(["One.", "", "| a | b |", "|---|---|", "| `x` | y |", "", ">>> 1 * 1", "1"])
    assert [line.strip() for line in lines if line.strip()] == [
        "One.",
        ".. list-table::",
        ":header-rows: 1",
        ":widths: auto",
        "* - a",
        "- b",
        "* - ``x``",
        "- y",
        ">>> 1 * 1",
        "1",
    ]
