"""The two numberings of cudnnStatus_t, and what a status means: a category, a name, a sentence.

cuDNN 9.0 renumbered its statuses and gave them a first digit that says what kind of failure it is, with finer
ones below it that differ between releases. So a status is told by its category, never by equality, and which
numbering holds by the version of the library that runs.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["StatusCategory", "category", "cudnnStatus_t", "cudnnStatus_v8_t", "explain", "status_name"]


class cudnnStatus_t(IntEnum):  # noqa: N801
    """The numbers since cuDNN 9.0 (cudnn_graph.h, 9.28)."""

    CUDNN_STATUS_SUCCESS = 0
    CUDNN_STATUS_NOT_INITIALIZED = 1001
    CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH = 1002
    CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH = 1003
    CUDNN_STATUS_DEPRECATED = 1004
    CUDNN_STATUS_LICENSE_ERROR = 1005
    CUDNN_STATUS_RUNTIME_IN_PROGRESS = 1006
    CUDNN_STATUS_RUNTIME_FP_OVERFLOW = 1007
    CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED = 1008
    CUDNN_STATUS_BAD_PARAM = 2000
    CUDNN_STATUS_INVALID_VALUE = 2001
    CUDNN_STATUS_BAD_PARAM_NULL_POINTER = 2002
    CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER = 2003
    CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED = 2004
    CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND = 2005
    CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT = 2006
    CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH = 2007
    CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH = 2008
    CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES = 2009
    CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE = 2010
    CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH = 2011
    CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE = 2012
    CUDNN_STATUS_NOT_SUPPORTED = 3000
    CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN = 3001
    CUDNN_STATUS_NOT_SUPPORTED_SHAPE = 3002
    CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE = 3003
    CUDNN_STATUS_NOT_SUPPORTED_LAYOUT = 3004
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER = 3005
    CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART = 3006
    CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH = 3007
    CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING = 3008
    CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE = 3009
    CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT = 3010
    CUDNN_STATUS_NOT_SUPPORTED_PADDING = 3011
    CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM = 3012
    CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API = 3013
    CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE = 3014
    CUDNN_STATUS_INTERNAL_ERROR = 4000
    CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED = 4001
    CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE = 4002
    CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED = 4003
    CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED = 4004
    CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM = 4005
    CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED = 4006
    CUDNN_STATUS_EXECUTION_FAILED = 5000
    CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER = 5001
    CUDNN_STATUS_EXECUTION_FAILED_CUBLAS = 5002
    CUDNN_STATUS_EXECUTION_FAILED_CUDART = 5003
    CUDNN_STATUS_EXECUTION_FAILED_CURAND = 5004


class cudnnStatus_v8_t(IntEnum):  # noqa: N801
    """The numbers of cuDNN 8 (cudnn_ops_infer.h, 8.5)."""

    CUDNN_STATUS_SUCCESS = 0
    CUDNN_STATUS_NOT_INITIALIZED = 1
    CUDNN_STATUS_ALLOC_FAILED = 2
    CUDNN_STATUS_BAD_PARAM = 3
    CUDNN_STATUS_INTERNAL_ERROR = 4
    CUDNN_STATUS_INVALID_VALUE = 5
    CUDNN_STATUS_ARCH_MISMATCH = 6
    CUDNN_STATUS_MAPPING_ERROR = 7
    CUDNN_STATUS_EXECUTION_FAILED = 8
    CUDNN_STATUS_NOT_SUPPORTED = 9
    CUDNN_STATUS_LICENSE_ERROR = 10
    CUDNN_STATUS_RUNTIME_PREREQUISITE_MISSING = 11
    CUDNN_STATUS_RUNTIME_IN_PROGRESS = 12
    CUDNN_STATUS_RUNTIME_FP_OVERFLOW = 13
    CUDNN_STATUS_VERSION_MISMATCH = 14


class StatusCategory(IntEnum):
    """What kind of failure a status is: the numbers that CUDNN_STATUS_CATEGORY gives in cudnn_graph.h (9.28)."""

    SUCCESS = 0
    LIBRARY = 1000  # not initialised, versions that do not fit, a sub-library that would not load
    BAD_PARAM = 2000
    NOT_SUPPORTED = 3000
    INTERNAL_ERROR = 4000
    EXECUTION_FAILED = 5000
    UNKNOWN = -1


_CATEGORY_V8 = {
    0: StatusCategory.SUCCESS,
    1: StatusCategory.LIBRARY,
    2: StatusCategory.INTERNAL_ERROR,
    3: StatusCategory.BAD_PARAM,
    4: StatusCategory.INTERNAL_ERROR,
    5: StatusCategory.BAD_PARAM,
    6: StatusCategory.NOT_SUPPORTED,
    7: StatusCategory.INTERNAL_ERROR,
    8: StatusCategory.EXECUTION_FAILED,
    9: StatusCategory.NOT_SUPPORTED,
    10: StatusCategory.LIBRARY,
    11: StatusCategory.NOT_SUPPORTED,
    12: StatusCategory.LIBRARY,
    13: StatusCategory.LIBRARY,
    14: StatusCategory.LIBRARY,
}

_SENTENCE = {
    StatusCategory.SUCCESS: "it worked",
    StatusCategory.LIBRARY: "the library is not ready to work",
    StatusCategory.BAD_PARAM: "cuDNN holds an argument for wrong",
    StatusCategory.NOT_SUPPORTED: "the arguments may be right, but this cuDNN cannot do it",
    StatusCategory.INTERNAL_ERROR: "cuDNN failed inside, or memory ran out",
    StatusCategory.EXECUTION_FAILED: "the work failed on the device; the CUDA context may be lost with it",
    StatusCategory.UNKNOWN: "a status that no known cuDNN returns",
}


def category(status: int, version: int) -> StatusCategory:
    """The category of a status of the library whose cudnnGetVersion() is `version`.

    >>> category(9, 8500).name, category(3000, 92800).name, category(3999, 99900).name
    ('NOT_SUPPORTED', 'NOT_SUPPORTED', 'NOT_SUPPORTED')
    """
    if version < 90000:
        return _CATEGORY_V8.get(status, StatusCategory.UNKNOWN)
    if status != 0 and status < 1000:
        return StatusCategory.UNKNOWN
    try:
        return StatusCategory(status // 1000 * 1000)
    except ValueError:
        return StatusCategory.UNKNOWN


def status_name(status: int, version: int) -> str:
    """The C name of a status as the headers give it; of a newer one, the name of its category.

    >>> status_name(3, 8500), status_name(2099, 92800)
    ('CUDNN_STATUS_BAD_PARAM', 'CUDNN_STATUS_BAD_PARAM')
    """
    known: type[IntEnum] = cudnnStatus_t if version >= 90000 else cudnnStatus_v8_t
    try:
        return known(status).name
    except ValueError:
        kind = category(status, version)
        return "CUDNN_UNKNOWN_STATUS" if kind in (-1, 1000) else f"CUDNN_STATUS_{kind.name}"


def explain(call: str, status: int, version: int, reason: str) -> str:
    """A sentence on a failed call: what its category means, and cuDNN's own `reason` where it gave one."""
    kind = category(status, version)
    sentence = _SENTENCE[kind]
    if call == "cudnnCreate" and kind is StatusCategory.LIBRARY:
        sentence = "no CUDA device or driver that this cuDNN can use"
    return f"{sentence}; cuDNN says: {reason}" if reason else sentence
