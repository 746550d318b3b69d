"""Digits that need no data set, and examples/reader where it is quick."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader import command
from reader.digits import Digits
from reader.network import Shape
from reader_lab import idx


@pytest.fixture
def rng():
    return np.random.default_rng([SEED, 6])


@pytest.fixture(scope="module")
def digits():
    """Ten bars at ten heights and lean: enough to tell apart, without a data set."""
    images = np.zeros((10, 16, 16), dtype=np.float32)
    for d in range(10):
        images[d, 3:13, 7:9] = 1
        images[d, 3 + d, 4:12] = 1
    return Digits(np.repeat(images, 4, axis=0), np.repeat(np.arange(10), 4))


@pytest.fixture
def mnist(digits, tmp_path):
    """A folder of the four files, two of them gzipped, that holds the ten signs."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = (digits.images * 255).astype(np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(digits.labels))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:10])))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(digits.labels[:10])))
    return folder


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A command that trains a small network and tries it on few words, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Shape, "channels", 16)
    monkeypatch.setattr(command, "HELD_OUT", 60)
    return tmp_path
