"""Label priors: what a trained network says too often is divided out, and alignments get less peaky.

A network trained by CTC says the blank nearly always, and each label for a frame or two. Dividing its softmax by a
power of the mean probability of each class while it is trained (Huang et al., arXiv:2406.02560) takes the reward for
that away: labels hold as long as they are there. Shown on a linear network, on features made up of four "sounds" of
eight frames each.
"""

import numpy as np

import ctcbind

rng = np.random.default_rng(0)
N, LABELS, HOLD, FEATURES = 20, 4, 8, 40
C, T = LABELS + 1, LABELS * HOLD
targets = [rng.permutation(np.arange(1, C)).tolist() for _ in range(N)]
sounds = rng.normal(size=(C, HOLD, FEATURES))  # a label sounds different from its beginning to its end
features = np.stack([np.concatenate([sounds[label] for label in row]) for row in targets], axis=1)
features += 0.3 * rng.normal(size=features.shape)  # (T, N, FEATURES)


def train(prior_weight):
    """The logits of a linear network after 300 steps of descent from zero."""
    weights, bias = np.zeros((FEATURES, C)), np.zeros(C)
    for _ in range(300):
        logits = features @ weights + bias
        y = np.exp(logits - logits.max(axis=2, keepdims=True))
        y /= y.sum(axis=2, keepdims=True)
        log_prior = np.log(y.mean(axis=(0, 1)))  # renewed at each step, and held fixed in the gradient
        grad = ctcbind.lattice_loss_and_grad(logits, targets, log_prior=log_prior, prior_weight=prior_weight).grad
        weights -= np.einsum("tnd,tnc->dc", features, grad) / (N * T)
        bias -= grad.sum(axis=(0, 1)) / (N * T)
    return features @ weights + bias


for prior_weight in (0.0, 0.3, 0.6):
    logits = train(prior_weight)
    path = ctcbind.align(logits, targets)
    held = (path.ends - path.starts).mean()
    off = np.abs(path.starts - HOLD * np.arange(LABELS)).mean()
    errors = ctcbind.error_rate([each.labels for each in ctcbind.greedy_decode(logits)], targets)
    print(
        f"prior weight {prior_weight}: labels hold {held:.2f} of {HOLD} frames, begin {off:.2f} frames off; "
        f"{(path.classes == 0).mean():.0%} blank; error rate {errors:.3f}"
    )
