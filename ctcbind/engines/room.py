"""Memory of gradients that nobody holds any more, given out again: new memory costs as much as the loss itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGE", "Room"]

#: Bytes from which the system hands out a large array as new pages, each zeroed when it is first written.
LARGE = 1 << 20
#: Two: `result = plan(...)` in a loop still holds the last gradient while the next is made.
KEPT = 2


def _counts_references() -> bool:
    return sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _references(blocks: Sequence[object], index: int) -> int:
    return sys.getrefcount(blocks[index])


#: The count of a block that nothing but the list refers to.
_OURS_ALONE = _references([object()], 0) if _counts_references() else 0


class Room:
    """Arrays for results; up to two large blocks are kept, and given out again once no array lies in them."""

    def __init__(self) -> None:
        self._blocks: list[npt.NDArray[np.uint8]] = []
        self._keeps = _counts_references()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An uninitialised array in C order, as numpy.empty makes."""
        size = dtype.itemsize
        for length in shape:
            size *= length
        if size < LARGE or not self._keeps:
            return np.empty(shape, dtype)
        return self._block(size).view(dtype).reshape(shape)

    def keep_none(self) -> None:
        """From now on makes new arrays only."""
        self._keeps = False
        self._blocks = []

    def close(self) -> None:
        """Forgets the blocks; arrays that lie in them keep them alive."""
        self._blocks = []

    def _block(self, size: int) -> npt.NDArray[np.uint8]:
        blocks = self._blocks
        for index in range(len(blocks)):
            if blocks[index].size == size and _references(blocks, index) == _OURS_ALONE:
                return blocks[index]
        block = np.empty(size, np.uint8)
        self._blocks = [*blocks[1 - KEPT :], block]
        return block
