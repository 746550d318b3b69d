"""examples/lines as a command: what it makes, how it stops and goes on, what it says to bad input; and its page."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageDraw

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from lines import command, corpus, iam  # noqa: E402
from lines.command import main  # noqa: E402
from lines.training import Saved, Settings  # noqa: E402
from lines_lab import EXAMPLES, TINY, TRAIN, same, trainer  # noqa: E402
from reader.errors import ReaderError  # noqa: E402

pytest_plugins = ["lines_fixture"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """A command that trains a tiny network and tries it on few lines, in a folder of its own, with three fonts."""
    import matplotlib

    own = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    (tmp_path / "fonts").mkdir()
    for name in ("DejaVuSans.ttf", "DejaVuSerif.ttf", "STIXGeneral.ttf"):
        shutil.copy(own / name, tmp_path / "fonts")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(corpus, "HELD_OUT", 12)
    return tmp_path


SMALL = ["--fonts", "fonts", "--channels", "2", "--units", "8", "--batch", "3"]


def test_command_trains_draws_and_reads(quick, capsys):
    assert main([*SMALL, "--steps", "3", "--plot", "--beam", "3"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"lines of 2 fonts \(\w{8}\), 24 held out; 68 characters; a network with [\d,]+ weights", out)
    assert "loss and gradient from ctcbind; 3 steps of 3 lines" in out
    for kind in ("of words never trained on", "of such words in fonts never trained on"):
        assert re.search(rf"12 lines {kind}: CER [\d.]+%, WER [\d.]+% \(beam search, width 3\)", out)
    assert re.search(r"in the loss and its gradient: [\d.]+ ms a step \(median\), [\d.]+% of the training", out)
    names = {"lines.pt", "lines.png", "curves.png", "alignment.png"}
    assert {path.name for path in Path("lines-run").iterdir()} == names
    for name in names - {"lines.pt"}:
        with Image.open(Path("lines-run") / name) as image:
            assert len(image.convert("RGB").getcolors(1 << 24)) > 20
    Image.fromarray(np.tri(60, 90, dtype=np.uint8) * 200 + 20).save("image.png")
    assert main(["--predict", "image.png", "--plot"]) == 0
    assert re.fullmatch(r".+\npicture: .*alignment.png\n", capsys.readouterr().out)


def test_command_compares_the_losses(quick, capsys):
    assert main([*SMALL, "--steps", "4", "--compare"]) == 0
    out = capsys.readouterr().out
    assert "loss and gradient from ctcbind and from torch" in out
    rows = re.findall(r"^(ctcbind|torch) +([\d.]+) +([\d.]+)% +([\d.]+)% +([\d.]+)%$", out, re.M)
    assert [row[0] for row in rows] == ["ctcbind", "torch"]
    apart = re.search(r"differ by at most ([\de.+-]+) in the first 4 steps; .* are ([\d.]+) and ([\d.]+) nats", out)
    assert float(apart[1]) < 0.01
    assert float(apart[2]) == pytest.approx(float(apart[3]), rel=1e-3)
    assert Path("lines-run/curves.png").stat().st_size > 1000


def test_command_goes_on_with_a_saved_run(quick, capsys):
    run = [*SMALL, "--steps", "6"]
    assert main([*run, "--out", "through"]) == 0
    found = corpus.from_fonts(Path("fonts"), Settings.words)
    halted = command.begin(found, Settings(steps=6, batch=3), TINY)
    for _ in range(3):
        halted.step()
    halted.save(Path("halted.pt"))
    assert main(["--resume", "halted.pt", "--fonts", "fonts"]) == 0
    one, two = (torch.load(path, weights_only=True) for path in ("through/lines.pt", "halted.pt"))
    assert len(two["history"]) == 6
    assert torch.equal(one["history"][:, :3], two["history"][:, :3])
    assert same(one["network"], two["network"])
    capsys.readouterr()
    assert "begun with steps 6; going on with 9 would be another" in sentence(
        capsys, "--resume", "halted.pt", "--fonts", "fonts", "--steps", "9"
    )
    assert "begun with units 8; going on" in sentence(capsys, "--resume", "halted.pt", "--units", "9")
    (quick / "fonts" / "STIXGeneral.ttf").unlink()
    assert re.search(
        r"was trained on 2 fonts .*; here there is 1 font", sentence(capsys, "--resume", "halted.pt", *SMALL[:2])
    )


def test_ctrl_c_stops_cleanly(quick):
    """A real process, a real signal, after a step."""
    start = [
        sys.executable,
        "-W",
        "error",
        str(TRAIN),
        *SMALL,
        "--steps",
        "5000",
        "--out",
        "halted here",
        "--beam",
        "3",
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(start, text=True, bufsize=1, **pipes) as process:
        seen = ""
        while not re.search(r"\b[1-9]\d*/5000 ", seen):  # the progress bar says that a step was taken
            letter = process.stderr.read(1)
            assert letter, seen
            seen += letter
        process.send_signal(signal.SIGINT)
        out, rest = process.communicate(timeout=120)
    assert process.returncode == 130, seen + rest
    assert "Traceback" not in seen + rest
    stopped = re.search(r"stopped after step (\d+) of 5000; saved\. To go on: python (.*)", out)
    assert stopped, out
    saved = "halted here/lines.pt"
    told = ["--resume", saved, "--fonts", "fonts", "--out", "halted here", "--beam", "3"]
    assert shlex.split(stopped[2]) == [str(TRAIN), *told]
    assert len(Saved(Path(saved)).parts["history"]) == int(stopped[1])


def test_without_pytorch_there_is_a_sentence(tmp_path):
    """An isolated Python that finds none of the packages."""
    done = subprocess.run([sys.executable, "-I", "-S", str(TRAIN)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("train.py: torch and matplotlib and PIL and tqdm cannot be found: pip install")


# --- IAM ----------------------------------------------------------------------------------------------------------

ROW = "{name} ok 154 19 408 746 1661 89 {words}"


@pytest.fixture
def scanned(quick, source):
    """Six lines of three forms in IAM's format, dark on light."""
    rows = ["#--- lines.txt ---#", "#", ""]
    for form in ("a01-000u", "a01-003x", "b04-010"):
        for number in range(2):
            name = f"{form}-{number:02}"
            path = quick / "iam" / "lines" / form[:3] / form / f"{name}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.new("L", (300, 60), 230)
            ImageDraw.Draw(picture).text((10, 8), "Good ink, 7!", fill=30, font=source.faces[0].font)
            picture.save(path)
            rows.append(ROW.format(name=name, words="Good|ink|,|7|!"))
    (quick / "iam" / "lines.txt").write_text("\n".join(rows) + "\n")
    return quick / "iam"


