"""The operators of ctcbind.torch: PyTorch's rules for them, compiled and exported graphs, tensors without values."""

from __future__ import annotations

import inspect
import warnings
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make  # noqa: E402

import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import operators  # noqa: E402


# opcheck of PyTorch 2.14 itself looks there, and hides the warning in a way that does not know of errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("lie", ["TNC", "NTC", "CNT", "every other class", "one for all samples"])
def test_the_operators_keep_pytorchs_rules(rng, lie):
    """However the logits lie in memory: a compiled program relies on where an operator says that its results lie."""
    logits, targets, frames, counts = make(rng)
    plain = logits.detach()
    if lie == "NTC":
        plain = plain.transpose(0, 1).contiguous().transpose(0, 1)
    elif lie == "CNT":
        plain = plain.transpose(0, 2).contiguous().transpose(0, 2)
    elif lie == "every other class":
        plain = plain.repeat_interleave(2, 2)[..., ::2]
    elif lie == "one for all samples":
        plain = plain[:, :1].expand(plain.shape)
    logits = plain.requires_grad_()
    plain = logits.detach()
    for reduction in ("none", "label_mean"):
        options = 0, reduction, False, "ctc", "auto"
        torch.library.opcheck(operators._loss, (logits, targets, frames, counts, *options))
        torch.library.opcheck(operators._loss_and_grad, (logits, targets, frames, counts, *options))
        turned = logits.detach().permute(1, 2, 0).contiguous().permute(2, 0, 1).requires_grad_()  # as of a convolution
        torch.library.opcheck(operators._loss_and_grad, (turned, targets, frames, counts, *options))
    torch.library.opcheck(operators._scaled, (plain, torch.rand(4, dtype=torch.float64)))
    torch.library.opcheck(operators._scaled, (plain, torch.tensor(0.5, dtype=torch.float64)))
    torch.library.opcheck(operators._hvp, (plain, targets, plain.clone(), frames, counts, 0, "ctc"))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_the_operators_and_the_way_past_them_are_one(rng, monkeypatch, reduction, zero_infinity):
    logits, targets, _, counts = make(rng)
    frames = torch.tensor([20, 2, 17, 20])  # the second has no path
    args = targets, frames, counts, 0, reduction, zero_infinity
    scale = torch.tensor(rng.normal(size=4 if reduction == "none" else ()))
    found = []
    for traced in (False, True):
        monkeypatch.setattr(operators, "traced", lambda _, traced=traced: traced)
        loss = ct.ctc_loss(logits, *args, from_logits=True)
        kept = torch.autograd.grad(loss, logits, scale, retain_graph=True)[0]
        (first,) = torch.autograd.grad(loss, logits, scale, create_graph=True)
        (second,) = torch.autograd.grad((first**3).sum(), logits, retain_graph=True)
        (last,) = torch.autograd.grad(loss, logits, scale)
        with torch.no_grad():
            alone = ct.ctc_loss(logits, *args, from_logits=True)
        found.append((loss.detach(), alone, first.detach(), second, kept, last))
        assert torch.equal(kept, last)
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=1e-16)


@pytest.mark.skipif(not hasattr(torch.Tag, "cudagraph_unsafe"), reason="PyTorch has no such tag yet")
@pytest.mark.parametrize("name", ["loss", "loss_and_grad", "hvp", "scaled", "lattice"])
def test_no_operator_is_put_into_a_cuda_graph(name):
    """On a device each waits for its stream."""
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.ctcbind, name).default.tags


def test_compiled_as_one_graph(rng):
    logits, targets, frames, counts = make(rng)
    weight = torch.tensor(rng.normal(size=(7, 7)), requires_grad=True)
    criterion = ct.CTCLoss(from_logits=True, zero_infinity=True)

    def step(x, labels, frames, counts):
        return criterion(x @ weight, labels, frames, counts)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for lengths in ((frames, counts), (frames.tolist(), tuple(counts.tolist()))):
        results = []
        for function in (step, compiled):
            loss = function(logits, targets, *lengths)
            results += [loss.detach(), torch.autograd.grad(loss, weight)[0]]
        torch.testing.assert_close(results[0], results[2], rtol=1e-14, atol=0)
        torch.testing.assert_close(results[1], results[3], rtol=1e-12, atol=1e-14)
    with torch.no_grad():
        torch.testing.assert_close(compiled(logits, targets, frames, counts), results[0], rtol=1e-14, atol=0)
    with pytest.raises(ct.InvalidTorchInput, match=r"targets\[0\]\[0\] is 7"):
        compiled(logits, torch.full((4, 5), 7), frames, torch.full((4,), 5))


