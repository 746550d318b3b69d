"""cudnnCTCLoss_v8: labels and lengths stay on the device, and nothing of them is known to the host.

What the cudnn engine puts right before and after a call with labels on the host, kernels put right here
(cuda/kernels/around.cuh), without a wait and without memory of anybody else's, so that all of it can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays import Layout, as_host
from ..cuda.common import (
    TOO_LONG,
    DeviceMemory,
    Statuses,
    addresses,
    capturing,
    check_labels,
    classes_side_by_side,
    lay_side_by_side,
    point_to,
    reduce_as,
)
from ..cuda.device_batch import DeviceBatch
from ..cuda.kernels import PROBLEM, around_module, as_argument, compiled
from ..cuda.layout import SCRATCH, THREADS, row_blocks
from ..errors import EngineUnsupported
from .contract import Copy
from .cudnn_handles import DeviceHandle
from .cudnn_modes import MAX_LABELS, check_probabilities, choose_algorithm, is_doubted, set_ctc

__all__ = ["DeviceLabels", "copies", "describable"]

LOST, NO_PROBABILITIES = 64, 128  # of Problem.status, as in types.cuh
ALIGNED = 256

Strides = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one call finds what: `arrays` of the workspace by their names in `Problem`; address and strides, in
    elements, of what cuDNN reads (`probs`) and writes (`raw`, None without a gradient). `moving` says that the logits
    go to `arrays["moved"]` first, `aside` that the gradient comes from `arrays["raw"]`; samples have `longest` labels
    at most."""

    longest: int
    moving: bool
    aside: bool
    arrays: dict[str, int]
    probs: tuple[int, Strides]
    raw: tuple[int, Strides] | None


