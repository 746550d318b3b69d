"""A step size from the curvature along the gradient, against fixed ones.

Along the line x - s g the loss is nearly loss - s g·g + s²/2 g·Hg, and s = g·g / g·Hg takes the parabola to its
lowest point. `ctc_hvp` gives Hg at about the cost of a gradient, so no step size has to be guessed. The loss is not
convex: where g·Hg is not positive, or the step does not bring the loss down, the step is halved until it does.
"""

import numpy as np

import ctcbind

rng = np.random.default_rng(0)
T, C = 40, 12
start = rng.normal(scale=2.0, size=(T, 1, C))
target = [rng.integers(1, C, size=10).tolist()]


def loss_of(logits):
    return float(ctcbind.ctc_loss(logits, target)[0])


def curvature_step(logits, loss, grad):
    """The step's size and where it leads, for one sample."""
    curvature = float((grad * ctcbind.ctc_hvp(logits, target, grad)).sum())
    size = float((grad * grad).sum()) / curvature if curvature > 0 else 1.0
    while loss_of(logits - size * grad) > loss:
        size /= 2
    return size, logits - size * grad


losses = {}
for rule in (0.1, 1.0, "curvature"):
    logits, losses[rule] = start.copy(), []
    for _ in range(21):
        (loss,), grad, _ = ctcbind.ctc_loss_and_grad(logits, target)
        losses[rule].append(float(loss))
        if rule == "curvature":
            size, logits = curvature_step(logits, loss, grad)
        else:
            logits = logits - rule * grad

print(f"{'step':>4}  " + "  ".join(f"{f'size {rule}' if rule != 'curvature' else rule:>10}" for rule in losses))
for step in (0, 1, 2, 5, 10, 20):
    print(f"{step:4}  " + "  ".join(f"{values[step]:10.4f}" for values in losses.values()))
