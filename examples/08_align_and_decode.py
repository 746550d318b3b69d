"""From scores to text with times: beam search with a small language model, alignment, error rates."""

import numpy as np

import ctcbind

LETTERS = "_ acehort"  # class 0 is the blank, class 1 the space between words
TRUTH = "the cat ate the roach"
WORDS = ["the", "cat", "ate", "roach", "he", "are"]

rng = np.random.default_rng(3)
frames = []
for letter in TRUTH:  # a network that says each letter for a few frames, and a blank between; not always sure of it
    frames += [LETTERS.index(letter)] * int(rng.integers(1, 4)) + [0] * int(rng.integers(1, 3))
logits = rng.normal(scale=1.3, size=(len(frames), 1, len(LETTERS)))
logits[np.arange(len(frames)), 0, frames] += 4.0


def text(labels):
    return "".join(LETTERS[label] for label in labels)


def model(prefix):
    """Natural log: a nat and a half off for each whole word that is not known, three for one that is begun wrongly."""
    *whole, last = text(prefix).split(" ")
    begun = not last or any(word.startswith(last) for word in WORDS)
    return -1.5 * sum(word not in WORDS for word in whole) - (0.0 if begun else 3.0)


greedy = text(ctcbind.greedy_decode(logits)[0].labels)
beam = text(ctcbind.beam_search(logits, beam_width=50, n_best=1)[0][0].labels)
spelled = text(ctcbind.beam_search(logits, beam_width=50, n_best=1, lm=model)[0][0].labels)
for name, read in (("greedy", greedy), ("beam", beam), ("with words", spelled)):
    cer, wer = ctcbind.error_rate([read], [TRUTH]), ctcbind.error_rate([read], [TRUTH], unit="word")
    print(f"{name:10} {read!r:28} CER {cer:.3f}  WER {wer:.3f}")

path = ctcbind.align(logits, [[LETTERS.index(letter) for letter in spelled]])
begin, end = (ctcbind.frames_to_seconds(each[0], 50) for each in (path.starts, path.ends))  # 50 frames a second
at = 0
for word in spelled.split(" "):
    print(f"{begin[at]:.2f} s to {end[at + len(word) - 1]:.2f} s  {word}")
    at += len(word) + 1
