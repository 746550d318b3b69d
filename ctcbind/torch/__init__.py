"""The CTC loss for PyTorch: `CTCLoss` and `ctc_loss` with the arguments, defaults and results of `torch.nn`;
`lattice_loss`, with scores added to the lattice; and `empty_cache`.

For PyTorch 2.4 or later; tested with 2.13. CPU tensors of float32 and float64 are read where they are, those of half
precision are made float32 first. CUDA tensors go through DLPack to CuPy, on PyTorch's current stream.
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "ctcbind.torch is for PyTorch, which is not installed: pip install 'ctcbind[torch]'", name="torch"
    ) from None

from .call import empty_cache
from .errors import InvalidTorchInput
from .lattice import lattice_loss
from .loss import CTCLoss, ctc_loss

__all__ = ["CTCLoss", "InvalidTorchInput", "ctc_loss", "empty_cache", "lattice_loss"]

# the module name that saved modules, torch.load's list of safe classes and tracebacks show
for _each in (CTCLoss, InvalidTorchInput, ctc_loss, empty_cache, lattice_loss):
    _each.__module__ = __name__
