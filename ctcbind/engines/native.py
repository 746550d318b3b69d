"""ctcbind's own engine: csrc/, one pass from logits to losses and gradients, threads over the batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..arrays import LOSS_DTYPE
from ..batch import Batch
from ..bindings.native import DTYPES, TOPOLOGIES, Problem, instruction_set
from ..bindings.native_direct import Direct, open_direct
from ..bindings.native_threads import borrow_openmp
from ..errors import InvalidInput
from ..threads import chosen_threads, default_threads, get_num_threads
from .contract import Contract, Copy, Library
from .room import LARGE, Room
from .turn import Turn

__all__ = ["ENGINE"]

_LOSS_DTYPE = {name: np.dtype(loss) for name, loss in LOSS_DTYPE.items()}
_PLAIN = ("float32", "float64", "float16", "bfloat16")


class NativeSession:
    """One C problem and its workspace, and the memory of gradients that nobody holds any more."""

    def __init__(self) -> None:
        self._problem = Problem()
        #: The number of threads while `set_num_threads` says none: the default, as it was when this was opened.
        self._own_threads = _default_or_chosen()
        #: Asked for the number of threads at each call that is large enough for any; None: the number above.
        self._ask_threads: Callable[[], int | None] = chosen_threads
        self._described: tuple[Any, ...] = ()
        self._room = Room()

    def run(
        self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
        view, integers = batch.logits, batch.integers
        x, dtype = view.array, view.dtype
        N = x.shape[1]
        losses = np.empty(N, _LOSS_DTYPE[dtype])
        threads = self._ask_threads() or self._own_threads
        grad = None
        if view.layout == "TNC" and x.flags.c_contiguous and dtype != "bfloat16":  # which no buffer can hold
            if with_grad:
                grad = (np.empty if x.nbytes < LARGE else self._room.empty)(x.shape, x.dtype)
            described = (x.shape, dtype, batch.blank, batch.topology, threads)
            if described != self._described:
                self._described = ()  # what interrupts the next line must not leave the old sizes for the new
                self._describe(batch, x, threads)
                self._described = described
            self._problem.loss(x, grad, losses, integers, weights, len(integers) - 2 * N)
        else:
            grad_tnc = x
            if with_grad:
                grad, grad_tnc = batch.empty_grad(self._room.empty, keep_order=True)
            self._described = ()
            self._describe(batch, grad_tnc, threads)
            room = None if grad is None else grad_tnc.ctypes.data
            self._problem.loss(x.ctypes.data, room, losses, integers, weights, len(integers) - 2 * N)
        return losses, grad

    def _describe(self, batch: Batch, grad: npt.NDArray[Any], threads: int) -> None:
        view = batch.logits
        size = grad.itemsize
        t, n, c = grad.strides
        strides = t // size, n // size, c // size
        self._problem.describe(
            view.shape, view.strides, strides, batch.blank, DTYPES[view.dtype], TOPOLOGIES[batch.topology], threads
        )

    def direct(self, turn: Turn, **options: Any) -> tuple[Direct, Direct]:
        """Two fast paths, for loss and gradient and for the loss alone; they return None for what is not plain.

        `options` are the plan's own (blank, layout, topology, reduction, zero_infinity) and the type of its result.
        """
        return open_direct(
            self._problem,
            turn,
            **options,
            dtypes=_PLAIN,
            arrays=(
                tuple(map(_array_dtype, _PLAIN)),
                tuple(_LOSS_DTYPE[name] for name in _PLAIN),
                tuple(_LOSS_DTYPE[name].type for name in _PLAIN),
            ),
            large=LARGE,
            empty_large=self._room.empty,
            threads=self._ask_threads,
            own_threads=self._own_threads,
        )

    def share(self, room: Room) -> None:
        """From now on takes the memory of gradients from a room that other sessions use too."""
        self._room = room

    def rest(self) -> int:
        """Lets go of gradients' memory, and reads settings anew at each call; returns the bytes of the workspace."""
        self._room.keep_none()
        self._ask_threads = get_num_threads  # the environment's too: the next call knows nothing of this one
        return self._problem.workspace_bytes

    def close(self) -> None:
        self._problem.close()
        self._room.close()


def _default_or_chosen() -> int:
    """The default, for a choice may be taken back; the choice where the default is wrong, and the choice hides that."""
    if chosen_threads() is None:
        return get_num_threads()
    try:
        return default_threads()
    except InvalidInput:
        return get_num_threads()


class NativeEngine:
    name = "native"
    install = None
    contract = Contract(
        native_name="ctcbind_loss",
        takes="activations",
        gradient_of="pre-softmax activations",
        arrays="host",
        labels="host",
        losses="host",
        blank="any",
        dtypes=("float16", "bfloat16", "float32", "float64"),
        layouts=("any",),
        topologies=("ctc", "simple"),
        max_label_length=None,
        infeasible="loss inf, gradient 0",
        empty_label="the all-blank path",
        padded_time="gradient 0",
        deterministic=True,
        graph_capture=False,
        synchronises=False,
    )

    def library(self) -> Library:
        if (isa := instruction_set()) is None:
            asked = os.environ.get("CTCBIND_ISA")  # a slip there must not pass for a slow machine: "auto" ends too
            raise InvalidInput(
                f"CTCBIND_ISA is {asked!r}; it must be avx512, avx2, neon or scalar, and an instruction set that this "
                "build of the native engine and this processor have; unset it for the best there is",
                rule="CTCBIND_ISA",
                value=asked,
            )
        return Library(__version__, found=f"part of ctcbind, {isa}")

    def refuses(self, batch: Batch) -> str | None:
        return None

    def copies(self, batch: Batch) -> list[Copy]:
        return []

    def reduces(self, batch: Batch) -> bool:
        return False

    def open(self) -> NativeSession:
        if "torch" in sys.modules:
            _borrow()
        return NativeSession()


def _array_dtype(name: str) -> Any:
    """None for bfloat16 where no array can have it yet: NumPy has it from ml_dtypes alone."""
    if name != "bfloat16":
        return np.dtype(name)
    home = sys.modules.get("ml_dtypes")
    return home and np.dtype(home.bfloat16)


@cache
def _borrow() -> None:
    """PyTorch's threads, which spin between its operators, would keep the engine's own from running."""
    borrow_openmp()


ENGINE = NativeEngine()
