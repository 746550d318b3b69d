"""From scores to labels: greedy decoding, prefix beam search, and how far a reading is from the truth."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from . import rules
from .arrays import Layout, as_host, view_logits
from .batch import Batch, Topology, make_batch
from .engines import native_decode
from .engines.native_samples import on_host
from .errors import InvalidInput, brief
from .kinds import without_grad

__all__ = ["Hypothesis", "beam_search", "edit_distance", "error_rate", "greedy_decode"]

LanguageModel = Callable[[tuple[int, ...]], float]


class Hypothesis(NamedTuple):
    """`labels`: what was read; `log_p`: its ln p, of the one path for greedy decoding, of the prefix's paths that
    stayed in the beam for beam search; `score`: what it was ranked by, log_p and what the language model adds."""

    labels: list[int]
    log_p: float
    score: float


def greedy_decode(
    logits: Any,
    input_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> list[Hypothesis]:
    """The labels of the single most probable path of each sample: the best class of each frame, collapsed.

    `logits` (T, N, C) and `input_lengths` (N,) are as for `ctc_loss`; arrays in GPU memory are copied to the host.
    Returns N hypotheses. Of equally good classes the lowest is taken. Raises InvalidInput as `ctc_loss` does, and
    for NaN among a sample's frames.

    Source: Graves et al., ICML 2006, section 3.2 (best path decoding).

    >>> import numpy as np, ctcbind
    >>> frames = [1, 1, 0, 1, 2, 0]  # 0 is the blank
    >>> logits = 9 * np.eye(3)[frames][:, None]  # (T=6, N=1, C=3)
    >>> ctcbind.greedy_decode(logits)[0].labels
    [1, 1, 2]
    """
    batch = _frames(logits, input_lengths, blank, layout, topology)
    return [Hypothesis(*found) for found in native_decode.greedy(batch)]


def beam_search(
    logits: Any,
    input_lengths: Any = None,
    *,
    beam_width: int = 10,
    blank: int = 0,
    lm: LanguageModel | None = None,
    prune: float = 0.0,
    n_best: int | None = None,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> list[list[Hypothesis]]:
    """The most probable labellings of each sample by prefix beam search, the best first.

    | argument | meaning |
    |---|---|
    | logits, input_lengths | as for `ctc_loss`; arrays in GPU memory are copied to the host |
    | beam_width | prefixes that are kept at each frame |
    | lm | called with a prefix, a tuple of labels, the empty one too; what it returns (natural log, -inf forbids) is added to ln p of that prefix in all rankings. It is asked about every class after every prefix of the beam at each frame, T * beam_width * C times and once more at most, unless `prune` leaves classes out; about a prefix again too, and has to say the same |
    | prune | classes with a probability below this at a frame begin no new prefix there; 0 looks at all. With `lm` and many classes this is what makes it fast: 0.001 is a beginning |
    | n_best | hypotheses to return of each sample, at most; None: all that end in the beam |

    Returns, for each of N samples, a list of `Hypothesis`: empty where no labelling has any probability. The result
    is the same on every run, ties included. Where the beam holds every prefix, `log_p` is minus the CTC loss.

    Raises InvalidInput as `ctc_loss` does, for NaN among a sample's frames, for a `beam_width` or `n_best` below 1,
    a `prune` outside [0, 1), and an `lm` that returns NaN or +inf; OutOfMemory where there is no room for beams of
    that width. What `lm` raises passes through.

    Source: Graves and Jaitly, ICML 2014, algorithm 1; Hannun et al., arXiv:1408.2873, algorithm 1.

    >>> import numpy as np, ctcbind
    >>> y = np.array([[0.6, 0.4], [0.6, 0.4]])  # the best path is blank blank, p = 0.36 ...
    >>> logits = np.log(y)[:, None]  # (T=2, N=1, C=2)
    >>> ctcbind.greedy_decode(logits)[0].labels
    []
    >>> for labels, log_p, score in ctcbind.beam_search(logits)[0]:  # ... but [1] has three paths
    ...     print(labels, round(float(np.exp(log_p)), 2))
    [1] 0.64
    [] 0.36
    >>> ctcbind.beam_search(logits, lm=lambda prefix: -2.0 * len(prefix))[0][0].labels
    []
    """  # noqa: E501
    batch = _frames(logits, input_lengths, blank, layout, topology)
    width = _at_least_one("beam_width", beam_width)
    count = width if n_best is None else min(_at_least_one("n_best", n_best), width)
    if not 0 <= rules.real(prune) < 1:
        raise InvalidInput(f"prune is {brief(prune)}; it must be a probability in [0, 1)", rule="prune", value=prune)
    if lm is not None and not callable(lm):
        raise InvalidInput(f"lm is {brief(lm)}; it must be a function of a tuple of labels", rule="lm", value=lm)
    model = None if lm is None else _checked(lm)
    found = native_decode.beam_search(batch, width=width, n_best=count, prune=float(prune), lm=model)
    return [[Hypothesis(*each) for each in hypotheses] for hypotheses in found]


def edit_distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Insertions, deletions and substitutions that turn `a` into `b`: the Levenshtein distance.

    Strings, lists of words, rows of labels: any two sequences of hashable symbols, or one-dimensional arrays. Raises
    InvalidInput for anything else.

    >>> import ctcbind
    >>> ctcbind.edit_distance("watermelon", "watermellon")
    1
    >>> ctcbind.edit_distance([3, 1, 4], [1, 4, 1])
    2
    """
    return _distance(_symbols("a", a), _symbols("b", b))


