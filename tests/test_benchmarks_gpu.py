"""`python -m benchmarks gpu`: its code, on stand-ins that work on host memory. Its numbers mean nothing here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest_plugins = ["fake_cudnn.fixture"]

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmarks(monkeypatch):
    if not (ROOT / "benchmarks").is_dir():
        pytest.skip("no checkout around these tests")
    monkeypatch.syspath_prepend(str(ROOT))
    import benchmarks.__main__ as main
    from benchmarks import gpu

    return main.main, gpu


def test_without_a_device_it_says_so_and_measures_nothing(benchmarks, monkeypatch, capsys):
    main, _ = benchmarks
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert main(["gpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no CuPy" in err
    assert "nothing was measured" in err


def test_a_cupy_without_a_device(benchmarks, device, monkeypatch, capsys):
    import fake_cupy

    main, _ = benchmarks
    for count in (0, -1):
        monkeypatch.setattr(fake_cupy, "device_count", count)
        assert main(["gpu", "--quick"]) == 2
        assert "there is no CUDA device, and nothing was measured" in capsys.readouterr().err


def test_the_table(benchmarks, device, capsys, tmp_path):
    main, gpu = benchmarks
    assert main(["gpu", "--quick", "--json", str(tmp_path / "gpu.json")]) == 0
    out = capsys.readouterr().out
    told = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert told["device"] == "a stand-in"
    assert told["versions"]["cudnn"] == "9.28.0"
    rows = {(row["case"], row["peer"]): row for row in told["rows"]}
    assert len(rows) == 2 * len(gpu.PEERS)
    for (case, peer), row in rows.items():
        assert f"| {case} | {peer} |" in out
        if peer in ("torch", "warpctc"):
            continue  # there or not, they are no stand-in's
        assert row["absent"] is None
        assert row["milliseconds"] > 0
        assert row["bandwidth"] > 0
        assert row["loss_off"] < 1e-5
        assert row["gradient_off"] < 1e-5
        assert row["ratio"] == 1 if peer == "cuda" else row["ratio"] > 0
    assert rows["tiny", "torch"]["absent"]
    calls = set(device.calls)
    assert {"cudnnCTCLoss", "cudnnCTCLoss_v8"} <= calls


def test_the_sizes_are_those_promised(benchmarks):
    _, gpu = benchmarks
    from benchmarks.cases import CASES

    sizes = {(c.T, c.L, c.C, c.N) for c in CASES if c.name in gpu.NAMES}
    wanted = {(150, 40, 28, n) for n in (1, 16, 64, 128)} | {(150, 20, 5000, n) for n in (1, 16, 64, 128)}
    assert sizes == wanted | {(64, 8, 11, 64), (1000, 200, 32, 16), (500, 60, 1024, 32), (4000, 800, 64, 4)}


def test_a_size_that_is_not_known(benchmarks, device, capsys):
    main, _ = benchmarks
    assert main(["gpu", "--sizes", "huge"]) == 2
    assert "there is no size 'huge'" in capsys.readouterr().err
