"""The command: trains a reader, or reads an image with one that was trained."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import ctcbind

from . import pictures
from .digits import Digits, from_mnist, from_sklearn
from .errors import ReaderError
from .interrupt import CtrlC
from .loss import ENGINES, to_host
from .mistakes import LOOKS_LIKE, MISTAKES
from .network import KINDS, Shape
from .scores import decode
from .training import Reader, Saved, Settings, Trainer
from .words import Word, make_words, stack

STEPS = {"sklearn": 1200, "mnist": 4000}
SAVED = "reader.npz"
HELD_OUT = 1000  #: words that the final score is taken of
HELD_OUT_SEED = 20  #: the words that are held out are the same for every run
NOT_SAVED = ("mnist", "out", "engine", "device", "beam")  #: options that a saved run does not hold
INTERRUPTED = 130  #: the exit status by which a shell knows that Ctrl-C ended a command


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="train.py", description="Train a reader of handwritten numbers, with loss and gradient from ctcbind."
    )
    p.add_argument(
        "--mnist",
        type=Path,
        metavar="DIR",
        help="the folder of MNIST's four idx files (default: the digits in scikit-learn)",
    )
    p.add_argument(
        "--out",
        type=Path,
        default=Path("reader-run"),
        metavar="DIR",
        help="where the saved reader and pictures go (default: %(default)s)",
    )
    p.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on with a saved run, exactly as if it had not stopped"
    )
    p.add_argument("--predict", type=Path, metavar="IMAGE", help="read an image instead of training")
    p.add_argument(
        "--model", type=Path, metavar="FILE", help=f"the saved reader for --predict (default: {SAVED} in --out)"
    )
    p.add_argument(
        "--plot",
        action="store_true",
        help="write the curves, the emission lattice of a word, and its alignment; with --predict the alignment alone",
    )
    p.add_argument(
        "--engine",
        choices=ENGINES,
        help="where loss and gradient come from (default: native on the CPU, auto on a GPU)",
    )
    p.add_argument(
        "--device",
        choices=("cpu", "gpu"),
        help="where the network computes: NumPy or CuPy (default: gpu for the engines cudnn and cuda, else cpu)",
    )
    p.add_argument("--mistake", choices=tuple(MISTAKES), help="train with a classic fault, to see what it looks like")
    p.add_argument(
        "--attention",
        action="store_const",
        const="attention",
        dest="kind",
        help="self-attention in place of the recurrent layer",
    )
    p.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="draw the curves of saved runs together instead of training",
    )
    p.add_argument(
        "--beam", type=int, metavar="WIDTH", help="read by a beam search of this width (default: greedy decoding)"
    )
    p.add_argument("--channels", type=int, help="how wide the network is (default: 128)")
    p.add_argument(
        "--steps", type=int, help=f"steps of training (default: {STEPS['sklearn']}, or {STEPS['mnist']} with --mnist)"
    )
    p.add_argument("--batch", type=int, help="words in a batch (default: 32)")
    p.add_argument("--rate", type=float, help="highest learning rate (default: 0.003)")
    p.add_argument("--seed", type=int, help="of weights and words (default: 0)")
    p.add_argument("--digits", metavar="A-B", help="digits in a word, such as 8 or 1-8 (default: 1-8)")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 for what the person can put right, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.beam is not None and not 1 <= arguments.beam < 2**30:  # told now, not after the training
            raise ReaderError(f"--beam is {arguments.beam}; it must be an integer from 1 to 2**30 - 1")
        if arguments.compare:
            return compare(arguments)
        return predict(arguments) if arguments.predict else train(arguments)
    except (ReaderError, ctcbind.CtcbindError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train.py: stopped", file=sys.stderr)
        return INTERRUPTED


def array_module(arguments: argparse.Namespace) -> tuple[Any, str]:
    """(NumPy or CuPy, the engine's name)."""
    device = arguments.device or ("gpu" if arguments.engine in ("cudnn", "cuda") else "cpu")
    if device == "cpu":
        return np, arguments.engine or "native"
    try:
        import cupy

        if cupy.cuda.runtime.getDeviceCount() == 0:
            raise RuntimeError("no device was found")
    except (ImportError, RuntimeError) as error:  # CuPy's errors for a missing driver are RuntimeErrors
        raise ReaderError(f"--device gpu needs CuPy and a CUDA device: {str(error).splitlines()[0]}") from error
    return cupy, arguments.engine or "auto"


# ---------------------------------------------------------------------------------------------------- training


def train(arguments: argparse.Namespace) -> int:
    tqdm = progress_bar()
    xp, engine = array_module(arguments)
    saved = Saved(arguments.resume) if arguments.resume else None
    settings, shape = settings_of(arguments, saved)
    if settings.data == "mnist" and not arguments.mnist:
        raise ReaderError(f"{arguments.resume} was trained on MNIST: say where it is with --mnist DIR")
    digits, held_out = from_mnist(arguments.mnist) if settings.data == "mnist" else from_sklearn()
    out = folder(arguments.out)
    if saved:
        trainer = saved.trainer(digits, engine, xp)
    else:
        shape = Shape(**(shape.as_dict() | {"height": digits.height}))
        trainer = Trainer(Reader(shape, settings.seed, xp), settings, digits, engine)
    path = arguments.resume or out / SAVED
    weights = sum(p.size for p in trainer.params.values())
    print(
        f"{len(digits.labels)} digits to train on, {len(held_out.labels)} held out; {shape.kind} reader with "
        f"{weights:,} weights; engine {engine}, {settings.steps} steps of {settings.batch} words"
    )
    if settings.mistake:
        print(refused(settings.mistake))
    few = held_out_words(held_out, settings, 200)
    finished = run(trainer, few, path, tqdm)
    if not finished:
        again = go_on(arguments, path, parser(), NOT_SAVED)
        print(f"stopped after step {trainer.done} of {settings.steps}; saved. To go on: {again}")
        return INTERRUPTED
    report(trainer, held_out, out, arguments.plot, arguments.beam)
    print(f"saved: {path}")
    return 0


def progress_bar() -> Any:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ReaderError(f"the progress bar needs tqdm ({error}): pip install '.[examples]'") from error
    return tqdm


def folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReaderError(f"--out {path} cannot be made: {error}") from error
    return path


def settings_of(arguments: argparse.Namespace, saved: Saved | None) -> tuple[Settings, Shape]:
    """What was asked for; for a saved run what it was begun with, from which nothing may differ."""
    asked: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("steps", "batch", "rate", "seed", "mistake")
        if getattr(arguments, name) is not None
    }
    if arguments.mnist:
        asked["data"] = "mnist"
    if arguments.digits:
        asked["shortest"], asked["longest"] = digits_in_a_word(arguments.digits)
    for name, least in (("steps", 1), ("batch", 1), ("seed", 0)):
        if asked.get(name, least) < least:
            raise ReaderError(f"--{name} is {asked[name]}; it must be at least {least}")
    if arguments.channels is not None and (not 8 <= arguments.channels <= 1024 or arguments.channels % 4):
        raise ReaderError(f"--channels is {arguments.channels}; it must be a multiple of 4 from 8 to 1024")
    if not 0 < asked.get("rate", 1) < float("inf"):
        raise ReaderError(f"--rate is {asked['rate']}; it must be a number above 0")
    if saved is None:
        settings = Settings(**({"steps": STEPS[asked.get("data", "sklearn")]} | asked))
        channels = arguments.channels or Shape.channels
        return settings, Shape(kind=arguments.kind or KINDS[0], channels=channels, units=3 * channels // 4)
    for name, value in asked.items():
        if value != getattr(saved.settings, name):
            was = getattr(saved.settings, name) or "none"
            raise ReaderError(
                f"{arguments.resume} was begun with {name} {was}; going on with {value} would be another run"
            )
    if arguments.kind and arguments.kind != saved.shape.kind:
        raise ReaderError(f"{arguments.resume} holds a {saved.shape.kind} reader, and --attention asks for another")
    if arguments.channels and arguments.channels != saved.shape.channels:
        raise ReaderError(f"{arguments.resume} holds a reader of {saved.shape.channels} channels")
    return saved.settings, saved.shape


def digits_in_a_word(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and 1 <= int(first) <= int(last or first) <= 100):
        raise ReaderError(f"--digits is {text!r}; it must be a number such as 8, or a range such as 1-8")
    return int(first), int(last or first)


def go_on(arguments: argparse.Namespace, path: Path, known: argparse.ArgumentParser, not_saved: Sequence[str]) -> str:
    """The command, to be pasted, with the options that a saved run does not hold."""
    values = {"resume": path} | {name: getattr(arguments, name) for name in not_saved}
    given = [(f"--{name}", str(value)) for name, value in values.items() if value != known.get_default(name)]
    return shlex.join(["python", sys.argv[0], *chain(*given), *["--plot"] * arguments.plot])


def held_out_words(held_out: Digits, settings: Settings, count: int) -> list[Word]:
    rng = np.random.default_rng(HELD_OUT_SEED)
    return make_words(held_out, rng, count, (settings.shortest, settings.longest), vary=False)


def run(trainer: Trainer, words: list[Word], path: Path, tqdm: Callable[..., Any]) -> bool:
    """Steps until all are taken, or Ctrl-C; saves either way. Returns whether all were taken."""
    settings = trainer.settings
    every = max(1, settings.steps // 12)
    saved = time.monotonic()
    score = ""
    with (
        CtrlC() as stop,
        tqdm(total=settings.steps, initial=trainer.done, unit="step", dynamic_ncols=True, mininterval=0.5) as bar,
    ):
        while trainer.done < settings.steps and not stop.asked:
            record = trainer.step()
            if trainer.done % every == 0:
                checked = trainer.check(words)
                score = f", held out {100 * checked.words:.0f}% of words"
            if time.monotonic() - saved > 60:
                trainer.save(path)
                saved = time.monotonic()
            bar.set_postfix_str(
                f"loss {record.loss:.3f}, gradient {record.norm:.2f}, blank {100 * record.blank:.0f}%, "
                f"label errors {100 * record.error:.1f}%{score}",
                refresh=False,
            )
            bar.update()
        trainer.save(path)
    return trainer.done >= settings.steps


def report(trainer: Trainer, held_out: Digits, out: Path, plot: bool, beam: int | None = None) -> None:
    """Accuracy on held-out words, some of them with what was read, and the pictures."""
    settings = trainer.settings
    words = held_out_words(held_out, settings, HELD_OUT)
    begin = time.perf_counter()
    score = trainer.reader.score(words, beam)
    took = time.perf_counter() - begin
    size = (
        f"{settings.longest}" if settings.shortest == settings.longest else f"{settings.shortest} to {settings.longest}"
    )
    tell(f"{len(words)} held-out words of {size} digits", score.words, score.labels)
    print(f"read in {took:.1f} s")
    if settings.shortest < settings.longest:
        alike = replace(settings, shortest=settings.longest)
        longest = held_out_words(held_out, alike, HELD_OUT)
        again = trainer.reader.score(longest, beam)
        tell(f"{len(longest)} held-out words of {settings.longest} digits", again.words, again.labels)
    wrong = [i for i in range(len(words)) if score.read[i] != words[i].digits]
    shown = ([i for i in range(len(words)) if i not in set(wrong)][: 15 - min(5, len(wrong))] + wrong[:5])[:15]
    for i in shown[:4] + wrong[:3]:
        said, read = ("".join(map(str, each)) for each in (words[i].digits, score.read[i]))
        print(f"  {said:>10} read as {read or 'nothing'}" + ("" if said == read else "   <- wrong"))
    pictures.readings([words[i] for i in shown], [score.read[i] for i in shown], out / "words.png")
    written = ["words.png"]
    if plot:
        name = settings.mistake or "as it should be"
        pictures.curves({name: (trainer.history, trainer.checks)}, out / "curves.png")
        word = max(words[:50], key=lambda each: len(each.digits))
        logits, read = look(trainer.reader, word, beam)
        pictures.lattice(logits, word.digits, out / "lattice.png")
        pictures.alignment(
            word.image, logits, read, out / "alignment.png", f"read as {''.join(map(str, read)) or 'nothing'}"
        )
        written += ["curves.png", "lattice.png", "alignment.png"]
    print(f"pictures in {out}: {', '.join(written)}")
    if settings.mistake:
        print(f"\n{settings.mistake} looks like this: {LOOKS_LIKE[settings.mistake]}")
        print(diagnosis(trainer))


def tell(what: str, words: float, labels: float) -> None:
    digits = f", {100 * (1 - labels):.2f}% of digits right" if labels <= 1 else ""  # more are read than written, early
    print(f"{what}: {100 * words:.1f}% read without error{digits} ({100 * labels:.2f}% label error rate)")


def refused(mistake: str) -> str:
    """What is about to happen, and whether ctcbind would have let it."""
    text = f"with a mistake on purpose: {mistake}."
    if mistake == "padded-with-blank":
        try:
            ctcbind.ctc_loss(np.zeros((9, 1, 11)), [[3, 1, 0, 0]])
        except ctcbind.InvalidInput as error:
            text += f" (ctcbind itself refuses such targets: {error})"
    return text


def diagnosis(trainer: Trainer) -> str:
    """What ctcbind's own diagnosis says about the last batch."""
    logits, targets, frames, layout = trainer.given
    return f"ctcbind.diagnose says:\n{ctcbind.diagnose(logits, targets, frames, layout=layout)}"


# -------------------------------------------------------------------------------------------------- prediction


def look(reader: Reader, word: Word, beam: int | None = None) -> tuple[Any, list[int]]:
    """((T, 11) logits, digits read) of one word."""
    logits, frames = reader.logits(stack([word]), train=False)
    seen = to_host(logits)
    return seen[0], [label - 1 for label in decode(seen, frames, beam)[0]]


def predict(arguments: argparse.Namespace) -> int:
    path = arguments.model or arguments.out / SAVED
    reader = Saved(path).reader()
    image = pictures.word_from_file(arguments.predict, reader.shape.height)
    logits, read = look(reader, Word(image, []), arguments.beam)
    text = "".join(map(str, read))
    print(text or f"nothing was read in {arguments.predict}")
    if arguments.plot:
        file = folder(arguments.out) / "alignment.png"
        pictures.alignment(image, logits, read, file, f"{arguments.predict.name} read as {text or 'nothing'}")
        print(f"picture: {file}")
    return 0


def compare(arguments: argparse.Namespace) -> int:
    runs = {}
    for path in arguments.compare:
        saved = Saved(path)
        name = saved.settings.mistake or "as it should be"
        runs[name if name not in runs else str(path)] = saved.records()
    file = folder(arguments.out) / "curves.png"
    pictures.curves(runs, file)
    print(f"picture: {file}")
    return 0
