"""`diagnose` finds each planted mistake, alone and beside every other, and nothing in a thousand good batches."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from batches import SEED
from good_batches import good, kind_of
from mistakes import LAST, MISTAKES, PAIRS, C, N, T, all_blank, engine_limit, planted, swapped_axes, well
from test_check import MINE
from test_check import given as arguments

import ctcbind
from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax


def test_nothing_is_found_in_a_thousand_good_batches():
    wrong = [(seed, kind_of(seed), found) for seed in range(1000) if (found := diagnose(**good(seed)).kinds)]
    assert not wrong


def test_nothing_is_found_in_fresh_good_batches():
    wrong = [(seed, found) for seed in range(SEED, SEED + 100) if (found := diagnose(**good(seed)).kinds)]
    assert not wrong
    assert all(planted(seed).ok for seed in range(10))


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_each_mistake_is_found_alone(mistake):
    for seed in range(4):
        found = planted(seed, mistake)
        assert found.kinds == {mistake.__name__}, found
        for finding in found.findings:
            assert finding.sure in ("certain", "likely", "possible")
            assert any(letter.isdigit() for letter in finding.seen), "seen in numbers"
            assert finding.means
            assert finding.do


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(each.__name__ for each in pair))
def test_mistakes_are_found_in_pairs(pair):
    found = planted(len(pair[0].__name__), *pair)
    assert found.kinds == {each.__name__ for each in pair}, found


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.__name__)
def test_the_blank_the_layout_and_the_order_of_samples_change_no_finding(mistake):
    for seed in range(2):
        given = well(seed)
        mistake(given)
        x, labels, lengths = (given[name] for name in ("logits", "targets", "input_lengths"))
        found = diagnose(**given)
        for blank in (5, LAST):
            moved = [[(k + blank) % C if k < C else k for k in row] for row in labels]
            alike(found, diagnose(**given | {"logits": np.roll(x, blank, axis=2), "targets": moved, "blank": blank}))
        if mistake is not swapped_axes:  # which names the layout
            assert str(diagnose(**given | {"logits": x.transpose(1, 0, 2), "layout": "NTC"})) == str(found)
            order = np.random.default_rng([SEED, seed]).permutation(N)
            moved = [labels[n] for n in order]
            among = given | {"logits": x[:, order], "targets": moved, "input_lengths": None}
            alike(found, diagnose(**among | ({} if lengths is None else {"input_lengths": lengths[order]})), order)


def alike(one: ctcbind.Diagnosis, other: ctcbind.Diagnosis, order: Sequence[int] = range(N)) -> None:
    """The same findings, of samples that stand in this order in the other, and the same numbers but for rounding."""
    assert [(each.kind, each.sure, each.harmless, {*each.samples}) for each in one.findings] == [
        (each.kind, each.sure, each.harmless, {int(order[n]) for n in each.samples}) for each in other.findings
    ]
    a, b = (asdict(each.measures) for each in (one, other))
    a["grad_norms"] = [a["grad_norms"][n] for n in order]
    for name in a:
        np.testing.assert_allclose(b[name], a[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_longest_target_is_named_where_an_engine_cannot_take_it():
    (finding,) = (each for each in planted(0, engine_limit).findings if each.kind == "engine_limit")
    assert finding.seen.endswith("the longest target has 257 labels, that of sample 3")


def test_the_first_character_then_blanks():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(40, 8, 12)) * 0.3
    x[:, :, 0] += 4
    x[1, :, 5] += 7
    labels = [[int(rng.integers(1, 12)) for _ in range(10)] for _ in range(8)]
    (finding,) = diagnose(x, labels).findings
    assert finding.kind == "dominant_class"
    assert "8 of 8 samples read [5] and then blanks" in finding.seen


def test_a_network_that_has_begun_to_see_its_labels_tells_its_samples_apart():
    """It reads the first, which all have, and finds the others more probable where they are than elsewhere."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 23, seed])
        others = (2 + rng.permutation(7)).tolist()
        labels = [[1, *(others[n:] + others[:n])[:4]] for n in range(6)]  # each of the others about as often
        x = 0.1 * rng.normal(size=(48, 6, 9)) + 4.5 * np.eye(9)[0]
        x[4, :, 1] += 6
        assert diagnose(x, labels).kinds == {"dominant_class"}
        for n, row in enumerate(labels):
            for i, label in enumerate(row[1:]):
                x[12 + 8 * i : 14 + 8 * i, n, label] += 2.6
        assert diagnose(x, labels).ok


