"""Experiments on what cuDNN computes: costs, gradients, and what becomes of the samples it does not compute."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from cudnn_lab import NONE, SOFTMAX, Lab, dry, kind_of, largest, reference, scores, softmax
from experiments import experiment

APIS, ALGOS, MODES = ("host", "v8"), (0, 1), (0, 1)
LABELS = [[1, 2, 2, 5, 19], [3], [7, 7, 7], [4, 1, 4, 1]]


@experiment(
    "E1",
    "SOFTMAX: is the cost -ln p, and the gradient softmax less posterior?",
    "yes: relative error of the cost below 1e-5, of the gradient below 1e-4 absolute",
    api=APIS,
    algo=ALGOS,
)
def e1(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x = scores(50, 4, 20)
    return lab.ctc(x, LABELS, api=api, algo=algo).against(reference(x, LABELS))


@experiment(
    "E1b",
    "NONE with p = softmax(x): the cost and gradient of SOFTMAX on x? And with p that does not sum to 1?",
    "yes; a finite number without meaning",
    api=APIS,
    scale=(1.0, 2.0),
)
def e1b(lab: Lab, api: str, scale: float) -> dict[str, Any]:
    x = scores(50, 4, 20)
    p = (scale * softmax(x)).astype(np.float32)
    return lab.ctc(p, LABELS, api=api, norm=NONE).against(reference(x, LABELS))


@experiment("E1c", "SOFTMAX: is the cost the same for x + c?", "yes", api=APIS, c=(1.0, 10.0, 100.0))
def e1c(lab: Lab, api: str, c: float) -> dict[str, Any]:
    x = scores(50, 4, 20)
    moved = lab.ctc(x + np.float32(c), LABELS, api=api)
    return moved.against(reference(x, LABELS))


@experiment(
    "E3",
    "T = 3 and labels 2 2 3, which need 4: cost, gradient (ZERO and SKIP), the samples beside it?",
    "cost 0, not inf; ZERO gives zeros, SKIP leaves the buffer; the others are right",
    api=APIS,
    algo=ALGOS,
    mode=MODES,
)
def e3(lab: Lab, api: str, algo: int, mode: int) -> dict[str, Any]:
    x, labels = scores(3, 3, 6), [[1, 2], [2, 2, 3], [4]]
    return one_of_three(lab.ctc(x, labels, api=api, algo=algo, mode=mode), reference(x, labels))


@experiment(
    "E3b",
    "L = 5 and T = 3: status, cost, gradient; any access outside the buffers?",
    "cost 0; once an illegal access",
    alone=True,
    sanitize=True,
    api=APIS,
    algo=ALGOS,
)
def e3b(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x, labels = scores(3, 3, 6), [[1, 2], [1, 2, 3, 4, 5], [4]]
    return one_of_three(lab.ctc(x, labels, api=api, algo=algo), reference(x, labels))


def one_of_three(answer: Any, expected: Any) -> dict[str, Any]:
    """What became of sample 1, and how far off its neighbours are."""
    if not answer.ok:
        return dict(answer.told())
    return {
        **answer.told(),
        "cost": answer.costs[1],
        "gradient": kind_of(answer.grad[:, 1]),
        "others_loss_off": largest((answer.costs - expected[0])[[0, 2]]),
        "others_grad_off": largest((answer.grad - expected[1])[:, [0, 2]]),
    }


@experiment(
    "E4",
    "No labels: cost and gradient, first, last, between, and when nobody has any?",
    "cost 0 on 9.x (true: -sum ln p(blank)), gradient 0 or untouched",
    api=APIS,
    algo=ALGOS,
    empty=("first", "between", "last", "all"),
)
def e4(lab: Lab, api: str, algo: int, empty: str) -> dict[str, Any]:
    x = scores(6, 3, 6)
    at = {"first": [0], "between": [1], "last": [2], "all": [0, 1, 2]}[empty]
    labels = [[] if n in at else [1 + n, 2] for n in range(3)]
    answer, (losses, grads) = lab.ctc(x, labels, api=api, algo=algo), reference(x, labels)
    if not answer.ok:
        return answer.told()
    others = [n for n in range(3) if n not in at]
    return {
        **answer.told(),
        "costs": answer.costs[at],
        "true_costs": losses[at],
        "gradient": kind_of(answer.grad[:, at]),
        "gradient_off": largest((answer.grad - grads)[:, at]),
        "others_loss_off": largest((answer.costs - losses)[others]),
        "others_grad_off": largest((answer.grad - grads)[:, others]),
    }


@experiment(
    "E5",
    "Input length 3 of T = 6, gradients filled with 7 before: what stands at t >= 3?",
    "7: nothing is written there",
    api=APIS,
    algo=ALGOS,
)
def e5(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x, labels, frames = scores(6, 3, 6), [[1, 2], [3], [4, 1]], [6, 3, 5]
    answer, (losses, grads) = lab.ctc(x, labels, frames, api=api, algo=algo), reference(x, labels, frames)
    if not answer.ok:
        return answer.told()
    return {
        **answer.told(),
        "past_the_length": [kind_of(answer.grad[length:, n]) for n, length in enumerate(frames)],
        "inside_off": largest([largest((answer.grad - grads)[: frames[n], n]) for n in range(3)]),
        "loss_off": largest(answer.costs - losses),
    }


@experiment(
    "E6",
    "Input lengths of 0 (without and with a label), T + 1 and -1: status, cost?",
    "unknown; the host call may say BAD_PARAM past T",
    alone=True,
    sanitize=True,
    api=APIS,
    case=("T=0, L=0", "T=0, L=1", "T+1", "-1"),
)
def e6(lab: Lab, api: str, case: str) -> dict[str, Any]:
    x = scores(6, 3, 6)
    length, row = {"T=0, L=0": (0, []), "T=0, L=1": (0, [3]), "T+1": (7, [3]), "-1": (-1, [3])}[case]
    labels = [[1, 2], row, [4]]
    return one_of_three(lab.ctc(x, labels, [6, length, 6], api=api), reference(x, labels))


def peaked(case: str) -> np.ndarray:
    """Two samples; the second has a wide range of logits, or one logit that is special."""
    x = scores(20, 2, 8)
    special = {"inf": np.inf, "-inf": -np.inf, "-1e30": -1e30, "1e30": 1e30, "nan": np.nan}
    if case in special:
        x[5, 1, 3] = special[case]
    elif case.startswith("only"):  # the blank is that many nats above the label that this frame has to carry
        x[:, 1] = 0
        x[5, 1, 0] = float(case.split()[1])
    else:
        x[:, 1] *= float(case) / np.ptp(x[:, 1])
    return x


@experiment(
    "E7",
    "Peaked and special logits: NaN or inf in costs or gradients? In the sample beside them?",
    "algo 0: none for finite logits; algo 1: NaN gradients, as in 7.6",
    api=("host",),
    algo=ALGOS,
    case=("100", "336", "1e4", "only 80", "only 90", "only 95", "only 100", "only 120", "inf", "-inf", "-1e30",
          "1e30", "nan"),
)  # fmt: skip
def e7(lab: Lab, api: str, algo: int, case: str) -> dict[str, Any]:
    x, labels = peaked(case), [[1, 2], [1, 2] * 10 if case.startswith("only") else [1, 3, 3]]
    answer, (losses, grads) = lab.ctc(x, labels, api=api, algo=algo), reference(x, labels)
    if not answer.ok:
        return answer.told()
    return {
        **answer.told(),
        "cost": answer.costs[1],
        "true_cost": losses[1],
        "gradient": kind_of(answer.grad[:, 1]),
        "grad_off": largest((answer.grad - grads)[:, 1]),
        "other_loss_off": largest((answer.costs - losses)[0]),
        "other_grad_off": largest((answer.grad - grads)[:, 0]),
    }


def many_labels() -> tuple[np.ndarray, list[list[int]]]:
    return scores(60, 8, 30), [[1 + (i * (n + 1)) % 29 for i in range(20)] for n in range(8)]


@experiment("E19", "100 runs: the same bits?", "algo 0: yes; algo 1: no", api=APIS, algo=ALGOS)
def e19(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x, labels = many_labels()
    costs, grads, told = set(), set(), {}
    for _ in range(3 if dry() else 100):
        answer = lab.ctc(x, labels, api=api, algo=algo)
        told = answer.told()
        if not answer.ok:
            return told
        costs.add(answer.costs.tobytes())
        grads.add(answer.grad.tobytes())
    return {**told, "different_costs": len(costs), "different_gradients": len(grads)}


@experiment("E22", "Gradients written over the logits: right?", "unknown; not to be relied on", api=APIS, algo=ALGOS)
def e22(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x = scores(50, 4, 20)
    there = lab.cupy.asarray(x)
    return lab.ctc(there, LABELS, api=api, algo=algo, grad=there).against(reference(x, LABELS))


@experiment("E23", "Repeats, and every class of the alphabet among the labels: right?", "yes", api=APIS, algo=ALGOS)
def e23(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    labels = [list(range(1, 12)), [1] * 10, [1, 2] * 8, [11, 11, 10, 10, 9, 9]]
    x, frames = scores(30, 4, 12), [11, 19, 16, 30]  # the first three have just enough time
    return lab.ctc(x, labels, frames, api=api, algo=algo).against(reference(x, labels, frames))


@experiment(
    "E25",
    "Bits of a fixed problem, to be compared between versions of cuDNN; and a label 0: a number, or the device's end?",
    "unknown; 9.24 gives a number for label 0, 9.25.1 and later end the context",
    alone=True,
    api=APIS,
    what=("bits", "label 0"),
)
def e25(lab: Lab, api: str, what: str) -> dict[str, Any]:
    x, labels = many_labels()
    if what == "label 0":
        labels[3][7] = 0
    answer = lab.ctc(x, labels, api=api)
    if not answer.ok:
        return answer.told()
    digest = hashlib.sha256(answer.costs.tobytes() + answer.grad.tobytes()).hexdigest()
    return {**answer.told(), "sha256": digest, "cost_of_sample_3": answer.costs[3], "softmax": SOFTMAX}
