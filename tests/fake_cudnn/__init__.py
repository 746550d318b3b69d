"""A libcudnn that runs on host memory: how it is compiled, and how a test commands it (see fake_cudnn.c).

Product code knows nothing of it; it is reached as any other library is, through CTCBIND_CUDNN. The fixtures are in
`fake_cudnn.fixture`: put `pytest_plugins = ["fake_cudnn.fixture"]` into a test module and ask for `fake`.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ctcbind.bindings import cudnn_library

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
#: What the real main file of each generation loads first, and what that needs in turn.
PARTS = {9: ("graph", "ops", "adv"), 8: ("ops_infer", "ops_train", "adv_infer", "adv_train")}


class NoCompilerError(Exception):
    """There is no C compiler here, so the fake cannot be made."""


def compile_c(source: Path | Sequence[Path] | str, out: Path, *options: str) -> Path:
    """Compiles C (a file, some files, or a text) into a shared library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise NoCompilerError("no C compiler (cc, gcc, clang or $CC)")
    out.parent.mkdir(parents=True, exist_ok=True)
    text = source if isinstance(source, str) else None
    files = [source] if isinstance(source, Path) else source
    given = ["-x", "c", "-", "-x", "none"] if isinstance(source, str) else [str(file) for file in files]
    command = [compiler, "-shared", "-fPIC", "-O1", "-std=c11", "-Wall", "-Wextra", "-fvisibility=hidden"]
    command += [*given, "-o", str(out), *options, "-lm", "-ldl", "-lpthread"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return out


def build(folder: Path, generation: int = 9) -> Path:
    """The fake in one file, which calls itself no libcudnn, in the flavour of cuDNN 8 or 9."""
    options = ["-DFAKE_V8"] if generation == 8 else []
    return compile_c(SOURCES, folder / f"fake_cudnn_{generation}.so", *options)


def build_split(folder: Path, generation: int = 9, parts: Sequence[str] | None = None) -> Path:
    """The fake laid out as the real one: parts that need each other, and a main file that aborts without them."""
    made: list[str] = []
    for part in PARTS[generation] if parts is None else parts:
        name = f"libcudnn_{part}.so.{generation}"
        symbol = f"int fake_{part};"
        # passing the parts before names them as needed; the linker would drop what is not used
        needs = ["-Wl,--no-as-needed", *made]
        made.append(str(compile_c(symbol, folder / name, f"-Wl,-soname,{name}", *needs)))
    name = f"libcudnn.so.{generation}"
    options = ["-DFAKE_SHIM", f"-Wl,-soname,{name}", *(["-DFAKE_V8"] if generation == 8 else [])]
    return compile_c(SOURCES, folder / name, *options)


class FakeCudnn:
    """The test's side of one fake library: what is alive, what was called, what shall fail."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lib = ctypes.CDLL(str(path))
        self._lib.fake_reset.argtypes = [ctypes.c_size_t]
        self._lib.fake_fail.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long, ctypes.c_int]
        self._lib.fake_live.argtypes = [ctypes.c_char_p]
        self._lib.fake_log.restype = ctypes.c_char_p
        for name in ("fake_live", "fake_hazards", "fake_stray", "fake_poisoned"):
            getattr(self._lib, name).restype = ctypes.c_long

    def reset(self, version: int = 0) -> None:
        """Forgets everything, and is of this version from now on (0: of its flavour's own)."""
        self._lib.fake_reset(version)

    def fail(self, call: str, status: int, nth: int = 1, times: int = 1) -> None:
        """Has the nth call of this function ("" for any) from now, and the ones after it, fail `times` times."""
        self._lib.fake_fail(call.encode(), nth, times, status)

    @property
    def live(self) -> dict[str, int]:
        """How many handles and descriptors were made and not destroyed."""
        return {kind: self._lib.fake_live(kind.encode()) for kind in ("handle", "tensor", "ctcloss")}

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every call with its arguments and its status, in order."""
        return [json.loads(line) for line in self._lib.fake_log().decode().splitlines()]

    @property
    def calls(self) -> list[str]:
        return [entry["call"] for entry in self.log]

    @property
    def hazards(self) -> int:
        """Samples that were sent and should not have been: more labels than time steps, or no time step."""
        return int(self._lib.fake_hazards())

    @property
    def stray(self) -> int:
        """NULL, freed or foreign pointers that arrived where a live handle or descriptor should have."""
        return int(self._lib.fake_stray())

    @property
    def poisoned(self) -> bool:
        """Whether something was sent that loses the device: a label or length outside of its buffer."""
        return bool(self._lib.fake_poisoned())


def unload() -> None:
    """Has the next call load anew. What is loaded stays in the process."""
    cudnn_library._loaded = None
