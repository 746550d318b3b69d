"""The same rows through the functions beside the loss: decoders, alignment, lattice and second order.

What cannot be right must meet the same error there. For what is extreme each has a property that holds of its result
whatever the numbers: an alignment is one path, and cannot be more probable than all together; occupancies sum to 1;
a constant added to a frame changes no loss, so that every row of the Hessian sums to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .refused import GOOD, REFUSED
from .values import VALUES

DECODERS = ("greedy_decode", "beam_search")
LATTICE = ("align", "ctc_lattice", "posteriors", "lattice_loss_and_grad", "ctc_hvp", "ctc_hessian")
FRAMES = {"logits", "input_lengths", "blank", "layout", "topology"}
BATCH = FRAMES | {"targets", "target_lengths"}


def call(name: str, arguments: dict[str, Any]) -> Any:
    import ctcbind

    function = getattr(ctcbind, name)
    if name in DECODERS:
        arguments = {key: value for key, value in arguments.items() if key in FRAMES}
    if name == "ctc_hvp":
        arguments = {"v": GOOD["logits"], **arguments}
    return _arrays(function(**arguments))


def _arrays(result: Any) -> Any:
    """NumPy's arrays for memoryviews, which is what comes back where those went in."""
    if isinstance(result, memoryview):
        return np.asarray(result)
    if hasattr(result, "_fields"):
        return type(result)(*map(_arrays, result))
    return result


def functions_that_refuse(row: str) -> list[str]:
    """Those that take what the row gets wrong."""
    changes = set(REFUSED[row].changes)
    decoders = DECODERS if changes <= FRAMES and not REFUSED[row].rule.startswith("label") else ()
    return [*decoders, *(LATTICE if changes <= BATCH else ())]


def wrong(row: str, made: Callable[[dict[str, Any]], dict[str, Any]]) -> Iterator[str]:
    """What does not hold of a row of VALUES."""
    arguments, losses = made(VALUES[row].arguments), VALUES[row].losses
    logits = np.asarray(arguments["logits"])
    turned = arguments.get("layout") == "NTC"
    T, N, C = logits.transpose(1, 0, 2).shape if turned else logits.shape
    frames = arguments.get("input_lengths")
    frames = [T] * N if frames is None else [int(each) for each in frames]
    for name in DECODERS:
        yield from (f"{name}: {fault}" for fault in wrong_decoding(name, arguments, turned, frames, C))
    try:
        path = call("align", made(arguments))
        for n, loss in enumerate(losses):
            yield from (f"align: sample {n}: {fault}" for fault in wrong_path(path, n, loss, frames[n]))
        if T * N * (2 * max(path.starts.shape[1], 1) + 1) <= 5_000_000:
            yield from (f"posteriors: {fault}" for fault in wrong_posteriors(made(arguments), losses, frames))
        if T * N * C <= 200_000:
            yield from (f"ctc_hvp: {fault}" for fault in wrong_product(made(arguments), losses, logits, turned))
        if N * (T * C) ** 2 <= 200_000:
            yield from (f"ctc_hessian: {fault}" for fault in wrong_hessian(made(arguments), losses))
    except Exception as error:
        yield f"{type(error).__name__}: {error}"


def wrong_decoding(name: str, arguments: dict[str, Any], turned: bool, frames: list[int], C: int) -> Iterator[str]:
    import ctcbind

    logits = np.asarray(arguments["logits"])
    blank = int(arguments.get("blank", 0)) % C
    nan = [np.isnan(logits[n, :f] if turned else logits[:f, n]).any() for n, f in enumerate(frames)]
    try:
        found = call(name, arguments)
    except ctcbind.InvalidInput as error:
        if error.sample is None or not nan[error.sample]:
            yield f"refused: {error}"
        return
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
        return
    if any(nan):
        yield "took a NaN"
    for n, hypotheses in enumerate(found if name == "beam_search" else [[each] for each in found]):
        for labels, log_p, _ in hypotheses:
            if not log_p <= 1e-9:
                yield f"sample {n}: ln p is {log_p}"
            if any(not 0 <= label < C or label == blank for label in labels) or len(labels) > frames[n]:
                yield f"sample {n}: labels {labels[:9]}"


def wrong_path(path: Any, n: int, loss: float, frames: int) -> Iterator[str]:
    log_p = float(path.log_p[n])
    if math.isnan(loss) or loss == math.inf:
        if not (math.isnan(log_p) if math.isnan(loss) else log_p == -math.inf) or (path.states[n] != -1).any():
            yield f"ln p is {log_p}, the loss {loss}"
        return
    if not -math.inf < log_p <= -loss + 1e-6 * max(loss, 1):
        yield f"ln p is {log_p}, the loss {loss}"
    if (path.states[n, :frames] < 0).any() or (path.states[n, frames:] != -1).any():
        yield "states that are not those of its frames"
    if (np.diff(path.states[n, :frames]) < 0).any() or (np.diff(path.states[n, :frames]) > 2).any():
        yield "states that no path has"


def wrong_posteriors(arguments: dict[str, Any], losses: list[float], frames: list[int]) -> Iterator[str]:
    gamma = call("posteriors", arguments)
    for n, loss in enumerate(losses):
        sums = gamma[n].astype(np.float64).sum(axis=1)
        if math.isnan(loss):
            right = np.isnan(sums[: frames[n]]).all()
        elif loss == math.inf:
            right = not gamma[n].any()
        else:
            right = np.abs(sums[: frames[n]] - 1).max(initial=0) < 1e-5 and not gamma[n, frames[n] :].any()
        if not right:
            yield f"sample {n} sums to {sums[:9]}, its loss is {loss}"


def wrong_product(
    arguments: dict[str, Any], losses: list[float], logits: np.ndarray[Any, Any], turned: bool
) -> Iterator[str]:
    v = np.random.default_rng(0).normal(size=logits.shape)
    product = np.asarray(call("ctc_hvp", {**arguments, "v": v}), np.float64)
    product = product.transpose(1, 0, 2) if turned else product
    most = 1e-2 if logits.dtype == np.float16 else 1e-4
    for n, loss in enumerate(losses):
        mine = product[:, n]
        if math.isnan(loss):
            right = bool(np.isnan(mine).any())
        elif loss == math.inf:
            right = not mine.any()
        else:
            right = bool(np.isfinite(mine).all()) and np.abs(mine.sum(axis=1)).max(initial=0) < most
        if not right:
            yield f"sample {n}, whose loss is {loss}: {mine.ravel()[:9]}"


def wrong_hessian(arguments: dict[str, Any], losses: list[float]) -> Iterator[str]:
    hessian = call("ctc_hessian", arguments)
    for n, loss in enumerate(losses):
        T, C = hessian.shape[1:3]
        mine = hessian[n].reshape(T * C, T * C).astype(np.float64)
        if math.isnan(loss):
            right = bool(np.isnan(mine).any())
        elif loss == math.inf:
            right = not mine.any()
        else:
            sums = hessian[n].astype(np.float64).sum(axis=3)
            right = np.abs(mine - mine.T).max(initial=0) < 1e-6 and np.abs(sums).max(initial=0) < 1e-5
        if not right:
            yield f"sample {n}, whose loss is {loss}: {mine.ravel()[:9]}"
