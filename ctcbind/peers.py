"""The CTC losses of PyTorch, optax and TensorFlow, called as their users call them: what `compare` sets beside the
engines."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .batch import Batch
from .errors import EngineUnsupported

__all__ = ["NAMES", "Peer", "PeerInfo", "Promise", "Run", "get", "inspect", "one_line"]

NAMES = ("torch", "optax", "tensorflow")


@dataclass(frozen=True, slots=True)
class Promise:
    """What a library's own function takes and gives, and the dtypes it computes in; of an engine a Contract says so."""

    takes: str
    gradient_of: str
    dtypes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One library: whether it can be imported here; `reason` says why not, `command` what brings it."""

    name: str
    available: bool
    reason: str | None
    version: str | None
    contract: Promise
    command: str | None


class Run(NamedTuple):
    """A batch that a library has taken over: `call` computes and waits, `read` makes (losses (N,), gradient (T, N, C))
    of what it returns, in NumPy arrays."""

    call: Callable[[], Any]
    read: Callable[[Any], tuple[Any, Any]]
    device: str


class Peer(Protocol):
    """One library: the `packages` that it needs, the command that installs them, what its function promises, and how
    its results differ where a sample has no path, or a loss above `most` (`infeasible`), or logits that are infinite
    (`infinite`)."""

    name: str
    packages: tuple[str, ...]
    install: str
    promise: Promise
    infeasible: str
    most: float
    infinite: str

    def version(self) -> str:
        """Imports the library."""

    def places(self) -> tuple[bool, ...]:
        """Where it computes here: on the host (False), on a device (True)."""

    def take(self, batch: Batch, there: bool) -> Run:
        """Raises EngineUnsupported for a batch that its function cannot take."""


class Torch:
    """log_softmax, torch.nn.functional.ctc_loss and backward, of the sum of the losses, from a leaf tensor."""

    name, install = "torch", "pip install torch"
    packages: tuple[str, ...] = ("torch",)
    promise = Promise("log-probabilities", "pre-softmax activations", ("float32", "float64"))
    infeasible = (
        "PyTorch's gradient is NaN where a sample has no path; with zero_infinity=True it is 0, and the loss too"
    )
    most = math.inf
    infinite = "PyTorch's gradient is NaN at frames where a logit is infinite, also where the loss is right"

    def version(self) -> str:
        import torch

        return str(torch.__version__)

    def places(self) -> tuple[bool, ...]:
        import torch

        return (False, True) if torch.cuda.is_available() else (False,)

    def take(self, batch: Batch, there: bool) -> Run:
        import torch

        _merges_repeats("torch.nn.functional.ctc_loss", batch)
        F, device = torch.nn.functional, "cuda" if there else "cpu"
        # an array that is read-only or has negative strides is none that a tensor can share
        with torch.inference_mode(False):
            x = torch.tensor(np.array(batch.logits.array), device=device, requires_grad=True)
            labels = torch.tensor(batch.labels.astype(np.int64), device=device)
        frames, lengths = tuple(batch.input_lengths.tolist()), tuple(batch.label_lengths.tolist())

        def call() -> tuple[Any, Any]:
            with torch.inference_mode(False), torch.enable_grad():
                x.grad = None
                losses = F.ctc_loss(F.log_softmax(x, dim=-1), labels, frames, lengths, batch.blank, reduction="none")
                losses.sum().backward()
            if there:
                torch.cuda.synchronize()
            return losses, x.grad

        def read(returned: tuple[Any, Any]) -> tuple[Any, Any]:
            losses, grad = returned
            return losses.detach().cpu().numpy(), grad.cpu().numpy()

        index = torch.cuda.current_device() if there else None
        return Run(call, read, "cpu" if index is None else f"cuda:{index} {torch.cuda.get_device_name(index)}")


class Optax:
    """optax.ctc_loss under jit and value_and_grad on the host, on arrays in its own (N, T, C) order."""

    name, install = "optax", "pip install optax"
    packages: tuple[str, ...] = ("jax", "optax")
    promise = Promise("activations", "pre-softmax activations", ("float32", "float64"))
    infeasible = (
        "optax counts -1e5 as the logarithm of 0: a sample without a path costs some 1e5 nats, and may have a gradient"
    )
    most = 1e5
    infinite = "optax's loss and gradient are NaN where a logit is infinite"

    def version(self) -> str:
        import jax
        import optax

        return f"{optax.__version__}, jax {jax.__version__}"

    def places(self) -> tuple[bool, ...]:
        return (False,)

    def take(self, batch: Batch, there: bool) -> Run:
        import jax
        import optax

        _merges_repeats("optax.ctc_loss", batch)
        if batch.logits.dtype == "float64" and not jax.config.jax_enable_x64:
            raise EngineUnsupported(
                "JAX rounds float64 arrays to float32, and so computes of other logits than the reference; give them "
                'in float32, or call jax.config.update("jax_enable_x64", True) before'
            )
        host = jax.devices("cpu")[0]
        kind, labels = batch.logits.dtype, _padded(batch)
        given = (
            np.ascontiguousarray(batch.logits.array.transpose(1, 0, 2)),
            (np.arange(batch.T) >= batch.input_lengths[:, None]).astype(kind),
            labels,
            (np.arange(labels.shape[1]) >= batch.label_lengths[:, None]).astype(kind),
        )
        arrays = jax.device_put(given, host)

        def total(x: Any, late: Any, labels: Any, padded: Any) -> Any:
            losses = optax.ctc_loss(x, late, labels, padded, blank_id=batch.blank)
            return losses.sum(), losses

        run = jax.jit(jax.value_and_grad(total, has_aux=True)).lower(*arrays).compile()

        def read(returned: Any) -> tuple[Any, Any]:
            (_, losses), grad = returned
            return np.asarray(losses), np.asarray(grad).transpose(1, 0, 2)

        return Run(lambda: jax.block_until_ready(run(*arrays)), read, "cpu")


class TensorFlow:
    """tf.nn.ctc_loss with dense labels and its gradient, compiled by XLA, on the host."""

    name, install = "tensorflow", "pip install tensorflow-cpu"
    packages: tuple[str, ...] = ("tensorflow",)
    promise = Promise("activations", "pre-softmax activations", ("float32",))
    infeasible = (
        "TensorFlow counts -707 as the logarithm of 0: a sample without a path costs some 707 nats or more, and has a "
        "gradient, and a larger loss may be too small"
    )
    most = 707.0
    infinite = "TensorFlow's loss and gradient are NaN where a logit is infinite"

    def version(self) -> str:
        import tensorflow

        return str(tensorflow.__version__)

    def places(self) -> tuple[bool, ...]:
        return (False,)

    def take(self, batch: Batch, there: bool) -> Run:
        import tensorflow as tf

        _merges_repeats("tf.nn.ctc_loss", batch)
        if batch.logits.dtype == "float64":
            raise EngineUnsupported("tf.nn.ctc_loss with dense labels takes float32 alone, and fails for float64")
        with tf.device("/CPU:0"):
            x = tf.constant(np.array(batch.logits.array))
            labels = tf.constant(_padded(batch))
            lengths, frames = tf.constant(batch.label_lengths), tf.constant(batch.input_lengths)

        def both(x: Any) -> tuple[Any, Any]:
            with tf.device("/CPU:0"), tf.GradientTape() as tape:
                tape.watch(x)
                losses = tf.nn.ctc_loss(labels, x, lengths, frames, logits_time_major=True, blank_index=batch.blank)
                total = tf.reduce_sum(losses)
            return losses, tape.gradient(total, x)

        # as Keras compiles it; without XLA it takes twice as long
        run = tf.function(both, jit_compile=True).get_concrete_function(x)

        def read(returned: tuple[Any, Any]) -> tuple[Any, Any]:
            losses, grad = returned
            return losses.numpy(), grad.numpy()

        return Run(lambda: run(x), read, "cpu")


_PEERS: dict[str, Peer] = {peer.name: peer for peer in (Torch(), Optax(), TensorFlow())}


def get(name: str) -> Peer:
    """The library of that name; nothing is imported yet."""
    return _PEERS[name]


def inspect(peer: Peer) -> PeerInfo:
    """Imports a library, where it is installed; one that is broken is no reason to raise."""

    def absent(reason: str, command: str | None) -> PeerInfo:
        return PeerInfo(peer.name, False, reason, None, peer.promise, command)

    if missing := [package for package in peer.packages if find_spec(package) is None]:
        return absent(f"{' and '.join(missing)} cannot be found: {peer.install}", peer.install)
    try:
        return PeerInfo(peer.name, True, None, peer.version(), peer.promise, None)
    except Exception as error:  # whatever is wrong with another library
        return absent(f"it is installed and cannot be imported: {one_line(error)}", None)


def _padded(batch: Batch) -> npt.NDArray[np.int32]:
    """The labels (N, L), L at least 1, padded with the blank."""
    labels = np.full((batch.N, max(batch.longest, 1)), batch.blank, dtype=np.int32)
    for n in range(batch.N):
        labels[n, : batch.label_lengths[n]] = batch.targets(n)
    return labels


def _merges_repeats(function: str, batch: Batch) -> None:
    if batch.topology != "ctc":
        raise EngineUnsupported(f"{function} merges repeats, and has no topology {batch.topology!r}")


def one_line(error: Exception) -> str:
    """The kind of an error and the first line of what it says."""
    return ": ".join(filter(None, (type(error).__name__, str(error).partition("\n")[0])))
