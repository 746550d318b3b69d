"""The loss for a training loop: one object that keeps the engine's workspace."""

from __future__ import annotations

import logging
import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from . import forks
from .arrays import Layout, device_scope, on_device
from .batch import Batch, Topology, make_batch
from .engines import NAMES, Engine, Session, Shortened, Shorter, choose, labels_stay
from .engines.room import Room
from .engines.turn import new_turn
from .errors import ClosedError, EngineUnsupported
from .kinds import Back, back_to, not_compiled, plain_array, plain_arrays
from .options import blank_index, flag, layout_option, option
from .reduction import REDUCTIONS, Reduction, reduce_losses, sample_weights
from .streams import stream_address, stream_scope

__all__ = ["CTCLoss", "Result", "rest", "share_room"]

log = logging.getLogger("ctcbind")

P_ = TypeVar("P_", bound="CTCLoss")


class Result(NamedTuple):
    """`loss`: (N,), or one value for a reduction other than "none"; `grad`: of the logits' shape, dtype and kind,
    the gradient of the reduced loss (with "none": of the sum); `engine`: the name of the engine that ran."""

    loss: Any
    grad: Any
    engine: str


class CTCLoss:
    """The CTC loss and its gradient with respect to the logits, for a loop: it keeps its workspace, which only grows.

    Call it with `(logits, targets, input_lengths, target_lengths)` to get a `Result`; its method `loss` takes the same
    and returns the losses alone. The options that `ctc_loss` has mean the same here. It is a context manager: `close()`
    releases what it holds, and a call after that raises ClosedError.

    Calls from several threads wait for each other, so for speed give each thread its own `CTCLoss`. If a signal handler
    calls it while another call is under way, the handler's call gets a workspace of its own.

    The native engine keeps the memory of up to two large gradients until the object is closed (on CPython with the
    GIL). It uses such memory for a new gradient once nothing refers to the old one.

    Targets in GPU memory stay there if the logits are there too and the engine is cuda or cudnn. They may be
    (N, L), padded with negatives or with target_lengths, or one row of all labels with target_lengths. A small kernel
    checks their range first, and the host waits for the answer, one int32 per sample.

    `graph_safe` (cuda, cudnn) makes calls that can be captured in a CUDA graph. They wait for nothing, so no value
    is checked on the host. All arrays must be on the device, integers as int32 or int64 without gaps. Make one call
    with the same shapes, on the same stream and thread, before the capture; the graph is valid while this object is
    open and the results are held. A sample that would raise an error otherwise gets a loss and gradient of NaN: labels
    or lengths out of range, and with cudnn also more than 255 labels, infinite logits, values that are not
    probabilities, and probabilities too small for its arithmetic. No input makes it read outside the arrays.

    `probabilities` (cudnn, its mode CUDNN_LOSS_NORMALIZATION_NONE) says that the first argument is y, the output
    of a softmax, instead of the logits. Loss and gradient are those of any logits x with softmax(x) = y. The gradient
    is still with respect to x (y less the occupancies), not to y. Raises InvalidInput for values that are not
    probabilities: each must be 0 or more, and those of a frame must sum to 1, to half the digits of the dtype (within
    3.5e-4 in float32). For the other engines pass numpy.log(y) as logits, which means the same.

    `deterministic=False` (cudnn) asks for its other algorithm, CUDNN_CTC_LOSS_ALGO_NON_DETERMINISTIC. It may be
    faster, and its gradients may differ in their last bits from call to call. The limit of 255 labels stays, and sizes
    that it does not take are computed by the deterministic algorithm. If it returns a broken gradient, as cuDNN 7.6 did
    for logits 336 apart (PyTorch #21680), the call raises EngineUnsupported.

    `overwrite_logits` (cuda) writes the gradient over the logits.

    `stream` is the CUDA stream for the work of engines on a device: None for CuPy's current stream, or an int
    (a cudaStream_t), or an object with `ptr` (CuPy's), `cuda_stream` (PyTorch's) or `__cuda_stream__()`, which is
    kept as long as the `CTCLoss`.

    >>> import numpy as np, ctcbind
    >>> logits = np.zeros((4, 2, 3), dtype=np.float32)  # (T, N, C), class 0 is the blank
    >>> with ctcbind.CTCLoss() as ctc:
    ...     for step in range(2):
    ...         result = ctc(logits, [[1, 2], [1]])
    >>> result.engine, result.grad.shape
    ('native', (4, 2, 3))
    >>> [round(float(loss), 4) for loss in result.loss]
    [1.6864, 2.0919]
    """

    #: Memory for gradients that this plan shares with others of its thread; None: it has its own.
    _room: Room | None = None

    def __init__(
        self,
        *,
        engine: str = "auto",
        blank: int = 0,
        layout: Layout = "TNC",
        reduction: Reduction = "none",
        zero_infinity: bool = False,
        topology: Topology = "ctc",
        graph_safe: bool = False,
        overwrite_logits: bool = False,
        probabilities: bool = False,
        deterministic: bool = True,
        stream: Any = None,
    ) -> None:
        option("engine", engine, ("auto", *NAMES))
        layout_option(layout)
        option("topology", topology, ("ctc", "simple"))
        hint = ""
        if isinstance(reduction, str) and str(reduction) == "mean":
            hint = (
                ': "batch_mean" is the mean of the losses, "label_mean" that of each loss over its label count '
                '(PyTorch\'s "mean")'
            )
        elif isinstance(reduction, str) and str(reduction) == "mean_batch":  # NeMo's
            hint = ": did you mean 'batch_mean'?"
        option("reduction", reduction, REDUCTIONS, hint)
        self._engine = engine
        self._blank = blank_index(blank, None)
        self._layout = layout
        self._reduction = reduction
        self._zero_infinity = flag("zero_infinity", zero_infinity)
        self._topology = topology
        self._graph_safe = flag("graph_safe", graph_safe)
        self._overwrite = flag("overwrite_logits", overwrite_logits)
        self._probabilities = flag("probabilities", probabilities)
        self._deterministic = flag("deterministic", deterministic)
        self._stream = None if stream is None else stream_address(stream)
        self._stream_owner = stream  # CuPy's, say, is destroyed when nobody refers to it any more
        if self._graph_safe:
            names = tuple(name for name in ("auto", *NAMES) if labels_stay(name))
            option("engine", engine, names, " with graph_safe")
        #: The engine's losses are the caller's as they are.
        self._plain = reduction == "none" and not self._zero_infinity
        self._sessions: dict[str, Session] | None = {}
        self._closing = ExitStack()
        self._turn = new_turn(self._closing.close)
        #: The engine's fast paths, where it has them, from the second call on: one for loss and gradient, one for the
        #: loss alone. They return None for a batch that they leave to the general path.
        self._both: Shorter | None = None
        self._alone: Shorter | None = None
        self._shortened = False
        forks.watch(self)

    def _after_fork(self) -> None:
        """Another thread may have held the lock at the fork; the fast paths refer to that lock too."""
        if self._turn.lock.acquire(blocking=False):  # none did
            self._turn.lock.release()
            return
        self._turn = new_turn(self._closing.close)
        self._both = self._alone = None
        self._shortened = False

    def __call__(self, logits: Any, targets: Any, input_lengths: Any = None, target_lengths: Any = None) -> Result:
        """Losses and gradient; shapes, units and errors as for `ctc_loss_and_grad`."""
        if (both := self._both) is not None:
            result: Result | None = both(logits, targets, input_lengths, target_lengths)
            if result is not None:
                return result
        if self._stream is not None:
            with stream_scope(self._stream, logits):
                return self._run(logits, targets, input_lengths, target_lengths)
        return self._run(logits, targets, input_lengths, target_lengths)

    @not_compiled
    def _run(self, logits: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Result:
        if (of_others := _short(self._both, logits, targets, input_lengths, target_lengths)) is not None:
            result, back = of_others
            return result if back is None else Result(back(result.loss), back(result.grad), result.engine)
        batch, engine = self._batch(logits, targets, input_lengths, target_lengths)
        weights = None if self._plain else self._weights(batch)
        computed = self._compute(engine, batch, True, weights)
        if computed is None:
            with CTCLoss(**self._options()) as apart:
                return apart(logits, targets, input_lengths, target_lengths)
        losses, grad = computed
        if not self._plain:
            losses = self._reduce(batch, losses, weights, grad)
        if (back := batch.logits.back) is not None:
            return Result(back(losses), back(grad), engine.name)
        return Result(losses, grad, engine.name)

    def loss(self, logits: Any, targets: Any, input_lengths: Any = None, target_lengths: Any = None) -> Any:
        """Losses alone, without the work of a gradient; shapes, units and errors as for `ctc_loss`."""
        if (alone := self._alone) is not None:
            losses = alone(logits, targets, input_lengths, target_lengths)
            if losses is not None:
                return losses
        if self._stream is not None:
            with stream_scope(self._stream, logits):
                return self._run_loss(logits, targets, input_lengths, target_lengths)
        return self._run_loss(logits, targets, input_lengths, target_lengths)

    @not_compiled
    def _run_loss(self, logits: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        if (of_others := _short(self._alone, logits, targets, input_lengths, target_lengths)) is not None:
            result, back = of_others
            return result if back is None else back(result)
        batch, engine = self._batch(logits, targets, input_lengths, target_lengths)
        computed = self._compute(engine, batch, False, None)
        if computed is None:
            with CTCLoss(**self._options()) as apart:
                return apart.loss(logits, targets, input_lengths, target_lengths)
        losses, _ = computed
        if not self._plain:
            losses = self._reduce(batch, losses, self._weights(batch))
        return losses if batch.logits.back is None else batch.logits.back(losses)

    def _compute(
        self, engine: Engine, batch: Batch, with_grad: bool, weights: npt.NDArray[np.float64] | None
    ) -> tuple[Any, Any] | None:
        """Losses and gradient; None where this same thread is using the workspace already, further up the stack."""
        return self._turn.take(self._run_session, engine, batch, with_grad, weights)

    def _run_session(
        self, engine: Engine, batch: Batch, with_grad: bool, weights: npt.NDArray[np.float64] | None
    ) -> tuple[Any, Any]:
        return self._session(engine).run(batch, with_grad=with_grad, weights=weights)

    def _options(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        every = {
            "engine": (self._engine, "auto"),
            "blank": (self._blank, 0),
            "layout": (self._layout, "TNC"),
            "reduction": (self._reduction, "none"),
            "zero_infinity": (self._zero_infinity, False),
            "topology": (self._topology, "ctc"),
            "graph_safe": (self._graph_safe, False),
            "overwrite_logits": (self._overwrite, False),
            "probabilities": (self._probabilities, False),
            "deterministic": (self._deterministic, True),
            "stream": (self._stream, None),
        }
        return {name: value for name, (value, default) in every.items() if value != default}

    def __repr__(self) -> str:
        """The options that differ from the defaults, and whether it is closed."""
        given = ", ".join(f"{name}={value!r}" for name, value in self._options().items())
        return f"{type(self).__name__}({given})" + (", closed" if self.closed else "")

    def __reduce__(self) -> tuple[Any, ...]:
        """A copied or unpickled plan has the same class and options, the attributes that a subclass added (but not
        those in __slots__), and a workspace of its own."""
        if self._stream is not None:
            raise TypeError("a CTCLoss with a stream cannot be copied or pickled: a stream belongs to its process")
        with CTCLoss() as plain:
            own = vars(plain).keys()
        beside = {name: value for name, value in vars(self).items() if name not in own}
        return _anew, (type(self), self._options(), self.closed), beside or None

    @property
    def engine(self) -> str:
        """The engine that was asked for."""
        return self._engine

    @property
    def blank(self) -> int:
        """The class of the blank."""
        return self._blank

    @property
    def layout(self) -> Layout:
        """The order of the logits' axes."""
        return self._layout

    @property
    def reduction(self) -> Reduction:
        """What the losses are made into."""
        return self._reduction

    @property
    def zero_infinity(self) -> bool:
        """Whether infinite losses count as 0."""
        return self._zero_infinity

    @property
    def topology(self) -> Topology:
        """Whether repeats merge."""
        return self._topology

    @property
    def graph_safe(self) -> bool:
        """Whether calls can be captured in a CUDA graph."""
        return self._graph_safe

    @property
    def overwrite_logits(self) -> bool:
        """Whether the gradient takes the logits' place."""
        return self._overwrite

    @property
    def probabilities(self) -> bool:
        """Whether the first argument is a softmax."""
        return self._probabilities

    @property
    def deterministic(self) -> bool:
        """Whether the same input must give the same bits."""
        return self._deterministic

    @property
    def stream(self) -> int | None:
        """The address of the stream; None for CuPy's current one."""
        return self._stream

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._sessions is None

    def close(self) -> None:
        """Give back the workspace, once a call that is under way has ended; closing twice is harmless."""
        with self._turn.lock:
            sessions, self._sessions = self._sessions, None
            self._both = self._alone = None
            for session in (sessions or {}).values():  # on a stack, so that if one fails the others are still closed
                self._closing.callback(session.close)
            self._turn.close_when_idle()

    def __enter__(self: P_) -> P_:
        self._open_sessions()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _batch(self, logits: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> tuple[Batch, Engine]:
        if self._sessions is None:
            self._open_sessions()
        options = self._blank, self._layout, self._topology, self._overwrite
        arrays = logits, targets, input_lengths, target_lengths
        if not self._graph_safe and on_device(logits) and any(map(on_device, arrays[1:])):
            _refuse_capture()
        if self._graph_safe or (labels_stay(self._engine) and on_device(targets) and on_device(logits)):
            from .cuda.device_batch import make_device_batch

            batch: Batch = make_device_batch(*arrays, *options, graph_safe=self._graph_safe)
        else:
            batch = make_batch(*arrays, *options)
        if self._probabilities or not self._deterministic:
            batch.probabilities, batch.deterministic = self._probabilities, self._deterministic
        engine = choose(self._engine, batch)
        if not self._plain and engine.reduces(batch):
            batch.reduction, batch.zero_infinity = self._reduction, self._zero_infinity
        return batch, engine

    def _open_sessions(self) -> dict[str, Session]:
        if self._sessions is None:
            raise ClosedError("this CTCLoss was closed; make a new one (or use it inside its `with` block)")
        return self._sessions

    def _session(self, engine: Engine) -> Session:
        sessions = self._open_sessions()
        session = sessions.get(engine.name)
        if session is None:
            log.debug("engine %s opened", engine.name)
            session = sessions[engine.name] = engine.open()
            if self._room is not None and (share := getattr(session, "share", None)) is not None:
                share(self._room)
        elif not self._shortened:  # by now it seems to be a loop
            self._shorten(session)
        return session

    def _shorten(self, session: Session) -> None:
        self._shortened = True
        if isinstance(session, Shortened) and self._stream is None:
            self._both, self._alone = session.direct(
                self._turn,
                blank=self._blank,
                layout=self._layout,
                topology=self._topology,
                reduction=self._reduction,
                zero_infinity=self._zero_infinity,
                result=Result,
            )

    def _weights(self, batch: Batch) -> npt.NDArray[np.float64] | None:
        return None if batch.to_reduce else sample_weights(self._reduction, batch)

    def _reduce(self, batch: Batch, losses: Any, weights: npt.NDArray[np.float64] | None, grad: Any = None) -> Any:
        if batch.to_reduce:  # the engine has done it
            return losses
        reduction, zeroing = self._reduction, self._zero_infinity
        if grad is not None and self._layout == "TNC":
            grad = grad.transpose(1, 0, 2)
        if batch.logits.device == "cpu":
            return reduce_losses(reduction, losses, weights, zero_infinity=zeroing, grad=grad)
        with device_scope(batch.logits):
            return reduce_losses(reduction, losses, weights, zero_infinity=zeroing, grad=grad, xp=batch.logits.xp)


def share_room(plan: CTCLoss, room: Room) -> None:
    """Has a plan that has not been called yet take memory for gradients from a room that others of its thread use."""
    plan._room = room


def rest(plan: CTCLoss) -> int | None:
    """From now on nothing but the workspace is kept from a call; returns its bytes, or None where an engine holds
    anything else."""
    held = 0
    for session in plan._open_sessions().values():
        of_session = getattr(session, "rest", None)  # native's has it; isinstance takes as long as a batch
        if of_session is None:
            return None
        held += of_session()
    return held


def _short(short: Shorter | None, logits: Any, *others: Any) -> tuple[Any, Back | None] | None:
    """(What the short way makes of PyTorch's tensors and JAX's arrays, seen as NumPy's; what turns that into the
    logits' kind); None where there is no short way, where it declines, and where nothing is such an array."""
    if short is None or not ("torch" in sys.modules or "jax" in sys.modules):
        return None
    given = logits, *others
    seen = plain_array(logits), *map(plain_arrays, others)
    if all(one is other for one, other in zip(seen, given)):
        return None
    result = short(*seen)
    return None if result is None else (result, back_to(logits))


def _refuse_capture() -> None:
    """Raises before CUDA would abort the capture, as it does when something waits for the device in it."""
    from .cuda.common import capturing

    if (cupy := sys.modules.get("cupy")) is not None and capturing(cupy):
        raise EngineUnsupported(
            "a call that checks labels on the device waits for them, and cannot be captured in a graph: give labels "
            "and lengths on the device to CTCLoss(graph_safe=True), and call it once before the capture"
        )


def _anew(kind: type[CTCLoss], options: dict[str, Any], closed: bool) -> CTCLoss:
    plan = kind.__new__(kind)
    CTCLoss.__init__(plan, **options)
    if closed:
        CTCLoss.close(plan)
    return plan
