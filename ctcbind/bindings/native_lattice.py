"""csrc/lattice.h, csrc/align.h and csrc/second_order.h, one sample a call. Addresses are ints, 0 is NULL."""

from __future__ import annotations

from ._native import ffi, lib
from .native_rows import GraphArgs, RowsArgs, check, fill_graph, fill_rows

__all__ = ["align", "align_bytes", "hessian", "hvp", "lattice"]


def lattice(
    graph: GraphArgs, *, stride: int, alpha: int = 0, beta: int = 0, gamma: int = 0, counts: int = 0, softmax: int = 0
) -> float | None:
    """ctcbind_lattice_run: ln of the sum over all paths, -inf where there is none; None where a logit is NaN."""
    c_graph = fill_graph(ffi.new("ctcbind_graph *"), graph)
    to = ffi.new("ctcbind_lattice *")
    to.stride = stride
    to.log_alpha, to.log_beta, to.log_gamma = (ffi.cast("double *", each) for each in (alpha, beta, gamma))
    to.counts, to.softmax = ffi.cast("double *", counts), ffi.cast("double *", softmax)
    done = check("ctcbind_lattice_run", lib.ctcbind_lattice_run(c_graph, to))
    return float(to.log_z) if done else None


def align(graph: GraphArgs, *, states: int, starts: int, ends: int, scores: int) -> float | None:
    """ctcbind_align: the best path's score, -inf where there is none; None where a logit is NaN."""
    c_graph = fill_graph(ffi.new("ctcbind_graph *"), graph)
    to = ffi.new("ctcbind_alignment *")
    to.states, to.starts, to.ends = (ffi.cast("int32_t *", each) for each in (states, starts, ends))
    to.scores = ffi.cast("double *", scores)
    done = check("ctcbind_align", lib.ctcbind_align(c_graph, to))
    return float(to.log_p) if done else None


def align_bytes(T: int, L: int, C: int) -> int:
    """ctcbind_align_bytes: the scratch memory that one call of `align` takes."""
    return int(lib.ctcbind_align_bytes(T, L, C))


def hvp(graph: GraphArgs, along: RowsArgs, out: int) -> bool:
    """ctcbind_hvp into T * C doubles; False where a logit is NaN."""
    c_graph = fill_graph(ffi.new("ctcbind_graph *"), graph)
    c_along = fill_rows(ffi.new("ctcbind_rows *"), along)
    return check("ctcbind_hvp", lib.ctcbind_hvp(c_graph, c_along, ffi.cast("double *", out)))


def hessian(graph: GraphArgs, out: int, T_out: int) -> bool:
    """ctcbind_hessian into (T_out, C, T_out, C) zeros; False where a logit is NaN."""
    c_graph = fill_graph(ffi.new("ctcbind_graph *"), graph)
    return check("ctcbind_hessian", lib.ctcbind_hessian(c_graph, ffi.cast("double *", out), T_out))
