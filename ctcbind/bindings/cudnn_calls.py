"""The library's own calls, and the handle: versions, error strings, log callback, stream."""

from __future__ import annotations

from ..errors import InvalidInput
from .cudnn_arguments import device_pointer, int32
from .cudnn_enums import (
    CUDNN_SEV_ERROR_EN,
    CUDNN_SEV_INFO_EN,
    CUDNN_SEV_WARNING_EN,
    libraryPropertyType,
    member,
)
from .cudnn_library import check, ffi, invoke, last_error, load, string
from .cudnn_log import Callback, Window
from .cudnn_objects import Handle, create, destroy, library_of, pointer_of
from .cudnn_status import StatusCategory, category

__all__ = [
    "collect_log",
    "cudnnAdvInferVersionCheck",
    "cudnnAdvTrainVersionCheck",
    "cudnnAdvVersionCheck",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnGetCallback",
    "cudnnGetCudartVersion",
    "cudnnGetErrorString",
    "cudnnGetLastErrorString",
    "cudnnGetMaxDeviceVersion",
    "cudnnGetProperty",
    "cudnnGetStream",
    "cudnnGetVersion",
    "cudnnGraphVersionCheck",
    "cudnnOpsInferVersionCheck",
    "cudnnOpsTrainVersionCheck",
    "cudnnOpsVersionCheck",
    "cudnnSetCallback",
    "cudnnSetStream",
    "status_category",
]


def cudnnGetVersion() -> int:
    """The version of the library that runs: 8500 is 8.5.0, 92800 is 9.28.0 (the digits were regrouped at 9.0)."""
    return int(load().lib.cudnnGetVersion())


def cudnnGetCudartVersion() -> int:
    """The version of the CUDA runtime linked into the library: 12090 is 12.9."""
    return int(load().lib.cudnnGetCudartVersion())


def cudnnGetMaxDeviceVersion() -> int:
    """The newest compute capability that this cuDNN knows, times 100: 900 is 9.0. Since 8.6."""
    return int(load().function("cudnnGetMaxDeviceVersion")())


def cudnnGetProperty(type: libraryPropertyType | int) -> int:
    """The major, minor or patch number of the version."""
    value = ffi.new("int *")
    invoke(load(), "cudnnGetProperty", member(libraryPropertyType, "type", type), value)
    return int(value[0])


def cudnnGetErrorString(status: int) -> str:
    """The library's name of a status of its own numbering; CUDNN_UNKNOWN_STATUS of any other."""
    return string(load().lib.cudnnGetErrorString(int32("status", status)))


def cudnnGetLastErrorString() -> str:
    """The text of this thread's last error; reading it clears it. Since 9.0. A NOT_SUPPORTED leaves none, and a
    success does not clear it."""
    return last_error(load())


def status_category(status: int) -> StatusCategory:
    """What kind of failure a status of the library that runs is: the way to tell one from another."""
    return category(status, load().version)


def cudnnGraphVersionCheck() -> None:
    """Raises NativeError where libcudnn_graph does not fit the libraries it needs. Since 9.0, like Ops and Adv."""
    invoke(load(), "cudnnGraphVersionCheck")


def cudnnOpsVersionCheck() -> None:
    """The same for libcudnn_ops."""
    invoke(load(), "cudnnOpsVersionCheck")


def cudnnAdvVersionCheck() -> None:
    """The same for libcudnn_adv, which holds the CTC loss."""
    invoke(load(), "cudnnAdvVersionCheck")


def cudnnOpsInferVersionCheck() -> None:
    """The same for libcudnn_ops_infer of cuDNN 8."""
    invoke(load(), "cudnnOpsInferVersionCheck")


def cudnnOpsTrainVersionCheck() -> None:
    """The same for libcudnn_ops_train of cuDNN 8."""
    invoke(load(), "cudnnOpsTrainVersionCheck")


def cudnnAdvInferVersionCheck() -> None:
    """The same for libcudnn_adv_infer of cuDNN 8."""
    invoke(load(), "cudnnAdvInferVersionCheck")


def cudnnAdvTrainVersionCheck() -> None:
    """The same for libcudnn_adv_train of cuDNN 8, which holds the CTC loss."""
    invoke(load(), "cudnnAdvTrainVersionCheck")


def cudnnSetCallback(mask: int, udata: object, fptr: Callback | None) -> None:
    """Has `fptr(severity, udata, debug, message)` called for log messages; mask 0 or None ends that.

    `mask` adds CUDNN_SEV_ERROR_EN, CUDNN_SEV_WARNING_EN and CUDNN_SEV_INFO_EN. There is one callback for the
    whole process, and it may be called in any thread that uses cuDNN.
    """
    _check_mask(mask)
    if fptr is not None and not callable(fptr):
        raise InvalidInput("fptr must be a callable or None", rule="callback", value=fptr)
    library = load()
    check(library, "cudnnSetCallback", library.log.set_user(mask, udata, fptr))


def cudnnGetCallback() -> tuple[int, object, Callback | None]:
    """The (mask, udata, fptr) given to cudnnSetCallback; (0, None, None) where there is none from here."""
    return load().log.user() or (0, None, None)


def collect_log(mask: int = CUDNN_SEV_ERROR_EN | CUDNN_SEV_WARNING_EN) -> Window:
    """A context manager whose value is a list: the log messages of this thread's cuDNN calls inside it.

    With CUDNN_SEV_INFO_EN in the mask, every call is logged with its arguments. A callback that other code has
    set in the process is not replaced; then the list stays empty.
    """
    _check_mask(mask)
    return load().log.window(mask)


def _check_mask(mask: int) -> None:
    if int32("mask", mask) & ~(CUDNN_SEV_ERROR_EN | CUDNN_SEV_WARNING_EN | CUDNN_SEV_INFO_EN):
        raise InvalidInput(f"mask must be a sum of CUDNN_SEV_*_EN, not {mask}", rule="mask", value=mask)


def cudnnCreate() -> Handle:
    """A handle for the current CUDA device; raises NativeError on a machine without a device or a driver."""
    return create(Handle, "cudnnCreate", "cudnnHandle_t *")


def cudnnDestroy(handle: Handle) -> None:
    """handle.close(), but for a closed one, which raises ClosedError. Waits for the device (cudnn_graph.h)."""
    destroy(Handle, "handle", handle)


def cudnnSetStream(handle: Handle, streamId: int | None) -> None:
    """The CUDA stream, given as its address, on which the work of this handle goes; None is the default one."""
    pointer = pointer_of(Handle, "handle", handle)
    wanted = "the address of a stream as an int (stream.ptr in CuPy, stream.cuda_stream in PyTorch)"
    # 1 and 2 are CUDA's own names for its default streams
    stream = device_pointer("streamId", streamId, null=True, align=1, wanted=wanted, lowest=0)
    invoke(handle._library, "cudnnSetStream", pointer, ffi.cast("cudaStream_t", stream))


def cudnnGetStream(handle: Handle) -> int:
    """The address of the handle's CUDA stream, 0 for the default one."""
    stream = ffi.new("cudaStream_t *")
    invoke(library_of(Handle, "handle", handle), "cudnnGetStream", handle._pointer, stream)
    return int(ffi.cast("uintptr_t", stream[0]))
