"""Pytest fixtures that put a fake libcudnn in the place of the real one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctcbind.bindings import cudnn_library

from . import FakeCudnn, NoCompilerError, build


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
        fake = built_fake(9 if version >= 90000 else 8)
        fake.reset(version)
        monkeypatch.setenv("CTCBIND_CUDNN", str(fake.path))
        cudnn_library._forget()
        cudnn_library.load()
        fake.reset(version)  # what the loader called is not the test's
        used.append(fake)
        return fake

    yield use
    if any(any(fake.live.values()) for fake in used):
        gc.collect()
    cudnn_library._forget()
    for fake in used:
        left = fake.live
        assert not any(left.values()), f"left alive: {left}"


@pytest.fixture
def fake(use_fake: Callable[[int], FakeCudnn]) -> FakeCudnn:
    """A fake cuDNN 9.28."""
    return use_fake(92800)
