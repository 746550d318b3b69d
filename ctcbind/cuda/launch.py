"""The launches of one batch on one stream, and the workspace that they need."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..arrays import LOSS_DTYPE
from ..batch import Batch
from ..bindings.native_direct import Packed
from .by_stream import life_of_current
from .common import (
    INPUT_LENGTHS,
    LABEL_LENGTHS,
    DeviceMemory,
    Statuses,
    addresses,
    bad_labels,
    check_labels,
    point_to,
    reduce_as,
)
from .device_batch import DeviceBatch
from .kernels import DTYPES, PROBLEM, as_argument, batch_module, compiled, lattice_module
from .layout import SCRATCH, THREADS, KernelLayout, plan_layout

__all__ = ["DeviceState", "Work"]

HOST_TO_DEVICE = 1  # of cudaMemcpyKind
#: Bytes of memory of the host that CUDA copies to the device without waiting for the stream, page-locked or not.
AT_ONCE = 1 << 16
PAGEABLE_MEMORY_ACCESS = 88  # of cudaDeviceAttr: the device itself reads memory that is not page-locked


class Launch(NamedTuple):
    """A kernel, its blocks, the threads and bytes of shared memory of each, and what it takes beside the problem."""

    kernel: Any
    blocks: int
    threads: int
    shared: int
    more: tuple[int, ...] = ()

    def start(self, problem: Any) -> None:
        self.kernel((self.blocks,), (self.threads,), (problem, *self.more), shared_mem=self.shared)


class Work(NamedTuple):
    """What a batch is to the device: the values of `PROBLEM`, and what is launched."""

    problem: dict[str, int]
    layout: KernelLayout
    launches: list[Launch]


class DeviceState:
    """One stream of one device: those that are current now, and must be whenever this is used."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._device, self._stream = int(cupy.cuda.Device().id), int(cupy.cuda.get_current_stream().ptr)
        self._life = life_of_current(cupy)
        self._workspace = DeviceMemory(cupy, "cuda")
        self._inputs = DeviceMemory(cupy, "cuda")
        self._statuses = Statuses(cupy)
        self._staged: Any = None
        # What the device can read, CUDA need not have read when the copy's call returns: it may do so in stream order.
        reads_host = cupy.cuda.runtime.deviceGetAttribute(PAGEABLE_MEMORY_ACCESS, self._device)
        self._at_once = 0 if reads_host else AT_ONCE

    @property
    def captured(self) -> bool:
        """Whether a graph may use the workspace."""
        return self._workspace.captured

    def is_left(self) -> bool:
        """Whether the stream has been destroyed, so that another may have its address."""
        return self._life() is None

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
    ) -> Work:
        """Losses and, unless None, the gradient: all arrays on the device, x and grad (T, N, C). Without `losses`
        those are in the workspace. `captured`: the stream is, and the labels are on the device.

        Nothing waits for the device, unless labels there are to be checked: InvalidInput says what is wrong with
        them. A batch that is `to_reduce` is reduced, into `reduced` unless None. Returns what `start` takes.
        """
        problem = PROBLEM.copy()
        if isinstance(batch, DeviceBatch):
            point_to(problem, batch)
            # Not given back to the pool, which may be another stream's, before the next call on this stream.
            self._staged = batch.device_labels, batch.device_label_lengths, batch.device_input_lengths
        else:
            self._copy_labels(problem, batch, weights)
        if batch.to_reduce:
            reduce_as(problem, batch)
        real = 8 if batch.logits.dtype == "float64" else 4
        layout = plan_layout(batch.T, batch.N, batch.C, batch.longest, real, grad is not None)
        problem |= _described(batch, x, grad, layout)
        work = Work(problem, layout, self._launches(batch, layout, grad is not None, captured))
        it, status = self._argument(work, addresses(x, losses, grad, reduced), captured)
        first, *others = work.launches
        first.start(it)
        unchecked = batch if isinstance(batch, DeviceBatch) and not batch.graph_safe else None
        if unchecked is not None:
            self._statuses.ask(status, batch.N)
            if batch.overwrite:  # the logits would be gone
                check_labels(unchecked, self._statuses.wait())
        for each in others:
            each.start(it)
        if unchecked is not None and not batch.overwrite:  # by now the device has all of its work
            check_labels(unchecked, self._statuses.wait())
        return work

    def start(
        self,
        work: Work,
        arrays: dict[str, int],
        labels: Any,
        *,
        captured: bool,
        checked: bool,
        copied: tuple[Packed, tuple[bool, bool]] | None = None,
    ) -> bool:
        """The same once more, with `arrays` elsewhere: their addresses by the names in `Problem`. `labels` are those of
        them that hold labels and lengths; `copied` lengths on the host, and whether input lengths and label lengths are
        among them. Whether all are right, which alone `checked` waits to know."""
        if copied is not None:
            arrays |= self._lengths_at(work, *copied)
            labels = labels, self._staged
        self._staged = labels
        it, status = self._argument(work, arrays, captured)
        first, *others = work.launches
        first.start(it)
        if checked:
            self._statuses.ask(status, work.problem["N"])
        for each in others:
            each.start(it)
        return not (checked and bad_labels(self._statuses.wait()).any())

    def start_with(self, work: Work, arrays: dict[str, int], packed: Packed) -> None:
        """The same with labels and lengths of the host."""
        staged, at, _ = packed
        N = work.problem["N"]
        address = self._sent(staged, at, len(staged))
        it, _ = self._argument(work, arrays | _labels_at(address, N, len(staged) // 4 - 2 * N), False)
        for each in work.launches:
            each.start(it)

    def _lengths_at(self, work: Work, packed: Packed, which: tuple[bool, bool]) -> dict[str, int]:
        """What `Problem` is to hold of lengths of the host, which are sent: input lengths and label lengths, or one."""
        staged, at, _ = packed
        address, (frames, counts) = self._sent(staged, at, len(staged)), which
        found = {"wide": work.problem["wide"] & ~(INPUT_LENGTHS * frames | LABEL_LENGTHS * counts)}
        if counts:
            found["label_lengths"] = address
        if frames:
            found["input_lengths"] = address + 4 * work.problem["N"]
        return found

    def _argument(self, work: Work, arrays: dict[str, int], captured: bool) -> tuple[Any, int]:
        """What the kernels take, and the address of the statuses."""
        workspace, offsets = self._workspace.of(work.layout.size, captured), work.layout.offsets
        inside = {name: workspace + offset for name, offset in offsets.items()}
        return as_argument(work.problem | inside | arrays), inside["status"]

    def _launches(self, batch: Batch, layout: KernelLayout, with_grad: bool, captured: bool) -> list[Launch]:
        dtype, simple = batch.logits.dtype, batch.topology == "simple"
        modules = batch_module(dtype), lattice_module(dtype, layout.lanes, simple)
        own, lattice = compiled(self._cupy, self._device, modules, captured, "cuda")
        ways, T, N = layout.lanes.ways, batch.T, batch.N
        blocks = N if ways == 2 else 2 * N * layout.strips
        found = [Launch(own["ctc_prepare"], N, THREADS, SCRATCH)]
        if T:
            rows = own[f"ctc_rows_by_{layout.shape}"]
            found.append(Launch(rows, layout.row_blocks, THREADS, layout.rows_shared, layout.of_rows))
        found += [
            Launch(lattice["ctc_lattice"], blocks, layout.lattice_threads, layout.lattice_shared, (part,))
            for part in ((0,) if ways == 2 else (1, 2))
        ]
        if T and with_grad:
            gradient = own[f"ctc_gradient_by_{layout.shape}"]
            found.append(Launch(gradient, layout.row_blocks, THREADS, layout.gradient_shared, layout.of_gradient))
        if batch.to_reduce:
            found.append(Launch(own["ctc_reduce"], 1, THREADS, SCRATCH))
        return found

    def _copy_labels(self, problem: dict[str, int], batch: Batch, weights: Any) -> None:
        """Labels, lengths and weights of the host, in one copy to the device."""
        N, labels = batch.N, batch.labels
        parts = [batch.label_lengths, batch.input_lengths, labels]
        first = sum(part.nbytes for part in parts)
        if weights is not None:
            parts += [np.zeros(first // 4 % 2, np.int32), weights]  # float64 begins at a multiple of 8
            first += parts[-2].nbytes
        staged = np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts])
        address = self._sent(staged, staged.ctypes.data, staged.nbytes)
        problem |= _labels_at(address, N, labels.size)
        if weights is not None:
            problem["weighing"] = 1
            problem["weights"] = address + first

    def _sent(self, staged: Any, at: int, size: int) -> int:
        """The address on the device of a copy of `staged`, of `size` bytes `at` an address of the host."""
        self._staged = None
        if size <= self._at_once:
            address = self._inputs.of(size, False)
            self._cupy.cuda.runtime.memcpyAsync(address, at, size, HOST_TO_DEVICE, self._stream)
            self._staged = staged  # CUDA has read it by then; kept all the same until the next call
            return address
        # CuPy's copy goes through page-locked memory, which it keeps until it has been read
        self._staged = self._cupy.asarray(np.frombuffer(staged, np.uint8))
        return int(self._staged.data.ptr)


def _labels_at(address: int, N: int, total: int) -> dict[str, int]:
    """What `Problem` is to hold where N label lengths, N input lengths and all labels, in int32, begin there."""
    return {
        "label_lengths": address,
        "input_lengths": address + 4 * N,
        "labels": address + 8 * N,
        "label_width": -1,
        "label_total": total,
    }


def _described(batch: Batch, x: Any, grad: Any | None, layout: KernelLayout) -> dict[str, int]:
    """What `Problem` is to hold beside labels and addresses."""
    size = x.itemsize
    values = {
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
    }
    if grad is not None:
        values |= {"g_t": grad.strides[0] // size, "g_n": grad.strides[1] // size}
    return values
