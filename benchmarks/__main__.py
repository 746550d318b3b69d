"""`python -m benchmarks cpu | accuracy | growth | gpu`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# python -m puts the checkout first, where ctcbind has no compiled part unless it was built in place
if sys.path and Path(sys.path[0] or ".").resolve() == ROOT:
    sys.path.append(sys.path.pop(0) or str(ROOT))

from ctcbind.plot import check_path  # noqa: E402

from . import accuracy, cases, cpu, gpu, growth, pages, peers, tables  # noqa: E402
from .interleave import positive  # noqa: E402
from .plot import draw  # noqa: E402
from .results import Report  # noqa: E402
from .worker import Ended, Process  # noqa: E402

INTERRUPTED = 130  #: the exit status by which a shell knows that Ctrl-C ended a command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        made = commands.add_parser(name, help=text, description=text)
        made.add_argument("--peers", nargs="+", metavar="NAME", choices=list(peers.PEERS), help="; ".join(peers.PEERS))
        made.add_argument("--write", action="store_true", help="renew this table where README.md files have its marks")
        return made

    one = command("cpu", "time loss and gradient, and measure memory, of ctcbind and its peers on this processor")
    one.add_argument(
        "--sizes", nargs="+", metavar="SIZE", help="TxLxCxN, or: " + ", ".join(c.name for c in cases.CASES)
    )
    one.add_argument("--threads", nargs="+", type=positive, default=[1, 2], metavar="K")
    one.add_argument("--mode", choices=["both", "gradient", "loss"], default="both")
    one.add_argument(
        "--sure",
        type=_nats,
        default=0.0,
        metavar="NATS",
        help="a trained network's logits: the right class so far above",
    )
    one.add_argument(
        "--blank",
        type=_nats,
        default=0.0,
        metavar="NATS",
        help="logits early in training: the blank so far above at all frames",
    )
    one.add_argument("--scale", type=_nats, default=1.0, metavar="S", help="logits S times as large")
    one.add_argument("--rounds", type=positive, metavar="K", help=f"rounds a size and mode ({cpu.FULL.rounds})")
    one.add_argument("--no-memory", action="store_true", help="leave the measurement of memory out")
    one.add_argument("--quick", action="store_true", help="small sizes and two rounds: does it run at all?")
    one.add_argument("--json", metavar="FILE", help="write everything that was measured, as soon as it was")
    one.add_argument("--plot", metavar="FILE", help="draw a picture (.png, .svg, .pdf); needs matplotlib")
    one.add_argument("--from", metavar="FILE", dest="source", help="measure nothing; take what --json wrote")

    two = command("accuracy", "errors of losses and gradients against float64 log space; exit status 1 beyond promise")
    two.add_argument("--every", action="store_true", help="every size with every kind of logits (minutes)")
    two.add_argument("--quick", action="store_true", help="the small size alone")
    two.add_argument("--seed", type=int, default=0)

    three = command("growth", "exponents of the time in T, L, C and N")
    three.add_argument("--threads", type=positive, default=1, metavar="K")
    three.add_argument("--mode", choices=["both", "gradient", "loss"], default="both")
    three.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")

    text = "time loss and gradient on a CUDA device, beside cuDNN, warp-ctc and PyTorch"
    four = commands.add_parser("gpu", help=text, description=text)
    four.add_argument("--sizes", nargs="+", metavar="SIZE", help=", ".join(gpu.NAMES))
    four.add_argument("--peers", nargs="+", metavar="NAME", choices=gpu.PEERS, default=gpu.PEERS)
    four.add_argument("--rounds", type=positive, default=15, metavar="K")
    four.add_argument("--quick", action="store_true", help="small sizes and two rounds: does it run at all?")
    four.add_argument("--json", metavar="FILE", help="write what was measured")
    return parser


def _nats(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a finite number from 0 on")
    return number


def main(arguments: Sequence[str] | None = None, process: type = Process) -> int:
    """Run a command; 0, 1 where an answer differs or a promise is not kept, 2 for wrong usage, or where a process ends
    or memory runs out, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.command == "cpu":
            return _cpu(options, process)
        if options.command == "gpu":
            return _gpu(options)
        return _accuracy(options, process) if options.command == "accuracy" else _growth(options, process)
    except (ValueError, OSError, ImportError, MemoryError, Ended, peers.Absent, gpu.NoDevice) as error:
        _complain(options.command, str(error))
        return 2
    except KeyboardInterrupt:
        _complain(options.command, "stopped")
        return INTERRUPTED


