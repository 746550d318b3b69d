"""ctcbind.torch beside torch.nn: values, gradients, shapes, options, refusals, second derivatives, compiled graphs.

PyTorch's float64 log-space code on the CPU is the yardstick where it is right; tolerances are those of float32 sums
over the T frames where an operand is float32, and of float64 otherwise.
"""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import lattice, operators  # noqa: E402
from ctcbind.torch.call import Call  # noqa: E402

F = torch.nn.functional
forward_ad = torch.autograd.forward_ad


@pytest.fixture
def rng():
    return np.random.default_rng(SEED)


def make(rng, T=20, N=4, C=7, L=5, dtype=torch.float64):
    """Logits, padded targets and both lengths, where every sample has a path."""
    logits = torch.tensor(rng.normal(size=(T, N, C)) * 2, dtype=dtype, requires_grad=True)
    targets = torch.tensor(rng.integers(1, C, size=(N, L)))
    frames = torch.tensor(rng.integers(2 * L + 1, T + 1, size=N))
    counts = torch.tensor(rng.integers(0, L + 1, size=N))
    return logits, targets, frames, counts


def theirs(logits, *args, **options):
    return F.ctc_loss(logits.log_softmax(-1), *args, **options)


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


@pytest.mark.parametrize("kind", ["padded", "one row", "not contiguous", "int32", "uint8", "padding of any value"])
def test_forms_of_targets(rng, kind):
    logits, targets, frames, counts = make(rng)
    right = theirs(logits, targets, frames, counts, reduction="none")
    given = {
        "padded": targets,
        "one row": torch.cat([row[:count] for row, count in zip(targets, counts)]),
        "not contiguous": targets.t().contiguous().t(),
        "int32": targets.int(),
        "uint8": targets.byte(),
        "padding of any value": torch.where(torch.arange(5) < counts[:, None], targets, torch.tensor(-100)),
    }[kind]
    assert kind != "not contiguous" or not given.is_contiguous()
    own = ct.ctc_loss(logits, given, frames, counts, reduction="none", from_logits=True)
    torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", [list, tuple, "int32", "int64", "uint8"])
def test_forms_of_lengths(rng, kind):
    logits, targets, frames, counts = make(rng)
    right = theirs(logits, targets, frames, counts)

    def form(lengths):
        return lengths.to(getattr(torch, kind)) if isinstance(kind, str) else kind(lengths.tolist())

    own = ct.ctc_loss(logits, targets, form(frames), form(counts), from_logits=True)
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


def test_many_backward_passes_at_once(rng):
    """What torch.autograd.functional.jacobian(vectorize=True) does."""
    logits, targets, frames, counts = make(rng)
    losses = ct.ctc_loss(logits, targets, frames, counts, reduction="none", from_logits=True)
    weights = torch.tensor(rng.normal(size=(3, 4)))
    (many,) = torch.autograd.grad(losses, logits, weights, is_grads_batched=True, retain_graph=True)
    for weight, grad in zip(weights, many):
        assert torch.equal(grad, torch.autograd.grad(losses, logits, weight, retain_graph=True)[0])


# --- threads ------------------------------------------------------------------------------------------------

ON_PYTORCHS_THREADS = """
import os, sys
import numpy as np, torch
torch.set_num_threads(3)
import ctcbind
rng = np.random.default_rng(int(sys.argv[1]))
x, y = rng.normal(size=(150, 64, 28)).astype(np.float32), rng.integers(1, 28, size=(64, 40))
def loss_and_grad(threads):
    ctcbind.set_num_threads(threads)
    loss, grad, _ = ctcbind.ctc_loss_and_grad(x, y, [150] * 64, [40] * 64)
    return loss.tobytes() + grad.tobytes()
def crew():
    return len(os.listdir("/proc/self/task"))
alone = loss_and_grad(1)
before = crew()
torch.ones(1 << 20).exp()
with_torchs = crew()
assert with_torchs > before, "PyTorch has started no threads"
"""


