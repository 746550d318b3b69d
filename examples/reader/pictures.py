"""What training looks like, what a word looks like to the network, and plain images read from files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import ctcbind

from .errors import ReaderError
from .mistakes import log_sum_exp
from .training import Record
from .words import Word

Images = npt.NDArray[np.float32]

BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"


def new_figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ReaderError(f"pictures need matplotlib ({error}): pip install '.[examples]'") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    from PIL import Image  # matplotlib brings it

    figure.set_dpi(90)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    try:
        picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)  # a third of the bytes
    except OSError as error:
        raise ReaderError(f"{path} cannot be written: {error}") from error


def smooth(values: Any) -> npt.NDArray[np.float64]:
    """The mean of each value and those before it, the near ones most; what is not finite is passed over."""
    out, mean = [], float("nan")
    for value in np.asarray(values, dtype=float):
        if np.isfinite(value):
            mean = value if np.isnan(mean) else 0.9 * mean + 0.1 * value
        out.append(mean)
    return np.array(out)


def curves(
    runs: dict[str, tuple[Sequence[Record], Sequence[tuple[int, float, float]]]], path: Path, title: str = ""
) -> None:
    """Loss, gradient norm, blank share and errors of each named run over its steps; dots: held-out words."""
    figure = new_figure(9, 5.6)
    panels = figure.subplots(2, 2, sharex=True).ravel()
    if title:
        figure.suptitle(title, fontsize=11)
    colours = [BLUE, RED, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
    for (name, (history, checks)), colour in zip(runs.items(), colours):
        steps = np.arange(1, len(history) + 1)
        for axes, what in zip(panels, Record._fields):
            values = np.array([getattr(record, what) for record in history])
            if len(runs) == 1:
                axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.6)
            if what == "norm":  # drawn, and so averaged, by its logarithm
                with np.errstate(divide="ignore"):
                    values = np.exp(smooth(np.log(values)))
            else:
                values = smooth(values)
            axes.plot(steps, values, color=colour, linewidth=1.4, label=name)
        if checks:
            at, words, labels = zip(*checks)
            panels[3].plot(at, labels, "o", color=colour, markersize=4)
            panels[3].plot(at, [1 - share for share in words], "x", color=colour, markersize=4)
    titles = (
        "loss of a word (nats)",
        "norm of the gradient, before clipping",
        "share of frames where the blank is best",
        "label error rate (dots, crosses: labels, words held out)",
    )
    for axes, text in zip(panels, titles):
        axes.set_title(text, fontsize=10, loc="left")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    losses = np.array([record.loss for history, _ in runs.values() for record in history])
    losses = losses[np.isfinite(losses)]
    if losses.size and losses.min() > 0:
        panels[0].set_yscale("log")
    elif losses.size:
        panels[0].set_yscale("symlog", linthresh=1)
    norms = np.array([record.norm for history, _ in runs.values() for record in history])
    if (norms[np.isfinite(norms)] > 0).any():
        panels[1].set_yscale("log")
    panels[2].set_ylim(-0.03, 1.03)
    panels[3].set_ylim(-0.03, 1.25)
    for axes in panels[2:]:
        axes.set_xlabel("step")
    if len(runs) > 1:
        panels[0].legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    return x - log_sum_exp(x)[:, None]


def lattice(logits: npt.NDArray[Any], digits: Sequence[int], path: Path) -> None:
    """The emissions of a word, (T, 11) logits, laid out as its lattice: one row a state, the best path over it."""
    log_p = _log_softmax(logits)
    labels = [digit + 1 for digit in digits]
    states = [0, *(each for label in labels for each in (label, 0))]
    best = ctcbind.align(logits[:, None], [labels])
    way = best.states[0].tolist() if best.log_p[0] > -np.inf else []
    figure = new_figure(9, 1.6 + 0.2 * len(states))
    axes = figure.subplots()
    image = axes.imshow(log_p[:, states].T, aspect="auto", cmap="viridis", vmin=-8, vmax=0, interpolation="nearest")
    if way:
        axes.plot(range(len(way)), way, color="white", linewidth=2.6)
        axes.plot(range(len(way)), way, color=RED, linewidth=1.2, label="best path")
    axes.set_yticks(range(len(states)), ["–" if s == 0 else str(s - 1) for s in states], fontsize=8)
    axes.set_xlabel("frame")
    axes.set_ylabel("state (– is the blank)")
    axes.set_title(
        f"ln p of each state's class at each frame, for {''.join(map(str, digits))}", fontsize=10, loc="left"
    )
    figure.colorbar(image, ax=axes, pad=0.01)
    save_figure(figure, path)


def alignment(image: Images, logits: npt.NDArray[Any], digits: Sequence[int], path: Path, title: str = "") -> None:
    """An image (H, W), and over it where the best path says each digit; below, the classes' probabilities."""
    log_p = _log_softmax(logits)
    H, W = image.shape
    step = W / len(log_p)
    best = ctcbind.align(logits[:, None], [[digit + 1 for digit in digits]])
    figure = new_figure(9, 9 * H / W + 2.6)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[9 * H / W + 0.4, 1.8])
    above.imshow(1 - image, cmap="gray", vmin=0, vmax=1, extent=(0, W, H, 0), aspect="auto")
    for i, (first, last) in enumerate(zip(best.starts[0], best.ends[0])):
        if first < 0:
            continue  # no path says the digits in so few frames
        above.axvspan(first * step, last * step, color=(BLUE, RED)[i % 2], alpha=0.3, linewidth=0)
        above.text((first + last) / 2 * step, -0.5, str(digits[i]), ha="center", va="bottom", fontsize=11)
    above.set_yticks([])
    above.set_title(title or " ", fontsize=10, loc="left", pad=18)
    p = np.exp(log_p)
    middles = (np.arange(len(p)) + 0.5) * step
    below.plot(middles, p[:, 0], color=GREY, linewidth=1, linestyle=":", label="blank")
    for digit in sorted(set(digits)):
        below.plot(middles, p[:, digit + 1], linewidth=1.2, label=str(digit))
    below.set_ylim(0, 1.05)
    below.set_xlim(0, W)
    below.set_xlabel("column of the image")
    below.set_ylabel("probability")
    below.legend(fontsize=8, frameon=False, ncols=11, loc="upper left", bbox_to_anchor=(0, -0.3))
    save_figure(figure, path)


