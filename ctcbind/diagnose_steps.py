"""What the steps before tell, and a batch after them: explosions, losses that rise, are below 0 or infinite."""

from __future__ import annotations

from itertools import pairwise
from math import isfinite, isnan

import numpy as np

from .patient import Patient

__all__ = ["SIGN", "UPHILL", "exploding", "infinite", "negative", "reads_nothing", "rises"]

#: Fewer frames than this do not show what the network usually does.
FRAMES = 20
#: A network reads a sample if its loss is below this share of that of one which ignores its input: while it learns
#: what is frequent, it is hardly below.
BETTER = 0.8
#: The loss of a sample that is certain may be so far below 0 by rounding in float32.
ROUNDED = 1e-3
#: A network that merely makes errors has no loss above this many times that of a uniform model.
WORSE = 30.0
#: A gradient norm has exploded if it is so many times the median of the earlier ones and the batch is not read well, or
#: so many times the largest of them.
GROWTH, BEYOND = 10.0, 100.0
#: Of three or four steps the last one's must be above this as well.
IMMENSE = 1e5
#: If the loss was once this share of what it is now, for so many steps together, the network had learned something, and
#: has lost it.
LOST, TOGETHER = 0.3, 5
#: A network that has come from shorter samples to longer ones has no more than this many times the loss of one that
#: ignores its input; nor has one that has lost all it knew.
AS_IGNORANT = 1.25
#: So many times it has risen to that from below, it comes back, and other batches are the reason.
TURNS = 3
#: A loss of so many times the first, the median and that of a uniform model is no batch of longer samples.
PEAK = 10.0
#: Losses that stay at so many times the first, and that of a uniform model, are no start from which a network learns.
STAYS = 3.0
#: Fewer losses than so many do not show that a network leaps about; and in half of the frames of one that was trained
#: well, the best class is not so many nats above the next.
LEAPS, FAR = 20, 100.0
#: So many steps in a row are left out by a gradient scaler.
LEFT_OUT = 20
#: A loss rises from the start if it has risen to this many times the first; fewer losses than so many do not tell.
RISES, RISEN = 8, 1.2
#: What that means, and what to look at first.
UPHILL = (
    "the loss rises from the first step, and so the updates go uphill, unless samples grow longer from step to step"
)
SIGN = (
    "see first that gradient and update have the right sign (weights -= rate * gradient), and that the gradient with "
    "respect to the logits is not sent through a softmax once more; then "
)


def exploding(p: Patient, losses: list[float], earlier: list[float], norms: tuple[float, ...]) -> None:
    """Gradient norms that leave all measure in the history, or logits that have."""
    order = [n for n in np.argsort(norms)[::-1].tolist() if n not in p.lost][:3]
    now = "the largest gradients with respect to the logits are " + ", ".join(
        f"{norms[n]:.3g} (sample {n}, at most {np.sqrt(2 * p.frames[n]):.3g})" for n in order
    )
    now = now if order else "no gradient is finite here"
    means = "a step was too long, and the weights have left the region in which the loss can lead them back"
    do = "clip gradients (by a norm of 1 to 5), lower the learning rate, warm it up; go back to the last good weights"
    if rises(losses):
        means, do = f"{UPHILL}; or {means}", SIGN + do
    if _poisoned(losses, earlier) is not None:
        return  # which `infinite` tells
    if (broken := _broken(losses, earlier)) is not None:
        last = broken == len(earlier) - 1 and not (losses and isnan(losses[-1]))
        if last:
            do += "; with a gradient scaler (float16) a single step of inf is left out, and does no harm"
        seen = f"the gradient norm of step {broken} is {earlier[broken]}"
        if len(losses) == len(earlier) and isnan(losses[broken]):
            seen = f"the loss of step {broken} is nan, and its gradient norm {earlier[broken]}"
            means, do = _or_given_nan(broken, means, do)
        p.find("exploding_gradients", f"{seen}; {now}", means, do, "likely" if last else "certain", order)
        return
    if losses and isnan(losses[-1]):
        lost = next(step for step, value in enumerate(losses) if isnan(value))
        means, do = _or_given_nan(lost, means, do)
        p.find("exploding_gradients", f"the loss of step {lost} is nan; {now}", means, do, "likely", order)
        return
    if (shown := _too_long(p, losses, list(filter(isfinite, earlier)))) is None:
        if (shown := _leaping(p, losses)) is None:
            shown = _beyond_errors(p.without_made_up())
        elif not rises(losses):
            means = "the steps are too long: what the network learns from some batches, the next step may undo"
            do = "begin anew with a learning rate lower by ten times or more, and clip gradients (by a norm of 1 to 5)"
    if shown is not None:
        if p.loss < AS_IGNORANT * min(p.constant_loss, p.uniform_loss):
            means += "; or the samples of late are longer, or of another kind, and the network has yet to learn them"
        p.find("exploding_gradients", f"{shown}; {now}", means, do, "likely", order)


