"""Transcripts that lack their beginnings and ends: wild cards stand for what was not written down.

A wild card is a label that any class may be read as: its states weigh 1 instead of the probability of a class, by a
bonus of minus that class's log-probability (a loss like that of Cai et al., ICLR 2022). The bonus depends on the
logits, so its gradient is led on to them. Shown on a linear network, on features made up of eight "sounds" of five
frames each, of which up to two at either end of a sample are missing in its transcript.
"""

import numpy as np

import ctcbind

rng = np.random.default_rng(0)
N, LABELS, HOLD, C, FEATURES = 40, 6, 5, 9, 60
T = LABELS * HOLD
said = [rng.permutation(np.arange(1, C))[:LABELS].tolist() for _ in range(N)]
written = [row[rng.integers(3) : LABELS - rng.integers(3)] for row in said]
sounds = rng.normal(size=(C, HOLD, FEATURES))
features = np.stack([np.concatenate([sounds[label] for label in row]) for row in said], axis=1)
features += 0.3 * rng.normal(size=features.shape)  # (T, N, FEATURES)


def open_ended(logits, targets):
    """The losses (N,) of targets between two wild cards, and the gradient of their sum."""
    top = logits.max(axis=2, keepdims=True)
    log_y = logits - top - np.log(np.exp(logits - top).sum(axis=2, keepdims=True))
    ends = [[1 + row[0] % (C - 1), 1 + row[-1] % (C - 1)] for row in targets]  # any label but the one beside it
    wild = [(n, state, ends[n][i]) for n, row in enumerate(targets) for i, state in enumerate((1, 2 * len(row) + 3))]
    bonus = np.zeros((N, T, 2 * max(len(row) for row in targets) + 5))
    for n, state, label in wild:
        bonus[n, :, state] = -log_y[:, n, label]
    filled = [[first, *row, last] for row, (first, last) in zip(targets, ends)]
    loss, grad, bonus_grad, _ = ctcbind.lattice_loss_and_grad(logits, filled, path_bonus=bonus)
    back = np.zeros_like(logits)
    for n, state, label in wild:
        back[:, n, label] -= bonus_grad[n, :, state]
    return loss, grad + back - back.sum(axis=2, keepdims=True) * np.exp(log_y)


def train(loss_and_grad, targets):
    """The logits of a linear network after 300 steps of descent from zero."""
    weights, bias = np.zeros((FEATURES, C)), np.zeros(C)
    for _ in range(300):
        grad = loss_and_grad(features @ weights + bias, targets)[1] / (N * T)
        weights -= 2 * np.einsum("tnd,tnc->dc", features, grad)
        bias -= 2 * grad.sum(axis=(0, 1))
    return features @ weights + bias


print(f"{sum(map(len, written)) / (N * LABELS):.0%} of the labels are written down")
for name, function, targets in (
    ("all of them", ctcbind.ctc_loss_and_grad, said),
    ("those written", ctcbind.ctc_loss_and_grad, written),
    ("those written, between wild cards", open_ended, written),
):
    read = [each.labels for each in ctcbind.greedy_decode(train(function, targets))]
    print(f"trained on {name}: error rate {ctcbind.error_rate(read, said):.3f}")
