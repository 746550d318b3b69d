"""How arrays are divided over devices, and calls back to the host that keep it so."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax

__all__ = ["callback", "explicit_sharding", "parts_of", "varies", "varying_alike"]


def explicit_sharding(array: Any) -> Any:
    """How an array is sharded, where its type says so (AxisType.Explicit); None in JAX 0.6, which leaves it to the
    compiler."""
    if not hasattr(jax.sharding, "reshard"):
        return None
    sharding = jax.typeof(array).sharding
    return sharding if any(sharding.spec) else None


def parts_of(mesh: Any, axes: Any) -> int:
    """Into how many a dimension is divided by one axis of a mesh, several, or None."""
    every = axes if isinstance(axes, tuple) else (axes,)
    return math.prod(mesh.shape[each] for each in every if each is not None)


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def callback(function: Any, options: Any, shapes: Any, vmap_method: str, *arrays: Any) -> Any:
    """What `function(options, *arrays)` gives on the host, unsharded. Compiled outside `jit` too: otherwise JAX puts
    the results of a callback on only one of the arrays' devices, where no other operation can use them with the
    arrays."""
    arrays = varying_alike(arrays, axes := varies(*jax.tree.leaves(arrays)))
    results = jax.pure_callback(partial(function, options), shapes, *arrays, vmap_method=vmap_method)
    results = varying_alike(jax.lax.optimization_barrier(results), axes)
    return jax.tree.map(_divided_as, results, shapes)


def _divided_as(array: Any, shape: Any) -> Any:
    """As its type is to say: within jax.shard_map JAX leaves it out of the types of a callback's results."""
    sharding = getattr(shape, "sharding", None)
    if sharding is None or jax.typeof(array).sharding.spec == sharding.spec:
        return array
    return jax.sharding.reshard(array, sharding)


def varies(*arrays: Any) -> frozenset[Any]:
    """The axes of jax.shard_map's mesh along which any of the arrays varies."""
    axes: frozenset[Any] = frozenset()
    for each in arrays:
        kind = jax.typeof(each) if hasattr(jax, "typeof") else None
        axes |= getattr(getattr(kind, "manual_axis_type", None), "varying", getattr(kind, "vma", axes))
    return axes


def varying_alike(arrays: Any, axes: frozenset[Any]) -> Any:
    """The same arrays, marked as varying along all of these axes: JAX cannot tell for what it does not compute
    itself."""

    def vary(each: Any) -> Any:
        if not (missing := tuple(axes - varies(each))):
            return each
        return jax.lax.pcast(each, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(each, missing)

    return jax.tree.map(vary, arrays)
