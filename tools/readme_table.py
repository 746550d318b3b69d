"""The README's table of what each engine's own function takes and gives, made from the Contracts.

`python tools/readme_table.py` prints it; with --write it replaces what stands between the markers in README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ctcbind.engines import NAMES, get
from ctcbind.text import contract_rows

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN = "<!-- contracts: begin (tools/readme_table.py --write) -->"
END = "<!-- contracts: end -->"


def markdown(only: Sequence[str] | None = None) -> str:
    """The table, one row for each thing that a contract says, one column an engine; beneath it the limits.

    With `only` these rows of it, by their titles, and no limits; KeyError for a title that there is not.
    """
    contracts = {name: get(name).contract for name in NAMES}
    rows = [("", *contracts), *contract_rows(contracts)]
    if only is not None:
        titles = {row[0]: row for row in rows}
        rows = [rows[0], *(titles[title] for title in only)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if only is not None:
        return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
    limits = [f"- `{name}`: {limit}" for name, contract in contracts.items() for limit in contract.limits]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:], "", "Further limits:", "", *limits])


def renewed(text: str) -> str:
    """The README's text with the table of today between its markers; ValueError where a marker is missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md must have the lines {BEGIN} and {END}")
    return f"{head}{begin}\n{markdown()}\n{end}{tail}"


def main() -> int:
    if "--write" not in sys.argv[1:]:
        print(markdown())
        return 0
    README.write_text(renewed(README.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
