"""The launches of one batch on one stream, and the workspace that they need."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import LOSS_DTYPE
from ..batch import Batch
from ..errors import EngineUnsupported
from .kernels import PROBLEM, Kernels
from .layout import Layout, plan_layout

__all__ = ["DeviceState"]

log = logging.getLogger("ctcbind")

HOST_TO_DEVICE = 1  # cudaMemcpyHostToDevice
LABELS, LABEL_LENGTHS, INPUT_LENGTHS = 1, 2, 4  # bits of Problem.wide


class _Room:
    """Device memory that grows only. What a captured graph may still use is kept beside what took its place."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._memory: Any = None
        self._size = 0
        self._captured = False
        self._kept: list[Any] = []

    def of(self, size: int, capturing: bool) -> int:
        """The address of at least `size` bytes, and of at least one."""
        if size > self._size or self._memory is None:
            if capturing:
                raise EngineUnsupported(
                    f"engine 'cuda' needs {size} bytes of workspace and has {self._size}, and none can be allocated "
                    "while a graph is captured: call it once with the same shapes before the capture"
                )
            if self._captured:
                self._kept.append(self._memory)
            self._memory, self._size, self._captured = None, 0, False
            self._memory = self._cupy.cuda.alloc(max(size, 1))
            self._size = size
        self._captured |= capturing
        return int(self._memory.ptr)


class DeviceState:
    """One stream of one device: `key` is (device, address of the stream). It must be current whenever this is used."""

    def __init__(self, cupy: Any, key: tuple[int, int]) -> None:
        self._cupy = cupy
        self._stream = key[1]
        self._workspace = _Room(cupy)
        self._inputs = _Room(cupy)
        self._staged: Any = None
        self._kernels: dict[tuple[str, int], Kernels] = {}

    # --- arrays --------------------------------------------------------------------------------------------

    def classes_side_by_side(self, x: Any) -> Any:
        """x (T, N, C) itself, or a copy where its classes do not lie next to each other."""
        if x.shape[2] == 1 or x.strides[2] == x.itemsize or not x.size:
            return x
        log.debug("cuda: %d bytes of logits copied to lay the classes side by side", x.nbytes)
        return self._cupy.ascontiguousarray(x)

    def carried(self, batch: Batch, with_grad: bool) -> tuple[Any, Any, Any]:
        """(logits, losses, gradient) on the device for logits on the host."""
        x = np.ascontiguousarray(batch.logits.array)
        log.debug("cuda: %d bytes of logits copied to the device", x.nbytes)
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
        self, batch: Batch, x: Any, losses: Any, grad: Any | None, weights: npt.NDArray[np.float64] | None
    ) -> None:
        """Losses and, unless None, the gradient: all arrays on the device, x and grad (T, N, C)."""
        T, N, C = batch.T, batch.N, batch.C
        problem = np.zeros(1, PROBLEM)
        capturing = self._capturing()
        if capturing:
            raise EngineUnsupported(
                "engine 'cuda' cannot be captured in a graph with labels on the host: they would be read again at "
                "every launch of the graph; pass labels and lengths on the device, and graph_safe=True"
            )
        labels = batch.labels
        longest = int(batch.label_lengths.max())
        integers = np.ascontiguousarray(np.concatenate((batch.label_lengths, batch.input_lengths, labels)), np.int32)
        first = integers.nbytes + integers.nbytes % 8
        staged = np.empty(first + (0 if weights is None else weights.nbytes), np.uint8)
        staged[: integers.nbytes] = integers.view(np.uint8)
        if weights is not None:
            staged[first:] = np.ascontiguousarray(weights).view(np.uint8)
        address = self._inputs.of(staged.nbytes, capturing)
        self._cupy.cuda.runtime.memcpyAsync(
            address, staged.ctypes.data, staged.nbytes, HOST_TO_DEVICE, self._stream
        )
        self._staged = staged  # not given back before the next call, by when it was read
        problem["label_lengths"] = address
        problem["input_lengths"] = address + 4 * N
        problem["labels"] = address + 8 * N
        problem["label_width"] = -1
        problem["label_total"] = labels.size
        if weights is not None:
            problem["weighing"] = 1
            problem["weights"] = address + first
        self._launch(problem, batch, x, losses, grad, plan_layout(T, N, C, longest, _real(batch), grad is not None))

    def _launch(self, problem: Any, batch: Batch, x: Any, losses: Any, grad: Any | None, layout: Layout) -> None:
        size = x.itemsize
        values = {
            "logits": x.data.ptr,
            "x_t": x.strides[0] // size,
            "x_n": x.strides[1] // size,
            "losses": losses.data.ptr,
            "T": batch.T,
            "N": batch.N,
            "C": batch.C,
            "blank": batch.blank,
            "simple": batch.topology == "simple",
            "pitch": layout.pitch,
            "columns": layout.columns,
            "sparse": layout.sparse,
            "rows": layout.rows,
        }
        if grad is not None:
            values |= {"grad": grad.data.ptr, "g_t": grad.strides[0] // size, "g_n": grad.strides[1] // size}
        base = self._workspace.of(layout.size, self._capturing())
        values |= {name: base + offset for name, offset in layout.offsets.items()}
        for name, value in values.items():
            problem[name] = value
        key = batch.logits.dtype, layout.pairs
        kernels = self._kernels.get(key)
        if kernels is None:
            kernels = self._kernels[key] = Kernels(self._cupy, *key)
        rows, threads = (layout.row_blocks,), (layout.row_threads,)
        kernels.prepare((batch.N,), (128,), (problem,), shared_mem=256)
        if batch.T:
            kernels.rows[layout.shape](rows, threads, (problem,), shared_mem=256)
        kernels.lattice((batch.N,), (layout.lattice_threads,), (problem,), shared_mem=layout.lattice_shared)
        if batch.T and grad is not None:
            kernels.gradient[layout.shape](rows, threads, (problem, layout.tile), shared_mem=layout.gradient_shared)

    def _capturing(self) -> bool:
        return bool(self._cupy.cuda.get_current_stream().is_capturing())


def _real(batch: Batch) -> int:
    """Bytes of the numbers that the batch is computed in."""
    return 8 if batch.logits.dtype == "float64" else 4
