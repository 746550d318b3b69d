"""What share of a training step each engine costs: the network of examples/reader, its steps timed part by part.

    python benchmarks/training.py                        # the engines that this machine has
    python benchmarks/training.py --engines native,warpctc --steps 60 --attention --json

Every engine trains the same network on the same batches from the same seed. The engines take turns, step by step, so
that what else the machine does falls on all of them alike; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ctcbind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader.digits import from_mnist, from_sklearn
from reader.errors import ReaderError
from reader.loss import Loss
from reader.network import KINDS, Shape
from reader.training import Reader, Settings, Trainer


class Timed:
    """A loss that notes how long each call took, to the end of what it started."""

    def __init__(self, loss: Loss, xp: Any) -> None:
        self.loss, self.xp = loss, xp
        self.seconds: list[float] = []

    def __call__(self, *args: Any) -> Any:
        wait(self.xp)
        begin = time.perf_counter()
        outcome = self.loss(*args)
        wait(self.xp)
        self.seconds.append(time.perf_counter() - begin)
        return outcome


def wait(xp: Any) -> None:
    """Until the device has done what it was told."""
    if xp is not np:
        xp.cuda.get_current_stream().synchronize()


def measure(
    engines: list[str], steps: int, shape: Shape, settings: Settings, digits: Any, xp: Any
) -> list[dict[str, Any]]:
    """One row an engine: median milliseconds of a step and of the loss in it, and the share of the one in the other."""
    runs: dict[str, Any] = {}
    for engine in engines:
        trainer = Trainer(Reader(shape, settings.seed, xp), settings, digits, engine)
        trainer.loss = Timed(trainer.loss, xp)
        runs[engine] = (trainer, [])
    for number in range(steps + 3):
        for trainer, whole in runs.values():
            wait(xp)
            begin = time.perf_counter()
            trainer.step()
            wait(xp)
            if number >= 3:  # the first are not like the others: memory is asked for, libraries are loaded
                whole.append(time.perf_counter() - begin)
    rows = []
    for engine, (trainer, whole) in runs.items():
        loss = trainer.loss.seconds[3:]
        shares = [part / all_of_it for part, all_of_it in zip(loss, whole, strict=True)]
        rows.append(
            {
                "engine": engine,
                "step_ms": 1e3 * statistics.median(whole),
                "loss_ms": 1e3 * statistics.median(loss),
                "share": statistics.median(shares),
                "last_loss": trainer.history[-1].loss,
            }
        )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="What share of a training step each engine costs.")
    parser.add_argument("--engines", help="names with commas between (default: all that are available)")
    parser.add_argument("--steps", type=int, default=36, help="steps that are timed, for each engine (default: 36)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mnist", metavar="DIR", help="words of MNIST's digits in place of scikit-learn's")
    parser.add_argument("--attention", action="store_true", help="the model with self-attention")
    parser.add_argument("--gpu", action="store_true", help="the network on a GPU, through CuPy")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    known = ctcbind.engines()
    engines = arguments.engines.split(",") if arguments.engines else [n for n, info in known.items() if info.available]
    xp: Any = np
    try:
        if arguments.steps < 1 or arguments.batch < 1:
            raise ReaderError("--steps and --batch must be at least 1")
        if arguments.gpu:
            try:
                import cupy

                xp = cupy
            except ImportError as error:
                raise ReaderError(f"--gpu needs CuPy: {error}") from error
        train, _ = from_mnist(arguments.mnist) if arguments.mnist else from_sklearn()
        shape = Shape(kind=KINDS[1] if arguments.attention else KINDS[0], height=train.height)
        rows = measure(engines, arguments.steps, shape, Settings(batch=arguments.batch), train, xp)
    except (ReaderError, ctcbind.CtcbindError) as error:
        print(f"training.py: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(
            json.dumps(
                {"steps": arguments.steps, "batch": arguments.batch, "model": shape.kind, "rows": rows}, indent=2
            )
        )
        return 0
    print(f"{arguments.steps} steps of {arguments.batch} words of 1 to 8 digits, {shape.kind} reader; medians")
    print(f"{'engine':<12}{'step':>10}{'loss':>11}{'share':>8}")
    for row in sorted(rows, key=lambda each: each["share"]):
        print(f"{row['engine']:<12}{row['step_ms']:>7.1f} ms{row['loss_ms']:>8.2f} ms{100 * row['share']:>7.1f}%")
    return 0


if __name__ == "__main__":
    sys.exit(main())
