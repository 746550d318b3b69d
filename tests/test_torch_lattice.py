"""ctcbind.torch.lattice_loss: derivatives in all that is added, beside lattice_loss_and_grad and PyTorch."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import Broken, make  # noqa: E402

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import lattice  # noqa: E402

F = torch.nn.functional
forward_ad = torch.autograd.forward_ad


def test_with_label_priors_pytorchs_gradient_is_not_that_of_its_loss(rng):
    """What docs/guide/beyond.md says; `lattice_loss_and_grad` has both."""
    x, prior, along = rng.normal(size=(6, 1, 4)), rng.normal(size=4), rng.normal(size=(6, 1, 4))

    def theirs(logits):
        log_y = F.log_softmax(logits, dim=-1) - torch.tensor(prior)
        return F.ctc_loss(log_y, torch.tensor([[1, 2]]), [6], [2], reduction="sum")

    logits, h = torch.tensor(x, requires_grad=True), 1e-5
    theirs(logits).backward()
    difference = (theirs(torch.tensor(x + h * along)) - theirs(torch.tensor(x - h * along))).item() / (2 * h)
    ours = ctcbind.lattice_loss_and_grad(x, [[1, 2]], log_prior=prior)
    assert ours.loss[0] == pytest.approx(theirs(logits).item(), rel=1e-12)
    assert (ours.grad * along).sum() == pytest.approx(difference, abs=1e-8)
    assert abs((logits.grad.numpy() * along).sum() - difference) > 1e-3


@pytest.mark.parametrize("topology", ["ctc", "simple"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("given", ["nothing", "bonus", "one bonus", "one of all states", "prior", "both"])
def test_the_loss_on_the_lattice_is_differentiable(rng, given, reduction, topology):
    """In logits, bonuses and priors; beside samples without a path."""
    x = torch.tensor(rng.normal(size=(6, 3, 4)), requires_grad=True)
    targets, frames, counts = torch.tensor([[1, 2, 2], [3, 1, 2], [1, 1, 1]]), [6, 4, 2], [3, 2, 3]
    shape = {"one bonus": (6, 1), "one of all states": (3, 6, 1)}.get(given, (3, 6, 7))
    bonus = None if given in ("nothing", "prior") else torch.tensor(rng.normal(size=shape), requires_grad=True)
    prior = torch.tensor(rng.normal(size=4), requires_grad=True) if given in ("prior", "both") else None

    def function(x, bonus, prior):
        return ct.lattice_loss(
            x, targets, frames, counts, 0, reduction, True, path_bonus=bonus, log_prior=prior, prior_weight=0.7,
            topology=topology,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, (x, bonus, prior))
    got = function(x, bonus, prior)
    arrays = [None if each is None else each.detach().numpy() for each in (bonus, prior)]
    ours = ctcbind.lattice_loss_and_grad(
        x.detach().numpy(), targets, frames, counts, path_bonus=arrays[0], log_prior=arrays[1], prior_weight=0.7,
        topology=topology,
    )  # fmt: skip
    right = np.where(np.isinf(ours.loss), 0, ours.loss)
    right = {"none": right, "sum": right.sum(), "mean": (right / counts).mean()}[reduction]
    np.testing.assert_allclose(got.detach(), right, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_loss_on_the_lattice_in_other_precisions(rng, dtype):
    x = torch.tensor(rng.normal(size=(9, 2, 5)), dtype=dtype, requires_grad=True)
    prior = torch.tensor(rng.normal(size=5), dtype=dtype, requires_grad=True)
    targets = torch.tensor([1, 2, 4])
    loss = ct.lattice_loss(x, targets, [9, 7], [2, 1], log_prior=prior, reduction="sum")
    loss.backward()
    wide = ctcbind.lattice_loss_and_grad(
        x.detach().double().numpy(), [[1, 2], [4]], [9, 7], log_prior=prior.detach().double().numpy()
    )
    assert loss.dtype == torch.float32
    rounded = torch.finfo(torch.float32).eps * np.abs(wide.loss).sum()  # half an eps of each and of their sum
    assert loss.item() == pytest.approx(wide.loss.sum(), rel=0, abs=rounded)
    assert (x.grad.dtype, prior.grad.dtype) == (dtype, dtype)
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(x.grad.double(), wide.grad, rtol=eps, atol=1e-7 + eps * 1e-3)
    np.testing.assert_allclose(prior.grad.double(), wide.prior_grad, rtol=eps, atol=1e-6)


@pytest.mark.parametrize("added", ["bonus", "prior", "both"])
def test_the_loss_on_the_lattice_as_an_operator(rng, added):
    """PyTorch's own checks of it, and one graph with it compiled."""
    x, targets = torch.tensor(rng.normal(size=(6, 2, 4)), requires_grad=True), torch.tensor([[1, 2, 2], [3, 1, 2]])
    bonus = torch.tensor(rng.normal(size=(2, 6, 7)), requires_grad=True) if added != "prior" else None
    prior = torch.tensor(rng.normal(size=4), requires_grad=True) if added != "bonus" else None
    frames, counts = torch.tensor([6, 5]), torch.tensor([3, 2])
    empty = torch.empty(0, dtype=torch.float64)
    inputs = [x, empty if bonus is None else bonus, empty if prior is None else prior, targets, frames, counts]
    given = (bonus is not None) * lattice._BONUS | (prior is not None) * lattice._PRIOR
    # not test_aot_dispatch_dynamic, which differentiates what is itself a gradient
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    for wanted in (0, lattice._GRADIENT, lattice._GRADIENT | (bonus is not None) * lattice._POSTERIORS):
        torch.library.opcheck(lattice._lattice, (*inputs, 0, "ctc", 0.5, given | wanted), test_utils=checks)

    def function(x):
        return ct.lattice_loss(2 * x, targets, frames, counts, path_bonus=bonus, log_prior=prior)

    right = torch.autograd.grad(function(x), x)[0]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], right, rtol=0, atol=0)


