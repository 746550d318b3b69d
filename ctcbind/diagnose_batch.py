"""What `diagnose` does: a batch is read as it was meant, and looked at for one mistake after the other."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from . import (
    diagnose_activation,
    diagnose_input,
    diagnose_labels,
    diagnose_lengths,
    diagnose_mismatch,
    diagnose_neighbours,
    diagnose_order,
    diagnose_output,
    diagnose_padding,
    diagnose_shifted,
    diagnose_softmax,
    diagnose_standstill,
    diagnose_steps,
    diagnose_ties,
    diagnose_undone,
)
from .arrays import Layout, as_host, view_logits
from .batch import COUNTS, Batch, Topology
from .check import Report, report_and_batch
from .diagnose_history import history_of
from .down_sampling import down_sampling
from .engines import NAMES, choose, get, refusal
from .errors import EngineUnsupported
from .finding import Diagnosis, Finding, Measures, quoted
from .kinds import without_grad
from .options import layout_option, option
from .patient import Floats, Patient

__all__ = ["examine"]

#: Rules whose breaches the findings about labels describe better.
LABELS = ("label_blank", "label_negative")
#: What to do where the sentence of the rule does not say it.
CURES = {
    "input_length": "count the frames that leave the network, after its own down-sampling",
    "label_range": "give the network a class for every label and one for the blank, or look for padding in the targets",
    "integers": "pass arrays of an integer dtype, or lists of ints",
    "logits_dtype": "convert the logits to float32",
    "label_negative": "leave the padding out, or let it stand at the ends of rows alone",
    "targets_count": "pass as many targets as the logits have samples, by the axis that the layout calls N",
    "length_count": "pass as many lengths as the logits have samples, by the axis that the layout calls N",
    "target_lengths_sum": "pass the number of labels of each sample, and the labels without padding",
    "batch_size": "leave out batches without samples",
    "target_length": "pass the number of labels before the padding; lengths of the input are another argument",
}
#: Rules of which a sentence may end in what to do, which is then better than what holds for all.
TOLD = ("input_length", "integers", "length_rank", "logits_dtype")
#: What to do, at the end of a sentence of a rule.
ADVICE = re.compile(r"[:;] ((?:divide|if|pass) .*)$")


@np.errstate(all="ignore")  # what huge logits overflow to is looked at, not told by NumPy
def examine(
    logits: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: Any,
    layout: Layout,
    topology: Topology,
    engine: str,
    history: Any,
) -> tuple[Diagnosis, Patient | None]:
    """The diagnosis, and the batch as it was looked at in the end (None where it is too wrong for that)."""
    layout_option(layout)
    option("topology", topology, ("ctc", "simple"))
    option("engine", engine, ("auto", *NAMES))
    losses, norms = history_of(history)
    logits = without_grad(logits)
    findings, report, batch = _turned_right(logits, (targets, input_lengths, target_lengths, blank), layout, topology)
    if batch is None:
        return Diagnosis((*findings, *_invalid(report, ())), None), None
    refused = report.refused or bool(findings)  # what they tell is another order than a loss takes
    lengths = batch.input_lengths.astype(np.int64)
    for problem in report.problems:
        if problem.rule == "input_length":
            lengths[problem.sample] = min(problem.value, 2**62)  # of uint64, perhaps
    factor = down_sampling(lengths, batch.T)
    patient = _patient(batch, findings, report, None if factor is None else -(-lengths // factor))
    patient.findings += _invalid(report, LABELS)
    _engine(patient, batch, engine)
    losses_given = np.full(patient.N, np.nan) if refused else patient.losses.copy()
    losses_given[~patient.fits] = np.nan
    _look(patient, losses, norms)
    return Diagnosis(tuple(patient.findings), _measure(patient, losses_given)), patient


#: targets, input_lengths, target_lengths, blank
Given = tuple[Any, Any, Any, Any]
#: A finding that puts the order of something right, and the batch read so.
PutRight = tuple[Finding, Report, Batch | None]


def _turned_right(
    logits: Any, given: Given, layout: Layout, topology: Topology
) -> tuple[list[Finding], Report, Batch | None]:
    """The batch as it is given, or with what stands in another's place put right: the two lengths, the axes."""
    findings: list[Finding] = []
    report, batch = report_and_batch(logits, *given, layout, topology)
    if (found := _exchange_lengths(report, logits, given, layout, topology)) is not None:
        finding, report, batch = found
        findings.append(finding)
    found = _move_axes(report, logits, given, layout, topology)
    if found is None:
        found = _exchange_layout(report, logits, given, layout, topology)
    if found is None:
        found = _exchange_classes(report, batch, logits, given, layout, topology)
    if found is not None:
        finding, report, batch = found
        findings.append(finding)
    return findings, report, batch


