"""Holds the declarations in ctcbind/bindings/cdef against real headers, where there are any.

    python tools/check_headers.py                   # the headers of an installed cuDNN wheel
    python tools/check_headers.py include/ ctc.h    # folders of cuDNN headers, or warp-ctc's ctc.h

Of each function the parameters and what it returns are compared, of each enum the values, of each struct the
fields. A declaration under a comment "since X" may be missing in headers before X, one under "until X" in later
ones. cudnnStatus_t, whose numbers depend on the version, is compared with the lists in cudnn_status.py.
Exit status 1 for any difference; 0 when all is equal, or when there is no header to compare with.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from types import ModuleType

BINDINGS = Path(__file__).resolve().parent.parent / "ctcbind" / "bindings"
HEADERS = {
    9: ("cudnn_graph.h", "cudnn_ops.h", "cudnn_adv.h"),
    8: ("cudnn_ops_infer.h", "cudnn_ops_train.h", "cudnn_adv_infer.h", "cudnn_adv_train.h"),
}
#: CUDA's own, in headers that no cuDNN wheel carries.
FOREIGN = {"cudaStream_t", "libraryPropertyType"}
#: Declared in another way on purpose; the cdef files say why.
DIFFERENT = {"cudnnStatus_t", "ctcStatus_t", "ctcOptions"}

Version = tuple[int, int, int]


@dataclass
class Declarations:
    """What a header declares, each thing in one normal form, by its name."""

    functions: dict[str, str] = field(default_factory=dict)
    enums: dict[str, dict[str, int]] = field(default_factory=dict)
    structs: dict[str, list[str]] = field(default_factory=dict)
    typedefs: dict[str, str] = field(default_factory=dict)
    since: dict[str, Version] = field(default_factory=dict)
    until: dict[str, Version] = field(default_factory=dict)


def parse(text: str) -> Declarations:
    """The declarations of a C header as simple as these: no expression beyond sums of shifts, no nested braces."""
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"/\*\s*(since|until) ([0-9.]+)\s*\*/", r" @\1 \2@ ", text)
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#[^\n]*", " ", text, flags=re.MULTILINE)
    text = re.sub(r'extern\s+"C"\s*\{|\b(CUDNNWINAPI|CUDNN_DEPRECATED(_ENUM)?|API_REFERENCE)\b', " ", text)
    found = Declarations()
    for statement in re.findall(r"(?:[^;{}]|\{[^{}]*\})+;", text):
        marks = re.findall(r"@(since|until) ([0-9.]+)@", statement.partition("{")[0])
        name = read(statement, found)
        for kind, version in marks if name else []:
            getattr(found, kind)[name] = parse_version(version)
    return found


def read(statement: str, found: Declarations) -> str | None:
    """Reads one statement; returns the name that it declares."""
    plain = " ".join(re.sub(r"@\w+ [0-9.]+@", " ", statement.partition("{")[0]).split()).rstrip(" ;")
    body = re.search(r"\{(.*)\}\s*(\w*)\s*;$", statement.strip(), flags=re.DOTALL)
    if body:
        inside, name = body.groups()
        tag = plain.split()[-1]
        if "enum" in plain.split():
            found.enums[name or tag] = parse_enum(inside, found)
        elif "struct" in plain.split():
            fields = [each for each in re.sub(r"@[^@]*@", " ", inside).split(";") if each.strip()]
            found.structs[name or tag] = [parameter(each) for each in fields]
        return name or tag
    function = re.fullmatch(r"(?:extern )?([\w *]+?[ *])(\w+) ?\((.*)\)", plain)
    if plain.startswith("typedef "):
        callback = re.fullmatch(r"typedef (.+?) ?\( ?\* ?(\w+) ?\) ?\((.*)\)", plain)
        if callback:
            result, name, parameters = callback.groups()
            found.typedefs[name] = signature(result, parameters)
            return name
        kind, name = re.fullmatch(r"typedef (.*?[ *])(\w+)", plain).groups()  # type: ignore[union-attr]
        found.typedefs[name] = spaced(kind)
        return name
    if function:
        result, name, parameters = function.groups()
        found.functions[name] = signature(result, parameters)
        return name
    return None


def parse_enum(inside: str, found: Declarations) -> dict[str, int]:
    values: dict[str, int] = {}
    following = 0
    for entry in inside.split(","):
        before, _, after = entry.partition("=")
        # a comment behind the comma stands in front of the next member, and means the one before it
        for text, behind in ((before, False), (after, True)):
            mark = re.search(r"@since ([0-9.]+)@", text)
            if mark and (behind or values):
                name = before.split()[-1] if behind else list(values)[-1]
                found.since[name] = parse_version(mark.group(1))
        entry = " ".join(re.sub(r"@[^@]*@", " ", entry).split())
        if not entry:
            continue
        name, _, expression = (part.strip() for part in entry.partition("="))
        if expression:
            number = expression.rstrip("uU")
            following = values[number] if number in values else int(number, 0)
        values[name] = following
        following += 1
    return values


def signature(result: str, parameters: str) -> str:
    listed = [parameter(each) for each in parameters.split(",") if each.split() not in ([], ["void"])]
    return f"{spaced(result)} ({', '.join(listed)})"


def parameter(text: str) -> str:
    """A parameter or a field without its name; an array parameter is a pointer, a field's length stays."""
    array = re.search(r"\[\s*(\d*)\s*\]\s*$", text)
    tokens = re.findall(r"\w+|\*", text[: array.start()] if array else text)
    tokens = [token for token in tokens if token != "struct"]
    if "*" in tokens:  # a pointer that is constant itself is the callee's own affair
        last = len(tokens) - tokens[::-1].index("*")
        tokens[last:] = [token for token in tokens[last:] if token != "const"]
    words = [token for token in tokens if token not in ("const", "*")]
    builtin = {"unsigned", "int", "char", "long", "float", "double", "void", "size_t", "short"}
    if tokens[-1] != "*" and len(words) > 1 and tokens[-1] not in builtin:
        tokens.pop()
    if array:
        tokens.append(f"[{array.group(1)}]" if array.group(1) else "*")
    return spaced(" ".join(tokens))


