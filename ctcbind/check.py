"""Everything that is wrong with a batch at once: what a loss would refuse, and what makes it inf, NaN or nonsense."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Layout, as_host, look_at_logits
from .batch import Batch, Topology, inspect
from .errors import Found, brief, counted
from .kinds import not_compiled, without_grad
from .loss import ctc_loss
from .options import blank_index, layout_option, option
from .rules import attempt
from .text import Shown

__all__ = ["Fit", "Problem", "Report", "check", "report_and_batch"]

#: Sentences of one rule that a report prints; all of them are in `Report.problems`.
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One breach of one rule: `message` is the sentence, `sample`, `position` and `value` what it names.

    `rule` is the short name that `InvalidInput.rule` has too. `refused` says whether a loss raises for it; if not, it
    computes, and the sample's loss is inf ("infeasible", "masked"), NaN ("logits_nan"), or that of frames in which the
    classes at +inf alone have a probability ("logits_inf").
    """

    rule: str
    message: str
    sample: int | None = None
    position: int | None = None
    value: Any = None
    refused: bool = True

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class Fit:
    """How one sample's labels fit its frames: `required` = `labels` + `repeats` frames (adjacent equal labels need a
    blank between them; with topology="simple" they do not, and count 0)."""

    sample: int
    frames: int
    labels: int
    repeats: int
    required: int

    @property
    def feasible(self) -> bool:
        """Whether a path exists."""
        return self.frames >= self.required


