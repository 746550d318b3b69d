"""Pages that stand elsewhere in the repository, tables made from the Contracts, and links that lead out of docs/.

In a page of the site

    <!-- page: ../benchmarks/README.md -->      is replaced by that file,
    <!-- contracts -->                          by the table of the engines' Contracts, and what they cannot do,
    <!-- contracts: labels in, losses in -->    by those rows of it,
    <!-- examples -->                           by the scripts in examples/, each under its own heading,
    <!-- others: gpu -->                        by the names of that folder's pages that this one does not name.

Links are written as they hold in the repository. Here a link to a file that is a page becomes one to the page, and any
other file can be downloaded; a link to a folder is left out.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import readme_table

DOCS = Path(__file__).resolve().parent.parent
ROOT = DOCS.parent

_MARK = re.compile(r"<!-- (page|contracts|examples|others)(?:: ([^\n]*?))? -->")
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
_LAST_BLANK = re.compile(r"(\n *>>> (?:(?!```)[^\n]*\n)+?)\n(?= *```\n)")  # doctest needs it, and readers do not
_FENCE = re.compile(r"(^ *```.*?^ *``` *$)", re.MULTILINE | re.DOTALL)


def page_of(path: Path) -> Path | None:
    """The page of the site that shows this file of the repository, if one does."""
    if path.is_dir():
        path = path / "README.md"
    if path == ROOT / "README.md":
        return DOCS / "index.md"
    if path.suffix == ".py" and path.parent == ROOT / "examples":
        return DOCS / "examples.md"
    if DOCS in path.parents:
        return path if path.suffix == ".md" else None
    for page in DOCS.rglob("*.md"):
        for kind, value in _MARK.findall(page.read_text(encoding="utf-8")):
            if kind == "page" and (page.parent / value).resolve() == path:
                return page
    return None


def relinked(text: str, written_in: Path, page: Path) -> str:
    """Links of a text that stands in one folder as they are right for a page of the site; code is left alone."""

    def link(found: re.Match[str]) -> str:
        picture, name, target, anchor = found.groups()
        path = (written_in / target).resolve()
        if not path.exists():
            return found[0]  # and Sphinx says that it leads nowhere
        if not picture and (shown := page_of(path)) is not None:
            if shown.name == "examples.md" and path.suffix == ".py":
                anchor = "#" + path.stem.replace("_", "-")
            path = shown
        elif path.is_dir():
            return name
        return f"{picture}[{name}]({Path(os.path.relpath(path, page.parent)).as_posix()}{anchor or ''})"

    parts = _FENCE.split(text)
    return "".join(part if i % 2 else _LINK.sub(link, part) for i, part in enumerate(parts))


def examples() -> str:
    made = []
    for path in sorted((ROOT / "examples").glob("*.py")):
        made += [f"({path.stem.replace('_', '-')})=", f"## {path.stem.replace('_', ' ')}", ""]
        made += [f"`examples/{path.name}`", "", "```python"]
        made += [path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(made)


def others(folder: Path, page: Path) -> str:
    named = page.read_text(encoding="utf-8").split()
    names = [each.relative_to(DOCS).with_suffix("").as_posix() for each in sorted(folder.glob("*.md")) if each != page]
    return "\n".join(name for name in names if name not in named)


def read(app: Any, docname: str, source: list[str]) -> None:
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return

    def put(found: re.Match[str]) -> str:
        kind, value = found.groups()
        if kind == "contracts":
            return readme_table.markdown([row.strip() for row in value.split(",")] if value else None)
        if kind == "examples":
            return examples()
        path = (page.parent / value).resolve()
        if kind == "others":
            return others(path, page)
        app.env.note_dependency(str(path))
        return relinked(path.read_text(encoding="utf-8"), path.parent, page)

    text = _MARK.sub(put, relinked(source[0], page.parent, page))
    source[0] = _LAST_BLANK.sub(r"\1", text)


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True}
