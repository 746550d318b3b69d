"""How a batch is laid out for the kernels: threads, shared memory, and the workspace."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .kernels import LANES, Lanes

__all__ = ["SCRATCH", "THREADS", "KernelLayout", "plan_layout", "row_blocks"]

WARP = 32
THREADS = 128  # of each block but the lattice's, as in groups.cuh
PHASE = 16  # frames to a barrier, as in places.cuh
MARGIN = 24  # rows that are read and written beside a sample's own, likewise
SCRATCH = 256  # bytes of shared memory for sums over a block, as in groups.cuh
SHARED = 48 * 1024  # what every device gives a block without being asked
BLOCKS = 1 << 18  # that rows are dealt out to at most
NARROW_ROW = WARP  # classes up to which a lane has one, and a warp several rows in turn
WIDE_ROW = 1024  # classes from which on a whole block takes a row
WARPS = 4096  # so many keep a device busy: no warp takes a second row as long as there are fewer
STRETCH = 3  # log2 of the rows that one takes at most
ALIGNED = 256


@dataclass(frozen=True, slots=True)
class KernelLayout:
    """Numbers of the launches, and where each array of the workspace of `size` bytes begins.

    `pitch`, `sparse`, `table`, `width_bits`, `strips` and the arrays of `offsets` are those of `Problem` in types.cuh;
    `lanes` is one of LANES. `shape` says what has a row, a "warp" or a "block", or that a "lane" has a class; then
    a warp takes 2^`stretch` rows in turn.
    """

    lanes: Lanes
    pitch: int
    sparse: bool
    table: bool
    width_bits: int
    strips: int
    shape: str
    stretch: int
    row_blocks: int
    rows_shared: int
    tile: int
    gradient_shared: int
    lattice_shared: int
    offsets: dict[str, int]
    size: int

    @property
    def lattice_threads(self) -> int:
        """Of one block."""
        return WARP * self.lanes.warps * self.lanes.ways

    @property
    def of_rows(self) -> tuple[int, ...]:
        """What the kernel that reads the rows takes beside the problem."""
        return (self.stretch,) if self.shape == "lane" else ()

    @property
    def of_gradient(self) -> tuple[int, ...]:
        """Likewise the one that writes the gradient."""
        return (self.stretch if self.shape == "lane" else self.tile,)


@lru_cache(maxsize=64)
def plan_layout(T: int, N: int, C: int, longest: int, real: int, with_grad: bool) -> KernelLayout:
    """The layout of a batch whose labels are at most `longest`, computed in numbers of `real` bytes (4 or 8)."""
    longest = min(longest, T)  # longer ones have no path
    pitch = longest + 1
    lanes = next((each for each in LANES if each.width >= pitch), LANES[-1])
    width = lanes.width
    strips = -(-pitch // width)
    sparse = pitch < C
    scaled = 2 * real
    shape = "block" if C > WIDE_ROW else "warp" if C > NARROW_ROW else "lane"
    groups = 1 if shape == "block" else THREADS // WARP
    stretch = min(max((T * N // WARPS).bit_length() - 1, 0), STRETCH) if shape == "lane" else 0
    table = shape != "lane" and not sparse and SCRATCH + groups * 2 * C * scaled <= SHARED
    tile = min(max(longest if sparse else C, 1), (SHARED - SCRATCH) // (groups * real) // 8 * 8)
    sums = WARP if shape == "lane" else tile
    kept = T // 2 + 1 + MARGIN if with_grad else PHASE
    offsets, size = {}, 0
    for name, count, bytes_each in (
        ("clean", N * pitch, 4),
        *((("slot", N * pitch, 4),) if shape != "lane" else ()),  # without it, nothing is prepared for it either
        ("lengths", 2 * N, 4),
        ("status", N, 4),
        ("strange", N, 4),
        ("losses", N, real),
        ("measures", 4 * N * T, real),
        ("emitted", (N * strips * (T + MARGIN) + MARGIN) * width, scaled),
        ("blanks", N * (T + MARGIN) + MARGIN, scaled),
        ("lattice", (2 * N * strips * kept + MARGIN) * width, 2 * scaled),
        ("middles", N * pitch, 2 * scaled),
        ("edges", 4 * N * (strips - 1) * (T // 2 + 1), scaled),
        ("tickets", 2, 4),
    ):
        offsets[name] = size
        size += -(-count * bytes_each // ALIGNED) * ALIGNED
    return KernelLayout(
        lanes=lanes,
        pitch=pitch,
        sparse=sparse,
        table=table,
        width_bits=width.bit_length() - 1,
        strips=strips,
        shape=shape,
        stretch=stretch,
        row_blocks=row_blocks(-(-T >> stretch) * N, groups),
        rows_shared=SCRATCH + (groups * 2 * C * scaled if table else 0),
        tile=tile,
        gradient_shared=SCRATCH + groups * sums * real,
        lattice_shared=SCRATCH + lanes.ways * (lanes.warps + 1) * 2 * PHASE * scaled,
        offsets=offsets,
        size=size,
    )


def row_blocks(rows: int, groups: int = THREADS // WARP) -> int:
    """How many blocks, of so many groups of threads each, rows are dealt out to."""
    return min(-(-rows // groups), BLOCKS)
