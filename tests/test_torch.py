"""ctcbind.torch beside torch.nn: values, gradients, shapes, options, precisions."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make, theirs  # noqa: E402

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import loss as loss_module  # noqa: E402

F = torch.nn.functional


def both_gradients(logits, args, options, log_probs=False):
    weights = torch.arange(1, 1 + logits.shape[1], dtype=logits.dtype)
    results = []
    for function in (ct.ctc_loss, F.ctc_loss):
        if log_probs or function is F.ctc_loss:
            losses = function(logits.log_softmax(-1), *args, **options)
        else:
            losses = function(logits, *args, **options, from_logits=True)
        total = (losses * weights).sum() if losses.dim() else losses
        results += [losses.detach(), torch.autograd.grad(total, logits)[0]]
    return results


@pytest.mark.parametrize("log_probs", [False, True])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("blank", [0, 3, 6])
def test_losses_and_gradients_are_pytorchs(rng, reduction, blank, log_probs):
    logits, targets, frames, counts = make(rng)
    targets = torch.where(targets == blank, (blank + 1) % 7, targets)
    own, own_grad, right, right_grad = both_gradients(
        logits, (targets, frames, counts), {"blank": blank, "reduction": reduction}, log_probs
    )
    assert own.shape == right.shape
    assert own.dtype == right.dtype
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(own_grad, right_grad, rtol=1e-10, atol=1e-12)


def test_defaults_and_order_of_arguments(rng):
    """Positional calls mean the same, for the function and for the module."""
    logits, targets, frames, counts = make(rng)
    log_probs = logits.log_softmax(2)
    args = log_probs, targets, frames, counts
    torch.testing.assert_close(ct.ctc_loss(*args), F.ctc_loss(*args))
    torch.testing.assert_close(ct.ctc_loss(*args, 0, "sum", True), F.ctc_loss(*args, 0, "sum", True))
    torch.testing.assert_close(ct.CTCLoss()(*args), torch.nn.CTCLoss()(*args))
    own, right = ct.CTCLoss(0, "sum", True), torch.nn.CTCLoss(0, "sum", True)
    torch.testing.assert_close(own(*args), right(*args))
    assert (own.blank, own.reduction, own.zero_infinity) == (right.blank, right.reduction, right.zero_infinity)
    assert "reduction='sum'" in repr(own)
    assert not list(own.parameters())
    again = pickle.loads(pickle.dumps(own))
    torch.testing.assert_close(copy.deepcopy(again)(*args), right(*args))


def test_its_names_are_those_of_ctcbind_torch():
    """Which file of the package defines them is nothing that a saved module should say."""
    for name in ct.__all__:
        assert getattr(ct, name).__module__ == "ctcbind.torch"
    assert b"cctcbind.torch\nCTCLoss\n" in pickle.dumps(ct.CTCLoss(), protocol=0)


@pytest.mark.parametrize(
    "kind", ["padded", "one row", "strided row", "not contiguous", "int32", "uint8", "padding of any value"]
)
def test_forms_of_targets(rng, kind):
    logits, targets, frames, counts = make(rng)
    right = theirs(logits, targets, frames, counts, reduction="none")
    row = torch.cat([row[:count] for row, count in zip(targets, counts)])
    given = {
        "padded": targets,
        "one row": row,
        "strided row": torch.stack([row, row - 1], dim=1)[:, 0],  # PyTorch 2.13 reads others from sample 1 on
        "not contiguous": targets.t().contiguous().t(),
        "int32": targets.int(),
        "uint8": targets.byte(),
        "padding of any value": torch.where(torch.arange(5) < counts[:, None], targets, torch.tensor(-100)),
    }[kind]
    assert kind != "not contiguous" or not given.is_contiguous()
    own = ct.ctc_loss(logits, given, frames, counts, reduction="none", from_logits=True)
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [list, tuple, np.array, "int32", "int64", "uint8"])
def test_forms_of_lengths(rng, kind):
    logits, targets, frames, counts = make(rng)
    right = theirs(logits, targets, frames, counts)

    def form(lengths):
        return lengths.to(getattr(torch, kind)) if isinstance(kind, str) else kind(lengths.tolist())

    for lengths in ((form(frames), form(counts)), (form(frames), counts), (frames[:, None], counts[None])):
        own = ct.ctc_loss(logits, targets, *lengths, from_logits=True)
        torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)


def test_a_blank_of_minus_1_is_the_last_class(rng):
    logits, targets, frames, counts = make(rng)
    right = theirs(logits, targets - 1, frames, counts, blank=6)
    own = ct.CTCLoss(blank=-1, from_logits=True)(logits, targets - 1, frames, counts)
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_one_sample_without_a_batch_axis(rng, reduction):
    logits, targets, frames, counts = make(rng, N=1)
    single, labels = logits[:, 0], targets[0, : int(counts[0])]
    batched = ct.ctc_loss(logits, targets, frames, counts, reduction=reduction, from_logits=True)
    for lengths in ((frames[0], counts[0]), (int(frames), int(counts)), (frames.tolist(), counts.tolist())):
        own = ct.ctc_loss(single, labels, *lengths, reduction=reduction, from_logits=True)
        assert own.shape == ()
        torch.testing.assert_close(own, batched.squeeze())
    of_a_row = ct.ctc_loss(single, labels[None], *lengths, reduction=reduction, from_logits=True)
    assert torch.equal(of_a_row, own)
    right = theirs(single, labels, frames[0], counts[0], reduction=reduction)
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
    (grad,) = torch.autograd.grad(own, logits)
    torch.testing.assert_close(grad, torch.autograd.grad(right, logits)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("swapped", [False, True])
def test_strided_logits(rng, swapped):
    logits, targets, frames, counts = make(rng)
    plain = ct.ctc_loss(logits, targets, frames, counts, from_logits=True)
    (right,) = torch.autograd.grad(plain, logits)
    wide = torch.full((20, 4, 14), torch.nan, dtype=torch.float64)
    wide[:, :, ::2] = logits.detach()
    leaf = (wide[:, :, ::2] if not swapped else logits.detach().transpose(0, 1).contiguous()).requires_grad_()
    seen = leaf.transpose(0, 1) if swapped else leaf
    assert not seen.is_contiguous()
    own = ct.ctc_loss(seen, targets, frames, counts, from_logits=True)
    assert torch.equal(own, plain)
    (grad,) = torch.autograd.grad(own, leaf)
    assert torch.equal(grad.transpose(0, 1) if swapped else grad, right)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_samples_without_a_path(rng, reduction):
    """inf or 0, the other samples as if they were alone; gradient 0, where PyTorch's is NaN without zero_infinity."""
    logits, targets, _, _ = make(rng)
    frames, counts = torch.tensor([20, 3, 0, 20]), torch.tensor([5, 4, 1, 0])
    args = logits, targets, frames, counts
    plain = ct.ctc_loss(*args, reduction=reduction, from_logits=True)
    torch.testing.assert_close(plain, theirs(*args, reduction=reduction), rtol=1e-12, atol=1e-12)
    assert not torch.isfinite(plain).all()
    zeroed = ct.ctc_loss(*args, reduction=reduction, zero_infinity=True, from_logits=True)
    right = theirs(*args, reduction=reduction, zero_infinity=True)
    torch.testing.assert_close(zeroed, right, rtol=1e-12, atol=1e-12)
    (grad,) = torch.autograd.grad(zeroed.sum(), logits)
    torch.testing.assert_close(grad, torch.autograd.grad(right.sum(), logits)[0], rtol=1e-10, atol=1e-12)
    (of_plain,) = torch.autograd.grad(plain.sum(), logits)
    assert not of_plain[:, 1:3].any()
    assert torch.equal(of_plain, grad)


