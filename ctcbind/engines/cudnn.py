"""cuDNN's CTC loss (cudnnCTCLoss) on CuPy arrays, or on host arrays carried to the device and back.

cuDNN fixes the blank at class 0, leaves gradients of padded time unwritten, and answers samples without a path
or without labels with a loss of 0 (docs: cuDNN 9.28 headers; PyTorch #176910; TensorFlow #41280). All of that is
put right here, so that the one meaning holds.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays import between_elements, whole_elements
from ..batch import Batch
from ..cuda.by_stream import ByStream
from ..cuda.common import DeviceMemory, capturing, classes_side_by_side
from ..cuda.device_batch import DeviceBatch
from ..errors import EngineUnavailable, EngineUnsupported
from ..extras import cuda_command, import_cuda_cupy, is_rocm
from ..reduction import set_where
from .contract import Contract, Copy, Library
from .cudnn_device import DeviceLabels, describable
from .cudnn_device import copies as device_copies
from .cudnn_handles import handle_of_thread
from .cudnn_modes import (
    MAX_LABELS,
    MAX_SAMPLES,
    ROWS_SUM_TO,
    check_probabilities,
    choose_algorithm,
    is_doubted,
    mend_certain,
    of_logits,
    set_ctc,
)
from .guard import floor, floor_may_matter, shield

__all__ = ["ENGINE", "MAX_LABELS"]


class CudnnSession:
    """One workspace for each stream of each device that its batches were on; it grows only."""

    def __init__(self) -> None:
        self._workspaces: ByStream[DeviceMemory] = ByStream()
        self._by_stream: ByStream[DeviceLabels] = ByStream()

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        cupy = _cupy()
        device = batch.logits.array.device if batch.logits.device != "cpu" else cupy.cuda.Device()
        with device:
            captured = capturing(cupy)
            if isinstance(batch, DeviceBatch):
                with handle_of_thread(cupy, int(device.id), captured) as handle:
                    return self._by_stream.of_current(cupy, partial(DeviceLabels, cupy)).run(batch, handle, with_grad)
            if captured:
                raise EngineUnsupported(
                    "engine 'cudnn' cannot be captured in a graph with labels on the host: the call waits for the "
                    "device; give labels and lengths on the device to CTCLoss(graph_safe=True)"
                )
            workspace = self._workspaces.of_current(cupy, partial(DeviceMemory, cupy, "cudnn"))
            losses, grad = _compute(cupy, workspace, batch, with_grad)
            return _deliver(cupy, batch, losses, grad, weights)

    def close(self) -> None:
        """What it held goes back to CuPy's pool, which hands it out again on the same stream alone."""
        self._workspaces.clear()
        self._by_stream.clear()


def _compute(cupy: Any, workspace: DeviceMemory, batch: Batch, with_grad: bool) -> tuple[Any, Any]:
    """(losses, gradient as (T, N, C)) on the device, in float32."""
    x = _float32(cupy, batch)
    if batch.probabilities:
        check_probabilities(x, cupy.asarray(_inside(batch) & batch.feasible), batch.logits.dtype)
    losses = cupy.where(cupy.asarray(batch.feasible), cupy.float32(0), cupy.float32(np.inf))
    if batch.T == 0 or batch.C == 1:  # no tensor to describe; no label that a stand-in could have
        grad = _zeros_like(cupy, x) if with_grad else None
    else:
        grad = _call(cupy, workspace, batch, x, losses, with_grad)
        if grad is not None and batch.probabilities:
            grad = of_logits(cupy, x, grad)
    if batch.T == 0:
        return losses, grad
    scores = cupy.log(x) if batch.probabilities else x
    _fill_empty_labels(cupy, batch, scores, losses, grad)
    _settle_not_finite(cupy, batch, scores, losses, grad)
    return cupy.maximum(losses, 0), grad


def _float32(cupy: Any, batch: Batch) -> Any:
    """The activations on the device, (T, N, C) float32, a copy only where dtype or place differ."""
    x = batch.logits.array
    if (copy := _to_whole(batch)) is not None:
        copy.tell("cudnn")
        x = whole_elements(x)
    if (copy := _to_float32(batch)) is None:
        return x
    copy.tell("cudnn")
    # in the memory order that the descriptor can describe: classes side by side
    if batch.logits.device == "cpu":
        return cupy.asarray(np.ascontiguousarray(x, dtype=np.float32))
    return x.astype(np.float32, order="C")


def _to_whole(batch: Batch) -> Copy | None:
    if between_elements(batch.logits.array):
        return Copy("logits copied, since they lie between elements", batch.logits.array.nbytes)
    return None


