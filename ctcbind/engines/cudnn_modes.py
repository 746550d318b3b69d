"""What may be asked of cuDNN besides its defaults, probabilities in place of logits and its other algorithm; and what
its gradients are, of which no document tells.

With CUDNN_LOSS_NORMALIZATION_NONE the C function reads probabilities (cudnn_adv.h: "probabilities after softmax"). Its
gradient is said to be with respect to the activations before the softmax all the same (Developer Guide 7.5, section
4.9). cuDNN 9.19 returns neither that nor the gradient with respect to the probabilities: a class that paths go through
has -occupancy / y, and any other has y in place of 0 (docs/gpu, E1b). Each row shows which it is: the one that is
promised sums to 0, the other to -1 or less, as 1 - Y - 1 / Y is for the probability Y of all classes that paths go
through. So `of_logits` makes y - occupancy of either.

Where a class is certain, and so is the sample (y = 1 at some frame, loss 0), cuDNN 9.19 takes the occupancy of that
class, 1, for 0: as warp-ctc does, whose logarithm of 1 is its mark for nothing. `mend_certain` puts that right.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from ..batch import Batch
from ..errors import InvalidInput, NativeError

__all__ = [
    "CERTAIN",
    "MAX_LABELS",
    "MAX_SAMPLES",
    "ROWS_SUM_TO",
    "SURE_LOSS",
    "check_probabilities",
    "choose_algorithm",
    "is_doubted",
    "mend_certain",
    "of_logits",
    "set_ctc",
]

log = logging.getLogger("ctcbind")

#: 256 itself is NOT_SUPPORTED by the deterministic algorithm (PyTorch #53505). The other one takes 1024, with gradients
#: 0.003 off (cuDNN 9.19: docs/gpu, E8).
MAX_LABELS = 255
#: With one more its launch fails: EXECUTION_FAILED_CUDART (cuDNN 9.19: docs/gpu, E15).
MAX_SAMPLES = 65535

#: How far from 1 the probabilities of a frame may sum: the root of the dtype's epsilon, half of its digits.
OFF = {"float32": 2.0**-11.5, "float16": 2.0**-5, "bfloat16": 2.0**-3.5}

#: How far from 0 a row of the gradient may sum; the probabilities' own sum is not so far from 1, in any dtype.
ROWS_SUM_TO = 0.5

#: With a loss below SURE_LOSS no gradient is above CERTAIN: of a class whose y is as large and whose occupancy is below
#: 1 - CERTAIN nearly all paths do without it, so that the loss is -ln(1 - y) at least, 6.9.
CERTAIN, SURE_LOSS = 0.999, 1.0


def set_ctc(descriptor: Any, batch: Batch, longest: int) -> None:
    """Data in float32, the softmax inside or not, zeros for what does not fit, `longest` labels at most."""
    from ..bindings import cudnn

    kind = cudnn.CUDNN_DATA_FLOAT
    norm = cudnn.CUDNN_LOSS_NORMALIZATION_NONE if batch.probabilities else cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX
    if cudnn.has("cudnnSetCTCLossDescriptor_v9"):
        mode = cudnn.CUDNN_CTC_ZERO_OOB_GRADIENTS
        cudnn.cudnnSetCTCLossDescriptor_v9(descriptor, kind, norm, mode, longest)
    else:
        keep = cudnn.CUDNN_NOT_PROPAGATE_NAN
        cudnn.cudnnSetCTCLossDescriptor_v8(descriptor, kind, norm, keep, longest)


def choose_algorithm(batch: Batch, query: Callable[[Any], int]) -> tuple[Any, int]:
    """(algorithm, bytes of its workspace): the deterministic one, unless the other may be taken and takes these sizes
    (its query declines some: TensorFlow #37679)."""
    from ..bindings import cudnn

    if not batch.deterministic:
        try:
            return cudnn.CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC, query(cudnn.CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC)
        except NativeError as error:
            if cudnn.status_category(error.status) is not cudnn.StatusCategory.NOT_SUPPORTED:
                raise
            log.debug("cudnn: the deterministic algorithm, for the other one declines: %s", error)
    return cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC, query(cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC)


def is_doubted(batch: Batch) -> bool:
    """Whether the rows of cuDNN's gradient must be looked at: for the reason above, and because the non-deterministic
    algorithm gives NaN for logits that lie far apart (PyTorch #21680; cuDNN 9.19: docs/gpu, E7)."""
    return batch.probabilities or not batch.deterministic


def of_logits(cupy: Any, y: Any, grad: Any) -> Any:
    """cuDNN's gradient for the probabilities y, both (T, N, C), as one with respect to the activations before them."""
    of_y = grad.sum(axis=2, keepdims=True) < -ROWS_SUM_TO
    return cupy.where(of_y, y + y * cupy.minimum(grad, 0), grad)


def mend_certain(cupy: Any, losses: Any, grad: Any) -> None:
    """Takes 1 from what a certain class has too much; losses: (N,) on the host, grad: (T, N, C)."""
    sure = np.flatnonzero(losses < SURE_LOSS)
    if sure.size:
        some = cupy.asarray(sure)
        rows = grad[:, some]
        grad[:, some] = rows - (rows > CERTAIN)


def check_probabilities(y: Any, inside: Any, dtype: str) -> None:
    """Raises InvalidInput for the first sample with a frame that holds no probabilities.

    y: (T, N, C), float32, NumPy's or CuPy's; inside: (T, N) of the same kind, which frames count; dtype: that in which
    y was given. A frame with NaN is not refused: its sample's loss is NaN.
    """
    with np.errstate(invalid="ignore"):  # infinities of both signs
        sums = y.sum(axis=2, dtype=np.float64)
    low = y.min(axis=2)
    wrong = ((low < 0) | (abs(sums - 1) > OFF[dtype])) & inside
    of_samples = wrong.any(axis=0)
    if not bool(of_samples.any()):
        return
    sample = int(of_samples.argmax())
    frame = int(wrong[:, sample].argmax())
    least, total = float(low[frame, sample]), float(sums[frame, sample])
    what = f"hold {least:g}" if least < 0 else f"sum to {total:g}"
    raise InvalidInput(
        f"the probabilities of sample {sample} at frame {frame} {what}; with probabilities=True each must be 0 or "
        f"more, and their sum 1 (to {OFF[dtype]:.2g} in {dtype}): are these logits?",
        rule="probabilities",
        sample=sample,
        value=least if least < 0 else total,
    )
