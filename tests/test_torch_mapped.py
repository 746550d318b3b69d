"""ctcbind.torch under torch.func.vmap: every batch as if it had come alone, of all samples in one call."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch.func import functional_call, grad, jacrev, vmap  # noqa: E402

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import operators  # noqa: E402

REDUCTIONS = ["none", "mean", "sum"]
#: The engine rounds a loss once; a mean of four rounds each of them, and their sum, and each gradient's product with a
#: weight: at most five halves of an epsilon of losses, one more of gradients, whose numbers are below 1.
CLOSE = {torch.float64: {"rtol": 1e-14, "atol": 1e-15}, torch.float32: {"rtol": 3e-7, "atol": 2e-7}}


def batches(rng, B=3, T=12, N=4, C=5, L=4, dtype=torch.float64):
    """Logits (B, T, N, C), labels (B, N, L), lengths (B, N) of both; one sample of each batch is empty, and one of the
    first has no path."""
    x = torch.tensor(rng.normal(size=(B, T, N, C)), dtype=dtype)
    targets = torch.tensor(rng.integers(1, C, (B, N, L)))
    frames, counts = torch.tensor(rng.integers(2 * L, T + 1, (B, N))), torch.tensor(rng.integers(1, L + 1, (B, N)))
    counts[:, 1] = 0
    counts[0, 0], frames[0, 0] = L, L - 1
    return x, targets, frames, counts


def alone(function, *arguments):
    """The results for each of the batches, one after the other."""
    return torch.stack([function(*each) for each in zip(*arguments, strict=True)])


def calls(monkeypatch):
    """How many samples each call of the engine had."""
    seen, run = [], operators._loss_and_grad_now

    def counted(logits, *rest):
        seen.append(logits.shape[1])
        return run(logits, *rest)

    monkeypatch.setattr(operators, "_loss_and_grad_now", counted)
    return seen


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("zero_infinity", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_losses_and_gradients(rng, reduction, from_logits, zero_infinity, dtype):
    def loss(x, *rest):
        x = x if from_logits else x.log_softmax(2)
        return ct.ctc_loss(x, *rest, reduction=reduction, zero_infinity=zero_infinity, from_logits=from_logits)

    def weighted(x, *rest):
        return (loss(x, *rest) * torch.arange(1, 5)).sum() if reduction == "none" else 3 * loss(x, *rest)

    given = batches(rng, dtype=dtype)
    right, found = alone(loss, *given), vmap(loss)(*given)
    assert found.shape == right.shape
    assert found.dtype == dtype
    torch.testing.assert_close(found, right, **CLOSE[dtype])
    right = alone(grad(weighted), *given)
    assert right.isfinite().all()
    close = {**CLOSE[dtype], "atol": 4 * CLOSE[dtype]["atol"]}  # as the weights
    torch.testing.assert_close(vmap(grad(weighted))(*given), right, **close)
    x = given[0].clone().requires_grad_()
    vmap(weighted)(x, *given[1:]).sum().backward()
    torch.testing.assert_close(x.grad, right, **close)
    of_sum = grad(lambda x: vmap(weighted)(x, *given[1:]).sum())(given[0])
    torch.testing.assert_close(of_sum, right, **close)


@pytest.mark.parametrize("dims", [(3, 1, 1, 1), (2, 0, 0, 0), (1, 0, None, None), (0, None, 0, 0), (None, 0, 0, None)])
def test_dimensions_of_batches(rng, monkeypatch, dims):
    """Wherever they are, and for what is the same for all; each way with one call of the engine."""
    whole = batches(rng)
    each = [whole[k] if dim is not None else whole[k][1:2].expand(whole[k].shape) for k, dim in enumerate(dims)]
    given = [a.movedim(0, dim) if dim is not None else a[0] for a, dim in zip(each, dims, strict=True)]
    right = alone(lambda *one: ct.ctc_loss(*one, from_logits=True), *each)
    of_right = alone(grad(lambda *one: ct.ctc_loss(*one, from_logits=True, zero_infinity=True)), *each)
    seen = calls(monkeypatch)
    found = vmap(lambda *one: ct.ctc_loss(*one, from_logits=True), in_dims=dims)(*given)
    assert seen == [12]
    torch.testing.assert_close(found, right, **CLOSE[torch.float64])
    found = vmap(grad(lambda *one: ct.ctc_loss(*one, from_logits=True, zero_infinity=True)), in_dims=dims)(*given)
    assert seen == [12, 12]
    torch.testing.assert_close(found, of_right, **CLOSE[torch.float64])


def test_gradients_of_each_sample_of_a_networks_weights(rng, monkeypatch):
    """One sample, (T, C), at a time, as for clipping each sample's gradient."""
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5)).double()
    weights = {name: each.detach() for name, each in network.named_parameters()}
    features = torch.tensor(rng.normal(size=(7, 12, 6)))
    _, targets, frames, counts = (each[0] for each in batches(rng, B=1, N=7))

    def loss(weights, features, targets, frames, counts):
        return ct.ctc_loss(functional_call(network, weights, features), targets, frames, counts, from_logits=True)

    seen = calls(monkeypatch)
    found = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0))(weights, features, targets, frames, counts)
    assert seen == [7]
    for k in range(7):
        network.zero_grad()
        ct.ctc_loss(network(features[k]), targets[k], frames[k], counts[k], from_logits=True).backward()
        for name, each in network.named_parameters():
            torch.testing.assert_close(found[name][k], each.grad, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("counts", [[[4, 1, 2], [1, 3, 3]], [[1, 1, 1], [0, 2, 1]]])
def test_labels_in_one_row(rng, counts):
    """Whose borders differ from batch to batch; also as many labels as samples."""
    x, frames = torch.tensor(rng.normal(size=(2, 12, 3, 5))), torch.tensor([[12, 10, 9]] * 2)
    counts = torch.tensor(counts)
    labels = int(counts[0].sum())
    targets = torch.tensor(rng.integers(1, 5, (2, labels)))
    for given in (x, targets, frames, counts), (x[:1], targets[:1], frames[:1], counts[:1]):
        torch.testing.assert_close(vmap(ct.ctc_loss)(*given), alone(ct.ctc_loss, *given), rtol=0, atol=0)
        torch.testing.assert_close(vmap(grad(ct.ctc_loss))(*given), alone(grad(ct.ctc_loss), *given), rtol=0, atol=0)
    with pytest.raises(ct.InvalidTorchInput, match=f"{labels}"):  # and not the labels of both together
        vmap(ct.ctc_loss)(x, targets, frames, counts + torch.tensor([[0, 0, 1], [0, 0, -1]]))


@pytest.mark.parametrize("kind", [list, tuple])
def test_lengths_one_by_one(rng, kind):
    """In a list or a tuple of tensors of one number each, mapped or not."""
    x, targets, frames, counts = batches(rng)

    def loss(x, targets, frames, counts):
        return ct.ctc_loss(x, targets, kind(frames), kind(counts))

    right = alone(ct.ctc_loss, x, targets, frames, counts)
    torch.testing.assert_close(alone(loss, x, targets, frames, counts), right, rtol=0, atol=0)
    torch.testing.assert_close(vmap(loss)(x, targets, frames, counts), right, **CLOSE[torch.float64])
    same = [[12, *each] for each in frames[:, 1:].tolist()]  # the first is no tensor
    wants = alone(ct.ctc_loss, x, targets, torch.tensor(same), counts)
    found = [ct.ctc_loss(x[b], targets[b], kind([12, *frames[b, 1:]]), counts[b]) for b in range(len(x))]
    torch.testing.assert_close(torch.stack(found), wants, rtol=0, atol=0)
    given = x[1], targets[1], kind([12, *frames[1, 1:]]), counts[1]
    right = grad(ct.ctc_loss)(x[1], targets[1], torch.tensor(same[1]), counts[1])
    torch.testing.assert_close(grad(ct.ctc_loss)(*given), right, rtol=0, atol=0)


@pytest.mark.parametrize("B", [1, 2])
def test_second_derivatives(rng, B):
    x, *rest = batches(rng, B=B, T=7, N=2, C=4, L=2)

    def loss(*given):
        return ct.ctc_loss(*given, from_logits=True, zero_infinity=True)

    right = alone(jacrev(grad(loss)), x, *rest)
    assert right.abs().max() > 0.01
    torch.testing.assert_close(vmap(jacrev(grad(loss)))(x, *rest), right, rtol=1e-12, atol=1e-14)


def test_batches_of_batches_and_chunks(rng, monkeypatch):
    x, *rest = batches(rng, B=6)
    right = alone(ct.ctc_loss, x, *rest)
    seen = calls(monkeypatch)
    found = vmap(vmap(ct.ctc_loss))(*(each.unflatten(0, (2, 3)) for each in (x, *rest)))
    assert seen == [24]
    torch.testing.assert_close(found.flatten(), right, **CLOSE[torch.float64])
    torch.testing.assert_close(vmap(ct.ctc_loss, chunk_size=4)(x, *rest), right, **CLOSE[torch.float64])
    assert seen == [24, 16, 8]


def test_what_comes_back_for_a_sample_without_a_path_makes_no_nan(rng):
    x, *rest = batches(rng)
    weights = torch.ones(3, 4, dtype=torch.float64)
    weights[0, 0] = torch.nan

    def loss(x, weights, *rest):
        return (ct.ctc_loss(x, *rest, reduction="none", from_logits=True) * weights).sum()

    right = alone(grad(loss), x, weights, *rest)
    assert right.isfinite().all()
    assert not right[0, :, 0].any()
    torch.testing.assert_close(vmap(grad(loss))(x, weights, *rest), right, rtol=0, atol=0)
    weights[1, 2] = torch.inf
    found = vmap(grad(loss))(x, weights, *rest)
    assert found[1, :, 2].isinf().any()
    others = torch.ones(3, 4, dtype=torch.bool)
    others[1, 2] = False
    others = others[:, None, :, None].expand(x.shape)
    torch.testing.assert_close(found[others], right[others], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["ctc_loss", "lattice_loss"])
def test_inside_what_is_compiled(rng, name):
    """PyTorch runs it uncompiled: it would raise a RuntimeError of its own."""
    torch.compiler.reset()
    given = batches(rng)

    def loss(*given):
        return getattr(ct, name)(*given, zero_infinity=True)

    def step(x, *rest):
        return vmap(grad(loss))(2 * x, *rest) + 1, grad(loss)(x[0], *(each[0] for each in rest))

    for found, right in zip(torch.compile(step, backend="aot_eager")(*given), step(*given), strict=True):
        torch.testing.assert_close(found, right, rtol=1e-14, atol=1e-15)
        assert right.ne(0).any()


def test_what_is_wrong_is_told_as_without_batches(rng):
    x, targets, frames, counts = batches(rng)
    targets[2, 3, 0], counts[2, 3] = 5, 1
    for loss in (ct.ctc_loss, ct.lattice_loss):
        with pytest.raises(ct.InvalidTorchInput, match=r"targets\[11\]\[0\] is 5"):
            vmap(loss)(x, targets, frames, counts)
    with pytest.raises(ctcbind.InvalidInput, match=r"inside torch\.func\.vmap: use ctcbind\.torch there"):
        vmap(lambda x: ctcbind.ctc_loss(x, targets[0]))(x)
    for wrong, said in ((targets.double(), "pass targets.long"), (targets + 0.5, "must be an integer")):
        with pytest.raises(ct.InvalidTorchInput, match=f"targets.*{said}"):
            vmap(ct.ctc_loss)(x, wrong, frames, counts)
    with pytest.raises(ct.InvalidTorchInput, match=r"input_lengths hold torch\.float32.*shares of the longest"):
        vmap(ct.ctc_loss)(x, targets, frames / 12, counts)
    with pytest.raises(ct.InvalidTorchInput, match="3"):  # samples of one batch, and not those of all
        vmap(ct.ctc_loss)(x, targets[:, :3], frames, counts)
    for wrong in ((frames[:, :3], counts), (frames, counts[:, :3])):
        with pytest.raises(ct.InvalidTorchInput, match="has 3 lengths, but the batch has 4 samples"):
            vmap(ct.ctc_loss)(x, targets, *wrong)
    for wrong in ((frames[:, 0], counts), (frames, counts[:, 0])):
        with pytest.raises(ct.InvalidTorchInput, match="it must hold one length a sample"):
            vmap(ct.ctc_loss)(x, targets, *wrong)
    nested = [each[None] for each in (x, targets, frames, counts)]
    for place in (1, 2, 3):
        floats = [each.double() if k == place else each for k, each in enumerate(nested)]
        with pytest.raises(ct.InvalidTorchInput, match=r"hold torch\.float64"):
            vmap(vmap(ct.ctc_loss))(*floats)
    with pytest.raises(ct.InvalidTorchInput, match="the batch is empty: N = 0"):
        vmap(lambda x: ct.ctc_loss(x, targets[0, :0], [], []))(x[:, :, :0])


@pytest.mark.parametrize("added", ["", "bonus", "prior", "bonus prior"])
def test_lattices(rng, added):
    """Each with its own bonus and prior, or with one for all; a bonus for all labels, too."""
    x, targets, frames, counts = batches(rng)
    counts[:, 2] = 4  # the longest of each batch has 9 states
    scores = {
        "path_bonus": torch.tensor(rng.normal(size=(3, 4, 12, 9))) if "bonus" in added else None,
        "log_prior": torch.tensor(rng.normal(size=(3, 5))) if "prior" in added else None,
    }
    scores = {name: each for name, each in scores.items() if each is not None}

    def loss(x, scores, *rest):
        return ct.lattice_loss(x, *rest, zero_infinity=True, reduction="mean", **scores)

    for own in (True, False):
        one_each = [{name: each[k if own else 0] for name, each in scores.items()} for k in range(3)]
        given = x, scores if own else one_each[0], targets, frames, counts
        dims = (0, 0 if own and scores else None, 0, 0, 0)
        alone = [loss(x[k], one_each[k], targets[k], frames[k], counts[k]) for k in range(3)]
        torch.testing.assert_close(vmap(loss, in_dims=dims)(*given), torch.stack(alone), rtol=0, atol=0)
        found, of_scores = vmap(grad(loss, argnums=(0, 1)), in_dims=dims)(*given)
        for k in range(3):
            right, of = grad(loss, argnums=(0, 1))(x[k], one_each[k], targets[k], frames[k], counts[k])
            torch.testing.assert_close(found[k], right, rtol=1e-14, atol=1e-15)
            for name, each in of.items():
                torch.testing.assert_close(of_scores[name][k], each, rtol=1e-14, atol=1e-15)
    each = vmap(lambda *given: ct.lattice_loss(*given, reduction="none"))(x, targets, frames, counts)
    torch.testing.assert_close(each[1], ct.lattice_loss(x[1], targets[1], frames[1], counts[1], reduction="none"))


def test_a_bonus_for_all_states_where_the_longest_labels_differ(rng):
    x, targets, frames, counts = batches(rng)
    counts[:] = torch.tensor([[1], [3], [2]])
    bonus = torch.tensor(rng.normal(size=(12, 1)))

    def loss(x, bonus, *rest):
        return ct.lattice_loss(x, *rest, path_bonus=bonus)

    given = x, targets, frames, counts
    right = torch.stack([loss(x, bonus, *rest) for x, *rest in zip(*given, strict=True)])
    torch.testing.assert_close(vmap(loss, in_dims=(0, None, 0, 0, 0))(x, bonus, *given[1:]), right, rtol=0, atol=0)


def test_lengths_may_be_written_to_before_backward(rng):
    x, targets, frames, counts = batches(rng)
    right = alone(grad(ct.ctc_loss), x, targets, frames, counts)[1:]
    x = x[1:].clone().requires_grad_()
    frames, counts = frames[1:].clone(), counts[1:].clone()
    losses = vmap(ct.ctc_loss)(x, targets[1:], frames, counts)
    frames.fill_(0)
    counts.fill_(0)
    (found,) = torch.autograd.grad(losses.sum(), x)
    torch.testing.assert_close(found, right, **CLOSE[torch.float64])


@pytest.mark.parametrize("name", ["ctc_loss", "lattice_loss"])
def test_no_batches(rng, name):
    given = batches(rng)
    for targets in (given[1], given[1].flatten(1)):
        with pytest.raises(ct.InvalidTorchInput, match="vmap maps a dimension of size 0") as caught:
            vmap(getattr(ct, name))(given[0][:0], targets[:0], *(each[:0] for each in given[2:]))
        assert (caught.value.rule, caught.value.value) == ("batch_size", 0)
