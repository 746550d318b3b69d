"""Experiments on how cuDNN works on the device: capture, streams, threads, several devices, libraries, time."""

from __future__ import annotations

import re
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from cudnn_lab import Answer, Lab, dry, largest, reference, scores
from experiments import experiment

import ctcbind

APIS, ALGOS = ("host", "v8"), (0, 1)
LABELS, OTHERS = [[1, 2, 2, 5, 19], [3], [7, 7, 7], [4, 1, 4, 1]], [[2, 1, 1, 6, 18], [5], [8, 8, 8], [1, 4, 1, 4]]


@experiment(
    "E16",
    "Captured in a CUDA graph and replayed with other logits, labels and lengths in the same memory: right?",
    "_v8: yes; the host call: an error, or the labels of the capture",
    api=APIS,
)
def e16(lab: Lab, api: str) -> dict[str, Any]:
    cupy = lab.cupy
    x, other = scores(50, 4, 20), scores(50, 4, 20, seed=1)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        answer, launch = lab.prepare(x, LABELS, api=api)
        if launch is None:
            return answer.told()
        answer.steps.append(launch())
        eager = lab.read(answer).against(reference(x, LABELS))
        stream.begin_capture()
        told = launch()
        try:
            graph = stream.end_capture()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return {"eager": eager, "captured": told, "capture_ended": str(error)}
        lab.x[...] = cupy.asarray(other)
        lab.ints_given[0][...] = as_given(lab, OTHERS)
        graph.launch(stream)
        again = lab.read(Answer(steps=[told]))
    return {
        "eager": eager,
        "captured": told,
        "replay": again.against(reference(other, OTHERS)),
        "replay_against_the_old_labels": again.against(reference(other, LABELS)),
        "replay_against_the_old_problem": again.against(reference(x, LABELS)),
    }


def as_given(lab: Lab, labels: list[list[int]]) -> Any:
    """The labels as one row of the kind that was given: NumPy's or CuPy's."""
    flat = np.array([label for row in labels for label in row], dtype=np.int32)
    return flat if isinstance(lab.ints_given[0], np.ndarray) else lab.cupy.asarray(flat)


@experiment(
    "E16b",
    "Does cudnnCTCLoss return before the stream has done its work, and may the host's labels change at its return?",
    "unknown; they are kept until the stream has passed",
    algo=ALGOS,
)
def e16b(lab: Lab, algo: int) -> dict[str, Any]:
    x = scores(50, 4, 20)
    stream = lab.cupy.cuda.Stream(non_blocking=True)
    with stream:
        answer, launch = lab.prepare(x, LABELS, algo=algo)
        if launch is None:
            return answer.told()
        launch()
        stream.synchronize()
        lab.busy()
        began = time.perf_counter()
        answer.steps.append(launch(quiet=True))
        seconds, done = time.perf_counter() - began, bool(stream.done)
        lab.ints_given[0][...] = as_given(lab, OTHERS)
        lab.read(answer)
    return {
        "stream_done_at_return": done,
        "seconds_of_the_call": seconds,
        "with_the_labels_given": answer.against(reference(x, LABELS)),
        "with_the_labels_written_after": answer.against(reference(x, OTHERS)),
    }


@experiment(
    "E17", "Which libraries does the process hold after a whole computation?", "adv, ops and graph alone", api=APIS
)
def e17(lab: Lab, api: str) -> dict[str, Any]:
    def mapped() -> list[str]:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
        names = {Path(line.split()[-1]).name for line in lines if "/" in line}
        return sorted(name for name in names if re.search(r"cudnn|cublas|nvrtc|cudart|libcuda\b|libcuda\.", name))

    before = mapped()
    answer = lab.ctc(scores(10, 2, 6), [[1, 2], [3]], api=api)
    return {**answer.told(), "before": before, "loaded_by_the_call": sorted(set(mapped()) - set(before))}


@experiment("E20", "On a stream that is busy, with logits that are written on it: right?", "yes", api=APIS, algo=ALGOS)
def e20(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    x = scores(50, 4, 20)
    there, source = lab.cupy.zeros(x.shape, dtype=np.float32), lab.cupy.asarray(x)
    lab.cupy.cuda.runtime.deviceSynchronize()
    with lab.cupy.cuda.Stream(non_blocking=True):
        answer, launch = lab.prepare(there, LABELS, api=api, algo=algo)
        if launch is None:
            return answer.told()
        lab.busy()
        there[...] = source
        answer.steps.append(launch())
        return lab.read(answer).against(reference(x, LABELS))


@experiment("E20b", "Two handles in two threads at once: right?", "yes", api=APIS, algo=ALGOS)
def e20b(lab: Lab, api: str, algo: int) -> dict[str, Any]:
    worst: dict[int, Any] = {}

    def work(number: int) -> None:
        x = scores(50, 4, 20, seed=number)
        labels, exact = (LABELS, OTHERS)[number], reference(x, (LABELS, OTHERS)[number])
        told: list[dict[str, Any]] = []
        with lab.cupy.cuda.Device(0), lab.cupy.cuda.Stream(non_blocking=True), Lab(lab.cupy) as own:
            for _ in range(3 if dry() else 50):
                told.append(own.ctc(x, labels, api=api, algo=algo).against(exact))
        keys = ("loss_off", "grad_off")
        worst[number] = {**told[-1], **{key: largest([each.get(key, np.nan) for each in told]) for key in keys}}

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"threads": [worst.get(number, "raised") for number in (0, 1)]}


