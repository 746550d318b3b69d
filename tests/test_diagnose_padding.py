"""Padding of the input that counts as time, told by what the network says there."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from mistakes import C, N, padded_frames, softmax, well
from test_diagnose_mismatch import sure_of

from ctcbind import diagnose


@pytest.mark.parametrize("edge", range(1, 5))
def test_padding_is_seen_where_convolutions_have_changed_its_last_frames(edge):
    given = well(SEED)
    T, lengths = len(given["logits"]), given["input_lengths"]
    padded_frames(given)
    rng = np.random.default_rng(SEED)
    for n, length in enumerate(lengths):
        if length < T:
            changed = given["logits"][max(length, T - edge) :, n]
            changed[:] = rng.normal(size=changed.shape)
    found = diagnose(**given)
    assert found.kinds == {"padded_frames"}
    assert f"but for the last {edge}" in str(found)


def test_padding_is_seen_before_input_lengths_that_are_too_long():
    """Of some samples, and by enough frames; what stands past right lengths is theirs to be."""
    given = well(SEED)
    lengths, x = np.array(given["input_lengths"]), given["logits"]
    T = len(x)
    padded_frames(given)
    for times in (1.5, 2, 3):
        counted = np.minimum((times * lengths).astype(int), T)
        far = np.flatnonzero(counted - lengths > max(3, (T - 1) // 20))
        if (counted == T).all():
            continue
        (finding,) = diagnose(**given | {"input_lengths": counted}).findings
        assert (finding.kind, finding.samples) == ("padded_frames", tuple(far))
        worst = int((counted - lengths).argmax())
        assert finding.seen == (
            f"{len(far)} of {N} samples end in frames that hardly change any more, before their input lengths do: "
            f"sample {worst} in {T - lengths[worst]} of T = {T}, and its input length is {counted[worst]}"
        )
    for counted in (lengths, np.minimum(lengths + 2, T)):
        assert diagnose(**given | {"input_lengths": counted}).ok


@pytest.mark.parametrize("padding", [0.0, 1e-4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_padding_is_seen_where_recurrent_layers_come_to_rest(padding, dtype):
    """To which it is no frame like the one before: they remember what came before the padding, and see its end."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        lengths = np.array([240, *rng.integers(80, 200, size=5)])
        cut = np.minimum(2 * lengths, 240)  # counted before the down-sampling, and cut to what the loss takes
        for counted in (None, cut, lengths):
            x = rng.normal(size=(240, 6, 16))
            for n, length in enumerate(lengths):
                x[length:, n] *= padding
            both = np.concatenate([remembered(x), remembered(x[::-1])[::-1]], axis=2)
            logits = ((0.03 if seed % 2 else 1) * both @ rng.normal(size=(32, C))).astype(dtype)
            found = diagnose(logits, [[1, 2, 3]] * 6, counted)
            assert found.kinds == (set() if counted is lengths else {"padded_frames"})
            if counted is not lengths:
                assert found.findings[0].samples == (1, 2, 3, 4, 5)
                # it takes some frames until it rests, and what it says of the padding before is not known for that
                assert lengths.sum() < found.measures.frames < lengths.sum() + 6 * 16


def remembered(x: np.ndarray) -> np.ndarray:
    """What a recurrent layer makes of its input: half of what it was, and what comes."""
    state = np.zeros_like(x)
    for t in range(len(x)):
        state[t] = np.tanh(x[t] + 0.5 * state[t - 1] * (t > 0))
    return state


def test_quiet_ends_are_no_padding():
    for seed in range(50):
        rng = np.random.default_rng([SEED, seed])
        x = rng.normal(size=(120, 6, 16))
        for n, length in enumerate(rng.integers(40, 120, size=6)):
            x[length:, n] *= 0.03
        logits = remembered(x) @ rng.normal(size=(16, C))
        assert diagnose(logits, [[1, 2, 3]] * 6).ok
    for seed in range(8):
        blank = 8.0 * (np.arange(C) == 0) + np.random.default_rng(seed).normal(size=(120, 6, C))
        for n, length in enumerate((120, 60, 70, 80, 90, 100)):
            blank[length:, n] = blank[length:, n] * 0.3 + 14 * (np.arange(C) == 0)
        for x in (blank, softmax(blank), np.tanh(blank - 3), 1 / (1 + np.exp(-blank))):
            assert "padded_frames" not in diagnose(x, [[1, 2, 3]] * 6).kinds


