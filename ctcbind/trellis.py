"""The lattice of one word as a picture: states down, time across, occupancies as shade, the best path as a line."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .align import Alignment, align
from .batch import Topology
from .check import check
from .errors import InvalidInput, counted
from .lattice import Lattice, ctc_lattice
from .options import blank_index
from .plot import check_path, matplotlib_parts, save
from .problems import load

__all__ = ["Word", "draw", "loss_of", "random_word", "scored_word"]

#: Inches of a picture's longer side, from which on all in it is drawn smaller.
LARGEST = 60.0
#: The blank's name: the first that is no letter of the text.
BLANKS = "_-·ε∅"


@dataclass(frozen=True)
class Word:
    """A text and the scores of its letters: `logits` (T, 1, C), `symbols` one name a class, `labels` classes."""

    text: str
    logits: npt.NDArray[Any]
    symbols: tuple[str, ...]
    labels: tuple[int, ...]
    blank: int = 0
    topology: Topology = "ctc"

    def lattice(self) -> Lattice:
        return ctc_lattice(self.logits, [self.labels], blank=self.blank, topology=self.topology)

    def best_path(self) -> Alignment:
        return align(self.logits, [self.labels], blank=self.blank, topology=self.topology)

    def why_no_path(self) -> str:
        """In a sentence: too few frames, or what the scores forbid."""
        report = check(self.logits, [self.labels], blank=self.blank, topology=self.topology)
        return next((problem.message for problem in report.problems), "there is no path with a score that is a number")

    @property
    def unusual_blank(self) -> str | None:
        """The sign of the blank, where it is another than the usual one because the text has that."""
        sign = self.symbols[self.blank]
        return sign if BLANKS[0] in self.text and sign != BLANKS[0] else None

    def spell(self, classes: Any) -> str:
        """One symbol a frame."""
        return "".join(self.symbols[k] for k in classes if k >= 0)


def loss_of(lattice: Lattice) -> float:
    """The loss of a word in nats; never -0, and never below 0, where rounding may leave it."""
    return max(-float(lattice.log_z[0]), 0.0) + 0.0


def random_word(text: str, *, frames: int | None = None, seed: int = 0, topology: Topology = "ctc") -> Word:
    """The text with normal random scores of its own letters and the blank; without `frames`, some more than it needs.

    Raises InvalidInput for too few frames to hold it.
    """
    letters = sorted(set(text))
    labels = tuple(letters.index(letter) + 1 for letter in text)
    repeats = sum(a == b for a, b in pairwise(labels)) if topology == "ctc" else 0
    required = max(len(labels) + repeats, 1)
    T = required + max(3, required // 2) if frames is None else frames
    if required > T:
        between = " and one more between equal ones" if topology == "ctc" else ""
        raise InvalidInput(
            f"{counted(T, 'frame')} cannot hold {text!r}: it needs {required}, one for each letter{between}",
            rule="frames",
            value=T,
        )
    logits = np.random.default_rng(seed).normal(scale=2.0, size=(T, 1, len(letters) + 1))
    blank = next((each for each in BLANKS if each not in letters), "blank")
    return Word(text, logits, (blank, *letters), labels, topology=topology)


def scored_word(text: str, path: str | Path, *, topology: Topology = "ctc") -> Word:
    """The text with the scores of a .npz file: `logits` (T, C) or (T, 1, C), `symbols` (one string of C letters, or C
    strings) and, where it is not class 0, `blank`. Raises InvalidInput for what is missing or does not fit."""
    found = load(path, known=("logits", "symbols", "blank"), needed=("logits", "symbols"))
    logits, names = np.asarray(found["logits"]), np.asarray(found["symbols"])
    if names.dtype.kind == "S":
        raise InvalidInput(
            f"'symbols' in {path} are bytes; they must be text: symbols=symbols.astype(str)", rule="symbols"
        )
    symbols = tuple(str(names)) if names.ndim == 0 else tuple(str(each) for each in names.ravel())
    if logits.ndim == 2:
        logits = logits[:, None]
    if logits.ndim != 3 or logits.shape[1] != 1:
        raise InvalidInput(
            f"'logits' in {path} have shape {found['logits'].shape}; one word needs (T, C) or (T, 1, C)",
            rule="logits_rank",
            value=found["logits"].shape,
        )
    if len(symbols) != logits.shape[2]:
        raise InvalidInput(
            f"'symbols' in {path} name {len(symbols)} classes, but the logits have C = {logits.shape[2]}",
            rule="symbols",
            value=len(symbols),
        )
    for letter in text:
        if symbols.count(letter) > 1:
            raise InvalidInput(f"{letter!r} stands in 'symbols' in {path} twice", rule="symbols", value=letter)
        if letter not in symbols:
            raise InvalidInput(f"{letter!r} of {text!r} is not among 'symbols' in {path}", rule="symbols", value=letter)
    labels = tuple(symbols.index(letter) for letter in text)
    return Word(text, logits, symbols, labels, blank_index(found.get("blank", 0), len(symbols)), topology)


def draw(word: Word, path: str | Path) -> bool:
    """Draw the lattice into a file (.png, .svg or .pdf), and return whether matplotlib's font has all letters of it;
    needs matplotlib, and no display.

    A dot for each state at each frame, the darker the more of all paths are in it; lines for the moves that some path
    makes; the best path on top. Raises PlotUnavailable without matplotlib, InvalidInput for a path that cannot be
    written, and as `ctc_loss` does for the word.
    """
    check_path(path)
    Figure, FigureCanvasAgg = matplotlib_parts()
    lattice, best = word.lattice(), word.best_path()
    gamma = np.exp(lattice.log_gamma[0])
    T, S = gamma.shape
    small = min(1.0, LARGEST / (0.42 * max(T, 1)), LARGEST / (0.32 * S))
    size = max(4.5, 0.42 * small * T + 1.4), max(2.4, 0.32 * small * S + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(*_moves(word, gamma), color="0.75", linewidth=0.8 * small, zorder=1)
    at, state = np.meshgrid(np.arange(T), np.arange(S), indexing="ij")
    edges = np.where(gamma > 0, "0.35", "0.85").ravel()  # pale where no path goes
    axes.scatter(
        at.ravel(),
        state.ravel(),
        c=gamma.ravel(),
        cmap="Blues",
        vmin=0,
        vmax=1,
        s=90 * small**2,
        edgecolors=edges,
        linewidths=0.6 * small,
        zorder=2,
    )
    if best.log_p[0] > -np.inf:
        axes.plot(np.arange(T), best.states[0], color="#D55E00", linewidth=2 * small, zorder=3, label="best path")
    names = [word.symbols[k] for k in lattice.extended[0]]
    axes.set_yticks(np.arange(S), names, parse_math=False, fontsize=10 * small)
    axes.set_ylim(S - 0.4, -0.6)
    axes.set_xlim(-0.6, T - 0.4)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("time step")
    axes.set_title(f"{word.text}: loss {loss_of(lattice):.3f} nats", fontsize=10, loc="left", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        save(figure, path, dpi=110)
    return not any("missing from" in str(each.message) for each in told)


def _moves(word: Word, gamma: npt.NDArray[np.float64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Times and states of the moves that some path makes, as one line with gaps: from, to, nan."""
    S = gamma.shape[1]
    merge = word.topology == "ctc"
    at, state = [], []
    for s in range(S):
        label = s % 2 == 1
        to = [s] if merge or not label else []
        to += [s + 1] if s + 1 < S else []
        if label and s + 2 < S and not (merge and word.labels[s // 2] == word.labels[s // 2 + 1]):
            to.append(s + 2)
        for each in to:
            times = np.flatnonzero((gamma[:-1, s] > 0) & (gamma[1:, each] > 0))
            at.append(np.column_stack([times, times + 1, np.full(len(times), np.nan)]).ravel())
            state.append(np.tile([s, each, np.nan], len(times)))
    return np.concatenate(at), np.concatenate(state)
