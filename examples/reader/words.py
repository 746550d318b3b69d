"""Words of digits, side by side in one image: how they are made, and how batches are cut from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .digits import Digits, Images

Rng = np.random.Generator


@dataclass(frozen=True)
class Word:
    """`image` (H, W), 1 for ink; `digits`, what it says."""

    image: Images
    digits: list[int]


@dataclass(frozen=True)
class Batch:
    """`x` (N, T, H): columns of the images in order, 0 past each end; `widths` (N,); `targets`: digit d as d + 1."""

    x: Images
    widths: npt.NDArray[np.int64]
    targets: list[list[int]]


def stack(words: Sequence[Word]) -> Batch:
    widths = np.array([word.image.shape[1] for word in words])
    x = np.zeros((len(words), int(widths.max()), words[0].image.shape[0]), dtype=np.float32)
    for row, word in zip(x, words):
        row[: word.image.shape[1]] = word.image.T
    return Batch(x, widths, [[digit + 1 for digit in word.digits] for word in words])


def make_words(digits: Digits, rng: Rng, count: int, lengths: tuple[int, int], *, vary: bool) -> list[Word]:
    """`count` words of `lengths[0]` to `lengths[1]` digits each, drawn at random, repeats and all.

    In every word each digit has a width and a height of its own, stands a little too high or too low, and comes up to
    six pixels apart from the one before or laps over it. `vary` changes the handwriting besides (slant, turn, a
    stretch here and there): for words to train on, of which there can thus be more than there are digits.
    """
    sizes = rng.integers(lengths[0], lengths[1] + 1, size=count)
    chosen = rng.integers(len(digits.labels), size=int(sizes.sum()))
    glyphs = np.concatenate(
        [transformed(digits.images[chosen[at : at + 256]], rng, vary=vary) for at in range(0, len(chosen), 256)]
    )
    H = digits.height
    ink = glyphs.max(axis=1) > 0.1
    first = ink.argmax(axis=1)
    last = ink.shape[1] - ink[:, ::-1].argmax(axis=1)
    unit = H / 28
    gaps = np.rint(rng.uniform(-2.0, 6.0, size=len(chosen)) * unit).astype(int)
    margins = np.rint(rng.uniform(1.0, 6.0, size=(count, 2)) * unit).astype(int)
    words, at = [], 0
    for size, (before, after) in zip(sizes, margins):
        canvas = np.zeros((H, (size + 1) * glyphs.shape[2]), dtype=np.float32)
        end = int(before)
        for i in range(at, at + size):
            begin = max(0, end + (gaps[i] if i > at else 0))
            width = int(last[i] - first[i])
            place = canvas[:, begin : begin + width]
            np.maximum(place, glyphs[i, :, first[i] : last[i]], out=place)
            end = max(end, begin + width)
        words.append(Word(canvas[:, : end + after], digits.labels[chosen[at : at + size]].tolist()))
        at += size
    return words


def transformed(images: Images, rng: Rng, *, vary: bool) -> Images:
    """(n, H, H) digits, each in a width, height and place of its own: (n, H, 3H / 2). See `make_words` for `vary`."""
    n, H, _ = images.shape
    W = H + H // 2
    wide, high = rng.uniform(0.75, 1.25, n), rng.uniform(0.9, 1.1, n)
    down = rng.uniform(-1.0, 1.0, n) * H / 28
    slant = rng.uniform(-0.35, 0.35, n) if vary else np.zeros(n)
    turn = rng.uniform(-0.2, 0.2, n) if vary else np.zeros(n)
    # where each pixel of the result comes from, counted from the middle
    y, x = np.meshgrid(np.arange(H) - (H - 1) / 2, np.arange(W) - (W - 1) / 2, indexing="ij")
    y, x = y.astype(np.float32), x.astype(np.float32)
    cos, sin = np.cos(turn), np.sin(turn)
    as_column = lambda a: a.astype(np.float32)[:, None, None]  # noqa: E731
    up = y - as_column(down)
    from_y = as_column(cos / high) * up + as_column(sin / high) * x
    from_x = as_column(cos / wide) * x - as_column(sin / wide) * up + as_column(slant) * up
    if vary:
        amplitude = 0.045 * H
        from_y += smooth_field(rng, n, H, W) * amplitude
        from_x += smooth_field(rng, n, H, W) * amplitude
    return sampled(images, from_y + (H - 1) / 2, from_x + (H - 1) / 2)


def smooth_field(rng: Rng, n: int, H: int, W: int, knots: int = 5) -> Any:
    """(n, H, W): random numbers at a few knots, and straight lines between them."""
    values = rng.normal(size=(n, knots, knots)).astype(np.float32)

    def lines(size: int) -> Any:
        place = np.linspace(0, knots - 1, size)
        return np.maximum(0, 1 - np.abs(place[:, None] - np.arange(knots)[None, :])).astype(np.float32)

    return lines(H) @ values @ lines(W).T


def sampled(images: Images, y: Any, x: Any) -> Images:
    """images[n] at the places (y, x), by linear interpolation; paper outside."""
    n, H, W = images.shape
    padded = np.zeros((n, H + 2, W + 2), dtype=np.float32)
    padded[:, 1:-1, 1:-1] = images
    y, x = np.clip(y + 1, 0, H + 0.999), np.clip(x + 1, 0, W + 0.999)
    row, column = y.astype(np.int32), x.astype(np.int32)
    fy, fx = y - row, x - column
    flat = padded.reshape(-1)
    at = (np.arange(n, dtype=np.int32) * ((H + 2) * (W + 2)))[:, None, None] + row * (W + 2) + column
    top = flat[at] * (1 - fx) + flat[at + 1] * fx
    bottom = flat[at + W + 2] * (1 - fx) + flat[at + W + 3] * fx
    return (top * (1 - fy) + bottom * fy).astype(np.float32)


class Stream:
    """Batches to train on, without end; batch k depends on the seed and k alone, so that any step can be gone back to.

    Words are made for some batches at once and sorted by width before they are cut ("bucketing"), so that little of a
    batch is padding.
    """

    BATCHES = 12

    def __init__(self, digits: Digits, seed: int, size: int, lengths: tuple[int, int]) -> None:
        self.digits, self.seed, self.size, self.lengths = digits, seed, size, lengths
        self._made: tuple[int, list[Batch]] = (-1, [])

    def __getitem__(self, step: int) -> Batch:
        pool, place = divmod(step, self.BATCHES)
        if self._made[0] != pool:
            rng = np.random.default_rng([self.seed, pool])
            words = make_words(self.digits, rng, self.size * self.BATCHES, self.lengths, vary=True)
            cut = in_buckets(words, self.size)
            self._made = (pool, [stack([words[i] for i in cut[place]]) for place in rng.permutation(len(cut))])
        return self._made[1][place]


def in_buckets(words: Sequence[Word], size: int) -> list[list[int]]:
    """The words' numbers, `size` together, those of like width beside each other."""
    order = sorted(range(len(words)), key=lambda i: words[i].image.shape[1])
    return [order[at : at + size] for at in range(0, len(order), size)]
