"""The errors of ctcbind: each is ours and a builtin at once, so that either `except` catches it."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Generator
from typing import TypeVar

__all__ = [
    "ClosedError",
    "CtcbindError",
    "EngineUnavailable",
    "EngineUnsupported",
    "Found",
    "InvalidInput",
    "NativeError",
    "NativeMemoryError",
    "OutOfMemory",
    "brief",
    "counted",
    "first",
    "kind_of_items",
    "reworded",
    "with_hint",
]

T_ = TypeVar("T_")


class CtcbindError(Exception):
    """The base of everything that ctcbind raises."""


class InvalidInput(CtcbindError, ValueError):
    """The input cannot be right; the message names the sample, the rule and the value.

    `rule` is a short name of what was broken ("label_range", "input_length", ...), `sample` the index of the
    sample in the batch (None where the whole call is meant), `position` that of the label or frame within the sample
    (None where it has none), `value` the offending value.
    """

    def __init__(
        self,
        message: str,
        *,
        rule: str = "",
        sample: int | None = None,
        position: int | None = None,
        value: object = None,
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.sample = sample
        self.position = position
        self.value = value


#: A rule at work: it yields each breach that it meets, and returns what it has made of its input.
Found = Generator[InvalidInput, None, T_]


def first(found: Found[T_]) -> T_:
    """What a rule makes of its input; raises the first breach."""
    try:
        problem = next(found)
    except StopIteration as stop:
        value: T_ = stop.value
        return value
    try:
        found.close()
        raise problem
    finally:
        del problem, found  # else error, traceback and this frame would refer to each other in a cycle


def reworded(found: Found[T_], reword: Callable[[InvalidInput], InvalidInput]) -> Found[T_]:
    """The same rule, with `reword` of each breach in its place."""
    while True:
        try:
            problem = next(found)
        except StopIteration as stop:
            value: T_ = stop.value
            return value
        yield reword(problem)


def with_hint(problem: InvalidInput, hint: str) -> InvalidInput:
    """The same breach, with more words at the end of its message."""
    return InvalidInput(
        f"{problem}{hint}",
        rule=problem.rule,
        sample=problem.sample,
        position=problem.position,
        value=problem.value,
    )


class EngineUnavailable(CtcbindError, RuntimeError):
    """The engine's library is not on this machine, or cannot be loaded; the message lists every reason."""


class EngineUnsupported(CtcbindError, NotImplementedError):
    """The engine is there but cannot give the right answer for this batch; the message names the sample."""


class ClosedError(CtcbindError, RuntimeError):
    """A handle, descriptor or `CTCLoss` was used after it was closed."""


class NativeError(CtcbindError, RuntimeError):
    """A C function returned an error status.

    `call` is the C function, `status` its number, `name` the library's name of that number, `explanation`
    what it means here.
    """

    def __init__(self, call: str, status: int, name: str, explanation: str) -> None:
        super().__init__(f"{call} returned {name} ({status}): {explanation}")
        self.call = call
        self.status = status
        self.name = name
        self.explanation = explanation

    def __reduce__(self) -> tuple[type[NativeError], tuple[str, int, str, str]]:
        return type(self), (self.call, self.status, self.name, self.explanation)


class NativeMemoryError(NativeError, MemoryError):
    """A C function had no memory for its work; `explanation` names the bytes where they are known."""


class OutOfMemory(CtcbindError, MemoryError):
    """A lattice, a Hessian, beams of a search, or the reference's tables take more memory than can be had."""


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 80

    def repr_int(self, x: int, level: int) -> str:
        try:
            repr(x)
        except ValueError:  # Python does not write more than 4300 digits; of such a one reprlib 3.14 gives the address
            return f"an int of {x.bit_length()} bits"
        return super().repr_int(x, level)

    def repr_instance(self, x: object, level: int) -> str:
        """Without an address, which says nothing and differs from call to call."""
        try:
            text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(x))
        except Exception:  # whatever an object's own repr may raise
            return f"<{type(x).__name__} instance>"
        half = self.maxother // 2 - 1
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[1 - half :]}"


_BRIEF = _Brief()


def brief(value: object) -> str:
    """A value as Python writes it, cut in the middle where that is long."""
    return _BRIEF.repr(value)


def counted(number: int, noun: str) -> str:
    """The number and the noun, in the plural unless there is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def kind_of_items(view: memoryview) -> str:
    """What a buffer holds, by NumPy's names where struct's code has one."""
    code = (view.format or "B").lstrip("@=<")
    if code in ("e", "f", "d"):
        return f"float{8 * view.itemsize}"
    if code == "?":
        return "bool"
    if len(code) == 1 and code in "bhilqnBHILQN":
        return f"{'int' if code.islower() else 'uint'}{8 * view.itemsize}"
    return f"items of format {view.format!r}"
