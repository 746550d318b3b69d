"""Docstrings for autodoc: written in Markdown as far as they have marks at all, handed on as reStructuredText.

What is known: `code`, doctests, tables with bars, lists; simple tables of reStructuredText pass as they are. All else
is prose, in which no character means anything: a C name may end in an underscore, and 2**31 is a number.
"""

from __future__ import annotations

import re
from typing import Any

import ctcbind

_CODE = re.compile(r"`([^`]+)`")
_SPECIAL = re.compile(r"([\\*_|`])")
_ITEM = re.compile(r"(?=^- )", re.MULTILINE)


def prose(text: str) -> str:
    """One paragraph, `code` as literals, and as links where it is one of the package's public names."""
    parts = _CODE.split(text)
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = _SPECIAL.sub(r"\\\1", part)
        elif part in ctcbind.__all__:
            parts[i] = f":py:obj:`~ctcbind.{part}`"
        else:
            parts[i] = f"``{part}``"
        if i % 2 == 0 and i and re.match(r"\w", part):  # `name`s: a literal ends before a letter only with this
            parts[i] = "\\ " + parts[i]
    return "".join(parts)


def table(lines: list[str]) -> list[str]:
    """A table with bars; one without a head has none."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    head = 1 if len(rows) > 1 and all(re.fullmatch(r":?-+:?", cell) for cell in rows[1]) else 0
    made = [".. list-table::", f"   :header-rows: {head}", "   :widths: auto", ""]
    for row in [*rows[:head], *rows[2 * head :]]:
        for i, cell in enumerate(row):
            made.append(("   * - " if i == 0 else "     - ") + prose(cell))
    return made


def rst(lines: list[str]) -> list[str]:
    """All lines of a docstring, block by block; blank lines part blocks."""
    made: list[str] = []
    for block in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        rows = block.split("\n")
        first = rows[0].lstrip()
        if first.startswith((">>>", "==")):
            made += rows
        elif first.startswith("|"):
            made += table(rows)
        else:
            text, *items = _ITEM.split(block)
            made += prose(text).split("\n") if text else []
            for item in items:
                made += ["", "- " + prose(item[2:].rstrip("\n"))]
        made.append("")
    return made


def convert(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = rst(lines)


def skip(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """The fields of a NamedTuple say only that they are fields; its own docstring says what they are."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", convert)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True}
