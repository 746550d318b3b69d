"""The CTC losses of Theano and of tf-seq2seq-losses, with their arguments, for code that moves here.

| there | here |
|---|---|
| theano.tensor.nnet.ctc(activations, labels, input_lengths) | ctc(activations, labels, input_lengths) |
| theano.config.ctc.root | config.ctc.root |
| tf_seq2seq_losses.classic_ctc_loss(...) | classic_ctc_loss(...) |
| tf_seq2seq_losses.simple_ctc_loss(...) | simple_ctc_loss(...) |

Arrays of any kind that `ctcbind.ctc_loss` takes go in, and losses of that kind come out.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, overload

from typing import Literal

from .errors import InvalidInput
from .loss import ctc_loss, ctc_loss_and_grad

__all__ = ["classic_ctc_loss", "config", "ctc", "simple_ctc_loss"]


@overload
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: Literal[False] = False) -> Any: ...
@overload
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: Literal[True]) -> tuple[Any, Any]: ...
def ctc(activations: Any, labels: Any, input_lengths: Any, *, gradient: bool = False) -> Any:
    """The CTC cost of each sample, as `theano.tensor.nnet.ctc` had it; with `gradient`, (costs, gradients) too.

    | argument | shape and dtype |
    |---|---|
    | activations | (T, N, C), before any softmax; class 0 is the blank |
    | labels | (N, L) integers, padded with negative numbers |
    | input_lengths | (N,) integers |
    | returns | (N,) costs in nats; the gradients, of the sum of the costs, are (T, N, C) |

    Runs on the engine that "auto" picks; with `config.ctc.root` set, on the warp-ctc of that folder. Raises what
    `ctcbind.ctc_loss` raises.

    Source: theano/tensor/nnet/ctc.py of Theano 1.0.5.

    >>> import numpy as np
    >>> from ctcbind.compat import ctc
    >>> costs = ctc(np.zeros((4, 2, 3)), [[1, 2], [1, -1]], [4, 4])
    >>> [round(float(cost), 4) for cost in costs]
    [1.6864, 2.0919]
    """
    padded = labels if hasattr(labels, "dtype") else _rows(labels)
    engine = "warpctc" if config.ctc.root else "auto"
    if not gradient:
        return ctc_loss(activations, padded, input_lengths, engine=engine)
    costs, gradients, _ = ctc_loss_and_grad(activations, padded, input_lengths, engine=engine)
    return costs, gradients


def _rows(labels: Any) -> Any:
    """Rows of plain ints lose their padding; what is no such thing is left for the checks."""
    try:
        return [[label for label in row if label >= 0] for row in labels]
    except TypeError:
        return labels


def classic_ctc_loss(
    labels: Any, logits: Any, label_length: Any, logit_length: Any, blank_index: int = 0
) -> Any:
    """The CTC loss of each sample, in the order of arguments of tf-seq2seq-losses; (N,) in nats.

    `logits` are (N, T, C) before any softmax, `labels` (N, L) padded with anything past `label_length`. Raises
    what `ctcbind.ctc_loss` raises.

    Source: tf_seq2seq_losses 0.3, classic_ctc_loss.

    >>> import numpy as np
    >>> from ctcbind.compat import classic_ctc_loss
    >>> loss = classic_ctc_loss(np.array([[1, 2]]), np.zeros((1, 4, 3)), [2], [4])
    >>> round(float(loss[0]), 4)
    1.6864
    """
    return ctc_loss(logits, labels, logit_length, label_length, blank=blank_index, layout="NTC")


def simple_ctc_loss(
    labels: Any, logits: Any, label_length: Any, logit_length: Any, blank_index: int = 0
) -> Any:
    """The loss of the topology in which repeats are not merged; arguments and result as for `classic_ctc_loss`.

    Source: tf_seq2seq_losses 0.3, simplified_ctc_loss.

    >>> import numpy as np
    >>> from ctcbind.compat import simple_ctc_loss
    >>> loss = simple_ctc_loss(np.array([[1, 1]]), np.zeros((1, 2, 3)), [2], [2])
    >>> round(float(loss[0]), 4)  # one path of nine: a repeat needs no blank in between
    2.1972
    """
    return ctc_loss(
        logits, labels, logit_length, label_length, blank=blank_index, layout="NTC", topology="simple"
    )


class _Ctc:
    """Theano's section `ctc` of its config."""

    _root = ""

    @property
    def root(self) -> str:
        """The folder of a warp-ctc; its library lies there in build, lib or lib64. "" is the finder's choice.

        Setting it sets CTCBIND_WARPCTC, and counts until a warp-ctc is loaded. Raises InvalidInput where there
        is no library.
        """
        return self._root

    @root.setter
    def root(self, folder: str | os.PathLike[str]) -> None:
        if not os.fspath(folder):
            os.environ.pop("CTCBIND_WARPCTC", None)
            self._root = ""
            return
        places = [Path(folder, part, name) for part in ("build", "lib", "lib64", "") for name in _LIBRARIES]
        found = next((place for place in places if place.is_file()), None)
        if found is None:
            looked = ", ".join(str(place) for place in places)
            raise InvalidInput(f"config.ctc.root is {os.fspath(folder)!r}, but there is none of {looked}", rule="root")
        os.environ["CTCBIND_WARPCTC"] = str(found)
        self._root = os.fspath(folder)


_LIBRARIES = ("libwarpctc.so", "libwarpctc.dylib", "warpctc.dll")


class _Config:
    ctc = _Ctc()


config = _Config()
