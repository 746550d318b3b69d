"""What a diagnosis is made of: findings, the numbers they rest on, and the batch as it is looked at."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise
from math import isnan
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .batch import Topology
from .engines.reference import log_softmax
from .errors import counted
from .forks import open_properties
from .loss import ctc_loss
from .text import Shown, plain

__all__ = ["Diagnosis", "Finding", "Floats", "Measures", "Patient", "Sure", "confident", "quoted"]

Floats = npt.NDArray[np.float64]
Sure = Literal["certain", "likely", "possible"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: `kind` is its short name, `seen` what was seen, in numbers; `means` what that means;
    `do` what to do ("" where `seen` says it); `sure` how sure this is: "certain", "likely" or "possible"; `samples`
    those concerned (empty: the whole batch); `harmless` whether the loss and its gradient are right all the same."""

    kind: str
    seen: str
    means: str
    do: str
    sure: Sure
    samples: tuple[int, ...] = ()
    harmless: bool = False

    def __str__(self) -> str:
        do = f"\n  do: {self.do}" if self.do else ""
        sure = f"{self.sure}, harmless" if self.harmless else self.sure
        return f"{self.kind} ({sure})\n  seen: {self.seen}\n  means: {self.means}{do}"


@dataclass(frozen=True, slots=True)
class Measures:
    """The numbers behind the findings, over the frames within the input lengths; losses are means over the samples
    that have a path, in nats. Samples whose logits are not finite where they must be are left out of all of them, and
    counted by `left_out`. What the findings put right is right in all of them but `given_loss`, which is that of the
    batch as it was given, and nan where a loss refuses it, or where no sample had a path.

    `blank_wins` is the share of frames where the blank is the most probable class, `blank_posterior` its mean
    probability, `label_posterior` that of all labels together, and `label_share` what the labels need of the frames at
    least. `loss` beside `uniform_loss` (all classes equally probable) and `constant_loss` (the blank, and a little for
    each label, the same at every frame: all that a collapsed network has learned). `grad_norms` are the Euclidean norms
    of each sample's gradient with respect to its logits, at most sqrt(2 T), and nan for one that is left out.
    """

    frames: int
    labels: int
    blank_wins: float
    blank_posterior: float
    label_posterior: float
    label_share: float
    loss: float
    uniform_loss: float
    constant_loss: float
    grad_norms: tuple[float, ...]
    left_out: int = 0
    given_loss: float = float("nan")


@dataclass(frozen=True, slots=True)
class Diagnosis(Shown):
    """What `diagnose` found; `measures` is None where the batch is too wrong to be measured."""

    findings: tuple[Finding, ...]
    measures: Measures | None

    @property
    def ok(self) -> bool:
        """Whether nothing was found that does harm."""
        return all(finding.harmless for finding in self.findings)

    def __bool__(self) -> bool:
        """The same: `assert ctcbind.diagnose(...)`."""
        return self.ok

    @property
    def kinds(self) -> set[str]:
        """The short names of what was found."""
        return {finding.kind for finding in self.findings}

    def to_dict(self) -> dict[str, Any]:
        """The same for json.dumps; numbers that JSON lacks are the strings "inf" and "nan"."""
        measures = None if self.measures is None else plain(asdict(self.measures))
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings], "measures": measures}

    def __str__(self) -> str:
        """Each finding in a few lines, then the numbers."""
        lines = [str(finding) + "\n" for finding in self.findings] or ["Nothing suspicious was found.\n"]
        if (m := self.measures) is not None:
            blank = f"the blank wins {m.blank_wins:.1%} of them, its mean probability is {m.blank_posterior:.3g}"
            given, loss = f"{m.given_loss:.4g}", f"{m.loss:.4g}"
            if given != loss:
                loss += " with what was found put right" + ("" if isnan(m.given_loss) else f", {given} as given")
            losses = (
                f"loss a sample {loss}; of a uniform model {m.uniform_loss:.4g}, of the best constant one about "
                f"{m.constant_loss:.4g}"
            )
            if m.left_out == len(m.grad_norms) > 0:
                return "\n".join([*lines, "The logits of no sample are finite, and so nothing is measured."])
            if m.left_out:
                lines.append(f"Without the {counted(m.left_out, 'sample')} whose logits are not finite:")
            lines += [
                f"{counted(m.labels, 'label')} and {counted(m.frames, 'frame')}" + (f"; {blank}" if m.frames else ""),
                "no sample has a path, and so none a loss" if isnan(m.loss) else losses,
            ]
        return "\n".join(lines)


