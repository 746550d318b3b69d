"""The two descriptors of a CTC loss: that of a tensor, and its own."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InvalidInput
from .cudnn_arguments import int32, int32_list
from .cudnn_enums import (
    cudnnCTCGradMode_t,
    cudnnDataType_t,
    cudnnLossNormalizationMode_t,
    cudnnNanPropagation_t,
    member,
)
from .cudnn_library import ffi, invoke
from .cudnn_objects import CTCLossDescriptor, TensorDescriptor, create, destroy, library_of, pointer_of

__all__ = [
    "CUDNN_DIM_MAX",
    "CTCLossSettings_v8",
    "CTCLossSettings_v9",
    "TensorNd",
    "cudnnCreateCTCLossDescriptor",
    "cudnnCreateTensorDescriptor",
    "cudnnDestroyCTCLossDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnGetCTCLossDescriptor",
    "cudnnGetCTCLossDescriptorEx",
    "cudnnGetCTCLossDescriptor_v8",
    "cudnnGetCTCLossDescriptor_v9",
    "cudnnGetTensorNdDescriptor",
    "cudnnGetTensorSizeInBytes",
    "cudnnSetCTCLossDescriptor",
    "cudnnSetCTCLossDescriptorEx",
    "cudnnSetCTCLossDescriptor_v8",
    "cudnnSetCTCLossDescriptor_v9",
    "cudnnSetTensorNdDescriptor",
]

CUDNN_DIM_MAX = 8  # a macro of cudnn_graph.h (9.28) and cudnn_ops_infer.h (8.5)


class TensorNd(NamedTuple):
    """What cudnnGetTensorNdDescriptor writes: the dimensions and strides, as many as there are."""

    dataType: cudnnDataType_t
    nbDims: int
    dimA: list[int]
    strideA: list[int]


class CTCLossSettings_v8(NamedTuple):  # noqa: N801
    """What cudnnGetCTCLossDescriptor_v8 writes."""

    compType: cudnnDataType_t
    normMode: cudnnLossNormalizationMode_t
    gradMode: cudnnNanPropagation_t
    maxLabelLength: int


class CTCLossSettings_v9(NamedTuple):  # noqa: N801
    """What cudnnGetCTCLossDescriptor_v9 writes."""

    compType: cudnnDataType_t
    normMode: cudnnLossNormalizationMode_t
    ctcGradMode: cudnnCTCGradMode_t
    maxLabelLength: int


def cudnnCreateTensorDescriptor() -> TensorDescriptor:
    """A tensor descriptor with nothing set."""
    return create(TensorDescriptor, "cudnnCreateTensorDescriptor", "cudnnTensorDescriptor_t *")


def cudnnDestroyTensorDescriptor(tensorDesc: TensorDescriptor) -> None:
    """tensorDesc.close(), but for a closed one, which raises ClosedError."""
    destroy(TensorDescriptor, "tensorDesc", tensorDesc)


def cudnnSetTensorNdDescriptor(
    tensorDesc: TensorDescriptor, dataType: cudnnDataType_t | int, dimA: object, strideA: object
) -> None:
    """Sets type, dimensions and strides (in elements); nbDims is their number.

    For a CTC loss the dimensions are (T, N, A), whatever the order in memory: the strides say that. Classes must lie
    side by side there, and the gradient as the logits do, batch first or time first; the calls of the loss refuse
    what else there is, for cuDNN 9.19 takes it, and what it gives is wrong. NativeError:
    BAD_PARAM for a dimension of 0 or fewer dimensions than 3 (2 since some 9.x), NOT_SUPPORTED for a span of
    2^31 elements or more (8.5 to 9.28).
    """
    pointer = pointer_of(TensorDescriptor, "tensorDesc", tensorDesc)
    kind = member(cudnnDataType_t, "dataType", dataType)
    dims, strides = int32_list("dimA", dimA), int32_list("strideA", strideA)
    if len(dims) != len(strides) or not 1 <= len(dims) <= CUDNN_DIM_MAX:
        message = f"{len(dims)} dimensions with {len(strides)} strides; equal numbers of 1 to {CUDNN_DIM_MAX} are right"
        raise InvalidInput(message, rule="dims", value=(dims, strides))
    tensorDesc._dims = ()  # should the call fail, what it left behind is unknown
    invoke(tensorDesc._library, "cudnnSetTensorNdDescriptor", pointer, kind, len(dims), dims, strides)
    tensorDesc._dims, tensorDesc._strides = tuple(dims), tuple(strides)


def cudnnGetTensorNdDescriptor(tensorDesc: TensorDescriptor, nbDimsRequested: int = CUDNN_DIM_MAX) -> TensorNd:
    """What was set; nbDims is the real number, the lists have at most `nbDimsRequested`."""
    library = library_of(TensorDescriptor, "tensorDesc", tensorDesc)
    wanted = int32("nbDimsRequested", nbDimsRequested)
    if not 0 <= wanted <= CUDNN_DIM_MAX:
        message = f"nbDimsRequested must be in [0, {CUDNN_DIM_MAX}], not {wanted}"
        raise InvalidInput(message, rule="dims", value=wanted)
    kind, count = ffi.new("cudnnDataType_t *"), ffi.new("int *")
    dims, strides = ffi.new("int[]", CUDNN_DIM_MAX), ffi.new("int[]", CUDNN_DIM_MAX)
    invoke(library, "cudnnGetTensorNdDescriptor", tensorDesc._pointer, wanted, kind, count, dims, strides)
    some = min(count[0], wanted)
    return TensorNd(cudnnDataType_t(kind[0]), count[0], list(dims[0:some]), list(strides[0:some]))


def cudnnGetTensorSizeInBytes(tensorDesc: TensorDescriptor) -> int:
    """The bytes that the tensor spans in memory."""
    size = ffi.new("size_t *")
    library = library_of(TensorDescriptor, "tensorDesc", tensorDesc)
    invoke(library, "cudnnGetTensorSizeInBytes", tensorDesc._pointer, size)
    return int(size[0])


def cudnnCreateCTCLossDescriptor() -> CTCLossDescriptor:
    """A CTC loss descriptor: FLOAT, NONE, ZERO, longest label 0, until it is set."""
    return create(CTCLossDescriptor, "cudnnCreateCTCLossDescriptor", "cudnnCTCLossDescriptor_t *")


def cudnnDestroyCTCLossDescriptor(ctcLossDesc: CTCLossDescriptor) -> None:
    """ctcLossDesc.close(), but for a closed one, which raises ClosedError."""
    destroy(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)


def cudnnSetCTCLossDescriptor(ctcLossDesc: CTCLossDescriptor, compType: cudnnDataType_t | int) -> None:
    """The setter of cuDNN 7.0. It resets the rest to NONE, ZERO and longest label 0 (8.5 to 9.28)."""
    pointer = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind = member(cudnnDataType_t, "compType", compType)
    invoke(ctcLossDesc._library, "cudnnSetCTCLossDescriptor", pointer, kind)
    ctcLossDesc._max_label_length = 0


def cudnnSetCTCLossDescriptorEx(
    ctcLossDesc: CTCLossDescriptor,
    compType: cudnnDataType_t | int,
    normMode: cudnnLossNormalizationMode_t | int,
    gradMode: cudnnNanPropagation_t | int,
) -> None:
    """The setter of cuDNN 7.6. It resets the longest label to 0 (8.5 to 9.28)."""
    pointer = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind, norm = _kinds(compType, normMode)
    mode = member(cudnnNanPropagation_t, "gradMode", gradMode)
    invoke(ctcLossDesc._library, "cudnnSetCTCLossDescriptorEx", pointer, kind, norm, mode)
    ctcLossDesc._max_label_length = 0


def cudnnSetCTCLossDescriptor_v8(
    ctcLossDesc: CTCLossDescriptor,
    compType: cudnnDataType_t | int,
    normMode: cudnnLossNormalizationMode_t | int,
    gradMode: cudnnNanPropagation_t | int,
    maxLabelLength: int,
) -> None:
    """The setter of cuDNN 8. The library takes any maxLabelLength and complains, above 255, when it works."""
    pointer = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind, norm = _kinds(compType, normMode)
    mode = member(cudnnNanPropagation_t, "gradMode", gradMode)
    longest = _longest(maxLabelLength)
    invoke(ctcLossDesc._library, "cudnnSetCTCLossDescriptor_v8", pointer, kind, norm, mode, longest)
    ctcLossDesc._max_label_length = longest


def cudnnSetCTCLossDescriptor_v9(
    ctcLossDesc: CTCLossDescriptor,
    compType: cudnnDataType_t | int,
    normMode: cudnnLossNormalizationMode_t | int,
    ctcGradMode: cudnnCTCGradMode_t | int,
    maxLabelLength: int,
) -> None:
    """The setter of cuDNN 9, the only one it has not deprecated: that of 8 with a kind of its own for the mode."""
    pointer = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind, norm = _kinds(compType, normMode)
    mode = member(cudnnCTCGradMode_t, "ctcGradMode", ctcGradMode)
    longest = _longest(maxLabelLength)
    invoke(ctcLossDesc._library, "cudnnSetCTCLossDescriptor_v9", pointer, kind, norm, mode, longest)
    ctcLossDesc._max_label_length = longest


def cudnnGetCTCLossDescriptor(ctcLossDesc: CTCLossDescriptor) -> cudnnDataType_t:
    """The compute type."""
    library = library_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind = ffi.new("cudnnDataType_t *")
    invoke(library, "cudnnGetCTCLossDescriptor", ctcLossDesc._pointer, kind)
    return cudnnDataType_t(kind[0])


def cudnnGetCTCLossDescriptorEx(
    ctcLossDesc: CTCLossDescriptor,
) -> tuple[cudnnDataType_t, cudnnLossNormalizationMode_t, cudnnNanPropagation_t]:
    """(compType, normMode, gradMode)."""
    library = library_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind, norm = ffi.new("cudnnDataType_t *"), ffi.new("cudnnLossNormalizationMode_t *")
    mode = ffi.new("cudnnNanPropagation_t *")
    invoke(library, "cudnnGetCTCLossDescriptorEx", ctcLossDesc._pointer, kind, norm, mode)
    return cudnnDataType_t(kind[0]), cudnnLossNormalizationMode_t(norm[0]), cudnnNanPropagation_t(mode[0])


def cudnnGetCTCLossDescriptor_v8(ctcLossDesc: CTCLossDescriptor) -> CTCLossSettings_v8:
    """(compType, normMode, gradMode, maxLabelLength)."""
    kind, norm, mode, longest = _settings(ctcLossDesc, "cudnnGetCTCLossDescriptor_v8", "cudnnNanPropagation_t *")
    return CTCLossSettings_v8(kind, norm, cudnnNanPropagation_t(mode), longest)


def cudnnGetCTCLossDescriptor_v9(ctcLossDesc: CTCLossDescriptor) -> CTCLossSettings_v9:
    """(compType, normMode, ctcGradMode, maxLabelLength). Since 9.0."""
    kind, norm, mode, longest = _settings(ctcLossDesc, "cudnnGetCTCLossDescriptor_v9", "cudnnCTCGradMode_t *")
    return CTCLossSettings_v9(kind, norm, cudnnCTCGradMode_t(mode), longest)


def _settings(
    ctcLossDesc: CTCLossDescriptor, getter: str, mode_type: str
) -> tuple[cudnnDataType_t, cudnnLossNormalizationMode_t, int, int]:
    library = library_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    kind, norm = ffi.new("cudnnDataType_t *"), ffi.new("cudnnLossNormalizationMode_t *")
    mode, longest = ffi.new(mode_type), ffi.new("int *")
    invoke(library, getter, ctcLossDesc._pointer, kind, norm, mode, longest)
    return cudnnDataType_t(kind[0]), cudnnLossNormalizationMode_t(norm[0]), int(mode[0]), int(longest[0])


def _kinds(
    compType: cudnnDataType_t | int, normMode: cudnnLossNormalizationMode_t | int
) -> tuple[cudnnDataType_t, cudnnLossNormalizationMode_t]:
    norm = member(cudnnLossNormalizationMode_t, "normMode", normMode)
    return member(cudnnDataType_t, "compType", compType), norm


def _longest(maxLabelLength: int) -> int:
    """The library keeps any int, a negative one too, and takes it at its word when it sizes the workspace."""
    longest = int32("maxLabelLength", maxLabelLength)
    if longest < 0:
        raise InvalidInput(f"maxLabelLength is {longest}", rule="label_length", value=longest)
    return longest