class DeviceLabels:
    """The workspace of one stream of one device for such calls."""

    def __init__(self, cupy: Any) -> None:
        self._cupy = cupy
        self._device = int(cupy.cuda.Device().id)
        self._own = DeviceMemory(cupy, "cudnn")
        self._workspace = DeviceMemory(cupy, "cudnn")
        self._statuses = Statuses(cupy)
        self._staged: Any = None

    @property
    def captured(self) -> bool:
        """Whether a graph may use the workspace."""
        return self._own.captured or self._workspace.captured

    def run(self, batch: DeviceBatch, handle: DeviceHandle, with_grad: bool) -> tuple[Any, Any]:
        """(losses or their reduction, gradient in the caller's layout).

        Unless the batch is graph-safe this waits twice: for the check of the labels, and for that of the results. (That
        the lengths of labels in one row are there was waited for before: see `make_device_batch`.)
        """
        x = batch.logits.array
        if not classes_side_by_side(x):  # never with graph_safe
            x = lay_side_by_side(x)
        captured = capturing(self._cupy)
        reduced = batch.empty_reduced()
        losses = batch.empty_losses() if reduced is None else None
        grad, grad_tnc = batch.empty_grad() if with_grad else (None, None)
        placed = self._placed(batch, x, grad_tnc, captured)
        for copy in _copies(batch, placed.moving, placed.aside):
            copy.tell("cudnn")
        problem = PROBLEM.copy()
        point_to(problem, batch)
        reduce_as(problem, batch)
        it = as_argument(problem | _described(batch, x, grad_tnc, placed) | addresses(x, losses, grad_tnc, reduced))
        # Not given back to the pool, which may be another stream's, before the next call on this stream.
        self._staged = batch.device_labels, batch.device_label_lengths, batch.device_input_lengths

        T, N, C, status = batch.T, batch.N, batch.C, placed.arrays["status"]
        modules = (around_module(batch.logits.dtype),)
        (kernels,) = compiled(self._cupy, self._device, modules, captured, "cudnn")
        a_row = ((row_blocks(T * N),), (THREADS,), (it,))
        a_sample = ((N,), (THREADS,), (it,))
        kernels["ctc_prepare"](*a_sample, shared_mem=SCRATCH)
        if not batch.graph_safe:
            self._check(batch, self._statuses_at(status, batch.N))
        if T and C > 1:  # or there is no tensor to describe, and no label that a stand-in could have
            kernels["ctc_pack"](*a_sample, shared_mem=SCRATCH)
            if placed.moving:
                kernels["ctc_move"](*a_row, shared_mem=SCRATCH)
            self._call(batch, handle, placed, captured)
        if T:
            kernels["ctc_look"](*a_row, shared_mem=SCRATCH)
        kernels["ctc_judge"](*a_sample, shared_mem=SCRATCH)
        if T and with_grad:
            kernels["ctc_put"](*a_row, shared_mem=SCRATCH)
        if batch.to_reduce:
            kernels["ctc_reduce"]((1,), (THREADS,), (it,), shared_mem=SCRATCH)
        if not batch.graph_safe:
            self._settle(batch, x, self._statuses_at(status, batch.N))
        return losses if reduced is None else reduced, grad

    def _placed(self, batch: DeviceBatch, x: Any, grad: Any | None, captured: bool) -> Placed:
        T, N, C = batch.T, batch.N, batch.C
        longest = min(batch.longest, T, MAX_LABELS)
        moving = _is_moving(batch, x)
        aside = grad is not None and _is_aside(x, grad, moving)
        offsets, size = _layout(T, N, C, longest + 1, moving, aside)
        own = self._own.of(size, captured)
        arrays = {name: own + offset for name, offset in offsets.items()}
        probs = (arrays["moved"], (N * C, C, 1)) if moving else (x.data.ptr, _strides(x))
        raw = None if grad is None else (grad.data.ptr, _strides(grad))
        if aside:  # in the order of the logits: that cuDNN reads one and writes another is nowhere said
            time, sample, _ = probs[1]
            raw = arrays["raw"], (N * C, C, 1) if time > sample else (C, T * C, 1)
        return Placed(longest, moving, aside, arrays, probs, raw)

    def _statuses_at(self, address: int, count: int) -> Any:
        self._statuses.ask(address, count)
        return self._statuses.wait()

    def _check(self, batch: DeviceBatch, status: Any) -> None:
        check_labels(batch, status)
        long = status == TOO_LONG
        if long.any():
            raise EngineUnsupported(
                f"engine 'cudnn' cannot take this batch: sample {int(np.argmax(long))} has more than {MAX_LABELS} "
                "labels, which is its limit"
            )

    def _settle(self, batch: DeviceBatch, x: Any, status: Any) -> None:
        if (status == NO_PROBABILITIES).any():
            sample = int(np.argmax(status == NO_PROBABILITIES))
            lengths = as_host(batch.device_input_lengths)
            frames = batch.T if lengths is None else int(lengths[sample])
            inside = np.zeros((batch.T, batch.N), dtype=bool)
            inside[:frames, sample] = True
            check_probabilities(self._cupy.asnumpy(x).astype(np.float32), inside, batch.logits.dtype)
        lost = (status == LOST) | (status == NO_PROBABILITIES)
        if lost.any():
            why = "a probability that cuDNN's float32 arithmetic loses"
            why = f"infinite logits, or {why}" if not batch.probabilities else why
            why += ", or a gradient from it whose rows do not sum to 0" if is_doubted(batch) else ""
            raise EngineUnsupported(
                f"engine 'cudnn' cannot take this batch: sample {int(np.argmax(lost))} has {why}; engine='cuda' can"
            )

    def _call(self, batch: DeviceBatch, handle: DeviceHandle, placed: Placed, captured: bool) -> None:
        from ..bindings import cudnn

        shape = [batch.T, batch.N, batch.C]
        arrays, (probs, strides), grad = placed.arrays, placed.probs, placed.raw
        cudnn.cudnnSetStream(handle.handle, self._cupy.cuda.get_current_stream().ptr)
        cudnn.cudnnSetTensorNdDescriptor(handle.logits, cudnn.CUDNN_DATA_FLOAT, shape, list(strides))
        if grad is not None:
            cudnn.cudnnSetTensorNdDescriptor(handle.grad, cudnn.CUDNN_DATA_FLOAT, shape, list(grad[1]))
        set_ctc(handle.ctc, batch, max(placed.longest, 1))
        grad_descriptor = None if grad is None else handle.grad
        about = handle.ctc, handle.logits, grad_descriptor
        algorithm, size = choose_algorithm(
            batch, lambda algorithm: cudnn.cudnnGetCTCLossWorkspaceSize_v8(handle.handle, algorithm, *about)
        )
        cudnn.cudnnCTCLoss_v8(
            handle.handle,
            algorithm,
            handle.ctc,
            handle.logits,
            probs,
            arrays["packed"],
            arrays["packed_lengths"],
            arrays["packed_lengths"] + 4 * batch.N,
            arrays["costs"],
            grad_descriptor,
            None if grad is None else grad[0],
            size,
            self._workspace.of(size, captured),
        )


