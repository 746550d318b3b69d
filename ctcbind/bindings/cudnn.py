"""cuDNN's CTC loss, function for function, with C's names and C's order of arguments.

A C program moves here line by line: what C writes through a pointer is returned, `nbDims` is left out where lists
tell it, a status that is not 0 raises NativeError with cuDNN's own reason, and enums are checked, for the library
takes any number. Device memory is given as addresses (ints; `x.data.ptr` of a CuPy array), and None is NULL. The
library is found and loaded at the first call: every function may raise EngineUnavailable, and EngineUnsupported where
this version has no such one.

Nothing is unified here: `probs` are probabilities or activations as the descriptor says, the blank is 0, a sample
whose labels do not fit costs 0, and the gradient past an input length keeps what the buffer held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import cudnn_calls, cudnn_descriptors, cudnn_enums, cudnn_loss
from .cudnn_calls import *  # noqa: F403
from .cudnn_descriptors import *  # noqa: F403
from .cudnn_enums import *  # noqa: F403
from .cudnn_library import Library, ffi, has, load, loaded_from, version_text
from .cudnn_log import cudnnDebug_t
from .cudnn_loss import *  # noqa: F403
from .cudnn_objects import CTCLossDescriptor, Handle, TensorDescriptor
from .cudnn_status import StatusCategory, cudnnStatus_t, cudnnStatus_v8_t

__all__ = [
    "CUDNN_STATUS_SUCCESS",
    "CTCLossDescriptor",
    "Handle",
    "Library",
    "StatusCategory",
    "TensorDescriptor",
    "cudnnDebug_t",
    "cudnnStatus_t",
    "cudnnStatus_v8_t",
    "ffi",
    "has",
    "load",
    "loaded_from",
    "version_text",
]
__all__ += cudnn_calls.__all__
__all__ += cudnn_descriptors.__all__
__all__ += cudnn_enums.__all__
__all__ += cudnn_loss.__all__

#: The one status that both numberings share.
CUDNN_STATUS_SUCCESS = cudnnStatus_t.CUDNN_STATUS_SUCCESS

if not TYPE_CHECKING:  # where it would hide misspelled names

    def __getattr__(name: str) -> object:
        hint = ""
        if name in cudnn_enums.cudnnDataType_t.__members__:
            hint = f": it is cudnnDataType_t.{name}, which the CTC loss does not take"
        if name.startswith("CUDNN_STATUS_"):
            hint = (
                ": its number is not the same in cuDNN 8 (cudnnStatus_v8_t) and 9 (cudnnStatus_t), and releases add "
                "finer ones; compare status_category(error.status) with a StatusCategory"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