def test_the_last_class_is_the_networks_blank():
    given = well(1)
    x = given["logits"][:, :, [*range(1, C), 0]]  # the network's blank is its last class
    labels = [[k - 1 for k in row] for row in given["targets"]]
    assert diagnose(x, labels, given["input_lengths"], blank=-1).ok
    (finding,) = diagnose(x, labels, given["input_lengths"]).findings
    assert finding.kind == "blank_in_targets"
    assert finding.do == f"pass blank={LAST} (or -1, the last)"
    x = np.pad(x, [(0, 0), (0, 0), (0, 1)], constant_values=-3)  # one class more, which nobody says
    (finding,) = diagnose(x, labels, given["input_lengths"]).findings
    assert finding.do == f"pass blank={LAST}"
    labels = given["targets"]
    x = np.pad(given["logits"][:, :, [LAST, *range(1, LAST), 0]], [(0, 0), (0, 0), (0, 1)], constant_values=-3)
    (finding,) = diagnose(x, labels, given["input_lengths"]).findings
    assert (finding.kind, finding.do) == ("blank_unused", f"pass blank={LAST}")


def test_an_untrained_network_does_not_tell_its_blank():
    """Any class may be the most probable by a little: none is named for it."""
    rng = np.random.default_rng(11)
    for _ in range(50):
        (finding,) = diagnose(rng.normal(size=(40, 3, 8)), [[0, 2], [1], [2]]).findings
        assert finding.kind == "blank_in_targets"
        assert finding.do.startswith("leave the blanks out of the targets")


def test_broken_rules_say_what_to_do():
    x = np.zeros((20, 2, 8))
    for given, do in (
        (([[1], [9]],), "give the network a class for every label"),
        (([[1], [2]], [25, 23]), "count the frames that leave the network, after its own down-sampling; ctcbind.check"),
        ((np.ones((2, 3), int), [4, 4], [20, 3]), "pass the number of labels before the padding"),
        (([[1.0], [2]],), "pass targets[0] as ints"),
        (([["a"], ["b"]],), "pass arrays of an integer dtype"),
        (([[1], [2]], [1.0, 0.5]), "if they are shares of T, pass them times that, rounded"),
        (([[1], [2]], np.ones((2, 20), bool)), "pass input_lengths.sum(axis=1) if they are a mask that is True"),
        (([[1], [2]], np.ones((2, 20), int)), "pass input_lengths.sum(axis=1) if they are a mask that is 1"),
        (([[1], [2]], np.ones((2, 20))), "pass input_lengths.sum(axis=1).astype(int) if they are a mask that is 1"),
        (([[1], [2]], np.zeros((2, 20))), "pass input_lengths.sum(axis=1).astype(int) if they are a mask that is 1"),
        (([[1], [2]], np.ma.array([20, 20], mask=[0, 1])), "pass plain integers"),
    ):
        finding = diagnose(x, *given).findings[0]
        assert finding.kind == "invalid"
        assert finding.do.startswith(do)
        assert finding.seen.endswith(" (and 1 more like this)") == ("every place" in finding.do)
        assert ("integer dtype" in finding.do) == ("integer dtype" in do)


