"""Batches that take every way through the kernels, for sanitizers and for kernels with a fault planted in them.

As a script: runs them in a process that a sanitizer was put into; without arguments, with the arrays of the workspace
away from each other. "few" leaves it at what threads instead of fibres can do in a moment, "apart" gives each direction
a block of its own, and a number n plants the fault of taking barrier n away.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

import emulated  # noqa: E402
import fake_cupy  # noqa: E402
import numpy as np  # noqa: E402
from batches import Case, random_case  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.cuda import kernels, launch  # noqa: E402
from ctcbind.cuda import layout as layouts  # noqa: E402

PARTS = tuple(dict.fromkeys(name for kind in ("batch", "lattice") for name in kernels.MODULES[kind][0]))
BARRIERS = [
    (name, found)
    for name in PARTS
    for found in re.finditer(r"(?:__syncthreads|__syncwarp|Group::sync)\(\);", kernels.part(name))
]
#: Labels of one warp and two, classes fewer and more than them, rows of aligned and of odd length.
SIZES = ((40, 2, 5), (60, 2, 80), (90, 2, 16))
#: What has batches as small as these take each shape of `KernelLayout`, as far as it can.
ROWS: dict[str, dict[str, int]] = {
    "lane": {"NARROW_ROW": 32, "WIDE_ROW": 1024},
    "warp": {"NARROW_ROW": 0, "WIDE_ROW": 1024},
    "block": {"NARROW_ROW": 0, "WIDE_ROW": 0},
}


def name_of(barrier: int) -> str:
    """Its file and line."""
    name, found = BARRIERS[barrier]
    return f"{name}.cuh:{found.string[: found.start()].count(chr(10)) + 1}"


def barrier_before(comment: str) -> int:
    """The one that has this beside it."""
    (number,) = (
        i for i, (_, found) in enumerate(BARRIERS) if found.string[found.end() :].lstrip(" ").startswith(comment)
    )
    return number


def replaced(name: str, text: str, part: Callable[[str], str] = kernels.part) -> Callable[[str], str]:
    """What is to stand for `kernels.part`: with another text of one file."""
    return lambda asked: text if asked == name else part(asked)


def without(barrier: int) -> Callable[[str], str]:
    """Likewise, with that barrier taken away."""
    name, found = BARRIERS[barrier]
    return replaced(name, found.string[: found.start()] + ";" + found.string[found.end() :])


def lay_out_small(monkeypatch: Any = None, ways: int = 2) -> None:
    """Two warps to a direction, eight classes or labels to a tile, several rows to each group of threads, and two to a
    warp whose lanes have classes."""
    lanes = (kernels.Lanes(2, ways), kernels.Lanes(2, 1))
    values = {"LANES": lanes, "SHARED": layouts.SCRATCH + 4 * 8 * 4, "BLOCKS": 3, "WARPS": 1, "STRETCH": 1}
    for name, value in values.items():
        monkeypatch.setattr(layouts, name, value) if monkeypatch else setattr(layouts, name, value)


def lay_arrays_apart() -> None:
    """Memory of its own for each array of the workspace: past its end a sanitizer sees what else is in the next one."""

    def argument(state: Any, work: Any, arrays: dict[str, int], captured: bool) -> tuple[Any, int]:
        begins = [*work.layout.offsets.values(), work.layout.size]
        memory = {
            name: fake_cupy.alloc(end - begin) for name, begin, end in zip(work.layout.offsets, begins, begins[1:])
        }
        state.apart = memory  # until the next call
        inside = {name: each.ptr for name, each in memory.items()}
        return kernels.as_argument(work.problem | inside | arrays), inside["status"]

    layouts.ALIGNED = 1
    launch.DeviceState._argument = argument  # type: ignore[method-assign]


def plain(T: int, C: int, labels: list[int], N: int = 1, scale: float = 1) -> Case:
    """Samples of random scores, of the same labels."""
    x = (np.random.default_rng([T, C]).normal(size=(T, N, C)) * scale).astype(np.float32)
    return Case(x.astype(np.float64), [labels] * N, [T] * N, 0, args=(x, [labels] * N), name=f"{labels}, C={C}")


def few() -> list[tuple[Case, str]]:
    return [
        *((plain(38, 4, [1, 2, 3] * 12), "warp"), (plain(3, 12, [5, 3, 5]), "warp"), (plain(2, 12, [5]), "block")),
        *((plain(70, 4, [1, 2, 3] * 22), "warp"), (plain(9, 4, [1, 2, 3]), "lane")),
        # in logarithms; a sample's last way and the next one's first end early in a phase, on either side of one margin
        (plain(35, 4, [1, 2], N=2, scale=1e8), "lane"),
    ]


def cases() -> list[tuple[Case, str]]:
    """(batch, shape): each batch in every shape."""
    batches = [
        random_case([1, number], dtype="float32", size=size, how="C", blank=0, topology="simple")
        for number, size in enumerate(SIZES)
    ]
    strips = plain(150, 6, [1, 2, 3, 4, 5] * 28)
    return [*((case, rows) for case in batches for rows in ROWS), (strips, "lane"), (strips, "warp")]


def run(case: Case, rows: str) -> None:
    """The gradient beside the logits and over them, and the loss alone.

    Raises AssertionError or LaunchFailed for a fault.
    """
    for name, value in ROWS[rows].items():
        setattr(layouts, name, value)
    layouts.plan_layout.cache_clear()
    result = ctcbind.ctc_loss_and_grad(*case.args, **case.options, engine="cuda")
    case.check(result, "float32", case.expected())
    cupy, (x, *beside) = sys.modules["cupy"], case.args
    with ctcbind.CTCLoss(engine="cuda", overwrite_logits=True, **case.options) as plan:
        over = plan(cupy.asarray(np.array(x)), *beside)
        np.testing.assert_array_equal(cupy.asnumpy(over.grad), result.grad)
    with ctcbind.CTCLoss(engine="cuda", **case.options) as plan:  # whose workspace is no larger
        np.testing.assert_array_equal(plan.loss(*case.args), result.loss)


if __name__ == "__main__":
    emulated.install()
    lay_out_small(ways=1 if "apart" in sys.argv else 2)
    if not sys.argv[1:]:
        lay_arrays_apart()
    for barrier in sys.argv[1:]:
        if barrier not in ("few", "apart"):
            kernels.part = without(int(barrier))  # type: ignore[assignment]
    for turns, each in enumerate(few() if "few" in sys.argv else cases()):
        emulated.turns[0] = turns
        run(*each)
