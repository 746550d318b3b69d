"""The kernels on AVX-512, run on any processor with AVX2: tests/csrc/lanes.h does lane by lane what they ask for.

AddressSanitizer sees there what loads and stores under a mask touch, as it does not where the processor does them.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from batches import SEED
from test_csrc import cannot

from ctcbind.bindings.native import instruction_set

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "csrc"))
import problems  # noqa: E402

CSRC, TESTS = ROOT / "csrc", ROOT / "tests" / "csrc"
FLAGS = [
    "-std=c11", "-O1", "-g", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-pthread", "-Wno-psabi",
    "-fsanitize=address",
]  # fmt: skip


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """tests/csrc/driver.c, with kernels for AVX-512 that the processor needs AVX2 for."""
    if platform.machine() not in ("x86_64", "AMD64") or not sys.platform.startswith("linux"):
        pytest.skip("instructions of another processor")
    if instruction_set() not in ("avx512", "avx2"):
        pytest.skip("AVX2 is needed")
    room = tmp_path_factory.mktemp("lanes")
    if (why := cannot("gcc", "address", room)) is not None:
        pytest.skip(why)
    vectors = re.sub(r"_mm512_|_mm256_(?=mask)", "lanes_", (CSRC / "vec_avx512.h").read_text("utf-8"))
    kernel = (CSRC / "kernel_avx512.c").read_text("utf-8").replace("avx512f,avx512bw,avx512dq,avx512vl,", "")
    assert vectors.count("lanes_") > 100
    (room / "vec_avx512.h").write_text('#include "lanes.h"\n' + vectors, "utf-8")
    (room / "kernel_avx512.c").write_text(re.sub(r'supports\("avx512\w+"\)', 'supports("avx2")', kernel), "utf-8")
    sources = [path for path in sorted(CSRC.glob("*.c")) if path.name != "kernel_avx512.c"]
    jobs = []
    for source in [*sources, room / "kernel_avx512.c", TESTS / "driver.c"]:
        command = ["gcc", *FLAGS, f"-I{CSRC}", f"-I{TESTS}", "-c", str(source), "-o", str(room / f"{source.stem}.o")]
        jobs.append((source, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
    for source, job in jobs:
        message = job.communicate()[1]
        assert job.returncode == 0, f"{source.name}: {message}"
    made = [str(room / f"{source.stem}.o") for source, _ in jobs]
    subprocess.run(["gcc", *FLAGS, *made, "-o", str(room / "driver"), "-lm"], check=True)
    return room / "driver"


def test_every_problem_by_lanes(driver, tmp_path):
    """What the installed engine gives, within its accuracy."""
    made = list(problems.all_problems(SEED))
    (tmp_path / "problems").write_bytes(b"".join(problem.to_bytes() for problem in made))
    command = [str(driver), str(tmp_path / "problems"), str(tmp_path / "results")]
    environment = {**os.environ, "CTCBIND_ISA": "avx512", "ASAN_OPTIONS": "detect_leaks=1:exitcode=99"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, ""), f"seed {SEED}: {done.stderr[:4000]}"
    found, results = problems.read_results(made, (tmp_path / "results").read_bytes())
    assert found == "avx512"
    for i, (problem, (status, got)) in enumerate(zip(made, results, strict=True)):
        where = f"problem {i}, seed {SEED}: {problem.shape} {problems.DTYPES[problem.dtype]}"
        assert status == 0, where
        why = problems.compare(problem, got, problem.run())
        assert why is None, f"{where}: {why}"
