"""csrc/xla.h: the loss and products with its Hessian as functions that programs compiled by XLA call."""

from __future__ import annotations

from ._native import ffi, lib

__all__ = ["loss_address", "product_address", "set_threads"]


def loss_address() -> int:
    """Of ctcbind_xla_loss."""
    return _address("ctcbind_xla_loss")


def product_address() -> int:
    """Of ctcbind_xla_product."""
    return _address("ctcbind_xla_product")


def _address(name: str) -> int:
    return int(ffi.cast("intptr_t", ffi.addressof(lib, name)))


def set_threads(count: int) -> None:
    """How many threads its calls may use from now on."""
    lib.ctcbind_xla_threads(count)
