"""Steps that lead nowhere: gradients that do not reach the weights, or are never set to zero, and losses that stand
still."""

from __future__ import annotations

from math import isfinite

import numpy as np

from .diagnose_steps import SIGN, UPHILL, reads_nothing, rises
from .patient import Patient

__all__ = ["accumulated", "stalled", "unreached"]

#: No gradient reaches the weights if its norms stay below the first number, for so many steps, while the logits have
#: one above the last.
NOTHING, THROUGHOUT, SOMETHING = 1e-8, 3, 1e-3
#: Gradients that are never set to zero have norms that differ from one step to the next by this at most, as the
#: logarithm of their ratio (those of unlike batches by three times as much), and grow to so many times the first. The
#: fifth is five times the first where all are alike, and those after it stay above so many times the first; in training
#: that goes well, norms grow more slowly, later, or only for a while.
SMOOTH, GROWN, AT_LEAST = 0.15, 10.0, 3.0
#: Steps after which a network is better than a uniform model, if it learns at all.
STEPS = 50
#: Trainings that go well have left the plateau of blanks after so many, as a rule.
PLATEAU = 300
#: The logits of a frame are no farther apart after a tanh.
BOUNDED = 2.0
#: Whatever else a network learns or not, the blank wins this share of the frames soon.
LEARNED_FIRST = 0.5
#: A network on this plateau has this share of the loss of a uniform model, or less: it says what is frequent.
FREQUENT = 0.5
#: A network that has this share of the loss of a uniform model at least, after steps in half of which the loss has
#: fallen by less than that share, has not begun to learn.
AT_FIRST, LITTLE = 0.75, 0.1


def unreached(p: Patient, earlier: list[float], norms: tuple[float, ...]) -> None:
    """Gradient norms of 0 at the weights, while the logits have a gradient."""
    here = max((norm for n, norm in enumerate(norms) if n not in p.lost), default=0.0)
    if len(earlier) < THROUGHOUT or not max(earlier) < NOTHING or not min(earlier) >= 0 or not here > SOMETHING:
        return
    largest = "0" if max(earlier) == 0 else f"at most {max(earlier):.3g}"
    p.find(
        "not_learning",
        f"the gradient norms of all {len(earlier)} steps are {largest}, and the largest gradient with respect to the "
        f"logits is {here:.3g} here",
        "no gradient reaches the weights",
        "see that the loss is taken with autograd (no .detach(), no no_grad, no numbers where arrays are meant), that "
        "no layer is frozen, that backward runs before the norm is measured, and zero_grad not between the two",
        "certain",
    )


def accumulated(p: Patient, losses: list[float], norms: list[float]) -> None:
    """Gradient norms that grow without a jump from the first step on, while nothing is learned."""
    if len(norms) < 20 or not all(map(isfinite, norms)) or not min(norms) > 0 or not p.fits.any():
        return
    if p.kinds & {"exploding_gradients", "not_learning"} or rises(losses) or not reads_nothing(p):
        return
    apart = float(np.median(np.abs(np.diff(np.log(norms)))))
    if not apart < SMOOTH or not max(norms) > GROWN * norms[0] or not min(norms[4:]) > AT_LEAST * norms[0]:
        return
    p.find(
        "not_learning",
        f"the gradient norm has grown from {norms[0]:.3g} to {max(norms):.3g} in {len(norms)} steps, by little each "
        f"time: from one step to the next it differs by {np.expm1(apart):.1%}, as the median; loss a sample here "
        f"{p.loss:.4g}, of a constant model {p.constant_loss:.4g}",
        "each step's gradient seems to be added to those of all steps before",
        "set gradients to zero before each step (optimizer.zero_grad()), or after as many as are meant to be added up",
        "possible",
    )