def spaced(text: str) -> str:
    return " ".join(re.findall(r"\w+|\*|\[\d*\]", text)).replace("unsigned int", "unsigned")


def parse_version(text: str) -> Version:
    major, minor, patch = (int(part) for part in text.split("."))
    return major, minor, patch


def compare(ours: Declarations, theirs: Declarations, version: Version | None) -> list[str]:
    """The differences, a sentence each. `version` is that of their header; None: nothing may be missing."""

    def excused(name: str) -> bool:
        if version is None:
            return False
        return version < ours.since.get(name, (0, 0, 0)) or version >= ours.until.get(name, (1 << 30, 0, 0))

    differences = []
    for kind in ("functions", "structs", "typedefs"):
        declared: dict[str, object] = getattr(ours, kind)
        real: dict[str, object] = getattr(theirs, kind)
        for name, what in declared.items():
            if name in FOREIGN | DIFFERENT or excused(name):
                continue
            if name not in real:
                differences.append(f"{name}: declared here, and not in the header")
            elif real[name] != what:
                differences.append(f"{name}: declared as {what}, in the header {real[name]}")
    for name, values in ours.enums.items():
        if name in FOREIGN | DIFFERENT or excused(name):
            continue
        if name not in theirs.enums:
            differences.append(f"{name}: declared here, and not in the header")
            continue
        for member, value in values.items():
            if member not in theirs.enums[name]:
                if not excused(member):
                    differences.append(f"{name}: {member} is not in the header")
            elif theirs.enums[name][member] != value:
                differences.append(f"{name}: {member} is {value}, in the header {theirs.enums[name][member]}")
    return differences


