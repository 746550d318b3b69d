"""The loss as a function."""

from __future__ import annotations

from typing import Any

from . import kept
from .arrays import Layout
from .batch import Topology
from .plan import Result
from .reduction import Reduction

__all__ = ["ctc_loss", "ctc_loss_and_grad"]


def ctc_loss(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    reduction: Reduction = "none",
    zero_infinity: bool = False,
    topology: Topology = "ctc",
    engine: str = "auto",
) -> Any:
    """The CTC loss, -ln p(labels | logits), of each sample of a batch.

    | argument | shape and dtype |
    |---|---|
    | logits | (T, N, C), or (N, T, C) with layout="NTC"; float16, bfloat16, float32 or float64; NumPy, CuPy or another library's (PyTorch, JAX, DLPack, buffers), any strides; activations before any softmax |
    | targets | a list of N sequences; or (N, L) padded, with target_lengths or with negative padding; or one row of all labels, with target_lengths. Any integer dtype |
    | input_lengths | (N,) integers, time steps of each sample; None: T for all |
    | target_lengths | (N,) integers, labels of each sample |
    | returns | (N,) losses in nats, float32 (float64 for float64 logits), of the logits' kind and device; one value for a reduction |

    | option | meaning |
    |---|---|
    | blank | the class of the blank; -1 is the last |
    | reduction | "none", "sum", "batch_mean" (mean of the losses) or "label_mean" (each loss over its label count, then the mean) |
    | zero_infinity | an infinite loss becomes 0, and so does its gradient |
    | topology | "ctc", or "simple": repeats are not merged (a_bb_c is abbc) |
    | engine | "auto", or a name of `ctcbind.engines()` |

    An empty target means the path of blanks only. A sample without a path has loss +inf and gradient 0. A loss that
    float32 cannot hold is +inf too, but its gradient is the true one; beside a loss that float64 cannot hold the
    gradient may be 0. A NaN among the logits of a sample that has a path makes its loss NaN. A logit of +inf takes the
    whole probability of its frame, and may leave no path.

    Raises InvalidInput, before any C code runs, for input that cannot be right (it names the sample, the rule and the
    value); EngineUnavailable where the library of the engine asked for is missing; EngineUnsupported where an engine
    cannot give the right answer for this batch.

    Between calls with the same options the native engine keeps its workspace, up to 16 MB; kernels and cuDNN's handle
    stay too. In a training loop use `CTCLoss`, which keeps the workspace of every engine, and memory for gradients.

    Source: Graves et al., ICML 2006, equations 6 to 8.

    >>> import numpy as np, ctcbind
    >>> logits = np.zeros((100, 5, 10), dtype=np.float32)  # the example of NVIDIA's forum, topic 56058
    >>> losses = ctcbind.ctc_loss(logits, [[1, 2, 3, 4]] * 5)
    >>> [round(float(loss), 3) for loss in losses]
    [203.984, 203.984, 203.984, 203.984, 203.984]
    """  # noqa: E501
    arrays = logits, targets, input_lengths, target_lengths
    options = engine, blank, layout, reduction, zero_infinity, topology
    return kept.run(False, arrays, options)


def ctc_loss_and_grad(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    reduction: Reduction = "none",
    zero_infinity: bool = False,
    topology: Topology = "ctc",
    engine: str = "auto",
) -> Result:
    """The CTC loss and its gradient with respect to the logits, whatever the engine's own function returns.

    Arguments and errors are those of `ctc_loss`. Returns `Result(loss, grad, engine)`. `grad` has the shape, layout,
    dtype, kind and device of the logits. It is the gradient of the reduced loss (with reduction="none", of the sum of
    the losses), and 0 for a sample without a path and for time steps past an input length. To train, pass it back
    through your network from the logits, not from the softmax: the gradient of the softmax is already in it.

    Source: Graves et al., ICML 2006, equation 16.

    >>> import numpy as np, ctcbind
    >>> logits = np.random.default_rng(0).normal(size=(6, 1, 4))
    >>> loss, grad, engine = ctcbind.ctc_loss_and_grad(logits, [[3, 1]])
    >>> step = logits - 0.1 * grad
    >>> bool(ctcbind.ctc_loss(step, [[3, 1]])[0] < loss[0])
    True
    """
    arrays = logits, targets, input_lengths, target_lengths
    options = engine, blank, layout, reduction, zero_infinity, topology
    result: Result = kept.run(True, arrays, options)
    return result
