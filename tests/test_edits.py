"""Edit distance and error rates."""

from __future__ import annotations

import fractions
import itertools
import math
import signal
import threading
import time

import numpy as np
import pytest
from batches import SEED

import ctcbind


def plain_distance(a, b):
    table = {(i, 0): i for i in range(len(a) + 1)} | {(0, j): j for j in range(len(b) + 1)}
    for i, j in itertools.product(range(1, len(a) + 1), range(1, len(b) + 1)):
        swap = table[i - 1, j - 1] + (a[i - 1] != b[j - 1])
        table[i, j] = min(swap, table[i - 1, j] + 1, table[i, j - 1] + 1)
    return table[len(a), len(b)]


@pytest.mark.parametrize("seed", range(40))
def test_edit_distance(seed):
    rng = np.random.default_rng([SEED, 102, seed])
    a, b = (rng.integers(0, 3, size=int(rng.integers(0, 15))) for _ in range(2))
    right = plain_distance(a.tolist(), b.tolist())
    assert ctcbind.edit_distance(a, b) == ctcbind.edit_distance(b.tolist(), tuple(a.tolist())) == right
    letters = ["".join(map("abc".__getitem__, row)) for row in (a, b)]
    assert ctcbind.edit_distance(*letters) == right
    assert ctcbind.edit_distance(a, a) == 0


def row_by_row(a, b):
    """The same, a row of the table at a time: what comes from the left is a running minimum."""
    steps = np.arange(len(b) + 1)
    row = steps
    for i, symbol in enumerate(a):
        best = np.concatenate([[i + 1], np.minimum(row[1:] + 1, row[:-1] + (b != symbol))])
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])


@pytest.mark.parametrize("rows", [63, 64, 65, 127, 128, 129, 191, 193, 256, 300])
def test_rows_of_whole_words(rows):
    """64 rows are done at once, and two times 64 side by side: what they hand on, what the last has, and symbols that
    come again in others."""
    rng = np.random.default_rng([SEED, 104, rows])
    for symbols, columns in itertools.product((1, 2, 30), (1, 2, rows - 1, rows, 2 * rows)):
        a, b = rng.integers(0, symbols, rows), rng.integers(0, symbols, columns)
        right = row_by_row(a, b)
        assert ctcbind.edit_distance(a, b) == ctcbind.edit_distance(b, a) == right
        c = np.delete(np.insert(a, rng.integers(0, rows, 9), symbols), rng.integers(0, rows, 9))
        assert ctcbind.edit_distance(a, c) == row_by_row(a, c)


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
#: Symbols of which no two are equal.
ALPHABETS = {
    "ascii": "abcdefg",
    "text": "a\u00e9\u0416\u05d0\u4e2d\U0001f600\u0301",
    "surrogates": "\ud800\udfff\ud83d\ude00\U0001f600a",
    "graphemes": ["a", "e\u0301", "\u00e9", FAMILY, FAMILY[:3]],
    "labels": [0, 1, 2, 5, 31],
    "int32": [-(2**31), -1, 0, 97, 2**20, 2**31 - 1],
    "large": [0, 2**31, 2**32, 2**32 + 1, -(2**40), 10**30],
    "hashables": [None, b"a", ("a",), (1, 2), 1.5, 97, fractions.Fraction(1, 3), True],
}


def forms_of(row, alphabet):
    """The same symbols in every form that holds them."""
    yield row
    yield tuple(row)
    if isinstance(alphabet, str):
        yield "".join(row)
        yield np.str_("".join(row))
    if all(type(each) is int and abs(each) <= 2**62 for each in alphabet):
        yield np.array(row, np.int64)
        yield np.array([0, *row], ">i8")[1:]
        yield np.array([*row, 0], object)[:-1]
    if all(type(each) is int and 0 <= each < 128 for each in alphabet):
        yield bytes(row)
        yield from (np.array(row, kind) for kind in (np.uint8, np.int16, np.uint64))
        yield [*map(np.int8, row)]
        yield memoryview(bytes(row))


