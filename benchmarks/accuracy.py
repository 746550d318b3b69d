"""`python -m benchmarks accuracy`: losses and gradients of ctcbind and its peers beside float64 log space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import exact, worker
from .cases import CASES, Case, Problem, make
from .cpu import Progress
from .peers import OURS, PEERS
from .tables import text
from .verify import GRADIENT, LOSS, errors

__all__ = ["INPUTS", "ROWS", "Row", "batch", "every", "markdown", "measure", "render"]

Floats = npt.NDArray[Any]


def _sharp(problem: Problem, rng: np.random.Generator, right: bool) -> Floats:
    """A network that is certain: 20 above the rest on one alignment, of the labels or of others."""
    T, N, C = problem.logits.shape
    x: Floats = rng.normal(size=(T, N, C))
    path = alignment(problem, rng)
    if not right:
        path = (path + rng.integers(1, C, size=path.shape)) % C
    np.put_along_axis(x, path[:, :, None], 20.0 + np.zeros((T, N, 1)), axis=2)
    return x


def alignment(problem: Problem, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """(T, N): the class at each frame of one path of the labels, blanks between all of them."""
    T, N, _ = problem.logits.shape
    path = np.zeros((T, N), np.int64)
    for n in range(N):
        L, frames = int(problem.label_lengths[n]), int(problem.input_lengths[n])
        places = 2 * np.sort(rng.choice(frames // 2, size=L, replace=False))  # never two labels side by side
        path[places, n] = problem.labels[n, :L]
    return path


def _off_path(problem: Problem, rng: np.random.Generator, value: float) -> Floats:
    """N(0, 1), a seventh of the entries off one path replaced."""
    x: Floats = problem.logits.copy()
    wrong = rng.random(x.shape) < 1 / 7
    np.put_along_axis(wrong, alignment(problem, rng)[:, :, None], False, axis=2)
    x[wrong] = value
    return x


def _on_path(problem: Problem, rng: np.random.Generator, value: float) -> Floats:
    """N(0, 1), one path's entries replaced in a seventh of the frames."""
    x: Floats = problem.logits.copy()
    path = alignment(problem, rng)
    t, n = np.nonzero(rng.random(path.shape) < 1 / 7)
    x[t, n, path[t, n]] = value
    return x


def _unused(problem: Problem, value: float) -> Floats:
    """N(0, 1), the last class, which no label is, replaced in every frame."""
    x: Floats = problem.logits.copy()
    x[:, :, -1] = value
    return x


Maker = Callable[[Problem, np.random.Generator], Any]

#: What the logits are, by the name that stands in the table. No label is the last class.
INPUTS: dict[str, Maker] = {
    "N(0, 1)": lambda p, r: p.logits,
    "N(0, 10²)": lambda p, r: p.logits * 10,
    "N(0, 1) × 1000": lambda p, r: p.logits * 1000,
    "zeros": lambda p, r: p.logits * 0,
    "confident, right": lambda p, r: _sharp(p, r, True),
    "confident, wrong": lambda p, r: _sharp(p, r, False),
    "-inf on 1/7 of entries": lambda p, r: _off_path(p, r, -np.inf),
    "-inf on an unused class": lambda p, r: _unused(p, -np.inf),
    "an unused class at 500": lambda p, r: _unused(p, 500.0),
    "an unused class at 1e10": lambda p, r: _unused(p, 1e10),
    "an unused class at 1e30": lambda p, r: _unused(p, 1e30),
    "1e10 on 1/7 of a path": lambda p, r: _on_path(p, r, 1e10),
    "1e30 on 1/7 of a path": lambda p, r: _on_path(p, r, 1e30),
    "N(0, 1) + 1e4": lambda p, r: p.logits + np.float32(1e4),
    "N(0, 1) + 1e10": lambda p, r: p.logits + np.float32(1e10),
    "N(0, 1) + 1e30": lambda p, r: p.logits + np.float32(1e30),
    "N(0, 1) × 1e10": lambda p, r: p.logits * np.float32(1e10),
    "N(0, 1) × 1e30": lambda p, r: p.logits * np.float32(1e30),
}

_USUAL = Case("150x40x28", 150, 40, 28, 4)
_WIDE = Case("500x60x1024", 500, 60, 1024, 2)
_OLD = Case("1000x200x32", 1000, 200, 32, 2)
_LONG = Case("4000x800x64", 4000, 800, 64, 1)
_LONGEST = Case("20000x200x32", 20000, 200, 32, 1)
_LABELS = Case("5000x2000x64", 5000, 2000, 64, 1)

