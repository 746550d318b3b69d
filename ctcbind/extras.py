"""Which of ctcbind's extras brings CuPy, and with it cuDNN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["cuda_command", "cuda_commands", "import_cupy"]


def cuda_command() -> str:
    """The command for the CUDA whose cuDNN is installed already, by PyTorch say; for CUDA 12 where none is."""
    return f"pip install 'ctcbind[cuda{_cuda() or 12}]'"


def cuda_commands() -> str:
    """The same, with the other beside it where none is installed."""
    return cuda_command() + ("" if _cuda() else " (or 'ctcbind[cuda13]')")


def import_cupy(error: Callable[[str], Exception], need: str) -> Any:
    """The module; without it raises an error of the sentence `need` and the command that installs it."""
    try:
        import cupy
    except ImportError as missing:
        raise error(f"{need}: {cuda_commands()}") from missing
    return cupy


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
