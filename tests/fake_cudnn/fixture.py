"""Pytest fixtures that put a fake libcudnn, and a CuPy on host memory, in the place of the real ones."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_cupy
import pytest
from fake_device import release

from ctcbind.bindings import cudnn_library

from . import FakeCudnn, NoCompilerError, build, build_split, unload


@pytest.fixture(scope="session")
def built_fake(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], FakeCudnn]:
    """The fake of a generation (8 or 9), compiled once."""
    made: dict[int, FakeCudnn] = {}
    folder: Path = tmp_path_factory.mktemp("fake_cudnn")

    def get(generation: int) -> FakeCudnn:
        if generation not in made:
            try:
                made[generation] = FakeCudnn(build(folder, generation))
            except NoCompilerError as error:
                pytest.skip(f"the fake libcudnn cannot be compiled: {error}")
        return made[generation]

    return get


@pytest.fixture
def use_fake(
    built_fake: Callable[[int], FakeCudnn], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], FakeCudnn]]:
    """use_fake(version) makes ctcbind's cuDNN a fake of that version (8500, 90100, 92800, ...), until the end of the
    test; what the test leaves alive is then an error."""
    used: list[FakeCudnn] = []

    def use(version: int = 92800) -> FakeCudnn:
        release()
        fake = built_fake(9 if version >= 90000 else 8)
        fake.reset(version)
        monkeypatch.setenv("CTCBIND_CUDNN", str(fake.path))
        unload()
        cudnn_library.load()
        fake.reset(version)  # what the loader called is not the test's
        used.append(fake)
        return fake

    yield use
    release()
    if any(any(fake.live.values()) for fake in used):
        gc.collect()
    unload()
    for fake in used:
        left = fake.live
        assert not any(left.values()), f"left alive: {left}"


@pytest.fixture
def fake(use_fake: Callable[[int], FakeCudnn]) -> FakeCudnn:
    """A fake cuDNN 9.28."""
    return use_fake(92800)


@pytest.fixture
def use_device(
    use_fake: Callable[[int], FakeCudnn], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], FakeCudnn]]:
    """use_device(version) gives a machine with one device and that cuDNN; at the end of the test nothing may be
    alive, and nothing may have been sent that a real cuDNN reads outside its buffers for."""
    used: list[FakeCudnn] = []
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    monkeypatch.setattr(fake_cupy, "device_count", 1)
    fake_cupy.synchronized.clear()

    def use(version: int = 92800) -> FakeCudnn:
        used.append(use_fake(version))
        return used[-1]

    yield use
    for fake in used:
        assert (fake.hazards, fake.stray, fake.poisoned) == (0, 0, False)


@pytest.fixture
def device(use_device: Callable[[int], FakeCudnn]) -> FakeCudnn:
    """The fake cuDNN 9.28 of a machine with one device."""
    return use_device(92800)


@pytest.fixture(scope="session")
def split(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """split(generation): the folder of a whole installation, the fake in its several files."""
    made: dict[int, Path] = {}

    def get(generation: int = 9) -> Path:
        if generation not in made:
            folder = tmp_path_factory.mktemp(f"split{generation}")
            try:
                build_split(folder, generation)
            except NoCompilerError as error:
                pytest.skip(str(error))
            made[generation] = folder
        return made[generation]

    return get
