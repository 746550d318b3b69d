"""examples/reader as a command: what it makes, how it stops and goes on, and what it says to bad input."""

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import fake_cudnn
import fake_cupy
import numpy as np
import pytest
from PIL import Image

import ctcbind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader import pictures
from reader.command import main
from reader.digits import from_mnist
from reader.errors import ReaderError
from reader.loss import Loss
from reader.mistakes import MISTAKES
from reader.network import Shape
from reader.training import Reader, Saved, Settings, Trainer
from reader.words import make_words
from reader_lab import TRAIN, idx, trainer

pytest_plugins = ["reader_fixture"]


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
        [*start, "--out", "halted here", "--plot"],
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
    halted = Saved(tmp_path / "halted here" / "reader.npz")
    assert halted.steps == int(stopped[1]) < 200
    python, *again = shlex.split(stopped[2])
    told = ["--resume", "halted here/reader.npz", "--mnist", str(mnist), "--out", "halted here", "--plot"]
    assert (python, again) == ("python", [str(TRAIN), *told])
    environment = {"capture_output": True, "text": True, "cwd": tmp_path, "timeout": 300, "check": False}
    done = subprocess.run([*start[:3], *again], **environment)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "reader-run").exists()
    assert (tmp_path / "halted here" / "lattice.png").exists()
    done = subprocess.run([*start, "--out", "through"], **environment)
    assert done.returncode == 0, done.stderr
    one, two = Saved(tmp_path / "halted here" / "reader.npz"), Saved(tmp_path / "through" / "reader.npz")
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
        (["--beam", "0"], "--beam is 0; it must be an integer from 1 to 2**30 - 1"),
        (["--beam", str(2**30)], f"--beam is {2**30}; it must be an integer from 1 to 2**30 - 1"),
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
