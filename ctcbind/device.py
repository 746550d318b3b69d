"""Arrays carried to the current CUDA device, for the engines that need one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from .errors import EngineUnavailable
from .extras import import_cuda_cupy

__all__ = ["to_device"]


def to_device(host: npt.NDArray[Any]) -> tuple[Any, str, Callable[[], Any]]:
    """A NumPy array copied to the current CUDA device: (the copy, the device's name, a call that waits for it).

    Raises EngineUnavailable where there is no CuPy or no device.
    """
    need = "it computes on a CUDA device, and CuPy, which holds arrays there, is not installed"
    cupy = import_cuda_cupy(EngineUnavailable, need)
    try:
        index = cupy.cuda.runtime.getDevice()
        title = cupy.cuda.runtime.getDeviceProperties(index)["name"]
        array = cupy.asarray(host)
    except Exception as error:  # CuPy has one exception class a CUDA library, and ImportErrors from late loading
        raise EngineUnavailable(f"it needs a CUDA device, and CuPy finds none that works: {error}") from error
    if isinstance(title, bytes):
        title = title.decode(errors="replace")
    return array, f"cuda:{index} {title}", cupy.cuda.get_current_stream().synchronize
