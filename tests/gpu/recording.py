"""Experiments run in processes of their own, and what they tell put on record."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments import EXPERIMENTS, MARK, MISTAKE, Experiment, load

import ctcbind

load()

SCRIPT = Path(__file__).with_name("experiments.py")
#: What an experiment may take at most, in seconds. One that hangs is ended, and that is on record too.
LIMIT = 120
FILE = "experiments.jsonl"


def record(name: str, *, limit: float = LIMIT) -> dict[str, Any]:
    """Runs every variant of an experiment; raises AssertionError where the experiment itself is at fault.

    Whatever the device does, each variant ends in one of three ways, which `ended` says: "answered", "died" (with
    the signal or the exit status, and the end of what the process said), or "was ended" for one that hung.
    """
    known = EXPERIMENTS[name]
    machine: dict[str, Any] = {}
    told: list[dict[str, Any]] = []
    while len(told) < len(known.variants):
        start = len(told)
        lines, ending, _ = _run([], known, start, 1 if known.alone else len(known.variants) - start, limit)
        for line in lines:
            machine = line.get("machine", machine)
            if "observed" in line:
                entry = {"variant": known.variants[line["variant"]], "ended": "answered", "observed": line["observed"]}
                told.append({**entry, "device_lost": True} if line["device_lost"] else entry)
        begun = [line["begin"] for line in lines if "begin" in line]
        if ending is not None:
            assert begun, f"{name}: the process ended before anything was asked: {ending}"
            if len(told) == begun[-1]:
                told.append({"variant": known.variants[begun[-1]], **ending})
        assert len(told) > start, f"{name}: nothing was told, and nothing ended: {lines}"
    if known.sanitize:
        _sanitize(known, told, limit)
    return {
        "experiment": name,
        "question": known.question,
        "believed": known.believed,
        "observed": told,
        **machine,
        "ctcbind": ctcbind.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _run(
    prefix: list[str], known: Experiment, start: int, count: int, limit: float
) -> tuple[list[dict[str, Any]], dict[str, Any] | None, str]:
    """(what the process told, how it ended where it did not end well, all that it printed)."""
    command = [*prefix, sys.executable, str(SCRIPT), known.name, str(start), str(count)]
    package = str(Path(ctcbind.__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), package]))
    ending: dict[str, Any] | None = None
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env={**os.environ, "PYTHONPATH": path}, check=False
        )
        out, err, code = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        out, err, code = (_text(error.stdout), _text(error.stderr), 0)
        ending = {"ended": "was ended", "seconds": limit, "said": err[-2000:]}
    assert code != MISTAKE, f"{known.name} is at fault itself:\n{err}"
    if code != 0:
        reason = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        ending = {"ended": "died", "by": reason, "said": err[-2000:]}
    return [json.loads(line[len(MARK) :]) for line in out.splitlines() if line.startswith(MARK)], ending, out + err


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _sanitize(known: Experiment, told: list[dict[str, Any]], limit: float) -> None:
    """Adds to each variant what compute-sanitizer counts, where there is one."""
    sanitizer = shutil.which("compute-sanitizer")
    for number, entry in enumerate(told):
        if sanitizer is None:
            entry["sanitizer"] = "there is no compute-sanitizer"
            continue
        # its report goes to the process's own output, and its exit status is not the program's
        command = [sanitizer, "--tool", "memcheck", "--error-exitcode", "0", "--print-limit", "1"]
        _, ending, output = _run(command, known, number, 1, limit)
        errors = re.search(r"ERROR SUMMARY: (\d+) error", output)
        entry["sanitizer"] = {"errors": int(errors[1]) if errors else None, "ended": ending or {"ended": "answered"}}
        first = re.search(r"=+ (Invalid|Program hit|Uninitialized|Misaligned).*", output)
        if first:
            entry["sanitizer"]["first"] = first[0]


def write(folder: Path, entry: dict[str, Any]) -> None:
    """Adds a record to the folder's file: one line of JSON for each experiment."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry, allow_nan=False) + "\n")


def check(entry: dict[str, Any]) -> None:
    """What is true of a record whatever the device does."""
    known = EXPERIMENTS[entry["experiment"]]
    assert [each["variant"] for each in entry["observed"]] == [dict(each) for each in known.variants]
    for each in entry["observed"]:
        assert each["ended"] in ("answered", "died", "was ended")
        if each["ended"] == "answered":
            assert each["observed"], "an answer says something"
        else:
            assert each.get("by") or each.get("seconds")
    for key in ("cudnn", "cudnn_file", "device", "driver", "cupy", "ctcbind", "date"):
        assert entry[key], key
    assert re.fullmatch(r"\d+\.\d+\.\d+", entry["cudnn"])
    assert datetime.datetime.fromisoformat(entry["date"]).tzinfo is not None
    assert json.loads(json.dumps(entry, allow_nan=False)) == entry