@pytest.mark.parametrize("from_logits", [False, True])
def test_classes_masked_with_minus_inf(rng, from_logits):
    """As by PyTorch's own where the mask is merely low; where it is -inf, that has the loss, and NaN for a gradient."""
    logits, targets, frames, counts = make(rng)
    targets = targets % 4 + 1  # of 7 classes, the last two are in no target
    masked = torch.zeros(logits.shape, dtype=torch.bool)
    masked[..., 5:] = torch.tensor(rng.random((*logits.shape[:2], 2)) < 0.5)
    masked[0, :, 5] = True

    def loss_and_grad(of, low, **options):
        x = logits.masked_fill(masked, low)
        losses = of(x if from_logits or of is theirs else x.log_softmax(2), targets, frames, counts, **options)
        return losses, torch.autograd.grad(losses.sum(), logits)[0]

    right, gradient = loss_and_grad(theirs, -1e3, reduction="none")
    options = {"reduction": "none", "from_logits": from_logits}
    own, grad = loss_and_grad(ct.ctc_loss, -torch.inf, **options)
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, gradient, rtol=1e-10, atol=1e-12)

    masked[1, 2] = True  # no class is left; PyTorch's log_softmax gives NaN
    own, _ = loss_and_grad(ct.ctc_loss, -torch.inf, **options)
    assert own[2].isposinf() if from_logits else own[2].isnan()


