"""What the docstrings show: each example runs, and gives what stands there."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import ctcbind
from ctcbind import CTCLoss, ctc_loss, ctc_loss_and_grad

PACKAGE = Path(ctcbind.__file__).resolve().parent


def modules():
    """By their files: to walk the packages imports them, and PyTorch would come along wherever tests are collected."""
    paths = (path.relative_to(PACKAGE.parent).with_suffix("") for path in sorted(PACKAGE.rglob("*.py")))
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.endswith("__main__") and ".bindings._" not in name]


@pytest.mark.parametrize("name", modules())
def test_examples_of_the_docstrings(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if error.name and error.name.split(".")[0] in {"cupy", "torch", "jax", "matplotlib"}:
            pytest.skip(f"needs {error.name}")
        raise
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_the_two_faces_have_an_example():
    for documented in (ctc_loss, ctc_loss_and_grad, CTCLoss):
        assert doctest.DocTestFinder(recurse=False).find(documented)[0].examples
