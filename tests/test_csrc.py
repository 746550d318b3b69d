"""csrc/ compiled by itself with every warning an error, under sanitizers, on some hundred problems at the edges.

tests/csrc/driver.c gives each problem arrays and scratch with not one byte to spare; tests/csrc/problems.py makes the
problems. The results are the installed engine's to the bit where both were compiled by GCC on x86-64 (with
contraction off, every -O rounds alike), and within the engine's accuracy elsewhere.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
from batches import SEED

from ctcbind.bindings.native import instruction_set

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "csrc"))
import problems  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="GCC and Clang's flags")

FLAGS = [
    "-std=c11", "-O0", "-g", "-fno-omit-frame-pointer", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-pthread", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all",
]  # fmt: skip
MEMORY, THREADS = "address,undefined,float-cast-overflow", "thread"
HALVED = "-DWORTH_HALVING=0"  #: takes all samples in halves that can be, not only the long ones
#: What it does with large gradients and long samples, with all: writes past the cache, keeps nothing, packs.
LARGE = ["-DWORTH_STREAMING=0", "-DMOST_KEPT=0.0", "-DWORTH_PACKING=0"]
#: Asks at each block whether to stop, however short the call.
ASKING = ["-DWORTH_STOPPING=0", "-DBETWEEN_QUESTIONS=0", "-DSTATES_BETWEEN=0"]
BUILDS = [
    pytest.param("gcc", MEMORY, [], id="gcc-address"),
    pytest.param("gcc", THREADS, [], id="gcc-thread"),
    pytest.param("clang", MEMORY, [], id="clang-address"),
    pytest.param("gcc", MEMORY, [HALVED], id="gcc-address-halved"),
    pytest.param("gcc", THREADS, [HALVED], id="gcc-thread-halved"),
    pytest.param("gcc", MEMORY, LARGE, id="gcc-address-large"),
    pytest.param("gcc", THREADS, [HALVED, *LARGE], id="gcc-thread-halved-large"),
    pytest.param("gcc", MEMORY, ASKING, id="gcc-address-asking"),
    pytest.param("gcc", MEMORY, [HALVED, *LARGE, *ASKING], id="gcc-address-halved-large-asking"),
    pytest.param("gcc", THREADS, ASKING, id="gcc-thread-asking"),
    pytest.param("gcc", THREADS, [HALVED, *ASKING], id="gcc-thread-halved-asking"),
]


@cache
def cannot(compiler: str, sanitizers: str, room: Path) -> str | None:
    """Why this machine cannot build and run a program with these sanitizers; None where it can."""
    if shutil.which(compiler) is None:
        return f"there is no {compiler} here"
    (room / "empty.c").write_text("int main(void) { return 0; }\n")
    command = [compiler, f"-fsanitize={sanitizers}", str(room / "empty.c"), "-o", str(room / "empty")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode:
        return f"{compiler} cannot link -fsanitize={sanitizers}: {built.stderr.strip().splitlines()[-1]}"
    ran = subprocess.run([str(room / "empty")], capture_output=True, text=True, check=False)
    if ran.returncode:
        return f"a program under -fsanitize={sanitizers} does not start here: {ran.stderr.strip()[:200]}"
    return None


@pytest.fixture(scope="module")
def made():
    return list(problems.all_problems(SEED))


@pytest.fixture(scope="module")
def expected(made):
    """What the installed engine makes of the problems, the memory between and behind the results included."""
    return [problem.run() for problem in made]


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """What makes a driver of the sources, which are compiled side by side; each once with the same flags, as most of
    them have nothing to do with `more`."""
    objects = tmp_path_factory.mktemp("objects")

    def build(
        compiler: str,
        sanitizers: str,
        room: Path,
        driver: str = "driver",
        more: Sequence[str] = (),
        link: Sequence[str] = (),
    ) -> Path:
        flags = [*FLAGS, f"-fsanitize={sanitizers}"]
        made, jobs = [], []
        for source in [*sorted((ROOT / "csrc").glob("*.c")), ROOT / "tests" / "csrc" / f"{driver}.c"]:
            about = [*more, f"-I{ROOT / 'csrc'}", str(source)]
            whole = subprocess.run([compiler, *flags, *about, "-E"], capture_output=True, check=True).stdout
            name = sha256(b"\0".join([*map(os.fsencode, (compiler, *flags)), whole])).hexdigest()
            made.append(objects / f"{name}.o")
            if not made[-1].exists():
                command = [compiler, *flags, *about, "-c", "-o", str(made[-1])]
                jobs.append((source, subprocess.Popen(command, stderr=subprocess.PIPE, text=True)))
        for source, job in jobs:
            message = job.communicate()[1]
            assert job.returncode == 0, f"{compiler} on {source.name}: {message}"
            assert not message
        subprocess.run([compiler, *flags, *map(str, made), *link, "-o", str(room / "driver"), "-lm"], check=True)
        return room / "driver"

    return build


@pytest.mark.parametrize(("compiler", "sanitizers", "more"), BUILDS)
def test_the_driver_under_sanitizers(compiler, sanitizers, more, build, made, expected, tmp_path):
    if (why := cannot(compiler, sanitizers, tmp_path)) is not None:
        pytest.skip(why)
    driver = build(compiler, sanitizers, tmp_path, more=more)
    chosen = range(len(made))
    if sanitizers == THREADS:  # only what threads share can race
        chosen = [i for i in chosen if made[i].threads > 1]
    isas: Sequence[str | None] = ("avx512", "avx2", "neon", "scalar")
    if more[-3:] == ASKING:  # each problem runs many times
        chosen, isas = chosen[:: 3 if sanitizers == THREADS else 7], [instruction_set()]
    (tmp_path / "problems").write_bytes(b"".join(made[i].to_bytes() for i in chosen))
    same_compiler = platform.machine() == "x86_64" and "clang" not in (sysconfig.get_config_var("CC") or "gcc")
    same_bits = same_compiler and not more
    for isa in isas:
        command = [str(driver), str(tmp_path / "problems"), str(tmp_path / "results")]
        environment = {**os.environ, "CTCBIND_ISA": isa, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"{isa}, seed {SEED}: {done.stderr[:4000]}"
        found, results = problems.read_results([made[i] for i in chosen], (tmp_path / "results").read_bytes())
        if found == "none":
            assert isa != "scalar"
            continue
        assert found == isa
        for i, (status, got) in zip(chosen, results):
            where = f"problem {i} on {isa}, seed {SEED}: {made[i].shape} {problems.DTYPES[made[i].dtype]}"
            assert status == 0, where
            if same_bits and isa == instruction_set():
                assert got == expected[i], f"{where}: {problems.compare(made[i], got, expected[i])}"
            else:
                why = problems.compare(made[i], got, expected[i])
                assert why is None, f"{where}: {why}"


@pytest.mark.parametrize(
    ("compiler", "sanitizers"),
    [("gcc", MEMORY), ("gcc", THREADS), ("clang", MEMORY)],
    ids=["gcc", "gcc-thread", "clang"],
)
def test_what_stands_beside_the_loss_under_sanitizers(compiler, sanitizers, build, tmp_path):
    if (why := cannot(compiler, sanitizers, tmp_path)) is not None:
        pytest.skip(why)
    driver = build(compiler, sanitizers, tmp_path, "beside")
    # what was never written is a NaN, as long as it is
    options = "detect_leaks=1:exitcode=99:malloc_fill_byte=255:max_malloc_fill_size=2000000000"
    environment = {**os.environ, "ASAN_OPTIONS": options}
    for seed in range(SEED, SEED + 5):
        command = [str(driver), str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stderr) == (0, ""), f"seed {seed}: {done.stderr[:4000]}"
        assert re.fullmatch(r"\d+\n", done.stdout), f"seed {seed}: {done.stdout}"
        assert int(done.stdout) > 300


@pytest.mark.skipif(sys.platform != "linux", reason="the linker's --wrap")
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_without_room_a_call_says_so(compiler, build, tmp_path):
    """Clang's sanitizer saw an offset added to the NULL in whose place the array would have been."""
    if (why := cannot(compiler, MEMORY, tmp_path)) is not None:
        pytest.skip(why)
    wrap = [f"-Wl,--wrap={name}" for name in ("malloc", "calloc", "realloc")]
    driver = build(compiler, MEMORY, tmp_path, "no_room", link=wrap)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99"}
    done = subprocess.run([str(driver)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:4000]
    assert re.fullmatch(r"\d+\n", done.stdout), done.stdout
    assert int(done.stdout) > 100


def test_the_first_calls_of_several_threads_at_once(build, tmp_path):
    """The kernel is chosen by all of them: TSan saw what is kept of the choice read while it was written."""
    if (why := cannot("gcc", THREADS, tmp_path)) is not None:
        pytest.skip(why)
    driver = build("gcc", THREADS, tmp_path, "callers")
    for _ in range(3):
        done = subprocess.run([str(driver)], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", ""), done.stderr[:4000]


def test_what_xla_calls_under_sanitizers(build, tmp_path):
    if (why := cannot("gcc", MEMORY, tmp_path)) is not None:
        pytest.skip(why)
    driver = build("gcc", MEMORY, tmp_path, "xla_calls")
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99"}
    done = subprocess.run([str(driver)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    good = ["ok ok losses same gradients same", "ok losses same", "ok ok products same"]
    good += 8 * ["ok ok lattices same ok losses same"]
    assert done.stdout.splitlines() == [
        *good,
        *good,
        "13 ctcbind_loss was called with other arrays than its own",
        "3 InvalidInput: labels[2][0] is 3, which is the blank; a target holds labels only",
        "ok",
        "3 InvalidInput: labels[1][0] is 5, but there are 5 classes (0..4), the blank among them",
        "3 InvalidInput: labels[1][0] is -2147483648; a label cannot be negative",
        "3 InvalidInput: label_paddings[1][0] is 1 and a label follows it; the padding must come last: pass "
        "1 - label_paddings if 1 stands for labels",
        "3 InvalidInput: logit_paddings[2][8] is nan; it must be 0 or 1",
        "3 InvalidInput: logit_paddings[2][8] is 0.25; it must be 0 or 1",
        "13 ctcbind_product was called with other arrays than its own",
        "3 InvalidInput: logit_paddings[2][8] is 0.25; it must be 0 or 1",
        "3 InvalidInput: log_prior lies between 0.2 and 0.2 and sums to 1: these are probabilities; pass their "
        "logarithms, numpy.log(prior)",
        "3 InvalidInput: log_prior[2] is -inf; it must be finite",
        "3 InvalidInput: log_prior times prior_weight comes to 1e+300; over T = 9 frames that leaves the range of "
        "float64",
        "ok",
        "3 InvalidInput: path_bonus[1][1][2] is inf; it must be finite, or -inf to forbid the state",
        "3 InvalidInput: path_bonus[1][1][2] is nan; it must be finite, or -inf to forbid the state",
        "13 ctcbind_lattice was called with other arrays than its own",
        "ok",
        "3 InvalidInput: path_bonus comes to 2e+299; over T = 9 frames that leaves the range of float64",
        "ok 0.7",
    ]
    environment["CTCBIND_ISA"] = "of another machine"
    done = subprocess.run([str(driver)], env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    refused = [line.count("; is CTCBIND_ISA one of this machine's?") for line in done.stdout.splitlines()]
    assert refused[:22] == 2 * [2, 1, 2, *8 * [3]]


@pytest.mark.parametrize("called", ["awake", "parallel", "borrow"])
def test_a_child_of_fork_finds_the_lock_open(called, tmp_path):
    """Whichever function took it for another thread."""
    within_the_pool("forks", called, tmp_path)


@pytest.mark.parametrize("how", ["alone", "few", "at once", "apart"])
def test_workers_look_out_where_calls_follow_each_other(how, tmp_path):
    within_the_pool("watch", how, tmp_path)


def within_the_pool(name, argument, folder):
    """Runs tests/csrc/NAME.c, which has threads.c in it."""
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("there is no gcc here")
    program, source = folder / name, ROOT / "tests" / "csrc" / f"{name}.c"
    subprocess.run([compiler, *FLAGS, f"-I{ROOT / 'csrc'}", str(source), "-o", str(program)], check=True)
    done = subprocess.run([str(program), argument], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_sample_that_32_bits_cannot_count_is_refused(tmp_path):
    """Its size was cut to 32 bits, and the sample written past what malloc had given."""
    (tmp_path / "empty.c").write_text("#include <errno.h>\n#include <pthread.h>\nint main(void) { return 0; }\n")
    narrow = ["gcc", "-m32", "-msse2", "-mfpmath=sse"]
    if not shutil.which("gcc") or subprocess.run([*narrow, "empty.c"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("no gcc that compiles for 32 bits (apt-get install gcc-multilib)")
    flags = ["-std=c11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    sources = [*sorted((ROOT / "csrc").glob("*.c")), ROOT / "tests" / "csrc" / "long.c"]
    subprocess.run([*narrow, *flags, *map(str, sources), "-o", str(tmp_path / "long"), "-lm"], check=True)
    done = subprocess.run([str(tmp_path / "long")], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kernel", ["scalar", "avx2", "avx512", "neon"])
def test_a_float_may_take_the_place_of_a_double(kernel, tmp_path):
    """LLVM moves the store of a float before the load of a double, though that is where the float goes: so no store of
    the kernels may be marked (tbaa) as one that leaves doubles alone."""
    if shutil.which("clang") is None:
        pytest.skip("there is no clang here")
    source, made = ROOT / "csrc" / f"kernel_{kernel}.c", tmp_path / "made.ll"
    flags = ["-std=c11", "-O1", "-S", "-emit-llvm", f"-I{ROOT / 'csrc'}"]
    subprocess.run(["clang", *flags, str(source), "-o", str(made)], check=True)
    text = made.read_text()
    if "f32_sample" not in text:
        pytest.skip("a kernel of another processor")
    types = set(re.findall(r'^(!\d+) = !{!"float", ', text, re.MULTILINE))
    marks = {mark for mark, one in re.findall(r"^(!\d+) = !{(!\d+), !\d+, i64 0}", text, re.M) if one in types}
    stores = re.findall(r"^ +store .*!tbaa (!\d+)", text, re.MULTILINE)
    assert len(stores) > 1000
    assert sum(store in marks for store in stores) == 0


def test_the_comparison_sees_what_is_wrong(made, expected):
    """A loss and a gradient, each moved by twice what is allowed, are found."""

    def places(problem, right):
        """The first loss and the first entry of a gradient, as numbers of floats; none where the latter is missing."""
        losses, grad = problem.result_bytes()
        if problem.dtype != 0 or not losses or grad <= 4 * problem.first_grad:
            return None
        found = 0, losses // 4 + problem.first_grad
        return None if problems.np.isnan(problems.np.frombuffer(right, "<f4")[list(found)]).any() else found

    problem, right = next((m, e) for m, e in zip(made, expected) if places(m, e))
    weight = 1.0 if problem.weights is None else max(1.0, float(abs(problem.weights).max()))
    for at in places(problem, right):
        values = problems.np.frombuffer(right, "<f4").copy()
        values[at] = 3.0 if problems.np.isinf(values[at]) else values[at] * (1 + 8e-6) + 8e-6 * weight
        assert problems.compare(problem, values.tobytes(), right) is not None
    assert problems.compare(problem, right, right) is None


def test_the_problems_have_everything_in_them(made):
    assert len(made) > 300
    assert {m.dtype for m in made} == {0, 1, 2, 3}
    assert sum(m.grad is None for m in made) > 10
    assert sum(m.weights is not None for m in made) > 30
    assert sum(m.strides[2] != 1 for m in made) > 30
    assert sum(any(s < 0 for s in m.grad_strides) for m in made) > 10
    assert sum(m.strides[0] == m.grad_strides[0] == 1 and m.shape[2] > 512 for m in made) >= 4
    assert sum(m.threads > 1 for m in made) >= 12
    assert any(m.shape[2] > 512 and m.threads > m.shape[1] for m in made)
    assert sum(m.shape[0] >= 1500 and m.threads > m.shape[1] for m in made) >= 8
