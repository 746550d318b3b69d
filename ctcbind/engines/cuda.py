"""ctcbind's own kernels on CuPy arrays, or on host arrays carried to the device and back.

Four launches on the caller's current stream, five where labels are long: lengths and labels are looked at, the logits
read once, alpha and beta run, the gradient written. What is out of range on the device cannot read outside its arrays,
whoever checks it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .. import __version__
from ..arrays import between_elements
from ..batch import Batch
from ..bindings.native_direct import open_packer
from ..cuda.by_stream import ByStream
from ..cuda.common import capturing, classes_side_by_side, lay_side_by_side
from ..cuda.device_batch import DeviceBatch
from ..cuda.launch import DeviceState
from ..cuda.repeated import Repeated
from ..errors import EngineUnavailable, EngineUnsupported
from ..extras import cuda_command, import_cuda_cupy
from .contract import Contract, Copy, Library, Shorter
from .turn import Turn

__all__ = ["ENGINE"]

#: Compute capability 7.0, times 10. Older devices lack instructions of lattice.cuh, so that it does not compile;
#: and lanes of a warp go apart and meet again in the kernels, which is not promised there.
OLDEST = 70


class CudaSession:
    """One workspace for each stream of each device that its batches were on; it grows only."""

    def __init__(self) -> None:
        self._states: ByStream[DeviceState] = ByStream()
        self._repeated = Repeated()

    def run(self, batch: Batch, *, with_grad: bool, weights: Any) -> tuple[Any, Any]:
        cupy = _cupy()
        host = batch.logits.device == "cpu"
        device = cupy.cuda.Device() if host else batch.logits.array.device
        with device:
            captured = capturing(cupy)
            if captured and not isinstance(batch, DeviceBatch):  # before a copy could get into the graph
                raise EngineUnsupported(
                    "engine 'cuda' cannot be captured in a graph with labels on the host: every launch of the graph "
                    "would read them anew; give labels and lengths on the device to CTCLoss(graph_safe=True)"
                )
            state = self._states.of_current(cupy, partial(DeviceState, cupy))
            if not host:
                x = batch.logits.array
                if not classes_side_by_side(x):
                    ENGINE.copies(batch)[0].tell("cuda")
                    x = lay_side_by_side(x)
                reduced = batch.empty_reduced()
                losses = batch.empty_losses() if reduced is None else None
                grad, grad_tnc = batch.empty_grad() if with_grad else (None, None)
                work = state.run(batch, x, losses, grad_tnc, weights, reduced, captured=captured)
                self._repeated.keep(cupy, batch, (losses, reduced, grad), state, work)
                return losses if reduced is None else reduced, grad
            there, back = ENGINE.copies(batch)
            there.tell("cuda")
            x, losses, grad_tnc = state.carried(batch, with_grad)
            state.run(batch, x, losses, grad_tnc, weights)
            if with_grad:
                back.tell("cuda")
            return state.brought_back(batch, losses, grad_tnc)

    def direct(self, turn: Turn, *, result: type, blank: int, layout: str, **_: Any) -> tuple[Shorter, Shorter]:
        """For what a call before has done, graph-safe or with labels on the host."""
        self._repeated.pack_with(open_packer(blank, layout))

        def both(*arrays: Any) -> Any:
            found = turn.take(self._repeated.run, arrays, True)
            return None if found is None else result(*found, "cuda")

        def alone(*arrays: Any) -> Any:
            found = turn.take(self._repeated.run, arrays, False)
            return None if found is None else found[0]

        return both, alone

    def close(self) -> None:
        """What it held goes back to CuPy's pool, which hands it out again on the same stream alone."""
        self._repeated.clear()
        self._states.clear()


def _cupy() -> Any:
    need = "CuPy, which holds its arrays and compiles its kernels, is not installed"
    return import_cuda_cupy(EngineUnavailable, need)


def _capability(batch: Batch) -> int:
    """That of the device which is to compute, times 10; OLDEST where there is none, of which `library` tells."""
    try:
        cupy = _cupy()
        device = cupy.cuda.Device() if batch.logits.device == "cpu" else batch.logits.array.device
        return int(device.compute_capability)
    except Exception:  # CuPy's own error class, and which one, differs by version
        return OLDEST


class CudaEngine:
    name = "cuda"
    contract = Contract(
        native_name="ctc_lattice",
        takes="activations",
        gradient_of="pre-softmax activations",
        arrays="device",
        labels="host or device",
        losses="device",
        blank="any",
        dtypes=("float16", "bfloat16", "float32", "float64"),
        layouts=("TNC", "NTC"),
        topologies=("ctc", "simple"),
        max_label_length=None,
        infeasible="loss inf, gradient 0",
        empty_label="the all-blank path",
        padded_time="gradient 0",
        deterministic=True,
        graph_capture=True,
        synchronises=False,
        overwrites=True,
        limits=(
            "a call with labels on the device waits until they are checked, unless graph_safe, and one with logits on "
            "the host waits for its results",
            "where a row of logits begins, modulo 16 bytes, may change the last bits of its gradient",
            "a CUDA graph captures only calls with graph_safe",
            "the device needs compute capability 7.0 (Volta) or more",
        ),
    )

    @property
    def install(self) -> str:
        return cuda_command()

    def library(self) -> Library:
        cupy = _cupy()
        try:
            missing = None if cupy.cuda.runtime.getDeviceCount() else "there is no CUDA device"
            version = cupy.__version__
        except Exception as error:  # CuPy's own error class, and which one, differs by version
            missing = f"there is no CUDA device: {error}"
        if missing:
            raise EngineUnavailable(f"CuPy is here, but {missing}")
        return Library(__version__, found=f"part of ctcbind, compiled through CuPy {version}")

    def refuses(self, batch: Batch) -> str | None:
        if (capability := _capability(batch)) < OLDEST:
            had, need = (f"{number // 10}.{number % 10}" for number in (capability, OLDEST))
            return f"the device has compute capability {had}, and its kernels need {need} or more"
        if isinstance(batch, DeviceBatch) and batch.graph_safe and not classes_side_by_side(batch.logits.array):
            return "the classes of the logits do not lie side by side, and a copy would not outlive a captured graph"
        if batch.overwrite and batch.logits.array.size:
            size, strides, shape = batch.logits.array.itemsize, batch.logits.array.strides, batch.logits.shape
            if batch.logits.copied:
                return f"the logits had to be {batch.logits.copied}, and the gradient is to be written over them"
            if between_elements(batch.logits.array):
                return "the logits lie between elements, and the gradient is to be written over them"
            if shape[2] > 1 and strides[2] != size:
                return "the classes of the logits do not lie side by side, and the gradient is to be written over them"
            if batch.logits.device == "cpu" and not batch.logits.array.flags.writeable:
                return "the logits are read-only, and the gradient is to be written over them"
            if any(stride == 0 and length > 1 for stride, length in zip(strides, shape)):
                return "the logits are broadcast, and the gradient is to be written over them"
        return None

    def copies(self, batch: Batch) -> list[Copy]:
        size = batch.logits.array.nbytes
        if batch.logits.device == "cpu":
            return [Copy("logits copied to the device", size), Copy("gradient copied from the device", size)]
        if not classes_side_by_side(batch.logits.array):
            return [Copy("logits copied to lay the classes side by side", size)]
        return []

    def reduces(self, batch: Batch) -> bool:
        return batch.logits.device != "cpu"

    def open(self) -> CudaSession:
        return CudaSession()


ENGINE = CudaEngine()