def test_the_loss_on_the_lattice_without_a_path_and_refused():
    x = torch.zeros(3, 1, 4, requires_grad=True)
    args = x, torch.tensor([[1, 1, 1]]), [3], [3]
    assert ct.lattice_loss(*args).isinf()
    ct.lattice_loss(*args, reduction="sum").backward()
    assert not x.grad.any()
    bonus, prior = (torch.zeros(shape, requires_grad=True) for shape in ((3, 7), (4,)))
    loss = ct.lattice_loss(*args, reduction="none", path_bonus=bonus, log_prior=prior)
    # the derivative of a focal loss at inf is NaN
    for grad in torch.autograd.grad(((1 - (-loss).exp()).square() * loss).sum(), (x, bonus, prior)):
        assert not grad.any()
    first = torch.autograd.grad(ct.lattice_loss(x, torch.tensor([[1]]), [3], [1]), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.square().sum(), x)
    for wrong, rule in (
        ({"path_bonus": torch.zeros(2, 3, 7)}, "path_bonus"),
        ({"path_bonus": torch.zeros(1, 1, 3, 7)}, "path_bonus"),
        ({"log_prior": torch.zeros(3)}, "log_prior"),
        ({"log_prior": [0.0, 0.0, 0.0, float("nan")]}, "log_prior"),
        ({"prior_weight": float("inf")}, "prior_weight"),
        ({"prior_weight": torch.tensor(0.3)}, "prior_weight"),
        ({"reduction": "median"}, "reduction"),
        ({"blank": 7}, "blank"),
        ({"zero_infinity": "no"}, "zero_infinity"),
        ({"topology": "hmm"}, "topology"),
        ({"topology": []}, "topology"),
    ):
        with pytest.raises(ct.InvalidTorchInput) as caught:
            ct.lattice_loss(*args, **wrong)
        assert caught.value.rule == rule
    for other in (x[:, 0], x.detach().numpy(), None):
        with pytest.raises(ct.InvalidTorchInput, match="logits"):
            ct.lattice_loss(other, *args[1:])
    with pytest.raises(ct.InvalidTorchInput, match="targets are of type list"):
        ct.lattice_loss(x, [[1]], [3], [1])
    with pytest.raises(ct.InvalidTorchInput, match=r"logarithms, torch\.log\(prior\)"):
        ct.lattice_loss(*args, log_prior=torch.full((4,), 0.25))
    with pytest.raises(ct.InvalidTorchInput, match="the batch is empty"):
        ct.lattice_loss(x[:, :0], args[1][:0], [], [], path_bonus=torch.zeros(3, 1))


