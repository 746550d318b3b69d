"""Calls that share one workspace, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

__all__ = ["Turn", "new_turn"]

#: What a plan is doing. CLOSING: a call is under way, and close() was called during it.
IDLE, RUNNING, CLOSING = range(3)

T_ = TypeVar("T_")


class Turn(NamedTuple):
    """`lock` lets one thread in at a time, which may enter again before it is done, from a signal handler or a
    finalizer: the one byte of `state`, read and written with the lock held, by C too, tells. `close` is called where
    a call ends as CLOSING."""

    lock: Any
    state: bytearray
    close: Callable[[], None]

    def take(self, run: Callable[..., T_], *arguments: Any) -> T_ | None:
        """What `run` returns; None where this same thread is using the workspace already, further up the stack."""
        with self.lock:
            if self.state[0] != IDLE:
                return None
            try:
                self.state[0] = RUNNING
                return run(*arguments)
            finally:
                closing, self.state[0] = self.state[0] == CLOSING, IDLE
                if closing:
                    self.close()

    def close_when_idle(self) -> None:
        """Closes now or, where a call is under way, as it ends; with the lock held."""
        if self.state[0] == IDLE:
            self.close()
        else:
            self.state[0] = CLOSING


def new_turn(close: Callable[[], None]) -> Turn:
    return Turn(threading.RLock(), bytearray([IDLE]), close)
