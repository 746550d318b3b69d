"""Every engine on one batch: losses, gradients and times side by side, measured against the float64 reference."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import isfinite, isnan
from statistics import median
from textwrap import wrap
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import __version__
from .arrays import ArrayView, Layout, as_host, view_logits
from .batch import Topology
from .engines import NAMES, EngineInfo, get
from .engines import engines as known_engines
from .errors import CtcbindError, EngineUnavailable, EngineUnsupported
from .extras import cuda_commands
from .plan import CTCLoss
from .rules import option
from .text import paragraph, plain, table

__all__ = ["Comparison", "Row", "absence", "bring", "compare", "render", "summary", "to_device"]

#: Engines that work in float64 whatever the dtype of the logits.
DOUBLE = ("reference",)

#: cuDNN rescales probabilities in float32; PyTorch's own tests hold its gradient to this (pytorch #159106).
CUDNN_GRADIENT = 1e-4

#: Gradients lie between -1 and 1: where rounding alone explains more than this, agreement says little.
COARSE = 0.01

#: Unit roundoff of each dtype: half the distance from 1 to the next number.
ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}

SECONDS = 4.0  # of repeated runs, over all engines; each runs at least once more than the first, untimed one

Floats = npt.NDArray[np.float64]
K_ = TypeVar("K_")


@dataclass(frozen=True, slots=True)
class Row:
    """One engine on the batch; one that computes on the host and on a device has a row for each, where it can.

    `status` is "agrees", "differs", "absent" (its library or device is not here), "refused" (it cannot give the
    right answer for this batch) or "failed" (its library returned an error). `losses` are (N,) in nats;
    `loss_diff` and `grad_diff` the largest absolute differences from the float64 reference, `loss_tolerance` and
    `grad_tolerance` what they may be for the sample that comes nearest to its own tolerance; `milliseconds` the
    median time of loss and gradient. All of these are None where nothing ran: then `reason` says why, and
    `command` what would bring the engine (None where no command can). Losses past the range of their dtype are inf, as
    they should be, beside a finite reference: they agree, and `reason` says so.
    """

    engine: str
    status: str
    version: str | None
    device: str | None
    takes: str
    gradient_of: str
    losses: tuple[float, ...] | None = None
    loss_diff: float | None = None
    loss_tolerance: float | None = None
    grad_diff: float | None = None
    grad_tolerance: float | None = None
    grad_diffs: tuple[float, ...] | None = None
    milliseconds: float | None = None
    runs: int = 0
    reason: str | None = None
    command: str | None = None

    @property
    def label(self) -> str:
        """The engine, and its device where there may be a row for the host too: "warpctc on cuda:0"."""
        if not (self.device or "").startswith("cuda") or get(self.engine).contract.arrays != "host or device":
            return self.engine
        return f"{self.engine} on {(self.device or '').split()[0]}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The engines on one batch of T time steps, N samples and C classes; `reference_losses` (N,) are float64."""

    name: str
    T: int
    N: int
    C: int
    dtype: str
    reference_losses: tuple[float, ...]
    rows: tuple[Row, ...]

    @property
    def agree(self) -> bool:
        """Whether every engine that ran lies within its tolerance of the reference, and so of the others."""
        return all(row.status not in ("differs", "failed") for row in self.rows)

    @property
    def ran(self) -> tuple[Row, ...]:
        """The rows of the engines that gave an answer."""
        return tuple(row for row in self.rows if row.losses is not None)

    def to_dict(self) -> dict[str, Any]:
        """The same for json.dumps; numbers that JSON lacks are the strings "inf", "-inf" and "nan"."""
        result: dict[str, Any] = plain({**asdict(self), "agree": self.agree})
        return result


