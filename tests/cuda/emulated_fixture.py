"""The cuda engine on a machine whose device is host memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import emulated
import pytest


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in for CuPy, whose kernels are run by the emulator."""
    yield emulated.install(monkeypatch)
    emulated.turns[0] = 0
    emulated.launches.clear()
