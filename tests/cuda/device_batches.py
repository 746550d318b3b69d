"""Arrays and batches on the device that is host memory, and results from there."""

from __future__ import annotations

import fake_cupy
import numpy as np
from fake_device import to_host as here

import ctcbind


def there(value, dtype=None):
    return fake_cupy.ndarray(np.ascontiguousarray(value, dtype=dtype))


def padded(labels, width=None):
    width = max(map(len, labels), default=0) if width is None else width
    rows = np.full((len(labels), width), -1, dtype=np.int32)
    for n, row in enumerate(labels):
        rows[n, : len(row)] = row
    return rows


def of(fake, call):
    return [entry for entry in fake.log if entry["call"] == call]


def on_host(result):
    return ctcbind.Result(here(result.loss), here(result.grad), result.engine)


def on_device(case, number):
    """The batch with labels and lengths on the device, in one of the ways to write them."""
    lengths = [len(row) for row in case.labels]
    wide = np.int64 if number % 2 else np.int32
    frames = there(case.frames, wide)
    logits = fake_cupy.ndarray(case.args[0])
    if number % 3 == 0:
        return logits, there(np.concatenate([[], *case.labels]), wide), frames, there(lengths, np.int32)
    if number % 3 == 1:
        return logits, there(padded(case.labels), wide), frames, None
    return logits, there(np.maximum(padded(case.labels, 14), 0), wide), frames, there(lengths, np.int64)
