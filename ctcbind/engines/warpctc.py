"""warp-ctc (compute_ctc_loss) on host arrays and, where it was built with CUDA, on CuPy arrays; put right where its
answer is not the one meaning's.

What is put right, measured on the library of paddlepaddle 3.3.1 and read in include/detail/cpu_ctc.h:

- A class that is certain. The log-mass of a class at a frame starts at -inf, and 0.0 is read as "nothing written"
  too: where all of the mass is on one class, exactly 0.0, its gradient is left as p instead of p - occupancy.
- The floor of the softmax. No probability is below the smallest normal number (ln p >= -87.34 in float, -708.4
  in double), so that paths through such a class count for more than they should. `lost_place` measures how much;
  samples where it matters are computed again in double, and refused where that is not enough.
- Logits of +inf give NaN there. They share all the probability of their frame, which the second call is told.
- The double function is only called with one thread (see bindings.warpctc), and both are in a child of fork: libgomp
  waits there for threads of the parent.
- The number of threads that a call sets as OpenMP's own, for PyTorch too (see bindings.openmp).
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..arrays import as_host, between_elements
from ..batch import Batch
from ..bindings import warpctc
from ..bindings.openmp import num_threads_kept
from ..errors import ClosedError, EngineUnavailable, EngineUnsupported
from ..extras import is_rocm
from ..forks import forked
from ..processors import processors
from ..threads import get_num_threads
from .contract import Contract, Copy, Library
from .guard import Shielded, floor, floor_may_matter, shield, tolerance
from .reference import log_softmax

if TYPE_CHECKING:
    from .warpctc_device import OnDevice

__all__ = ["ENGINE", "WarpctcSession", "built_with_cuda", "repair_certain"]

log = logging.getLogger("ctcbind")

Floats = npt.NDArray[Any]
_INT_MAX = 2**31 - 1
#: The most labels of a sample on a device (include/detail/gpu_ctc.h): its warps hold no more states.
DEVICE_LABELS = 639


class WarpctcSession:
    """Holds the workspace, which grows only, until closed."""

    def __init__(self) -> None:
        self._workspace: npt.NDArray[np.uint8] | None = np.empty(0, dtype=np.uint8)
        self._on_device: OnDevice | None = None

    def close(self) -> None:
        self._workspace = self._on_device = None

    def run(self, batch: Batch, *, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        with np.errstate(all="ignore"):  # inf and NaN are everyday work here, whatever the caller's settings
            if batch.logits.device == "cpu":
                return self._run(batch, with_grad, weights)
            if self._on_device is None:
                from .warpctc_device import OnDevice

                self._on_device = OnDevice(self)
            return self._on_device.run(batch, with_grad, weights)

    def _run(self, batch: Batch, with_grad: bool, weights: npt.NDArray[np.float64] | None) -> tuple[Any, Any]:
        losses = batch.empty_losses()
        grad: Any = None
        grad_tnc: Any = None
        if with_grad:
            grad, grad_tnc = batch.empty_grad()
        if batch.T == 0:
            losses[...] = np.where(batch.feasible, 0.0, np.inf)
            return losses, grad
        x = _contiguous(batch)
        out = grad_tnc
        if out is not None and (copy := _grad_copy(batch)) is not None:
            copy.tell("warpctc")
            out = np.empty(x.shape, dtype=x.dtype)
        given = shield(batch, empty_labels=True)
        self._call(x, given.labels, given.label_lengths, given.input_lengths, batch.blank, losses, out)
        self.settle_untrue(batch, given, x, losses, out)
        given.settle(batch, losses, out)
        np.maximum(losses, 0, out=losses)
        if out is not None and weights is not None:
            out *= weights.astype(out.dtype)[:, None]
        if out is not grad_tnc:
            grad_tnc[...] = out
        return losses, grad

    def settle_untrue(self, batch: Batch, given: Shielded, x: Any, losses: Floats, grad: Any, xp: Any = np) -> None:
        """NaN for the samples with NaN logits; those that the floor or +-inf logits made wrong, computed again.

        `x` and `grad` (T, N, C), None where it was not computed, are arrays of the module `xp`; `losses` (N,) are on
        the host.
        """
        frames = given.input_lengths
        nan = np.isnan(losses) & ~given.replaced
        again = []
        for n in np.flatnonzero(nan).tolist():
            if not bool(xp.isnan(x[: frames[n], n]).any()):
                again.append(n)
            elif grad is not None:
                grad[: frames[n], n] = np.nan  # the library leaves numbers for classes off the paths
        doubtful = ~nan & ~given.replaced & floor_may_matter(losses, frames, given.label_lengths)
        if doubtful.any() and _spread(x) > _safe_spread(x):
            for n in np.flatnonzero(doubtful).tolist():
                rows = None if grad is None else as_host(grad[: frames[n], n])
                if lost_place(as_host(x[: frames[n], n]), rows) is not None:
                    again.append(n)
        if again:
            again.sort()
            samples = xp.asarray(again)
            losses[again], grad64 = self._again_in_double(batch, again, as_host(x[:, samples]))
            if grad is not None:
                grad[:, samples] = xp.asarray(grad64.astype(grad.dtype))

    def _again_in_double(self, batch: Batch, samples: list[int], x: Floats) -> tuple[Floats, Floats]:
        """(losses, gradient (T, k, C)) of k samples, whose logits x (T, k, C) are on the host."""
        log.debug("warpctc: samples %s computed again in double: their logits are beyond %s", samples, x.dtype)
        x64 = np.zeros(x.shape)
        no_path = np.zeros(len(samples), dtype=bool)
        for i, n in enumerate(samples):
            T = int(batch.input_lengths[n])
            rows = x[:T, i].astype(np.float64)
            top = rows.max(axis=-1)
            some = top == np.inf  # these share all the probability of their frame
            rows[some] = np.where(rows[some] == np.inf, 0.0, -np.inf)
            dead = top == -np.inf  # no class has any
            rows[dead] = 0.0
            no_path[i] = dead.any()
            x64[:T, i] = rows
        losses64, grad64 = np.empty(len(samples)), np.zeros(x64.shape)
        frames, label_lengths = batch.input_lengths[samples], batch.label_lengths[samples]
        labels = np.concatenate([batch.targets(n) for n in samples])
        self._call(x64, labels, label_lengths, frames, batch.blank, losses64, grad64)
        for i in np.flatnonzero(~no_path & floor_may_matter(losses64, frames, label_lengths)).tolist():
            cell = lost_place(x64[: frames[i], i], grad64[: frames[i], i])
            if cell is not None:
                t, k, log_p = cell
                raise EngineUnsupported(
                    f"engine 'warpctc' cannot compute sample {samples[i]}: at frame {t} class {k}, which its paths "
                    f"need, has ln p = {log_p:.6g}, and the library takes no probability for less than "
                    f"{floor(x64.dtype):.6g}; use engine='native'"
                )
        losses64[no_path] = np.inf
        grad64[:, no_path] = 0.0
        return losses64, grad64

    def _call(
        self,
        x: Floats,
        labels: npt.NDArray[np.int32],
        label_lengths: npt.NDArray[np.int32],
        input_lengths: npt.NDArray[np.int32],
        blank: int,
        losses: Floats,
        grad: Floats | None,
    ) -> None:
        double = x.dtype == np.float64
        _, N, C = x.shape
        # each thread takes whole samples; and where the system refuses OpenMP a thread, the process ends
        threads = 1 if double or forked() else min(get_num_threads(), N, processors())
        options = warpctc.ctcOptions(num_threads=threads, blank_label=blank)
        size = (warpctc.get_workspace_size_double if double else warpctc.get_workspace_size)(
            label_lengths, input_lengths, C, N, options
        )
        with num_threads_kept(warpctc.loaded_from().path):
            (warpctc.compute_ctc_loss_double if double else warpctc.compute_ctc_loss)(
                x.ctypes.data,
                None if grad is None else grad.ctypes.data,
                labels,
                label_lengths,
                input_lengths,
                C,
                N,
                losses.ctypes.data,
                self._space(size),
                options,
            )
        if grad is not None:
            repair_certain(losses, grad, input_lengths)

    def _space(self, size: int) -> int:
        """The address of at least `size` bytes, aligned to a cache line."""
        if self._workspace is None:
            raise ClosedError("the warpctc engine's workspace was closed; open a new one")
        if size + 64 > self._workspace.nbytes:
            self._workspace = np.empty(0, dtype=np.uint8)  # the old one goes before the new one comes
            self._workspace = np.empty(size + 64, dtype=np.uint8)
        return -(-self._workspace.ctypes.data // 64) * 64


def _contiguous(batch: Batch) -> Floats:
    """The logits as the library reads them: (T, N, C) without gaps, float32 or float64."""
    x: Floats = batch.logits.array
    if (copy := _logits_copy(batch)) is None:
        return x
    copy.tell("warpctc")
    return np.ascontiguousarray(x, dtype=batch.logits.loss_dtype)


def _logits_copy(batch: Batch) -> Copy | None:
    view = batch.logits
    if view.dtype == view.loss_dtype and view.array.flags.c_contiguous and not between_elements(view.array):
        return None
    size = view.array.size * np.dtype(view.loss_dtype).itemsize
    return Copy(f"logits copied to a contiguous {view.loss_dtype} (T, N, C)", size)


def _grad_copy(batch: Batch) -> Copy | None:
    """The library writes (T, N, C) in its own dtype; where the caller's array is another, it gets a copy."""
    view = batch.logits
    if view.dtype == view.loss_dtype and (view.layout == "TNC" or 1 in view.shape[:2]):
        return None
    return Copy(f"gradient copied to the caller's {view.layout} {view.dtype}", view.array.nbytes)


