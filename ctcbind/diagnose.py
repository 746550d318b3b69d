"""Is it learning, and if not why: what is wrong with a batch and with what the network says to it."""

from __future__ import annotations

from typing import Any

from .arrays import Layout
from .batch import Topology
from .finding import Diagnosis
from .kinds import not_compiled

__all__ = ["diagnose"]


@not_compiled
def diagnose(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
    engine: str = "auto",
    history: Any = None,
) -> Diagnosis:
    """Why a network does not learn, as far as one batch shows it: mistakes in what is given, and collapses.

    Arguments are those of `ctc_loss` that say what the batch is, and its `engine`; `history` are the steps before,
    oldest first: losses (mean nats a sample), or dicts with "loss" and "grad_norm" (of the network's weights, before
    clipping), or a NumPy array or a table with these fields, or pairs of the two, as an array (K, 2). Device arrays are
    copied to the host. It takes as long as a hundred losses or so: call it for one batch, not in every step.

    | kind | what was found |
    |---|---|
    | probabilities, log_probabilities, softmax_twice | logits that a softmax has been through |
    | negated_log_probabilities | minus the logarithms of a softmax |
    | log_base | logarithms of a softmax to base 2 or 10 |
    | activation | a ReLU, tanh, clamp, dropout and others after the last layer (harmless where it stops nothing) |
    | scaled_logits | logits that are right but for a factor: too small to be sure, or surer than it reads well |
    | swapped_axes, swapped_lengths | time and batch swapped, or mixed by a reshape; the two lengths swapped |
    | blank_unused, blank_in_targets | a blank= that is not the network's, or labels shifted with it; blanks as labels |
    | other_topology | a topology= that is not the network's |
    | frame_labels | alignments, with a label for each frame, in the place of targets |
    | targets_added_up | the labels of each sample twice, or those of all samples before it too |
    | padding_in_targets, padded_frames | padding counted as labels; padding of the input counted as time |
    | short_lengths | input lengths that were divided once too often, are target lengths, or end before the labels do |
    | masked_labels | labels of classes that a mask of a large negative number forbids at all frames |
    | infeasible | samples without a path, and by how many frames |
    | all_blank, dominant_class | the network says blanks, or one class, whatever it sees |
    | constant_output | the same to the last bit at all frames (untrained, or dead), those of samples, or all samples |
    | mismatch | it is sure of other labels: shuffled, shifted, reversed, cut, joined, with marks at ends, others |
    | exploding_gradients, not_learning, negative_loss, not_finite | by samples and history |
    | engine_limit | what the engine asked for cannot take |
    | invalid | anything else that a loss refuses (see `check`) |

    Each `Finding` says what was seen, what it means, what to do, and how sure that is. What one finding corrects is
    taken as corrected by those after it: a batch of probabilities is then looked at as their logarithms. Where
    nothing is wrong with a batch nothing is found, whether the network is trained or fresh, unless its last layer is
    all zeros.

    Raises InvalidInput for a wrong `layout`, `topology`, `engine` or `history`; wrong arrays are findings.

    >>> import numpy as np, ctcbind
    >>> logits = np.random.default_rng(0).normal(size=(50, 4, 12))
    >>> ctcbind.diagnose(logits, [[1, 2, 3]] * 4).ok
    True
    >>> softmax = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    >>> (finding,) = ctcbind.diagnose(softmax, [[1, 2, 3]] * 4).findings
    >>> finding.kind, finding.sure
    ('probabilities', 'certain')
    """
    from .diagnose_batch import examine  # and all that it looks for: only where it is asked for

    return examine(logits, targets, input_lengths, target_lengths, blank, layout, topology, engine, history)[0]