def test_what_the_rule_says_is_not_said_twice():
    """A finding without advice of its own has no line for it; none says only that one is to obey."""
    for given in (np.zeros((20, 8)), [[1]]), (np.zeros((20, 2, 8)), [1, 2]), (np.zeros((20, 2, 8)), [[1]], 7):
        found = diagnose(*given)
        assert found.kinds == {"invalid"}
        for finding, lines in zip(found.findings, str(found).split("\n\n")):
            assert finding.do != "give what that asks for"
            assert ("  do:" in lines) == bool(finding.do)
        assert json.loads(json.dumps(found.to_dict()))["findings"][0]["do"] == found.findings[0].do
    (finding,) = diagnose(np.zeros((20, 2, 8)), [[1], [2], [3]]).findings
    assert finding.do.startswith("pass as many targets as the logits have samples")
    assert not [
        each for row in MINE.values() if row.rule not in ("layout", "topology")
        for each in diagnose(**arguments(row)).findings if "what that asks for" in each.do
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_logits_make_no_noise(dtype):
    """Differences, losses and their sum past the largest double, and a history that is."""
    big = float(np.finfo(dtype).max)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], size=(30, 4, 6))
    x, labels = (signs * big).astype(dtype), [[1, 2]] * 4
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        found = diagnose(x, labels, history=[1e308] * 30)
        assert "exploding_gradients" in found.kinds
        assert ctcbind.check(x, labels).ok
    finding = next(each for each in found.findings if each.kind == "exploding_gradients")
    assert len(max(finding.seen.split(), key=len)) < 20
    if dtype == "float64":
        assert found.measures.loss == np.inf
        assert "is past the range of float64, with logits more than 1.8e+308 apart" in finding.seen
    x = np.zeros((20, 4, 6))
    x[0, :, 1] = -1.7e308
    x[0, :, 0] = -1.7e308
    assert diagnose(x, [[1, 2]] * 4).measures.loss == pytest.approx(1.7e308), "the sum is past it, the mean is not"


def test_losses_that_masks_make_infinite():
    x = np.random.default_rng(9).normal(size=(10, 3, 6))
    x[:, 1, 2] = -np.inf
    assert diagnose(x, [[1], [1], [2]]).ok
    (finding,) = diagnose(x, [[1], [1, 2], [2]]).findings
    assert (finding.kind, finding.samples) == ("not_finite", (1,))
    assert np.isinf(ctcbind.ctc_loss(x, [[1], [1, 2], [2]])[1])
    x[8:, 1, 2] = 0  # behind the end of the sample
    assert diagnose(x, [[1], [1, 2], [2]]).ok
    (finding,) = diagnose(x, [[1], [1, 2], [2]], [10, 8, 10]).findings
    assert (finding.kind, finding.samples) == ("not_finite", (1,))


def test_what_overflows_is_not_called_a_mask():
    rng = np.random.default_rng([SEED, 9])
    with np.errstate(over="ignore"):
        x = (2e5 * rng.choice([-1, 1], size=(20, 4, 6))).astype(np.float16)
    x[:, 1] = np.minimum(x[:, 1], 0)  # what overflows downwards alone
    x[:, 1, 2] = -np.inf
    found = diagnose(x, [[1, 2]] * 4).findings
    upwards, downwards = (each for each in found if each.kind == "not_finite")
    assert "float16 ends at 65504" in upwards.means
    assert upwards.do.startswith("compute the last layer in float32")
    assert downwards.samples == (1,)
    assert "have left the range of float16 downwards" in downwards.means
    assert downwards.do.startswith("look for the first layer that overflows")
    (masked,) = diagnose(x[:, 1:2], [[1, 2]]).findings
    assert masked.means.endswith("enough: a mask forbids what the labels need")
    assert "float16" not in str(diagnose(np.where(x == np.inf, np.inf, 0.0), [[1, 2]] * 4))


