"""The page of frameworks: its examples run, and each call in its table gives what it says."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from batches import SEED

import ctcbind
import ctcbind.compat

PAGE = Path(__file__).resolve().parent.parent / "docs" / "frameworks.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = {section.partition("\n")[0]: section for section in TEXT.split("\n## ")[1:]}
ROWS = re.findall(r"^\| (\w[^|]*?) \| `([^|]*)` \| `([^|]*)` \|$", SECTIONS["From another library"], re.MULTILINE)

N, T, C = 3, 14, 6
LABELS = [[1, 2, 2], [4], [3, 1]]
FRAMES, COUNTS = np.array([14, 9, 11]), np.array([3, 1, 2])


@pytest.mark.parametrize("title", [title for title in SECTIONS if title != "Keras 3"])
def test_examples_run(title):
    install = {"torch": "'ctcbind[torch]'", "jax": "'ctcbind[jax]'", "tensorflow": "tensorflow-cpu"}
    needs = {"PyTorch": "torch", "JAX": "jax", "TensorFlow": "tensorflow"}.get(title)
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed: pip install {install[needs]}")
    test = doctest.DocTestParser().get_doctest(SECTIONS[title], {}, title, str(PAGE), 0)
    assert doctest.DocTestRunner().run(test).failed == 0
    assert title in {"From another library"} or test.examples


#: The examples, and one step of gradient descent with Keras's own loss beside one with the page's.
KERAS = """
import doctest, sys
import numpy as np
names = {}
for text in sys.argv[1:]:
    test = doctest.DocTestParser().get_doctest(text, names, "page", "frameworks.md", 0)
    failed, tried = doctest.DocTestRunner().run(test, clear_globs=False)
    assert tried and not failed
    names = test.globs
keras, ops, loss = names["keras"], names["ops"], names["loss"]
rng = np.random.default_rng(0)
x = rng.normal(size=(3, 14, 16)).astype(np.float32)
y = np.array([[14, 1, 2, 2], [9, 4, 0, 0], [11, 3, 1, 0]])
weights, losses = [], []
for own in (False, True):
    if own:
        names["keras_ctc_loss"] = ops.ctc_loss
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((None, 16)), keras.layers.Dense(28)])
    before = np.concatenate([each.ravel() for each in model.get_weights()])
    model.compile(keras.optimizers.SGD(1.0), loss)
    losses.append(model.fit(x, y, verbose=0).history["loss"][0])
    weights.append(np.concatenate([each.ravel() for each in model.get_weights()]) - before)
