"""Ctrl-C that waits for the end of a step."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class CtrlC:
    """Inside `with CtrlC() as stop:`, Ctrl-C sets `stop.asked`, and a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def __enter__(self) -> CtrlC:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)
