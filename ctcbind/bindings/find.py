"""Where the shared libraries are: the override variable, the process, pip wheels, conda, the system.

Nothing heavy is imported to look: a wheel's folder is found by the import system's own search, which runs no
code of the package. cuDNN is only looked for here (cudnn_library.py loads it); warp-ctc is opened as well, since
nothing but the library itself tells its API version.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import re
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..errors import EngineUnavailable

__all__ = [
    "CUDNN_NAMES",
    "Found",
    "cudnn_candidates",
    "find_cudnn",
    "find_warpctc",
    "loaded_cudnn",
    "main_beside",
    "remember",
    "unavailable",
    "unfit",
]

CUDNN_OVERRIDE = "CTCBIND_CUDNN"
WARPCTC_OVERRIDE = "CTCBIND_WARPCTC"

if sys.platform == "win32":
    CUDNN_NAMES: tuple[str, ...] = ("cudnn64_9.dll", "cudnn64_8.dll")
    WARPCTC_NAMES: tuple[str, ...] = ("warpctc.dll", "libwarpctc.dll")
    _LIB_FOLDERS: tuple[str, ...] = ("bin", os.path.join("bin", "x64"), "lib")
elif sys.platform == "darwin":
    CUDNN_NAMES = ("libcudnn.9.dylib", "libcudnn.8.dylib")
    WARPCTC_NAMES = ("libwarpctc.dylib",)
    _LIB_FOLDERS = ("lib",)
else:
    CUDNN_NAMES = ("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so")
    WARPCTC_NAMES = ("libwarpctc.so",)
    _LIB_FOLDERS = ("lib64", "lib", os.path.join("targets", f"{os.uname().machine}-linux", "lib"))

_CUDNN_HELP = (
    "Get one with: pip install nvidia-cudnn-cu12   (for CUDA 13: nvidia-cudnn-cu13), "
    f"or set {CUDNN_OVERRIDE} to the path of libcudnn.so.9."
)
_WARPCTC_HELP = (
    "Get one with: pip install --no-deps paddlepaddle   (its wheel carries libwarpctc.so), "
    f"or set {WARPCTC_OVERRIDE} to the path of a libwarpctc.so built from its sources."
)


_LD_SO_CONF = "/etc/ld.so.conf"
_SYSTEM_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", "/usr/local/cuda/lib64")


@dataclass(frozen=True)
class Found:
    """A library file, how it was found, and the reasons why the places before it gave none."""

    path: str
    how: str
    tried: tuple[str, ...] = ()


# What this package opened itself, by real path: the process holds it from then on, and it should still be
# reported as it was found.
_opened: dict[str, Found] = {}
_warpctc_open: dict[str, Any] = {}  # by real path; never closed


def remember(found: Found) -> None:
    """Notes a library as opened by this package, so that the next search reports it the same way."""
    _opened.setdefault(os.path.realpath(found.path), found)


def find_cudnn() -> Found:
    """The first cuDNN library of this machine, not loaded yet; raises EngineUnavailable with every reason.

    The order: the variable CTCBIND_CUDNN (and then nothing else), a cuDNN that the process has loaded, pip
    wheels, conda, and the system (CUDNN_PATH, CUDA_HOME, CUDA_PATH, then the folders of the dynamic loader).
    """
    tried: list[str] = []
    for found in cudnn_candidates(tried):
        return found
    raise unavailable("cuDNN", tried)


def find_warpctc() -> Found:
    """The first warp-ctc library of API version 2, opened to ask it; raises EngineUnavailable with every reason.

    The order: the variable CTCBIND_WARPCTC (and then nothing else), one that the process has loaded, the wheel
    of paddlepaddle (which is not imported), conda, and the system (WARP_CTC_PATH, then the folders of the
    dynamic loader).
    """
    tried: list[str] = []
    for found in _warpctc_candidates(tried):
        reason = _refuse_warpctc(found.path)
        if reason is None:
            remember(found)
            return found
        tried.append(f"{found.how}: {reason}")
    raise unavailable("warp-ctc", tried)


def unavailable(what: str, tried: Iterable[str]) -> EngineUnavailable:
    """The error that lists every place that was tried and the command that would help."""
    tried = [reason.encode("utf-8", "backslashreplace").decode() for reason in tried]  # or nobody could print them
    variable = WARPCTC_OVERRIDE if what == "warp-ctc" else CUDNN_OVERRIDE
    if os.environ.get(variable):
        return EngineUnavailable(
            f"no {what} library could be used: {'; '.join(tried)}\nNothing else is tried while {variable} is set: "
            "unset it, or set it to the path of a library."
        )
    lines = "".join(f"\n  - {reason}" for reason in tried)
    if what == "warp-ctc":
        advice = _WARPCTC_HELP
    elif sys.platform == "darwin":
        advice = "NVIDIA makes no cuDNN 8 or 9 for macOS."
    else:
        advice = _CUDNN_HELP
    return EngineUnavailable(f"no {what} library could be used:{lines}\n{advice}")


def cudnn_candidates(tried: list[str]) -> Iterator[Found]:
    """Every cuDNN library there is, in the order of find_cudnn; `tried` collects the reasons on the way."""
    if os.environ.get(CUDNN_OVERRIDE):
        yield from _override(CUDNN_OVERRIDE, CUDNN_NAMES, tried)
        return
    loaded = loaded_cudnn()
    if loaded:
        # one that was loaded by its parts has its main file beside them
        main = [path for path in loaded if _is_main(path)] or [
            path for path in (main_beside(loaded[0]),) if path is not None
        ]
        for path in main[:1]:
            yield _opened.get(os.path.realpath(path)) or Found(path, "loaded in the process", tuple(tried))
        # a second cuDNN cannot live beside the first: its calls would go to the parts of the first
        tried.append(f"the process: it holds {loaded[0]}, so no other cuDNN was tried")
        return
    tried.append("the process: no cuDNN is loaded")
    yield from _in_folders("pip wheels", _wheel_folders("nvidia", "cudnn"), CUDNN_NAMES, tried, _cudnn_wheel)
    yield from _in_folders("conda", _conda_folders(), CUDNN_NAMES, tried)
    for variable in ("CUDNN_PATH", "CUDA_HOME", "CUDA_PATH"):
        yield from _in_folders(variable, _variable_folders(variable), CUDNN_NAMES, tried)
    yield from _in_folders("the system", _loader_folders(), CUDNN_NAMES, tried)


def _warpctc_candidates(tried: list[str]) -> Iterator[Found]:
    if os.environ.get(WARPCTC_OVERRIDE):
        yield from _override(WARPCTC_OVERRIDE, WARPCTC_NAMES, tried)
        return
    loaded = _mapped(r"(lib)?warpctc\.(so|dll|dylib)(\.\d+)*")
    for path in loaded:
        yield _opened.get(os.path.realpath(path)) or Found(path, "loaded in the process", tuple(tried))
    if not loaded:
        tried.append("the process: no warp-ctc is loaded")
    yield from _in_folders("pip wheels", _wheel_folders("paddle"), WARPCTC_NAMES, tried, _paddle_wheel)
    yield from _in_folders("conda", _conda_folders(), WARPCTC_NAMES, tried)
    yield from _in_folders("WARP_CTC_PATH", _variable_folders("WARP_CTC_PATH"), WARPCTC_NAMES, tried)
    yield from _in_folders("the system", _loader_folders(), WARPCTC_NAMES, tried)


def unfit(path: str) -> str | None:
    """Why this file must not be given to the dynamic loader, or None."""
    try:
        path.encode(sys.getfilesystemencoding())
    except UnicodeEncodeError:
        return f"{path} has a name that is no {sys.getfilesystemencoding().upper()}, which cffi cannot open: link to it"
    if sys.platform.startswith("linux") and _is_cut_off(path):
        return f"{path} was cut off (its headers name more bytes than it has): install it anew"
    return None


def _is_cut_off(path: str) -> bool:
    """Whether an ELF file ends before its segments do: the loader maps them unseen, and the process dies of SIGBUS."""
    try:
        with open(path, "rb") as file:
            head = file.read(64).ljust(64, b"\0")
            if head[:4] != b"\x7fELF":
                return False
            order, wide = "<" if head[5] == 1 else ">", head[4] == 2
            (begin,) = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)
            size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
            file.seek(begin)
            table = file.read(size * count)
            length = os.fstat(file.fileno()).st_size
        # of a program header: type, offset, two addresses, bytes in the file
        segments = [struct.unpack_from(order + ("I4xQQQQ" if wide else "IIIII"), table, size * i) for i in range(count)]
    except (OSError, OverflowError, struct.error):
        return False  # the loader itself says what is wrong
    return any(kind == 1 and offset + in_file > length for kind, offset, _, _, in_file in segments)


def _refuse_warpctc(path: str) -> str | None:
    """Why this file is no warp-ctc of API version 2, or None. Version 1 has no blank label in its options, so
    that every call would read garbage for it (warp-ctc, include/ctc.h)."""
    from ._warpctc import ffi

    real = os.path.realpath(path)
    if real not in _warpctc_open and (reason := unfit(path)) is not None:
        return reason
    try:
        library = _warpctc_open.get(real) or ffi.dlopen(path, getattr(os, "RTLD_NOW", 0))
        _warpctc_open[real] = library
        version = library.get_warpctc_version()
    except OSError as error:
        return f"{path} could not be loaded: {error}"
    except ffi.error:
        return f"{path} has no get_warpctc_version, so it is no warp-ctc"
    return None if version == 2 else f"{path} has API version {version}, and version 2 is needed"


def _override(variable: str, names: tuple[str, ...], tried: list[str]) -> Iterator[Found]:
    """The one candidate that an override variable names: a file, or a folder that holds one."""
    value = os.environ[variable]
    path = _file_in(value, names) if os.path.isdir(value) else value
    if path is not None and os.path.isfile(path):
        yield Found(os.path.abspath(path), variable)
    elif path is None:
        tried.append(f"{variable}={value}: the folder holds no {' or '.join(names)}")
    else:
        tried.append(f"{variable}={value}: there is no such file")


def _in_folders(
    how: str,
    folders: list[str] | str,
    names: tuple[str, ...],
    tried: list[str],
    describe: Callable[[str], str] | None = None,
) -> Iterator[Found]:
    """The libraries in these folders, the newest name first; a string instead of folders is the reason for none."""
    if isinstance(folders, str):
        tried.append(f"{how}: {folders}")
        return
    some = False
    for folder in folders:
        path = _file_in(folder, names)
        if path is not None:
            some = True
            yield Found(path, describe(folder) if describe else f"{how} ({folder})", tuple(tried))
    if not some:
        places = folders[0] if len(folders) == 1 else f"{len(folders)} folders"
        tried.append(f"{how}: no {' or '.join(names[:2])} in {places}")


def _file_in(folder: str, names: tuple[str, ...]) -> str | None:
    for name in names:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            return path
    return None


def loaded_cudnn() -> list[str]:
    """The paths of the cuDNN files that this process has mapped, its main file and its parts (Linux only)."""
    return _mapped(r"libcudnn(_[a-z0-9_]+)?\.so(\.\d+)*")


def main_beside(part: str) -> str | None:
    """cuDNN's main file in the folder of a part of it."""
    return _file_in(os.path.dirname(part), CUDNN_NAMES)


