"""Where libraries are looked for, in which order, and what is said when there is none."""

from __future__ import annotations

import importlib
import os
import shutil
import struct
import sys
import sysconfig
from pathlib import Path

import pytest
from libraries import VARIABLES, compiled, linux, python

from ctcbind.bindings import cudnn_library, find
from ctcbind.errors import EngineUnavailable

pytest_plugins = ["fake_cudnn.fixture"]


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """A machine with nothing on it, whatever this one has."""
    importlib.import_module("ctcbind.bindings._warpctc")  # while cffi can be found
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(each, "lib-dynload") for each in standard}
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [str(site), *(each for each in sys.path if each in standard)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    for name in ("nvidia", "paddle"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    monkeypatch.setattr(find, "_LD_SO_CONF", str(tmp_path / "ld.so.conf"))
    monkeypatch.setattr(find, "_SYSTEM_FOLDERS", ())
    monkeypatch.setattr(find.sysconfig, "get_config_var", lambda name: None)
    monkeypatch.setattr(find, "_mapped", lambda pattern: [])
    monkeypatch.setattr(find, "_opened", {})
    return tmp_path


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return path


def wheel(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


# --- nothing there ------------------------------------------------------------------------------------------


def test_nothing_found_names_every_place_and_the_command_that_helps(bare):
    with pytest.raises(EngineUnavailable) as caught:
        find.find_cudnn()
    message = str(caught.value)
    for place in ("the process", "pip wheels", "conda", "CUDNN_PATH", "CUDA_HOME", "CUDA_PATH", "the system"):
        assert f"\n  - {place}: " in message
    assert "pip install nvidia-cudnn-cu12" in message
    assert "CTCBIND_CUDNN" in message


def test_no_warp_ctc_names_every_place_and_the_command_that_helps(bare):
    with pytest.raises(EngineUnavailable) as caught:
        find.find_warpctc()
    message = str(caught.value)
    for place in ("the process", "pip wheels", "conda", "WARP_CTC_PATH", "the system"):
        assert f"\n  - {place}: " in message
    assert "pip install --no-deps paddlepaddle" in message
    assert "CTCBIND_WARPCTC" in message


# --- the override -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "search", "name"),
    [
        ("CTCBIND_CUDNN", find.find_cudnn, "libcudnn.so.9"),
        ("CTCBIND_CUDNN", find.find_cudnn, "whatever.so"),
    ],
)
def test_the_override_comes_first(bare, monkeypatch, variable, search, name):
    put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    mine = put(bare / "mine" / name)
    monkeypatch.setenv(variable, str(mine))
    assert search() == find.Found(str(mine), variable)


def test_the_override_may_be_a_folder(bare, monkeypatch):
    mine = put(bare / "mine/libcudnn.so.8")
    monkeypatch.setenv("CTCBIND_CUDNN", str(mine.parent))
    assert find.find_cudnn().path == str(mine)


@pytest.mark.parametrize(
    ("variable", "search"), [("CTCBIND_CUDNN", find.find_cudnn), ("CTCBIND_WARPCTC", find.find_warpctc)]
)
@pytest.mark.parametrize("value", ["nowhere/lib.so", "empty", "libcudnn.so.9"])
def test_the_override_never_falls_back(bare, monkeypatch, variable, search, value):
    put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    put(bare / "site/paddle/libs/libwarpctc.so")
    (bare / "empty").mkdir()
    given = str(bare / value) if "/" in value or value == "empty" else value
    monkeypatch.setenv(variable, given)
    with pytest.raises(EngineUnavailable) as caught:
        search()
    first, last = str(caught.value).split("\n")
    assert f"library could be used: {variable}={given}: " in first
    assert last.startswith(f"Nothing else is tried while {variable} is set: unset it")
    assert "site" not in str(caught.value)
    assert "pip install" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "search"), [("CTCBIND_CUDNN", find.find_cudnn), ("CTCBIND_WARPCTC", find.find_warpctc)]
)
def test_an_empty_override_names_every_place(bare, monkeypatch, variable, search):
    monkeypatch.setenv(variable, "")
    with pytest.raises(EngineUnavailable, match="\n  - the system: "):
        search()


def test_the_path_of_an_override_outlives_a_change_of_folder(bare, monkeypatch):
    mine = put(bare / "mine/libcudnn.so.9")
    monkeypatch.chdir(bare)
    monkeypatch.setenv("CTCBIND_CUDNN", "mine")
    assert find.find_cudnn().path == str(mine)


