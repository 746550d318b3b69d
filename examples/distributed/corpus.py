"""Aligns or scores a corpus of .npz shards with Dask, and goes on where it was stopped or killed: corpus.py --help."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ctcbind
from ctcbind.problems import load

#: What is done to a shard, and the array of its result that has one number a sample.
TASKS = {"align": "log_p", "score": "loss"}
DESCRIPTION = "corpus.json"  #: beside the results: what they are results of
INTERRUPTED = 130  #: the exit status by which a shell knows that Ctrl-C ended a command


class CorpusError(Exception):
    """Something that the person can put right; its text is the sentence that is shown."""


class Report(NamedTuple):
    """What became of one shard: `complaint` is empty where its result is written."""

    name: str
    samples: int
    seconds: float
    complaint: str


# --------------------------------------------------------------------------------------------------- one shard


def process(shard: str, out: str, task: str) -> tuple[str, int, float, str]:
    """The result of one shard, written to `out`; returns the fields of a Report.

    The result has its name only once it is whole: it is written to a file beside it, which is then renamed. That file
    is there from the beginning, so that a folder that cannot be written to is known before the work and not after.
    """
    begin = time.perf_counter()
    source, samples, complaint = Path(shard), 0, ""
    if is_done(source, Path(out)):  # by a worker that died before it could tell
        return source.name, total([source], Path(out), task)[0], 0.0, ""
    part = Path(out, f".{source.name}.{platform.node()}-{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            arrays = compute(task, load(source))
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, Path(out, source.name))
        samples = len(arrays[TASKS[task]])
    except Exception as error:  # whatever is wrong with one shard, the others go on
        expected = isinstance(error, (ctcbind.CtcbindError, OSError))
        complaint = str(error) if expected else f"{type(error).__name__}: {error}"
        with contextlib.suppress(OSError):
            part.unlink()
    return source.name, samples, time.perf_counter() - begin, complaint


def compute(task: str, problem: dict[str, Any]) -> dict[str, Any]:
    """The arrays of a shard's result."""
    if task == "align":
        return ctcbind.align(**problem)._asdict()
    return {"loss": ctcbind.ctc_loss(**problem, engine="native")}


# ------------------------------------------------------------------------------------------------- all of them


def serially(shards: Sequence[Path], out: Path, task: str) -> Iterator[Report]:
    """One after the other in this process: what the workers' results are equal to, bit for bit."""
    for shard in shards:
        yield Report(*process(str(shard), str(out), task))


def with_dask(shards: Sequence[Path], out: Path, task: str, workers: int, scheduler: str | None) -> Iterator[Report]:
    """Each shard on one of the workers, in whatever order; a worker that dies is replaced, and its shard done again."""
    try:
        import dask.bag
        from dask.distributed import Client, LocalCluster, as_completed
        from distributed.scheduler import KilledWorker
    except ImportError as error:
        raise CorpusError(
            f"workers need Dask ({error}): pip install '.[distributed]'; --workers 0 does without"
        ) from error
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="corpus-", ignore_cleanup_errors=True))
            address: Any = stack.enter_context(
                LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", local_directory=folder)
            )
        else:
            address = scheduler
        try:
            client = stack.enter_context(Client(address))
        except (OSError, ValueError) as error:
            raise CorpusError(f"--scheduler {scheduler}: {error}") from error

        def attempt(chosen: Sequence[Path]) -> Iterator[tuple[Path, Report | str]]:
            """Each shard with its report, or with what Dask says instead: workers died over it, or near it."""
            bag = dask.bag.from_sequence(map(str, chosen), partition_size=1).map(process, out=str(out), task=task)
            futures = client.compute(bag.to_delayed())
            shard_of = {future.key: shard for future, shard in zip(futures, chosen)}
            waiting = as_completed(futures)
            del futures  # a result that is still held would be computed again with each worker that dies
            for future in waiting:
                outcome: Report | str
                try:  # waits once more where the report was lost with the worker that held it
                    outcome = Report(*future.result()[0])
                except KilledWorker:
                    outcome = "it was given up: workers died over it; of memory?"
                except Exception as error:  # of the scheduler, since process itself raises nothing
                    outcome = f"it was given up: {type(error).__name__}: {error}"
                shard = shard_of[future.key]
                del future
                yield shard, outcome

        suspects = []
        for shard, outcome in attempt(shards):
            if isinstance(outcome, str):
                suspects.append(shard)
            else:
                yield outcome
        for suspect in suspects:  # one at a time, so that each answers for itself
            for shard, outcome in attempt([suspect]):
                yield Report(shard.name, 0, 0.0, outcome) if isinstance(outcome, str) else outcome


def shards_of(folder: Path) -> list[Path]:
    """The shards of a corpus in the order of their names."""
    if not folder.is_dir():
        raise CorpusError(f"there is no folder {folder}")
    shards = sorted(path.resolve() for path in folder.glob("*.npz"))
    if not shards:
        raise CorpusError(
            f"{folder} holds no .npz files; a shard is what numpy.savez(path, logits=..., targets=...) writes"
        )
    return shards


