"""Loading cuDNN from where it was found, in several files or one, each time in a process of its own."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from fake_cudnn import PARTS, NoCompilerError, build
from libraries import compiled, linux, python

from ctcbind.bindings import cudnn_library

pytest_plugins = ["fake_cudnn.fixture"]

LOAD = """
    from ctcbind.bindings import cudnn
    from ctcbind.errors import EngineUnavailable
    try:
        library = cudnn.load()
    except EngineUnavailable as error:
        print("UNAVAILABLE", error)
    else:
        print(library.version, library.found.path)
        cudnn.cudnnCreateCTCLossDescriptor().close()
        print(cudnn.loaded_from().how)
        print([line.split()[-1].rpartition("/")[2] for line in open("/proc/self/maps") if "libcudnn" in line][::1])
"""


def linked(source: Path, folder: Path, *, without: tuple[str, ...] = ()) -> Path:
    """A copy of an installation, without some of its files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if not any(part in file.name for part in without):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@linux
@pytest.mark.parametrize("generation", [9, 8])
def test_the_parts_are_loaded_before_the_main_file(split, generation):
    out = python(LOAD, CTCBIND_CUDNN=str(split(generation)))
    version = {9: 92800, 8: 8500}[generation]
    assert out.startswith(f"{version} {split(generation)}/libcudnn.so.{generation}\nCTCBIND_CUDNN\n")
    for part in PARTS[generation]:
        assert f"libcudnn_{part}.so.{generation}" in out


@linux
@pytest.mark.parametrize(
    ("generation", "missing"), [(9, "graph"), (9, "ops"), (9, "adv"), (8, "ops_infer"), (8, "adv_train")]
)
def test_a_missing_part_is_an_error_and_no_abort(split, tmp_path, generation, missing):
    folder = linked(split(generation), tmp_path / "broken", without=(f"_{missing}.",))
    out = python(LOAD, CTCBIND_CUDNN=str(folder))
    assert out.startswith("UNAVAILABLE")
    assert f"libcudnn_{missing}.so.{generation} is missing beside {folder}" in out


@linux
@pytest.mark.parametrize("generation", [9, 8])
def test_a_main_file_alone_is_an_error_and_no_abort(split, tmp_path, generation):
    folder = linked(split(generation), tmp_path / "alone", without=("libcudnn_",))
    out = python(LOAD, CTCBIND_CUDNN=str(folder))
    assert out.startswith("UNAVAILABLE")
    assert "is only the front of cuDNN" in out


@linux
def test_a_main_file_alone_with_parts_that_the_loader_knows(split, tmp_path):
    folder = linked(split(), tmp_path / "alone", without=("libcudnn_",))
    out = python(LOAD, CTCBIND_CUDNN=str(folder), LD_LIBRARY_PATH=str(split()))
    assert out.startswith(f"92800 {folder}/libcudnn.so.9")


@linux
def test_a_link_to_an_installation(split, tmp_path):
    """As Debian has it: the file that is named is a link, and the parts are beside what it points to."""
    link = tmp_path / "libcudnn.so"
    link.symlink_to(split() / "libcudnn.so.9")
    assert python(LOAD, CTCBIND_CUDNN=str(link)).startswith("92800")


@linux
def test_a_part_that_is_no_library_is_an_error(split, tmp_path):
    folder = linked(split(), tmp_path / "broken")
    (folder / "libcudnn_ops.so.9").write_bytes(b"not a library")
    out = python(LOAD, CTCBIND_CUDNN=str(folder))
    assert out.startswith("UNAVAILABLE")
    assert "libcudnn_ops.so.9" in out
    assert "invalid ELF header" in out or "file too short" in out


@linux
@pytest.mark.parametrize("name", ["libcudnn_ops.so.9", "libcudnn.so.9"])
def test_a_file_that_was_cut_off_is_an_error(split, tmp_path, name):
    folder = linked(split(), tmp_path / "broken")
    (folder / name).write_bytes((folder / name).read_bytes()[:4097])
    out = python(LOAD, CTCBIND_CUDNN=str(folder))
    assert out.startswith("UNAVAILABLE")
    assert f"{folder / name} was cut off" in out


@linux
def test_a_file_that_is_no_cudnn_is_an_error(tmp_path):
    other = compiled("int nothing;", tmp_path / "other.so")
    out = python(LOAD, CTCBIND_CUDNN=str(other))
    assert "has no cudnnGetVersion, so it is no cuDNN" in out


@linux
def test_a_file_that_is_no_cudnn_is_none_beside_a_cudnn(split, tmp_path):
    """That the process has a libcudnn.so.9 does not make this file its front."""
    other = compiled("int nothing;", tmp_path / "other.so")
    before = f"""
        import ctypes
        kept = ctypes.CDLL({str(split())!r} + "/libcudnn.so.9")
    """
    out = python(textwrap.dedent(before) + textwrap.dedent(LOAD), CTCBIND_CUDNN=str(other))
    assert f"{other} has no cudnnGetVersion, so it is no cuDNN" in out


