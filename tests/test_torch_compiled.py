"""Functions for which PyTorch has no operator of ours, called within what torch.compile compiles."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType

import numpy as np
import pytest
from batches import SEED

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch_batches import make  # noqa: E402

import ctcbind  # noqa: E402
from ctcbind.kinds import not_compiled  # noqa: E402

READ = {
    "align": lambda x, y: tuple(ctcbind.align(x, y)),
    "lattice": lambda x, y: tuple(ctcbind.ctc_lattice(x, y)),
    "posteriors": ctcbind.posteriors,
    "lattice_loss": lambda x, y: ctcbind.lattice_loss_and_grad(x, y)[:2],
    "hvp": lambda x, y: ctcbind.ctc_hvp(x, y, v=x),
    "hessian": lambda x, y: ctcbind.ctc_hessian(x[:3], y[:, :1]),
    "greedy": lambda x, y: [each.labels for each in ctcbind.greedy_decode(x)],
    "beams": lambda x, y: [each[0].labels for each in ctcbind.beam_search(x)],
    "errors": lambda x, y: ctcbind.error_rate([each.labels for each in ctcbind.greedy_decode(x)], y),
    "edits": lambda x, y: ctcbind.edit_distance([1, 2], [2, 2]),
    "seconds": lambda x, y: ctcbind.frames_to_seconds(y, 50),
    "loss": ctcbind.ctc_loss,
    "loss_and_grad": lambda x, y: ctcbind.ctc_loss_and_grad(x, y)[:2],
    "plan": lambda x, y: ctcbind.CTCLoss()(x, y)[:2],
    "check": lambda x, y: ctcbind.check(x, y).ok,
    "diagnose": lambda x, y: ctcbind.diagnose(x, y).ok,
    "explain": lambda x, y: len(str(ctcbind.explain(x, y))),
    "compare": lambda x, y: ctcbind.compare(x, y, engines=["native"]).agree,
}


@pytest.mark.parametrize("name", READ)
def test_what_has_no_operator_runs_between_two_graphs(name):
    torch.compiler.reset()
    logits, targets, *_ = make(np.random.default_rng([SEED, 812]))
    logits, targets = logits.detach(), targets + 0

    def step(x, y):
        x = 2 * x
        return READ[name](x, y), x.sum()

    compiled = torch.compile(step, backend="aot_eager")
    for _ in range(2):  # the second finds what the first has compiled
        found, right = compiled(logits, targets), step(logits, targets)
        torch.testing.assert_close(found[0], right[0], rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(found[1], right[1])


def test_the_rest_of_the_step_is_compiled():
    torch.compiler.reset()
    graphs = []

    def count(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    def step(x):
        labels = ctcbind.greedy_decode(2 * x)[0].labels
        return len(labels) + torch.tanh(x)

    x = torch.randn(6, 1, 4)
    torch.compile(step, backend=count)(x)
    called = [str(target) for graph in graphs for target in graph]
    assert len(graphs) == 2
    assert any("tanh" in target for target in called), called


def test_a_function_keeps_its_name_and_signature():
    @not_compiled
    def function(a: int, *, b: int = 2) -> int:
        """Says what it does."""
        return a + b

    assert (function.__name__, function.__doc__) == ("function", "Says what it does.")
    assert function(1, b=4) == partial(function, b=4)(1) == 5
    with pytest.raises(TypeError, match="unexpected keyword"):
        function(1, c=3)


@pytest.mark.parametrize("half", [{}, {"compiler": ModuleType("torch.compiler")}])
def test_a_pytorch_that_is_being_imported_is_no_hindrance(half, monkeypatch):
    """Another thread may be at it; and before 2.1 there is no torch.compiler."""
    torch = ModuleType("torch")
    vars(torch).update(half)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert ctcbind.edit_distance([1, 2], [2, 2]) == 1
    assert ctcbind.align(np.zeros((3, 1, 2)), [[1]]).log_p == pytest.approx(-3 * np.log(2))
