"""Some hundred problems at the edges for driver.c, and what the installed engine makes of them.

    python tests/csrc/problems.py write PROBLEMS          # random values come from one fixed seed
    python tests/csrc/problems.py compare PROBLEMS RESULTS

`compare` is for results of another instruction set: within the engine's own accuracy of the installed one's.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ctcbind.bindings.native import Problem

DTYPES = ("float32", "float64", "float16", "bfloat16")  # in the order of ctcbind.h
FILL = 0xA5
HEADER = struct.Struct("<6q 2q 2q q 10i")

SIZES = [
    (0, 2, 3), (1, 1, 1), (1, 1, 2), (3, 0, 4), (7, 1, 3), (3, 33, 2), (15, 2, 15), (16, 2, 16), (17, 2, 17),
    (31, 3, 33), (32, 1, 32), (33, 3, 31), (48, 2, 64), (49, 2, 65), (20, 2, 127), (20, 2, 128), (20, 2, 129),
    (9, 2, 255), (9, 2, 256), (9, 2, 257), (4, 65, 5), (2, 1, 1000), (70, 2, 28),
]  # fmt: skip
LABELS = (0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65)
#: What may stand in a row, drawn with the probability given; the rest is N(0, scale²).
EXTREMES = {
    "inf": (0.02, [np.inf]),
    "-inf": (0.2, [-np.inf]),
    "nan": (0.005, [np.nan]),
    "both infinities": (0.1, [np.inf, -np.inf]),
    "far": (0.1, [300.0, -300.0, 800.0, -800.0]),
    "huge": (0.3, [1e4, -1e4, 6e4, -6e4]),
    "tiny": (0.5, [0.0, -0.0, 1e-40, -1e-40, 6e-8]),
}


@dataclass
class Made:
    """One problem, its arrays as flat buffers."""

    shape: tuple[int, int, int]
    dtype: int
    topology: int
    blank: int
    threads: int
    logits: np.ndarray
    first: int
    strides: tuple[int, ...]
    grad: int | None
    first_grad: int
    grad_strides: tuple[int, ...]
    labels: list[list[int]]
    frames: list[int]
    weights: np.ndarray | None

    @property
    def integers(self) -> np.ndarray:
        lengths = [len(row) for row in self.labels]
        return np.array([*itertools.chain(*self.labels), *lengths, *self.frames], dtype="<i4")

    def to_bytes(self) -> bytes:
        T, N, C = self.shape
        count = sum(map(len, self.labels))
        header = HEADER.pack(
            *self.strides, *self.grad_strides, self.logits.size, self.first, self.grad or 0, self.first_grad, count,
            T, N, C, self.blank, self.dtype, self.topology, self.threads, self.grad is not None,
            self.weights is not None, 0,
        )  # fmt: skip
        weights = b"" if self.weights is None else self.weights.tobytes()
        return header + self.logits.tobytes() + self.integers.tobytes() + weights

    def result_bytes(self) -> tuple[int, int]:
        size = self.logits.itemsize
        return self.shape[1] * (8 if size == 8 else 4), 0 if self.grad is None else self.grad * size

    def run(self) -> bytes:
        """What the installed engine leaves in the losses and the gradient's buffer."""
        losses, grad = (np.full(size, FILL, np.uint8) for size in self.result_bytes())
        size = self.logits.itemsize
        problem = Problem()
        strides = (self.strides, self.grad_strides)
        problem.describe(self.shape, *strides, self.blank, self.dtype, self.topology, self.threads)
        at = None if self.grad is None else grad.ctypes.data + self.first_grad * size
        count = sum(map(len, self.labels))
        start = self.logits.ctypes.data + self.first * size
        problem.loss(start, at, losses, self.integers, self.weights, count)
        return losses.tobytes() + grad.tobytes()


