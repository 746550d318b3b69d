"""The C line: the only place that imports cffi. Ints, pointers, status codes and C names; no arrays of any kind."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def _look_for_native() -> None:
    """Raises ImportError with the cure where the sources are imported, which have no C extension beside them."""
    try:
        import_module("._native", __name__)
    except ModuleNotFoundError as missing:
        root = Path(__file__).resolve().parents[2]
        if missing.name != f"{__name__}._native" or not (root / "build_ffi.py").exists():
            raise
        raise ImportError(
            f"these are ctcbind's sources, without their C extension: in {root} Python finds them before the installed "
            "package. Run Python in another folder, or build the extension here: pip install -e .",
            name=missing.name,
            path=str(root),
        ) from None


_look_for_native()
