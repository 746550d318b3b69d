"""The rows of tests/bad_inputs on ctcbind and on what else is installed: PyTorch, optax, warp-ctc; side by side.

python tools/bad_inputs.py [--all] [--json]

Each row in a process of its own. A library handles a row when it raises for what cannot be right, or gives the right
losses and a gradient without NaN for what is extreme. It is told apart whether it was silent (a number for what has no
right one), wrong, or crashed. Rows are given as a user of the library would: labels padded or in one row, as its own
arrays; rows that its interface has no word for (layouts, topologies, options) are left out.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

runner: Any = importlib.import_module("bad_inputs.runner")
GOOD, REFUSED, VALUES = runner.GOOD, runner.REFUSED, runner.VALUES

Outcome = dict[str, Any]
Call = Callable[[dict[str, Any]], tuple[Any, Any]]

#: What a row may change for another library to be asked the same question.
ASKED = {"logits", "targets", "input_lengths", "target_lengths", "blank", "layout"}


def torch_call(given: dict[str, Any]) -> tuple[Any, Any]:
    """torch.nn.functional.ctc_loss of log_softmax, reduction "none", and its gradient by autograd."""
    import torch

    torch.set_num_threads(1)
    x = torch.as_tensor(np.array(given["logits"]) if isinstance(given["logits"], memoryview) else given["logits"])
    leaf = x.detach().clone().requires_grad_()
    x = leaf.transpose(0, 1) if given.get("layout") == "NTC" else leaf
    T, N = x.shape[0], x.shape[1]
    targets, lengths = flat(given)
    frames = given.get("input_lengths")
    losses = torch.nn.functional.ctc_loss(
        torch.log_softmax(x, 2),
        torch.as_tensor(targets),
        torch.as_tensor([T] * N if frames is None else frames),
        torch.as_tensor(lengths),
        blank=blank_of(given, x.shape[2]),
        reduction="none",
    )
    losses.sum().backward()
    assert leaf.grad is not None
    return losses.detach().numpy(), leaf.grad.numpy()


def optax_call(given: dict[str, Any]) -> tuple[Any, Any]:
    """optax.ctc_loss, with paddings made from the lengths, and its gradient by jax.grad."""
    import jax
    import jax.numpy as jnp
    import optax

    x = jnp.asarray(np.array(given["logits"]))
    x = x if given.get("layout") == "NTC" else x.transpose(1, 0, 2)
    N, T, C = x.shape
    targets, lengths = flat(given)
    frames = np.array([T] * N if given.get("input_lengths") is None else given["input_lengths"])
    ends = np.cumsum(lengths)
    rows = [targets[end - length : end] for end, length in zip(ends, lengths)]
    width = max([len(row) for row in rows], default=0) or 1
    labels = np.zeros((N, width), np.asarray(targets).dtype if len(targets) else np.int32)
    paddings = np.ones((N, width), np.float32)
    for row, room, padding in zip(rows, labels, paddings):
        room[: len(row)] = row
        padding[: len(row)] = 0
    logit_paddings = (np.arange(T) >= frames[:, None]).astype(np.float32)

    def losses_of(x: Any) -> Any:
        blank = blank_of(given, C)
        return optax.ctc_loss(x, logit_paddings, jnp.asarray(labels), paddings, blank_id=blank)

    losses, grad = losses_of(x), jax.grad(lambda x: losses_of(x).sum())(x)
    grad = np.asarray(grad)
    return np.asarray(losses), grad if given.get("layout") == "NTC" else grad.transpose(1, 0, 2)


def warpctc_call(given: dict[str, Any]) -> tuple[Any, Any]:
    """compute_ctc_loss of the C library itself, by ctypes as a binding without checks would call it."""
    import ctypes

    from ctcbind.bindings import warpctc

    class Options(ctypes.Structure):
        _fields_ = (("loc", ctypes.c_int), ("threads", ctypes.c_uint), ("more", ctypes.c_uint), ("blank", ctypes.c_int))

    library = ctypes.CDLL(warpctc.loaded_from().path)
    x = np.ascontiguousarray(given["logits"], np.float32)
    x = np.ascontiguousarray(x.transpose(1, 0, 2)) if given.get("layout") == "NTC" else x
    T, N, C = x.shape
    targets, lengths = flat(given)
    frames = np.ascontiguousarray([T] * N if given.get("input_lengths") is None else given["input_lengths"]).astype(
        np.int32
    )  # as bindings do, silently
    labels, lengths = np.asarray(targets).astype(np.int32), np.asarray(lengths).astype(np.int32)
    losses, grad = np.zeros(N, np.float32), np.zeros_like(x)
    options = (0, 1, 0, blank_of(given, C))
    size = ctypes.c_size_t()

    class ByValue(ctypes.Structure):
        _fields_ = (("loc", ctypes.c_int), ("stream", ctypes.c_void_p), ("blank", ctypes.c_int))

    by_value = ByValue(options[0], options[1], options[3])

    def at(array: Any) -> Any:
        return ctypes.c_void_p(array.ctypes.data)

    status = library.get_workspace_size(at(lengths), at(frames), C, N, by_value, ctypes.byref(size))
    if status:
        raise ValueError(f"get_workspace_size returned {status}")
    workspace = np.empty(size.value, np.uint8)
    arguments = (at(labels), at(lengths), at(frames), C, N, at(losses), at(workspace), by_value)
    status = library.compute_ctc_loss(at(x), at(grad), *arguments)
    if status:
        raise ValueError(f"compute_ctc_loss returned {status}")
    return losses, grad


def blank_of(given: dict[str, Any], C: int) -> Any:
    """-1, ctcbind's word for the last class, as the others say it; anything else as it is."""
    blank = given.get("blank", 0)
    return C - 1 if type(blank) is int and blank == -1 else blank