def _exchange_lengths(report: Report, logits: Any, given: Given, layout: Layout, topology: Topology) -> PutRight | None:
    """Input lengths and target lengths, where that alone breaks no rule."""
    targets, input_lengths, target_lengths, blank = given
    if not report.refused or input_lengths is None or target_lengths is None:
        return None
    found, batch = report_and_batch(logits, targets, target_lengths, input_lengths, blank, layout, topology)
    if found.refused or batch is None or not batch.feasible.all():
        return None
    finding = Finding(
        "swapped_lengths",
        f"{report.problems[0].message}; with the two lengths exchanged no rule is broken",
        "input_lengths and target_lengths stand in each other's place",
        "pass input_lengths (frames) first, then target_lengths (labels), or both by name",
        "certain",
    )
    return finding, found, batch


def _move_axes(report: Report, logits: Any, given: Given, layout: Layout, topology: Topology) -> PutRight | None:
    """The axes, where one order of them, and not one of the two layouts, alone breaks no rule."""
    refused = {problem.rule for problem in report.problems if problem.refused}
    if not refused & {*COUNTS, "input_length"} or refused - {*COUNTS, *LABELS, "label_range", "input_length"}:
        return None
    view = view_logits(logits, "TNC").array
    fitting = []
    for axes in ("TNC", "NTC", "NCT", "TCN", "CTN", "CNT"):
        moved = tuple(map(axes.index, "TNC"))
        found, batch = report_and_batch(view.transpose(moved), *given, "TNC", topology)
        if axes == layout or found.refused or batch is None or not batch.feasible.all():
            continue
        # lengths tell it where the longest sample ends with the last frame
        if refused & set(COUNTS) or batch.input_lengths.max() == batch.T:
            fitting.append((axes, moved, found, batch))
    if len(fitting) != 1 or fitting[0][0] in ("TNC", "NTC"):
        return None
    axes, moved, found, batch = fitting[0]
    first = next(each for each in report.problems if each.refused).message
    finding = Finding(
        "swapped_axes",
        f"{first.partition(': ')[0].partition('; by')[0]}; read as ({', '.join(axes)}), they fit",
        f"the axes of the logits are in another order: ({', '.join(axes)})",
        f'transpose the logits by {moved}, for layout="TNC"',
        "likely",
    )
    return finding, found, batch


def _exchange_layout(report: Report, logits: Any, given: Given, layout: Layout, topology: Topology) -> PutRight | None:
    """Time and batch, where by this layout there are too few or too many targets or lengths, and by the other as many
    of both as there are samples."""
    refused = {problem.rule for problem in report.problems if problem.refused}
    if not refused & {*COUNTS} or refused - {*COUNTS, *LABELS, "label_range", "input_length"}:
        return None
    other: Layout = "NTC" if layout == "TNC" else "TNC"
    found, batch = report_and_batch(logits, *given, other, topology)
    if any(problem.rule in COUNTS for problem in found.problems):
        return None
    T, N, _ = view_logits(logits, layout).shape
    counted = next(each for each in report.problems if each.rule in COUNTS).message.partition(", but")[0]
    finding = Finding(
        "swapped_axes",
        f'layout="{layout}" reads {T} time steps and {N} samples, but {counted}',
        "the axes of time and batch are swapped",
        f'pass layout="{other}", or transpose the logits'
        + (" (by (2, 0, 1) where they are (N, C, T), as a convolution leaves them)" if other == "NTC" else ""),
        "certain",
    )
    return finding, found, batch


def _exchange_classes(
    report: Report, batch: Batch | None, logits: Any, given: Given, layout: Layout, topology: Topology
) -> PutRight | None:
    """Time and classes, where no rule is broken with the two exchanged, and the network reads its labels so."""
    refused = [problem for problem in report.problems if problem.refused]
    if batch is None or {problem.rule for problem in refused} - {"label_range", "label_blank", "input_length"}:
        return None
    view = view_logits(logits, layout)
    found, exchanged = report_and_batch(view.array.transpose(2, 1, 0), *given, "TNC", topology)
    if found.refused or exchanged is None or not exchanged.feasible.all():
        return None
    as_given = None if refused else _patient(batch, [], report)
    if (losses := diagnose_undone.read_by_class(as_given, _patient(exchanged, [], found))) is None:
        return None
    now, then = losses
    first = f"{refused[0].message.partition(': ')[0]}; " if refused else ""
    axes, order = ("(N, C, T)", (0, 2, 1)) if layout == "NTC" else ("(C, N, T)", (2, 1, 0))
    finding = Finding(
        "swapped_axes",
        f"{first}with time and classes exchanged the median loss of a sample would be {then:.4g} instead of {now:.4g}",
        f"the axes of time and classes stand in each other's place: the logits are {axes}",
        f'transpose the logits by {order}, for layout="{layout}"',
        "certain" if then < 0.2 * now else "likely",
    )
    return finding, found, exchanged


