"""The kernels under the compiler of a real device: NVRTC makes machine code of them, and no device is needed for it.

Part of all there is, so that it takes less than a minute: each dtype, each of the shapes, the first and the last
architecture. `python tools/compile_kernels.py` does the rest.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
from pathlib import Path

import pytest

from ctcbind.cuda import kernels
from ctcbind.cuda.kernels import DTYPES, LANES, MODULES, around_module, batch_module, lattice_module

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compile_kernels.py"
REGISTERS = 65536  # that the threads of a block share, from sm_70 on
SOME = (
    *((70, batch_module("float64")), (80, batch_module("float16")), (90, batch_module("float32"))),
    *((100, batch_module("bfloat16")), (120, around_module("float32"))),
    *((70, lattice_module("float64", LANES[3], False)), (80, lattice_module("float32", LANES[0], False))),
    *((90, lattice_module("float32", LANES[2], False)), (90, lattice_module("float32", LANES[3], True))),
    *((100, lattice_module("float32", LANES[1], False)), (120, lattice_module("float16", LANES[3], False))),
)


@pytest.fixture(scope="module")
def tool():
    if not TOOL.exists():
        pytest.skip("no checkout around these tests")
    spec = importlib.util.spec_from_file_location("compile_kernels", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["compile_kernels"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def nvrtc(tool):
    found = tool.find()
    if not found:
        pytest.skip("NVRTC is not installed: pip install --no-deps nvidia-cuda-nvrtc-cu12")
    return tool.Nvrtc(found[0])


def test_some_of_all_is_some_of_each():
    numbers = [dict(module.numbers) for _, module in SOME]
    assert {module.kind for _, module in SOME} == set(MODULES)
    assert {each["X"] for (_, module), each in zip(SOME, numbers) if module.kind == "batch"} == set(DTYPES.values())
    assert {(each["W"], each["WAYS"]) for each in numbers if "W" in each} == set(LANES)
    assert {each["SIMPLE"] for each in numbers if "W" in each} == {0, 1}


@pytest.mark.parametrize(("architecture", "module"), SOME)
def test_they_compile(tool, nvrtc, architecture, module, record_property):
    known = nvrtc.architectures
    number = architecture if architecture in known else min(known)  # CUDA 13 begins with sm_75
    used, code = nvrtc.compile(module, number)
    assert {each.kernel for each in used} == set(MODULES[module.kind][1])
    assert code[:4] == b"\x7fELF"
    of = dict(module.numbers)
    threads = 32 * of["W"] * of["WAYS"] if module.kind == "lattice" else 128
    for each in used:
        record_property(each.kernel, f"{each.registers} registers, {each.spill_stores + each.spill_loads} spilled")
        # a multiple of 8 is handed out, and a launch that asks for more than there are fails
        assert -(-each.registers // 8) * 8 * threads <= REGISTERS, each
        assert each.spill_stores + each.spill_loads < 100, each
        assert each.stack < 200, each  # where arrays are that were to be registers


def instructions(code):
    """How many the machine code of each kernel has: 16 bytes each, in sections of their own (from sm_70 on)."""
    (sections,) = struct.unpack_from("<Q", code, 40)
    size, count, of_names = struct.unpack_from("<HHH", code, 58)
    headers = [struct.unpack_from("<IIQQQQ", code, sections + i * size) for i in range(count)]
    names = headers[of_names][4]
    named = ((code[names + header[0] :].partition(b"\0")[0].decode(), header[5]) for header in headers)
    return {name[6:]: length // 16 for name, length in named if name.startswith(".text.")}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_take_hardly_more_than_floats(tool, nvrtc, dtype):
    """A thread holds twice as many of them, which is by far not all of its code. Converted in whole numbers, those of
    float16 took twice the code of floats; and both, on sm_100, so many registers that a multiprocessor held three
    blocks."""
    floats, halves = (nvrtc.compile(batch_module(each), 100) for each in ("float32", dtype))
    long, short = instructions(floats[1]), instructions(halves[1])
    for name in (f"ctc_{what}_by_{by}" for what in ("gradient", "rows") for by in ("lane", "warp", "block")):
        assert short[name] < 1.4 * long[name], name
    (registers,) = (each.registers for each in halves[0] if each.kernel == "ctc_gradient_by_block")
    assert registers <= REGISTERS // (4 * 128)


def test_what_is_wrong_is_told(tool, nvrtc):
    wrong = type("Wrong", (), {"source": "__global__ void f() { no_such(); }", "options": ()})
    with pytest.raises(
        tool.CompilationError, match=r"(?s)NVRTC_ERROR_COMPILATION.*identifier \"no_such\" is undefined"
    ):
        nvrtc.compile(wrong, min(nvrtc.architectures))


def test_the_log_is_read(tool):
    log = """ptxas info    : Compiling entry function 'one' for 'sm_90'
