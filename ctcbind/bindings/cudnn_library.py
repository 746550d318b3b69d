"""libcudnn loaded into the process: once, at first use, and for good.

The main file of cuDNN 8 and 9 is a shim that loads the real libraries at the first call and aborts the process
where it cannot. So they are loaded before it, by absolute path and in the order of their needs, and what is
broken about an installation is an exception; no function of the shim is called before. A library that was
called is never closed: others in the process share it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any, NoReturn

from ..errors import EngineUnsupported, InvalidInput, NativeError, brief
from ..forks import Lock
from . import find
from ._cudnn import ffi
from .cudnn_log import Log
from .cudnn_status import StatusCategory, category, explain, status_name
from .find import Found

__all__ = ["Library", "check", "ffi", "has", "invoke", "last_error", "load", "loaded_from", "string", "version_text"]

# In the order in which they need each other; the CTC loss lives in the last one.
_PARTS = {
    9: ("graph", "ops", "adv"),
    8: ("ops_infer", "ops_train", "adv_infer", "adv_train"),
}
# One of each part; the main file has them all, from 8.0 on.
_NEEDED = ("cudnnCreate", "cudnnCreateTensorDescriptor", "cudnnCTCLoss")
# Each asks the part with the CTC loss, of 9 or of 8, whether the parts it needs are of its own release.
_VERSION_CHECKS = ("cudnnAdvVersionCheck", "cudnnAdvTrainVersionCheck")

_SINCE = {
    "cudnnSetCTCLossDescriptor_v9": "9.0.0",
    "cudnnGetCTCLossDescriptor_v9": "9.0.0",
    "cudnnGetLastErrorString": "9.0.0",
    "cudnnGraphVersionCheck": "9.0.0",
    "cudnnOpsVersionCheck": "9.0.0",
    "cudnnAdvVersionCheck": "9.0.0",
    "cudnnGetMaxDeviceVersion": "8.6.0",
}

# NOW, not LAZY: a symbol that is missing is an OSError here, and would end the process at the first call
_FLAGS = getattr(os, "RTLD_NOW", 0) | getattr(os, "RTLD_LOCAL", 0)
_NOLOAD = getattr(os, "RTLD_NOLOAD", 0)

_lock = Lock()
_kept: list[Any] = []  # every library opened: cffi closes one that nothing refers to
_loaded: Library | None = None


def version_text(version: int) -> str:
    """A cudnnGetVersion() as people write it: its digits were regrouped at 9.0 (cudnn_version.h, 8.5 and 9.28).

    >>> version_text(8500), version_text(92800)
    ('8.5.0', '9.28.0')
    """
    thousand = 10000 if version >= 90000 else 1000
    return f"{version // thousand}.{version % thousand // 100}.{version % 100}"


def symbol(lib: Any, name: str) -> Any:
    """The C function of an opened library, or None: cffi's own error for a missing one is no AttributeError."""
    try:
        found = getattr(lib, name)
    except (ffi.error, AttributeError):
        return None
    return found if isinstance(found, ffi.CData) else None  # enums' members are ints there


class Library:
    """The cuDNN of this process: `lib` with its C functions, `version` as cudnnGetVersion says it, and the file
    it was `found` in."""

    def __init__(self, lib: Any, found: Found, version: int) -> None:
        self.lib = lib
        self.found = found
        self.version = version
        self.log = Log(symbol(lib, "cudnnSetCallback"), symbol(lib, "cudnnGetCallback"), version)
        self._functions: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<cuDNN {version_text(self.version)} from {self.found.path}>"

    def has(self, name: str) -> bool:
        """Whether this version exports the C function."""
        return name in self._functions or symbol(self.lib, name) is not None

    def function(self, name: str) -> Any:
        """The C function; raises EngineUnsupported where this version has none of that name."""
        known = self._functions.get(name)
        if known is None:
            known = symbol(self.lib, name)
            if known is None:
                since = _SINCE.get(name)
                note = f" (it came with {since})" if since else ""
                raise EngineUnsupported(f"cuDNN {version_text(self.version)} has no {name}{note}")
            self._functions[name] = known
        return known


