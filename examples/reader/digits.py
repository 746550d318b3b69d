"""Single handwritten digits: those inside scikit-learn, or the four files of MNIST."""

from __future__ import annotations

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import ReaderError

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Digits:
    """`images` (n, H, H), 0 for paper and 1 for ink; `labels` (n,), 0 to 9."""

    images: Images
    labels: Labels

    @property
    def height(self) -> int:
        return self.images.shape[1]


def from_sklearn() -> tuple[Digits, Digits]:
    """The 1,797 digits of `sklearn.datasets.load_digits`, of which a fifth is held out: (to train on, held out).

    They are 8 by 8 pixels: doubled here, and given a margin of two.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ReaderError(f"the default data need scikit-learn ({error}): pip install '.[examples]'") from error
    bunch = load_digits()
    images = np.pad(doubled(bunch.images.astype(np.float32) / 16), ((0, 0), (2, 2), (2, 2)))
    order = np.random.default_rng(1797).permutation(len(images))
    held_out, train = order[: len(order) // 5], order[len(order) // 5 :]
    labels = bunch.target.astype(np.int64)
    return Digits(images[train], labels[train]), Digits(images[held_out], labels[held_out])


def doubled(images: Images) -> Images:
    """(n, H, W) to (n, 2H, 2W), by linear interpolation."""

    def along(x: Images) -> Images:  # the last axis
        before = np.concatenate([x[..., :1], x[..., :-1]], axis=-1)
        after = np.concatenate([x[..., 1:], x[..., -1:]], axis=-1)
        return np.stack([0.75 * x + 0.25 * before, 0.75 * x + 0.25 * after], axis=-1).reshape(*x.shape[:-1], -1)

    return np.ascontiguousarray(along(along(images).swapaxes(1, 2)).swapaxes(1, 2))


def from_mnist(folder: str | Path) -> tuple[Digits, Digits]:
    """(to train on, held out) from the four idx files of MNIST in a folder, gzipped or not."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ReaderError(f"--mnist {folder}: there is no such folder")
    train, held_out = (_pair(folder, part) for part in ("train", "t10k"))
    if train.height != held_out.height:
        raise ReaderError(
            f"the images to train on in {folder} have {train.height} rows and those held out {held_out.height}"
        )
    return train, held_out


def _pair(folder: Path, part: str) -> Digits:
    images = read_idx(_find(folder, f"{part}-images-idx3-ubyte"), dimensions=3)
    labels = read_idx(_find(folder, f"{part}-labels-idx1-ubyte"), dimensions=1)
    if len(images) != len(labels):
        raise ReaderError(f"{folder} has {len(images)} {part} images, but {len(labels)} {part} labels")
    if len(images) == 0:
        raise ReaderError(f"{folder} has no {part} images")
    if images.shape[1] != images.shape[2] or not 8 <= images.shape[1] <= 128:
        raise ReaderError(
            f"the {part} images in {folder} are {images.shape[1]} by {images.shape[2]}; they must be square, "
            "with 8 to 128 pixels a side"
        )
    if labels.max() > 9:
        raise ReaderError(f"the {part} labels in {folder} go up to {labels.max()}; digits are 0 to 9")
    return Digits(images.astype(np.float32) / 255, labels.astype(np.int64))


def _find(folder: Path, name: str) -> Path:
    for each in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if each.is_file():
            return each
    raise ReaderError(
        f"there is neither {name} nor {name}.gz in {folder}; MNIST is train-images-idx3-ubyte, "
        "train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
    )


def read_idx(path: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array of bytes in an idx file: two zeros, a type, the number of dimensions, each size, then the bytes."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise ReaderError(f"{path} cannot be read: {error}") from error
    head = 4 + 4 * dimensions
    if len(data) < head:
        raise ReaderError(f"{path} has {len(data)} bytes, fewer than the {head} of an idx header")
    if data[:4] != bytes([0, 0, 8, dimensions]):
        raise ReaderError(
            f"{path} begins with {data[:4].hex(' ')}; an idx file of bytes in {dimensions} "
            f"dimension{'s' if dimensions > 1 else ''} begins with 00 00 08 0{dimensions}"
        )
    sizes = struct.unpack(f">{dimensions}I", data[4:head])
    count = int(np.prod(sizes, dtype=object))
    if len(data) - head != count:
        raise ReaderError(
            f"{path} says that it holds {' x '.join(map(str, sizes))} bytes, but {len(data) - head} follow its header"
        )
    return np.frombuffer(data, dtype=np.uint8, offset=head).reshape(sizes)
