"""Each example runs by itself, and prints the numbers that its text speaks of."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_cudnn
import fake_cupy
import numpy as np
import pytest

import ctcbind

KERNELS = Path(__file__).resolve().parent / "cuda"
FOLDER = Path(__file__).resolve().parent.parent / "examples"


def output(name, tmp_path, environment=None):
    result = subprocess.run(
        [sys.executable, "-W", "error", str(FOLDER / name)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.fixture
def stand_in(tmp_path):
    """The environment of a process that finds a CuPy and a libcudnn, both of which work on host memory."""
    try:
        library = fake_cudnn.build(tmp_path)
    except fake_cudnn.NoCompilerError as error:
        pytest.skip(str(error))
    folder = tmp_path / "packages"
    folder.mkdir()
    shutil.copy(fake_cupy.__file__, folder / "cupy.py")
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "CTCBIND_CUDNN": str(library), "PYTHONPATH": path, "FAKE_CUPY_KERNELS": str(KERNELS)}


def numbers(line):
    return [float(text) for text in re.findall(r"(?<![\w.])-?\d+\.\d+(?:e[+-]\d+)?", line)]


def test_every_example_is_tested():
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in text for path in FOLDER.glob("*.py"))


def test_first_loss(tmp_path):
    name = "01_first_loss.py"
    before, after = (numbers(line) for line in output(name, tmp_path).splitlines())
    logits = np.random.default_rng(0).normal(size=(12, 2, 5)).astype(np.float32)
    right = ctcbind.ctc_loss(logits, [[1, 2, 2, 3], [4]], engine="reference")
    assert before == pytest.approx(right.tolist(), abs=2e-4)
    assert all(later < earlier for earlier, later in zip(before, after))
    lines = (FOLDER / name).read_text(encoding="utf-8").split('"""')[2].splitlines()
    assert len([line for line in lines if line.strip()]) <= 10


def test_cudnn_c_example(tmp_path):
    out = output("02_cudnn_c_example.py", tmp_path)
    costs = next(line for line in out.splitlines() if line.startswith("costs:"))
    assert costs == "costs: " + " ".join(["203.984"] * 5)
    first_frame = numbers(next(line for line in out.splitlines() if line.startswith("gradient of sample 0")))
    # y - occupancy: at the first frame a path may begin with the blank or with label 1 only
    assert first_frame == pytest.approx([-0.8231, 0.0231, *[0.1] * 8], abs=2e-4)
    assert numbers(out.splitlines()[-1])[0] < 1e-4


@pytest.mark.gpu
def test_cudnn_c_example_on_the_device(tmp_path):
    assert output("02_cudnn_c_example.py", tmp_path).startswith("cuDNN ")


def test_cudnn_c_example_makes_the_calls_of_the_c_program(tmp_path, stand_in):
    out = output("02_cudnn_c_example.py", tmp_path, stand_in).splitlines()
    assert out[0] == "cuDNN 92800"
    assert out[1] == "costs: " + " ".join(["203.984"] * 5)
    assert numbers(out[2])[:2] == pytest.approx([-0.8231, 0.0231], abs=2e-4)


def test_compare_engines(tmp_path):
    check_compare_engines(output("03_compare_engines.py", tmp_path))


def test_compare_engines_with_cudnn_calls(tmp_path, stand_in):
    out = output("03_compare_engines.py", tmp_path, stand_in)
    assert "(cuDNN: cuDNN 92800)" in out
    check_compare_engines(out)


def check_compare_engines(out):
    first, logits_to_none, twice, wrong_gradient = (out.split(f"\n{n}. ")[1].split("\n\n")[0] for n in (1, 2, 3, 4))

    rows = {line[2:40].strip(): numbers(line[40:]) for line in first.splitlines()[1:] if numbers(line[40:])}
    assert {"native, activations", "cuDNN SOFTMAX, activations", "cuDNN NONE, probabilities"} <= set(rows)
    for name, (*losses, apart) in rows.items():
        assert losses == pytest.approx(rows["native, activations"][:3], abs=2e-3), name
        assert apart < 1e-4, name
    if ctcbind.engines()["warpctc"].available:
        assert "warp-ctc, activations" in rows
    else:
        assert "pip install --no-deps paddlepaddle" in first

    *losses, apart = numbers(logits_to_none.splitlines()[1][40:])
    assert apart > 0.1
    if "in NumPy" in first:
        assert all(loss < 0 for loss in losses)
    uniform = ctcbind.ctc_loss(np.zeros((20, 3, 6)), [[1, 2, 2, 3], [5, 4], [1, 1, 1]])
    assert numbers(twice.splitlines()[1][40:])[:3] == pytest.approx(uniform.tolist(), rel=0.1)
    assert numbers(twice.splitlines()[2][40:]) == pytest.approx(uniform.tolist(), abs=1e-3)
    assert numbers(twice.splitlines()[-1])[-1] > 10

    activation, probability, returned, chained = (numbers(line)[-1] for line in wrong_gradient.splitlines()[2:6])
    assert returned == pytest.approx(activation, abs=2e-3)
    assert abs(returned - probability) > 0.5
    assert abs(chained) < abs(returned) / 2