def _too_long(p: Patient, losses: list[float], norms: list[float]) -> str | None:
    """What the history shows of a step that was too long; None where it shows nothing of the kind."""
    finite = list(filter(isfinite, losses))
    if _has_grown(p, norms):
        middle = float(np.median(norms[:-1]))
        return f"the last gradient norm is {norms[-1]:.3g}, the median of the {len(norms) - 1} before {middle:.3g}"
    if finite and 0 <= (best := _lowest(finite)) < LOST * finite[-1] and not _varies(finite) and reads_nothing(p):
        return f"the loss has been {best:.4g} for some steps, and is {finite[-1]:.4g}"
    if (peak := _peak(losses, p.uniform_loss)) is not None and reads_nothing(p):
        return f"the loss of step {peak} is {losses[peak]:.4g}, that of the first {losses[0]:.4g}"
    if (low := _stays(losses, p.uniform_loss)) is not None and p.loss > STAYS * p.uniform_loss and reads_nothing(p):
        half = f"that of the last {len(losses) // 2} at least {low:.4g}"
        return f"the loss of the first step is {losses[0]:.4g}, and {half}"
    return None


def _leaping(p: Patient, losses: list[float]) -> str | None:
    """What shows that a network leaps about: losses far above the first, and logits far apart."""
    losses = list(filter(isfinite, losses))
    if (late := _leaps(losses, p.uniform_loss)) is None or not (above := _above(p)) > FAR:
        return None
    half = f"that of the last {len(losses) // 2} is {late:.4g} on average"
    gap = f"the best class of a frame is {above:.3g} above the next, as the median"
    return f"the loss of the first step is {losses[0]:.4g}, and {half}; {gap}"


def _beyond_errors(p: Patient) -> str | None:
    """What shows a loss that no errors alone bring about."""
    if p.count < FRAMES or not p.fits.any() or not p.loss > WORSE * p.uniform_loss:
        return None
    spread = max(float(np.ptp(block, axis=1).max(initial=0.0)) for block in p.blocks())
    apart = f"up to {spread:.3g}" if isfinite(spread) else "more than 1.8e+308"
    times = p.loss / p.uniform_loss
    much = f"{p.loss:.4g}, {times:{'.0f' if times < 1e6 else '.3g'}} times that of a uniform model"
    much = much if isfinite(p.loss) else "past the range of float64"
    return f"the loss a sample is {much}, with logits {apart} apart in a frame"


def _or_given_nan(step: int, means: str, do: str) -> tuple[str, str]:
    """The same for a step whose loss is nan, which its features may have brought. They come first where no step is
    known before it."""
    given, look = "that step was given nan", "look through the features of that step"
    if step:
        return f"{means}, or {given}", f"{do}; {look}"
    return f"{given}, or the first weights held it; or {means}", f"{look}, and the weights before it; {do}"


