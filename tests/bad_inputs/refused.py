"""What cannot be right: each wrong input with the error, the rule and the words that it must meet.

A good batch, changed in one place, makes each row.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

INF, NAN = np.inf, np.nan
T, N, C = 6, 3, 5


def x(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.zeros(shape, dtype=dtype)


GOOD: dict[str, Any] = {"logits": x(T, N, C), "targets": [[1, 2], [3], []]}
PADDED = np.array([[1, 2], [3, -1], [-1, -1]])
FLAT = np.array([1, 2, 3])


class Fresh(NamedTuple):
    """Made anew for each call: what one call uses up."""

    make: Any


class OnDevice:
    """An array in GPU memory, as far as anyone can tell by looking."""

    __cuda_array_interface__ = {"shape": (N,), "typestr": "<i4", "data": (0, False), "version": 3}  # noqa: RUF012


class Raises:
    """Something array-like that cannot be read after all."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("no values today")


class Row(NamedTuple):
    """`changes` to the good batch; the error's `rule`, words of its message, and the sample and value it names.

    A value of type Fresh is made anew for each call.
    """

    changes: dict[str, Any]
    rule: str
    words: str
    sample: int | None = None
    value: Any = None


def huge(*shape: int) -> np.ndarray:
    """A view of one number: any shape, no memory."""
    return np.broadcast_to(np.float32(0), shape)


