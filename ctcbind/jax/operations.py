"""Operations of which JAX knows derivatives in both modes, and what to do under `vmap`: primitives of its own kind.

`jax.custom_jvp` is forgotten where a scan takes out of its loop what is the same in each turn, and second derivatives
then meet what is inside (JAX 0.10.2). `jax.custom_derivatives.linear_call` cannot be mapped, as `jacrev` and `hessian`
do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jax.numpy as jnp
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from .axes import varies, varying_alike

__all__ = ["linear", "of_losses", "operation", "refused"]


def operation(
    name: str,
    function: Any,
    derivative: Callable[..., Any],
    transpose: Callable[..., Any] | None = None,
    types: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """`function(*arrays, **options)`, which gives a tuple, whatever axes vmap puts in front of all arrays.

    `derivative(arrays, tangents, **options)` gives the results and their tangents; None is a tangent that is 0. Without
    `types`, of the results, the function is one of `jax.jit`, which is traced to know them.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True

    def call(*arrays: Any, **options: Any) -> Any:
        # out here JAX sums gradients of what all devices share over the devices, once
        arrays = varying_alike(arrays, varies(*arrays))
        # among the parameters JAX finds what is in it, without which it does not tell a partitioner of the devices
        program = None if types else function.trace(*arrays, **options).jaxpr
        return primitive.bind(*arrays, program=program, **options)

    def computed(*arrays: Any, program: Any, **options: Any) -> Any:
        return jaxpr_as_fun(program)(*arrays) if program else function(*arrays, **options)

    def types_of(*arrays: Any, program: Any, **options: Any) -> Any:
        return program.out_avals if types is None else types(*arrays, **options)

    def derived(arrays: Any, tangents: Any, program: Any, **options: Any) -> Any:
        given = [None if type(each) is ad.Zero else each for each in tangents]
        results, moved = derivative(arrays, given, **options)
        return results, [jnp.zeros_like(x) if tangent is None else tangent for x, tangent in zip(results, moved)]

    def mapped(arrays: Any, axes: Any, program: Any, **options: Any) -> Any:
        (size,) = {array.shape[axis] for array, axis in zip(arrays, axes) if axis is not None}
        to_the_front = (
            jnp.broadcast_to(array, (size, *array.shape)) if axis is None else jnp.moveaxis(array, axis, 0)
            for array, axis in zip(arrays, axes)
        )
        results = call(*to_the_front, **options)
        return results, [0] * len(results)

    def transposed(back: Any, *arrays: Any, program: Any, **options: Any) -> Any:
        assert transpose is not None
        others = arrays[:-1]
        (of_result,) = back
        if type(of_result) is not ad.Zero:
            of_result = transpose(*others, of_result, **options)
        return [*(None for _ in others), of_result]

    primitive.def_impl(lambda *arrays, program, **options: function(*arrays, **options))
    primitive.def_abstract_eval(types_of)
    mlir.register_lowering(primitive, mlir.lower_fun(computed, multiple_results=True))
    rules: list[tuple[Any, Any]] = [(ad.primitive_jvps, derived), (batching.primitive_batchers, mapped)]
    if transpose is not None:
        rules.append((ad.primitive_transposes, transposed))
    for table, rule in rules:
        table.__setitem__(primitive, rule)  # called by its name: the pages' stand-in for JAX takes no items
    return call


def linear(
    name: str, function: Callable[..., Any], transposed: Callable[..., Any], refusal: str = ""
) -> Callable[..., Any]:
    """`function(*others, direction, **options)`, whose one result is linear in the direction and has its type. A
    derivative in the others is refused in these words."""

    def derivative(arrays: Any, tangents: Any, **options: Any) -> Any:
        *others, along = tangents
        parts = [] if along is None else [call(*arrays[:-1], along, **options)]
        if moved := [each.sum() for each in others if each is not None]:
            parts.append(refused(sum(moved), arrays[-1], refusal))
        return [call(*arrays, **options)], [sum(parts[1:], parts[0])]

    def call(*arrays: Any, **options: Any) -> Any:
        (result,) = several(*arrays, **options)
        return result

    def types(*arrays: Any, **_: Any) -> Any:
        return arrays[-1:]

    several = operation(name, function, derivative, transposed, None if hasattr(function, "trace") else types)
    return call


def of_losses(losses: Any, slopes: Any) -> Any:
    """Tangents of the losses, from sums of gradients by tangents. What comes back for a sample without a path, whose
    gradient is 0, is made 0 where it is inf or NaN, as from most functions of inf."""
    return _of_losses(jnp.isposinf(losses), slopes)


_of_losses = linear(
    "ctcbind_of_losses",
    lambda infinite, slopes: (slopes,),
    lambda infinite, back: jnp.where(infinite & ~jnp.isfinite(back), 0, back),
)


def refused(tangents: Any, like: Any, words: str) -> Any:
    """What depends on these tangents and is an error where anything asks for its value: not before, for derivatives may
    be cut off after they were taken (`jax.lax.stop_gradient`)."""
    return _refused(jnp.zeros_like(like) + tangents, words=words)


def _refuse(*_: Any, words: str) -> NoReturn:
    raise NotImplementedError(words)


_refused = linear("ctcbind_refused", _refuse, _refuse)
