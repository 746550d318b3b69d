"""CUDA streams of other libraries, by their address."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from .arrays import on_device
from .errors import InvalidInput, brief
from .extras import import_cupy
from .kinds import gpu_number

__all__ = ["device_stream", "stream_address", "stream_scope"]


def stream_address(stream: Any) -> int:
    """The cudaStream_t of `stream`: an int, or an object with `ptr`, `cuda_stream` or `__cuda_stream__` (a method that
    returns (0, address), as cuda.core's has it)."""
    found: Any = stream
    if (protocol := getattr(stream, "__cuda_stream__", None)) is not None:
        pair = protocol() if callable(protocol) else protocol
        if not isinstance(pair, tuple) or len(pair) != 2 or not _is_zero(pair[0]):
            raise InvalidInput(
                f"stream: __cuda_stream__ gives {brief(pair)}, which is not (0, address)", rule="stream", value=pair
            )
        found = pair[1]
    else:
        for name in ("ptr", "cuda_stream"):
            if hasattr(stream, name):
                found = getattr(stream, name)
                break
    try:
        if isinstance(found, bool):
            raise TypeError
        address = operator.index(found)
    except TypeError:
        raise InvalidInput(
            f"stream is {brief(stream)} ({type(stream).__name__}); it must be an int, or an object with ptr, "
            "cuda_stream or __cuda_stream__",
            rule="stream",
            value=stream,
        ) from None
    if not 0 <= address < 2**64:
        raise InvalidInput(f"stream is {brief(address)}, which is no address", rule="stream", value=address)
    return address


def _is_zero(version: Any) -> bool:
    """Whether it is the number 0: arrays, say, have no one truth value."""
    try:
        return operator.index(version) == 0
    except TypeError:
        return False


class _Foreign:
    """A stream of another library, as the protocol has it."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address


@contextmanager
def device_stream(cupy: Any, address: int, number: int) -> Iterator[None]:
    """A context in which a device, by its number, and the stream there at an address are CuPy's current ones."""
    with cupy.cuda.Device(number):  # a stream can only be entered on its own device
        if hasattr(cupy.cuda.Stream, "from_external"):
            stream = cupy.cuda.Stream.from_external(_Foreign(address))
        else:  # before CuPy 14, which warns of it
            stream = cupy.cuda.ExternalStream(address, number)
        with stream:
            yield


def stream_scope(address: int, logits: Any) -> AbstractContextManager[Any]:
    """A context in which the stream is CuPy's current one, on the device of the logits."""
    cupy = import_cupy(partial(InvalidInput, rule="stream"), "a stream was given, and using it needs CuPy")
    number = gpu_number(logits, cupy) if on_device(logits) else cupy.cuda.Device().id
    return device_stream(cupy, address, number)