def _broken(losses: list[float], norms: list[float]) -> int | None:
    """The step from which on no gradient norm is finite. Where the losses after it still are, such steps were left out,
    as gradient scalers do while they look for their scale."""
    finite = [step for step, norm in enumerate(norms) if isfinite(norm)]
    first = finite[-1] + 1 if finite else 0
    after = losses[first + 1 :] if len(losses) == len(norms) else []
    if first == len(norms) or (0 < len(after) < LEFT_OUT and all(map(isfinite, after))):
        return None
    return first


def _poisoned(losses: list[float], norms: list[float]) -> int | None:
    """The step whose loss was the first to be inf, if that is why all later ones are nan: not one that has grown to it,
    nor one whose gradient was finite all the same."""
    first = next((step for step, value in enumerate(losses) if not isfinite(value)), None)
    if first is None or losses[first] != np.inf or not all(map(isnan, losses[first + 1 :])):
        return None
    if first and not max(losses[:first]) <= PEAK * max(losses[0], float(np.median(losses[:first]))):
        return None
    if len(norms) == len(losses):
        broken = next((step for step, norm in enumerate(norms) if not isfinite(norm)), None)
        return first if broken == first else None
    return first if len(losses) > first + 1 else None


def rises(losses: list[float]) -> bool:
    """Whether the loss has risen from its first step on, and never fell."""
    finite = [value for value in losses if isfinite(value)]
    if len(finite) < RISES or not finite[-1] > RISEN * finite[0] > 0:
        return False
    means = [float(np.mean(part)) for part in np.array_split(finite, min(len(finite), 10))]  # batches differ
    return all(later > 0.98 * before for before, later in pairwise(means))


def reads_nothing(p: Patient) -> bool:
    """Whether the network is no better than one that ignores its input. A few samples of which it is sure, and wrong,
    may cost as much as all of them cost that one."""
    if not p.loss >= 0.9 * min(p.constant_loss, p.uniform_loss):
        return False
    ignorant = np.minimum(p.constant_losses, p.uniform_losses)
    return bool(np.mean((p.losses < BETTER * ignorant)[p.fits]) <= 0.5)


def _has_grown(p: Patient, norms: list[float]) -> bool:
    """Whether the last gradient norm is far above those before it. Where a network reads its batches well, a hard one
    among them has ten times the norm of the others, and nothing is lost."""
    if len(norms) < 5:  # the first steps have large ones, and other ones
        return len(norms) >= 3 and norms[-1] > max(IMMENSE, BEYOND * max(norms[:-1]))
    if norms[-1] > max(1.0, BEYOND * max(norms[:-1])):
        return True
    return norms[-1] > GROWTH * float(np.median(norms[:-1])) and not p.loss < 0.5 * min(p.constant_loss, p.uniform_loss)


def _peak(losses: list[float], uniform: float) -> int | None:
    """The step whose loss is beyond that of any batch a network would meet untrained; it may have fallen since."""
    finite = [value for value in losses if isfinite(value)]
    if len(finite) < 3 or not losses[0] > 0 or not max(finite) > PEAK * max(losses[0], np.median(finite), uniform):
        return None
    return losses.index(max(finite))


