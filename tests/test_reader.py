"""examples/reader: its data, its training with every engine, its saved runs, and what it says to bad input."""

from __future__ import annotations

import gzip
import itertools
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import fake_cudnn
import fake_cupy
import numpy as np
import pytest
from batches import SEED
from PIL import Image

import ctcbind

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TRAIN = EXAMPLES / "reader" / "train.py"
sys.path.insert(0, str(EXAMPLES))

from reader import command, pictures  # noqa: E402
from reader.command import main  # noqa: E402
from reader.digits import Digits, doubled, from_mnist, from_sklearn  # noqa: E402
from reader.errors import ReaderError  # noqa: E402
from reader.loss import Loss  # noqa: E402
from reader.mistakes import MISTAKES, log_sum_exp, softmax  # noqa: E402
from reader.network import KINDS, Shape, arrays_of  # noqa: E402
from reader.scores import decode  # noqa: E402
from reader.training import Reader, Saved, Settings, Trainer  # noqa: E402
from reader.words import Stream, in_buckets, make_words, stack  # noqa: E402

SMALL = {"channels": 16, "blocks": 1, "units": 8}


@pytest.fixture
def rng():
    return np.random.default_rng([SEED, 6])


@pytest.fixture(scope="module")
def digits():
    """Ten bars at ten heights and lean: enough to tell apart, without a data set."""
    images = np.zeros((10, 16, 16), dtype=np.float32)
    for d in range(10):
        images[d, 3:13, 7:9] = 1
        images[d, 3 + d, 4:12] = 1
    return Digits(np.repeat(images, 4, axis=0), np.repeat(np.arange(10), 4))


def trainer(digits, engine="native", *, kind="gru", xp=np, **settings):
    options = {"steps": 40, "batch": 8, "longest": 3} | settings
    shape = Shape(kind=kind, height=digits.height, **SMALL)
    return Trainer(Reader(shape, seed=3, xp=xp), Settings(**options), digits, engine)


def weights(trainer):
    """All parameters, running means and moments, copied into NumPy arrays."""
    found = {
        f"{what}:{name}": a
        for what in ("params", "buffers")
        for name, a in arrays_of(trainer.reader.network, what).items()
    }
    found |= {f"m:{name}": a for name, a in trainer.adam.m.items()} | {f"v:{n}": a for n, a in trainer.adam.v.items()}
    return {name: a.copy() if isinstance(a, np.ndarray) else a.get() for name, a in found.items()}


# --- words --------------------------------------------------------------------------------------------------------


def test_words_are_ragged_and_repeat(digits, rng):
    words = make_words(digits, rng, 400, (1, 8), vary=True)
    assert {len(word.digits) for word in words} == set(range(1, 9))
    assert len({word.image.shape[1] for word in words}) > 40
    assert any(a == b for word in words for a, b in itertools.pairwise(word.digits))
    for word in words:
        assert word.image.shape[0] == digits.height
        assert word.image.dtype == np.float32
        assert 0 <= word.image.min() <= word.image.max() <= 1
        assert word.image.max() > 0.5


def test_held_out_words_keep_the_handwriting(digits):
    """Without `vary` the strokes stay upright: the bars of these digits remain bars."""
    for word in make_words(digits, np.random.default_rng(0), 20, (1, 1), vary=False):
        columns = word.image.sum(axis=0)
        assert columns.max() > 0.6 * digits.height * 10 / 16
    assert (make_words(digits, np.random.default_rng(0), 1, (8, 8), vary=False)[0].image > 0).any()


def test_neighbours_overlap_at_times_and_stand_apart_at_others(digits, rng):
    gaps = []
    for word in make_words(digits, rng, 100, (2, 2), vary=False):
        dark = word.image.max(axis=0) > 0.1
        runs = [len(list(run)) for ink, run in itertools.groupby(dark) if not ink]
        gaps.append(runs[1] if len(runs) == 3 else 0)
    assert min(gaps) == 0 < max(gaps)


def test_stack_pads_with_nothing(digits, rng):
    words = make_words(digits, rng, 5, (1, 4), vary=True)
    batch = stack(words)
    assert batch.x.shape == (5, batch.widths.max(), digits.height)
    for row, word, width, target in zip(batch.x, words, batch.widths, batch.targets):
        np.testing.assert_array_equal(row[:width], word.image.T)
        assert not row[width:].any()
        assert [label - 1 for label in target] == word.digits


