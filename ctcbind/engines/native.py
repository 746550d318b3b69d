"""ctcbind's own engine: csrc/, one pass from logits to losses and gradients, threads over the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..batch import Batch
from ..bindings.native import DTYPES, TOPOLOGIES, Problem
from ..threads import chosen_threads, get_num_threads
from .contract import Contract, Library

__all__ = ["ENGINE"]


class NativeSession:
    def __init__(self) -> None:
        self._problem = Problem()
        self._threads = get_num_threads()

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        view = batch.logits
        losses = batch.empty_losses()
        grad, grad_tnc = batch.empty_grad() if with_grad else (None, view.array)
        self._problem.describe(
            view.shape,
            view.strides,
            _strides(grad_tnc),
            batch.blank,
            DTYPES[view.dtype],
            TOPOLOGIES[batch.topology],
            chosen_threads() or self._threads,
        )
        self._problem.loss(_memory(view.array), None if grad is None else _memory(grad), losses, batch.integers, weights)
        return losses, grad

    def close(self) -> None:
        self._problem.close()


def _memory(array: npt.NDArray[Any]) -> Any:
    """The array itself where C can take it as a buffer, which is quick to do; else its address."""
    if array.flags.c_contiguous and array.dtype.kind == "f":
        return array
    return array.ctypes.data


def _strides(array: npt.NDArray[Any]) -> tuple[int, int, int]:
    size = array.itemsize
    t, n, c = array.strides
    return t // size, n // size, c // size


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
        return Library(__version__)

    def refuses(self, batch: Batch) -> str | None:
        return None

    def open(self) -> NativeSession:
        return NativeSession()


ENGINE = NativeEngine()
