"""The three FFIs of ctcbind, declared in one place.

cuDNN and warp-ctc are out-of-line ABI mode: the libraries are found at run time, so neither is needed to
build or to import. The native engine is API mode, compiled from csrc/ into one abi3 extension. setup.py compiles it,
and beside it csrc/python/, which is no FFI.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
CDEF = ROOT / "ctcbind" / "bindings" / "cdef"


# Setting a struct's fields from Python costs more than a small batch's arithmetic: one call sets what changes.
NATIVE_SOURCE = """
#include "ctcbind.h"
#include "batch.h"
#include "decode.h"
#include "align.h"
#include "lattice.h"
#include "second_order.h"
#include "threads.h"
#include "xla.h"

static int64_t ctcbind_run(ctcbind_problem *problem, const void *logits, void *grad, void *losses,
                           const int32_t *integers, int64_t labels, const double *weights, void *workspace,
                           size_t workspace_bytes)
{
    problem->logits = logits;
    problem->grad = grad;
    problem->losses = losses;
    problem->labels = integers;
    problem->label_lengths = integers + labels;
    problem->input_lengths = integers + labels + problem->N;
    problem->weights = weights;
    size_t needed = workspace ? 0 : ctcbind_workspace_size(problem);
    if (needed) return -(int64_t)needed;
    int status = ctcbind_loss(problem, workspace, workspace_bytes);
    return status == CTCBIND_SMALL ? -(int64_t)ctcbind_workspace_size(problem) : status;
}
"""


#: The native engine's declarations, types before those that use them.
NATIVE = ("native", "rows", "decode", "align", "lattice", "second_order", "threads", "xla")


#: What CFLAGS may have allowed, and the results would not outlive.
NO_FAST_MATH = [
    "-fno-fast-math", "-fno-unsafe-math-optimizations", "-fno-associative-math", "-fno-reciprocal-math",
    "-fno-finite-math-only", "-fsigned-zeros",
    "-ffp-contract=off",  # which -std=c11 is for GCC, and not for Clang: its products went into sums unrounded
]  # fmt: skip
#: Debugging symbols, which Python's own flags ask for, would be seven eighths of the library.
COMPILE = ["-std=c11", "-O3", "-g0", *NO_FAST_MATH, "-Wall", "-Wextra"]
#: The same for Visual Studio.
COMPILE_MSVC = ["/O2", "/std:c11", "/fp:precise"]


def declare(*names: str) -> FFI:
    ffi = FFI()
    for name in names:
        ffi.cdef((CDEF / f"{name}.h").read_text(encoding="utf-8"))
    return ffi


native = declare(*NATIVE)
native.set_source(
    "ctcbind.bindings._native",
    NATIVE_SOURCE,
    # setuptools wants paths relative to the folder it runs in, which is this one
    sources=sorted(f"csrc/{path.name}" for path in (ROOT / "csrc").glob("*.c")),
    include_dirs=["csrc"],
    depends=sorted(f"csrc/{path.name}" for path in (ROOT / "csrc").glob("*.h")),
    extra_compile_args=(
        [*COMPILE_MSVC, "/experimental:c11atomics"]  # the last from Visual Studio 2022 17.5 on
        if sys.platform == "win32"
        else [*COMPILE, "-fno-math-errno", "-fno-trapping-math", "-pthread"]
    ),
    extra_link_args=[] if sys.platform == "win32" else ["-fno-fast-math", "-pthread"],
    libraries=[] if sys.platform == "win32" else ["m"],
)

cudnn = declare("cudnn")
cudnn.set_source("ctcbind.bindings._cudnn", None)

warpctc = declare("warpctc")
warpctc.set_source("ctcbind.bindings._warpctc", None)
