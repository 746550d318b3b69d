"""From scores to labels: greedy decoding and prefix beam search."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import rules
from .arrays import Layout, view_logits
from .batch import Batch, Topology, batch_of
from .engines import native_decode
from .engines.native_samples import on_host
from .errors import InvalidInput, brief, with_hint
from .kinds import not_compiled, without_grad
from .options import layout_option, option, real

__all__ = ["Hypothesis", "beam_search", "greedy_decode"]

Prefix = tuple[int, ...]
LanguageModel = Callable[[Prefix], float]
NextModel = Callable[[list[Prefix]], Any]
EndModel = Callable[[list[Prefix]], Any]


class Hypothesis(NamedTuple):
    """`labels` are what was read. `log_p` is their ln p: in greedy decoding that of the one best path, in beam search
    that of all paths that stayed in the beam. `score` is what they were ranked by: log_p, and what the language model
    adds. To find the frames of each label, pass `labels` to `ctcbind.align` as the targets."""

    labels: list[int]
    log_p: float
    score: float


@not_compiled
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
    Returns N hypotheses. Where several classes are equally good, the lowest is taken. The relative error of `log_p` is
    at most 1e-12 for float64 logits, and 2e-5 for the other dtypes, whose exponentials are computed in float32. Raises
    InvalidInput as `ctc_loss` does, and for NaN among a sample's frames.

    Source: Graves et al., ICML 2006, section 3.2 (best path decoding).

    >>> import numpy as np, ctcbind
    >>> frames = [1, 1, 0, 1, 2, 0]  # 0 is the blank
    >>> logits = 9 * np.eye(3)[frames][:, None]  # (T=6, N=1, C=3)
    >>> ctcbind.greedy_decode(logits)[0].labels
    [1, 1, 2]
    """
    batch = _frames(logits, input_lengths, blank, layout, topology)
    return [Hypothesis(*found) for found in native_decode.greedy(batch)]


