"""The enums of cdef/cudnn.h in Python, C names kept, and the check that an argument is one of their members.

The library's setters take any int and keep it (norm mode 2, gradient mode -1: cuDNN 8.5 to 9.28 all return
success), so that what is not a member is refused here.
"""

from __future__ import annotations

import operator
from enum import IntEnum
from typing import TypeVar

from ..errors import InvalidInput, brief

__all__ = [
    "CUDNN_CTC_LOSS_ALGO_DETERMINISTIC",
    "CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC",
    "CUDNN_CTC_SKIP_OOB_GRADIENTS",
    "CUDNN_CTC_ZERO_OOB_GRADIENTS",
    "CUDNN_DATA_DOUBLE",
    "CUDNN_DATA_FLOAT",
    "CUDNN_LOSS_NORMALIZATION_NONE",
    "CUDNN_LOSS_NORMALIZATION_SOFTMAX",
    "CUDNN_NOT_PROPAGATE_NAN",
    "CUDNN_PROPAGATE_NAN",
    "CUDNN_SEV_ERROR",
    "CUDNN_SEV_ERROR_EN",
    "CUDNN_SEV_INFO",
    "CUDNN_SEV_INFO_EN",
    "CUDNN_SEV_WARNING",
    "CUDNN_SEV_WARNING_EN",
    "cudnnCTCGradMode_t",
    "cudnnCTCLossAlgo_t",
    "cudnnDataType_t",
    "cudnnLossNormalizationMode_t",
    "cudnnNanPropagation_t",
    "cudnnSeverity_t",
    "libraryPropertyType",
]


class cudnnDataType_t(IntEnum):  # noqa: N801
    """What a tensor holds, or what is computed in. cuDNN's CTC loss takes FLOAT, computed in FLOAT, and in 9.19
    DOUBLE computed in DOUBLE; whatever else is answered with NOT_SUPPORTED (cudnn_graph.h, 9.28; 8.5 knows the first
    twelve; experiment E12 in docs/gpu)."""

    CUDNN_DATA_FLOAT = 0
    CUDNN_DATA_DOUBLE = 1
    CUDNN_DATA_HALF = 2
    CUDNN_DATA_INT8 = 3
    CUDNN_DATA_INT32 = 4
    CUDNN_DATA_INT8x4 = 5
    CUDNN_DATA_UINT8 = 6
    CUDNN_DATA_UINT8x4 = 7
    CUDNN_DATA_INT8x32 = 8
    CUDNN_DATA_BFLOAT16 = 9
    CUDNN_DATA_INT64 = 10
    CUDNN_DATA_BOOLEAN = 11
    CUDNN_DATA_FP8_E4M3 = 12
    CUDNN_DATA_FP8_E5M2 = 13
    CUDNN_DATA_FAST_FLOAT_FOR_FP8 = 14
    CUDNN_DATA_FP8_E8M0 = 15
    CUDNN_DATA_FP4_E2M1 = 16
    CUDNN_DATA_INT4 = 17
    CUDNN_DATA_UINT4 = 18
    CUDNN_DATA_UINT32 = 19
    CUDNN_DATA_COMPLEX_FP32 = 20
    CUDNN_DATA_COMPLEX_FP64 = 21
    CUDNN_DATA_BYTE_BOOLEAN = 22
    CUDNN_DATA_FP8_E5M3 = 23


class cudnnCTCLossAlgo_t(IntEnum):  # noqa: N801
    """The two algorithms. NON_DETERMINISTIC is faster, and returned NaN gradients for peaked inputs in 7.6
    (pytorch issue 21680) (cudnn_ops.h, 9.28)."""

    CUDNN_CTC_LOSS_ALGO_DETERMINISTIC = 0
    CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC = 1


class cudnnLossNormalizationMode_t(IntEnum):  # noqa: N801
    """What `probs` holds: NONE: softmax probabilities; SOFTMAX: activations, cuDNN takes their softmax. The
    gradient is said to be with respect to the activations in both (cudnn_adv.h, 9.28); with NONE 9.19 returns
    another (docs/asymmetry.md)."""

    CUDNN_LOSS_NORMALIZATION_NONE = 0
    CUDNN_LOSS_NORMALIZATION_SOFTMAX = 1


