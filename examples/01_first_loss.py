"""Loss and gradient of two samples, and one step of descent."""

import numpy as np

import ctcbind

logits = np.random.default_rng(0).normal(size=(12, 2, 5)).astype(np.float32)  # (T, N, C); class 0 is the blank
targets = [[1, 2, 2, 3], [4]]  # the labels of each sample; lengths may differ

loss, grad, engine = ctcbind.ctc_loss_and_grad(logits, targets)
print(f"{engine}: losses {loss.round(4)}, gradient {grad.shape}")

logits -= 0.5 * grad  # the gradient is with respect to the logits, so it can be subtracted from them
print(f"after one step: {ctcbind.ctc_loss(logits, targets).round(4)}")