def stalled(p: Patient, losses: list[float]) -> None:
    """A loss that no longer falls, and is no better than that of a model which ignores its input."""
    losses = [value for value in losses if isfinite(value)]
    uphill = rises(losses)
    if (len(losses) < 20 and not uphill) or not p.fits.any() or not reads_nothing(p):
        return
    if p.kinds & {"mismatch", "exploding_gradients", "not_learning", "negative_loss"}:
        return  # it has learned, something else than these labels, or once; or that is told; or these are no losses
    half = len(losses) // 2
    before, last = losses[-half : -half // 2], losses[-(half // 2) :]
    fell = float(np.mean(before) - np.mean(last))
    by_chance = 2 * float(np.hypot(np.std(before), np.std(last))) / np.sqrt(len(last))
    early = len(losses) < PLATEAU and not uphill  # where few and unlike batches soon hide that it falls
    least = 0.01 * abs(float(np.mean(before)))
    falls = fell > max(least, by_chance / 2 if early else by_chance)
    new = len(losses) >= STEPS and fell < LITTLE * np.mean(before) and _as_new(p)  # it falls by chance, or too slowly
    seen = (
        f"over the last {half} of {len(losses)} steps the loss went from {np.mean(before):.4g} to {np.mean(last):.4g}; "
        f"loss a sample here {p.loss:.4g}, of a constant model {p.constant_loss:.4g}, of a uniform one "
        f"{p.uniform_loss:.4g}"
    )
    if p.loss > 1.2 * p.uniform_loss and len(losses) >= STEPS and min(losses[-half:]) > 1.2 * p.uniform_loss:
        p.find(
            "not_learning",
            seen,
            (f"{UPHILL}; or " if uphill else "")
            + "after so many steps the network is worse than one that knows nothing: the steps are too long",
            (SIGN if uphill else "") + "lower the learning rate by ten times or more, clip gradients, and begin anew",
            "likely",
        )
    elif new or not falls:
        hidden = early and by_chance > 2 * least
        early = early and ("all_blank" in p.kinds or p.loss < FREQUENT * p.uniform_loss)
        p.find(
            "not_learning",
            seen,
            UPHILL
            if uphill
            else "the network says what it said at first: its steps are too short so far, or do not reach the weights"
            if new
            else "the steps lead nowhere, and the network is no better than one that ignores its input"
            + ("; trainings stay on this plateau for some hundred steps" if early else ""),
            (SIGN if uphill else "")
            + _no_room(p, uphill)
            + "see that the gradient reaches the weights (sign, scale, frozen layers, set to zero before each step) "
            "and that targets belong to their inputs; then try a learning rate three times as high, and one three "
            "times as low",
            "possible" if early or hidden else "likely",
        )


def _as_new(p: Patient) -> bool:
    """Whether the network is where it began: it says all classes alike, where what is frequent costs far less."""
    frequent, alike = FREQUENT * p.uniform_loss, AT_FIRST * p.uniform_loss
    return _blanks(p) < LEARNED_FIRST and p.constant_loss < frequent and p.loss > alike


def _blanks(p: Patient) -> float:
    """The share of the frames that the blank wins."""
    return float((p.best == p.blank).mean()) if p.count else 1.0


def _no_room(p: Patient, uphill: bool) -> str:
    """What to look at first where no frame's logits are farther apart than a tanh or a softmax leaves them: or than
    they were before the first step, where not even the blank has been learned."""
    apart = max((float(np.ptp(block, axis=1).max(initial=0.0)) for block in p.blocks()), default=0.0)
    if not 0 < apart <= BOUNDED or p.kinds & {"activation", "probabilities", "softmax_twice"}:
        return ""
    small = f"no frame's logits are more than {apart:.3g} apart"
    if not uphill and (blanks := _blanks(p)) < LEARNED_FIRST:
        return (
            f"{small}, and the blank, which is learned first, wins {blanks:.1%} of the frames: the weights are as good "
            "as new; raise the learning rate ten times (or wait for the end of its warm-up), and "
        )
    return (
        f"{small}, as after a tanh, a softsign, a sigmoid, a softmax or a division (or where no step was long enough): "
        "give the loss the last layer as it is; "
    )
