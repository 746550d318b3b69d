"""The error for what is refused: PyTorch's kind and ctcbind's at once, in words that fit PyTorch's arguments."""

from __future__ import annotations

from ..errors import InvalidInput

__all__ = ["InvalidTorchInput", "as_torch"]


class InvalidTorchInput(InvalidInput, RuntimeError):
    """An InvalidInput that is a RuntimeError as well, for that is what PyTorch's own function raises."""


#: ctcbind's advice on arguments that PyTorch's function lacks, and the advice to give here instead.
_LAYOUT = {
    'by layout="TNC" the logits': "the log_probs, read as (T, N, C),",
    'pass layout="NTC" or transpose them': "pass log_probs.transpose(0, 1)",
    "by (2, 0, 1) if they are": "or log_probs.permute(2, 0, 1) if they are",
    "the last axis of the logits": "the last axis of the log_probs",
    "pass numpy.ravel(": "pass torch.ravel(",
    ".astype(int)": ".long()",
    "pass their logarithms, numpy.log(": "pass their logarithms, torch.log(",
    "a list of sequences, a padded (N, L) array, or one concatenated row with target_lengths": (
        "padded rows (N, L), or all labels in one row"
    ),
}


def as_torch(error: InvalidInput) -> InvalidTorchInput:
    """The same refusal, to be raised from it."""
    text = str(error)
    for there, here in _LAYOUT.items():
        text = text.replace(there, here)
    return InvalidTorchInput(text, rule=error.rule, sample=error.sample, position=error.position, value=error.value)
