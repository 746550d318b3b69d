"""The page of symptoms: its examples run, and what it names exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

import ctcbind
from ctcbind.reduction import REDUCTIONS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "troubleshooting.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_examples_run():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert tried > 30
    assert failed == 0


def test_every_symptom_has_a_call():
    titles = ("inf", "NaN", "rises from the start", "negative", "blanks", "gibberish", "PyTorch, TensorFlow or Keras")
    for title in titles:
        assert re.search(rf"(?m)^## .*{title}", TEXT), title
    for section in TEXT.split("\n## ")[1:]:
        assert "negative" in section.splitlines()[0] or ">>> " in section
    for reduction in re.findall(r'`reduction="(\w+)"', TEXT):
        assert reduction in REDUCTIONS


def test_the_table_of_values_holds_for_pytorch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(30, 3, 7))
    targets, lengths = [[1, 2, 3], [4, 4], [5]], [3, 2, 1]
    log_probs = torch.log_softmax(torch.tensor(logits), dim=2)
    flat = torch.tensor([label for row in targets for label in row])
    for theirs, mine in (("mean", "label_mean"), ("sum", "sum"), ("none", "none")):
        value = torch.nn.CTCLoss(reduction=theirs)(log_probs, flat, torch.tensor([30] * 3), torch.tensor(lengths))
        assert np.allclose(ctcbind.ctc_loss(logits, targets, reduction=mine), value.numpy(), rtol=1e-12)
