"""Interpreters that ctcbind refuses: each in a sentence, and with the main interpreter as well as before."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))

IN_A_SUB_INTERPRETER = """
    import sys
    try:
        import _interpreters as interpreters
        run = interpreters.exec
    except ImportError:
        import _xxsubinterpreters as interpreters
        run = interpreters.run_string
    use = "import ctcbind; print(round(float(ctcbind.ctc_loss([[[0.0, 0.0]]], [[1]])[0]), 3), flush=True)"
    if sys.argv[1] == "after":
        exec(use)
    kind = sys.argv[2] == "isolated"
    try:
        other = interpreters.create(sys.argv[2])
    except TypeError:
        other = interpreters.create(isolated=kind)
    refused = "try:\\n import ctcbind\\nexcept ImportError as error:\\n print(error, flush=True)"
    assert not run(other, refused)
    interpreters.destroy(other)
    exec(use)
"""


def process(script: str, *args: str) -> list[str]:
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=HERE)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="sub-interpreters are CPython's")
@pytest.mark.parametrize("kind", ["isolated", "legacy"])
@pytest.mark.parametrize("order", ["before", "after"])
def test_a_sub_interpreter_is_refused(order: str, kind: str) -> None:
    """Whether the main interpreter has imported it before or does so after."""
    said = [line for line in process(IN_A_SUB_INTERPRETER, order, kind) if line != "0.693"]
    assert said == [
        "ctcbind does not run in a sub-interpreter, as NumPy does not: import it in the main interpreter (threads and "
        "processes are fine; under mod_wsgi, WSGIApplicationGroup %{GLOBAL})"
    ]


@pytest.mark.parametrize("flags", ["", "d", "t", "td"])
def test_a_free_threaded_python_is_refused(flags: str) -> None:
    """By what Python says of its ABI: with the GIL on too, as it does not load what was built for the stable one."""
    script = f"""
        import sys, numpy, cffi
        sys.abiflags = {flags!r}
        try:
            import ctcbind
            print("runs")
        except ImportError as error:
            print(error)
    """
    (said,) = process(script)
    assert said == "runs" if "t" not in flags else "take one with the GIL (python3.14, not python3.14t; its C" in said
