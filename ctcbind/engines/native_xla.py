"""The native engine inside programs that XLA has compiled."""

from __future__ import annotations

from functools import cache

from ..bindings import native_xla
from ..bindings.native_rows import TOPOLOGIES
from ..threads import tell_threads

__all__ = ["TOPOLOGIES", "lattice_function", "loss_function", "product_function"]


def loss_function() -> int:
    """The address of ctcbind_xla_loss of csrc/xla.h; its threads follow `set_num_threads`.

    Raises InvalidInput where CTCBIND_ISA asks for what is not to be had here.
    """
    _ready()
    return native_xla.loss_address()


def product_function() -> int:
    """The same of ctcbind_xla_product."""
    _ready()
    return native_xla.product_address()


def lattice_function() -> int:
    """The same of ctcbind_xla_lattice."""
    _ready()
    return native_xla.lattice_address()


@cache
def _ready() -> None:
    from .native import ENGINE

    ENGINE.library()
    tell_threads(native_xla.set_threads)
