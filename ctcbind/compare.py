"""Every engine on one batch: losses, gradients and times side by side, measured against the float64 reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from . import peers as other_libraries
from .absence import bring
from .arrays import ArrayView, Layout, as_host, view_logits
from .batch import Topology, make_batch
from .device import to_device
from .engines import NAMES, EngineInfo, get
from .engines import engines as known_engines
from .errors import CtcbindError, EngineUnavailable, EngineUnsupported, InvalidInput, brief
from .kinds import not_compiled, without_grad
from .options import option
from .peers import Peer, PeerInfo
from .plan import CTCLoss
from .text import Shown, plain
from .tolerance import Floats, beyond, difference, farthest, nearest, tolerances

__all__ = ["Comparison", "EngineRow", "compare"]

SECONDS = 4.0  # of repeated runs, over all engines; a reference that takes longer runs once, others twice at least

K_ = TypeVar("K_")


class _Problem(NamedTuple):
    """The batch that all are given: logits (T, N, C), then targets and lengths as the caller has them, and what engines
    are told beside; `exact` are the reference's losses (N,) and gradient (T, N, C) of it, in float64, which took it so
    many `seconds`."""

    view: ArrayView
    arrays: tuple[Any, Any, Any]
    options: dict[str, Any]
    exact: tuple[Floats, Floats]
    seconds: float


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine, or another library (`peers`), on the batch. One that computes both on the host and on a device has a
    row for each, where it can.

    | status | meaning |
    |---|---|
    | "agrees", "differs" | its results are within, or beyond, their tolerance |
    | "absent" | its library or device is not here |
    | "refused" | it cannot give the right answer for this batch |
    | "failed" | its library returned an error, in the first run or when it was run again to be timed |

    `losses` are (N,) in nats. `loss_diff` and `grad_diff` are the largest absolute differences from the float64
    reference; `loss_tolerance` and `grad_tolerance` are what is allowed for the sample that comes nearest to its own
    tolerance; `grad_diffs` has the largest difference of each sample. `milliseconds` is the median time of loss and
    gradient over `runs` runs. All of these are None, and `runs` is 0, where nothing ran.

    `reason` says why nothing ran, what failed, or in which sample an engine differs, by how much, and how much is
    allowed there. It also says where losses are inf because their dtype ends there: these agree with a finite
    reference. `command` is what would bring an absent engine (None where no command can).
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
        both = self.engine in other_libraries.NAMES or get(self.engine).contract.arrays == "host or device"
        if not both or not (self.device or "").startswith("cuda"):
            return self.engine
        return f"{self.engine} on {(self.device or '').split()[0]}"


@dataclass(frozen=True, slots=True)
class Comparison(Shown):
    """The engines on one batch of T time steps, N samples and C classes; `reference_losses` (N,) are float64."""

    name: str
    T: int
    N: int
    C: int
    dtype: str
    reference_losses: tuple[float, ...]
    rows: tuple[EngineRow, ...]

    @property
    def agree(self) -> bool:
        """Whether every engine that ran lies within its tolerance of the reference, and so of the others."""
        return all(row.status not in ("differs", "failed") for row in self.rows)

    @property
    def ran(self) -> tuple[EngineRow, ...]:
        """The rows of the engines that gave an answer."""
        return tuple(row for row in self.rows if row.losses is not None)

    def __str__(self) -> str:
        """The table that `ctcbind compare` prints."""
        from .compare_text import render

        return render([self])

    def to_dict(self) -> dict[str, Any]:
        """The same for json.dumps; numbers that JSON lacks are the strings "inf", "-inf" and "nan"."""
        result: dict[str, Any] = plain({**asdict(self), "agree": self.agree})
        return result


@not_compiled
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
    peers: Iterable[str] = (),
    name: str = "batch",
    repeats: int = 5,
) -> Comparison:
    """Loss and gradient of one batch from every engine, with the largest difference of each from the reference.

    The batch is given as to `ctcbind.ctc_loss`: logits (T, N, C), or (N, T, C) with layout="NTC"; PyTorch tensors may
    require grad. Logits are copied to a device for the engines that need one, and back. warp-ctc runs on both if its
    library was built with CUDA. `engines` names the engines (None: all).

    `peers` names other libraries to compare with, each called as its users call it. Half precision is given to them as
    float32.

    | peer | what is called |
    |---|---|
    | "torch" | log_softmax, torch.nn.functional.ctc_loss and backward; on a CUDA device too, if PyTorch has one |
    | "optax" | optax.ctc_loss under jit, on the host |
    | "tensorflow" | tf.nn.ctc_loss with dense labels, compiled by XLA, on the host |

    All are measured against the `reference` engine on the same logits in float64. How far from it each sample may be
    follows from the engine's arithmetic (ctcbind/tolerance.py). Times are in milliseconds, without the copies: the
    median of up to `repeats` runs, in which the engines take turns. The reference has logits and gradient in float64,
    which take up memory beside those of each engine: of a large batch pass a few samples.

    Raises InvalidInput for input that cannot be right. An engine or peer that is absent, refuses the batch or fails
    becomes a row that says so.

    >>> import numpy as np, ctcbind
    >>> result = ctcbind.compare(np.zeros((100, 5, 10), np.float32), [[1, 2, 3, 4]] * 5, engines=["native"])
    >>> result.agree, round(result.rows[0].losses[0], 3)
    (True, 203.984)
    """
    wanted = _names("engines", NAMES if engines is None else engines, NAMES)
    beside = _names("peers", peers, other_libraries.NAMES)
    if not wanted:
        raise InvalidInput(f"engines names none; there are {', '.join(NAMES)}", rule="engines", value=wanted)
    if isinstance(repeats, bool) or not isinstance(repeats, (int, np.integer)) or repeats < 0:
        raise InvalidInput(f"repeats is {brief(repeats)}; it must be an integer from 0", rule="repeats", value=repeats)
    CTCLoss(blank=blank, layout=layout, topology=topology).close()  # the options are checked before the arrays
    view = view_logits(as_host(without_grad(logits)), layout)
    T, N, C = view.shape
    arrays = (targets, input_lengths, target_lengths)
    options: dict[str, Any] = {"blank": blank, "topology": topology}
    with CTCLoss(engine="reference", **options) as plan:
        start = time.perf_counter()
        exact = plan(view.array.astype(np.float64, copy=False), *arrays)
        took = time.perf_counter() - start
    problem = _Problem(view, arrays, options, (np.asarray(exact.loss), np.asarray(exact.grad)), took)
    with ExitStack() as opened:
        rows, calls = _first_runs(wanted, beside, problem, opened)
        times, failures = _take_turns(calls, repeats)
    for key, taken in times.items():
        rows[key] = replace(rows[key], milliseconds=float(np.median(taken)) if taken else None, runs=len(taken))
    for key, error in failures.items():
        rows[key] = replace(rows[key], status="failed", reason=other_libraries.one_line(error))
    return Comparison(name, T, N, C, view.dtype, tuple(problem.exact[0].tolist()), tuple(rows.values()))


def _first_runs(
    wanted: list[str], beside: list[str], problem: _Problem, opened: ExitStack
) -> tuple[dict[tuple[str, bool], EngineRow], dict[tuple[str, bool], Callable[[], Any]]]:
    """The rows of engines, then of other libraries, by name and whether on a device; and calls that run again those
    that are to be timed. The engines stay open in `opened`."""
    known = known_engines()
    rows: dict[tuple[str, bool], EngineRow] = {}
    calls: dict[tuple[str, bool], Callable[[], Any]] = {}
    for each in wanted:
        for there in _places(known[each]):
            plan = opened.enter_context(CTCLoss(engine=each, **problem.options))
            run = _reference if each == "reference" else partial(_first_run, there=there)
            rows[each, there], call = run(known[each], plan, problem)
            if call is not None:
                calls[each, there] = call
    for each in beside:
        peer = other_libraries.get(each)
        info = other_libraries.inspect(peer)
        for there in peer.places() if info.available else (False,):
            rows[each, there], call = _run_beside(peer, info, there, problem)
            if call is not None:
                calls[each, there] = call
    return rows, calls


def _names(option_name: str, given: Any, known: tuple[str, ...]) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable) or not getattr(given, "ndim", 1):
        meant = f": [{given!r}]" if isinstance(given, str) else ""
        raise InvalidInput(
            f"{option_name} is {brief(given)}; it must be a list of names{meant}", rule=option_name, value=given
        )
    wanted = list(given)
    for place, each in enumerate(wanted):
        try:
            option(f"{option_name}[{place}]", each, known)
        except InvalidInput as refused:
            refused.rule = option_name
            raise
    return list(dict.fromkeys(wanted))


def _places(info: EngineInfo) -> tuple[bool, ...]:
    """Where an engine's arrays are to be: on a device (True), on the host (False), or on one after the other."""
    if info.contract.arrays != "host or device":
        return (info.contract.arrays == "device",)
    from .engines.warpctc import built_with_cuda  # the one that has both

    if not info.available or not built_with_cuda():
        return (False,)
    try:
        to_device(np.zeros(1, dtype=np.float32))
    except EngineUnavailable:
        return (False,)
    return (False, True)


