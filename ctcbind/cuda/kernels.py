"""The kernels' sources, and their compilation at run time by NVRTC through CuPy, which keeps what it has compiled."""

from __future__ import annotations

import logging
import struct
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from ..errors import EngineUnsupported

__all__ = [
    "AROUND",
    "DTYPES",
    "LANES",
    "PARTS",
    "PROBLEM",
    "Around",
    "Kernels",
    "Lanes",
    "as_argument",
    "compiled_around",
    "compiled_kernels",
    "forget",
    "options",
    "source",
]

log = logging.getLogger("ctcbind")

#: In the order in which each may use what stands before it.
PARTS = ("types", "number", "groups", "places", "prepare", "rows", "lattice", "gradient", "reduce", "around")
#: CTC_X of each dtype of logits.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}


class Lanes(NamedTuple):
    """What the lattice is compiled for: how many pairs of states a lane holds (CTC_K), how many warps go in each
    direction (CTC_W), and how many directions share a block (CTC_WAYS)."""

    pairs: int
    warps: int
    ways: int

    @property
    def width(self) -> int:
        """How many pairs a direction holds at once."""
        return 32 * self.pairs * self.warps


#: The first that holds the longest label of a batch is taken.
LANES = (Lanes(1, 1, 2), Lanes(1, 2, 2), Lanes(1, 4, 2), Lanes(2, 4, 2), Lanes(2, 8, 1), Lanes(4, 8, 1))
#: In their place, for what goes around a call of cuDNN.
AROUND = Lanes(0, 0, 0)

#: The one argument of every kernel, `Problem` in types.cuh, all 0: addresses and integers, 8 bytes each.
PROBLEM = dict.fromkeys(
    " ".join(
        (
            "logits x_t x_n grad g_t g_n losses labels label_lengths input_lengths label_width label_total wide",
            "T N C blank simple weighing weights pitch sparse table strips",
            "clean slot lengths status most measures emitted blanks lattice middles edges",
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


@cache
def source() -> str:
    """All kernels as one text, which needs no header; errors are counted in the lines of each part."""
    folder = files(__package__) / "kernels"
    parts = ((name, (folder / f"{name}.cuh").read_text(encoding="utf-8")) for name in PARTS)
    return "".join(f'#line 1 "ctcbind/cuda/kernels/{name}.cuh"\n{text}' for name, text in parts)


def options(dtype: str, lanes: Lanes) -> tuple[str, ...]:
    """NVRTC's options; `lanes` is one of LANES, or AROUND.

    Sums of products are contracted where the source says so, and nowhere else.
    """
    values = {"X": DTYPES[dtype], "K": lanes.pairs, "W": lanes.warps, "WAYS": lanes.ways}
    return ("-std=c++17", "--fmad=false", *(f"-DCTC_{name}={value}" for name, value in values.items()))


class Kernels:
    """The kernels for one dtype and one of LANES, compiled for the current device."""

    def __init__(self, cupy: Any, dtype: str, lanes: Lanes) -> None:
        log.debug("cuda: kernels for %s, %d pairs to a lane, %d warps, %d ways to a block", dtype, *lanes)
        module = cupy.RawModule(code=source(), options=options(dtype, lanes))
        self.prepare = module.get_function("ctc_prepare")
        self.lattice = module.get_function("ctc_lattice")
        self.rows = {shape: module.get_function(f"ctc_rows_by_{shape}") for shape in ("warp", "block")}
        self.gradient = {shape: module.get_function(f"ctc_gradient_by_{shape}") for shape in ("warp", "block")}
        self.reduce = module.get_function("ctc_reduce")


class Around:
    """The kernels that go around a call of cuDNN, for one dtype, compiled for the current device."""

    def __init__(self, cupy: Any, dtype: str) -> None:
        log.debug("cudnn: kernels for %s, for labels on the device", dtype)
        module = cupy.RawModule(code=source(), options=options(dtype, AROUND))
        self.prepare = module.get_function("ctc_prepare")
        self.pack = module.get_function("ctc_pack")
        self.move = module.get_function("ctc_move")
        self.look = module.get_function("ctc_look")
        self.judge = module.get_function("ctc_judge")
        self.put = module.get_function("ctc_put")
        self.reduce = module.get_function("ctc_reduce")


#: CuPy compiles a module once a process too, but to ask it for one again takes longer than the launches of a batch.
_kernels: dict[tuple[Any, int, str, Lanes], Kernels] = {}
_around: dict[tuple[Any, int, str], Around] = {}


def compiled_kernels(cupy: Any, device: int, dtype: str, lanes: Lanes, capturing: bool) -> Kernels:
    """Those of the engine cuda, for the device, which is the current one; once a process."""
    key = cupy, device, dtype, lanes
    found = _kernels.get(key)
    if found is None:
        _refuse_to_compile("cuda", capturing)
        found = _kernels[key] = Kernels(cupy, dtype, lanes)
    return found


def compiled_around(cupy: Any, device: int, dtype: str, capturing: bool) -> Around:
    """Those that go around a call of cuDNN, likewise."""
    key = cupy, device, dtype
    found = _around.get(key)
    if found is None:
        _refuse_to_compile("cudnn", capturing)
        found = _around[key] = Around(cupy, dtype)
    return found


def forget() -> None:
    """Keeps none of them."""
    _kernels.clear()
    _around.clear()


def _refuse_to_compile(engine: str, capturing: bool) -> None:
    """Raises EngineUnsupported in a capture: modules are not loaded there."""
    if capturing:
        raise EngineUnsupported(
            f"engine {engine!r} has not compiled its kernels for this dtype and these label lengths yet, and cannot "
            "while a graph is captured: call it once with the same shapes before the capture"
        )