def flat(given: dict[str, Any]) -> tuple[Any, Any]:
    """Targets as one row and lengths, without any check: as one writes it before a call."""
    targets, lengths = given["targets"], given.get("target_lengths")
    if isinstance(targets, np.ndarray) and targets.ndim == 2 and type(targets) is np.ndarray:
        lengths = (targets >= 0).sum(axis=1) if lengths is None else lengths
        rows = [row[:length] for row, length in zip(targets, lengths)]
        return np.concatenate(rows) if rows else np.empty(0, np.int64), lengths
    if isinstance(targets, np.ndarray):
        return targets.astype(targets.dtype.newbyteorder("=")), lengths
    rows = [np.asarray(row) for row in targets]
    full = [row for row in rows if row.size]
    return np.concatenate(full) if full else np.empty(0, np.int64), [len(row) for row in rows]


LIBRARIES: dict[str, Call] = {"pytorch": torch_call, "optax": optax_call, "warp-ctc": warpctc_call}


#: Rows whose arrays this tool would have to read for the library, so that the outcome would be its own.
OUR_DOING = {
    "a generator", "a masked row", "masked labels", "lengths masked", "masked logits", "rows in rows",
    "targets that cannot be read", "logits that cannot be read", "a dict of labels", "None for targets",
}  # fmt: skip
#: The same of a C function, which knows pointers to float and int and no array.
NOT_OF_C = ("integers", "logits_dtype", "logits_rank", "length_rank", "targets_rank", "classes", "batch_size")


def present(name: str) -> bool:
    if name == "warp-ctc":
        import ctcbind

        return ctcbind.engines()["warpctc"].available
    return importlib.util.find_spec({"pytorch": "torch"}.get(name, name)) is not None


