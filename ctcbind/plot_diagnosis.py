"""A diagnosis as a picture: the blank's probability over time, and where the labels of each sample lie."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from .engines.reference import log_softmax
from .errors import counted
from .loss import ctc_loss_and_grad
from .patient import Patient
from .plot import check_path, matplotlib_parts, save

__all__ = ["draw"]

#: Samples that find room.
ROWS = 4


def draw(patient: Patient, path: str | Path) -> list[int]:
    """Draw one row of two panels for each of four samples into a file (.png, .svg or .pdf), and return which: those
    that the findings name, then the first of the batch.

    To the left what the network says: the probability of the blank, and of the most probable label, over time. To the
    right what it would have to say: the expected count of each label at each frame, given the targets (the occupancy
    of Graves' equation 14); empty where no path exists. Raises PlotUnavailable without matplotlib, InvalidInput for a
    path that cannot be written.
    """
    Figure, FigureCanvasAgg = matplotlib_parts()
    check_path(path)
    shown = _shown(patient)
    figure = Figure(figsize=(11, 2.6 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(shown), 2, squeeze=False)
    for n, (left, right) in zip(shown, panels, strict=True):
        log_y = log_softmax(patient.x[: patient.frames[n], n])
        _said(left, np.exp(log_y), patient, n)
        _wanted(right, log_y, patient, n)
    save(figure, path, dpi=150)
    return shown


def _shown(patient: Patient) -> list[int]:
    """One sample of each finding, then more of each, then the first of the batch."""
    named = [[n for n in finding.samples if n < patient.N] for finding in patient.findings]
    in_turns = [n for nth in zip_longest(*(each[:ROWS] for each in named)) for n in nth if n is not None]
    return list(dict.fromkeys([*in_turns, *range(min(patient.N, ROWS))]))[:ROWS]


def _said(axes: Any, y: Any, patient: Patient, n: int) -> None:
    axes.plot(y[:, patient.blank], color="#555555", label=f"blank ({patient.blank})")
    if patient.C > 1:
        axes.plot(np.delete(y, patient.blank, axis=1).max(axis=1), color="#D55E00", label="most probable label")
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("probability")
    axes.set_title(f"sample {n}: what the network says", fontsize=10, loc="left")
    _frames(axes, len(y))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)


def _wanted(axes: Any, log_y: Any, patient: Patient, n: int) -> None:
    labels = patient.labels[n]
    classes = list(dict.fromkeys(labels))
    occupancy = np.zeros((len(classes), len(log_y)))
    if classes and len(log_y) >= patient.required(n):
        result = ctc_loss_and_grad(log_y[:, None], [labels], blank=patient.blank, topology=patient.topology)
        if result.loss[0] < np.inf:  # the gradient is what the network says less the occupancy
            occupancy = (np.exp(log_y) - result.grad[:, 0])[:, classes].T
    if occupancy.size:
        axes.imshow(occupancy, aspect="auto", interpolation="nearest", vmin=0, vmax=1, cmap="viridis")
        step = -(-len(classes) // 12)
        axes.set_yticks(range(0, len(classes), step), [str(each) for each in classes[::step]], fontsize=8)
    axes.set_ylabel("label")
    _frames(axes, len(log_y))
    title = f"occupancy of {counted(len(labels), 'label')}"
    if len(classes) < len(labels):
        title += ", equal ones in one row"
    axes.set_title(title, fontsize=10, loc="left")


def _frames(axes: Any, T: int) -> None:
    axes.set_xlabel("frame")
    axes.set_xlim(-0.5, max(T, 1) - 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
