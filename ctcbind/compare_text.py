"""What `ctcbind compare` prints: tables and notes for a person, a summary for a program."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from math import isfinite, isnan
from textwrap import wrap
from typing import Any

from . import __version__
from .compare import Comparison, EngineRow
from .text import paragraph, table

__all__ = ["render", "summary"]

#: Gradients lie between -1 and 1: where rounding alone explains more than this, agreement says little.
COARSE = 0.01


def render(comparisons: Sequence[Comparison], width: int | None = None) -> str:
    """The comparisons as aligned tables, or as a paragraph an engine where `width` columns cannot hold them.

    What is absent, refused or differs is said beneath, once and, of what is absent, in short.
    """
    head = ["engine", "version", "device", "its call takes", "its gradient is w.r.t."]
    head += ["loss", "loss diff", "grad diff", "ms", "verdict"]
    lines: list[str] = []
    notes: dict[tuple[str, ...], None] = {}
    for comparison in comparisons:
        lines += wrap(comparison.name, width or 10_000)
        lines += [f"T={comparison.T}, N={comparison.N}, C={comparison.C}, {comparison.dtype}", ""]
        lines += [table(head, [_cells(row) for row in comparison.rows], width=width), ""]
        for note in filter(None, [*(_note(row, comparison) for row in comparison.rows), *_coarse(comparison)]):
            notes[tuple(paragraph(note, width))] = None
    for note_lines in notes:
        lines += [*note_lines, ""]
    if any("\n" in (row.reason or "") for each in comparisons for row in each.rows if row.status == "absent"):
        lines.append("ctcbind doctor says where each was looked for.")
    return "\n".join(lines).rstrip()


def _note(row: EngineRow, comparison: Comparison) -> str:
    if row.status == "absent":
        return _short_absence(row)
    if row.status == "differs":
        return f"{row.label} differs from the reference beyond tolerance on {comparison.name}: {row.reason}"
    return "" if row.reason is None else f"{row.label} {row.status} on {comparison.name}: {row.reason}"


def _coarse(comparison: Comparison) -> list[str]:
    """What agreement says little of, the engines together that may be off by as much."""
    labels: dict[str, list[str]] = {}
    for row in comparison.rows:
        if row.reason is None and row.grad_tolerance is not None and row.grad_tolerance > COARSE:
            size = f"up to {row.grad_tolerance:.1g}" if row.grad_tolerance < 1 else "of any size"
            labels.setdefault(size, []).append(row.label)
    nats = max(filter(isfinite, comparison.reference_losses), default=0.0)
    return [
        f"{', '.join(who)} on {comparison.name}: over {comparison.T} time steps and {nats:.3g} nats rounding alone "
        f"explains gradient differences {size}, so that agreement says little."
        for size, who in labels.items()
    ]


def _short_absence(row: EngineRow) -> str:
    """The head of the reason without its asides, and the command."""
    head = re.sub(r" \([^()]*\)", "", (row.reason or "").partition("\n")[0]).rstrip(".:")
    more = "" if row.command is None or row.command in head else f"; {row.command}"
    return f"{row.engine} is absent: {head}{more}"


def _cells(row: EngineRow) -> tuple[str, ...]:
    said = (row.engine, row.version or "-", row.device or "-", row.takes, row.gradient_of)
    if row.losses is None:
        return (*said, "-", "-", "-", "-", row.status)
    times = "-" if row.milliseconds is None else f"{row.milliseconds:.2f}"
    verdict = "yardstick" if row.engine == "reference" else row.status
    return (*said, _losses(row.losses), f"{row.loss_diff:.1e}", f"{row.grad_diff:.1e}", times, verdict)


def _losses(losses: Sequence[float]) -> str:
    """All losses in one cell: the one value that all have, or the range of the finite ones and what else there is."""
    shown = [_nats(loss) for loss in losses]
    if len(set(shown)) == 1:
        return shown[0] + (f" (all {len(losses)})" if len(losses) > 1 else "")
    finite = [loss for loss in losses if isfinite(loss)]
    parts = [" to ".join(dict.fromkeys((_nats(min(finite)), _nats(max(finite)))))] if finite else []
    parts += [f"{count} inf"] if (count := sum(loss == float("inf") for loss in losses)) else []
    parts += [f"{count} nan"] if (count := sum(map(isnan, losses))) else []
    return ", ".join(parts)


def _nats(loss: float) -> str:
    return f"{loss:.3f}" if not loss > 1e6 else f"{loss:.6g}"


def summary(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What `ctcbind compare --json` prints."""
    return {
        "ctcbind": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "agree": any(each.ran for each in comparisons) and all(each.agree for each in comparisons),
        "comparisons": [each.to_dict() for each in comparisons],
    }