def todo(name: str) -> list[tuple[str, str, Callable[[], Outcome]]]:
    """The rows that can be asked of another library."""
    call = LIBRARIES[name]
    work: list[tuple[str, str, Callable[[], Outcome]]] = []
    for row, refused in REFUSED.items():
        if name == "warp-ctc" and refused.rule in NOT_OF_C:
            continue
        if (
            set(refused.changes) <= ASKED
            and refused.rule not in ("layout", "device", "size_limit")
            and row not in OUR_DOING
        ):
            arguments = {**GOOD, **refused.changes}
            work.append(("refused", row, partial(ask_refused, call, arguments)))
    for row in VALUES:
        if "grad" in VALUES[row].ways and "topology" not in VALUES[row].arguments:
            work.append(("value", row, partial(ask_value, call, row)))
    return work


def ask_refused(call: Call, arguments: dict[str, Any]) -> Outcome:
    try:
        losses, _ = call(runner.made(arguments))
    except Exception as error:
        return {"ok": True, "did": "raised", "said": f"{type(error).__name__}: {error}"[:200], "faults": []}
    return {"ok": False, "did": "silent", "said": "", "faults": [f"losses {np.asarray(losses).tolist()}"[:200]]}


def ask_value(call: Call, name: str) -> Outcome:
    row = VALUES[name]
    try:
        losses, grad = call(runner.made(row.arguments))
    except Exception as error:
        return {"ok": False, "did": "raised", "said": "", "faults": [f"{type(error).__name__}: {error}"[:200]]}
    faults = runner.wrong_losses(row, np.asarray(losses), "warpctc")  # to float32's rounding in log space
    grad = np.asarray(grad, np.float64)
    frames = row.arguments.get("input_lengths")
    axis = 1 if row.arguments.get("layout") != "NTC" else 0
    for n, loss in enumerate(row.losses):
        mine = grad.take(n, axis=axis)[: None if frames is None else int(frames[n])]
        if not math.isnan(loss) and not np.isfinite(mine).all():
            faults.append(f"gradient of sample {n} is not finite")
    return {"ok": not faults, "did": "wrong" if faults else "value", "said": "", "faults": faults[:3]}


def outcomes(name: str) -> list[dict[str, Any]]:
    """All rows of one library, by a fresh interpreter that has no threads yet."""
    done = subprocess.run(
        [sys.executable, __file__, "--only", name], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="list every row, not only those that somebody fails")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        os.environ.setdefault("CTCBIND_NUM_THREADS", "1")
        import ctcbind

        ctcbind.engines()
        if given.only == "optax":
            os.environ.setdefault("JAX_PLATFORMS", "cpu")
            runner.SECONDS = 300
            import optax  # noqa: F401  (once, before the forks; threads and devices come with the first array)
        if given.only == "pytorch":
            import torch  # noqa: F401  (once, before the forks)
        work = todo(given.only) if given.only in LIBRARIES else runner.rows(given.only)
        for outcome in runner.in_processes(work):
            print(json.dumps(outcome), flush=True)
        return 0
    names = ["native", runner.BESIDE, *(name for name in LIBRARIES if present(name))]
    found = {name: {(each["kind"], each["name"]): each for each in outcomes(name)} for name in names}
    if given.json:
        print(json.dumps({name: list(rows.values()) for name, rows in found.items()}, indent=2))
        return 0
    print(table(found, given.all))
    return 0


def table(found: dict[str, dict[tuple[str, str], dict[str, Any]]], everything: bool) -> str:
    names = list(found)
    lines = [f"{'row':<48}" + "".join(f"{name:<12}" for name in names)]
    for key in found[names[0]]:
        cells = [found[name].get(key) for name in names]
        if everything or any(cell is not None and not cell["ok"] for cell in cells):
            shown = ["-" if cell is None else ("ok" if cell["ok"] else cell["did"]) for cell in cells]
            lines.append(f"{key[1][:46]:<48}" + "".join(f"{cell:<12}" for cell in shown))
    lines.append("")
    for name in names:
        rows = found[name].values()
        bad = Counter(each["did"] for each in rows if not each["ok"])
        said = ", ".join(f"{count} {did}" for did, count in bad.most_common())
        lines.append(
            f"{name}: {sum(each['ok'] for each in rows)} of {len(rows)} handled" + (f" ({said})" if said else "")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
