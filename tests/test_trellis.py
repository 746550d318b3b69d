"""The lattice of a word as a picture, its command, and the tutorial that walks through it."""

from __future__ import annotations

import doctest
import re
import shlex
import struct
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ctcbind
from ctcbind import trellis
from ctcbind.__main__ import main
from ctcbind.batch import Topology
from ctcbind.trellis import _moves, draw, random_word, scored_word

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("text", ["apple", "orange", "watermelon", "a", "", "aaa", "übüb", "_x-", "a_b", r"$\frac$"])
@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_a_word_on_random_scores(text, topology, folder, capsys):
    pytest.importorskip("matplotlib")
    assert main(["lattice", "--text", text, "--out", "out.png", "--topology", topology]) == 0
    out = capsys.readouterr()
    word = random_word(text, topology=topology)
    loss = ctcbind.ctc_loss(word.logits, [word.labels], topology=topology, engine="reference")[0]
    assert f"loss {loss:.4f} nats" in out.out
    path = re.search(r"best path: (\S+),", out.out).group(1)
    assert len(path) == len(word.logits)
    letters = path if topology == "simple" else "".join(b for a, b in zip(" " + path, path) if a != b)
    assert letters.replace(word.symbols[0], "") == text
    assert out.err == "drawn: out.png\n"
    assert ("\nthe blank is written ·\n" in out.out) == ("-" in text and "_" in text)
    assert ("\nthe blank is written " in out.out) == ("_" in text)
    width, height = png_size(folder / "out.png")
    assert min(width, height) > 200


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_moves_are_those_that_paths_make(topology):
    """From every path of a small lattice, walked without the product's code."""
    from beyond import state_paths

    from ctcbind.engines.reference_lattice import make_graph

    word = random_word("aab", frames=6, topology=topology)
    graph = make_graph(np.array(word.labels, np.int32), 0, merge_repeats=topology == "ctc")
    paths = state_paths(graph, 6)
    right = {(t, int(path[t]), int(path[t + 1])) for path in paths for t in range(5)}
    at, state = (each.reshape(-1, 3) for each in _moves(word, np.exp(word.lattice().log_gamma[0])))
    assert np.isnan(at[:, 2]).all(), "the line has gaps"
    assert np.isnan(state[:, 2]).all()
    assert (at[:, 1] == at[:, 0] + 1).all()
    moves = [(int(t), int(s), int(to)) for t, s, to in zip(at[:, 0], state[:, 0], state[:, 1])]
    assert set(moves) == right
    assert len(moves) == len(right)


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_dots_and_lines_stand_where_the_lattice_says(topology: Topology, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []
    monkeypatch.setattr(trellis, "save", lambda figure, *rest, **options: figures.append(figure))
    word = random_word("abb", frames=5, topology=topology)
    assert draw(word, "word.png")
    (axes,) = figures[0].axes
    gamma = np.exp(word.lattice().log_gamma[0])
    (dots,) = axes.collections
    np.testing.assert_array_equal(dots.get_offsets(), list(np.ndindex(gamma.shape)))
    np.testing.assert_array_equal(dots.get_array(), gamma.ravel())
    np.testing.assert_array_equal(dots.get_edgecolors()[:, 0] < 0.5, gamma.ravel() > 0)
    moves, best = (line.get_data() for line in axes.lines)
    np.testing.assert_array_equal(moves, _moves(word, gamma))
    np.testing.assert_array_equal(best, (range(5), word.best_path().states[0]))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["_", "a", "_", "b", "_", "b", "_"]
    assert (axes.get_xlim(), axes.get_ylim()) == ((-0.6, 4.6), (6.6, -0.6))


def test_a_long_word_is_drawn_in_seconds_and_not_too_large(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    began = time.monotonic()
    assert main(["lattice", "--text", "abcdefgh" * 12, "--out", str(tmp_path / "long.png")]) == 0
    assert time.monotonic() - began < 30, "a line for each of its moves takes minutes"
    assert max(png_size(tmp_path / "long.png")) < 8000
    assert ", 0.0%" not in capsys.readouterr().out, "the share of the best path is small, not none"


def test_scores_of_no_frame(folder, capsys):
    pytest.importorskip("matplotlib")
    np.savez("none.npz", logits=np.zeros((0, 4)), symbols="-abc")
    assert main(["lattice", "none.npz", "--text", "a", "--out", "out.png"]) == 0
    assert "0 time steps" in capsys.readouterr().out


def test_the_loss_of_a_certain_word_has_no_sign(folder, capsys):
    pytest.importorskip("matplotlib")
    assert main(["lattice", "--text", "", "--frames", "3", "--out", "out.svg"]) == 0
    assert "1 state, loss 0.0000 nats" in capsys.readouterr().out
    assert ": loss 0.000 nats" in Path("out.svg").read_text(encoding="utf-8")


def test_letters_that_the_font_lacks_are_told_in_a_word(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["lattice", "--text", "\u4f60\u597d", "--out", str(tmp_path / "word.png")]) == 0
    assert "lacks some of the letters" in capsys.readouterr().err
    assert main(["lattice", "--text", "ab", "--out", str(tmp_path / "word.png")]) == 0
    assert "lacks" not in capsys.readouterr().err


def test_scores_of_a_file(folder, capsys):
    pytest.importorskip("matplotlib")
    logits = 9 * np.eye(4)[[0, 1, 1, 0, 2, 3]]
    np.savez("scores.npz", logits=logits, symbols="-abc")
    assert main(["lattice", "scores.npz", "--text", "abc", "--out", "out.svg"]) == 0
    assert "best path: -aa-bc," in capsys.readouterr().out
    assert (folder / "out.svg").read_text(encoding="utf-8").startswith("<?xml")
    np.savez("last.npz", logits=np.roll(logits, -1, axis=1)[:, None], symbols=np.array(["a", "b", "c", "~"]), blank=3)
    word = scored_word("abc", "last.npz")
    assert word.spell(word.best_path().classes[0]) == "~aa~bc"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("lattice --text apple --out out.png --frames 5", "5 frames cannot hold 'apple': it needs 6"),
        ("lattice --text aa --out out.png --frames 1", "1 frame cannot hold 'aa': it needs 3, one for each letter and"),
        ("lattice --text aa --out out.png --frames 1 --topology simple", "it needs 2, one for each letter\n"),
        ("lattice --text apple --out out.txt", "must end in .png"),
        ("lattice --text apple --out nowhere/out.png", "there is no folder"),
        ("lattice --text apple --out out.png --seed -1", "--seed is -1"),
        ("lattice none.npz --text apple --out out.png", "there is no file none.npz"),
        ("lattice ok.npz --text abx --out out.png", "'x' of 'abx' is not among 'symbols'"),
        ("lattice bytes.npz --text ab --out out.png", "'symbols' in bytes.npz are bytes; they must be text"),
        ("lattice twice.npz --text ab --out out.png", "'a' stands in 'symbols' in twice.npz twice"),
        ("lattice ok.npz --text ab --out out.png --frames 9", "--frames is for random scores"),
        ("lattice ok.npz --text a- --out out.png", "which is the blank"),
        (
            "lattice short.npz --text ab --out out.png",
            "'symbols' in short.npz name 2 classes, but the logits have C = 3",
        ),
        ("lattice batch.npz --text ab --out out.png", "one word needs (T, C) or (T, 1, C)"),
        ("lattice plain.npz --text ab --out out.png", "holds no 'symbols' (it holds logits); it must have logits and"),
        (
            "lattice other.npz --text ab --out out.png",
            "holds 'symbol', which means nothing here; did you mean 'symbols'?",
        ),
    ],
)
def test_wrong_input(words, told, capsys):
    pytest.importorskip("matplotlib")
    logits = np.zeros((6, 3))
    np.savez("ok.npz", logits=logits, symbols="-ab")
    np.savez("short.npz", logits=logits, symbols="-a")
    np.savez("batch.npz", logits=np.zeros((6, 2, 3)), symbols="-ab")
    np.savez("plain.npz", logits=logits)
    np.savez("other.npz", logits=logits, symbol="-ab")
    np.savez("bytes.npz", logits=logits, symbols=[b"-", b"a", b"b"])
    np.savez("twice.npz", logits=np.zeros((6, 4)), symbols="-aab")
    assert main(shlex.split(words)) == 2
    assert told in capsys.readouterr().err
    assert not Path("out.png").exists()


