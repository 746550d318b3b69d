"""Experiments on what cuDNN takes: labels, lengths, dtypes, workspaces, strides, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from cudnn_lab import DOUBLE, FLOAT, HALF, Lab, dry, largest, reference, scores
from experiments import experiment

APIS, ALGOS = ("host", "v8"), (0, 1)


@experiment(
    "E2",
    "Labels 0, A and -1: status at return, after waiting, and of the next call?",
    "SUCCESS at return, then (since 9.25) a device-side assert, after which every call fails; before: a number",
    alone=True,
    sanitize=True,
    api=APIS,
    label=(0, 6, -1),
)
def e2(lab: Lab, api: str, label: int) -> dict[str, Any]:
    answer = lab.ctc(scores(6, 3, 6), [[1, 2], [3, label], [4]], api=api)
    told = {**answer.told(), "costs": answer.costs}
    after = lab.ctc(scores(6, 3, 6), [[1, 2], [3], [4]], api=api) if lab.alive() else None
    return {**told, "next_call": None if after is None else after.told()}


@experiment(
    "E8",
    "The longest label of the host call?",
    "algo 0: 255, and NOT_SUPPORTED from 256 on; algo 1: unknown",
    algo=ALGOS,
    L=(255, 256, 257, 512, 1024, 4096),
)
def e8(lab: Lab, algo: int, L: int) -> dict[str, Any]:
    x, labels = scores(L + 20, 2, 8), [[1 + i % 7 for i in range(L)], [1, 2]]
    answer = lab.ctc(x, labels, algo=algo)
    return answer.against(reference(x, labels)) if answer.ok else answer.told()


@experiment(
    "E9",
    "cudnnCTCLoss_v8 with a maxLabelLength of 0, -1, 256, 1024: status of the query and of the call?",
    "0 and -1: unknown; 256 and more with algo 0: NOT_SUPPORTED",
    alone=True,
    algo=ALGOS,
    longest=(0, -1, 1, 255, 256, 1024),
)
def e9(lab: Lab, algo: int, longest: int) -> dict[str, Any]:
    x, labels = scores(20, 3, 6), [[1], [2], [3]]
    answer = lab.ctc(x, labels, api="v8", algo=algo, longest=longest)
    return {**answer.against(reference(x, labels)), "steps": answer.steps}


@experiment(
    "E10",
    "cudnnCTCLoss_v8 with maxLabelLength 4 and labels of 8: an error, a wrong number, an access out of bounds?",
    "no error",
    alone=True,
    sanitize=True,
    algo=ALGOS,
)
def e10(lab: Lab, algo: int) -> dict[str, Any]:
    x, labels = scores(20, 2, 6), [[1, 2, 3, 4, 5, 1, 2, 3], [1, 2]]
    return lab.ctc(x, labels, api="v8", algo=algo, longest=4).against(reference(x, labels))


@experiment(
    "E11",
    "Costs alone, gradients NULL, with and without a gradientsDesc: SUCCESS, the same cost, a smaller workspace?",
    "yes",
    api=APIS,
    algo=ALGOS,
    gradient=("descriptor", "none"),
)
def e11(lab: Lab, api: str, algo: int, gradient: str) -> dict[str, Any]:
    x, labels = scores(50, 4, 20), [[1, 2, 3, 4, 5]] * 4
    both = lab.ctc(x, labels, api=api, algo=algo)
    alone = lab.ctc(x, labels, api=api, algo=algo, gradient=gradient)
    same = both.ok and alone.ok and bool((both.costs == alone.costs).all())
    return {**alone.told(), "same_costs": same, "workspace_with_gradients": both.size}


@experiment(
    "E12",
    "Types other than float: which status, and of which call?",
    "NOT_SUPPORTED",
    api=APIS,
    case=("double", "float, computed in double", "half", "half, computed in half"),
)
def e12(lab: Lab, api: str, case: str) -> dict[str, Any]:
    kind = DOUBLE if case == "double" else FLOAT if case.startswith("float") else HALF
    comp = DOUBLE if "double" in case else HALF if case.endswith("in half") else FLOAT
    x, labels = scores(10, 2, 6), [[1, 2], [3]]
    dtype = {FLOAT: np.float32, DOUBLE: np.float64, HALF: np.float16}[kind]
    answer = lab.ctc(x.astype(dtype), labels, api=api, kind=kind, comp=comp)
    return {**answer.against(reference(x.astype(dtype), labels)), "steps": answer.steps}


@experiment(
    "E13",
    "Bytes of workspace by T, N, A and L: a formula? Do labels and lengths matter beyond the longest? Ever 0?",
    "unknown",
    api=APIS,
    algo=ALGOS,
    gradient=("both", "none"),
)
def e13(lab: Lab, api: str, algo: int, gradient: str) -> dict[str, Any]:
    def size(T: int, N: int, A: int, labels: list[list[int]], frames: Any = None) -> Any:
        answer = lab.ctc(scores(T, N, A), labels, frames, api=api, algo=algo, gradient=gradient)
        return answer.steps[-1]["name"] if answer.size is None else answer.size

    grid = [
        {"T": T, "N": N, "A": A, "L": L, "bytes": size(T, N, A, [[1 + i % (A - 1) for i in range(L)]] * N)}
        for T in (10, 100, 250)
        for N in (1, 2, 9)
        for A in (3, 50)
        for L in (1, 2, 5, 10)
    ]
    variations = {
        "all as long": size(20, 3, 6, [[1, 2, 3]] * 3),
        "other labels": size(20, 3, 6, [[4, 5, 4]] * 3),
        "repeats": size(20, 3, 6, [[1, 1, 1]] * 3),
        "one as long": size(20, 3, 6, [[1], [1, 2, 3], [2]]),
        "shorter inputs": size(20, 3, 6, [[1, 2, 3]] * 3, [20, 10, 5]),
        "all inputs shorter": size(20, 3, 6, [[1, 2, 3]] * 3, [10, 10, 5]),
    }
    return {"grid": grid, "variations": variations}


@experiment(
    "E13b",
    "A workspace one byte too small: BAD_PARAM, 2006, or nothing?",
    "BAD_PARAM by the documents",
    alone=True,
    api=APIS,
    short=(1, 10**9),
)
def e13b(lab: Lab, api: str, short: int) -> dict[str, Any]:
    x, labels = scores(50, 4, 20), [[1, 2, 3]] * 4
    return lab.ctc(x, labels, api=api, short=short).against(reference(x, labels))


@experiment(
    "E13c",
    "A workspace off its alignment: right, an error, or the device's end?",
    "unknown",
    api=APIS,
    offset=(1, 4, 16, 128),
)
def e13c(lab: Lab, api: str, offset: int) -> dict[str, Any]:
    x, labels = scores(50, 4, 20), [[1, 2, 3]] * 4
    return lab.ctc(x, labels, api=api, offset=offset).against(reference(x, labels))


@experiment(
    "E14",
    "Memory in other orders: right?",
    "batch first and gaps between rows: yes; classes apart, and gradients that lie otherwise: unknown",
    api=APIS,
    algo=ALGOS,
    case=("batch first", "gaps", "classes two apart", "time backwards", "gradients batch first", "logits batch first"),
)
def e14(lab: Lab, api: str, algo: int, case: str) -> dict[str, Any]:
    def zeros(*shape: int) -> Any:
        return lab.cupy.zeros(shape, dtype=np.float32)

    def laid(how: str) -> Any:
        if how == "batch first":
            return zeros(4, 50, 20).transpose(1, 0, 2)
        if how == "gaps":
            return zeros(50, 5, 23)[:, :4, :20]
        if how == "classes two apart":
            return zeros(50, 4, 40)[:, :, ::2]
        if how == "time backwards":
            return zeros(50, 4, 20)[::-1]
        return zeros(50, 4, 20)

    labels = [[1, 2, 2, 5, 19], [3], [7, 7, 7], [4, 1, 4, 1]]
    there = laid("batch first" if case == "logits batch first" else case)
    grad = laid({"gradients batch first": "batch first", "logits batch first": "plain"}.get(case, case))
    there[...] = lab.cupy.asarray(scores(50, 4, 20))
    return lab.ctc(there, labels, api=api, algo=algo, grad=grad).against(reference(scores(50, 4, 20), labels))


#: name: (T, N, A, L), and a small form of it for a dry run.
SIZES = {
    "N=65535": ((4, 65535, 4, 1), (4, 655, 4, 1)),
    "N=65536": ((4, 65536, 4, 1), (4, 656, 4, 1)),
    "N=100000": ((4, 100000, 4, 2), (4, 1000, 4, 2)),
    "A=2": ((20, 4, 2, 3), (20, 4, 2, 3)),
    "A=1": ((20, 4, 1, 0), (20, 4, 1, 0)),
    "A=100000": ((20, 4, 100000, 5), (20, 4, 1000, 5)),
    "T=100000": ((100000, 2, 4, 50), (1000, 2, 4, 50)),
    "T=10000, L=255": ((10000, 2, 30, 255), (600, 2, 30, 255)),
}


@experiment("E15", "Sizes at the edges: status, and right?", "unknown", api=APIS, case=tuple(SIZES))
def e15(lab: Lab, api: str, case: str) -> dict[str, Any]:
    T, N, A, L = SIZES[case][dry()]
    x, labels = scores(T, N, A), [[1 + (i + n) % max(A - 1, 1) for i in range(L)] for n in range(N)]
    answer, exact = lab.ctc(x, labels, api=api), reference(x, labels)
    if answer.costs is None:
        return answer.told()
    return {**answer.against(exact), "loss_relative": largest((answer.costs - exact[0]) / np.maximum(exact[0], 1))}


@experiment("E15b", "A span just under 2^31 elements: the right costs?", "unknown", api=APIS)
def e15b(lab: Lab, api: str) -> dict[str, Any]:
    T, N, A = (20, 10, 100) if dry() else (2000, 107, 10000)  # 2.14e9 elements
    free = None if dry() else lab.cupy.cuda.runtime.memGetInfo()[0]
    if free is not None and free < 6 * T * N * A:
        return {"not_run": f"needs {6 * T * N * A} bytes of device memory, and {free} are free"}
    labels = [1, 2, 2, 3]
    answer = lab.ctc(lab.cupy.zeros((T, N, A), dtype=np.float32), [labels] * N, api=api, gradient="none")
    if answer.costs is None:
        return answer.told()
    # all scores are equal, and so are all samples: one of them says what all must cost
    exact = reference(np.zeros((T, 1, A), np.float32), [labels])[0][0]
    return {**answer.told(), "exact": exact, "loss_relative": largest(answer.costs / exact - 1)}


@experiment(
    "E18",
    "Labels in the wrong memory: on the host for _v8, on the device for the host call?",
    "EXECUTION_FAILED; a segmentation fault",
    alone=True,
    api=APIS,
)
def e18(lab: Lab, api: str) -> dict[str, Any]:
    x, labels = scores(10, 2, 6), [[1, 2], [3]]
    wrong = "device" if api == "host" else "host"
    return lab.ctc(x, labels, api=api, labels_in=wrong).against(reference(x, labels))