def test_stream_goes_back_to_any_step(digits):
    one, two, other = (Stream(digits, seed, 4, (1, 8)) for seed in (1, 1, 2))
    forward = [one[step] for step in range(26)]
    for step in (25, 3, 0, 13):
        np.testing.assert_array_equal(two[step].x, forward[step].x)
        assert two[step].targets == forward[step].targets
    assert any(a.targets != b.targets for a, b in zip(forward, (other[step] for step in range(26))))


def test_buckets_hold_words_of_like_width(digits, rng):
    words = make_words(digits, rng, 60, (1, 8), vary=True)
    cut = in_buckets(words, 16)
    assert sorted(itertools.chain(*cut)) == list(range(60))
    ends = [(min(w), max(w)) for w in ([words[i].image.shape[1] for i in chosen] for chosen in cut)]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))


def test_sklearn_digits_are_split_and_doubled():
    train, held_out = from_sklearn()
    assert (len(train.labels), len(held_out.labels)) == (1438, 359)
    assert train.images.shape[1:] == (20, 20)
    assert set(train.labels) == set(held_out.labels) == set(range(10))
    seen = {image.tobytes() for image in train.images}
    assert sum(image.tobytes() in seen for image in held_out.images) == 0


def test_doubling_keeps_a_ramp():
    ramp = np.broadcast_to(np.arange(4.0, dtype=np.float32), (1, 4, 4))
    np.testing.assert_allclose(doubled(ramp)[0, 3], [0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3])


# --- scores and alignment -----------------------------------------------------------------------------------------


def test_decode_merges_repeats_and_drops_blanks():
    path = [[0, 3, 3, 0, 3, 2, 2, 5]]
    assert decode(np.eye(6)[path], [8]) == [[3, 3, 2, 5]]
    assert decode(np.eye(6)[path], [5]) == [[3, 3]]
    assert decode(np.eye(6)[path], [1]) == [[]]


def test_beam_search_adds_the_paths_of_a_reading():
    """The best path says nothing, with 0.36; three others say 1, with 0.64 together."""
    logits = np.log([[[0.6, 0.4], [0.6, 0.4]], [[0.6, 0.4], [0.5, 0.5]]])
    assert decode(logits, [2, 1]) == [[], []]
    assert decode(logits, [2, 1], beam=4) == [[1], []]


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind):
    """Real digits, a small network, and a minute's twentieth: most of what is held out is read by then."""
    train, held_out = from_sklearn()
    settings = Settings(steps=120, batch=16, longest=4)
    shape = Shape(kind=kind, height=train.height, channels=48, blocks=1, units=32)
    small = Trainer(Reader(shape, seed=0), settings, train, "native")
    words = make_words(held_out, np.random.default_rng(1), 100, (1, 4), vary=False)
    before = small.reader.score(words)
    for _ in range(settings.steps):
        small.step()
    after = small.reader.score(words)
    assert before.labels > 0.8
    assert after.labels < 0.4
    assert small.history[-1].loss < small.history[0].loss / 2


@pytest.mark.parametrize("kind", KINDS)
def test_engines_agree_in_training(kind, engine, digits):
    """Twenty steps from the same seed give the same weights to 1e-4, whatever computes loss and gradient."""
    yardstick, other = (trainer(digits, name, kind=kind) for name in ("reference", engine.name))
    start = weights(other)
    for _ in range(20):
        yardstick.step()
        other.step()
    for name, array in arrays_of(yardstick.reader.network, "params").items():
        np.testing.assert_allclose(weights(other)[f"params:{name}"], array, rtol=0, atol=1e-4, err_msg=name)
    moved = [np.abs(weights(other)[name] - start[name]).max() for name in start if name.startswith("params:")]
    assert min(moved) > 1e-3, "the weights moved far enough for a difference to show"


