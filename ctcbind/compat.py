"""The CTC losses of Theano and of tf-seq2seq-losses, with their arguments, for code that moves here.

| there | here |
|---|---|
| theano.tensor.nnet.ctc(activations, labels, input_lengths) | ctc(activations, labels, input_lengths) |
| theano.config.ctc.root | config.ctc.root |
| tf_seq2seq_losses.classic_ctc_loss(...) | classic_ctc_loss(...) |
| tf_seq2seq_losses.simplified_ctc_loss(...) | simple_ctc_loss(...), or simplified_ctc_loss |

Arrays of any kind that `ctcbind.ctc_loss` takes go in, and results of that kind come out. For other libraries'
functions, docs/frameworks.md has a table of calls.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from .arrays import as_host
from .engines import get
from .errors import InvalidInput
from .kinds import is_masked
from .loss import ctc_loss, ctc_loss_and_grad
from .options import flag

__all__ = ["classic_ctc_loss", "config", "ctc", "simple_ctc_loss", "simplified_ctc_loss"]


@overload
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: Literal[False] = False) -> Any: ...
@overload
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: Literal[True]) -> tuple[Any, Any]: ...
@overload
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: bool) -> Any: ...
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: bool = False) -> Any:
    """The CTC cost of each sample, as `theano.tensor.nnet.ctc` had it; with `gradient`, (costs, gradients).

    | argument | shape and dtype |
    |---|---|
    | activations | (T, N, C), before any softmax; class 0 is the blank; any dtype of `ctcbind.ctc_loss` |
    | labels | (N, L) integers; negative numbers are padding and are ignored, wherever they stand |
    | input_lengths | (N,) integers |
    | returns | (N,) costs in nats; the gradients, of the sum of the costs, are (T, N, C) |

    Theano's `T.grad(T.mean(costs), activations)` is these gradients over N. Runs on the engine that "auto" picks; with
    `config.ctc.root` set, on warp-ctc. A sample without a path costs inf and has gradient 0 (there: cost 0). Raises
    what `ctcbind.ctc_loss` raises.

    Source: theano/tensor/nnet/ctc.py of Theano 1.0.5.

    >>> import numpy as np
    >>> from ctcbind.compat import ctc
    >>> costs = ctc(np.zeros((4, 2, 3)), [[1, 2], [1, -1]], [4, 4])
    >>> [round(float(cost), 4) for cost in costs]
    [1.6864, 2.0919]
    """
    targets = _padded_at_ends(labels)
    engine = "warpctc" if config.ctc.root else "auto"
    if not flag("gradient", gradient):
        return ctc_loss(activations, targets, input_lengths, engine=engine)
    costs, gradients, _ = ctc_loss_and_grad(activations, targets, input_lengths, engine=engine)
    return costs, gradients


def _padded_at_ends(labels: Any) -> Any:
    """A table of integers with the negative numbers of each row behind its labels; anything else as it is."""
    try:
        table = np.asarray(given := as_host(labels))
    except ValueError:  # rows of different lengths
        return labels
    if is_masked(given) or table.ndim != 2 or table.dtype.kind not in "iu":
        return labels
    return np.take_along_axis(table, np.argsort(table < 0, axis=1, kind="stable"), axis=1)


def classic_ctc_loss(labels: Any, logits: Any, label_length: Any, logit_length: Any, blank_index: int = 0) -> Any:
    """The CTC loss of each sample, with the arguments of tf-seq2seq-losses in their order; (N,) in nats.

    `logits` are (N, T, C) before any softmax, `labels` (N, L) integers, in which what is past `label_length` does not
    matter; both lengths are (N,) integers. Raises what `ctcbind.ctc_loss` raises.

    Source: tf_seq2seq_losses 0.3, classic_ctc_loss.

    >>> import numpy as np
    >>> from ctcbind.compat import classic_ctc_loss
    >>> loss = classic_ctc_loss(np.array([[1, 2]]), np.zeros((1, 4, 3)), [2], [4])
    >>> round(float(loss[0]), 4)
    1.6864
    """
    return ctc_loss(logits, labels, logit_length, label_length, blank=blank_index, layout="NTC")


def simple_ctc_loss(labels: Any, logits: Any, label_length: Any, logit_length: Any, blank_index: int = 0) -> Any:
    """The loss of the topology in which repeats are not merged; arguments and result as for `classic_ctc_loss`.

    Source: tf_seq2seq_losses 0.3, simplified_ctc_loss.

    >>> import numpy as np
    >>> from ctcbind.compat import simple_ctc_loss
    >>> loss = simple_ctc_loss(np.array([[1, 1]]), np.zeros((1, 2, 3)), [2], [2])
    >>> round(float(loss[0]), 4)  # one path of nine: a repeat needs no blank in between
    2.1972
    """
    return ctc_loss(logits, labels, logit_length, label_length, blank=blank_index, layout="NTC", topology="simple")


simplified_ctc_loss = simple_ctc_loss

_VARIABLE = "CTCBIND_WARPCTC"
_LIBRARIES = ("libwarpctc.so", "libwarpctc.dylib", "warpctc.dll")


class _Ctc:
    """Theano's section `ctc` of its config."""

    def __init__(self) -> None:
        self._root = ""
        self._before: str | None = None

    @property
    def root(self) -> str:
        """The folder of a warp-ctc, with its library there or in build, lib or lib64; "" is Theano's default: none.

        Setting it loads that library, by the finder's override CTCBIND_WARPCTC, and `ctc` runs on it from then on; ""
        undoes it. Raises InvalidInput where there is no library or where another warp-ctc is loaded (a process keeps
        its first), EngineUnavailable where it cannot be loaded; the root then stays what it was.
        """
        return self._root

    @root.setter
    def root(self, folder: str | os.PathLike[str]) -> None:
        name = os.fspath(folder)
        if not name:
            if self._root:
                self._root = ""
                _set(self._before)
            return
        path, now = self._library(folder), os.environ.get(_VARIABLE)
        _set(path)
        try:
            loaded = get("warpctc").library().path
            if loaded is None or not os.path.samefile(loaded, path):
                raise InvalidInput(
                    f"config.ctc.root is {name!r}, but this process has loaded {loaded} already; set it before "
                    "anything uses warp-ctc",
                    rule="root",
                )
        except BaseException:  # a root that is refused leaves the one before
            _set(now)
            raise
        if not self._root:
            self._before = now
        self._root = name

    @staticmethod
    def _library(folder: str | os.PathLike[str]) -> str:
        places = [Path(folder, part, name) for part in ("build", "lib", "lib64", "") for name in _LIBRARIES]
        for place in places:
            if place.is_file():
                return str(place.absolute())
        looked = ", ".join(str(place.parent) for place in places[:: len(_LIBRARIES)])
        raise InvalidInput(
            f"config.ctc.root is {os.fspath(folder)!r}, but none of {looked} holds {' or '.join(_LIBRARIES)}",
            rule="root",
            value=os.fspath(folder),
        )


def _set(path: str | None) -> None:
    """The finder's override; None takes it out of the environment."""
    if path is None:
        os.environ.pop(_VARIABLE, None)
    else:
        os.environ[_VARIABLE] = path


class _Config:
    """Theano's config, as far as its CTC loss asked it."""

    def __init__(self) -> None:
        self.ctc = _Ctc()


config = _Config()