def _invalid(report: Report, told_elsewhere: tuple[str, ...]) -> list[Finding]:
    found = []
    for rule, problems in report.by_rule().items():
        refused = [problem for problem in problems if problem.refused]
        if not refused or rule in told_elsewhere:
            continue
        samples = tuple(dict.fromkeys(problem.sample for problem in refused if problem.sample is not None))
        more = f" (and {len(refused) - 1} more like this)" if len(refused) > 1 else ""
        seen, cure = refused[0].message, CURES.get(rule, "")
        if rule in TOLD and (told := ADVICE.search(seen)):
            seen, cure = seen[: told.start()], told[1]
        cures = [cure] if cure else []
        if len(refused) > 1:
            cures.append("ctcbind.check lists every place")
        found.append(
            Finding(
                "invalid",
                seen + more,
                f"the rule {rule} is broken" + (f" by {quoted(samples)}" if samples else "") + ": a loss refuses this",
                "; ".join(cures),
                "certain",
                samples,
            )
        )
    return found


def _patient(
    batch: Batch, findings: list[Finding], report: Report, divided: npt.NDArray[np.int64] | None = None
) -> Patient:
    view = batch.logits
    labels = [batch.targets(n).tolist() for n in range(batch.N)]
    frames = batch.input_lengths.astype(np.int64)
    wrong = {problem.sample for problem in report.problems if problem.rule in ("input_length", "length_negative")}
    unknown = frozenset(sample for sample in wrong if sample is not None)
    frames[list(unknown)] = batch.T  # the most that it can be
    if divided is not None:
        frames, unknown = np.minimum(divided, batch.T), frozenset()
    x = as_host(view.array)
    return Patient(x, labels, frames, batch.blank, batch.topology, view.dtype, findings, unknown=unknown)


def _engine(p: Patient, batch: Batch, engine: str) -> None:
    if engine == "auto":
        try:
            choose(engine, batch)
        except EngineUnsupported as error:
            diagnose_output.engine_limit(p, str(error).partition("\n")[2].strip() or str(error), engine)
    elif (reason := refusal(get(engine), batch)) is not None:
        diagnose_output.engine_limit(p, reason, engine)


def _look(p: Patient, losses: list[float], norms: list[float]) -> None:
    diagnose_input.swapped_axes(p)
    diagnose_padding.padded_frames(p)
    diagnose_labels.frame_labels(p)
    diagnose_input.wrong_labels(p)
    diagnose_labels.added_up(p)
    diagnose_input.not_finite(p)
    diagnose_input.masked(p)
    diagnose_softmax.probabilities(p)
    diagnose_activation.activation(p)
    diagnose_shifted.shifted(p)
    diagnose_ties.ties(p)
    diagnose_undone.moved_by_one(p)
    diagnose_lengths.short_lengths(p)
    diagnose_order.exchanged_lengths(p)
    diagnose_lengths.infeasible(p)
    diagnose_undone.mixed_axes(p)
    diagnose_neighbours.reshaped(p)
    diagnose_undone.padded_in_front(p)
    diagnose_lengths.cut_short(p)
    diagnose_padding.said_in_padding(p)
    diagnose_undone.shifted_blank(p)
    diagnose_output.blank_unused(p)
    diagnose_undone.other_topology(p)
    diagnose_labels.joined(p)
    diagnose_labels.rewritten(p)
    diagnose_activation.scaled(p)
    here = p.grad_norms
    diagnose_steps.exploding(p, losses, norms, here)
    diagnose_output.constant_output(p)
    diagnose_output.all_blank(p)
    diagnose_output.dominant_class(p)
    diagnose_mismatch.mismatch(p)
    diagnose_standstill.unreached(p, norms, here)
    diagnose_standstill.accumulated(p, losses, norms)
    diagnose_steps.negative(p, losses)
    diagnose_steps.infinite(p, losses, norms)
    diagnose_standstill.stalled(p, losses)
    diagnose_mismatch.unexplained(p)
    diagnose_mismatch.too_sure(p)


def _measure(p: Patient, given: Floats) -> Measures:
    whole, p = p, p.without_lost()
    losses = given[[n for n in range(whole.N) if n not in whole.lost and given[n] == given[n]]]
    norms = iter(p.grad_norms if p.N else ())
    frames, labels = p.count, sum(map(len, p.labels))
    blank = float(p.posterior_of(p.blank).mean()) if frames else float("nan")
    wins = (p.best == p.blank) & ((p.surest * p.C > 1 + 1e-9) | (p.C == 1))  # where all classes are alike none wins
    return Measures(
        frames=frames,
        labels=labels,
        blank_wins=float(wins.mean()) if frames else float("nan"),
        blank_posterior=blank,
        label_posterior=1 - blank,
        label_share=labels / frames if frames else float("nan"),
        loss=p.loss,
        uniform_loss=p.uniform_loss,
        constant_loss=p.constant_loss,
        grad_norms=tuple(float("nan") if n in whole.lost else next(norms) for n in range(whole.N)),
        left_out=len(whole.lost),
        given_loss=float((losses / losses.size).sum()) if losses.size else float("nan"),
    )
