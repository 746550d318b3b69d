"""What each stream of each device has of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .common import capturing

__all__ = ["ByStream"]

#: The address by which every thread calls its own default stream.
PER_THREAD = 2

Kept = TypeVar("Kept")


class ByStream(Generic[Kept]):
    """One thing for all work that is in order: by device, address of the stream and, where each thread has a stream of
    its own under one address, the thread itself, whose number is another's as soon as it has ended."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, threading.Thread | None], Kept] = {}

    def of_current(self, cupy: Any, make: Callable[[], Kept]) -> Kept:
        """That of the current stream of the current device, made when it is first asked for."""
        device, address = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
        key = device, address, threading.current_thread() if address == PER_THREAD else None
        if key not in self._kept:
            if not capturing(cupy):
                self._release_left(cupy)
            self._kept[key] = make()
        return self._kept[key]

    def _release_left(self, cupy: Any) -> None:
        """What threads have left, once their work is done: nobody else waits for it."""
        running = set(threading.enumerate())
        for key in [each for each in self._kept if each[2] is not None and each[2] not in running]:
            with cupy.cuda.Device(key[0]) as device:
                device.synchronize()
                del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        self._kept.clear()