def test_a_loss_below_its_dtype_is_no_infinity_that_is_zero(rng):
    """A bonus of many bits makes float32 scores of -inf; what comes back as NaN for it stays."""
    x = torch.tensor(rng.normal(size=(3, 2, 4)), dtype=torch.float32, requires_grad=True)
    bonus = torch.zeros(2, 3, 1, dtype=torch.float64)
    bonus[0] = 1e39
    args = x, torch.tensor([[1], [2]]), [3, 3], [1, 1], 0, "none"
    losses = ct.lattice_loss(*args, True, path_bonus=bonus)
    assert losses.isneginf().tolist() == [True, False]
    (grad,) = torch.autograd.grad(losses, x, torch.tensor([float("nan"), 1.0]))
    assert grad.isnan().any(2).any(0).tolist() == [True, False]


@pytest.mark.parametrize("name", ["path_bonus", "log_prior"])
def test_scores_of_eight_bits_are_refused(name):
    """A TypeError of PyTorch's came through."""
    scores = torch.zeros(2, 6, 5) if name == "path_bonus" else torch.zeros(4)
    with pytest.raises(ct.InvalidTorchInput, match=rf"^{name} holds torch\.float8_e5m2; .*: pass {name}\.float\(\)$"):
        ct.lattice_loss(
            torch.zeros(6, 2, 4), torch.ones(2, 2).long(), [6, 6], [2, 2], **{name: scores.to(torch.float8_e5m2)}
        )


def test_priors_of_weight_0_have_a_derivative_of_0():
    prior = torch.full((4,), -1.0, requires_grad=True)
    args = torch.zeros(6, 1, 4), torch.tensor([[1, 2]]), [6], [2]
    ct.lattice_loss(*args, log_prior=prior, prior_weight=0).backward()
    assert prior.grad.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("half", [1, 2])
def test_each_derivative_has_the_digits_of_its_own_dtype(rng, half):
    """Whatever that of what else is added is."""
    given = [torch.tensor(rng.normal(size=size)) for size in ((6, 2, 4), (2, 6, 5), (4,))]

    def function(x, bonus, prior):
        targets = torch.tensor([[1, 2], [3, 1]])
        return ct.lattice_loss(x, targets, [6, 5], [2, 2], path_bonus=bonus, log_prior=prior)

    given[half] = given[half].half()
    wide = torch.func.grad(function, argnums=(0, 1, 2))(*(each.double() for each in given))
    found = torch.func.grad(function, argnums=(0, 1, 2))(*given)
    assert all(torch.equal(own, each.to(of)) for own, each, of in zip(found, wide, given, strict=True))


@pytest.mark.parametrize(("name", "shape"), [("path_bonus", (2, 6, 5)), ("log_prior", (4,))])
def test_a_second_derivative_in_what_is_added_is_refused(rng, name, shape):
    x, scores = torch.tensor(rng.normal(size=(6, 2, 4))), torch.tensor(rng.normal(size=shape), requires_grad=True)
    loss = ct.lattice_loss(x, torch.tensor([[1, 2], [3, 1]]), [6, 5], [2, 2], **{name: scores})
    (first,) = torch.autograd.grad(loss, scores, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.square().sum(), scores)


def test_lengths_of_the_loss_on_the_lattice(rng):
    """In a column or a row; a length of 0 divides as 1."""
    x, targets = torch.tensor(rng.normal(size=(6, 3, 4))), torch.tensor([[1, 2], [3, 1], [1, 1]])
    frames, counts = torch.tensor([6, 5, 4]), torch.tensor([2, 0, 1])
    right = ct.lattice_loss(x, targets, frames, counts, reduction="none")
    assert right.shape == (3,)
    for lengths in ((frames[:, None], counts[None]), (frames[None], counts[:, None])):
        assert torch.equal(ct.lattice_loss(x, targets, *lengths, reduction="none"), right)
    mean = ct.lattice_loss(x, targets, frames, counts)
    torch.testing.assert_close(mean, (right / torch.tensor([2, 1, 1])).mean(), rtol=1e-14, atol=0)