def copies(batch: DeviceBatch) -> list[Copy]:
    """What a call for loss and gradient copies."""
    x = batch.logits.array
    x = x if classes_side_by_side(x) else _in_order(batch, "TNC")
    moving = _is_moving(batch, x)
    return _copies(batch, moving, _is_aside(x, _in_order(batch, batch.logits.layout), moving))


def _in_order(batch: DeviceBatch, layout: Layout) -> Any:
    """An array without gaps, (T, N, C), as far as strides tell of it."""
    T, N, C, size = batch.T, batch.N, batch.C, batch.logits.array.itemsize
    t, n = (N * C, C) if layout == "TNC" else (C, T * C)
    return np.lib.stride_tricks.as_strided(np.empty(1, f"V{size}"), (T, N, C), (t * size, n * size, size))


def _is_moving(batch: DeviceBatch, x: Any) -> bool:
    return bool(batch.blank) or batch.logits.dtype != "float32" or not describable(x)


def _is_aside(x: Any, grad: Any, moving: bool) -> bool:
    return moving or _order(x) != _order(grad)


def _copies(batch: DeviceBatch, moving: bool, aside: bool) -> list[Copy]:
    x, size = batch.logits.array, 4 * batch.T * batch.N * batch.C
    called = batch.T > 0 and batch.C > 1
    found = {
        Copy("logits copied to lay the classes side by side", x.nbytes): not classes_side_by_side(x),
        Copy("logits copied as float32, with the blank in class 0", size): moving and called,
        Copy("gradient copied to the caller's array", size): aside and called,
    }
    return [copy for copy, needed in found.items() if needed]


def describable(x: Any) -> bool:
    """Whether a tensor descriptor can hold these strides: classes side by side, none zero or negative, and a span
    below 2^31 elements (cuDNN 8.5 to 9.28)."""
    size = x.itemsize
    if any(stride % size for stride in x.strides):
        return False
    t, n, c = (stride // size for stride in x.strides)
    span = 1 + (x.shape[0] - 1) * t + (x.shape[1] - 1) * n + (x.shape[2] - 1) * c
    return bool(c == 1 and 0 < t < 2**31 and 0 < n < 2**31 and span < 2**31)


def _described(batch: DeviceBatch, x: Any, grad: Any | None, placed: Placed) -> dict[str, int]:
    """What `Problem` is to hold beside labels and the caller's arrays."""
    x_t, x_n, _ = _strides(x)
    values = {
        **placed.arrays,
        "x_t": x_t,
        "x_n": x_n,
        "T": batch.T,
        "N": batch.N,
        "C": batch.C,
        "blank": batch.blank,
        "pitch": placed.longest + 1,
        "sparse": 1,
        "probabilities": batch.probabilities,
        "doubted": grad is not None and is_doubted(batch),
    }
    if grad is not None and placed.raw is not None:
        g_t, g_n, _ = _strides(grad)
        raw, (r_t, r_n, _) = placed.raw
        values |= {"g_t": g_t, "g_n": g_n, "raw": raw, "r_t": r_t, "r_n": r_n}
        values["rotated"] = batch.blank > 0
    return values


def _strides(x: Any) -> Strides:
    """Those of time, samples and classes, which lie side by side, in elements."""
    return x.strides[0] // x.itemsize, x.strides[1] // x.itemsize, 1


def _order(x: Any) -> bool:
    return bool(x.strides[0] > x.strides[1])


def _layout(T: int, N: int, C: int, pitch: int, moving: bool, aside: bool) -> tuple[dict[str, int], int]:
    """Where each array of the workspace begins, and its bytes."""
    offsets, size = {}, 0
    for name, count, width in (
        ("clean", N * pitch, 4),
        ("lengths", 2 * N, 4),
        ("status", N, 4),
        ("strange", N, 4),
        ("losses", N, 4),
        ("least", N * T, 8),
        ("measures", 4 * N * T, 4),
        ("packed", N * pitch, 4),
        ("packed_lengths", 2 * N, 4),
        ("costs", N, 4),
        ("moved", T * N * C if moving else 0, 4),
        ("raw", T * N * C if aside else 0, 4),
    ):
        offsets[name] = size
        size += -(-count * width // ALIGNED) * ALIGNED
    return offsets, size
