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

    `blank` is any class, -1 the last. `reduction` is "none", "sum", "batch_mean" (mean of the losses) or
    "label_mean" (each loss over its label count, then the mean). A sample for which no path exists has loss +inf and
    gradient 0; a loss past the largest float32 is +inf too, beside its true gradient, and one past the largest
    float64 beside a gradient that may be 0. With `zero_infinity` a loss of +inf is 0, and so is its gradient. NaN
    among the logits of a sample that has a path makes its loss NaN; +inf takes the whole probability of its frame,
    and may leave no path. An empty target is the all-blank path. With topology="simple" repeats are not merged
    (a_bb_c is abbc). `engine` is "auto" or a name of `ctcbind.engines()`.

    Raises InvalidInput, before any C code runs, for what cannot be right (it names the sample, the rule and the
    value); EngineUnavailable where a named engine's library is missing; EngineUnsupported where an engine
    cannot give the right answer for this batch.

    The native engine's workspace, up to 16 MB of it, stays for the next call with the same options, as do kernels and
    cuDNN's handle; in a training loop `CTCLoss` keeps the workspace of every engine, and memory for gradients too.

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

    Arguments and errors are those of `ctc_loss`. Returns `Result(loss, grad, engine)`: `grad` has the logits'
    shape, layout, dtype, kind and device, and is the gradient of the reduced loss (with reduction="none", of
    the sum). It is 0 for a sample without a path and for time steps past its input length. To train, feed it
    into your network just before the softmax: it has the softmax's own gradient in it already.

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
