"""What a device must show of `ctcbind.torch`: in a process of its own, for PyTorch brings a cuDNN along."""

from __future__ import annotations

import subprocess
import sys

import pytest
from batches import SEED

pytestmark = pytest.mark.gpu

SCRIPT = """
import sys

def leave(why):
    print(why)
    sys.exit(77)

try:
    import torch
except ImportError:
    leave("PyTorch is not installed")
if not torch.cuda.is_available():
    leave("PyTorch sees no CUDA device")

import ctcbind.torch

targets = torch.tensor([[1, 2, 2], [3, 0, 0]])
lengths = [20, 17], [3, 1]
single, double = torch.float32, torch.float64
rows = [("cuda", single, 1e-5), ("cuda", double, 1e-9), ("auto", single, 1e-5), ("auto", double, 1e-9)]
if ctcbind.engines()["cudnn"].available:  # whose gradients have been seen 1e-4 off
    rows.append(("cudnn", single, 2e-4))
for engine, dtype, bound in rows:
    x = torch.randn(20, 2, 5, dtype=dtype, generator=torch.Generator().manual_seed(SEED))
    for from_logits in (True, False):
        def run(where):
            given = x.detach().to(where).requires_grad_()
            scores = given if from_logits else torch.log_softmax(given, 2)
            options = {"from_logits": from_logits, "engine": "native" if where == "cpu" else engine}
            for labels in (targets, targets.to(where)):
                loss = ctcbind.torch.ctc_loss(scores, labels, *lengths, reduction="sum", **options)
            loss.backward()
            assert loss.device == given.grad.device == given.device
            return torch.cat([loss.detach().reshape(1).cpu(), given.grad.reshape(-1).cpu()])

        expected = run("cpu")
        for number in range(torch.cuda.device_count()):  # the current one stays the first
            for stream in (torch.cuda.default_stream(number), torch.cuda.Stream(number)):
                with torch.cuda.stream(stream):
                    found = run(f"cuda:{number}")
                torch.testing.assert_close(found, expected, rtol=bound, atol=bound)

    def lattice(where, of_prior):  # the prior may be elsewhere
        given, prior = x.detach().to(where).requires_grad_(), torch.zeros(5, device=of_prior, requires_grad=True)
        loss = ctcbind.torch.lattice_loss(given, targets, *lengths, reduction="sum", log_prior=prior)
        loss.backward()
        assert (loss.device, prior.grad.device) == (given.device, prior.device)
        return torch.cat([each.detach().reshape(-1).cpu() for each in (loss, given.grad, prior.grad)])

    for places in (("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")):
        torch.testing.assert_close(lattice(*places), lattice("cpu", "cpu"), rtol=bound, atol=bound)
"""


def test_tensors_on_each_device_and_stream():
    script = SCRIPT.replace("SEED", str(SEED))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
