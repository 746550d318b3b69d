"""A machine that cannot compile says so in a sentence, before anything else is done."""

from __future__ import annotations

import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parent.parent
REMEDY = "apt-get install gcc libc6-dev python3-dev), or name your compiler in CC"

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows' own tools say what is missing"),
    pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="no checkout around these tests"),
]

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("gcc", "clang", "cc")), reason="no C compiler here"
)


@pytest.fixture
def source(tmp_path):
    """What a build needs, in a folder that it may fill."""
    for name in ("setup.py", "build_ffi.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("csrc", "ctcbind"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.o"))
    return tmp_path


def build(source, command, **environment):
    kept = {name: value for name, value in os.environ.items() if name not in ("CC", "CFLAGS", "PYTHONPATH")}
    return subprocess.run(
        [sys.executable, "setup.py", command],
        capture_output=True,
        text=True,
        cwd=source,
        env={**kept, **environment},
        timeout=120,
    )


def told(result):
    """The one line of an error."""
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    errors = [line for line in (result.stdout + result.stderr).splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert len((result.stdout + result.stderr).splitlines()) < 8
    return errors[0]


@pytest.mark.parametrize("command", ["build", "build_ext", "bdist_wheel"])
def test_no_compiler(source, command):
    (source / "empty").mkdir()
    line = told(build(source, command, PATH=str(source / "empty")))
    assert re.match(r"error: ctcbind's native engine needs a C compiler, and there is no '\S+' here: ", line)
    assert REMEDY in line
    assert not list(source.rglob("*.o"))


def test_a_compiler_that_is_named_and_is_not_there(source):
    assert "there is no 'no-such-cc' here" in told(build(source, "build", CC="no-such-cc -m64"))


def test_no_headers(source):
    compiler = source / "compiler"
    compiler.write_text("#!/bin/sh\necho 'try.c:1:10: fatal error: Python.h: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    line = told(build(source, "build", CC=str(compiler)))
    assert "needs a C compiler with Python's headers; here it says 'try.c:1:10: fatal error: Python.h" in line
    assert REMEDY in line


@needs_compiler
@pytest.mark.parametrize("environment", [{}, {"CC": ""}, {"CC": " "}])
def test_a_compiler_that_works_is_used(source, environment):
    # -fsyntax-only would be no proof: the object that setuptools asks for has to be there
    for path in (source / "csrc").glob("*.c"):
        path.write_text("typedef int empty;\n")
    (source / "csrc" / "extra.c").write_text("#error reached the compiler\n")
    for path in (source / "csrc" / "python").glob("*.c"):
        path.write_text("typedef int empty;\n")
    result = build(source, "build_ext", **environment)
    assert result.returncode == 1
    assert "reached the compiler" in result.stdout + result.stderr


@pytest.mark.parametrize("there", [[], ["_native"]])
def test_the_sources_without_their_extensions_say_so(source, there):
    """What one meets who installs from a checkout and then starts Python in it."""
    for name in there:
        (source / "ctcbind" / "bindings" / f"{name}{EXTENSION_SUFFIXES[0]}").touch()
    result = subprocess.run(
        [sys.executable, "-c", "import ctcbind"], capture_output=True, text=True, cwd=source, timeout=60
    )
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("ImportError: these are ctcbind's sources, without their C extensions")
    assert str(source.resolve()) in last
    assert last.endswith("Run Python in another folder, or build the extensions here: pip install -e .")


@needs_compiler
def test_an_editable_install_is_seen_by_type_checkers(source):
    """They run no finder of setuptools', but read the folders in .pth files."""
    script = """
        import runpy, sys
        from setuptools.command.build_ext import build_ext
        build_ext.run = lambda self: None  # what is compiled makes no difference
        sys.argv = ["setup.py", "editable_wheel", "--dist-dir", "made"]
        runpy.run_path("setup.py", run_name="__main__")
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(script)], capture_output=True, text=True, cwd=source, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (source / "made").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path).decode().splitlines() == [str(source.resolve())]


@pytest.mark.parametrize("missing", ["numpy", "cffi"])
def test_what_a_build_needs_is_named(source, missing):
    """As without build isolation."""
    script = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_path('setup.py', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=source, timeout=120)
    assert done.returncode != 0
    assert f"{missing} is not installed: pip install '{missing}>=" in done.stderr.splitlines()[-1]


def test_a_numpy_that_is_too_old_to_build_with_is_named(source):
    """What it builds breaks where a later NumPy runs."""
    script = (
        "import importlib.metadata as m, runpy; real = m.version; "
        "m.version = lambda name: '1.26.4' if name == 'numpy' else real(name); "
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=source, timeout=120)
    assert done.returncode != 0
    assert "numpy is 1.26.4: pip install 'numpy>=2'" in done.stderr.splitlines()[-1]


def test_a_free_threaded_python_is_told_of(source):
    """It has no stable ABI, and setuptools would say so in a traceback after minutes of compiling."""
    script = (
        "import runpy, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=source, timeout=120)
    assert done.returncode != 0
    assert "take one with the GIL (python3.14, not python3.14t)" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["CC", "CFLAGS", "CPPFLAGS", "LDFLAGS"])
def test_what_is_no_command_is_told(source, name):
    line = told(build(source, "build", **{name: "gcc '"}))
    assert f'{name} is "gcc \'", which cannot be read as a command' in line
    assert (REMEDY in line) == (name == "CC")


@needs_compiler
def test_headers_that_cppflags_name_are_found(source):
    """As setuptools finds them."""
    script = """
        import runpy, setuptools, sysconfig
        setuptools.setup = lambda **options: None
        sysconfig.get_path = lambda name: "nowhere"
        print(runpy.run_path("setup.py")["missing"]())
    """
    include = sysconfig.get_path("include")
    for flags, says in (("", r"ctcbind's native engine needs .* with Python's headers"), (f"-I{include}", "None")):
        environment = {**os.environ, "CFLAGS": "", "CPPFLAGS": flags}
        done = subprocess.run(
            [sys.executable, "-c", dedent(script)], capture_output=True, text=True, cwd=source, env=environment
        )
        assert re.match(says, done.stdout), done.stderr


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")
def test_fast_math_is_undone_or_refused(tmp_path):
    """In CFLAGS it would make NaN a number, and sums come out in another order."""
    (probe := tmp_path / "probe.c").write_text('#include "kernel.h"\n')
    flags = runpy.run_path(str(ROOT / "build_ffi.py"))["NO_FAST_MATH"]
    base = ["gcc", "-std=c11", "-fsyntax-only", f"-I{ROOT / 'csrc'}", str(probe)]
    for wish in ("-ffast-math", "-ffinite-math-only", "-Ofast"):
        assert subprocess.run([*base[:-1], wish, base[-1]], capture_output=True, check=False).returncode != 0
        subprocess.run([*base[:-1], wish, *flags, base[-1]], check=True)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc here")
@pytest.mark.parametrize(
    ("defined", "says"),
    [("_MSC_VER=1934", "take Visual Studio 2022, version 17.5"), ("_M_FP_FAST=1", r"without -ffast-math \(/fp:fast\)")],
)
def test_visual_studio_is_told_what_it_lacks(defined, says, tmp_path):
    """As far as a compiler can tell that is none of Microsoft's."""
    (probe := tmp_path / "probe.c").write_text('#include "kernel.h"\n')
    base = ["gcc", "-std=c11", "-fsyntax-only", f"-I{ROOT / 'csrc'}", str(probe)]
    subprocess.run([*base, "-D_MSC_VER=1935"], check=True)
    done = subprocess.run([*base, f"-D{defined}"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert re.search(f"error: .*{says}", done.stderr)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_product_goes_into_a_sum_unrounded(compiler, tmp_path):
    """Or results would depend on the compiler, and on the processor for which a function is compiled."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    (probe := tmp_path / "probe.c").write_text("double sum(double a, double b, double c) { return a * b + c; }\n")
    flags = runpy.run_path(str(ROOT / "build_ffi.py"))["COMPILE"]
    base = [compiler, "-S", "-o", "-", *(["-mfma"] if platform.machine() == "x86_64" else [])]
    for wish in ("-ffp-contract=fast", "-O2"):
        done = subprocess.run([*base, wish, *flags, str(probe)], check=True, capture_output=True, text=True)
        assert "fmadd" not in done.stdout
