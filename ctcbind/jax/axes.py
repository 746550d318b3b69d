"""How arrays are divided over devices, and calls back to the host that keep it so."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax

__all__ = ["callback", "explicit_sharding", "parts_of", "varies", "varying_alike"]


def explicit_sharding(array: Any) -> Any:
    """How an array is divided, where its type says so (AxisType.Explicit); JAX 0.6 leaves that to its compiler."""
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
    """What `function(options, *arrays)` gives on the host, undivided. Compiled also outside `jit`, for JAX gives what a
    callback returns to one device of those that the arrays are on, where no other operation takes it from."""
    arrays = varying_alike(arrays, axes := varies(*jax.tree.leaves(arrays)))
    results = jax.pure_callback(partial(function, options), shapes, *arrays, vmap_method=vmap_method)
    return varying_alike(jax.lax.optimization_barrier(results), axes)


def varies(*arrays: Any) -> frozenset[Any]:
    """The axes of jax.shard_map's mesh along which any of the arrays differs."""
    axes: frozenset[Any] = frozenset()
    for each in arrays:
        kind = jax.typeof(each) if hasattr(jax, "typeof") else None
        axes |= getattr(getattr(kind, "manual_axis_type", None), "varying", getattr(kind, "vma", axes))
    return axes


def varying_alike(arrays: Any, axes: frozenset[Any]) -> Any:
    """The same arrays, taken for different along all of the axes; JAX cannot know it of what it does not compute."""

    def vary(each: Any) -> Any:
        if not (missing := tuple(axes - varies(each))):
            return each
        return jax.lax.pcast(each, missing, to="varying") if hasattr(jax.lax, "pcast") else jax.lax.pvary(each, missing)

    return jax.tree.map(vary, arrays)
