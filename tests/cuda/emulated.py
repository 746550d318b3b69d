"""The kernels on the host, and a CuPy whose RawModule runs them: see emulator.h.

`install` puts them in CuPy's place. Each library is compiled once a machine and source, into the folder for temporary
files.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ctcbind.cuda.kernels import PROBLEM

HERE = Path(__file__).resolve().parent
FLAGS = (
    *("-std=c++17", "-O2", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
)
#: Tests may set it: 0 and 1 let threads take turns from first to last and from last to first, others as drawn.
turns = [0]
#: What `CTCBIND_EMULATED_FLAGS` adds, for sanitizers.
EXTRA = tuple(os.environ.get("CTCBIND_EMULATED_FLAGS", "").split())


KERNEL = re.compile(r'extern "C" __global__ void [^\n]*?(ctc_\w+)\(const Problem p(, int64)?')

_one_at_a_time = threading.Lock()


class LaunchFailed(RuntimeError):
    """A launch that a device would not survive, or not end: a barrier that some threads miss."""


@cache
def build(source: str, options: tuple[str, ...], extra: tuple[str, ...] = EXTRA) -> ctypes.CDLL:
    """The library of these kernels, compiled by g++."""
    told = "".join(f"KERNEL({name},{'WITH_NUMBER' if number else 'PLAIN'})" for name, number in KERNEL.findall(source))
    defines = (*(each for each in options if each.startswith("-D")), f"-DALL_KERNELS={told}")
    parts = (source, *defines, *extra, *FLAGS, *((HERE / name).read_text() for name in ("emulator.h", "driver.cpp")))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    folder = Path(tempfile.gettempdir()) / f"ctcbind-kernels-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    library = folder / f"{digest}.so"
    if not library.exists():
        text, made = folder / f"{digest}.{os.getpid()}.cuh", folder / f"{digest}.{os.getpid()}.so"
        text.write_text(source, encoding="utf-8")
        command = ["g++", *FLAGS, *defines, *extra, f'-DKERNELS="{text}"', str(HERE / "driver.cpp"), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        made.rename(library)
        text.unlink()
    loaded = ctypes.CDLL(str(library))
    loaded.launch_kernel.restype = ctypes.c_char_p
    loaded.launch_kernel.argtypes = [
        *(ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p),
        ctypes.c_longlong,
    ]
    loaded.problem_size.restype = ctypes.c_size_t
    assert loaded.problem_size() == 8 * len(PROBLEM)
    return loaded


#: (kernel, blocks, threads) of every launch since a test has cleared it.
launches: list[tuple[str, int, int]] = []


class RawModule:
    """As much of CuPy's as is used; the kernels run when they are launched."""

    def __init__(self, *, code: str, options: tuple[str, ...] = ()) -> None:
        assert "--fmad=false" in options, "NVRTC contracts sums of products, which g++ is told to leave (FLAGS)"
        self._library = build(code, tuple(options))

    def get_function(self, name: str) -> Any:
        home = _current_device()

        def launch(grid: Any, block: Any, args: Any, *, shared_mem: int = 0) -> None:
            problem, number = args[0], args[1] if len(args) > 1 else 0
            assert _current_device() == home, "CUDA_ERROR_INVALID_HANDLE: the kernel is loaded on another device"
            assert isinstance(problem, np.ndarray)  # of one element without fields: other kinds are slow, or refused
            assert (problem.shape, problem.dtype.kind, problem.dtype.names) == ((), "V", None)
            assert type(number) is int
            assert 0 < grid[0] < 2**31
            assert 0 < block[0] <= 1024
            assert shared_mem <= 48 * 1024
            launches.append((name, grid[0], block[0]))
            with _one_at_a_time:
                error = self._library.launch_kernel(
                    name.encode(), grid[0], block[0], shared_mem, turns[0], problem.tobytes(), number
                )
            if error:
                raise LaunchFailed(f"{name}: {error.decode()}")

        return launch


def _current_device() -> int:
    return int(sys.modules["cupy"].cuda.Device())


def install(monkeypatch: Any = None) -> Any:
    """The stand-in for CuPy, in its place."""
    import fake_cupy

    if monkeypatch is None:
        sys.modules["cupy"] = fake_cupy
    else:
        monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    return fake_cupy
