"""examples/distributed: what several processes do is what one does, also when one of them is killed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import fake_cupy
import numpy as np
import pytest

import ctcbind

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
FOLDER = EXAMPLES / "distributed"
TRAIN, CORPUS = FOLDER / "train.py", FOLDER / "corpus.py"
sys.path[:0] = [str(EXAMPLES), str(FOLDER)]

import corpus  # noqa: E402
from reader.digits import from_sklearn  # noqa: E402
from reader.network import Shape, arrays_of, put  # noqa: E402
from reader.training import Reader, Saved, Settings, Trainer  # noqa: E402
from reader.words import Batch  # noqa: E402

MPIEXEC = shutil.which("mpiexec", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
INSTALL = "pip install '.[distributed]'"

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or MPIEXEC is None,
    reason=f"several ranks need mpi4py and an MPI with its mpiexec: {INSTALL}",
)
needs_dask = pytest.mark.skipif(
    importlib.util.find_spec("dask") is None
    or getattr(importlib.util.find_spec("distributed"), "origin", None) is None,
    reason=f"workers need Dask with dask.distributed: {INSTALL}",
)

#: Open MPI would refuse to run as root, and more ranks than there are cores; MPICH knows none of these names.
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def mpi(ranks, *command, environment=None, cwd=None):
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, **(environment or {})},
        cwd=cwd or Path(sys.executable).parent,  # away from the source tree, so that the installed one runs
        timeout=120,
    )


# --- training -----------------------------------------------------------------------------------------------------

STEPS, CHANNELS = 12, 16


def train(ranks, out, *options, environment=None):
    """The arrays of the file that a run saved."""
    options = ("--steps", STEPS, "--channels", CHANNELS, "--out", out, *options)
    result = mpi(ranks, TRAIN, *options, environment=environment)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"{ranks} ranks, {STEPS} steps")
    return read(out / "reader.npz")


def read(path):
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def alone(path, dtype, batch):
    """The arrays of a file that the reader's own trainer saved, which knows of no ranks."""
    digits, _ = from_sklearn()
    reader = Reader(Shape(height=digits.height, channels=CHANNELS, units=3 * CHANNELS // 4), 0)
    for what in ("params", "buffers"):
        put(reader.network, what, {k: a.astype(dtype) for k, a in arrays_of(reader.network, what).items()})
    trainer = Trainer(reader, Settings(steps=STEPS, batch=batch), digits, "native")
    batches = [trainer.stream[k] for k in range(STEPS)]
    trainer.stream = [Batch(each.x.astype(dtype), each.widths, each.targets) for each in batches]
    for _ in range(STEPS):
        trainer.step()
    trainer.save(path)
    return read(path)


def distances(a, b):
    """How far two runs are apart, relative to the first, in the 2-norm: weights, running means, moments, the curve."""
    found = {}
    for what in ("params", "buffers", "m", "v"):
        both = [(a[k].astype(np.float64), b[k].astype(np.float64)) for k in a if k.startswith(what + ":")]
        assert len(both) > 10
        apart, size = (
            sum(float(np.square(x).sum()) for x in each) for each in ([x - y for x, y in both], [x for x, _ in both])
        )
        found[what] = (apart / size) ** 0.5
    for i, what in enumerate(("loss", "norm")):
        x, y = a["history"][:, i], b["history"][:, i]
        found[what] = float(np.linalg.norm(x - y) / np.linalg.norm(x))
    return found


#: How many times further apart than expected two runs may be that differ by nothing but rounding.
LUCK = 8


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """(folder, arrays) of a run on two ranks in float32."""
    out = tmp_path_factory.mktemp("two-ranks")
    return out, train(2, out, "--batch", 9)


@needs_mpi
@pytest.mark.parametrize(("ranks", "batch"), [(2, 9), (3, 8)])
def test_ranks_take_the_steps_of_one_process(tmp_path, ranks, batch):
    """Shares of 5 and 4 words, and of 3, 3 and 2: in float64, equal to one process up to the order of sums.

    How much rounding grows along the way is measured where there are no ranks: it is the distance of float32 from
    float64 over the unit roundoff of float32, 2^-24. Ranks add up in another order, in float64: their distance is
    that growth times the unit roundoff of float64, 2^-53, or LUCK times that.
    """
    exact = alone(tmp_path / "float64.npz", np.float64, batch)
    rounded = alone(tmp_path / "float32.npz", np.float32, batch)
    together = train(ranks, tmp_path, "--batch", batch, "--dtype", "float64")
    expected, found = distances(exact, rounded), distances(exact, together)
    for what in expected:
        assert 0 < expected[what] < 0.1, what  # that the tolerance is far below what a wrong sum would do
        assert found[what] <= LUCK * 2.0**-29 * expected[what], what
    assert together["history"][:, 2:] == pytest.approx(exact["history"][:, 2:], rel=2.0**-50)


@needs_mpi
def test_saved_by_ranks_read_by_the_reader(two_ranks):
    folder, arrays = two_ranks
    saved = Saved(folder / "reader.npz")
    assert saved.steps == STEPS
    network = saved.reader().network
    for name, array in arrays_of(network, "params").items():
        assert (array == arrays["params:" + name]).all()


#: Begins a run through the functions of train.py, so that it can be interfered with: ranks and trainer are there.
BEGIN = f"""
import sys

sys.path[:0] = [{str(FOLDER)!r}]
import train
from parallel import DataParallel
from pathlib import Path
from ranks import Ranks
from reader.errors import ReaderError

ranks = Ranks()
arguments = train.parser().parse_args(sys.argv[1:])
"""


@needs_mpi
def test_a_run_goes_on_in_the_same_bits(tmp_path, two_ranks):
    part = tmp_path / "part.npz"
    code = f"""
    together, _ = train.prepare(arguments, ranks)
    for _ in range(5):
        together.step()
    together.save(Path({str(part)!r}))
    """
    options = ("--steps", STEPS, "--channels", CHANNELS, "--batch", 9, "--out", tmp_path)
    result = mpi(2, "-c", BEGIN + textwrap.dedent(code), *options)
    assert (result.returncode, result.stderr) == (0, "")
    result = mpi(2, TRAIN, "--resume", part, "--out", tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    _, whole = two_ranks
    gone_on = read(part)
    assert set(gone_on) == set(whole)
    for name in set(whole) - {"checks"}:  # of checks there are fewer
        assert (gone_on[name] == whole[name]).all(), name


@needs_mpi
@pytest.mark.parametrize(
    ("interference", "sentence"),
    [
        ("if ranks.rank == 1 and self.trainer.done == 2: raise ReaderError('no more')", "train.py: rank 1: no more"),
        (
            "if ranks.rank == 1: self.trainer.params['0.W'][0, 0] += 1e-6",
            "train.py: rank 0: after step 1 rank 1 has other weights than rank 0",
        ),
    ],
)
def test_when_one_rank_fails_none_waits_for_it(tmp_path, interference, sentence):
    code = f"""
    step = DataParallel.step
    def interfered(self):
        {interference}
        return step(self)
    DataParallel.step = interfered
    sys.exit(train.main())
    """
    options = ("--steps", STEPS, "--channels", CHANNELS, "--batch", 9, "--out", tmp_path)
    result = mpi(2, "-c", BEGIN + textwrap.dedent(code), *options)
    assert result.returncode != 0
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "reader.npz").exists()


@needs_mpi
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--batch", "2"], "there are 3 ranks and 2 words in a batch: some would have nothing to do"),
        (["--resume", "nowhere.npz"], "there is no saved reader nowhere.npz"),
        (["--predict", "photo.png"], "--predict is for examples/reader/train.py"),
        (["--beam", "3"], "--beam is for examples/reader/train.py"),
        (["--steps", "many"], "argument --steps: invalid int value: 'many'"),
    ],
)
def test_all_ranks_say_one_sentence(tmp_path, options, sentence):
    result = mpi(3, TRAIN, *options, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.count(sentence) == 1
    assert result.stderr.count("train.py: ") == 1
    assert "Traceback" not in result.stderr


def test_what_is_missing_is_named(tmp_path):
    """Each program says what to install where mpi4py, or Dask, is not."""
    for package, command in (("mpi4py", [TRAIN]), ("dask", [CORPUS, tmp_path, "--out", tmp_path / "out"])):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise ImportError('no {package} here')")
        np.savez(tmp_path / "0.npz", logits=np.zeros((3, 1, 2)), targets=[[1]])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])),
        }
        result = subprocess.run(
            [sys.executable, *map(str, command)], capture_output=True, text=True, env=environment, timeout=120
        )
        assert result.returncode == 2
        assert f"(no {package} here): {INSTALL}" in result.stderr
        assert result.stderr.count("\n") == 1


