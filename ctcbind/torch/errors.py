"""The error for what is refused: PyTorch's kind and ctcbind's at once, in words that fit PyTorch's arguments."""

from __future__ import annotations

import re

from ..errors import InvalidInput

__all__ = ["InvalidTorchInput", "as_torch"]


class InvalidTorchInput(InvalidInput, RuntimeError):
    """An InvalidInput that is a RuntimeError as well, for that is what PyTorch's own function raises."""


#: ctcbind's advice on arguments that PyTorch's function lacks, and the advice to give here instead.
_LAYOUT = {
    'by layout="TNC" the logits': "the logits, read as (T, N, C),",
    'pass layout="NTC" or transpose them': "pass logits.transpose(0, 1)",
    "by (2, 0, 1) if they are": "or logits.permute(2, 0, 1) if they are",
    "pass numpy.ravel(": "pass torch.ravel(",
    ".astype(int)": ".long()",
    "pass their logarithms, numpy.log(": "pass their logarithms, torch.log(",
    "a list of sequences, a padded (N, L) array, or one concatenated row with target_lengths": (
        "padded rows (N, L), or all labels in one row"
    ),
}
#: What ctcbind calls the scores, where it is no value that the caller gave.
_SCORES = re.compile(r"(?<!['\"])\blogits\b")


def as_torch(error: InvalidInput, scores: str = "log_probs") -> InvalidTorchInput:
    """The same refusal, to be raised from it. `scores` is the name of the argument that ctcbind calls logits."""
    text = str(error)
    for there, here in _LAYOUT.items():
        text = text.replace(there, here)
    text = _SCORES.sub(scores, text)
    return InvalidTorchInput(text, rule=error.rule, sample=error.sample, position=error.position, value=error.value)
