"""Label priors: what a trained network says too often is divided out, and alignments get less peaky.

A network trained by CTC says blank nearly always and a label for one frame. Dividing its softmax by a power of the
classes' mean probability while training (Huang et al., arXiv:2406.02560) takes the reward for that away, and labels
hold as long as they are there.
"""

import numpy as np

import ctcbind

rng = np.random.default_rng(0)
T, C = 60, 5
target = [[1, 2, 3, 4]]
start = 0.1 * rng.normal(size=(T, 1, C))
start[np.arange(T), 0, np.repeat([1, 2, 3, 4], T // 4)] += 0.5  # each label is faintly there for a quarter of the time


def train(weight):
    logits = start.copy()
    for _ in range(300):
        y = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        log_prior = np.log(y.mean(axis=(0, 1)))  # renewed at each step, and held fixed in the gradient
        logits -= ctcbind.lattice_loss_and_grad(logits, target, log_prior=log_prior, prior_weight=weight).grad
    return logits


for weight in (0.0, 0.3, 0.6):
    path = ctcbind.align(train(weight), target)
    held = (path.ends - path.starts)[0]
    blanks = (path.classes[0] == 0).mean()
    print(f"prior weight {weight}: labels hold {held.tolist()} frames of 15; {blanks:.0%} of the frames are blank")
