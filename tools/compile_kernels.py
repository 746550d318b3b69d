"""Compiles the cuda engine's kernels by NVRTC, without a device, and tells what each takes: registers and spills.

    python tools/compile_kernels.py                                   # all that this NVRTC knows from sm_70 on: minutes
    python tools/compile_kernels.py --arch 90 120 --dtype float32     # some of it
    python tools/compile_kernels.py --keep kept.jsonl --page docs/gpu/kernels.md  # all of it as a page; may be cut off

NVRTC is that of the wheels nvidia-cuda-nvrtc-cu12 and nvidia-cuda-nvrtc (of CUDA 13); each that is installed is taken.
The numbers are ptxas's own, from the log of a compilation to machine code (NVRTC's option --ptxas-options=-v). What a
kernel's occupancy or time is they do not say, nor what a driver makes of PTX on a device that NVRTC does not know yet.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from ctcbind.cuda.kernels import DTYPES, LANES, Module, around_module, batch_module, lattice_module

#: What CuPy adds to the options of its users.
OF_CUPY = ("-ftz=true", "--device-as-default-execution-space")
#: The first architecture that CuPy's CUDA 12 runs on with every intrinsic that the kernels use, and all after it.
FIRST = 70
#: By name, what is compiled for each dtype. A lattice is named by its lanes: warps to a direction x directions to a
#: block; that of float32 serves float16 and bfloat16 too.
ALL: dict[str, dict[str, Module]] = {
    "batch": {dtype: batch_module(dtype) for dtype in DTYPES},
    "around": {dtype: around_module(dtype) for dtype in DTYPES},
    **{
        f"lattice {'x'.join(map(str, lanes))}{' simple' * simple}": {
            dtype: lattice_module(dtype, lanes, simple) for dtype in ("float32", "float64")
        }
        for simple in (False, True)
        for lanes in LANES
    },
}
#: By the major version of CUDA.
WHEELS = {"12": "nvidia-cuda-nvrtc-cu12", "13": "nvidia-cuda-nvrtc"}
FOLDERS = ("nvidia/cuda_nvrtc/lib/libnvrtc.so.*", "nvidia/cu*/lib/libnvrtc.so.*")

HEAD = """# Registers and spills of the kernels

What ptxas tells of each kernel in `ctcbind/cuda/kernels/`, compiled to machine code by NVRTC without a device: the
registers of a thread and, in brackets, the bytes of a thread that are spilled (stores and loads together), where any
are. It says nothing of time. This page is made by

```sh
pip install --no-deps {wheels} && {command}
```

