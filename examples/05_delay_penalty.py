"""A delay penalty: the loss asks for labels early, by a bonus on the lattice that falls with time.

CTC does not care when a label is seen, as long as it is. Here each frame of delay costs a label `penalty` nats:
path_bonus[t, s] = -penalty * t on the states of labels. Trained from the same scores, the labels come earlier.
"""

import numpy as np

import ctcbind

T, C = 30, 5
target = [[1, 2, 3]]
start = np.random.default_rng(0).normal(size=(T, 1, C))
late = np.zeros((T, 7))  # 7 = 2L + 1 states; the odd ones are labels
late[:, 1::2] = -np.arange(T)[:, None]

for penalty in (0.0, 0.05, 0.5):
    logits = start.copy()
    for _ in range(200):
        logits -= 0.5 * ctcbind.lattice_loss_and_grad(logits, target, path_bonus=penalty * late).grad
    starts = ctcbind.align(logits, target).starts[0]
    plain = ctcbind.ctc_loss(logits, target)[0]
    print(f"penalty {penalty:4}: labels begin at frames {starts.tolist()}, mean {starts.mean():.1f}; loss {plain:.3f}")