def compare(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
    engines: Iterable[str] | None = None,
    name: str = "batch",
    repeats: int = 5,
) -> Comparison:
    """Loss and gradient of one batch from every engine, with the largest difference of each from the reference.

    The batch is given as to `ctcbind.ctc_loss`: logits (T, N, C), or (N, T, C) with layout="NTC"; they are copied
    to a device for the engines that need one, and back; warp-ctc runs on both where its library was built with CUDA.
    `engines` names the engines (None: all). Times
    are milliseconds, the median of `repeats` runs taken in turns, the copies left out. The yardstick is the
    `reference` engine on the same logits in float64.

    The tolerance of each sample follows from the engine's arithmetic. In log space each of T steps rounds a
    logarithm that has grown to l nats by u l at most, u the unit roundoff of the dtype computed in, and its
    exponentials and logarithms by a few u more. With a loss of L nats that sums to u T (L / 2 + 4) at most, for the
    loss and, as the error of an exponent, for the gradient. Uniform scores come near it, since they round the
    same way at every step. `reference` computes in float64, the others in float32 unless logits are float64. cuDNN
    rescales probabilities in float32: its gradient may be off by 4 u T, and by 1e-4 at the least. Added are
    the error of the reference itself and the rounding of results to their dtype.

    Raises InvalidInput for what cannot be right. An engine that is absent, refuses or fails becomes a row that
    says so.

    >>> import numpy as np
    >>> from ctcbind.compare import compare
    >>> result = compare(np.zeros((100, 5, 10), np.float32), [[1, 2, 3, 4]] * 5, engines=["native"])
    >>> result.agree, round(result.rows[0].losses[0], 3)
    (True, 203.984)
    """
    wanted = list(NAMES if engines is None else engines)
    for each in wanted:
        option("engines", each, NAMES)
    CTCLoss(blank=blank, layout=layout, topology=topology).close()  # the options are checked before the arrays
    view = view_logits(as_host(logits), layout)
    T, N, C = view.shape
    arrays = (targets, input_lengths, target_lengths)
    options: dict[str, Any] = {"blank": blank, "topology": topology}
    with CTCLoss(engine="reference", **options) as plan:
        exact = plan(view.array.astype(np.float64), *arrays)
    yardstick = (np.asarray(exact.loss), np.asarray(exact.grad))

    known = known_engines()
    rows: dict[tuple[str, bool], Row] = {}
    calls: dict[tuple[str, bool], Callable[[], Any]] = {}
    with ExitStack() as opened:
        for each in dict.fromkeys(wanted):
            for there in _places(known[each]):
                plan = opened.enter_context(CTCLoss(engine=each, **options))
                rows[each, there], call = _first_run(known[each], there, plan, view, arrays, yardstick)
                if call is not None:
                    calls[each, there] = call
        for key, taken in _take_turns(calls, repeats).items():
            rows[key] = replace(rows[key], milliseconds=median(taken) if taken else None, runs=len(taken))
    return Comparison(name, T, N, C, view.dtype, tuple(yardstick[0].tolist()), tuple(rows.values()))


def _places(info: EngineInfo) -> tuple[bool, ...]:
    """Where an engine's arrays are to be: on a device (True), on the host (False), or on one after the other."""
    if info.contract.arrays != "host or device":
        return (info.contract.arrays == "device",)
    from .engines.warpctc import on_device  # the one that has both

    if not info.available or not on_device():
        return (False,)
    try:
        to_device(np.zeros(1, dtype=np.float32))
    except EngineUnavailable:
        return (False,)
    return (False, True)


def _first_run(
    info: EngineInfo,
    there: bool,
    plan: CTCLoss,
    view: ArrayView,
    arrays: tuple[Any, Any, Any],
    yardstick: tuple[Floats, Floats],
) -> tuple[Row, Callable[[], Any] | None]:
    """The row of an engine, `there` on a device, and a call that runs it again and waits for it (None where it did not
    run)."""

    def row(status: str, device: str | None = None, **others: Any) -> Row:
        contract = info.contract
        return Row(info.name, status, info.version, device, contract.takes, contract.gradient_of, **others)

    if not info.available:
        return row("absent", reason=info.reason, command=bring(info.name, info.reason)), None
    device = "cpu"
    logits = view.array.astype(np.float64) if info.name == "reference" else view.array
    settle: Callable[[], Any] = _nothing
    try:
        if there:
            logits, device, settle = to_device(logits)
        result = plan(logits, *arrays)
        settle()
    except EngineUnavailable as error:
        return row("absent", reason=str(error), command=bring(info.name, str(error))), None
    except EngineUnsupported as error:
        return row("refused", device, reason=str(error)), None
    except (CtcbindError, RuntimeError, MemoryError) as error:
        return row("failed", device, reason=f"{type(error).__name__}: {error}"), None

    with np.errstate(invalid="ignore"):  # whatever a library has left there
        loss, grad = (np.asarray(as_host(each)).astype(np.float64) for each in (result.loss, result.grad))
    loss_limits, grad_limits = _tolerances(info, view, yardstick[0])
    past = np.isposinf(loss) & np.isfinite(yardstick[0]) & (yardstick[0] + loss_limits > _largest(result.loss))
    loss_diffs = np.where(past, 0.0, _difference(loss, yardstick[0]))
    grad_diffs = _difference(grad, yardstick[1]).max(axis=(0, 2), initial=0.0)
    agrees = bool((loss_diffs <= loss_limits).all() and (grad_diffs <= grad_limits).all())

    def again() -> None:
        plan(logits, *arrays)
        settle()

    return row(
        "agrees" if agrees else "differs",
        device,
        losses=tuple(loss.tolist()),
        loss_diff=float(loss_diffs.max()),
        loss_tolerance=_nearest(loss_diffs, loss_limits),
        grad_diff=float(grad_diffs.max()),
        grad_tolerance=_nearest(grad_diffs, grad_limits),
        grad_diffs=tuple(grad_diffs.tolist()),
        reason=_overflow(int(past.sum()), result.loss) if past.any() else None,
    ), again


