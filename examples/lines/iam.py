"""A folder in the format of the IAM handwriting database: lines.txt, and one image of each line.

    lines.txt, or ascii/lines.txt
    lines/a01/a01-000u/a01-000u-00.png, or the same without lines/

A line of lines.txt is `a01-000u-00 ok 154 19 408 746 1661 89 A|MOVE|to|stop`: the line's name (form and number),
whether its words were cut out well, the grey level of its ink, its number of parts, its box (x, y, width, height), and
its words.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from reader.errors import ReaderError
from reader.pictures import ink_from_file

from .lines import Ink, Line, centred
from .network import HEIGHT
from .text import Rng

NAME = re.compile(r"(\w+)-(\w+)-\w+")
FIELDS = 9
LONGEST = 60  #: a line may be so many times as wide as high


@dataclass(frozen=True)
class Scanned:
    """Lines of ink and what they say."""

    lines: list[tuple[Ink, str]]
    name: str

    def line(self, rng: Rng, *, early: bool) -> tuple[Ink, str]:
        return self.lines[rng.integers(len(self.lines))]


@dataclass(frozen=True)
class Entry:
    """One line of lines.txt."""

    name: str
    form: str
    text: str

    def image(self, folder: Path) -> Path:
        return folder / self.form.partition("-")[0] / self.form / f"{self.name}.png"


def read(folder: Path, progress: Callable[..., Any]) -> tuple[Scanned, list[Line]]:
    """(lines to train on, lines held out: those of every tenth form). All images are read now, not while training."""
    if not folder.is_dir():
        raise ReaderError(f"--iam {folder}: there is no such folder")
    listed = [path for path in (folder / "lines.txt", folder / "ascii" / "lines.txt") if path.is_file()]
    if not listed:
        raise ReaderError(f"--iam {folder} has neither lines.txt nor ascii/lines.txt, which say what is written")
    entries = parse(listed[0])
    forms = sorted({entry.form for entry in entries})
    if len(forms) < 2:
        raise ReaderError(
            f"{listed[0]} has lines of one form, {forms[0]}; one to train on and one to hold out are needed"
        )
    images = folder / "lines" if (folder / "lines").is_dir() else folder
    missing = [path for path in (entry.image(images) for entry in entries) if not path.is_file()]
    if missing:
        raise ReaderError(f"{len(missing)} of the {len(entries)} images are missing, the first of them {missing[0]}")
    held_forms = set(forms[::10])
    train: list[tuple[Ink, str]] = []
    held_out: list[Line] = []
    for entry in progress(entries, desc="reading images", unit="line", dynamic_ncols=True, leave=False):
        ink = ink_of(entry.image(images))
        if entry.form in held_forms:
            held_out.append(Line(centred(ink), entry.text))
        else:
            train.append((ink, entry.text))
    known = zlib.crc32("\n".join(f"{entry.name} {entry.text}" for entry in entries).encode())
    return Scanned(train, f"{len(train)} lines of IAM ({known:08x})"), held_out


def parse(path: Path) -> list[Entry]:
    """What lines.txt says; lines that begin with # are comments."""
    try:
        rows = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ReaderError(f"{path} cannot be read: {error}") from error
    entries = []
    for number, row in enumerate(rows, 1):
        if not row.strip() or row.startswith("#"):
            continue
        fields = row.split(" ", FIELDS - 1)
        if len(fields) < FIELDS:
            raise ReaderError(
                f"{path}, line {number} has {len(fields)} fields where {FIELDS} belong: "
                "name, ok or err, grey level, parts, x, y, width, height, words"
            )
        found = NAME.fullmatch(fields[0])
        if not found or fields[1] not in ("ok", "err"):
            raise ReaderError(f"{path}, line {number} begins {row[:30]!r} and not like 'a01-000u-00 ok'")
        said = " ".join(fields[8].replace("|", " ").split())
        if not said:
            raise ReaderError(f"{path}, line {number} has no words")
        entries.append(Entry(fields[0], f"{found[1]}-{found[2]}", said))
    if not entries:
        raise ReaderError(f"{path} lists no lines")
    return entries


def ink_of(path: Path) -> Ink:
    """What is written in an image, 255 for ink, cut out and no more than twice as high as the network's images."""
    ink = np.rint(255 * ink_from_file(path)).astype(np.uint8)
    H, W = ink.shape
    if W > LONGEST * H:
        raise ReaderError(f"the writing in {path} is {W} by {H} pixels, which is no line of text")
    if H > 2 * HEIGHT:
        size = (max(1, round(W * 2 * HEIGHT / H)), 2 * HEIGHT)
        ink = np.asarray(Image.fromarray(ink).resize(size, Image.Resampling.BOX))
    return ink
