"""Hands setuptools the three FFIs of build_ffi.py, and an extension that needs none.

Where they cannot be compiled, it says so in a sentence. And it makes what a package index shows of README.md.

Everything else stands in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import SetupError

for needed, least in (("numpy", 2), ("cffi", 1)):  # without build isolation
    found = None if find_spec(needed) is None else version(needed)
    if found is None or int(found.split(".")[0]) < least:
        there = "is not installed" if found is None else f"is {found}"
        raise SetupError(
            f"to build ctcbind takes what pyproject.toml names under build-system, and {needed} {there}: pip install "
            f"'{needed}>={least}', or let pip do so (leave --no-build-isolation out)"
        )
COMPILE: list[str] = run_path("build_ffi.py")["COMPILE_MSVC" if os.name == "nt" else "COMPILE"]

if sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise SetupError(
        "ctcbind is built with Python's stable ABI, which a free-threaded Python does not have, and has not been "
        "tested there: take one with the GIL (python3.14, not python3.14t)"
    )

if not os.environ.get("CC", "cc").strip():
    del os.environ["CC"]  # setuptools would call a compiler without a name

REMEDY = "install gcc or clang (Debian: apt-get install gcc libc6-dev python3-dev), or name your compiler in CC"


def readme() -> str:
    """README.md as a package index shows it, where links into the checkout lead nowhere: of those the words alone stay,
    and no pictures."""
    text = Path("README.md").read_text(encoding="utf-8")
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)  # every second one is code
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"^!\[[^\]]*\]\((?!https?:)[^)]*\)\n+", "", parts[i], flags=re.MULTILINE)
        parts[i] = re.sub(r"\[([^\]]*)\]\((?!https?:|#)[^)]*\)", r"\1", parts[i])
    return "".join(parts)


def missing() -> str | None:
    """Why no extension can be compiled here; None if one can. Windows' own tools say it well enough themselves."""
    if os.name == "nt":
        return None
    for name in ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"):
        try:
            shlex.split(os.environ.get(name, ""))
        except ValueError as error:
            remedy = REMEDY if name == "CC" else "quote as a shell wants it"
            return f"{name} is {os.environ[name]!r}, which cannot be read as a command ({error}): {remedy}"
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(command[0]) is None:
        return f"ctcbind's native engine needs a C compiler, and there is no {command[0]!r} here: {REMEDY}"
    flags = [flag for name in ("CFLAGS", "CPPFLAGS") for flag in shlex.split(os.environ.get(name, ""))]
    include = [f"-I{sysconfig.get_path(name)}" for name in ("include", "platinclude")]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "try.c"
        source.write_text("#include <Python.h>\n#include <math.h>\n#include <pthread.h>\n", encoding="ascii")
        made = subprocess.run(
            [*command, *flags, *include, "-c", str(source), "-o", str(source) + ".o"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    if made.returncode == 0:
        return None
    lines = made.stdout.splitlines() or ["nothing"]
    says = next((line for line in lines if "error" in line.lower()), lines[0]).strip()
    return f"ctcbind's native engine needs a C compiler with Python's headers; here it says {says!r}: {REMEDY}"


def first_look(command: type[Any]) -> type[Any]:
    """The same command, which looks for the compiler before it does anything: nothing else is then printed."""

    class Looked(command):  # type: ignore[misc]
        def run(self) -> None:
            if (reason := missing()) is not None:
                raise SetupError(reason)
            super().run()

    Looked.__name__ = command.__name__
    return Looked


def side_by_side(command: type[Any]) -> type[Any]:
    """The same command, which compiles the files of an extension at once: three of them take nearly all the time."""
    if os.name == "nt":
        return command

    class SideBySide(command):  # type: ignore[misc]
        def build_extension(self, extension: Extension) -> None:
            compile_all = self.compiler.compile

            def compile_each(sources: list[str], *rest: Any, **options: Any) -> list[str]:
                with ThreadPoolExecutor(os.cpu_count()) as pool:
                    made = pool.map(lambda source: compile_all([source], *rest, **options), sources)
                    return [path for paths in made for path in paths]

            self.compiler.compile = compile_each
            try:
                super().build_extension(extension)
            finally:
                self.compiler.compile = compile_all

    SideBySide.__name__ = command.__name__
    return SideBySide


direct = Extension(
    "ctcbind.bindings._direct",
    sources=sorted(f"csrc/python/{path.name}" for path in Path("csrc/python").glob("*.c")),
    include_dirs=["csrc", import_module("numpy").get_include()],
    depends=["csrc/ctcbind.h", *sorted(f"csrc/python/{path.name}" for path in Path("csrc/python").glob("*.h"))],
    extra_compile_args=COMPILE,
    extra_link_args=[] if os.name == "nt" else ["-fno-fast-math"],
    py_limited_api=True,
)

setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    ext_modules=[direct],
    cffi_modules=["build_ffi.py:native", "build_ffi.py:cudnn", "build_ffi.py:warpctc"],
    cmdclass={"build": first_look(build), "build_ext": first_look(side_by_side(build_ext))},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