def python(script):
    here = os.path.dirname(sys.executable)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return subprocess.run(
        [sys.executable, "-c", script, str(SEED)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=here,
        env=environment,
        check=False,
    )


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PyTorch's OpenMP is libgomp on Linux")


@linux
def test_the_engine_works_on_pytorchs_threads():
    done = python(
        ON_PYTORCHS_THREADS
        + """
import time
assert loss_and_grad(3) == alone
assert crew() == with_torchs, "threads of its own beside as many of PyTorch's"
assert loss_and_grad(2) == alone  # as many as PyTorch does not take: they are its own
assert crew() == with_torchs + 1
time.sleep(1)  # PyTorch's sleep by now, and to wait for them would take longer
assert loss_and_grad(3) == alone
assert crew() == with_torchs + 2
torch.set_num_threads(2)
assert loss_and_grad(2) == alone
"""
    )
    assert done.returncode == 0, done.stderr


@linux
def test_a_child_that_is_the_first_to_import_it_has_threads_of_its_own():
    done = python(
        """
import os, signal, warnings, sys, torch
torch.set_num_threads(3)
torch.ones(1 << 20).exp()
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(30)
    import numpy as np, ctcbind
    ctcbind.set_num_threads(3)
    with ctcbind.CTCLoss() as ctc:
        for _ in range(3):
            loss = ctc(np.zeros((150, 64, 28), np.float32), [[1] * 40] * 64).loss
    os._exit(0 if np.isfinite(loss).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    assert done.returncode == 0, done.stderr


@linux
@pytest.mark.parametrize("used", [True, False])
def test_a_forked_child_has_threads_of_its_own(used):
    """PyTorch's are not in it, and OpenMP would wait for them for ever."""
    done = python(
        ON_PYTORCHS_THREADS
        + f"""
import signal, warnings
if {used}:
    assert loss_and_grad(3) == alone
warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(0 if loss_and_grad(3) == alone else 1)
assert os.waitpid(child, 0)[1] == 0
assert loss_and_grad(3) == alone
"""
    )
    assert done.returncode == 0, done.stderr


# --- edges --------------------------------------------------------------------------------------------------


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


def test_lengths_of_zero(rng):
    """Empty targets are the all-blank path; empty targets and no frames cost nothing."""
    logits, targets, _, _ = make(rng)
    frames, counts = torch.tensor([20, 7, 0, 1]), torch.zeros(4, dtype=torch.int64)
    for labels in (targets, targets[:, :0], torch.empty(0, dtype=torch.int64)):
        own = ct.ctc_loss(logits, labels, frames, counts, reduction="none", from_logits=True)
        blanks = -logits.log_softmax(2)[:, :, 0]
        right = torch.stack([blanks[:frame, n].sum() for n, frame in enumerate(frames.tolist())])
        torch.testing.assert_close(own, right, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(
            *(torch.autograd.grad(each.sum(), logits)[0] for each in (own, right)), rtol=1e-10, atol=1e-12
        )
        mean = ct.ctc_loss(logits, labels, frames, counts, from_logits=True)
        torch.testing.assert_close(mean, right.mean(), rtol=1e-12, atol=0)  # a length of 0 divides as 1


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
@pytest.mark.parametrize("given", ["nothing", "bonus", "one bonus", "prior", "both"])
def test_the_loss_on_the_lattice_is_differentiable(rng, given, reduction, topology):
    """In logits, bonuses and priors; beside samples without a path."""
    x = torch.tensor(rng.normal(size=(6, 3, 4)), requires_grad=True)
    targets, frames, counts = torch.tensor([[1, 2, 2], [3, 1, 2], [1, 1, 1]]), [6, 4, 2], [3, 2, 3]
    shape = (6, 1) if given == "one bonus" else (3, 6, 7)
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
    assert loss.item() == pytest.approx(wide.loss.sum(), rel=1e-6)
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
    options = 0, "ctc", 0.5, (bonus is not None) + 2 * (prior is not None)
    # not test_aot_dispatch_dynamic, which differentiates what is itself a gradient
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(lattice._lattice, (*inputs, *options), test_utils=checks)

    def function(x):
        return ct.lattice_loss(2 * x, targets, frames, counts, path_bonus=bonus, log_prior=prior)

    right = torch.autograd.grad(function(x), x)[0]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], right, rtol=0, atol=0)


def test_the_loss_on_the_lattice_without_a_path_and_refused(rng):
    x = torch.zeros(3, 1, 4, requires_grad=True)
    args = x, torch.tensor([[1, 1, 1]]), [3], [3]
    assert ct.lattice_loss(*args).isinf()
    ct.lattice_loss(*args, reduction="sum").backward()
    assert not x.grad.any()
    first = torch.autograd.grad(ct.lattice_loss(x, torch.tensor([[1]]), [3], [1]), x, create_graph=True)[0]
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(first.square().sum(), x)
    for wrong, rule in (
        ({"path_bonus": torch.zeros(2, 3, 7)}, "path_bonus"),
        ({"log_prior": torch.zeros(3)}, "log_prior"),
        ({"log_prior": [0.0, 0.0, 0.0, float("nan")]}, "log_prior"),
        ({"prior_weight": float("inf")}, "prior_weight"),
        ({"reduction": "median"}, "reduction"),
        ({"blank": 7}, "blank"),
        ({"zero_infinity": "no"}, "zero_infinity"),
        ({"topology": "hmm"}, "topology"),
    ):
        with pytest.raises(ct.InvalidTorchInput) as caught:
            ct.lattice_loss(*args, **wrong)
        assert caught.value.rule == rule
    for other in (x[:, 0], x.detach().numpy(), None):
        with pytest.raises(ct.InvalidTorchInput, match="logits"):
            ct.lattice_loss(other, *args[1:])
    with pytest.raises(ct.InvalidTorchInput, match="targets are of type list"):
        ct.lattice_loss(x, [[1]], [3], [1])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of PyTorch's own decompositions
def test_the_loss_on_the_lattice_takes_scores_as_they_are(rng):
    """Lists with the digits of doubles; what cannot be is refused."""
    x, args = torch.tensor(rng.normal(size=(5, 2, 4))), (torch.tensor([[1, 2], [3, 1]]), [5, 5], [2, 2])
    bonus = [0.1, 0.2, 0.3, 0.4, 0.5]
    right = ctcbind.lattice_loss_and_grad(x.numpy(), *args, path_bonus=bonus, log_prior=bonus[:4]).loss
    got = ct.lattice_loss(x, *args, reduction="none", path_bonus=bonus, log_prior=bonus[:4])
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


def test_topology_and_engine_are_passed_on(rng):
    logits = torch.zeros(2, 1, 3, requires_grad=True)
    args = logits, torch.tensor([[1, 1]]), [2], [2]
    assert ct.ctc_loss(*args, from_logits=True).isinf()
    module = ct.CTCLoss(reduction="sum", from_logits=True, topology="simple", engine="reference")
    torch.testing.assert_close(module(*args).item(), 2 * np.log(3), rtol=1e-6, atol=0)
    with pytest.raises(ctcbind.InvalidInput, match="engine is 'nvidia'"):
        ct.ctc_loss(*args, engine="nvidia")
    with pytest.raises(ctcbind.InvalidInput, match="topology is 'hmm'"):
        ct.ctc_loss(*args, topology="hmm")


# --- derivatives --------------------------------------------------------------------------------------------


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


def test_a_third_derivative_is_refused(rng):
    logits, targets, frames, counts = make(rng)
    loss = ct.ctc_loss(logits, targets, frames, counts, from_logits=True)
    (first,) = torch.autograd.grad(loss, logits, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), logits, create_graph=True)
    with pytest.raises(RuntimeError, match=r"ctcbind\.hvp"):
        torch.autograd.grad(second.sum(), logits)


