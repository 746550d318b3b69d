"""examples/reader: its data, its training with every engine, its saved runs, and its mistakes."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

import fake_cupy
import numpy as np
import pytest

import ctcbind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader.digits import doubled, from_sklearn
from reader.mistakes import MISTAKES, log_sum_exp, softmax
from reader.network import KINDS, Shape, arrays_of
from reader.scores import decode
from reader.training import Reader, Saved, Settings, Trainer
from reader.words import Stream, in_buckets, make_words, stack
from reader_lab import trainer, weights

pytest_plugins = ["reader_fixture"]


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