def load() -> Library:
    """The library of this process, loaded at the first call; raises EngineUnavailable with every reason."""
    global _loaded
    if _loaded is None:
        with _lock:
            if _loaded is None:
                found = _load()
                _loaded = _loaded or found  # a signal's handler may have loaded it meanwhile
    return _loaded


def loaded_from() -> Found:
    """The library file in use and how it was found; loads it at first. Raises EngineUnavailable with every reason."""
    return load().found


def has(name: str) -> bool:
    """Whether the cuDNN of this process exports the C function; raises EngineUnavailable where there is none."""
    if not isinstance(name, str):
        raise InvalidInput(f"name must be that of a C function, not {brief(name)}", rule="type", value=name)
    return load().has(name)


def invoke(library: Library, name: str, *arguments: Any) -> None:
    """Calls a C function that returns a status; raises NativeError, with cuDNN's own reason, unless it is 0."""
    function = library.function(name)
    heard: list[str] = []
    if library.log.listening:
        with library.log.window() as heard:
            status = function(*arguments)
    else:
        status = function(*arguments)
    if status != 0:
        raise _failure(library, name, status, heard, arguments)


def check(library: Library, name: str, status: int) -> None:
    """Raises NativeError for a status of a call that was made already, unless it is 0."""
    if status != 0:
        raise _failure(library, name, status, [], None)


def _failure(
    library: Library, call: str, status: int, heard: list[str], arguments: tuple[Any, ...] | None
) -> NativeError:
    version = library.version
    kind = category(status, version)
    if not heard and kind is not StatusCategory.NOT_SUPPORTED and library.has("cudnnGetLastErrorString"):
        reasons = [last_error(library)]
    else:
        # A NOT_SUPPORTED leaves no error string, and cuDNN 8 has none at all: the reason goes to the log only.
        # A refused call did nothing, so that it can be made once more for somebody to listen.
        refused = kind in (StatusCategory.NOT_SUPPORTED, StatusCategory.BAD_PARAM)
        if not heard and refused and arguments is not None and not call.startswith(("cudnnCreate", "cudnnDestroy")):
            with library.log.window() as heard:
                library.function(call)(*arguments)
        lines = [line for text in heard for line in text.splitlines() if "Reason:" in line]
        reasons = [line.partition("Reason:")[2].strip() for line in lines]
    name = string(library.lib.cudnnGetErrorString(status))
    if not name or "UNKNOWN" in name:
        name = status_name(status, version)
    reason = "; ".join(dict.fromkeys(reason for reason in reasons if reason))
    return NativeError(call, status, name, explain(call, status, version, reason))


def last_error(library: Library) -> str:
    """cudnnGetLastErrorString. 9.0.0 does not end a text that it had to cut, so the buffer has one byte more."""
    size = 4096
    text = ffi.new("char[]", size + 1)
    library.function("cudnnGetLastErrorString")(text, size)
    return string(text)


def string(text: Any) -> str:
    return "" if text == ffi.NULL else bytes(ffi.string(text)).decode("utf-8", "replace")


class _BrokenError(Exception):
    """One candidate cannot be used. `final`: parts of a cuDNN are in the process now, so no other may follow."""

    def __init__(self, reason: str, final: bool) -> None:
        super().__init__(reason)
        self.final = final


def _load() -> Library:
    tried: list[str] = []
    for found in find.cudnn_candidates(tried):
        try:
            library = _open(found)
        except _BrokenError as error:
            tried.append(f"{found.how}: {error}")
            if error.final:
                tried.append("nothing else was tried: another cuDNN would be bound to the parts loaded by now")
                break
        else:
            find.remember(found)
            return library
    raise find.unavailable("cuDNN", tried)


def _open(found: Found) -> Library:
    opened: list[Any] = []
    loaded = find.loaded_cudnn()
    try:
        lib = _open_parts_and_shim(found.path, loaded, opened)
        version = _version(lib, found.path)
        if (missing := next((name for name in _NEEDED if symbol(lib, name) is None), None)) is not None:
            main = os.path.basename(find.main_beside(found.path) or find.CUDNN_NAMES[0])
            _broken(f"{found.path} has no {missing}: it is a part of cuDNN; name {main} beside it", True)
        for name in _VERSION_CHECKS:
            fits = symbol(lib, name)
            status = 0 if fits is None else fits()
            if status != 0:
                _broken(f"{name} returned {status}: the files beside {found.path} are of several releases", True)
    except OSError as error:
        raise _BrokenError(f"{found.path} could not be loaded: {error}", bool(opened)) from error
    finally:
        _kept.extend(opened)
    return Library(lib, found, version)


