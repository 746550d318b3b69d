"""The native engine inside programs that XLA has compiled."""

from __future__ import annotations

from functools import cache

from ..bindings import native_xla
from ..threads import tell_threads

__all__ = ["loss_function"]


@cache
def loss_function() -> int:
    """The address of the function that csrc/xla.h describes; its threads follow `set_num_threads`.

    Raises InvalidInput where CTCBIND_ISA asks for what is not to be had here.
    """
    from .native import ENGINE

    ENGINE.library()
    tell_threads(native_xla.set_threads)
    return native_xla.loss_address()