@not_compiled
def beam_search(
    logits: Any,
    input_lengths: Any = None,
    *,
    beam_width: int = 10,
    blank: int = 0,
    lm: LanguageModel | None = None,
    lm_next: NextModel | None = None,
    lm_end: EndModel | None = None,
    prune: float = 0.0,
    n_best: int | None = None,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> list[list[Hypothesis]]:
    """The most probable labellings of each sample by prefix beam search, the best first.

    | argument | meaning |
    |---|---|
    | logits, input_lengths | as for `ctc_loss`; arrays in GPU memory are copied to the host |
    | beam_width | how many prefixes are kept at each frame |
    | lm | a language model that scores one prefix at a time: `lm(prefix)` returns a number |
    | lm_next | one that scores all next labels at once: `lm_next(prefixes)` returns an array (len(prefixes), C) |
    | lm_end | what the end of a sample adds: `lm_end(prefixes)` returns an array (len(prefixes),) |
    | prune | a class whose probability at a frame is below this begins no new prefix there; 0 considers all. With `lm` and many classes this saves most of the time: 0.001 is a good start |
    | n_best | the most hypotheses to return for each sample; None: all that are in the beam at the end |

    A prefix is a tuple of labels. Scores are natural logarithms, and -inf forbids what it is given for.

    `lm` is called with one prefix, the empty one too. What it returns is added to ln p of that prefix in all rankings;
    -inf forbids the prefix and every longer one that begins with it, also at a frame where only blanks were read. It is
    asked about every class after every prefix of the beam at each frame: at most T * beam_width * C + 1 times, and less
    often with `prune`. A prefix comes only after the one that it continues, perhaps more than once; the answer must
    then be the same. Each call makes a tuple of the whole prefix, so that long prefixes take longer: read long
    recordings in pieces.

    `lm_next` takes the place of `lm` for a model that scores all labels at once, as networks do. It is called with a
    list of prefixes, and returns what each class adds to the score of each prefix when it comes next, for example ln p
    of the class after that prefix, times a weight. The blank's column is not read. It is called at most once per frame
    and sample, with the prefixes that it has not been asked about since they came into the beam, and not at a frame
    where `prune` leaves no class.

    `lm_end` can be given with or without the other two. It is called once per sample, after the last frame, with a list
    of the prefixes left in the beam, the best first. It returns what the end of the sample, as the end of a sentence or
    of its last word, adds to the score of each; then they are ranked again, and the `n_best` taken.

    Returns, for each of N samples, a list of `Hypothesis`, which is empty where no labelling has any probability. The
    result is the same on every run, ties included. Where the beam holds every prefix, `log_p` is minus the CTC loss;
    else paths through prefixes that were dropped are missing, and it is a little less.

    Raises InvalidInput as `ctc_loss` does; for NaN among a sample's frames; for a `beam_width` or `n_best` below 1; for
    a `prune` outside [0, 1); for a model that returns NaN, +inf or another shape; and for `lm` together with `lm_next`.
    Raises OutOfMemory where there is no room for beams of that width. What a model raises passes through.

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
    >>> ctcbind.beam_search(logits, lm_next=lambda prefixes: np.full((len(prefixes), 2), -2.0))[0][0].labels
    []
    >>> ctcbind.beam_search(logits, lm_end=lambda prefixes: [-2.0 * len(prefix) for prefix in prefixes])[0][0].labels
    []
    """  # noqa: E501
    try:
        batch = _frames(logits, input_lengths, blank, layout, topology)
    except InvalidInput as error:
        if error.rule != "length_rank" or not isinstance(error.value, int):
            raise
        raise with_hint(error, f", or beam_width={error.value} if that is meant") from None
    width = _at_least_one("beam_width", beam_width)
    count = width if n_best is None else min(_at_least_one("n_best", n_best), width)
    if not 0 <= real(prune) < 1:
        raise InvalidInput(f"prune is {brief(prune)}; it must be a probability in [0, 1)", rule="prune", value=prune)
    _refuse_model("lm", lm, "a tuple of labels")
    _refuse_model("lm_next", lm_next, "a list of tuples of labels")
    _refuse_model("lm_end", lm_end, "a list of tuples of labels")
    if lm is not None and lm_next is not None:
        raise InvalidInput(
            "both lm and lm_next are given; pass one, which may add what the other says", rule="lm_next", value=lm_next
        )
    found = native_decode.beam_search(
        batch,
        width=width,
        n_best=count,
        prune=float(prune),
        lm=None if lm is None else _checked(lm),
        lm_next=None if lm_next is None else _checked_next(lm_next, batch.C, batch.blank),
        lm_end=None if lm_end is None else _checked_end(lm_end),
    )
    return [[Hypothesis(*each) for each in hypotheses] for hypotheses in found]


def _frames(logits: Any, input_lengths: Any, blank: int, layout: Layout, topology: Topology) -> Batch:
    """The batch without labels, on the host."""
    layout_option(layout)
    option("topology", topology, ("ctc", "simple"))
    view = view_logits(without_grad(logits), layout)
    return on_host(batch_of(view, [[]] * view.shape[1], input_lengths, blank=blank, topology=topology))


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


def _refuse_model(name: str, model: Any, takes: str) -> None:
    if model is not None and not callable(model):
        raise InvalidInput(f"{name} is {brief(model)}; it must be a function of {takes}", rule=name, value=model)


def _checked(lm: LanguageModel) -> LanguageModel:
    def model(prefix: Prefix) -> float:
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


def _checked_next(lm_next: NextModel, C: int, blank: int) -> Callable[[list[Prefix]], bytes]:
    def model(prefixes: list[Prefix]) -> bytes:
        shape = len(prefixes), C
        scores = _answer("lm_next", lm_next(prefixes), shape, f"a number for each of the {C} classes after each prefix")
        wrong = ~(scores < math.inf)
        wrong[:, blank] = False
        if wrong.any():
            at, label = (int(place) for place in np.argwhere(wrong)[0])
            raise _no_logarithm("lm_next", scores[at, label], f"for class {label} after {prefixes[at]}")
        return scores.tobytes()

    return model


def _checked_end(lm_end: EndModel) -> Callable[[list[Prefix]], list[float]]:
    def model(prefixes: list[Prefix]) -> list[float]:
        scores = _answer("lm_end", lm_end(prefixes), (len(prefixes),), "a number for each prefix")
        wrong = ~(scores < math.inf)
        if wrong.any():
            at = int(wrong.argmax())
            raise _no_logarithm("lm_end", scores[at], f"for {prefixes[at]}")
        return [float(score) for score in scores]

    return model


def _answer(name: str, answer: Any, shape: tuple[int, ...], what: str) -> npt.NDArray[np.float64]:
    scores = rules.floats(name, without_grad(answer))
    if scores.shape != shape:
        raise InvalidInput(
            f"{name} returned an array of shape {scores.shape} for a list of {shape[0]} "
            f"prefix{'es' * (shape[0] > 1)}; it must be {shape}, {what}",
            rule=name,
            value=scores.shape,
        )
    return scores


def _no_logarithm(name: str, score: float, where: str) -> InvalidInput:
    return InvalidInput(
        f"{name} returned {score} {where}; it must be a logarithm, finite or -inf", rule=name, value=float(score)
    )
