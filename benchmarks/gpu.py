"""Times on a CUDA device: ctcbind's kernels beside cuDNN, warp-ctc and PyTorch, from logits to losses and gradient.

Everything is in one process and one run: in a round each peer has a burst of calls between two CUDA events, in an order
that rotates, so that a ratio is of times beside each other. Before a size is timed every answer is held against
float64. What peers keep from call to call they keep; where logits are softmaxed is inside what is timed, of cuDNN too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

import ctcbind
from ctcbind import CTCLoss

from .cases import CASES, Case, Problem, make
from .copyrate import needed

__all__ = ["NAMES", "PEERS", "NoDevice", "Row", "Run", "measure", "render"]

#: The sizes of the table; tiny and ragged are the processor's.
NAMES = (
    *("letters-1", "letters-16", "letters-64", "letters-128", "words-1", "words-16", "words-64", "words-128"),
    *("ocr", "speech", "pieces", "long"),
)
OURS = "cuda"
#: cudnn-bare: cudnnCTCLoss_v8 by itself, with nothing checked before it and nothing put right after.
PEERS = ("cuda", "cuda-host-labels", "cudnn", "cudnn-host-labels", "cudnn-bare", "warpctc", "torch")
#: Milliseconds that a burst should take at least: events count in half microseconds, launches in five.
BURST = 5.0
Floats = npt.NDArray[Any]
Call = Callable[[], tuple[Any, Any]]


class NoDevice(Exception):
    """There is nothing to measure on; the text says what is missing."""


@dataclass(frozen=True)
class Row:
    """One peer on one size. `milliseconds` is the median over the rounds, `ratio` that of the peer's time by ours round
    by round, `bandwidth` the share of a device copy's rate at which the needed bytes went through. `gradient_off` and
    `loss_off` are the largest absolute and relative differences from float64; `absent` says why there is nothing."""

    case: str
    peer: str
    milliseconds: float | None = None
    lower: float | None = None
    upper: float | None = None
    ratio: float | None = None
    bandwidth: float | None = None
    loss_off: float | None = None
    gradient_off: float | None = None
    absent: str | None = None


@dataclass(frozen=True)
class Run:
    """What was measured, and on what."""

    device: str
    versions: dict[str, str]
    rounds: int
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def device() -> Any:
    """CuPy, once there is a device. Raises NoDevice."""
    try:
        import cupy
    except ImportError as error:
        raise NoDevice(
            f"there is no CuPy, so that no device can be reached, and nothing was measured: {error}"
        ) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy's own error class
        raise NoDevice(f"there is no CUDA device, and nothing was measured: {error}") from None
    if not count:
        raise NoDevice("there is no CUDA device, and nothing was measured")
    return cupy


def measure(
    names: Sequence[str] = NAMES, peers: Sequence[str] = PEERS, rounds: int = 15, cases: Sequence[Case] = CASES
) -> Run:
    """The table. Raises NoDevice where there is none, ValueError for a size that is not known."""
    cupy = device()
    known = {case.name: case for case in cases}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"there is no size {unknown[0]!r}; there are {', '.join(known)}")
    rows: list[Row] = []
    for name in names:
        rows += _case(cupy, known[name], peers, rounds)
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
    title = properties.decode() if isinstance(properties, bytes) else str(properties)
    return Run(title, _versions(cupy), rounds, tuple(rows))


def _case(cupy: Any, case: Case, peers: Sequence[str], rounds: int) -> list[Row]:
    problem = make(case)
    exact = ctcbind.ctc_loss_and_grad(
        problem.logits.astype(np.float64), problem.labels, problem.input_lengths, problem.label_lengths
    )
    calls: dict[str, Call] = {}
    closing: list[Callable[[], None]] = []
    rows: dict[str, Row] = {}
    try:
        for peer in peers:
            try:
                call, close = _open(cupy, peer, problem)
                closing.append(close)
                row = rows[peer] = _checked(cupy, case, peer, call(), exact)
                if row.absent is None:
                    calls[peer] = call
            except (ctcbind.CtcbindError, ImportError, RuntimeError) as error:
                rows[peer] = Row(case.name, peer, absent=str(error).partition("\n")[0])
        times = _take_turns(cupy, calls, rounds)
        copy = _copy_rate(cupy, case.logits_bytes)
    finally:
        for close in closing:
            close()
    ours = times.get(OURS)
    for peer, taken in times.items():
        ordered = sorted(taken)
        middle = median(ordered)
        rows[peer] = Row(
            **{
                **asdict(rows[peer]),
                "milliseconds": middle,
                "lower": ordered[len(ordered) // 4],
                "upper": ordered[-1 - len(ordered) // 4],
                "ratio": median(theirs / own for theirs, own in zip(taken, ours)) if ours else None,
                "bandwidth": needed(case.logits_bytes, True) / (middle / 1e3) / copy,
            }
        )
    return list(rows.values())


def _open(cupy: Any, peer: str, problem: Problem) -> tuple[Call, Callable[[], None]]:
    """(a call that queues the work and returns losses and gradient, what closes it)."""
    x = cupy.asarray(problem.logits)
    labels, lengths, frames = (
        cupy.asarray(each) for each in (problem.labels, problem.label_lengths, problem.input_lengths)
    )
    if peer == "torch":
        return _torch(problem), _nothing
    if peer == "cudnn-bare":
        return _bare(cupy, problem, x, label_lengths=lengths, input_lengths=frames)
    engine = peer.removesuffix("-host-labels")
    on_device = peer in ("cuda", "cudnn")
    plan = CTCLoss(engine=engine, graph_safe=on_device)
    arrays = (labels, frames, lengths) if on_device else (problem.labels, problem.input_lengths, problem.label_lengths)

    def call() -> tuple[Any, Any]:
        result = plan(x, *arrays)
        return result.loss, result.grad

    return call, plan.close


def _bare(
    cupy: Any, problem: Problem, x: Any, *, label_lengths: Any, input_lengths: Any
) -> tuple[Call, Callable[[], None]]:
    from ctcbind.bindings import cudnn

    made = ExitStack()
    handle = made.enter_context(cudnn.cudnnCreate())
    tensor = made.enter_context(cudnn.cudnnCreateTensorDescriptor())
    ctc = made.enter_context(cudnn.cudnnCreateCTCLossDescriptor())
    try:
        T, N, C = x.shape
        cudnn.cudnnSetStream(handle, cupy.cuda.get_current_stream().ptr)
        cudnn.cudnnSetTensorNdDescriptor(tensor, cudnn.CUDNN_DATA_FLOAT, [T, N, C], [N * C, C, 1])
        norm, mode = cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_CTC_ZERO_OOB_GRADIENTS
        longest = int(problem.label_lengths.max())
        cudnn.cudnnSetCTCLossDescriptor_v9(ctc, cudnn.CUDNN_DATA_FLOAT, norm, mode, longest)
        algorithm = cudnn.CUDNN_CTC_LOSS_ALGO_DETERMINISTIC
        size = cudnn.cudnnGetCTCLossWorkspaceSize_v8(handle, algorithm, ctc, tensor, tensor)
        workspace = cupy.empty(size, dtype=np.uint8)
    except BaseException:
        made.close()
        raise
    labels = cupy.asarray(problem.flat_labels)

    def call() -> tuple[Any, Any]:
        costs, grad = cupy.empty(N, dtype=np.float32), cupy.empty((T, N, C), dtype=np.float32)
        read = x.data.ptr, labels.data.ptr, label_lengths.data.ptr, input_lengths.data.ptr
        written = costs.data.ptr, tensor, grad.data.ptr
        cudnn.cudnnCTCLoss_v8(handle, algorithm, ctc, tensor, *read, *written, size, workspace.data.ptr)
        return costs, grad

    return call, made.close


def _torch(problem: Problem) -> Call:
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device")
    x = torch.from_numpy(problem.logits).cuda().requires_grad_()
    labels = torch.from_numpy(problem.labels.astype(np.int64)).cuda()
    # on the host, where its kernels want them: those on a device would be copied back, and waited for, in each call
    frames, lengths = (tuple(each.tolist()) for each in (problem.input_lengths, problem.label_lengths))

    def call() -> tuple[Any, Any]:
        x.grad = None
        scores = torch.nn.functional.log_softmax(x, dim=2)
        losses = torch.nn.functional.ctc_loss(scores, labels, frames, lengths, reduction="none")
        losses.sum().backward()
        return losses.detach(), x.grad

    return call


def _nothing() -> None:
    pass


def _checked(cupy: Any, case: Case, peer: str, found: tuple[Any, Any], exact: Any) -> Row:
    cupy.cuda.runtime.deviceSynchronize()
    losses, grad = (np.asarray(cupy.asnumpy(cupy.asarray(each)), dtype=np.float64) for each in found)
    loss_off = float(np.max(np.abs(losses - exact.loss) / np.maximum(np.abs(exact.loss), 1.0)))
    gradient_off = float(np.max(np.abs(grad - exact.grad)))
    if not np.isfinite([loss_off, gradient_off]).all():
        return Row(case.name, peer, absent="its answer is not a number")
    return Row(case.name, peer, loss_off=loss_off, gradient_off=gradient_off)


def _take_turns(cupy: Any, calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Milliseconds per call, round by round."""
    bursts = {}
    for peer, call in calls.items():
        for _ in range(3):
            call()
        once = _burst(cupy, call, 3)
        bursts[peer] = max(1, min(1000, round(BURST / max(once, 1e-3))))
    names = list(calls)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % max(len(names), 1)
        for name in names[first:] + names[:first]:
            taken[name].append(_burst(cupy, calls[name], bursts[name]))
    return taken


