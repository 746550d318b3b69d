"""The loss itself: cudnnCTCLoss with labels in host memory, cudnnCTCLoss_v8 with labels on the device."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidInput
from .cudnn_arguments import HostInts, check_labels, device_pointer, host_ints, workspace
from .cudnn_enums import cudnnCTCLossAlgo_t, member
from .cudnn_library import ffi, invoke
from .cudnn_objects import CTCLossDescriptor, Handle, TensorDescriptor, pointer_of

__all__ = [
    "cudnnCTCLoss",
    "cudnnCTCLoss_v8",
    "cudnnGetCTCLossWorkspaceSize",
    "cudnnGetCTCLossWorkspaceSize_v8",
]


def cudnnGetCTCLossWorkspaceSize(
    handle: Handle,
    probsDesc: TensorDescriptor,
    gradientsDesc: TensorDescriptor | None,
    labels: object,
    labelLengths: object,
    inputLengths: object,
    algo: cudnnCTCLossAlgo_t | int,
    ctcLossDesc: CTCLossDescriptor,
) -> int:
    """The bytes of workspace that cudnnCTCLoss needs for these labels; gradientsDesc None is for costs only.

    labels, labelLengths and inputLengths are as in cudnnCTCLoss. NativeError NOT_SUPPORTED: a type that
    cannot be (cudnnDataType_t says which can), or 256 labels or more in a sample (8.1 on, where the documents say more
    than 256; pytorch issue 53505).
    """
    opaque = pointer_of(Handle, "handle", handle)
    probs = _tnc("probsDesc", probsDesc)
    gradients = _like("gradientsDesc", gradientsDesc, probsDesc)
    kind = member(cudnnCTCLossAlgo_t, "algo", algo)
    desc = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    host = _host(probsDesc, ("labels", labels), ("labelLengths", labelLengths), ("inputLengths", inputLengths))
    size = ffi.new("size_t *")
    pointers = [each.pointer for each in host]
    call = "cudnnGetCTCLossWorkspaceSize"
    invoke(handle._library, call, opaque, probs, gradients, *pointers, kind, desc, size)
    return int(size[0])


def cudnnCTCLoss(
    handle: Handle,
    probsDesc: TensorDescriptor,
    probs: int,
    hostLabels: object,
    hostLabelLengths: object,
    hostInputLengths: object,
    costs: int,
    gradientsDesc: TensorDescriptor | None,
    gradients: int | None,
    algo: cudnnCTCLossAlgo_t | int,
    ctcLossDesc: CTCLossDescriptor,
    workspace: int | None,
    workSpaceSizeInBytes: int,
) -> None:
    """Computes costs and gradients of a batch, on the handle's stream, with the labels in host memory.

    ==================  ==================  ============================================================
    probs               device, (T, N, A)   probabilities (NONE) or activations (SOFTMAX)
    hostLabels          host, int32         the labels of all samples, one after the other, in [1, A - 1]
    hostLabelLengths    host, int32, (N,)   at most 255 each
    hostInputLengths    host, int32, (N,)   at most T each
    costs               device, (N,)        -ln p, natural logarithm; 0 for no label, and for labels that do not fit
    gradients           device, (T, N, A)   with respect to the activations, but see below; None: costs only
    workspace           device              as many bytes as cudnnGetCTCLossWorkspaceSize says
    ==================  ==================  ============================================================

    Host arrays are sequences of ints, int32 buffers, or addresses, which are taken on trust; the other two are
    checked. A buffer or address must live until the stream has passed the call. Zero the gradients before:
    cuDNN does not write them past an input length. With NONE, documents promise y - occupancy, and 9.19 returns
    -occupancy / y for the classes that paths go through and y for the others (docs/asymmetry.md makes the
    promised one of it). Raises InvalidInput, ClosedError, NativeError.
    Source: cudnn_adv.h (9.28), tensorflow issue 41280 for the gradients.
    """
    opaque = pointer_of(Handle, "handle", handle)
    desc = pointer_of(CTCLossDescriptor, "ctcLossDesc", ctcLossDesc)
    pointers = _tensors(probsDesc, probs, costs, gradientsDesc, gradients)
    kind = member(cudnnCTCLossAlgo_t, "algo", algo)
    scratch, size = _workspace(workspace, workSpaceSizeInBytes)
    host = _host(
        probsDesc,
        ("hostLabels", hostLabels),
        ("hostLabelLengths", hostLabelLengths),
        ("hostInputLengths", hostInputLengths),
    )
    handle._in_use = [each.keep for each in host]  # copies made here must outlive the copy to the device
    invoke(
        handle._library,
        "cudnnCTCLoss",
        opaque,
        pointers[0],
        pointers[1],
        *(each.pointer for each in host),
        *pointers[2:],
        kind,
        desc,
        scratch,
        size,
    )


def cudnnGetCTCLossWorkspaceSize_v8(
    handle: Handle,
    algo: cudnnCTCLossAlgo_t | int,
    ctcLossDesc: CTCLossDescriptor,
    probsDesc: TensorDescriptor,
    gradientsDesc: TensorDescriptor | None,
) -> int:
    """The bytes of workspace that cudnnCTCLoss_v8 needs for labels up to the descriptor's maxLabelLength."""
    opaque = pointer_of(Handle, "handle", handle)
    kind = member(cudnnCTCLossAlgo_t, "algo", algo)
    desc = _with_longest(ctcLossDesc)
    probs = _tnc("probsDesc", probsDesc)
    gradients = _like("gradientsDesc", gradientsDesc, probsDesc)
    size = ffi.new("size_t *")
    invoke(handle._library, "cudnnGetCTCLossWorkspaceSize_v8", opaque, kind, desc, probs, gradients, size)
    return int(size[0])


