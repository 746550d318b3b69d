"""Alignment: the best path of each sample, which frames each label takes, and when that is."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .arrays import Layout, as_host, on_device
from .batch import Topology
from .engines import native_lattice
from .engines.native_samples import as_dtype, in_kind, on_host
from .errors import InvalidInput, brief
from .kinds import back_to, cuda_array, is_masked, not_compiled
from .options import real
from .scores import check_scores, lattice_batch

__all__ = ["Alignment", "align", "frames_to_seconds"]


class Alignment(NamedTuple):
    """`states` (N, T) int32: the state of each frame, 2i + 1 for label i, even for the blanks around them;
    `classes` (N, T) int32: the class of each frame; `starts` and `ends` (N, L) int32: label i takes the frames
    starts[n, i] to ends[n, i] - 1; `scores` (N, L): the mean of ln y over those frames; `log_p` (N,): the score of
    the whole path, ln p where nothing was added to the lattice. Entries past a sample's own frames and labels are -1,
    or NaN for scores. So are all entries of a sample without a path (log_p -inf), or with a NaN among its logits (log_p
    NaN)."""

    states: Any
    classes: Any
    starts: Any
    ends: Any
    scores: Any
    log_p: Any


@not_compiled
def align(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    path_bonus: Any = None,
    log_prior: Any = None,
    prior_weight: float = 1.0,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Alignment:
    """The most probable path of each sample through its lattice (forced alignment, Viterbi).

    The batch is that of `ctc_loss`; `path_bonus`, `log_prior` and `prior_weight` are those of `ctc_lattice`. Returns
    an `Alignment` of arrays of the logits' kind and device, with scores in float32 (float64 for float64 logits).

    It is computed on the host, and arrays in GPU memory are copied there. Paths are compared in float64. What the
    softmax subtracts from the logits of a frame is as exact as in the loss: its relative error is at most 2e-5, or
    1e-12 for float64 logits.

    Ties are broken the same way on every run. Followed back from its end, the path ends in the last label rather than
    in the blank after it, stays in a state where it can, and otherwise comes from the nearest state.

    Long samples take little memory. Where a table of T * S scores would be large, they are kept at some frames only,
    and the frames in between are computed again. T = 180,000 frames with L = 15,000 labels take 51 MB beside the
    logits.

    Raises InvalidInput as `ctc_loss` does, and as `ctc_lattice` for what is added.

    Source: Graves et al., ICML 2006, section 3.2, on the lattice of section 4.1.

    >>> import numpy as np, ctcbind
    >>> frames = [0, 1, 1, 0, 2, 2, 2, 0]  # 0 is the blank
    >>> logits = 9 * np.eye(3)[frames][:, None]  # (T=8, N=1, C=3)
    >>> path = ctcbind.align(logits, [[1, 2]])
    >>> path.classes[0].tolist(), path.states[0].tolist()
    ([0, 1, 1, 0, 2, 2, 2, 0], [0, 1, 1, 2, 3, 3, 3, 4])
    >>> path.starts[0].tolist(), path.ends[0].tolist()
    ([1, 4], [3, 7])
    >>> ctcbind.frames_to_seconds(path.starts, 50)[0].tolist()  # 50 frames a second
    [0.02, 0.08]
    """
    batch = lattice_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)
    added = check_scores(batch, path_bonus, log_prior, prior_weight)
    *places, scores, log_p = native_lattice.align(on_host(batch), added)
    view = batch.logits
    narrow = (as_dtype(each, view.loss_dtype) for each in (scores, log_p))
    return Alignment(*[in_kind(view, each) for each in (*places, *narrow)])


@not_compiled
def frames_to_seconds(frames: Any, frames_per_second: float, *, offset: float = 0.0) -> Any:
    """The time at which each frame begins: frame / frames_per_second + offset, in seconds.

    `frames` are integers of any shape, as `starts` and `ends` of an `Alignment`; -1 (no such label) becomes NaN. An
    end is the frame after the last, so that ends - starts are durations. `frames_per_second` counts frames of the
    logits: features at 100 a second, of which a network makes a quarter as many frames, give 25.

    Returns float64 of the same shape and kind as `frames` (JAX makes float32 of it, unless `jax_enable_x64` is on).
    Raises InvalidInput for a rate that is not positive and for frames that are no integers.

    >>> import ctcbind
    >>> ctcbind.frames_to_seconds([0, 25, -1], 50, offset=10).tolist()
    [10.0, 10.5, nan]
    """
    rate, start = real(frames_per_second), real(offset)
    if not 0 < rate < math.inf:
        raise InvalidInput(
            f"frames_per_second is {brief(frames_per_second)}; it must be a positive number",
            rule="frames_per_second",
            value=frames_per_second,
        )
    if not math.isfinite(start):
        raise InvalidInput(f"offset is {brief(offset)}; it must be a finite number", rule="offset", value=offset)
    if isinstance(frames, Alignment):
        raise InvalidInput("frames are a whole Alignment; pass its starts or its ends", rule="integers")
    try:
        array = np.asarray(given := as_host(frames))
    except ValueError as error:
        wrong = "they are rows of different lengths; pass one at a time" if "inhomogeneous" in str(error) else error
        raise InvalidInput(f"frames cannot be read as integers: {wrong}", rule="integers") from error
    if is_masked(given):
        raise InvalidInput("frames are a masked array; pass frames.filled(-1)", rule="integers")
    if array.size and array.dtype.kind not in "iu":
        are = brief(frames) if array.dtype == object else array.dtype
        raise InvalidInput(
            f"frames are {are}; they must be integers, of at most 64 bits", rule="integers", value=str(array.dtype)
        )
    with np.errstate(over="ignore"):  # a rate next to 0 gives times past the range of a double: infinitely late
        seconds = np.where(array < 0, np.nan, array / rate + start)
    return _like(frames, seconds)


def _like(given: Any, array: Any) -> Any:
    if on_device(given):
        import cupy

        with cuda_array(given, cupy).device:
            array = cupy.asarray(array)
    back = back_to(given)
    return array if back is None else back(array)
