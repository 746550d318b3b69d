"""What is extreme, and right: each input with the losses that it must give, on every engine.

The gradient must be finite, 0 past the input length and for samples whose loss is inf, NaN for those whose loss is NaN,
and must sum to 0 over the classes.
"""

from __future__ import annotations

import array
from math import inf, lgamma, log, nan
from typing import Any, NamedTuple

import numpy as np

from .refused import Fresh, huge, x

T, N, C = 6, 3, 5
BOTH = ("loss", "grad")


class Value(NamedTuple):
    """The arguments of a call, and the losses it must give. `may_refuse`: engines whose contracts exclude it and that
    say so; `ways`: what is called (of logits that are a view of one number the gradient would fill the memory);
    `left_out`: engines that would take minutes (the reference), or a
    contiguous copy of what no memory holds; `drifts`: engines whose contract says that their gradients drift there."""

    arguments: dict[str, Any]
    losses: list[float]
    may_refuse: tuple[str, ...] = ()
    ways: tuple[str, ...] = BOTH
    left_out: tuple[str, ...] = ()
    drifts: tuple[str, ...] = ()


def uniform(frames: int, labels: int, repeats: int = 0, classes: int = C) -> float:
    """The loss where all classes are equally probable: T ln C less the logarithm of the number of paths, which is
    T + L - R over 2 L."""
    above, below = frames + labels - repeats, 2 * labels
    if above < below:
        return inf
    return frames * log(classes) - (lgamma(above + 1) - lgamma(below + 1) - lgamma(above - below + 1))


#: Of zeros (6, 3, 5) and these labels.
LABELS = [[1, 2], [3], []]
PLAIN = [uniform(T, 2), uniform(T, 1), uniform(T, 0)]


def zeros(**more: Any) -> dict[str, Any]:
    return {"logits": x(T, N, C), "targets": LABELS, **more}


def put(value: float, where: tuple[Any, ...], dtype: str = "float32") -> np.ndarray:
    array = x(T, N, C, dtype=dtype)
    array[where] = value
    return array


def beside_each_other() -> np.ndarray:
    """Four frames for four labels: the first is sure of its label, the third pays 1e5 for it."""
    array = x(4, 1, 4)
    array[0, 0, 1], array[2, 0, 0] = 1e30, 1e5
    return array


def lying(how: str, dtype: str = "float32") -> np.ndarray:
    """Zeros (6, 3, 5) that lie in memory in an odd way."""
    size = np.dtype(dtype).itemsize
    if how == "misaligned":
        return np.zeros(T * N * C * size + 1, np.uint8)[1:].view(dtype).reshape(T, N, C)
    if how == "between elements":
        return np.zeros((T, N, C), np.dtype([("x", dtype), ("pad", np.uint8)]))["x"]
    if how == "overlapping":
        return np.lib.stride_tricks.as_strided(
            np.zeros(T + N + C, dtype), (T, N, C), (size, size, size), writeable=False
        )
    if how == "negative":
        return np.zeros((T, N, C), dtype)[::-1, ::-1, ::-1]
    if how == "every third":
        return _every_third(dtype)
    if how == "Fortran":
        return np.zeros((T, N, C), dtype, order="F")
    if how == "read-only":
        made = np.zeros((T, N, C), dtype)
        made.flags.writeable = False
        return made
    assert how == "one number"
    return np.broadcast_to(np.zeros((), dtype), (T, N, C))


def _every_third(dtype: str) -> np.ndarray:
    around = np.full((3 * T, 3 * N, 3 * C), nan, dtype)
    view = around[::3, ::3, ::3]
    view[...] = 0
    return view


class Subclass(np.ndarray):
    """An array of the caller's own kind."""


def long(frames: int, labels: int, **more: Any) -> Value:
    row = [1 + k % 2 for k in range(labels)]
    logits = huge(frames, 1, 4)
    losses = [uniform(frames, labels, classes=4)]
    return Value({"logits": logits, "targets": [row]}, losses, drifts=("warpctc",), **more)