`module` is what is compiled in one piece: `batch` reads the logits and writes the gradient, `around` goes around a call
of cuDNN. `lattice` has how many warps go in each direction (`CTC_W`) x how many directions share a block (`CTC_WAYS`),
by the longest label; `simple` is for labels whose repeats are not merged; that of float32 serves float16 and bfloat16
too. A kernel that takes the same in several modules has one row.
"""


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

    def compile(self, module: Module, architecture: int) -> tuple[list[Usage], bytes]:
        """What each kernel takes, and the machine code. Raises CompilationError, with NVRTC's log."""
        program = ctypes.c_void_p()
        self._do("nvrtcCreateProgram", ctypes.byref(program), module.source.encode(), b"ctcbind.cu", 0, None, None)
        try:
            words = [*module.options, *OF_CUPY, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
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


@dataclass(frozen=True, slots=True)
class Compilation:
    """One module: by which NVRTC, for which architecture (70 for sm_70) and dtype; its name in ALL, and its kernels."""

    nvrtc: str
    architecture: int
    dtype: str
    module: str
    kernels: tuple[Usage, ...]


def compile_all(
    libraries: Sequence[Path],
    architectures: Sequence[int],
    dtypes: Sequence[str],
    modules: Sequence[str],
    keep: Path | None,
) -> Iterator[Compilation]:
    """All of them (`architectures` empty: all that each NVRTC knows). Those that `keep`, a file of an earlier run,
    holds of the same sources are not compiled again, and those that are compiled are added to it."""
    known = {}
    if keep is not None and keep.exists():
        for line in keep.read_text(encoding="utf-8").splitlines():
            key, kernels = json.loads(line)
            known[tuple(key)] = tuple(Usage(*each) for each in kernels)
    wanted = [(name, dtype, ALL[name][dtype]) for name in modules for dtype in dtypes if dtype in ALL[name]]
    for nvrtc in map(Nvrtc, libraries):
        for number in sorted(set(architectures) - set(nvrtc.architectures)):
            print(f"{nvrtc} does not know sm_{number}", file=sys.stderr)
        for number in (each for each in nvrtc.architectures if not architectures or each in architectures):
            for name, dtype, module in wanted:
                digest = hashlib.sha256(module.source.encode()).hexdigest()
                key = (digest, str(nvrtc), number, *module.options, *OF_CUPY)
                if key not in known:
                    try:
                        known[key] = tuple(nvrtc.compile(module, number)[0])
                    except CompilationError as error:
                        raise CompilationError(f"{nvrtc}, sm_{number}, {dtype}, {name}: {error}") from None
                    if keep is not None:
                        with keep.open("a", encoding="utf-8") as file:
                            file.write(json.dumps([key, [astuple(each) for each in known[key]]]) + "\n")
                yield Compilation(str(nvrtc), number, dtype, name, known[key])


def page(done: Sequence[Compilation], command: str) -> str:
    """A Markdown page: for each NVRTC one table, a row for each kernel, a column for each architecture."""
    wheels = dict.fromkeys(WHEELS[each.nvrtc.split()[1].partition(".")[0]] for each in done)
    lines = [*HEAD.format(wheels=" ".join(wheels), command=command).splitlines(), ""]
    for nvrtc in dict.fromkeys(each.nvrtc for each in done):
        mine = [each for each in done if each.nvrtc == nvrtc]
        columns = sorted({each.architecture for each in mine})
        cells: dict[tuple[str, str, str], dict[int, str]] = {}
        for each in mine:
            for used in each.kernels:
                spilled = used.spill_stores + used.spill_loads
                cell = f"{used.registers} ({spilled})" if spilled else str(used.registers)
                cells.setdefault((used.kernel, each.dtype, each.module), {})[each.architecture] = cell
        rows: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}  # those of several modules in one
        for (kernel, dtype, name), by_architecture in sorted(cells.items()):
            row = kernel, dtype, tuple(by_architecture.get(number, "-") for number in columns)
            rows.setdefault(row, []).append(name)
        lines += [
            f"## {nvrtc}",
            "",
            "| kernel | dtype | module | " + " | ".join(f"sm_{each}" for each in columns) + " |",
        ]
        lines += ["|" + "---|" * (3 + len(columns))]
        for (kernel, dtype, values), names in rows.items():
            lines += [f"| {kernel} | {dtype} | {', '.join(names)} | " + " | ".join(values) + " |"]
        lines += [""]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", nargs="+", type=Path, metavar="FILE", help="libnvrtc.so.12 or .13 to compile with")
    parser.add_argument("--arch", nargs="+", type=int, default=[], metavar="NN", help="70 for sm_70; all NVRTC knows")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    parser.add_argument("--module", nargs="+", choices=list(ALL), default=list(ALL))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where results are kept, and found again")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write a page with the tables")
    given = parser.parse_args(arguments)
    libraries = given.library or find()
    if not libraries:
        print("there is no NVRTC: pip install --no-deps nvidia-cuda-nvrtc-cu12", file=sys.stderr)
        return 2
    shape = "{:10}  {:6}  {:8}  {:20}  {:21}  {:>9}  {:>5}  {:>6}"
    print(shape.format("NVRTC", "for", "dtype", "module", "kernel", "registers", "stack", "spills"))
    done = []
    try:
        for each in compile_all(libraries, given.arch, given.dtype, given.module, given.keep):
            done.append(each)
            for used in each.kernels:
                numbers = used.registers, used.stack, used.spill_stores + used.spill_loads
                row = shape.format(
                    each.nvrtc, f"sm_{each.architecture}", each.dtype, each.module, used.kernel, *numbers
                )
                print(row, flush=True)
    except CompilationError as error:
        print(error, file=sys.stderr)
        return 1
    if given.page:
        words = ["--arch", *map(str, given.arch)] if given.arch else []
        words += [] if given.dtype == list(DTYPES) else ["--dtype", *given.dtype]
        words += [] if given.module == list(ALL) else ["--module", *map(shlex.quote, given.module)]
        command = " ".join(["python tools/compile_kernels.py", *words, "--page", str(given.page)])
        given.page.write_text(page(done, command), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