@pytest.mark.parametrize("kind", ALPHABETS)
def test_symbols_of_any_kind(kind):
    """By a plain table, in every form, and as one error rate of all: in pairs of one kind, and beside other kinds."""
    rng = np.random.default_rng([SEED, 106, list(ALPHABETS).index(kind)])
    alphabet = ALPHABETS[kind]
    readings, truths, edits = [], [], 0
    for length in (0, 1, 8, 70):
        rows = [[alphabet[k] for k in rng.integers(0, len(alphabet), rng.integers(0, length + 1))] for _ in range(2)]
        edits += (right := plain_distance(*rows))
        forms = [list(forms_of(row, alphabet)) for row in rows]
        for a, b in itertools.product(*forms):
            assert ctcbind.edit_distance(a, b) == right
        readings.append(forms[0][int(rng.integers(len(forms[0])))])
        truths.append(forms[1][int(rng.integers(len(forms[1])))])
    symbols = sum(map(len, truths))
    for more_readings, more_truths in ([], []), (["xyz"], ["xz"]), ([[2**40, 3]], [[3]]), ([b"a"], [np.array([97])]):
        extra = plain_distance(*map(list, more_readings + more_truths)) if more_truths else 0
        count = symbols + sum(map(len, more_truths))
        rate = ctcbind.error_rate([*readings, *more_readings], [*truths, *more_truths])
        assert rate == ((edits + extra) / count if count else math.inf if edits else 0.0)


def test_symbols_far_apart_are_numbered_for_each_pair():
    """Whatever those before have left in the table of symbols; and it never fills up."""
    rng = np.random.default_rng([SEED, 109])
    pool = rng.choice(2**31, size=60, replace=False)
    pairs = [[rng.choice(pool, size=int(rng.integers(1, 33))).tolist() for _ in range(2)] for _ in range(60)]
    right = sum(plain_distance(*pair) for pair in pairs)
    read, truths = zip(*pairs)
    assert ctcbind.error_rate(list(read), list(truths)) == pytest.approx(right / sum(map(len, truths)), rel=1e-12)
    for length in (15, 16, 17, 64):
        a = 2**20 * np.arange(length)
        assert ctcbind.edit_distance(a, a + 1) == length


def test_text_is_not_the_numbers_of_its_characters():
    """Nor are characters that a language may compose, or halves of one, that one."""
    assert ctcbind.edit_distance(["a", 98], [97, "b"]) == 2
    assert ctcbind.edit_distance(["\u00e9"], ["e\u0301"]) == 1
    assert ctcbind.edit_distance("\ud83d\ude00", "\U0001f600") == 2
    assert ctcbind.edit_distance([True, 1.0], [1, 1]) == 0


def test_a_corpus_takes_little_beside_its_table():
    """Of short lines Python's own work would be most: an error rate of many takes no more than to count their letters
    a few times over."""
    rng = np.random.default_rng([SEED, 108])
    lines = ["".join(map(chr, row)) for row in rng.integers(97, 123, size=(1000, 120))]
    read = [line[:50] + "?" + line[51:70] + line[71:] for line in lines]
    taken, counted = [], []
    for _ in range(5):
        begin = time.perf_counter()
        assert ctcbind.error_rate(read, lines) == 2 / 120
        taken.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for row in itertools.chain(read, lines):
            numbers = {}
            for letter in row:
                numbers.setdefault(letter, len(numbers))
        counted.append(time.perf_counter() - begin)
    assert min(taken) < min(counted) / 2


def test_long_transcripts():
    """8000 symbols, which took C no less than NumPy takes, a row at a time."""
    a, b = np.random.default_rng([SEED, 105]).integers(0, 30, size=(2, 8000))
    begin = time.perf_counter()
    right = row_by_row(a, b)
    by_numpy, took = time.perf_counter() - begin, []
    for _ in range(3):
        begin = time.perf_counter()
        assert ctcbind.edit_distance(a, b) == right
        took.append(time.perf_counter() - begin)
    assert min(took) < by_numpy / 6


def test_error_rate_of_padded_rows():
    """An (N, L) array means what it means as targets: its padding is not read, and no symbol of the truth."""
    rows = [[3, 1, 4], [1], [], [5, 9]]
    padded = np.full((4, 5), -1)
    for row, to in zip(rows, padded):
        to[: len(row)] = row
    readings = [[3, 4], [1, 1], [2], [5, 9]]
    rate = ctcbind.error_rate(readings, rows)
    assert rate == 3 / 6
    assert ctcbind.error_rate(readings, padded) == rate
    assert ctcbind.error_rate(padded.astype(np.int8), rows) == 0.0
    assert ctcbind.error_rate(np.array([[1, 2]], np.uint8), [[1, 3]]) == 1 / 2
    assert ctcbind.error_rate(np.array([[2, 0, -1]]), [[2, 0]]) == 0.0  # 0 is a symbol, as where the blank is last