def test_an_empty_override_is_none(bare, monkeypatch):
    monkeypatch.setenv("CTCBIND_CUDNN", "")
    path = put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    assert find.find_cudnn().path == str(path)


# --- the places ---------------------------------------------------------------------------------------------

PLACES = {
    "pip wheels": (None, "site/nvidia/cudnn/lib", "site/nvidia/cudnn/lib"),
    "conda": ("CONDA_PREFIX", "conda", "conda/lib"),
    "CUDNN_PATH": ("CUDNN_PATH", "cudnn", "cudnn/lib64"),
    "CUDA_HOME": ("CUDA_HOME", "cuda", "cuda/lib"),
    "CUDA_PATH": ("CUDA_PATH", "cudapath", "cudapath/lib64"),
    "the system": ("LD_LIBRARY_PATH", "ld", "ld"),
}


@pytest.mark.parametrize("how", PLACES)
def test_each_place_alone(bare, monkeypatch, how):
    variable, value, folder = PLACES[how]
    if variable:
        monkeypatch.setenv(variable, str(bare / value))
    path = put(bare / folder / "libcudnn.so.9")
    found = find.find_cudnn()
    assert found.path == str(path)
    assert found.how.startswith(how)
    assert str(path.parent) in found.how
    before = list(PLACES)[: list(PLACES).index(how)]
    assert [reason.partition(":")[0] for reason in found.tried] == ["the process", *before]


def test_the_places_in_order(bare, monkeypatch):
    paths = []
    for variable, value, folder in PLACES.values():
        if variable:
            monkeypatch.setenv(variable, str(bare / value))
        paths.append(str(put(bare / folder / "libcudnn.so.9")))
    assert [found.path for found in find.cudnn_candidates([])] == paths


def test_nine_comes_before_eight(bare):
    folder = bare / "site/nvidia/cudnn/lib"
    eight = put(folder / "libcudnn.so.8")
    assert find.find_cudnn().path == str(eight)
    nine = put(folder / "libcudnn.so.9")
    assert find.find_cudnn().path == str(nine)