@pytest.mark.parametrize("labels", [[], [1, 2, 3, 4, 5]], ids=["silence", "not filled"])
def test_samples_that_rest_from_the_beginning_are_not_padded(labels):
    """Of those without labels it is true; those with some have inputs that were never filled, which another finding
    says."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 135, seed])
        x = rng.normal(size=(66, 12, 10))
        x[3:60, ::3] = x[3, ::3]  # a convolution sees both edges
        targets = [labels if n % 3 == 0 else rng.integers(1, 10, size=6).tolist() for n in range(12)]
        assert not {"padded_frames", "infeasible"} & diagnose(x, targets).kinds


def test_frames_that_are_padded_to_a_fixed_width_are_well():
    """After its input lengths a network says anything, but not its labels."""
    for seed in range(200):
        given = good(SEED + seed, plain=True)
        x = given["logits"]
        for noise in (0.0, 1.0, 10.0):
            wide = np.random.default_rng(seed).normal(size=(2 * len(x) + 1, *x.shape[1:])) * noise
            wide[: len(x)] = x
            assert not {"short_lengths", "infeasible"} & diagnose(**{**given, "logits": wide}).kinds


def test_silence_that_is_0_to_the_bit_is_no_padding_for_sure():
    """Lengths count it, by another number of frames in each sample: padding they would count alike."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 115, seed])
        targets = [rng.integers(1, 12, size=int(rng.integers(3, 9))).tolist() for _ in range(12)]
        spoken = np.array([7 * len(row) + 3 for row in targets])
        silence = 6 * rng.permutation(12)
        x = sure_of(targets, 12)
        T = int((spoken + silence).max())
        x = np.pad(x, ((0, T - len(x)), (0, 0), (0, 0)))
        x[np.arange(T)[:, None] >= spoken] = [3.0, *[0.0] * 11]
        assert diagnose(x, targets, spoken).ok
        (finding,) = diagnose(x, targets, spoken + silence).findings
        assert (finding.kind, finding.sure) == ("padded_frames", "possible")
        assert finding.means.endswith("or these samples end in silence that is 0 to the bit, and all is well")
        for counted in (spoken + 8, np.ceil(1.3 * spoken).astype(int), np.full(12, T)):
            (finding,) = diagnose(x, targets, np.minimum(counted, T)).findings
            assert (finding.kind, finding.sure) == ("padded_frames", "likely")
            assert "silence" not in finding.means


@pytest.mark.parametrize("tail", [4, 30])
def test_padding_that_begins_at_the_same_frame_in_all_samples(tail):
    """As of a fixed width; only zeros tell it, as all samples may well end in the same silence."""
    rng = np.random.default_rng([SEED, tail])
    x, targets = rng.normal(size=(20, 6, 5)), [[1, 2, 3]] * 6
    (finding,) = diagnose(np.pad(x, ((0, tail), (0, 0), (0, 0))), targets).findings
    assert (finding.kind, finding.samples) == ("padded_frames", tuple(range(6)))
    assert finding.seen.endswith(f" in {tail}")
    silence = np.broadcast_to(np.array([3.0, 0, 0, 0, 0]), (tail, 6, 5))
    assert "padded_frames" not in diagnose(np.concatenate([x, silence]), targets).kinds
    assert "padded_frames" not in diagnose(np.zeros_like(x), targets).kinds


def test_samples_that_padding_leaves_without_a_path():
    """Of a class that is a label too, and stands inside the targets, so that it is not surely padding."""
    rng = np.random.default_rng([SEED, 96])
    rows = [[1, *rng.integers(2, 9, size=size).tolist()] for size in (1, 2, 11)]
    for padded, told in (
        ([row + [1] * (12 - len(row)) for row in rows], True),
        ([(row * 8)[:40] for row in rows], False),
        ([*rows[:2], [2] * 12], False),
    ):
        found = diagnose(rng.normal(size=(14, 3, 10)), padded).findings
        (finding,) = (each for each in found if each.kind == "infeasible")
        assert ("see whether the 10 times 1 at the end of target 0 are padding; or " in finding.do) == told
        assert ("are padding" in finding.do) == told


