"""`explain` says what the engines do: its choice is that of "auto", its copies those that they log as they work."""

from __future__ import annotations

import logging
import re
import sys

import numpy as np
import pytest
from batches import SEED, random_case
from conftest import EngineUnderTest

import ctcbind
from ctcbind import engines as every_engine
from ctcbind.batch import make_batch
from ctcbind.engines import NAMES, get
from ctcbind.explain import _amount

pytest_plugins = ["fake_cudnn.fixture"]

TOLD = re.compile(r"^(\w+): (\d+) bytes of (.*)$")


def told(caplog):
    """The copies that an engine logged."""
    found = [TOLD.match(record.getMessage()) for record in caplog.records]
    return [ctcbind.Copy(each[3], int(each[2])) for each in found if each]


def cases(engine: EngineUnderTest):
    """Batches in dtypes that the engine takes; one that computes on the host takes any, and converts."""
    on_host = engine.contract.arrays != "device"
    for seed in range(60):
        yield random_case([SEED, seed], dtype=engine.dtype)
    for how in ("strided", "negative", "broadcast", "permuted", "F"):
        for dtype in ("float16", "bfloat16", "float32", "float64") if on_host else engine.contract.dtypes:
            yield random_case([SEED, 1000], how=how, dtype=dtype, size=(6, 3, 4))
    yield random_case([SEED, 1001], dtype=engine.dtype, size=(0, 2, 3))
    yield random_case([SEED, 1002], dtype=engine.dtype, size=(4, 2, 1))


def test_copies_are_those_that_the_engine_logs(engine: EngineUnderTest, caplog):
    """Refused batches aside, which copy nothing or give up on the way."""
    compared = 0
    for case in cases(engine):
        seen = engine.explain(*case.args, **case.options)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "ctcbind"):
            result = engine.run(case)
        if result is None:
            continue
        assert seen.usable
        assert list(seen.copies) == told(caplog), case.name
        compared += 1
    assert compared > 25  # half of the random ones are of a topology that cuDNN has not


@pytest.mark.parametrize("place", ["host", "device"])
def test_cudnns_copies_on_a_stand_in_for_the_device(place, use_fake, monkeypatch, caplog):
    """The library computes nothing here; the copies around it are made all the same."""
    import fake_cupy

    use_fake(92800)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy)
    engine, kinds = get("cudnn"), set()
    for dtype in ("float16", "float32"):
        for how in ("C", "F", "negative", "strided", "permuted"):
            for layout in ("TNC", "NTC"):
                for blank in (0, 2):
                    case = random_case([SEED, 7], dtype=dtype, how=how, size=(6, 3, 4), topology="ctc", blank=blank)
                    x = case.logits if place == "host" else fake_cupy.ndarray(case.logits)
                    batch = make_batch(x, case.labels, case.frames, blank=blank, layout=case.layout)
                    caplog.clear()
                    with caplog.at_level(logging.DEBUG, "ctcbind"):
                        session = engine.open()
                        try:
                            session.run(batch, with_grad=True, weights=None)
                        except ctcbind.EngineUnsupported:  # the fake's losses are no losses: it ends past the work
                            copies = engine.copies(batch)[:-1]
                        else:
                            copies = engine.copies(batch)
                        finally:
                            session.close()
                    assert copies == told(caplog), (dtype, how, layout, blank)
                    kinds |= {copy.what for copy in copies}
    assert len(kinds) >= (3 if place == "host" else 4), kinds


@pytest.mark.parametrize("how", ["misaligned", "odd stride"])
def test_what_is_copied_before_any_engine(how, caplog):
    x = random_case([SEED, 3], how=how, dtype="float32", size=(5, 2, 3)).logits
    labels = [[]] * (2 if x.shape[1] == 2 else 5)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        seen = ctcbind.explain(x, labels)
    (copy,) = seen.copies
    assert copy.bytes == x.nbytes
    assert f"{copy.bytes} bytes of {copy.what}" in caplog.text
    assert not ctcbind.explain(x.copy(), labels).copies
    assert ctcbind.explain(x.tolist(), labels).copies[0].bytes == 8 * x.size
    assert "before any engine: logits copied" in str(seen)