@needs_mpi
def test_ranks_on_devices(tmp_path, two_ranks):
    """The way through cupyx.distributed, on stand-ins for it and for CuPy that work on host memory."""
    packages = tmp_path / "packages"
    (packages / "cupyx").mkdir(parents=True)
    shutil.copy(fake_cupy.__file__, packages / "cupy.py")
    (packages / "cupyx" / "__init__.py").touch()
    (packages / "cupyx" / "distributed.py").write_text(
        textwrap.dedent(
            """
            import cupy
            from mpi4py import MPI

            class NCCLBackend:
                def __init__(self, n_devices, rank, *, use_mpi=False):
                    assert (n_devices, rank, use_mpi) == (MPI.COMM_WORLD.size, MPI.COMM_WORLD.rank, True)
                    assert cupy.cuda.Device().id == rank

                def all_reduce(self, in_array, out_array, op="sum", stream=None):
                    assert in_array is out_array and isinstance(in_array, cupy.ndarray) and op == "sum"
                    host = in_array.get()
                    assert host.ndim == 1 and host.flags.c_contiguous
                    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, host)
                    out_array[...] = cupy.asarray(host)
            """
        )
    )
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = ("--batch", 9, "--device", "gpu", "--engine", "native")
    found = train(2, tmp_path, *options, environment={"PYTHONPATH": path, "FAKE_CUPY_DEVICES": "2"})
    _, on_host = two_ranks
    for name, array in on_host.items():
        assert (found[name] == array).all(), name

    few = mpi(2, TRAIN, *options, environment={"PYTHONPATH": path, "FAKE_CUPY_DEVICES": "1"}, cwd=tmp_path)
    assert few.returncode == 2
    assert few.stderr == "train.py: NCCL wants a GPU for each rank; this machine has 2 ranks and 1 of these\n"


