"""Tables in README files, between marks that name them; `--write` renews them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["FILES", "renew"]

_HERE = Path(__file__).resolve().parent
FILES = (_HERE.parent / "README.md", _HERE / "README.md")


def renew(name: str, text: str, files: Iterable[Path] = FILES) -> list[Path]:
    """Replace what stands between `<!-- benchmarks NAME: begin -->` and `... end -->`; the files that had the marks.

    Raises ValueError where none has them.
    """
    begin, end = (f"<!-- benchmarks {name}: {word} -->" for word in ("begin", "end"))
    changed = []
    for path in files:
        if not path.exists():
            continue
        old = path.read_text(encoding="utf-8")
        new = re.sub(f"(?s)(?<={re.escape(begin)}\n).*?(?={re.escape(end)})", lambda _: f"{text}\n", old)
        if begin in old and end in old:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    if not changed:
        raise ValueError(f"no README has the lines {begin} and {end}")
    return changed
