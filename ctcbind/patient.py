"""The batch as a diagnosis looks at it, part by part where it is large."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .batch import Topology
from .engines.reference import log_softmax
from .finding import Finding, Sure
from .forks import open_properties
from .loss import ctc_loss, ctc_loss_and_grad

__all__ = ["Floats", "Patient", "confident"]

Floats = npt.NDArray[np.float64]
#: Logits are looked at in so many parts of the batch, or fewer of so many numbers, and frames in parts of so many.
PARTS, IN_A_PART, IN_A_BLOCK = 16, 1 << 20, 1 << 18


@open_properties
@dataclass
class Patient:
    """The batch: what one finding corrects is corrected for the next.

    `x` (T, N, C) float64 on the host; `given` the same in the dtype that it was given in, and `parts` and `blocks` of
    it in float64: where nothing is wrong with a batch it is never converted as a whole, and nobody writes to it.
    `labels` one list a sample; `frames` (N,); `lost` the samples whose logits were not finite where they must be, and
    were replaced, those of `made_up` at more than half of their frames; `unknown` those whose input length was invalid,
    and is T now. `moved` are the labels each raised or lowered by 1, where a blank among them, which is the first class
    or the last, may mean that they count from the wrong end.
    """

    x: Floats
    labels: list[list[int]]
    frames: npt.NDArray[np.int64]
    blank: int
    topology: Topology
    dtype: str
    findings: list[Finding] = field(default_factory=list)
    lost: frozenset[int] = frozenset()
    made_up: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    moved: list[list[int]] = field(default_factory=list)

    @property
    def given(self) -> npt.NDArray[Any]:
        return np.asarray(self.__dict__["x"])

    @property
    def shape(self) -> tuple[int, int, int]:
        T, N, C = self.given.shape
        return T, N, C

    @property
    def N(self) -> int:
        return self.shape[1]

    @property
    def C(self) -> int:
        return self.shape[2]

    def part(self, samples: slice) -> Floats:
        """The logits of some samples, float64."""
        return np.asarray(self.given[:, samples], np.float64)

    def samples(self) -> Iterator[slice]:
        """All of them, a few at a time."""
        T, N, C = self.shape
        step = max(-(-N // PARTS), IN_A_PART // max(T * C, 1), 1)
        for first in range(0, N, step):
            yield slice(first, min(first + step, N))

    def parts(self) -> Iterator[Floats]:
        """(T, a few, C): the logits of all samples."""
        return map(self.part, self.samples())

    def blocks(self) -> Iterator[Floats]:
        """The logits of the frames that count, some at a time, in the order of `rows`."""
        T, N, C = self.shape
        step = max(IN_A_BLOCK // max(N * C, 1), 1)
        for first in range(0, T, step):
            x, inside = self.given[first : first + step], self.inside[first : first + step]
            yield np.asarray(x.reshape(-1, C) if inside.all() else x[inside], np.float64)

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """(T, N): the frames that count."""
        return np.asarray(np.arange(self.shape[0])[:, None] < self.frames)

    @cached_property
    def count(self) -> int:
        """How many these are: M."""
        return int(self.inside.sum())

    @cached_property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest logit of these."""
        blocks = [(block.min(), block.max()) for block in self.blocks() if block.size]
        return float(min(low for low, _ in blocks)), float(max(high for _, high in blocks))

    @cached_property
    def rows(self) -> Floats:
        """(M, C): the logits of the frames that count."""
        return self.x[self.inside]

    @cached_property
    def posteriors(self) -> Floats:
        """(M, C): the softmax of `rows`."""
        return np.asarray(np.exp(log_softmax(self.rows)))

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """(M,): the highest logit of each of `rows`, and ln of the sum of the exponentials of all less that one."""
        tops, sums = np.empty(self.count), np.empty(self.count)
        at = 0
        for block in self.blocks():
            here = slice(at, at := at + len(block))
            top = block.max(axis=1, keepdims=True)
            tops[here], sums[here] = top[:, 0], np.log(np.exp(block - top).sum(axis=1))
        return tops, sums

    @cached_property
    def surest(self) -> Floats:
        """(M,): the probability of the most probable class."""
        return np.asarray(np.exp(-self._sums[1]))

    def posterior_of(self, k: int) -> Floats:
        """(M,): that of class k."""
        tops, sums = self._sums
        return np.asarray(np.exp(self.given[:, :, k][self.inside].astype(np.float64) - tops - sums))

    @cached_property
    def winners(self) -> npt.NDArray[np.intp]:
        """(T, N): the most probable class at all frames."""
        winners = np.empty(self.shape[:2], np.intp)
        for some in self.samples():
            winners[:, some] = self.part(some).argmax(axis=2)
        return winners

    @cached_property
    def best(self) -> npt.NDArray[np.intp]:
        """(M,): the same at the frames that count."""
        return np.asarray(self.winners[self.inside])

    @property
    def kinds(self) -> set[str]:
        """What has been found so far."""
        return {finding.kind for finding in self.findings}

    @cached_property
    def fits(self) -> npt.NDArray[np.bool_]:
        """(N,): whether a path exists."""
        return np.asarray([self.required(n) <= self.frames[n] for n in range(self.N)], dtype=bool)

    def required(self, n: int) -> int:
        return len(self.labels[n]) + (self.repeats(n) if self.topology == "ctc" else 0)

    def repeats(self, n: int) -> int:
        """How often a label is the one before."""
        return sum(a == b for a, b in pairwise(self.labels[n]))

    def outputs(self) -> list[tuple[int, ...]]:
        """What each sample reads by its most probable classes: repeats merged, blanks removed."""
        return [tuple(self.winners[self.begins(n), n].tolist()) for n in range(self.N)]

    def begins(self, n: int) -> npt.NDArray[np.intp]:
        """The frame at which each label that sample n reads begins."""
        path = self.winners[: self.frames[n], n]
        says = path != self.blank
        if self.topology == "ctc":
            says[1:] &= path[1:] != path[:-1]
        return np.flatnonzero(says)

    def losses_of(self, x: Floats, blank: int | None = None) -> Floats:
        """The losses of the samples that have a path, under other logits or another blank."""
        return self.every_loss_of(x, blank)[self.fits]

    def every_loss_of(self, x: Floats, blank: int | None = None) -> Floats:
        """(N,): the same, inf where a sample has no path."""
        if not self.N:
            return np.empty(0)  # which a loss refuses
        blank = self.blank if blank is None else blank
        losses: Floats = ctc_loss(x, self.labels, self.frames, blank=blank, topology=self.topology)
        return losses

    def loss_of(self, x: Floats) -> float:
        """Their mean; nan where there are none."""
        return self._mean(self.every_loss_of(x))

    def _mean(self, losses: Floats) -> float:
        if not self.fits.any():
            return float("nan")
        losses = losses[self.fits]
        return float((losses / losses.size).sum())  # which does not overflow where the sum does

    def losses_in_parts(
        self,
        part: Callable[[slice], Floats] | None = None,
        labels: list[list[int]] | None = None,
        enough: Callable[[Floats], bool] | None = None,
    ) -> Floats | None:
        """The losses of all samples under these logits, or others of which `part` makes those of some samples; None
        where those of the first samples were `enough`."""
        labels, losses = self.labels if labels is None else labels, np.empty(self.N)
        for some in self.samples():
            x = (part or self.part)(some)
            losses[some] = ctc_loss(x, labels[some], self.frames[some], blank=self.blank, topology=self.topology)
            if enough is not None and enough(losses[: some.stop]):
                return None
        return losses

    def median_in_parts(
        self,
        bound: float,
        part: Callable[[slice], Floats] | None = None,
        labels: list[list[int]] | None = None,
        told: list[int] | None = None,
    ) -> float:
        """The median loss of these samples (None: all); inf where it is not below this bound, which half of them
        tell."""
        among = np.ones(self.N, bool) if told is None else np.isin(np.arange(self.N), told)

        def above(losses: Floats) -> bool:
            return bool(2 * (~(losses < bound) & among[: len(losses)]).sum() > among.sum())

        losses = self.losses_in_parts(part, labels, above)
        return float("inf") if losses is None else float(np.median(losses[among]))

    @cached_property
    def losses(self) -> Floats:
        """(N,), inf where a sample has no path."""
        losses = self.losses_in_parts()
        assert losses is not None, "all are asked for"
        return losses

    @cached_property
    def uniform_losses(self) -> Floats:
        """Of a model to which all classes are equally probable."""
        return self.every_loss_of(np.broadcast_to(0.0, self.shape))

    @cached_property
    def constant_losses(self) -> Floats:
        return self.every_loss_of(self.constant)

    @property
    def loss(self) -> float:
        return self._mean(self.losses)

    @property
    def uniform_loss(self) -> float:
        return self._mean(self.uniform_losses)

    @property
    def constant(self) -> Floats:
        """The logits of a model that mostly says the blank, and labels as often as the batch has labels for its
        frames."""
        if self.C == 1:
            return np.broadcast_to(0.0, self.shape)
        labels = sum(len(self.labels[n]) for n in np.flatnonzero(self.fits))
        share = min(max(labels / max(int(self.frames[self.fits].sum()), 1), 1e-6), 0.9)
        row = np.full(self.C, np.log(share / (self.C - 1)))
        row[self.blank] = np.log1p(-share)
        return np.broadcast_to(row, self.shape)

    @property
    def constant_loss(self) -> float:
        """Of a model that says the same at every frame."""
        return self._mean(self.constant_losses)

    @cached_property
    def grad_norms(self) -> tuple[float, ...]:
        """The Euclidean norm of each sample's gradient with respect to its logits."""
        norms: list[float] = []
        for some in self.samples():
            grad = ctc_loss_and_grad(
                self.part(some), self.labels[some], self.frames[some], blank=self.blank, topology=self.topology
            ).grad
            norms += np.sqrt(np.square(grad, out=grad).sum(axis=(0, 2))).tolist()
        return tuple(norms)

    def without_lost(self) -> Patient:
        """The batch of the other samples."""
        return self.without(self.lost)

    def without_made_up(self) -> Patient:
        """The batch of the samples that tell what the network says; its findings are those of the whole."""
        return self.without(self.made_up)

    def without(self, samples: frozenset[int]) -> Patient:
        """The batch of the other samples, numbered anew."""
        if not samples:
            return self
        kept = [n for n in range(self.N) if n not in samples]
        labels = [self.labels[n] for n in kept]
        x, frames = self.given[:, kept], self.frames[kept]
        return Patient(x, labels, frames, self.blank, self.topology, self.dtype, self.findings)

    def turned(self, **values: Any) -> Patient:
        """The batch with something else in it, as `dataclasses.replace` makes it, which would read all logits."""
        now = {each.name: self.__dict__["x"] if each.name == "x" else getattr(self, each.name) for each in fields(self)}
        patient = Patient(**(now | values))
        if "x" not in values and "winners" in self.__dict__:
            patient.__dict__["winners"] = self.winners
        return patient

    def change(self, **values: Any) -> None:
        """Corrects something; what was measured before is measured again."""
        if values.get("labels") == self.labels:
            del values["labels"]
        for name, value in values.items():
            setattr(self, name, value)
        for name in _MEASURED if values else ():
            self.__dict__.pop(name, None)
        for name in _SEEN if {"x", "frames"} & values.keys() else ():
            if name != "winners" or "x" in values:
                self.__dict__.pop(name, None)

    def find(
        self, kind: str, seen: str, means: str, do: str, sure: Sure, samples: Any = (), harmless: bool = False
    ) -> None:
        self.findings.append(Finding(kind, seen, means, do, sure, tuple(int(n) for n in samples), harmless))


class _Logits:
    """A field for logits of any dtype, which are float64 where they are read, and stay so: that takes twice the room of
    float32."""

    def __get__(self, patient: Patient, owner: type[Patient]) -> Floats:
        if patient.given.dtype != np.float64:
            patient.__dict__["x"] = patient.given.astype(np.float64)
        x: Floats = patient.given
        return x

    def __set__(self, patient: Patient, logits: npt.NDArray[Any]) -> None:
        patient.__dict__["x"] = logits


Patient.x = _Logits()  # type: ignore[assignment]  # not in the class: dataclass would take it for a default

#: What is kept of a Patient until something is corrected: anything, or logits and lengths.
_MEASURED = ("fits", "losses", "uniform_losses", "constant_losses", "grad_norms")
_SEEN = ("inside", "count", "ends", "rows", "posteriors", "_sums", "surest", "winners", "best")


def confident(C: int) -> float:
    """A mean probability that no fresh network gives: odds of e^3 against each other class, 0.75 with many classes."""
    return float(max(0.75, np.e**3 / (np.e**3 + C - 1)))
