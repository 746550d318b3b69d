"""Batches for the tests, and what is right for them, found without the engine under test.

`brute_force` counts every one of the C^T paths. `plain_float32` is the textbook recursion in float32 log space:
the yardstick by which an engine's rounding is judged. `random_case` makes a batch whose arrays lie, and whose
labels and lengths are written, in any of the ways that a caller may choose; its plain form goes to the reference.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import ctcbind

#: One fresh seed a run, printed in pytest's header; CTCBIND_TEST_SEED repeats a run.
SEED = int(os.environ.get("CTCBIND_TEST_SEED") or int.from_bytes(os.urandom(4), "big"))

EPS = {"float16": 2.0**-24, "bfloat16": 2.0**-24, "float32": 2.0**-24, "float64": 2.0**-53}  # of the arithmetic
#: Half a unit in the last place, relative, of a gradient stored in this dtype, and its smallest step / 2.
STORED = {
    "float16": (2.0**-11, 2.0**-25),
    "bfloat16": (2.0**-8, 2.0**-134),
    "float32": (2.0**-24, 2.0**-150),
    "float64": (2.0**-53, 0.0),
}

LAYOUTS = ("C", "F", "strided", "negative", "read-only", "broadcast", "misaligned", "odd stride", "permuted")


# --- every path ---------------------------------------------------------------------------------------------


def collapse(path: tuple[int, ...], blank: int, topology: str = "ctc") -> tuple[int, ...]:
    """The labels of a path: adjacent repeats merged (unless topology is "simple"), then blanks removed."""
    if topology == "ctc":
        path = tuple(key for key, _ in itertools.groupby(path))
    return tuple(symbol for symbol in path if symbol != blank)


@cache
def paths_of(T: int, C: int, blank: int, topology: str) -> dict[tuple[int, ...], np.ndarray]:
    """All C^T paths, (paths, T), by the labels they collapse to."""
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for path in itertools.product(range(C), repeat=T):
        found.setdefault(collapse(path, blank, topology), []).append(path)
    return {labels: np.array(paths, dtype=np.intp).reshape(-1, T) for labels, paths in found.items()}


def brute_force(x: np.ndarray, labels: Any, blank: int, topology: str = "ctc") -> tuple[float, np.ndarray]:
    """(loss, gradient) of one sample, x (T, C) finite, by adding the probability of every path."""
    T, C = x.shape
    y = np.exp(x - x.max(axis=1, keepdims=True))
    y /= y.sum(axis=1, keepdims=True)
    paths = paths_of(T, C, blank, topology).get(tuple(int(label) for label in labels))
    if paths is None:
        return np.inf, np.zeros((T, C))
    each = y[np.arange(T), paths].prod(axis=1)
    p = each.sum()
    through = np.zeros((T, C))
    for t in range(T):
        np.add.at(through[t], paths[:, t], each)
    return float(-np.log(p)), y - through / p


# --- the yardstick ------------------------------------------------------------------------------------------


def plain_float32(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """(losses, gradients (T, N, C)) by the recursion of the 2006 paper, log space, float32 throughout."""
    f = np.float32
    T, N, C = case.x.shape
    losses, grads = np.full(N, np.inf, f), np.zeros((T, N, C), f)
    for n, labels in enumerate(case.labels):
        frames = case.frames[n]
        if frames == 0:
            losses[n] = np.inf if labels else 0
            continue
        x = case.x[:frames, n].astype(f)
        x = x - x.max(axis=1, keepdims=True)
        log_y = x - np.log(np.exp(x).sum(axis=1, keepdims=True, dtype=f))
        extended = np.full(2 * len(labels) + 1, case.blank)
        extended[1::2] = labels
        S = len(extended)
        no = f(-np.inf)
        stay, skip = np.zeros(S, f), np.full(S, no)
        skip[3::2] = 0
        if case.topology == "ctc":
            skip[3::2][extended[3::2] == extended[1:-2:2]] = no
        else:
            stay[1::2] = no
        emit = log_y[:, extended]
        alpha, beta = np.full((frames, S + 2), no), np.full((frames, S + 2), no)
        alpha[0, 2:4], beta[-1, max(S - 2, 0) : S] = emit[0, :2], 0
        for t in range(1, frames):
            a = alpha[t - 1]
            alpha[t, 2:] = emit[t] + np.logaddexp(np.logaddexp(a[2:] + stay, a[1:-1]), a[:-2] + skip)
        for t in range(frames - 2, -1, -1):
            b = beta[t + 1].copy()
            b[:S] += emit[t + 1]
            skipped = np.full(S, no)
            skipped[: max(S - 2, 0)] = b[2:S] + skip[2:]
            beta[t, :S] = np.logaddexp(np.logaddexp(b[:S] + stay, b[1:-1]), skipped)
        log_p = np.logaddexp.reduce(alpha[-1, 2:][-2:])
        if log_p == no:
            continue
        losses[n] = max(-log_p, f(0))
        occupancy = np.zeros((frames, C), f)
        np.add.at(occupancy.T, extended, np.exp(alpha[:, 2:] + beta[:, :S] - log_p).T)
        grads[:frames, n] = np.exp(log_y) - occupancy
    return losses, grads


# --- batches ------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A batch as a caller writes it (`args`, `options`) and, for the reference, in plain terms.

    `x` is (T, N, C) contiguous float64 with exactly the values of `logits`; `labels` a list of lists; `frames`
    a list of ints; `blank` in 0..C-1.
    """

    x: np.ndarray
    labels: list[list[int]]
    frames: list[int]
    blank: int
    topology: str = "ctc"
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def logits(self) -> Any:
        return self.args[0]

    @property
    def layout(self) -> str:
        return self.options.get("layout", "TNC")

    def in_order(self, grad: np.ndarray) -> np.ndarray:
        """A gradient of the caller's layout as (T, N, C) float64."""
        return np.asarray(grad.transpose(1, 0, 2) if self.layout == "NTC" else grad, dtype=np.float64)

    def expected(self) -> tuple[np.ndarray, np.ndarray]:
        """(losses, gradients (T, N, C)) of the reference in float64, from the plain form."""
        options = {"blank": self.blank, "topology": self.topology, "engine": "reference"}
        result = ctcbind.ctc_loss_and_grad(self.x, self.labels, self.frames, **options)
        return result.loss, result.grad

    def feasible(self, n: int) -> bool:
        labels = self.labels[n]
        repeats = sum(a == b for a, b in itertools.pairwise(labels)) if self.topology == "ctc" else 0
        return self.frames[n] >= len(labels) + repeats

    def spread(self, n: int) -> float:
        """The widest distance between a logit and its row's maximum, over the frames of sample n."""
        rows = self.x[: self.frames[n], n]
        return float((rows.max(axis=1) - rows.min(axis=1)).max()) if rows.size else 0.0

    def loss_bound(self, n: int, loss: float, eps: float) -> float:
        """How far rounding at `eps` may take sample n's loss.

        A frame multiplies a path by one softmax value: x - max is rounded to eps * spread, exp and its
        argument's scaling add 4 eps, the row's sum of C terms log2(C) eps pairwise and at most C eps in order,
        and two additions of the recursion 2 eps. Log-space engines round values as large as the loss instead,
        eps * loss a frame. ln p moves by the sum of these over the frames; storing it costs eps * loss.
        """
        C = self.x.shape[2]
        return eps * (loss + self.frames[n] * (self.spread(n) + loss + C + 6) + 1)

    def grad_bound(self, n: int, grad: np.ndarray, loss: float, dtype: str) -> np.ndarray:
        """The same for gradients: y - alpha * beta / p, each at most 1, alpha, beta and p off by `loss_bound`
        relative; and what storing it in `dtype` costs."""
        relative, smallest = STORED[dtype]
        return 3 * self.loss_bound(n, loss, EPS[dtype]) + relative * np.abs(grad) + smallest

    def check(self, result: ctcbind.Result, dtype: str, expected: tuple[np.ndarray, np.ndarray]) -> None:
        """Losses and gradients against `expected` (the reference's), each within its bound. Infinities exactly."""
        losses, grads = expected
        grad = self.in_order(result.grad)
        for n, exact in enumerate(losses):
            where = f"sample {n} of {self.name}: T={self.frames[n]} labels={self.labels[n]} blank={self.blank}"
            if not np.isfinite(exact):
                assert np.array_equal(result.loss[n], exact, equal_nan=True), f"{where}: {result.loss[n]} != {exact}"
                assert np.array_equal(grad[:, n], grads[:, n], equal_nan=True), f"{where}: gradient not exact"
                continue
            # twice: the expectation is rounded in float64 itself, which counts where the engine is float64 too
            bound = 2 * self.loss_bound(n, exact, EPS[dtype])
            off = abs(float(result.loss[n]) - exact)
            assert off <= bound, f"{where}: loss {result.loss[n]} is {off} from {exact}, bound {bound}"
            assert result.loss[n] >= 0, f"{where}: loss {result.loss[n]} is below 0"
            wrong = np.abs(grad[:, n] - grads[:, n])
            limit = 2 * self.grad_bound(n, grads[:, n], exact, dtype)
            assert (wrong <= limit).all(), f"{where}: gradient off by {wrong.max()}, bound {limit.min()}"
            assert not grad[self.frames[n] :, n].any(), f"{where}: gradient past the input length"