def test_lengths_of_zero(rng):
    """Empty targets are the all-blank path; empty targets and no frames cost nothing."""
    logits, targets, _, _ = make(rng)
    frames, counts = torch.tensor([20, 7, 0, 1]), torch.zeros(4, dtype=torch.int64)
    # torch.tensor([]) is of float32
    for labels in (targets, targets[:, :0], torch.empty(0, dtype=torch.int64), torch.tensor([])):
        own = ct.ctc_loss(logits, labels, frames, counts, reduction="none", from_logits=True)
        blanks = -logits.log_softmax(2)[:, :, 0]
        right = torch.stack([blanks[:frame, n].sum() for n, frame in enumerate(frames.tolist())])
        torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            *(torch.autograd.grad(each.sum(), logits)[0] for each in (own, right)), rtol=1e-10, atol=1e-12
        )
        mean = ct.ctc_loss(logits, labels, frames, counts, from_logits=True)
        torch.testing.assert_close(mean, right.mean(), rtol=1e-12, atol=0)  # a length of 0 divides as 1
    none = ct.ctc_loss(logits[:0], targets, [0] * 4, [0, 1, 0, 5], reduction="none")
    assert none.tolist() == [0, torch.inf, 0, torch.inf]
    assert torch.autograd.grad(none.sum(), logits)[0].eq(0).all()


def test_one_frame_more_or_less_than_the_labels_need(rng):
    logits = torch.tensor(rng.normal(size=(8, 3, 4)))
    targets = torch.tensor([[2, 2, 1, 1, 3]] * 3)  # 5 labels, 2 repeats: 7 frames
    losses = ct.ctc_loss(logits, targets, (6, 7, 8), (5, 5, 5), reduction="none", from_logits=True)
    assert torch.isfinite(losses).tolist() == [False, True, True]
    only = [0, 1, 2, 3, 4, 5, 6], [2, 0, 2, 1, 0, 1, 3]
    torch.testing.assert_close(losses[1], -logits.log_softmax(2)[only[0], 1, only[1]].sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("T", "N", "C", "L"), [(500, 1, 10, 256), (4000, 4, 3, 1200), (200, 2, 5, 127)])
def test_long_targets(rng, T, N, C, L, dtype):
    """Sizes on and over the tiles of GPU kernels (256 labels), and over a thousand labels of two classes."""
    logits = torch.tensor(rng.normal(size=(T, N, C)), dtype=dtype, requires_grad=True)
    frames, counts = torch.full((N,), T), torch.full((N,), L)
    targets = torch.tensor(rng.integers(1, C, size=(N, L)))
    own = ct.ctc_loss(logits, targets, frames, counts, reduction="sum", from_logits=True)
    assert torch.isfinite(own)
    wide = logits.detach().double().requires_grad_()
    right = theirs(wide, targets, frames, counts, reduction="sum")
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(own.double(), right, rtol=64 * eps, atol=0)
    (grad,), (wanted,) = torch.autograd.grad(own, logits), torch.autograd.grad(right, wide)
    # float64 log space itself is off by T roundings of numbers as large as the loss
    bound = 16 * eps + 8 * T * torch.finfo(torch.float64).eps * right.item()
    torch.testing.assert_close(grad.double(), wanted, rtol=0, atol=bound)


def test_half_precision_is_computed_in_float32(rng):
    logits, targets, frames, counts = make(rng)
    for dtype in (torch.float16, torch.bfloat16):
        half = logits.detach().to(dtype).requires_grad_()
        own = ct.ctc_loss(half, targets, frames, counts, from_logits=True)
        assert own.dtype == torch.float32
        own.backward()
        wide = half.detach().float().requires_grad_()
        right = ct.ctc_loss(wide, targets, frames, counts, from_logits=True)
        right.backward()
        assert torch.equal(own, right)
        assert half.grad.dtype == dtype
        assert torch.equal(half.grad, wide.grad.to(dtype))