def test_masked_logits_are_not_to_be_converted():
    """What the loss says to do about them, not what holds for another dtype."""
    (finding,) = diagnose(np.ma.masked_array(np.zeros((4, 1, 3)), mask=True), [[1]]).findings
    assert finding.do.startswith("pass logits.filled(-numpy.inf) to forbid them")
    assert finding.seen.endswith("CTC has no meaning for masked scores")
    (finding,) = diagnose(np.zeros((4, 1, 3), complex), [[1]]).findings
    assert finding.do == "convert the logits to float32"


def test_what_is_not_finite_is_not_measured():
    rng = np.random.default_rng([SEED, 21])
    x, labels = rng.normal(size=(20, 4, 6)), [[1, 2], [3], [2, 4, 1], [5, 5]]
    right = diagnose(x[:, [0, 3]], [labels[0], labels[3]]).measures
    broken = x.copy()
    broken[4, 1, 2] = np.nan
    broken[:, 2, 4] = -np.inf
    found = diagnose(broken, labels)
    norms = found.measures.grad_norms
    assert np.isnan(norms[1:3]).all()
    assert norms[::3] == right.grad_norms
    assert replace(found.measures, grad_norms=(), left_out=0) == replace(right, grad_norms=())
    assert found.measures.left_out == 2
    assert "\nWithout the 2 samples whose logits are not finite:\n4 labels and 40 frames" in str(found)
    named = next(each for each in diagnose(broken, labels, history=[3.0, np.nan]).findings if "step" in each.seen)
    assert named.samples == tuple(sorted((0, 3), key=lambda n: -norms[n])), "made-up gradients are not told"
    told = str(diagnose(x * np.nan, labels, history=[3.0, np.nan]))
    assert "the loss of step 1 is nan; no gradient is finite here" in told
    nothing = diagnose(x * np.nan, labels)
    assert np.isnan([nothing.measures.loss, nothing.measures.blank_wins, *nothing.measures.grad_norms]).all()
    assert str(nothing).endswith("\nThe logits of no sample are finite, and so nothing is measured.")
    padded = x.copy()
    padded[15:] = np.nan
    measures = diagnose(padded, labels, [15] * 4).measures
    assert measures.left_out == 0, "what is behind the last frame is in no measure"
    assert measures == diagnose(x, labels, [15] * 4).measures


def test_measures_are_what_they_say():
    x = np.zeros((10, 2, 4))
    found = diagnose(x, [[1], [2, 3]], [10, 6])
    m = found.measures
    assert (m.frames, m.labels, m.blank_posterior) == (16, 3, 0.25)
    loss = ctcbind.ctc_loss(x, [[1], [2, 3]], [10, 6]).mean()
    assert m.loss == m.uniform_loss == pytest.approx(loss)
    assert m.constant_loss < m.uniform_loss
    assert json.loads(json.dumps(found.to_dict()))["measures"]["frames"] == 16
    assert "Nothing suspicious" in str(found)
    assert "3 labels and 16 frames; the blank wins 0.0% of them" in str(found)


def test_no_number_is_told_of_what_is_not_there():
    nothing_fits, no_frames = (
        diagnose(np.zeros((2, 2, 4)), [[1, 1], [2, 3, 1]]),
        diagnose(np.zeros((0, 2, 4)), [[], []]),
    )
    assert str(nothing_fits).endswith("no sample has a path, and so none a loss")
    assert "nan" not in str(nothing_fits) + str(no_frames)


@pytest.mark.parametrize("name", [name for name, row in MINE.items() if row.rule not in ("layout", "topology")])
def test_whatever_a_loss_refuses_is_told(name):
    """But for wrong options, which it refuses too."""
    found = diagnose(**arguments(MINE[name]))
    assert not found.ok
    assert found.findings