def _to_float32(batch: Batch) -> Copy | None:
    if batch.logits.device == "cpu":
        return Copy("logits copied to the device as float32", 4 * batch.logits.array.size)
    if batch.logits.dtype != "float32":
        return Copy("logits converted to float32", 4 * batch.logits.array.size)
    return None


def _to_describable(batch: Batch) -> Copy | None:
    """The second copy of the logits, once they are float32 and on the device."""
    size = 4 * batch.logits.array.size
    if batch.blank:
        return Copy(f"logits copied to bring blank {batch.blank} to class 0", size)
    if _to_whole(batch) is None and _to_float32(batch) is None and not describable(batch.logits.array):
        return Copy("logits copied to lay the classes side by side", size)
    return None


def _grad_copies(batch: Batch) -> list[Copy]:
    x = batch.logits.array
    back = [Copy(f"gradient copied to bring class 0 back to blank {batch.blank}", 4 * x.size)]
    where = "from the device" if batch.logits.device == "cpu" else "to the caller's array"
    return [*(back if batch.blank else []), Copy(f"gradient copied {where}", x.nbytes)]


def _zeros_like(cupy: Any, x: Any) -> Any:
    """Zeros (T, N, C) in the memory order of x: that cuDNN reads one order and writes another is nowhere said."""
    T, N, C = x.shape
    if x.strides[1] > x.strides[0]:
        return cupy.zeros((N, T, C), dtype=np.float32).transpose(1, 0, 2)
    return cupy.zeros((T, N, C), dtype=np.float32)


def _call(cupy: Any, workspace: DeviceMemory, batch: Batch, x: Any, losses: Any, with_grad: bool) -> Any | None:
    """cudnnCTCLoss with host labels; fills `losses`, returns the gradient in the caller's order of classes."""
    from ..bindings import cudnn

    shielded = shield(batch, empty_labels=False)
    labels = shielded.labels
    if (copy := _to_describable(batch)) is not None:
        copy.tell("cudnn")
    if batch.blank:
        order = np.r_[batch.blank, 0 : batch.blank, batch.blank + 1 : batch.C]
        x = cupy.take(x, cupy.asarray(order), axis=2)  # which lays it out in C order
        labels = labels + (labels < batch.blank).astype(np.int32)
    elif copy is not None:
        x = cupy.ascontiguousarray(x)
    grad = _zeros_like(cupy, x) if with_grad else None

    costs = cupy.zeros(batch.N, dtype=np.float32)
    with handle_of_thread(cupy, int(x.device.id), False) as mine:
        cudnn.cudnnSetStream(mine.handle, cupy.cuda.get_current_stream().ptr)
        _describe(mine.logits, x)
        if grad is not None:
            _describe(mine.grad, grad)
        set_ctc(mine.ctc, batch, int(shielded.label_lengths.max()))
        lengths = shielded.label_lengths, shielded.input_lengths
        about = mine.logits, None if grad is None else mine.grad, labels, *lengths
        algorithm, size = choose_algorithm(
            batch, lambda algorithm: cudnn.cudnnGetCTCLossWorkspaceSize(mine.handle, *about, algorithm, mine.ctc)
        )
        cudnn.cudnnCTCLoss(
            mine.handle,
            mine.logits,
            x.data.ptr,
            labels,
            *lengths,
            costs.data.ptr,
            None if grad is None else mine.grad,
            None if grad is None else grad.data.ptr,
            algorithm,
            mine.ctc,
            workspace.of(size, False),
            size,
        )
        # labels, lengths and a moved copy of x must outlive the work
        cupy.cuda.get_current_stream().synchronize()
    losses[...] = costs
    shielded.settle(batch, losses, grad, cupy)
    if grad is not None and batch.blank:
        _grad_copies(batch)[0].tell("cudnn")
        grad = grad[:, :, cupy.asarray(np.argsort(order))]
    return grad


