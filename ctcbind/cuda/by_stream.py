"""What each stream of each device has of its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from .common import capturing

__all__ = ["PER_THREAD", "ByStream", "life_of_current"]

#: The address by which every thread calls its own default stream.
PER_THREAD = 2


class _Kept(Protocol):
    @property
    def captured(self) -> bool:
        """Whether a graph may use it."""


Kept = TypeVar("Kept", bound=_Kept)
Key = tuple[int, int, threading.Thread | None]
#: None once the stream has been destroyed.
Life = Callable[[], Any]


def life_of_current(cupy: Any) -> Life:
    """Of the current stream of the current device. CuPy destroys those that it has made when nobody refers to them any
    more, whatever work they have; CUDA may give the address to the next one at once. Of others nothing is known."""
    stream = cupy.cuda.get_current_stream()
    lent = getattr(stream, "_foreign_stream_ref", None) is not None  # by Stream.from_external
    made = isinstance(stream, cupy.cuda.Stream) and not lent and stream.ptr > PER_THREAD
    return weakref.ref(stream) if made else lambda: True


class ByStream(Generic[Kept]):
    """One thing for all work that is in order: by device, address of the stream and, where each thread has a stream of
    its own under one address, the thread itself, whose number is another's as soon as it has ended. A stream that has
    the address of another that was destroyed has a thing of its own too."""

    def __init__(self) -> None:
        self._kept: dict[Key, tuple[Kept, Life]] = {}
        #: Of streams whose address another has by now: what graphs may use, or is to be released after a capture.
        self._left: list[tuple[int, Kept]] = []

    def of_current(self, cupy: Any, make: Callable[[], Kept]) -> Kept:
        """That of the current stream of the current device, made when it is first asked for."""
        device, address = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
        key = device, address, threading.current_thread() if address == PER_THREAD else None
        kept, life = self._kept.get(key, (None, None))
        if life is not None and life() is None:
            self._left.append((device, self._kept.pop(key)[0]))
            kept = None
        if kept is None:
            if not capturing(cupy):
                self._release_left(cupy)
            kept = make()
            self._kept[key] = kept, life_of_current(cupy)
        return kept

    def _release_left(self, cupy: Any) -> None:
        """What threads and streams have left, once their work is done: nobody else waits for it. Graphs, which others
        may launch, keep theirs."""
        running = set(threading.enumerate())
        ended = [each for each in self._kept if each[2] is not None and each[2] not in running]
        for key in [each for each in ended if not self._kept[each][0].captured]:
            with cupy.cuda.Device(key[0]) as device:
                device.synchronize()
                del self._kept[key]
        for left in [each for each in self._left if not each[1].captured]:
            with cupy.cuda.Device(left[0]) as device:
                device.synchronize()
                self._left.remove(left)

    def __len__(self) -> int:
        return len(self._kept) + len(self._left)

    def clear(self) -> None:
        self._kept.clear()
        self._left.clear()