def test_what_is_too_wrong_is_told_all_the_same():
    found = diagnose(np.zeros((4, 3), int), [[1.5]])
    assert found.kinds == {"invalid"}
    assert found.measures is None
    assert len(found.findings) == 3
    assert diagnose(np.zeros((4, 2, 3)), [[1], [-1, 1]]).kinds == {"invalid"}
    assert diagnose(np.zeros((0, 2, 3)), [[], []]).ok
    only = diagnose(np.zeros((3, 1, 1)), [[]])
    assert only.ok
    assert only.measures.blank_wins == 1
    with pytest.raises(ctcbind.InvalidInput, match="layout"):
        diagnose(np.zeros((4, 2, 3)), [[1], [1]], layout="CTN")


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """Away from the source tree, so that the installed one runs."""
    start = [sys.executable, "-m", "ctcbind", *words]
    return subprocess.run(start, capture_output=True, text=True, timeout=120, cwd=Path(sys.executable).parent)


def test_the_command(tmp_path):
    given = well(3)
    all_blank(given)
    labels = given["targets"]
    arrays = {
        "targets": np.concatenate([np.array(row) for row in labels]),
        "target_lengths": [len(row) for row in labels],
        "input_lengths": given["input_lengths"],
    }
    batch, picture = str(tmp_path / "batch.npz"), tmp_path / "out.png"
    np.savez(batch, logits=given["logits"], **arrays)
    done = command("diagnose", batch)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("all_blank (")
    done = command("diagnose", batch, "--json")
    assert [each["kind"] for each in json.loads(done.stdout)["findings"]] == ["all_blank"]
    pytest.importorskip("matplotlib")
    done = command("diagnose", batch, "--plot", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"drawn: {picture} (samples 0, 1, 2, 3 of {N})" in done.stderr
    np.savez(batch, logits=well(3)["logits"], **arrays)
    done = command("diagnose", batch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Nothing suspicious was found.")
    np.savez(batch, logits=log_softmax(well(3)["logits"]), **arrays)
    done = command("diagnose", batch)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "log_probabilities (certain, harmless)")
    assert command("diagnose", str(tmp_path / "none.npz")).returncode == 2


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_stands_for_lost_logits_says_nothing(wrong):
    """A class that is lost at every frame leaves nothing of which a habit could be told, be
    there frames behind the lengths or not."""
    for seed in range(4):
        given = well(seed)
        given["logits"][:, :, 3] = wrong
        given["logits"][:, :, 0] += 3  # the first frame says blank, and so do those behind the lengths
        for lengths in (given["input_lengths"], given["input_lengths"] - 1, None):
            found = diagnose(**{**given, "input_lengths": lengths})
            assert [each.kind for each in found.findings] == ["not_finite"], found
    given = well(0)
    given["logits"][:, 1:, 3] = wrong  # what the last sample says is all that is known
    given["logits"][:, 0] = np.random.default_rng(2).normal(size=(T, C))
    given["logits"][:, 0, 0] += 8
    given["input_lengths"][0] = T  # frames enough to tell a habit, whatever the seed
    found = {each.kind: each for each in diagnose(**given).findings}
    assert found.keys() == {"not_finite", "all_blank"}
    assert f"of {given['input_lengths'][0]} frames" in found["all_blank"].seen


def test_what_is_the_same_at_every_frame_is_told():
    """Of a last layer that begins at zero, and of a dead network, whose biases alone are left."""
    rng, labels = np.random.default_rng(SEED), [[1, 2], [3], [2, 4, 1]]
    for x in (np.zeros((40, 3, 6)), np.broadcast_to(rng.normal(size=(40, 3, 1)), (40, 3, 6)).astype(np.float32)):
        (finding,) = (found := diagnose(x, labels)).findings
        assert (finding.kind, finding.sure) == ("constant_output", "likely")
        assert found.measures.blank_wins == 0
        assert finding.seen.startswith("at all 120 frames each of the 6 classes has the probability 0.167")
        assert "begins at zero" in finding.means
    for biases in (rng.uniform(-1, 1, size=6), rng.uniform(0.05, 0.95, size=6), [0.01, 0.3, 0.2, 0.1, 0.95, 0.4]):
        (finding,) = diagnose(np.broadcast_to(biases, (40, 3, 6)), labels).findings
        assert (finding.kind, finding.sure) == ("constant_output", "certain")
        assert finding.seen.startswith("all 120 frames have the same probabilities")
    dead = np.zeros((40, 3, 6))
    dead[[3, 8, 11], [0, 1, 2], 1] = 1e-6
    assert diagnose(dead, labels).ok
    assert diagnose(np.full((40, 3, 6), np.nan), labels).kinds == {"not_finite"}
    assert diagnose(np.zeros((40, 3, 1)), [[]] * 3).ok
    assert diagnose(rng.normal(size=(1, 30, 6)), [[1], [2]] * 15).ok, "one frame is as itself"


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_the_same_along_time_or_samples_is_told(axis):
    rng, labels, frames = np.random.default_rng([SEED, axis]), [[1, 2], [3], [2, 4, 1]], [40, 31, 25]
    x = np.repeat(np.round(3072 * rng.normal(size=(40, 3, 6)).take([0], axis)), (40, 3)[axis], axis) / 1024
    x += np.round(1024 * rng.normal(size=(40, 3, 1))) / 1024  # which no softmax shows; all sums are exact
    for given in (None, frames):
        (finding,) = diagnose(x, labels, given).findings
        assert (finding.kind, finding.sure) == ("constant_output", "certain")
        assert ("not on the sample" if axis else "not on the frame") in finding.means
    behind = np.where(np.arange(40)[:, None] < frames, 0, 1)[:, :, None]
    found = diagnose(x + behind * rng.normal(size=x.shape), labels, frames)
    assert "constant_output" in found.kinds, "whatever stands behind the ends"
    x[3, 2, 1] += 2**-10
    assert "constant_output" not in diagnose(x, labels, frames).kinds
    x[3, 2, 1] -= 2**-10
    if axis:
        assert "constant_output" not in diagnose(x, [[1, 2]] * 3).kinds, "one sample three times"


def test_samples_of_which_nothing_reaches_the_last_layer():
    """Among others that are heard; where their targets are empty too it is silence."""
    for seed in range(8):
        given = good(SEED + seed, "trained", size=(60, 8, 12), plain=True)
        given["input_lengths"][2], given["targets"][2] = 60, given["targets"][2] or [3]
        given["input_lengths"][5] = (15, 60)[seed % 2]  # a few frames may well be alike
        given["logits"][:, [2, 5]] = np.random.default_rng(seed).normal(size=12)
        (finding,) = (each for each in diagnose(**given).findings if each.kind == "constant_output")
        told = tuple(n for n in (2, 5) if given["targets"][n] and given["input_lengths"][n] > 20)
        assert (finding.samples, finding.sure) == (told, "certain")
        assert finding.seen.startswith(
            "samples 2, 5 of the 8 have" if len(told) > 1 else f"sample {told[0]} of the 8 has"
        )
        given["targets"][2] = given["targets"][5] = []
        assert "constant_output" not in diagnose(**given).kinds


def test_the_loss_as_it_was_given():
    given = good(SEED, "trained", size=(60, 8, 12), plain=True)
    right = diagnose(**given).measures
    assert right.given_loss == right.loss == pytest.approx(ctcbind.ctc_loss(**given).mean(), rel=1e-5)
    softmax = {**given, "logits": np.exp(log_softmax(given["logits"].astype(float)))}
    found = diagnose(**softmax)
    assert found.measures.given_loss == pytest.approx(ctcbind.ctc_loss(**softmax).mean(), rel=1e-6)
    assert found.measures.loss == pytest.approx(right.loss, rel=1e-5)
    assert f"{found.measures.given_loss:.4g} as given" in str(found)
    given["targets"][0] = [99]
    refused = diagnose(**given)
    assert np.isnan(refused.measures.given_loss)
    assert "with what was found put right; of" in str(refused)
    given["targets"][0] = [1, 2] * 40  # of which the frames have no room
    found = diagnose(**given).measures
    assert found.given_loss == pytest.approx(ctcbind.ctc_loss(**given)[1:].mean(), rel=1e-5)
    given["targets"][0] = [1]
    swapped = diagnose(**given | {"logits": given["logits"].transpose(1, 0, 2)})
    assert "swapped_axes" in swapped.kinds
    assert np.isnan(swapped.measures.given_loss), "a loss refuses these axes"


@pytest.mark.parametrize("height", [1.5, 4, 6, 8, 40])
@pytest.mark.parametrize("k", [0, 4])
def test_what_is_the_same_at_every_frame_is_no_habit(height, k):
    """That the blank, or another class, is the most probable is what it says, and not why."""
    dead = np.zeros((40, 3, 6))
    dead[:, :, k] = height
    (finding,) = diagnose(dead, [[1, 2], [3], [2, 4, 1]]).findings
    assert (finding.kind, finding.sure) == ("constant_output", "certain")
    assert finding.seen.endswith(f"that of class {k}" + ", the blank" * (k == 0))
    assert ("training has run away" in finding.means) == (height == 40)
    dead[[3, 8, 11], [0, 1, 2], 1] += 1e-6
    assert "constant_output" not in diagnose(dead, [[1, 2], [3], [2, 4, 1]]).kinds


def test_a_few_frames_that_differ_make_no_output_that_depends_on_the_input():
    rng = np.random.default_rng([SEED, 117])
    labels = [rng.integers(1, 30, size=12).tolist() for _ in range(16)]
    biases = 3.0 * (np.arange(30) == 0) + rng.uniform(size=30)
    for frames in range(1, 12):  # of 1280
        x = np.broadcast_to(biases, (80, 16, 30)).copy()
        x[rng.permutation(80)[:frames], rng.integers(16, size=frames), 4] += 0.1
        (finding,) = (found := diagnose(x, labels)).findings
        assert (finding.kind, finding.sure) == ("constant_output", "likely")
        seen = f"{1280 - frames} of 1280 frames have the same probabilities, the highest that of class 0, the blank"
        assert finding.seen.startswith(seen)
        assert found.measures.blank_wins == 1
    said = np.broadcast_to(8.0 * (np.arange(30) == 0), (400, 16, 30)).copy()  # long silence, and one word
    for n, row in enumerate(labels):
        said[50:53, n, row[0]] = 16
    assert diagnose(said, [row[:1] for row in labels]).ok


def test_labels_that_count_from_0_are_not_surely_blanks():
    """With the blank left at 0, and a fresh network: to leave its first letter out would be the wrong advice."""
    for seed in range(50):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(0, 11, size=8).tolist() for _ in range(8)]
        targets[0][3] = 0
        found = diagnose(rng.normal(size=(60, 8, 12)), targets)
        (finding,) = [each for each in found.findings if each.kind == "blank_in_targets"]
        assert finding.sure == "likely"
        assert "add 1 to every label" in finding.do
        assert "count from 0" in finding.means
        for one in [5], [5, 0, 0, 0, 0]:  # padded or not
            written = diagnose(rng.normal(size=(60, 8, 12)), [[1, 0, 2, 0, 3], [0, 4, 0, 4, 0], *[one] * 6])
            assert all("add 1" not in each.do for each in written.findings)
        targets[0][3] = 5  # any other blank tells nothing of where labels begin
        found = diagnose(rng.normal(size=(60, 8, 12)), targets, blank=5)
        (finding,) = [each for each in found.findings if each.kind == "blank_in_targets"]
        assert "from 0" not in finding.means + finding.do


