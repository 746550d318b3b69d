"""Calls as Theano and tf-seq2seq-losses had them, beside Theano's own figures and the library itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ctcbind
from ctcbind.compat import classic_ctc_loss, config, ctc, simple_ctc_loss, simplified_ctc_loss

HERE = Path(__file__).resolve().parent


# --- Theano ---------------------------------------------------------------------------------------------------


def theanos_vectors():
    text = (HERE / "vectors" / "theano.json").read_text(encoding="utf-8")
    return [case for case in json.loads(text)["cases"] if case["published"]]


@pytest.mark.parametrize("case", theanos_vectors(), ids=lambda case: case["name"])
def test_theanos_own_cases(case):
    width = max(map(len, case["labels"]))
    labels = [row + [-1] * (width - len(row)) for row in case["labels"]]
    activations = np.array(case["logits"], np.float32)
    for given in (labels, np.array(labels, np.int32), np.array(labels)):
        costs = ctc(activations, given, np.array(case["input_lengths"], np.int32))
        np.testing.assert_allclose(costs, case["published"], rtol=1e-6)  # float32 figures
        again, gradients = ctc(activations, given, case["input_lengths"], gradient=True)
        np.testing.assert_array_equal(again, costs)
        right = ctcbind.ctc_loss_and_grad(activations, case["labels"], case["input_lengths"]).grad
        np.testing.assert_array_equal(gradients, right)


def test_there_are_cases_of_theano():
    assert theanos_vectors()


def test_negative_labels_are_ignored_wherever_they_stand():
    """theano/tensor/nnet/c_code/ctc_wrapper.c counts and keeps what is not negative."""
    x = np.random.default_rng(0).normal(size=(7, 3, 4))
    table = np.array([[-1, 1, -7, 2], [3, -1, -1, 3], [-1, -1, -1, -1]])
    np.testing.assert_array_equal(ctc(x, table, [7, 6, 5]), ctcbind.ctc_loss(x, [[1, 2], [3, 3], []], [7, 6, 5]))


def test_labels_between_much_padding_keep_their_order(rng):
    """NumPy's own sort keeps that of few numbers only."""
    table = rng.integers(1, 9, (3, 60)) * rng.choice([1, -1], (3, 60))
    x, rows = rng.normal(size=(120, 3, 9)), [row[row > 0].tolist() for row in table]
    np.testing.assert_array_equal(ctc(x, table, [120] * 3), ctcbind.ctc_loss(x, rows))


def test_gradient_only_on_demand(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a gradient was computed")

    monkeypatch.setattr("ctcbind.compat.ctc_loss_and_grad", refuse)
    assert ctc(np.zeros((4, 1, 3)), [[1, 2]], [4]).shape == (1,)
    with pytest.raises(AssertionError, match="a gradient was computed"):
        ctc(np.zeros((4, 1, 3)), [[1, 2]], [4], gradient=True)
    with pytest.raises(ctcbind.InvalidInput, match=r"gradient is 'no' \(str\); it must be True or False"):
        ctc(np.zeros((4, 1, 3)), [[1, 2]], [4], gradient="no")


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        ([[1, 2], [1]], "targets_count"),
        (np.ones((2, 2), int), "targets_count"),
        ([[0, 1]], "label_blank"),
        ([[1, 3]], "label_range"),
        ([[1.5, 2.0]], "integers"),
        ([1, 2], "target_lengths_missing"),
        (np.ones((1, 1, 2), int), "targets_rank"),
        (np.ma.masked_array([[1, 2]], mask=[[False, True]]), "integers"),
        ([[-1, 1], [1, 2]], "targets_count"),
    ],
)
def test_wrong_labels_meet_the_same_checks(labels, rule):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc(np.zeros((4, 1, 3)), labels, [4])
    assert caught.value.rule == rule


def test_padding_does_not_move_what_is_named():
    with pytest.raises(ctcbind.InvalidInput, match=r"targets\[1\]\[0\] is 3, but there are 3 classes"):
        ctc(np.zeros((4, 2, 3)), [[1, -1], [3, 1]], [4, 4])


