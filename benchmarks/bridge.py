"""What a loss and its gradient cost inside PyTorch and JAX: their own functions beside ctcbind.torch and ctcbind.jax;
inside JAX also the product of the Hessian with a direction.

    python benchmarks/bridge.py                          # T=150, L=40, C=28, N=64 on two threads
    python benchmarks/bridge.py --size 1000x200x32x16 --threads 1 --rounds 40 --json

Forward and backward from logits in float32, reduction "mean" (JAX: the sum), on the CPU, the bridge included. What is
compared takes turns, call by call, so that what else the machine does falls on both alike; times are medians, and a
ratio is the median over the rounds of the one by the other. PyTorch's turn ends before JAX is imported: threads of the
one that look for work would take the processors from the other, and few programs hold both. First each gradient is
held against ctcbind's float64 reference, and each product against ctcbind.ctc_hvp in float64.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

import ctcbind

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from interleave import measure

#: Of a gradient or product against float64; PyTorch's and optax's log space in float32 loses more than ctcbind does.
TOLERANCE = 1e-3
OWN = ("ctcbind.torch, from logits", "ctcbind.jax", "ctcbind.jax, Hessian product")
THEIRS = ("torch.nn.functional.ctc_loss", "optax.ctc_loss", "optax.ctc_loss, Hessian product")


class Problem:
    """Random logits and labels of one size, everything of full length."""

    def __init__(self, size: str, seed: int) -> None:
        parts = size.split("x")
        if len(parts) != 4 or not all(each.isdecimal() and int(each) for each in parts):
            raise ValueError(f"--size is {size!r}; it must be TxLxCxN, as 150x40x28x64")
        self.T, self.L, self.C, self.N = map(int, parts)
        rng = np.random.default_rng(seed)
        self.logits, self.direction = rng.normal(size=(2, self.T, self.N, self.C)).astype(np.float32)
        self.targets = rng.integers(1, self.C, size=(self.N, self.L))
        self.frames, self.counts = np.full(self.N, self.T), np.full(self.N, self.L)

    def truth(self, reduction: Any) -> Any:
        args = self.logits.astype(np.float64), self.targets, self.frames, self.counts
        return ctcbind.ctc_loss_and_grad(*args, reduction=reduction, engine="reference").grad

    def product(self) -> Any:
        logits, direction = self.logits.astype(np.float64), self.direction.astype(np.float64)
        return ctcbind.ctc_hvp(logits, self.targets, direction, self.frames, self.counts)


def in_torch(problem: Problem, threads: int) -> dict[str, Callable[[], Any]]:
    import torch

    import ctcbind.torch

    torch.set_num_threads(threads)
    logits = torch.tensor(problem.logits, requires_grad=True)
    args = [torch.from_numpy(each) for each in (problem.targets, problem.frames, problem.counts)]
    functional = torch.nn.functional

    def gradient(loss: Callable[[], Any]) -> Callable[[], Any]:
        def step() -> Any:
            logits.grad = None
            loss().backward()
            return logits.grad

        return step

    return {
        OWN[0]: gradient(lambda: ctcbind.torch.ctc_loss(logits, *args, from_logits=True)),
        "ctcbind.torch, from log_softmax": gradient(lambda: ctcbind.torch.ctc_loss(logits.log_softmax(2), *args)),
        THEIRS[0]: gradient(lambda: functional.ctc_loss(logits.log_softmax(2), *args)),
    }


def in_jax(problem: Problem) -> tuple[dict[str, Callable[[], Any]], dict[str, Callable[[], Any]]]:
    """Gradients, and products with the Hessian."""
    import jax
    import jax.numpy as jnp
    import optax

    import ctcbind.jax

    logits, direction = (jnp.asarray(each.transpose(1, 0, 2)) for each in (problem.logits, problem.direction))
    rest = jnp.zeros(logits.shape[:2]), jnp.asarray(problem.targets), jnp.zeros(problem.targets.shape)

    def gradient(loss: Callable[..., Any]) -> Callable[[], Any]:
        compiled = jax.jit(jax.grad(lambda x: loss(x, *rest).sum()))
        return lambda: compiled(logits).block_until_ready()

    def product(loss: Callable[..., Any]) -> Callable[[], Any]:
        of_sum = jax.grad(lambda x: loss(x, *rest).sum())
        compiled = jax.jit(lambda x, v: jax.jvp(of_sum, (x,), (v,))[1])
        return lambda: compiled(logits, direction).block_until_ready()

    own, theirs = ctcbind.jax.ctc_loss, optax.ctc_loss
    return {OWN[1]: gradient(own), THEIRS[1]: gradient(theirs)}, {OWN[2]: product(own), THEIRS[2]: product(theirs)}


def bare(problem: Problem) -> Callable[[], Any]:
    """The same without a framework: what a bridge adds is what it takes longer than this."""
    plan = ctcbind.CTCLoss(reduction="label_mean")
    return lambda: plan(problem.logits, problem.targets, problem.frames, problem.counts).grad


def check(name: str, result: Any, right: Any, axes: tuple[int, ...]) -> None:
    off = float(np.abs(np.asarray(result, np.float64).transpose(axes) - right).max() / np.abs(right).max())
    if not off < TOLERANCE:
        raise ValueError(f"the result of {name} is off by {off:.2g} of the largest")


def run(problem: Problem, threads: int, rounds: int) -> list[dict[str, Any]]:
    ctcbind.set_num_threads(threads)
    functions = {"ctcbind.CTCLoss on NumPy": bare(problem)}
    try:
        functions |= in_torch(problem, threads)
    except ImportError as error:
        print(f"PyTorch is left out: {error}", file=sys.stderr)
    rows = compare(functions, problem.truth("label_mean"), (0, 1, 2), rounds)
    try:
        gradients, products = in_jax(problem)
        rows += compare(gradients, problem.truth("sum"), (1, 0, 2), rounds)
        rows += compare(products, problem.product(), (1, 0, 2), rounds)
    except ImportError as error:
        print(f"JAX is left out: {error}", file=sys.stderr)
    return rows


def compare(
    functions: dict[str, Callable[[], Any]], right: Any, axes: tuple[int, ...], rounds: int
) -> list[dict[str, Any]]:
    """Median times; beside the framework's own function, how many times ctcbind's its time is."""
    for name, function in functions.items():
        check(name, function(), right, axes)
    taken = measure(functions, rounds)
    rows: list[dict[str, Any]] = [{"name": name, "ms": 1e3 * median(times)} for name, times in taken.items()]
    for row in rows:
        if row["name"] in THEIRS:
            own = taken[OWN[THEIRS.index(row["name"])]]
            row["times_ctcbind"] = median(theirs / mine for theirs, mine in zip(taken[row["name"]], own))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="PyTorch's and optax's CTC loss beside ctcbind's bridges.")
    parser.add_argument("--size", default="150x40x28x64", help="TxLxCxN (default: 150x40x28x64)")
    parser.add_argument("--threads", type=int, default=2, help="of PyTorch and ctcbind; JAX takes what it likes")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.rounds < 1 or arguments.threads < 1:
            raise ValueError("--rounds and --threads must be at least 1")
        problem = Problem(arguments.size, arguments.seed)
        rows = run(problem, arguments.threads, arguments.rounds)
    except (ValueError, ctcbind.CtcbindError) as error:
        print(f"bridge.py: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"size": arguments.size, "threads": arguments.threads, "rows": rows}, indent=2))
        return 0
    print(f"T={problem.T}, L={problem.L}, C={problem.C}, N={problem.N}, {arguments.threads} threads; load {_load()}")
    for row in rows:
        ratio = f"{row['times_ctcbind']:8.1f} times ctcbind's" if "times_ctcbind" in row else ""
        print(f"{row['name']:<36}{row['ms']:>9.2f} ms{ratio}")
    return 0


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors" if hasattr(os, "getloadavg") else "not known"


if __name__ == "__main__":
    sys.exit(main())