def to_bits(values: np.ndarray, dtype: int) -> np.ndarray:
    """Values in a dtype, bfloat16 as its bits (cut, not rounded)."""
    with np.errstate(over="ignore", under="ignore"):
        if DTYPES[dtype] == "bfloat16":
            return (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        return values.astype(np.dtype(DTYPES[dtype]).newbyteorder("<"))


def from_bits(raw: bytes, dtype: int) -> np.ndarray:
    if DTYPES[dtype] == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    with np.errstate(invalid="ignore"):  # the fill may be a signalling NaN
        return np.frombuffer(raw, np.dtype(DTYPES[dtype]).newbyteorder("<")).astype(np.float64)


def strides_of(
    rng: np.random.Generator, shape: tuple[int, int, int], turned: bool = False
) -> tuple[tuple[int, ...], int, int]:
    """(strides, index of (0, 0, 0), elements): mostly contiguous, else any order of the axes, gaps and signs; turned:
    as (N, C, T) without gaps."""
    plain = turned or rng.integers(3) > 0
    order = (0, 2, 1) if turned else (2, 1, 0) if plain else tuple(int(i) for i in rng.permutation(3))
    strides, first, count = [0, 0, 0], 0, 1
    for axis in order:
        step = count if plain else count + int(rng.integers(3))
        backwards = not plain and rng.integers(3) == 0
        strides[axis] = -step if backwards else step
        first += step * (shape[axis] - 1) if backwards and shape[axis] else 0
        count = step * max(shape[axis], 1)
    return tuple(strides), first, count


def make(
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    dtype: int,
    topology: int,
    *,
    scale: float = 1.0,
    extremes: str | None = None,
    L: int | None = None,
    threads: int = 1,
    sure: float = 0.0,
    alike: bool = False,
    turned: bool = False,
) -> Made:
    T, N, C = shape
    blank = int(rng.integers(C))
    frames = [T if L is not None or rng.integers(2) else int(rng.integers(T + 1)) for _ in range(N)]
    labels = []
    for length in frames:
        count = 0 if C == 1 else L if L is not None else int(rng.integers(length // int(rng.integers(1, 4)) + 2))
        classes = [c for c in range(C) if c != blank][: int(rng.integers(1, C + 1))]
        labels.append([int(rng.choice(classes)) for _ in range(count)])
    x = rng.normal(size=shape) * scale
    if sure:  # as a trained network's, some with a stretch where it is wrong
        for n, (row, length) in enumerate(zip(labels, frames)):
            path = np.full(length, blank)
            path[np.sort(rng.choice(length, len(row), replace=False))] = row
            x[np.arange(length), n, path] += sure
            begin = int(rng.integers(length))
            x[begin : begin + length // 6, n] *= rng.choice([1, -1])
    if extremes:
        share, values = EXTREMES[extremes]
        x = np.where(rng.random(shape) < share, rng.choice(values, size=shape), x)
    if alike:
        x = np.broadcast_to(x[:1], shape)
    strides, first, count = strides_of(rng, shape, turned)
    grad_strides, first_grad, grad_count = strides_of(rng, shape, turned and rng.integers(4) > 0)
    buffer = np.full(count, np.nan)
    t, n, c = np.indices(shape)
    buffer[first + t * strides[0] + n * strides[1] + c * strides[2]] = x
    weights = rng.normal(size=N) if rng.integers(3) == 0 else None
    grad = grad_count if rng.integers(8) else None
    bits = to_bits(buffer, dtype)
    return Made(
        shape, dtype, topology, blank, threads, bits, first, strides, grad, first_grad, grad_strides,
        labels, frames, weights,
    )  # fmt: skip


def all_problems(seed: int) -> Iterator[Made]:
    rng = np.random.default_rng(seed)
    for shape, dtype, topology in itertools.product(SIZES, range(4), range(2)):
        yield make(rng, shape, dtype, topology, scale=float(rng.choice([0, 1, 4])))
    for L, dtype in itertools.product(LABELS, range(4)):
        yield make(rng, (L + int(rng.integers(L + 3)), 2, 5), dtype, int(rng.integers(2)), L=L)
    for extremes, dtype, C in itertools.product(EXTREMES, range(4), (6, 140)):
        yield make(rng, (40, 3, C), dtype, int(rng.integers(2)), extremes=extremes, L=int(rng.integers(12)))
    for C, dtype in itertools.product((129, 146, 161, 543, 1100), range(4)):  # long rows, of one part or several
        yield make(rng, (20, 2, C), dtype, int(rng.integers(2)), scale=float(rng.choice([0, 1, 4])), L=7)
        yield make(rng, (35, 3, C), dtype, 0, extremes=str(rng.choice(list(EXTREMES))), L=int(rng.integers(12)))
    for (C, L), dtype in itertools.product(((64, 5), (130, 34), (256, 66), (320, 80)), range(4)):
        yield make(rng, (70, 1, C), dtype, int(rng.integers(2)), L=L)  # every class has a column
        line = 4096 // (4, 8, 2, 2)[dtype]  # rows a multiple of this apart take each other's place in the cache
        if line % C == 0:
            yield make(rng, (70, line // C, C), dtype, int(rng.integers(2)), L=L)
    for scale, dtype in itertools.product((10, 1000, 1e4), range(4)):
        yield make(rng, (60, 2, 7), dtype, 0, scale=scale)
    for dtype in range(4):  # enough work for threads: over samples, over the rows of one, over those of strided ones
        yield make(rng, (60, 40, 20), dtype, 0, threads=3)
        yield make(rng, (80, 1, 700), dtype, 0, threads=3, L=9)
        yield make(rng, (80, 2, 700), dtype, 1, threads=4, L=20)
    for (T, C), dtype in itertools.product(((37, 28), (48, 140), (33, 543), (16, 1100)), range(4)):
        extremes = str(rng.choice(list(EXTREMES))) if rng.integers(2) else None
        yield make(rng, (T, 2, C), dtype, int(rng.integers(2)), extremes=extremes, L=7, turned=True)
        yield make(rng, (70, 1, 700), dtype, 0, extremes=extremes, L=9, threads=3, turned=True)
    for dtype, topology in itertools.product(range(4), range(2)):  # and over the halves of a sample, or of a few
        yield make(rng, (1500, 1, 30), dtype, topology, threads=2, L=100)
        yield make(rng, (500, 3, 30), dtype, topology, threads=2)
    for extremes, dtype in itertools.product(EXTREMES, range(4)):
        yield make(rng, (450, 1, 40), dtype, int(rng.integers(2)), extremes=extremes, L=40, threads=2)
    for sure, dtype, topology in itertools.product((5.0, 9.0, 25.0), range(4), range(2)):
        yield make(rng, (300, 3, 20), dtype, topology, sure=sure, L=60)
        yield make(rng, (900, 1, 20), dtype, topology, sure=sure, L=150, threads=2)
    for extremes, dtype, C in itertools.product((*EXTREMES, None), range(4), (6, 140, 700)):  # frames alike
        yield make(rng, (70, 1, C), dtype, 0, extremes=extremes, L=int(rng.integers(30)), threads=3, alike=True)


def compare(problem: Made, got: bytes, expected: bytes) -> str | None:
    """What is wrong, if the results are further apart than two engines that keep the promise can be.

    A float32 loss may be 1e-6 off, relative or below 1 absolute, and a gradient 2e-6, times its weight; each engine
    that much. Beyond that a gradient is rounded to its dtype. In float64 every frame may round logits of their size
    and a few units more.
    """
    n_losses = problem.result_bytes()[0]
    kind = 1 if problem.logits.itemsize == 8 else 0
    unit = 1.0
    if kind:
        finite = problem.logits[np.isfinite(problem.logits)]
        unit = 1e6 * 2.0**-53 * (problem.shape[0] * (np.abs(finite).max(initial=0) + 8) + problem.shape[2])
    a, b = (from_bits(raw[:n_losses], kind) for raw in (got, expected))
    with np.errstate(invalid="ignore"):
        close = np.isfinite(b) & (np.abs(a - b) <= 2 * unit * 1e-6 * np.maximum(1, np.abs(b)))  # or inf is near all
        near = (a == b) | (np.isnan(a) & np.isnan(b)) | close
    if not near.all():
        return f"losses {a} and {b}"
    relative = {"float32": 2.0**-24, "float64": 2.0**-53, "float16": 2.0**-11, "bfloat16": 2.0**-8}[
        DTYPES[problem.dtype]
    ]
    a, b = (from_bits(raw[n_losses:], problem.dtype) for raw in (got, expected))
    weight = 1.0 if problem.weights is None else max(1.0, float(np.abs(problem.weights).max(initial=0)))
    with np.errstate(invalid="ignore"):
        limit = 4e-6 * unit * weight + 2 * relative * np.abs(b) + 2.0**-24 * (relative == 2.0**-11)
        near = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= limit)
    return None if near.all() else f"gradients {a[~near][:4]} and {b[~near][:4]}"


def read_results(made: list[Made], raw: bytes) -> tuple[str, list[tuple[int, bytes]]]:
    """(instruction set, [(status, losses and gradient)])"""
    at, results = 8, []
    for problem in made:
        (status,) = struct.unpack_from("<i", raw, at)
        size = sum(problem.result_bytes())
        results.append((status, raw[at + 4 : at + 4 + size]))
        at += 4 + size
    assert at == len(raw), f"{len(raw)} bytes of results, not {at}"
    return raw[:8].rstrip(b"\0").decode(), results


def main(command: str, problems: str, *results: str) -> int:
    made = list(all_problems(0))
    if command == "write":
        Path(problems).write_bytes(b"".join(problem.to_bytes() for problem in made))
        print(f"{len(made)} problems")
        return 0
    assert Path(problems).read_bytes() == b"".join(problem.to_bytes() for problem in made), "other problems"
    isa, found = read_results(made, Path(results[0]).read_bytes())
    wrong = 0
    for number, (problem, (status, got)) in enumerate(zip(made, found)):
        why = f"status {status}" if status else compare(problem, got, problem.run())
        if why:
            wrong += 1
            print(f"problem {number} {problem.shape} {DTYPES[problem.dtype]}: {why}")
    print(f"{isa}: {len(made) - wrong} of {len(made)} problems agree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
