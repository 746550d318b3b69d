"""A partial alignment: it is known when some of the labels were seen, and the lattice is held to it.

A bonus of -inf forbids a state at a frame. Here the second label is known to lie in frames 20 to 24, and the third
not to begin before frame 30; where the rest lies is for the network to find out. The gradient is exact, so this
trains as well as it aligns.
"""

import numpy as np

import ctcbind

T, C = 40, 6
target = [[1, 2, 3, 4]]
logits = np.random.default_rng(0).normal(size=(T, 1, C))

known = np.zeros((T, 9))  # states: blank 1 blank 2 blank 3 blank 4 blank
known[:20, 3] = known[25:, 3] = -np.inf  # label 2 within frames 20 to 24
known[:30, 5] = -np.inf  # label 3 not before frame 30

for name, bonus in (("free", None), ("held", known)):
    path = ctcbind.align(logits, target, path_bonus=bonus)
    loss, grad, _, _ = ctcbind.lattice_loss_and_grad(logits, target, path_bonus=bonus)
    spans = [f"{a}-{b - 1}" for a, b in zip(path.starts[0], path.ends[0])]
    print(f"{name}: loss {loss[0]:.3f}; labels in frames {', '.join(spans)}")

shares = ctcbind.posteriors(logits, target, path_bonus=known)[0]
print(f"label 2 outside its frames: {shares[:20, 3].sum() + shares[25:, 3].sum()}")
