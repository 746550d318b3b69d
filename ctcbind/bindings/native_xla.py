"""csrc/xla.h: what programs compiled by XLA call: the loss, products with its Hessian, and the lattice's loss."""

from __future__ import annotations

from ._native import ffi, lib

__all__ = ["lattice_address", "loss_address", "product_address", "set_threads"]


def loss_address() -> int:
    """Of ctcbind_xla_loss."""
    return _address("ctcbind_xla_loss")


def product_address() -> int:
    """Of ctcbind_xla_product."""
    return _address("ctcbind_xla_product")


def lattice_address() -> int:
    """Of ctcbind_xla_lattice."""
    return _address("ctcbind_xla_lattice")


def _address(name: str) -> int:
    return int(ffi.cast("intptr_t", ffi.addressof(lib, name)))


def set_threads(count: int) -> None:
    """How many threads its calls may use from now on."""
    lib.ctcbind_xla_threads(count)