def _burst(cupy: Any, call: Callable[[], Any], count: int) -> float:
    """Milliseconds per call, between two events on the device. PyTorch's default stream is CuPy's."""
    begin, end = cupy.cuda.Event(), cupy.cuda.Event()
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(begin, end)) / count


def _copy_rate(cupy: Any, size: int) -> float:
    """Bytes a second, read and written together, of a copy on the device of as many bytes as the logits."""
    source, target = cupy.ones(size, dtype=np.uint8), cupy.empty(size, dtype=np.uint8)

    def copy() -> None:
        target[...] = source

    times = [_burst(cupy, copy, 20) for _ in range(6)][1:]
    return 2 * size / (median(times) / 1e3)


def _versions(cupy: Any) -> dict[str, str]:
    runtime = cupy.cuda.runtime
    versions = {
        "ctcbind": ctcbind.__version__,
        "CuPy": cupy.__version__,
        "CUDA runtime": str(runtime.runtimeGetVersion()),
        "CUDA driver": str(runtime.driverGetVersion()),
    }
    for name, info in ctcbind.engines().items():
        if name in ("cudnn", "warpctc") and info.available:
            versions[name] = str(info.version)
    if "torch" in sys.modules:
        versions["torch"] = sys.modules["torch"].__version__
    return versions


def render(run: Run) -> str:
    """A table in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    lines = [
        f"{run.device}; {versions}; {run.rounds} rounds",
        "",
        "| size | peer | ms | [quartiles] | times ctcbind's | of copy's bandwidth | loss off | gradient off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in run.rows:
        if row.milliseconds is None:
            lines.append(f"| {row.case} | {row.peer} | - | {row.absent} | | | | |")
            continue
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(
            f"| {row.case} | {row.peer} | {row.milliseconds:.4g} | [{row.lower:.4g}, {row.upper:.4g}] | {ratio} | "
            f"{row.bandwidth:.0%} | {row.loss_off:.1e} | {row.gradient_off:.1e} |"
        )
    return "\n".join(lines)