@pytest.mark.parametrize("form", ["array", "list", "hypotheses", "one row", "one list"])
def test_error_rate_by_target_lengths(form):
    """Padding of any kind, as 0, counts as nothing; the rate is that of the rows without it."""
    rng = np.random.default_rng([SEED, 107])
    lengths = rng.integers(0, 5, size=6)
    padded = rng.integers(0, 4, size=(6, 5))
    rows = [row[:n].tolist() for row, n in zip(padded, lengths)]
    together = np.concatenate([row[:n] for row, n in zip(padded, lengths)])
    truths = {
        "array": padded,
        "list": padded.tolist(),
        "hypotheses": [ctcbind.Hypothesis(row, 0.0, 0.0) for row in padded.tolist()],
        "one row": together,
        "one list": together.tolist(),
    }[form]
    readings = [rng.integers(0, 4, size=int(rng.integers(0, 6))).tolist() for _ in rows]
    expected = sum(plain_distance(a, b) for a, b in zip(readings, rows)), sum(map(len, rows))
    given = lengths if form == "array" else lengths.tolist()
    if expected[1]:
        assert ctcbind.error_rate(readings, truths, given) == expected[0] / expected[1]
    assert ctcbind.error_rate(rows, truths, given) == 0.0


@pytest.mark.parametrize(
    ("truths", "lengths", "words"),
    [
        ([[1, 0], [2, 2]], [1], "target_lengths has 1 length, but the batch has 2 samples"),
        ([[1, 0], [2, 2]], [1, 3], "target_lengths[1] is 3, but truths[1] holds 2 labels"),
        ([[1, 0], [2, 2]], [-1, 1], "target_lengths[0] is -1; a length cannot be negative"),
        ([1, 2, 2], [1, 1], "target_lengths sum to 2, but truths hold 3 labels"),
        ([[1, 0]], [1, 2], "readings hold 2 sequences, truths 1; each sample needs one of both"),
        ([[1, 0], [2, 2], [1, 1]], [1, 2], "readings hold 2 sequences, truths 3; each sample needs one of both"),
    ],
)
def test_target_lengths_that_do_not_fit(truths, lengths, words):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        ctcbind.error_rate([[1], [2, 2]], truths, lengths)
    assert str(caught.value) == words


def test_target_lengths_are_not_of_words():
    with pytest.raises(ctcbind.InvalidInput, match=r'with unit="word" truths are strings, which need none$'):
        ctcbind.error_rate(["a b"], ["a b"], [2], unit="word")


def test_what_is_no_symbol_is_named():
    logits = np.zeros((4, 2, 3))
    beams = ctcbind.beam_search(logits)
    for readings, words in (
        (beams, "readings[0][0] is of type Hypothesis, which is no symbol: pass the labels of one"),
        ([[1], [2, [3]]], "readings[1][1] is of type list, which is no symbol"),
        ([[1], 3], "readings[1] is 3; it must be a sequence of symbols"),
        ([[1]], "readings hold 1 sequence, truths 2; each sample needs one of both"),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ctcbind.error_rate(readings, [[1], [2, 2]])
        assert (str(caught.value), caught.value.rule) == (words, "sequences")
    with pytest.raises(ctcbind.InvalidInput, match=r"^b\[0\] is of type dict, which is no symbol$"):
        ctcbind.edit_distance([1], [{}])


def test_error_rate():
    assert ctcbind.error_rate(["kitten", "abc"], ["sitting", "abc"]) == 3 / 10
    assert ctcbind.error_rate(["the cat sat"], ["the  bat sat down"], unit="word") == 2 / 4
    assert ctcbind.error_rate([[1, 2], []], [[1, 2, 3], [4]]) == 2 / 4
    assert ctcbind.error_rate([["a", "b"]], [["a"]]) == 1.0
    assert ctcbind.error_rate([], []) == 0.0
    assert ctcbind.error_rate(["", ""], ["", ""]) == 0.0
    assert ctcbind.error_rate(["a"], [""]) == math.inf
    labels = [each.labels for each in ctcbind.greedy_decode(np.zeros((3, 2, 4)))]
    assert ctcbind.error_rate(labels, [[1], [2, 3]]) == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: ctcbind.error_rate(["a"], ["a", "b"]),
        lambda: ctcbind.error_rate("a", "a"),
        lambda: ctcbind.error_rate([["a"]], [["a"]], unit="word"),
        lambda: ctcbind.error_rate(["a"], ["a"], unit="letter"),
        lambda: ctcbind.error_rate([1], [2]),
        lambda: ctcbind.error_rate(None, [[1]]),
        lambda: ctcbind.error_rate(["a"], (each for each in "a")),
        lambda: ctcbind.edit_distance(np.zeros((2, 2)), [1]),
        lambda: ctcbind.edit_distance({1}, [1]),
    ],
)
def test_wrong_sequences(call):
    with pytest.raises(ctcbind.InvalidInput):
        call()


