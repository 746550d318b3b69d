"""The loop: batches in, steps down, and a file from which any run goes on as if it had never stopped."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import ctcbind

from .adam import Adam, clip, learning_rate
from .digits import Digits
from .errors import ReaderError
from .layers import Chain
from .loss import Loss, to_host
from .mistakes import FaultyLoss
from .network import KINDS, Shape, arrays_of, build, put
from .scores import decode
from .words import Batch, Stream, Word, in_buckets, stack


@dataclass(frozen=True)
class Settings:
    """All that a run's weights depend on, beside the engine."""

    data: str = "sklearn"
    steps: int = 1200
    batch: int = 32
    rate: float = 3e-3
    decay: float = 0.02
    clip: float = 5.0
    seed: int = 0
    shortest: int = 1
    longest: int = 8
    mistake: str = ""


class Record(NamedTuple):
    """One step: the batch's mean loss, the norm of the gradient before clipping, the share of frames whose best class
    is the blank, and the label error rate of the batch."""

    loss: float
    norm: float
    blank: float
    error: float


class Score(NamedTuple):
    """`words`, the share read without any error; `labels`, the label error rate; `read`, what was read."""

    words: float
    labels: float
    read: list[list[int]]


class Reader:
    """A network that turns images of words into digits."""

    def __init__(self, shape: Shape, seed: int = 0, xp: Any = np) -> None:
        self.shape, self.xp = shape, xp
        self.network: Chain = build(shape, seed, xp)

    def logits(self, batch: Batch, *, train: bool) -> tuple[Any, npt.NDArray[np.int64]]:
        """(N, T, 11) logits, and how many of the T frames belong to each sample."""
        logits = self.network.forward(self.xp.asarray(batch.x), self.xp.asarray(batch.widths), train)
        return logits, self.network.frames(batch.widths)

    def score(self, words: list[Word], beam: int | None = None, size: int = 64) -> Score:
        """How well the words are read, greedily or by a beam search; like widths go together, to pad little."""
        read: list[list[int]] = [[] for _ in words]
        for chosen in in_buckets(words, size):
            logits, frames = self.logits(stack([words[i] for i in chosen]), train=False)
            for i, labels in zip(chosen, decode(to_host(logits), frames, beam)):
                read[i] = [label - 1 for label in labels]
        said = [word.digits for word in words]
        right = sum(a == b for a, b in zip(read, said))
        return Score(right / len(words), ctcbind.error_rate(read, said), read)


