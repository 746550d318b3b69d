"""cuDNN's CTC loss called as it is, on device memory, where every status is an observation and none an error.

The binding refuses what cuDNN does not check; here it is bypassed, so that what the library itself does can be seen:
labels out of range, any maxLabelLength, a workspace too small, pointers to the wrong memory. Works with CuPy, and with
`fake_cupy` and the fake libcudnn in their places.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np

import ctcbind
from ctcbind.bindings import cudnn

FLOAT, DOUBLE, HALF = 0, 1, 2
NONE, SOFTMAX = 0, 1
ZERO, SKIP = 0, 1
#: What gradients hold before a call: a value that no gradient has.
FILL = 7.0


def dry() -> bool:
    """Whether sizes are cut down, as where there is no device and everything is computed on the host."""
    return os.environ.get("CTCBIND_GPU_DRY") == "1"


@dataclass
class Answer:
    """What came of one computation: each status on the way, the device's error after it, and the results."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    size: int | None = None
    sync: str = ""
    costs: np.ndarray | None = None
    grad: np.ndarray | None = None

    @property
    def ok(self) -> bool:
        return not self.sync and self.costs is not None

    def told(self) -> dict[str, Any]:
        """Where it ended, for a record: the last status, and what the device said."""
        last = self.steps[-1]
        return {**last, "workspace": self.size, "device_error": self.sync or None}

    def against(self, expected: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
        """For a record: the largest differences from (losses, gradients) where those are finite."""
        if self.costs is None:
            return self.told()
        losses, grads = expected
        fine = np.isfinite(losses)
        told = {**self.told(), "loss_off": largest(self.costs[fine] - losses[fine])}
        if self.grad is not None:
            told["grad_off"] = largest((self.grad - grads)[:, fine])
        return told


def largest(values: Any) -> float:
    """The largest size among the values; NaN if one is NaN, 0 for none."""
    values = np.abs(np.asarray(values, dtype=np.float64))
    return float(values.max()) if values.size else 0.0


def kind_of(values: Any) -> str:
    """What stands in a part of the gradient buffer: untouched, zeros, NaN, or numbers."""
    values = np.asarray(values)
    for name, same in (("untouched", values == FILL), ("zero", values == 0), ("nan", np.isnan(values))):
        if values.size and same.all():
            return name
    return "some nan" if np.isnan(values).any() else "numbers" if values.size else "nothing"


def reference(x: Any, labels: list[list[int]], frames: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """(losses, gradients) in float64, of activations on the host."""
    x = np.asarray(x, dtype=np.float64)
    result = ctcbind.ctc_loss_and_grad(x, labels, frames, engine="reference" if x.size < 10**5 else "native")
    return result.loss, result.grad


def scores(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """The same random activations at every run: records of several machines can be compared."""
    return (scale * np.random.default_rng([seed, *shape]).normal(size=shape)).astype(np.float32)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1, keepdims=True)).astype(np.float32)


class Lab:
    """A handle and the descriptors on the current device, until closed."""

    def __init__(self, cupy: Any) -> None:
        self.cupy = cupy
        self.library = cudnn.load()
        self.handle = cudnn.cudnnCreate()
        self.x_desc = cudnn.cudnnCreateTensorDescriptor()
        self.g_desc = cudnn.cudnnCreateTensorDescriptor()
        self.ctc_desc = cudnn.cudnnCreateCTCLossDescriptor()
        self.keep: list[Any] = []
        self.x = self.costs = self.grad = None  # of the last computation, on the device
        self.ints_given: list[Any] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self.ctc_desc, self.g_desc, self.x_desc, self.handle):
            try:
                each.close()
            except ctcbind.NativeError:
                if error is None and self.alive():
                    raise

    def alive(self) -> bool:
        """Whether the device still answers: after an assert in a kernel no call of the process succeeds."""
        try:
            self.cupy.cuda.runtime.deviceSynchronize()
            return bool(self.cupy.asnumpy(self.cupy.zeros(4, dtype=np.float32) + 1).sum() == 4)
        except Exception:  # CuPy's errors come in several classes
            return False

    def status(self, call: str, *arguments: Any, quiet: bool = False) -> dict[str, Any]:
        """Calls the C function, whatever comes of it: its status, the library's name for it, and its reason (which
        costs time to listen for: not if `quiet`)."""
        function, heard = self.library.function(call), []
        if quiet:
            status = int(function(*arguments))
        else:
            with cudnn.collect_log() as heard:
                status = int(function(*arguments))
        reasons = [line.partition("Reason:")[2].strip() for text in heard for line in text.splitlines()]
        told = {"call": call, "status": status, "name": cudnn.cudnnGetErrorString(status)}
        reason = "; ".join(dict.fromkeys(filter(None, reasons)))
        return {**told, "reason": reason} if reason else told

    def describe(self, desc: Any, shape: Any, strides: Any, kind: int = FLOAT) -> dict[str, Any]:
        """cudnnSetTensorNdDescriptor; shape and strides in elements."""
        shape, strides = [int(each) for each in shape], [int(each) for each in strides]
        return self.status("cudnnSetTensorNdDescriptor", desc._pointer, kind, len(shape), shape, strides)

    def set_ctc(self, comp: int, norm: int, mode: int, longest: int) -> dict[str, Any]:
        """The setter of this version, with any numbers."""
        name = "cudnnSetCTCLossDescriptor_v9"
        name = name if self.library.has(name) else "cudnnSetCTCLossDescriptor_v8"
        return self.status(name, self.ctc_desc._pointer, comp, norm, mode, longest)

    def ints(self, values: Any, where: str) -> tuple[Any, Any]:
        """(pointer, owner) of int32 values in "host" or "device" memory."""
        array = np.array([*values] or [0], dtype=np.int32)
        if where == "host":
            return cudnn.ffi.cast("int *", array.ctypes.data), array
        owner = self.cupy.asarray(array)
        return cudnn.ffi.cast("int *", owner.data.ptr), owner

    def ctc(self, x: Any, labels: list[list[int]], frames: Any = None, *, wait: bool = True, **options: Any) -> Answer:
        """One computation, up to the first failure; arguments as for `prepare`."""
        answer, launch = self.prepare(x, labels, frames, **options)
        if launch is None:
            return answer
        answer.steps.append(launch())
        if wait:
            self.read(answer)
        return answer

    def prepare(
        self,
        x: Any,
        labels: list[list[int]],
        frames: Any = None,
        *,
        api: str = "host",
        algo: int = 0,
        norm: int = SOFTMAX,
        mode: int = ZERO,
        longest: int | None = None,
        label_lengths: Any = None,
        kind: int = FLOAT,
        comp: int = FLOAT,
        gradient: str = "both",
        grad: Any = None,
        short: int = 0,
        offset: int = 0,
        labels_in: str | None = None,
    ) -> tuple[Answer, Callable[..., dict[str, Any]] | None]:
        """Everything before cudnnCTCLoss (api "host") or cudnnCTCLoss_v8 ("v8"), and that call as a function, which
        may be called more than once; None instead where something before it failed.

        x: (T, N, A), NumPy, or CuPy as it lies. `gradient`: "both" descriptor and buffer, "descriptor" alone, or
        "none". `grad`: the buffer to use; without, one is made that lies as x and holds FILL. `short`: bytes that
        the workspace lacks, `offset`: its misalignment, `labels_in`: the memory in which labels and lengths are.
        """
        cupy, ffi, answer = self.cupy, cudnn.ffi, Answer()
        if isinstance(x, np.ndarray):
            x = cupy.asarray(x)
        T, N, A = x.shape
        if gradient != "both":
            grad = x  # for its shape; its memory is not given
        elif grad is None:
            grad = cupy.full((T, N, A), FILL, dtype=x.dtype)
        costs = cupy.full(N, FILL, dtype=x.dtype)
        lengths = [len(row) for row in labels] if label_lengths is None else label_lengths
        where = labels_in or ("host" if api == "host" else "device")
        flat = [label for row in labels for label in row]
        ints = [self.ints(values, where) for values in (flat, lengths, [T] * N if frames is None else frames)]
        pointers = [pointer for pointer, _ in ints]
        self.x, self.costs, self.grad = x, costs, grad if gradient == "both" else None
        self.ints_given = [owner for _, owner in ints]
        self.keep = [x, grad, costs, ints]  # what was kept before was waited for
        longest = max([1, *(len(row) for row in labels)]) if longest is None else longest
        handle, ctc_desc = self.handle._pointer, self.ctc_desc._pointer
        probs, grads = self.x_desc._pointer, self.g_desc._pointer if gradient != "none" else ffi.NULL

        def step(told: dict[str, Any]) -> bool:
            answer.steps.append(told)
            return bool(told["status"] == 0)

        def described() -> bool:
            stream = ffi.cast("cudaStream_t", cupy.cuda.get_current_stream().ptr)
            x_strides, g_strides = ([s // each.itemsize for s in each.strides] for each in (x, grad))
            return (
                step(self.status("cudnnSetStream", handle, stream))
                and step(self.describe(self.x_desc, x.shape, x_strides, kind))
                and (gradient == "none" or step(self.describe(self.g_desc, grad.shape, g_strides, kind)))
                and step(self.set_ctc(comp, norm, mode, longest))
            )

        size = ffi.new("size_t *")
        query: tuple[Any, ...]
        if api == "host":
            query = ("cudnnGetCTCLossWorkspaceSize", handle, probs, grads, *pointers, algo, ctc_desc, size)
        else:
            query = ("cudnnGetCTCLossWorkspaceSize_v8", handle, algo, ctc_desc, probs, grads, size)
        if not (described() and step(self.status(*query))):
            return answer, None
        answer.size = int(size[0])
        room = cupy.cuda.alloc(answer.size + 512)
        self.keep.append(room)
        scratch = ffi.cast("void *", -(-room.ptr // 256) * 256 + offset)
        given = max(answer.size - short, 0)
        void = [ffi.cast("void *", each.data.ptr) for each in (x, costs, grad)]
        out = void[2] if gradient == "both" else ffi.NULL
        call: tuple[Any, ...]
        if api == "host":
            call = ("cudnnCTCLoss", handle, probs, void[0], *pointers, void[1], grads, out, algo, ctc_desc)
            call += (scratch, given)
        else:
            call = ("cudnnCTCLoss_v8", handle, algo, ctc_desc, probs, void[0], *pointers, void[1], grads, out)
            call += (given, scratch)
        return answer, lambda quiet=False: self.status(*call, quiet=quiet)

    def wait(self, answer: Answer) -> None:
        """Waits for the stream, and notes what the device says."""
        try:
            self.cupy.cuda.get_current_stream().synchronize()
        except Exception as error:  # a sticky error of the context, or one of this launch
            answer.sync = f"{type(error).__name__}: {error}"

    def read(self, answer: Answer) -> Answer:
        """Waits, and brings the results of the last computation to the host, if its call succeeded."""
        self.wait(answer)
        if not answer.sync and answer.steps[-1]["status"] == 0:
            answer.costs = self.cupy.asnumpy(self.costs).astype(np.float64)
            answer.grad = None if self.grad is None else self.cupy.asnumpy(self.grad).astype(np.float64)
        return answer

    def busy(self) -> None:
        """Gives the current stream work for some tens of milliseconds."""
        block = self.cupy.zeros(2**10 if dry() else 2**26, dtype=np.float32)
        for _ in range(2 if dry() else 300):
            block += 1
        self.keep.append(block)


def finite_json(value: Any) -> Any:
    """The same with NaN and infinities as words, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {str(key): finite_json(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [finite_json(each) for each in value]
    if isinstance(value, np.ndarray):
        return finite_json(value.tolist())
    if isinstance(value, np.generic):
        return finite_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