@experiment("E20c", "cudnnSetStream with another device's stream: status?", "BAD_PARAM")
def e20c(lab: Lab) -> dict[str, Any]:
    if lab.cupy.cuda.runtime.getDeviceCount() < 2:
        return {"not_run": "there is one device"}
    with lab.cupy.cuda.Device(1):
        stream = lab.cupy.cuda.Stream(non_blocking=True)
    from ctcbind.bindings import cudnn

    told = lab.status("cudnnSetStream", lab.handle._pointer, cudnn.ffi.cast("cudaStream_t", stream.ptr))
    return {"set": told}


@experiment("E21", "A handle of device 0 while device 1 is the current one: status, right?", "unknown", api=APIS)
def e21(lab: Lab, api: str) -> dict[str, Any]:
    if lab.cupy.cuda.runtime.getDeviceCount() < 2:
        return {"not_run": "there is one device"}
    x = scores(50, 4, 20)
    with lab.cupy.cuda.Device(1):
        answer = lab.ctc(x, LABELS, api=api)
        return answer.against(reference(x, LABELS))


def size() -> tuple[int, int, int, int]:
    """(T, N, C, L) of the measurements."""
    return (20, 2, 30, 5) if dry() else (1000, 32, 5000, 100)


def runs() -> int:
    return 2 if dry() else 20


def problem() -> tuple[np.ndarray, list[list[int]]]:
    T, N, C, L = size()
    return scores(T, N, C), np.random.default_rng(0).integers(1, C, size=(N, L)).tolist()


@experiment(
    "E24",
    "Milliseconds of one call, T=1000 N=32 C=5000 L=100, by CUDA events: median and all?",
    "unknown; algo 1 is said to be the faster",
    api=APIS,
    algo=ALGOS,
    gradient=("both", "none"),
)
def e24(lab: Lab, api: str, algo: int, gradient: str) -> dict[str, Any]:
    x, labels = problem()
    answer, launch = lab.prepare(x, labels, api=api, algo=algo, gradient=gradient)
    if launch is None:
        return answer.told()
    cuda = lab.cupy.cuda
    answer.steps.append(launch())
    times = []
    for _ in range(runs()):
        events = cuda.Event(), cuda.Event()
        events[0].record()
        launch(quiet=True)
        events[1].record()
        events[1].synchronize()
        times.append(float(cuda.get_elapsed_time(*events)))
    lab.read(answer)
    return {**answer.told(), "size": size(), "median_ms": statistics.median(times), "all_ms": times}


@experiment(
    "E24b", "Milliseconds of ctcbind's cudnn engine on the same, a plan kept, until its results are there?", "unknown"
)
def e24b(lab: Lab) -> dict[str, Any]:
    x, labels = problem()
    there = lab.cupy.asarray(x)
    times = []
    with ctcbind.CTCLoss(engine="cudnn") as plan:
        for _ in range(runs() + 1):
            lab.cupy.cuda.runtime.deviceSynchronize()
            began = time.perf_counter()
            plan(there, labels)
            lab.cupy.cuda.runtime.deviceSynchronize()
            times.append(1e3 * (time.perf_counter() - began))
    return {"size": size(), "first_ms": times[0], "median_ms": statistics.median(times[1:]), "all_ms": times[1:]}


@experiment("E24c", "Milliseconds of PyTorch's own kernel on the same, cuDNN switched off?", "unknown", lab=False)
def e24c(lab: None) -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"not_run": f"needs PyTorch: {error}"}
    if not torch.cuda.is_available() and not dry():
        return {"not_run": "PyTorch sees no device"}
    place = "cuda" if torch.cuda.is_available() else "cpu"
    host, labels = problem()
    T, N, _, L = size()
    x = torch.from_numpy(host).to(place).requires_grad_()
    targets = torch.tensor(labels, device=place)
    lengths = torch.full((N,), T, dtype=torch.long), torch.full((N,), L, dtype=torch.long)
    times = []
    for _ in range(runs() + 1):
        if place == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        with torch.backends.cudnn.flags(enabled=False):
            loss = torch.nn.functional.ctc_loss(x.log_softmax(2), targets, *lengths, reduction="sum")
            loss.backward()
        if place == "cuda":
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    told = {"torch": torch.__version__, "size": size(), "median_ms": statistics.median(times[1:]), "all_ms": times[1:]}
    return {**told, "place": place, "loss": float(loss.detach())}
