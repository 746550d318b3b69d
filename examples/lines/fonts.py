"""The free fonts of this machine, found by matplotlib, which brings some of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import ImageFont
from reader.errors import ReaderError

from .text import ALPHABET

#: Free font families: what is found is used if its name begins so. The first two come with matplotlib.
FREE = (
    *("DejaVu", "STIXGeneral", "Liberation", "FreeSans", "FreeSerif", "FreeMono", "Noto Sans", "Noto Serif", "Roboto"),
    *("Ubuntu", "Open Sans", "Lato", "Cantarell", "Carlito", "Caladea", "Gelasio", "EB Garamond", "Fira Sans", "Inter"),
    *("Nimbus", "C059", "P052", "URW", "TeX Gyre", "Latin Modern", "Linux Libertine", "Linux Biolinum", "Gentium"),
)
#: Beginnings of the same that are no text.
NOT_TEXT = ("DejaVu Math", "Noto Sans Symbols", "Noto Sans Math")
SIZE = 32  #: pixels an em is drawn with


@dataclass(frozen=True)
class Face:
    """One font file; its `name` says family and style."""

    name: str
    font: ImageFont.FreeTypeFont


def find(folder: Path | None = None) -> list[Face]:
    """The fonts to draw lines with, one of each name, by name: those in a folder, or this machine's free ones."""
    if folder is not None and not folder.is_dir():
        raise ReaderError(f"--fonts {folder}: there is no such folder")
    where = f"in {folder}" if folder else "on this machine"
    faces: dict[str, Face] = {}
    for path in font_files(folder):
        face = open_face(path)
        if face and face.name not in faces and (folder or is_free(face.name)) and can_write(face.font):
            faces[face.name] = face
    if not faces:
        raise ReaderError(f"there is no font {where} that has every letter of the alphabet")
    return [faces[name] for name in sorted(faces)]


def font_files(folder: Path | None) -> Iterable[Path]:
    if folder is not None:
        return sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".ttf", ".otf"))
    import matplotlib
    from matplotlib import font_manager

    own = (Path(matplotlib.get_data_path()) / "fonts" / "ttf").glob("*.ttf")
    return [*sorted(own), *sorted(map(Path, font_manager.findSystemFonts()))]


def open_face(path: Path) -> Face | None:
    try:
        font = ImageFont.truetype(str(path), SIZE)
    except OSError:  # a file of another kind, or broken: the others will do
        return None
    return Face(" ".join(part or "" for part in font.getname()), font)


def is_free(name: str) -> bool:
    return name.startswith(FREE) and not name.startswith(NOT_TEXT)


def can_write(font: ImageFont.FreeTypeFont) -> bool:
    """Whether each character has a picture of its own: those that a font lacks all look alike."""
    lacking = bytes(font.getmask("\U0010fffd"))
    pictures = {bytes(font.getmask(character)) for character in ALPHABET if character != " "}
    return lacking not in pictures and len(pictures) > len(ALPHABET) - 6


def split(faces: list[Face]) -> tuple[list[Face], list[Face]]:
    """(fonts to train with, fonts held out): every fifth, in an order that depends on their names alone."""
    if len(faces) < 2:
        return faces, faces
    held_out = faces[2::5] or faces[1:2]
    return [face for face in faces if face not in held_out], held_out