def _is_main(path: str) -> bool:
    return re.fullmatch(r"libcudnn\.so(\.\d+)*", os.path.basename(path)) is not None


def _mapped(pattern: str) -> list[str]:
    """The mapped files whose name matches, in the order of the addresses; none where the system has no list."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            paths = [line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/" in line]
    except OSError:
        return []
    paths = [path.removesuffix(" (deleted)") for path in paths]
    return [path for path in dict.fromkeys(paths) if re.fullmatch(pattern, os.path.basename(path))]


def _wheel_folders(package: str, inner: str = "") -> list[str] | str:
    """The library folders of an installed wheel, found without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:  # a package that was put into sys.modules by hand has no spec
        return f"looking for the package {package} failed: {error}"
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    roots = [os.path.join(place, inner) if inner else place for place in places]
    folders = [os.path.join(root, lib) for root in roots for lib in ("lib", "bin", "libs")]
    folders = [folder for folder in folders if os.path.isdir(folder)]
    name = "/".join(part for part in (package, inner) if part)
    return folders or f"no installed package has a {name} folder with libraries"


def _cudnn_wheel(folder: str) -> str:
    return _wheel(folder, "nvidia/cudnn", ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "nvidia-cudnn-cu11"))


def _paddle_wheel(folder: str) -> str:
    return _wheel(folder, "paddle", ("paddlepaddle", "paddlepaddle-gpu"))


