"""The loss and its gradient with respect to the logits, from any engine that ctcbind has."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ctcbind

from .errors import ReaderError

#: Names that the command takes; ctcbind says which of them this machine has.
ENGINES = ("auto", "native", "warpctc", "cudnn", "cuda", "reference")


class Outcome(NamedTuple):
    """`loss`, the batch's mean; `grad` of the logits' shape and kind; `given`, what the loss was handed: logits,
    targets, frames and layout."""

    loss: float
    grad: Any
    given: tuple[Any, list[list[int]], npt.NDArray[Any], str]


class Loss:
    """ctcbind's loss for logits (N, T, C), as a user would call it."""

    def __init__(self, engine: str) -> None:
        known = ctcbind.engines()
        if engine != "auto":
            if engine not in known:
                raise ReaderError(
                    f"this ctcbind ({ctcbind.__version__}) has no engine {engine!r}; it has {', '.join(known)}"
                )
            if not known[engine].available:
                raise ReaderError(f"engine {engine!r} is not available: {known[engine].reason}")
        self.on_host = engine != "auto" and known[engine].contract.arrays != "device"
        self.ctc = ctcbind.CTCLoss(engine=engine, layout="NTC", reduction="batch_mean", zero_infinity=True)

    def __call__(self, logits: Any, targets: list[list[int]], frames: npt.NDArray[Any]) -> Outcome:
        given = to_host(logits) if self.on_host else logits
        result = self.ctc(given, targets, frames)
        grad = like(logits, result.grad)
        return Outcome(float(result.loss), grad, (given, targets, frames, "NTC"))

    def close(self) -> None:
        self.ctc.close()


def to_host(array: Any) -> npt.NDArray[Any]:
    """The array as NumPy's; one in GPU memory is copied."""
    return array if isinstance(array, np.ndarray) else array.get()


def like(array: Any, value: Any) -> Any:
    """`value` where `array` is: on the host, or copied to the GPU."""
    if isinstance(array, np.ndarray) or not isinstance(value, np.ndarray):
        return value
    import cupy

    return cupy.asarray(value)
