"""A comparison as a picture: the losses of each engine, and how far its gradients are from the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from pathlib import Path
from textwrap import wrap
from typing import Any

from .compare import Comparison, EngineRow
from .errors import CtcbindError, InvalidInput

__all__ = ["PlotUnavailable", "check_path", "draw", "matplotlib_parts", "save"]

#: One colour and one mark an engine (Okabe and Ito's palette, which colour-blind readers tell apart); on a device the
#: mark is open where the engine ran on the host too.
STYLE = {
    "native": ("#0072B2", "o"),
    "warpctc": ("#D55E00", "s"),
    "cudnn": ("#009E73", "^"),
    "cuda": ("#CC79A7", "D"),
    "reference": ("#555555", "x"),
    "torch": ("#E69F00", "v"),
    "optax": ("#56B4E9", "P"),
    "tensorflow": ("#F0E442", "X"),
}


class PlotUnavailable(CtcbindError, ImportError):
    """matplotlib is not installed."""


def check_path(path: str | Path) -> None:
    """Raises what `draw` would raise, before any work is done: PlotUnavailable, or InvalidInput for the path."""
    FigureCanvasAgg = matplotlib_parts()[1]
    suffix = Path(path).suffix.lstrip(".").lower()
    known = FigureCanvasAgg.get_supported_filetypes()
    if suffix not in known:
        raise InvalidInput(
            f"the plot {path} must end in .png, .svg, .pdf or what else matplotlib writes"
            f"{', not .' + suffix if suffix else ''}",
            rule="plot",
            value=str(path),
        )
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder} for the plot", rule="plot", value=str(path))


def draw(comparisons: Sequence[Comparison], path: str | Path) -> None:
    """Draw one row of two panels for each comparison into a file (.png, .svg or .pdf).

    To the left the loss of each sample in nats; to the right the largest difference of each sample's gradient
    from the reference, on a log scale, with the tolerance of each engine as a dashed line. An infinite loss is
    drawn as a mark at the top of its panel. No display is needed. Raises PlotUnavailable without matplotlib,
    InvalidInput for a path that cannot be written.
    """
    Figure, FigureCanvasAgg = matplotlib_parts()
    check_path(path)
    figure = Figure(figsize=(11, 4.2 * len(comparisons)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(comparisons), 2, squeeze=False)
    for comparison, (left, right) in zip(comparisons, panels):
        _losses(left, comparison)
        _gradients(right, comparison)
    save(figure, path, dpi=150)


def save(figure: Any, path: str | Path, dpi: int) -> None:
    """Writes a figure; raises InvalidInput where the file cannot be written."""
    try:
        figure.savefig(path, dpi=dpi)
    except OSError as error:
        raise InvalidInput(f"the plot {path} cannot be written: {error}", rule="plot", value=str(path)) from error


def matplotlib_parts() -> tuple[Any, Any]:
    """(Figure, FigureCanvasAgg), or PlotUnavailable."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotUnavailable("drawing needs matplotlib: pip install 'ctcbind[plot]'") from error
    return Figure, FigureCanvasAgg


def _places(comparison: Comparison) -> dict[str, float]:
    """A small step to the side for each engine, so that marks on one value stay apart."""
    ran = [row.label for row in comparison.ran]
    return {name: 0.6 * ((i + 0.5) / len(ran) - 0.5) for i, name in enumerate(ran)}


def _style(row: EngineRow, comparison: Comparison) -> tuple[str, dict[str, Any]]:
    """(colour, what matplotlib's plot takes for the marks) of a row."""
    colour, mark = STYLE[row.engine]
    there = row.device != "cpu" and any(each.engine == row.engine and each.device == "cpu" for each in comparison.ran)
    face = "none" if there else colour
    return colour, {"color": colour, "marker": mark, "markerfacecolor": face, "linestyle": "none", "label": row.label}


def _losses(axes: Any, comparison: Comparison) -> None:
    finite = [loss for row in comparison.ran for loss in row.losses or () if isfinite(loss)]
    top = 1.15 * max([*finite, 1e-3])
    for row in comparison.ran:
        colour, marks = _style(row, comparison)
        step = _places(comparison)[row.label]
        inside = [(n + step, loss) for n, loss in enumerate(row.losses or ()) if isfinite(loss)]
        axes.plot(*(zip(*inside) if inside else ([], [])), **marks)
        for n, loss in enumerate(row.losses or ()):
            if not isfinite(loss):
                axes.annotate(f"{loss}", (n + step, top), color=colour, ha="center", va="top", rotation=90, fontsize=8)
    axes.set_ylim(0, top)
    axes.set_ylabel("loss (nats)")
    axes.set_title("\n".join(wrap(comparison.name, 60)[:3]), fontsize=10, loc="left", parse_math=False)
    _finish(axes, comparison)


def _gradients(axes: Any, comparison: Comparison) -> None:
    axes.set_yscale("log")
    values: list[float] = []
    for row in comparison.ran:
        colour, marks = _style(row, comparison)
        if row.engine == "reference":  # the yardstick: its difference from itself says nothing
            continue
        step = _places(comparison)[row.label]
        diffs = [(n + step, diff) for n, diff in enumerate(row.grad_diffs or ())]
        inside = [(x, diff) for x, diff in diffs if 0 < diff < inf]
        axes.plot(*(zip(*inside) if inside else ([], [])), **marks)
        for x, diff in diffs:
            if diff in (0, inf):  # a log scale has no place for either
                edge = (0.01, "bottom") if diff == 0 else (0.99, "top")
                place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": edge[1], "fontsize": 8}
                axes.annotate(f"{diff:g}", (x, edge[0]), color=colour, **place)
        if row.grad_tolerance is not None:
            axes.axhline(row.grad_tolerance, color=colour, linestyle="--", linewidth=0.9, alpha=0.7)
            values.append(row.grad_tolerance)
        values += [diff for _, diff in inside]
    if values:
        axes.set_ylim(min(values) / 6, max(values) * 6)
    axes.set_ylabel("largest gradient difference")
    axes.set_title("from the float64 reference; dashed: tolerance", fontsize=10, loc="left")
    _finish(axes, comparison)


def _finish(axes: Any, comparison: Comparison) -> None:
    axes.set_xlabel("sample")
    axes.set_xlim(-0.6, comparison.N - 0.4)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.14))
