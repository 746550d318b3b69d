"""The cudnn engine as the tests call it on a machine whose device is host memory (fixtures `device`, `use_device`)."""

from __future__ import annotations

from typing import Any

import fake_cupy
import numpy as np
from batches import Case

import ctcbind
from ctcbind.engines import cudnn_handles

NOTHING_ALIVE = {"handle": 0, "tensor": 0, "ctcloss": 0}
#: What one thread has on one device.
ONE_HANDLE = {"handle": 1, "tensor": 2, "ctcloss": 1}
#: Where the logits are: NumPy's arrays are carried to the device and back, CuPy's are used where they lie.
PLACES = ("host", "device")


def release() -> None:
    """Gives back what the threads have of cuDNN."""
    for key in list(cudnn_handles._handles):
        cudnn_handles._release(fake_cupy, key)


def begin_again(device: Any, version: int = 92800) -> None:
    """With an empty log, and a handle to be made."""
    release()
    device.reset(version)


def at(place: str, x: np.ndarray) -> Any:
    """These values there; on the device they lie as they do in x."""
    return x if place == "host" else fake_cupy.ndarray(x)


def to_host(value: Any) -> np.ndarray:
    return np.asarray(fake_cupy.asnumpy(value))


def run(place: str, logits: np.ndarray, *args: Any, **options: Any) -> ctcbind.Result:
    """Losses and gradient of the cudnn engine, brought to the host; they came back as what the logits were."""
    given = at(place, logits)
    result = ctcbind.ctc_loss_and_grad(given, *args, engine="cudnn", **options)
    assert result.engine == "cudnn"
    for each in result[:2]:
        assert isinstance(each, fake_cupy.ndarray if place == "device" else (np.ndarray, np.generic))
    assert result.grad.shape == logits.shape
    assert result.grad.dtype == logits.dtype
    assert result.loss.dtype == np.float32
    return ctcbind.Result(to_host(result.loss), to_host(result.grad), result.engine)


def loss(place: str, logits: np.ndarray, *args: Any, **options: Any) -> np.ndarray:
    return to_host(ctcbind.ctc_loss(at(place, logits), *args, engine="cudnn", **options))


def case_of(x: np.ndarray, labels: list[list[int]], frames: list[int] | None = None, **options: Any) -> Case:
    """A batch written plainly: x in the caller's layout."""
    tnc = x.transpose(1, 0, 2) if options.get("layout") == "NTC" else x
    T, N, C = tnc.shape
    plain = np.array(tnc, dtype=np.float64, order="C")
    number = options.get("blank", 0) % C
    return Case(
        plain, labels, frames or [T] * N, number, args=(x, labels, frames), options=options, name=f"{x.shape}, {labels}"
    )
