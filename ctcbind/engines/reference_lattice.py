"""The reference for what lies beyond the loss: lattice, best path and second derivatives in float64 NumPy.

Graves et al., ICML 2006; equation numbers are the paper's. One sample a call: `log_y` (T, C) is the log softmax of
its logits, T at least 1. Slow, and made to be read.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Graph", "best_path", "hessian", "hvp", "lattice", "make_graph"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


class Graph(NamedTuple):
    """`extended` (S,): l' of section 4.1; `moves` (S, S): 0 where a path may go from row to column, else -inf."""

    extended: Ints
    moves: Floats


def make_graph(labels: Ints, blank: int, *, merge_repeats: bool = True) -> Graph:
    S = 2 * len(labels) + 1
    extended = np.full(S, blank, dtype=np.int32)
    extended[1::2] = labels
    moves = np.full((S, S), -np.inf)
    for s in range(S):
        label = s % 2 == 1
        if merge_repeats or not label:
            moves[s, s] = 0
        if s >= 1:
            moves[s - 1, s] = 0
        if label and s >= 3 and not (merge_repeats and extended[s] == extended[s - 2]):
            moves[s - 2, s] = 0
    return Graph(extended, moves)


def lattice(graph: Graph, emit: Floats) -> tuple[Floats, Floats, Floats, float]:
    """(ln α, ln β, ln γ, ln Z) of the scores (T, S) of each state at each frame."""
    T, S = emit.shape
    alpha, rest = np.full((T, S), -np.inf), np.full((T, S), -np.inf)
    alpha[0, :2] = emit[0, :2]
    rest[-1, -2:] = 0  # β without the score at t
    for t in range(1, T):  # equations 6 to 8
        alpha[t] = emit[t] + np.logaddexp.reduce(alpha[t - 1][:, None] + graph.moves, axis=0)
    for t in range(T - 2, -1, -1):  # equations 9 to 11
        rest[t] = np.logaddexp.reduce(graph.moves + rest[t + 1] + emit[t + 1], axis=1)
    log_z = float(np.logaddexp.reduce(alpha[-1, -2:]))
    gamma = alpha + rest - log_z if log_z > -np.inf else np.full((T, S), -np.inf)
    return alpha, rest + emit, gamma, log_z


def best_path(graph: Graph, emit: Floats) -> tuple[Ints, float]:
    """(states (T,), their score): a tie goes to the last label at the end, then to the nearest state before."""
    T, S = emit.shape
    score = np.full((T, S), -np.inf)
    score[0, :2] = emit[0, :2]
    for t in range(1, T):
        score[t] = emit[t] + (score[t - 1][:, None] + graph.moves).max(axis=0)
    state = max(range(max(S - 2, 0), S), key=lambda s: (score[-1, s], -s))
    best = float(score[-1, state])
    states = np.full(T, -1, dtype=np.int32)
    for t in range(T - 1, -1, -1):
        states[t] = state
        if t:
            state = max(range(state + 1), key=lambda s, to=state: (score[t - 1, s] + graph.moves[s, to], s))  # type: ignore[misc]
    return states, best


def hvp(log_y: Floats, graph: Graph, v: Floats) -> Floats:
    """The Hessian of the loss times v (T, C): the gradient y - γ, differentiated along v."""
    T, C = log_y.shape
    y = np.exp(log_y)
    along = v - (y * v).sum(axis=1, keepdims=True)  # of ln y
    emit, slope = log_y[:, graph.extended], along[:, graph.extended]
    alpha, beta, gamma, log_z = lattice(graph, emit)
    if log_z == -np.inf:
        return np.zeros((T, C))
    d_alpha, d_rest = np.zeros_like(emit), np.zeros_like(emit)  # of ln α, and of ln β without the score at t
    d_alpha[0] = slope[0]
    for t in range(1, T):
        d_alpha[t] = slope[t] + _mean(alpha[t - 1][:, None] + graph.moves, d_alpha[t - 1][:, None], axis=0)
    for t in range(T - 2, -1, -1):
        d_rest[t] = _mean(graph.moves + beta[t + 1], d_rest[t + 1] + slope[t + 1], axis=1)
    d_log_z = _mean(alpha[-1, -2:], d_alpha[-1, -2:], axis=0)
    d_gamma = np.exp(gamma) * (d_alpha + d_rest - d_log_z)
    product: Floats = y * along
    np.subtract.at(product.T, graph.extended, d_gamma.T)
    return product


def hessian(log_y: Floats, graph: Graph) -> Floats:
    """(T, C, T, C): the covariance of each softmax, less that of the classes that the paths are in."""
    T, C = log_y.shape
    _, beta, log_gamma, log_z = lattice(graph, log_y[:, graph.extended])
    H = np.zeros((T, C, T, C))
    if log_z == -np.inf:
        return H
    of_class = np.equal.outer(graph.extended, np.arange(C)).astype(np.float64)  # (S, C)
    y, gamma = np.exp(log_y), np.exp(log_gamma)
    counts = gamma @ of_class
    for t in range(T):
        H[t, :, t] = np.diag(y[t] - counts[t]) - np.outer(y[t], y[t]) + np.outer(counts[t], counts[t])
        pair = np.diag(gamma[t])  # of states at t and u
        for u in range(t + 1, T):
            to = graph.moves + beta[u]  # of the paths in a state at u - 1, where they go
            top = to.max(axis=1, keepdims=True)
            weight = np.exp(to - np.where(top == -np.inf, 0, top))
            pair = pair @ (weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300))
            H[t, :, u] = np.outer(counts[t], counts[u]) - of_class.T @ pair @ of_class
            H[u, :, t] = H[t, :, u].T
    return H


def _mean(log_weights: Floats, values: Floats, axis: int) -> Floats:
    """The mean of the values, weighted; 0 where no weight is."""
    top = log_weights.max(axis=axis, keepdims=True)
    weights = np.exp(log_weights - np.where(top == -np.inf, 0, top))
    total = weights.sum(axis=axis)
    mean: Floats = (weights * values).sum(axis=axis) / np.where(total == 0, 1, total)
    return mean
