"""Trains the reader of examples/reader on several processes: mpiexec -n 2 python train.py; train.py --help."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

# one thread a rank, since the ranks are what runs at once; before NumPy is loaded, which reads it then
os.environ.setdefault("CTCBIND_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the folder that holds `reader`

import numpy as np
from parallel import DataParallel
from ranks import NcclRanks, Ranks
from reader import command
from reader.digits import Digits, from_mnist, from_sklearn
from reader.errors import ReaderError
from reader.network import Shape, arrays_of, put
from reader.training import Reader, Saved, Trainer

import ctcbind

#: What the command of examples/reader does besides training on one process.
NOT_HERE = ("predict", "model", "compare", "mistake", "plot", "beam")


def parser() -> argparse.ArgumentParser:
    p = command.parser()
    p.usage = "mpiexec -n RANKS python train.py [options]"
    p.description = (
        "Train the reader on several processes. Options are those of examples/reader/train.py, less "
        f"{', '.join('--' + name for name in NOT_HERE)}."
    )
    p.add_argument(
        "--dtype",
        choices=("float32", "float64"),
        default="float32",
        help="float64 shows that curves are the same as far as its rounding goes (default: %(default)s)",
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command on this rank; returns its exit status: 0, or 2 for what the person can put right."""
    try:
        ranks = Ranks()
    except ReaderError as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    with contextlib.ExitStack() as quiet:
        if ranks.rank:  # one rank speaks for all of what is the same on all
            nowhere = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(contextlib.redirect_stdout(nowhere))
            quiet.enter_context(contextlib.redirect_stderr(nowhere))
        arguments = parser().parse_args(argv)
    complaint = ""
    try:
        together, held_out = prepare(arguments, ranks)
    except (ReaderError, ctcbind.CtcbindError) as error:
        complaint = str(error)
    if complaints := list(dict.fromkeys(each for each in ranks.gather(complaint) if each)):
        if ranks.rank == 0:
            print("\n".join(f"train.py: {each}" for each in complaints), file=sys.stderr)
        return 2
    try:
        run(together, held_out, arguments.resume or arguments.out / command.SAVED)
    except BaseException as error:
        if isinstance(error, (ReaderError, ctcbind.CtcbindError)):
            print(f"train.py: rank {ranks.rank}: {error}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            print("train.py: stopped; --resume goes on from what was saved last", file=sys.stderr)
        else:
            traceback.print_exc()
        if ranks.size > 1:
            ranks.abort()
        return 2
    return 0


def prepare(arguments: argparse.Namespace, ranks: Ranks) -> tuple[DataParallel, Digits]:
    """(what trains, digits that are held out). One rank may fail here and another not: none waits for the others."""
    for name in NOT_HERE:
        if getattr(arguments, name):
            raise ReaderError(f"--{name} is for examples/reader/train.py, which takes what this one saves")
    xp, engine = command.array_module(arguments)
    if xp is not np:
        ranks = NcclRanks(xp)
    saved = Saved(arguments.resume) if arguments.resume else None
    if saved and arguments.dtype != "float32":
        raise ReaderError(f"--dtype {arguments.dtype} starts anew: it cannot go on with a saved run")
    settings, shape = command.settings_of(arguments, saved)
    if settings.data == "mnist" and not arguments.mnist:
        raise ReaderError(f"{arguments.resume} was trained on MNIST: say where it is with --mnist DIR")
    digits, held_out = from_mnist(arguments.mnist) if settings.data == "mnist" else from_sklearn()
    command.folder(arguments.out)
    if saved:
        trainer = saved.trainer(digits, engine, xp)
    else:
        shape = Shape(**(shape.as_dict() | {"height": digits.height}))
        reader = Reader(shape, settings.seed, xp)
        for what in ("params", "buffers"):
            arrays = arrays_of(reader.network, what)
            put(reader.network, what, {name: array.astype(arguments.dtype) for name, array in arrays.items()})
        trainer = Trainer(reader, settings, digits, engine)
    return DataParallel(trainer, ranks), held_out


def run(together: DataParallel, held_out: Digits, path: Path) -> None:
    """The steps that are left, with a word on them now and then, and a score at the end."""
    trainer, settings, ranks = together.trainer, together.trainer.settings, together.ranks

    def tell(text: str) -> None:
        if ranks.rank == 0:
            print(text, flush=True)

    tell(f"{ranks.size} rank{'s' if ranks.size > 1 else ''}, {settings.steps} steps of {settings.batch} words")
    few = command.held_out_words(held_out, settings, 200)
    every = max(1, settings.steps // 12)
    took = []
    saved = time.monotonic()
    while trainer.done < settings.steps:
        begin = time.perf_counter()
        record = together.step()
        took.append(time.perf_counter() - begin)
        if trainer.done % every == 0:
            words, _ = together.check(few)
            tell(
                f"step {trainer.done}: loss {record.loss:.3f}, label errors {100 * record.error:.1f}%, "
                f"held out {100 * words:.0f}% of words"
            )
        if any(ranks.gather(time.monotonic() - saved > 60)):  # the clocks of the ranks differ
            together.save(path)
            saved = time.monotonic()
    together.save(path)
    if took:
        tell(f"{len(took)} steps in {sum(took):.1f} s, median {1000 * statistics.median(took):.1f} ms")
    words, labels = together.check(command.held_out_words(held_out, settings, command.HELD_OUT))
    tell(f"{command.HELD_OUT} held-out words: {100 * words:.1f}% without error, {100 * labels:.2f}% label error rate")
    tell(f"saved: {path}")


if __name__ == "__main__":
    sys.exit(main())
