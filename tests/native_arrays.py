"""Whatever makes the native engine's arrays, in the place of numpy.empty."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from ctcbind.bindings.native_direct import open_direct


class Numpy:
    """NumPy, but for `empty`."""

    def __init__(self, empty: Callable[..., Any]) -> None:
        self.empty = empty

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def make_arrays_by(monkeypatch: pytest.MonkeyPatch, empty: Callable[..., Any]) -> None:
    """Until the end of the test `empty(shape, dtype)` makes results that are not large, whichever way a batch goes."""
    native = import_module("ctcbind.engines.native")
    monkeypatch.setattr(native, "np", Numpy(empty))
    monkeypatch.setattr(native, "open_direct", partial(open_direct, empty=empty))