def _stays(losses: list[float], uniform: float) -> float | None:
    """The lowest of the last half of the losses, where all of these are far above the first."""
    if len(losses) < RISES or not losses[0] > 0:
        return None
    low = min(losses[-(len(losses) // 2) :])
    return low if isfinite(low) and low > STAYS * max(losses[0], uniform) else None


def _leaps(losses: list[float], uniform: float) -> float | None:
    """The mean of the last half of the losses, where it is far above the first: a network that steps too far reads one
    batch, and is lost at the next."""
    if len(losses) < LEAPS or not losses[0] > 0:
        return None
    late = float(np.mean(losses[-(len(losses) // 2) :]))
    return late if late > STAYS * max(losses[0], uniform) else None


def _above(p: Patient) -> float:
    """How far the best class of a frame is above the next, as the median: a mask on other classes does not count."""
    if p.C < 2:
        return 0.0
    gaps = np.concatenate([np.diff(np.partition(block, -2, axis=1)[:, -2:], axis=1)[:, 0] for block in p.blocks()])
    gaps = gaps[np.isfinite(gaps)]
    return float(np.median(gaps)) if gaps.size else 0.0


def _lowest(losses: list[float]) -> float:
    """The lowest that the loss was for some steps together, by their median."""
    if len(losses) <= TOGETHER or not isfinite(losses[-1]):
        return np.inf
    return float(np.median(np.lib.stride_tricks.sliding_window_view(losses, TOGETHER), axis=1).min())


def _varies(losses: list[float]) -> bool:
    """Whether the loss has been low and high in turns: batches of short and of long samples, from buckets or one by
    one, of which the last is one of the long."""
    high = np.asarray(losses) > np.sqrt(LOST) * losses[-1]
    return bool(np.count_nonzero(high[1:] & ~high[:-1]) >= TURNS)


def infinite(p: Patient, losses: list[float], earlier: list[float]) -> None:
    """Losses of inf in the history: one sample is enough, and may make all weights nan. Losses of nan that pass."""
    if (step := _poisoned(losses, earlier)) is not None:
        rest = "those after it nan" if len(losses) > step + 1 else f"its gradient norm {earlier[step]}"
        p.find(
            "not_finite",
            f"the loss of step {step} is inf, and {rest}",
            "its batch held samples without a path (fewer frames than their labels take), or a logarithm of 0, as of a "
            "softmax that was rounded. PyTorch's gradient of such a loss is nan, and one step with it makes all "
            "weights nan",
            f"begin again with the weights before step {step}; diagnose its batch and leave those samples out, or set "
            "zero_infinity=True; take log_softmax in place of the logarithm of a softmax",
            "likely",
        )
        return
    if "exploding_gradients" in p.kinds:
        return
    steps = [step for step, value in enumerate(losses) if value == np.inf]
    if steps and not p.kinds & {"infeasible", "not_finite"}:
        p.find(
            "not_finite",
            f"the loss of {'step' if len(steps) == 1 else f'{len(steps)} of {len(losses)} steps, the first of them'} "
            f"{steps[0]} is inf",
            "those batches hold samples without a path (fewer frames than their labels take), or logits of -inf where "
            "every path needs them; the mean of a batch with one of them is inf",
            "diagnose such a batch; then leave those samples out, or set zero_infinity=True",
            "certain",
        )
    if steps := [step for step, value in enumerate(losses) if isnan(value)]:
        p.find(
            "not_finite",
            f"the loss of {'step' if len(steps) == 1 else f'{len(steps)} of {len(losses)} steps, the first of them'} "
            f"{steps[0]} is nan, and that of the last is {losses[-1]:.4g}",
            "such steps were left out, or else all later losses were nan too: their batches held nan among the "
            "features, or the network has overflowed on them",
            "look through the features of such a batch, and the layers that are computed in float16",
            "certain",
        )


def negative(p: Patient, losses: list[float]) -> None:
    """A loss below 0 in the history, which no probability has."""
    step = next((step for step, value in enumerate(losses) if value < -ROUNDED), None)
    if step is not None:
        blanks = "blank_in_targets" in p.kinds
        p.find(
            "negative_loss",
            f"the loss of step {step} is {losses[step]:.4g}",
            "minus the logarithm of a probability is never below 0: "
            + ("a loss that takes blanks for labels counts paths twice, as PyTorch's does; or " * blanks)
            + "what computed it was given logits, or others that do not sum to 1, where it takes probabilities",
            ("leave the blanks out of the targets; if it is below 0 then too, " * blanks)
            + "give that loss log_softmax of the logits, or give the logits to ctcbind; if something was added to the "
            "loss, give the history without it",
            "likely",
        )