# --- a corpus in shards -------------------------------------------------------------------------------------------

SHORT, LONG = 4, 3


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Four shards that take no time, and three that take some."""
    folder = tmp_path_factory.mktemp("shards")
    corpus.make(folder, SHORT)
    for k in range(LONG):
        rng = np.random.default_rng(k)
        logits = rng.normal(size=(30_000, 1, 8)).astype(np.float32)
        np.savez(folder / f"long-{k}.npz", logits=logits, targets=rng.integers(1, 8, size=(1, 4_000)))
    return folder


@pytest.fixture(scope="module")
def serial(shards, tmp_path_factory):
    """The folder of the results of one process, for each task."""
    found = {}
    for task in corpus.TASKS:
        found[task] = tmp_path_factory.mktemp(task)
        assert corpus.main([str(shards), "--out", str(found[task]), "--task", task, "--workers", "0"]) == 0
    return found


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def started(shards, out, *options):
    """A run on two workers, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, str(CORPUS), str(shards), "--out", str(out), "--workers", "2", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def at_work(out):
    """{shard: process that works on it now}."""
    return {path.name[1:].partition(".npz")[0]: int(path.stem.rpartition("-")[2]) for path in out.glob(".*.npz.*.part")}


def until(process, condition):
    """What the condition returns once that is true of a process that still runs."""
    end = time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        if found := condition():
            return found
        time.sleep(0.001)
    process.kill()
    pytest.fail(f"the run ended, or nothing came of it: {process.communicate()}")
    return None


def test_results_are_those_of_one_call(shards, serial):
    for path in shards.iterdir():
        with np.load(path) as problem, np.load(serial["align"] / path.name) as result:
            path_of = ctcbind.align(**problem)
            assert set(result.files) == set(path_of._fields)
            for name, array in path_of._asdict().items():
                np.testing.assert_array_equal(result[name], array)
            loss = ctcbind.ctc_loss(**problem)
        with np.load(serial["score"] / path.name) as result:
            np.testing.assert_array_equal(result["loss"], loss)


@needs_dask
def test_workers_give_the_bits_of_one_process(shards, serial, tmp_path):
    process = started(shards, tmp_path, "--task", "score")
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert contents(tmp_path) == contents(serial["score"])
    assert out.startswith(f"{SHORT + LONG} shards: 0 done before, {SHORT + LONG} to do\n")


@needs_dask
def test_a_killed_worker_loses_nothing(shards, serial, tmp_path):
    process = started(shards, tmp_path)
    try:
        while True:
            shard, worker = next(iter(until(process, lambda: at_work(tmp_path)).items()))
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            time.sleep(0.05)
            if at_work(tmp_path).get(shard) == worker:  # what it had begun is there and will never be finished
                break
        assert not (tmp_path / f"{shard}.npz").exists()
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0
    assert f"{shard}.npz: " in out
    assert out.count(" samples in ") == SHORT + LONG
    assert contents(tmp_path) == contents(serial["align"])


@needs_dask
def test_a_killed_run_goes_on(shards, serial, tmp_path, capsys):
    process = started(shards, tmp_path)
    until(process, lambda: list(tmp_path.glob("*.npz")) and at_work(tmp_path))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("*.npz")}
    assert 0 < len(before) < SHORT + LONG
    assert corpus.main([str(shards), "--out", str(tmp_path), "--workers", "0"]) == 0
    done, missing = len(before), SHORT + LONG - len(before)
    out = capsys.readouterr().out
    assert out.startswith(f"{SHORT + LONG} shards: {done} done before, {missing} to do\n")
    assert out.count(" samples in ") == missing
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in before} == before
    assert contents(tmp_path) == contents(serial["align"])


