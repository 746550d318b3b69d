"""The C line: the only place that imports cffi. Ints, pointers, status codes and C names; no arrays of any kind."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _look_for_extensions() -> None:
    """Raises ImportError with the cure where the sources are imported, and not all C extensions are beside them."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "build_ffi.py").exists():
        return
    for name in ("_native", "_direct"):
        if find_spec(f"{__name__}.{name}") is None:
            raise ImportError(
                f"these are ctcbind's sources, without their C extensions: in {root} Python finds them before the "
                "installed package. Run Python in another folder, or build the extensions here: pip install -e .",
                name=f"{__name__}.{name}",
                path=str(root),
            )


_look_for_extensions()