def test_a_wrong_gradient_shows_in_the_weights(digits):
    """The comparison above can fail: a gradient that is off by a hundredth in places ends elsewhere."""
    right, wrong = trainer(digits), trainer(digits)
    loss = wrong.loss

    def off(*args):
        outcome = loss(*args)
        outcome.grad[:, :, 0] *= 1.01
        return outcome

    wrong.loss = off
    for _ in range(20):
        right.step()
        wrong.step()
    apart = [np.abs(weights(wrong)[name] - a).max() for name, a in weights(right).items() if name.startswith("params")]
    assert max(apart) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_run_goes_on_bit_for_bit(kind, digits, tmp_path):
    through, halted = (trainer(digits, kind=kind) for _ in range(2))
    words = make_words(digits, np.random.default_rng(1), 5, (1, 3), vary=False)
    for step in range(26):  # more than one pool of batches
        through.step()
        if step == 9:
            through.check(words)
    for _ in range(10):
        halted.step()
    halted.check(words)
    halted.save(tmp_path / "run.npz")
    resumed = Saved(tmp_path / "run.npz").trainer(digits, "native")
    while resumed.done < 26:
        resumed.step()
    assert resumed.history == through.history
    assert resumed.checks == through.checks
    one, two = weights(through), weights(resumed)
    assert set(one) == set(two)
    for name in one:
        assert one[name].tobytes() == two[name].tobytes(), name


def test_a_saved_reader_reads_alike(digits, tmp_path):
    small = trainer(digits)
    for _ in range(5):
        small.step()
    small.save(tmp_path / "run.npz")
    assert sorted(os.listdir(tmp_path)) == ["run.npz"]
    batch = stack(make_words(digits, np.random.default_rng(1), 4, (1, 3), vary=False))
    one, two = (reader.logits(batch, train=False)[0] for reader in (small.reader, Saved(tmp_path / "run.npz").reader()))
    assert one.tobytes() == two.tobytes()