HOW = (
    "misaligned", "between elements", "overlapping", "negative", "every third", "Fortran", "read-only", "one number",
)  # fmt: skip
CANNOT_INF = ("warpctc", "cudnn")
DEVICE = ("cudnn",)

VALUES: dict[str, Value] = {
    # labels
    "as many labels as frames": Value({"logits": x(3, 1, 4), "targets": [[1, 2, 3]]}, [uniform(3, 3, 0, 4)]),
    "one label too many": Value({"logits": x(3, 1, 4), "targets": [[1, 2, 3, 1]]}, [inf]),
    "a repeat that just fits": Value({"logits": x(3, 1, 4), "targets": [[2, 2]]}, [uniform(3, 2, 1, 4)]),
    "a repeat that does not fit": Value({"logits": x(3, 1, 4), "targets": [[2, 2, 3]]}, [inf]),
    "all labels alike": Value({"logits": x(9, 1, 4), "targets": [[3] * 5]}, [uniform(9, 5, 4, 4)]),
    "no labels at all": Value(zeros(targets=[[], [], []]), [uniform(T, 0)] * 3),
    "a label beside none": Value(zeros(targets=[[], [1], []]), [PLAIN[2], PLAIN[1], PLAIN[2]]),
    "far too many labels": Value(zeros(targets=[[1, 2] * 500, [3], []]), [inf, *PLAIN[1:]], DEVICE),
    "one class": Value({"logits": x(T, N, 1), "targets": [[], [], []]}, [0.0] * 3),
    "two classes": Value({"logits": x(T, 1, 2), "targets": [[1, 1]]}, [uniform(T, 2, 1, 2)]),
    "every class a label": Value({"logits": x(9, 1, C), "targets": [[1, 2, 3, 4]]}, [uniform(9, 4)]),
    # lengths
    "no frames": Value({"logits": x(0, N, C), "targets": LABELS}, [inf, inf, 0.0]),
    "no frames for one": Value(zeros(input_lengths=[0, T, 0]), [inf, PLAIN[1], 0.0]),
    "one frame each": Value(zeros(input_lengths=[1, 1, 1]), [inf, log(C), log(C)]),
    "lengths uint8": Value(zeros(input_lengths=np.array([6, 6, 6], np.uint8)), PLAIN),
    "lengths uint64": Value(zeros(input_lengths=np.array([6, 6, 6], np.uint64)), PLAIN),
    "lengths strided": Value(zeros(input_lengths=np.full(6, 6)[::2]), PLAIN),
    "lengths in a tuple": Value(zeros(input_lengths=(6, 6, 6)), PLAIN),
    "lengths of NumPy's ints": Value(zeros(input_lengths=[np.int8(6), np.int64(6), 6]), PLAIN),
    "past the length lies anything": Value(
        zeros(targets=np.array([[1, 2, 99], [3, -7, 10**9], [0, 0, 0]]), target_lengths=[2, 1, 0]), PLAIN
    ),
    # values
    "nan in one sample": Value(zeros(logits=put(nan, (2, 1, 3))), [PLAIN[0], nan, PLAIN[2]]),
    "nan everywhere": Value(zeros(logits=put(nan, (...,))), [nan] * 3),
    "nan past the input length": Value(
        zeros(logits=put(nan, (slice(4, None),)), input_lengths=[4, 4, 4]),
        [uniform(4, 2), uniform(4, 1), uniform(4, 0)],
    ),
    "inf past the input length": Value(
        zeros(logits=put(inf, (slice(4, None),)), input_lengths=[4, 4, 4]),
        [uniform(4, 2), uniform(4, 1), uniform(4, 0)],
        CANNOT_INF,
    ),
    "nan where there is no path": Value(
        zeros(logits=put(nan, (0, 0, 0)), targets=[[1] * 9, [3], []]), [inf, *PLAIN[1:]]
    ),
    "-inf on a class that nobody needs": Value(
        zeros(logits=put(-inf, (slice(None), slice(None), 4))),
        [uniform(T, 2, 0, 4), uniform(T, 1, 0, 4), uniform(T, 0, 0, 4)],
        CANNOT_INF,
    ),
    "-inf on a label": Value(zeros(logits=put(-inf, (slice(None), 1, 3))), [PLAIN[0], inf, PLAIN[2]], CANNOT_INF),
    "-inf on the blank": Value(
        {"logits": put(-inf, (slice(None), slice(0, 1), 0))[:2, :1], "targets": [[1, 2]]}, [2 * log(4)], CANNOT_INF
    ),
    "a row of -inf": Value(zeros(logits=put(-inf, (2, 0))), [inf, *PLAIN[1:]], CANNOT_INF),
    "+inf on the blank": Value(
        {"logits": put(inf, (slice(None), slice(None), 0)), "targets": [[], [], []]}, [0.0] * 3, CANNOT_INF
    ),
    "1e10 on the blank": Value(
        {"logits": put(1e10, (slice(None), slice(None), 0)), "targets": [[], [], []]}, [0.0] * 3, CANNOT_INF
    ),
    "1e30 on the blank": Value(
        {"logits": put(1e30, (slice(None), slice(None), 0)), "targets": [[], [], []]}, [0.0] * 3, CANNOT_INF
    ),
    "1e30 everywhere": Value(zeros(logits=put(1e30, (...,))), PLAIN),
    "-1e30 everywhere": Value(zeros(logits=put(-1e30, (...,))), PLAIN),
    "the largest float32 everywhere": Value(zeros(logits=put(3.4028235e38, (...,))), PLAIN),
    "the largest float64 everywhere": Value(zeros(logits=put(1.7e308, (...,), "float64")), PLAIN, DEVICE),
    "the largest float16 everywhere": Value(zeros(logits=put(65504, (...,), "float16")), PLAIN),
    "1e10 against a label": Value(
        {"logits": put(1e10, (slice(None), slice(None), 0))[:1, :1], "targets": [[1]]}, [1e10], CANNOT_INF
    ),
    "1e30 on the path, 1e5 beside it": Value(
        {"logits": beside_each_other(), "targets": [[1, 2, 1, 2]]}, [1e5 + 2 * log(4)], CANNOT_INF
    ),
    "denormals": Value(zeros(logits=put(1e-42, (...,))), PLAIN),
    "denormals beside zeros": Value(zeros(logits=put(1e-42, (slice(None, None, 2),))), PLAIN),
    "float64 denormals": Value(zeros(logits=put(5e-324, (...,), "float64")), PLAIN, DEVICE),
    "float16 denormals": Value(zeros(logits=put(6e-8, (0,), "float16")), PLAIN),
    "minus zero": Value(zeros(logits=put(-0.0, (...,))), PLAIN),
    # dtypes
    "float16": Value(zeros(logits=x(T, N, C, dtype="float16")), PLAIN),
    "float64": Value(zeros(logits=x(T, N, C, dtype="float64")), PLAIN, DEVICE),
    **{
        f"{kind} labels": Value(zeros(targets=np.array([1, 2, 3], kind), target_lengths=[2, 1, 0]), PLAIN)
        for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4", ">i8")
    },
    # layouts and strides
    **{
        f"{how}, {dtype}": Value(zeros(logits=lying(how, dtype)), PLAIN, DEVICE if dtype == "float64" else ())
        for how in (
            "misaligned",
            "between elements",
            "overlapping",
            "negative",
            "every third",
            "Fortran",
            "read-only",
            "one number",
        )
        for dtype in ("float32", "float64")
    },
    "NTC": Value(zeros(logits=x(N, T, C), layout="NTC"), PLAIN),
    "NTC as a turned view": Value(zeros(logits=x(T, N, C).transpose(1, 0, 2), layout="NTC"), PLAIN),
    "labels strided": Value(zeros(targets=np.array([1, 9, 2, 9, 3, 9])[::2], target_lengths=[2, 1, 0]), PLAIN),
    "labels turned round": Value(zeros(targets=np.array([3, 2, 1])[::-1], target_lengths=[2, 1, 0]), PLAIN),
    "labels read-only": Value(
        zeros(targets=np.broadcast_to(np.array([[1, 2]]), (3, 2)), target_lengths=[2, 0, 0]),
        [PLAIN[0], PLAIN[2], PLAIN[2]],
    ),
    "labels Fortran": Value(zeros(targets=np.asfortranarray([[1, 2], [3, -1], [-1, -1]])), PLAIN),
    # containers
    "logits as lists": Value(zeros(logits=x(T, N, C).tolist()), PLAIN, DEVICE),
    "logits of a subclass": Value(zeros(logits=x(T, N, C).view(Subclass)), PLAIN),
    "logits in a memoryview": Value(zeros(logits=memoryview(x(T, N, C))), PLAIN),
    "rows in tuples": Value(zeros(targets=((1, 2), (3,), ())), PLAIN),
    "rows as arrays": Value(zeros(targets=[np.array([1, 2], np.uint64), np.array([3], np.int8), []]), PLAIN),
    "rows of array.array": Value(zeros(targets=[array.array("i", [1, 2]), array.array("q", [3]), []]), PLAIN),
    "rows as ranges": Value(zeros(targets=[range(1, 3), range(3, 4), range(0)]), PLAIN),
    "rows of NumPy's ints": Value(zeros(targets=[[np.uint8(1), 2], [np.int64(3)], []]), PLAIN),
    "padded with columns to spare": Value(
        zeros(targets=np.pad([[1, 2], [3, -1], [-1, -1]], ((0, 0), (0, 50)), constant_values=-1)), PLAIN
    ),
    "padded without columns": Value(zeros(targets=np.empty((3, 0), int)), [PLAIN[2]] * 3),
    "one row of none": Value(zeros(targets=np.empty(0, int), target_lengths=[0, 0, 0]), [PLAIN[2]] * 3),
    # blanks
    "the last class is the blank": Value(zeros(blank=-1, targets=[[0, 1], [3], []]), PLAIN),
    "a class in the middle is the blank": Value(zeros(blank=2, targets=[[0, 1], [3], []]), PLAIN),
    "a blank of NumPy's": Value(zeros(blank=np.uint8(0)), PLAIN),
    # topology
    "simple": Value(
        {"logits": x(2, 1, 4), "targets": [[2, 2]], "topology": "simple"}, [2 * log(4)], ("warpctc", "cudnn")
    ),
    # sizes
    "one of each": Value({"logits": x(1, 1, 1), "targets": [[]]}, [0.0]),
    "300 labels": long(1000, 300, may_refuse=DEVICE),
    "700 labels": long(1500, 700, may_refuse=DEVICE),
    "2000 labels": long(4100, 2000, may_refuse=DEVICE, left_out=("reference",)),
    "20000 frames": long(20000, 100),
    "20000 frames, no labels": long(20000, 0),
    "as many labels as 3000 frames": long(3000, 3000, may_refuse=DEVICE, left_out=("reference",)),
    "100000 classes": Value({"logits": huge(4, 1, 100_000), "targets": [[99_999]]}, [uniform(4, 1, 0, 100_000)]),
    "5000 samples": Value({"logits": huge(4, 5000, 3), "targets": [[1]] * 5000}, [uniform(4, 1, 0, 3)] * 5000),
    **{
        f"{name}, more than 2**31 elements": Value(
            {"logits": huge(*shape), "targets": [[1]] * shape[1], "input_lengths": [1] * shape[1]},
            [log(shape[2])] * shape[1],
            (),
            ("loss",),
            ("warpctc", "cudnn"),
        )
        for name, shape in (("T N", (2**21, 2**10, 4)), ("T C", (2**18, 2, 2**14)))
    },
    "strides past 2**31": Value(
        {"logits": huge(2**30, 1, 8), "targets": [[1]], "input_lengths": [2]},
        [uniform(2, 1, 0, 8)],
        (),
        ("loss",),
        ("warpctc", "cudnn"),
    ),
    "a plan of generators' rows": Value(zeros(targets=Fresh(lambda: [list(range(1, 3)), [3], []])), PLAIN),
}
