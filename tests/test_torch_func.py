"""ctcbind.torch under the reverse mode of torch.func: the derivatives of autograd."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make  # noqa: E402

import ctcbind.torch as ct  # noqa: E402


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # of PyTorch's own, in its jvp
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_torch_func_differentiates_as_autograd_does(rng, reduction, zero_infinity):
    logits, targets, frames, counts = make(rng)
    weights, direction = torch.rand(logits.shape[1], dtype=logits.dtype), torch.randn_like(logits)

    def loss(x):
        options = {"reduction": reduction, "zero_infinity": zero_infinity, "from_logits": True}
        losses = ct.ctc_loss(x, targets, frames, counts, **options)
        return (losses * weights).sum() if reduction == "none" else losses

    x = logits.detach().clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(x), x, create_graph=True)
    (second,) = torch.autograd.grad((grad * direction).sum(), x)
    x = x.detach()
    by_func, value = torch.func.grad_and_value(loss)(x)
    torch.testing.assert_close(by_func, grad.detach(), rtol=0, atol=0)
    torch.testing.assert_close(value, loss(x), rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vjp(loss, x)[1](torch.ones_like(value))[0], grad.detach(), rtol=0, atol=0)
    twice = torch.func.grad(lambda y: (torch.func.grad(loss)(y) * direction).sum())
    torch.testing.assert_close(twice(x), second, rtol=1e-12, atol=1e-12)
    with pytest.raises(NotImplementedError, match="twice, not three times"):
        torch.func.grad(lambda y: (twice(y) * direction).sum())(x)
    along = torch.autograd.functional.jvp(loss, x, direction)[1]  # which the refusal of forward mode names
    torch.testing.assert_close(along, (grad.detach() * direction).sum(), rtol=1e-12, atol=1e-12)

    def product(along):
        return torch.func.grad(lambda y: (torch.func.grad(loss)(y) * along).sum())(x)

    torch.testing.assert_close(product(direction), second, rtol=1e-12, atol=1e-12)
    with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
        torch.func.jvp(product, (direction,), (direction,))
    for function in (loss, torch.func.grad(loss)):
        with pytest.raises(NotImplementedError, match="no derivatives in forward mode: take them in reverse mode"):
            torch.func.jvp(function, (x,), (direction,))


def test_torch_func_gives_the_gradients_of_each_sample(rng):
    logits, targets, frames, counts = make(rng)
    x = logits.detach()
    each = torch.func.jacrev(lambda y: ct.ctc_loss(y, targets, frames, counts, reduction="none", from_logits=True))(x)
    right = torch.zeros_like(each)
    grad = torch.func.grad(lambda y: ct.ctc_loss(y, targets, frames, counts, reduction="sum", from_logits=True))(x)
    for n in range(x.shape[1]):
        right[n, :, n] = grad[:, n]
    torch.testing.assert_close(each, right, rtol=0, atol=0)


def test_torch_func_reaches_the_weights_of_a_network(rng):
    logits, targets, frames, counts = make(rng)
    network, features = torch.nn.Linear(4, logits.shape[2]).double(), torch.randn(*logits.shape[:2], 4).double()

    def loss(weights):
        output = torch.func.functional_call(network, weights, (features,))
        return ct.ctc_loss(output, targets, frames, counts, from_logits=True)

    weights = dict(network.named_parameters())
    by_func = torch.func.grad(loss)({name: each.detach() for name, each in weights.items()})
    loss(weights).backward()
    for name, each in weights.items():
        torch.testing.assert_close(by_func[name], each.grad)


def test_torch_func_where_the_logits_need_no_gradient():
    x, targets = torch.randn(6, 2, 5, dtype=torch.double), torch.tensor([[1, 2], [3, 1]])

    def loss(y):
        return ct.ctc_loss(y, targets, [6, 6], [2, 2], reduction="none", from_logits=True)

    def beside(y):
        with torch.no_grad():
            again = loss(y)
        return loss(y).sum(), (loss(y.detach()), again)

    grad, found = torch.func.grad(beside, has_aux=True)(x)
    torch.testing.assert_close(grad, torch.func.grad(lambda y: loss(y).sum())(x))
    for each in found:
        torch.testing.assert_close(each, loss(x), rtol=0, atol=0)
    of_weights = torch.func.grad(lambda w: (loss(x) * w).sum())(torch.ones(2, dtype=torch.double))
    torch.testing.assert_close(of_weights, loss(x), rtol=0, atol=0)


def test_torch_func_gives_hessians():
    x, targets = torch.randn(5, 1, 4, dtype=torch.double), torch.tensor([[1, 2]])

    def loss(y):
        return ct.ctc_loss(y, targets, [5], [2], reduction="sum", from_logits=True)

    right = torch.autograd.functional.hessian(loss, x)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacrev(loss))(x), right, rtol=1e-12, atol=1e-12)