ptxas info    : Function properties for one
    8 bytes stack frame, 16 bytes spill stores, 4 bytes spill loads
ptxas info    : Used 56 registers, used 0 barriers, 8 bytes cumulative stack size
"""
    assert list(tool.usages(log)) == [tool.Usage("one", 56, 8, 16, 4)]
    with pytest.raises(tool.CompilationError, match="nothing that can be read"):
        list(tool.usages("Compiling entry function 'one'"))


def test_the_command(tool, nvrtc, capsys, monkeypatch):
    arguments = ["--library", str(nvrtc.path), "--arch", str(min(nvrtc.architectures)), "--dtype", "float32"]
    monkeypatch.setattr(tool.Nvrtc, "compile", lambda *a: ([tool.Usage("ctc_rows_by_warp", 40, 8, 3, 1)], b""))
    assert tool.main([*arguments, "--module", "lattice 2x2"]) == 0
    assert capsys.readouterr().out.split()[-5:] == ["2x2", "ctc_rows_by_warp", "40", "8", "4"]
    monkeypatch.setattr(tool, "find", list)
    assert tool.main(["--arch", "90"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_the_page(tool, nvrtc, tmp_path, monkeypatch):
    """Kernels that take the same in several modules have one row; spills stand in brackets; what was kept is not
    compiled again, unless the sources are others."""
    first, *_, last = nvrtc.architectures
    calls = []

    def compile_(self, module, architecture):
        calls.append((module, architecture))
        of = dict(module.numbers)
        if module.kind == "lattice":
            return [tool.Usage("ctc_lattice", 100 + 10 * of["WAYS"] + of["W"], 0, 2, 1)], b""
        return [tool.Usage("ctc_reduce", 23 if architecture == first else 24, 0, 0, 0)], b""

    monkeypatch.setattr(tool.Nvrtc, "compile", compile_)
    page, keep = tmp_path / "kernels.md", tmp_path / "kept.jsonl"
    arguments = ["--library", str(nvrtc.path), "--arch", str(last), str(first), "--page", str(page)]
    arguments += [
        "--dtype",
        "float16",
        "float32",
        "--module",
        "batch",
        "around",
        "lattice 1x2",
        "lattice 1x2 simple",
    ]
    arguments += ["--keep", str(keep)]
    assert tool.main(arguments) == 0
    text = page.read_text(encoding="utf-8")
    command = f"python tools/compile_kernels.py --arch {last} {first} --dtype float16 float32 --module batch around "
    assert f"{command}'lattice 1x2' 'lattice 1x2 simple' --page {page}" in text
    assert text.split("\n\n")[-1].splitlines() == [
        f"| kernel | dtype | module | sm_{first} | sm_{last} |",
        "|---|---|---|---|---|",
        "| ctc_lattice | float32 | lattice 1x2, lattice 1x2 simple | 121 (3) | 121 (3) |",
        "| ctc_reduce | float16 | around, batch | 23 | 24 |",
        "| ctc_reduce | float32 | around, batch | 23 | 24 |",
    ]
    assert f"## {nvrtc}\n" in text
    assert len(calls) == 2 * 6
    assert tool.main(arguments) == 0
    assert len(calls) == 2 * 6
    assert page.read_text(encoding="utf-8") == text
    part = kernels.part
    monkeypatch.setattr(kernels, "part", lambda name: part(name) + "// other\n" * (name == "lattice"))
    assert tool.main(arguments) == 0
    assert len(calls) == 2 * 8


def test_the_page_of_the_documents_is_of_these_kernels(tool):
    """Each kernel and dtype has its rows; whether the numbers are the newest, only the command says."""
    path = TOOL.parent.parent / "docs" / "gpu" / "kernels.md"
    text = path.read_text(encoding="utf-8")
    rows = {tuple(line.split(" | ")[:2]) for line in text.splitlines() if line.startswith("| ctc_")}
    own = {
        kernel: tool.ALL["lattice 1x2" if kind == "lattice" else kind]
        for kind, (_, names) in MODULES.items()
        for kernel in names
    }
    assert rows == {(f"| {kernel}", dtype) for kernel, by_dtype in own.items() for dtype in by_dtype}
    assert "--page docs/gpu/kernels.md" in text
    assert text.count("sm_70") == 1
    assert "sm_120" in text