def prepared(out: Path, task: str) -> Path:
    """The folder of the results, made where it is missing. It holds results of one task and one ctcbind alone."""
    mine = {"task": task, "ctcbind": ctcbind.__version__}
    description = out / DESCRIPTION
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not description.exists():
            if any(out.glob("*.npz")):
                raise CorpusError(f"{out} holds .npz files and no {DESCRIPTION}: they are no results of this program")
            beside = description.with_name(f".{DESCRIPTION}.{platform.node()}-{os.getpid()}.part")
            beside.write_text(json.dumps(mine), encoding="utf-8")
            os.replace(beside, description)
        theirs = json.loads(description.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(f"--out {out} cannot be used: {error}") from error
    if theirs != mine:
        raise CorpusError(f"{out} holds results of {theirs}, and these would be of {mine}: name another folder")
    return out.resolve()


def is_done(shard: Path, out: Path) -> bool:
    """Whether there is a result, and the shard has not changed since."""
    with contextlib.suppress(FileNotFoundError):
        return (out / shard.name).stat().st_mtime_ns >= shard.stat().st_mtime_ns
    return False


def total(shards: Sequence[Path], out: Path, task: str) -> tuple[int, int, float]:
    """(samples, how many of them have a loss or ln p that is not finite, the sum over the others), shards in order."""
    values = []
    for shard in shards:
        with np.load(out / shard.name) as result:
            values.append(result[TASKS[task]])
    flat = np.concatenate(values)
    finite = flat[np.isfinite(flat)]
    return len(flat), len(flat) - len(finite), math.fsum(finite)


# ------------------------------------------------------------------------------------------------- the command


def make(folder: Path, count: int) -> None:
    """Shards to try it on: eight samples each of up to 400 frames, in which the labels are raised above noise."""
    folder.mkdir(parents=True, exist_ok=True)
    N, C = 8, 32
    for k in range(count):
        rng = np.random.default_rng(k)
        lengths = rng.integers(200, 401, size=N)
        labels = lengths // 8
        targets = np.full((N, labels.max()), -1)
        logits = rng.normal(size=(lengths.max(), N, C)).astype(np.float32)
        for n in range(N):
            targets[n, : labels[n]] = rng.integers(1, C, size=labels[n])
            frames = np.arange(lengths[n] // 8 * 8)
            logits[frames, n, np.where(frames % 8 < 4, targets[n, frames // 8], 0)] += 3
        np.savez(folder / f"{k:04}.npz", logits=logits, targets=targets, input_lengths=lengths)


def complain(line: str) -> None:
    """In one piece: print would write the line's end by itself, and Dask's threads write there too."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="corpus.py",
        description="Align or score a corpus of .npz shards with Dask. A run that was stopped or killed goes on with "
        "what is missing when it is called again.",
        epilog="exit status: 0 all shards are done; 1 some could not be; 2 wrong usage or input; 130 after Ctrl-C",
    )
    p.add_argument("shards", type=Path, help="the folder of the shards, each a .npz file as for `ctcbind compare`")
    p.add_argument("--out", type=Path, metavar="DIR", help="where the results go, each under its shard's name")
    p.add_argument("--task", choices=tuple(TASKS), default="align", help="best paths, or losses (default: %(default)s)")
    p.add_argument("--workers", type=int, metavar="N", help="worker processes; 0 is none and no Dask (default: 2)")
    p.add_argument("--scheduler", metavar="ADDRESS", help="a Dask cluster that runs, with the same folders, instead")
    p.add_argument("--make", type=int, metavar="COUNT", help="make that many shards to try it on, and nothing else")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        return run(arguments)
    except (CorpusError, ctcbind.CtcbindError, OSError) as error:
        complain(f"corpus.py: {error}")
        return 2
    except KeyboardInterrupt:
        complain("corpus.py: stopped; the same command goes on")
        return INTERRUPTED


def run(arguments: argparse.Namespace) -> int:
    if arguments.make is not None:
        if arguments.make < 1:
            raise CorpusError(f"--make is {arguments.make}; it must be at least 1")
        make(arguments.shards, arguments.make)
        return 0
    if arguments.out is None:
        raise CorpusError("say where the results go: --out DIR")
    if arguments.workers is not None and arguments.workers < 0:
        raise CorpusError(f"--workers is {arguments.workers}; it must be at least 0")
    if arguments.workers is not None and arguments.scheduler:
        raise CorpusError("--scheduler names a cluster, which has workers of its own: leave --workers out")
    shards = shards_of(arguments.shards)
    if arguments.out.resolve() == arguments.shards.resolve():
        raise CorpusError("--out is the folder of the shards: results would take their place")
    out = prepared(arguments.out, arguments.task)
    missing = [shard for shard in shards if not is_done(shard, out)]
    print(f"{len(shards)} shards: {len(shards) - len(missing)} done before, {len(missing)} to do", flush=True)
    workers = 2 if arguments.workers is None else arguments.workers
    if workers or arguments.scheduler:
        reports = with_dask(missing, out, arguments.task, workers, arguments.scheduler) if missing else iter(())
    else:
        reports = serially(missing, out, arguments.task)
    failed = []
    for report in reports:
        if report.complaint:
            failed.append(f"{report.name}: {report.complaint}")
            complain(failed[-1])
        else:
            print(f"{report.name}: {report.samples} samples in {report.seconds:.2f} s", flush=True)
    if failed:
        complain(f"corpus.py: {len(failed)} of {len(shards)} shards are not done, see above")
        return 1
    for left in out.glob(".*.part"):  # of workers that were killed
        with contextlib.suppress(OSError):
            left.unlink()
    samples, apart, value = total(shards, out, arguments.task)
    print(f"all done: {samples} samples, {TASKS[arguments.task]} in all {value!r} ({apart} that are not finite apart)")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("CTCBIND_NUM_THREADS", "1")  # and so for the workers, which are what runs at once
    sys.exit(main())