def test_auto_is_what_auto_takes():
    for seed in range(40):
        case = random_case([SEED, 50, seed])
        seen = ctcbind.explain(*case.args, **case.options)
        assert seen.auto == ctcbind.ctc_loss_and_grad(*case.args, **case.options).engine
        assert seen[seen.auto].usable
        assert [choice.engine for choice in seen.engines] == list(NAMES)


def test_the_reason_is_the_one_that_a_call_gives():
    huge = np.broadcast_to(np.float32(0), (2**20, 2**10, 4))
    for x, labels, topology in (
        (huge, [[]] * 2**10, "ctc"),
        (np.zeros((700, 1, 3), np.float32), [[1] * 256], "ctc"),
        (np.zeros((4, 1, 3)), [[1]], "ctc"),
        (np.zeros((4, 1, 3), np.float32), [[1]], "simple"),
        (np.zeros((4, 1, 3), np.float32), [[1]], "ctc"),
    ):
        seen = ctcbind.explain(x, labels, topology=topology)
        for name in ("warpctc", "cudnn"):
            if seen[name].usable:
                continue
            with pytest.raises((ctcbind.EngineUnsupported, ctcbind.EngineUnavailable)) as caught:
                ctcbind.ctc_loss(x, labels, engine=name, topology=topology)
            assert seen[name].reason in str(caught.value)
            refused = isinstance(caught.value, ctcbind.EngineUnsupported)
            assert (seen[name].copies is None) == refused
    assert "sample 0 has 256 labels, and its limit is 255" in ctcbind.explain(
        np.zeros((700, 1, 3), np.float32), [[1] * 256]
    )["cudnn"].reason  # fmt: skip


def test_it_reads_as_a_table():
    seen = ctcbind.explain(np.zeros((50, 2, 28), np.float16), [[1] * 20, [2]], blank=3)
    text = str(seen)
    assert "T=50, N=2, C=28, float16, on cpu" in text
    assert re.search(r"native +yes, auto takes it +nothing", text)
    assert re.search(r"reference +yes +28 kB +logits converted to float64", text)
    assert all(name in text for name in every_engine())


def test_copies_name_the_dtype_and_the_blank() -> None:
    seen = ctcbind.explain(np.zeros((5, 2, 4), np.float16), [[1], [2]], blank=3)
    assert {name: [(each.what, each.bytes) for each in seen[name].copies] for name in ("warpctc", "cudnn")} == {
        "warpctc": [
            ("logits copied to a contiguous float32 (T, N, C)", 160),
            ("gradient copied to the caller's TNC float16", 80),
        ],
        "cudnn": [
            ("logits copied to the device as float32", 160),
            ("logits copied to bring blank 3 to class 0", 160),
            ("gradient copied to bring class 0 back to blank 3", 160),
            ("gradient copied from the device", 80),
        ],
    }
    assert [each.what for each in seen["reference"].copies] == [
        "logits converted to float64, a sample at a time",
        "gradient converted to float16, a sample at a time",
    ]


def test_the_table_says_what_installs_an_engine():
    """Where the first line of the reason does not."""
    absent = "no warp-ctc library could be used:\n  - conda: none\nGet it with: pip install --no-deps paddlepaddle"
    refused = "logits of 5 classes\nmore of it"
    choices = (ctcbind.Choice("warpctc", False, absent, None), ctcbind.Choice("cudnn", False, refused, None))
    last = str(ctcbind.Explanation(4, 1, 3, "float32", "cpu", "native", (), choices)).splitlines()[-2:]
    assert last[0].endswith("  no warp-ctc library could be used: pip install --no-deps paddlepaddle")
    assert last[1].endswith("  logits of 5 classes")