def _wheel(folder: str, inner: str, names: tuple[str, ...]) -> str:
    """The name and version of the wheel, out of `names`, that a library folder belongs to."""
    from importlib import metadata  # slow to import, and only this needs it

    for name in names:
        try:
            wheel = metadata.distribution(name)
            if os.path.samefile(str(wheel.locate_file(inner)), os.path.dirname(folder)):
                return f"pip wheel {name} {wheel.version}"
        except (metadata.PackageNotFoundError, OSError):
            continue
    return f"pip wheels ({folder})"


def _conda_folders() -> list[str] | str:
    prefixes = [os.environ.get("CONDA_PREFIX", "")]
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):  # run without being activated
        prefixes.append(sys.prefix)
    inner = ("Library/bin", "Library/bin/x64") if sys.platform == "win32" else ("lib",)
    folders = [os.path.join(prefix, each) for prefix in dict.fromkeys(prefixes) if prefix for each in inner]
    return folders or "no conda environment (CONDA_PREFIX is not set)"


def _variable_folders(variable: str) -> list[str] | str:
    value = os.environ.get(variable)
    if not value:
        return "not set"
    return [value, *(os.path.join(value, each) for each in _LIB_FOLDERS)]


def _loader_folders() -> list[str]:
    """The folders in which the dynamic loader looks, and where CUDA's installers put their libraries."""
    if sys.platform == "win32":
        folders = os.environ.get("PATH", "").split(os.pathsep)
        program_files = os.environ.get("ProgramFiles", r"C:\Program Files")  # noqa: SIM112
        below = ("bin", "bin/*", "bin/*/*")  # from 9.0 on there is one for each CUDA, later for each architecture too
        installed = [glob.glob(os.path.join(program_files, "NVIDIA", "CUDNN", "v*", each)) for each in below]
        folders += sorted(chain(*installed), key=_numbers, reverse=True)
    else:
        variable = "DYLD_LIBRARY_PATH" if sys.platform == "darwin" else "LD_LIBRARY_PATH"
        folders = os.environ.get(variable, "").split(os.pathsep)
        folders += _ld_so_conf(_LD_SO_CONF)
        multiarch = sysconfig.get_config_var("MULTIARCH")
        folders += [f"/lib/{multiarch}", f"/usr/lib/{multiarch}"] if multiarch else []
        folders += _SYSTEM_FOLDERS
    return [folder for folder in dict.fromkeys(folders) if folder and os.path.isdir(folder)]


def _numbers(path: str) -> list[int]:
    """Those that it holds, by which v9.10 comes after v9.9."""
    return [int(each) for each in re.findall(r"[0-9]+", path)]


def _ld_so_conf(path: str, depth: int = 0) -> list[str]:
    """The folders that ld.so.conf names, its includes followed (a few levels: a file can include itself)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split("#", 1)[0].strip() for line in file]
    except OSError:
        return []
    folders: list[str] = []
    for line in lines:
        if line.startswith("include "):
            pattern = os.path.join(os.path.dirname(path), line.split(maxsplit=1)[1])
            for included in sorted(glob.glob(pattern)) if depth < 4 else []:
                folders += _ld_so_conf(included, depth + 1)
        elif line.startswith("/"):
            folders.append(line)
    return folders
