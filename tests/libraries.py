"""For tests of where libraries are looked for: how one is made, and a process whose environment names none."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fake_cudnn import NoCompilerError, compile_c

from ctcbind.bindings import find

ROOT = Path(find.__file__).resolve().parents[2]
VARIABLES = ("CTCBIND_CUDNN", "CTCBIND_WARPCTC", "CONDA_PREFIX", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH")
VARIABLES += ("LD_LIBRARY_PATH", "WARP_CTC_PATH")

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there are libraries ELF files")


def compiled(source: str, out: Path, *options: str) -> Path:
    try:
        return compile_c(source, out, *options)
    except NoCompilerError as error:
        pytest.skip(str(error))


def python(script, **environment):
    """The output of a script in its own interpreter, with nothing of this process's environment that matters."""
    env = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    script = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env={**env, **environment}, check=False
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert done.stderr == ""
    return done.stdout
