"""A report in words: aligned tables for a terminal, the table of ratios for the README."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .peers import OURS, PEERS
from .results import Report, Timing

__all__ = ["markdown", "number", "render", "text"]

#: With less of a processor than this the machine was not ours alone.
_QUIET = 0.95
_MODES = ((True, "loss and gradient"), (False, "loss only"))


def number(value: float) -> str:
    """Three digits that count, without an exponent from 0.0001 on."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.9995 or not value else f"{value:#.3g}"


def text(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 2) -> str:
    """Rows under their heads; the first `left` columns stand to the left, the others to the right."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "  ".join(row[i].ljust(width) if i < left else row[i].rjust(width) for i, width in enumerate(widths)).rstrip()
        for row in lines
    )


def render(report: Report) -> str:
    """Everything that was measured, and what differs first."""
    lines = [_machine(report), *_notes(report), ""]
    for threads in dict.fromkeys(timing.threads for timing in report.timings):
        for with_grad, mode in _MODES:
            timings = [t for t in report.timings if t.threads == threads and t.with_grad == with_grad]
            if timings:
                title = f"{mode}, {threads} thread{'s' * (threads > 1)}"
                lines += [f"{title}: milliseconds, median of a call [quartiles], and how many times ctcbind's"]
                lines += ["", _hot(report, timings), ""]
                lines += [f"{title}: after 20 ms of rest", "", _others(report, timings, "cold"), ""]
                if threads == 1:  # more of them spin while they wait, and that is no work
                    head = f"{title}: processor milliseconds of a call, without the time that other programs took"
                    lines += [head, "", _others(report, timings, "processor"), ""]
    if report.memory:
        lines += ["peak memory of a call beside inputs and results, MB, loss and gradient", "", _memory(report), ""]
    return "\n".join(lines).rstrip()


def _machine(report: Report) -> str:
    said = report.machine
    load = f"{said['load']} at the beginning, {said.get('load_at_end')} at the end"
    head = f"{said['processor']}, {said['processors']} processors (load {load}), Python {said['python']}"
    versions = ", ".join(f"{PEERS[name].title} {version}" for name, version in report.versions.items() if name != OURS)
    return f"{head}, NumPy {said['numpy']}, ctcbind {said['ctcbind']}" + (f"; {versions}" if versions else "")


#: What a case says of its logits, where it is not the usual.
_DRAWN = (
    ("sure", 0, "logits N(0, 1), and the right class {:g} nats above"),
    ("blank", 0, "logits N(0, 1), and the blank {:g} nats above"),
    ("scale", 1, "logits {:g} times as large"),
)


def _notes(report: Report) -> list[str]:
    lines = [
        said.format(value)
        for field, usual, said in _DRAWN
        for value in dict.fromkeys(getattr(case, field) for case in report.cases)
        if value != usual
    ]
    lines += [f"absent: {name}: {reason}" for name, reason in report.absent.items() if name not in report.versions]
    for timing in report.timings:
        check = timing.check
        if not check.same:
            said = f"loss by {check.loss_error:.1e} (allowed {check.loss_limit:.1e})"
            if check.grad_error is not None:
                said += f", gradient by {check.grad_error:.1e} (allowed {check.grad_limit:.1e})"
            where = f"{timing.case}, {timing.threads} thread{'s' * (timing.threads > 1)}"
            lines.append(f"DIFFERS from the reference: {timing.peer} on {where}: {said}")
    lines += _busy(report)
    if report.same:
        lines.append("all losses and gradients are the reference's, each within its stated bounds")
    return lines


def _busy(report: Report) -> list[str]:
    if report.busy is None or report.busy >= _QUIET:
        return []
    return [
        f"BUSY: on one thread ctcbind had {report.busy:.0%} of a processor; other programs ran, long calls suffered "
        "more than short ones, and threads that wait for each other most"
    ]


def _by_case(
    report: Report, timings: list[Timing], ours: Callable[[Timing], list[str]], theirs: Callable[[Timing], list[str]]
) -> list[list[str]]:
    """One row a case: its name and size, ctcbind's cells, those of each peer."""
    found = {(timing.case, timing.peer): timing for timing in timings}
    rows = []
    for case in report.cases:
        if any((case.name, name) not in found for name in report.versions):
            continue  # the run was cut off before
        row = [case.name, case.size]
        for name in report.versions:
            timing = found[case.name, name]
            row += ours(timing) if name == OURS else theirs(timing)
        rows.append(row)
    return rows


def _hot(report: Report, timings: list[Timing]) -> str:
    head = ["size", "T, L, C, N"]
    for name in report.versions:
        head += ["ctcbind", "[quartiles]", "roofline", "cores"] if name == OURS else [name, "×"]

    def ours(timing: Timing) -> list[str]:
        hot = timing.hot
        quartiles = f"[{number(hot.lower)} {number(hot.upper)}]"
        return [number(hot.median), quartiles, f"{timing.roofline:.0%}", f"{timing.cores:.1f}"]

    return text(head, _by_case(report, timings, ours, lambda t: [number(t.hot.median), _times(t)]))


def _times(timing: Timing) -> str:
    """The ratio, marked where the peer's answer is another one."""
    return "-" if timing.ratio is None else number(timing.ratio.median) + "*" * (not timing.check.same)


def _others(report: Report, timings: list[Timing], which: str) -> str:
    """The table of the other times that a Timing has: "cold" or "processor"."""
    head = ["size", "T, L, C, N"]
    for name in report.versions:
        head += ["ctcbind", "[quartiles]"] if name == OURS else [name, "×"]

    def ours(timing: Timing) -> list[str]:
        time = getattr(timing, which)
        return [number(time.median), f"[{number(time.lower)} {number(time.upper)}]"]

    def theirs(timing: Timing) -> list[str]:
        ratio = getattr(timing, f"{which}_ratio")
        return [number(getattr(timing, which).median), "-" if ratio is None else number(ratio.median)]

    return text(head, _by_case(report, timings, ours, theirs))


def _memory(report: Report) -> str:
    head = ["size", "T, L, C, N", "logits"]
    for name in report.versions:
        head += [name, "of logits"] if name == OURS else [name]
    rows = []
    found = {(each.case, each.peer): each.extra for each in report.memory}
    for case in report.cases:
        if any((case.name, name) not in found for name in report.versions):
            continue
        row = [case.name, case.size, f"{case.logits_bytes / 1e6:.1f}"]
        for name in report.versions:
            extra = found[case.name, name]
            row += [f"{extra / 1e6:.1f}"] + ([f"{extra / case.logits_bytes:.1%}"] if name == OURS else [])
        rows.append(row)
    return text(head, rows)


def markdown(report: Report) -> str:
    """The table of ratios: for each size and mode how many times ctcbind's time the peers take, by threads.

    Raises ValueError where ctcbind was not timed, or the run was cut off.
    """
    if len(report.timings) != len({(t.threads, t.with_grad) for t in report.timings}) * len(report.cases) * len(
        report.versions
    ):
        raise ValueError("the run was cut off: its table of ratios would have gaps")
    if OURS not in report.versions:
        raise ValueError("ctcbind was not timed: there are no ratios")
    peers = [name for name in report.versions if name != OURS]
    counts = list(dict.fromkeys(timing.threads for timing in report.timings))
    found = {(t.case, t.threads, t.with_grad, t.peer): t for t in report.timings}
    blocks = []
    for with_grad, mode in _MODES:
        if not any(timing.with_grad == with_grad for timing in report.timings):
            continue
        many = f", {' / '.join(map(str, counts))} threads" if len(counts) > 1 else f", {counts[0]} thread(s)"
        rows = [["T, L, C, N", f"ctcbind, ms{many}", *(PEERS[name].title for name in peers)]]
        for case in report.cases:
            mine = [number(found[case.name, count, with_grad, OURS].hot.median) for count in counts]
            row = [case.size, " / ".join(mine)]
            for name in peers:
                row.append(" / ".join(f"×{_times(found[case.name, count, with_grad, name])}" for count in counts))
            rows.append(row)
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        blocks.append(
            "\n".join([f"{mode[0].upper()}{mode[1:]}:", "", lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])
        )
    versions = "; ".join(f"{PEERS[name].title} {report.versions[name]}" for name in peers)
    said = report.machine
    blocks.append(f"{said['processor']}, {said['processors']} processors, float32; {versions}.")
    return "\n\n".join([*(f"**{line}.**" for line in _busy(report)), *blocks])