def _open_parts_and_shim(path: str, loaded: list[str], opened: list[Any]) -> Any:
    beside = _parts_beside(path)
    if beside is None:
        return _open_alone(path, opened)
    folder, names = beside
    # A second cuDNN is bound to the parts of the first, whatever path it has, and often fails later.
    others = [each for each in loaded if _folder(each) != _folder(os.path.join(folder, names[0]))]
    if others:
        _broken(f"{path} cannot be used: the process already holds {others[0]}, and it can hold only one", True)
    if sys.platform == "win32":
        _kept.append(os.add_dll_directory(folder))
    for name in names:
        part = os.path.join(folder, name)
        if not os.path.exists(part):
            _broken(f"{name} is missing beside {path}", bool(opened))
        _dlopen(part, opened)
    return _dlopen(path, opened)


def _dlopen(path: str, opened: list[Any]) -> Any:
    if (reason := find.unfit(path)) is not None:
        _broken(reason, bool(opened))
    opened.append(ffi.dlopen(path, _FLAGS))
    return opened[-1]


def _folder(path: str) -> str:
    return os.path.dirname(os.path.realpath(path))


def _generation(path: str) -> int | None:
    """The major version in a file's name, or in that of the file it is a link to."""
    for name in (os.path.basename(path), os.path.basename(os.path.realpath(path))):
        match = re.search(r"\.so\.(\d+)|64_(\d+)\.dll|\.(\d+)\.dylib", name)
        if match:
            return int(next(group for group in match.groups() if group))
    return None


def _part_name(part: str, generation: int) -> str:
    if sys.platform == "win32":
        return f"cudnn_{part}64_{generation}.dll"
    if sys.platform == "darwin":
        return f"libcudnn_{part}.{generation}.dylib"
    return f"libcudnn_{part}.so.{generation}"


def _parts_beside(path: str) -> tuple[str, list[str]] | None:
    """The folder and the names of the parts that belong to this main file; None where it stands alone."""
    known = _generation(path)
    for folder in dict.fromkeys((os.path.dirname(path), _folder(path))):
        for generation in (known,) if known in _PARTS else tuple(_PARTS):
            assert generation is not None
            names = [_part_name(part, generation) for part in _PARTS[generation]]
            if any(os.path.exists(os.path.join(folder, name)) for name in names):
                return folder, names
    return None


def _open_alone(path: str, opened: list[Any]) -> Any:
    """Opens a file with no parts beside it: either it holds everything, or it is a shim whose parts the dynamic
    loader must know. Opening a shim is harmless; the first call into one without its parts ends the process."""
    lib = _dlopen(path, opened)
    _get_version(lib, path)
    for generation in _PARTS:
        if not _is_loaded(f"libcudnn.so.{generation}"):
            continue  # the file calls itself something else, so it is no shim of this generation
        for part in _PARTS[generation]:
            name = _part_name(part, generation)
            try:
                opened.append(ffi.dlopen(name, _FLAGS))
            except OSError as error:
                _broken(f"{path} is only the front of cuDNN, and {name} was not found: {error}", True)
    return lib


def _is_loaded(soname: str) -> bool:
    """Whether the process holds a library that calls itself so (its DT_SONAME, wherever its file is)."""
    if not _NOLOAD:
        return False
    try:
        _kept.append(ffi.dlopen(soname, _FLAGS | _NOLOAD))
    except OSError:
        return False
    return True


def _get_version(lib: Any, path: str) -> Any:
    found = symbol(lib, "cudnnGetVersion")
    if found is None:
        _broken(f"{path} has no cudnnGetVersion, so it is no cuDNN", False)
    return found


def _version(lib: Any, path: str) -> int:
    version = int(_get_version(lib, path)())
    if version < 8000:
        # 7.6 changed what the gradients mean, and 7.x knows no device labels (pytorch pull request 27039)
        _broken(f"{path} is cuDNN {version_text(version)}, and 8.0 or newer is needed", False)
    return version


def _broken(reason: str, final: bool) -> NoReturn:
    raise _BrokenError(reason, final)