# log alpha of T = 14 frames, below 64 in size, is rounded by 2**-19 a frame: shares of paths are right to 6e-5, and
# another as much is added by log beta; sums over frames and samples add no more than as many times 2**-24
np.testing.assert_allclose(losses[0], losses[1], rtol=6e-5)
np.testing.assert_allclose(weights[0], weights[1], rtol=0, atol=1.2e-4 * abs(weights[1]).max())
assert abs(weights[1]).max() > 0.1
"""


@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_examples_of_keras_run(backend):
    """A process has one backend of Keras."""
    for needs, package in (("keras", "keras"), (backend, backend.replace("flow", "flow-cpu"))):
        if importlib.util.find_spec(needs) is None:
            pytest.skip(f"{needs} is not installed: pip install {package}")
    texts = [SECTIONS["TensorFlow"]] * (backend == "tensorflow") + [SECTIONS["Keras 3"]]
    ran = subprocess.run(
        [sys.executable, "-c", KERAS, *texts],
        env={**os.environ, "KERAS_BACKEND": backend, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def padded(fill, labels=LABELS):
    return np.array([row + [fill] * (3 - len(row)) for row in labels])


def expected(x, labels=LABELS, frames=FRAMES, **options):
    return ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, engine="reference", **options)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=2, keepdims=True)


def names_of(library, x):
    """What the call on the left was given, under its names there, and what it gave."""
    swapped = np.ascontiguousarray(x.transpose(1, 0, 2))
    last = [[label - 1 for label in row] for row in LABELS]  # where the blank is the last class
    if library == "Theano":
        return {"activations": x, "labels": padded(-1), "input_lengths": FRAMES}, expected(x)
    if library == "TensorFlow 1":
        sparse = SimpleNamespace(to_dense=lambda labels, fill: padded(fill, labels))
        tf = SimpleNamespace(sparse=sparse)
        return {"labels": last, "inputs": x, "sequence_length": FRAMES, "tf": tf}, expected(x, last, blank=-1)
    if library == "warp-ctc in C":
        given = {"activations": x, "flat_labels": np.concatenate(last).astype(np.int32), "blank_label": C - 1}
        return given | {"label_lengths": COUNTS, "input_lengths": FRAMES}, expected(x, last, blank=-1)
    if library.startswith("cuDNN in C"):
        given = {"hostLabels": np.concatenate(LABELS), "hostLabelLengths": COUNTS, "hostInputLengths": FRAMES}
        return given | {"probs": x if "SOFTMAX" in library else softmax(x)}, expected(x)
    if library == "PyTorch, with NumPy arrays":
        log_probs = {"logits": x, "targets": padded(0), "input_lengths": FRAMES, "target_lengths": COUNTS}
        return log_probs, expected(x, reduction="label_mean")
    if library == "Keras 2":
        shares = softmax(swapped)
        given = {"y_true": padded(0, last), "y_pred": shares}
        given |= {"input_length": FRAMES[:, None], "label_length": COUNTS[:, None]}
        logs = np.log(shares.astype(np.float64) + 1e-7).transpose(1, 0, 2)
        return given, SimpleNamespace(loss=expected(logs, last, blank=-1).loss[:, None])
    if library == "Chainer":
        given = {"x": [SimpleNamespace(array=frame) for frame in x], "t": padded(0), "blank_symbol": 0}
        given |= {"input_length": FRAMES, "label_length": COUNTS}
        return given, expected(x, reduction="batch_mean")
    if library == "PaddlePaddle":
        given = {"log_probs": x, "labels": padded(0), "input_lengths": FRAMES, "label_lengths": COUNTS}
        return given, expected(x, reduction="label_mean")
    if library == "tf-seq2seq-losses":
        given = {"labels": padded(0), "logits": swapped, "label_length": COUNTS, "logit_length": FRAMES}
        return given | {"blank_index": 0}, expected(x)
    return {}, None


def names_of_call(library, there, x):
    """The same where one library's calls differ in what they are given."""
    swapped = np.ascontiguousarray(x.transpose(1, 0, 2))
    last = [[label - 1 for label in row] for row in LABELS]
    if library == "TensorFlow 2":
        lengths = {"label_length": COUNTS, "logit_length": FRAMES}
        if "blank_index=-1" in there:
            return {"labels": padded(0, last), "logits": swapped, **lengths}, expected(x, last, blank=-1)
        return {"labels": padded(0), "logits": x, **lengths}, expected(x)
    if library == "Keras 3":
        if "losses" in there:
            whole = np.full(N, T)
            return {"y_true": padded(0), "y_pred": swapped}, expected(x, frames=whole, reduction="batch_mean")
        lengths = {"target_length": COUNTS, "output_length": FRAMES}
        return {"target": padded(0), "output": swapped, **lengths}, expected(x)
    if library == "MXNet":
        if "gluon" in there:
            given = {"pred": swapped, "label": padded(-1, last).astype(np.float32)}
            return given | {"pred_lengths": FRAMES, "label_lengths": COUNTS}, expected(x, last, blank=-1)
        if "last" in there:
            right = expected(x, last, np.full(N, T), blank=-1)
            return {"data": x, "label": padded(-1, last).astype(np.float32)}, right
        return {"data": x, "label": padded(0).astype(np.float32)}, expected(x, frames=np.full(N, T))
    if library in ("PyTorch", "warpctc_pytorch"):
        torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ctcbind[torch]'")
        logits = torch.tensor(x)
        if library == "warpctc_pytorch":
            given = {"acts": logits, "labels": torch.tensor(np.concatenate(LABELS))}
            given |= {"act_lens": torch.tensor(FRAMES), "label_lens": torch.tensor(COUNTS)}
            return given, expected(x, reduction="sum")
        given = {"logits": logits, "log_probs": logits.log_softmax(2), "targets": torch.tensor(padded(0))}
        given |= {"input_lengths": torch.tensor(FRAMES), "target_lengths": torch.tensor(COUNTS)}
        return given, eval_there(there, given | {"F": torch.nn.functional})
    assert library == "optax"
    optax = pytest.importorskip("optax", reason="optax is not installed: pip install optax")
    given = {"logits": swapped, "logit_paddings": (np.arange(T) >= FRAMES[:, None]) * 1.0, "labels": padded(0)}
    given |= {"label_paddings": (np.arange(3) >= COUNTS[:, None]) * 1.0}
    return given, eval_there(there, given | {"optax": optax})


