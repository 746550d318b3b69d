"""ctcbind and the libraries beside it, one class each, all called in the way that suits them best.

A peer is opened in a process whose environment `variables` has set. It turns a problem into a call without arguments:
what the library would keep from step to step of a training loop (its own copy of the inputs, compiled code) is made
beforehand, what it needs for the result is made in the first call. The call returns when the work is done.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt

import ctcbind
from ctcbind.bindings import warpctc
from ctcbind.bindings._warpctc import ffi
from ctcbind.bindings.warpctc_arguments import struct_of

from .cases import Problem

__all__ = ["DEFAULT", "OURS", "PEERS", "Absent", "Peer", "variables"]

OURS = "ctcbind"

Floats = npt.NDArray[Any]
Call = Callable[[], Any]


class Absent(Exception):
    """The peer's library is not installed; the text says what brings it."""


class Peer:
    """Subclasses are constructed with the number of threads; raises Absent where the library is not there."""

    name: str
    title: str
    packages: tuple[str, ...] = ()
    install: str = 'pip install ".[benchmarks]"'
    #: Peers of one process are timed in turns within it.
    process = "main"

    def __init__(self, threads: int) -> None:
        if (reason := self.missing()) is not None:
            raise Absent(reason)
        self.threads = threads
        self.open()

    @classmethod
    def missing(cls) -> str | None:
        """What is not installed and what brings it, None where all is there; nothing is imported."""
        missing = [package for package in cls.packages if importlib.util.find_spec(package) is None]
        return f"{', '.join(missing)} not installed: {cls.install}" if missing else None

    def open(self) -> None:
        """Import the library and bound its threads."""

    def version(self) -> str:
        raise NotImplementedError

    def call(self, problem: Problem, with_grad: bool) -> Call:
        """Loss of each sample and, `with_grad`, the gradient of their sum with respect to the logits."""
        raise NotImplementedError

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        """What a call returned as (losses (N,), gradient (T, N, C))."""
        raise NotImplementedError


class Ctcbind(Peer):
    """The Python API on NumPy arrays: everything is validated in every call, and the gradient is a new array."""

    name, title = OURS, "ctcbind"

    def open(self) -> None:
        ctcbind.set_num_threads(self.threads)

    def version(self) -> str:
        return ctcbind.__version__

    def call(self, problem: Problem, with_grad: bool) -> Call:
        plan = ctcbind.CTCLoss(engine="native")
        x, labels, frames, lengths = problem.logits, problem.labels, problem.input_lengths, problem.label_lengths
        if with_grad:
            return lambda: plan(x, labels, frames, lengths)
        return lambda: plan.loss(x, labels, frames, lengths)

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        return (returned.loss, returned.grad) if with_grad else (returned, None)


class Function(Ctcbind):
    """ctc_loss and ctc_loss_and_grad, without a plan. Not among those timed by default."""

    name, title = "ctcbind-function", "ctcbind, functions"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        x, labels, frames, lengths = problem.logits, problem.labels, problem.input_lengths, problem.label_lengths
        function = ctcbind.ctc_loss_and_grad if with_grad else ctcbind.ctc_loss
        return lambda: function(x, labels, frames, lengths, engine="native")


