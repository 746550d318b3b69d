"""Which of ctcbind's extras brings CuPy, and with it cuDNN."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

__all__ = ["cuda_command", "import_cuda_cupy", "import_cupy", "is_rocm"]


def cuda_command() -> str:
    """The command for the CUDA whose cuDNN is installed already, by PyTorch say; for CUDA 12 where none is."""
    return f"pip install 'ctcbind[cuda{_cuda() or 12}]'"


def cuda_commands() -> str:
    """The same, with the other beside it where none is installed."""
    return cuda_command() + ("" if _cuda() else " (or 'ctcbind[cuda13]')")


def import_cupy(error: Callable[[str], Exception], need: str) -> Any:
    """The module; without it raises an error of the sentence `need` and the command that installs it, and where it is
    installed and broken, one that says so."""
    try:
        import cupy
    except ModuleNotFoundError as missing:
        if missing.name != "cupy":
            raise error(_broken(missing)) from missing
        raise error(f"{need}: {cuda_commands()}") from missing
    except Exception as broken:  # an older CuPy has an AttributeError for a newer NumPy
        raise error(_broken(broken)) from broken
    return cupy


def import_cuda_cupy(error: Callable[[str], Exception], need: str) -> Any:
    """The same, to compute with; CuPy's build for AMD's GPUs raises an error of its own."""
    cupy = import_cupy(error, need)
    if is_rocm(cupy):
        raise error(
            f"CuPy {cupy.__version__} is a build for ROCm, and ctcbind computes on the host and on devices of CUDA; "
            "cupy.asnumpy copies arrays to the host"
        )
    return cupy


def is_rocm(cupy: Any) -> bool:
    """Whether a CuPy was built for ROCm: its devices, and its kernels, are not CUDA's."""
    try:
        return bool(cupy.cuda.runtime.is_hip)
    except Exception:  # whatever a CuPy raises whose libraries are missing; what uses them says it better
        return False


def _broken(error: Exception) -> str:
    """The last line of the error: CuPy's own has the cause there, below advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =")]
    said = lines[-1] if lines else ""
    if not re.match(r"\w+Error: ", said):
        said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"CuPy is installed and cannot be imported: {said}"


def _cuda() -> int | None:
    """The CUDA of the cuDNN wheel; None without one."""
    from importlib import metadata  # slow to import

    for cuda in (13, 12):
        try:
            metadata.distribution(f"nvidia-cudnn-cu{cuda}")
        except metadata.PackageNotFoundError:
            continue
        return cuda
    return None
