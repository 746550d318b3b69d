"""What an engine promises, as data: doctor, compare, the README's table and the tests are made from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..batch import Batch
from .turn import Turn

__all__ = ["Contract", "Copy", "Engine", "EngineInfo", "Library", "Session", "Shortened", "Shorter"]

log = logging.getLogger("ctcbind")


@dataclass(frozen=True, slots=True)
class Contract:
    """What the engine's own function takes and gives, before ctcbind gives it the one meaning.

    `native_name` is the C (or Python) function that does the work; `takes` what it reads; `gradient_of` with
    respect to what it returns gradients; `arrays` where logits and gradients live, `labels` and `losses` where
    those live; `blank` which class it treats as blank; `dtypes` what it computes in; `layouts` the memory
    orders it reads without a copy; `topologies` which label topologies; `max_label_length` the longest label
    (None: no limit); `infeasible`, `empty_label`, `padded_time` what its function gives for a sample without a
    path, a sample without labels, and the gradient past the input length; `deterministic` whether the same
    input in the same place gives the same bits; `graph_capture` whether a call can be captured in a CUDA graph;
    `synchronises` whether a call with labels on the host waits for the device; `overwrites` whether its gradient may
    take the logits' place (`overwrite_logits`); `other_algorithm` whether it has one that is not deterministic
    (`deterministic=False`); `limits` what else cannot be had from it.
    """

    native_name: str
    takes: Literal["activations", "softmax probabilities", "activations or softmax probabilities"]
    gradient_of: Literal["pre-softmax activations"]
    arrays: Literal["host", "device", "host or device"]
    labels: Literal["host", "device", "host or device"]
    losses: Literal["host", "device"]
    blank: Literal["any", "0"]
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    topologies: tuple[str, ...]
    max_label_length: int | None
    infeasible: str
    empty_label: str
    padded_time: str
    deterministic: bool
    graph_capture: bool
    synchronises: bool
    overwrites: bool = False
    other_algorithm: bool = False
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """The library behind an engine: its version, its file (None for our own), and how it was found."""

    version: str
    path: str | None = None
    found: str = "part of ctcbind"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine as `ctcbind.engines()` reports it; `reason` says why it is not available, and what to do."""

    name: str
    available: bool
    reason: str | None
    version: str | None
    library: str | None
    found: str | None
    contract: Contract


class Copy(NamedTuple):
    """One copy or conversion of logits or gradient that an engine makes: `what` in words, `bytes` as written."""

    what: str
    bytes: int

    def tell(self, engine: str) -> None:
        """Logs it; called where the copy is made."""
        log.debug("%s: %d bytes of %s", engine, self.bytes, self.what)


class Session(Protocol):
    """An engine at work: what it keeps from call to call, a workspace above all, until closed."""

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        """(losses, gradient): losses (N,) in nats, +inf where no path exists; gradient in the caller's layout,
        sample n's times weights[n], or None without `with_grad`."""

    def close(self) -> None: ...

    # A session may have two more methods, which plan.py looks for:
    # rest() -> int: from now on it keeps no memory for results, and reads settings anew at each call. It returns the
    # bytes of its workspace in host memory, which is all that it still holds.
    # share(room: Room): from now on it takes the memory for gradients from this room, which others use too.


#: A fast path: takes (logits, targets, input_lengths, target_lengths) as the caller has them. It returns None, having
#: done nothing, for a batch that is not plain or not right.
Shorter = Callable[[Any, Any, Any, Any], Any]


@runtime_checkable
class Shortened(Protocol):
    """A session with fast paths that do without a Batch and give the same results."""

    def direct(self, turn: Turn, **options: Any) -> tuple[Shorter, Shorter]:
        """The fast paths for loss and gradient, and for the loss alone, which take the plan's `turn` as `run` does.
        `options` are the plan's own: blank, layout, topology, reduction, zero_infinity, and the type of its result."""


class Engine(Protocol):
    """One implementation of the loss."""

    name: str
    contract: Contract

    @property
    def install(self) -> str | None:
        """The command that brings its library; None where there is nothing to bring."""

    def library(self) -> Library:
        """Loads what the engine needs; raises EngineUnavailable with every reason."""

    def refuses(self, batch: Batch) -> str | None:
        """Why this batch cannot be computed, in a sentence; None if it can. No arithmetic on the logits."""

    def copies(self, batch: Batch) -> list[Copy]:
        """What loss and gradient of this batch make it copy or convert, in the order of the work; the same decide
        in the work itself, which logs them. No arithmetic on the logits, and no library is loaded."""

    def reduces(self, batch: Batch) -> bool:
        """Whether `run` gives losses and gradient as the batch's `reduction` and `zero_infinity` have them: then they
        may be asked for there, and `weights` are None."""

    def open(self) -> Session: ...
