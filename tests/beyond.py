"""What the tests beyond the loss have in common: every state path of tiny lattices, and bounds on rounding."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from typing import Any

import numpy as np
from batches import Case

from ctcbind.engines.reference import log_softmax
from ctcbind.engines.reference_lattice import Graph, make_graph

#: Half a unit in the last place of float64 and of what results are stored in.
EPS = 2.0**-53
STORED = {"float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}

#: How far ln of a frame's sum may be off, relative to itself, where the loss's kernels take it in floats: the sum is 1
#: and the terms of the classes beside the largest, and it is off by no more than they are. 64 and 64 of their sums may
#: be added up in one lane, a half unit in the last place of all so far each time (128 u), each term has the rounding of
#: its exponent, which is at most 88 with floats (88 u), and that of its exponential (2 u). Terms below e^-88 are 0.
IN_FLOATS = 218 * STORED["float32"]


#: For a script in a process of its own: the most memory it has held, in bytes. (getrusage's ru_maxrss begins with the
#: peak of the process that started it, and shows nothing.)
PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
"""


def run_script(script: str) -> list[int]:
    """The integers that a script prints; `peak()` is there for it."""
    code = PEAK + textwrap.dedent(script)
    with tempfile.TemporaryDirectory() as away:  # from a checkout that is not what is installed
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=away)
    assert done.returncode == 0, done.stderr
    return [int(word) for word in done.stdout.split()]


def sample(case: Case, n: int) -> tuple[np.ndarray, Graph]:
    """(ln y (T, C), the lattice) of one sample of a case."""
    log_y = log_softmax(case.x[: case.frames[n], n])
    return log_y, make_graph(np.array(case.labels[n], np.int32), case.blank, merge_repeats=case.topology == "ctc")


def state_paths(graph: Graph, T: int) -> np.ndarray:
    """(paths, T): every sequence of states that the lattice allows, found by walking."""
    S = len(graph.extended)
    walks = [[s] for s in range(min(S, 2))]
    for _ in range(T - 1):
        walks = [[*walk, s] for walk in walks for s in range(S) if graph.moves[walk[-1], s] == 0]
    ends = [walk for walk in walks if walk[-1] >= S - 2]
    return np.array(ends, dtype=np.intp).reshape(len(ends), T)


def rounding(T: int, C: int, largest: float) -> float:
    """How far float64 may be off in a logarithm after T frames: each takes its softmax (C + 4 roundings of values up
    to 1) and four additions and logarithms of values up to `largest`, each half a unit in the last place."""
    return EPS * T * (C + 8) * (largest + 1)


def largest_log(case: Case) -> float:
    """The largest finite ln p of a path of the case, as a magnitude."""
    log_y = log_softmax(case.x)
    finite = np.abs(log_y[np.isfinite(log_y)])
    return float(case.x.shape[0] * finite.max(initial=0.0))


def close(got: Any, right: Any, atol: float, dtype: str = "float64") -> None:
    """Within `atol` and what storing in `dtype` costs; infinities and NaN exactly."""
    got, right = np.asarray(got, dtype=np.float64), np.asarray(right, dtype=np.float64)
    assert got.shape == right.shape
    finite = np.isfinite(right)
    assert np.array_equal(got[~finite], right[~finite], equal_nan=True)
    off = np.abs(got[finite] - right[finite])
    bound = atol + STORED[dtype] * np.abs(right[finite])
    assert (off <= bound).all(), f"off by {off.max()}, bound {bound.min()}"
