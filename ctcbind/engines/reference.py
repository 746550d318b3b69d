"""The reference: CTC in float64 log space, to be read beside the paper.

Graves, Fernández, Gomez, Schmidhuber: Connectionist Temporal Classification, ICML 2006. Equation numbers are
the paper's. Time t, states s of the extended label l' (blanks in between), y the softmax of the logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..batch import Batch
from ..errors import OutOfMemory
from .contract import Contract, Copy, Library

__all__ = ["ENGINE", "forward_backward", "log_softmax"]

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int32]


def log_softmax(x: Floats) -> Floats:
    """ln y over the last axis. +inf logits share all the probability; a row of -inf has none for any class."""
    top = x.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = np.where(x == top, np.where(top == -np.inf, -np.inf, 0.0), x - top)
        log_sum = np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        log_y: Floats = shifted - np.maximum(log_sum, -1e308)
    return log_y


def forward_backward(log_y: Floats, labels: Labels, blank: int, *, merge_repeats: bool = True) -> tuple[float, Floats]:
    """(loss, γ) of one sample: log_y (T, C), labels (L,); γ (T, C) holds the expected count of each class."""
    T, C = log_y.shape
    S = 2 * len(labels) + 1
    extended = np.full(S, blank)  # l' of section 4.1
    extended[1::2] = labels
    emit = log_y[:, extended]

    stay = np.zeros(S)
    skip = np.full(S, -np.inf)  # from s - 2: over a blank between two labels, if they differ
    skip[3::2] = 0.0
    if merge_repeats:
        skip[3::2][extended[3::2] == extended[1:-2:2]] = -np.inf
    else:
        stay[1::2] = -np.inf

    alpha = np.full((T, S), -np.inf)
    beta = np.full((T, S), -np.inf)  # the emission at t is in alpha, not in beta
    alpha[0, :2] = emit[0, :2]
    beta[-1, -2:] = 0.0
    for t in range(1, T):  # equations 6 to 8
        a = alpha[t - 1]
        alpha[t] = emit[t] + _add(a + stay, _right(a, 1), _right(a, 2) + skip)
    for t in range(T - 2, -1, -1):  # equations 9 to 11, backwards
        b = beta[t + 1] + emit[t + 1]
        beta[t] = _add(b + stay, _right(b[::-1], 1)[::-1], _right((b + skip)[::-1], 2)[::-1])

    log_p = float(np.logaddexp.reduce(alpha[-1, -2:]))  # equation 8's end: p = α(T, S) + α(T, S - 1)
    occupancy = np.zeros((T, C))
    if np.isfinite(log_p):
        # p is the sum over s at any t (end of equation 14); that of the same t is taken, so that rounding of huge
        # logits cancels
        share = np.exp(log_softmax(alpha + beta))
        np.add.at(occupancy.T, extended, share.T)  # equation 14, all s with l'_s = k
    return -log_p, occupancy


def _add(*terms: Floats) -> Floats:
    return np.logaddexp(np.logaddexp(terms[0], terms[1]), terms[2])


def _right(row: Floats, places: int) -> Floats:
    moved = np.full(row.shape, -np.inf)
    moved[places:] = row[: len(row) - places] if places <= len(row) else row[:0]
    return moved


class ReferenceSession:
    """Holds nothing."""

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        for copy in _copies(batch)[: 2 if with_grad else 1]:
            copy.tell("reference")
        losses = batch.empty_losses()
        grad, grad_tnc = batch.empty_grad() if with_grad else (None, None)
        if grad_tnc is not None:
            grad_tnc[...] = 0
        for n, T in enumerate(batch.input_lengths):
            with np.errstate(all="ignore"):  # infinities and NaN are values here, whatever the caller has set
                losses[n], gradient = _sample(batch, n, int(T))
                if grad_tnc is not None and T:
                    grad_tnc[:T, n] = gradient * (1.0 if weights is None else weights[n])
        return losses, grad

    def close(self) -> None:
        pass


def _copies(batch: Batch) -> list[Copy]:
    """Of the logits, then of the gradient."""
    dtype, values = batch.logits.dtype, int(batch.input_lengths.sum(dtype=np.int64)) * batch.C
    if dtype == "float64" or not values:
        return []
    return [
        Copy("logits converted to float64, a sample at a time", 8 * values),
        Copy(f"gradient converted to {dtype}, a sample at a time", batch.logits.array.itemsize * values),
    ]


def _sample(batch: Batch, n: int, T: int) -> tuple[float, Floats]:
    labels = batch.targets(n)
    x = np.asarray(batch.logits.array[:T, n], dtype=np.float64)
    if not batch.feasible[n]:
        return np.inf, np.zeros(x.shape)
    if T == 0:
        return 0.0, x
    if np.isnan(x).any():
        return np.nan, np.full(x.shape, np.nan)
    log_y = log_softmax(x)
    try:
        loss, occupancy = forward_backward(log_y, labels, batch.blank, merge_repeats=batch.topology == "ctc")
    except MemoryError as error:
        S = 2 * len(labels) + 1
        raise OutOfMemory(
            f"sample {n} has T = {T} frames and S = {S} states: the reference keeps at least three tables of "
            f"{8 * T * S} bytes, and so much memory could not be had; the other engines keep far less"
        ) from error
    if loss == np.inf:
        return loss, np.zeros(x.shape)
    # rounding can leave the loss a hair below 0; equation 16: with respect to the logits
    return max(loss, 0.0) + 0.0, np.exp(log_y) - occupancy


class ReferenceEngine:
    name = "reference"
    install = None
    contract = Contract(
        native_name="ctcbind.engines.reference.forward_backward",
        takes="activations",
        gradient_of="pre-softmax activations",
        arrays="host",
        labels="host",
        losses="host",
        blank="any",
        dtypes=("float64",),
        layouts=("any",),
        topologies=("ctc", "simple"),
        max_label_length=None,
        infeasible="loss inf, gradient 0",
        empty_label="the all-blank path",
        padded_time="gradient 0",
        deterministic=True,
        graph_capture=False,
        synchronises=False,
        limits=("slow: NumPy, one sample and one time step after the other",),
    )

    def library(self) -> Library:
        return Library(__version__)

    def refuses(self, batch: Batch) -> str | None:
        return None

    def copies(self, batch: Batch) -> list[Copy]:
        return _copies(batch)

    def reduces(self, batch: Batch) -> bool:
        return False

    def open(self) -> ReferenceSession:
        return ReferenceSession()


ENGINE = ReferenceEngine()
