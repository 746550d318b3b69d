"""The three things that cuDNN hands out, each owned by one Python object: closed once, never used after."""

from __future__ import annotations

import logging
import os
import weakref
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from ..errors import ClosedError, InvalidInput
from .cudnn_library import Library, ffi, invoke, load

__all__ = [
    "CTCLossDescriptor",
    "Handle",
    "TensorDescriptor",
    "create",
    "destroy",
    "library_of",
    "pointer_of",
]

logger = logging.getLogger("ctcbind")
O = TypeVar("O", bound="Owned")  # noqa: E741


class Owned:
    """A pointer that the library made and must be given back. A context manager; close() may be called twice.

    It is given back at close(), or when the object is collected. Not at the end of the interpreter, where the
    driver may be gone before it: the process frees it then. And not by a forked child, whose copy of the CUDA
    context is dead.
    """

    _what = ""
    _destroy = ""

    def __init__(self, library: Library, pointer: Any) -> None:
        self._library = library
        self._pointer = pointer
        self._finalizer = weakref.finalize(self, _release, library, self._destroy, pointer, os.getpid())
        self._finalizer.atexit = False

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._pointer is None

    @property
    def address(self) -> int:
        """The pointer as a number, for other C code; raises ClosedError after close()."""
        return int(ffi.cast("uintptr_t", pointer_of(type(self), self._what, self)))

    def close(self) -> None:
        """Gives it back to the library; raises NativeError where that fails, and is closed even so."""
        detached = self._finalizer.detach()
        self._pointer = None
        if detached is not None:
            _, _, (library, destroy, pointer, pid), _ = detached
            if pid == os.getpid():
                invoke(library, destroy, pointer)

    def __enter__(self: O) -> O:
        pointer_of(type(self), self._what, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"at {self.address:#x}"
        return f"<{type(self).__name__} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {self._what} cannot be copied or pickled: two owners would destroy it twice")


class Handle(Owned):
    """A cudnnHandle_t: the library's state for one device, the one that was current at cudnnCreate()."""

    _what = "cuDNN handle"
    _destroy = "cudnnDestroy"

    def __init__(self, library: Library, pointer: Any) -> None:
        super().__init__(library, pointer)
        self._in_use: object = None  # host labels of the last call, which the device may not have read yet


class TensorDescriptor(Owned):
    """A cudnnTensorDescriptor_t; for a CTC loss its dimensions are (T, N, A), its strides count elements."""

    _what = "tensor descriptor"
    _destroy = "cudnnDestroyTensorDescriptor"

    def __init__(self, library: Library, pointer: Any) -> None:
        super().__init__(library, pointer)
        self._dims: tuple[int, ...] = ()
        self._strides: tuple[int, ...] = ()


class CTCLossDescriptor(Owned):
    """A cudnnCTCLossDescriptor_t: compute type, normalization, gradient mode and the longest label."""

    _what = "CTC loss descriptor"
    _destroy = "cudnnDestroyCTCLossDescriptor"

    def __init__(self, library: Library, pointer: Any) -> None:
        super().__init__(library, pointer)
        self._max_label_length = 0


def pointer_of(kind: type[Owned], name: str, owner: object) -> Any:
    """The C pointer of a live `kind`; raises ClosedError for a closed one, InvalidInput for NULL or another thing.

    A NULL handle is a segmentation fault in cudnnCTCLoss and both workspace queries (8.5 to 9.28), and a freed
    one is read without a check.
    """
    if not isinstance(owner, kind):
        given = "NULL (None)" if owner is None else f"a {type(owner).__name__}"
        raise InvalidInput(f"{name} must be a {kind.__name__}, not {given}", rule="handle", value=owner)
    pointer = owner._pointer
    if pointer is None:
        raise ClosedError(f"{name}: this {owner._what} was closed; make a new one")
    return pointer


def library_of(kind: type[Owned], name: str, owner: Owned) -> Library:
    """The library that made a live `kind`; raises as pointer_of does."""
    pointer_of(kind, name, owner)
    return owner._library


def create(kind: type[O], call: str, pointer_type: str) -> O:
    """What the C function `call` makes, owned."""
    library = load()
    pointer = ffi.new(pointer_type)
    invoke(library, call, pointer)
    return kind(library, pointer[0])


def destroy(kind: type[Owned], name: str, owner: Owned) -> None:
    """Closes a live `kind`; of a closed one C would free the same memory again, unseen, so that it raises."""
    pointer_of(kind, name, owner)
    owner.close()


def _release(library: Library, destroy: str, pointer: Any, pid: int) -> None:
    """What the garbage collector does in place of close(). It can run at any line, one that holds the log's lock
    too, so that it takes the shortest way; and nobody is there to hear an error."""
    if pid == os.getpid():
        status = library.function(destroy)(pointer)
        if status != 0:
            logger.debug("%s at garbage collection returned %s", destroy, status)