def _describe(descriptor: Any, x: Any) -> None:
    from ..bindings import cudnn

    strides = [stride // x.itemsize for stride in x.strides]
    cudnn.cudnnSetTensorNdDescriptor(descriptor, cudnn.CUDNN_DATA_FLOAT, list(x.shape), strides)


def _inside(batch: Batch) -> npt.NDArray[np.bool_]:
    """(T, N): which frames count."""
    inside: npt.NDArray[np.bool_] = np.arange(batch.T)[:, None] < batch.input_lengths
    return inside


def _fill_empty_labels(cupy: Any, batch: Batch, x: Any, losses: Any, grad: Any | None) -> None:
    """A sample without labels has one path, all blank: loss -sum ln y(blank), gradient y - [class is blank]."""
    empty = np.flatnonzero((batch.label_lengths == 0) & (batch.input_lengths > 0))
    if not empty.size:
        return
    rows = x[:, cupy.asarray(empty)]
    shifted = rows if batch.probabilities else rows - rows.max(axis=2, keepdims=True)
    weights = cupy.exp(shifted)
    sums = cupy.ones_like(weights[:, :, :1]) if batch.probabilities else weights.sum(axis=2, keepdims=True)
    inside = cupy.asarray(_inside(batch)[:, empty])
    per_frame = cupy.log(sums[:, :, 0]) - shifted[:, :, batch.blank]
    losses[cupy.asarray(empty)] = cupy.where(inside, per_frame, 0).sum(axis=0)
    if grad is not None:
        share = weights / sums
        share[:, :, batch.blank] -= 1
        grad[:, cupy.asarray(empty)] = cupy.where(inside[:, :, None], share, 0)


def _settle_not_finite(cupy: Any, batch: Batch, x: Any, losses: Any, grad: Any | None) -> None:
    """NaN logits give NaN for their sample; what cuDNN cannot compute is refused by name.

    Raises EngineUnsupported for a sample with infinite logits, and for one whose probability may be lost in
    cuDNN's float32 arithmetic: a loss that is not finite, or of 0 where the logits do not allow it, or so
    large that the paths through classes below float32's range could be a part of it; and where it is doubted, for a
    gradient whose rows do not sum to 0.
    """
    inside = cupy.asarray(_inside(batch))
    nan = cupy.asnumpy((cupy.isnan(x).any(axis=2) & inside).any(axis=0)) & batch.feasible
    infinite = cupy.asnumpy((cupy.isinf(x).any(axis=2) & inside).any(axis=0)) & batch.feasible & ~nan
    infinite &= not batch.probabilities  # the logarithm of 0, which can be right
    top = x.max(axis=2, keepdims=True)
    # the best that any labels could cost: the most probable class of each frame
    least = cupy.asnumpy(cupy.where(inside, cupy.log(cupy.exp(x - top).sum(axis=2)), 0).sum(axis=0))
    found = cupy.asnumpy(losses)
    if grad is not None:
        mend_certain(cupy, found, grad)
    lost = ~np.isfinite(found) | ((found == 0) & (least > 1e-3))
    doubtful = batch.feasible & (batch.label_lengths > 0) & ~nan & ~lost
    doubtful &= floor_may_matter(found, batch.input_lengths, batch.label_lengths)
    if doubtful.any():  # up to such a spread no class of a frame is below the floor: ln p >= -spread - ln C
        spread = cupy.asnumpy(cupy.where(inside, top[:, :, 0] - x.min(axis=2), 0).max(axis=0))
        lost |= _below_the_floor(cupy, batch, x, doubtful & (spread > -floor(np.float32) - np.log(batch.C) - 0.01))
    strange = np.zeros_like(nan)
    if grad is not None and is_doubted(batch):
        strange = cupy.asnumpy((~(abs(grad.sum(axis=2)) < ROWS_SUM_TO) & inside).any(axis=0))  # NaN among them
    for wrong, why in (
        (infinite, "has infinite logits"),
        (lost & batch.feasible & ~nan, "has a probability that cuDNN's float32 arithmetic loses"),
        (strange & batch.feasible & ~nan, "has a gradient from cuDNN whose rows do not sum to 0"),
    ):
        if wrong.any():
            sample = int(np.argmax(wrong))
            raise EngineUnsupported(
                f"engine 'cudnn' cannot take this batch: sample {sample} {why}; engine='native' can, on the host"
            )
    if nan.any():
        set_where(losses, cupy.asarray(nan), np.nan, cupy)
        if grad is not None:
            set_where(grad, cupy.asarray(nan) & inside, np.nan, cupy)


def _below_the_floor(cupy: Any, batch: Batch, x: Any, doubtful: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """(N,): which of the doubtful samples have, in some frame, a class of their paths below float32's range."""
    low = np.zeros(batch.N, dtype=bool)
    for n in np.flatnonzero(doubtful).tolist():
        rows = x[: int(batch.input_lengths[n]), n]
        top = rows.max(axis=1, keepdims=True)
        sums = cupy.exp(rows - top).sum(axis=1, keepdims=True)
        classes = np.unique(np.append(batch.targets(n), batch.blank))
        least = (rows[:, cupy.asarray(classes)] - top - cupy.log(sums)).min()
        low[n] = float(least) < floor(np.float32)
    return low


def _deliver(
    cupy: Any, batch: Batch, losses: Any, grad: Any | None, weights: npt.NDArray[np.float64] | None
) -> tuple[Any, Any]:
    """The results in the caller's kind, dtype and layout, where the logits came from."""
    host = batch.logits.device == "cpu"
    if grad is not None:
        if weights is not None:
            grad = grad * cupy.asarray(weights.astype(np.float32))[None, :, None]
        if batch.logits.array.size:
            _grad_copies(batch)[-1].tell("cudnn")
        room, room_tnc = batch.empty_grad()
        room_tnc[...] = cupy.asnumpy(grad) if host else grad
        grad = room
    return (cupy.asnumpy(losses) if host else losses), grad


def _cupy() -> Any:
    return import_cuda_cupy(EngineUnavailable, "CuPy, which holds its arrays, is not installed")


class CudnnEngine:
    name = "cudnn"
    contract = Contract(
        native_name="cudnnCTCLoss, cudnnCTCLoss_v8",
        takes="activations or softmax probabilities",
        gradient_of="pre-softmax activations",
        arrays="device",
        labels="host or device",
        losses="device",
        blank="0",
        dtypes=("float32",),
        layouts=("TNC", "NTC"),
        topologies=("ctc",),
        max_label_length=MAX_LABELS,
        infeasible="loss 0, gradient 0 (or left as it was)",
        empty_label="loss 0 (wrong)",
        padded_time="gradient left as it was",
        deterministic=True,
        graph_capture=True,
        synchronises=True,
        other_algorithm=True,
        limits=(
            "at most 2**31 - 1 elements and 65535 samples",
            "a call with labels on the host waits for the device; with labels on the device (cudnnCTCLoss_v8) ctcbind "
            "waits twice, to check their range and to check the results, and before that for the lengths of labels in "
            "one row; with graph_safe it waits for nothing: only such a call can be captured, and what would raise an "
            "error gives NaN there",
            "labels out of range read outside the buffers, or end the CUDA context from 9.25.1 on",
            "float32 arithmetic on probabilities: gradients to about 1e-4 for short inputs, to 0.004 for 200 labels in "
            "1000 frames, to 0.4 for 255 in 10000 (9.19), and no probability below 1.2e-38 (87.3 nats) at any frame",
            "probabilities are read with CUDNN_LOSS_NORMALIZATION_NONE (CTCLoss(probabilities=True)), which does not "
            "check them; the library's own gradient there is neither of two: -occupancy / y for the classes that "
            "paths go through, y for the others (9.19; ctcbind makes y - occupancy of it)",
            "the gradient of a class with probability 1 is off by exactly 1 where the loss is 0 (9.19; ctcbind "
            "corrects it)",
            "a non-deterministic algorithm can be asked for (CTCLoss(deterministic=False)); its gradients are NaN for "
            "logits 336 apart (7.6, 9.19); it gets 255 labels at most, as the other, though it takes more",
        ),
    )

    @property
    def install(self) -> str:
        return cuda_command()

    def library(self) -> Library:
        from ..bindings import cudnn

        if (cupy := sys.modules.get("cupy")) is not None and is_rocm(cupy):
            _cupy()  # which says so, before it is said how to install cuDNN
        loaded = cudnn.load()
        library = Library(cudnn.version_text(loaded.version), loaded.found.path, loaded.found.how)
        try:
            devices = _cupy().cuda.runtime.getDeviceCount()
            missing = None if devices else "there is no CUDA device"
        except EngineUnavailable as error:
            missing = str(error)
        except Exception as error:  # CuPy's own error class, and which one, differs by version
            missing = f"there is no CUDA device: {error}"
        if missing:
            raise EngineUnavailable(f"cuDNN {library.version} is here ({library.path}, {library.found}), but {missing}")
        return library

    def refuses(self, batch: Batch) -> str | None:
        if isinstance(batch, DeviceBatch) and batch.graph_safe and not classes_side_by_side(batch.logits.array):
            return "the classes of the logits do not lie side by side, and a copy would not outlive a captured graph"
        if batch.logits.dtype == "float64":
            return "the logits are float64 and it computes in float32: pass logits.astype(numpy.float32)"
        if batch.T * batch.N * batch.C >= 2**31:
            return f"the logits have {batch.T * batch.N * batch.C} elements, and its limit is 2**31 - 1"
        if batch.N > MAX_SAMPLES:
            return f"there are {batch.N} samples, and its limit is {MAX_SAMPLES}"
        return None

    def copies(self, batch: Batch) -> list[Copy]:
        if isinstance(batch, DeviceBatch):
            return device_copies(batch)
        if batch.T == 0:
            return []
        copies = [
            _to_whole(batch),
            _to_float32(batch),
            *([_to_describable(batch)] if batch.C > 1 else []),
            *_grad_copies(batch),
        ]
        return [copy for copy in copies if copy is not None]

    def reduces(self, batch: Batch) -> bool:
        return batch.on_device

    def open(self) -> CudnnSession:
        return CudnnSession()


ENGINE = CudnnEngine()
