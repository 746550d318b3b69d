"""A report as a picture: milliseconds of every peer on every size, a log scale, so that distances are ratios."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .peers import OURS, PEERS
from .results import Report

__all__ = ["draw"]

#: One colour and one mark a peer (Okabe and Ito's palette, which colour-blind readers tell apart).
STYLE = {
    OURS: ("#0072B2", "o"),
    "ctcbind-function": ("#56B4E9", "o"),
    "warpctc": ("#D55E00", "s"),
    "warpctc-c": ("#000000", "s"),
    "torch": ("#CC79A7", "^"),
    "optax": ("#009E73", "D"),
    "tensorflow": ("#E69F00", "v"),
    "tf-seq2seq-losses": ("#555555", "X"),
}


def draw(report: Report, path: str | Path) -> None:
    """One panel for loss and gradient, one for loss only; the most threads filled, fewer of them hollow.

    Raises ImportError without matplotlib, OSError for a path that cannot be written, ValueError for an ending that
    matplotlib does not know.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    modes = [mode for mode in (True, False) if any(timing.with_grad == mode for timing in report.timings)]
    figure = Figure(figsize=(5.6 * len(modes) + 1.6, 0.38 * len(report.cases) + 1.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(modes), sharey=True, squeeze=False)[0]
    for axes, with_grad in zip(panels, modes):
        _panel(axes, report, with_grad)
    panels[0].set_yticks(range(len(report.cases)), [case.size for case in report.cases], fontsize=9)
    panels[0].text(-0.01, 1.012, "T, L, C, N", ha="right", transform=panels[0].transAxes, fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, report: Report, with_grad: bool) -> None:
    counts = sorted({timing.threads for timing in report.timings})
    rows = {case.name: i for i, case in enumerate(report.cases)}
    for name in report.versions:
        colour, mark = STYLE.get(name, ("black", "P"))
        for count in counts:
            chosen = [t for t in report.timings if (t.peer, t.threads, t.with_grad) == (name, count, with_grad)]
            step = 0.22 * (counts.index(count) - (len(counts) - 1) / 2)  # so that marks on one value stay apart
            axes.plot(
                [timing.hot.median for timing in chosen],
                [rows[timing.case] + step for timing in chosen],
                mark,
                color=colour,
                markerfacecolor=colour if count == counts[-1] else "white",
                markersize=6.5 if name == OURS else 5.5,
                label=f"{PEERS[name].title}, {count} thread{'s' * (count > 1)}",
            )
    for row in rows.values():
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="#f3f3f3", zorder=0)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("milliseconds per call, median")
    axes.set_title("loss and gradient" if with_grad else "loss only", fontsize=11, loc="left")
    axes.grid(axis="x", which="major", alpha=0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
