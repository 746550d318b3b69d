"""Calls of the native engine inside compiled programs: in C on the CPU, called back elsewhere, divided over devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..errors import InvalidInput
from .axes import explicit_sharding, parts_of, varies, varying_alike

__all__ = ["BATCH", "InC", "along_batch", "on_its_platform", "result_shapes"]

#: The dimensions of a batch's arrays, after those that vmap has put in front: of logits, their paddings, labels and
#: theirs.
BATCH = ("b t k", "b t", "b n", "b n")


class InC(NamedTuple):
    """A function of csrc/xla.h: the name under which XLA knows it, and the dimensions of what it is given and gives."""

    target: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]


#: What else C is told, as XLA's attributes: integers as int32, floats as float64.
Options = tuple[tuple[str, "int | float"], ...]


def on_its_platform(what: InC, options: Options, called_back: Callable[..., Any], *arrays: Any) -> tuple[Any, ...]:
    """Without Python on the CPU, `called_back(*arrays)` elsewhere."""
    _register()
    if not hasattr(jax.sharding, "reshard"):
        _refuse_partly_manual()
    found = jax.lax.platform_dependent(*arrays, cpu=partial(_in_c, what, options), default=called_back)
    return tuple(found)


def _refuse_partly_manual() -> None:
    """JAX 0.6 ends the process there."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.manual_axes and set(mesh.manual_axes) != set(mesh.axis_names):
        raise NotImplementedError(
            "within jax.shard_map over some axes of a mesh the losses of ctcbind.jax need a newer JAX than "
            f"{jax.__version__}: map over all of its axes, {', '.join(mesh.axis_names)}"
        )


def result_shapes(what: InC, arrays: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Of the logits' dtype, and sharded as they are along the batch."""
    logits, sizes = arrays[0], _sizes(what, arrays)
    front, sharding = logits.shape[:-3], explicit_sharding(logits)

    def shape(dims: str) -> jax.ShapeDtypeStruct:
        of_result = sharding and NamedSharding(sharding.mesh, _spec(sharding.spec[:-2], dims))
        return jax.ShapeDtypeStruct((*front, *(sizes[dim] for dim in dims.split())), logits.dtype, sharding=of_result)

    return tuple(map(shape, what.results))


def along_batch(array: Any, like: Any, dims: str) -> Any:
    """Divided along the batch alone, as `like` is, where the types say how arrays are divided."""
    own, sharding = explicit_sharding(array), explicit_sharding(like)
    if not own and not sharding:
        return array
    mesh, batch = (sharding.mesh, sharding.spec[:-2]) if sharding else (own.mesh, (None,))
    wanted = NamedSharding(mesh, _spec(batch, dims))
    return array if own == wanted else jax.sharding.reshard(array, wanted)


def _sizes(what: InC, arrays: Any) -> dict[str, int]:
    return {
        dim: size
        for dims, array in zip(what.arguments, arrays)
        for dim, size in zip(reversed(dims.split()), reversed(array.shape))
    }


def _spec(batch: Any, dims: str) -> PartitionSpec:
    """`batch` divides the axes of vmap and the samples; the rest is whole."""
    *front, of_samples = batch
    return PartitionSpec(*front, *(of_samples if dim == "b" else None for dim in dims.split()))


def _in_c(what: InC, options: Options, *arrays: Any) -> Any:
    logits, logit_paddings, labels, label_paddings, *others = arrays
    if labels.dtype != jnp.int32 and labels.dtype.itemsize >= 4:
        least = None if jnp.issubdtype(labels.dtype, jnp.unsignedinteger) else -(2**31)
        labels = jnp.clip(labels, least, 2**31 - 1)  # out of range it stays
    frames, ends = (each.astype(jnp.float32) for each in (logit_paddings, label_paddings))
    mapped = jax.sharding.get_abstract_mesh().manual_axes
    call = _call_of_c(what, options, True) if mapped else _divided_call_of_c(what, options)
    results = call(logits, frames, labels.astype(jnp.int32), ends, *others)
    return varying_alike(results, varies(logits))


def _call_of_c(what: InC, options: Options, divided: bool) -> Any:
    attributes = {name: np.int32(value) if isinstance(value, int) else np.float64(value) for name, value in options}

    def call(*arrays: Any) -> Any:
        in_c = jax.ffi.ffi_call(what.target, result_shapes(what, arrays), vmap_method="broadcast_all")
        return tuple(in_c(*arrays, **attributes, divided=np.int32(divided)))

    return call


@cache
def _divided_call_of_c(what: InC, options: Options) -> Any:
    """The call, of which the partitioner knows that samples have nothing to do with each other. What jax.shard_map has
    divided is not divided again."""

    def spread(mesh: Any, arrays: Any) -> tuple[Any, Any]:
        """The shardings of the arguments and of the results: like the logits along the batch, whole along the rest; and
        along a batch that does not come out even, which XLA would fill up with samples that are none."""
        sharding, sizes = arrays[0].sharding, arrays[0].shape
        batch = sharding.spec[:-2] if isinstance(sharding, NamedSharding) else ()
        batch = tuple(None if size % parts_of(mesh, axes) else axes for size, axes in zip(sizes, batch))
        batch += (None,) * (len(sizes) - 2 - len(batch))
        of_arrays, of_results = (
            tuple(NamedSharding(mesh, _spec(batch, dims)) for dims in each) for each in (what.arguments, what.results)
        )
        return of_arrays, of_results

    def partition(mesh: Any, arrays: Any, _results: Any) -> Any:
        of_arrays, of_results = spread(mesh, arrays)
        return mesh, _call_of_c(what, options, any(of_arrays[0].spec)), of_results, of_arrays

    divided = custom_partitioning(_call_of_c(what, options, False))
    of_arguments, of_results = (", ".join(f"... {dims}" for dims in each) for each in (what.arguments, what.results))
    divided.def_partition(
        partition,
        infer_sharding_from_operands=lambda mesh, arrays, _results: spread(mesh, arrays)[1],
        sharding_rule=f"{of_arguments} -> {of_results}",
    )
    return jax.jit(divided)


@cache
def _register() -> None:
    from ..engines.native_xla import lattice_function, loss_function, product_function

    functions = {
        "ctcbind_loss": loss_function,
        "ctcbind_hessian_product": product_function,
        "ctcbind_lattice": lattice_function,
    }
    for target, function in functions.items():
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(function()), platform="cpu")


with suppress(InvalidInput):  # of CTCBIND_ISA, which each call raises
    _register()  # for programs that were saved, and are loaded before any is traced