def test_cupy_in_the_place_of_numpy(digits, monkeypatch):
    """The same layers on another array module; a stand-in here, that refuses NumPy's arrays as CuPy does."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    for kind in KINDS:
        host, device = trainer(digits, kind=kind), trainer(digits, kind=kind, xp=fake_cupy)
        for _ in range(3):
            assert device.step() == pytest.approx(host.step(), rel=1e-4)
        assert all(isinstance(p, fake_cupy.ndarray) for p in device.params.values())
        for name, array in weights(host).items():
            np.testing.assert_allclose(weights(device)[name], array, rtol=0, atol=1e-5, err_msg=name)


# --- mistakes -----------------------------------------------------------------------------------------------------


def paths(labels, T, C, blank=0):
    """All paths of T frames that read as the labels."""
    for path in itertools.product(range(C), repeat=T):
        merged = [k for k, _ in itertools.groupby(path)]
        if [k for k in merged if k != blank] == labels:
            yield path


def test_softmax_missing_takes_numbers_for_probabilities(rng):
    x = rng.uniform(0.1, 2, size=(1, 4, 3))
    with ctcbind.CTCLoss(layout="NTC") as ctc:
        loss, grad, _ = MISTAKES["softmax-missing"](ctc, x, [[1, 2]], np.array([4]))
    products = {path: np.prod([x[0, t, k] for t, k in enumerate(path)]) for path in paths([1, 2], 4, 3)}
    assert loss[0] == pytest.approx(-np.log(sum(products.values())))
    occupancy = np.zeros((4, 3))
    for path, product in products.items():
        occupancy[range(4), path] += product / sum(products.values())
    np.testing.assert_allclose(grad[0], x[0] - occupancy, rtol=1e-9, atol=1e-9)


def numeric(function, x, step=1e-6):
    slopes = np.empty(x.shape)
    for i in np.ndindex(x.shape):
        above, below = x.copy(), x.copy()
        above[i] += step
        below[i] -= step
        slopes[i] = (function(above) - function(below)) / (2 * step)
    return slopes


@pytest.mark.parametrize("name", ["double-softmax", "batch-major", "padded-with-blank", "wrong-T"])
def test_faulty_losses_have_their_own_true_gradient(name, rng):
    """These faults train the wrong loss with a right gradient: it is the derivative of what they call the loss."""
    x, targets, frames = rng.normal(size=(2, 17, 4)), [[1, 2], [3]], np.array([17, 15])
    with ctcbind.CTCLoss(layout="NTC") as ctc:
        _, grad, _ = MISTAKES[name](ctc, x, targets, frames)
        slopes = numeric(lambda each: float(MISTAKES[name](ctc, each, targets, frames)[0].sum()), x)
    np.testing.assert_allclose(grad, slopes, rtol=1e-5, atol=1e-7)
    with ctcbind.CTCLoss(layout="NTC") as ctc:
        assert np.abs(grad - ctc(x, targets, frames).grad).max() > 0.01


def test_the_gradient_through_the_softmax_is_nobodys(rng):
    """It is J (p - occupancy) with J = diag(p) - p p^T, which is the derivative of neither thing."""
    x, targets, frames = rng.normal(size=(1, 5, 4)), [[1, 2]], np.array([5])
    with ctcbind.CTCLoss(layout="NTC") as ctc:
        right = ctc(x, targets, frames).grad
        _, grad, _ = MISTAKES["gradient-through-softmax"](ctc, x, targets, frames)
    for p, g, wrong in zip(softmax(x)[0], right[0], grad[0]):
        np.testing.assert_allclose(wrong, (np.diag(p) - np.outer(p, p)) @ g, rtol=1e-9, atol=1e-12)


def test_padded_with_blank_counts_paths_that_end_in_so_many_blanks(rng):
    """Seven labels filled up to eight: the paths of the seven and then a blank that must be there."""
    x, labels = rng.normal(size=(2, 9, 3)), [1, 2] * 4
    with ctcbind.CTCLoss(layout="NTC") as ctc:
        loss, _, (_, shown, _, _) = MISTAKES["padded-with-blank"](ctc, x, [labels[:7], labels], np.array([9, 9]))
        right = ctc(x, [labels[:7], labels]).loss
    assert shown == [[*labels[:7], 0], labels]
    log_p = x - log_sum_exp(x)[..., None]
    # class 3 is the filling, which is as probable as the blank
    wanted = sum(
        np.exp(sum(log_p[0, t, 0 if k == 3 else k] for t, k in enumerate(path)))
        for path in paths([*labels[:7], 3], 9, 4)
    )
    assert loss[0] == pytest.approx(-np.log(wanted))
    assert loss[1] == pytest.approx(right[1])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_trains_and_shows(mistake, digits):
    small = trainer(digits, mistake=mistake)
    records = [small.step() for _ in range(4)]
    assert all(np.isfinite(record.norm) for record in records)
    logits, targets, frames, layout = small.given
    assert layout in ("NTC", "TNC")
    assert len(targets) == len(frames) == 8
    assert logits.ndim == 3


# --- the command --------------------------------------------------------------------------------------------------


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


@pytest.fixture
def mnist(digits, tmp_path):
    """A folder of the four files, two of them gzipped, that holds the ten signs."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    images = (digits.images * 255).astype(np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(digits.labels))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:10])))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(digits.labels[:10])))
    return folder


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A command that trains a small network and tries it on few words, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Shape, "channels", 16)
    monkeypatch.setattr(command, "HELD_OUT", 60)
    return tmp_path


def test_command_trains_draws_and_reads(quick, capsys):
    assert main(["--steps", "3", "--batch", "4", "--plot"]) == 0
    out = capsys.readouterr().out
    assert "engine native, 3 steps of 4 words" in out
    found = re.search(r"60 held-out words of 1 to 8 digits: ([\d.]+)% read .* \(([\d.]+)% label error rate", out)
    assert found
    assert "held-out words of 8 digits" in out
    names = {"reader.npz", "words.png", "curves.png", "lattice.png", "alignment.png"}
    assert set(os.listdir(quick / "reader-run")) == names
    for name in names - {"reader.npz"}:
        with Image.open(quick / "reader-run" / name) as image:
            assert image.width > 400
            assert len(image.convert("RGB").getcolors(1 << 24)) > 20
    Image.fromarray(np.tri(60, 90, dtype=np.uint8) * 200 + 20).save(quick / "image.png")
    assert main(["--predict", "image.png", "--plot", "--beam", "5"]) == 0
    assert re.fullmatch(r"(\d+|nothing was read in image.png)\npicture: .*alignment.png\n", capsys.readouterr().out)


def test_command_reads_mnist(quick, mnist, capsys):
    assert main(["--mnist", str(mnist), "--steps", "2", "--digits", "8", "--attention", "--out", "there"]) == 0
    out = capsys.readouterr().out
    assert "40 digits to train on, 10 held out; attention reader" in out
    assert "60 held-out words of 8 digits" in out
    train, held_out = from_mnist(mnist)
    assert train.images.shape == (40, 16, 16)
    np.testing.assert_array_equal(held_out.images, train.images[:10])
    assert Saved(Path("there/reader.npz")).settings.shortest == 8


