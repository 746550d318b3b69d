"""CTC loss and gradient from every engine behind one meaning: NumPy or CuPy arrays in, losses and gradients out."""

__version__ = "0.1.0"

from .check import Fit, Problem, Report, check
from .diagnose import diagnose
from .engines import Contract, Copy, EngineInfo, engines
from .errors import (
    ClosedError,
    CtcbindError,
    EngineUnavailable,
    EngineUnsupported,
    InvalidInput,
    NativeError,
)
from .explain import Choice, Explanation, explain
from .finding import Diagnosis, Finding, Measures
from .loss import ctc_loss, ctc_loss_and_grad
from .plan import CTCLoss, Result
from .threads import get_num_threads, set_num_threads

__all__ = [
    "CTCLoss",
    "Choice",
    "ClosedError",
    "Contract",
    "Copy",
    "CtcbindError",
    "Diagnosis",
    "EngineInfo",
    "EngineUnavailable",
    "EngineUnsupported",
    "Explanation",
    "Finding",
    "Fit",
    "InvalidInput",
    "Measures",
    "NativeError",
    "Problem",
    "Report",
    "Result",
    "__version__",
    "check",
    "ctc_loss",
    "ctc_loss_and_grad",
    "diagnose",
    "engines",
    "explain",
    "get_num_threads",
    "set_num_threads",
]
