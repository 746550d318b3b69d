"""PyTorch's tensors given to ctcbind.CTCLoss and ctc_loss: from the third call on the short way of NumPy's arrays."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind import plan  # noqa: E402

OPTIONS = [
    {},
    {"layout": "NTC"},
    {"reduction": "sum"},
    {"reduction": "label_mean", "zero_infinity": True},
    {"topology": "simple", "blank": -1},
]


def batch(seed, options, dtype=torch.float32):
    """Tensors, and the same as arrays; sample 1 has no path."""
    logits, targets, frames, counts = make(np.random.default_rng([SEED, 813, seed]), dtype=dtype)
    frames[:2], counts[:2] = torch.tensor([20, 2]), 5
    logits = logits.detach()
    if options.get("layout") == "NTC":
        logits = logits.transpose(0, 1).contiguous()
    if options.get("blank"):
        targets = targets - 1
    tensors = logits, targets, frames, counts
    return tensors, tuple(each.numpy().copy() for each in tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("options", OPTIONS)
def test_tensors_give_what_arrays_give(options, dtype, monkeypatch):
    tensors, arrays = batch(0, options, dtype)
    with ctcbind.CTCLoss(**options) as short:
        for _ in range(2):
            short(*tensors), short.loss(*tensors)
        right, losses = short(*arrays), short.loss(*arrays)
        # whoever goes the long way makes a batch
        monkeypatch.setattr(plan, "make_batch", lambda *_: pytest.fail("not the short way"))
        found = short(*tensors)
        assert all(isinstance(each, torch.Tensor) for each in found[:2])
        np.testing.assert_array_equal(found.loss.numpy(), right.loss, strict=True)
        np.testing.assert_array_equal(found.grad.numpy(), right.grad, strict=True)
        assert (found.engine, found.grad.shape) == ("native", tensors[0].shape)
        np.testing.assert_array_equal(short.loss(*tensors).numpy(), losses, strict=True)


@pytest.mark.parametrize("wrong", [5, 70, 1_000_000])
def test_what_is_wrong_is_told_as_before(wrong):
    tensors, arrays = batch(1, {})
    with ctcbind.CTCLoss() as short:
        for _ in range(3):
            short(*tensors), short.loss(*tensors)
        for which, value in ((1, wrong + 2), (2, wrong + 16), (3, wrong + 1), (3, -wrong)):
            said = []
            for given in (tensors, arrays):
                changed = list(given)
                changed[which] = changed[which] + 0
                changed[which][0] = value
                with pytest.raises(ctcbind.InvalidInput) as caught:
                    short(*changed)
                with pytest.raises(ctcbind.InvalidInput) as alone:
                    short.loss(*changed)
                said += [str(caught.value), str(alone.value)]
            assert len(said) == 4
            assert len(set(said)) == 1


def test_tensors_that_need_more_go_the_long_way():
    (logits, *rest), arrays = batch(2, {})
    with ctcbind.CTCLoss() as short:
        for _ in range(3):
            right = short.loss(*arrays)
        with pytest.raises(ctcbind.InvalidInput, match="requires grad"):
            short(logits.clone().requires_grad_(), *rest)
        with torch.no_grad():
            assert short.loss(logits.clone().requires_grad_(), *rest).numpy() == pytest.approx(right, nan_ok=True)
        negative = torch.complex(torch.zeros_like(logits), -logits).conj().imag
        assert negative.is_neg()
        np.testing.assert_array_equal(short.loss(negative, *rest).numpy(), right)
        assert short.loss(logits.bfloat16(), *rest).dtype == torch.float32
        strided = logits.repeat_interleave(2, dim=2)[:, :, ::2]
        np.testing.assert_array_equal(short.loss(strided, *rest).numpy(), right)
        assert isinstance(short.loss(arrays[0], *rest), np.ndarray)  # labels and lengths of another kind do not matter
        assert isinstance(short.loss(logits, *arrays[1:]), torch.Tensor)
        with pytest.raises(ctcbind.InvalidInput, match="logits are int64"):
            short(logits.long(), *rest)
        with pytest.raises(ctcbind.InvalidInput, match="float32; it must hold integers"):
            short(logits, rest[0].float(), *rest[1:])


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_lists_of_tensors_and_tensors_beside_arrays(kind, monkeypatch):
    """Labels and lengths that are tensors, whatever the logits are."""
    tensors, arrays = batch(4, {})
    logits = (tensors if kind == "tensors" else arrays)[0]
    rows = [row[:count] for row, count in zip(tensors[1], tensors[3])]
    with ctcbind.CTCLoss() as short:
        for _ in range(2):
            short(*arrays), short.loss(*arrays)
        right, losses = short(*arrays), short.loss(*arrays)
        monkeypatch.setattr(plan, "make_batch", lambda *_: pytest.fail("not the short way"))
        for given in ((rows, tensors[2], None), (tuple(rows), arrays[2], None), tensors[1:]):
            found, alone = short(logits, *given), short.loss(logits, *given)
            assert type(found.loss) is type(found.grad) is type(alone) is type(logits)
            np.testing.assert_array_equal(found.loss, right.loss)
            np.testing.assert_array_equal(found.grad, right.grad)
            np.testing.assert_array_equal(alone, losses)


@pytest.mark.parametrize("function", [ctcbind.ctc_loss, ctcbind.ctc_loss_and_grad])
def test_the_functions_too(function):
    tensors, arrays = batch(3, {})
    for _ in range(4):
        found, right = function(*tensors), function(*arrays)
        if function is ctcbind.ctc_loss:
            found, right = (found,), (right,)
        for a, b in zip(found[:2], right[:2], strict=True):
            np.testing.assert_array_equal(a.numpy(), b, strict=True)
