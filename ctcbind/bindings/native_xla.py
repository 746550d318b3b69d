"""csrc/xla.h: the loss as a function that programs compiled by XLA call."""

from __future__ import annotations

from ._native import ffi, lib

__all__ = ["loss_address", "set_threads"]


def loss_address() -> int:
    """Of ctcbind_xla_loss."""
    return int(ffi.cast("intptr_t", ffi.addressof(lib, "ctcbind_xla_loss")))


def set_threads(count: int) -> None:
    """How many threads its calls may use from now on."""
    lib.ctcbind_xla_threads(count)
