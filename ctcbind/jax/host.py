"""What a compiled program hands to the host: a batch as ctcbind takes it, and its labels and paddings checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput

__all__ = ["Array", "Call", "check_labels", "paddings", "rows"]

Array = npt.NDArray[Any]


class Call:
    """A batch as ctcbind takes it: axes that vmap has put in front are part of it, frames that count come first."""

    def __init__(self, blank: int, logits: Any, logit_paddings: Any, labels: Any, label_paddings: Any) -> None:
        x = np.asarray(logits)
        self.front = x.shape[:-2]
        self.labels = rows(labels)
        padded, self.counts = paddings(logit_paddings, label_paddings)
        check_labels(self.labels, self.counts, x.shape[-1], blank)
        self.frames = np.sum(~padded, axis=1)
        self.order: Array | None = None
        if (padded[:, :-1] & ~padded[:, 1:]).any():
            self.order = np.argsort(padded, axis=1, kind="stable")[:, :, None]
        self.logits = self.to_the_front(x.reshape(math.prod(self.front), *x.shape[-2:]))

    def to_the_front(self, array: Array) -> Array:
        return array if self.order is None else np.take_along_axis(array, self.order, axis=1)

    def in_place(self, array: Array) -> Array:
        """Frames back to where they were, and the axes of vmap to the front, as JAX waits for them."""
        if self.order is not None:
            moved, array = array, np.empty_like(array)
            np.put_along_axis(array, self.order, moved, axis=1)
        return array.reshape(*self.front, *array.shape[1:])


def rows(value: Any) -> Array:
    array = np.asarray(value)
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


def paddings(logit_paddings: Any, label_paddings: Any) -> tuple[npt.NDArray[np.bool_], Array]:
    """(which frames are padding, how many labels each sample has)."""
    padded = _zeros_and_ones("logit_paddings", logit_paddings)
    unlabelled = _zeros_and_ones("label_paddings", label_paddings)
    if (late := unlabelled[:, :-1] & ~unlabelled[:, 1:]).any():
        sample, position = (int(i) for i in np.argwhere(late)[0])
        raise InvalidInput(
            f"label_paddings[{sample}][{position}] is 1 and a label follows it; the padding must come last: "
            "pass 1 - label_paddings if 1 stands for labels",
            rule="paddings",
            sample=sample,
            position=position,
        )
    return padded, np.sum(~unlabelled, axis=1)


def check_labels(labels: Array, counts: Array, C: int, blank: int) -> None:
    """In the words of csrc/xla.c."""
    inside = np.arange(labels.shape[1]) < counts[:, None]
    wrong = inside & ((labels < 0) | (labels >= C) | (labels == blank))
    if not wrong.any():
        return
    sample, position = (int(i) for i in np.argwhere(wrong)[0])
    value = int(labels[sample, position])
    if value == blank:
        rule, why = "label_blank", ", which is the blank; a target holds labels only"
    elif value < 0:
        rule, why = "label_negative", "; a label cannot be negative"
    else:
        rule, why = "label_range", f", but there are {C} classes (0..{C - 1}), the blank among them"
    where = f"labels[{sample}][{position}] is {value}"
    raise InvalidInput(where + why, rule=rule, sample=sample, position=position, value=value)


def _zeros_and_ones(name: str, value: Any) -> npt.NDArray[np.bool_]:
    array = rows(value)
    ones = array.astype(bool)
    if (wrong := array != ones).any():
        sample, position = (int(i) for i in np.argwhere(wrong)[0])
        raise InvalidInput(
            f"{name}[{sample}][{position}] is {array[sample, position]}; it must be 0 or 1",
            rule="paddings",
            sample=sample,
            position=position,
            value=float(array[sample, position]),
        )
    return ones
