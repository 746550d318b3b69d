"""Every engine on the published cases: NVIDIA's forum, Graves' own program, warp-ctc, k2, Theano.

`tests/vectors/*.json` holds, for each case, its source, the figures published there, the tolerance the source
itself asks, the exact float64 losses, and further properties that the source checks.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from batches import SEED, Case, collapse

FILES = sorted((Path(__file__).parent / "vectors").glob("*.json"))
CASES = {
    f"{path.stem}-{case['name']}": case
    for path in FILES
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]
}
CHECKED_HERE = {
    "loss_inf", "grad_zero", "loss_finite", "grad_no_nan", "grad_zero_padding", "grad_matches_numeric",
    "loss_equals_blank_sum", "collapse",
}  # fmt: skip


def numbers(values):
    return np.array(values, dtype=np.float64)  # "inf" and "nan" stand in the files as strings


def load(name, dtype):
    case = CASES[name]
    logits = numbers(case["logits"]).astype(dtype)
    labels, frames = case["labels"], case["input_lengths"]
    return case, Case(
        logits.astype(np.float64),
        labels,
        frames,
        case["blank"],
        args=(logits, labels, frames),
        options={"blank": case["blank"]},
        name=f"{name} ({dtype})",
    )


def test_the_files_are_all_there():
    assert [path.stem for path in FILES] == ["forum", "graves", "k2", "theano", "warpctc"]
    assert len(CASES) == 34
    assert {each["p"] for case in CASES.values() for each in case["properties"] or ()} == CHECKED_HERE


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_losses(engine, name, dtype):
    case, batch = load(name, dtype)
    result = engine.run(batch)
    if result is None:
        return
    for n, exact in enumerate(numbers(case["losses"])):
        if not np.isfinite(exact):
            assert result.loss[n] == exact
            continue
        # the exact loss is that of the file's float64 logits: reading them as float32 moves ln p by at most
        # twice (its own logit, the row's log-sum) 2^-24 |x| a frame
        size = np.abs(batch.x[: batch.frames[n], n]).max()
        rounded = 2 * batch.frames[n] * 2.0**-24 * size if dtype == "float32" else 0.0
        bound = batch.loss_bound(n, exact, 2.0**-24 if dtype == "float32" else 2.0**-53)
        assert abs(result.loss[n] - exact) <= rounded + 2 * bound
    if case["published"] is not None:
        rtol, atol = case["tolerance"]["rtol"], case["tolerance"]["atol"]
        np.testing.assert_allclose(result.loss, numbers(case["published"]), rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case["properties"]])
def test_properties(engine, name, dtype):
    case, batch = load(name, dtype)
    result = engine.run(batch)
    if result is None:
        return
    for each in case["properties"]:
        samples = each.get("samples", range(len(batch.labels)))
        what = each["p"]
        if what == "loss_inf":
            assert all(result.loss[n] == np.inf for n in samples)
        elif what == "loss_finite":
            assert all(math.isfinite(result.loss[n]) for n in samples)
        elif what == "grad_zero":
            assert all(not result.grad[:, n].any() for n in samples)
        elif what == "grad_no_nan":
            assert not np.isnan(result.grad).any()
        elif what == "grad_zero_padding":
            assert all(not result.grad[batch.frames[n] :, n].any() for n in samples)
            assert not np.isnan(result.grad).any()
        elif what == "loss_equals_blank_sum":
            for n in samples:
                x = batch.x[: batch.frames[n], n]
                exact = (np.log(np.exp(x).sum(axis=1)) - x[:, batch.blank]).sum()
                assert abs(result.loss[n] - exact) <= 2 * batch.loss_bound(n, exact, np.finfo(dtype).eps)
        elif what == "grad_matches_numeric":
            if dtype == "float64":  # in float32 the differences themselves are too coarse
                assert gradient_error(engine, batch, result.grad) < each["rel_diff"]
        else:
            assert what == "collapse"
            check_collapse(engine, each["path"], each["label"], batch, dtype)


def gradient_error(engine, batch, grad):
    """sum((g - numeric)^2) / sum(g^2), as warp-ctc's tests ask, with their step, on 80 coordinates."""
    step, K = 1e-2, 80
    rng = np.random.default_rng([SEED, 1])
    _, N, C = batch.x.shape
    n = rng.integers(N, size=K)
    t, c = rng.integers(np.array(batch.frames)[n]), rng.integers(C, size=K)
    nudged = np.concatenate([batch.x[:, n], batch.x[:, n]], axis=1)
    nudged[t, np.arange(K), c] += step
    nudged[t, K + np.arange(K), c] -= step
    labels, frames = [batch.labels[i] for i in n] * 2, [batch.frames[i] for i in n] * 2
    losses = engine.loss(nudged, labels, frames, blank=batch.blank)
    numeric, given = (losses[:K] - losses[K:]) / (2 * step), grad[t, n, c]
    return ((given - numeric) ** 2).sum() / (given**2).sum()


def check_collapse(engine, path, label, batch, dtype):
    """Scores that allow this path alone: its label is certain, and any other has no path at all."""
    assert collapse(tuple(path), batch.blank) == tuple(label)
    x = np.full((len(path), 3, 3), -np.inf, dtype=dtype)
    x[np.arange(len(path)), :, path] = 0
    targets = [label, label[:-1], [2, *label[1:]]]
    result = engine.stated_refusal(lambda: engine(x, targets, blank=batch.blank), x=x)
    if result is not None:
        assert list(result.loss) == [0, np.inf, np.inf]
        assert not result.grad.any()


def test_theano_case_as_theano_writes_it(engine):
    case, batch = load("theano-torch_case", "float32")
    padded = np.array([[1, -1], [3, 3], [2, 3]])
    a = engine(batch.logits, padded, batch.frames)
    b = engine(*batch.args)
    assert (a.loss == b.loss).all()
    assert (a.grad == b.grad).all()
    np.testing.assert_allclose(a.loss, case["published"], rtol=1e-5)
    # the peer's gradient is that of the mean over the batch
    mean = engine(batch.logits, padded, batch.frames, reduction="batch_mean")
    np.testing.assert_allclose(mean.grad, b.grad / 3, rtol=2**-22, atol=1e-7)
