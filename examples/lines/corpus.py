"""What is trained on and what is held out: lines drawn with free fonts, or those of a folder in IAM's format."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import fonts, iam, text
from .lines import Drawn, Line, Source, make_lines

HELD_OUT = 500  #: lines of each kind that the final scores are taken of
HELD_OUT_SEED = 20  #: the lines that are held out are the same for every run


@dataclass(frozen=True)
class Corpus:
    """`source` of the lines to train on, `held_out`: a description and its lines, of each kind; `alphabet`."""

    source: Source
    held_out: dict[str, list[Line]]
    alphabet: str


def from_fonts(folder: Path | None, most: int) -> Corpus:
    """Words in all free fonts of this machine, or in those of a folder; held out: other words, and other fonts."""
    faces = fonts.find(folder)
    train, other = fonts.split(faces)
    words, other_words = text.split()
    names = "\n".join(face.name for face in train)
    source = Drawn(words, train, most, f"{len(train)} fonts ({zlib.crc32(names.encode()):08x})")
    held_out = {}
    for kind, drawn in (
        ("of words never trained on", Drawn(other_words, train, most)),
        ("of such words in fonts never trained on", Drawn(other_words, other, most)),
    ):
        rng = np.random.default_rng(HELD_OUT_SEED)
        held_out[kind] = make_lines(drawn, rng, HELD_OUT)
    return Corpus(source, held_out, text.ALPHABET)


def from_iam(folder: Path, progress: Callable[..., Any]) -> Corpus:
    """The lines of a folder in IAM's format; every tenth form is held out."""
    train, held_out = iam.read(folder, progress)
    alphabet = "".join(sorted({character for _, said in train.lines for character in said}))
    return Corpus(train, {"of forms never trained on": held_out}, alphabet)