def test_a_blank_among_labels_is_no_padding():
    with pytest.raises(ctcbind.InvalidInput, match=r"targets\[0\]\[0\] is 0, which is the blank"):
        ctc(np.zeros((4, 1, 3)), [[0, 1]], [4])


def test_ragged_rows_need_no_padding():
    x = np.zeros((4, 2, 3))
    np.testing.assert_array_equal(ctc(x, [[1, 2], [1]], [4, 4]), ctc(x, [[1, 2], [1, -1]], [4, 4]))


@pytest.mark.parametrize("kind", ["torch", "memoryview", "jax"])
def test_arrays_of_other_kinds(kind):
    x, labels, lengths = np.zeros((4, 2, 3), np.float32), np.array([[1, 2], [1, -1]]), np.array([4, 4])
    if kind == "memoryview":
        make = memoryview
    else:
        pytest.importorskip(kind)
        make = __import__("torch").from_numpy if kind == "torch" else __import__("jax.numpy").numpy.asarray
    costs, gradients = ctc(make(x), make(labels), make(lengths), gradient=True)
    assert type(costs) is type(gradients) is type(make(x))
    np.testing.assert_array_equal(np.asarray(costs), ctc(x, labels, lengths))


# --- config.ctc.root --------------------------------------------------------------------------------------------


def test_a_root_without_a_library(tmp_path, monkeypatch):
    monkeypatch.setenv("CTCBIND_WARPCTC", "as before")
    with pytest.raises(ctcbind.InvalidInput, match=r"none of .*build, .*lib, .*lib64"):
        config.ctc.root = tmp_path
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "libwarpctc.so").write_bytes(b"no library")
    with pytest.raises((ctcbind.EngineUnavailable, ctcbind.InvalidInput)):  # the second where one is loaded already
        config.ctc.root = tmp_path
    assert config.ctc.root == ""
    assert os.environ["CTCBIND_WARPCTC"] == "as before"
    config.ctc.root = ""
    assert os.environ["CTCBIND_WARPCTC"] == "as before"


@pytest.mark.parametrize("part", ["build", "lib", "lib64", ""])
def test_a_root_holds_its_library_there_or_below(tmp_path, monkeypatch, part):
    (tmp_path / part).mkdir(exist_ok=True)
    (tmp_path / part / "libwarpctc.so").mkdir()
    with pytest.raises(ctcbind.InvalidInput, match="none of"):  # a folder of its name is no library
        config.ctc._library(tmp_path)
    (tmp_path / part / "libwarpctc.dylib").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for root in (tmp_path, "."):  # which means another folder after the next chdir
        assert config.ctc._library(root) == str(tmp_path / part / "libwarpctc.dylib")


def test_a_root_without_a_library_names_each_place_once(tmp_path):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        config.ctc._library(tmp_path)
    places = ", ".join(str(tmp_path / part) for part in ("build", "lib", "lib64", ""))
    assert str(caught.value) == (
        f"config.ctc.root is {str(tmp_path)!r}, but none of {places} holds libwarpctc.so or libwarpctc.dylib or "
        "warpctc.dll"
    )
    assert (caught.value.rule, caught.value.value) == ("root", str(tmp_path))


