"""csrc/lattice.h, csrc/align.h and csrc/second_order.h: `count` samples a call, as arrays of C structs. Every
sample has a status of its own."""

from __future__ import annotations

from typing import Any

from ._native import lib
from .native_rows import finish
from .native_stop import ask

__all__ = ["align", "align_bytes", "hessian_bytes", "hessians", "lattices", "products"]


def lattices(graphs: Any, to: Any, count: int, threads: int) -> None:
    """ctcbind_lattices, of ctcbind_graph into ctcbind_lattice."""
    finish(lib.ctcbind_lattices(graphs, to, count, threads, ask))


def align(graphs: Any, to: Any, count: int, threads: int) -> None:
    """ctcbind_alignments, of ctcbind_graph into ctcbind_alignment."""
    finish(lib.ctcbind_alignments(graphs, to, count, threads, ask))


def align_bytes(T: int, L: int, C: int) -> int:
    """ctcbind_align_bytes: the scratch memory that one sample takes of `align`."""
    return int(lib.ctcbind_align_bytes(T, L, C))


def products(graphs: Any, to: Any, count: int, threads: int) -> None:
    """ctcbind_products, of ctcbind_graph into ctcbind_product: Hessians times vectors."""
    finish(lib.ctcbind_products(graphs, to, count, threads, ask))


def hessian_bytes(T: int, L: int, C: int) -> int:
    """ctcbind_hessian_bytes: the scratch memory that one sample takes of `hessians`."""
    return int(lib.ctcbind_hessian_bytes(T, L, C))


def hessians(graphs: Any, to: Any, count: int, threads: int) -> None:
    """ctcbind_hessians, of ctcbind_graph into ctcbind_hessian."""
    finish(lib.ctcbind_hessians(graphs, to, count, threads, ask))
