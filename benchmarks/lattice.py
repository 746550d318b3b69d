"""The loss with label priors, and what else is computed on the lattice, against PyTorch where it is installed.

    pip install torch && python benchmarks/lattice.py

Float32 logits, loss and gradient. PyTorch gets log_softmax(logits) less the priors, as recipes for label priors have
it; its losses are compared before anything is timed. (Its gradient then is not that of its loss: the backward pass
takes what it was given for normalised.) The other rows are functions of ctcbind on the same batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from interleave import measure, positive, show

import ctcbind

SIZES = [(150, 40, 28, 16), (1000, 200, 32, 16), (500, 60, 1024, 32)]


def of_torch(logits: np.ndarray, labels: np.ndarray, log_prior: np.ndarray, threads: int) -> Callable[[], np.ndarray]:
    """Losses, with the gradient of their sum; raises ImportError where PyTorch is not installed."""
    import torch

    torch.set_num_threads(threads)
    x = torch.tensor(logits, requires_grad=True)
    prior, targets = torch.tensor(log_prior, dtype=torch.float32), torch.tensor(labels)
    T, N, _ = logits.shape
    frames, lengths = torch.full((N,), T), torch.full((N,), labels.shape[1])

    def run() -> np.ndarray:
        x.grad = None
        log_y = torch.nn.functional.log_softmax(x, dim=-1) - prior
        losses = torch.nn.functional.ctc_loss(log_y, targets, frames, lengths, reduction="none")
        losses.sum().backward()
        values: np.ndarray = losses.detach().numpy()
        return values

    return run


def run(size: tuple[int, int, int, int], rounds: int) -> str | None:
    T, L, C, N = size
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((T, N, C), dtype=np.float32)
    labels = rng.integers(1, C, size=(N, L))
    log_prior = np.log(rng.dirichlet(np.ones(C)))

    def own() -> Any:
        return ctcbind.lattice_loss_and_grad(logits, labels, log_prior=log_prior)

    functions: dict[str, Callable[[], Any]] = {"ctcbind": own}
    missing = None
    try:
        theirs = of_torch(logits, labels, log_prior, ctcbind.get_num_threads())
        np.testing.assert_allclose(theirs(), own().loss, rtol=1e-4)
        functions["PyTorch"] = theirs
    except ImportError as error:
        missing = f"PyTorch: {error}"
    functions["ctcbind.posteriors"] = lambda: ctcbind.posteriors(logits, labels)
    functions["ctcbind.ctc_hvp"] = lambda: ctcbind.ctc_hvp(logits, labels, logits)
    functions["ctcbind.align"] = lambda: ctcbind.align(logits, labels)
    functions["ctcbind.greedy_decode"] = lambda: ctcbind.greedy_decode(logits)
    show(f"T={T}, L={L}, C={C}, N={N}", measure(functions, rounds), "ctcbind")
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--quick", action="store_true", help="a small size, to see that it runs")
    given = parser.parse_args()
    missing = [run(size, given.rounds) for size in ([(40, 9, 8, 3)] if given.quick else SIZES)]
    if missing[0]:
        print(f"not here: {missing[0]}")


if __name__ == "__main__":
    main()
