"""float64 in JAX, for a part of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax


@contextmanager
def enable_x64(on: bool) -> Iterator[None]:
    """In all threads, until all is computed: with `jax.enable_x64`, which is of one thread, a callback that another one
    makes gets float64 as float32 (JAX 0.10.2)."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", on)
    try:
        yield
        for array in jax.live_arrays():
            with suppress(Exception):  # which the test has met
                array.block_until_ready()
    finally:
        jax.config.update("jax_enable_x64", before)
