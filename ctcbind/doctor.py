"""What this machine has: versions, libraries and how they were found, contracts, and a self-test on known values."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .absence import absence, bring
from .arrays import as_host
from .device import to_device
from .engines import AUTO_ORDER, Contract, EngineInfo, engines
from .engines.warpctc import built_with_cuda
from .errors import CtcbindError
from .extras import is_rocm
from .plan import CTCLoss
from .text import contract_rows, paragraph, plain, table
from .threads import get_num_threads

__all__ = ["KNOWN", "Check", "Examination", "Known", "examine", "render"]


@dataclass(frozen=True, slots=True)
class Known:
    """A problem whose loss is published: `probabilities` (T, C) of one sample, its labels, its loss in nats."""

    name: str
    source: str
    probabilities: tuple[tuple[float, ...], ...]
    labels: tuple[int, ...]
    blank: int
    loss: float
    digits: float  # half a unit of the last published digit, as a relative error


GRAVES = "Graves' own implementation, TensorFlow's ctc_loss_op_test.py"
TUTORIAL = "warp-ctc's tutorial"
KNOWN = (
    Known(
        "uniform, T=100, C=10",
        "NVIDIA's forum, topic 56058",
        ((0.1,) * 10,) * 100,
        (1, 2, 3, 4),
        0,
        203.984,
        3e-6,
    ),
    Known(
        "five labels in five frames, blank last",
        GRAVES,
        (
            (0.633766, 0.221185, 0.0917319, 0.0129757, 0.0142857, 0.0260553),
            (0.111121, 0.588392, 0.278779, 0.0055756, 0.00569609, 0.010436),
            (0.0357786, 0.633813, 0.321418, 0.00249248, 0.00272882, 0.0037688),
            (0.0663296, 0.643849, 0.280111, 0.00283995, 0.0035545, 0.00331533),
            (0.458235, 0.396634, 0.123377, 0.00648837, 0.00903441, 0.00623107),
        ),
        (0, 1, 2, 1, 0),
        5,
        3.34211,
        2e-6,
    ),
    Known(
        "a repeat among four labels, blank last",
        GRAVES,
        (
            (0.30176, 0.28562, 0.0831517, 0.0862751, 0.0816851, 0.161508),
            (0.24082, 0.397533, 0.0557226, 0.0546814, 0.0557528, 0.19549),
            (0.230246, 0.450868, 0.0389607, 0.038309, 0.0391602, 0.202456),
            (0.280884, 0.429522, 0.0326593, 0.0339046, 0.0326856, 0.190345),
            (0.423286, 0.315517, 0.0338439, 0.0393744, 0.0339315, 0.154046),
        ),
        (0, 1, 1, 0),
        5,
        5.42262,
        2e-6,
    ),
    Known("one frame, one label", TUTORIAL, ((0.2,) * 5,), (1,), 0, 1.6094379425049, 1e-7),
    Known(
        "a repeat that just fits",
        TUTORIAL,
        tuple(tuple(math.exp(k - 4) * (1 - math.exp(-1)) / (1 - math.exp(-5)) for k in range(5)) for _ in range(3)),
        (3, 3),
        0,
        7.355742931366,
        1e-7,
    ),
    Known("a repeat that does not fit", "no path exists", ((0.25,) * 4,) * 3, (2, 2, 3), 0, math.inf, 0.0),
    Known("no label: the all-blank path", "3 ln 4", ((0.25,) * 4,) * 3, (), 0, 4.1588830833596715, 1e-12),
)

FLOAT32 = 1e-5  # relative: what single precision may lose over 100 time steps


@dataclass(frozen=True, slots=True)
class Check:
    """One known problem on one engine: `got` is its loss, `error` what was raised, `passed` the verdict."""

    engine: str
    name: str
    source: str
    expected: float
    got: float | None
    passed: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Examination:
    """What `examine` found. `skipped` says, of each engine that is there but was not tested, why."""

    versions: dict[str, str]
    engines: dict[str, EngineInfo]
    checks: tuple[Check, ...]
    skipped: dict[str, str]

    @property
    def healthy(self) -> bool:
        """Whether no self-test failed; engines that are absent are no fault."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """The same for json.dumps; an infinite loss is the string "inf"."""
        infos = {name: {**asdict(info), "install": bring(name, info.reason)} for name, info in self.engines.items()}
        return {
            "healthy": self.healthy,
            "versions": self.versions,
            "engines": infos,
            "checks": [plain(asdict(check)) for check in self.checks],
            "skipped": self.skipped,
        }


def examine() -> Examination:
    """Look at the machine, load every library that can be found, and test each engine on known values.

    Raises nothing for what is absent or broken: that is in the result.

    >>> from ctcbind.doctor import examine
    >>> examine().healthy
    True
    """
    found = engines()
    checks: list[Check] = []
    skipped: dict[str, str] = {}
    for name, info in found.items():
        if not info.available:
            continue
        carry: Callable[[Any], Any] = _as_it_is
        if info.contract.arrays == "device":
            try:
                to_device(np.zeros(1, dtype=np.float32))
            except CtcbindError as error:
                skipped[name] = str(error)
                continue
            carry = _carried
        checks += [_check(name, known, carry) for known in KNOWN]
    return Examination({**_versions(), **_on_devices(found)}, found, tuple(checks), skipped)


def _as_it_is(array: Any) -> Any:
    return array


def _carried(array: Any) -> Any:
    return to_device(array)[0]


def _check(engine: str, known: Known, carry: Callable[[Any], Any]) -> Check:
    got: float | None = None
    error: str | None = None
    try:
        logits = carry(np.log(np.array(known.probabilities, dtype=np.float32))[:, None, :])
        with CTCLoss(engine=engine, blank=known.blank) as plan:
            result = plan(logits, [list(known.labels)])
        got = float(as_host(result.loss)[0])
        if not np.isfinite(as_host(result.grad)).all():
            error = "the gradient is not finite"
    except Exception as raised:  # one engine's fault, of whatever kind, must not hide the others' results
        error = f"{type(raised).__name__}: {raised}"
    near = math.isclose(known.loss, math.nan if got is None else got, rel_tol=known.digits + FLOAT32)
    return Check(engine, known.name, known.source, known.loss, got, near and error is None, error)


def _versions() -> dict[str, str]:
    versions = {
        "ctcbind": __version__,
        "Python": f"{platform.python_version()} ({sys.executable})",
        "NumPy": np.__version__,
        "CuPy": _cupy_version() or "not installed",
        "system": f"{platform.system()} {platform.machine()}",
    }
    try:
        versions["threads"] = str(get_num_threads())
    except CtcbindError as error:
        versions["threads"] = str(error)
    versions["CUDA driver"] = _driver()
    versions["CUDA device"] = _device()
    return versions


def _first_line(reason: str | None) -> str:
    return (reason or "").partition("\n")[0].rstrip(":")


def _on_devices(found: dict[str, EngineInfo]) -> dict[str, str]:
    """The CUDA runtime, cuDNN and its file, and which engine serves logits on a device, by where the labels are."""
    here = {name: info for name, info in found.items() if info.available and info.contract.arrays != "host"}
    if "warpctc" in here and not (_device_count() and built_with_cuda()):
        del here["warpctc"]
    by_labels = {
        "on the host": [name for name, info in here.items() if "host" in info.contract.labels],
        "beside them": [name for name, info in here.items() if "device" in info.contract.labels],
    }
    served = "; ".join(f"labels {where}: {', '.join(names)}" for where, names in by_labels.items() if names)
    auto = next((name for name in AUTO_ORDER if name in here), None)
    cudnn = found["cudnn"]
    return {
        "CUDA runtime": _runtime(),
        "cuDNN": f"{cudnn.version} ({cudnn.library})" if cudnn.available else _first_line(cudnn.reason),
        "on a device": f"{served}; auto takes {auto or 'none'}" if here else "no engine serves logits there",
    }


def _device_count() -> int:
    try:
        import cupy

        return 0 if is_rocm(cupy) else int(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # CuPy has one exception class a CUDA library, and may be absent
        return 0


def _runtime() -> str:
    """The CUDA runtime that CuPy is built on, and the newest that the driver bears."""
    try:
        import cupy

        if is_rocm(cupy):
            return "none: CuPy is a build for ROCm"
        runtime = cupy.cuda.runtime
        numbers = runtime.runtimeGetVersion(), runtime.driverGetVersion()
        version, newest = (f"{number // 1000}.{number % 1000 // 10}" for number in numbers)
        return f"{version} (CuPy's); the driver bears up to {newest}"
    except ImportError:
        return "not asked for: that needs CuPy"
    except Exception as error:  # CuPy has one exception class a CUDA library
        return f"none: {error}"


def _cupy_version() -> str | None:
    """The installed CuPy, by its metadata: importing it would take seconds, and fail where its CUDA is missing."""
    builds = "cuda13x", "cuda12x", "cuda11x", "rocm-7-0", "rocm-5-0", "rocm-4-3"
    for name in (*(f"cupy-{build}" for build in builds), "cupy"):
        try:
            return f"{importlib.metadata.version(name)} ({name})"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _driver() -> str:
    """The NVIDIA kernel driver as Linux shows it; no library is loaded for it."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace").splitlines()[0]
    except (OSError, IndexError):
        return "none seen"
    return " ".join(line.partition(":")[2].split())