def scores(*shape: int, dtype: Any = np.float32, key: int = 0) -> np.ndarray:
    """Logits of that shape; others for another key."""
    return np.random.default_rng([SEED, key, *shape]).normal(size=shape).astype(dtype)


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """The same bits, NaN included."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def lay_out(rng: np.random.Generator, x: np.ndarray, how: str) -> np.ndarray:
    """An array that holds x's values (broadcast: other values) and lies in memory as `how` says."""
    if how == "C":
        return np.ascontiguousarray(x)
    if how == "F":
        return np.asfortranarray(x)
    if how == "read-only":
        x = x.copy()
        x.flags.writeable = False
        return x
    if how == "broadcast":  # one frame, one sample or one class for all
        axis = int(rng.integers(3))
        one = x.take([0], axis=axis) if x.shape[axis] else x
        return np.broadcast_to(one, x.shape)
    if how == "misaligned":
        buffer = np.zeros(x.nbytes + 1, dtype=np.uint8)
        out = buffer[1:].view(x.dtype).reshape(x.shape)
    elif how == "odd stride":
        record = np.zeros(x.shape, dtype=np.dtype([("x", x.dtype), ("pad", np.uint8)]))
        out = record["x"]
    elif how == "permuted":
        out = np.empty([x.shape[i] for i in (2, 0, 1)], dtype=x.dtype).transpose(1, 2, 0)
    elif how == "negative":
        flips = tuple(slice(None, None, -1) if rng.integers(2) or axis == 0 else slice(None) for axis in range(3))
        out = np.empty_like(x)[flips]
    else:
        assert how == "strided", how
        steps = rng.integers(1, 4, size=3)
        big = np.full([size * step for size, step in zip(x.shape, steps)], np.nan, dtype=x.dtype)
        out = big[tuple(slice(None, None, int(step)) for step in steps)]
    out[...] = x
    return out


