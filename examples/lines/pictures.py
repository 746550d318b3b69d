"""Held-out lines with what was read, what training looks like, and where in a line each character was seen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from reader.pictures import BLUE, GREEN, GREY, RED, new_figure, save_figure, smooth

import ctcbind

from .lines import Line
from .network import COLUMNS
from .training import Record


def readings(lines: Sequence[Line], read: Sequence[str], path: Path) -> None:
    """Lines with what was read beneath: green where it is right, red with what it says where it is not."""
    figure = new_figure(6.5, 0.62 * len(lines))
    panels = figure.subplots(len(lines), 1, squeeze=False).ravel()
    widest = max(line.image.shape[1] for line in lines)
    for axes, line, text in zip(panels, lines, read):
        axes.set_axis_off()
        axes.imshow(1 - line.image, cmap="gray", vmin=0, vmax=1)
        axes.set_xlim(0, widest)
        axes.set_anchor("W")
        says = "" if text == line.text else f"   (it says {line.text})"
        # a dollar would begin a formula
        shown = f"{text or 'nothing'}{says}".replace("$", r"\$")
        axes.set_title(shown, fontsize=9, loc="left", color=RED if says else GREEN, pad=2)
    save_figure(figure, path)


def curves(runs: dict[str, tuple[Sequence[Record], Sequence[tuple[int, float, float]]]], path: Path) -> None:
    """Loss, gradient norm, blank share, and error rates on held-out lines, of each named run over its steps."""
    figure = new_figure(9, 5.6)
    panels = figure.subplots(2, 2, sharex=True).ravel()
    # the second over the first, dashed: two curves that are the same are both seen
    for (name, (history, checks)), colour, style in zip(runs.items(), (BLUE, RED), ("-", (0, (3, 3)))):
        steps = np.arange(1, len(history) + 1)
        for axes, what in zip(panels, ("loss", "norm", "blank")):
            values = smooth([getattr(record, what) for record in history])
            axes.plot(steps, values, color=colour, linestyle=style, linewidth=1.5, label=name)
        if checks:
            at, cer, wer = zip(*checks)
            panels[3].plot(at, cer, "o", linestyle=style, color=colour, markersize=3, linewidth=1, label=f"{name}, CER")
            panels[3].plot(at, wer, "x", linestyle=style, color=colour, markersize=4, linewidth=1, label=f"{name}, WER")
    titles = (
        "loss (nats a character)",
        "norm of the gradient, before clipping",
        "share of frames where the blank is best",
        "errors on held-out lines",
    )
    for axes, title in zip(panels, titles):
        axes.set_title(title, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    panels[0].set_yscale("log")
    panels[1].set_yscale("log")
    for axes in panels[2:]:
        axes.set_ylim(-0.03, 1.08)
        axes.set_xlabel("step")
    panels[0].legend(fontsize=8, frameon=False)
    panels[3].legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def alignment(line: Line, logits: Any, labels: list[int], text: str, path: Path) -> None:
    """A line, over it where the best path of (T, C) logits sees each character; below, the blank's probability."""
    best = ctcbind.align(logits[:, None], [labels])
    H, W = line.image.shape
    figure = new_figure(9, 9 * H / W + 2.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[9 * H / W + 0.4, 1.2])
    above.imshow(1 - line.image, cmap="gray", vmin=0, vmax=1, extent=(0, W, H, 0), aspect="auto")
    for i, character in enumerate(text):
        first, end = COLUMNS * best.starts[0][i], COLUMNS * best.ends[0][i]
        above.axvspan(first, end, color=(BLUE, RED)[i % 2], alpha=0.3, linewidth=0)
        above.text((first + end) / 2, -0.5, character.replace("$", r"\$"), ha="center", va="bottom", fontsize=9)
    above.set_yticks([])
    above.set_title(" ", fontsize=10, pad=12)
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
    middles = COLUMNS * (np.arange(len(p)) + 0.5)
    below.plot(middles, p[:, 0], color=GREY, linewidth=1, linestyle=":", label="blank")
    below.plot(middles, p[:, 1:].max(axis=1), color=BLUE, linewidth=1.2, label="best character")
    below.set_ylim(0, 1.05)
    below.set_xlim(0, W)
    below.set_xlabel("column of the image")
    below.set_ylabel("probability")
    below.legend(fontsize=8, frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.45))
    save_figure(figure, path)