class Warpctc(Peer):
    """compute_ctc_loss through ctcbind's thin binding, with workspace, gradient and costs kept from call to call."""

    name, title = "warpctc", "warp-ctc"
    install = "pip install --no-deps paddlepaddle"

    @classmethod
    def missing(cls) -> str | None:
        info = ctcbind.engines()["warpctc"]
        return None if info.available else f"no library of warp-ctc that can be used: {cls.install}"

    def version(self) -> str:
        try:
            return f"of paddlepaddle {version('paddlepaddle')}"
        except PackageNotFoundError:
            return f"API {warpctc.get_warpctc_version()}"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        x, labels = problem.logits, problem.flat_labels
        label_lengths, frames = problem.label_lengths, problem.input_lengths
        _, N, C = x.shape
        options = warpctc.ctcOptions(num_threads=self.threads)
        size = warpctc.get_workspace_size(label_lengths, frames, C, N, options)
        kept: list[Any] = []

        def call() -> Any:
            if not kept:
                # the library aligns nothing, and leaves padded time as it was
                space, grad = np.empty(size + 64, np.uint8), np.zeros(x.shape, x.dtype) if with_grad else None
                costs = np.empty(N, np.float32)
                place = -(-space.ctypes.data // 64) * 64
                address = None if grad is None else grad.ctypes.data
                kept.extend((costs, grad, x.ctypes.data, address, costs.ctypes.data, place, space))
            costs, grad, at_x, at_grad, at_costs, at_space, _ = kept
            warpctc.compute_ctc_loss(at_x, at_grad, labels, label_lengths, frames, C, N, at_costs, at_space, options)
            return costs, grad

        return call

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        losses, grad = returned
        return losses, grad


class BareWarpctc(Warpctc):
    """The C function alone: pointers and options made once, nothing checked. Not among those timed by default."""

    name, title = "warpctc-c", "warp-ctc, bare C call"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        x, N, C = problem.logits, *problem.logits.shape[1:]
        options = warpctc.ctcOptions(num_threads=self.threads)
        ints = (problem.flat_labels, problem.label_lengths, problem.input_lengths)
        space = np.empty(warpctc.get_workspace_size(ints[1], ints[2], C, N, options) + 64, np.uint8)
        grad, costs = np.zeros(x.shape, x.dtype) if with_grad else None, np.empty(N, np.float32)
        given = (
            ffi.from_buffer("float[]", x),
            ffi.NULL if grad is None else ffi.from_buffer("float[]", grad),
            *(ffi.from_buffer("int[]", each) for each in ints),
            C,
            N,
            ffi.from_buffer("float[]", costs),
            ffi.cast("void *", -(-space.ctypes.data // 64) * 64),
            struct_of(options, C),
        )
        run = ffi.dlopen(warpctc.loaded_from().path).compute_ctc_loss

        def call() -> Any:
            if run(*given) != 0:
                raise RuntimeError("compute_ctc_loss returned a status")
            return costs, grad, space

        return call

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        losses, grad, _ = returned
        return losses, grad


class Torch(Peer):
    """log_softmax, ctc_loss and backward from a leaf tensor; loss only under no_grad."""

    name, title, packages = "torch", "PyTorch", ("torch",)

    def open(self) -> None:
        import torch

        torch.set_num_threads(self.threads)
        self._torch = torch

    def version(self) -> str:
        return str(self._torch.__version__)

    def call(self, problem: Problem, with_grad: bool) -> Call:
        torch = self._torch
        F = torch.nn.functional
        x = torch.from_numpy(problem.logits).requires_grad_(with_grad)
        labels = torch.from_numpy(problem.flat_labels.astype(np.int64))
        frames = tuple(problem.input_lengths.tolist())
        lengths = tuple(problem.label_lengths.tolist())

        def losses() -> Any:
            return F.ctc_loss(F.log_softmax(x, dim=-1), labels, frames, lengths, blank=0, reduction="none")

        def call() -> Any:
            if not with_grad:
                with torch.no_grad():
                    return losses(), None
            each = losses()
            x.grad = None
            each.sum().backward()
            return each, x.grad

        return call

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        losses, grad = returned
        return losses.detach().numpy(), grad.numpy() if with_grad else None


class Optax(Peer):
    """optax.ctc_loss under jit and value_and_grad, compiled beforehand, on arrays in its own (N, T, C) order."""

    name, title, packages = "optax", "optax", ("jax", "optax")

    def open(self) -> None:
        import jax
        import optax

        jax.config.update("jax_platforms", "cpu")
        self._jax, self._optax = jax, optax

    def version(self) -> str:
        return f"{self._optax.__version__}, jax {self._jax.__version__}"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        jax, loss = self._jax, self._optax.ctc_loss
        array = jax.numpy.array
        x = array(np.ascontiguousarray(problem.logits.transpose(1, 0, 2)))
        late = array((np.arange(problem.logits.shape[0]) >= problem.input_lengths[:, None]).astype(np.float32))
        labels = array(problem.labels)
        padded = array((np.arange(problem.labels.shape[1]) >= problem.label_lengths[:, None]).astype(np.float32))

        def losses(x: Any, late: Any, labels: Any, padded: Any) -> Any:
            each = loss(x, late, labels, padded, blank_id=0)
            return (each.sum(), each) if with_grad else each

        function = jax.value_and_grad(losses, has_aux=True) if with_grad else losses
        run = jax.jit(function).lower(x, late, labels, padded).compile()
        return lambda: jax.block_until_ready(run(x, late, labels, padded))

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        if not with_grad:
            return np.asarray(returned), None
        (_, losses), grad = returned
        return np.asarray(losses), np.asarray(grad).transpose(1, 0, 2)


class _TensorFlow(Peer):
    process = "tensorflow"

    def open(self) -> None:
        import tensorflow

        self._tf = tensorflow
        tensorflow.config.threading.set_intra_op_parallelism_threads(self.threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(self.threads)

    def version(self) -> str:
        return str(self._tf.__version__)

    def _compiled(self, losses: Callable[[Any], Any], x: Any, with_grad: bool) -> Call:
        tf = self._tf

        def graph(x: Any) -> Any:
            if not with_grad:
                return losses(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                each = losses(x)
                total = tf.reduce_sum(each)
            return each, tape.gradient(total, x)

        run = tf.function(graph).get_concrete_function(x)
        return lambda: run(x)

    def result(self, returned: Any, with_grad: bool) -> tuple[Floats, Floats | None]:
        losses, grad = returned if with_grad else (returned, None)
        return losses.numpy(), None if grad is None else self._grad(grad.numpy())

    def _grad(self, grad: Floats) -> Floats:
        return grad


class TensorFlow(_TensorFlow):
    """tf.nn.ctc_loss with sparse labels, which is TensorFlow's CPU kernel, in a graph; time comes first."""

    name, title, packages = "tensorflow", "TensorFlow", ("tensorflow",)
    install = "pip install tensorflow-cpu"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        tf = self._tf
        N, L = problem.labels.shape
        inside = np.arange(L) < problem.label_lengths[:, None]
        labels = tf.SparseTensor(np.argwhere(inside), problem.flat_labels, (N, max(L, 1)))
        frames = tf.constant(problem.input_lengths)

        def losses(x: Any) -> Any:
            return tf.nn.ctc_loss(labels, x, None, frames, logits_time_major=True, blank_index=0)

        return self._compiled(losses, tf.constant(problem.logits), with_grad)


class Seq2seq(_TensorFlow):
    """classic_ctc_loss of tf-seq2seq-losses in a graph, on arrays in its own (N, T, C) order."""

    name, title, packages = "tf-seq2seq-losses", "tf-seq2seq-losses", ("tensorflow", "tf_seq2seq_losses")
    install = "pip install tensorflow-cpu tf-seq2seq-losses"

    def version(self) -> str:
        return f"{version('tf-seq2seq-losses')}, TensorFlow {super().version()}"

    def call(self, problem: Problem, with_grad: bool) -> Call:
        from tf_seq2seq_losses import classic_ctc_loss

        tf = self._tf
        labels, lengths = tf.constant(problem.labels), tf.constant(problem.label_lengths)
        frames = tf.constant(problem.input_lengths)

        def losses(x: Any) -> Any:
            return classic_ctc_loss(labels=labels, logits=x, label_length=lengths, logit_length=frames, blank_index=0)

        return self._compiled(losses, tf.constant(problem.logits.transpose(1, 0, 2)), with_grad)

    def _grad(self, grad: Floats) -> Floats:
        time_first: Floats = grad.transpose(1, 0, 2)
        return time_first


PEERS: dict[str, type[Peer]] = {
    peer.name: peer for peer in (Ctcbind, Function, Warpctc, BareWarpctc, Torch, Optax, TensorFlow, Seq2seq)
}
DEFAULT = tuple(name for name in PEERS if name not in (Function.name, BareWarpctc.name))


def variables(threads: int) -> dict[str, str]:
    """The environment of a process: bounds on threads that cannot be set later, no accelerator, no chatter."""
    return {
        "NPROC": str(threads),
        "PJRT_NPROC": str(threads),
        "XLA_FLAGS": " ".join(
            (os.environ.get("XLA_FLAGS", ""), f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}")
        ).strip(),
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
