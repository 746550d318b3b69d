"""The loop: batches in, steps down, and a file from which any run goes on as if it had never stopped."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from reader.adam import learning_rate
from reader.errors import ReaderError
from reader.words import in_buckets
from torch import Tensor

from .lines import Batch, Line, Stream, stack
from .loss import LOSSES, make_loss
from .network import LineNetwork, Shape
from .scores import Score, decode, score

FORMAT = "ctcbind examples/lines 1"


@dataclass(frozen=True)
class Settings:
    """All that a run's weights depend on, beside its lines."""

    data: str = "fonts"
    steps: int = 1500
    batch: int = 16
    rate: float = 3e-3
    decay: float = 0.01
    clip: float = 5.0
    seed: int = 0
    words: int = 5
    loss: str = LOSSES[0]


class Record(NamedTuple):
    """One step: the batch's loss (nats a character), the norm of the gradient before clipping, the share of frames
    whose best class is the blank, and the seconds that the step took and that its loss took, gradient included."""

    loss: float
    norm: float
    blank: float
    seconds: float
    in_loss: float


class LineReader:
    """A network and the alphabet that its classes stand for."""

    def __init__(self, shape: Shape, alphabet: str, seed: int = 0) -> None:
        if shape.classes != len(alphabet) + 1:
            raise ReaderError(f"{shape.classes} classes do not fit an alphabet of {len(alphabet)} and the blank")
        torch.manual_seed(seed)
        self.alphabet, self.network = alphabet, LineNetwork(shape)
        self._labels = {character: i + 1 for i, character in enumerate(alphabet)}

    def labels(self, texts: list[str]) -> list[list[int]]:
        return [[self._labels[character] for character in text] for text in texts]

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """(N, T, C), as the network is when it is not being trained."""
        self.network.eval()
        return self.network(torch.from_numpy(batch.images), torch.from_numpy(batch.frames))

    def read(self, lines: list[Line], beam: int | None = None, size: int = 32) -> list[str]:
        """What each line says; like widths go together, to pad little."""
        texts = [""] * len(lines)
        for chosen in in_buckets(lines, size):
            batch = stack([lines[i] for i in chosen])
            for i, text in zip(chosen, decode(self.logits(batch).numpy(), batch.frames, self.alphabet, beam)):
                texts[i] = text
        return texts

    def score(self, lines: list[Line], beam: int | None = None) -> Score:
        """CER and WER on lines, and what was read."""
        return score(self.read(lines, beam), [line.text for line in lines])


