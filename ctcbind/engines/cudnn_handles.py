"""What a thread needs of cuDNN on one device, which all its plans share: to make a handle takes longer than a batch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..errors import EngineUnsupported, NativeError

__all__ = ["DeviceHandle", "handle_of_thread"]

log = logging.getLogger("ctcbind")


class DeviceHandle:
    """A handle of the device that is current now, and the descriptors of a call."""

    def __init__(self) -> None:
        from ..bindings import cudnn

        with ExitStack() as made:
            self.handle = made.enter_context(cudnn.cudnnCreate())
            self.logits = made.enter_context(cudnn.cudnnCreateTensorDescriptor())
            self.grad = made.enter_context(cudnn.cudnnCreateTensorDescriptor())
            self.ctc = made.enter_context(cudnn.cudnnCreateCTCLossDescriptor())
            self._made = made.pop_all()
        self.busy = False

    def close(self) -> None:
        """Releases in the order opposite to that of creation, the handle (which waits for its work) last."""
        try:
            self._made.close()
        except NativeError as error:  # nobody waits for it
            log.debug("cudnn: a handle was not released: %s", error)


#: By thread and device number. By the Thread object, not by its ident, since idents are used again: the handle of a
#: thread that has ended could belong to a new thread by the time it is released.
_handles: dict[tuple[threading.Thread, int], DeviceHandle] = {}


@contextmanager
def handle_of_thread(cupy: Any, device: int, capturing: bool) -> Iterator[DeviceHandle]:
    """The current thread's, for the device, which is the current one; kept as long as the thread lives.

    A call within a call, in a signal's handler or a finalizer, has one of its own, for what it describes would be what
    the call that it interrupts computes. Raises EngineUnsupported where one would have to be made in a capture.
    """
    mine = _kept(cupy, device, capturing)
    if not mine.busy:
        try:
            mine.busy = True
            yield mine
        finally:
            mine.busy = False
        return
    if capturing:
        raise EngineUnsupported(
            "engine 'cudnn' cannot be called within a call of its own while a graph is captured: no second handle can "
            "be made then"
        )
    mine = DeviceHandle()
    try:
        yield mine
    finally:
        mine.close()


def _kept(cupy: Any, device: int, capturing: bool) -> DeviceHandle:
    key = threading.current_thread(), device
    found = _handles.get(key)
    if found is not None:
        return found
    if capturing:
        raise EngineUnsupported(
            "engine 'cudnn' has no handle for this thread and device, and none can be made while a graph is "
            "captured: call it once with the same shapes before the capture"
        )
    # First the threads that have handles, then those that run: in this order a thread that begins in between is not
    # taken for one that has ended. Not Thread.is_alive: up to Python 3.12 it, or a join, may fail where several threads
    # ask at once.
    known, running = list(_handles), set(threading.enumerate())
    for left in [each for each in known if each[0] not in running]:
        _release(cupy, left)
    made = _handles[key] = DeviceHandle()
    log.debug("cudnn: a handle for device %d", device)
    return made


def _release(cupy: Any, key: tuple[threading.Thread, int]) -> None:
    left = _handles.pop(key, None)
    if left is not None:
        with cupy.cuda.Device(key[1]):  # a handle belongs to the device that was current at its creation
            left.close()