def cudnnCTCLoss_v8(
    handle: Handle,
    algo: cudnnCTCLossAlgo_t | int,
    ctcLossDesc: CTCLossDescriptor,
    probsDesc: TensorDescriptor,
    probs: int,
    labels: int,
    labelLengths: int,
    inputLengths: int,
    costs: int,
    gradientsDesc: TensorDescriptor | None,
    gradients: int | None,
    workSpaceSizeInBytes: int,
    workspace: int | None,
) -> None:
    """cudnnCTCLoss with labels, labelLengths and inputLengths (int32) in device memory, as addresses.

    Two things differ from cudnnCTCLoss in the order of the arguments: algo and ctcLossDesc come first, and the
    workspace's size comes before the workspace. It can be captured in a CUDA graph. Nothing can be checked of
    what is on the device: a label out of range is read past the buffer (9.8) or ends the CUDA context (9.25),
    a label longer than the descriptor's maxLabelLength does not fit the workspace, and host addresses end in
    EXECUTION_FAILED. Source: cudnn_adv.h (9.28), pytorch issues 189670, 195492 and 152421.
    """
    opaque = pointer_of(Handle, "handle", handle)
    desc = _with_longest(ctcLossDesc)
    pointers = _tensors(probsDesc, probs, costs, gradientsDesc, gradients)
    device = [
        ffi.cast("int *", device_pointer(name, value))
        for name, value in (("labels", labels), ("labelLengths", labelLengths), ("inputLengths", inputLengths))
    ]
    kind = member(cudnnCTCLossAlgo_t, "algo", algo)
    scratch, size = _workspace(workspace, workSpaceSizeInBytes)
    invoke(
        handle._library,
        "cudnnCTCLoss_v8",
        opaque,
        kind,
        desc,
        pointers[0],
        pointers[1],
        *device,
        *pointers[2:],
        size,
        scratch,
    )


_workspace = workspace  # the C name of an argument hides it in the functions above


def _tensors(
    probsDesc: TensorDescriptor,
    probs: int,
    costs: int,
    gradientsDesc: TensorDescriptor | None,
    gradients: int | None,
) -> list[Any]:
    """probsDesc, probs, costs, gradientsDesc and gradients for C, in the order that both calls share."""
    grad = device_pointer("gradients", gradients, null=True)
    if grad != ffi.NULL and gradientsDesc is None:
        raise InvalidInput("gradients without a gradientsDesc", rule="pointer", value=gradients)
    return [
        _tnc("probsDesc", probsDesc),
        device_pointer("probs", probs),
        device_pointer("costs", costs),
        _like("gradientsDesc", gradientsDesc, probsDesc),
        grad,
    ]


def _tnc(name: str, desc: TensorDescriptor) -> Any:
    pointer = pointer_of(TensorDescriptor, name, desc)
    if len(desc._dims) != 3:
        given = f"it has {len(desc._dims)} dimensions" if desc._dims else "it was not set"
        raise InvalidInput(f"{name} must have the dimensions (T, N, A); {given}", rule="dims", value=desc._dims)
    backwards = any(step < 0 and size > 1 for step, size in zip(desc._strides, desc._dims))
    if backwards or (desc._strides[2] != 1 and desc._dims[2] > 1):
        # experiment E14 in docs/gpu: success, and wrong results
        raise InvalidInput(
            f"{name} has the strides {desc._strides}; the last must be 1 and none negative: cuDNN does not follow "
            "others, and says nothing",
            rule="strides",
            value=desc._strides,
        )
    return pointer


def _like(name: str, desc: TensorDescriptor | None, other: TensorDescriptor) -> Any:
    if desc is None:
        return ffi.NULL
    pointer = _tnc(name, desc)
    if desc._dims != other._dims:
        message = f"{name} has the dimensions {desc._dims}, probsDesc {other._dims}"
        raise InvalidInput(message, rule="dims", value=desc._dims)
    (t, n, _), (other_t, other_n, _) = desc._strides, other._strides
    if min(desc._dims[:2]) > 1 and (t > n) != (other_t > other_n):
        raise InvalidInput(
            f"{name} has the strides {desc._strides}, probsDesc {other._strides}: one is time first in memory, the "
            "other batch first, and cuDNN then writes a wrong gradient, and says nothing",
            rule="strides",
            value=desc._strides,
        )
    return pointer


def _with_longest(desc: CTCLossDescriptor) -> Any:
    pointer = pointer_of(CTCLossDescriptor, "ctcLossDesc", desc)
    if desc._max_label_length == 0:
        raise InvalidInput(
            "ctcLossDesc has the maxLabelLength 0, which cudnnSetCTCLossDescriptor and ...Ex leave it at; set it "
            "with cudnnSetCTCLossDescriptor_v8 or _v9",
            rule="label_length",
            value=0,
        )
    return pointer


def _host(desc: TensorDescriptor, *named: tuple[str, object]) -> list[HostInts]:
    """labels, label lengths and input lengths in host memory, checked against each other."""
    arrays = [host_ints(name, value) for name, value in named]
    check_labels(desc, *arrays)
    return arrays