def test_autocast(rng):
    logits, targets, frames, counts = make(rng, dtype=torch.float32)
    weight = torch.tensor(rng.normal(size=(7, 7)), dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = logits @ weight
        assert hidden.dtype == torch.bfloat16
        loss = ct.ctc_loss(hidden, targets, frames, counts, from_logits=True)
    assert loss.dtype == torch.float32
    loss.backward()
    assert weight.grad.dtype == torch.float32
    right = ct.ctc_loss(hidden.detach().float(), targets, frames, counts, from_logits=True)
    assert torch.equal(loss, right)


def test_values_that_are_no_log_probabilities_are_normalised(rng):
    logits, targets, frames, counts = make(rng)
    raw = ct.ctc_loss(logits, targets, frames, counts, reduction="none")
    torch.testing.assert_close(raw, theirs(logits, targets, frames, counts, reduction="none"), rtol=1e-12, atol=1e-12)


def test_topology_and_engine_are_passed_on():
    logits = torch.zeros(2, 1, 3, requires_grad=True)
    args = logits, torch.tensor([[1, 1]]), [2], [2]
    assert ct.ctc_loss(*args, from_logits=True).isinf()
    module = ct.CTCLoss(reduction="sum", from_logits=True, topology="simple", engine="reference")
    torch.testing.assert_close(module(*args).item(), 2 * np.log(3), rtol=1e-6, atol=0)
    with pytest.raises(ctcbind.InvalidInput, match="engine is 'nvidia'"):
        ct.ctc_loss(*args, engine="nvidia")
    with pytest.raises(ctcbind.InvalidInput, match="topology is 'hmm'"):
        ct.ctc_loss(*args, topology="hmm")


def test_a_module_passes_every_option_on(monkeypatch):
    """Those too that change no number here, as the engine."""
    options = {"blank": 2, "reduction": "sum", "zero_infinity": True}
    options |= {"from_logits": True, "topology": "simple", "engine": "reference"}
    tensors = {"log_probs": 1, "targets": 2, "input_lengths": 3, "target_lengths": 4}
    module, seen = ct.CTCLoss(**options), []
    assert repr(module) == f"CTCLoss({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    signature = inspect.signature(ct.ctc_loss)
    monkeypatch.setattr(loss_module, "ctc_loss", lambda *args, **named: seen.append(signature.bind(*args, **named)))
    module(*tensors.values())
    assert [each.arguments for each in seen] == [tensors | options]


def test_it_trains(rng):
    """A linear layer learns to read a batch by heart, and takes the same way as with PyTorch's own loss."""
    logits, targets, frames, counts = make(rng)  # float64: in float32 the ways part as roundings grow
    ways = []
    for criterion in (ct.CTCLoss(from_logits=True), torch.nn.CTCLoss()):
        layer = torch.nn.Linear(7, 7, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(7))
            layer.bias.zero_()
        optimiser = torch.optim.SGD(layer.parameters(), lr=0.3)
        losses = []
        for _ in range(30):
            optimiser.zero_grad()
            out = layer(logits.detach())
            out = out if isinstance(criterion, ct.CTCLoss) else out.log_softmax(2)
            loss = criterion(out, targets, frames, counts)
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        ways.append(losses)
    np.testing.assert_allclose(*ways, rtol=1e-8)
    assert ways[0][-1] < 0.9 * ways[0][0]


def test_ctcbind_does_not_import_torch():
    script = (
        "import sys, ctcbind; assert 'torch' not in sys.modules; import ctcbind.torch; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120, cwd=os.path.dirname(sys.executable))


def test_the_readmes_lines_run():
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text(encoding="utf-8")
    (block,) = (text for text in re.findall(r"^```python\n(.*?)^```", readme, re.M | re.S) if "import torch\n" in text)
    names = {}
    exec(compile(block, "README.md", "exec"), names)
    scores, args = names["scores"], (torch.tensor([[3, 1, 20], [8, 9, 0]]), [50, 31], [3, 2])
    exact = scores.detach().double().requires_grad_()
    F.ctc_loss(exact.log_softmax(-1), *args).backward()
    torch.testing.assert_close(scores.grad.double(), exact.grad, rtol=0, atol=2e-6)


def test_a_loss_past_its_dtype_has_no_second_derivative_where_infinity_is_zero():
    x = torch.tensor([[[3e38, 3e38, -3e38], [0.0, 1.0, 2.0]]], requires_grad=True)
    loss = ctcbind.torch.ctc_loss(
        x, torch.tensor([[2], [2]]), [1, 1], [1, 1], reduction="sum", zero_infinity=True, from_logits=True
    )
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(grad[..., 0].sum(), x)
    assert not grad[0, 0].any()
    assert not second[0, 0].any()
    assert second[0, 1].any()