class Trainer:
    """A reader, what trains it, and what became of it so far."""

    def __init__(self, reader: LineReader, settings: Settings, stream: Stream) -> None:
        self.reader, self.settings, self.stream = reader, settings, stream
        self.loss = make_loss(settings.loss)
        self.adam = torch.optim.AdamW(reader.network.parameters(), betas=(0.9, 0.99), weight_decay=settings.decay)
        self.history: list[Record] = []
        self.checks: list[tuple[int, float, float]] = []  # (step, CER, WER) on held-out lines

    @property
    def done(self) -> int:
        """Steps taken."""
        return len(self.history)

    def step(self) -> Record:
        """One step down."""
        settings, network = self.settings, self.reader.network
        batch = self.stream[self.done]
        images, frames = torch.from_numpy(batch.images), torch.from_numpy(batch.frames)
        targets = self.reader.labels(batch.texts)
        began = time.perf_counter()
        network.train()
        logits = network(images, frames)
        # the graph is cut at the logits only to time the loss and its gradient apart from the network
        cut = logits.detach().requires_grad_()
        loss_began = time.perf_counter()
        loss = self.loss(cut, targets, frames)
        loss.backward()
        in_loss = time.perf_counter() - loss_began
        self.adam.zero_grad()
        logits.backward(cut.grad)
        norm = torch.nn.utils.clip_grad_norm_(network.parameters(), settings.clip)
        for group in self.adam.param_groups:
            group["lr"] = learning_rate(self.done, settings.steps, settings.rate)
        self.adam.step()
        seconds = time.perf_counter() - began
        best = logits.detach().argmax(-1)
        inside = torch.arange(best.shape[1]) < frames[:, None]
        record = Record(loss.item(), norm.item(), (best == 0)[inside].float().mean().item(), seconds, in_loss)
        self.history.append(record)
        return record

    def check(self, lines: list[Line]) -> Score:
        """Score held-out lines, and keep it for the curves."""
        found = self.reader.score(lines)
        self.checks.append((self.done, found.cer, found.wer))
        return found

    def save(self, path: Path) -> None:
        """Write everything to a file; the one that is there is replaced only when the new one is whole."""
        everything = {
            "format": FORMAT,
            "shape": asdict(self.reader.network.shape),
            "alphabet": self.reader.alphabet,
            "settings": asdict(self.settings),
            "source": self.stream.source.name,
            "network": self.reader.network.state_dict(),
            "adam": self.adam.state_dict(),
            "history": torch.tensor(self.history, dtype=torch.float64).reshape(-1, len(Record._fields)),
            "checks": torch.tensor(self.checks, dtype=torch.float64).reshape(-1, 3),
        }
        beside = path.with_name(path.name + ".part")
        try:
            with open(beside, "wb") as file:
                torch.save(everything, file)
            os.replace(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ReaderError(f"{path} cannot be written: {error}") from error


class Saved:
    """What is in a saved file. Raises ReaderError for one that is missing, broken, or not of a line reader's shape."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.parts = torch.load(file, weights_only=True)  # tensors and plain values: no code of the file's runs
        except FileNotFoundError:
            raise ReaderError(f"there is no saved reader {path}; train.py without --predict makes one") from None
        except Exception as error:  # whatever the bytes lead PyTorch's reader to
            raise ReaderError(f"{path} is no saved reader: {first_line(error)}") from error
        if not isinstance(self.parts, dict) or self.parts.get("format") != FORMAT:
            raise ReaderError(f"{path} is no saved reader of this program")
        try:
            self.shape = Shape(**self.parts["shape"])
            self.settings = Settings(**self.parts["settings"])
            self.alphabet, self.source = str(self.parts["alphabet"]), str(self.parts["source"])
        except (KeyError, TypeError) as error:
            raise ReaderError(
                f"{path} is no saved reader: its description is missing or another's ({error})"
            ) from error
        if not all(isinstance(n, int) and 0 < n <= 4096 for n in asdict(self.shape).values()):
            raise ReaderError(f"{path} describes a network that this program does not have: {self.shape}")

    def reader(self) -> LineReader:
        """The reader as it was saved."""
        reader = LineReader(self.shape, self.alphabet)
        try:
            reader.network.load_state_dict(self.parts["network"])
        except (KeyError, RuntimeError, TypeError, AttributeError) as error:
            raise ReaderError(f"{self.path} does not fit {self.shape}: {first_line(error)}") from error
        return reader

    def trainer(self, stream: Stream) -> Trainer:
        """The run as it was saved: its next step gives the bits that it would have given."""
        if stream.source.name != self.source:
            raise ReaderError(f"{self.path} was trained on {self.source}; here there is {stream.source.name}")
        trainer = Trainer(self.reader(), self.settings, stream)
        try:
            trainer.adam.load_state_dict(self.parts["adam"])
            trainer.history = [Record(*row) for row in self.parts["history"].tolist()]
            trainer.checks = [(int(at), cer, wer) for at, cer, wer in self.parts["checks"].tolist()]
        except (KeyError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            raise ReaderError(f"{self.path} does not hold a run that could go on: {first_line(error)}") from error
        return trainer


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[1] if len(lines) > 1 and lines[0].endswith(":") else lines[0]) if lines else type(error).__name__


def share_of_loss(history: list[Record]) -> tuple[float, float]:
    """(median milliseconds of a step's loss, share of all steps' time that went into it)."""
    if not history:
        return 0.0, 0.0
    seconds, in_loss = (np.array([getattr(record, name) for record in history]) for name in ("seconds", "in_loss"))
    return 1000 * float(np.median(in_loss)), float(in_loss.sum() / seconds.sum())
