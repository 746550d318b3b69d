"""ctcbind's own engine: csrc/, one pass from logits to losses and gradients, threads over the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..arrays import ArrayView
from ..batch import Batch
from ..bindings.native import DTYPES, TOPOLOGIES, Problem
from ..threads import get_num_threads
from .contract import Contract, Library

__all__ = ["ENGINE"]


class NativeSession:
    def __init__(self) -> None:
        self._problem = Problem()

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        view = batch.logits
        losses = batch.empty_losses()
        grad, grad_tnc = batch.empty_grad() if with_grad else (None, None)
        out = view if grad_tnc is None else ArrayView(grad_tnc, view.dtype, view.device, view.layout)
        self._problem.loss(
            view.pointer,
            view.strides,
            out.pointer if with_grad else 0,
            out.strides,
            losses.ctypes.data,
            batch.labels.ctypes.data,
            batch.label_lengths.ctypes.data,
            batch.input_lengths.ctypes.data,
            0 if weights is None else weights.ctypes.data,
            view.shape,
            batch.blank,
            DTYPES[view.dtype],
            TOPOLOGIES[batch.topology],
            get_num_threads(),
        )
        return losses, grad

    def close(self) -> None:
        self._problem.close()


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