@needs_dask
def test_a_shard_that_kills_its_workers_is_given_up(shards, tmp_path):
    """And the others are done, also those that waited on a worker that died."""
    code = f"""
    import os, sys
    import corpus

    def deadly(shard, out, task):
        import os, signal, sys, time
        if shard.endswith("0002.npz"):
            time.sleep(0.5)  # as memory runs out: Dask itself may hang over a worker that dies while it starts
            os.kill(os.getpid(), signal.SIGKILL)
        sys.path[:0] = [{str(FOLDER)!r}]
        import corpus
        return corpus.process(shard, out, task)

    if __name__ == "__main__":
        corpus.process = deadly
        sys.exit(corpus.main({[str(shards), "--out", str(tmp_path / "out")]!r}))
    """
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nsys.path[:0] = [{str(FOLDER)!r}]\n" + textwrap.dedent(code), encoding="utf-8")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "0002.npz: it was given up: workers died over it; of memory?\n" in result.stderr
    assert f"corpus.py: 1 of {SHORT + LONG} shards are not done, see above\n" in result.stderr  # Dask may log after it
    assert len(list((tmp_path / "out").glob("*.npz"))) == SHORT + LONG - 1


def test_one_bad_shard_stops_no_other(tmp_path, capsys):
    shards, out = tmp_path / "shards", tmp_path / "out"
    corpus.make(shards, 4)
    good = (shards / "0001.npz").read_bytes()
    (shards / "0001.npz").write_bytes(good[: len(good) // 2])
    np.savez(shards / "0002.npz", logits=np.zeros((9, 2, 5)), targets=[[1, 7], [2, 3]])
    assert corpus.main([str(shards), "--out", str(out), "--workers", "0"]) == 1
    errors = capsys.readouterr().err
    assert "0001.npz: " in errors
    assert "cannot be read as a .npz file" in errors
    assert "0002.npz: targets[0][1] is 7, but there are 5 classes (0..4)" in errors
    assert errors.endswith("2 of 4 shards are not done, see above\n")
    assert sorted(path.name for path in out.iterdir()) == ["0000.npz", "0003.npz", "corpus.json"]

    corpus.make(shards, 4)  # all of them anew, so that all are later than their results
    (shards / "0002.npz").touch()
    assert corpus.main([str(shards), "--out", str(out), "--workers", "0"]) == 0
    assert capsys.readouterr().out.startswith("4 shards: 0 done before, 4 to do\n")
    os.utime(shards / "0003.npz", ns=(0, (out / "0003.npz").stat().st_mtime_ns + 1))
    assert corpus.main([str(shards), "--out", str(out), "--workers", "0"]) == 0
    assert "\n0003.npz: 8 samples" in capsys.readouterr().out


def test_samples_without_a_path_are_told_apart(tmp_path, capsys):
    shards = tmp_path / "shards"
    shards.mkdir()
    np.savez(shards / "a.npz", logits=np.zeros((2, 2, 3)), targets=[[1, 1], [1, 2]])
    for task, value in (("align", -2 * np.log(3)), ("score", 2 * np.log(3))):
        assert corpus.main([str(shards), "--out", str(tmp_path / task), "--task", task, "--workers", "0"]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert last.startswith("all done: 2 samples, ")
        assert last.endswith(" (1 that are not finite apart)")
        assert float(last.split(" in all ")[1].split()[0]) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["nowhere", "--out", "out"], "there is no folder nowhere"),
        (["empty", "--out", "out"], "empty holds no .npz files"),
        (["shards"], "say where the results go: --out DIR"),
        (["shards", "--out", "shards"], "--out is the folder of the shards"),
        (["shards", "--out", "other"], "other holds .npz files and no corpus.json"),
        (["shards", "--out", "file"], "--out file cannot be used"),
        (["shards", "--out", "scored"], "name another folder"),
        (["shards", "--out", "out", "--workers", "-1"], "--workers is -1; it must be at least 0"),
        (["shards", "--out", "out", "--workers", "1", "--scheduler", "tcp://a:1"], "leave --workers out"),
        (["shards", "--make", "0"], "--make is 0; it must be at least 1"),
    ],
)
def test_bad_input_gets_a_sentence(tmp_path, monkeypatch, capsys, options, sentence):
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "shards", "other"):
        (tmp_path / name).mkdir()
    for name in ("shards", "other"):
        np.savez(tmp_path / name / "a.npz", logits=np.zeros((3, 1, 2)), targets=[[1]])
    (tmp_path / "file").touch()
    assert corpus.main(["shards", "--out", "scored", "--task", "score", "--workers", "0"]) == 0
    capsys.readouterr()
    before = contents(tmp_path / "shards")
    assert corpus.main(options) == 2
    errors = capsys.readouterr().err
    assert sentence in errors
    assert errors.count("\n") == 1
    assert contents(tmp_path / "shards") == before