def test_a_command_that_the_reason_names_is_not_named_again():
    command = get("cudnn").install
    assert command
    choice = ctcbind.Choice("cudnn", False, f"it is not installed: {command}\nand more", None)
    text = str(ctcbind.Explanation(4, 1, 3, "float32", "cpu", "native", (), (choice,)))
    assert " ".join(text.split()).count(command) == 1


def test_a_batch_that_no_engine_takes(monkeypatch):
    for module in ("ctcbind.engines", "ctcbind.explain"):
        monkeypatch.setattr(sys.modules[module], "obstacle", lambda name, batch: "too large")
    seen = ctcbind.explain(np.zeros((4, 1, 3)), [[1]])
    assert seen.auto is None
    assert {(choice.usable, choice.reason) for choice in seen.engines} == {(False, "too large")}
    assert str(seen).endswith("\n\nNo engine can take this batch.")


def test_labels_on_the_device_stay_there_for_those_that_can(device, monkeypatch):
    """Beside logits there; every other engine sees labels that were copied to the host, as it does in a call."""
    import fake_cupy

    module, shown = sys.modules["ctcbind.explain"], {}
    right, choose = module.obstacle, module.choose

    def obstacle(name, batch):
        shown[name] = type(batch).__name__
        return right(name, batch)

    def chosen(name, batch):
        shown[name] = type(batch).__name__
        return choose(name, batch)

    monkeypatch.setattr(module, "obstacle", obstacle)
    monkeypatch.setattr(module, "choose", chosen)
    x, labels = np.zeros((4, 1, 3), np.float32), np.array([[1]], np.int32)
    ctcbind.explain(fake_cupy.asarray(x), fake_cupy.asarray(labels))
    stay = dict.fromkeys(("cuda", "cudnn", "auto"), "DeviceBatch")
    assert shown == {**dict.fromkeys(NAMES, "Batch"), **stay}
    ctcbind.explain(fake_cupy.asarray(x), labels)
    assert set(shown.values()) == {"Batch"}


def test_wrong_input_is_refused():
    with pytest.raises(ctcbind.InvalidInput, match=r"targets\[0\]\[0\] is 9"):
        ctcbind.explain(np.zeros((4, 1, 3)), [[9]])
    with pytest.raises(ctcbind.InvalidInput, match="layout"):
        ctcbind.explain(np.zeros((4, 1, 3)), [[1]], layout="NCT")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "nothing"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (8800, "8.8 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (123_456_789, "123 MB"),
        (2 * 10**12, "2000 GB"),
    ],
)
def test_amounts_have_three_digits_and_a_unit(size, words):
    assert _amount(size) == words


def test_a_notebook_shows_what_print_does():
    class Printer:
        def text(self, words):
            self.words = words

    x = np.zeros((4, 1, 3))
    compared = ctcbind.compare(x, [[1]], engines=["reference"], repeats=1)
    for value in (ctcbind.explain(x, [[1]]), ctcbind.check(x, [[3]]), ctcbind.diagnose(x, [[3]]), compared):
        printer = Printer()
        value._repr_pretty_(printer, False)
        assert printer.words == str(value)


def test_where_a_library_was_looked_for_stands_below_its_engine(monkeypatch):
    """The places looked like engines, and how to get cuDNN stood between it and the next one."""
    reasons = {"cudnn": "no libcudnn.so:\n  - wheels: none\nGet one with: pip install something"}
    monkeypatch.setattr(sys.modules["ctcbind.engines"], "obstacle", lambda name, batch: reasons.get(name, "no"))
    with pytest.raises(ctcbind.EngineUnsupported) as caught:
        ctcbind.ctc_loss(np.zeros((4, 1, 3)), [[1]])
    assert str(caught.value).splitlines() == [
        "no engine can take this batch:",
        *("  native: no", "  cuda: no", "  cudnn: no libcudnn.so:", "      - wheels: none"),
        *("    Get one with: pip install something", "  reference: no"),
    ]