# --- graphs -------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(operators, "_traced", lambda _, traced=traced: traced)
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
    (grad,), (wanted,) = (torch.autograd.grad(each, other[0]) for each in (own, right))
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
    with FakeTensorMode():
        found = shapes(torch.empty)
    assert found == (*wanted, torch.device("cpu"), torch.Size([9, 3, 5]), torch.float32)


# --- around it ----------------------------------------------------------------------------------------------


def test_threads_have_workspaces_of_their_own(rng):
    from concurrent.futures import ThreadPoolExecutor

    cases = [make(rng, T=40 + n, N=8, L=9) for n in range(24)]

    def run(case):
        return torch.autograd.grad(ct.ctc_loss(*case, from_logits=True), case[0])[0]

    right = [run(case) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        for grad, wanted in zip(pool.map(run, cases), right):
            assert torch.equal(grad, wanted)


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


def test_cuda_tensors_go_through_dlpack_on_pytorchs_stream(monkeypatch):
    """As far as it can be told without a GPU: what is asked of CuPy, and in which scope."""
    log = []

    class Scope:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(f"enter {self.name}")

        def __exit__(self, *_):
            log.append(f"leave {self.name}")

    cuda = SimpleNamespace(
        Stream=Scope,
        Device=lambda number: Scope(f"device {number}"),
        ExternalStream=lambda pointer, number: Scope(f"stream {pointer} of device {number}"),
    )

    class Tensor:
        def __init__(self, kind="cuda"):
            self.is_cpu, self.is_cuda, self.device = kind == "cpu", kind == "cuda", torch.device(kind, 1)

        def detach(self):
            return "detached"

    cupy = SimpleNamespace(cuda=cuda, from_dlpack=lambda each: f"cupy {each}")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=100 + device.index))
    monkeypatch.setattr(torch, "from_dlpack", lambda each: f"torch {each}")
    on_host = torch.tensor([1])
    with Call(Tensor()) as call:
        assert call.array(Tensor()) == "cupy detached"
        assert call.array(on_host).ctypes.data == on_host.data_ptr()  # labels may stay on the host
        assert call.tensor("array") == "torch array"
        options = 0, "label_mean", False, "ctc", "auto"
        assert call.plan(*options) is call.plan(*options)
        assert call.plan(*options) is not Call(on_host).plan(*options)
        log.append("work")
    scopes = ["device 1", "stream 101 of device 1"]
    assert log == [*(f"enter {each}" for each in scopes), "work", *(f"leave {each}" for each in scopes[::-1])]
    with pytest.raises(ct.InvalidTorchInput, match="log_probs are on mps:1"):
        Call(Tensor("mps"))
