"""examples/reader in the tests: where it is, a small trainer, and files as MNIST has them."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TRAIN = EXAMPLES / "reader" / "train.py"
sys.path.insert(0, str(EXAMPLES))

from reader.network import Shape, arrays_of  # noqa: E402
from reader.training import Reader, Settings, Trainer  # noqa: E402

SMALL = {"channels": 16, "blocks": 1, "units": 8}


def trainer(digits, engine="native", *, kind="gru", xp=np, **settings):
    options = {"steps": 40, "batch": 8, "longest": 3} | settings
    shape = Shape(kind=kind, height=digits.height, **SMALL)
    return Trainer(Reader(shape, seed=3, xp=xp), Settings(**options), digits, engine)


def weights(trainer):
    """All parameters, running means and moments, copied into NumPy arrays."""
    found = {
        f"{what}:{name}": a
        for what in ("params", "buffers")
        for name, a in arrays_of(trainer.reader.network, what).items()
    }
    found |= {f"m:{name}": a for name, a in trainer.adam.m.items()} | {f"v:{n}": a for n, a in trainer.adam.v.items()}
    return {name: a.copy() if isinstance(a, np.ndarray) else a.get() for name, a in found.items()}


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