class cudnnNanPropagation_t(IntEnum):  # noqa: N801
    """The gradient mode in the older setters; value for value what cudnnCTCGradMode_t is since 9.0."""

    CUDNN_NOT_PROPAGATE_NAN = 0
    CUDNN_PROPAGATE_NAN = 1


class cudnnCTCGradMode_t(IntEnum):  # noqa: N801
    """What becomes of the gradient of a sample whose labels do not fit its time steps: ZERO writes zeros, SKIP
    leaves the buffer as it was (cudnn_graph.h, 9.0)."""

    CUDNN_CTC_ZERO_OOB_GRADIENTS = 0
    CUDNN_CTC_SKIP_OOB_GRADIENTS = 1


class cudnnSeverity_t(IntEnum):  # noqa: N801
    """How grave a log message is."""

    CUDNN_SEV_FATAL = 0
    CUDNN_SEV_ERROR = 1
    CUDNN_SEV_WARNING = 2
    CUDNN_SEV_INFO = 3


class libraryPropertyType(IntEnum):  # noqa: N801
    """What cudnnGetProperty is asked for (CUDA's library_types.h)."""

    MAJOR_VERSION = 0
    MINOR_VERSION = 1
    PATCH_LEVEL = 2


CUDNN_DATA_FLOAT = cudnnDataType_t.CUDNN_DATA_FLOAT
CUDNN_DATA_DOUBLE = cudnnDataType_t.CUDNN_DATA_DOUBLE
CUDNN_CTC_LOSS_ALGO_DETERMINISTIC = cudnnCTCLossAlgo_t.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC = cudnnCTCLossAlgo_t.CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC
CUDNN_LOSS_NORMALIZATION_NONE = cudnnLossNormalizationMode_t.CUDNN_LOSS_NORMALIZATION_NONE
CUDNN_LOSS_NORMALIZATION_SOFTMAX = cudnnLossNormalizationMode_t.CUDNN_LOSS_NORMALIZATION_SOFTMAX
CUDNN_NOT_PROPAGATE_NAN = cudnnNanPropagation_t.CUDNN_NOT_PROPAGATE_NAN
CUDNN_PROPAGATE_NAN = cudnnNanPropagation_t.CUDNN_PROPAGATE_NAN
CUDNN_CTC_ZERO_OOB_GRADIENTS = cudnnCTCGradMode_t.CUDNN_CTC_ZERO_OOB_GRADIENTS
CUDNN_CTC_SKIP_OOB_GRADIENTS = cudnnCTCGradMode_t.CUDNN_CTC_SKIP_OOB_GRADIENTS
CUDNN_SEV_ERROR = cudnnSeverity_t.CUDNN_SEV_ERROR
CUDNN_SEV_WARNING = cudnnSeverity_t.CUDNN_SEV_WARNING
CUDNN_SEV_INFO = cudnnSeverity_t.CUDNN_SEV_INFO
# masks for cudnnSetCallback; macros in the header
CUDNN_SEV_ERROR_EN = 1 << CUDNN_SEV_ERROR
CUDNN_SEV_WARNING_EN = 1 << CUDNN_SEV_WARNING
CUDNN_SEV_INFO_EN = 1 << CUDNN_SEV_INFO

E = TypeVar("E", bound=IntEnum)


def member(kind: type[E], name: str, value: object) -> E:
    """The member of `kind` that `value` is, given as one or as its number; raises InvalidInput otherwise.

    >>> member(cudnnCTCLossAlgo_t, "algo", 1).name
    'CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC'
    """
    if isinstance(value, kind):
        return value
    # an enum of another kind has a number that fits by accident only; so has True
    if not isinstance(value, (IntEnum, bool)):
        try:
            return kind(operator.index(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
    known = ", ".join(f"{each.name} ({each.value})" for each in kind)
    raise InvalidInput(f"{name} must be one of {known}, not {brief(value)}", rule="enum", value=value)
