"""The table of bad and extreme inputs (tests/bad_inputs) on every engine, and what holds of errors beside it."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_inputs.refused import FLAT, GOOD, PADDED, REFUSED, C, N, OnDevice, T
from bad_inputs.runner import BESIDE, OPTIONS, rows
from bad_inputs.values import VALUES
from batches import SEED

import ctcbind
from ctcbind.batch import make_batch
from ctcbind.bindings import native, native_decode, native_rows
from ctcbind.engines import NAMES, get
from ctcbind.engines.native import NativeSession
from ctcbind.engines.reference import ReferenceSession

ENGINES = [pytest.param(name, marks=pytest.mark.gpu if get(name).contract.arrays == "device" else ()) for name in NAMES]
RUNNER = Path(__file__).resolve().parent / "bad_inputs" / "runner.py"


def through_ctc_loss(**arguments: Any) -> Any:
    return ctcbind.ctc_loss(**arguments)


def through_ctc_loss_and_grad(**arguments: Any) -> Any:
    return ctcbind.ctc_loss_and_grad(**arguments)


def through_ctcloss(**arguments: Any) -> Any:
    options = {name: arguments.pop(name) for name in OPTIONS if name in arguments}
    with ctcbind.CTCLoss(**options) as plan:
        return plan(**arguments)


WAYS = [through_ctc_loss, through_ctc_loss_and_grad, through_ctcloss]


@pytest.fixture
def no_engine_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("the engine ran on a batch that cannot be right")

    for session in (NativeSession, ReferenceSession):
        monkeypatch.setattr(session, "run", run)


def test_the_good_batch_is_good() -> None:
    """Each row is wrong in one place alone: the rest is right."""
    for way in WAYS:
        way(**GOOD)
    for targets, lengths in ((PADDED, None), (PADDED, [2, 1, 0]), (FLAT, [2, 1, 0]), (GOOD["targets"], [2, 1, 0])):
        ctcbind.ctc_loss(GOOD["logits"], targets, [T, T, T], lengths)


@pytest.fixture(scope="module")
def outcomes() -> Callable[[str], dict[tuple[str, str], dict[str, Any]]]:
    """What each row of tests/bad_inputs came to on an engine, each row in a process of its own."""

    @cache
    def run(engine: str) -> dict[tuple[str, str], dict[str, Any]]:
        command = [sys.executable, str(RUNNER), engine]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return {(each["kind"], each["name"]): each for each in found}

    return run


@pytest.mark.parametrize("kind", ["refused", "value"])
@pytest.mark.parametrize("name", [*ENGINES, BESIDE])
def test_every_row_on_every_engine(name: str, kind: str, outcomes: Any) -> None:
    """Through ctc_loss, ctc_loss_and_grad and CTCLoss: the error, or the losses and a gradient as it must be.

    "beside": through the decoders, alignment, lattice and second order, whatever of those a row is for.
    """
    if name != BESIDE and not ctcbind.engines()[name].available:
        pytest.skip(f"engine {name} is not available")
    mine = {row: outcome for (which, row), outcome in outcomes(name).items() if which == kind}
    assert {row for _, row, _ in rows(name)} == {row for _, row in outcomes(name)}
    wrong = {row: outcome["faults"] for row, outcome in mine.items() if not outcome["ok"]}
    assert not wrong
    told = sum(outcome["did"] == "refused" for outcome in mine.values())
    assert told < len(mine) / 3, "an engine that refuses everything passes no test"


def test_there_are_rows_enough() -> None:
    assert len(REFUSED) >= 120
    assert len(VALUES) >= 100
    page = (Path(__file__).resolve().parent.parent / "docs" / "robustness.md").read_text(encoding="utf-8")
    for name, words in (("native", "ctcbind, native engine"), (BESIDE, "ctcbind, beside the loss")):
        refused, values = (sum(kind == each for kind, _, _ in rows(name)) for each in ("refused", "value"))
        assert f"| {words} | {refused} of {refused} | 0 | 0 | {values} of {values} | 0 |" in page
    assert f"{len(REFUSED)} that cannot be right" in page
    assert f"and {len(VALUES)} that are extreme" in page


def test_a_crash_and_a_hang_are_outcomes() -> None:
    """In a process without threads, as the runner itself is."""
    script = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(RUNNER.parent.parent)!r})
        from bad_inputs import runner
        runner.SECONDS = 1
        todo = [("value", "crash", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
                ("value", "hang", lambda: time.sleep(60)), ("value", "leave", lambda: os._exit(3)),
                ("value", "raise", lambda: 1 / 0),
                ("value", "good", lambda: {{"ok": True, "did": "value", "faults": []}})]
        for each in runner.in_processes(todo):
            print(each["name"], each["did"], each["ok"], str(each["faults"])[-40:].replace(chr(10), " "))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["crash"].startswith("crash crashed False ['SIGSEGV']")
    assert lines["hang"].startswith("hang hung False")
    assert lines["leave"].startswith("leave crashed False ['exit 3']")
    assert lines["raise"].startswith("raise failed False")
    assert "ZeroDivisionError" in lines["raise"]
    assert lines["good"].startswith("good value True")


@pytest.mark.usefixtures("no_engine_runs")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("through_"))
def test_logits_on_a_device_without_cupy(way: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)  # an import of it fails
    with pytest.raises(ctcbind.InvalidInput, match=r"needs CuPy: pip install 'ctcbind\[cuda12\]'") as caught:
        way(logits=OnDevice(), targets=[[1]])
    assert caught.value.rule == "device"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.removeprefix("through_"))
def test_an_unknown_option_is_pythons_own_error(way: Callable[..., Any]) -> None:
    for wrong in ({"blank_label": 0}, {"size_average": True}):
        with pytest.raises(TypeError, match=next(iter(wrong))):
            way(**GOOD, **wrong)


def test_options_are_keywords_only() -> None:
    with pytest.raises(TypeError):
        ctcbind.ctc_loss(GOOD["logits"], GOOD["targets"], None, None, 0)
    with pytest.raises(TypeError):
        ctcbind.CTCLoss("native")


def test_a_plan_refuses_its_options_when_it_is_made() -> None:
    switches = ("zero_infinity", "graph_safe", "overwrite_logits", "probabilities", "deterministic")
    for option in ("layout", "topology", "reduction", "engine", "blank", *switches):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.CTCLoss(**{option: "nothing"})
        assert caught.value.rule == option
        assert caught.value.value == "nothing"


def test_a_switch_is_a_bool_or_the_number_of_one() -> None:
    for value in (0, False, np.False_, np.int64(0), 1, True, np.True_, np.uint8(1)):
        with ctcbind.CTCLoss(zero_infinity=value) as plan:
            assert plan.zero_infinity is bool(value)
    for value in (2, -1, 0.0, 1.0, None, "", np.float32(1)):
        with pytest.raises(ctcbind.InvalidInput, match=r"^zero_infinity is .*; it must be True or False$"):
            ctcbind.CTCLoss(zero_infinity=value)


def test_a_plan_refuses_a_blank_that_is_no_class_of_any_batch() -> None:
    for blank in (-2, np.int64(-3)):
        with pytest.raises(ctcbind.InvalidInput, match=rf"^blank is {blank}; it must be a class, or -1 for the last$"):
            ctcbind.CTCLoss(blank=blank)
        with pytest.raises(ctcbind.InvalidInput, match=rf"^blank is {blank}; it must be a class, or -1 for the last$"):
            ctcbind.ctc_loss(**GOOD | {"blank": blank})
    assert ctcbind.CTCLoss(blank=10**6).blank == 10**6


def test_what_a_network_returns_beside_its_output_is_told() -> None:
    logits = np.asarray(GOOD["logits"])
    for given in ((logits, [4, 4, 4]), (logits, None), [logits, np.zeros((1, 2))], (logits, (logits[0], logits[0]))):
        with pytest.raises(
            ctcbind.InvalidInput, match=r"one array: it holds .* as networks return them: pass logits\[0\]$"
        ):
            ctcbind.ctc_loss(given, GOOD["targets"])
    with pytest.raises(ctcbind.InvalidInput, match=r"pass logits\[1\]$"):
        ctcbind.ctc_loss(([4, 4, 4], logits), GOOD["targets"])
    with pytest.raises(ctcbind.InvalidInput, match="4 dimensions"):
        ctcbind.ctc_loss((logits, logits), GOOD["targets"])


def test_a_name_that_is_spelt_otherwise_is_told() -> None:
    for option, value, meant in (
        ("engine", "nativ", "native"),
        ("engine", "CUDNN", "cudnn"),
        ("engine", "warp-ctc", "warpctc"),
        ("topology", "CTC", "ctc"),
        ("reduction", "label-mean", "label_mean"),
        ("reduction", "mean_batch", "batch_mean"),
        ("engine", "torch", ""),
        ("topology", "hmm", ""),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.CTCLoss(**{option: value})
        assert str(caught.value).endswith(f": did you mean {meant!r}?" if meant else "'"), caught.value


@pytest.mark.parametrize("name", ["input_lengths", "target_lengths"])
def test_lengths_of_a_wrong_rank_say_what_to_pass(name: str) -> None:
    targets = np.ones((N, 2), int)
    for value, said in (
        (2, f"{name} is 2; it must hold one length a sample: pass [2] * 3"),
        (np.array(2), f"{name} is 2; it must hold one length a sample: pass [2] * 3"),
        (np.ones((N, 1), int), f"{name} has shape (3, 1); it must be one-dimensional, one length a sample: pass "),
        (np.ones((1, N), int), f"{name} has shape (1, 3); it must be one-dimensional, one length a sample: pass "),
        ([[1], [1], [1]], f"{name} has shape (3, 1); it must be one-dimensional, one length a sample: pass "),
        ((1 for _ in range(N)), "(generator); pass a list"),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.ctc_loss(GOOD["logits"], targets, **{name: value})
        cure = f"numpy.ravel({name})" if said.endswith("pass ") else ""
        assert said + cure in str(caught.value)
    with pytest.raises(ctcbind.InvalidInput, match=r"shape \(3, 2\); it must be one-dimensional, one length a sample$"):
        ctcbind.ctc_loss(GOOD["logits"], targets, **{name: targets + 1})
    (problem,) = ctcbind.check(np.zeros((4, 3)), targets, **{name: 2}).by_rule()["length_rank"]
    assert problem.message == f"{name} is 2; it must hold one length a sample"


@pytest.mark.parametrize("digits", [400, 5000], ids=lambda digits: f"{digits} digits")
def test_long_values_are_cut_in_messages(digits: int) -> None:
    """Python itself does not write an int of 5000 digits."""
    long, logits, labels = 10**digits, GOOD["logits"], GOOD["targets"]
    calls: list[Callable[[], Any]] = [
        lambda: ctcbind.set_num_threads(long),
        lambda: ctcbind.beam_search(logits, beam_width=long),
        lambda: ctcbind.beam_search(logits, n_best=long),
        lambda: ctcbind.beam_search(logits, prune=long),
        lambda: ctcbind.beam_search(logits, lm=long),
        lambda: ctcbind.greedy_decode(logits, blank=long),
        lambda: ctcbind.ctc_lattice(logits, labels, prior_weight=long),
        lambda: ctcbind.ctc_hessian(logits, labels, max_bytes=-long),
        lambda: ctcbind.frames_to_seconds([1], long),
        lambda: ctcbind.frames_to_seconds([1], 1.0, offset=long),
        lambda: ctcbind.diagnose(logits, labels, history=[long]),
        lambda: ctcbind.edit_distance(long, [1]),
        lambda: ctcbind.error_rate(long, [[1]]),
        lambda: ctcbind.CTCLoss(stream=long),
        lambda: ctcbind.ctc_loss(logits, [[long], [], []]),
        lambda: ctcbind.ctc_loss(logits, ["ab" * digits, [], []]),
        lambda: ctcbind.ctc_loss(logits, labels, [long, 1, 1]),
        *(
            lambda name=name, value=value: ctcbind.ctc_loss(logits, labels, **{name: value})
            for name in ("blank", "layout", "reduction", "zero_infinity", "topology", "engine")
            for value in (long, -long, "x" * digits, [long] * 100)
        ),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            call()
        assert len(str(caught.value)) < 400, number
        assert " at 0x" not in str(caught.value), number
        assert caught.value.rule


def test_the_first_wrong_label_is_named_in_every_form() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        labels = [rng.integers(1, C, size=rng.integers(1, 5)).tolist() for _ in range(N)]
        sample = int(rng.integers(N))
        place = int(rng.integers(len(labels[sample])))
        labels[sample][place] = 99
        lengths = [len(row) for row in labels]
        padded = np.full((N, 5), -1)
        for row, room in zip(labels, padded):
            room[: len(row)] = row
        forms = [(labels, None), (padded, None), (padded, lengths), (np.concatenate(labels), lengths)]
        forms.append(([np.array(row, np.int8) for row in labels], None))
        for targets, given in forms:
            with pytest.raises(ctcbind.InvalidInput, match=rf"targets\[{sample}\]\[{place}\] is 99") as caught:
                make_batch(GOOD["logits"], targets, None, given)
            assert (caught.value.sample, caught.value.value, caught.value.rule) == (sample, 99, "label_range")


class Rows:
    """What can be counted and indexed, and is no more than that."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> list[int]:
        return self.rows[at]


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ([[1, "a"], [3]], "targets[0][1] is 'a' (str); it must be an integer"),
        ([["a", "b"], [3]], "targets[0] holds strings (the first is 'a'); it must hold integers"),
        ([[1, 2], 3], "targets[1] is 3; it must be one row of labels"),
        ([[1, 2], np.zeros((1, 1), int)], "targets[1] has shape (1, 1); it must be one row of labels"),
        (
            np.array([[1, 2], [3, np.nan]]),
            "targets[1][1] is nan; it must be an integer: pad rows with negative numbers, such as -1",
        ),
        (
            Rows([[1, 2], [3]]),
            "targets cannot be read as integers: its rows have several lengths: pass a list of them, list(targets)",
        ),
    ],
)
def test_what_is_no_row_of_labels_is_named(targets: Any, said: str) -> None:
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.ctc_loss(np.zeros((9, 2, 5), np.float32), targets)
    assert str(caught.value) == said


