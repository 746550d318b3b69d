"""Which engine can take a call, why another cannot, and what each would copy: the answer to "why this engine?"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .absence import bring
from .arrays import Layout, on_device
from .batch import Batch, Topology, make_batch
from .engines import NAMES, Copy, choose, get, labels_stay, obstacle, refusal
from .errors import EngineUnsupported
from .kinds import not_compiled, without_grad
from .options import layout_option, option
from .text import Shown, paragraph, table

__all__ = ["Choice", "Explanation", "explain"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One engine and the batch: whether it can take it here, the first reason if not, and what it would copy.

    `copies` are of logits and gradient, for loss and gradient, each with its bytes; None where the engine refuses
    the batch, so that it would copy nothing.
    """

    engine: str
    usable: bool
    reason: str | None
    copies: tuple[Copy, ...] | None

    @property
    def copied_bytes(self) -> int:
        """Bytes of all of its copies."""
        return sum(copy.bytes for copy in self.copies or ())


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """What `explain` found; `str()` of it is a table.

    `auto` is the engine that `engine="auto"` takes, None where there is none; `copies` is what is copied before any
    engine sees the batch; `engines` has one `Choice` an engine.
    """

    T: int
    N: int
    C: int
    dtype: str
    device: str
    auto: str | None
    copies: tuple[Copy, ...]
    engines: tuple[Choice, ...]

    def __getitem__(self, engine: str) -> Choice:
        return {choice.engine: choice for choice in self.engines}[engine]

    def __str__(self) -> str:
        rows = [
            (
                choice.engine,
                ("yes, auto takes it" if choice.engine == self.auto else "yes") if choice.usable else "no",
                "-" if choice.copies is None else _amount(choice.copied_bytes),
                _why(choice) or "; ".join(map(_said, choice.copies or ())),
            )
            for choice in self.engines
        ]
        lines = [f"logits T={self.T}, N={self.N}, C={self.C}, {self.dtype}, on {self.device}"]
        lines += [f"before any engine: {_said(copy)}" for copy in self.copies]
        lines += ["", table(["engine", "can take it", "copies", "why not, or what is copied"], rows, cell=72)]
        if self.auto is None:
            lines += ["", *paragraph("No engine can take this batch.", None)]
        return "\n".join(lines)


@not_compiled
def explain(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Explanation:
    """For each engine whether it can take this call, the first reason if not, and what it would copy.

    Arguments are those of `ctc_loss` that say what the batch is. Nothing is computed, so it does not show here when an
    engine gives up on particular values, as warp-ctc and cuDNN do on probabilities too small for them. Libraries that
    can be found are loaded. Copies of logits and gradient are counted, in bytes; those of labels and lengths are not.
    If labels and logits are both on the device, engines that can read labels there do so.

    Raises InvalidInput for input that cannot be right; `check` lists all that is wrong with it.

    >>> import numpy as np, ctcbind
    >>> seen = ctcbind.explain(np.zeros((50, 2, 28), np.float32), [[1] * 20, [3]])
    >>> seen.auto, seen["native"].copied_bytes, seen["reference"].copied_bytes
    ('native', 0, 33600)
    >>> ctcbind.explain(np.zeros((50, 1, 28)), [[1]], topology="simple")["cudnn"].reason
    "topology 'simple' is not among its own (ctc)"
    """
    layout_option(layout)
    option("topology", topology, ("ctc", "simple"))
    batch = make_batch(without_grad(logits), targets, input_lengths, target_lengths, blank, layout, topology)
    there = batch
    if on_device(logits) and on_device(targets):
        from .cuda.device_batch import make_device_batch

        arrays = without_grad(logits), targets, input_lengths, target_lengths
        there = make_device_batch(*arrays, blank, layout, topology, overwrite=False, graph_safe=False)
    view = batch.logits
    before = (Copy(f"logits {view.copied}", view.array.nbytes),) if view.copied else ()
    try:
        auto = choose("auto", there).name
    except EngineUnsupported:
        auto = None
    choices = tuple(_choice(name, there if labels_stay(name) else batch) for name in NAMES)
    return Explanation(batch.T, batch.N, batch.C, view.dtype, view.device, auto, before, choices)


def _choice(name: str, batch: Batch) -> Choice:
    engine = get(name)
    reason = obstacle(name, batch)
    refused = reason is not None and refusal(engine, batch) is not None
    return Choice(name, reason is None, reason, None if refused else tuple(engine.copies(batch)))


def _why(choice: Choice) -> str:
    """The first line of the reason, with the command that brings an absent engine."""
    head = (choice.reason or "").partition("\n")[0].rstrip(":")
    command = bring(choice.engine, choice.reason)
    return head if command is None or command in head else f"{head}: {command}"


def _said(copy: Copy) -> str:
    return f"{copy.what} ({_amount(copy.bytes)})"


def _amount(size: int) -> str:
    if size < 1000:
        return f"{size} bytes" if size else "nothing"
    power = next((power for power in (1, 2, 3) if size < 0.9995 * 1000 ** (power + 1)), 3)
    number = size / 1000**power
    return f"{number:.{3 if number < 1000 else 9}g} {' kMG'[power]}B"
