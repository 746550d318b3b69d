"""warp-ctc on a device: logits, gradient and workspace in its memory, labels, lengths and losses on the host.

What the engine puts right on the host (see warpctc.py) is put right here too. The few samples that need it are carried
to the host and computed again there, which every build of the library can do.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import whole_elements
from ..batch import Batch
from ..bindings import warpctc
from ..cuda.by_stream import ByStream
from ..cuda.common import DeviceMemory, capturing
from ..errors import EngineUnavailable, EngineUnsupported
from ..extras import import_cuda_cupy
from .guard import Shielded, shield
from .warpctc import ENGINE, repair_certain

if TYPE_CHECKING:
    from .warpctc import WarpctcSession

__all__ = ["OnDevice"]


class OnDevice:
    """A workspace for each stream of each device; `host` computes again what needs more than float32."""

    def __init__(self, host: WarpctcSession) -> None:
        self._host = host
        self._workspaces: ByStream[DeviceMemory] = ByStream()

    def run(self, batch: Batch, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        cupy = import_cuda_cupy(EngineUnavailable, "engine 'warpctc' needs CuPy for arrays on a device")
        with batch.logits.array.device:
            if capturing(cupy):
                raise EngineUnsupported(
                    "engine 'warpctc' cannot be captured in a graph: it waits for the device to bring losses back"
                )
            return self._run(cupy, batch, with_grad, weights)

    def _run(self, cupy: Any, batch: Batch, with_grad: bool, weights: Any) -> tuple[Any, Any]:
        dtype = np.dtype(batch.logits.loss_dtype)
        grad: Any = None
        grad_tnc: Any = None
        if with_grad:
            grad, grad_tnc = batch.empty_grad()
        if batch.T == 0:
            return cupy.asarray(np.where(batch.feasible, 0.0, np.inf).astype(dtype)), grad
        x = batch.logits.array
        for copy in ENGINE.copies(batch, with_grad):
            copy.tell("warpctc")
        x = cupy.ascontiguousarray(whole_elements(x), dtype=dtype)
        out = grad_tnc
        if with_grad and not (grad_tnc.dtype == dtype and grad_tnc.flags.c_contiguous):
            out = cupy.empty(x.shape, dtype=dtype)
        given = shield(batch, empty_labels=True)
        losses = np.empty(batch.N, dtype=dtype)
        self._call(cupy, given, x, batch.blank, losses, out)
        self._host.settle_untrue(batch, given, x, losses, out, cupy)
        result = cupy.asarray(losses)
        given.settle(batch, result, out, cupy)
        if out is not None:
            if weights is not None:
                out *= cupy.asarray(weights.astype(dtype))[:, None]
            if out is not grad_tnc:
                grad_tnc[...] = out
        return cupy.maximum(result, 0), grad

    def _call(self, cupy: Any, given: Shielded, x: Any, blank: int, losses: npt.NDArray[Any], grad: Any) -> None:
        double = x.dtype == np.float64
        _, N, C = x.shape
        stream = int(cupy.cuda.get_current_stream().ptr)
        options = warpctc.ctcOptions(warpctc.ctcComputeLocation.CTC_GPU, stream=stream, blank_label=blank)
        lengths = given.label_lengths, given.input_lengths
        size = (warpctc.get_workspace_size_double if double else warpctc.get_workspace_size)(*lengths, C, N, options)
        workspace = self._workspaces.of_current(cupy, partial(DeviceMemory, cupy, "warpctc"))
        (warpctc.compute_ctc_loss_double if double else warpctc.compute_ctc_loss)(
            x.data.ptr,
            None if grad is None else grad.data.ptr,
            given.labels,
            *lengths,
            C,
            N,
            losses.ctypes.data,
            workspace.of(size, False),
            options,
        )
        if grad is None:
            return
        for n in np.flatnonzero(losses < 0.1).tolist():  # few: the others cannot have the fault
            rows = cupy.asnumpy(grad[:, n : n + 1])
            repair_certain(losses[n : n + 1], rows, given.input_lengths[n : n + 1])
            grad[:, n : n + 1] = cupy.asarray(rows)