@pytest.mark.parametrize("kind", [list, tuple, int])
def test_lists_of_lengths_are_not_compiled_one_by_one(rng, kind):
    """After the second PyTorch takes the numbers for unknown; what it has compiled eight times it compiles no more."""
    N = 1 if kind is int else 4
    logits, targets, _, _ = make(rng, T=20, N=N, L=5)
    frames, counts = rng.integers(11, 16, size=N), rng.integers(0, 4, size=N)
    torch.compiler.reset()  # what it knows of numbers from calls before
    loss, graphs = partial(ct.ctc_loss, from_logits=True), []
    compiled = torch.compile(loss, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    for step in range(4):  # each number is another at each step, and none is 1, which it takes for a constant
        each = (frames + step).tolist(), (2 + (counts + step) % 4).tolist()
        lengths = [one[0] if kind is int else kind(one) for one in each]
        assert torch.equal(compiled(logits, targets, *lengths), loss(logits, targets, *lengths))
    assert len(graphs) == 2


def test_compiled_with_options_of_numpys(rng):
    """As a configuration may have them: the module keeps Python's own, which is all that a graph can hold."""
    logits, targets, frames, counts = make(rng)
    criterion = ct.CTCLoss(np.int64(0), zero_infinity=np.bool_(True), from_logits=np.bool_(True))
    assert repr(criterion) == repr(ct.CTCLoss(zero_infinity=True, from_logits=True))
    compiled = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    plain = ct.CTCLoss(zero_infinity=True, from_logits=True)(logits, targets, frames, counts)
    torch.testing.assert_close(compiled(logits, targets, frames, counts), plain, rtol=1e-14, atol=0)


def test_exported_with_free_sizes(rng):
    logits, targets, frames, counts = make(rng)

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.criterion = ct.CTCLoss(reduction="sum", from_logits=True)

        def forward(self, x, labels, frames, counts):
            return self.criterion(x, labels, frames, counts)

    N = torch.export.Dim("N", min=2)
    sizes = ({0: torch.export.Dim("T", min=2), 1: N}, {0: N, 1: torch.export.Dim("L", min=2)}, {0: N}, {0: N})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch about itself
        program = torch.export.export(Whole(), (logits.detach(), targets, frames, counts), dynamic_shapes=sizes)
    assert "ctcbind.loss" in str(program.graph)
    other = make(rng, T=31, N=3, L=8)
    own, right = program.module()(*other), ct.ctc_loss(*other, reduction="sum", from_logits=True)
    torch.testing.assert_close(own, right, rtol=0, atol=0)
    (grad,), (wanted,) = (torch.autograd.grad(3 * each, other[0]) for each in (own, right))
    assert torch.equal(grad, wanted)  # exported for inference, and differentiable all the same


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_tensors_without_values(reduction):
    """Meta tensors and fake ones give shapes and dtypes."""
    from torch._subclasses import FakeTensorMode

    def shapes(make):
        x = make((9, 3, 5)).requires_grad_()
        loss = ct.ctc_loss(x, make((3, 2)).long(), make((3,)).long(), make((3,)).long(), reduction=reduction)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        return loss.shape, loss.dtype, loss.device, grad.shape, grad.dtype

    wanted = torch.Size([3] if reduction == "none" else []), torch.float32
    assert shapes(lambda size: torch.empty(size, device="meta"))[:2] == wanted
    wanted = *wanted, torch.device("cpu"), torch.Size([9, 3, 5]), torch.float32
    with FakeTensorMode() as mode:
        assert shapes(torch.empty) == wanted
    assert shapes(lambda size: mode.from_tensor(torch.empty(size))) == wanted  # which stay so outside


def test_make_fx_writes_no_constant_down():
    from torch.fx.experimental.proxy_tensor import make_fx

    args = torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2])
    x, y = torch.randn(2, 6, 1, 4, generator=torch.Generator().manual_seed(0))

    def summed(loss):
        return lambda x: loss(x, *args, reduction="sum")

    for f in map(summed, (ct.ctc_loss, ct.lattice_loss)):
        assert make_fx(f)(x)(y) == f(y) != f(x)
        grad = torch.func.grad(f)
        torch.testing.assert_close(make_fx(grad)(x)(y), grad(y))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(6, 6)
        self.criterion = ct.CTCLoss()

    def forward(self, x):
        return self.last(x).log_softmax(2)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # deprecated, and still what deployments call
def test_torchscript_takes_a_module_that_holds_a_loss():
    model, x = Model(), torch.randn(20, 2, 6)
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


def test_fx_keeps_the_call():
    class Losses(Model):
        def forward(self, x, targets, frames, counts):
            args = targets, frames, counts
            scores = self.last(x)
            added = ct.lattice_loss(scores, *args, log_prior=torch.zeros(6), prior_weight=0.5)
            return self.criterion(scores.log_softmax(2), *args), ct.ctc_loss(scores, *args, from_logits=True), added

    model, (counts, frames) = Losses(), torch.tensor([[2, 1], [20, 15]])
    written = torch.fx.symbolic_trace(model)
    for seed in range(2):
        x = torch.randn(20, 2, 6, generator=torch.Generator().manual_seed(seed))
        args = x, torch.tensor([[1, 2], [3 + seed, 0]]), frames, counts
        torch.testing.assert_close(written(*args), model(*args), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (ct.ctc_loss, {"from_logits": True, "topology": "simple", "engine": "reference"}),
        (ct.lattice_loss, {"path_bonus": 0.5, "log_prior": 0.1, "prior_weight": 2.0, "topology": "simple"}),
    ],
)
def test_fx_keeps_every_option(loss, options):
    options = {"blank": 1, "reduction": "sum", "zero_infinity": True, **options}

    class Loss(torch.nn.Module):
        def forward(self, x, targets, frames, counts):
            return loss(x, targets, frames, counts, **options)

    (call,) = (node for node in torch.fx.symbolic_trace(Loss()).graph.nodes if node.op == "call_function")
    tensors, kept = call.args[:4], inspect.signature(loss).bind(*call.args, **call.kwargs).arguments
    assert [str(each) for each in tensors] == ["x", "targets", "frames", "counts"]
    assert {name: kept.get(name) for name in options} == options


def test_lengths_do_not_follow_the_default_device():
    x, targets = torch.randn(20, 2, 6), torch.tensor([[1, 2], [3, 4]])
    right = ct.ctc_loss(x, targets, [20, 18], [2, 1], from_logits=True)
    with torch.device("meta"):
        torch.testing.assert_close(ct.ctc_loss(x, targets, [20, 18], [2, 1], from_logits=True), right)
