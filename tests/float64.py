"""Two judges in float64 for inputs on which log space in float64 is too slow or no longer exact.

`exact_ctc`: a state is mantissa * 2^exponent with an int64 exponent, so nothing under- or overflows, and no logarithm
of a small probability is rounded: log space loses |ln alpha| * 2^-53 a frame. `tilted_ctc`: plain linear space with one
scale a frame, fast enough for T = 20000 with L = 2000, for logits that are not sharp; it refuses others.
`test_native_exact.py` holds both against the reference engine.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = ["exact_ctc", "tilted_ctc"]

LN2 = math.log(2)
NONE = -(2**62)  # the exponent of a state that has no probability


def _normal(m: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m, shift = np.frexp(m)
    return m, np.where(m > 0, e + shift, NONE)


def _sum(terms: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    top = terms[0][1]
    for _, e in terms[1:]:
        top = np.maximum(top, e)
    total = np.zeros(top.shape)
    for m, e in terms:
        total += np.ldexp(m, np.maximum(e - top, -2000).astype(np.int32))
    return total, top


def _moved(state: tuple[np.ndarray, np.ndarray], places: int) -> tuple[np.ndarray, np.ndarray]:
    """The state so many places before each (after it, if negative)."""
    m, e = np.zeros_like(state[0]), np.full_like(state[1], NONE)
    to, source = slice(max(places, 0), min(places, 0) or None), slice(max(-places, 0), min(-places, 0) or None)
    m[to], e[to] = state[0][source], state[1][source]
    return m, e


def exact_ctc(
    x: np.ndarray, labels: list[int], blank: int = 0, *, simple: bool = False, every: int = 64
) -> tuple[float, np.ndarray]:
    """(loss, gradient (T, C)) of one feasible sample, x (T, C) finite or -inf. Alpha is kept every so many frames."""
    T, C = x.shape
    x = x.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    shifted = x - top
    e = np.exp(shifted)
    others = e.copy()
    others[np.arange(T), shifted.argmax(axis=1)] = 0
    log_sum = np.log1p(others.sum(axis=1))  # exact where one class has nearly everything
    S = 2 * len(labels) + 1
    extended = np.full(S, blank)
    extended[1::2] = labels
    # emissions relative to the best class of the path: beside an unused one of 1e10 their digits would be lost
    best = x[:, extended].max(axis=1, keepdims=True)
    if not (best > -np.inf).all():
        return math.inf, np.zeros((T, C))
    shifted = x - best
    may_skip = np.zeros(S, dtype=bool)
    may_skip[3::2] = True if simple else extended[3::2] != extended[1:-2:2]
    may_stay = np.ones(S, dtype=bool)
    may_stay[1::2] = not simple

    def only(state: tuple[np.ndarray, np.ndarray], where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(where, state[0], 0), np.where(where, state[1], NONE)

    def emission(t: int) -> tuple[np.ndarray, np.ndarray]:
        binades = shifted[t].astype(np.longdouble) / np.log(np.longdouble(2))  # at 1e10 a double has no fine part
        whole = np.rint(np.clip(binades, -1e15, 1e15))  # of classes on the path, none is above 0
        with np.errstate(invalid="ignore"):
            fine = np.exp2(np.where(np.isfinite(binades), np.minimum(binades - whole, 1), -np.inf).astype(np.float64))
        return fine[extended], whole.astype(np.int64)[extended]

    def forward(state: tuple[np.ndarray, np.ndarray], t: int) -> tuple[np.ndarray, np.ndarray]:
        emit = emission(t)
        if t == 0:
            m, e2 = np.zeros(S), np.full(S, NONE)
            m[:2], e2[:2] = emit[0][:2], emit[1][:2]
            return _normal(m, e2)
        m, e2 = _sum([only(state, may_stay), _moved(state, 1), only(_moved(state, 2), may_skip)])
        return _normal(m * emit[0], e2 + emit[1])

    nothing = np.zeros(S), np.full(S, NONE)
    kept, state = {}, nothing
    for t in range(T):
        if t % every == 0:
            kept[t] = state
        state = forward(state, t)
    m, e2 = _sum([(state[0][k : k + 1], state[1][k : k + 1]) for k in range(max(S - 2, 0), S)])
    if m[0] == 0:
        return math.inf, np.zeros((T, C))
    p_m, p_e = float(m[0]), int(e2[0])
    loss = math.fsum([*log_sum, *(top - best)[:, 0], -math.log(p_m), -p_e * LN2])

    grad = e / (1 + others.sum(axis=1, keepdims=True))
    beta = nothing
    for first in range((T - 1) // every * every, -1, -every):
        rows, state = [], kept[first]
        for t in range(first, min(first + every, T)):
            state = forward(state, t)
            rows.append(state)
        for t in range(first + len(rows) - 1, -1 + first, -1):
            if t == T - 1:
                m, e2 = np.zeros(S), np.full(S, NONE)
                m[-2:], e2[-2:] = 0.5, 1
            else:
                m, e2 = _sum([only(beta, may_stay), _moved(beta, -1), _moved(only(beta, may_skip), -2)])
                m, e2 = _normal(m, e2)
            a_m, a_e = rows[t - first]
            with np.errstate(under="ignore"):
                occupied = np.ldexp(a_m * m / p_m, np.clip(a_e + e2 - p_e, -2000, 60).astype(np.int32))
            grad[t] -= np.bincount(extended, weights=occupied, minlength=C)
            emit = emission(t)
            beta = _normal(m * emit[0], e2 + emit[1])
    return max(loss, 0.0) + 0.0, grad


def tilted_ctc(x: np.ndarray, labels: list[int], blank: int = 0, *, every: int = 128) -> tuple[float, np.ndarray]:
    """The same for topology ctc and blunt logits: states in plain float64, state s weighted by tilt^(s / 2).

    A path that ends at state s has taken s / 2 labels, so the weights divide out, and they take away most of the
    spread that lies in the number of paths. alpha_t * beta_t must then sum to p in every frame; a state that was
    flushed to 0 and would have counted breaks that, and raises.
    """
    T, C = x.shape
    S = 2 * len(labels) + 1
    extended = np.full(S, blank)
    extended[1::2] = labels
    skip = np.zeros(S)
    skip[3::2] = extended[3::2] != extended[1:-2:2]
    x = x.astype(np.float64)
    top = x.max(axis=1, keepdims=True)
    e = np.exp(x - top)
    total = e.sum(axis=1, keepdims=True)
    y = e / total
    # a path of blanks and labels at rate L / T: one more label is worth about this
    rate = max(len(labels), 1) / T
    step = math.sqrt(rate / (2 * max(1 - rate, 1e-3)))
    alpha, logs, kept = np.zeros(S), 0.0, {}
    scales = np.empty(T)

    def forward(a: np.ndarray, t: int) -> np.ndarray:
        if t == 0:
            new = np.zeros(S)
            new[:2] = (1, step)[:S]
        else:
            new = a.copy()
            new[1:] += step * a[:-1]
            new[2:] += step * step * skip[2:] * a[:-2]
        new *= y[t, extended]
        return new

    for t in range(T):
        if t % every == 0:
            kept[t] = alpha
        alpha = forward(alpha, t)
        scales[t] = alpha.max()
        if not scales[t] > 0:
            raise ValueError(f"frame {t}: no state is left; these logits are too sharp")
        alpha /= scales[t]
        logs += math.log(scales[t])
    p = alpha[-1] + (step * alpha[-2] if S > 1 else 0)
    if not p > 0:
        raise ValueError("no state is left at the end; these logits are too sharp")
    loss = -(logs + math.log(p) - (S - 1) * math.log(step))
    grad = y.copy()
    beta = np.zeros(S)
    for first in range((T - 1) // every * every, -1, -every):
        rows, a = [], kept[first]
        for t in range(first, min(first + every, T)):
            a = forward(a, t)
            a /= scales[t]
            rows.append(a)
        for t in range(first + len(rows) - 1, first - 1, -1):
            if t == T - 1:
                new = np.zeros(S)
                new[-2:] = (step, 1)[-S:]
            else:
                new = beta.copy()
                new[:-1] += step * beta[1:]
                new[:-2] += step * step * skip[2:] * beta[2:]
                new /= scales[t + 1]
            occupied = rows[t - first] * new / p
            if not abs(occupied.sum() - 1) <= 1e-9:  # not a number is too far as well
                raise ValueError(
                    f"frame {t}: the states do not sum to p ({occupied.sum()}); these logits are too sharp"
                )
            grad[t] -= np.bincount(extended, weights=occupied, minlength=C)
            beta = new * y[t, extended]
    return max(loss, 0.0) + 0.0, grad
