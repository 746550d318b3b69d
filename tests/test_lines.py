"""examples/lines: its lines, its autograd function, its training and saved runs."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

import ctcbind  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from lines import fonts, text  # noqa: E402
from lines.lines import Stream, centred, draw, make_lines, placed, stack, varied  # noqa: E402
from lines.loss import CTC, make_loss  # noqa: E402
from lines.network import COLUMNS, HEIGHT, LineNetwork, Shape  # noqa: E402
from lines.scores import decode  # noqa: E402
from lines.training import Saved, share_of_loss  # noqa: E402
from lines_lab import TINY, same, trainer  # noqa: E402

pytest_plugins = ["lines_fixture"]
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def rng():
    return np.random.default_rng([SEED, 11])


def state(trainer):
    """All numbers of a run, copied."""
    found = {f"network:{name}": value for name, value in trainer.reader.network.state_dict().items()}
    for i, moments in trainer.adam.state_dict()["state"].items():
        found |= {f"adam:{i}:{name}": value for name, value in moments.items()}
    return {name: value.clone() for name, value in found.items()}


# --- the loss -----------------------------------------------------------------------------------------------------


def a_batch(rng, dtype, N=6, T=25, C=9, most=8):
    logits = torch.tensor(rng.normal(size=(N, T, C)) * 3, dtype=dtype)
    targets = [rng.integers(1, C, size=rng.integers(1, most + 1)).tolist() for _ in range(N)]
    targets[0] = [1] * most  # repeats
    frames = torch.tensor(rng.integers(2 * most, T + 1, size=N))
    return logits, targets, frames


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_that_of_torch(dtype, rng):
    """Loss and gradient of both, with an upstream gradient that is not 1, through a layer before the logits.

    Both sum over T frames in the dtype: T rounding errors, times ten for the sizes of the logarithms that cancel.
    """
    logits, targets, frames = a_batch(rng, dtype)
    weight = torch.tensor(rng.normal(size=(9, 9)), dtype=dtype)
    found = []
    for name in ("ctcbind", "torch"):
        x = logits.clone().requires_grad_()
        loss = make_loss(name)(x @ weight, targets, frames)
        (2.5 * loss).backward()
        found.append((loss.detach(), x.grad))
    tolerance = 10 * logits.shape[1] * torch.finfo(dtype).eps
    (loss, grad), (their_loss, their_grad) = found
    assert loss.dtype == dtype
    torch.testing.assert_close(loss, their_loss, rtol=tolerance, atol=0)
    assert their_grad.abs().max() > 0.01
    torch.testing.assert_close(grad, their_grad, rtol=0, atol=tolerance * float(weight.abs().sum(0).max()))
    for row, count in zip(grad, frames):
        assert not row[count:].any()


def test_the_autograd_function_against_finite_differences(rng):
    logits, targets, frames = a_batch(rng, torch.float64, N=2, T=9, C=4, most=3)
    with ctcbind.CTCLoss(layout="NTC", reduction="label_mean") as plan:
        torch.autograd.gradcheck(lambda x: CTC.apply(x, plan, targets, frames), logits.requires_grad_())


def test_a_line_without_a_path_teaches_nothing():
    for name in ("ctcbind", "torch"):
        x = torch.zeros(1, 3, 5, requires_grad=True)
        loss = make_loss(name)(x, [[1, 1, 1]], torch.tensor([3]))
        loss.backward()
        assert float(loss.detach()) == 0
        assert not x.grad.any()


# --- lines --------------------------------------------------------------------------------------------------------


def test_words_cover_the_letters_and_none_is_on_both_sides():
    train, held_out = text.split()
    assert len(text.WORDS) == len(set(text.WORDS)) == len(train) + len(held_out)
    assert not set(train) & set(held_out)
    assert set("".join(train)) == set("".join(held_out)) == set("abcdefghijklmnopqrstuvwxyz")


def test_texts_keep_to_the_alphabet(rng):
    texts = [text.make_text(text.WORDS, rng, 5) for _ in range(500)]
    assert set("".join(texts)) <= set(text.ALPHABET)
    assert {each.count(" ") for each in texts} == set(range(5))
    assert any(character.isdigit() for character in "".join(texts))
    assert any(character.isupper() for character in "".join(texts))


def test_fonts_are_text_fonts_and_some_are_held_out(faces):
    names = [face.name for face in faces]
    assert "DejaVu Sans Book" in names
    assert "STIXGeneral Regular" in names
    assert not [name for name in names if "LastResort" in name or "Size" in name]
    train, held_out = fonts.split(faces)
    assert train
    assert held_out
    assert sorted(face.name for face in train + held_out) == names
    assert fonts.split(faces[:1]) == (faces[:1], faces[:1])


def test_only_free_fonts_are_taken_from_the_machine():
    found = fonts.find()
    assert found
    assert all(fonts.is_free(face.name) for face in found)


def test_lines_are_ragged(source, rng):
    lines = make_lines(source, rng, 60)
    widths = {line.image.shape[1] for line in lines}
    assert len(widths) > 20
    for line in lines:
        assert line.image.shape[0] == HEIGHT
        assert line.image.shape[1] % COLUMNS == 0
        assert line.image.dtype == np.float32
        assert 0 <= line.image.min() <= line.image.max() <= 1
        assert line.image.max() > 0.4
    assert {len(line.text.split()) for line in make_lines(source, rng, 20, early=True)} == {1}


def test_the_slant_leans_and_the_stretch_widens():
    bar = np.full((26, 4), 255, dtype=np.uint8)
    middle = lambda row: (row * np.arange(row.size)).sum() / row.sum()  # noqa: E731
    for slant in (-0.3, 0.0, 0.5):
        image = placed(bar, 26, 3, slant=slant)
        assert middle(image[4]) - middle(image[27]) == pytest.approx(slant * 23, abs=0.5)
        assert not image[:3].any()
        assert not image[29:].any()
    wide = [np.flatnonzero(placed(bar, 26, 0, stretch=stretch).max(axis=0) > 0.5).size for stretch in (1, 3)]
    assert wide == [4, 12]
    large = placed(np.full((260, 100), 255, dtype=np.uint8), 26, 0)
    assert large.sum() == pytest.approx(260, rel=0.1)


def test_ink_is_cut_out(source, rng):
    ink = draw("ill ink", source.faces[0].font, rng)
    assert ink.max(axis=0)[[0, -1]].all()
    assert ink.max(axis=1)[[0, -1]].all()
    assert np.array_equal(centred(ink), centred(ink))
    assert not np.array_equal(varied(ink, rng), varied(ink, rng))


def test_stream_goes_back_to_any_step(source):
    one, two, other = (Stream(source, seed, 3, early=8) for seed in (1, 1, 2))
    forward = [one[step] for step in range(18)]
    for step in (17, 2, 0, 9):
        np.testing.assert_array_equal(two[step].images, forward[step].images)
        assert two[step].texts == forward[step].texts
    assert any(a.texts != other[step].texts for step, a in enumerate(forward))
    assert all(" " not in each for batch in forward[:8] for each in batch.texts)
    assert any(" " in each for batch in forward[8:] for each in batch.texts)


# --- the network --------------------------------------------------------------------------------------------------


def test_a_line_is_read_alike_alone_and_beside_longer_ones(source, rng):
    """What a batch pads a line with does not reach its logits: convolutions and LSTM see its own columns alone.

    The sums of a convolution may be ordered otherwise for another width, hence the tolerance, that of float32 sums of
    9 * 8 products through six layers.
    """
    network = LineNetwork(Shape(classes=7, **TINY)).eval()
    lines = sorted(make_lines(source, rng, 5), key=lambda line: line.image.shape[1])
    batch = stack(lines)
    assert len(set(batch.frames)) > 1
    with torch.no_grad():
        together = network(torch.from_numpy(batch.images), torch.from_numpy(batch.frames))
        assert together.shape == (5, batch.frames.max(), 7)
        for line, logits in zip(lines, together):
            single = stack([line])
            alone = network(torch.from_numpy(single.images), torch.from_numpy(single.frames))[0]
            torch.testing.assert_close(logits[: len(alone)], alone, rtol=0, atol=1e-5)


def test_five_convolutions_an_lstm_and_a_dense_layer():
    network = LineNetwork(Shape(classes=7, **TINY))
    kinds = [type(each) for each in network.modules()]
    assert kinds.count(torch.nn.Conv2d) == 5
    assert kinds.count(torch.nn.LSTM) == 1
    assert network.recurrent.bidirectional
    assert kinds.count(torch.nn.Linear) == 1


def test_decode_by_both_ways():
    """The reading of the best path, and a better one whose paths together are likelier: the textbook's example."""
    logits = np.log(np.array([[[0.6, 0.4], [0.6, 0.4]]]))
    assert decode(logits, [2], "x") == [""]
    assert decode(logits, [2], "x", beam=4) == ["x"]