def test_padding_is_suspected_where_blanks_end_rows_of_one_width() -> None:
    padded = np.array([[1, 2, 3], [3, 0, 0], [0, 1, 0]])
    said = [
        str(problem) for problem in ctcbind.check(np.zeros((9, 3, C)), padded).problems if problem.rule == "label_blank"
    ]
    assert [text.split(" is ")[0] for text in said] == [
        "targets[1][1]",
        "targets[1][2]",
        "targets[2][0]",
        "targets[2][2]",
    ]
    assert ["as padding would" in text for text in said] == [True, False, False, False]
    for targets in ([[1, 2, 3], [3, 0], [1]], np.array([[1, 2], [0, 3], [1, 1]])):  # ragged; not at the end
        with pytest.raises(
            ctcbind.InvalidInput, match=r"is 0, which is the blank; a target holds labels only \(blank=0\)$"
        ):
            make_batch(np.zeros((9, 3, C)), targets)


def test_errors_are_ours_and_a_builtin_at_once() -> None:
    pairs = {
        ctcbind.InvalidInput: ValueError,
        ctcbind.EngineUnavailable: RuntimeError,
        ctcbind.EngineUnsupported: NotImplementedError,
        ctcbind.ClosedError: RuntimeError,
        ctcbind.NativeError: RuntimeError,
        ctcbind.NativeMemoryError: MemoryError,
        ctcbind.OutOfMemory: MemoryError,
    }
    for ours, builtin in pairs.items():
        assert issubclass(ours, builtin)
        assert issubclass(ours, ctcbind.CtcbindError)


