"""One call of the engines on PyTorch's tensors, and the plans that each thread keeps for it."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engines.room import Room
from ..errors import InvalidInput
from ..extras import import_cuda_cupy
from ..options import blank_index, flag
from ..plan import CTCLoss as Plan
from ..plan import share_room
from ..streams import device_stream
from .errors import InvalidTorchInput, as_torch

__all__ = ["Call", "empty_cache"]

#: So many plans a thread keeps.
MOST_PLANS = 16


class _Kept(threading.local):
    """This thread's plans: handles, workspace and, for all plans together, gradients' memory stay from step to step."""

    def __init__(self) -> None:
        self.plans: dict[tuple[str, int, str, bool, str, str], Plan] = {}
        self.room = Room()


_kept = _Kept()


def empty_cache() -> None:
    """Gives back what the calling thread keeps between calls: workspaces, and the memory of large gradients.

    Each thread keeps the memory of up to two gradients that nothing refers to any more, as `ctcbind.CTCLoss` does,
    since getting new memory takes as long as the loss. The next call allocates what it needs. Tensors that are still
    held are not affected, nor are the caches of PyTorch and CuPy.

    >>> import ctcbind.torch
    >>> ctcbind.torch.empty_cache()
    """
    _kept.plans = {}  # not closed: this may be a signal handler that interrupts a call of one of them
    room, _kept.room = _kept.room, Room()
    room.close()


class Call:
    """Tensors seen as arrays and back, on PyTorch's current stream where they are on a GPU."""

    _device = "cpu"
    _cupy: Any = None
    _scope: AbstractContextManager[Any] | None = None

    def __init__(self, logits: Tensor) -> None:
        if logits.is_cpu:
            return
        if not logits.is_cuda or torch.version.hip:
            where = f"{logits.device}, a device of ROCm" if logits.is_cuda else str(logits.device)
            raise InvalidTorchInput(
                f"log_probs are on {where}; ctcbind computes on the CPU and on CUDA: pass log_probs.cpu()",
                rule="device",
            )
        self._device = str(logits.device)
        need = f"log_probs are on {self._device}, and ctcbind computes there through CuPy, which is not installed"
        self._cupy = import_cuda_cupy(partial(InvalidTorchInput, rule="device"), need)
        stream = torch.cuda.current_stream(logits.device)
        self._scope = device_stream(self._cupy, stream.cuda_stream, logits.device.index)

    def __enter__(self) -> Call:
        if self._scope is not None:
            self._scope.__enter__()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._scope is not None:
            self._scope.__exit__(kind, error, trace)
        if isinstance(error, InvalidInput):
            raise as_torch(error) from error

    def plan(self, blank: int, reduction: str, zero_infinity: bool, topology: str, engine: str) -> Plan:
        if type(blank) is not int or type(zero_infinity) is not bool:  # 1, 1.0 and True are equal as keys
            blank, zero_infinity = blank_index(blank, None), flag("zero_infinity", zero_infinity)
        key = (self._device, blank, reduction, zero_infinity, topology, engine)
        try:
            plan = _kept.plans[key]
        except (KeyError, TypeError):  # what is not hashable is refused here
            plan = Plan(
                blank=blank,
                reduction=reduction,  # type: ignore[arg-type]
                zero_infinity=zero_infinity,
                topology=topology,  # type: ignore[arg-type]
                engine=engine,
            )
            if len(_kept.plans) >= MOST_PLANS:
                _kept.plans.clear()
            share_room(plan, _kept.room)
            _kept.plans[key] = plan
        return plan

    def arrays(self, *tensors: Tensor) -> list[Any]:
        try:
            return [self._on_device(each) if each.is_cuda else each.numpy(force=True) for each in tensors]
        except RuntimeError as error:
            if any(each.is_cuda for each in tensors):
                raise
            raise NotImplementedError(
                f"ctcbind.torch reads tensors where they are, and this one is nowhere, as under torch.func.jvp: {error}"
            ) from error

    def _on_device(self, tensor: Tensor) -> Any:
        return tensor.detach() if self._cupy is None else self._cupy.from_dlpack(tensor.detach())

    def tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(np.asarray(array)) if self._cupy is None else torch.from_dlpack(array)