def test_a_word_without_a_path(capsys):
    pytest.importorskip("matplotlib")
    np.savez("few.npz", logits=np.zeros((2, 3)), symbols="-ab")
    assert main(["lattice", "few.npz", "--text", "aab", "--out", "out.png"]) == 0
    assert "sample 0 has no path: 3 labels and 1 repeat need 4 frames, and it has 2" in capsys.readouterr().out
    assert main(["lattice", "few.npz", "--text", "aa", "--topology", "simple", "--out", "out.png"]) == 0
    assert "aa: 2 time steps, 5 states, loss 2.1972 nats\nbest path: aa," in capsys.readouterr().out  # ln 9


@pytest.mark.parametrize(
    "words",
    [["compare", "--engines", "native", "--plot"], ["diagnose", "ab.npz", "--plot"], ["lattice", "--text=a", "--out"]],
)
def test_a_file_that_cannot_be_written(folder, capsys, words):
    pytest.importorskip("matplotlib")
    np.savez("ab.npz", logits=np.zeros((4, 1, 3)), targets=[[1, 2]])
    (folder / "out.png").mkdir()
    assert main([*words, "out.png"]) == 2
    assert "the plot out.png cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "told"), [(-np.inf, "logits of -inf forbid every one"), (np.nan, "class 1 is nan (and 5 more)")]
)
def test_a_word_whose_scores_forbid_it(capsys, value, told):
    pytest.importorskip("matplotlib")
    logits = np.zeros((6, 3))
    logits[:, 1] = value
    np.savez("masked.npz", logits=logits, symbols="-ab")
    assert main(["lattice", "masked.npz", "--text", "ab", "--out", "out.png"]) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("blank", [2.7, True, "x", 3])
