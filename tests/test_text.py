"""Tables, paragraphs and JSON values, as the command prints them."""

from __future__ import annotations

import json
import math

import pytest

from ctcbind.text import paragraph, plain, table

HEAD = ("name", "what it is")
ROWS = (("one", "some words that go on"), ("two", ""))


def test_cells_are_wrapped_and_those_beside_them_stay_empty():
    assert table(HEAD, ROWS, cell=12).splitlines() == [
        "name  what it is",
        "----  ----------",
        "one   some words",
        "      that go on",
        "two",
    ]


@pytest.mark.parametrize(("width", "rows"), [(16, 5), (15, 6)])
def test_a_table_that_just_fits_remains_one(width, rows):
    lines = table(HEAD, ROWS, width=width, cell=12).splitlines()
    assert len(lines) == rows
    assert (lines[0] == "name  what it is") == (width == 16)


def test_a_row_as_a_paragraph():
    assert table(HEAD, ROWS, width=10).splitlines() == [
        "one",
        "  what it is  some words",  # no narrower than twelve columns: words are to be read
        "              that go on",
        "",
        "two",
        "  what it is",
    ]


def test_later_lines_of_a_paragraph_are_indented():
    assert paragraph("one two\n  three four\nfive", 12) == ["one two", "  three four", "  five"]
    assert paragraph("one two three", 8) == ["one two", "  three"]
    assert paragraph("  a long-word.that/is-a-path", 8) == ["  a", "  long-word.that/is-a-path"]
    assert paragraph("", 12) == []


def test_values_that_json_lacks_are_strings_however_deep():
    given = {"a": (1, math.inf, [-math.inf, {"b": (math.nan, 0.5)}]), "c": None}
    assert plain(given) == {"a": [1, "inf", ["-inf", {"b": ["nan", 0.5]}]], "c": None}
    assert json.loads(json.dumps(plain(given), allow_nan=False)) == plain(given)
