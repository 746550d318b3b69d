"""The command: trains a reader of lines, trains two to compare their losses, or reads an image."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from reader.command import INTERRUPTED, folder, go_on, progress_bar
from reader.errors import ReaderError
from reader.interrupt import CtrlC

import ctcbind

from . import corpus, iam, pictures
from .corpus import Corpus
from .lines import Line, Stream, centred, stack
from .loss import LOSSES
from .network import Shape
from .training import LineReader, Saved, Settings, Trainer, share_of_loss

SAVED = "lines.pt"
NOT_SAVED = ("iam", "fonts", "out", "beam", "threads")  #: options that a saved run does not hold
CHECKED = 100  #: held-out lines that are read now and then while training
SHOWN = 10  #: held-out lines in the picture


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="train.py", description="Train a PyTorch network to read lines of text, with gradients from ctcbind."
    )
    p.add_argument("--iam", type=Path, metavar="DIR", help="a folder in IAM's format (default: lines drawn with fonts)")
    p.add_argument(
        "--fonts", type=Path, metavar="DIR", help="a folder of fonts to draw with (default: this machine's free ones)"
    )
    p.add_argument("--loss", choices=LOSSES, help="whose loss and gradient the network is trained with")
    p.add_argument(
        "--compare",
        action="store_true",
        help="train one network with each loss, from the same seed on the same batches, step by step in turn",
    )
    p.add_argument(
        "--beam", type=int, metavar="WIDTH", help="read by a beam search of this width (default: greedy decoding)"
    )
    p.add_argument("--predict", type=Path, metavar="IMAGE", help="read an image of a line instead of training")
    p.add_argument(
        "--model", type=Path, metavar="FILE", help=f"the saved reader for --predict (default: {SAVED} in --out)"
    )
    p.add_argument(
        "--out",
        type=Path,
        default=Path("lines-run"),
        metavar="DIR",
        help="where the saved reader and pictures go (default: %(default)s)",
    )
    p.add_argument(
        "--resume", type=Path, metavar="FILE", help="go on with a saved run, exactly as if it had not stopped"
    )
    p.add_argument(
        "--plot", action="store_true", help="write the curves, and the alignment of a line; with --predict this alone"
    )
    p.add_argument("--steps", type=int, help=f"steps of training (default: {Settings.steps})")
    p.add_argument("--batch", type=int, help=f"lines in a batch (default: {Settings.batch})")
    p.add_argument("--rate", type=float, help=f"highest learning rate (default: {Settings.rate})")
    p.add_argument("--words", type=int, help=f"words in a line, at most (default: {Settings.words})")
    p.add_argument("--seed", type=int, help="of weights and lines (default: 0)")
    p.add_argument("--channels", type=int, help=f"of the first convolution (default: {Shape.channels})")
    p.add_argument("--units", type=int, help=f"of the LSTM, each way (default: {Shape.units})")
    p.add_argument(
        "--threads",
        type=int,
        default=1,
        help="for PyTorch and ctcbind (default: 1; so small a network gains little from more, and loses much where "
        "other programs want the same cores)",
    )
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status: 0, 2 for what the person can put right, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    try:
        sensible(arguments)
        torch.set_num_threads(arguments.threads)
        ctcbind.set_num_threads(arguments.threads)
        if arguments.predict:
            return predict(arguments)
        return compare(arguments) if arguments.compare else train(arguments)
    except (ReaderError, ctcbind.CtcbindError) as error:
        print(f"train.py: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train.py: stopped", file=sys.stderr)
        return INTERRUPTED


def sensible(arguments: argparse.Namespace) -> None:
    """Raises a ReaderError for numbers that make no sense and options that exclude each other."""
    least = {"steps": 1, "batch": 1, "words": 1, "seed": 0, "threads": 1}
    for name, bound in least.items():
        value = getattr(arguments, name)
        if value is not None and value < bound:
            raise ReaderError(f"--{name} is {value}; it must be at least {bound}")
    if arguments.beam is not None and not 1 <= arguments.beam < 2**30:  # told now, not after the training
        raise ReaderError(f"--beam is {arguments.beam}; it must be an integer from 1 to 2**30 - 1")
    for name in ("channels", "units"):
        value = getattr(arguments, name)
        if value is not None and not 1 <= value <= 1024:
            raise ReaderError(f"--{name} is {value}; it must be a number from 1 to 1024")
    if arguments.rate is not None and not 0 < arguments.rate < float("inf"):
        raise ReaderError(f"--rate is {arguments.rate}; it must be a number above 0")
    for one, other in (("compare", "loss"), ("compare", "resume"), ("compare", "predict"), ("iam", "fonts")):
        if getattr(arguments, one) and getattr(arguments, other):
            raise ReaderError(f"--{one} and --{other} do not go together")


# ---------------------------------------------------------------------------------------------------- training


def asked_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    asked = {
        name: getattr(arguments, name)
        for name in ("steps", "batch", "rate", "seed", "words", "loss")
        if getattr(arguments, name) is not None
    }
    return asked | ({"data": "iam"} if arguments.iam else {})


def asked_shape(arguments: argparse.Namespace) -> dict[str, int]:
    return {name: getattr(arguments, name) for name in ("channels", "units") if getattr(arguments, name) is not None}


def load(arguments: argparse.Namespace, settings: Settings, tqdm: Callable[..., Any]) -> Corpus:
    if settings.data == "iam":
        return corpus.from_iam(arguments.iam, tqdm)
    return corpus.from_fonts(arguments.fonts, settings.words)


def begin(found: Corpus, settings: Settings, shape: dict[str, int]) -> Trainer:
    reader = LineReader(Shape(classes=len(found.alphabet) + 1, **shape), found.alphabet, settings.seed)
    return Trainer(reader, settings, make_stream(found, settings))


def make_stream(found: Corpus, settings: Settings) -> Stream:
    return Stream(found.source, settings.seed, settings.batch, early=settings.steps // 3)


def train(arguments: argparse.Namespace) -> int:
    tqdm = progress_bar()
    saved = Saved(arguments.resume) if arguments.resume else None
    settings = as_begun(arguments, saved) if saved else Settings(**asked_settings(arguments))
    out = folder(arguments.out)
    found = load(arguments, settings, tqdm)
    trainer = saved.trainer(make_stream(found, settings)) if saved else begin(found, settings, asked_shape(arguments))
    path = arguments.resume or out / SAVED
    introduce(found, trainer, f"loss and gradient from {settings.loss}")
    began = (time.perf_counter(), time.process_time())
    if not run(trainer, few(found), path, tqdm):
        again = go_on(arguments, path, parser(), NOT_SAVED)
        print(f"stopped after step {trainer.done} of {settings.steps}; saved. To go on: {again}")
        return INTERRUPTED
    wall, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    print(f"trained for {duration(wall)} by the clock, {duration(processor)} of the processor")
    milliseconds, share = share_of_loss(trainer.history)
    print(f"in the loss and its gradient: {milliseconds:.1f} ms a step (median), {100 * share:.1f}% of the training")
    report(trainer, found, out, arguments)
    print(f"saved: {path}")
    return 0


def as_begun(arguments: argparse.Namespace, saved: Saved) -> Settings:
    """The settings of a saved run; raises a ReaderError where others are asked for."""
    if saved.settings.data == "iam" and not arguments.iam:
        raise ReaderError(f"{arguments.resume} was trained on IAM: say where it is with --iam DIR")
    for name, value in (asked_settings(arguments) | asked_shape(arguments)).items():
        was = getattr(saved.shape if name in ("channels", "units") else saved.settings, name)
        if value != was:
            raise ReaderError(
                f"{arguments.resume} was begun with {name} {was}; going on with {value} would be another run"
            )
    return saved.settings


def introduce(found: Corpus, trainer: Trainer, loss: str) -> None:
    weights = sum(p.numel() for p in trainer.reader.network.parameters())
    held_out = sum(map(len, found.held_out.values()))
    print(
        f"lines of {found.source.name}, {held_out} held out; {len(found.alphabet)} characters; a network with "
        f"{weights:,} weights; {loss}; {trainer.settings.steps} steps of {trainer.settings.batch} lines"
    )


def few(found: Corpus) -> list[Line]:
    return next(iter(found.held_out.values()))[:CHECKED]


def duration(seconds: float) -> str:
    return f"{int(seconds // 60)} min {seconds % 60:.0f} s"


def run(trainer: Trainer, lines: list[Line], path: Path, tqdm: Callable[..., Any]) -> bool:
    """Steps until all are taken, or Ctrl-C; saves either way. Returns whether all were taken."""
    settings = trainer.settings
    every = max(1, settings.steps // 12)
    saved = time.monotonic()
    errors = ""
    with (
        CtrlC() as stop,
        tqdm(total=settings.steps, initial=trainer.done, unit="step", dynamic_ncols=True, mininterval=0.5) as bar,
    ):
        while trainer.done < settings.steps and not stop.asked:
            record = trainer.step()
            if trainer.done % every == 0:
                errors = f", held out CER {100 * trainer.check(lines).cer:.1f}%"
            if time.monotonic() - saved > 60:
                trainer.save(path)
                saved = time.monotonic()
            bar.set_postfix_str(
                f"loss {record.loss:.3f}, gradient {record.norm:.2f}, blank {100 * record.blank:.0f}%{errors}",
                refresh=False,
            )
            bar.update()
        trainer.save(path)
    return trainer.done >= settings.steps


def report(trainer: Trainer, found: Corpus, out: Path, arguments: argparse.Namespace) -> None:
    """Error rates on held-out lines, some of them with what was read, and the pictures."""
    how = f"beam search, width {arguments.beam}" if arguments.beam else "greedy decoding"
    scores = {kind: trainer.reader.score(lines, arguments.beam) for kind, lines in found.held_out.items()}
    for kind, score in scores.items():
        count = len(found.held_out[kind])
        print(f"{count} lines {kind}: CER {100 * score.cer:.2f}%, WER {100 * score.wer:.2f}% ({how})")
    kind = next(iter(scores))
    lines, read = found.held_out[kind], scores[kind].read
    wrong = [i for i, line in enumerate(lines) if read[i] != line.text][: SHOWN // 3]
    right = [i for i, line in enumerate(lines) if read[i] == line.text][: SHOWN - len(wrong)]
    for i in right[:3] + wrong:
        print(f"  {lines[i].text}" + ("" if i in right else f"\n    read as {read[i] or 'nothing'}"))
    shown = (right + wrong)[:SHOWN]
    pictures.readings([lines[i] for i in shown], [read[i] for i in shown], out / "lines.png")
    written = ["lines.png"]
    if arguments.plot:
        pictures.curves({trainer.settings.loss: (trainer.history, trainer.checks)}, out / "curves.png")
        longest = max(shown, key=lambda i: len(read[i]))
        draw_alignment(trainer.reader, lines[longest], read[longest], out / "alignment.png")
        written += ["curves.png", "alignment.png"]
    print(f"pictures in {out}: {', '.join(written)}")


def draw_alignment(reader: LineReader, line: Line, read: str, path: Path) -> None:
    logits = reader.logits(stack([line]))[0].numpy()
    pictures.alignment(line, logits, reader.labels([read])[0], read, path)


# -------------------------------------------------------------------------------------------------- comparison


def compare(arguments: argparse.Namespace) -> int:
    """Trains with each loss in turn, step by step, so that what else the machine does falls on both alike."""
    tqdm = progress_bar()
    settings = asked_settings(arguments)
    out = folder(arguments.out)
    found = load(arguments, Settings(**settings), tqdm)
    trainers = {name: begin(found, Settings(**settings | {"loss": name}), asked_shape(arguments)) for name in LOSSES}
    one, other = trainers.values()
    other.stream = one.stream  # the same batches
    introduce(found, one, f"loss and gradient from {' and from '.join(LOSSES)}")
    steps, lines = one.settings.steps, few(found)
    every = max(1, steps // 12)
    with CtrlC() as stop, tqdm(total=steps, unit="step", dynamic_ncols=True, mininterval=0.5) as bar:
        while one.done < steps and not stop.asked:
            for trainer in (one, other) if one.done % 2 else (other, one):
                trainer.step()
            if one.done % every == 0:
                one.check(lines)
                other.check(lines)
            text = " and ".join(f"{trainer.history[-1].loss:.3f}" for trainer in trainers.values())
            bar.set_postfix_str(f"losses {text}", refresh=False)
            bar.update()
    if one.done == 0:
        return INTERRUPTED
    print(f"{'loss from':<10} {'ms a step in the loss':>22} {'share of the step':>18} {'CER':>8} {'WER':>8}")
    for name, trainer in trainers.items():
        milliseconds, share = share_of_loss(trainer.history)
        score = trainer.reader.score(next(iter(found.held_out.values())), arguments.beam)
        rates = f"{100 * score.cer:>7.2f}% {100 * score.wer:>7.2f}%"
        print(f"{name:<10} {milliseconds:>22.2f} {100 * share:>17.2f}% {rates}")
    print(apart(one, other))
    pictures.curves({name: (trainer.history, trainer.checks) for name, trainer in trainers.items()}, out / "curves.png")
    print(f"picture: {out / 'curves.png'}")
    if one.done < steps:
        print(f"stopped after step {one.done} of {steps}")
        return INTERRUPTED
    return 0


def apart(one: Trainer, other: Trainer) -> str:
    """How far apart two loss curves are: step by step at first, and in the mean of the last steps."""
    a, b = (np.array([record.loss for record in trainer.history]) for trainer in (one, other))
    first = np.abs(a[:10] - b[:10]).max()
    last = max(1, len(a) // 10)
    return (
        f"the two losses differ by at most {first:.1g} in the first {min(10, len(a))} steps; the means of the last "
        f"{last} are {a[-last:].mean():.4f} and {b[-last:].mean():.4f} nats a character"
    )


# -------------------------------------------------------------------------------------------------- prediction


def predict(arguments: argparse.Namespace) -> int:
    reader = Saved(arguments.model or arguments.out / SAVED).reader()
    line = Line(centred(iam.ink_of(arguments.predict)), "")
    text = reader.read([line], arguments.beam)[0]
    print(text or f"nothing was read in {arguments.predict}")
    if arguments.plot:
        file = folder(arguments.out) / "alignment.png"
        draw_alignment(reader, line, text, file)
        print(f"picture: {file}")
    return 0
