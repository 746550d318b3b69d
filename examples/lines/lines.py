"""Lines of text as images: drawn with a font, varied, stacked in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from reader.words import in_buckets

from .fonts import SIZE, Face
from .network import COLUMNS, HEIGHT
from .text import Rng, make_text

Images = npt.NDArray[np.float32]
Ink = npt.NDArray[np.uint8]

#: Rows that the writing has at least; a line may be up to HEIGHT - 2 high.
LOWEST = 20


@dataclass(frozen=True)
class Line:
    """`image` (HEIGHT, W), 1 for ink, W a multiple of COLUMNS; `text`, what it says."""

    image: Images
    text: str


@dataclass(frozen=True)
class Batch:
    """`images` (N, HEIGHT, W), 0 past each end; `frames` (N,), columns over COLUMNS; `texts`, what they say."""

    images: Images
    frames: npt.NDArray[np.int64]
    texts: list[str]


def stack(lines: Sequence[Line]) -> Batch:
    widths = np.array([line.image.shape[1] for line in lines])
    images = np.zeros((len(lines), HEIGHT, int(widths.max())), dtype=np.float32)
    for row, line in zip(images, lines):
        row[:, : line.image.shape[1]] = line.image
    return Batch(images, widths // COLUMNS, [line.text for line in lines])


def draw(text: str, font: ImageFont.FreeTypeFont, rng: Rng) -> Ink:
    """The text in a font, 255 for ink, cut out: words a little up or down, gaps now narrow, now wide."""
    places, end = [], SIZE
    for word in text.split(" "):
        places.append((end, SIZE + int(rng.integers(-1, 2)), word))
        end += int(font.getlength(word) + SIZE * rng.uniform(0.2, 0.6))
    picture = Image.new("L", (end + SIZE, 3 * SIZE))
    pen = ImageDraw.Draw(picture)
    for x, y, word in places:
        pen.text((x, y), word, fill=255, font=font)
    return np.asarray(picture.crop(picture.getbbox()))


def placed(
    ink: Ink, rows: int, top: int, stretch: float = 1.0, slant: float = 0.0, margins: tuple[int, int] = (4, 4)
) -> Images:
    """Ink of any size as an image of HEIGHT rows, of which it fills `rows` from `top` on.

    `stretch` is how much wider it becomes than it was, `slant` how many columns it leans to the right for each row.
    """
    if ink.shape[0] > 1.5 * rows:  # of so many pixels, interpolation between two would see only some
        width = max(1, round(ink.shape[1] * rows / ink.shape[0]))
        ink = np.asarray(Image.fromarray(ink).resize((width, rows), Image.Resampling.BOX))
    H, W = ink.shape
    down = H / rows  # pixels of the ink for one of the result
    across = down / stretch
    lean = abs(slant) * rows
    width = max(1, round(W / across + lean))
    shift = -across * lean if slant > 0 else 0.0
    # pixel (x, y) of the result is (a x + b y + c, d x + e y + f) of the ink
    terms = (across, across * slant, shift, 0.0, down, 0.0)
    small = Image.fromarray(ink).transform((width, rows), Image.Transform.AFFINE, terms, Image.Resampling.BILINEAR)
    before, after = margins
    whole = -(-(width + before + after) // COLUMNS) * COLUMNS
    image = np.zeros((HEIGHT, whole), dtype=np.float32)
    image[top : top + rows, before : before + width] = np.asarray(small, dtype=np.float32) / 255
    return image


def varied(ink: Ink, rng: Rng) -> Images:
    """The ink with a slant, a width, a height, a place and margins of its own, faint or dark, on noisy paper."""
    rows = int(rng.integers(LOWEST, HEIGHT - 1))
    top = int(rng.integers(0, HEIGHT - rows + 1))
    before, after = (int(n) for n in rng.integers(2, 16, size=2))
    image = placed(ink, rows, top, rng.uniform(0.85, 1.25), rng.uniform(-0.1, 0.4), (before, after))
    image *= np.float32(rng.uniform(0.6, 1.0))
    image += rng.normal(0, rng.uniform(0.02, 0.12), image.shape).astype(np.float32)
    return np.clip(image, 0, 1, out=image)


def centred(ink: Ink) -> Images:
    """The ink as it is, at the height that lines have in the middle."""
    rows = (LOWEST + HEIGHT) // 2
    return placed(ink, rows, (HEIGHT - rows) // 2)


class Source(Protocol):
    """Where lines come from. `name` says it, for a saved run to compare."""

    name: str

    def line(self, rng: Rng, *, early: bool) -> tuple[Ink, str]:
        """A line, drawn at random; `early` in the training, perhaps an easier one."""
        ...


@dataclass(frozen=True)
class Drawn:
    """Lines of up to `most` words, of single words early in the training, in any of the fonts."""

    words: list[str]
    faces: list[Face]
    most: int
    name: str = ""

    def line(self, rng: Rng, *, early: bool) -> tuple[Ink, str]:
        text = make_text(self.words, rng, 1 if early else self.most)
        return draw(text, self.faces[rng.integers(len(self.faces))].font, rng), text


def make_lines(source: Source, rng: Rng, count: int, *, early: bool = False) -> list[Line]:
    made = []
    for _ in range(count):
        ink, text = source.line(rng, early=early)
        made.append(Line(varied(ink, rng), text))
    return made


class Stream:
    """Batches to train on, without end; batch k depends on the seed and k alone, so that a run can go on exactly.

    Lines are made for some batches at once, and those of like width share a batch, so that little of it is padding.
    The first `early` batches are of easier lines.
    """

    BATCHES = 8

    def __init__(self, source: Source, seed: int, size: int, early: int = 0) -> None:
        self.source, self.seed, self.size, self.early = source, seed, size, early
        self._made: tuple[int, list[Batch]] = (-1, [])

    def __getitem__(self, step: int) -> Batch:
        pool, place = divmod(step, self.BATCHES)
        if self._made[0] != pool:
            rng = np.random.default_rng([self.seed, pool])
            early = pool * self.BATCHES < self.early
            lines = make_lines(self.source, rng, self.size * self.BATCHES, early=early)
            cut = in_buckets(lines, self.size)
            self._made = (pool, [stack([lines[i] for i in cut[at]]) for at in rng.permutation(len(cut))])
        return self._made[1][place]
