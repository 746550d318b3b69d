"""The CTC loss for PyTorch: `CTCLoss` and `ctc_loss` with the arguments, defaults and results of `torch.nn`; and
`lattice_loss`, with scores added to the lattice.

For PyTorch 2.4 or later; tested with 2.13. Nothing is copied on the way in: a CPU tensor is read where it is. CUDA
tensors go through DLPack to CuPy, on PyTorch's current stream; that way has not yet been run on a GPU.
"""

from __future__ import annotations

from .errors import InvalidTorchInput
from .lattice import lattice_loss
from .loss import CTCLoss, ctc_loss

__all__ = ["CTCLoss", "InvalidTorchInput", "ctc_loss", "lattice_loss"]

# the name under which saved modules, torch.load's list of safe classes and tracebacks have them
CTCLoss.__module__ = InvalidTorchInput.__module__ = ctc_loss.__module__ = lattice_loss.__module__ = __name__