def test_labels_that_count_from_1_are_not_surely_blanks():
    """With blank=-1 named, and a fresh network: that its blank is class 0 is more probable than blanks in the texts."""
    for seed in range(50):
        rng = np.random.default_rng([SEED, 14, seed])
        targets = [rng.integers(1, 28, size=10).tolist() for _ in range(16)]
        targets[0][3] = 27
        x = np.tanh(rng.normal(size=(50, 16, 32))) @ rng.normal(size=(32, 28)) / 10 + rng.normal(size=28) * 0.2
        (finding,) = [each for each in diagnose(x, targets, blank=-1).findings if each.kind == "blank_in_targets"]
        assert finding.sure == "likely"
        assert finding.do.startswith("pass blank=0, if that is the network's blank; subtract 1 from every label, if")
        assert "blank=-1" not in finding.do
        assert "count from 1" in finding.means
        few = diagnose(0.1 * x[:, :2], [[1, 2, 27], [2, 1, 5]], blank=-1).findings
        assert few[0].do.startswith("leave the blanks out of the targets, or pass blank=0, if that is the")
        targets[0][0] = 0  # it counts from 0
        (finding,) = [each for each in diagnose(x, targets, blank=-1).findings if each.kind == "blank_in_targets"]
        assert "count from" not in finding.means
        assert finding.do.startswith("leave the blanks out of the targets")