# --- training -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["ctcbind", "torch"])
def test_a_few_steps_lower_the_loss(loss, source):
    """From all classes alike, about 20 nats a character, to what is known without reading: how frequent each is."""
    small = trainer(source, loss=loss, steps=30, rate=0.03)
    for _ in range(30):
        small.step()
    losses = [record.loss for record in small.history]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    milliseconds, share = share_of_loss(small.history)
    assert milliseconds > 0
    assert 0 < share < 1


def test_both_losses_train_alike(source):
    """From the same seed on the same batches: the same weights, up to what rounding makes of ten steps of Adam."""
    one, other = trainer(source), trainer(source, loss="torch")
    assert same(state(one), state(other))
    start = state(one)
    for _ in range(10):
        assert one.step().loss == pytest.approx(other.step().loss, rel=1e-3)
    ours, theirs = state(one), state(other)
    moved = max(float((ours[name] - start[name]).abs().max()) for name in ours if name.startswith("network:dense"))
    apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours if name.startswith("network:dense"))
    assert apart < 0.05 * moved


def test_a_saved_run_goes_on_bit_for_bit(source, tmp_path):
    through, halted = (trainer(source) for _ in range(2))
    lines = make_lines(source, np.random.default_rng(0), 3)
    for step in range(12):  # more than one pool of batches
        through.step()
        if step == 4:
            through.check(lines)
    for _ in range(5):
        halted.step()
    halted.check(lines)
    halted.save(tmp_path / "run.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["run.pt"]
    resumed = Saved(tmp_path / "run.pt").trainer(halted.stream)
    while resumed.done < 12:
        resumed.step()
    assert [record[:3] for record in resumed.history] == [record[:3] for record in through.history]
    assert resumed.checks == through.checks
    assert same(state(resumed), state(through))