@pytest.mark.parametrize("name", ["nvidia-cudnn-cu11", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"])
def test_the_wheel_is_named(bare, name):
    put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    wheel(bare / "site", name, "9.28.0.42")
    assert find.find_cudnn().how == f"pip wheel {name} 9.28.0.42"


def test_a_wheel_elsewhere_lends_no_name(bare, monkeypatch):
    """Two site folders, the libraries in the second, the record in the first."""
    second = bare / "second"
    put(second / "nvidia/cudnn/lib/libcudnn.so.9")
    wheel(bare / "site", "nvidia-cudnn-cu12", "9.0.0")
    monkeypatch.setattr(sys, "path", [str(bare / "site"), str(second)])
    importlib.invalidate_caches()
    assert find.find_cudnn().how == f"pip wheels ({second / 'nvidia/cudnn/lib'})"


@pytest.mark.parametrize("package", ["nvidia", "paddle"])
def test_nothing_is_imported_to_look(bare, package):
    init = bare / "site" / package / "__init__.py"
    put(init).write_text("raise AssertionError('imported')", encoding="utf-8")
    put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    if package == "nvidia":
        assert find.find_cudnn()
    else:
        with pytest.raises(EngineUnavailable):
            find.find_warpctc()
    assert package not in sys.modules


def test_a_package_without_a_spec_is_a_reason(bare, monkeypatch):
    module = type(sys)("nvidia")
    monkeypatch.setitem(sys.modules, "nvidia", module)
    with pytest.raises(EngineUnavailable, match="looking for the package nvidia failed"):
        find.find_cudnn()


def test_conda_without_activation(bare):
    (bare / "prefix/conda-meta").mkdir(parents=True)
    path = put(bare / "prefix/lib/libcudnn.so.9")
    assert find.find_cudnn().path == str(path)


def test_ld_so_conf_and_its_includes(bare):
    conf = bare / "ld.so.conf"
    conf.write_text("# a comment\ninclude conf.d/*.conf\nrelative\n", encoding="utf-8")
    put(bare / "conf.d/cuda.conf").write_text(f"{bare}/cuda  # here\n{bare}/gone\n", encoding="utf-8")
    put(bare / "conf.d/loop.conf").write_text(f"include {conf}\n", encoding="utf-8")
    path = put(bare / "cuda/libcudnn.so.9")
    found = find.find_cudnn()
    assert found.path == str(path)
    assert found.how == f"the system ({bare}/cuda)"


def test_windows_looks_in_its_path_and_where_nvidia_installs_the_newest_first(bare, monkeypatch):
    beside = bare / "beside"
    places = "9.23/bin/13.0/x64", "9.23/bin/13.0", "9.23/bin/12.9", "9.23/bin", "9.10/bin", "9.9/bin", "8.9/bin"
    folders = [bare / "NVIDIA/CUDNN" / f"v{place}" for place in places]
    for each in (beside, *reversed(folders)):
        each.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(find.sys, "platform", "win32")
    monkeypatch.setenv("PATH", os.pathsep.join([str(bare / "gone"), "", str(beside)]))
    monkeypatch.setenv("ProgramFiles", str(bare))
    assert find._loader_folders() == [str(each) for each in (beside, *folders)]


# --- the process --------------------------------------------------------------------------------------------


def test_one_that_is_loaded_is_used_and_no_other(bare, monkeypatch):
    loaded = put(bare / "torch/libcudnn.so.9")
    put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    monkeypatch.setattr(find, "_mapped", lambda pattern: [str(bare / "torch/libcudnn_graph.so.9"), str(loaded)])
    tried: list[str] = []
    assert [found.path for found in find.cudnn_candidates(tried)] == [str(loaded)]
    assert find.find_cudnn().how == "loaded in the process"
    assert "no other cuDNN was tried" in tried[-1]


def test_the_main_file_that_is_loaded_comes_before_one_beside_a_part(bare, monkeypatch):
    mine = put(bare / "mine/libcudnn.so.9")
    put(bare / "torch/libcudnn.so.9")
    monkeypatch.setattr(find, "_mapped", lambda pattern: [str(bare / "torch/libcudnn_graph.so.9"), str(mine)])
    assert [found.path for found in find.cudnn_candidates([])] == [str(mine)]


def test_the_main_file_of_loaded_parts(bare, monkeypatch):
    main = put(bare / "torch/libcudnn.so.9")
    monkeypatch.setattr(find, "_mapped", lambda pattern: [str(bare / "torch/libcudnn_graph.so.9.1.0")])
    assert find.find_cudnn().path == str(main)


def test_what_we_opened_is_reported_as_it_was_found(bare, monkeypatch):
    path = put(bare / "site/nvidia/cudnn/lib/libcudnn.so.9")
    first = find.find_cudnn()
    find.remember(first)
    monkeypatch.setattr(find, "_mapped", lambda pattern: [str(path)])
    assert find.find_cudnn() is first


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux lists what a process has mapped")
def test_the_maps_of_a_process(tmp_path):
    library = compiled("int here;", tmp_path / "a folder" / "libcudnn_graph.so.9")
    script = f"""
        import ctypes
        from ctcbind.bindings import find
        print(find.loaded_cudnn())
        ctypes.CDLL({str(library)!r})
        print(find.loaded_cudnn())
    """
    assert python(script).split("\n")[:2] == ["[]", str([str(library)])]


@linux
def test_the_maps_of_a_process_whose_libraries_were_replaced(tmp_path):
    """As pip does; and the name of a folder need be no UTF-8."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    os.mkdir(folder)
    library = compiled("int here;", tmp_path / "libcudnn.so.9")
    shutil.copy(library, other := os.path.join(folder, "libcudnn_graph.so.9"))
    script = f"""
        import ctypes, os
        from ctcbind.bindings import find
        for each in ({str(library)!r}, {other!r}):
            ctypes.CDLL(each)
        os.unlink({str(library)!r})
        print(sorted(find.loaded_cudnn()) == sorted([{str(library)!r}, {other!r}]))
    """
    assert python(script) == "True\n"


# --- warp-ctc: opened, since only it tells its API version ---------------------------------------------------


def warpctc(path: Path, version: int = 2) -> Path:
    source = f'__attribute__((visibility("default"))) int get_warpctc_version(void) {{ return {version}; }}'
    return compiled(source, path)


def test_warp_ctc_in_the_wheel_of_paddle(bare):
    path = warpctc(bare / "site/paddle/libs/libwarpctc.so")
    wheel(bare / "site", "paddlepaddle", "3.3.1")
    found = find.find_warpctc()
    assert (found.path, found.how) == (str(path), "pip wheel paddlepaddle 3.3.1")
    assert "paddle" not in sys.modules


def test_a_warp_ctc_that_we_opened_is_reported_as_it_was_found(bare, monkeypatch):
    path = warpctc(bare / "site/paddle/libs/libwarpctc.so")
    first = find.find_warpctc()
    monkeypatch.setattr(find, "_mapped", lambda pattern: [str(path)])
    assert find.find_warpctc() is first


@pytest.mark.parametrize("variable", ["CTCBIND_WARPCTC", "CONDA_PREFIX", "WARP_CTC_PATH", "LD_LIBRARY_PATH"])
def test_warp_ctc_in_other_places(bare, monkeypatch, variable):
    path = warpctc(bare / "here" / ("lib/libwarpctc.so" if variable == "CONDA_PREFIX" else "libwarpctc.so"))
    monkeypatch.setenv(variable, str(bare / "here"))
    assert find.find_warpctc().path == str(path)


def test_an_unusable_warp_ctc_is_a_reason_and_the_next_is_taken(bare, monkeypatch):
    old = warpctc(bare / "site/paddle/libs/libwarpctc.so", version=1)
    broken = put(bare / "conda/lib/libwarpctc.so")
    other = compiled("int something_else;", bare / "path/libwarpctc.so")
    good = warpctc(bare / "ld/libwarpctc.so")
    monkeypatch.setenv("CONDA_PREFIX", str(bare / "conda"))
    monkeypatch.setenv("WARP_CTC_PATH", str(bare / "path"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(bare / "ld"))
    found = find.find_warpctc()
    assert found.path == str(good)
    reasons = "\n".join(found.tried)
    assert f"{old} has API version 1, and version 2 is needed" in reasons
    assert f"{broken} could not be loaded" in reasons
    assert f"{other} has no get_warpctc_version" in reasons


@linux
def test_a_library_that_was_cut_off_is_a_reason(bare, monkeypatch, tmp_path):
    """To open one is to die of SIGBUS."""
    whole = warpctc(tmp_path / "whole.so").read_bytes()
    cut = tmp_path / "cut.so"
    monkeypatch.setenv("CTCBIND_WARPCTC", str(cut))
    for length in (4097, 8000, len(whole) // 2):
        cut.write_bytes(whole[:length])
        assert find._is_cut_off(str(cut))
        with pytest.raises(EngineUnavailable, match=rf"{cut} was cut off"):
            find.find_warpctc()
    for length in (0, 3, 20, 70):  # which the loader finds out
        cut.write_bytes(whole[:length])
        with pytest.raises(EngineUnavailable, match=rf"{cut} could not be loaded"):
            find.find_warpctc()
    assert not any(map(find._is_cut_off, [str(tmp_path / "whole.so"), sys.executable, __file__, "/nowhere"]))


@linux
def test_a_name_that_is_no_utf_8_is_a_reason(bare, monkeypatch, split):
    folder = os.fsencode(bare) + b"/\xff"
    shutil.copytree(os.fsencode(split()), folder)
    warpctc(bare / "libwarpctc.so").rename(os.fsdecode(folder) + "/libwarpctc.so")
    for variable, load in (("CTCBIND_WARPCTC", find.find_warpctc), ("CTCBIND_CUDNN", cudnn_library._load)):
        monkeypatch.setenv(variable, os.fsdecode(folder))
        with pytest.raises(EngineUnavailable, match=r"/\\udcff/\S+ has a name that is no UTF-8") as caught:
            load()
        str(caught.value).encode()


@linux
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("order", "<>")
def test_every_kind_of_elf_file_is_read(tmp_path, wide, order):
    path, begin = tmp_path / "file", 64
    head = b"\x7fELF" + bytes([1 + wide, 1 if order == "<" else 2])
    table = struct.pack(
        order + ("IIQQQQQQ" if wide else "IIIIIIII"),
        *((1, 5, 100, 0, 0, 28, 0, 0) if wide else (1, 100, 0, 0, 28, 0, 5, 0)),
    )
    fields = struct.pack(order + ("Q14xHH" if wide else "I10xHH"), begin, len(table), 1)
    file = (head.ljust(32 if wide else 28, b"\0") + fields).ljust(begin, b"\0") + table
    for length in (127, 128):
        path.write_bytes(file.ljust(length, b"\0"))
        assert find._is_cut_off(str(path)) == (length == 127)


def test_an_unusable_override_of_warp_ctc_is_an_error(bare, monkeypatch):
    warpctc(bare / "site/paddle/libs/libwarpctc.so")
    old = warpctc(bare / "mine.so", version=1)
    monkeypatch.setenv("CTCBIND_WARPCTC", str(old))
    with pytest.raises(EngineUnavailable, match="API version 1"):
        find.find_warpctc()
