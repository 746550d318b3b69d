"""csrc/python/direct.c and packer.c: NumPy arrays to the native engine, and labels for a device, without Python in
between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from . import native
from ._native import ffi, lib
from .native_stop import ask

__all__ = ["Direct", "Packed", "Packer", "open_direct", "open_packer"]

#: Takes (logits, targets, input_lengths, target_lengths). Answers None where it declines: not a plain batch that is
#: right, a workspace too small, or the workspace is in use.
Direct = Callable[[Any, Any, Any, Any], Any]

#: Bytes, where they lie, and how many labels the longest sample has. In the bytes, all int32: N label lengths, N input
#: lengths and, but where they are on the device, all labels.
Packed = tuple[bytes, int, int]


class Packer(Protocol):
    """csrc/python/packer.c: None for what is not plain or not right."""

    def pack(self, shape: Any, targets: Any, input_lengths: Any, target_lengths: Any, /) -> Packed | None:
        """`shape` is that of the logits."""

    def lengths(self, shape: Any, most: int, input_lengths: Any, target_lengths: Any, /) -> Packed | None:
        """No sample has more than `most` labels; None are lengths that are not asked for."""


REDUCTIONS = ("none", "sum", "batch_mean", "label_mean")


def open_direct(
    problem: native.Problem,
    turn: tuple[Any, bytearray, Callable[[], None]],
    *,
    blank: int,
    layout: str,
    topology: str,
    reduction: str,
    zero_infinity: bool,
    dtypes: tuple[str, ...],
    arrays: tuple[Any, ...],
    large: int,
    empty_large: Callable[..., Any],
    threads: Callable[[], int | None],
    own_threads: int,
    result: type,
    empty: Callable[..., Any] | None = None,
) -> tuple[Direct, Direct]:
    """The calls for a loss and gradient, and for a loss, with the workspace of `problem`.

    `turn` is the Turn of the plan whose calls these are (engines/turn.py): its lock, its state of one byte, and what
    closes the workspace. `arrays` are three tuples in the order of `dtypes`: the dtypes of logits, those of their
    losses, and what makes a reduced loss of a float. `empty(shape, dtype)` makes results below `large` bytes, or NumPy
    itself if it is None; `empty_large` makes the others. `threads` tells how many threads to use; None means
    `own_threads`.
    """
    from ._direct import Direct as Object

    lock, state, closing = turn
    direct = Object(
        (_address("ctcbind_loss"), _number(ask)),
        (layout == "NTC", native.TOPOLOGIES[topology], blank, REDUCTIONS.index(reduction), zero_infinity),
        tuple(native.DTYPES[name] for name in dtypes),
        large,
        own_threads,
        arrays,
        (empty, empty_large, lock.acquire, lock.release, state, closing, threads, native.fail, result, "native"),
    )
    problem.follow(direct.workspace, direct.close)
    return direct.both, direct.loss


def open_packer(blank: int, layout: str) -> Packer:
    """What makes one row of bytes of a batch's labels and lengths, where they are plain and right."""
    from ._direct import Packer as Object

    packer: Packer = Object(layout == "NTC", blank)
    return packer


def _address(function: str) -> int:
    return _number(ffi.addressof(lib, function))


def _number(pointer: Any) -> int:
    return int(ffi.cast("intptr_t", pointer))