def test_a_loss_of_nan_is_no_infinity_that_is_zero(rng):
    x = torch.tensor(rng.normal(size=(6, 3, 4)))
    x[2, 1, 0] = torch.nan
    args = x, torch.tensor([[1, 2], [3, 1], [1, 1]]), [6, 6, 2], [2, 2, 2], 0, "none"
    for loss in (ct.ctc_loss, ct.lattice_loss):
        plain, zeroed = loss(*args), loss(*args, True)
        assert plain.isnan().tolist() == zeroed.isnan().tolist() == [False, True, False]
        assert (plain[2], zeroed[2], zeroed[0]) == (torch.inf, 0, plain[0])


def test_the_weight_of_priors_is_learnt_by_what_its_refusal_advises(rng):
    x, prior = (torch.tensor(rng.normal(size=size)) for size in ((6, 2, 4), (4,)))
    args = x, torch.tensor([[1, 2], [3, 1]]), [6, 4], [2, 1]
    weight = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ct.InvalidTorchInput, match=r"log_prior=prior_weight \* log_prior"):
        ct.lattice_loss(*args, log_prior=prior, prior_weight=weight)
    ct.lattice_loss(*args, log_prior=weight * prior).backward()
    up, down = (ct.lattice_loss(*args, log_prior=prior, prior_weight=0.3 + step) for step in (1e-5, -1e-5))
    torch.testing.assert_close(weight.grad, (up - down) / 2e-5, rtol=0, atol=1e-8)


def test_a_nan_that_comes_back_for_a_sample_with_a_path_is_kept(rng):
    """0 takes its place for a sample without one alone, the last here."""
    x, bonus, prior = (torch.tensor(rng.normal(size=size), requires_grad=True) for size in ((6, 3, 4), (3, 6, 7), (4,)))
    targets, frames, counts = torch.tensor([[1, 2, 2], [3, 1, 2], [1, 1, 1]]), [6, 4, 2], [3, 2, 3]
    losses = ct.lattice_loss(x, targets, frames, counts, reduction="none", path_bonus=bonus, log_prior=prior)
    nan = float("nan")
    for back, kept in ([1.0, nan, nan], True), ([1.0, 0.0, nan], False):
        weights = torch.tensor(back, dtype=torch.float64)
        of_x, of_bonus, of_prior = torch.autograd.grad(losses, (x, bonus, prior), weights, retain_graph=True)
        assert of_x.isnan().any(2).any(0).tolist() == [False, kept, False]
        assert of_bonus.isnan().any(2).any(1).tolist() == [False, kept, False]
        assert bool(of_prior.isnan().any()) == kept


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
def test_the_loss_on_the_lattice_takes_scores_as_they_are(rng):
    """Lists with the digits of doubles; what cannot be is refused."""
    x, args = torch.tensor(rng.normal(size=(5, 2, 4))), (torch.tensor([[1, 2], [3, 1]]), [5, 5], [2, 2])
    bonus = [0.1, 0.2, 0.3, 0.4, 0.5]
    right = ctcbind.lattice_loss_and_grad(x.numpy(), *args, path_bonus=bonus, log_prior=bonus[1:]).loss
    got = ct.lattice_loss(x, *args, reduction="none", path_bonus=bonus, log_prior=bonus[1:])
    np.testing.assert_allclose(got, right, rtol=1e-15)
    for name, shape in (("log_prior", (4,)), ("path_bonus", (2, 5, 5))):
        for wrong in ("a", [[1.0], [1.0, 2.0]], torch.zeros(shape).to_sparse()):
            with pytest.raises(ct.InvalidTorchInput, match=name):
                ct.lattice_loss(x, *args, **{name: wrong})
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.zeros(shape), torch.ones(shape))
            with pytest.raises(NotImplementedError, match="forward"):
                ct.lattice_loss(x, *args, **{name: dual})
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward"):
        ct.lattice_loss(forward_ad.make_dual(x, x), *args)
    empty = ct.lattice_loss(torch.zeros(3, 1, 1), torch.zeros(1, 0, dtype=torch.long), [3], [0], log_prior=[0.0])
    assert not np.signbit(empty.item())