@pytest.mark.parametrize(
    "readings",
    [
        {"a": "hello"},
        {"hello"},
        frozenset(["hello"]),
        np.array(1),
        np.ma.array([[1, 2]], mask=[[0, 1]]),
        {"a": 1}.keys(),
    ],
    ids=["dict", "set", "frozenset", "one number", "masked", "keys"],
)
def test_no_order_no_error_rate(readings):
    """A dict would be compared by its keys, and a set in the order of this process."""
    for pair in ((readings, ["hello"]), (["hello"], readings)):
        with pytest.raises(ctcbind.InvalidInput, match=r"readings|truths"):
            ctcbind.error_rate(*pair)


def test_hypotheses_are_readings():
    logits = np.eye(4)[[[1, 0], [0, 2], [2, 2], [3, 0]]] * 9.0
    greedy = ctcbind.greedy_decode(logits)
    assert ctcbind.error_rate(greedy, [[1, 2, 3], [2]]) == 0.0
    assert ctcbind.edit_distance(greedy[0], [1, 3]) == 1


def test_symbols_that_are_numbers_of_other_libraries():
    """A tensor hashes by what it is, not by what it holds: each would differ from all others."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")
    row = [each for each in torch.tensor([3, 1, 2, 0]) if each != 0]
    assert ctcbind.edit_distance(row, [3, 1, 2]) == 0
    assert ctcbind.error_rate([[3, 1, 4]], [row]) == 1 / 3
    assert ctcbind.edit_distance([np.array(3), np.int8(1)], [3, 1]) == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: ctcbind.error_rate(np.array([[1.0, 2.0], [3.0, -1.0]]), [[1, 2], [3]]),
            "readings are float64; symbols",
        ),
        (
            lambda: ctcbind.error_rate([[1, 2]], [np.array([1.0, 2.0])]),
            r"truths\[0\] are float64; symbols are integers",
        ),
        (lambda: ctcbind.error_rate(["ab"], [[1]]), r"readings\[0\] holds text, as 'a', and truths\[0\] 1;"),
        (lambda: ctcbind.edit_distance(b"ab", "ab"), "one sequence holds text, as 'a', and the other 97;"),
    ],
)
def test_what_would_differ_in_every_symbol_is_refused(call, words):
    with pytest.raises(ctcbind.InvalidInput, match=words):
        call()


def test_text_beside_numbers_names_its_sample():
    words = r"^truths\[2\] holds text, as 'a', and readings\[2\] 3; give both"
    with pytest.raises(ctcbind.InvalidInput, match=words) as caught:
        ctcbind.error_rate([[1], [2], [3]], [[1], [2], ["a"]])
    assert (caught.value.rule, caught.value.sample) == ("sequences", 2)


def test_ctrl_c_ends_a_long_distance():
    rng = np.random.default_rng([SEED, 103])
    a, b = rng.integers(0, 3, size=(2, 1_000_000))  # most of a minute's work

    def measure_then_wait():
        ctcbind.edit_distance(a, b)
        time.sleep(5)

    def interrupt():
        time.sleep(2)  # by now it is in C
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    began = time.monotonic()
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            measure_then_wait()
    finally:
        thread.join()
    assert time.monotonic() - began < 15


class Scalar:
    """As those of Arrow, which pyarrow's columns hold: equal to its own kind alone."""

    def __init__(self, value):
        self.value = value

    def as_py(self):
        return self.value


def test_scalars_of_arrow_are_what_they_hold():
    row = [Scalar("a"), Scalar("b")]
    assert ctcbind.edit_distance(row, "ab") == ctcbind.edit_distance(["a", "b"], row) == 0
    lines = [Scalar("an orange"), Scalar("a pear")]
    assert ctcbind.error_rate(lines, ["the orange", "a pear"], unit="word") == 0.25
    assert ctcbind.error_rate(["an orange", "a pea"], lines) == 1 / 15
    with pytest.raises(ctcbind.InvalidInput, match=r"readings\[0\] is None"):
        ctcbind.error_rate([Scalar(None)], ["a"])


def test_nothing_was_read():
    """NumPy makes float64 of what is empty."""
    assert ctcbind.error_rate([np.array([])], [[1, 2]]) == 1.0
    assert ctcbind.error_rate(np.empty((2, 0)), [[1], [1]]) == 1.0
    assert ctcbind.edit_distance(np.array([]), [1, 2]) == 2


def test_a_row_among_symbols_is_none():
    """An array of one element would be compared as an object."""
    for row in (np.array([3]), np.array([[3]])):
        with pytest.raises(ctcbind.InvalidInput, match=r"^a\[1\] has shape \(1.*\), which is no symbol$"):
            ctcbind.edit_distance([1, row], [3])