def _complain(command: str, text: str) -> None:
    clear = "\r\x1b[K" * sys.stderr.isatty()  # what says how far it is
    print(f"{clear}python -m benchmarks {command}: {text}", file=sys.stderr)


def _modes(options: argparse.Namespace) -> list[bool]:
    return {"both": [True, False], "gradient": [True], "loss": [False]}[options.mode]


def _cpu(options: argparse.Namespace, process: type) -> int:
    less = options.quick or options.sizes or options.mode != "both"
    if options.source:
        report = Report.read(options.source)
        modes = {timing.with_grad for timing in report.timings}
        less = less or {case.name for case in report.cases} != {case.name for case in cases.CASES} or len(modes) < 2
    known = report.cases if options.source else [options]
    if options.write and any(each.sure or each.blank or each.scale != 1 for each in known):
        raise ValueError("the table in the README is of logits without --sure, --blank and --scale")
    if options.write and less:
        raise ValueError("the table in the README is of all sizes and both modes, without --quick")
    if options.plot:
        check_path(options.plot)  # before anything is measured: matplotlib may be missing, or the folder
    if not options.source:
        names = options.sizes or [case.name for case in (cases.QUICK if options.quick else cases.CASES)]
        plan = cpu.HASTE if options.quick else cpu.FULL
        if options.rounds:
            plan = plan.with_rounds(options.rounds)
        if options.no_memory:
            plan = plan.without_memory()
        drawn = {"sure": options.sure, "blank": options.blank, "scale": options.scale}
        chosen = [replace(cases.find(name), **drawn) for name in dict.fromkeys(names)]

        def keep(report: Report) -> None:
            if options.json:
                report.write(options.json)

        threads = sorted(set(options.threads))
        report = cpu.measure(chosen, _peers(options), threads, _modes(options), plan, process, keep)
    print(tables.render(report))
    if options.json:
        report.write(options.json)  # with the load at the end
    if options.plot:
        draw(report, options.plot)
    if options.write:
        pages.renew("cpu", tables.markdown(report))
    return 0 if report.same else 1


def _gpu(options: argparse.Namespace) -> int:
    known = cases.QUICK[:2] if options.quick else cases.CASES
    names = options.sizes or ([case.name for case in known] if options.quick else gpu.NAMES)
    run = gpu.measure(names, options.peers, 2 if options.quick else options.rounds, known)
    print(gpu.render(run))
    if options.json:
        Path(options.json).write_text(json.dumps(run.to_dict(), indent=1), encoding="utf-8")
    return 0


def _accuracy(options: argparse.Namespace, process: type) -> int:
    if options.write and options.quick:
        raise ValueError("the table in benchmarks/README.md is made without --quick")
    rows = accuracy.every() if options.every else accuracy.ROWS
    if options.quick:
        rows = tuple((case, name) for case, name in rows if case.T == 150)[:4]
    found, versions = accuracy.measure(rows, _peers(options), process, seed=options.seed)
    print(accuracy.render(found, versions))
    if options.write:
        pages.renew("accuracy", accuracy.markdown(found, versions))
    return 0 if all(row.kept for row in found) else 1


def _growth(options: argparse.Namespace, process: type) -> int:
    if options.write and (options.quick or options.mode != "both"):
        raise ValueError("the table in benchmarks/README.md is of both modes, without --quick")
    names = _peers(options) if options.peers else [peers.OURS]
    found, _ = growth.measure(names, _modes(options), options.threads, options.quick, process)
    print(growth.render(found, options.threads, options.quick))
    if options.write:
        pages.renew("growth", growth.markdown(found))
    return 0


def _peers(options: argparse.Namespace) -> list[str]:
    """Those asked for, which have to be there, or all, of which some may be missing."""
    for name in options.peers or ():
        if (reason := peers.PEERS[name].missing()) is not None:
            raise peers.Absent(f"{name}: {reason}")
    return list(dict.fromkeys(options.peers or peers.DEFAULT))


if __name__ == "__main__":
    sys.exit(main())
