"""How a batch is laid out for the kernels: threads, shared memory, and the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .kernels import PAIRS

__all__ = ["KernelLayout", "plan_layout"]

WARP = 32
PHASE = 16  # frames to a barrier, as in lattice.cuh
SCRATCH = 256  # bytes of shared memory for sums over a block, as in groups.cuh
SHARED = 48 * 1024  # what every device gives a block without being asked
BLOCKS = 1 << 18  # rows are dealt out to no more blocks than these
WIDE_ROW = 1024  # classes from which on a whole block takes a row
ALIGNED = 256


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """Numbers of the launches, and where each array of the workspace of `size` bytes begins.

    `pitch`, `columns`, `sparse`, `rows` and the arrays of `offsets` are those of `Problem` in types.cuh.
    """

    pairs: int
    warps: int
    pitch: int
    columns: int
    sparse: bool
    rows: int
    shape: str
    row_threads: int
    row_blocks: int
    tile: int
    gradient_shared: int
    lattice_shared: int
    offsets: dict[str, int]
    size: int

    @property
    def lattice_threads(self) -> int:
        """Half of them work on alpha, half on beta."""
        return 2 * WARP * self.warps


@lru_cache(maxsize=64)
def plan_layout(T: int, N: int, C: int, longest: int, real: int, with_grad: bool) -> KernelLayout:
    """The layout of a batch whose labels are at most `longest`, computed in numbers of `real` bytes (4 or 8)."""
    longest = min(longest, T)  # longer ones have no path
    pitch = longest + 1
    pairs, warps = _lanes(pitch)
    sparse = pitch < C
    columns = pitch if sparse else C
    rows = T + 2 if with_grad else 2
    scaled = 2 * real
    shape = "block" if C > WIDE_ROW else "warp"
    threads, groups = (256, 1) if shape == "block" else (128, 4)
    tile = min(max(longest if sparse else C, 1), (SHARED - SCRATCH) // (groups * real) // 8 * 8)
    strips = -(-pitch // (pairs * WARP * warps))
    offsets, size = {}, 0
    for name, count, width in (
        ("clean", N * pitch, 4),
        ("slot", N * pitch, 4),
        ("lengths", 2 * N, 4),
        ("status", N, 4),
        ("most", N, 4),
        ("base", N * T, 8),
        ("top", N * T, real),
        ("high", N * T, real),
        ("inverse", N * T, real),
        ("emitted", N * T * columns, scaled),
        ("lattice", N * rows * 2 * pitch, scaled),
        ("edges", 4 * N * T if strips > 1 else 0, scaled),
    ):
        offsets[name] = size
        size += -(-count * width // ALIGNED) * ALIGNED
    return KernelLayout(
        pairs=pairs,
        warps=warps,
        pitch=pitch,
        columns=columns,
        sparse=sparse,
        rows=rows,
        shape=shape,
        row_threads=threads,
        row_blocks=min(-(-T * N // groups), BLOCKS),
        tile=tile,
        gradient_shared=SCRATCH + groups * tile * real,
        lattice_shared=SCRATCH + 2 * warps * 2 * PHASE * scaled,
        offsets=offsets,
        size=size,
    )


def _lanes(pitch: int) -> tuple[int, int]:
    """(pairs to a lane, warps to a direction): the fewest pairs with which the labels take one strip."""
    for pairs, most in PAIRS.items():
        warps = -(-pitch // (pairs * WARP))
        if warps <= most:
            return pairs, warps
    return pairs, most