#: What is measured unless everything is asked for.
ROWS: tuple[tuple[Case, str], ...] = (
    *((_USUAL, name) for name in INPUTS),
    (_WIDE, "N(0, 10²)"),
    (_OLD, "zeros"),
    (_LONG, "N(0, 1)"),
    (_LONG, "zeros"),
    (_LONGEST, "N(0, 1)"),
    (_LONGEST, "N(0, 10²)"),
    (_LONGEST, "confident, wrong"),
    (_LONGEST, "zeros"),
    (_LABELS, "N(0, 1)"),
    (_LABELS, "N(0, 10²)"),
    (_LABELS, "zeros"),
)


@dataclass(frozen=True)
class Row:
    """One batch: of each peer (loss error, relative and absolute below 1; largest absolute gradient error)."""

    case: Case
    logits: str
    errors: dict[str, tuple[float, float]]

    @property
    def kept(self) -> bool:
        """Whether ctcbind is within what it promises (true where it was not asked)."""
        loss, grad = self.errors.get(OURS, (0.0, 0.0))
        return loss <= LOSS and grad <= GRADIENT


def every() -> tuple[tuple[Case, str], ...]:
    """Every size that is timed, a few samples of each, and the longest, with every kind of logits."""
    sizes = {(c.T, c.L, c.C): replace(c, N=min(c.N, 4 if c.T < 300 else 1), name=f"{c.T}x{c.L}x{c.C}") for c in CASES}
    return tuple((case, name) for case in (*sizes.values(), _LONGEST, _LABELS) for name in INPUTS)


def batch(case: Case, logits: str, seed: int = 0) -> Problem:
    """The batch of a row; the same in every run for a seed."""
    problem = make(case, seed)
    labels = np.where(problem.labels == case.C - 1, 1, problem.labels)  # the last class stays unused
    problem = replace(problem, labels=labels)
    rng = np.random.default_rng([seed, case.T, list(INPUTS).index(logits)])
    x = np.ascontiguousarray(INPUTS[logits](problem, rng), dtype=np.float32)
    return replace(problem, logits=x)


def measure(
    rows: Sequence[tuple[Case, str]],
    peers: Sequence[str],
    process: Callable[[int], Any] = worker.Process,
    threads: int = 1,
    seed: int = 0,
) -> tuple[list[Row], dict[str, str]]:
    """The rows of the table, and the versions of the peers that are there."""
    progress, found = Progress(len(rows)), []
    with worker.Homes(peers, threads, process) as homes:
        for case, logits in rows:
            progress.step(f"{case.size}: {logits}")
            problem = batch(case, logits, seed)
            right = exact.answer(problem)
            each = {}
            for name in homes.versions:
                losses, grad = homes.run(worker.answer, name, problem)
                loss_error, grad_error, _ = errors(right, losses, grad)
                assert grad_error is not None
                each[name] = (loss_error, grad_error)
            found.append(Row(case, logits, each))
        progress.end()
        return found, homes.versions


def _cells(row: Row, names: Sequence[str]) -> list[str]:
    cells = []
    for name in names:
        mark = "!" if name == OURS and not row.kept else ""
        cells += [f"{value:.1e}{mark}" if np.isfinite(value) else f"inf/NaN{mark}" for value in row.errors[name]]
    return [row.case.size, row.logits, *cells]


def render(rows: Sequence[Row], versions: dict[str, str]) -> str:
    """The table, and what ctcbind does not keep."""
    names = list(versions)
    head = ["T, L, C, N", "logits", *(f"{name} {what}" for name in names for what in ("loss", "grad"))]
    lines = [
        "errors against float64 log space: loss, relative (absolute below 1); gradient, the largest absolute",
        "",
        text(head, [_cells(row, names) for row in rows], left=2),
        "",
    ]
    broken = [row for row in rows if not row.kept]
    said = f"ctcbind promises {LOSS:g} for the loss and {GRADIENT:g} for the gradient"
    if broken:
        lines.append(f"{said}, and does not keep it in {len(broken)} of {len(rows)} rows (marked !)")
    elif OURS in versions:
        worst = [max(row.errors[OURS][i] for row in rows) for i in (0, 1)]
        lines.append(f"{said}; at most {worst[0]:.1e} and {worst[1]:.1e} were measured")
    return "\n".join(lines)


def markdown(rows: Sequence[Row], versions: dict[str, str]) -> str:
    """The same for a README: gradient errors alone, and the largest loss error of each peer beneath."""
    names = list(versions)
    head = ["T, L, C, N", "logits", *(PEERS[name].title for name in names)]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [f"{row.errors[name][1]:.1e}" if np.isfinite(row.errors[name][1]) else "NaN" for name in names]
        lines.append("| " + " | ".join([row.case.size, row.logits, *cells]) + " |")
    worst = ", ".join(f"{PEERS[name].title} {_worst(rows, name)}" for name in names)
    return "\n".join([*lines, "", f"Largest relative error of the loss (absolute below 1) in these rows: {worst}."])


def _worst(rows: Sequence[Row], name: str) -> str:
    worst = max(row.errors[name][0] for row in rows)
    return f"{worst:.1e}" if np.isfinite(worst) else "NaN or inf"
