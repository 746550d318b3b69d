"""The kernels' sources, and their compilation at run time by NVRTC through CuPy, which keeps what it has compiled."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from ..errors import EngineUnsupported

__all__ = [
    "DTYPES",
    "LANES",
    "MODULES",
    "PROBLEM",
    "Lanes",
    "Module",
    "around_module",
    "as_argument",
    "batch_module",
    "compiled",
    "lattice_module",
    "part",
]

log = logging.getLogger("ctcbind")

_SHARED = ("types", "number", "groups")
#: The files of each kind of module, in the order in which each may use what stands before it; and its kernels.
MODULES = {
    "batch": (
        (*_SHARED, "places", "prepare", "rows", "measure", "gradient", "narrow", "reduce"),
        (
            *("ctc_prepare", "ctc_rows_by_lane", "ctc_rows_by_warp", "ctc_rows_by_block"),
            *("ctc_gradient_by_lane", "ctc_gradient_by_warp", "ctc_gradient_by_block", "ctc_reduce"),
        ),
    ),
    "lattice": ((*_SHARED, "places", "lattice"), ("ctc_lattice",)),
    "around": (
        (*_SHARED, "places", "prepare", "rows", "reduce", "around"),
        ("ctc_prepare", "ctc_pack", "ctc_move", "ctc_look", "ctc_judge", "ctc_put", "ctc_reduce"),
    ),
}
#: CTC_X of each dtype of logits.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


class Lanes(NamedTuple):
    """What the lattice is compiled for: how many warps go in each direction (CTC_W), and how many directions share a
    block (CTC_WAYS)."""

    warps: int
    ways: int

    @property
    def width(self) -> int:
        """How many pairs of states the block of a direction holds."""
        return 32 * self.warps


#: The first that holds the longest label of a batch is taken; what the last does not hold goes in strips, which need a
#: block for each direction.
LANES = (Lanes(1, 2), Lanes(2, 2), Lanes(4, 2), Lanes(8, 1))

#: The one argument of every kernel, `Problem` in types.cuh, all 0: addresses and integers, 8 bytes each.
PROBLEM = dict.fromkeys(
    " ".join(
        (
            "logits element x_t x_n grad g_t g_n losses labels label_lengths input_lengths label_width label_total",
            "wide T N C blank simple weighing weights pitch sparse table width_bits strips",
            "clean slot lengths status strange measures emitted blanks lattice middles edges tickets",
            "zeroing reduced raw r_t r_n rotated moved packed packed_lengths costs least probabilities doubted",
        )
    ).split(),
    0,
)
_packed = struct.Struct(f"{len(PROBLEM)}q").pack
#: Without fields: CuPy asks a structured dtype for its own anew at each launch, which takes some 40 us.
_BYTES = np.dtype((np.void, 8 * len(PROBLEM)))


def as_argument(problem: dict[str, int]) -> Any:
    """The values of a copy of `PROBLEM`, as what a kernel takes by value."""
    assert len(problem) == len(PROBLEM), "there is no such field"
    return np.ndarray((), _BYTES, _packed(*problem.values()))


class Module(NamedTuple):
    """What is compiled in one piece: one of MODULES, and the numbers that its sources go by."""

    kind: str
    numbers: tuple[tuple[str, int], ...]

    @property
    def source(self) -> str:
        """As one text, which needs no header; errors are counted in the lines of each part."""
        parts, _ = MODULES[self.kind]
        return "".join(f'#line 1 "ctcbind/cuda/kernels/{name}.cuh"\n{part(name)}' for name in parts)

    @property
    def options(self) -> tuple[str, ...]:
        """NVRTC's. Sums of products are contracted where the source says so, and nowhere else."""
        return ("-std=c++17", "--fmad=false", *(f"-DCTC_{name}={value}" for name, value in self.numbers))


@cache
def batch_module(dtype: str) -> Module:
    """What reads logits and writes gradients of that dtype."""
    return Module("batch", (("X", DTYPES[dtype]),))


@cache
def lattice_module(dtype: str, lanes: Lanes, simple: bool) -> Module:
    """The recursion, for one of LANES and logits of that dtype (one module for all that are computed in float32). Each
    topology has its own, which halves what a user waits for the compiler."""
    of = DTYPES["float64" if dtype == "float64" else "float32"]
    numbers = {"X": of, "W": lanes.warps, "WAYS": lanes.ways, "SIMPLE": int(simple)}
    return Module("lattice", tuple(numbers.items()))


@cache
def around_module(dtype: str) -> Module:
    """What goes around a call of cuDNN with labels on the device."""
    return Module("around", (("X", DTYPES[dtype]),))


@cache
def part(name: str) -> str:
    """The text of one file of kernels."""
    return (files(__package__) / "kernels" / f"{name}.cuh").read_text(encoding="utf-8")


#: CuPy compiles a module once a process too, but to ask it for one again takes longer than the launches of a batch.
_compiled: dict[tuple[Any, int, Module], dict[str, Any]] = {}


def compiled(cupy: Any, device: int, modules: Sequence[Module], capturing: bool, engine: str) -> list[dict[str, Any]]:
    """The kernels of each module by their names, for the device, which is the current one; compiled once a process, and
    all that are to be at the same time: a module takes NVRTC seconds.

    Raises EngineUnsupported where any would have to be compiled in a capture: modules are not loaded there.
    """
    try:
        return [_compiled[cupy, device, module] for module in modules]
    except KeyError:
        missing = [module for module in modules if (cupy, device, module) not in _compiled]
    if capturing:
        raise EngineUnsupported(
            f"engine {engine!r} has not compiled its kernels for this dtype and these label lengths yet, and cannot "
            "while a graph is captured: call it once with the same shapes before the capture"
        )
    for module in missing:
        log.debug("%s: kernels are compiled: %s of %s", engine, module.kind, dict(module.numbers))
    with ThreadPoolExecutor(len(missing)) as threads:
        found = threads.map(partial(_compile, cupy, device), missing)
    _compiled.update(zip(((cupy, device, module) for module in missing), found))
    return [_compiled[cupy, device, module] for module in modules]


def _compile(cupy: Any, device: int, module: Module) -> dict[str, Any]:
    """In a thread that ends with it: what device it had before is left alone, and gets no context."""
    cupy.cuda.Device(device).use()
    _, names = MODULES[module.kind]
    made = cupy.RawModule(code=module.source, options=module.options)
    return {name: made.get_function(name) for name in names}