def test_iam_is_read(scanned, capsys):
    train, held_out = iam.read(scanned, lambda each, **_: each)
    assert [said for _, said in train.lines] == ["Good ink , 7 !"] * 4
    assert [line.text for line in held_out] == ["Good ink , 7 !"] * 2
    ink, _ = train.lines[0]
    assert ink.dtype == np.uint8
    assert ink.max() == 255
    with Image.open(scanned / "lines" / "a01" / "a01-003x" / "a01-003x-00.png") as picture:
        rows, columns = np.nonzero(np.asarray(picture) < 200)
    assert ink.shape == (pytest.approx(np.ptp(rows) + 1, abs=2), pytest.approx(np.ptp(columns) + 1, abs=2))
    assert main(["--iam", str(scanned), *SMALL[2:], "--steps", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"lines of 4 lines of IAM \(\w{8}\), 2 held out; 10 characters", out)
    assert "2 lines of forms never trained on: CER" in out
    assert Saved(Path("lines-run/lines.pt")).alphabet == " !,7Gdikno"
    assert "say where it is with --iam DIR" in sentence(capsys, "--resume", "lines-run/lines.pt")
    (scanned / "ascii").mkdir()
    (scanned / "lines.txt").rename(scanned / "ascii" / "lines.txt")
    assert len(iam.read(scanned, lambda each, **_: each)[1]) == 2


def sentence(capsys, *arguments):
    """What the command says on its way out with status 2."""
    assert main([str(each) for each in arguments]) == 2
    err = capsys.readouterr().err.rpartition("\r")[2]
    assert "train.py: " in err
    assert "Traceback" not in err
    return err


BROKEN = {
    "too few fields": ("a01-000u-00 ok 154 19 408", r"lines\.txt, line 1 has 5 fields where 9 belong"),
    "another format": (ROW.format(name="a01.png", words="A"), r"line 1 begins 'a01\.png ok .*' and not like"),
    "neither ok nor err": (ROW.format(name="a01-000u-00", words="A").replace("ok", "OK"), "not like 'a01-000u-00 ok'"),
    "a way out of the folder": (ROW.format(name="../..-a-00", words="A"), "and not like"),
    "no words": (ROW.format(name="a01-000u-00", words="|"), "line 1 has no words"),
    "nothing": ("# nothing\n", "lists no lines"),
    "one form": (ROW.format(name="a01-000u-00", words="A"), "has lines of one form, a01-000u"),
    "no text": (b"a01-000u-00 ok \xff\xfe", "cannot be read: .*utf-8"),
    "images missing": (
        "\n".join(ROW.format(name=name, words="A") for name in ("a01-000u-00", "a01-003x-00", "z99-000-00")),
        r"1 of the 3 images are missing, the first of them .*z99-000-00\.png",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_lines_txt(case, scanned, capsys):
    data, says = BROKEN[case]
    (scanned / "lines.txt").write_bytes(data if isinstance(data, bytes) else data.encode())
    assert re.search(says, sentence(capsys, "--iam", scanned))


def test_images_that_cannot_be_read(scanned, capsys):
    path = scanned / "lines" / "a01" / "a01-000u" / "a01-000u-00.png"
    whole = path.read_bytes()
    for data, says in ((b"not an image", "is not an image of a kind that Pillow"), (whole[:200], "cannot be read")):
        path.write_bytes(data)
        assert says in sentence(capsys, "--iam", scanned)
    Image.new("L", (300, 60), 128).save(path)
    assert "shows nothing" in sentence(capsys, "--iam", scanned)
    line = np.zeros((30, 9000), dtype=np.uint8)
    line[14, 5:-5] = 255
    Image.fromarray(line).save(path)
    assert "which is no line of text" in sentence(capsys, "--iam", scanned)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--iam", "nowhere"], "--iam nowhere: there is no such folder"),
        (["--iam", "empty"], "has neither lines.txt nor ascii/lines.txt"),
        (["--fonts", "nowhere"], "--fonts nowhere: there is no such folder"),
        (["--fonts", "empty"], "there is no font in empty that has every letter"),
        (["--steps", "0"], "--steps is 0; it must be at least 1"),
        (["--batch", "-1"], "--batch is -1; it must be at least 1"),
        (["--words", "0"], "--words is 0; it must be at least 1"),
        (["--seed", "-1"], "--seed is -1; it must be at least 0"),
        (["--beam", "0"], "--beam is 0; it must be an integer from 1 to 2**30 - 1"),
        (["--beam", str(2**30)], f"--beam is {2**30}; it must be an integer from 1 to 2**30 - 1"),
        (["--threads", "0"], "--threads is 0; it must be at least 1"),
        (["--rate", "nan"], "--rate is nan; it must be a number above 0"),
        (["--units", "0"], "--units is 0; it must be a number from 1 to 1024"),
        (["--resume", "nowhere.pt"], "there is no saved reader nowhere.pt"),
        (["--predict", "nowhere.png"], "there is no saved reader lines-run"),
        (["--out", "file/inside"], "--out file/inside cannot be made"),
        (["--compare", "--loss", "torch"], "--compare and --loss do not go together"),
        (["--iam", "empty", "--fonts", "fonts"], "--iam and --fonts do not go together"),
    ],
)
def test_bad_arguments(arguments, says, quick, capsys):
    (quick / "file").write_text("not a folder")
    (quick / "empty").mkdir()
    (quick / "empty" / "broken.ttf").write_bytes(b"not a font")
    assert says in sentence(capsys, *arguments)


def test_saved_files_of_another_kind(quick, source, capsys):
    small = trainer(source)
    small.step()
    small.save(Path("good.pt"))
    Path("text.pt").write_text("not a saved reader")
    Path("empty.pt").write_bytes(b"")
    Path("cut.pt").write_bytes(Path("good.pt").read_bytes()[:-900])
    torch.save({"weights": torch.zeros(3)}, "other.pt")
    torch.save(SimpleNamespace(a=1), "code.pt")
    parts = torch.load("good.pt", weights_only=True)

    def save(name, **changes):
        torch.save({key: value for key, value in (parts | changes).items() if value is not None}, name)

    weights = parts["network"]
    save("shape.pt", network=weights | {"dense.weight": weights["dense.weight"][:, 1:].clone()})
    save("fewer.pt", network={name: value for name, value in weights.items() if name != "dense.bias"})
    save("wide.pt", shape=parts["shape"] | {"channels": 24})
    save("huge.pt", shape=parts["shape"] | {"channels": 1 << 30})
    save("fields.pt", shape=parts["shape"] | {"colour": 1})
    save("letters.pt", alphabet="abc")
    save("bare.pt", settings=None)
    Image.fromarray(np.tri(60, 90, dtype=np.uint8) * 200).save("image.png")
    said = {
        "text.pt": "is no saved reader",
        "empty.pt": "is no saved reader",
        "cut.pt": "is no saved reader",
        "other.pt": "is no saved reader of this program",
        "code.pt": "is no saved reader",
        "shape.pt": "does not fit Shape",
        "fewer.pt": "does not fit Shape",
        "wide.pt": "does not fit Shape",
        "huge.pt": "describes a network that this program does not have",
        "fields.pt": "its description is missing or another's",
        "letters.pt": "69 classes do not fit an alphabet of 3",
        "bare.pt": "its description is missing or another's",
        ".": "is no saved reader",
    }
    for file, says in said.items():
        assert says in sentence(capsys, "--predict", "image.png", "--model", file), file
    assert main(["--predict", "image.png", "--model", "good.pt"]) == 0
    save("steps.pt", adam={"state": {}, "param_groups": []})
    with pytest.raises(ReaderError, match="does not hold a run that could go on"):
        Saved(Path("steps.pt")).trainer(small.stream)


# --- what is written about it -------------------------------------------------------------------------------------

PAGE = EXAMPLES / "lines" / "README.md"


def test_the_page_has_what_it_shows():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGE.read_text(encoding="utf-8")):
        path = PAGE.parent / target
        assert path.exists(), target
        if path.suffix == ".png":
            assert path.stat().st_size < 100_000, target


def test_commands_on_the_page_have_the_options_they_use():
    used = re.findall(r"examples/lines/train\.py(.*?)(?: +#.*)?$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(used) >= 4
    for options in used:
        if "--help" not in options:
            command.parser().parse_args(options.split())