def _largest(losses: Any) -> float:
    return float(np.finfo(str(as_host(losses).dtype)).max)


def _overflow(count: int, losses: Any) -> str:
    are = "loss is" if count == 1 else "losses are"
    return (
        f"{count} {are} past the largest number of {as_host(losses).dtype}, {_largest(losses):.2g}, and so inf here, "
        "finite in the reference; give logits in float64 where that matters"
    )


def _nothing() -> None:
    pass


def to_device(host: npt.NDArray[Any]) -> tuple[Any, str, Callable[[], Any]]:
    """A NumPy array copied to the current CUDA device: (the copy, the device's name, a call that waits for it).

    Raises EngineUnavailable where there is no CuPy or no device.
    """
    try:
        import cupy
    except ImportError as error:
        raise EngineUnavailable(
            f"it computes on a CUDA device, and CuPy, which holds arrays there, is not installed: {cuda_commands()}"
        ) from error
    try:
        index = cupy.cuda.runtime.getDevice()
        title = cupy.cuda.runtime.getDeviceProperties(index)["name"]
        array = cupy.asarray(host)
    except Exception as error:  # CuPy has one exception class a CUDA library, and ImportErrors from late loading
        raise EngineUnavailable(f"it needs a CUDA device, and CuPy finds none that works: {error}") from error
    if isinstance(title, bytes):
        title = title.decode(errors="replace")
    return array, f"cuda:{index} {title}", cupy.cuda.get_current_stream().synchronize


def _difference(mine: Floats, theirs: Floats) -> Floats:
    """Absolute differences; equal infinities and NaN beside NaN differ by 0, one of them beside a number by inf."""
    with np.errstate(invalid="ignore"):
        diff = np.abs(mine - theirs)
    same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
    return np.where(same, 0.0, np.where(np.isnan(diff), np.inf, diff))


def _tolerances(info: EngineInfo, view: ArrayView, losses: Floats) -> tuple[Floats, Floats]:
    """What loss and gradient of each sample may differ by; derived in the docstring of `compare`."""
    double = info.name in DOUBLE or (view.dtype == "float64" and "float64" in info.contract.dtypes)
    T = max(view.shape[0], 1)
    size = np.where(np.isfinite(losses), losses, 0.0)
    reference = ROUNDOFF["float64"] * T * (size / 2 + 4)
    loss = grad = (ROUNDOFF["float64"] if double else ROUNDOFF["float32"]) * T * (size / 2 + 4)
    if info.name == "cudnn":
        grad = np.full(len(losses), max(4 * ROUNDOFF["float32"] * T, CUDNN_GRADIENT))
    stored = (0.0, 0.0) if info.name == "reference" else (ROUNDOFF[view.loss_dtype], ROUNDOFF[view.dtype])
    return loss + reference + stored[0] * size, grad + reference + stored[1]


def _nearest(diffs: Floats, limits: Floats) -> float:
    """The limit of the sample that comes nearest to its own."""
    return float(limits[int(np.argmax(diffs / limits))])


def _take_turns(calls: dict[K_, Callable[[], Any]], repeats: int) -> dict[K_, list[float]]:
    """Milliseconds of each call: one run of each in turn, so that a busy moment is shared by all."""
    times: dict[K_, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for turn in range(repeats):
        if turn and time.perf_counter() - start > SECONDS:
            break
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - before) * 1e3)
    return times


