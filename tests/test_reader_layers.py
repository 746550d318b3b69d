"""The layers of examples/reader: each backward against finite differences of its forward, in float64."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ctcbind

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from reader.adam import Adam, clip, learning_rate
from reader.attention import LayerNorm, Positions, SelfAttention
from reader.layers import BatchNorm, Chain, Convolution, Dense, ReLU, Residual
from reader.network import KINDS, Shape, arrays_of, build, put
from reader.recurrent import BidirectionalGRU

N, T, C = 3, 7, 4
LENGTHS = np.array([7, 4, 1])  # full, ragged, and a single step

LAYERS = {
    "dense": lambda rng: Dense(rng, C, 5),
    "convolution 3": lambda rng: Convolution(rng, C, 5, 3),
    "convolution 5, stride 2": lambda rng: Convolution(rng, C, 5, 5, stride=2),
    "convolution 7, stride 3, no bias": lambda rng: Convolution(rng, C, 5, 7, stride=3, bias=False),
    "convolution 4": lambda rng: Convolution(rng, C, 5, 4),
    "batch norm": lambda rng: BatchNorm(C),
    "relu": lambda rng: ReLU(),
    "chain": lambda rng: Chain(Convolution(rng, C, 6, 3, stride=2), BatchNorm(6), ReLU(), Dense(rng, 6, 2)),
    "residual": lambda rng: Residual(Convolution(rng, C, C, 3, bias=False), BatchNorm(C)),
    "bidirectional GRU": lambda rng: BidirectionalGRU(rng, C, 3),
    "self-attention": lambda rng: SelfAttention(rng, C, 2),
    "layer norm": lambda rng: LayerNorm(C),
    "positions": lambda rng: Positions(),
}


@pytest.fixture
def rng():
    """The same numbers in every run: differences across the corner of a ReLU are no derivative."""
    return np.random.default_rng(5)


def in_float64(layer, rng):
    """The layer with float64 parameters and buffers, none of them at a value as special as 0 or 1."""
    for what in ("params", "buffers"):
        arrays = arrays_of(layer, what)
        put(layer, what, {name: a.astype(np.float64) + rng.uniform(0, 0.3, a.shape) for name, a in arrays.items()})
    return layer


def ragged(rng, channels=C):
    x = rng.normal(size=(N, T, channels))
    x[np.arange(T) >= LENGTHS[:, None]] = 0
    return x


def differences(function, array, step=1e-5):
    """Central differences of a number with respect to each entry of an array, changed in place and put back."""
    slopes = np.empty(array.shape)
    for i in np.ndindex(array.shape):
        kept = array[i]
        array[i] = kept + step
        above = function()
        array[i] = kept - step
        below = function()
        array[i] = kept
        slopes[i] = (above - below) / (2 * step)
    return slopes


#: Central differences with step h err by h^2 |f'''| / 6 and by rounding, 1e-16 |f| / h: 1e-10 and 1e-10 here for
#: third derivatives and values of up to some tens. Gradients of such sizes are compared to 1e-7.
CLOSE = {"rtol": 1e-6, "atol": 1e-7}


def hold_against_differences(layer, x, rng, train=True):
    y = layer.forward(x, LENGTHS, train)
    weights = rng.normal(size=y.shape)
    frames = layer.frames(LENGTHS)
    weights[np.arange(y.shape[1]) >= frames[:, None]] = 0
    assert not y[np.arange(y.shape[1]) >= frames[:, None]].any(), "something stands past the end of a sample"

    def total():
        return float((layer.forward(x, LENGTHS, train) * weights).sum())

    layer.forward(x, LENGTHS, train)
    dx = layer.backward(weights.copy())
    grads = {name: a.copy() for name, a in arrays_of(layer, "grads").items()}
    params = arrays_of(layer, "params")
    assert set(grads) == set(params)
    inside = np.arange(T) < LENGTHS[:, None]
    np.testing.assert_allclose(dx[inside], differences(total, x)[inside], **CLOSE)
    for name, param in params.items():
        assert grads[name].shape == param.shape
        np.testing.assert_allclose(grads[name], differences(total, param), err_msg=name, **CLOSE)


@pytest.mark.parametrize("name", LAYERS)
def test_backward_is_the_derivative_of_forward(name, rng):
    hold_against_differences(in_float64(LAYERS[name](rng), rng), ragged(rng), rng)


def test_batch_norm_as_it_reads(rng):
    """With the kept mean and variance, that do not move with x."""
    hold_against_differences(in_float64(BatchNorm(C), rng), ragged(rng), rng, train=False)


def test_a_wrong_gradient_is_seen(rng):
    """The comparison itself: a layer whose backward forgets the mean's part fails it."""
    layer = in_float64(BatchNorm(C), rng)
    backward = layer.backward
    layer.backward = lambda dy: backward(dy) * 1.001
    with pytest.raises(AssertionError):
        hold_against_differences(layer, ragged(rng), rng)