@open_properties
@dataclass
class Patient:
    """The batch as it is looked at: what one finding corrects is corrected for the next.

    `x` (T, N, C) float64 on the host; `labels` one list a sample; `frames` (N,); `lost` the samples whose logits were
    not finite where they must be, and were replaced, those of `made_up` at more than half of their frames; `unknown`
    those whose input length was invalid, and is T now.
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

    @property
    def N(self) -> int:
        return int(self.x.shape[1])

    @property
    def C(self) -> int:
        return int(self.x.shape[2])

    @cached_property
    def inside(self) -> npt.NDArray[np.bool_]:
        """(T, N): the frames that count."""
        return np.asarray(np.arange(self.x.shape[0])[:, None] < self.frames)

    @cached_property
    def rows(self) -> Floats:
        """(M, C): the logits of the frames that count."""
        return self.x[self.inside]

    @cached_property
    def posteriors(self) -> Floats:
        """(M, C): the softmax of `rows`."""
        return np.asarray(np.exp(log_softmax(self.rows)))

    @cached_property
    def best(self) -> npt.NDArray[np.intp]:
        """(M,): the most probable class."""
        return np.asarray(self.rows.argmax(axis=1))

    @property
    def kinds(self) -> set[str]:
        """What has been found so far."""
        return {finding.kind for finding in self.findings}

    @property
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
        best = self.x.argmax(axis=2)
        found = []
        for n, frames in enumerate(self.frames):
            path = best[:frames, n]
            keep = path != self.blank
            if self.topology == "ctc":
                keep[1:] &= path[1:] != path[:-1]
            found.append(tuple(path[keep].tolist()))
        return found

    def losses_of(self, x: Floats, blank: int | None = None) -> Floats:
        """The losses of the samples that have a path, under other logits or another blank."""
        return self.every_loss_of(x, blank)[self.fits]

    def every_loss_of(self, x: Floats, blank: int | None = None) -> Floats:
        """(N,): the same, inf where a sample has no path."""
        blank = self.blank if blank is None else blank
        losses: Floats = ctc_loss(x, self.labels, self.frames, blank=blank, topology=self.topology)
        return losses

    def loss_of(self, x: Floats) -> float:
        """Their mean; nan where there are none."""
        if not self.fits.any():
            return float("nan")
        losses = self.losses_of(x)
        return float((losses / losses.size).sum())  # which does not overflow where the sum does

    @cached_property
    def loss(self) -> float:
        return self.loss_of(self.x)

    @cached_property
    def uniform_loss(self) -> float:
        return self.loss_of(np.broadcast_to(0.0, self.x.shape))

    @property
    def constant(self) -> Floats:
        """The logits of a model that mostly says the blank, and labels as often as the batch has labels for its
        frames."""
        if self.C == 1:
            return np.broadcast_to(0.0, self.x.shape)
        labels = sum(len(self.labels[n]) for n in np.flatnonzero(self.fits))
        share = min(max(labels / max(int(self.frames[self.fits].sum()), 1), 1e-6), 0.9)
        row = np.full(self.C, np.log(share / (self.C - 1)))
        row[self.blank] = np.log1p(-share)
        return np.broadcast_to(row, self.x.shape)

    @cached_property
    def constant_loss(self) -> float:
        """Of a model that says the same at every frame."""
        return self.loss_of(self.constant)

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
        x, frames = self.x[:, kept], self.frames[kept]
        return Patient(x, labels, frames, self.blank, self.topology, self.dtype, self.findings)

    def change(self, **values: Any) -> None:
        """Corrects something; what was measured before is measured again."""
        for name, value in values.items():
            setattr(self, name, value)
        for name in ("inside", "rows", "posteriors", "best", "loss", "uniform_loss", "constant_loss"):
            self.__dict__.pop(name, None)

    def find(
        self, kind: str, seen: str, means: str, do: str, sure: Sure, samples: Any = (), harmless: bool = False
    ) -> None:
        self.findings.append(Finding(kind, seen, means, do, sure, tuple(int(n) for n in samples), harmless))


def confident(C: int) -> float:
    """A mean probability that no fresh network gives: odds of e^3 against each other class, 0.75 with many classes."""
    return float(max(0.75, np.e**3 / (np.e**3 + C - 1)))


def quoted(samples: Any, most: int = 5) -> str:
    """Sample numbers in a sentence: the first few, and how many more."""
    numbers = [int(n) for n in samples]
    text = ", ".join(map(str, numbers[:most]))
    word = "sample" if len(numbers) == 1 else "samples"
    return f"{word} {text}" + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
