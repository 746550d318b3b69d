"""The command: `ctcbind compare`, `diagnose`, `doctor` and `lattice`; also as `python -m ctcbind`."""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from . import __version__
from .engines import NAMES
from .errors import CtcbindError, InvalidInput, counted
from .peers import NAMES as PEERS
from .threads import get_num_threads

__all__ = ["main"]

if TYPE_CHECKING:
    from .trellis import Word

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

EXAMPLES = """\
examples:
  ctcbind compare                         two problems that are always there
  ctcbind compare batch.npz               your own: numpy.savez("batch.npz", logits=..., targets=...)
  ctcbind compare --json | jq .agree      for machines
  ctcbind diagnose batch.npz              why a network does not learn, as far as a batch shows it
  ssh node cat batch.npz | ctcbind diagnose -      the same from standard input
  ctcbind doctor                          what this machine has, and whether it computes rightly
  ctcbind lattice --text apple --out apple.png     the paths of one word, as a picture

exit status: 0 all is well; 1 engines disagree beyond tolerance, something harmful was found, or a self-test failed;
2 wrong usage or input, or one that --engines or --peers names did not run
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status; argparse leaves by SystemExit for --help, --version and usage."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.command is None:
        if sys.stderr is not None:
            parser.print_usage(sys.stderr)
        _tell("ctcbind: say what to do: compare, diagnose, doctor or lattice")
        return 2
    if sys.stdout is None:
        _tell("ctcbind: the standard output is closed")
        return 2
    try:
        get_num_threads()  # a wrong CTCBIND_NUM_THREADS would look like an engine's failure
        status: int = given.run(given)
        sys.stdout.flush()
        return status
    except CtcbindError as error:
        _tell(f"ctcbind: {error}")
        return 2
    except MemoryError as error:
        _tell(f"ctcbind: not enough memory: {error}")
        return 2
    except BrokenPipeError:  # the reader left early (ctcbind compare | head)
        _nowhere()
        return 141
    except OSError as error:  # the disk is full
        _nowhere()
        _tell(f"ctcbind: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ctcbind",
        description="CTC loss and gradient from every engine on this machine, behind one meaning.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ctcbind {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="{compare,diagnose,doctor,lattice}")
    _add_compare(commands)
    _add_diagnose(commands)
    _add_doctor(commands)
    _add_lattice(commands)
    return parser


def _add_compare(commands: Commands) -> None:
    compare = commands.add_parser(
        "compare",
        help="losses, gradients and times of every engine on one batch",
        description="Losses, gradients and times of every engine on one batch, against the float64 reference.",
    )
    compare.add_argument(
        "batch",
        nargs="?",
        help="a .npz file with logits and targets, and where needed target_lengths, input_lengths, blank, layout and "
        "topology; - for standard input (without it: two problems that are always there)",
    )
    compare.add_argument("--engines", metavar="A,B", type=_engines, help=f"only these of {', '.join(NAMES)}")
    compare.add_argument(
        "--peers",
        metavar="A,B",
        type=_peers,
        default=[],
        help=f"these libraries beside them, called as their users call them: {', '.join(PEERS)}",
    )
    compare.add_argument("--json", action="store_true", help="print JSON instead of tables")
    compare.add_argument("--plot", metavar="OUT.PNG", help="draw losses and gradient differences into this file")
    compare.set_defaults(run=_compare)


def _add_diagnose(commands: Commands) -> None:
    diagnose = commands.add_parser(
        "diagnose",
        help="what is wrong with a batch, or with what the network says to it",
        description="What is wrong with a batch, or with what the network says to it: what was seen, what it means, "
        "what to do, and how sure that is.",
    )
    diagnose.add_argument(
        "batch",
        help="a .npz file as for compare, or -; it may hold history as well: the losses of the steps before (mean nats "
        "a sample), or an array with the fields loss and grad_norm, or (K, 2) of the two",
    )
    diagnose.add_argument("--json", action="store_true", help="print JSON instead of text")
    diagnose.add_argument(
        "--plot",
        metavar="OUT.PNG",
        help="draw the blank over time and the label occupancies of four samples, those of the findings first",
    )
    diagnose.set_defaults(run=_diagnose)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="versions, libraries, contracts and a self-test",
        description="What this machine has: versions, libraries and how they were found, what each engine promises, "
        "and a self-test on published values.",
    )
    doctor.add_argument("--json", action="store_true", help="print JSON instead of tables")
    doctor.set_defaults(run=_doctor)


def _add_lattice(commands: Commands) -> None:
    lattice = commands.add_parser(
        "lattice",
        help="the lattice of one word as a picture",
        description="The lattice of one word: states down, time across, the moves that paths make, how many of all "
        "paths are in a state as its shade, the best path as a line.",
    )
    lattice.add_argument(
        "scores",
        nargs="?",
        help="a .npz file with logits (T, C) and symbols, one letter a class, and where needed blank (without it: "
        "random scores)",
    )
    lattice.add_argument("--text", required=True, help="the word")
    lattice.add_argument("--out", required=True, metavar="OUT.PNG", help="the picture: .png, .svg or .pdf")
    lattice.add_argument(
        "--frames",
        type=int,
        metavar="T",
        help="time steps of the random scores (default: some more than the word needs)",
    )
    lattice.add_argument("--seed", type=int, help="seed of the random scores (default 0)")
    lattice.add_argument("--topology", choices=("ctc", "simple"), default="ctc", help="simple: repeats do not merge")
    lattice.set_defaults(run=_lattice)


def _engines(text: str) -> list[str]:
    return _names(text, "engine", NAMES)


def _peers(text: str) -> list[str]:
    return _names(text, "peer", PEERS)


def _names(text: str, what: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"{name!r} is no {what}; there are {', '.join(known)}")
    if not names:
        raise argparse.ArgumentTypeError(f"it names no {what}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))


def _compare(given: argparse.Namespace) -> int:
    from .compare import compare
    from .compare_text import render, summary
    from .problems import KEYS_WITH_HISTORY, STANDARD_INPUT, default_problems, load

    if given.plot is not None:
        from .plot import check_path, draw

        check_path(given.plot)  # a missing matplotlib is told before the work, not after it
    problems = default_problems()
    if given.batch is not None:
        problem = load(given.batch, known=KEYS_WITH_HISTORY)
        problem.pop("history", None)
        problems = ((STANDARD_INPUT if given.batch == "-" else given.batch, problem),)
    results = [compare(**problem, engines=given.engines, peers=given.peers, name=name) for name, problem in problems]
    if given.json:
        _print(json.dumps(summary(results), indent=2))
    else:
        _print(render(results, _width()))
    if given.plot is not None:
        draw(results, given.plot)
        _tell(f"drawn: {given.plot}")
    if not any(each.ran for each in results):
        raise InvalidInput("none of the engines asked for can run this here")
    if not given.json:
        _print("\n" + _verdict(results))
    ran = {row.engine for each in results for row in each.ran}
    if missing := [name for name in (*(given.engines or ()), *given.peers) if name not in ran]:
        raise InvalidInput(f"of what was asked for, {' and '.join(missing)} did not run")
    return 0 if all(each.agree for each in results) else 1


def _verdict(results: Sequence[Any]) -> str:
    ran = list(dict.fromkeys(row.label for each in results for row in each.ran))
    if not all(each.agree for each in results):
        wrong = [row.label for each in results for row in each.rows if row.status in ("differs", "failed")]
        return f"DISAGREEMENT with the float64 reference beyond tolerance: {', '.join(dict.fromkeys(wrong))}."
    if ran == ["reference"]:
        return "Only the reference ran: there is nothing to compare it with."
    if not any(math.isfinite(loss) for each in results for loss in each.reference_losses):
        return "All agree that no loss is finite; ctcbind diagnose may say why."
    others = ", ".join(name for name in ran if name != "reference")
    return f"Agreement with the float64 reference within tolerance: {others}."


def _diagnose(given: argparse.Namespace) -> int:
    from .diagnose_batch import examine
    from .problems import KEYS_WITH_HISTORY, load

    if given.plot is not None:
        from .plot import check_path

        check_path(given.plot)
    problem: dict[str, Any] = {"input_lengths": None, "target_lengths": None, "blank": 0, "history": None}
    problem |= {"layout": "TNC", "topology": "ctc"} | load(given.batch, known=KEYS_WITH_HISTORY)
    found, patient = examine(**problem, engine="auto")
    _print(json.dumps(found.to_dict(), indent=2) if given.json else str(found))
    if given.plot is not None:
        if patient is None:
            raise InvalidInput("there is nothing to draw: the batch is too wrong to be looked at")
        from .finding import quoted
        from .plot_diagnosis import draw

        shown = draw(patient, given.plot)
        _tell(f"drawn: {given.plot} ({quoted(shown)} of {patient.N})")
    return 0 if found.ok else 1


def _doctor(given: argparse.Namespace) -> int:
    from .doctor import examine, render

    examination = examine()
    _print(json.dumps(examination.to_dict(), indent=2) if given.json else render(examination, _width()))
    return 0 if examination.healthy else 1


def _lattice(given: argparse.Namespace) -> int:
    from .plot import check_path
    from .trellis import draw

    check_path(given.out)
    word = _word(given)
    complete = draw(word, given.out)
    for line in _about(word):
        _print(line)
    _tell(f"drawn: {given.out}" + ("" if complete else " (matplotlib's font lacks some of the letters)"))
    return 0


def _word(given: argparse.Namespace) -> Word:
    """The word to draw: with the scores of a file, or with random ones."""
    from .trellis import random_word, scored_word

    try:
        given.text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"--text cannot be read in this locale's encoding: {error}", rule="text") from error
    if given.scores is not None:
        if given.frames is not None:
            raise InvalidInput("--frames is for random scores; those of the file have their own number", rule="frames")
        if given.seed is not None:
            raise InvalidInput(
                "--seed is for random scores; those of the file are given", rule="seed", value=given.seed
            )
        return scored_word(given.text, given.scores, topology=given.topology)
    seed = given.seed or 0
    if seed < 0:
        raise InvalidInput(f"--seed is {seed}; it must be at least 0", rule="seed", value=seed)
    return random_word(given.text, frames=given.frames, seed=seed, topology=given.topology)


def _about(word: Word) -> Iterator[str]:
    """The lines about a word's lattice that stand beside its picture."""
    from .trellis import loss_of

    lattice, best = word.lattice(), word.best_path()
    loss, log_p = loss_of(lattice), float(best.log_p[0])
    T, S = lattice.log_gamma.shape[1:]
    yield f"{word.text}: {counted(T, 'time step')}, {counted(S, 'state')}, loss {loss:.4f} nats"
    if not log_p > -math.inf:  # or NaN
        yield word.why_no_path()
        return
    share = 100 * math.exp(log_p + loss)
    percent = f"{share:.1f}" if share >= 0.1 else f"{share:.2g}"
    yield f"best path: {word.spell(best.classes[0])}, ln p {log_p:.4f}, {percent}% of all paths' probability"
    if word.unusual_blank is not None:
        yield f"the blank is written {word.unusual_blank}"


def _width() -> int | None:
    """Columns of the terminal; None where a file or another program reads."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or "COLUMNS" in os.environ else None


def _print(text: str) -> None:
    _write(text, sys.stdout)


def _tell(text: str) -> None:
    """On standard error, or not at all where that is closed: print(file=None) would write among the results."""
    if sys.stderr is not None:
        _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Prints what the stream's encoding lacks as backslash escapes, where Python would give up."""
    encoding = getattr(stream, "encoding", None) or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream)


def _nowhere() -> None:
    """What Python flushes at exit has nowhere to go."""
    try:
        out = sys.stdout.fileno()
    except OSError:  # a stream of who calls main()
        return
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), out)


if __name__ == "__main__":
    sys.exit(main())
