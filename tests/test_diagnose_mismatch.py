"""A network that is sure of other labels: which, and where nothing tells it."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

from ctcbind import diagnose, edit_distance


def sure_of(targets: list[list[int]], C: int) -> np.ndarray:
    """What a network says that knows them: two frames a label, five of the blank between."""
    x = np.random.default_rng(len(targets)).normal(size=(7 * max(map(len, targets)) + 6, len(targets), C)) * 0.3
    for n, row in enumerate(targets):
        path = np.zeros(len(x), int)
        for i, label in enumerate(row):
            path[3 + 7 * i : 5 + 7 * i] = label
        x[np.arange(len(x)), n, path] += 8
    return x


OTHER_LABELS = {
    "lowered by 1": lambda targets: [[label % 8 + 1 for label in row] for row in targets],
    "raised by 1": lambda targets: [[(label - 2) % 8 + 1 for label in row] for row in targets],
    "reversed": lambda targets: [row[::-1] for row in targets],
    "another order": lambda targets: targets[1:] + targets[:1],
}


@pytest.mark.parametrize("mistake", [*OTHER_LABELS, "the sign of the logits", "others"])
def test_a_network_that_is_sure_of_other_labels(mistake):
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=int(rng.integers(3, 7))).tolist() for _ in range(16)]
        x, given = sure_of(targets, 9), targets
        assert diagnose(x, targets).ok
        if mistake in OTHER_LABELS:
            given = OTHER_LABELS[mistake](targets)
        elif mistake == "others":
            given = [rng.integers(1, 9, size=len(row)).tolist() for row in targets]
        else:
            x = -x
        (finding,) = diagnose(x, given, history=[0.1] * 50).findings  # and not that it does not learn
        assert (finding.kind, finding.sure) == ("mismatch", "possible" if mistake == "others" else "likely")
        assert mistake == "others" or mistake in finding.seen


def sure_of_each_frame(targets: list[list[int]], C: int) -> np.ndarray:
    """What a network says to which each frame is a label of its own: equal ones side by side, blanks before others."""
    x = np.random.default_rng(len(targets)).normal(size=(7 * max(map(len, targets)) + 6, len(targets), C)) * 0.3
    for n, row in enumerate(targets):
        frame = 0
        for before, label in zip([None, *row], row):
            x[frame : frame + 3, n, 0] += 8 * (label != before)
            frame += 1 if label == before else 4
            x[frame - 1, n, label] += 8
        x[frame:, n, 0] += 8
    return x


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_a_network_of_the_other_topology(topology):
    other = "simple" if topology == "ctc" else "ctc"
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        words = [rng.permutation(8)[:5] + 1 for _ in range(12)]
        targets = [np.repeat(word, rng.integers(1, 3, size=5)).tolist() for word in words]
        x = (sure_of if topology == "ctc" else sure_of_each_frame)(targets, 9)
        assert diagnose(x, targets, topology=topology).ok
        (finding,) = diagnose(x, targets, topology=other).findings
        assert (finding.kind, finding.sure, finding.do) == ("other_topology", "likely", f'pass topology="{topology}"')
        assert f'with topology="{topology}" the median loss of ' in finding.seen


def test_a_pair_of_equal_labels_that_is_read_as_one_is_no_topology():
    """The network errs there, and there alone."""
    targets = [[1, 2, 2, 3], [4, 5, 6], [7, 7, 1], [2, 8]]
    said = sure_of_each_frame(targets, 9)
    assert diagnose(said, targets).ok


def test_one_wrong_label_is_no_mistake_of_all():
    """Too few labels tell nothing: of two, in another order, half are reversed."""
    for reads, target, C in (([4], [3], 11), ([7, 3], [3, 7], 11), ([1], [2], 4)):
        assert diagnose(sure_of([reads], C), [target]).ok


def apart(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Targets of five labels of eight, of which none is like another by chance."""
    targets: list[list[int]] = []
    while len(targets) < count:
        row = rng.integers(1, 9, size=5).tolist()
        if all(edit_distance(row, other) >= 4 for other in targets):
            targets.append(row)
    return targets


def test_some_targets_of_other_samples_are_named():
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [*apart(rng, 15), rng.integers(1, 5, size=5).tolist()]
        x = sure_of(targets, 9)
        (finding,) = diagnose(x, targets[1:6] + targets[:1] + targets[6:]).findings
        assert (finding.kind, finding.sure) == ("mismatch", "likely")
        assert set(finding.samples) <= set(range(6))
        assert len(finding.samples) >= 3
        (finding,) = diagnose(x, [*targets[:-1], [4 + label for label in targets[-1]]]).findings
        assert (finding.sure, finding.samples) == ("possible", (15,))


def test_a_network_that_has_begun_to_learn_is_told_nothing():
    """Sure of half of each target, and of something else in the other half: its own targets are the nearest."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        targets = [rng.integers(1, 9, size=6).tolist() for _ in range(16)]
        assert diagnose(sure_of([row[:3] + rng.integers(1, 9, size=3).tolist() for row in targets], 9), targets).ok