@linux
@pytest.mark.parametrize(
    ("has", "missing"),
    [
        ("cudnnGetVersion", "cudnnCreate"),
        ("cudnnGetVersion cudnnCreate", "cudnnCreateTensorDescriptor"),
        ("cudnnGetVersion cudnnCreate cudnnCreateTensorDescriptor", "cudnnCTCLoss"),
    ],
)
def test_a_part_of_cudnn_is_told_for_what_it_is(split, tmp_path, has, missing):
    """In a real one each part finds the functions of those it needs."""
    source = "".join(
        f'__attribute__((visibility("default"))) long {name}(void) {{ return 92800; }}' for name in has.split()
    )
    name = "libcudnn_ops.so.9"
    part = compiled(source, linked(split(), tmp_path / "whole") / name, f"-Wl,-soname,{name}")
    out = python(LOAD, CTCBIND_CUDNN=str(part))
    assert f"{part} has no {missing}: it is a part of cuDNN; name libcudnn.so.9 beside it" in out


@linux
def test_a_single_file_holds_everything(tmp_path):
    try:
        path = build(tmp_path)
    except NoCompilerError as error:
        pytest.skip(str(error))
    assert python(LOAD, CTCBIND_CUDNN=str(path)).startswith(f"92800 {path}")


@linux
def test_a_broken_installation_is_passed_over_as_long_as_nothing_of_it_is_loaded(split, tmp_path):
    """Its first part does not load: the next place is tried. A later part does not: it stays, and nothing is."""

    def load_with_wheel(folder):
        before = f"""
            from ctcbind.bindings import find
            find._wheel_folders = lambda *names: [{str(folder)!r}]
        """
        return python(textwrap.dedent(before) + textwrap.dedent(LOAD), CUDNN_PATH=str(split()))

    first = linked(split(), tmp_path / "first")
    (first / "libcudnn_graph.so.9").write_bytes(b"no library")
    assert load_with_wheel(first).startswith(f"92800 {split()}/libcudnn.so.9")
    out = load_with_wheel(linked(split(), tmp_path / "second", without=("_adv.",)))
    assert out.startswith("UNAVAILABLE")
    assert "libcudnn_adv.so.9 is missing" in out
    assert "nothing else was tried" in out


@linux
def test_a_second_cudnn_is_refused(split, tmp_path):
    """Whatever its path, its calls would go to the parts of the first (seen with 9.0.0 loaded before 9.28)."""
    other = linked(split(), tmp_path / "other")
    before = f"""
        import ctypes
        kept = [ctypes.CDLL({str(split())!r} + "/libcudnn" + part + ".so.9") for part in ("_graph", "_ops", "_adv", "")]
    """
    out = python(textwrap.dedent(before) + textwrap.dedent(LOAD), CTCBIND_CUDNN=str(other))
    assert out.startswith("UNAVAILABLE")
    assert "already holds" in out
    out = python(textwrap.dedent(before) + textwrap.dedent(LOAD))
    assert out.startswith(f"92800 {split()}/libcudnn.so.9\nloaded in the process")


@linux
def test_a_main_file_that_was_loaded_and_never_called(split):
    """It has loaded no part yet: they are loaded from beside it."""
    before = f"""
        import ctypes
        kept = ctypes.CDLL({str(split())!r} + "/libcudnn.so.9")
    """
    out = python(textwrap.dedent(before) + textwrap.dedent(LOAD))
    assert out.startswith(f"92800 {split()}/libcudnn.so.9\nloaded in the process")


@linux
def test_an_error_of_loading_can_be_repaired_and_tried_again(split, tmp_path):
    script = f"""
        import os
        from ctcbind.bindings import cudnn
        from ctcbind.errors import EngineUnavailable
        os.environ["CTCBIND_CUDNN"] = {str(tmp_path / "gone")!r}
        for _ in range(2):
            try:
                cudnn.load()
            except EngineUnavailable:
                print("no")
        os.environ["CTCBIND_CUDNN"] = {str(split())!r}
        print(cudnn.cudnnGetVersion())
        os.environ["CTCBIND_CUDNN"] = {str(tmp_path / "gone")!r}
        print(cudnn.cudnnGetVersion())
    """
    assert python(script).split() == ["no", "no", "92800", "92800"]


@linux
def test_eight_threads_load_it_once(split):
    script = """
        import threading
        from ctcbind.bindings import cudnn
        seen = []
        threads = [threading.Thread(target=lambda: seen.append(cudnn.load())) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(len(seen), len(set(map(id, seen))))
    """
    assert python(script, CTCBIND_CUDNN=str(split())).split() == ["8", "1"]


@pytest.mark.parametrize("generation", [8, 9])
@pytest.mark.parametrize(
    ("platform", "main", "parts"),
    [
        ("linux", "libcudnn.so.{}", "libcudnn_{}.so.{}"),
        ("darwin", "libcudnn.{}.dylib", "libcudnn_{}.{}.dylib"),
        ("win32", "cudnn64_{}.dll", "cudnn_{}64_{}.dll"),
    ],
)
def test_the_parts_of_a_main_file_are_of_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, main: str, parts: str, generation: int
) -> None:
    monkeypatch.setattr(cudnn_library.sys, "platform", platform)
    path = str(tmp_path / main.format(generation))
    for of, names in cudnn_library._PARTS.items():
        (tmp_path / parts.format(names[-1], of)).touch()
    right = [parts.format(part, generation) for part in cudnn_library._PARTS[generation]]
    assert cudnn_library._parts_beside(path) == (str(tmp_path), right)
