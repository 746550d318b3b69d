"""The real warp-ctc: each field of its engine's Contract."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from warpctc_lab import FLOATS, bound, call, close, exact, options, real, rng

import ctcbind
from ctcbind import NativeError
from ctcbind.bindings import warpctc as binding
from ctcbind.engines import get

GPU = binding.ctcComputeLocation.CTC_GPU
CONTRACT = get("warpctc").contract


@real
def test_version_and_status_strings():
    assert binding.get_warpctc_version() == 2
    words = ["no error", "cuda memcpy or memset failed", "invalid value", "execution failed", "unknown error"]
    assert [binding.ctcGetStatusString(i) for i in range(6)] == [*words, "unknown error"]
    library = get("warpctc").library()
    assert library.version == "API 2"
    assert Path(library.path).is_file()
    assert ctcbind.engines()["warpctc"].available


@real
@FLOATS
def test_workspace_sizes(dtype):
    """probs T N C, and for each sample alphas S T, betas S, a row of C, and three rows of S ints."""
    b = np.dtype(dtype).itemsize
    function = binding.get_workspace_size_double if b == 8 else binding.get_workspace_size
    for T, C, lengths in ((20, 6, [4]), (8, 5, [2, 0, 1]), (1, 1, [0, 0])):
        N, S = len(lengths), 2 * max(lengths) + 1
        expected = b * T * N * C + N * (b * (S * T + S + C) + 12 * S)
        assert function(lengths, [T] * N, C, N, options()) == expected


@real
@FLOATS
def test_takes_activations_and_gives_their_gradient_for_any_blank(dtype):
    for blank in range(5):
        labels = [(blank + 1) % 5, (blank + 1) % 5, (blank + 3) % 5]
        x = rng(blank).normal(size=(9, 2, 5)).astype(dtype)
        costs, grad = call(x, [labels, labels[:1]], blank=blank)
        close(x[:, 0], labels, costs[0], grad[:, 0], blank)
        close(x[:, 1], labels[:1], costs[1], grad[:, 1], blank)
    assert (CONTRACT.takes, CONTRACT.gradient_of, CONTRACT.blank) == ("activations", "pre-softmax activations", "any")
    assert {np.dtype(dtype).name for dtype in (np.float32, np.float64)} == set(CONTRACT.dtypes)


@real
@FLOATS
def test_loss_alone_and_everything_on_the_host(dtype):
    x = rng().normal(size=(9, 2, 5)).astype(dtype)
    costs, grad = call(x, [[1, 2], [3]], grad=False)
    assert (grad == 99).all()
    assert (costs == call(x, [[1, 2], [3]])[0]).all()
    assert (CONTRACT.arrays, CONTRACT.labels, CONTRACT.losses) == ("host or device", "host", "host")


@real
@FLOATS
def test_infeasible_padded_and_empty_are_as_the_contract_says(dtype):
    x = rng().normal(size=(5, 3, 3)).astype(dtype)
    costs, grad = call(x, [[1, 1, 1], [2], []], [4, 2, 4])
    assert CONTRACT.infeasible == "loss 0, gradient not written"
    assert costs[0] == 0
    assert (grad[:, 0] == 99).all()
    assert CONTRACT.padded_time == "gradient not written"
    assert (grad[2:, 1] == 99).all()
    close(x[:2, 1], [2], costs[1], grad[:2, 1])
    assert CONTRACT.empty_label == "the all-blank path"
    close(x[:4, 2], [], costs[2], grad[:4, 2])


@real
def test_reads_one_layout_only():
    """The order of samples and frames is fixed: the same memory, read as (T, N, C)."""
    x = rng().normal(size=(4, 4, 3)).astype(np.float32)
    assert CONTRACT.layouts == ("TNC",)
    costs, _ = call(x, [[1]] * 4)
    for n in range(4):
        assert abs(costs[n] - exact(x[:, n], [1])[0]) <= bound(x[:, n])


@real
def test_no_limit_to_the_label_length():
    assert CONTRACT.max_label_length is None
    L = 1500
    labels = [1 + i % 2 for i in range(L)]
    x = (rng().normal(size=(L + 20, 1, 3)) / 8).astype(np.float64)
    costs, _ = call(x, [labels])
    assert abs(costs[0] - exact(x[:, 0], labels)[0]) <= bound(x[:, 0])


@real
def test_deterministic_over_50_runs_and_any_number_of_threads():
    assert CONTRACT.deterministic
    x = rng().normal(size=(40, 9, 7)).astype(np.float32)
    labels = [rng(n).integers(1, 7, size=n).tolist() for n in range(9)]
    first = call(x, labels)
    for i in range(50):
        again = call(x, labels, threads=(1, 2, 4, 0)[i % 4])
        assert all(np.array_equal(a, b) for a, b in zip(first, again))


@real
def test_a_build_without_cuda_says_so(capfd):
    info = get("warpctc").library()
    if "paddlepaddle-gpu" in info.found:
        pytest.skip("this build has CUDA")
    given = binding.ctcOptions(loc=GPU)
    with pytest.raises(NativeError, match=r"CTC_STATUS_EXECUTION_FAILED \(3\): execution failed"):
        binding.compute_ctc_loss(0x1000, 0x1000, [1], [1], [2], 3, 1, 0x1000, 0x1000, given)
    capfd.readouterr()


@real
def test_contract_has_no_device():
    assert not CONTRACT.graph_capture
    assert CONTRACT.synchronises, "on a device, whose losses it copies to the host"
    assert CONTRACT.native_name == "compute_ctc_loss"
    assert CONTRACT.topologies == ("ctc",)
    assert any("87.34" in limit for limit in CONTRACT.limits)
