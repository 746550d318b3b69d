"""The problems that engines are compared on: two that are always there, and the reader's own from a .npz file."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .errors import InvalidInput

__all__ = ["KEYS_WITH_HISTORY", "STANDARD_INPUT", "default_problems", "load"]


def default_problems() -> tuple[tuple[str, dict[str, Any]], ...]:
    """The problems of `ctcbind compare` without a file: (title, keyword arguments of `compare`).

    First the example of NVIDIA's forum (topic 56058), whose every loss is 203.984 = 100 ln 10 - ln C(104, 8).
    Then a ragged batch from a fixed seed: repeats, an empty label, a sample without a path, padded time.
    """
    forum = {"logits": np.zeros((100, 5, 10), dtype=np.float32), "targets": [[1, 2, 3, 4]] * 5}
    random = np.random.default_rng(56058)
    T, C = 60, 20
    input_lengths = [60, 60, 41, 33, 60, 25, 9, 52]
    target_lengths = [12, 20, 8, 0, 1, 25, 5, 18]
    targets = [random.integers(1, C, size=length).tolist() for length in target_lengths]
    targets[0][3:6] = [7, 7, 7]  # repeats need a blank between them
    targets[5][:2] = [4, 4]  # 25 labels and a repeat need 26 frames, and there are 25: no path
    ragged = {
        "logits": random.normal(scale=2.0, size=(T, len(targets), C)).astype(np.float32),
        "targets": targets,
        "input_lengths": input_lengths,
    }
    return (
        ("cuDNN forum example: labels 1 2 3 4, uniform scores; every loss is 203.984", forum),
        ("random ragged batch: repeats, an empty label, a sample without a path, padded time", ragged),
    )


#: The names that such a file may hold.
KEYS = ("logits", "targets", "target_lengths", "input_lengths", "blank", "layout", "topology")
#: These, and what `ctcbind diagnose` reads beside them; `ctcbind compare` leaves that alone.
KEYS_WITH_HISTORY = (*KEYS, "history")
#: What the file "-" is called in messages.
STANDARD_INPUT = "<standard input>"
#: What to do where an array would be one of Python objects, as that of None is.
ADVICE = {
    **dict.fromkeys(KEYS[2:], "; leave it out if it is None"),
    "targets": "; pad ragged targets with -1, or concatenate them and add target_lengths",
    "history": '; save the losses alone, or numpy.array([(3.5, 0.7), ...], [("loss", float), ("grad_norm", float)])',
}
#: What the names of such a file are called elsewhere.
ELSEWHERE = {
    "logits": ("log_probs", "log_probabilities", "probs", "probabilities", "activations", "acts", "outputs", "x"),
    "targets": ("labels", "label", "y", "y_true", "transcripts"),
    "input_lengths": ("logit_lengths", "logit_length", "frames", "act_lens"),
    "target_lengths": ("label_lengths", "label_length", "label_lens"),
    "blank": ("blank_id", "blank_index"),
}


def load(
    path: str | Path, *, known: tuple[str, ...] = KEYS, needed: tuple[str, ...] = ("logits", "targets")
) -> dict[str, Any]:
    """The arguments of `compare` from a .npz file.

    The path "-" is standard input. `logits` (T, N, C) and `targets` must be there; `target_lengths` (N,),
    `input_lengths` (N,), `blank` (an integer), `layout` ("TNC" or "NTC") and `topology` may be; `known` and `needed`
    say which other names a file of another kind holds. Nothing is unpickled. Raises InvalidInput for a file that is not
    there or no .npz, for missing and unknown names, and for arrays of Python objects or raw bytes.

    Such a file is written with `numpy.savez("batch.npz", logits=logits, targets=targets, ...)`.
    """
    if not str(path):
        raise InvalidInput("the name of the file is empty; a .npz file is needed", rule="file", value="")
    path = Path(STANDARD_INPUT if str(path) == "-" else path)
    with ExitStack() as stack:  # numpy.load leaves a file open that it cannot read
        archive = _archive(path, needed, stack)
        names = list(archive.files)
        _check_names(path, names, known, needed)
        return {name: _entry(path, name, archive) for name in names}


def _check_names(path: Path, names: list[str], known: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """Raises InvalidInput for the first name that is unknown, and else for the first that is missing."""
    for name in names:
        if name not in known:
            hint = _hint_at_name(name, names, known, needed)
            raise InvalidInput(f"{path} holds {name!r}, which means nothing here{hint}", rule="file", value=name)
    for name in needed:
        if name not in names:
            *others, last = [each for each in known if each not in needed]
            rest = f"{', '.join(others)} and {last}" if others else last
            raise InvalidInput(
                f"{path} holds no {name!r} (it holds {', '.join(names) or 'nothing'}); it must have "
                f"{' and '.join(needed)}, and may have {rest}",
                rule="file",
                value=name,
            )


def _hint_at_name(name: str, names: list[str], known: tuple[str, ...], needed: tuple[str, ...]) -> str:
    """How an unknown name came into a file, and which known one may be meant."""
    if re.fullmatch(r".+/(data\.pkl|data/\d+|version|byteorder)", name):
        return f": it looks like a file of torch.save; {_written(needed)} and tensors as .numpy()"
    if re.fullmatch(r"arr_\d+", name):
        return f": that is an array without a name; {_written(needed)}"
    missing = [each for each in known if each not in names]
    near = {each: _near(each, missing) for each in names if each not in known}
    if near[name] is None:
        return f"; known are {', '.join(known)}"
    more = [f"{meant!r} by {other!r}" for other, meant in near.items() if meant and other != name]
    return f"; did you mean {near[name]!r}{', and ' * bool(more)}{', '.join(more)}?"


def _near(name: str, missing: list[str]) -> str | None:
    """The missing name that may be meant by an unknown one."""
    meant = next((each for each, others in ELSEWHERE.items() if name.lower() in others), None)
    if meant in missing:
        return meant
    return next(iter(get_close_matches(name, missing, n=1)), None)


def _written(needed: tuple[str, ...]) -> str:
    return f"write it with numpy.savez(path, {', '.join(f'{name}=...' for name in needed)})"


def _archive(path: Path, needed: tuple[str, ...], stack: ExitStack) -> Any:
    """The .npz file, open until the stack is closed."""
    if str(path) == STANDARD_INPUT and sys.stdin is None:
        raise InvalidInput("the standard input is closed", rule="file", value="-")
    try:
        if str(path) == STANDARD_INPUT:  # all of it, for the names of a .npz file stand at its end
            file: Any = BytesIO(sys.stdin.buffer.read())
        else:
            file = stack.enter_context(path.open("rb"))
        archive = np.load(file, allow_pickle=False)
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}", rule="file", value=str(path)) from error
    except IsADirectoryError as error:
        raise InvalidInput(f"{path} is a folder; a .npz file is needed", rule="file", value=str(path)) from error
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        # NumPy takes whatever it does not know for a pickle
        why: Any = f"it is in another format; {_written(needed)}" if "allow_pickle" in str(error) else error
        if isinstance(error, BadZipFile):
            why = f"it is damaged or was cut off ({error})"
        elif isinstance(error, EOFError):
            why = f"it is empty; {_written(needed)}"
        raise InvalidInput(f"{path} cannot be read as a .npz file: {why}", rule="file", value=str(path)) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise InvalidInput(
            f"{path} holds one array, not a batch; {_written(needed)}",
            rule="file",
            value=str(path),
        )
    return stack.enter_context(archive)


def _entry(path: Path, name: str, archive: Any) -> Any:
    try:
        array = archive[name]
    except Exception as error:  # zlib, zipfile, NumPy and memory each have their own word for a file that is broken
        if "allow_pickle" not in str(error):
            raise InvalidInput(f"{name!r} in {path} cannot be read: {error}", rule="file", value=name) from error
        advice = ADVICE.get(name, "")
        raise InvalidInput(
            f"{name!r} in {path} holds Python objects, which would have to be unpickled{advice}",
            rule="file",
            value=name,
        ) from error
    if not isinstance(array, np.ndarray):  # NumPy gives the bytes of a member that is no array
        raise InvalidInput(f"{name!r} in {path} is no array: the file is damaged", rule="file", value=name)
    if array.dtype.kind == "V" and not (name == "history" and array.dtype.names):
        raise InvalidInput(
            f"{name!r} in {path} holds raw bytes ({array.dtype.str}): such a file forgets what bfloat16 and the like "
            f"are; write it with {name}=numpy.asarray({name}).astype(numpy.float32), which keeps every bit of bfloat16",
            rule="file",
            value=name,
        )
    if name in ("blank", "layout", "topology"):
        if array.size != 1:
            raise InvalidInput(f"{name!r} in {path} has shape {array.shape}; it must be one value", rule=name)
        return array.item()
    return array