REFUSED: dict[str, Row] = {
    # labels
    "label is C": Row({"targets": [[1], [5], []]}, "label_range", "targets[1][0] is 5, but there are 5 classes", 1, 5),
    "label far out": Row({"targets": [[1], [3], [1, 10**6]]}, "label_range", "targets[2][1] is 1000000", 2, 10**6),
    "label past int32": Row({"targets": [[2**32 + 1], [], []]}, "label_range", "targets[0][0] is 4294967297", 0),
    "label of 2**63": Row(
        {"targets": [np.array([2**63], np.uint64), [1], []]}, "label_range", f"targets[0][0] is {2**63},", 0, 2**63
    ),
    "label of 2**63 beside a small one": Row(
        {"targets": [[1], [2, 2**63], []]}, "integers", f"targets[1][1] is {2**63} (int); it does not fit", 1
    ),
    "length of 2**63 beside small ones": Row(
        {"input_lengths": [2, 2**63, 2]}, "integers", f"input_lengths[1] is {2**63} (int); it does not fit", 1
    ),
    "-1 in uint8": Row(
        {"targets": np.array([[1, 255], [2, 3], [3, 255]], np.uint8)},
        "label_range",
        "targets[0][1] is 255, but there are 5 classes (0..4); uint8 makes that of a -1",
        0,
        255,
    ),
    "label past int64": Row(
        {"targets": [[1], [3, 2**70], []]}, "integers", f"targets[1][1] is {2**70} (int); it does not fit", 1, 2**70
    ),
    "label negative": Row({"targets": [[1, -3], [3], []]}, "label_negative", "targets[0][1] is -3", 0, -3),
    "label -1 in a list": Row({"targets": [[1], [-1], []]}, "label_negative", "targets[1][0] is -1", 1, -1),
    "label negative beside uint64": Row(
        {"targets": [[-5], np.array([2], np.uint64), []]}, "label_negative", "targets[0][0] is -5", 0, -5
    ),
    "label is the blank": Row({"targets": [[1], [2, 0], []]}, "label_blank", "targets[1][1] is 0, which is the", 1, 0),
    "label is the last blank": Row({"blank": -1, "targets": [[1], [4], []]}, "label_blank", "(blank=4)", 1, 4),
    "label is a middle blank": Row({"blank": 2}, "label_blank", "targets[0][1] is 2, which is the blank", 0, 2),
    "padded with the blank": Row(
        {"targets": np.array([[1, 2], [3, 0], [0, 0]])}, "label_blank", "padding would: pad with -1", 1, 0
    ),
    "padded with the blank, and the width for lengths": Row(
        {"targets": np.array([[1, 2], [3, 0], [0, 0]]), "target_lengths": [2, 2, 2]},
        "label_blank",
        "Blanks end this row as padding would: target_lengths[1] is 2 and counts it; without it 1",
        1,
        0,
    ),
    "rows padded with the last blank": Row(
        {"blank": -1, "targets": [[1, 2], [3, 4], [4, 4]]}, "label_blank", "targets[1][1] is 4, which is the", 1, 4
    ),
    "label with one class": Row(
        {"logits": x(T, N, 1), "targets": [[], [1], []]}, "label_range", "only one class, the blank", 1, 1
    ),
    "blank with one class": Row({"logits": x(T, N, 1), "targets": [[], [0], []]}, "label_blank", "[1][0] is 0", 1, 0),
    "label in a flat row": Row(
        {"targets": np.array([1, 2, 9]), "target_lengths": [2, 1, 0]}, "label_range", "targets[1][0] is 9", 1, 9
    ),
    "label in a flat row, later": Row(
        {"targets": np.array([1, 2, 9]), "target_lengths": [0, 0, 3]}, "label_range", "targets[2][2] is 9", 2, 9
    ),
    "label in a padded row": Row({"targets": PADDED * 4}, "label_range", "targets[0][1] is 8", 0, 8),
    "padding inside a row": Row(
        {"targets": np.array([[1, 2], [-1, 3], [-1, -1]])}, "label_negative", "targets[1][0] is -1", 1, -1
    ),
    "padding within the length": Row(
        {"targets": PADDED, "target_lengths": [2, 2, 0]}, "label_negative", "targets[1][1] is -1", 1, -1
    ),
    # dtypes of labels
    "float labels": Row(
        {"targets": [[1.0, 2.0], [3.0], []]}, "integers", "must hold integers: pass targets[0] as ints"
    ),
    "float lengths": Row({"input_lengths": [6.0, 6.0, 6.0]}, "integers", "pass input_lengths as ints"),
    "float array": Row(
        {"targets": PADDED.astype(float)}, "integers", "float64; it must hold integers: pass targets.astype(int)"
    ),
    "fractional label": Row({"targets": [[1, 2.5], [3], []]}, "integers", "targets[0][1] is 2.5"),
    "NaN label": Row({"targets": np.array([[1, NAN]] * 3)}, "integers", "targets[0][1] is nan"),
    "inf label": Row({"targets": np.array([[1, INF]] * 3)}, "integers", "float64"),
    "complex labels": Row({"targets": PADDED.astype(complex)}, "integers", "complex numbers"),
    "bool labels": Row({"targets": PADDED > 0}, "integers", "booleans"),
    "bool rows": Row({"targets": [[True], [False], []]}, "integers", "booleans", 0),
    "object labels": Row({"targets": np.array([[1, None]] * 3)}, "integers", "targets[0][1] is None (NoneType)", 0),
    "integers as objects": Row({"targets": PADDED.astype(object)}, "integers", "pass targets.astype(int)"),
    "an array of rows and none": Row(
        {"targets": np.array([[1, 2], [3], None], dtype=object)}, "integers", "targets[2] is None (NoneType)", 2
    ),
    "None among labels": Row({"targets": [[1], [3, None], []]}, "integers", "targets[1][1] is None (NoneType)", 1),
    "a deque of rows": Row(
        {"targets": deque([[1], [2, 1], []])},
        "integers",
        "targets[0] is [1] (list); pass rows as a list of them, list(targets)",
    ),
    "a list in a row": Row(
        {"targets": [[1, [2]], [2], []]}, "integers", "targets[0][1] is [2] (list); it must be an integer"
    ),
    "a list among lengths": Row(
        {"input_lengths": [8, [8], 8]}, "integers", "input_lengths[1] is [8] (list); it must be an integer"
    ),
    "a set of labels": Row({"targets": [{1}, [2], []]}, "integers", "targets[0] is {1} (set); pass a list"),
    "a dict of labels": Row({"targets": {0: [1], 1: [2], 2: []}}, "integers", "(dict); it must hold integers"),
    "None for targets": Row({"targets": None}, "integers", "targets"),
    "a generator": Row(
        {"targets": Fresh(lambda: (row for row in [[1], [2], []]))}, "integers", "(generator); pass a list"
    ),
    "strings": Row({"targets": ["ab", "c", ""]}, "integers", "targets[0] is 'ab'", 0, "ab"),
    "bytes": Row({"targets": [[1], b"ab", []]}, "integers", "targets[1] is b'ab'", 1, b"ab"),
    "one string": Row({"targets": "abc"}, "integers", "strings (the first is 'abc')"),
    "letters in rows": Row({"targets": [["a"], ["b"], []]}, "integers", "'a'", 0),
    "dates": Row({"targets": np.array([["2026-01-01"]] * 3, dtype="M8[D]")}, "integers", "datetime64"),
    "masked labels": Row({"targets": np.ma.masked_less(PADDED, 0)}, "integers", "masked array"),
    "a masked row": Row({"targets": [np.ma.array([1, 2], mask=[0, 1]), [3], []]}, "integers", "masked array", 0),
    "targets that cannot be read": Row({"targets": Raises()}, "integers", "no values today"),
    # shapes of targets
    "ragged rows": Row({"targets": [[[1], [2, 3]], [3], []]}, "integers", "targets[0]", 0),
    "rows in rows": Row({"targets": [[[1, 2]], [[3, 4]], [[1, 2]]]}, "targets_rank", "targets[0]", 0),
    "an array of rank 3": Row({"targets": np.ones((N, 1, 1), int)}, "targets_rank", "3 dimensions"),
    "one-hot labels": Row(
        {"targets": np.eye(5, dtype=int)[np.ones((N, 2), int)]}, "targets_rank", "targets.argmax(axis=2)"
    ),
    "one-hot floats": Row(
        {"targets": np.eye(5)[np.ones((N, 2), int)]}, "integers", "targets.argmax(axis=2) if they are"
    ),
    "one number": Row({"targets": 1}, "targets_rank", "0 dimensions"),
    "a number for a row": Row({"targets": [[1], np.array(2), []]}, "targets_rank", "targets[1]", 1),
    "too few sequences": Row({"targets": [[1], [2]]}, "targets_count", "2 sequences, but the batch has 3", None, 2),
    "too many sequences": Row({"targets": [[1]] * 4}, "targets_count", "4 sequences", None, 4),
    "no sequences": Row({"targets": []}, "targets_count", "0 sequences", None, 0),
    "too few rows": Row({"targets": PADDED[:2]}, "targets_count", "2 rows", None, 2),
    "a padded array turned over": Row({"targets": PADDED.T.copy()}, "targets_count", "2 rows", None, 2),
    "a padded array turned over, (L, N)": Row({"targets": PADDED.T.copy()}, "targets_count", "pass targets.T", None, 2),
    "logits turned over": Row(
        {"logits": x(N, T, C), "targets": GOOD["targets"]},
        "targets_count",
        'have 3 time steps: if those are the samples, pass layout="NTC" or transpose them',
        None,
        3,
    ),
    "logits turned over, NTC": Row(
        {"logits": x(T, N, C), "targets": GOOD["targets"], "layout": "NTC"},
        "targets_count",
        'by layout="NTC" the logits have 3 time steps: if those are the samples, pass layout="TNC"',
        None,
        3,
    ),
    "logits turned over, a flat row": Row(
        {"logits": x(N, T, C), "targets": FLAT, "target_lengths": [1, 1, 1]},
        "length_count",
        'target_lengths has 3 lengths, but the batch has 6 samples; by layout="TNC" the logits have 3',
        None,
        3,
    ),
    "logits as a convolution leaves them": Row(
        {"logits": x(N, C, T), "targets": GOOD["targets"]},
        "targets_count",
        "transpose them, by (2, 0, 1) if they are (N, C, T)",
        None,
        3,
    ),
    "logits with the samples last": Row(
        {"logits": x(T, C, N), "targets": GOOD["targets"]},
        "targets_count",
        "the last axis of the logits is 3, and holds the classes",
        None,
        3,
    ),
    # target lengths
    "target lengths that cut rows of several lengths": Row(
        {"targets": [[1, 2], [3], []], "target_lengths": [1, 1, 0]},
        "target_length",
        "target_lengths[0] is 1, but targets[0] has 2 labels, and rows of different lengths hold no padding",
        0,
        1,
    ),
    "a flat row without lengths": Row({"targets": FLAT}, "target_lengths_missing", "target_lengths must say"),
    "a flat list without lengths": Row({"targets": [1, 2, 3]}, "target_lengths_missing", "[[...]]"),
    "lengths sum to less": Row(
        {"targets": FLAT, "target_lengths": [1, 1, 0]}, "target_lengths_sum", "sum to 2, but targets hold 3", None, 2
    ),
    "lengths sum to more": Row({"targets": FLAT, "target_lengths": [2, 1, 1]}, "target_lengths_sum", "sum to 4"),
    "too few lengths": Row({"targets": FLAT, "target_lengths": [2, 1]}, "length_count", "2 lengths", None, 2),
    "too many lengths": Row({"targets": FLAT, "target_lengths": [1, 1, 1, 0]}, "length_count", "4 lengths"),
    "a length negative": Row(
        {"targets": FLAT, "target_lengths": [2, -1, 2]}, "length_negative", "target_lengths[1] is -1", 1, -1
    ),
    "a length past the columns": Row(
        {"targets": PADDED, "target_lengths": [2, 3, 0]}, "target_length", "target_lengths[1] is 3, but", 1, 3
    ),
    "a length past a row": Row({"target_lengths": [2, 2, 0]}, "target_length", "targets[1] has 1 label", 1, 2),
    "lengths float": Row({"targets": FLAT, "target_lengths": [1.0, 1.0, 1.0]}, "integers", "target_lengths"),
    "lengths NaN": Row({"targets": FLAT, "target_lengths": [2, NAN, 1]}, "integers", "target_lengths[1] is nan"),
    "lengths of rank 2": Row({"targets": FLAT, "target_lengths": [[2], [1], [0]]}, "length_rank", "(3, 1)"),
    "one length": Row({"targets": FLAT, "target_lengths": 3}, "length_rank", "one length a sample", None, 3),
    "lengths masked": Row({"target_lengths": np.ma.array([2, 1, 0], mask=[0, 0, 1])}, "integers", "masked array"),
    "lengths bool": Row({"targets": PADDED, "target_lengths": [True, True, False]}, "integers", "booleans"),
    "lengths ragged": Row({"targets": PADDED, "target_lengths": [[1], [1, 2], []]}, "integers", "target_lengths"),
    "lengths past int64, flat": Row(
        {"targets": np.empty(0, int), "target_lengths": np.array([2**63, 2**63, 0], np.uint64)},
        "target_lengths_sum|target_length|size_limit",
        "target",
    ),
    "lengths past int64, padded": Row(
        {"targets": PADDED, "target_lengths": np.array([1, 2**63 + 1, 0], np.uint64)},
        "target_length|size_limit",
        "[1]",
        1,
    ),
    "lengths past int64, rows": Row(
        {"target_lengths": np.array([1, 1, 2**64 - 1], np.uint64)}, "target_length|size_limit", "[2]", 2
    ),
    "lengths that sum to 0 by wrapping": Row(
        {"targets": np.empty(0, int), "target_lengths": [2**62, 2**62, 2**63 - 1]},
        "target_lengths_sum|target_length|size_limit",
        "target",
    ),
    # input lengths
    "frames past T": Row({"input_lengths": [6, 7, 6]}, "input_length", "input_lengths[1] is 7, but the logits", 1, 7),
    "frames past T, uint64": Row(
        {"input_lengths": np.array([6, 6, 2**64 - 1], np.uint64)}, "input_length", "input_lengths[2]", 2, 2**64 - 1
    ),
    "frames past int32": Row({"input_lengths": [6, 2**32 + 1, 6]}, "input_length", "input_lengths[1]", 1, 2**32 + 1),
    "frames negative": Row({"input_lengths": [6, 6, -1]}, "length_negative", "input_lengths[2] is -1", 2, -1),
    "too few frames": Row({"input_lengths": [6]}, "length_count", "1 length, but the batch has 3", None, 1),
    "frames for no sample": Row({"input_lengths": []}, "length_count", "0 lengths"),
    "frames float": Row({"input_lengths": [6.0, 6.0, 6.0]}, "integers", "input_lengths"),
    "frames half": Row({"input_lengths": [6, 5.5, 6]}, "integers", "input_lengths[1] is 5.5", 1, 5.5),
    "frames NaN": Row({"input_lengths": np.array([NAN, 6, 6])}, "integers", "input_lengths[0] is nan", 0),
    "frames of rank 2": Row({"input_lengths": [[6, 6, 6]]}, "length_rank", "(1, 3)", None, (1, 3)),
    "one count of frames": Row({"input_lengths": 6}, "length_rank", "input_lengths is 6", None, 6),
    "frames as strings": Row({"input_lengths": ["6", "6", "6"]}, "integers", "strings"),
    "frames as objects": Row({"input_lengths": [6, None, 6]}, "integers", "input_lengths[1] is None (NoneType)", 1),
    "frames past int64": Row({"input_lengths": [6, 2**70, 6]}, "integers", f"input_lengths[1] is {2**70}", 1, 2**70),
    "frames with T = 0": Row({"logits": x(0, N, C), "input_lengths": [0, 1, 0]}, "input_length", "T = 0", 1, 1),
    "NTC, frames past T": Row(
        {"logits": x(N, 4, C), "layout": "NTC", "input_lengths": [4, 4, 5]}, "input_length", "T = 4", 2, 5
    ),
    # logits
    "logits of rank 2": Row(
        {"logits": x(T, C)},
        "logits_rank",
        "(6, 5); they must have 3: (T, N, C); for one sample pass logits[:, None]",
        None,
        (6, 5),
    ),
    "logits of rank 4": Row({"logits": x(1, T, N, C)}, "logits_rank", "4 dimensions"),
    "logits of rank 2, NTC": Row(
        {"logits": x(T, C), "layout": "NTC"}, "logits_rank", "(N, T, C); for one sample pass logits[None]"
    ),
    "a number for logits": Row({"logits": 1.0}, "logits_rank", "0 dimensions"),
    "None for logits": Row({"logits": None}, "logits_dtype", "logits are of type NoneType; they must be float16"),
    "ragged logits": Row({"logits": [[[0.0, 1.0]], [[0.0]]]}, "logits_rank", "cannot be read as one array"),
    "samples of several lengths": Row(
        {"logits": [x(6, C), x(4, C), x(5, C)]},
        "logits_rank",
        "(list) cannot be read as one array: its samples have different numbers of frames; pad them to an array "
        "(T, N, C) and pass input_lengths=[6, 4, 5]",
    ),
    "labels first, as rows": Row(
        {"logits": GOOD["targets"], "targets": x(T, N, C)},
        "logits_rank",
        "rows of integers (labels and logits swapped?)",
    ),
    "logits that cannot be read": Row({"logits": Raises()}, "logits_rank", "no values today"),
    "integer logits": Row({"logits": x(T, N, C, dtype="int64")}, "logits_dtype", "int64", None, "int64"),
    "logits and labels swapped": Row({"logits": PADDED, "targets": x(T, N, C)}, "logits_dtype", "swapped?"),
    "bool logits": Row({"logits": x(T, N, C, dtype="bool")}, "logits_dtype", "bool"),
    "complex logits": Row({"logits": x(T, N, C, dtype="complex64")}, "logits_dtype", "complex64"),
    "object logits": Row({"logits": x(T, N, C, dtype="object")}, "logits_dtype", "pass logits.astype(float)"),
    "string logits": Row({"logits": x(T, N, C, dtype="U3")}, "logits_dtype", "text"),
    "long double logits": Row(
        {"logits": np.zeros((T, N, C), np.longdouble)}, "logits_dtype", "pass logits.astype(numpy.float"
    ),
    "structured logits": Row(
        {"logits": np.zeros((T, N, C), [("a", "f4")])}, "logits_dtype", "pass one of the fields, logits['a']"
    ),
    "masked logits": Row({"logits": np.ma.zeros((T, N, C))}, "logits_dtype", "masked array"),
    "big-endian logits": Row({"logits": np.zeros((T, N, C), ">f4")}, "logits_dtype", "byte order"),
    "a batch of none": Row({"logits": x(T, 0, C), "targets": []}, "batch_size", "N = 0"),
    "a batch of none, NTC": Row({"logits": x(0, T, C), "targets": [], "layout": "NTC"}, "batch_size", "(0, 6, 5)"),
    "no classes": Row({"logits": x(T, N, 0), "targets": [[], [], []]}, "classes", "C = 0"),
    "T past int32": Row({"logits": huge(2**31, N, C)}, "size_limit", "T is 2147483648", None, 2**31),
    "N past int32": Row({"logits": huge(T, 2**31, C)}, "size_limit", "N is 2147483648", None, 2**31),
    "C past int32": Row({"logits": huge(T, N, 2**31)}, "size_limit", "C is 2147483648", None, 2**31),
    "T past int32, NTC": Row({"logits": huge(N, 2**33, C), "layout": "NTC"}, "size_limit", "T is 8589934592"),
    "labels past int32": Row(
        {"targets": np.broadcast_to(np.int8(1), (2**30,)), "target_lengths": [2**30, 0, 0]},
        "size_limit",
        "target_lengths[0] is 1073741824",
        0,
        2**30,
    ),
    # devices
    "labels on a device": Row({"targets": OnDevice()}, "device", "targets are in GPU memory while the logits"),
    "frames on a device": Row({"input_lengths": OnDevice()}, "device", "input_lengths are in GPU memory"),
    "lengths on a device": Row({"target_lengths": OnDevice()}, "device", "target_lengths are in GPU memory"),
    # options
    "blank is C": Row({"blank": 5}, "blank", "blank is 5, but there are 5 classes", None, 5),
    "blank is -2": Row({"blank": -2}, "blank", "blank is -2", None, -2),
    "blank is enormous": Row({"blank": 2**70}, "blank", "5 classes"),
    "blank is bool": Row({"blank": True}, "blank", "blank is True (bool); it must be an int", None, True),
    "blank is NumPy's bool": Row({"blank": np.False_}, "blank", "must be an int"),
    "blank is float": Row({"blank": 0.0}, "blank", "(float)", None, 0.0),
    "blank is None": Row({"blank": None}, "blank", "None"),
    "blank is a string": Row({"blank": "-"}, "blank", "(str)", None, "-"),
    "blank is an array": Row({"blank": np.array([0, 1])}, "blank", "ndarray"),
    "layout unknown": Row({"layout": "NCT"}, "layout", "layout is 'NCT'; it must be one of 'TNC', 'NTC'", None, "NCT"),
    "layout in small letters": Row({"layout": "tnc"}, "layout", "'tnc'"),
    "layout None": Row({"layout": None}, "layout", "None"),
    "topology unknown": Row({"topology": "rnnt"}, "topology", "'ctc', 'simple'", None, "rnnt"),
    "reduction mean": Row({"reduction": "mean"}, "reduction", '"label_mean"', None, "mean"),
    "reduction unknown": Row({"reduction": "avg"}, "reduction", "'batch_mean', 'label_mean'", None, "avg"),
    "reduction None": Row({"reduction": None}, "reduction", "None"),
    "reduction a list": Row({"reduction": ["sum"]}, "reduction", "['sum']"),
    "reduction an array": Row({"reduction": np.array(["sum", "none"])}, "reduction", "sum"),
    "layout an array": Row({"layout": np.array(["TNC", "NTC"])}, "layout", "TNC"),
    "topology an array": Row({"topology": np.array(["ctc", "simple"])}, "topology", "simple"),
    "engine an array": Row({"engine": np.array(["native", "auto"])}, "engine", "native"),
    "engine an array of one": Row({"engine": np.array(["native"])}, "engine", "native"),
    "zero_infinity a string": Row({"zero_infinity": "no"}, "zero_infinity", "'no' (str); it must be True", None, "no"),
    "zero_infinity 2": Row({"zero_infinity": 2}, "zero_infinity", "zero_infinity is 2 (int); it must be", None, 2),
    "zero_infinity None": Row({"zero_infinity": None}, "zero_infinity", "None (NoneType)"),
    "zero_infinity an array": Row({"zero_infinity": np.array([True])}, "zero_infinity", "ndarray"),
    "engine unknown": Row({"engine": "tensorflow"}, "engine", "'native', 'cuda', 'warpctc', 'cudnn', 'reference'"),
    "engine None": Row({"engine": None}, "engine", "None"),
    "engine a module's name": Row({"engine": "contract"}, "engine", "'contract'"),
}
