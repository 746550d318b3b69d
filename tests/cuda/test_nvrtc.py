"""The kernels under the compiler of a real device: NVRTC makes machine code of them, and no device is needed for it.

Part of all there is, so that it takes less than a minute: each dtype, each of the shapes, the first and the last
architecture. `python tools/compile_kernels.py` does the rest.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from ctcbind.cuda.kernels import AROUND, DTYPES, LANES, options, source

TOOL = Path(__file__).resolve().parents[2] / "tools" / "compile_kernels.py"
REGISTERS = 65536  # that the threads of a block share, from sm_70 on
SOME = (
    *((70, "float64", LANES[5]), (80, "float32", LANES[0]), (90, "float32", LANES[2]), (90, "bfloat16", LANES[3])),
    *((100, "float32", LANES[1]), (120, "float16", LANES[4]), (120, "float32", AROUND)),
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
    assert {dtype for _, dtype, _ in SOME} == set(DTYPES)
    assert {lanes for _, _, lanes in SOME} == {AROUND, *LANES}


@pytest.mark.parametrize(("architecture", "dtype", "lanes"), SOME)
def test_they_compile(tool, nvrtc, architecture, dtype, lanes, record_property):
    known = nvrtc.architectures
    number = architecture if architecture in known else min(known)  # CUDA 13 begins with sm_75
    used, code = nvrtc.compile(source(), options(dtype, lanes), number)
    assert {each.kernel for each in used} == (tool.OWN if lanes in LANES else tool.AROUND_CUDNN)
    assert code[:4] == b"\x7fELF"
    most = {"ctc_lattice": 32 * lanes.warps * lanes.ways}
    for each in used:
        record_property(each.kernel, f"{each.registers} registers, {each.spill_stores + each.spill_loads} spilled")
        # a multiple of 8 is handed out, and a launch that asks for more than there are fails
        assert -(-each.registers // 8) * 8 * most.get(each.kernel, 128) <= REGISTERS, each
        assert each.spill_stores + each.spill_loads < 100, each
        assert each.stack < 200, each  # where arrays are that were to be registers


def test_what_is_wrong_is_told(tool, nvrtc):
    with pytest.raises(
        tool.CompilationError, match=r"(?s)NVRTC_ERROR_COMPILATION.*identifier \"no_such\" is undefined"
    ):
        nvrtc.compile("__global__ void f() { no_such(); }", (), min(nvrtc.architectures))


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
    assert tool.main([*arguments, "--lanes", "1x2x2"]) == 0
    assert capsys.readouterr().out.split()[-5:] == ["1x2x2", "ctc_rows_by_warp", "40", "8", "4"]
    monkeypatch.setattr(tool, "find", list)
    assert tool.main(["--arch", "90"]) == 2
    assert "pip install" in capsys.readouterr().err


def test_the_page(tool, nvrtc, tmp_path, monkeypatch):
    """Kernels to which the lanes make no difference have one row; spills stand in brackets; what was kept
    is not compiled again, unless the sources are others."""
    first, *_, last = nvrtc.architectures
    calls = []

    def compile_(self, text, given, architecture):
        calls.append((given, architecture))
        pairs, warps, _ = (int(each[-1]) for each in given[-3:])
        lattice = tool.Usage("ctc_lattice", 100 + 10 * pairs + warps, 0, 2, 1) if pairs else None
        reduce = tool.Usage("ctc_reduce", 23 if architecture == first else 24, 0, 0, 0)
        return [*([lattice] if lattice else []), reduce], b""

    monkeypatch.setattr(tool.Nvrtc, "compile", compile_)
    page, keep = tmp_path / "kernels.md", tmp_path / "kept.jsonl"
    arguments = [
        "--library",
        str(nvrtc.path),
        "--arch",
        str(last),
        str(first),
        "--dtype",
        "float16",
        "--page",
        str(page),
    ]
    arguments += ["--keep", str(keep)]
    assert tool.main(arguments) == 0
    text = page.read_text(encoding="utf-8")
    command = f"python tools/compile_kernels.py --arch {last} {first} --dtype float16 --page {page}"
    assert command in text
    head = f"| kernel | dtype | lanes | sm_{first} | sm_{last} |"
    assert text.split("\n\n")[-1].splitlines() == [
        head,
        "|---|---|---|---|---|",
        *(
            f"| ctc_lattice | float16 | {k}x{w}x{d} | {100 + 10 * k + w} (3) | {100 + 10 * k + w} (3) |"
            for k, w, d in LANES
        ),
        "| ctc_reduce | float16 | -, 1x1x2, 1x2x2, 1x4x2, 2x4x2, 2x8x1, 4x8x1 | 23 | 24 |",
    ]
    assert f"## {nvrtc}\n" in text
    assert len(calls) == 2 * (1 + len(LANES))
    assert tool.main(arguments) == 0
    assert len(calls) == 2 * (1 + len(LANES))
    assert page.read_text(encoding="utf-8") == text
    monkeypatch.setattr(tool, "source", lambda: "other")
    assert tool.main(arguments) == 0
    assert len(calls) == 4 * (1 + len(LANES))


def test_the_page_of_the_documents_is_of_these_kernels(tool):
    """Each kernel and dtype has its rows; whether the numbers are the newest, only the command says."""
    path = TOOL.parent.parent / "docs" / "gpu" / "kernels.md"
    text = path.read_text(encoding="utf-8")
    rows = {tuple(line.split(" | ")[:2]) for line in text.splitlines() if line.startswith("| ctc_")}
    assert rows == {(f"| {kernel}", dtype) for kernel in tool.OWN | tool.AROUND_CUDNN for dtype in DTYPES}
    assert "--page docs/gpu/kernels.md" in text
    assert text.count("sm_70") == 1
    assert "sm_120" in text