def _distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    numbers: dict[Any, int] = {}
    rows = [[numbers.setdefault(each, len(numbers)) for each in row] for row in (a, b)]
    return native_decode.edit_distance(rows[0], rows[1])


def error_rate(
    readings: Sequence[Sequence[Any]] | npt.NDArray[Any],
    truths: Sequence[Sequence[Any]] | npt.NDArray[Any],
    *,
    unit: Literal["symbol", "word"] = "symbol",
) -> float:
    """All edits over all symbols of the truths: CER of strings, WER with unit="word", or of rows of labels.

    `readings` and `truths` hold one sequence a sample; with unit="word" they are strings, split at white space. Either
    may be an (N, L) array of integers, whose negative numbers at the ends of rows are padding. Edits and lengths are
    summed before the division, so that long samples count for more; the rate can exceed 1. Without any symbol in the
    truths it is 0 where nothing was read, else inf. Raises InvalidInput for counts that differ, and for what is no
    sequence of hashable symbols.

    >>> import ctcbind
    >>> ctcbind.error_rate(["orange", "aple"], ["orange", "apple"])  # 1 of 11 letters
    0.09090909090909091
    >>> ctcbind.error_rate(["an orange"], ["the orange"], unit="word")
    0.5
    """
    rules.option("unit", unit, ("symbol", "word"))
    for name, value in (("readings", readings), ("truths", truths)):
        if isinstance(value, (str, bytes)):
            raise InvalidInput(
                f"{name} are one string; pass a list of them, one a sample", rule="sequences", value=value
            )
        # a dict would be compared by its keys, and a set has no order
        lone = not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0
        if lone or isinstance(value, (Mapping, Set)):
            raise InvalidInput(
                f"{name} are {brief(value)}; pass a list of sequences, one a sample",
                rule="sequences",
                value=value,
            )
    readings, truths = _rows("readings", readings), _rows("truths", truths)
    if len(readings) != len(truths):
        raise InvalidInput(
            f"there are {len(readings)} readings of {len(truths)} truths; each sample needs one of both",
            rule="sequences",
            value=len(readings),
        )
    edits = symbols = 0
    for sample, pair in enumerate(zip(readings, truths)):
        if unit == "word":
            for each in pair:
                if not isinstance(each, str):
                    raise InvalidInput(
                        f'sample {sample} holds {brief(each)}; with unit="word" readings and truths are strings',
                        rule="sequences",
                        sample=sample,
                        value=each,
                    )
            pair = (str(pair[0]).split(), str(pair[1]).split())
        reading, truth = _symbols(f"readings[{sample}]", pair[0]), _symbols(f"truths[{sample}]", pair[1])
        edits += _distance(reading, truth)
        symbols += len(truth)
    return edits / symbols if symbols else math.inf if edits else 0.0


def _unmasked(name: str, value: Any) -> Any:
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidInput(f"{name}: a masked array; pass it filled, with -1 for padding", rule="sequences")
    return value


def _rows(name: str, sequences: Any) -> Any:
    """The rows of an array of integers without the negative numbers that pad them; anything else as it is."""
    array = _unmasked(name, as_host(sequences))
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "iu":
        return sequences
    return [row[: len(row) - np.argmax(np.append(row[::-1] >= 0, True))] for row in array]


def _frames(logits: Any, input_lengths: Any, blank: int, layout: Layout, topology: Topology) -> Batch:
    """The batch without labels, on the host."""
    rules.option("layout", layout, ("TNC", "NTC"))
    rules.option("topology", topology, ("ctc", "simple"))
    logits = without_grad(logits)
    samples = view_logits(logits, layout).shape[1]
    return on_host(make_batch(logits, [()] * samples, input_lengths, blank=blank, layout=layout, topology=topology))


def _at_least_one(name: str, value: Any) -> int:
    try:
        number = 0 if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = 0
    if not 1 <= number < 2**30:
        raise InvalidInput(
            f"{name} is {brief(value)}; it must be an integer from 1 to 2**30 - 1", rule=name, value=value
        )
    return number


def _checked(lm: LanguageModel) -> LanguageModel:
    def model(prefix: tuple[int, ...]) -> float:
        answer: Any = lm(prefix)
        try:
            score = math.nan if isinstance(answer, (str, bytes, np.complexfloating)) else float(answer)
        except (TypeError, ValueError, OverflowError):
            score = math.nan
        if math.isnan(score) or score == math.inf:
            raise InvalidInput(
                f"lm({prefix}) returned {brief(answer)}; it must be a logarithm, finite or -inf",
                rule="lm",
                value=answer,
            )
        return score

    return model


def _symbols(name: str, sequence: Any) -> Any:
    if isinstance(sequence, Hypothesis):
        raise InvalidInput(f"{name} is a Hypothesis; pass its labels", rule="sequences")
    sequence = _unmasked(name, as_host(sequence))
    if not isinstance(sequence, Sequence) and np.ndim(seen := np.asarray(sequence)):
        sequence = seen
    if isinstance(sequence, np.ndarray):
        if sequence.ndim != 1:
            raise InvalidInput(f"{name} has shape {sequence.shape}; it must be one row of symbols", rule="sequences")
        sequence = sequence.tolist()
    if not isinstance(sequence, Sequence):
        raise InvalidInput(f"{name} is {brief(sequence)}; it must be a sequence of symbols", rule="sequences")
    for position, each in enumerate(sequence):
        try:
            hash(each)
        except TypeError:
            hint = ": pass the labels of one" if isinstance(each, Hypothesis) else ""
            raise InvalidInput(
                f"{name}[{position}] is of type {type(each).__name__}, which is no symbol{hint}",
                rule="sequences",
                position=position,
            ) from None
    return sequence
