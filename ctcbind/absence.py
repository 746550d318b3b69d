"""Engines that are absent: why, and the command that brings them."""

from __future__ import annotations

from .engines import get

__all__ = ["absence", "bring"]


def absence(engine: str, reason: str | None) -> str:
    """Why an engine is absent, and the command that brings it where the reason has another one or none."""
    command = bring(engine, reason)
    more = "" if command is None or command in (reason or "") else f"\nWith all it needs: {command}"
    return f"{engine} is absent: {reason}{more}"


def bring(engine: str, reason: str | None) -> str | None:
    """The command that brings an absent engine; None where its reason does not speak of installing: no command
    brings a CUDA device."""
    return get(engine).install if "pip install" in (reason or "") else None