@pytest.mark.parametrize("name", LAYERS)
def test_padding_changes_nothing(name, rng):
    """A sample gives the same alone as beside longer ones (for batch norm: as it reads)."""
    layer = in_float64(LAYERS[name](rng), rng)
    x = ragged(rng)
    together = layer.forward(x, LENGTHS, False)
    for n, length in enumerate(LENGTHS):
        alone = layer.forward(x[n : n + 1, :length], LENGTHS[n : n + 1], False)
        np.testing.assert_allclose(together[n, : alone.shape[1]], alone[0], rtol=1e-12, atol=1e-12)


def test_batch_norm_keeps_a_running_mean_of_valid_steps(rng):
    layer, x = BatchNorm(C), ragged(rng)
    inside = x[np.arange(T) < LENGTHS[:, None]]
    for _ in range(200):
        y = layer.forward(x, LENGTHS, True)
    np.testing.assert_allclose(layer.buffers["mean"], inside.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(layer.buffers["variance"], inside.var(axis=0), atol=1e-4)
    np.testing.assert_allclose(y[0].sum(axis=0) + y[1].sum(axis=0) + y[2].sum(axis=0), 0, atol=1e-4)


def test_convolution_against_its_definition(rng):
    layer, x = in_float64(Convolution(rng, C, 5, 5, stride=2), rng), rng.normal(size=(1, 9, C))
    y = layer.forward(x, np.array([9]), True)
    W = layer.params["W"].reshape(5, C, 5)
    assert y.shape == (1, 5, 5)
    for t in range(5):
        taps = [x[0, 2 * t + j - 2] @ W[j] for j in range(5) if 0 <= 2 * t + j - 2 < 9]
        np.testing.assert_allclose(y[0, t], sum(taps) + layer.params["b"], rtol=1e-12)


def test_gru_against_its_equations(rng):
    """Both directions of one sample, a step and a gate at a time."""
    H = 3
    layer, x = in_float64(BidirectionalGRU(rng, C, H), rng), rng.normal(size=(1, 5, C))
    y = layer.forward(x, np.array([5]), True)[0]
    sigmoid = lambda a: 1 / (1 + np.exp(-a))  # noqa: E731
    for d, steps in enumerate((range(5), reversed(range(5)))):
        (Wz, Wr, Wg), (Uz, Ur, Ug) = (np.split(layer.params[name][d], 3, axis=1) for name in "WU")
        bz, br, bg = np.split(layer.params["b"][d, 0], 3)
        h = np.zeros(H)
        for t in steps:
            z = sigmoid(x[0, t] @ Wz + h @ Uz + bz)
            r = sigmoid(x[0, t] @ Wr + h @ Ur + br)
            g = np.tanh(x[0, t] @ Wg + r * (h @ Ug + layer.params["c"][d, 0]) + bg)
            h = z * h + (1 - z) * g
            np.testing.assert_allclose(y[t, d * H : (d + 1) * H], h, rtol=1e-12)


def test_attention_heads_must_divide_the_channels(rng):
    with pytest.raises(ValueError, match="6 channels cannot be split into 4 heads"):
        SelfAttention(rng, 6, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_whole_network_with_the_ctc_gradient_before_the_softmax(kind, rng):
    """The loss's derivative with respect to some weights of every array, through all layers and the softmax."""
    network = in_float64(build(Shape(kind, height=6, channels=8, blocks=1, units=4), seed=1), rng)
    widths = np.array([14, 9])
    x = rng.uniform(size=(2, 14, 6))
    x[1, 9:] = 0
    frames, targets = network.frames(widths), [[3, 3], [1]]
    assert frames.tolist() == [7, 5]

    def loss():
        return float(
            ctcbind.ctc_loss(network.forward(x, widths, True), targets, frames, layout="NTC", reduction="batch_mean")
        )

    with ctcbind.CTCLoss(layout="NTC", reduction="batch_mean") as ctc:
        network.backward(ctc(network.forward(x, widths, True), targets, frames).grad)
    grads = {name: a.copy() for name, a in arrays_of(network, "grads").items()}
    for name, param in arrays_of(network, "params").items():
        for place in rng.integers(0, param.size, size=3):
            entry = param.reshape(-1)[place : place + 1]
            slope = differences(loss, entry, step=1e-6)[0]
            assert grads[name].reshape(-1)[place] == pytest.approx(slope, rel=1e-4, abs=1e-6), name


def test_same_seed_same_weights():
    one, two, other = (arrays_of(build(Shape(channels=16), seed), "params") for seed in (1, 1, 2))
    assert all((one[name] == two[name]).all() for name in one)
    assert any((one[name] != other[name]).any() for name in one)
    assert all(a.dtype == np.float32 for a in one.values())


# --- the optimiser ------------------------------------------------------------------------------------------------


def test_adam_against_the_paper(rng):
    """Algorithm 1 of Kingma and Ba written with its bias-corrected moments, and decay beside it for W alone.

    Epsilon is added as in the more efficient order of their section 2, to the root of v before its correction.
    """
    epsilon = Adam.EPSILON
    start = {"0.W": rng.normal(size=(3, 2)), "0.b": rng.normal(size=2)}
    adam = Adam({name: a.copy() for name, a in start.items()}, decay=0.1)
    m = {name: 0 * a for name, a in start.items()}
    v = {name: 0 * a for name, a in start.items()}
    x = {name: a.copy() for name, a in start.items()}
    for t in range(1, 6):
        grads = {name: rng.normal(size=a.shape) for name, a in start.items()}
        adam.step(grads, 0.01)
        for name, g in grads.items():
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g**2
            decay = 0.1 if name == "0.W" else 0.0
            step = (m[name] / (1 - 0.9**t)) / (np.sqrt(v[name] / (1 - 0.99**t)) + epsilon / np.sqrt(1 - 0.99**t))
            x[name] = x[name] * (1 - 0.01 * decay) - 0.01 * step
            np.testing.assert_allclose(adam.params[name], x[name], rtol=1e-12)


def test_clip_bounds_the_joint_norm():
    grads = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]])}
    assert clip(grads, 10.0) == 5.0
    assert grads["a"].tolist() == [3.0, 0.0]
    assert clip(grads, 1.0) == 5.0
    assert np.hypot(grads["a"][0], grads["b"][0, 0]) == pytest.approx(1.0)


def test_learning_rate_rises_and_falls():
    rates = [learning_rate(step, 100, 0.5) for step in range(100)]
    assert max(rates) == 0.5
    assert rates[:6] == sorted(rates[:6])
    assert rates[5:] == sorted(rates[5:], reverse=True)
    assert 0 < rates[-1] < 0.01 * 0.5
    assert learning_rate(0, 1, 0.5) == 0.5