def readings(words: Sequence[Word], read: Sequence[Sequence[int]], path: Path) -> None:
    """Words with what was read beneath: green where it is right, red with what it says where it is not."""
    columns = 3
    rows = -(-len(words) // columns)
    figure = new_figure(9, 0.95 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    widest = max(word.image.shape[1] for word in words)
    for axes in panels:
        axes.set_axis_off()
    for axes, word, digits in zip(panels, words, read):
        axes.imshow(1 - word.image, cmap="gray", vmin=0, vmax=1)
        axes.set_xlim(0, widest)
        right = list(digits) == word.digits
        text = "".join(map(str, digits)) or "nothing"
        says = "" if right else f"   (it says {''.join(map(str, word.digits))})"
        axes.set_title(text + says, fontsize=9, loc="left", color=GREEN if right else RED, pad=2)
    save_figure(figure, path)


def word_from_file(path: Path, height: int) -> Images:
    """The word in an image file as (height, W), 1 for ink, scaled to the height that digits have in the training."""
    ink = ink_from_file(path)
    from PIL import Image

    inside = round(height * 20 / 28)
    width = max(1, round(ink.shape[1] * inside / ink.shape[0]))
    if width > 40 * height:
        raise ReaderError(
            f"the writing in {path} is {ink.shape[1]} by {ink.shape[0]} pixels, too long a line for words of digits"
        )
    scaled = np.asarray(Image.fromarray(ink.astype(np.float32)).resize((width, inside), Image.Resampling.BILINEAR))
    above = (height - inside) // 2
    margin = max(2, height // 8)
    return np.pad(np.clip(scaled, 0, 1), ((above, height - inside - above), (margin, margin)))


def ink_from_file(path: Path) -> Images:
    """What is written in an image file, cut out, 1 for ink: dark on light or light on dark, of any size.

    The ink is what differs from the background, which is the border's shade.
    """
    try:
        from PIL import Image, ImageFilter, UnidentifiedImageError
    except ImportError as error:
        raise ReaderError(f"--predict needs Pillow ({error}): pip install '.[examples]'") from error
    try:
        with Image.open(path) as file:
            if file.width * file.height > 50_000_000:
                raise ReaderError(
                    f"{path} is {file.width} by {file.height} pixels; scale it down to fewer than 50 million"
                )
            if file.mode in ("RGBA", "LA", "PA") or "transparency" in file.info:
                file = file.convert("RGBA")
                paper = Image.new("RGBA", file.size, "white")
                paper.alpha_composite(file)
                file = paper
            grey = np.asarray(file.convert("L"), dtype=np.float32) / 255
    except FileNotFoundError:
        raise ReaderError(f"there is no image {path}") from None
    except UnidentifiedImageError:
        raise ReaderError(f"{path} is not an image of a kind that Pillow can read") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ReaderError(f"{path} cannot be read: {error}") from error
    border = np.concatenate([grey[0], grey[-1], grey[:, 0], grey[:, -1]])
    ink = np.abs(grey - np.median(border))
    # specks of noise are no writing: the box around it is found in a picture that is a little out of focus
    sharp = Image.fromarray((255 * ink).astype(np.uint8))
    blurred = np.asarray(sharp.filter(ImageFilter.BoxBlur(grey.shape[0] / 80))) / np.float32(255)
    darkest = float(blurred.max())
    if darkest < 0.1:
        raise ReaderError(
            f"{path} shows nothing: all of its {grey.shape[1]} by {grey.shape[0]} pixels are of one shade"
        )
    rows, columns = (np.flatnonzero(blurred.max(axis=axis) > 0.25 * darkest) for axis in (1, 0))
    ink = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return np.where(ink > 0.15 * darkest, np.minimum(ink / darkest, 1), 0)
