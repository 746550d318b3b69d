"""Compiles the cuda engine's kernels by NVRTC, without a device, and tells what each takes: registers and spills.

    python tools/compile_kernels.py                                   # all that this NVRTC knows from sm_70 on: minutes
    python tools/compile_kernels.py --arch 90 120 --dtype float32     # some of it
    python tools/compile_kernels.py --library /path/to/libnvrtc.so.13 --markdown

NVRTC is that of the wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc (of CUDA 13); each that is installed is taken.
The numbers are ptxas's own, from the log of a compilation to machine code (NVRTC's option --ptxas-options=-v). What a
kernel's occupancy or time is they do not say, nor what a driver makes of PTX on a device that NVRTC does not know yet.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ctcbind.cuda.kernels import DTYPES, PAIRS, options, source

#: The first architecture that CuPy's CUDA 12 runs on with every intrinsic that the kernels use, and all after it.
FIRST = 70
COMMON = {"ctc_prepare", "ctc_rows_by_warp", "ctc_rows_by_block", "ctc_reduce"}
OWN = COMMON | {"ctc_lattice", "ctc_gradient_by_warp", "ctc_gradient_by_block"}
AROUND_CUDNN = COMMON | {"ctc_pack", "ctc_move", "ctc_look", "ctc_judge", "ctc_put"}
FOLDERS = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*")


class CompilationError(Exception):
    """NVRTC refused; its log."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas says of one kernel: registers a thread; bytes a thread of stack and of spills, stored and loaded."""

    kernel: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int


class Nvrtc:
    """One libnvrtc: `version` (major, minor) and `architectures`, 75 for sm_75."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lib = ctypes.CDLL(str(path))
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self._do("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = major.value, minor.value
        self._do("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        architectures = (ctypes.c_int * count.value)()
        self._do("nvrtcGetSupportedArchs", architectures)
        self.architectures = [each for each in architectures if each >= FIRST]

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def _do(self, call: str, *arguments: object) -> None:
        status = getattr(self._lib, call)(*arguments)
        if status:
            raise CompilationError(f"{call}: {self._lib.nvrtcGetErrorString(status).decode()}")

    def compile(self, text: str, given: Sequence[str], architecture: int) -> tuple[list[Usage], bytes]:
        """What each kernel takes, and the machine code. Raises CompilationError, with NVRTC's log."""
        program = ctypes.c_void_p()
        self._do("nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"ctcbind.cu", 0, None, None)
        try:
            words = [*given, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
            array = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
            try:
                self._do("nvrtcCompileProgram", program, len(words), array)
            except CompilationError as error:
                raise CompilationError(f"{error}\n{self._text(program, 'nvrtcGetProgramLog').decode()}") from None
            log = self._text(program, "nvrtcGetProgramLog").decode()
            return list(usages(log)), self._text(program, "nvrtcGetCUBIN")
        finally:
            self._do("nvrtcDestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, call: str) -> bytes:
        size = ctypes.c_size_t()
        self._do(call + "Size", program, ctypes.byref(size))
        room = ctypes.create_string_buffer(size.value)
        self._do(call, program, room)
        return room.raw


def usages(log: str) -> Iterator[Usage]:
    """From the lines that ptxas writes with -v."""
    for part in log.split("Compiling entry function ")[1:]:
        name = re.match(r"'(\w+)'", part)
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        used = re.search(r"Used (\d+) registers", part)
        if not (name and frame and used):
            raise CompilationError(f"ptxas says nothing that can be read: {part}")
        yield Usage(name[1], int(used[1]), *(int(each) for each in frame.groups()))


def find() -> list[Path]:
    """The libnvrtc of each wheel that is installed."""
    found = {
        path.resolve()
        for folder in sys.path
        for pattern in FOLDERS
        for path in Path(folder or ".").glob(pattern)
        if re.fullmatch(r"libnvrtc\.so\.\d+", path.name)
    }
    return sorted(found, key=lambda path: path.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", nargs="+", type=Path, metavar="FILE", help="libnvrtc.so.12 or .13 to compile with")
    parser.add_argument("--arch", nargs="+", type=int, metavar="NN", help="70 for sm_70; all that NVRTC knows")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument(
        "--pairs", nargs="+", type=int, choices=[0, *PAIRS], default=[0, *PAIRS], help="0: those around cuDNN"
    )
    parser.add_argument("--markdown", action="store_true", help="print a table for a page")
    given = parser.parse_args(arguments)
    libraries = given.library or find()
    if not libraries:
        print("there is no NVRTC: pip install --no-deps nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 2
    shape = "| {:13} | {:5} | {:8} | {:5} | {:21} | {:>9} | {:>6} | {:>6} |"
    head = shape.format("NVRTC", "for", "dtype", "pairs", "kernel", "registers", "stack", "spills")
    print(head if given.markdown else head.replace("|", " "))
    if given.markdown:
        print("|" + "---|" * 8)
    for nvrtc in map(Nvrtc, libraries):
        unknown = set(given.arch or ()) - set(nvrtc.architectures)
        for number in sorted(unknown):
            print(f"{nvrtc} does not know sm_{number}", file=sys.stderr)
        for number in (each for each in nvrtc.architectures if not given.arch or each in given.arch):
            for dtype in given.dtype:
                for pairs in given.pairs:
                    try:
                        used, _ = nvrtc.compile(source(), options(dtype, pairs), number)
                    except CompilationError as error:
                        print(f"{nvrtc}, sm_{number}, {dtype}, {pairs} pairs: {error}", file=sys.stderr)
                        return 1
                    for each in used:
                        spills = each.spill_stores + each.spill_loads
                        row = (
                            str(nvrtc),
                            f"sm_{number}",
                            dtype,
                            pairs,
                            each.kernel,
                            each.registers,
                            each.stack,
                            spills,
                        )
                        line = shape.format(*row)
                        print(line if given.markdown else line.replace("|", " "), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