def test_no_class_is_named_for_the_blank_by_the_weights_of_a_fresh_network():
    for seed in range(50):
        rng = np.random.default_rng([SEED, 15, seed])
        x = np.tanh(rng.normal(size=(50, 16, 32))) @ rng.normal(size=(32, 80)) / 10 + rng.normal(size=80) * 0.2
        targets = [rng.integers(1, 70, size=10).tolist() for _ in range(16)]
        targets[0][3] = 40
        (finding,) = [each for each in diagnose(x, targets, blank=40).findings if each.kind == "blank_in_targets"]
        assert "pass blank=" not in finding.do


def test_logits_of_a_convolution_are_thought_of():
    found = diagnose(np.random.default_rng(SEED).normal(size=(8, 20, 80)), [[1, 2]] * 8)
    assert "by (2, 0, 1) where they are (N, C, T)" in found.findings[0].do


def test_the_table_of_kinds_has_all_that_is_found():
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(ctcbind.__file__).parent.glob("diagnose*.py"))
    found = set(re.findall(r'(?:\.find\(|\bFinding\()\s*"(\w+)"', sources))
    rows = re.findall(r"(?m)^ *\| ([\w, ]+) \|", ctcbind.diagnose.__doc__ or "")
    assert {kind for row in rows[1:] for kind in row.split(", ")} == found


