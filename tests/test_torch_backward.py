"""The backward passes of ctcbind.torch: what a graph keeps and copies, and derivatives to the third."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make, theirs  # noqa: E402

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import operators  # noqa: E402


def test_no_gradient_no_work_for_it(rng, monkeypatch):
    logits, targets, frames, counts = make(rng)
    log_probs = logits.log_softmax(2)
    ran = []

    def spy(name):
        original = getattr(ctcbind.CTCLoss, name)
        monkeypatch.setattr(ctcbind.CTCLoss, name, lambda *args: ran.append(name) or original(*args))

    spy("loss")
    spy("__call__")
    assert not ct.ctc_loss(log_probs.detach(), targets, frames, counts).requires_grad
    with torch.no_grad():
        ct.ctc_loss(log_probs, targets, frames, counts)
    with torch.inference_mode():
        ct.ctc_loss(logits, targets, frames, counts, from_logits=True)
    assert ran == ["loss"] * 3
    assert ct.ctc_loss(log_probs, targets, frames, counts).requires_grad
    assert ran == ["loss"] * 3 + ["__call__"]


def test_nothing_is_copied_on_the_cpu(rng, monkeypatch):
    logits, targets, frames, counts = make(rng, dtype=torch.float32)
    seen = []
    original = ctcbind.CTCLoss.__call__

    def spy(self, *arrays):
        result = original(self, *arrays)
        seen.extend([*arrays, result.loss, result.grad])
        return result

    monkeypatch.setattr(ctcbind.CTCLoss, "__call__", spy)
    losses, grad = operators._LossAndGrad.apply(logits, targets, frames, counts, (0, "none", False, "ctc", "auto"))
    tensors = [logits, targets, frames, counts, losses, grad]
    assert [each.data_ptr() for each in tensors] == [each.ctypes.data for each in seen]


def test_backward_twice_and_what_it_leaves(rng):
    logits, targets, frames, counts = make(rng)
    before = logits.detach().clone()
    loss = ct.ctc_loss(logits, targets, frames, counts, reduction="sum", from_logits=True)
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    loss.backward()
    assert torch.equal(logits.grad, 2 * once)
    assert torch.equal(logits.detach(), before)


def test_lengths_may_be_written_to_before_a_second_derivative(rng):
    logits, targets, frames, counts = make(rng)
    frames, counts = torch.as_tensor(frames), torch.as_tensor(counts)
    loss = ct.ctc_loss(logits, targets, frames, counts, reduction="sum", from_logits=True)
    (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
    before = torch.autograd.grad(grad.square().sum(), logits, retain_graph=True)[0]
    frames.zero_()
    counts.zero_()
    assert before.any()
    assert torch.equal(torch.autograd.grad(grad.square().sum(), logits)[0], before)


@pytest.mark.parametrize("written", [0, 1])
def test_logits_and_targets_must_not_be_written_to_before_backward(rng, written):
    logits, *rest = make(rng)
    args = logits * 1, *rest
    loss = ct.ctc_loss(*args, from_logits=True)
    with torch.no_grad():
        args[written][0] += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_kept_graph_does_not_share_its_gradient(rng):
    logits, targets, frames, counts = make(rng)
    loss = ct.ctc_loss(logits, targets, frames, counts, from_logits=True)
    loss.backward(retain_graph=True)
    once = logits.grad.clone()
    for _ in range(3):
        logits.grad.fill_(torch.nan)
        logits.grad = None
        loss.backward(retain_graph=True)
        assert torch.equal(logits.grad, once)
        logits.grad.zero_()
    loss.backward()
    assert torch.equal(logits.grad, once)


def test_a_graph_that_ends_copies_no_gradient(rng):
    logits, targets, frames, counts = make(rng)
    for scale in (1.0, 3.0):
        loss = ct.ctc_loss(logits, targets, frames, counts, reduction="sum", from_logits=True) * scale
        node = loss.grad_fn.next_functions[0][0]
        (at,) = {each.data_ptr() for each in node.saved_tensors if each.shape == logits.shape} - {logits.data_ptr()}
        (grad,) = torch.autograd.grad(loss, logits)
        assert grad.data_ptr() == at
        right = torch.autograd.grad(theirs(logits, targets, frames, counts, reduction="sum") * scale, logits)[0]
        torch.testing.assert_close(grad, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1)], ids=["of (N, T, C)", "of (N, C, T)"])
def test_a_gradient_goes_back_through_permute_without_a_copy(rng, axes, scale):
    logits, targets, frames, counts = make(rng)
    right = torch.autograd.grad(theirs(logits, targets, frames, counts, reduction="sum") * scale, logits)[0]
    back = [axes.index(axis) for axis in range(3)]
    turned = logits.detach().permute(back).contiguous().requires_grad_()
    loss = ct.ctc_loss(turned.permute(axes), targets, frames, counts, reduction="sum", from_logits=True) * scale
    node = loss.grad_fn.next_functions[0][0]
    (at,) = {each.data_ptr() for each in node.saved_tensors if each.shape == logits.shape} - {turned.data_ptr()}
    loss.backward()
    assert turned.grad.is_contiguous()
    assert turned.grad.data_ptr() == at
    torch.testing.assert_close(turned.grad.permute(axes), right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 0, 1)], ids=["(T, N, C)", "(N, T, C)", "(N, C, T)"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_gradients_are_multiplied_by_pytorch_and_are_the_same(rng, monkeypatch, dtype, axes):
    logits, targets, frames, counts = make(rng, dtype=dtype)
    turned = logits.detach().permute([axes.index(axis) for axis in range(3)]).contiguous().requires_grad_()
    losses = ct.ctc_loss(turned.permute(axes), targets, frames, counts, reduction="none", from_logits=True)
    multiplied, mul = [], torch.mul

    def grad_of(weights):
        return torch.autograd.grad(losses, turned, weights, retain_graph=True)[0].clone()

    def spy(*args, **options):
        multiplied.append(args)
        return mul(*args, **options)

    weights = torch.tensor(rng.normal(size=len(losses)), dtype=dtype)
    every = weights, torch.full_like(weights, 0.3), torch.full_like(weights, torch.nan)
    right = [grad_of(each) for each in every]
    monkeypatch.setattr(operators, "MANY", 0)
    monkeypatch.setattr(torch, "mul", spy)
    for each, expected in zip(every, right):
        torch.testing.assert_close(grad_of(each), expected, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(torch.autograd.grad(losses, turned, weights)[0], right[0], rtol=0, atol=0)  # in place
    assert len(multiplied) == 4


def test_each_sample_has_a_factor_of_its_own(rng):
    """Whichever of them are equal."""
    logits, targets, frames, counts = make(rng)
    losses = ct.ctc_loss(logits, targets, frames, counts, reduction="none", from_logits=True)
    (plain,) = torch.autograd.grad(losses.sum(), logits, retain_graph=True)
    for factor in ([0.5, 2.0, 3.0, 0.5], [2.0, 2.0, 2.0, 0.5], [0.5, 0.5, 3.0, 3.0], [2.0] * 4):
        weights = torch.tensor(factor, dtype=losses.dtype)
        (grad,) = torch.autograd.grad(losses, logits, weights, retain_graph=True)
        assert torch.equal(grad, plain * weights[:, None])


def test_many_backward_passes_at_once(rng):
    """What torch.autograd.functional.jacobian(vectorize=True) does."""
    logits, targets, frames, counts = make(rng)
    losses = ct.ctc_loss(logits, targets, frames, counts, reduction="none", from_logits=True)
    weights = torch.tensor(rng.normal(size=(3, 4)))
    (many,) = torch.autograd.grad(losses, logits, weights, is_grads_batched=True, retain_graph=True)
    for weight, grad in zip(weights, many):
        assert torch.equal(grad, torch.autograd.grad(losses, logits, weight, retain_graph=True)[0])
    # which warns of operators that it takes one by one
    mapped = torch.func.vmap(lambda weight: torch.autograd.grad(losses, logits, weight, retain_graph=True)[0])
    assert torch.equal(mapped(weights), many)


@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_gradcheck_and_gradgradcheck(rng, reduction, from_logits, log_probs):
    logits = torch.tensor(rng.normal(size=(6, 3, 4)), requires_grad=True)
    targets, frames, counts = torch.tensor([[1, 2, 2], [3, 1, 2], [1, 1, 1]]), [6, 4, 4], [3, 2, 3]

    def function(x):
        x = x.log_softmax(2) if log_probs else x
        return ct.ctc_loss(x, targets, frames, counts, reduction=reduction, zero_infinity=True, from_logits=from_logits)

    assert torch.autograd.gradcheck(function, (logits,))
    assert torch.autograd.gradgradcheck(function, (logits,))


def test_second_derivative_is_the_hessian(rng):
    logits, targets, frames, counts = make(rng, T=4, N=2, C=3, L=1)
    x = logits.detach()[:, :1].requires_grad_()
    args = targets[:1], frames[:1], counts[:1]
    hessian = torch.autograd.functional.hessian(lambda x: ct.ctc_loss(x, *args, reduction="sum", from_logits=True), x)
    right = ctcbind.ctc_hessian(x.detach().numpy(), *(each.numpy() for each in args))
    torch.testing.assert_close(hessian.reshape(12, 12), torch.tensor(right).reshape(12, 12), rtol=1e-12, atol=1e-14)


def test_the_second_derivative_of_a_mean_has_the_digits_of_its_logits(rng):
    """The weights of samples are quotients of integers, which PyTorch makes in float32 where it is not told."""
    logits, targets, frames, counts = make(rng, T=8, N=4, C=5, L=3)
    counts = torch.tensor([3, 1, 2, 0])  # which divides as 1
    x, v = logits.detach().double().requires_grad_(), torch.tensor(rng.normal(size=logits.shape))
    loss = ct.ctc_loss(x, targets, frames, counts, reduction="mean", from_logits=True)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (product,) = torch.autograd.grad((grad * v).sum(), x)
    arrays = (each.detach().numpy() for each in (x, targets, v, frames, counts))
    right = ctcbind.ctc_hvp(*arrays) / (4 * np.maximum(counts.numpy(), 1)[:, None])
    # a weight, and what it multiplies, rounded once each before a product of T * 4 roundings or so
    np.testing.assert_allclose(product.numpy(), right, rtol=0, atol=8 * 8 * 2.0**-53 * np.abs(v.numpy()).max())


def test_a_loss_and_a_penalty_on_its_gradient_are_differentiated_at_once(rng):
    logits, *args = make(rng)
    loss = ct.ctc_loss(logits, *args, from_logits=True)
    (grad,) = torch.autograd.grad(loss, logits, create_graph=True)
    penalty = grad.square().sum()
    (second,) = torch.autograd.grad(penalty, logits, retain_graph=True)
    assert second.any()
    (loss + penalty).backward()
    torch.testing.assert_close(logits.grad, grad.detach() + second, rtol=1e-12, atol=1e-14)


def test_a_third_derivative_is_refused(rng):
    logits, targets, frames, counts = make(rng)
    loss = ct.ctc_loss(logits, targets, frames, counts, from_logits=True)
    (first,) = torch.autograd.grad(loss, logits, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), logits, create_graph=True)
    with pytest.raises(NotImplementedError, match="twice, not three times"):
        torch.autograd.grad(second.sum(), logits)


def test_options_do_not_each_keep_gradients():
    """All options of a thread use the same memory, and in the end it goes back."""
    import tracemalloc

    x, targets = torch.zeros(100, 8, 1000), torch.tensor([[999]] * 8)
    size = x.numel() * x.element_size()
    ct.empty_cache()
    tracemalloc.start()
    try:
        for blank in range(5):
            for _ in range(2):
                leaf = x.clone().requires_grad_()
                ct.ctc_loss(leaf, targets, [100] * 8, [1] * 8, blank, from_logits=True).backward()
                del leaf
        assert tracemalloc.get_traced_memory()[0] < 2.1 * size
        ct.empty_cache()
        assert tracemalloc.get_traced_memory()[0] < size / 4
    finally:
        tracemalloc.stop()
    leaf = x.clone().requires_grad_()
    ct.ctc_loss(leaf, targets, [100] * 8, [1] * 8, from_logits=True).backward()
    assert leaf.grad.abs().sum() > 0


def test_the_second_derivative_is_linear_in_its_direction():
    """torch.autograd.functional.hvp differentiates it once more; the third derivative is refused."""
    functional = torch.autograd.functional
    x, v = torch.randn(2, 5, 2, 3, dtype=torch.double, generator=torch.Generator().manual_seed(SEED))

    def loss(x):
        return ct.ctc_loss(x, torch.tensor([[1, 2], [1, 2]]), [5, 4], [2, 1], from_logits=True)

    right = functional.hessian(loss, x).reshape(30, 30) @ v.flatten()
    for product in (functional.hvp, functional.vhp):
        torch.testing.assert_close(product(loss, x, v)[1].flatten(), right, rtol=1e-12, atol=1e-14)
    for begin in (lambda x: x, lambda x: x * 1):
        leaf, w = x.clone().requires_grad_(), torch.zeros_like(x).requires_grad_()
        y = begin(leaf)
        (grad,) = torch.autograd.grad(loss(y), y, create_graph=True)
        (curved,) = torch.autograd.grad(grad, y, w, create_graph=True)
        with pytest.raises(NotImplementedError, match="twice, not three times"):
            torch.autograd.grad(curved.sum(), (leaf, w), retain_graph=True)
        with pytest.raises(NotImplementedError, match="twice, not three times"):
            curved.sum().backward(retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(curved, w, v)[0].flatten(), right, rtol=1e-12, atol=1e-14)


def test_options_in_turns_use_the_same_memory():
    """A loss that is logged beside the one that is learned from must not cost the other its memory."""
    x, args = torch.zeros(100, 8, 1000), (torch.tensor([[999]] * 8), [100] * 8, [1] * 8)
    places = []
    for _ in range(4):
        for reduction in ("mean", "sum"):
            leaf = x.clone().requires_grad_()
            ct.ctc_loss(leaf, *args, reduction=reduction, from_logits=True).backward()
            places.append(leaf.grad.data_ptr())
            with torch.no_grad():
                ct.ctc_loss(x, *args, reduction="none", from_logits=True)
    assert len(set(places)) <= 2


def test_lengths_are_the_callers_again_once_the_loss_is_there():
    """They may be written to, come from inference mode, or share the memory of an array that is filled anew."""
    x, targets = torch.randn(20, 2, 6, dtype=torch.float64), torch.tensor([[1, 2, 3], [2, 2, 1]])
    given = np.array([20, 18]), np.array([3, 2])

    def derivatives(lengths, spoil):
        leaf = x.clone().requires_grad_()
        loss = ct.ctc_loss(leaf, targets, *lengths, from_logits=True)
        (grad,) = torch.autograd.grad(loss, leaf, create_graph=True)
        spoil()
        return grad.detach(), torch.autograd.grad(grad.square().sum(), leaf)[0]

    right = derivatives([each.tolist() for each in given], lambda: None)
    for taken in (np.copy, lambda each: torch.from_numpy(each.copy()), torch.tensor):
        lengths = [taken(each) for each in given]

        def spoil(lengths=lengths):
            for each in lengths:
                each //= 2

        torch.testing.assert_close(derivatives(lengths, spoil), right, rtol=0, atol=0)
    with torch.inference_mode():
        lengths = [torch.from_numpy(each) for each in given]
    torch.testing.assert_close(derivatives(lengths, lambda: None), right, rtol=0, atol=0)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_a_gradient_that_is_handed_out_holds_no_graph(reduction):
    """Or whoever keeps it, as a running sum does, keeps the network of that step."""
    x = torch.randn(6, 2, 4, requires_grad=True)
    logits, targets = 2 * x, torch.tensor([[1, 2], [3, 0]])
    loss = ct.ctc_loss(logits, targets, [6, 5], [2, 1], reduction=reduction, from_logits=True)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert not grad.requires_grad
    assert grad.numpy().any()
    seen = []
    logits.register_hook(seen.append)
    ct.ctc_loss(logits, targets, [6, 5], [2, 1], from_logits=True).backward()
    assert not seen[0].requires_grad


def test_backward_does_not_ask_how_numpy_takes_what_floats_cannot_hold():
    x = (1e4 * torch.randn(6, 2, 4)).requires_grad_()
    with np.errstate(all="raise"):
        loss = ct.ctc_loss(x, torch.tensor([[1, 2], [1, 1]]), [6, 2], [2, 2], reduction="none", from_logits=True)
        loss.backward(torch.tensor([1e-38, float("inf")]))
    assert torch.isfinite(x.grad[:, 0]).all()


@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("way", ["backward", "kept", "create_graph", "func", "compiled"])
def test_what_comes_back_for_a_sample_without_a_path_makes_no_nan(rng, zero_infinity, way):
    """A focal loss: its derivative is NaN at a loss of inf, and at the 0 of zero_infinity, where PyTorch's own CTC loss
    gives a gradient of 0 all the same."""
    logits, targets, frames, counts = make(rng)
    frames[1], counts[1] = 3, 4
    counts[2] = 1

    def focal(x, loss=ct.ctc_loss, zero=zero_infinity):
        losses = loss(x.log_softmax(2), targets, frames, counts, reduction="none", zero_infinity=zero)
        weighed = (1 - (-losses).exp()).sqrt() * losses
        return torch.where(weighed.isfinite(), weighed, 0.0).sum()

    (right,) = torch.autograd.grad(focal(logits, torch.nn.functional.ctc_loss, True), logits)
    assert right.isfinite().all()
    if way == "func":
        grad = torch.func.grad(focal)(logits.detach())
    else:
        function = torch.compile(focal, fullgraph=True, backend="aot_eager") if way == "compiled" else focal
        kept, again = way == "kept", way == "create_graph"
        (grad,) = torch.autograd.grad(function(logits), logits, retain_graph=kept or again, create_graph=again)
    torch.testing.assert_close(grad.detach(), right, rtol=1e-10, atol=1e-12)
    if way == "create_graph":
        (second,) = torch.autograd.grad((grad * right).sum(), logits)
        assert second.isfinite().all()
        assert not second[:, 1].any()
        assert second[:, 0].any()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_zero_infinity_leaves_second_derivatives_of_samples_with_a_path(rng, reduction):
    """Which those are depends on blank and topology: here repeats need no frame between them, and 0 is a label."""
    logits = torch.tensor(rng.normal(size=(3, 2, 4)) * 2, requires_grad=True)
    targets = torch.tensor([[1, 1, 0], [0, 2, 0]])

    def curvature(zero_infinity, transformed):
        def loss(x):
            given = {"reduction": reduction, "zero_infinity": zero_infinity, "topology": "simple"}
            return ct.ctc_loss(x, targets, [3, 3], [3, 2], 3, from_logits=True, **given).sum()

        if transformed:
            return torch.func.grad(lambda x: torch.func.grad(loss)(x).square().sum())(logits.detach())
        (grad,) = torch.autograd.grad(loss(logits), logits, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), logits)[0]

    right = curvature(False, False)
    assert right.any(2).any(0).all()
    for zero_infinity, transformed in ((True, False), (False, True), (True, True)):
        torch.testing.assert_close(curvature(zero_infinity, transformed), right, rtol=1e-9, atol=1e-12)
    step, along = 1e-5, torch.tensor(rng.normal(size=logits.shape))

    def squares(x):
        x = x.detach().requires_grad_()
        given = {"reduction": reduction, "topology": "simple"}
        loss = ct.ctc_loss(x, targets, [3, 3], [3, 2], 3, from_logits=True, **given).sum()
        return torch.autograd.grad(loss, x)[0].square().sum()

    slope = (squares(logits + step * along) - squares(logits - step * along)) / (2 * step)
    torch.testing.assert_close((right * along).sum(), slope, rtol=1e-5, atol=1e-7)


def test_a_nan_that_comes_back_for_a_sample_with_a_path_is_kept(rng):
    logits, targets, frames, counts = make(rng)
    losses = ct.ctc_loss(logits, targets, frames, counts, reduction="none", from_logits=True)
    (grad,) = torch.autograd.grad(losses, logits, torch.tensor([1.0, float("nan"), float("inf"), 0.0]).double())
    assert grad[: frames[1], 1].isnan().all()
    assert not grad[: frames[2], 2].isfinite().any()
    assert grad[:, [0, 3]].isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_nan_that_comes_back_for_a_reduced_loss_leaves_a_sample_without_a_path_at_0(rng, reduction, create_graph):
    """As the derivative of exp(-loss) * loss at inf is, where one batch has such a sample alone."""
    logits, targets, frames, counts = make(rng)
    frames[1], counts[1] = 3, 4
    loss = ct.ctc_loss(logits, targets, frames, counts, reduction=reduction, from_logits=True)
    assert loss.isposinf()
    (grad,) = torch.autograd.grad((-loss).exp() * loss, logits, create_graph=create_graph)
    assert not grad[:, 1].any()
    assert grad[: frames[0], 0].isnan().all()


class Stop(torch.autograd.Function):
    """Passes on no gradient at all, which is not one of 0."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, of_result):
        return None


@pytest.mark.parametrize("loss", [ct.ctc_loss, ct.lattice_loss])
def test_where_no_gradient_comes_back_none_goes_on(loss):
    x = torch.zeros(6, 2, 4, requires_grad=True)
    losses = loss(x, torch.tensor([[1, 2], [3, 1]]), [6, 6], [2, 2], reduction="none")
    Stop.apply(losses).sum().backward()
    assert x.grad is None
