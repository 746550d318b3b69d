"""Few fonts and words for examples/lines, and one thread, as its command has it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from lines import fonts
from lines.lines import Drawn
from lines_lab import WORDS


@pytest.fixture
def one_thread():
    """As the command has it; whatever it sets is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def faces():
    """The fonts that come with matplotlib, so that every machine tests the same."""
    import matplotlib

    return fonts.find(Path(matplotlib.get_data_path()) / "fonts" / "ttf")


@pytest.fixture(scope="module")
def source(faces):
    return Drawn(WORDS, [face for face in faces if face.name == "DejaVu Sans Book"], 3, "a test")