def eval_there(there, names):
    return SimpleNamespace(loss=np.asarray(eval(there, names)))


@pytest.mark.parametrize(("library", "there", "here"), ROWS, ids=[f"{row[0]} {n}" for n, row in enumerate(ROWS)])
def test_each_row_gives_what_it_says(library, there, here):
    x = np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)
    names, right = names_of(library, x)
    if right is None:
        names, right = names_of_call(library, there, x)
    options = {"simplified": "simple", "ctc_merge_repeated=False": "simple"}
    for word, topology in options.items():
        if word in there:
            rows = LABELS if library == "tf-seq2seq-losses" else names["labels"]
            right = expected(x, rows, topology=topology, blank=0 if library == "tf-seq2seq-losses" else -1)
    if "ctcbind.torch" in here or "ctcbind.jax" in here:
        __import__("ctcbind.torch" if "ctcbind.torch" in here else "ctcbind.jax")
    got = np.asarray(eval(here, {"ctcbind": ctcbind, "np": np, **names}))
    wanted = right.grad if "grad" in there else right.loss
    assert got.shape == np.shape(wanted)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("blank", ["first", "last"])
def test_mxnet_reads_a_row_up_to_its_first_padding(blank):
    """LabelTensorToPackedVector of MXNet 1.9, src/operator/nn/ctc_loss-inl.h."""
    (here,) = (row[2] for row in ROWS if row[1].startswith("mx.nd") and ("last" in row[1]) == (blank == "last"))
    x = np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)
    padding, index = (0, 0) if blank == "first" else (-1, -1)
    label = np.array([[1, padding, 2], [4, 3, padding], [padding, 3, 1]], np.float32)
    got = eval(here, {"ctcbind": ctcbind, "data": x, "label": label})
    right = expected(x, [[1], [4, 3], []], np.full(N, T), blank=index)
    np.testing.assert_allclose(got, right.loss, rtol=1e-5)


def test_tensorflow_passes_over_the_gaps_of_sparse_labels():
    """It takes the values of a row as they follow each other: labels_sp.group({0}) in ctc_loss_op.cc."""
    (here,) = re.findall(r"`(ctcbind\.ctc_loss\(inputs, labels\.values[^`]*)`", SECTIONS["From another library"])
    x = np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)
    sparse = SimpleNamespace(indices=np.array([[0, 0], [0, 2], [2, 1]]), values=np.array([1, 2, 4], np.int32))
    names = {"inputs": x, "labels": sparse, "sequence_length": FRAMES, "N": N}
    got = eval(here, {"ctcbind": ctcbind, "np": np, **names})
    np.testing.assert_allclose(got, expected(x, [[1, 2], [], [4]], blank=-1).loss, rtol=1e-5)


def test_the_table_has_every_library():
    assert len(ROWS) == SECTIONS["From another library"].count("| `") / 2
    libraries = {row[0].split(",")[0] for row in ROWS}
    promised = {"Theano", "TensorFlow 1", "TensorFlow 2", "Keras 2", "Keras 3", "PyTorch", "MXNet", "Chainer", "optax"}
    assert promised | {"warp-ctc in C", "cuDNN in C"} <= libraries


@pytest.mark.parametrize(("library", "there", "here"), [row for row in ROWS if row[0][:2] in ("Te", "Ke")])
def test_tensorflow_and_keras_agree(library, there, here):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: pip install tensorflow-cpu")
    x = np.random.default_rng(SEED).normal(size=(T, N, C)).astype(np.float32)
    names, right = names_of(library, x)
    if right is None:
        names, right = names_of_call(library, there, x)
    if library == "TensorFlow 1":
        if "ctc_merge_repeated" in there:
            right = expected(x, names["labels"], blank=-1, topology="simple")
        entries = [((n, s), label) for n, row in enumerate(names["labels"]) for s, label in enumerate(row)]
        places, values = zip(*entries)
        names["labels"] = tf.SparseTensor(places, tf.constant(values, tf.int32), (N, 3))
        tf = tf.compat.v1
    keras = tf.keras if library == "Keras 2" else pytest.importorskip("keras")
    got = np.asarray(eval(there, {**names, "tf": tf, "keras": keras}))
    np.testing.assert_allclose(got, right.loss, rtol=1e-5)