@dataclass(frozen=True, slots=True)
class Report(Shown):
    """What `check` found. `fits` has a `Fit` for each sample whose input length is not negative, and is empty where any
    other length is wrong."""

    problems: tuple[Problem, ...]
    fits: tuple[Fit, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def __bool__(self) -> bool:
        """The same: `assert ctcbind.check(...)`."""
        return self.ok

    @property
    def refused(self) -> bool:
        """Whether a loss raises InvalidInput for this batch."""
        return any(problem.refused for problem in self.problems)

    def by_rule(self) -> dict[str, tuple[Problem, ...]]:
        """The problems under the rules that they break, in the order in which a loss would meet them."""
        rules = dict.fromkeys(problem.rule for problem in self.problems)
        return {rule: tuple(each for each in self.problems if each.rule == rule) for rule in rules}

    def to_dict(self) -> dict[str, Any]:
        """The same for json.dumps; values that JSON cannot hold are strings, as in the messages."""
        # not asdict, which copies values, and cannot copy a module, a lock or the like
        problems = [{each.name: getattr(problem, each.name) for each in fields(problem)} for problem in self.problems]
        for each in problems:
            value = each["value"].item() if isinstance(each["value"], np.generic) else each["value"]
            sound = isinstance(value, (str, type(None))) or (isinstance(value, (int, float)) and abs(value) < 1e300)
            each["value"] = value if sound else brief(value)
        return {"ok": self.ok, "problems": problems, "fits": [asdict(fit) for fit in self.fits]}

    def __str__(self) -> str:
        """A sentence for each problem, at most five a rule (of samples without a path the worst five)."""
        lines: list[str] = []
        for rule, problems in self.by_rule().items():
            if rule == "infeasible":
                short = {fit.sample: fit.required - fit.frames for fit in self.fits}
                problems = tuple(sorted(problems, key=lambda each: -short[each.sample or 0]))
            lines += [problem.message for problem in problems[:SHOWN]]
            if len(problems) > SHOWN:
                lines.append(f"... and {len(problems) - SHOWN} more like these ({rule})")
        these = "this" if len(self.fits) == 1 else "these"
        return "\n".join(lines) or f"Nothing is wrong with {these} {counted(len(self.fits), 'sample')}."


@not_compiled
def check(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Report:
    """Every rule that a batch breaks, each with every place where it does, and how each sample's labels fit.

    Arguments are those of `ctc_loss` that say what the batch is. The first problem that is `refused` is the one that a
    loss raises, in the same words. Problems that a loss does not refuse are listed too: samples without a path, because
    there are too few frames or because logits of -inf forbid every path (their loss is inf), and NaN and +inf among the
    logits of a sample's frames (NaN makes its loss NaN, +inf takes the whole probability of its frame).

    A rule is applied only where what it needs is right: with wrong lengths, for example, nobody can say which labels
    belong to which sample. Arrays on a device are read, and the call waits for them.

    Raises nothing for what is wrong with the batch.

    >>> import numpy as np, ctcbind
    >>> report = ctcbind.check(np.zeros((4, 2, 11)), [[1, 11], [2, 2, 2]], input_lengths=[9, 4])
    >>> print(report)
    input_lengths[0] is 9, but the logits have only T = 4 time steps
    targets[0][1] is 11, but there are 11 classes (0..10), the blank among them
    sample 1 has no path: 3 labels and 2 repeats need 5 frames, and it has 4
    >>> [(each.rule, each.sample, each.position, each.value) for each in report.problems]
    [('input_length', 0, None, 9), ('label_range', 0, 1, 11), ('infeasible', 1, None, 4)]
    """
    return report_and_batch(logits, targets, input_lengths, target_lengths, blank, layout, topology)[0]


def report_and_batch(
    logits: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: Any, layout: Any, topology: Any
) -> tuple[Report, Batch | None]:
    """The report, and the batch; None where lengths or logits are wrong."""
    found = _problems(without_grad(logits), targets, input_lengths, target_lengths, blank, layout, topology)
    problems: list[Problem] = []
    while True:
        try:
            error = next(found)
        except StopIteration as stop:
            batch: Batch | None = stop.value
            break
        problems.append(Problem(error.rule, str(error), error.sample, error.position, error.value))
    if batch is None:
        return Report(tuple(problems), ()), None
    sound = not problems
    unknown = {problem.sample for problem in problems if problem.rule == "length_negative"}
    problems += [each for each in _without_path(batch) if each.sample not in unknown]
    problems += _not_finite(batch)
    if sound:
        problems += _masked(batch, {problem.sample for problem in problems})
    repeats = batch.repeats if batch.topology == "ctc" else batch.repeats * 0
    columns = (batch.input_lengths, batch.label_lengths, repeats, batch.required)
    rows = enumerate(zip(*(each.tolist() for each in columns)))
    fits = tuple(Fit(sample, *row) for sample, row in rows if sample not in unknown)
    return Report(tuple(problems), fits), batch


def _problems(
    logits: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: Any, layout: Any, topology: Any
) -> Found[Batch | None]:
    wrong_layout = list(attempt(layout_option, layout))
    wrong_topology = list(attempt(option, "topology", topology, ("ctc", "simple")))
    wrong_blank = list(attempt(blank_index, blank, None))
    yield from (*wrong_layout, *wrong_topology, *wrong_blank)
    view = yield from look_at_logits(logits, "TNC" if wrong_layout else layout)
    return (
        yield from inspect(
            None if wrong_layout else view,
            targets,
            input_lengths,
            target_lengths,
            blank,
            "ctc" if wrong_topology else topology,
            wrong_blank=bool(wrong_blank),
        )
    )


def _without_path(batch: Batch) -> Generator[Problem, None, None]:
    for n in np.flatnonzero(~batch.feasible).tolist():
        frames, required, labels = int(batch.input_lengths[n]), int(batch.required[n]), int(batch.label_lengths[n])
        repeats = f" and {counted(required - labels, 'repeat')}" if required > labels else ""
        need = "needs" if required == 1 else "need"
        needed = f"{counted(labels, 'label')}{repeats} {need} {counted(required, 'frame')}"
        message = f"sample {n} has no path: {needed}, and it has {frames}"
        yield Problem("infeasible", message, n, None, frames, refused=False)


def _not_finite(batch: Batch) -> Generator[Problem, None, None]:
    """The first NaN of each sample, and the first +inf; -inf forbids a class, and is meant."""
    for n in range(batch.N):
        frames = batch.logits.array[: int(batch.input_lengths[n]), n]
        for rule, wrong, name, then in (
            ("logits_nan", batch.logits.xp.isnan(frames), "nan", "the sample's loss is nan"),
            ("logits_inf", frames == np.inf, "inf", "inf takes the whole probability of its frame"),
        ):
            places = as_host(wrong)
            if places.any():
                if not batch.feasible[n]:
                    then = "its loss is inf all the same, for it has no path"
                t, k = (int(i) for i in np.argwhere(places)[0])
                more = f" (and {int(places.sum()) - 1} more)" if places.sum() > 1 else ""
                message = f"the logit of sample {n}, frame {t}, class {k} is {name}{more}: {then}"
                yield Problem(rule, message, n, t, float(name), refused=False)


def _masked(batch: Batch, others: set[int | None]) -> Generator[Problem, None, None]:
    """Samples that have frames enough, but whose logits of -inf leave no path."""
    forbidden = as_host(batch.logits.array == -np.inf)
    some = [n for n in range(batch.N) if n not in others and forbidden[: int(batch.input_lengths[n]), n].any()]
    if not some:
        return
    logits = np.where(forbidden[:, some], np.float32(-np.inf), np.float32(0))
    labels, frames = [batch.targets(n) for n in some], batch.input_lengths[some]
    losses = ctc_loss(logits, labels, frames, blank=batch.blank, topology=batch.topology)
    for k in np.flatnonzero(np.isinf(losses)).tolist():
        allowed, n = logits[: int(frames[k]), k] == 0, some[k]
        where, frame = _end_of_the_ways(allowed, labels[k], batch.blank, merges=batch.topology == "ctc")
        message = f"sample {n} has no path: logits of -inf forbid every one; {where}"
        yield Problem("masked", message, n, frame, float("-inf"), refused=False)


def _end_of_the_ways(
    allowed: npt.NDArray[np.bool_], labels: npt.NDArray[np.int32], blank: int, *, merges: bool
) -> tuple[str, int]:
    """How far paths get, where none gets to the end, and the frame in which the last of them stops.

    The recursion of alpha with truth for probability: blank i stands before label i.
    """
    L = len(labels)
    skip = np.ones(L, dtype=bool)
    if merges:
        skip[1:] = labels[1:] != labels[:-1]
    at_blank, at_label = np.zeros(L + 1, dtype=bool), np.zeros(L, dtype=bool)
    at_blank[0] = True
    reached = 0
    for t, row in enumerate(allowed):
        before = np.concatenate(([False], at_label))
        into = at_blank[:-1] | (before[:-1] & skip)
        at_blank = (at_blank | before) & row[blank]
        at_label = (into | at_label if merges else into) & row[labels]
        if at_label.any():
            reached = max(reached, int(np.flatnonzero(at_label)[-1]) + 1)
        if not (at_blank.any() or at_label.any()):
            return f"none gets through frame {t}", t
    if reached == L:
        return "none comes to the end", len(allowed) - 1
    return f"none comes to label {reached}, class {labels[reached]}", len(allowed) - 1
