"""A CUDA on host memory under the real CuPy: with this folder in PYTHONPATH, before CuPy is imported.

CuPy's wheel carries the CUDA runtime in its own module, and finds libcuda and libnvrtc by their names. Those are a
link to fake_cuda.so each (LD_LIBRARY_PATH); the runtime's functions are written over, as soon as the module is loaded,
with jumps into it. A function that it has not says so and returns an error.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

RUNTIME = "cupy_backends.cuda.api.runtime"
SYMBOL_TABLE, FUNCTION = 2, 2
READ_WRITE_EXECUTE = 7
PAGE = 4096

_names: list[Any] = []  # of functions that are not there: their addresses are in the code


def functions(path: str) -> Iterator[tuple[str, int]]:
    """Name and offset of each function in the symbol table of an ELF file."""
    with open(path, "rb") as file:
        data = file.read()
    (sections,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, sections + i * size) for i in range(count)]
    for _, kind, _, _, begin, length, link, *_ in headers:
        if kind != SYMBOL_TABLE:
            continue
        names = headers[link][4]
        for at in range(begin, begin + length, 24):
            name, info, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            if info & 15 == FUNCTION and value:
                yield data[names + name : data.index(b"\0", names + name)].decode(), value


def jump(to: Any, argument: int | None = None) -> bytes:
    """Machine code of x86-64: to `to`, with `argument` in place of the first one."""
    address = ctypes.cast(to, ctypes.c_void_p).value
    first = b"" if argument is None else b"\x48\xbf" + struct.pack("<Q", argument)
    return first + b"\x49\xbb" + struct.pack("<Q", address) + b"\x41\xff\xe3"


def patch(path: str) -> None:
    fake, libc = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL), ctypes.CDLL(None)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        base = min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(path))
    patched = 0
    for name, offset in functions(path):
        if not (name.startswith("cuda") and name[4:5].isupper()):
            continue
        if hasattr(fake, name):
            code = jump(getattr(fake, name))
        else:
            _names.append(ctypes.create_string_buffer(name.encode()))
            code = jump(fake.fake_cuda_missing, ctypes.addressof(_names[-1]))
        page = (base + offset) & -PAGE
        length = base + offset + len(code) - page
        assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(length), READ_WRITE_EXECUTE) == 0
        ctypes.memmove(base + offset, code, len(code))
        patched += 1
    assert patched > 300, f"{path} has not the functions of the CUDA runtime by their names"


class Finder:
    """CuPy's runtime module is patched before anything of it runs."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != RUNTIME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        create = spec.loader.create_module

        def create_and_patch(made_for: importlib.machinery.ModuleSpec) -> ModuleType | None:
            module = create(made_for)
            assert spec.origin is not None
            patch(spec.origin)
            return module

        spec.loader.create_module = create_and_patch  # type: ignore[method-assign]
        return spec


if os.environ.get("FAKE_CUDA") == "1":
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]