def compare_statuses(theirs: Declarations, version: Version, newest: Version = (9, 28, 0)) -> list[str]:
    """The lists of cudnn_status.py against the header's. One that is `newest` or newer may lack nothing of them."""
    module = load_module(BINDINGS / "cudnn_status.py")
    statuses: type[IntEnum] = module.cudnnStatus_t if version >= (9, 0, 0) else module.cudnnStatus_v8_t
    real = theirs.enums.get("cudnnStatus_t", {})
    differences = []
    for status in statuses:
        if status.name not in real:
            if version >= newest or version < (9, 0, 0):
                differences.append(f"cudnnStatus_t: {status.name} is not in the header")
        elif real[status.name] != status:
            differences.append(f"cudnnStatus_t: {status.name} is {int(status)}, in the header {real[status.name]}")
    return differences


def additions(ours: Declarations, theirs: Declarations) -> list[str]:
    """Members that the header's enums have and ours do not: nothing is wrong, but there is something to add."""
    return [
        f"{name} has a {member} = {value}"
        for name, values in ours.enums.items()
        for member, value in theirs.enums.get(name, {}).items()
        if member not in values
    ]


def load_module(path: Path) -> ModuleType:
    """A module by its file, without the package around it, which may not be built."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def header_version(folder: Path) -> Version:
    text = (folder / "cudnn_version.h").read_text(encoding="utf-8", errors="replace")
    major, minor, patch = (re.search(rf"#define CUDNN_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCHLEVEL"))
    assert major, f"{folder} does not say its version"
    assert minor
    assert patch
    return int(major.group(1)), int(minor.group(1)), int(patch.group(1))


def check_cudnn(folder: Path) -> list[str]:
    version = header_version(folder)
    ours = parse((BINDINGS / "cdef" / "cudnn.h").read_text(encoding="utf-8"))
    names = HEADERS.get(version[0], HEADERS[9])
    texts = [(folder / name).read_text(encoding="utf-8", errors="replace") for name in names]
    theirs = parse("\n".join(texts))
    differences = compare(ours, theirs, version) + compare_statuses(theirs, version)
    label = f"cuDNN {'.'.join(map(str, version))} in {folder}"
    compared = [name for name in ours.functions if name in theirs.functions]
    report(label, f"{len(compared)} functions and {len(ours.enums)} enums", differences, additions(ours, theirs))
    return differences


def check_warpctc(header: Path) -> list[str]:
    ours = parse((BINDINGS / "cdef" / "warpctc.h").read_text(encoding="utf-8"))
    theirs = parse(header.read_text(encoding="utf-8", errors="replace"))
    differences = compare(ours, theirs, None)
    report(f"warp-ctc in {header}", f"{len(ours.functions)} functions", differences, [])
    return differences


def report(label: str, compared: str, differences: list[str], notes: list[str]) -> None:
    print(f"{label}: {compared} compared, {len(differences)} differences")
    for difference in differences:
        print(f"  {difference}")
    for note in notes:
        print(f"  note: {note}")


def installed() -> list[Path]:
    """The include folders of cuDNN wheels in this environment."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or ()) if spec else []
    folders = [Path(place) / "cudnn" / "include" for place in places]
    return [folder for folder in folders if (folder / "cudnn_version.h").exists()]


def main(arguments: list[str] | None = None) -> int:
    """Compares with every header given, or installed; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("header", nargs="*", type=Path, help="a folder of cuDNN's headers, or warp-ctc's ctc.h")
    paths: list[Path] = parser.parse_args(arguments).header or installed()
    if not paths:
        print("no header found: no cuDNN wheel is installed here, and no path was given; nothing was compared")
        return 0
    differences: list[str] = []
    for path in paths:
        if (path / "cudnn_version.h").exists():
            differences += check_cudnn(path)
        elif path.is_file() or (path / "ctc.h").is_file():
            differences += check_warpctc(path if path.is_file() else path / "ctc.h")
        else:
            parser.error(f"{path} is neither a folder with cudnn_version.h nor warp-ctc's ctc.h")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
