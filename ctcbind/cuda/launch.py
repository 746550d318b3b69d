"""The launches of one batch on one stream, and the workspace that they need."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arrays import LOSS_DTYPE
from ..batch import Batch
from .common import DeviceMemory, Statuses, check_labels, point_to, reduce_as
from .device_batch import DeviceBatch
from .kernels import DTYPES, PROBLEM, as_argument, batch_module, compiled, lattice_module
from .layout import SCRATCH, THREADS, KernelLayout, plan_layout

__all__ = ["DeviceState"]

HOST_TO_DEVICE = 1  # of cudaMemcpyKind
#: Bytes of memory of the host that CUDA copies to the device without waiting for the stream, page-locked or not.
AT_ONCE = 1 << 16


class DeviceState:
    """One stream of one device: those that are current now, and must be whenever this is used."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._device, self._stream = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
        self._workspace = DeviceMemory(cupy, "cuda")
        self._inputs = DeviceMemory(cupy, "cuda")
        self._statuses = Statuses(cupy)
        self._staged: Any = None

    # --- arrays --------------------------------------------------------------------------------------------

    def carried(self, batch: Batch, with_grad: bool) -> tuple[Any, Any, Any]:
        """(logits, losses, gradient) on the device for logits on the host."""
        x = np.ascontiguousarray(batch.logits.array)
        x = self._cupy.asarray(x.view(f"u{x.itemsize}"))  # kernels ask for addresses alone, and bfloat16 is NumPy's not
        grad = self._cupy.empty(x.shape, dtype=x.dtype) if with_grad else None
        return x, self._cupy.empty(batch.N, dtype=LOSS_DTYPE[batch.logits.dtype]), grad

    def brought_back(self, batch: Batch, losses: Any, grad: Any) -> tuple[Any, Any]:
        room = None
        if grad is not None:
            room, room_tnc = batch.empty_grad()
            room_tnc[...] = self._cupy.asnumpy(grad).view(batch.logits.array.dtype)
        found = batch.empty_losses()
        found[...] = self._cupy.asnumpy(losses)
        return found, room

    # --- one batch -----------------------------------------------------------------------------------------

    def run(
        self,
        batch: Batch,
        x: Any,
        losses: Any | None,
        grad: Any | None,
        weights: Any,
        reduced: Any = None,
        *,
        captured: bool = False,
    ) -> None:
        """Losses and, unless None, the gradient: all arrays on the device, x and grad (T, N, C). Without `losses`
        those are in the workspace. `captured`: the stream is, and the labels are on the device.

        Nothing waits for the device, unless labels there are to be checked: InvalidInput says what is wrong with
        them. A batch that is `to_reduce` is reduced, into `reduced` unless None.
        """
        problem = PROBLEM.copy()
        if isinstance(batch, DeviceBatch):
            point_to(problem, batch)
            # Not given back to the pool, which may be another stream's, before the next call on this stream.
            self._staged = batch.device_labels, batch.device_label_lengths, batch.device_input_lengths
        else:
            self._copy_labels(problem, batch, weights)
        if batch.to_reduce:
            reduce_as(problem, batch, reduced)
        real = 8 if batch.logits.dtype == "float64" else 4
        layout = plan_layout(batch.T, batch.N, batch.C, batch.longest, real, grad is not None)
        workspace = self._workspace.of(layout.size, captured)
        it = as_argument(problem | self._described(batch, x, losses, grad, layout, workspace))
        dtype, simple = batch.logits.dtype, batch.topology == "simple"
        own = compiled(self._cupy, self._device, batch_module(dtype), captured, "cuda")
        lattice = compiled(self._cupy, self._device, lattice_module(dtype, layout.lanes, simple), captured, "cuda")[
            "ctc_lattice"
        ]
        rows, threads = (layout.row_blocks,), (THREADS,)
        own["ctc_prepare"]((batch.N,), threads, (it,), shared_mem=SCRATCH)
        unchecked = batch if isinstance(batch, DeviceBatch) and not batch.graph_safe else None
        if unchecked is not None:
            self._statuses.ask(workspace + layout.offsets["status"], batch.N)
            if batch.overwrite:  # the logits would be gone
                check_labels(unchecked, self._statuses.wait())
        if batch.T:
            own[f"ctc_rows_by_{layout.shape}"](rows, threads, (it,), shared_mem=layout.rows_shared)
        ways = layout.lanes.ways
        blocks, lattice_threads = (batch.N * 2 // ways,), (layout.lattice_threads,)
        for part in (0,) if ways == 2 else (1, 2):
            lattice(blocks, lattice_threads, (it, part), shared_mem=layout.lattice_shared)
        if batch.T and grad is not None:
            gradient = own[f"ctc_gradient_by_{layout.shape}"]
            gradient(rows, threads, (it, layout.tile), shared_mem=layout.gradient_shared)
        if batch.to_reduce:
            own["ctc_reduce"]((1,), threads, (it,), shared_mem=SCRATCH)
        if unchecked is not None and not batch.overwrite:  # by now the device has all of its work
            check_labels(unchecked, self._statuses.wait())

    def _copy_labels(self, problem: dict[str, int], batch: Batch, weights: Any) -> None:
        """Labels, lengths and weights of the host, in one copy to the device."""
        N, labels = batch.N, batch.labels
        parts = [batch.label_lengths, batch.input_lengths, labels]
        first = sum(part.nbytes for part in parts)
        if weights is not None:
            parts += [np.zeros(first // 4 % 2, np.int32), weights]  # float64 begins at a multiple of 8
            first += parts[-2].nbytes
        staged = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])
        self._staged = None
        if staged.nbytes <= AT_ONCE:
            address = self._inputs.of(staged.nbytes, False)
            runtime = self._cupy.cuda.runtime
            runtime.memcpyAsync(address, staged.ctypes.data, staged.nbytes, HOST_TO_DEVICE, self._stream)
            self._staged = staged  # CUDA has read pageable memory by then; kept all the same until the next call
        else:  # CuPy's copy goes through page-locked memory, which it keeps until it has been read
            self._staged = self._cupy.asarray(staged)
            address = int(self._staged.data.ptr)
        problem["label_lengths"] = address
        problem["input_lengths"] = address + 4 * N
        problem["labels"] = address + 8 * N
        problem["label_width"] = -1
        problem["label_total"] = labels.size
        if weights is not None:
            problem["weighing"] = 1
            problem["weights"] = address + first

    def _described(
        self, batch: Batch, x: Any, losses: Any | None, grad: Any | None, layout: KernelLayout, workspace: int
    ) -> dict[str, int]:
        size = x.itemsize
        values = {
            "logits": x.data.ptr,
            "element": DTYPES[batch.logits.dtype],
            "x_t": x.strides[0] // size,
            "x_n": x.strides[1] // size,
            "T": batch.T,
            "N": batch.N,
            "C": batch.C,
            "blank": batch.blank,
            "simple": batch.topology == "simple",
            "pitch": layout.pitch,
            "sparse": layout.sparse,
            "table": layout.table,
            "width_bits": layout.width_bits,
            "strips": layout.strips,
            **{name: workspace + offset for name, offset in layout.offsets.items()},
        }
        if losses is not None:
            values["losses"] = losses.data.ptr
        if grad is not None:
            values |= {"grad": grad.data.ptr, "g_t": grad.strides[0] // size, "g_n": grad.strides[1] // size}
        return values