def repair_certain(losses: Floats, grad: Floats, input_lengths: npt.NDArray[np.int32]) -> None:
    """Takes the occupancy off the gradients of certain classes, which the library left as p.

    A true gradient y - occupancy is at most 1 - exp(-loss): y counts the paths of all labels, and occupancy times
    exp(-loss) those of the right one. So beside a loss below 0.1 nothing above 0.5 is true. And a log-mass of
    exactly 0.0 needs occupancy, exp(-loss) and p to be 1 within rounding, so that no other sample has the fault.
    The occupancy is then exp(0 - ln p - ln P), as the library has it for any other log-mass.
    """
    for n in np.flatnonzero(losses < 0.1):
        rows = grad[: input_lengths[n], n]
        left = rows > 0.5
        if left.any():
            p = rows[left]
            rows[left] = p - np.exp(losses[n] - np.log(p))


def _spread(x: Any) -> float:
    """Largest less smallest logit of any frame, or more; inf where that is no number. Memory is read once."""
    rows = x.shape[0]
    if isinstance(x, np.ndarray):
        rows = max(1, 2**16 // (x.shape[1] * x.shape[2]))  # what the cache holds for the second of the two
    spread = 0.0
    for t in range(0, x.shape[0], rows):
        block = x[t : t + rows]
        here = float(block.max()) - float(block.min())
        if not here <= spread:
            spread = here if here == here else np.inf
    return spread


def _safe_spread(x: Floats) -> float:
    """Up to this spread within a frame no class is floored: ln p >= -spread - ln C."""
    return -floor(x.dtype) - float(np.log(x.shape[-1])) - 0.01


def lost_place(x: Floats, grad: Floats | None) -> tuple[int, int, float] | None:
    """The (frame, class, ln p) by which the floor makes a sample wrong, None where it is right.

    x, grad: (T, C) of one sample, grad None where it was not computed. What the library counts as the occupancy
    of the floored classes is their gradient's negative, p being next to nothing there. If that is e in all, then
    the true probability is between (1 - e) and 1 times what the library summed: the loss is off by -ln(1 - e)
    at most, and the gradient by about 2 e.
    """
    sharp = np.flatnonzero(~(x.max(axis=-1) - x.min(axis=-1) <= _safe_spread(x)))
    if not sharp.size:
        return None
    log_p = log_softmax(x[sharp].astype(np.float64))
    floored = log_p < floor(x.dtype)
    if not floored.any():
        return None
    if grad is None:
        t, k = np.argwhere(floored)[0]
    else:
        occupancy = np.where(floored, np.maximum(-grad[sharp], 0), 0)
        if occupancy.sum() <= tolerance(x.dtype):
            return None
        t, k = np.unravel_index(int(occupancy.argmax()), occupancy.shape)
    return int(sharp[t]), int(k), float(log_p[t, k])


def built_with_cuda() -> bool:
    """Whether the library that is loaded was built with CUDA."""
    return warpctc.has_gpu_code()


def _without_cuda() -> str | None:
    """That the library cannot compute on a device; None where it can, and where the call itself says better what is
    missing: a library, or a CuPy that is for CUDA."""
    try:
        found = warpctc.loaded_from()
    except EngineUnavailable:
        return None
    cupy = sys.modules.get("cupy")
    if built_with_cuda() or (cupy is not None and is_rocm(cupy)):
        return None
    return (
        f"{found.path} ({found.how}) was built without CUDA; the wheel of paddlepaddle-gpu 2.6.2 has one that was "
        "built with it: set CTCBIND_WARPCTC to its path"
    )


class WarpctcEngine:
    name = "warpctc"
    install = "pip install --no-deps paddlepaddle"
    contract = Contract(
        native_name="compute_ctc_loss",
        takes="activations",
        gradient_of="pre-softmax activations",
        arrays="host or device",
        labels="host",
        losses="host",
        blank="any",
        dtypes=("float32", "float64"),
        layouts=("TNC",),
        topologies=("ctc",),
        max_label_length=None,
        infeasible="loss 0, gradient not written",
        empty_label="the all-blank path",
        padded_time="gradient not written",
        deterministic=True,
        graph_capture=False,
        synchronises=True,
        limits=(
            f"on a device: at most {DEVICE_LABELS} labels, and each call waits for the device, since losses come back "
            "to the host; on the host nothing waits. Only a build with CUDA computes there (paddlepaddle-gpu 2.6.2)",
            "probabilities below e^-87.34 (float32) or e^-708.4 (float64) are raised to that: samples where it matters "
            "are computed again in float64, and refused where their paths need classes below e^-708.4 or at -inf",
            "gradients in float32 log space drift as the loss grows: off by about 1e-4 at 400 nats a sample, 0.003 at "
            "3000 to 7000, 0.02 to 0.04 at 14000 to 17000, 0.6 at 73000, while the loss stays right",
            "the gradient of a class with probability 1 is off by exactly 1 (ctcbind corrects it)",
            "float64 runs on one thread: the library's threads would write over each other's workspace",
            "in a child of fork it runs on one thread: OpenMP (libgomp) would wait there for threads of the parent",
            "sizes that overflow an int of the library are refused: (2L + 1) T, T N C",
        ),
    )

    def library(self) -> Library:
        found = warpctc.loaded_from()
        return Library(f"API {warpctc.get_warpctc_version()}", found.path, found.how)

    def refuses(self, batch: Batch) -> str | None:
        longest, frames = int(batch.label_lengths.max()), int(batch.input_lengths.max())
        if batch.logits.device != "cpu":
            if (reason := _without_cuda()) is not None:
                return reason
            if longest > DEVICE_LABELS:
                sample = int(batch.label_lengths.argmax())
                return f"sample {sample} has {longest} labels, and its limit on a device is {DEVICE_LABELS}"
        for name, product in (
            ("(2 L + 1) T", (2 * longest + 1) * frames),
            ("T N C", frames * batch.N * batch.C),
            ("the number of labels", int(batch.starts[-1])),
        ):
            if product > _INT_MAX:
                return f"{name} is {product}, which the library's int indices cannot hold (2**31 - 1 at most)"
        return None

    def copies(self, batch: Batch, with_grad: bool = True) -> list[Copy]:
        if batch.T == 0:
            return []
        made = _logits_copy(batch), _grad_copy(batch) if with_grad else None
        return [copy for copy in made if copy is not None]

    def reduces(self, batch: Batch) -> bool:
        return False

    def open(self) -> WarpctcSession:
        return WarpctcSession()


ENGINE = WarpctcEngine()