def _reference(info: EngineInfo, plan: CTCLoss, problem: _Problem) -> tuple[EngineRow, Callable[[], Any] | None]:
    """The row of the engine that all are measured against, which has run already, and a call that runs it again; none
    where it takes so long that once has to do."""
    if problem.seconds > SECONDS:
        timed = {"milliseconds": problem.seconds * 1e3, "runs": 1}
        return _judged(info, "cpu", problem, problem.exact, **timed), None
    logits = problem.view.array.astype(np.float64, copy=False)
    return _judged(info, "cpu", problem, problem.exact), lambda: plan(logits, *problem.arrays)


def _first_run(
    info: EngineInfo, plan: CTCLoss, problem: _Problem, *, there: bool
) -> tuple[EngineRow, Callable[[], Any] | None]:
    """The row of an engine, `there` on a device, and a call that runs it again and waits for it (None where it did not
    run)."""

    def row(status: str, device: str | None = None, **others: Any) -> EngineRow:
        contract = info.contract
        return EngineRow(info.name, status, info.version, device, contract.takes, contract.gradient_of, **others)

    if not info.available:
        return row("absent", reason=info.reason, command=bring(info.name, info.reason)), None
    logits, device = problem.view.array, "cpu"
    settle: Callable[[], Any] = _nothing
    try:
        if there:
            logits, device, settle = to_device(logits)
        result = plan(logits, *problem.arrays)
        settle()
    except EngineUnavailable as error:
        return row("absent", reason=str(error), command=bring(info.name, str(error))), None
    except EngineUnsupported as error:
        return row("refused", device, reason=str(error)), None
    except (CtcbindError, RuntimeError, MemoryError) as error:
        return row("failed", device, reason=f"{type(error).__name__}: {error}"), None

    def again() -> None:
        plan(logits, *problem.arrays)
        settle()

    return _judged(info, device, problem, (result.loss, result.grad)), again


