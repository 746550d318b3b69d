"""What a diagnosis is made of: findings, and the numbers they rest on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, Literal

from .errors import counted
from .text import Shown, plain

__all__ = ["CLASSES", "Diagnosis", "Finding", "Measures", "Sure", "quoted"]

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

    `blank_wins` is the share of frames where the blank is the most probable class (none is where all classes are
    alike), `blank_posterior` its mean probability, `label_posterior` that of all labels together, and `label_share`
    what the labels need of the frames at least. `loss` beside `uniform_loss` (all classes equally probable) and
    `constant_loss` (the blank, and a little for each label, the same at every frame: all that a collapsed network has
    learned). `grad_norms` are the Euclidean norms of each sample's gradient with respect to its logits, at most
    sqrt(2 T), and nan for one that is left out.
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
        lines = [str(finding) + "\n" for finding in self.findings] or [f"{self._nothing()}\n"]
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

    def _nothing(self) -> str:
        if (m := self.measures) is None or not m.labels or not m.loss > m.constant_loss:
            return "Nothing suspicious was found."
        return (
            "Nothing suspicious was found, but the network is no better than one that ignores its input: it is not "
            "trained yet, or not for such a batch."
        )


#: Words for `quoted`.
CLASSES = "class", "classes"


def quoted(some: Any, most: int = 5, words: tuple[str, str] = ("sample", "samples")) -> str:
    """Numbers of samples, or of what `words` say, in a sentence: the first few, and how many more."""
    numbers = [int(n) for n in some]
    text = ", ".join(map(str, numbers[:most]))
    word = words[len(numbers) != 1]
    return f"{word} {text}" + (f" and {len(numbers) - most} more" if len(numbers) > most else "")
