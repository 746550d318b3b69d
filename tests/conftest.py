"""Every engine that is available here, and outputs that begin as NaN."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from batches import SEED, Case
from native_arrays import make_arrays_by

import ctcbind
from ctcbind import kept
from ctcbind.batch import Batch
from ctcbind.cuda import kernels
from ctcbind.engines import NAMES, get


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-record", metavar="DIR", help="write what the experiments on cuDNN observe to DIR")


def pytest_configure() -> None:
    if (
        signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    ):  # as for what a shell runs in the background: Ctrl-C is tested
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return f"ctcbind {ctcbind.__version__} from {ctcbind.__path__[0]}, CTCBIND_TEST_SEED={SEED}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not any("gpu" in item.keywords for item in items):
        return
    if (reason := no_device()) is not None:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason=reason))


@cache
def no_device() -> str | None:
    """Why GPU tests cannot run; None where they can."""
    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except ImportError as error:
        return f"needs a CUDA device, and CuPy to reach it: {error}"
    except Exception as error:  # CUDARuntimeError, or a driver that cannot be loaded
        return f"needs a CUDA device: {type(error).__name__}: {error}"
    return None if count else "needs a CUDA device: none found"


@cache
def info(name: str) -> ctcbind.EngineInfo:
    return ctcbind.engines()[name]


class EngineUnderTest:
    """One engine, called with NumPy arrays wherever it computes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.contract = info(name).contract

    def __repr__(self) -> str:
        return f"<engine {self.name}>"

    @property
    def dtype(self) -> str:
        """The widest dtype of logits that its contract declares."""
        return "float64" if "float64" in self.contract.dtypes else "float32"

    def __call__(self, logits: Any, *args: Any, **options: Any) -> ctcbind.Result:
        kept.forget()  # a plan that was used before would go another way
        result = ctcbind.ctc_loss_and_grad(self._to(logits), *args, engine=self.name, **options)
        assert result.engine == self.name
        if self.name == "native":
            self._again(result, logits, *args, **options)
        return ctcbind.Result(self._back(result.loss), self._back(result.grad), result.engine)

    def loss(self, logits: Any, *args: Any, **options: Any) -> Any:
        kept.forget()
        return self._back(ctcbind.ctc_loss(self._to(logits), *args, engine=self.name, **options))

    def _again(self, first: ctcbind.Result, *args: Any, **options: Any) -> None:
        """A plan's third call goes another way (tests/test_direct.py), with the same results."""
        with ctcbind.CTCLoss(engine=self.name, **options) as plan:
            results = [plan(*args) for _ in range(3)]
        assert type(results[2].loss) is type(first.loss)
        np.testing.assert_array_equal(results[2].grad, first.grad)
        np.testing.assert_array_equal(results[2].loss, first.loss)

    def explain(self, logits: Any, *args: Any, **options: Any) -> ctcbind.Choice:
        return ctcbind.explain(self._to(logits), *args, **options)[self.name]

    def run(self, case: Case) -> ctcbind.Result | None:
        """The result; None where the engine's contract states that it does not compute such a batch."""
        return self.stated_refusal(lambda: self(*case.args, **case.options), topology=case.topology, x=case.x)

    def stated_refusal(self, call: Any, *, topology: str = "ctc", x: Any = None) -> Any:
        """call(), or None if it raised EngineUnsupported for something that the contract declares.

        A contract declares its topologies and, in `limits`, that it cannot bear extreme logits: a frame with
        values that are not finite, or so far apart that exp comes near its end: at 708 nats in float64, at 87 in
        float32 where that is all an engine has.
        """
        try:
            return call()
        except ctcbind.EngineUnsupported as error:
            if topology not in self.contract.topologies:
                return None
            x = np.asarray(x, dtype=np.float64)
            with np.errstate(over="ignore"):
                end = 600 if self.dtype == "float64" else 85
                extreme = not np.isfinite(x).all() or np.ptp(x, axis=-1).max() > end
            if self.contract.limits and extreme and re.search(r"\bsample \d", str(error)):
                return None
            raise

    def _to(self, logits: Any) -> Any:
        if self.contract.arrays != "device":
            return logits
        import cupy

        if logits.dtype.name == "bfloat16" and int(cupy.__version__.partition(".")[0]) < 14:
            return logits  # CuPy holds none before: the engine carries them there and back
        return cupy.asarray(logits)

    def _back(self, value: Any) -> Any:
        if self.contract.arrays != "device":
            return value
        import cupy

        return cupy.asnumpy(value)


@pytest.fixture
def rng() -> np.random.Generator:
    """Other numbers in each run, the same for each test of it."""
    return np.random.default_rng(SEED)


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Results begin as NaN instead of whatever memory held; returns a log of the arrays that were handed out."""
    handed_out = []
    losses, grad = Batch.empty_losses, Batch.empty_grad

    def poisoned_losses(self: Batch) -> Any:
        handed_out.append("losses")
        array = losses(self)
        array[...] = np.nan
        return array

    def poisoned_grad(self: Batch, *empty: Any, **options: Any) -> tuple[Any, Any]:
        handed_out.append("grad")
        both = grad(self, *empty, **options)
        both[0][...] = np.nan
        return both

    def poisoned(shape: Any, dtype: Any) -> Any:
        handed_out.append("losses" if np.size(shape) == 1 else "grad")
        return np.full(shape, np.nan, dtype)

    make_arrays_by(monkeypatch, poisoned)
    monkeypatch.setattr(Batch, "empty_losses", poisoned_losses)
    monkeypatch.setattr(Batch, "empty_grad", poisoned_grad)
    return handed_out


def on_device(name: str) -> bool:
    return get(name).contract.arrays == "device"


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.gpu if on_device(name) else ()) for name in NAMES])
def engine(request: pytest.FixtureRequest, poison: list[str]) -> EngineUnderTest:
    """Every engine in turn, its outputs poisoned; skipped with its own reason where it is not available."""
    if not info(request.param).available:
        reason = (info(request.param).reason or "").partition("\n")[0]
        pytest.skip(f"engine {request.param} is not available: {reason}")
    made = EngineUnderTest(request.param)
    callspec = getattr(request.node, "callspec", None)
    if callspec and callspec.params.get("dtype") == "float64" != made.dtype:
        pytest.skip(f"engine {request.param} declares no float64 (that it says so is tested beside it)")
    return made


@pytest.fixture(autouse=True)
def as_at_the_start() -> Iterator[None]:
    """Whatever a test sets or leaves, the next begins with the default, and asks again which libraries there are."""
    yield
    kept.forget()
    kernels._compiled.clear()
    ctcbind.set_num_threads(None)
    import_module("ctcbind.engines")._load.cache_clear()