def test_curvature_step(tmp_path):
    head, *rows = output("04_curvature_step.py", tmp_path).splitlines()
    assert head.split() == ["step", "size", "0.1", "size", "1.0", "curvature"]
    table = np.array([numbers(row) for row in rows])
    assert len(set(table[0])) == 1
    assert (np.diff(table[:, 2]) <= 0).all()
    assert table[1, 2] < table[1, :2].min() / 10
    assert table[-1, 2] < 1e-3 < table[-1, :2].min()


def test_delay_penalty(tmp_path):
    means = [
        float(re.search(r"mean ([\d.]+)", line).group(1))
        for line in output("05_delay_penalty.py", tmp_path).splitlines()
    ]
    assert len(means) == 3
    assert means == sorted(means, reverse=True)
    assert means[-1] < means[0] / 2


def test_label_priors(tmp_path):
    rows = [numbers(line) for line in output("06_label_priors.py", tmp_path).splitlines()]
    held, off, errors = ([row[i] for row in rows] for i in (1, 2, 3))
    assert held == sorted(held)
    assert held[-1] > 3 * held[0]
    assert off == sorted(off, reverse=True)
    assert max(errors) < 0.05


def test_partial_alignment(tmp_path):
    free, held, outside = output("07_partial_alignment.py", tmp_path).splitlines()
    spans = [[tuple(map(int, span)) for span in re.findall(r"(\d+)-(\d+)", line)] for line in (free, held)]
    assert spans[0] != spans[1]
    assert spans[1][1][0] >= 20
    assert spans[1][1][1] <= 24
    assert spans[1][2][0] >= 30
    assert numbers(held)[0] > numbers(free)[0]  # fewer paths are left
    assert numbers(outside) == [0.0]


def test_missing_ends(tmp_path):
    share, everything, written, between = output("09_missing_ends.py", tmp_path).splitlines()
    assert 0.5 < float(re.match(r"(\d+)%", share).group(1)) / 100 < 0.7
    errors = [numbers(line)[0] for line in (everything, written, between)]
    assert errors[0] == 0
    assert errors[2] < 0.1 < 0.3 < errors[1]


def test_align_and_decode(tmp_path):
    lines = output("08_align_and_decode.py", tmp_path).splitlines()
    (greedy_cer, greedy_wer), _, (cer, wer) = (numbers(line) for line in lines[:3])
    assert cer < greedy_cer / 2
    assert wer < greedy_wer / 2
    times = [numbers(line) for line in lines[3:]]
    assert [line.split()[-1] for line in lines[3:]] == lines[2].split("'")[1].split()
    assert [line.split()[-1] for line in lines[3:6]] == ["the", "cat", "ate"]
    flat = [time for pair in times for time in pair]
    assert flat == sorted(flat)


def test_the_command_compares_and_tests_a_device_engine(tmp_path, stand_in):
    """Beside the examples, since it shares their stand-in: compare carries the batch to the device, doctor tests it."""
    for command, engines in (("compare", "comparisons"), ("doctor", "engines")):
        result = subprocess.run(
            [sys.executable, "-m", "ctcbind", command, "--json"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=stand_in,
            timeout=120,
        )
        assert (result.returncode, result.stderr) == (0, "")
        told = json.loads(result.stdout)[engines]
        if command == "compare":
            rows = [next(row for row in each["rows"] if row["engine"] == "cudnn") for each in told]
            assert [row["status"] for row in rows] == ["agrees", "agrees"]
            assert rows[0]["device"].startswith("cuda:0 ")
            assert rows[0]["losses"] == pytest.approx([203.984] * 5, abs=1e-3)
        else:
            assert told["cudnn"]["available"]
            checks = [check for check in json.loads(result.stdout)["checks"] if check["engine"] == "cudnn"]
            assert checks
            assert all(check["passed"] for check in checks)
