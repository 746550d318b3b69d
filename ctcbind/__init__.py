"""CTC loss and gradient from every engine behind one meaning: NumPy or CuPy arrays in, losses and gradients out."""

__version__ = "0.1.0"

import typing as _typing

from . import interpreter as _interpreter  # noqa: F401 (first: it refuses those that nothing else is loaded in)
from .align import Alignment, align, frames_to_seconds
from .check import Fit, Problem, Report, check
from .compare import Comparison, EngineRow, compare
from .decode import Hypothesis, beam_search, greedy_decode
from .diagnose import diagnose
from .edits import edit_distance, error_rate
from .engines import Contract, Copy, EngineInfo, engines
from .errors import (
    ClosedError,
    CtcbindError,
    EngineUnavailable,
    EngineUnsupported,
    InvalidInput,
    NativeError,
    NativeMemoryError,
    OutOfMemory,
)
from .explain import Choice, Explanation, explain
from .finding import Diagnosis, Finding, Measures
from .lattice import Lattice, LatticeLoss, ctc_lattice, lattice_loss_and_grad, posteriors
from .loss import ctc_loss, ctc_loss_and_grad
from .plan import CTCLoss, Result
from .second_order import ctc_hessian, ctc_hvp
from .threads import get_num_threads, set_num_threads

__all__ = [
    "Alignment",
    "CTCLoss",
    "Choice",
    "ClosedError",
    "Comparison",
    "Contract",
    "Copy",
    "CtcbindError",
    "Diagnosis",
    "EngineInfo",
    "EngineRow",
    "EngineUnavailable",
    "EngineUnsupported",
    "Explanation",
    "Finding",
    "Fit",
    "Hypothesis",
    "InvalidInput",
    "Lattice",
    "LatticeLoss",
    "Measures",
    "NativeError",
    "NativeMemoryError",
    "OutOfMemory",
    "Problem",
    "Report",
    "Result",
    "__version__",
    "align",
    "beam_search",
    "check",
    "compare",
    "ctc_hessian",
    "ctc_hvp",
    "ctc_lattice",
    "ctc_loss",
    "ctc_loss_and_grad",
    "diagnose",
    "edit_distance",
    "engines",
    "error_rate",
    "explain",
    "frames_to_seconds",
    "get_num_threads",
    "greedy_decode",
    "lattice_loss_and_grad",
    "posteriors",
    "set_num_threads",
]

if _typing.TYPE_CHECKING:
    from . import compat as compat
    from . import jax as jax
    from . import torch as torch
else:

    def __getattr__(name: str) -> object:
        """`ctcbind.torch`, `ctcbind.jax` and `ctcbind.compat`, imported when they are used."""
        if name not in ("compat", "jax", "torch"):
            raise AttributeError(f"module 'ctcbind' has no attribute {name!r}")
        from importlib import import_module

        return import_module(f"ctcbind.{name}")
