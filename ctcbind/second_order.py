"""Second derivatives of the loss with respect to the logits: along a direction, and all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import ArrayView, Layout, as_host, on_device, view_logits
from .batch import Topology
from .engines import native_lattice
from .engines.native_samples import in_kind, on_host
from .errors import InvalidInput, brief, counted
from .kinds import is_masked, not_compiled
from .options import real
from .scores import lattice_batch

__all__ = ["ctc_hessian", "ctc_hvp"]


@not_compiled
def ctc_hvp(
    logits: Any,
    targets: Any,
    v: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
) -> Any:
    """The Hessian of each sample's loss times `v`, exactly, in O(T * S) a sample.

    The batch is that of `ctc_loss`; `v` has the shape of the logits, of any of their dtypes. Returns an array of the
    logits' shape, dtype, kind and device: 0 past a sample's frames and for a sample without a path. Samples do not
    depend on each other. Computed in float64 on the host, to which arrays in GPU memory are copied.

    Raises InvalidInput as `ctc_loss` does, and for a `v` of another shape, of a dtype that logits cannot have, or in
    GPU memory beside logits on the host.

    Source: the forward-backward of Graves et al., ICML 2006, differentiated along `v`; the loss is
    Σ_t logsumexp(x_t) - ln Z(x), so its Hessian is the covariance of each step's softmax less that of the paths.

    >>> import numpy as np, ctcbind
    >>> logits, v = np.random.default_rng(0).normal(size=(2, 6, 1, 4))
    >>> product = ctcbind.ctc_hvp(logits, [[3, 1]], v)
    >>> up, down = (ctcbind.ctc_loss_and_grad(logits + h * v, [[3, 1]]).grad for h in (1e-5, -1e-5))
    >>> bool(np.allclose(product, (up - down) / 2e-5, atol=1e-8))
    True
    """
    try:
        batch = lattice_batch(
            logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology
        )
    except InvalidInput as refused:
        # lengths, one argument too early; beside logits of two dimensions v may have their shape
        if refused.rule != "logits_rank" and (dimensions := _dimensions(v)) in (0, 1, 2):
            raise InvalidInput(
                f"v has {counted(dimensions, 'dimension')}; it must have the shape of the logits (the lengths come "
                "after it)",
                rule="v_shape",
            ) from None
        raise
    along = _direction(v, batch.logits)
    host = on_host(batch)
    product, product_tnc = host.empty_grad()
    native_lattice.hvp(host, along, product_tnc)
    return in_kind(batch.logits, product)


def _direction(v: Any, logits: ArrayView) -> ArrayView:
    """`v` as the logits are seen; raises InvalidInput for what has not their shape, or no dtype that they can have."""
    if logits.device == "cpu" and on_device(v):
        raise InvalidInput(
            "v is in GPU memory while the logits are on the host; bring both to one place", rule="device"
        )
    if is_masked(v):
        raise InvalidInput("v is a masked array; pass v.filled(0)", rule="v_masked")
    try:
        seen = np.asarray(as_host(v))
    except ValueError as error:  # InvalidInput is one
        raise InvalidInput(f"v cannot be read as an array: {error}", rule="v_shape") from error
    shape = logits.given_shape
    if seen.shape != shape:
        raise InvalidInput(
            f"v has shape {seen.shape}; it must be that of the logits, {shape} (the lengths come after it)",
            rule="v_shape",
            value=seen.shape,
        )
    try:
        return view_logits(seen, logits.layout)
    except InvalidInput as error:
        raise InvalidInput(
            str(error)
            .replace("logits are", "v is")
            .replace("logits have", "v has")
            .replace("logits", "v")
            .replace("they must", "it must")
            .replace("convert them", "convert it"),
            rule=error.rule,
            value=error.value,
        ) from None


def _dimensions(v: Any) -> int | None:
    try:
        return int(v.ndim if hasattr(v, "ndim") else np.ndim(v))
    except (TypeError, ValueError):
        return None


@not_compiled
def ctc_hessian(
    logits: Any,
    targets: Any,
    input_lengths: Any = None,
    target_lengths: Any = None,
    *,
    blank: int = 0,
    layout: Layout = "TNC",
    topology: Topology = "ctc",
    max_bytes: int = 2**30,
) -> Any:
    """The whole Hessian of each sample's loss, (N, T, C, T, C), for small problems.

    Element [n, t, c, u, d] is the second derivative of sample n's loss with respect to logits (t, c) and (u, d); the
    order of its axes does not depend on `layout`. The batch is that of `ctc_loss`. Returns float32 (float64 for
    float64 logits), of the logits' kind and device: 0 past a sample's frames and for one without a path. Computed in
    float64 on the host, to which arrays in GPU memory are copied.

    Raises InvalidInput as `ctc_loss` does, and if the result and the scratch memory would take more than `max_bytes`;
    the latter is about 28 T S bytes, S = 2L + 1, for each sample that is computed at the same time. Raises OutOfMemory
    if there is no such memory. Use `ctc_hvp` in either case.

    Source: as for `ctc_hvp`, with the posterior of pairs (class at t, class at u) along the lattice.

    >>> import numpy as np, ctcbind
    >>> hessian = ctcbind.ctc_hessian(np.zeros((2, 1, 2)), [[1]])
    >>> hessian[0].reshape(4, 4).round(3).tolist()  # 3 paths: 1_ _1 11
    [[0.028, -0.028, 0.111, -0.111], [-0.028, 0.028, -0.111, 0.111], [0.111, -0.111, 0.028, -0.028], [-0.111, 0.111, -0.028, 0.028]]
    """  # noqa: E501
    batch = lattice_batch(logits, targets, input_lengths, target_lengths, blank=blank, layout=layout, topology=topology)
    T, N, C = batch.logits.shape
    dtype = np.dtype(batch.logits.loss_dtype)
    if not real(max_bytes) >= 0:
        raise InvalidInput(
            f"max_bytes is {brief(max_bytes)}; it must be a number of bytes", rule="max_bytes", value=max_bytes
        )
    needed = N * (T * C) ** 2 * dtype.itemsize
    if needed > max_bytes:
        raise InvalidInput(
            f"the Hessian of N={N}, T={T}, C={C} takes N (T C)^2 values of {dtype}: {needed} bytes, more than "
            f"max_bytes={max_bytes}; ctc_hvp gives its product with a vector in O(T S)",
            rule="hessian_size",
            value=needed,
        )
    scratch = native_lattice.hessian_scratch(batch)
    if needed + scratch > max_bytes:
        raise InvalidInput(
            f"the Hessian of N={N}, T={T}, C={C} takes {needed} bytes, and {scratch} more while it is computed: more "
            f"than max_bytes={max_bytes}; ctc_hvp gives its product with a vector in O(T S)",
            rule="hessian_size",
            value=needed + scratch,
        )
    return in_kind(batch.logits, native_lattice.hessian(on_host(batch), batch.logits.loss_dtype))
