"""NVRTC's part: CUDA C++ to a library of the host, by g++.

    python compile.py FOLDER

FOLDER holds `source`, `options` and `names` (of templates' instances), one a line; `library` is put beside them.
CUDA's headers are those of the wheels nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12 and nvidia-cuda-cccl-cu12 in
FAKE_CUDA_HEADERS. What was compiled once is kept in FAKE_CUDA_CACHE, and so is what was said of what cannot be.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADERS = ("cuda_runtime", "cuda_nvcc", "cuda_cccl")
FLAGS = (
    *("-std=c++17", "-O1", "-g1", "-fPIC", "-shared", "-ffp-contract=off", "-fno-strict-aliasing", "-w"),
    *("-fpermissive", "-Wl,-Bsymbolic"),
)
BOUNDS = r"(?:__launch_bounds__\([^)]*\)\s*)?"
KERNEL = re.compile(rf'(extern\s+"C"\s+)?__global__\s+{BOUNDS}void\s+{BOUNDS}(\w+)\s*\(')
DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\w+\)\s*)?([\w<>: ]+?)\s+(\w+)\[\];")


def translated(source: str, names: list[str]) -> str:
    """The source as g++ takes it, and a C function for each kernel."""
    own = "ctcbind/cuda/kernels/" in source
    found = KERNEL.findall(source)
    if own:
        kernels = [name for _, name in found]
    else:
        source = DYNAMIC.sub(r"\1 *\2 = (\1 *)dynamic_shared;", source)
        kernels = [name for c, name in found if c]
    lines = [] if own else ["#define OTHERS"]
    if not re.search("__sync|__shfl|__shared__", source):
        lines.append("#define EMULATE_ALONE")
    lines += [f'#include "{HERE / "kernels.h"}"', '#line 1 "source"', source]
    lines += [f"KERNEL({name}, {name})" for name in dict.fromkeys(kernels)]
    lines += [f"#define instance{i} {name}\nKERNEL(instance_{i}, instance{i})" for i, name in enumerate(names)]
    return "\n".join(lines)


def main(folder: Path) -> int:
    source, options, names = ((folder / name).read_text(encoding="utf-8") for name in ("source", "options", "names"))
    if not source.strip():  # CuPy asks for nothing, to learn the compiler's version
        (folder / "library").write_text("// none\n", encoding="utf-8")
        return 0
    text = translated(source, names.splitlines())
    passed = [each for each in options.splitlines() if each.startswith(("-I", "-D"))]
    passed += [f"-I{os.environ['FAKE_CUDA_HEADERS']}/{name}/include" for name in HEADERS]
    parts = (text, *passed, *FLAGS, (HERE / "kernels.h").read_text(), (HERE.parent / "cuda" / "emulator.h").read_text())
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    kept = Path(os.environ["FAKE_CUDA_CACHE"]) / f"{digest}.so"
    failed = kept.with_suffix(".log")
    if not kept.exists() and not failed.exists():
        unit, made = folder / "unit.cpp", folder / "made.so"
        unit.write_text(text, encoding="utf-8")
        done = subprocess.run(["g++", *FLAGS, *passed, str(unit), "-o", str(made)], capture_output=True, check=False)
        if done.returncode:  # every test would try again
            made.write_bytes(done.stderr)
        part, whole = kept.with_suffix(f".{os.getpid()}"), failed if done.returncode else kept
        kept.parent.mkdir(exist_ok=True)
        shutil.copy(made, part)
        part.rename(whole)
    if failed.exists():
        sys.stderr.write(failed.read_text(encoding="utf-8", errors="replace"))
        return 1
    shutil.copy(kept, folder / "library")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