def _device() -> str:
    try:
        import cupy

        if is_rocm(cupy):
            return "none: CuPy is a build for ROCm"
        runtime = cupy.cuda.runtime
        count = runtime.getDeviceCount()
        names = [runtime.getDeviceProperties(index)["name"] for index in range(count)]
        return ", ".join(name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names)
    except ImportError:
        return "not asked for: that needs CuPy"
    except Exception as error:  # CuPy has one exception class a CUDA library
        return f"none: {error}"


def render(examination: Examination, width: int | None = None) -> str:
    """An examination as text for a terminal of `width` columns (None: as wide as its tables)."""
    lines = [f"{name:<13}{text}" for name, text in examination.versions.items()]
    head = ["engine", "here", "self-test", "version", "found", "library"]
    lines += ["", table(head, _engines(examination), width=width, cell=100)]
    lines += ["", *_contracts({name: info.contract for name, info in examination.engines.items()}, width)]
    lines.append("")
    for name, info in examination.engines.items():
        for limit in info.contract.limits:
            lines += paragraph(f"{name}: {limit}", width)
    for check in examination.checks:
        if not check.passed:
            got = "nothing" if check.got is None else f"{check.got:.6g}"
            why = f" ({check.error})" if check.error else ""
            said = (
                f"FAILED: {check.engine}, {check.name} [{check.source}]: expected {check.expected:.6g}, got {got}{why}"
            )
            lines += ["", *paragraph(said, width)]
    for name, reason in examination.skipped.items():
        lines += ["", *paragraph(f"{name} was not tested: {reason}", width)]
    for name, info in examination.engines.items():
        if not info.available:
            lines += ["", *paragraph(absence(name, info.reason), width)]
    return "\n".join([*lines, "", "All is well." if examination.healthy else "A self-test FAILED."])


def _engines(examination: Examination) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, info in examination.engines.items():
        mine = [check.passed for check in examination.checks if check.engine == name]
        tested = f"{sum(mine)} of {len(mine)} right" if mine else "not run"
        said = (info.version or "-", info.found or "-", info.library or "-")
        rows.append((name, "yes" if info.available else "no", tested, *said))
    return rows


def _contracts(contracts: dict[str, Contract], width: int | None) -> list[str]:
    """What each engine's own function promises, as one table or as one paragraph an engine."""
    head = ["its own function", *contracts]
    rows = contract_rows(contracts)
    room = 28 if width is None else max(12, min(28, (width - 25) // max(len(contracts), 1) - 2))
    if room > 16:
        return table(head, rows, cell=room).splitlines()
    turned = [[name, *(row[i + 1] for row in rows)] for i, name in enumerate(contracts)]
    return table(["engine", *(row[0] for row in rows)], turned, width=width).splitlines()