@pytest.mark.parametrize("mistake", MISTAKES)
def test_command_makes_mistakes(mistake, quick, mnist, capsys):
    assert main(["--mnist", str(mnist), "--steps", "2", "--batch", "3", "--mistake", mistake, "--plot"]) == 0
    out = capsys.readouterr().out
    assert f"with a mistake on purpose: {mistake}" in out
    assert f"{mistake} looks like this: " in out
    assert ("ctcbind itself refuses such targets: targets[0][2] is 0, which is the blank" in out) == (
        mistake == "padded-with-blank"
    )
    assert "diagnose" in out


def test_command_goes_on_with_a_saved_run(quick, mnist, capsys):
    run = ["--mnist", str(mnist), "--steps", "6", "--batch", "3"]
    assert main([*run, "--out", "through"]) == 0
    through = Saved(Path("through/reader.npz"))
    halted = through_steps(mnist, 3)
    halted.save(Path("halted.npz"))
    capsys.readouterr()
    assert main(["--resume", "halted.npz", "--mnist", str(mnist)]) == 0
    assert "6 steps of 3 words" in capsys.readouterr().out
    resumed = Saved(Path("halted.npz"))
    assert set(resumed.arrays) == set(through.arrays)
    for name in through.arrays:
        if name != "checks":  # the halted run was not checked on its way
            assert resumed.arrays[name].tobytes() == through.arrays[name].tobytes(), name


def test_command_compares_runs(quick, mnist, capsys):
    for name, options in {"right": [], "wrong": ["--mistake", "wrong-T"], "again": []}.items():
        assert main(["--mnist", str(mnist), "--steps", "2", "--batch", "3", "--out", name, *options]) == 0
    assert main(["--compare", "right/reader.npz", "wrong/reader.npz", "again/reader.npz", "--out", "all"]) == 0
    assert capsys.readouterr().out.endswith("picture: all/curves.png\n")
    with Image.open("all/curves.png") as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def through_steps(mnist, count):
    train, _ = from_mnist(mnist)
    settings = Settings(data="mnist", steps=6, batch=3)
    halted = Trainer(
        Reader(Shape(height=train.height, channels=16, units=12), settings.seed), settings, train, "native"
    )
    for _ in range(count):
        halted.step()
    return halted


def test_ctrl_c_stops_cleanly_and_the_run_goes_on_exactly(mnist, tmp_path):
    """A real process, a real signal, after a few steps; then --resume ends in the bits of a run without a stop. The
    progress bar is silent for half a second: so many steps that a fast machine is not through with them by then."""
    start = [sys.executable, "-W", "error", str(TRAIN), "--mnist", str(mnist), "--steps", "200", "--channels", "16"]
    with subprocess.Popen(
        [*start, "--out", "halted"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as process:
        seen = ""
        while not re.search(r"\b[1-9]\d*/200 ", seen):  # the progress bar says that a step was taken
            letter = process.stderr.read(1)
            assert letter, seen
            seen += letter
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)
    assert process.returncode == 130, seen + rest
    assert "Traceback" not in seen + rest
    stopped = re.search(r"stopped after step (\d+) of 200; saved\. To go on: (.*)", out)
    assert stopped, out
    halted = Saved(tmp_path / "halted" / "reader.npz")
    assert halted.steps == int(stopped[1]) < 200
    assert f"--resume halted/reader.npz --mnist {mnist}" in stopped[2]
    environment = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 300, "check": False}
    done = subprocess.run([*start[:4], "--resume", "halted/reader.npz", "--mnist", str(mnist)], **environment)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([*start, "--out", "through"], **environment)
    assert done.returncode == 0, done.stderr
    one, two = Saved(tmp_path / "halted" / "reader.npz"), Saved(tmp_path / "through" / "reader.npz")
    assert set(one.arrays) == set(two.arrays)
    assert not [name for name in one.arrays if one.arrays[name].tobytes() != two.arrays[name].tobytes()]