def test_errors_survive_pickling() -> None:
    """They cross from a worker process with all that they carry."""
    error = ctcbind.NativeError("ctcbind_loss", 1, "CTCBIND_NO_MEMORY", "no room")
    again = pickle.loads(pickle.dumps(error))
    assert (again.call, again.status, again.name, again.explanation) == (
        "ctcbind_loss", 1, "CTCBIND_NO_MEMORY", "no room",
    )  # fmt: skip
    assert str(again) == str(error) == "ctcbind_loss returned CTCBIND_NO_MEMORY (1): no room"
    with pytest.raises(ctcbind.InvalidInput) as caught:
        make_batch(GOOD["logits"], [[1], [9], []])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.rule, again.sample, again.value) == (str(caught.value), "label_range", 1, 9)


def test_a_lattice_that_no_memory_can_hold_is_told_in_bytes() -> None:
    T, L = 2**26, 2**20
    logits, targets = np.broadcast_to(np.float32(0), (T, 1, 3)), [[1, 2] * (L // 2)]
    calls: list[tuple[int, Callable[..., Any]]] = [
        (3, ctcbind.ctc_lattice),
        (1, ctcbind.posteriors),
        (1, lambda *args: ctcbind.lattice_loss_and_grad(*args, path_bonus=0.0)),
    ]
    for count, call in calls:
        with pytest.raises(ctcbind.OutOfMemory) as caught:
            call(logits, targets)
        size = count * 4 * T * (2 * L + 1)
        assert f"N = 1, T = {T} and S = {2 * L + 1} states takes {size} bytes" in str(caught.value)
        assert str(caught.value).endswith("the loss and align do without such arrays")


def test_tables_of_the_reference_that_no_memory_can_hold_are_told_by_sample() -> None:
    T, L = 2**19, 2**18
    logits, targets = np.broadcast_to(np.float64(0), (T, 2, 3)), [[1], [1, 2] * (L // 2)]
    with pytest.raises(ctcbind.OutOfMemory) as caught:
        ctcbind.ctc_loss(logits, targets, input_lengths=[1, T], engine="reference")
    S, said = 2 * L + 1, str(caught.value)
    assert said.startswith(f"sample 1 has T = {T} frames and S = {S} states: ")
    assert f" {8 * T * S} bytes" in said


def test_none_in_place_of_logits_has_no_shape() -> None:
    assert [each.rule for each in ctcbind.check(None, [[1]]).problems] == ["logits_dtype"]


def test_a_beam_that_no_memory_can_hold_is_told_by_its_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        native_rows.check("ctcbind_beam_search", native.lib.CTCBIND_ROWS_NO_MEMORY)

    monkeypatch.setattr(native_decode, "beam_search", full)
    with pytest.raises(ctcbind.OutOfMemory) as caught:
        ctcbind.beam_search(GOOD["logits"], beam_width=10**9)
    assert str(caught.value).startswith("beam_width is 1000000000: its beams take about 213000000000 bytes a sample")
    assert "CTCBIND" not in str(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: native.fail(native.lib.CTCBIND_NO_MEMORY),
        lambda: native_rows.check("ctcbind_beam_search", native.lib.CTCBIND_ROWS_NO_MEMORY),
    ],
)
def test_want_of_memory_is_a_memory_error(call: Callable[[], Any]) -> None:
    with pytest.raises(ctcbind.NativeMemoryError) as caught:
        call()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_no_labels_at_all_in_one_row():
    """As an array without elements is, an empty list is the row of all labels where lengths divide it."""
    x = np.random.default_rng([SEED, 31]).normal(size=(6, 2, 4))
    right = ctcbind.ctc_loss(x, [[], []])
    np.testing.assert_array_equal(ctcbind.ctc_loss(x, np.empty((2, 0))), right)  # of floats, as NumPy makes it
    for empty in ([], (), np.empty(0, np.int32), np.empty(0)):
        np.testing.assert_array_equal(ctcbind.ctc_loss(x, empty, target_lengths=[0, 0]), right)
    with pytest.raises(ctcbind.InvalidInput, match=r"^target_lengths sum to 1, but targets hold 0 labels$"):
        ctcbind.ctc_loss(x, [], target_lengths=[0, 1])
    with pytest.raises(ctcbind.InvalidInput, match=r"^targets hold 0 sequences, but the batch has 2 samples$"):
        ctcbind.ctc_loss(x, [])
    with pytest.raises(ctcbind.InvalidInput, match=r"its rows have different numbers of classes$"):
        ctcbind.ctc_loss([[[1.0, 2.0], [3.0]]], [[1]])


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (
            {"logits": np.zeros((3, 1, 4)), "lengths": 3},
            "logits are a dict; .*: pass one of its arrays, logits.'logits'.$",
        ),
        ("batch.npz", "logits are text; .*: pass what numpy.load reads from that file$"),
        ("batch", "logits are text; they must be float16, bfloat16, float32 or float64$"),
        ("batch.npy", "logits are text; .*: pass what numpy.load reads from that file$"),
        (np.ones(3), r"logits have 1 dimension, shape \(3,\); they must have 3: \(T, N, C\)$"),
        (np.ones((2, 3), np.int32), r"logits are int32; .* float64 \(labels and logits swapped\?\)$"),
        (np.ones((2, 3, 4), np.int32), r"logits are int32; .* float64: pass logits\.astype\(numpy\.float32\)$"),
        (np.ones((2, 3, 4), bool), r"logits are bool; .* float64: pass logits\.astype\(numpy\.float32\)$"),
    ],
)
def test_what_holds_logits_is_no_array_of_them(logits: object, words: str) -> None:
    with pytest.raises(ctcbind.InvalidInput, match=words):
        ctcbind.ctc_loss(logits, [[1]])


def test_a_list_that_is_no_array_is_told_what_it_holds() -> None:
    """Not more than is so: what has another cause is left to NumPy's words."""

    class Unreadable:
        def __dlpack__(self, **_: object) -> object:
            raise BufferError("it has been given away")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

    def told(given: list[Any]) -> str:
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.ctc_loss(given, [[1]] * len(given))
        assert caught.value.rule == "logits_rank"
        return str(caught.value).removeprefix("logits (list) cannot be read as one array: ")

    frames = list(range(2, 11))
    samples = [np.zeros((each, 4), np.float32) for each in frames]
    assert told(samples[:8]).endswith("and pass input_lengths=[2, 3, 4, 5, 6, 7, 8, 9]")
    assert told(samples).endswith("and pass input_lengths=[2, 3, 4, 5, ...]")
    assert told([[1, 2], [], [3]]) == "it holds rows of integers (labels and logits swapped?)"
    others = (
        [np.zeros((3, 4)), np.zeros((2, 5))],  # neither frames nor classes are as many
        [np.zeros((3, 1, 4)), np.zeros((2, 1, 4))],  # either may be the output of a network
        [[0.5, 1.5], [2.5]],
        [np.zeros((3, 4)), Unreadable()],
    )
    for each in others:
        assert told(each).startswith("setting an array element with a sequence")


def test_an_archive_is_no_array_of_logits(tmp_path: Path) -> None:
    np.savez(tmp_path / "batch.npz", logits=np.zeros((3, 1, 4)))
    with np.load(tmp_path / "batch.npz") as archive:
        with pytest.raises(
            ctcbind.InvalidInput, match=r"logits are a NpzFile; .*: pass one of its arrays, logits.'logits'.$"
        ):
            ctcbind.ctc_loss(archive, [[1]])
        assert ctcbind.ctc_loss(archive["logits"], [[1]]) > 0
