"""The CTC loss for JAX: `ctc_loss` with the signature of `optax.ctc_loss`, and `lattice_loss`, with scores added to the
lattice.

The arithmetic is ctcbind's on the host. On the CPU a compiled program calls the native engine itself (JAX's FFI); on
other devices, and for `lattice_loss`, it calls back into Python. `jit`, `vmap`, and derivatives in both modes work. For
JAX 0.6 or later; tested with 0.6.2 and 0.10.2 on the CPU.
"""

from __future__ import annotations

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ModuleNotFoundError(
        "ctcbind.jax is for JAX, which is not installed: pip install 'ctcbind[jax]'", name="jax"
    ) from None

from .lattice import lattice_loss
from .loss import ctc_loss

__all__ = ["ctc_loss", "lattice_loss"]

for _each in (ctc_loss, lattice_loss):
    _each.__module__ = __name__  # under which tracebacks and documentation have them
