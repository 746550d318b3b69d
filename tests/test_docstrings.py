"""What the docstrings show: each example runs, and gives what stands there."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

import ctcbind
from ctcbind import compat

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


def public_functions():
    yield from ((name, getattr(ctcbind, name)) for name in ctcbind.__all__)
    yield from ((f"compat.{name}", getattr(compat, name)) for name in compat.__all__)


@pytest.mark.parametrize(
    "documented", [pytest.param(each, id=name) for name, each in public_functions() if inspect.isfunction(each)]
)
def test_every_public_function_has_an_example(documented):
    assert doctest.DocTestFinder(recurse=False).find(documented)[0].examples


def test_so_has_the_class_for_a_loop():
    assert doctest.DocTestFinder(recurse=False).find(ctcbind.CTCLoss)[0].examples
