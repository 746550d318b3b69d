"""Words on a terminal or in a notebook: aligned tables, paragraphs where the lines are too short for one, contracts in
rows; and values as JSON can hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from textwrap import wrap
from typing import Any

from .engines import Contract

__all__ = ["Shown", "contract_rows", "paragraph", "plain", "table"]


class Shown:
    """A notebook shows of it what print does."""

    __slots__ = ()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None = None, cell: int = 24) -> str:
    """Rows under their heads, cells wrapped at `cell` columns; one paragraph a row where `width` is too small."""
    columns = range(len(head))
    wrapped = [[wrap(str(row[i]), cell) or [""] for i in columns] for row in [head, *rows]]
    widths = [max(len(line) for row in wrapped for line in row[i]) for i in columns]
    if width is not None and sum(widths) + 2 * (len(head) - 1) > width:
        return _paragraphs(head, rows, width)
    lines: list[str] = []
    for number, row in enumerate(wrapped):
        for line in range(max(len(each) for each in row)):
            texts = [row[i][line] if line < len(row[i]) else "" for i in columns]
            lines.append("  ".join(text.ljust(widths[i]) for i, text in zip(columns, texts)).rstrip())
        if number == 0:
            lines.append("  ".join("-" * each for each in widths))
    return "\n".join(lines)


def _paragraphs(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> str:
    margin = max(map(len, head)) + 4
    lines: list[str] = []
    for row in rows:
        lines += ([""] if lines else []) + [str(row[0])]
        for name, text in zip(head[1:], row[1:]):
            inside = wrap(str(text), max(width - margin, 12)) or [""]
            lines.append(f"  {name.ljust(margin - 2)}{inside[0]}".rstrip())
            lines += [" " * margin + line for line in inside[1:]]
    return "\n".join(lines)


def paragraph(text: str, width: int | None) -> list[str]:
    """Lines of a message that may have lines of its own, the later ones indented."""
    first, *rest = text.splitlines() or [""]
    lines = wrap(first, width or 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    for line in rest:
        lines += wrap(
            line.strip(),
            width or 120,
            initial_indent="  ",
            subsequent_indent="    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def contract_rows(contracts: dict[str, Contract]) -> list[tuple[str, ...]]:
    """One row for each thing a contract says, one column an engine; made for `doctor` and the README.

    `limits` are left out: they are sentences, and find no room in a column.
    """
    yes = {True: "yes", False: "no"}
    said: list[tuple[str, Callable[[Contract], str]]] = [
        ("function", lambda c: c.native_name.removeprefix("ctcbind.engines.")),
        ("takes", lambda c: c.takes),
        ("gradient w.r.t.", lambda c: c.gradient_of),
        ("logits and gradient in", lambda c: f"{c.arrays} memory"),
        ("labels in", lambda c: f"{c.labels} memory"),
        ("losses in", lambda c: f"{c.losses} memory"),
        ("blank", lambda c: "any class" if c.blank == "any" else f"class {c.blank}"),
        ("dtypes", lambda c: ", ".join(c.dtypes)),
        ("layouts", lambda c: ", ".join(c.layouts)),
        ("topologies", lambda c: ", ".join(c.topologies)),
        ("longest label", lambda c: "no limit" if c.max_label_length is None else str(c.max_label_length)),
        ("no path", lambda c: c.infeasible),
        ("empty label", lambda c: c.empty_label),
        ("padded time", lambda c: c.padded_time),
        ("deterministic", lambda c: yes[c.deterministic]),
        ("CUDA graph capture", lambda c: yes[c.graph_capture]),
        ("waits for the device", lambda c: yes[c.synchronises]),
        ("gradient over the logits", lambda c: yes[c.overwrites]),
        ("another algorithm", lambda c: yes[c.other_algorithm]),
    ]
    return [(title, *(show(contract) for contract in contracts.values())) for title, show in said]


def plain(value: Any) -> Any:
    """The same for json.dumps: numbers that JSON lacks are the strings "inf", "-inf" and "nan"."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value
