"""The experiments on cuDNN: what was asked, what is believed, and code that finds out. Run as a script, one of them.

Each has variants, one for each combination of its axes. The script prints a line for each variant as it begins and
another with what was observed, so that a process that dies has said where. A variant after which the device no
longer answers ends the process; whoever started it starts the next one (recording.py).
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "@@ "
#: The exit status for a mistake in an experiment itself, which is no observation.
MISTAKE = 70


@dataclass(frozen=True)
class Experiment:
    """`ask(lab, **variant)` gives what is observed, as JSON. `alone`: each variant in a process of its own, for it
    may spoil the next; `sanitize`: once more under compute-sanitizer, where there is one."""

    name: str
    question: str
    believed: str
    ask: Callable[..., dict[str, Any]]
    variants: tuple[dict[str, Any], ...]
    alone: bool
    sanitize: bool
    lab: bool


EXPERIMENTS: dict[str, Experiment] = {}


def experiment(
    name: str,
    question: str,
    believed: str,
    *,
    alone: bool = False,
    sanitize: bool = False,
    lab: bool = True,
    **axes: tuple[Any, ...],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Registers a function as an experiment, whose keyword arguments take every combination of the axes."""

    def register(ask: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        variants = tuple(dict(zip(axes, values)) for values in itertools.product(*axes.values()))
        assert name not in EXPERIMENTS, name
        EXPERIMENTS[name] = Experiment(name, question, believed, ask, variants, alone, sanitize, lab)
        return ask

    return register


def tell(**line: Any) -> None:
    from cudnn_lab import finite_json

    print(MARK + json.dumps(finite_json(line), allow_nan=False), flush=True)


def machine(cupy: Any) -> dict[str, Any]:
    """Which library, device and driver an answer is from."""
    from ctcbind.bindings import cudnn

    library = cudnn.load()
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    name = properties["name"]
    return {
        "cudnn": cudnn.version_text(library.version),
        "cudnn_file": Path(library.found.path).name,
        "cudnn_found": library.found.how.partition(" (")[0],
        "cudnn_cudart": cudnn.cudnnGetCudartVersion(),
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "driver": driver(),
        "driver_cuda": runtime.driverGetVersion(),
        "cupy": cupy.__version__,
    }


def driver() -> str:
    """The kernel driver's version as Linux tells it."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def main(name: str, start: int, count: int) -> int:
    """Runs some variants of one experiment; the number of the last one that ran is on the last line printed."""
    import cupy
    from cudnn_lab import Lab

    from ctcbind import NativeError

    known = EXPERIMENTS[name]
    try:
        if start == 0 and known.lab:
            tell(machine=machine(cupy))
        for number, variant in list(enumerate(known.variants))[start : start + count]:
            tell(begin=number)
            lab = Lab(cupy) if known.lab else None
            try:
                observed = known.ask(lab, **variant)
            except (NativeError, MemoryError, cupy.cuda.runtime.CUDARuntimeError) as error:
                observed = {"raised": f"{type(error).__name__}: {error}"}
            lost = lab is not None and not lab.alive()
            tell(variant=number, observed=observed, device_lost=lost)
            if lost:
                sys.stderr.flush()
                os._exit(0)  # with the context gone, even giving things back can end badly
            if lab is not None:
                lab.__exit__(None, None, None)
        if start == 0 and not known.lab:  # another library's own cuDNN comes first: a process holds one
            tell(machine=machine(cupy))
    except Exception:
        traceback.print_exc()
        return MISTAKE
    return 0


def load() -> None:
    """Fills the registry."""
    for module in ("values", "limits", "device"):
        importlib.import_module(f"experiments_{module}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    sys.modules["experiments"] = sys.modules["__main__"]  # the registry that the others fill is this one
    load()
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