def render(comparisons: Sequence[Comparison], width: int | None = None) -> str:
    """The comparisons as aligned tables, or as a paragraph an engine where `width` columns cannot hold them.

    What is absent, refused or differs is said beneath, once and, of what is absent, in short.
    """
    head = ["engine", "version", "device", "its call takes", "its gradient is w.r.t."]
    head += ["loss", "loss diff", "grad diff", "ms", "verdict"]
    lines: list[str] = []
    notes: dict[tuple[str, ...], None] = {}
    for comparison in comparisons:
        lines += wrap(comparison.name, width or 10_000)
        lines += [f"T={comparison.T}, N={comparison.N}, C={comparison.C}, {comparison.dtype}", ""]
        lines += [table(head, [_cells(row) for row in comparison.rows], width=width), ""]
        for row in comparison.rows:
            if note := _note(row, comparison):
                notes[tuple(paragraph(note, width))] = None
    for note_lines in notes:
        lines += [*note_lines, ""]
    if any("\n" in (row.reason or "") for each in comparisons for row in each.rows if row.status == "absent"):
        lines.append("ctcbind doctor says where each was looked for.")
    return "\n".join(lines).rstrip()


def _note(row: Row, comparison: Comparison) -> str:
    if row.status == "absent":
        return _short_absence(row)
    if row.status == "differs":
        return (
            f"{row.label} differs from the reference beyond tolerance on {comparison.name}: loss by "
            f"{row.loss_diff:.1e} (allowed {row.loss_tolerance:.1e}), gradient by {row.grad_diff:.1e} (allowed "
            f"{row.grad_tolerance:.1e})"
        )
    if row.reason is None and row.grad_tolerance is not None and row.grad_tolerance > COARSE:
        return (
            f"{row.label} on {comparison.name}: over {comparison.T} time steps its rounding alone explains gradient "
            f"differences up to {row.grad_tolerance:.1g}, so that agreement says little."
        )
    return "" if row.reason is None else f"{row.label} {row.status} on {comparison.name}: {row.reason}"


def absence(engine: str, reason: str | None) -> str:
    """Why an engine is absent, and the command that brings it where the reason has another one or none."""
    command = bring(engine, reason)
    more = "" if command is None or command in (reason or "") else f"\nWith all it needs: {command}"
    return f"{engine} is absent: {reason}{more}"


def _short_absence(row: Row) -> str:
    """The head of the reason without its asides, and the command."""
    head = re.sub(r" \([^()]*\)", "", (row.reason or "").partition("\n")[0]).rstrip(".:")
    more = "" if row.command is None or row.command in head else f"; {row.command}"
    return f"{row.engine} is absent: {head}{more}"


def bring(engine: str, reason: str | None) -> str | None:
    """The command that brings an absent engine; None where its reason does not speak of installing: no command
    brings a CUDA device."""
    return get(engine).install if "pip install" in (reason or "") else None


def _cells(row: Row) -> tuple[str, ...]:
    said = (row.engine, row.version or "-", row.device or "-", row.takes, row.gradient_of)
    if row.losses is None:
        return (*said, "-", "-", "-", "-", row.status)
    times = "-" if row.milliseconds is None else f"{row.milliseconds:.2f}"
    verdict = "yardstick" if row.engine == "reference" else row.status
    return (*said, _losses(row.losses), f"{row.loss_diff:.1e}", f"{row.grad_diff:.1e}", times, verdict)


def _losses(losses: Sequence[float]) -> str:
    """All losses in one cell: the one value that all have, or the range of the finite ones and what else there is."""
    shown = [_nats(loss) for loss in losses]
    if len(set(shown)) == 1:
        return shown[0] + (f" (all {len(losses)})" if len(losses) > 1 else "")
    finite = [loss for loss in losses if isfinite(loss)]
    parts = [f"{_nats(min(finite))} to {_nats(max(finite))}"] if finite else []
    parts += [f"{count} inf"] if (count := sum(loss == float("inf") for loss in losses)) else []
    parts += [f"{count} nan"] if (count := sum(map(isnan, losses))) else []
    return ", ".join(parts)


def _nats(loss: float) -> str:
    return f"{loss:.3f}" if not loss > 1e6 else f"{loss:.6g}"


def summary(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """What `ctcbind compare --json` prints."""
    return {
        "ctcbind": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "agree": any(each.ran for each in comparisons) and all(each.agree for each in comparisons),
        "comparisons": [each.to_dict() for each in comparisons],
    }