def _run_beside(
    peer: Peer, info: PeerInfo, there: bool, problem: _Problem
) -> tuple[EngineRow, Callable[[], Any] | None]:
    """The same for another library."""
    told = (info.contract.takes, info.contract.gradient_of)
    if not info.available:
        return EngineRow(info.name, "absent", None, None, *told, reason=info.reason, command=info.command), None
    view = problem.view
    if view.dtype in ("float16", "bfloat16"):
        problem = problem._replace(view=view_logits(view.array.astype(np.float32), "TNC"))
    device = "cuda" if there else "cpu"
    try:
        run = peer.take(make_batch(problem.view.array, *problem.arrays, **problem.options), there)
        found = run.read(run.call())
    except EngineUnsupported as error:
        return EngineRow(info.name, "refused", info.version, device, *told, reason=str(error)), None
    except Exception as error:  # whatever another library raises for what it cannot do
        reason = other_libraries.one_line(error)
        return EngineRow(info.name, "failed", info.version, device, *told, reason=reason), None
    row = _judged(info, run.device, problem, found)
    if row.status == "differs":
        row = replace(row, reason="; ".join([row.reason or "", *_causes(peer, problem, row)]))
    return row, run.call


def _causes(peer: Peer, problem: _Problem, row: EngineRow) -> list[str]:
    """Why another library's results are of another kind than the reference's, as NaN beside a number."""
    grad_diffs, exact = np.array(row.grad_diffs), problem.exact[0]
    off = np.isinf(difference(np.array(row.losses), exact)) | np.isinf(grad_diffs)
    infinite = np.isinf(problem.view.array).any(axis=(0, 2))
    without_path = np.isposinf(exact) & ~infinite
    too_much = (exact > peer.most) & (grad_diffs > row.grad_tolerance)
    told = {peer.infinite: off & infinite, peer.infeasible: off & without_path | too_much & ~infinite}
    return [cause for cause, samples in told.items() if samples.any()]


