"""What a diagnosis says of its findings and numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from ctcbind.finding import CLASSES, Diagnosis, Finding, Measures, quoted

HARMFUL = Finding("kind", "something was seen", "a meaning", "a cure", "certain", (1,))
HARMLESS = Finding("other", "something else", "nothing", "", "likely", harmless=True)
MEASURES = Measures(8, 3, 0.5, 0.25, 0.75, 0.375, 2.5, 4.0, 3.0, (1.0, 0.5), given_loss=2.5)


def test_numbers_in_a_sentence():
    assert quoted([7]) == "sample 7"
    assert quoted(range(2)) == "samples 0, 1"
    assert quoted(range(5)) == "samples 0, 1, 2, 3, 4"
    assert quoted(np.arange(7)) == "samples 0, 1, 2, 3, 4 and 2 more"
    assert quoted([3, 1, 2], 2, CLASSES) == "classes 3, 1 and 1 more"


def test_a_finding_in_words():
    assert str(HARMFUL) == "kind (certain)\n  seen: something was seen\n  means: a meaning\n  do: a cure"
    assert str(HARMLESS) == "other (likely, harmless)\n  seen: something else\n  means: nothing"


def test_what_does_no_harm_is_well():
    for findings, well in (((), True), ((HARMLESS,), True), ((HARMFUL,), False), ((HARMLESS, HARMFUL), False)):
        found = Diagnosis(findings, None)
        assert found.ok is bool(found) is found.to_dict()["ok"] is well
        assert found.kinds == {each.kind for each in findings}


def test_json_has_all_numbers():
    found = Diagnosis((HARMFUL,), replace(MEASURES, loss=float("inf"), given_loss=float("nan")))
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (told["measures"]["loss"], told["measures"]["given_loss"]) == ("inf", "nan")
    assert (told["measures"]["frames"], told["measures"]["grad_norms"]) == (8, [1.0, 0.5])
    assert told["findings"][0]["samples"] == [1]


def test_a_network_that_knows_nothing_is_told_where_no_mistake_is():
    def first(**changes: object) -> str:
        return str(Diagnosis((), replace(MEASURES, **changes))).splitlines()[0]

    assert first(loss=3.1).startswith("Nothing suspicious was found, but the network is no better than one that")
    for changes in ({"loss": 3.0}, {"loss": 3.1, "labels": 0}, {"loss": float("nan")}):
        assert first(**changes) == "Nothing suspicious was found."


@pytest.mark.parametrize(
    ("changes", "last"),
    [
        ({}, "loss a sample 2.5; of a uniform model 4, of the best constant one about 3"),
        ({"given_loss": 2.50001}, "loss a sample 2.5; of a uniform model 4, of the best constant one about 3"),
        ({"given_loss": 9.0}, "loss a sample 2.5 with what was found put right, 9 as given; of a uniform model 4, "),
        ({"given_loss": float("nan")}, "loss a sample 2.5 with what was found put right; of a uniform model 4, "),
        ({"loss": float("nan")}, "no sample has a path, and so none a loss"),
        ({"left_out": 2}, "The logits of no sample are finite, and so nothing is measured."),
    ],
)
def test_measures_in_words(changes, last):
    lines = str(Diagnosis((), replace(MEASURES, **changes))).splitlines()
    assert lines[0] == "Nothing suspicious was found."
    assert lines[-1].startswith(last)
    if "left_out" not in changes:
        assert lines[-2] == "3 labels and 8 frames; the blank wins 50.0% of them, its mean probability is 0.25"


def test_measures_of_some_samples_and_of_none():
    some = str(Diagnosis((HARMFUL,), replace(MEASURES, left_out=1)))
    assert some.startswith(f"{HARMFUL}\n\nWithout the 1 sample whose logits are not finite:\n3 labels and 8 frames; ")
    nothing = replace(MEASURES, frames=0, labels=0, blank_wins=float("nan"), grad_norms=())
    assert str(Diagnosis((), nothing)).splitlines()[-2] == "0 labels and 0 frames"
    assert str(Diagnosis((HARMLESS,), None)) == f"{HARMLESS}\n"
