"""Training data-parallel: every rank holds the network and takes its share of each batch; sums go over all ranks."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ranks import Ranks
from reader.errors import ReaderError
from reader.layers import Array, BatchNorm, Layer
from reader.loss import Outcome, to_host
from reader.network import arrays_of
from reader.training import Record, Trainer
from reader.words import Batch, Word


class Share:
    """This rank's words of each batch of a stream: every `size`-th from the `rank`-th on.

    Words of like width stand beside each other in some batches; dealt out like this, every rank has as much to do.
    """

    def __init__(self, stream: Any, ranks: Ranks, dtype: npt.DTypeLike) -> None:
        self.stream, self.ranks, self.dtype = stream, ranks, dtype

    def __getitem__(self, step: int) -> Batch:
        batch = self.stream[step]
        mine = slice(self.ranks.rank, None, self.ranks.size)
        widths = batch.widths[mine]
        return Batch(batch.x[mine, : widths.max()].astype(self.dtype), widths, batch.targets[mine])


class WeightedLoss:
    """A loss whose gradients, added up over all ranks, are those of the mean over the whole batch.

    Each rank has the mean over its own words: it counts for as many as they are, since shares may differ by one.
    """

    def __init__(self, loss: Any, batch: int) -> None:
        self.loss, self.batch = loss, batch

    def __call__(self, logits: Any, targets: list[list[int]], frames: npt.NDArray[Any]) -> Outcome:
        outcome = self.loss(logits, targets, frames)
        return outcome._replace(grad=outcome.grad * (len(targets) / self.batch))

    def close(self) -> None:
        self.loss.close()


class Summed(Layer):
    """A network whose gradients, after `backward`, are the sums over all ranks; names and all else are its own."""

    def __init__(self, network: Layer, ranks: Ranks) -> None:
        super().__init__(network.xp)
        self.network, self.ranks = network, ranks

    def parts(self) -> dict[str, Layer]:
        return self.network.parts()

    def frames(self, lengths: Array) -> Array:
        return self.network.frames(lengths)

    def forward(self, x: Array, lengths: Array, train: bool) -> Array:
        return self.network.forward(x, lengths, train)

    def backward(self, dy: Array) -> Array:
        dx = self.network.backward(dy)
        grads = arrays_of(self.network, "grads").values()
        for mine, total in zip(grads, self.ranks.add(*grads)):
            mine[...] = total
        return dx


class DataParallel:
    """A trainer made one of many: together the ranks take the steps that it would take alone with whole batches.

    Loss, gradient, and mean and variance of batch normalisation are sums over the words of a batch, and each rank has
    some of the terms: what is equal in mathematics differs by the order of a sum, that is by rounding.
    """

    def __init__(self, trainer: Trainer, ranks: Ranks) -> None:
        settings, reader = trainer.settings, trainer.reader
        if settings.batch < ranks.size:
            raise ReaderError(
                f"there are {ranks.size} ranks and {settings.batch} words in a batch: some would have nothing to do"
            )
        self.trainer, self.ranks = trainer, ranks
        dtype = next(iter(trainer.params.values())).dtype
        trainer.stream = Share(trainer.stream, ranks, dtype)  # type: ignore[assignment]
        trainer.loss = WeightedLoss(trainer.loss, settings.batch)
        for _, layer in reader.network.named_layers():
            if isinstance(layer, BatchNorm):
                layer.total = ranks.add
        reader.network = Summed(reader.network, ranks)  # type: ignore[assignment]

    def step(self) -> Record:
        """One step down; the record is of the whole batch, on every rank."""
        mine = self.trainer.step()
        _, targets, frames, _ = self.trainer.given
        counts = len(targets), int(frames.sum()), sum(map(len, targets))  # what each is a mean over
        shares = self.ranks.gather((counts, (mine.loss, mine.blank, mine.error)))
        loss, blank, error = (
            sum(count[i] * mean[i] for count, mean in shares) / max(1, sum(count[i] for count, _ in shares))
            for i in range(3)
        )
        record = Record(loss, mine.norm, blank, error)
        self.trainer.history[-1] = record
        return record

    def check(self, words: list[Word]) -> tuple[float, float]:
        """(share of the words read without error, label error rate); each rank reads some of the words."""
        self.stay_together()
        share = words[self.ranks.rank :: self.ranks.size]
        labels = sum(len(word.digits) for word in share)
        score = self.trainer.reader.score(share) if share else None
        mine = (round(score.words * len(share)), round(score.labels * labels), labels) if score else (0, 0, 0)
        right, errors, labels = (sum(each) for each in zip(*self.ranks.gather(mine)))
        found = right / len(words), errors / max(1, labels)
        self.trainer.checks.append((self.trainer.done, *found))
        return found

    def stay_together(self) -> None:
        """Raises ReaderError unless the weights and running means of all ranks have the same bits."""
        mine = 0
        for what in ("params", "buffers"):
            for array in arrays_of(self.trainer.reader.network, what).values():
                mine = zlib.crc32(np.ascontiguousarray(to_host(array)), mine)
        every = self.ranks.gather(mine)
        if apart := [rank for rank, theirs in enumerate(every) if theirs != every[0]]:
            raise ReaderError(f"after step {self.trainer.done} rank {apart[0]} has other weights than rank 0")

    def save(self, path: Path) -> None:
        """Rank 0 writes everything to a file, such as examples/reader writes and reads."""
        self.stay_together()
        if self.ranks.rank == 0:
            self.trainer.save(path)