def test_torch_func_differentiates_the_loss_on_the_lattice(rng):
    x, targets, frames, counts = make(rng)
    x = x.detach()
    bonus = torch.tensor(rng.normal(size=(x.shape[1], x.shape[0], 2 * int(max(counts)) + 1)))
    prior = torch.tensor(rng.normal(size=x.shape[2]))

    def loss(x, bonus, prior, reduction="mean"):
        added = {"path_bonus": bonus, "log_prior": prior, "prior_weight": 0.3}
        return ct.lattice_loss(x, targets, frames, counts, reduction=reduction, **added)

    leaves = [each.clone().requires_grad_() for each in (x, bonus, prior)]
    loss(*leaves).backward()
    for own, leaf in zip(torch.func.grad(loss, argnums=(0, 1, 2))(x, bonus, prior), leaves, strict=True):
        torch.testing.assert_close(own, leaf.grad, rtol=0, atol=0)
    compiled = torch.compile(loss, backend="aot_eager")  # which PyTorch then runs uncompiled, as parts
    torch.testing.assert_close(torch.func.grad(compiled)(x, bonus, prior), leaves[0].grad, rtol=1e-12, atol=1e-15)
    each = torch.func.jacrev(lambda x: loss(x, bonus, prior, "none"))(x)
    torch.testing.assert_close(each.sum(0), torch.func.grad(lambda x: loss(x, bonus, prior, "sum"))(x))
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.func.jacrev(torch.func.grad(loss))(x, bonus, prior)


@pytest.mark.parametrize("place", ["targets", "input_lengths", "target_lengths", "path_bonus", "log_prior"])
def test_a_tensor_without_values_is_refused(place):
    """PyTorch takes the operator's shapes alone then, and memory as it is for the loss."""
    given = {
        "targets": torch.tensor([[1, 2]]),
        "input_lengths": torch.tensor([6]),
        "target_lengths": torch.tensor([2]),
        "path_bonus": torch.zeros(5),
        "log_prior": torch.zeros(4),
    }
    given[place] = given[place].to("meta")
    with pytest.raises(ct.InvalidTorchInput, match=f"^{place}: a tensor on the device meta has no values"):
        ct.lattice_loss(torch.zeros(6, 1, 4), **given)
    if place in ("path_bonus", "log_prior"):
        return
    del given["path_bonus"], given["log_prior"]
    with pytest.raises(ct.InvalidTorchInput, match=f"^{place}: a tensor on the device meta has no values"):
        ct.ctc_loss(torch.zeros(6, 1, 4), **given)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # a DeprecationWarning, and from PyTorch 2.14 on a FutureWarning
def test_what_would_trace_a_constant_is_refused():
    args = torch.tensor([[1, 2]]), [6], [2]
    for loss in (ct.ctc_loss, ct.lattice_loss):
        with pytest.raises(NotImplementedError, match=r"torch\.jit\.trace would keep"):
            torch.jit.trace(lambda x, loss=loss: loss(x, *args), (torch.zeros(6, 1, 4),), check_trace=False)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_refused(dtype):
    narrow = getattr(torch, dtype)
    with pytest.raises(ct.InvalidTorchInput, match=f"are torch.{dtype}; they must be float16"):
        ct.ctc_loss(torch.zeros(6, 1, 4).to(narrow), torch.tensor([[1, 2]]), [6], [2])
    with pytest.raises(ct.InvalidTorchInput, match=f"targets hold torch.{dtype}; they must hold integers"):
        ct.ctc_loss(torch.zeros(6, 1, 4), torch.ones(1, 2).to(narrow), [6], [2])


def test_the_loss_on_the_lattice_compiled_for_every_weight_and_size(rng):
    """In one graph, also where torch.compile has made sizes and weight variables."""

    def function(x, targets, frames, counts, weight, bonus, prior):
        return ct.lattice_loss(x, targets, frames, counts, path_bonus=bonus, log_prior=prior, prior_weight=weight)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for weight, (T, N, L) in zip((0.1, 0.2, 0.3), ((12, 3, 4), (13, 4, 2), (9, 1, 4))):
        x, bonus = (torch.tensor(rng.normal(size=size)) for size in ((T, N, 6), (N, T, 2 * L + 1)))
        targets = torch.tensor(rng.permuted(np.tile(np.arange(1, 6), (N, 1)), axis=1)[:, :L])
        args = x, targets, torch.full((N,), T), torch.full((N,), L), weight, bonus, torch.tensor(rng.normal(size=6))
        torch.testing.assert_close(compiled(*args), function(*args), rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(6, 1), (1, 6, 1), (2, 6, 1), (5,)])