def test_a_blank_that_is_none(capsys, blank):
    np.savez("blank.npz", logits=np.zeros((6, 3)), symbols="-ab", blank=blank)
    assert main(["lattice", "blank.npz", "--text", "ab", "--out", "out.png"]) == 2
    assert f"blank is {blank!r}" in capsys.readouterr().err
    assert not Path("out.png").exists()


def test_text_that_no_encoding_has(capsys):
    assert main(["lattice", "--text", "a\udcff", "--out", "out.png"]) == 2
    assert "--text cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["5", "0"])
@pytest.mark.parametrize("option", ["--seed", "--frames"])
def test_a_seed_or_frames_beside_scores_are_refused(capsys, option, value):
    np.savez("word.npz", logits=np.zeros((6, 3)), symbols="-ab")
    assert main(["lattice", "word.npz", "--text", "ab", option, value, "--out", "out.png"]) == 2
    assert f"{option} is for random scores" in capsys.readouterr().err


def test_seed_and_frames_reach_the_random_scores(capsys):
    pytest.importorskip("matplotlib")
    told = []
    for options in ([], ["--seed", "0"], ["--seed", "3"], ["--frames", "9"]):
        assert main(["lattice", "--text", "ab", "--out", "out.png", *options]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    for text, word in ((told[2], random_word("ab", seed=3)), (told[3], random_word("ab", frames=9))):
        loss = ctcbind.ctc_loss(word.logits, [word.labels], engine="reference")[0]
        assert text.startswith(f"ab: {len(word.logits)} time steps, 5 states, loss {loss:.4f} nats\n")


def test_the_share_of_the_best_path(capsys):
    """Of two frames that spell one letter there are three paths: their probabilities are worked out here."""
    pytest.importorskip("matplotlib")
    p = np.array([[0.2, 0.8], [0.9, 0.1]])
    every = p[0, 1] * p[1, 0], p[0, 1] * p[1, 1], p[0, 0] * p[1, 1]
    np.savez("two.npz", logits=np.log(p), symbols="-a")
    assert main(["lattice", "two.npz", "--text", "a", "--out", "out.png"]) == 0
    percent = 100 * max(every) / sum(every)
    told = f"best path: a-, ln p {np.log(max(every)):.4f}, {percent:.1f}% of all paths' probability\n"
    assert told in capsys.readouterr().out
    np.savez("sure.npz", logits=[[0.0, 0.0, -np.inf], [0.0, -np.inf, -np.inf]], symbols="-ab")
    assert main(["lattice", "sure.npz", "--text", "a", "--out", "out.png"]) == 0
    assert "best path: a-, ln p -0.6931, 100.0% of" in capsys.readouterr().out


def test_the_tutorial_computes_its_numbers():
    result = doctest.testfile(str(TUTORIAL), module_relative=False, encoding="utf-8")
    assert result.attempted > 50
    assert result.failed == 0


def test_the_tutorials_pictures_and_commands(folder):
    pytest.importorskip("matplotlib")
    text = TUTORIAL.read_text(encoding="utf-8")
    pictures = re.findall(r"!\[[^]]*\]\((\w+)\.png\)", text)
    assert pictures == ["apple", "orange", "watermelon"]
    for word in pictures:
        assert main(["lattice", "--text", word, "--out", f"{word}.png"]) == 0
        # as many states and steps make as large a picture, give or take what fonts do
        np.testing.assert_allclose(
            png_size(folder / f"{word}.png"), png_size(TUTORIAL.parent / f"{word}.png"), rtol=0.1
        )
    assert re.findall(r"`ctcbind (lattice [^`]*)`", text) == ["lattice --text apple --out apple.png"]
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (TUTORIAL.parent / target).exists(), target
