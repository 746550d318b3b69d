"""`check`: every rule that a batch breaks, in the words and the order of the loss that refuses it."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from bad_inputs.refused import GOOD, REFUSED, Row
from bad_inputs.runner import made
from batches import SEED, random_case

import ctcbind
from ctcbind import check, ctc_loss, greedy_decode
from ctcbind.errors import brief

#: Rows of the table of wrong inputs that `check` can be given: it takes no reduction and no engine.
MINE = {name: row for name, row in REFUSED.items() if set(row.changes) <= {*GOOD, "input_lengths", "target_lengths",
        "blank", "layout", "topology"}}  # fmt: skip
#: One that each argument's fault is taken from, to be put beside those of the others.
APART = ("targets", "input_lengths", "target_lengths", "blank")


def given(row: Row):
    return made({**GOOD, **row.changes})


@pytest.mark.parametrize("name", MINE)
def test_the_first_problem_is_what_a_loss_raises(name):
    row = MINE[name]
    report = check(**given(row))
    assert report.refused
    assert not report.ok
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc_loss(**given(row))
    first, error = report.problems[0], caught.value
    assert (first.rule, first.message, first.sample, first.position) == (
        error.rule, str(error), error.sample, error.position,
    )  # fmt: skip
    assert json.dumps(report.to_dict())


def test_a_good_batch_breaks_nothing():
    for seed in range(200):
        case = random_case([SEED, seed])
        report = check(*case.args, **case.options)
        assert not report.refused
        assert [fit.feasible for fit in report.fits] == [case.feasible(n) for n in range(len(case.labels))]
        assert report.ok == all(fit.feasible for fit in report.fits)
        for fit, labels, frames in zip(report.fits, case.labels, case.frames):
            repeats = sum(a == b for a, b in itertools.pairwise(labels)) if case.topology == "ctc" else 0
            assert (fit.frames, fit.labels, fit.repeats) == (frames, len(labels), repeats)
            assert fit.required == len(labels) + repeats


def test_faults_of_two_arguments_are_both_found():
    """Whose labels are wrong cannot be told without a blank; nothing else hides anything."""
    alone = {name: row for name, row in MINE.items() if len(row.changes) == 1 and next(iter(row.changes)) in APART}
    pairs = 0
    for (first, one), (second, other) in itertools.combinations(alone.items(), 2):
        places = {*one.changes, *other.changes}
        if len(places) == 1 or places == {"targets", "target_lengths"}:  # these two make another fault together
            continue
        report = check(**{**given(one), **{name: given(other)[name] for name in other.changes}})
        rules = {problem.rule for problem in report.problems}
        for name, row in ((first, one), (second, other)):
            if rules.isdisjoint(row.rule.split("|")):
                assert (row.rule, "blank" in places) == ("label_blank", True), (first, second, name, rules)
        pairs += 1
    assert pairs > 1000


def test_of_two_faults_a_loss_raises_the_first_that_is_listed():
    names = [name for name, row in MINE.items() if row.rule != "size_limit"]  # arrays of 2**30, in a view of few bytes
    pairs = 0
    for first, second in itertools.combinations(names, 2):
        batch = {**given(MINE[first]), **{name: given(MINE[second])[name] for name in MINE[second].changes}}
        refused = [problem for problem in check(**batch).problems if problem.refused]
        if not refused:  # one takes the other's fault away
            continue
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctc_loss(**batch)
        assert (caught.value.rule, str(caught.value)) == (refused[0].rule, refused[0].message), (first, second)
        pairs += 1
    assert pairs > 5_000


def test_every_place_is_named():
    report = check(np.zeros((5, 3, 4)), [[1, 9, 0], [-2, 4], [2, 2, 2, 2]], [5, 6, 6])
    assert [(p.rule, p.sample, p.position, p.value) for p in report.problems] == [
        ("input_length", 1, None, 6),
        ("input_length", 2, None, 6),
        ("label_range", 0, 1, 9),
        ("label_blank", 0, 2, 0),
        ("label_negative", 1, 0, -2),
        ("label_range", 1, 1, 4),
        ("infeasible", 2, None, 5),
    ]
    assert report.refused
    assert "targets[0][1] is 9, but there are 4 classes (0..3)" in str(report)
    assert "sample 2 has no path: 4 labels and 3 repeats need 7 frames, and it has 5" in str(report)


def test_of_lengths_and_objects_exactly_the_wrong_ones_are_named():
    x = np.zeros((5, 4, 4))
    report = check(x, [[1], [2], [], [3]], [0, -1, 0, 5], [1, -2, 0, 1])
    assert [(p.rule, p.sample, p.value) for p in report.problems] == [
        ("length_negative", 1, -1),
        ("length_negative", 1, -2),
    ]
    report = check(x, [[1], [2], [], [3]], [0, -1, 0, 5])
    assert [(p.rule, p.sample) for p in report.problems] == [("length_negative", 1), ("infeasible", 0)]
    assert [fit.sample for fit in report.fits] == [0, 2, 3]
    (problem,) = check(x, np.array([[1, 2], [3, None], [1, 2], [1, 2]], dtype=object)).problems
    assert (problem.rule, problem.sample, problem.position) == ("integers", 1, 1)
    (problem,) = check(x, np.ones((4, 2), int), np.full((4, 1, 1), 5.0)).problems
    assert problem.message.endswith("pass input_lengths.astype(int)")


@pytest.mark.parametrize("wrong", [True, np.True_])
def test_a_boolean_among_integers_is_none(wrong):
    """Of which NumPy makes a 1, without a word."""
    x = np.zeros((5, 2, 4), np.float32)
    for given, where, place in (
        (([[1], [wrong, 2]],), "targets[1][0]", (1, 0)),
        (([[wrong, 2], [3]], None, [2, 1]), "targets[0][0]", (0, 0)),
        (([1, wrong, 2], None, [2, 1]), "targets[1]", (1, None)),
        (([[1], [2]], [5, wrong]), "input_lengths[1]", (1, None)),
        ((np.ones((2, 2), int), None, (wrong, 2)), "target_lengths[0]", (0, None)),
    ):
        (problem,) = check(x, *given).problems
        assert problem.message.startswith(f"{where} is ")
        assert problem.message.endswith("; it must be an integer")
        assert (problem.rule, problem.sample, problem.position) == ("integers", *place)
        with pytest.raises(ctcbind.InvalidInput, match="it must be an integer"):
            ctc_loss(x, *given)


def test_wrong_logits_do_not_hide_wrong_labels():
    report = check(np.zeros((4, 3), int), [[1, 2.5]], [3, -1], blank="x")
    assert {p.rule for p in report.problems} == {
        "logits_dtype", "logits_rank", "blank", "length_negative", "integers",
    }  # fmt: skip
    report = check(np.zeros((4, 3, 2)), [[1]], layout="CTN", topology="rnnt")
    assert [p.rule for p in report.problems] == ["layout", "topology"]


def test_a_row_that_cannot_be_cut_is_still_looked_at():
    report = check(np.zeros((4, 2, 3)), np.array([1, 2, 7]), None, [1, 1])
    assert [p.rule for p in report.problems] == ["target_lengths_sum", "label_range"]
    assert report.problems[1].message.startswith("targets[2] is 7")
    assert report.problems[1].sample is None


def test_the_worst_five_without_a_path_are_printed():
    N = 12
    report = check(np.zeros((3, N, 4)), [[1, 2] * (n + 1) for n in range(N)])
    assert [p.rule for p in report.problems] == ["infeasible"] * 11
    assert not report.refused
    lines = str(report).splitlines()
    assert lines[0].startswith("sample 11 has no path: 24 labels need 24 frames, and it has 3")
    assert len(lines) == 6
    assert lines[-1] == "... and 6 more like these (infeasible)"
    assert np.isinf(ctc_loss(np.zeros((3, N, 4)), [[1, 2] * (n + 1) for n in range(N)])[1:]).all()


def test_of_five_without_a_path_none_is_left_out():
    report = check(np.zeros((1, 5, 4)), [[1, 2]] * 5)
    assert str(report).splitlines() == [problem.message for problem in report.problems]


def test_plus_inf_is_told_and_a_mask_is_not():
    x = np.zeros((5, 3, 4))
    x[3, 1, 2] = x[3, 1, 0] = x[4, 2, 0] = np.inf
    x[:, 0, 3] = -np.inf
    report = check(x, [[1], [2], [3]], [5, 5, 4])
    (problem,) = report.problems
    assert (problem.rule, problem.sample, problem.position, problem.refused) == ("logits_inf", 1, 3, False)
    assert (
        problem.message
        == "the logit of sample 1, frame 3, class 0 is inf (and 1 more): inf takes the whole probability of its frame"
    )
    assert json.loads(json.dumps(report.to_dict(), allow_nan=False))["problems"][0]["value"] == "inf"
    x[3, 1] = 0, -np.inf, 0, -np.inf  # what the sentence says: the two share the frame
    shared = ctc_loss(x, [[1], [2], [3]], [5, 5, 4])[1]
    x[3, 1] = np.inf, 0, np.inf, 0
    assert ctc_loss(x, [[1], [2], [3]], [5, 5, 4])[1] == shared < np.inf


def test_nan_of_a_sample_without_a_path():
    x = np.zeros((2, 2, 3))
    x[0, :, 1] = np.nan, np.inf
    report = ctcbind.check(x, [[1, 2, 1]] * 2)
    told = [problem.message for problem in report.problems if problem.rule in ("logits_nan", "logits_inf")]
    assert len(told) == 2
    assert all(message.endswith(": its loss is inf all the same, for it has no path") for message in told)
    assert np.isposinf(ctc_loss(x, [[1, 2, 1]] * 2)).all()


def test_nan_is_told_where_it_counts():
    x = np.zeros((5, 3, 4), np.float32)
    x[3, 1, 2] = x[4, 1, 0] = x[4, 2, 0] = np.nan
    report = check(x, [[1], [2], [3]], [5, 5, 4])
    (problem,) = report.problems
    assert (problem.rule, problem.sample, problem.position) == ("logits_nan", 1, 3)
    assert "frame 3, class 2 is nan (and 1 more)" in problem.message
    assert np.isnan(ctc_loss(x, [[1], [2], [3]], [5, 5, 4])).tolist() == [False, True, False]
    assert json.loads(json.dumps(report.to_dict()))["problems"][0]["value"] == "nan"


def test_a_message_has_no_address_in_it():
    class Untold:
        def __repr__(self):
            raise RuntimeError

    for value, said in (
        ((k for k in [[1]]), "<generator object "),
        (iter([[1]]), "<list_iterator object>"),
        (object(), "<object object>"),
        (Untold(), "<Untold instance>"),
        (np.float64, "<class 'numpy.float64'>"),
    ):
        (problem,) = check(np.zeros((5, 1, 4)), [[1]], blank=value).problems
        assert problem.message.startswith(f"blank is {said}"), problem
        assert " at 0x" not in problem.message
    text = np.array(["x" * 81])  # in "array([...], dtype='<U81')"
    assert (len(brief(text)), brief(text)[:8]) == (80, "array(['")


def test_a_million_padded_labels_are_listed_quickly():
    report = check(np.zeros((300, 100, 5)), np.zeros((100, 300), int), None, [300] * 100)
    assert len(report.by_rule()["label_blank"]) == 30_000
    assert len(str(report).splitlines()) <= 12


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_masks_that_leave_no_path_are_told(topology):
    """As often as the loss is inf, and with what every path comes to."""
    rng, told = np.random.default_rng(20261121), 0
    for _ in range(60):
        T, N, C = (int(i) for i in rng.integers(3, 12, size=3))
        x = np.where(rng.random((T, N, C)) < rng.choice([0.02, 0.2, 0.5]), -np.inf, rng.normal(size=(T, N, C)))
        labels = [rng.integers(1, C, size=rng.integers(0, T // 2 + 1)).tolist() for _ in range(N)]
        frames = [int(rng.integers(2 * len(row), T + 1)) for row in labels]
        report = check(x, labels, frames, topology=topology)
        losses = ctc_loss(x, labels, frames, topology=topology)
        assert {p.sample for p in report.problems} == set(np.flatnonzero(np.isinf(losses)).tolist())
        assert {p.rule for p in report.problems} <= {"masked"}
        assert not report.refused
        assert all(p.position < frames[p.sample] for p in report.problems)
        told += len(report.problems)
    assert told > 50


def test_how_far_masks_let_paths_come():
    x = np.zeros((10, 4, 4), np.float32)
    x[:, 0, 2] = x[:, 3, 3] = -np.inf  # class 3 of the last is not needed
    x[4, 1] = -np.inf
    x[1:, 2, [0, 3]] = -np.inf
    report = check(x, [[1, 2], [1, 3], [1, 1], [1]])
    assert [(p.rule, p.sample, p.position, p.message.rpartition("; ")[2]) for p in report.problems] == [
        ("masked", 0, 9, "none comes to label 1, class 2"),
        ("masked", 1, 4, "none gets through frame 4"),
        ("masked", 2, 9, "none comes to label 1, class 1"),
    ]
    assert report.problems[0].message.startswith("sample 0 has no path: logits of -inf forbid every one; ")
    x[:, 0, 2], x[9, 0, [0, 2]] = 0, -np.inf
    (problem,) = check(x[:, :1], [[1, 2]]).problems
    assert problem.message.endswith("; none comes to the end")
    assert [p.rule for p in check(x, [[1, 2], [9], [1, 1], [1]]).problems] == ["label_range"]


def test_masks_of_arrays_that_lie_otherwise():
    x = np.zeros((4, 3, 5), np.float16)
    x[..., 2] = -np.inf
    (problem,) = check(
        x.transpose(1, 0, 2)[::-1].transpose(1, 0, 2)[..., ::-1], [[1], [2], [], [3]], layout="NTC"
    ).problems
    assert (problem.rule, problem.sample) == ("masked", 1)


def test_one_is_no_plural():
    assert str(check(np.zeros((1, 1, 3)), [[1]])) == "Nothing is wrong with this 1 sample."
    (problem,) = check(np.zeros((0, 1, 3)), [[1]]).problems
    assert problem.message == "sample 0 has no path: 1 label needs 1 frame, and it has 0"
    (problem,) = check(np.zeros((2, 1, 3)), [[1, 1]]).problems
    assert problem.message == "sample 0 has no path: 2 labels and 1 repeat need 3 frames, and it has 2"


def test_a_report_is_true_where_nothing_is_wrong():
    assert ctcbind.check(np.zeros((3, 1, 4)), [[1]])
    assert not ctcbind.check(np.zeros((3, 1, 4)), [[9]])
    assert ctcbind.diagnose(np.eye(4)[[0, 1, 2]][:, None] * 2.0, [[1]])
    assert not ctcbind.diagnose(np.zeros((3, 1, 4)), [[9]])


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (np.array([[1, 2], [3, -1]]), "target_lengths[0] is 9, but targets have only 2 columns"),
        ([[1, 2], [3]], "target_lengths[0] is 9, but targets[0] has 2 labels"),
        (np.array([1, 2, 3]), "target_lengths sum to 17, but targets hold 3 labels"),
    ],
)
def test_lengths_in_each_others_place(targets, words):
    """As for a library that takes those of the labels first."""
    told = "; each of target_lengths is more than its input length: input_lengths, those of the frames, come first"
    logits = np.zeros((9, 2, 5))
    first, *others = [str(problem) for problem in check(logits, targets, [2, 1], [9, 8]).problems]
    assert first.startswith(words)
    assert first.endswith(told)
    assert not any(told in other for other in others)
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctc_loss(logits, targets, [2, 1], [9, 8])
    assert str(caught.value) == first
    for lengths in ([9, 1], None):  # one that fits, and none given
        assert told not in str(check(logits, targets, lengths, [9, 8]))


@pytest.mark.parametrize("name", ["input_lengths", "target_lengths"])
def test_lengths_in_other_forms_than_counts(name):
    """Shares of the longest, which astype(int) would make 0 and 1 of, and masks."""
    given = {"input_lengths": [8, 6], "target_lengths": [2, 1]}
    x, targets = np.zeros((8, 2, 5)), np.array([[1, 2], [3, 4]])

    def said(value: object) -> str:
        return check(x, targets, **{**given, name: value}).problems[0].message

    whole = "T" if name == "input_lengths" else "the width of the targets"
    for shares in (np.array([1, 0.75]), np.ones(2, np.float32)):
        assert said(shares).endswith(f"if they are shares of {whole}, pass them times that, rounded")
    assert "shares" not in said(np.array([8.0, 6.0]))
    assert "shares" not in said(np.array([8.5, 6.0]))
    assert "shares" not in said(np.zeros(2))
    mask = np.arange(8) < np.array([[8], [6]])
    for given_mask in (mask, mask.astype(int)):
        assert f"pass {name}.sum(axis=1) if they are a mask" in said(given_mask)
    assert "mask" not in said(mask + 3)
    assert "mask" not in said([True, False])


def test_readings_in_the_place_of_targets():
    x = np.random.default_rng(0).normal(size=(8, 2, 5))
    read = greedy_decode(x)
    problem = check(x, read).problems[0]
    assert problem.message == "targets[0] is of type Hypothesis; it must be one row of labels: pass its labels"
    assert (problem.rule, problem.sample) == ("integers", 0)
    assert check(x, [each.labels for each in read]).ok


@pytest.mark.parametrize(
    ("layout", "said"),
    {
        "BTC": "did you mean 'NTC'?",
        "tnc": "did you mean 'TNC'?",
        "SBV": "did you mean 'TNC'?",
        "batch_first": "did you mean 'NTC'?",
        "NCT": "transpose the logits by (2, 0, 1) and pass 'TNC'",
        "CTN": "transpose the logits by (1, 2, 0) and pass 'TNC'",
    }.items(),
)
def test_a_layout_by_another_name_is_told(layout, said):
    """Wherever one is passed."""
    x, targets = np.zeros((4, 4, 5)), [[1]] * 4
    for call in (
        lambda: ctc_loss(x, targets, layout=layout),
        lambda: ctcbind.CTCLoss(layout=layout),
        lambda: ctcbind.diagnose(x, targets, layout=layout),
        lambda: ctcbind.explain(x, targets, layout=layout),
        lambda: ctcbind.align(x, targets, layout=layout),
        lambda: greedy_decode(x, layout=layout),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            call()
        assert str(caught.value) == f"layout is {layout!r}; it must be one of 'TNC', 'NTC': {said}"
    assert check(x, targets, layout=layout).problems[0].message == str(caught.value)
    if said.startswith("transpose"):
        sizes = dict(zip("TNC", (7, 2, 5)))
        moved = tuple(map(int, said.partition("(")[2].partition(")")[0].split(", ")))
        assert np.zeros([sizes[axis] for axis in layout]).transpose(moved).shape == (7, 2, 5)


@pytest.mark.parametrize("layout", ["", "NHWC", "NTT", "CNN", None, 3])
def test_of_what_is_no_layout_nothing_is_guessed(layout):
    assert check(np.zeros((4, 1, 5)), [[1]], layout=layout).problems[0].message.endswith("one of 'TNC', 'NTC'")


def test_without_a_blank_labels_are_in_the_range_of_the_classes():
    """Which of them is the blank nobody can say."""
    problems = check(np.zeros((4, 3, 5)), [[0, 4], [5], [1]], blank="0").problems
    assert [(each.rule, each.sample, each.position, each.value) for each in problems] == [
        ("blank", None, None, "0"),
        ("label_range", 1, 0, 5),
    ]


@pytest.mark.parametrize(
    ("layout", "other", "more"), [("TNC", "NTC", ", by (2, 0, 1) if they are (N, C, T)"), ("NTC", "TNC", "")]
)
def test_as_many_targets_as_time_steps(layout, other, more):
    x = np.zeros((4, 3, 5) if layout == "TNC" else (3, 4, 5))
    (problem,) = check(x, [[1]] * 4, layout=layout).problems
    assert problem.message.endswith(f'if those are the samples, pass layout="{other}" or transpose them{more}')


def test_a_report_as_a_dict_keeps_numbers():
    given = check(np.zeros((4, 2, 5)), [[1, 1, 1], [2]], [4, 9], blank=-(10**400), topology="none").to_dict()
    values = {each["rule"]: each["value"] for each in given["problems"]}
    assert (values["input_length"], values["topology"]) == (9, "none")
    assert isinstance(values["blank"], str)
    (problem,) = check(np.zeros((4, 2, 5)), [[1], [2]], blank=np.int64(9)).to_dict()["problems"]
    assert problem["value"] == 9
    (problem,) = check(np.zeros((4, 2, 5)), [[1], [2]], layout=json).to_dict()["problems"]
    assert problem["value"].startswith("<module 'json'")
    assert check(np.full((3, 1, 2), np.nan), [[1]]).to_dict()["problems"][0]["value"] == "nan"


@pytest.mark.parametrize("topology", ["ctc", "simple"])
def test_where_the_last_of_the_paths_ends(topology):
    """Every path that is not forbidden, as far as what it reads begins the labels."""
    rng = np.random.default_rng([SEED, 78])

    def read(path: tuple[int, ...]) -> list[int]:
        kept = [c for c, _ in itertools.groupby(path)] if topology == "ctc" else path
        return [c for c in kept if c != blank]

    ends = set()
    for trial in range(300):
        T, C, L = rng.integers(1, 7), int(rng.integers(2, 4)), rng.integers(0, 5)
        blank = int(rng.integers(C))
        labels = rng.choice([c for c in range(C) if c != blank], size=L).tolist()
        x = np.where(rng.random((T, 1, C)) < 0.4, -np.inf, 0.0)
        if trial == 0:  # the labels are read to the last, and then its path stops: chance makes few such
            T, C, blank, labels, L = 3, 3, 0, [1, 2], 2
            x = np.array([[0, 0, -np.inf], [0, -np.inf, 0], [-np.inf, 0, -np.inf]])[:, None]
        paths, reached, stopped = {()}, 0, None
        for t in range(T):
            paths = {(*path, c) for path in paths for c in range(C) if x[t, 0, c] == 0}
            paths = {path for path in paths if read(path) == labels[: len(read(path))]}
            if not paths:
                stopped = t
                break
            reached = max(reached, *(len(read(path)) for path in paths))
        report = check(x, [labels], blank=blank, topology=topology)
        if not report.fits[0].feasible:
            assert [each.rule for each in report.problems] == ["infeasible"]
            continue
        if any(read(path) == labels for path in paths):
            assert report.ok
            continue
        where = f"none gets through frame {stopped}"
        if stopped is None:
            where = (
                "none comes to the end" if reached == L else f"none comes to label {reached}, class {labels[reached]}"
            )
        (problem,) = report.problems
        assert problem.message == f"sample 0 has no path: logits of -inf forbid every one; {where}"
        assert (problem.rule, problem.value) == ("masked", -np.inf)
        assert problem.position == (T - 1 if stopped is None else stopped)
        ends.add(where[:15])
    assert len(ends) == 3


def test_of_one_logit_no_more_are_told():
    x = np.zeros((4, 1, 3))
    x[2, 0, 1] = np.nan
    (problem,) = check(x, [[1]]).problems
    assert problem.message == "the logit of sample 0, frame 2, class 1 is nan: the sample's loss is nan"