def test_a_class_that_wins_everywhere_may_be_the_blank():
    """On the plateau of blanks of a network whose blank is its last class, and is a label here."""
    rng = np.random.default_rng([SEED, 50])
    labels = [(1 + rng.permutation(11)).tolist() for _ in range(8)]
    x = 0.3 * rng.normal(size=(40, 8, 12)) + 6 * (np.arange(12) == 11)
    (finding,) = diagnose(x, labels).findings
    assert finding.kind == "dominant_class"
    assert finding.do.startswith("see whether class 11 is the network's blank, and pass blank=11 then; else ")
    (finding,) = diagnose(np.roll(x, 1, axis=2), [[k - 1 for k in row] for row in labels], blank=11).findings
    assert finding.do.startswith("see whether class 0 is the network's blank, and pass blank=0 then; else ")
    x = np.roll(x, -4, axis=2)
    (finding,) = diagnose(x, labels).findings
    assert "the network's blank" not in finding.do


def test_weights_that_are_large_at_random_do_not_tell_a_blank():
    """In few frames, of which some are silent, a class that is no label wins these; with it for the blank the network
    knows no more than one that says the same everywhere."""
    for seed in range(40):
        rng = np.random.default_rng([SEED, 51, seed])
        x = 2 * rng.normal(size=(11, 4, 8)) - 3 * (np.arange(8) == 0)
        x[:4, :, 7] += 8
        assert "blank_unused" not in diagnose(x, rng.integers(1, 7, size=(4, 1))).kinds, seed