class Trainer:
    """A reader, what trains it, and what became of it so far."""

    def __init__(self, reader: Reader, settings: Settings, digits: Digits, engine: str = "auto") -> None:
        self.reader, self.settings = reader, settings
        self.params = arrays_of(reader.network, "params")
        self.adam = Adam(self.params, settings.decay, reader.xp)
        self.stream = Stream(digits, settings.seed, settings.batch, (settings.shortest, settings.longest))
        self.loss: Any = FaultyLoss(settings.mistake, engine) if settings.mistake else Loss(engine)
        self.history: list[Record] = []
        self.checks: list[tuple[int, float, float]] = []  # (step, share of words, label error rate) on held-out words
        self.given: Any = None

    @property
    def done(self) -> int:
        """Steps taken."""
        return self.adam.steps

    def step(self) -> Record:
        """One step down."""
        batch = self.stream[self.done]
        logits, frames = self.reader.logits(batch, train=True)
        loss, grad, self.given = self.loss(logits, batch.targets, frames)
        self.reader.network.backward(grad)  # before the softmax, of which the gradient has the derivative in it
        grads = arrays_of(self.reader.network, "grads")
        norm = clip(grads, self.settings.clip)
        self.adam.step(grads, learning_rate(self.done, self.settings.steps, self.settings.rate))
        seen = to_host(logits)
        blank = (seen.argmax(axis=-1) == 0)[np.arange(seen.shape[1]) < frames[:, None]].mean()
        record = Record(loss, norm, float(blank), ctcbind.error_rate(decode(seen, frames), batch.targets))
        self.history.append(record)
        return record

    def check(self, words: list[Word]) -> Score:
        """Score held-out words, and keep it for the curves."""
        score = self.reader.score(words)
        self.checks.append((self.done, score.words, score.labels))
        return score

    def save(self, path: Path) -> None:
        """Write everything to a file; the one that is there is replaced only when the new one is whole."""
        arrays = {"shape": np.array(json.dumps(self.reader.shape.as_dict()))}
        arrays["settings"] = np.array(json.dumps(asdict(self.settings)))
        arrays["history"] = np.array(self.history, dtype=np.float64).reshape(-1, len(Record._fields))
        arrays["checks"] = np.array(self.checks, dtype=np.float64).reshape(-1, 3)
        arrays["steps"] = np.array(self.adam.steps)
        for what in ("params", "buffers"):
            arrays |= {f"{what}:{name}": to_host(a) for name, a in arrays_of(self.reader.network, what).items()}
        for what, moments in (("m", self.adam.m), ("v", self.adam.v)):
            arrays |= {f"{what}:{name}": to_host(a) for name, a in moments.items()}
        beside = path.with_name(path.name + ".part")
        try:
            with open(beside, "wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
            os.replace(beside, path)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise ReaderError(f"{path} cannot be written: {error}") from error


class Saved:
    """What is in a saved file. Raises ReaderError for one that is missing, broken, or not of a reader's shape."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                self.arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            raise ReaderError(f"there is no saved reader {path}; train.py without --predict makes one") from None
        except (
            OSError,
            ValueError,
            EOFError,
            KeyError,
            AttributeError,
            zipfile.BadZipFile,
            zlib.error,
            TypeError,
        ) as error:
            raise ReaderError(f"{path} is no saved reader: {error}") from error
        try:
            self.shape = Shape(**json.loads(str(self.arrays["shape"])))
            self.settings = Settings(**json.loads(str(self.arrays["settings"])))
            self.steps = int(self.arrays["steps"])
        except (KeyError, TypeError, ValueError) as error:
            raise ReaderError(
                f"{path} is no saved reader: its description is missing or another's ({error})"
            ) from error
        sizes = [getattr(self.shape, each.name) for each in fields(Shape) if each.name != "kind"]
        if self.shape.kind not in KINDS or not all(isinstance(n, int) and 0 < n <= 4096 for n in sizes):
            raise ReaderError(f"{path} describes a network that this program does not have: {self.shape}")

    def _part(self, what: str, like: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        found = {name.partition(":")[2]: a for name, a in self.arrays.items() if name.startswith(what + ":")}
        if missing := sorted(set(like) ^ set(found)):
            raise ReaderError(f"{self.path} does not fit {self.shape}: {missing[0]} is in one and not in the other")
        for name, array in like.items():
            if found[name].shape != array.shape or found[name].dtype != array.dtype:
                raise ReaderError(
                    f"{self.path} does not fit {self.shape}: {name} is {found[name].dtype} {found[name].shape} "
                    f"where {array.dtype} {array.shape} belongs"
                )
        return found

    def reader(self, xp: Any = np) -> Reader:
        """The reader as it was saved."""
        reader = Reader(self.shape, xp=xp)
        for what in ("params", "buffers"):
            put(reader.network, what, self._part(what, arrays_of(reader.network, what)))
        return reader

    def trainer(self, digits: Digits, engine: str = "auto", xp: Any = np) -> Trainer:
        """The run as it was saved: its next step gives the bits that it would have given."""
        if digits.height != self.shape.height:
            raise ReaderError(
                f"{self.path} reads images of {self.shape.height} rows, and these digits have {digits.height}"
            )
        trainer = Trainer(self.reader(xp), self.settings, digits, engine)
        trainer.adam.steps = self.steps
        trainer.adam.m, trainer.adam.v = (
            {name: xp.asarray(a) for name, a in self._part(what, trainer.params).items()} for what in ("m", "v")
        )
        trainer.history, trainer.checks = self.records()
        return trainer

    def records(self) -> tuple[list[Record], list[tuple[int, float, float]]]:
        """(one record a step, the checks on held-out words)."""
        history, checks = self.arrays.get("history"), self.arrays.get("checks")
        if history is None or checks is None or history.shape != (self.steps, len(Record._fields)) or checks.ndim != 2:
            raise ReaderError(f"{self.path} has no history of its {self.steps} steps")
        return [Record(*row) for row in history.tolist()], [
            (int(at), words, labels) for at, words, labels in checks.tolist()
        ]