def test_a_root_is_the_finders_override(tmp_path):
    """In a process of its own, for a process keeps the warp-ctc that it loads first."""
    from warpctc_lab import build

    for name in ("one", "two"):
        (tmp_path / name / "build").mkdir(parents=True)
    (tmp_path / "made").mkdir()
    library = build(tmp_path / "made")
    for name in ("one", "two"):
        (tmp_path / name / "build" / "libwarpctc.so").write_bytes(library.read_bytes())
    script = """
import os, sys, numpy as np, ctcbind
from ctcbind.compat import config, ctc
one, two = sys.argv[1:]
native = ctc(np.zeros((4, 1, 3), np.float32), [[1, 2]], [4])
for _ in range(2):  # the second must not take the first's override for what was there before
    config.ctc.root = one
    assert config.ctc.root == one
assert ctcbind.engines()["warpctc"].library == os.path.join(one, "build", "libwarpctc.so")
costs = ctc(np.zeros((4, 1, 3), np.float32), [[1, 2]], [4])
assert costs != native, "the stand-in computes nothing, so this was another engine"
assert ctc(np.zeros((4, 1, 3), np.float32), [[1, 2]], [4], gradient=True)[0] != native
try:
    config.ctc.root = two
except ctcbind.InvalidInput as error:
    assert "has loaded" in str(error) and "one" in str(error)
else:
    raise AssertionError
for refused in (os.path.join(one, "nowhere"), None):
    try:
        config.ctc.root = refused
    except (ctcbind.InvalidInput, TypeError):
        pass
    else:
        raise AssertionError
assert config.ctc.root == one and os.environ["CTCBIND_WARPCTC"] == os.path.join(one, "build", "libwarpctc.so")
assert ctc(np.zeros((4, 1, 3), np.float32), [[1, 2]], [4]) != native
config.ctc.root = ""
assert config.ctc.root == "" and "CTCBIND_WARPCTC" not in os.environ
os.environ["CTCBIND_WARPCTC"] = "as before"
config.ctc.root = one
config.ctc.root = ""
assert os.environ["CTCBIND_WARPCTC"] == "as before"
assert ctc(np.zeros((4, 1, 3), np.float32), [[1, 2]], [4]) == native
"""
    environment = {key: value for key, value in os.environ.items() if key != "CTCBIND_WARPCTC"}
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "one"), str(tmp_path / "two")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,  # away from the source tree, so that the installed one runs
    )
    assert done.returncode == 0, done.stderr


# --- tf-seq2seq-losses --------------------------------------------------------------------------------------------


def batch(rng, blank=0):
    N, T, C = 4, 12, 6
    labels = (blank + rng.integers(1, C, size=(N, 4))) % C
    return labels, rng.normal(size=(N, T, C)).astype(np.float32), np.array([4, 2, 0, 3]), np.array([12, 11, 9, 12])


@pytest.mark.parametrize("blank", [0, 2, 5])
@pytest.mark.parametrize("function", [classic_ctc_loss, simple_ctc_loss])
def test_arguments_find_their_places(rng, function, blank):
    labels, logits, label_length, logit_length = batch(rng, blank)
    topology = "ctc" if function is classic_ctc_loss else "simple"
    right = [
        ctcbind.ctc_loss(logits[n : n + 1, :T].swapaxes(0, 1), [row[:L]], blank=blank, topology=topology)[0]
        for n, (row, L, T) in enumerate(zip(labels.tolist(), label_length, logit_length))
    ]
    np.testing.assert_allclose(function(labels, logits, label_length, logit_length, blank), right, rtol=1e-6)
    by_name = function(
        labels=labels, logits=logits, label_length=label_length, logit_length=logit_length, blank_index=blank
    )
    np.testing.assert_allclose(by_name, right, rtol=1e-6)
    if blank == 0:
        np.testing.assert_allclose(function(labels, logits, label_length, logit_length), right, rtol=1e-6)
    assert simplified_ctc_loss is simple_ctc_loss


@pytest.mark.parametrize("name", ["classic_ctc_loss", "simplified_ctc_loss"])
def test_tf_seq2seq_losses_agrees(rng, name):
    theirs = pytest.importorskip("tf_seq2seq_losses", reason="tf-seq2seq-losses (and TensorFlow) is not installed here")
    import tensorflow as tf

    own = classic_ctc_loss if name == "classic_ctc_loss" else simplified_ctc_loss
    labels, logits, *lengths = batch(rng)
    args = tf.constant(labels, tf.int32), tf.constant(logits), *(tf.constant(each, tf.int32) for each in lengths)
    losses = own(*args)
    assert isinstance(losses, tf.Tensor)
    np.testing.assert_allclose(losses, getattr(theirs, name)(*args), rtol=1e-5)
