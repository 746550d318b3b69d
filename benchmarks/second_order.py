"""The Hessian against tf_seq2seq_losses where it and TensorFlow are installed; and what a product with it costs.

    pip install tensorflow-cpu tf-seq2seq-losses && python benchmarks/second_order.py

Float32, the documented example of tf_seq2seq_losses (N=2, T=5, C=3) and T=32, C=8, L=8. Its Hessian is taken in the
two ways that there are: as its documentation does, by batch_jacobian of the gradient, compiled by tf.function; and
directly by ClassicCtcLossData.hessian, compiled as well. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from interleave import measure, positive, show

import ctcbind

Problem = tuple[np.ndarray, list[list[int]], list[int]]


def documented() -> Problem:
    return np.zeros((2, 5, 3), np.float32), [[1, 2, 2, 1], [1, 2, 1]], [5, 4]


def larger(T: int, C: int, L: int) -> Problem:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, T, C)).astype(np.float32)
    return logits, [rng.integers(1, C, size=L).tolist()], [T]


def tensorflow(problem: Problem) -> dict[str, Callable[[], Any]]:
    """Its Hessian in two ways; each returns NumPy. Raises ImportError where it is not installed."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf
    from tf_seq2seq_losses import classic_ctc_loss
    from tf_seq2seq_losses.classic_ctc_loss import ClassicCtcLossData

    logits, targets, frames = problem
    width = max(map(len, targets))
    labels = tf.constant([row + [0] * (width - len(row)) for row in targets], dtype=tf.int32)
    given = {
        "labels": labels,
        "label_length": tf.constant([len(row) for row in targets], dtype=tf.int32),
        "logit_length": tf.constant(frames, dtype=tf.int32),
        "blank_index": 0,
    }

    @tf.function  # type: ignore[untyped-decorator]
    def by_tape(x: Any) -> Any:
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(classic_ctc_loss(logits=x, **given))
            gradient = inner.gradient(loss, x)
        return outer.batch_jacobian(gradient, x, experimental_use_pfor=False)

    @tf.function  # type: ignore[untyped-decorator]
    def directly(x: Any) -> Any:
        return ClassicCtcLossData(logprobas=tf.nn.log_softmax(x), **given).hessian

    x = tf.constant(logits)
    return {
        "tf_seq2seq_losses, batch_jacobian": lambda: by_tape(x).numpy(),
        "tf_seq2seq_losses, .hessian (of log softmax)": lambda: directly(x).numpy(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=30)
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it runs")
    given = parser.parse_args()
    missing = ""
    for title, problem in (
        ("Hessian, N=2, T=5, C=3 (its documented example)", documented()),
        ("Hessian, N=1, T=32, C=8, L=8", larger(32, 8, 8)),
    ):
        logits, targets, frames = problem

        def own(logits: Any = logits, targets: Any = targets, frames: Any = frames) -> Any:
            return ctcbind.ctc_hessian(logits, targets, frames, layout="NTC")

        functions: dict[str, Callable[[], Any]] = {"ctcbind": own}
        try:
            functions |= tensorflow(problem)
        except ImportError as error:
            missing = f"not here: tf_seq2seq_losses: {error}"
        else:
            off = np.abs(functions["tf_seq2seq_losses, batch_jacobian"]() - own()).max()
            print(f"largest difference of the two Hessians: {off:.1e}")
        show(title, measure(functions, 2 if given.quick else given.rounds), "ctcbind")
    for T, L, C, N in ((100, 20, 32, 8), (500, 60, 64, 4)):
        rng = np.random.default_rng(0)
        x, v = rng.normal(size=(2, T, N, C)).astype(np.float32)
        labels = [rng.integers(1, C, size=L).tolist() for _ in range(N)]
        functions = {
            "ctcbind": partial(ctcbind.ctc_hvp, x, labels, v),
            "loss and gradient, for comparison": partial(ctcbind.ctc_loss_and_grad, x, labels),
        }
        show(f"Hessian times v, T={T}, L={L}, C={C}, N={N}", measure(functions, 2 if given.quick else 10), "ctcbind")
    if missing:
        print(missing)


if __name__ == "__main__":
    main()