def test_command_on_a_device(mnist, tmp_path):
    """CuPy arrays and cuDNN from end to end, with the stand-ins of both; the weights are those of the CPU."""
    try:
        library = fake_cudnn.build(tmp_path)
    except fake_cudnn.NoCompilerError as error:
        pytest.skip(str(error))
    packages = tmp_path / "packages"
    packages.mkdir()
    shutil.copy(fake_cupy.__file__, packages / "cupy.py")
    path = os.pathsep.join([str(packages), *filter(None, [os.environ.get("PYTHONPATH")])])
    kernels = str(Path(__file__).resolve().parent / "cuda")
    environment = {**os.environ, "CTCBIND_CUDNN": str(library), "PYTHONPATH": path, "FAKE_CUPY_KERNELS": kernels}
    runs = {"cudnn": ["--engine", "cudnn"], "host": ["--engine", "native", "--device", "gpu"], "cpu": []}
    for name, options in runs.items():
        start = [sys.executable, "-W", "error", str(TRAIN), "--mnist", str(mnist), "--steps", "9", "--channels", "16"]
        done = subprocess.run(
            [*start, "--out", name, *options],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    arrays = {name: Saved(tmp_path / name / "reader.npz").arrays for name in runs}
    for name in ("cudnn", "host"):
        for key in (key for key in arrays["cpu"] if key.startswith("params:")):
            np.testing.assert_allclose(arrays[name][key], arrays["cpu"][key], rtol=0, atol=1e-4, err_msg=key)


# --- bad input gets a sentence ------------------------------------------------------------------------------------


def sentence(capsys, *arguments):
    """What the command says on its way out with status 2."""
    assert main([str(each) for each in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("train.py: ")
    assert "Traceback" not in err
    return err


def spoil(folder, name, data):
    for each in (folder / name, folder / f"{name}.gz"):
        each.unlink(missing_ok=True)
    if data is not None:
        (folder / name).write_bytes(data)


BROKEN = {
    "missing": ("train-images-idx3-ubyte", None, r"neither train-images-idx3-ubyte nor .*\.gz in"),
    "empty": ("train-labels-idx1-ubyte", b"", "has 0 bytes, fewer than the 8 of an idx header"),
    "another kind": ("train-images-idx3-ubyte", b"PK\x03\x04" + bytes(99), "begins with 50 4b 03 04; an idx file"),
    "labels for images": ("t10k-images-idx3-ubyte", idx(np.zeros(30)), "begins with 00 00 08 01"),
    "cut short": ("train-images-idx3-ubyte", idx(np.zeros((40, 16, 16)))[:-1], "says that it holds 40 x 16 x 16 bytes"),
    "sizes that overflow": ("train-images-idx3-ubyte", b"\0\0\x08\x03" + b"\xff" * 12, "4294967295 x 4294967295"),
    "broken gzip": ("t10k-labels-idx1-ubyte", gzip.compress(idx(np.zeros(10)))[:-9], "cannot be read"),
    "too few labels": ("train-labels-idx1-ubyte", idx(np.zeros(39)), "40 train images, but 39 train labels"),
    "a label of 10": ("t10k-labels-idx1-ubyte", idx(np.full(10, 10)), "go up to 10; digits are 0 to 9"),
    "not square": ("train-images-idx3-ubyte", idx(np.zeros((40, 16, 12))), "are 16 by 12; they must be square"),
    "other size": ("t10k-images-idx3-ubyte", idx(np.zeros((10, 20, 20))), "have 16 rows and those held out 20"),
    "no images": ("t10k-images-idx3-ubyte", idx(np.zeros((0, 16, 16))), "has 0 t10k images, but 10"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_mnist(case, mnist, quick, capsys):
    name, data, says = BROKEN[case]
    spoil(mnist, name, data)
    assert re.search(says, sentence(capsys, "--mnist", mnist))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mnist", "nowhere"], "--mnist nowhere: there is no such folder"),
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--batch", "-1"], "--batch is -1; it must be at least 1"),
        (["--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["--beam", "0"], "--beam is 0; it must be at least 1"),
        (["--channels", "7"], "--channels is 7; it must be a multiple of 4"),
        (["--rate", "nan"], "--rate is nan; it must be a number above 0"),
        (["--digits", "8-1"], "--digits is '8-1'; it must be"),
        (["--digits", "x"], "--digits is 'x'; it must be"),
        (["--resume", "nowhere.npz"], "there is no saved reader nowhere.npz"),
        (["--predict", "nowhere.png"], "there is no saved reader reader-run"),
        (["--out", "file/inside"], "--out file/inside cannot be made"),
        (["--device", "gpu"], "--device gpu needs CuPy and a CUDA device"),
    ],
)
def test_bad_arguments(arguments, says, quick, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)  # as where it is not installed
    (quick / "file").write_text("not a folder")
    assert says in sentence(capsys, *arguments)


def test_engines_that_are_not_here(monkeypatch):
    monkeypatch.setenv("CTCBIND_CUDNN", "/nowhere/libcudnn.so.9")
    with pytest.raises(ReaderError, match=r"this ctcbind .* has no engine 'elsewhere'; it has native"):
        Loss("elsewhere")
    missing = [name for name, info in ctcbind.engines().items() if not info.available]
    for name in missing:
        with pytest.raises(ReaderError, match=f"engine '{name}' is not available: "):
            Loss(name)


def test_saved_files_of_another_kind(quick, digits, capsys):
    small = trainer(digits)
    small.step()
    small.save(quick / "good.npz")
    (quick / "text.npz").write_text("not a saved reader")
    (quick / "empty.npz").write_bytes(b"")
    (quick / "cut.npz").write_bytes((quick / "good.npz").read_bytes()[:-400])
    np.savez(quick / "other.npz", weights=np.zeros(3))
    np.save(quick / "array.npy", np.zeros(3))
    arrays = Saved(quick / "good.npz").arrays
    name = next(each for each in arrays if each.startswith("params:") and each.endswith("U"))
    np.savez(quick / "shape.npz", **(arrays | {name: arrays[name][:, 1:]}))
    np.savez(quick / "fewer.npz", **{each: a for each, a in arrays.items() if each != name})
    wide = str(arrays["shape"]).replace('"channels": 16', '"channels": 24')
    np.savez(quick / "wide.npz", **(arrays | {"shape": np.array(wide)}))
    huge = str(arrays["shape"]).replace('"channels": 16', '"channels": 160000000')
    np.savez(quick / "huge.npz", **(arrays | {"shape": np.array(huge)}))
    Image.fromarray(np.tri(60, 90, dtype=np.uint8) * 200).save(quick / "image.png")
    said = {
        "text.npz": "is no saved reader",
        "empty.npz": "is no saved reader",
        "cut.npz": "is no saved reader",
        "other.npz": "is no saved reader: its description is missing",
        "array.npy": "is no saved reader",
        "shape.npz": "does not fit",
        "fewer.npz": "does not fit",
        "wide.npz": "does not fit",
        "huge.npz": "describes a network that this program does not have",
        ".": "is no saved reader",
    }
    for file, says in said.items():
        assert says in sentence(capsys, "--predict", "image.png", "--model", file)
    assert main(["--predict", "image.png", "--model", "good.npz"]) == 0
    capsys.readouterr()
    assert "reads images of 16 rows, and these digits have 20" in sentence(capsys, "--resume", "good.npz")


def test_resume_refuses_what_would_be_another_run(quick, mnist, capsys):
    assert main(["--mnist", str(mnist), "--steps", "2", "--batch", "3", "--out", "run"]) == 0
    capsys.readouterr()
    resume = ["--resume", "run/reader.npz", "--mnist", mnist]
    assert "begun with steps 2; going on with 9 would be another run" in sentence(capsys, *resume, "--steps", 9)
    assert "begun with mistake none; going on with wrong-T" in sentence(capsys, *resume, "--mistake", "wrong-T")
    assert "holds a gru reader, and --attention asks for another" in sentence(capsys, *resume, "--attention")
    assert "holds a reader of 16 channels" in sentence(capsys, *resume, "--channels", 32)
    assert "was trained on MNIST: say where it is" in sentence(capsys, *resume[:2])


def test_images_that_cannot_be_read(tmp_path, rng):
    (tmp_path / "text.png").write_text("not an image")
    Image.new("L", (40, 30), 128).save(tmp_path / "grey.png")
    whole = tmp_path / "whole.png"
    Image.fromarray(rng.integers(0, 255, (60, 90), dtype=np.uint8)).save(whole)
    (tmp_path / "cut.png").write_bytes(whole.read_bytes()[:800])
    line = np.zeros((30, 9000), dtype=np.uint8)
    line[14, 5:-5] = 255
    Image.fromarray(line).save(tmp_path / "long.png")
    said = {
        "nowhere.png": "there is no image",
        "text.png": "not an image",
        "grey.png": "shows nothing: all of its 40 by 30 pixels are of one shade",
        "cut.png": "cannot be read",
        "long.png": "too long a line",
        ".": "cannot be read",
    }
    for name, says in said.items():
        with pytest.raises(ReaderError, match=says):
            pictures.word_from_file(tmp_path / name, 28)


@pytest.mark.parametrize("mode", ["dark on light", "light on dark", "colour", "transparent", "large", "noisy"])
def test_images_of_any_kind_come_out_alike(mode, digits, tmp_path):
    """Ink 1 on paper 0, at the height of the words that were trained on."""
    word = make_words(digits, np.random.default_rng(2), 1, (3, 3), vary=False)[0].image
    ink = np.pad(word, 6)
    if mode in ("large", "noisy"):
        ink = ink.repeat(5, axis=0).repeat(5, axis=1)
    shades = (ink * 200).astype(np.uint8)
    dark = 230 - shades
    if mode == "noisy":  # with specks as dark as a third of the writing, here and there
        noise = np.random.default_rng(3).normal(0, 6, dark.shape)
        noise[::37, ::41] -= 60
        dark = np.clip(dark + noise, 0, 255).astype(np.uint8)
    image = {
        "light on dark": lambda: Image.fromarray(shades + 20),
        "colour": lambda: Image.fromarray(np.stack([dark, dark, 230 - shades // 4], axis=-1)),
        "transparent": lambda: Image.fromarray(np.stack([0 * shades, 0 * shades, 0 * shades, shades], axis=-1), "RGBA"),
    }.get(mode, lambda: Image.fromarray(dark))()
    image.save(tmp_path / "word.png")
    seen = pictures.word_from_file(tmp_path / "word.png", digits.height)
    rows = np.flatnonzero(seen.max(axis=1) > 0.2)
    assert seen.shape[0] == digits.height
    assert rows[-1] - rows[0] + 1 == pytest.approx(digits.height * 20 / 28, abs=1.5)
    assert seen.max() > 0.7
    assert not seen[0].any()
    assert not seen[:, 0].any()


# --- what is written about it -------------------------------------------------------------------------------------

PAGES = {name: EXAMPLES.parent / name for name in ("docs/asymmetry.md", "examples/reader/README.md")}


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_what_they_show(page):
    text = PAGES[page].read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        path = PAGES[page].parent / target
        assert path.exists(), target
        if path.suffix == ".png":
            assert path.stat().st_size < 100_000, target


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_pages_have_the_options_they_use(page):
    known = command.parser()
    text = PAGES[page].read_text(encoding="utf-8").replace("$mistake", "wrong-T")
    used = re.findall(r"examples/reader/train\.py(.*?)(?: +#.*)?$", text, re.MULTILINE)
    assert len(used) >= 2
    for options in used:
        if "--help" not in options:
            known.parse_args(options.split())


def test_python_on_the_page_runs(capsys):
    names = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES["docs/asymmetry.md"].read_text(encoding="utf-8"), re.M | re.S)
    for block in blocks:
        exec(compile(block, "asymmetry.md", "exec"), names)
    quoted = re.findall(r"print\(.*\)  # (.*)", "".join(blocks))
    assert len(blocks) == 2
    assert capsys.readouterr().out.splitlines() == quoted


def test_the_page_quotes_what_ctcbind_says():
    with pytest.raises(ctcbind.InvalidInput) as refused:
        ctcbind.ctc_loss(np.zeros((9, 1, 11)), [[3, 1, 0, 0]])
    text = " ".join(PAGES["docs/asymmetry.md"].read_text(encoding="utf-8").split())
    assert str(refused.value) in text


def test_every_mistake_is_on_the_page():
    text = PAGES["docs/asymmetry.md"].read_text(encoding="utf-8")
    assert set(re.findall(r"^\*\*([\w-]+)\*\*: ", text, re.M)) == set(MISTAKES) == set(command.LOOKS_LIKE)