def test_a_bonus_that_broadcasts_is_compiled_beside_the_graph(rng, shape):
    """The operator is told of all of its shape, in which posteriors come back."""
    torch.compiler.reset()  # what it knows of calls before
    x, targets = torch.tensor(rng.normal(size=(6, 2, 4))), torch.tensor([[1, 2], [3, 1]])
    bonus = torch.tensor(rng.normal(size=shape), requires_grad=True)

    def function(bonus):
        return ct.lattice_loss(x, targets, [6, 5], [2, 2], path_bonus=bonus)

    right = torch.autograd.grad(function(bonus), bonus)[0]
    got = torch.autograd.grad(torch.compile(function, backend="aot_eager")(bonus), bonus)[0]
    torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("shape", [(), (5,), (6, 1), (6, 5), (1, 6, 5), (2, 1, 5), (2, 6, 1), (2, 6, 5)])
def test_the_operator_is_told_of_all_of_a_bonus(rng, monkeypatch, shape):
    """A compiled graph relies on posteriors of the shape that the bonus has."""
    told, own = [], lattice._lattice_now

    def spy(logits, bonus, *rest):
        told.append(bonus.shape)
        return own(logits, bonus, *rest)

    monkeypatch.setattr(lattice, "_lattice_now", spy)
    x = torch.tensor(rng.normal(size=(6, 2, 4)))
    ct.lattice_loss(x, torch.tensor([[1, 2], [3, 1]]), [6, 5], [2, 1], path_bonus=torch.tensor(rng.normal(size=shape)))
    assert told == [(2, 6, 5)]


@pytest.mark.parametrize("compiled", [False, True])
def test_no_more_is_computed_than_is_to_come(rng, monkeypatch, compiled):
    """Without a gradient the losses alone; posteriors for that of a bonus."""
    torch.compiler.reset()
    done, own = [], lattice.losses_and_shares

    def spy(*args, with_gamma):
        done.append("posteriors" if with_gamma else "gradient")
        return own(*args, with_gamma=with_gamma)

    monkeypatch.setattr(lattice, "losses_and_shares", spy)
    x, bonus = torch.tensor(rng.normal(size=(6, 2, 4))), torch.tensor(rng.normal(size=(2, 6, 5)))
    targets, frames, counts = torch.tensor([[1, 2], [3, 1]]), torch.tensor([6, 5]), torch.tensor([2, 1])

    def loss(x, bonus, prior):
        return ct.lattice_loss(x, targets, frames, counts, path_bonus=bonus, log_prior=prior)

    through = torch.compile(loss, fullgraph=True, backend="aot_eager") if compiled else loss
    prior, losses = torch.tensor(rng.normal(size=4)), []
    for which, expected in {(): [], (0,): ["gradient"], (1,): ["posteriors"], (2,): ["gradient"]}.items():
        given = [each.clone().requires_grad_(i in which) for i, each in enumerate((x, bonus, prior))]
        with torch.no_grad():
            losses.append(through(*given))
        assert not done
        losses.append(through(*given))
        if which:
            (grad,) = torch.autograd.grad(losses[-1], [given[i] for i in which])
            together = [each.clone().requires_grad_() for each in (x, bonus, prior)]
            right = torch.autograd.grad(loss(*together), together)[which[0]]
            done.pop()
            torch.testing.assert_close(grad, right, rtol=1e-12, atol=1e-12)
        assert done == expected
        done.clear()
    assert all(torch.equal(each, losses[0]) for each in losses)
    torch.func.grad(partial(loss, prior=None))(x, bonus), torch.func.grad(loss)(x, None, prior)
    assert done == ["posteriors", "gradient"]


@pytest.mark.parametrize("name", ["path_bonus", "log_prior"])
def test_scores_that_cannot_be_read_are_named(name):
    for wrong in (object(), [10**400], Broken(BufferError("it is away")), Broken(RuntimeError("it is away"))):
        with pytest.raises(ct.InvalidTorchInput, match=f"^{name} cannot be read as numbers: ") as caught:
            ct.lattice_loss(torch.zeros(6, 1, 4), torch.tensor([[1, 2]]), [6], [2], **{name: wrong})
        assert caught.value.rule == name