@np.errstate(all="ignore")  # losses near the ends of a dtype, and whatever a library has left there
def _judged(
    info: EngineInfo | PeerInfo, device: str, problem: _Problem, result: tuple[Any, Any], **others: Any
) -> EngineRow:
    """The row of an engine, or another library, that has given these losses and this gradient."""
    exact_loss, exact_grad = problem.exact
    loss, grad = (np.asarray(as_host(each)) for each in result)
    loss = loss.astype(np.float64)
    loss_limits, grad_limits = tolerances(info, problem.view, exact_loss)
    past = np.isposinf(loss) & np.isfinite(exact_loss) & (exact_loss + loss_limits > _largest(result[0]))
    loss_diffs = np.where(past, 0.0, difference(loss, exact_loss))
    grad_diffs = farthest(grad, exact_grad)
    said = [beyond("loss", loss_diffs, loss_limits), beyond("gradient", grad_diffs, grad_limits)]
    agrees = not any(said)
    said.append(_overflow(int(past.sum()), result[0]) if past.any() else None)
    return EngineRow(
        info.name,
        "agrees" if agrees else "differs",
        info.version,
        device,
        info.contract.takes,
        info.contract.gradient_of,
        losses=tuple(loss.tolist()),
        loss_diff=float(loss_diffs.max()),
        loss_tolerance=nearest(loss_diffs, loss_limits),
        grad_diff=float(grad_diffs.max()),
        grad_tolerance=nearest(grad_diffs, grad_limits),
        grad_diffs=tuple(grad_diffs.tolist()),
        reason="; ".join(filter(None, said)) or None,
        **others,
    )


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


def _take_turns(calls: dict[K_, Callable[[], Any]], repeats: int) -> tuple[dict[K_, list[float]], dict[K_, Exception]]:
    """Milliseconds of each call, one run of each in turn, so that a busy moment is shared by all; and what ended those
    that failed, though they had run before."""
    times: dict[K_, list[float]] = {name: [] for name in calls}
    failures: dict[K_, Exception] = {}
    start = time.perf_counter()
    for turn in range(repeats):
        if turn and time.perf_counter() - start > SECONDS:
            break
        for name, call in calls.items():
            if name in failures:
                continue
            before = time.perf_counter()
            try:
                call()
            except Exception as error:  # of whatever kind: the others' results are not lost for it
                failures[name] = error
            else:
                times[name].append((time.perf_counter() - before) * 1e3)
    return times, failures
