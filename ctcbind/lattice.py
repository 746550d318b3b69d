"""The lattice of CTC as arrays: extended labels, α, β, γ; and losses on a lattice to which scores are added."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .arrays import Layout
from .batch import Batch, Topology
from .engines import native_lattice
from .engines.native_samples import Scores, as_dtype, in_kind, on_host
from .kinds import not_compiled
from .scores import check_scores, check_weight, lattice_batch

__all__ = [
    "Lattice",
    "LatticeLoss",
    "ctc_lattice",
    "lattice_loss_and_grad",
    "losses_alone",
    "losses_and_shares",
    "posteriors",
]


class Lattice(NamedTuple):
    """The lattice of each sample, S = 2L + 1 states of its longest target.

    `extended` (N, S) int32: the class of each state, l' of the paper, -1 past a sample's own; `log_alpha`,
    `log_beta`, `log_gamma` (N, T, S): natural logs, -inf past a sample's own frames and states; `log_z` (N,): ln of
    the sum over all paths, which is -loss where nothing was added to the scores.
    """

    extended: Any
    log_alpha: Any
    log_beta: Any
    log_gamma: Any
    log_z: Any


class LatticeLoss(NamedTuple):
    """`loss` (N,); `grad` of the logits' shape, dtype and kind, of the sum of the losses; `bonus_grad` (N, T, S) and
    `prior_grad` (C,): the same with respect to `path_bonus` and `log_prior`, None where they were not given."""

    loss: Any
    grad: Any
    bonus_grad: Any
    prior_grad: Any


@not_compiled
def ctc_lattice(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    path_bonus: Any = None,
    log_prior: Any = None,
    prior_weight: float = 1.0,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Lattice:
    """Forward and backward variables and occupancies of each sample, in log space.

    | argument | shape and dtype |
    |---|---|
    | logits, targets, input_lengths, target_lengths | as for `ctc_loss` |
    | path_bonus | (N, T, S), or what broadcasts to it: added to the score of state s at frame t; -inf forbids it |
    | log_prior | (C,): prior_weight * log_prior[k] is taken from the score of every state of class k |
    | returns | `Lattice`: arrays of the logits' kind and device, float32 (float64 for float64 logits) |

    State s of S = 2L + 1 is the blank for even s, and label (s - 1) / 2 for odd s. Its score at frame t is ln y[t, k],
    where k is its class and y the softmax of the logits. α(t, s) sums over all beginnings of paths that are in s at t,
    β(t, s) over all their ends from there on; both include the score at t. γ(t, s) is the share of all paths that are
    in s at t. Each has T * S values. They are computed in float64 on the host, and arrays in GPU memory are copied
    there.

    Raises InvalidInput as `ctc_loss` does; for a `path_bonus` whose shape does not fit, or with NaN or +inf within a
    sample's frames and states (past them it is not read); for a `log_prior` or `prior_weight` that is not finite; and
    for a `log_prior` that holds probabilities instead of their logarithms (all from 0 to 1, with the sum 1). Raises
    OutOfMemory where there is no room for the arrays.

    Source: Graves et al., ICML 2006, equations 6 to 11, and 14 for γ.

    >>> import numpy as np, ctcbind
    >>> lattice = ctcbind.ctc_lattice(np.zeros((3, 1, 2)), [[1]])  # every path of 3 frames has p = 1/8
    >>> lattice.extended[0].tolist()
    [0, 1, 0]
    >>> np.exp(lattice.log_alpha[0]).round(3).tolist()  # t down, s across
    [[0.5, 0.5, 0.0], [0.25, 0.5, 0.25], [0.125, 0.375, 0.375]]
    >>> np.exp(lattice.log_gamma[0]).round(3).tolist()  # 6 paths: 1__ _1_ __1 11_ _11 111
    [[0.5, 0.5, 0.0], [0.167, 0.667, 0.167], [0.0, 0.5, 0.5]]
    """
    batch = lattice_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)
    scores = check_scores(batch, path_bonus, log_prior, prior_weight)
    trellis = native_lattice.trellis(on_host(batch), scores)
    alpha, beta, gamma = (in_kind(batch.logits, each) for each in trellis[:3])
    log_z = in_kind(batch.logits, as_dtype(trellis.log_z, batch.logits.loss_dtype))
    return Lattice(in_kind(batch.logits, extended_labels(batch)), alpha, beta, gamma, log_z)


@not_compiled
def posteriors(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    path_bonus: Any = None,
    log_prior: Any = None,
    prior_weight: float = 1.0,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Any:
    """The soft alignment γ (N, T, S): the share of all paths that are in state s at frame t; each frame sums to 1.

    Arguments and errors are those of `ctc_lattice`; returns probabilities, not their logs, of its `log_gamma`; 0
    below 1e-150. Zeros past a sample's own frames and states, and for a sample without a path.

    Source: Graves et al., ICML 2006, equation 14.

    >>> import numpy as np, ctcbind
    >>> ctcbind.posteriors(np.zeros((2, 1, 2)), [[1]])[0].round(3).tolist()  # 3 paths: 1_ _1 11
    [[0.333, 0.667, 0.0], [0.0, 0.667, 0.333]]
    """
    batch = lattice_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)
    scores = check_scores(batch, path_bonus, log_prior, prior_weight)
    return in_kind(batch.logits, native_lattice.posteriors(on_host(batch), scores))


@not_compiled
def lattice_loss_and_grad(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    path_bonus: Any = None,
    log_prior: Any = None,
    prior_weight: float = 1.0,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> LatticeLoss:
    """-ln of the sum over all paths of a lattice with added scores, and its exact gradients.

    Arguments and errors are those of `ctc_lattice`. Without `path_bonus` and `log_prior` it is the loss of
    `ctc_loss`; with them the paths' weights are no probabilities any more, and the loss may be below 0. A sample
    without a path has loss +inf and gradients 0.

    Three uses: a bonus on the states of labels that falls with t is a penalty for delay; a bonus of -inf forbids a
    state at a frame, so that only the alignments which agree with known parts are left; and a prior makes alignments
    less peaky (Huang et al., arXiv:2406.02560).

    Returns `LatticeLoss`: the losses (N,), and the gradients of their sum with respect to the logits (in their shape,
    layout and dtype), to the bonuses (N, T, S) and to the prior (C,). The losses and the last two gradients are float32
    (float64 for float64 logits). The gradient of a bonus is -γ. That of the prior is prior_weight times the expected
    number of frames in each class. All is computed on the host in float64, but for the softmax in the gradient of the
    logits, which is computed in float32 unless they are float64.

    Source: Graves et al., ICML 2006, equations 14 to 16, with the added scores as factors of y.

    >>> import numpy as np, ctcbind
    >>> logits = np.random.default_rng(0).normal(size=(6, 1, 4))
    >>> late = np.zeros((6, 5))
    >>> late[:, 1::2] = -0.5 * np.arange(6)[:, None]  # each frame of delay costs a label half a nat
    >>> loss, grad, bonus_grad, prior_grad = ctcbind.lattice_loss_and_grad(logits, [[3, 1]], path_bonus=late)
    >>> grad.shape, bonus_grad.shape, prior_grad
    ((6, 1, 4), (1, 6, 5), None)
    """
    batch = lattice_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)
    scores = check_scores(batch, path_bonus, log_prior, prior_weight)
    host = on_host(batch)
    grad, grad_tnc = host.empty_grad()
    loss, counts, gamma = losses_and_shares(host, scores, grad_tnc, with_gamma=scores.bonus is not None)
    prior_grad = None if log_prior is None else check_weight(prior_weight) * counts.sum(axis=0)
    view, dtype = batch.logits, batch.logits.loss_dtype
    return LatticeLoss(
        in_kind(view, as_dtype(loss, dtype)),
        in_kind(view, grad),
        None if gamma is None else in_kind(view, np.subtract(0, gamma, out=gamma)),
        None if prior_grad is None else in_kind(view, prior_grad.astype(dtype)),
    )


def losses_alone(host: Batch, scores: Scores) -> Any:
    """The losses (N,) in float64."""
    return _losses(native_lattice.log_z(host, scores), scores)


def losses_and_shares(host: Batch, scores: Scores, grad: Any, with_gamma: bool) -> tuple[Any, Any, Any]:
    """(losses (N,) float64; how many frames paths are in each class, expected, (N, C) float64: d loss / d prior; the
    posteriors (N, T, S) or None). Writes d loss / d logits into `grad` (T, N, C)."""
    log_z, counts, gamma = native_lattice.gradient(host, scores, grad, with_gamma)
    return _losses(log_z, scores), counts, gamma


def _losses(log_z: Any, scores: Scores) -> Any:
    loss = 0.0 - log_z  # never -0
    if scores.bonus is None and scores.prior is None:
        loss = np.where(loss <= 0, 0.0, loss)  # rounding can leave it a hair below
    return loss


def extended_labels(batch: Batch) -> Any:
    """(N, S) int32: blanks between, before and after the labels; -1 past a sample's own states."""
    lengths = batch.label_lengths[:, None]
    longest = batch.longest
    extended = np.full((batch.N, batch.states), batch.blank, dtype=np.int32)
    extended[:, 1::2][np.arange(longest) < lengths] = batch.labels[: lengths.sum()]
    extended[np.arange(batch.states) > 2 * lengths] = -1
    return extended
