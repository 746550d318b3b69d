"""csrc/lattice.h, csrc/align.h and csrc/second_order.h: `count` samples a call, as arrays of structs that are given by
their address. Every sample has a status of its own."""

from __future__ import annotations

from ._native import ffi, lib
from .native_rows import finish
from .native_stop import ask

__all__ = ["align", "align_bytes", "hessian_bytes", "hessians", "lattices", "products"]


def lattices(graphs: int, to: int, count: int, threads: int) -> None:
    """ctcbind_lattices, of ctcbind_graph into ctcbind_lattice."""
    c_graphs, c_to = ffi.cast("ctcbind_graph *", graphs), ffi.cast("ctcbind_lattice *", to)
    finish(lib.ctcbind_lattices(c_graphs, c_to, count, threads, ask))


def align(graphs: int, to: int, count: int, threads: int) -> None:
    """ctcbind_alignments, of ctcbind_graph into ctcbind_alignment."""
    c_graphs, c_to = ffi.cast("ctcbind_graph *", graphs), ffi.cast("ctcbind_alignment *", to)
    finish(lib.ctcbind_alignments(c_graphs, c_to, count, threads, ask))


def align_bytes(T: int, L: int, C: int) -> int:
    """ctcbind_align_bytes: the scratch memory that one sample takes of `align`."""
    return int(lib.ctcbind_align_bytes(T, L, C))


def products(graphs: int, to: int, count: int, threads: int) -> None:
    """ctcbind_products, of ctcbind_graph into ctcbind_product: Hessians times vectors."""
    c_graphs, c_to = ffi.cast("ctcbind_graph *", graphs), ffi.cast("ctcbind_product *", to)
    finish(lib.ctcbind_products(c_graphs, c_to, count, threads, ask))


def hessian_bytes(T: int, L: int, C: int) -> int:
    """ctcbind_hessian_bytes: the scratch memory that one sample takes of `hessians`."""
    return int(lib.ctcbind_hessian_bytes(T, L, C))


def hessians(graphs: int, to: int, count: int, threads: int) -> None:
    """ctcbind_hessians, of ctcbind_graph into ctcbind_hessian."""
    c_graphs, c_to = ffi.cast("ctcbind_graph *", graphs), ffi.cast("ctcbind_hessian *", to)
    finish(lib.ctcbind_hessians(c_graphs, c_to, count, threads, ask))
