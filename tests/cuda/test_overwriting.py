"""The gradient of the cuda engine in the place of the logits: where it is written, and what is refused untouched."""

from __future__ import annotations

import emulated
import fake_cupy
import numpy as np
import pytest
from batches import scores
from device_batches import here, padded, there

import ctcbind
from ctcbind import CTCLoss

pytest_plugins = ["emulated_fixture"]
pytestmark = pytest.mark.usefixtures("cupy")

T, N, C = 6, 3, 5
LABELS = [[1, 2, 2], [3], [4, 1]]


def strided(x, *strides):
    """A writable view of x with such strides, in elements."""
    return np.lib.stride_tricks.as_strided(x, (T, N, C), [each * x.itemsize for each in strides])


REFUSED = {
    "one frame for all": (lambda x: strided(x, 0, C, 1), "the logits are broadcast"),
    "one sample for all": (lambda x: strided(x, C, 0, 1), "the logits are broadcast"),
    "two classes apart": (
        lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
        "the classes of the logits do not lie side by side",
    ),
    "classes backwards": (lambda x: x[:, :, ::-1], "the classes of the logits do not lie side by side"),
    "one class for all": (lambda x: strided(x, N, 1, 0), "the classes of the logits do not lie side by side"),
}


@pytest.mark.parametrize("place", ["host", "device", "labels too"])
@pytest.mark.parametrize("lie", REFUSED)
def test_what_cannot_be_written_over(lie, place):
    change, said = REFUSED[lie]
    refused(change(scores(T, N, C)), place, LABELS, f"{said}, and the gradient is to be written over them")


def test_memory_of_the_host_that_is_read_only():
    x = scores(T, N, C)
    x.flags.writeable = False
    refused(x, "host", LABELS, "the logits are read-only, and the gradient is to be written over them")


def test_two_frames_that_are_one():
    """The fewest that can be the same."""
    x = np.lib.stride_tricks.as_strided(scores(1, N, C), (2, N, C), (0, 4 * C, 4))
    refused(x, "device", [[1], [2], []], "the logits are broadcast")


def refused(x, place, labels, said):
    before, given = x.copy(), x if place == "host" else fake_cupy.ndarray(x)
    targets = there(padded(labels)) if place == "labels too" else labels
    with CTCLoss(engine="cuda", overwrite_logits=True) as plan, pytest.raises(ctcbind.EngineUnsupported, match=said):
        plan(given, targets)
    assert np.array_equal(x, before)
    assert not emulated.launches


LIES = {
    "side by side": lambda x: x,
    "samples first": lambda x: np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2),
    "gaps": lambda x: np.repeat(np.concatenate([x, x], axis=2), 2, axis=1)[:, ::2, :C],
    "frames backwards": lambda x: x[::-1].copy()[::-1],
}


@pytest.mark.parametrize("layout", ["TNC", "NTC"])
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("lie", LIES)
def test_what_is_written_over(lie, place, layout):
    x = scores(T, N, C)
    right = ctcbind.ctc_loss_and_grad(x.astype(float), LABELS)
    lying = LIES[lie](x.copy())
    own = lying if layout == "TNC" else lying.transpose(1, 0, 2)
    with CTCLoss(engine="cuda", layout=layout, overwrite_logits=True) as plan:
        result = plan(own if place == "host" else fake_cupy.ndarray(own), LABELS)
    np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5)
    np.testing.assert_allclose(lying, right.grad, atol=1e-5)
    assert here(result.grad).shape == own.shape
    if place == "host":
        assert np.shares_memory(result.grad, own)
    else:
        assert result.grad.data.ptr == own.ctypes.data


@pytest.mark.parametrize("place", ["host", "device"])
def test_strides_of_what_is_one_or_none_do_not_count(place):
    """Whatever they are: nothing is written twice."""
    of_one = np.lib.stride_tricks.as_strided(scores(T, 1, C), (T, 1, C), (4 * C, 0, 4))
    of_class = np.lib.stride_tricks.as_strided(scores(T, N, 1), (T, N, 1), (4 * N, 4, 0))
    empty = np.lib.stride_tricks.as_strided(scores(1, 1, C), (0, N, C), (4 * C, 0, 4))
    for x, labels in ((of_one, LABELS[:1]), (of_class, [[]] * N), (empty, [[]] * N)):
        right = ctcbind.ctc_loss_and_grad(x.astype(float), labels)
        with CTCLoss(engine="cuda", overwrite_logits=True) as plan:
            result = plan(x if place == "host" else fake_cupy.ndarray(x), labels)
        np.testing.assert_allclose(here(result.loss), right.loss, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(here(result.grad), right.grad, atol=1e-5)
