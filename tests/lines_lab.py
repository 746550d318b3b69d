"""examples/lines in the tests: where it is, and a tiny trainer."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TRAIN = EXAMPLES / "lines" / "train.py"
sys.path.insert(0, str(EXAMPLES))

from lines import text  # noqa: E402
from lines.lines import Stream  # noqa: E402
from lines.network import Shape  # noqa: E402
from lines.training import LineReader, Settings, Trainer  # noqa: E402

TINY = {"channels": 2, "units": 8}
WORDS = ["ink", "apple", "zoom"]


def trainer(source, **settings):
    options = {"steps": 40, "batch": 4, **settings}
    shape = Shape(classes=len(text.ALPHABET) + 1, **TINY)
    early = options["steps"] // 3
    stream = Stream(source, 1, options["batch"], early)
    return Trainer(LineReader(shape, text.ALPHABET, seed=3), Settings(**options), stream)


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)
