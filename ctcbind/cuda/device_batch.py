"""A batch whose labels stay on the device: what can be checked without reading them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import rules
from ..arrays import ArrayView, Layout, as_host, between_elements, on_device, to_cupy, view_logits, whole_elements
from ..batch import Batch, Topology, make_batch
from ..errors import InvalidInput
from ..options import blank_index

__all__ = ["DeviceBatch", "make_device_batch"]

INTEGERS = (np.dtype("int32"), np.dtype("int64"))


@dataclass(eq=False)
class DeviceBatch(Batch):
    """A batch of which the host knows the shapes alone; `integers` are empty.

    `device_labels` are (N, width), or one row of all labels; the lengths (N,), or None: T for all, and labels
    before the negatives that end each row. No row has more than `longest`.
    """

    longest: int = 0
    device_labels: Any = None
    device_label_lengths: Any = None
    device_input_lengths: Any = None
    graph_safe: bool = False
    #: Whether input lengths and label lengths were given on the host.
    copied_lengths: tuple[bool, bool] = (False, False)

    on_device = True

    def check(self) -> None:
        """Raises the InvalidInput that these labels and lengths deserve; copies them to the host."""
        shape = np.broadcast_to(np.float32(0), (self.T, self.N, self.C))
        labels, lengths = as_host(self.device_labels), as_host(self.device_label_lengths)
        make_batch(shape, labels, as_host(self.device_input_lengths), lengths, self.blank, "TNC", self.topology)


def make_device_batch(
    logits: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
    layout: Layout,
    topology: Topology,
    overwrite: bool,
    *,
    graph_safe: bool,
) -> DeviceBatch:
    """Shapes and dtypes are checked, no value is read. Lengths on the host are copied to the device, unless
    `graph_safe`: then InvalidInput says what is not there."""
    view = view_logits(logits, layout)
    if view.device == "cpu":
        raise InvalidInput("logits are on the host, and with graph_safe they must be on the device", rule="device")
    _, N, C = view.shape
    if N == 0:
        raise InvalidInput(f"the batch is empty: N = 0 in logits of shape {tuple(logits.shape)}", rule="batch_size")
    if C == 0:
        raise InvalidInput("there are no classes: C = 0, but the blank alone needs one", rule="classes")
    given = {"targets": targets, "input_lengths": input_lengths, "target_lengths": target_lengths}
    arrays = {name: None if value is None else _array(view, name, value, graph_safe) for name, value in given.items()}
    _check_shapes(arrays, N)
    labels = arrays["targets"]
    return DeviceBatch(
        view,
        [],
        blank_index(blank, C),
        topology,
        overwrite,
        longest=_longest(labels, target_lengths, graph_safe),
        device_labels=labels,
        device_label_lengths=arrays["target_lengths"],
        device_input_lengths=arrays["input_lengths"],
        graph_safe=graph_safe,
        copied_lengths=(_on_host(input_lengths), _on_host(target_lengths)),
    )


def _check_shapes(arrays: dict[str, Any], N: int) -> None:
    """Of the labels and lengths of N samples, by their names; None for what was not given."""
    labels = arrays["targets"]
    if labels is None or labels.ndim not in (1, 2) or (labels.ndim == 2 and labels.shape[0] != N):
        shape = None if labels is None else tuple(labels.shape)
        raise InvalidInput(
            f"targets have shape {shape}; on the device they must be (N, L) with N = {N}, or one row of all labels",
            rule="targets_rank",
            value=shape,
        )
    if labels.ndim == 1 and arrays["target_lengths"] is None:
        raise InvalidInput("targets are one row of all labels: target_lengths must be given", rule="target_lengths")
    for name in ("input_lengths", "target_lengths"):
        array = arrays[name]
        if array is not None and array.shape != (N,):
            raise InvalidInput(
                f"{name} has shape {tuple(array.shape)}; it must be one length for each of the {N} samples",
                rule="length_count",
                value=tuple(array.shape),
            )


def _on_host(lengths: Any) -> bool:
    return lengths is not None and not on_device(lengths)


def _longest(labels: Any, lengths: Any, graph_safe: bool) -> int:
    """As far as the host can know: the sum of all labels where they are one row, and a graph must not wait."""
    width = int(labels.shape[-1])
    known = lengths is not None and (not on_device(lengths) or (labels.ndim == 1 and not graph_safe))
    if not known:
        return width
    on_host: Any = as_host(lengths) if on_device(lengths) else rules.first(rules.integers("target_lengths", lengths))
    return min(width, int(on_host.max(initial=0)))


def _array(view: ArrayView, name: str, value: Any, graph_safe: bool) -> Any:
    """An int32 or int64 array side by side on the logits' device."""
    if not on_device(value):
        if graph_safe:
            raise InvalidInput(f"{name} are on the host; with graph_safe they must be on the device", rule="device")
        value = rules.first(rules.integers(name, value))
    xp = view.xp
    here = type(value) is xp.ndarray and value.device.id == view.array.device.id
    if here and value.dtype in INTEGERS and value.flags.c_contiguous and not between_elements(value):
        return value
    with view.array.device:
        array = to_cupy(value) if on_device(value) else xp.asarray(value)
        if array.dtype.kind not in "iu":
            raise InvalidInput(
                f"{name} holds {array.dtype}; it must hold integers", rule="integers", value=str(array.dtype)
            )
        if array.device != view.array.device:
            raise InvalidInput(f"{name} are on {array.device}, the logits on {view.array.device}", rule="device")
        plain = array.dtype in INTEGERS and array.flags.c_contiguous and not between_elements(array)
        if graph_safe and not plain:
            raise InvalidInput(
                f"{name} are {array.dtype} with strides {array.strides}; with graph_safe they must be int32 or int64 "
                "without gaps, for a copy would not outlive the capture",
                rule="integers",
                value=str(array.dtype),
            )
        array = whole_elements(array)
        if array.dtype not in INTEGERS:
            if array.dtype == np.uint64:  # 2**64 - 1 is no padding, but out of range
                array = xp.minimum(array, np.uint64(2**63 - 1))
            array = array.astype("int64")
        return xp.ascontiguousarray(array)