def relaxing(seed: int, rate: float, rest: int = 4) -> tuple[np.ndarray, list[list[int]], np.ndarray]:
    """A network that reads its labels, and comes to rest in the padding by saying class `rest` more and more."""
    rng = np.random.default_rng([SEED, 122, seed])
    targets = [rng.integers(1, 11, size=int(rng.integers(2, 7))).tolist() for _ in range(24)]
    targets[0], targets[1] = targets[0][:2], rng.integers(1, 11, size=6).tolist()
    lengths = np.array([7 * len(row) + 3 for row in targets])
    x = sure_of(targets, 11)[: lengths.max()]
    for n, length in enumerate(lengths):
        since = np.arange(1, len(x) - length + 1)[:, None]
        end = 8.0 * (np.arange(11) == rest)
        x[length:, n] = end + (x[length - 1, n] - end) * rate**since
    return x, targets, lengths


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.8, 0.9])
def test_labels_that_a_network_says_until_it_comes_to_rest(rate):
    """The same one in all samples is no last label that was cut off."""
    for seed in range(6):
        x, targets, lengths = relaxing(seed, rate)
        assert diagnose(x, targets, lengths).ok
        (finding,) = (found := diagnose(x, targets)).findings
        assert (finding.kind, finding.sure) == ("padded_frames", "likely")
        assert found.measures.loss < 2, "it is put right"


@pytest.mark.parametrize("errors", [False, True])
def test_labels_that_a_network_says_of_padding(errors):
    """As one does that never comes to rest."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 123, seed])
        targets = [rng.integers(1, 11, size=int(rng.integers(7, 20))).tolist() for _ in range(16)]
        targets[3], targets[5] = targets[3][:6], rng.integers(1, 11, size=20).tolist()
        said = [row + rng.integers(1, 11, size=20 - len(row)).tolist() for row in targets]
        for row in said[: 5 if errors else 0]:
            row[2] = 1 + row[2] % 10
        x = sure_of(said, 11)[:143]
        (finding,) = (found := diagnose(x, targets)).findings
        assert (finding.kind, finding.sure) == ("padded_frames", "possible")
        assert "samples read their target and then other labels: sample 3 reads " in finding.seen
        assert finding.samples == tuple(n for n in range(16) if len(targets[n]) < 20)
        assert found.measures.loss < found.measures.constant_loss
        assert diagnose(x, targets, [7 * len(row) + 3 for row in targets]).ok


def test_labels_that_were_cut_off_are_not_said_of_padding():
    """As many in each sample, or all but so many; and where all samples are as long."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 124, seed])
        rows = [rng.integers(1, 11, size=int(rng.integers(6, 20))).tolist() for _ in range(16)]
        x = sure_of(rows, 11)
        for given in ([row[:-1] for row in rows], [row[:-2] for row in rows], [row[:7] for row in rows]):
            assert diagnose(x, given).kinds == {"mismatch"}
        equal = rng.integers(1, 11, size=(16, 20)).tolist()
        part = [row[: int(rng.integers(17, 20))] for row in equal]
        assert "padded_frames" not in diagnose(sure_of(equal, 11), part).kinds


def test_labels_that_few_samples_insert_at_their_ends_are_not_said_of_padding():
    """Most of them are read to the last label: all frames are theirs."""
    for seed in range(6):
        rng = np.random.default_rng([SEED, 126, seed])
        rows = [rng.integers(1, 30, size=int(rng.integers(3, 13))).tolist() for _ in range(32)]
        said = [row + rng.integers(1, 30, size=2 * (n % 4 == 0)).tolist() for n, row in enumerate(rows)]
        assert "padded_frames" not in diagnose(sure_of(said, 30), rows).kinds


@pytest.mark.parametrize("errors", [0, 3])
def test_marks_that_targets_lack_are_not_said_of_padding(errors):
    for seed in range(6):
        rng = np.random.default_rng([SEED, 127, seed])
        rows = [rng.integers(2, 11, size=int(rng.integers(4, 13))).tolist() for _ in range(16)]
        said = [[*row, *[1] * int(rng.integers(1, 3))] for row in rows]
        for row in said[:errors]:
            row[1] = 2 + (row[1] - 1) % 9
        assert "padded_frames" not in diagnose(sure_of(said, 11), rows).kinds