def random_labels(rng: np.random.Generator, frames: int, C: int, blank: int, topology: str) -> list[int]:
    """Labels for so many frames: empty, short, repeating, just fitting, or one too many."""
    classes = [c for c in range(C) if c != blank]
    kind = rng.integers(8)
    if not classes or kind == 0:
        return []
    if kind == 1:  # all the same: each repeat needs a blank of its own
        length = int(rng.integers(1, frames // 2 + 3))
        return [int(rng.choice(classes))] * length
    labels = [int(rng.choice(classes)) for _ in range(frames + 1)]
    if kind == 2:  # one label too many
        return labels
    fit, used = [], 0
    for label in labels:  # as many as fit
        used += 2 if fit and fit[-1] == label and topology == "ctc" else 1
        if used > frames:
            break
        fit.append(label)
    return fit if kind == 3 else fit[: int(rng.integers(0, len(fit) + 1))]


def write_targets(rng: np.random.Generator, labels: list[list[int]], C: int) -> tuple[Any, Any]:
    """(targets, target_lengths) in one of the forms that may be passed, in one of the integer dtypes."""
    kind = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    lengths = [len(row) for row in labels]
    dtype = np.dtype(str(rng.choice([k for k in kind if np.iinfo(k).max >= max(C, *lengths)])))
    form = rng.integers(6)
    if form == 0:
        return labels, None
    if form == 1:
        return [np.array(row, dtype=dtype) for row in labels], lengths if rng.integers(2) else None
    if form == 2:
        return tuple(tuple(row) for row in labels), np.array(lengths, dtype=dtype)
    if form == 3:
        flat = np.array([label for row in labels for label in row], dtype=dtype)
        return np.repeat(flat, 2)[::2] if rng.integers(2) else flat, np.array(lengths)
    width = max(lengths) + int(rng.integers(3))
    signed = np.dtype(dtype.name.lstrip("u")) if np.iinfo(dtype.name.lstrip("u")).max >= C else np.dtype("int64")
    padded = np.full((len(labels), width), -1, dtype=signed)
    for row, filled in zip(labels, padded):
        filled[: len(row)] = row
    if form == 4:  # padded with negatives, as Theano does
        return padded, None
    padded[padded < 0] = rng.integers(0, C)  # whatever stands past the length is not looked at
    return np.asfortranarray(padded) if rng.integers(2) else padded, np.array(lengths, dtype=np.int32)


def random_case(
    seed: Any,
    *,
    dtype: str | None = None,
    how: str | None = None,
    topology: str | None = None,
    size: tuple[int, int, int] | None = None,
    scale: float | None = None,
    blank: int | None = None,
) -> Case:
    """A batch from one seed; what is not given is drawn. Logits stay within a spread that float32 bears."""
    rng = np.random.default_rng(seed)
    T, N, C = size or (int(rng.integers(0, 13)), int(rng.integers(1, 5)), int(rng.integers(1, 9)))
    dtype = dtype or str(rng.choice(["float16", "float32", "float64"]))
    how = how or str(rng.choice(LAYOUTS))
    topology = topology or str(rng.choice(["ctc", "ctc", "simple"]))
    layout = str(rng.choice(["TNC", "NTC"]))
    scale = float(rng.choice([0.0, 0.3, 1.0, 2.0])) if scale is None else scale
    given_blank = int(rng.integers(-1, C)) if blank is None else blank
    number = C - 1 if given_blank == -1 else given_blank
    frames = [T if rng.integers(3) == 0 else int(rng.integers(0, T + 1)) for _ in range(N)]
    labels = [random_labels(rng, length, C, number, topology) for length in frames]
    target = np.dtype(dtype) if dtype != "bfloat16" else np.dtype(getattr(__import__("ml_dtypes"), dtype))
    values = (scale * np.clip(rng.normal(size=(T, N, C)), -3, 3)).astype(target)
    if layout == "NTC":
        values = values.transpose(1, 0, 2)
    logits = lay_out(rng, values, how)
    x = logits.transpose(1, 0, 2) if layout == "NTC" else logits
    if all(length == T for length in frames) and rng.integers(2):
        input_lengths: Any = None
    else:
        input_lengths = frames if rng.integers(2) else np.array(frames, dtype=str(rng.choice(["int64", "uint16"])))
    targets, target_lengths = write_targets(rng, labels, C)
    return Case(
        np.array(x, dtype=np.float64, order="C"),
        labels,
        frames,
        number,
        topology,
        (logits, targets, input_lengths, target_lengths),
        {"blank": given_blank, "layout": layout, "topology": topology},
        f"random_case({seed!r}, dtype={dtype!r}, how={how!r}, topology={topology!r}, size={(T, N, C)})",
    )


def logits_without_sense(seed: int, gain: float) -> tuple[np.ndarray, list[list[int]]]:
    """An untrained network that is sure of itself: 40 nats for any of 200 classes in each frame, or 150 for labels that
    all come in the first third."""
    rng = np.random.default_rng(seed)
    T, L = int(rng.integers(60, 130)), int(rng.integers(20, 57))
    if gain == 40:
        x, labels = rng.normal(size=(T, 1, 200)) * 0.5, rng.integers(1, 200, L)
        x[np.arange(T), 0, rng.integers(0, 200, T)] += gain
    else:
        x, labels = rng.normal(size=(T, 1, 5)) * 0.5, rng.integers(1, 5, L)
        x[np.sort(rng.integers(0, T // 3, L)), 0, labels] += gain
    return x.astype(np.float32), [labels.tolist()]
