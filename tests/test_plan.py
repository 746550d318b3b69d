"""CTCLoss in a loop: sizes that change, options, copies, closing, threads, forks."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from typing import TypeVar, get_type_hints

import numpy as np
import pytest
from batches import SEED, same, scores

import ctcbind
from ctcbind import CTCLoss, ctc_loss_and_grad


def test_a_plan_for_sizes_that_grow_and_shrink(engine):
    if engine.contract.arrays == "device":
        pytest.skip("a plan of device arrays is tested beside its engine")
    rng = np.random.default_rng([SEED, 21])
    sizes = [(2, 1, 2), (9, 3, 5), (1, 1, 2), (40, 2, 9), (3, 8, 3), (40, 2, 9), (5, 1, 60), (2, 1, 2)]
    with CTCLoss(engine=engine.name) as plan:
        for T, N, C in sizes:
            for dtype in (np.float32, np.float64):
                x = rng.normal(size=(T, N, C)).astype(dtype)
                targets = [rng.integers(1, C, size=int(rng.integers(0, T // 2 + 1))) for _ in range(N)]
                kept, fresh = plan(x, targets), engine(x, targets)
                assert kept.engine == engine.name
                assert same(kept.loss, fresh.loss), f"seed {SEED}"
                assert same(kept.grad, fresh.grad), f"seed {SEED}"
                assert same(plan.loss(x, targets), engine.loss(x, targets)), f"seed {SEED}"


def test_a_plan_keeps_its_options():
    x = scores(2, 6, 4)
    options = {"blank": -1, "layout": "NTC", "reduction": "label_mean", "zero_infinity": True, "topology": "simple"}
    with CTCLoss(**options) as plan:
        a, b = plan(x, [[1, 1], [0] * 9]), ctc_loss_and_grad(x, [[1, 1], [0] * 9], **options)
        assert a.loss == plan.loss(x, [[1, 1], [0] * 9]) == b.loss
        assert same(a.grad, b.grad)


def test_every_option_is_shown_and_copied():
    others = {
        "engine": "cuda", "blank": 2, "layout": "NTC", "reduction": "sum", "zero_infinity": True, "topology": "simple",
        "graph_safe": True, "overwrite_logits": True, "probabilities": True, "deterministic": False,
    }  # fmt: skip
    assert {*others, "stream"} == set(inspect.signature(CTCLoss).parameters)
    for name, value in others.items():
        plan = CTCLoss(**{name: value})
        assert repr(plan) == repr(copy.copy(plan)) == f"CTCLoss({name}={value!r})"


class Named(CTCLoss):
    """As one of a user's, with an argument that it demands."""

    def __init__(self, name, **options):
        super().__init__(**options)
        self.name, self.seen, self.closings = name, [], 0

    def close(self):
        self.closings += 1
        super().close()


def test_a_class_of_ones_own_is_copied_whole():
    with Named("words", blank=2) as plan:
        plan(np.zeros((3, 1, 4)), [[1]])
        plan.seen.append(1)
        for copied in (copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))):
            assert repr(copied) == "Named(blank=2)"
            assert type(copied) is Named
            assert (copied.name, copied.seen) == ("words", [1])
            np.testing.assert_array_equal(
                copied.loss(np.zeros((3, 1, 4)), [[1]]), plan.loss(np.zeros((3, 1, 4)), [[1]])
            )
        assert plan.closings == 0, "what a copy was made for is not the plan's own"
        assert (copy.copy(plan).seen is plan.seen, copy.deepcopy(plan).seen is plan.seen) == (True, False)


def test_a_closed_plan_of_ones_own_class_is_copied_closed():
    plan = Named("words")
    plan.close()
    copied = copy.deepcopy(plan)
    assert copied.closed
    assert (copied.name, copied.closings) == ("words", 1)


def test_a_type_checker_knows_the_options_and_the_class():
    """Each as `__init__` takes it (the stream by its address); and a `with` block gives the class that it was given."""
    taken, shown = get_type_hints(CTCLoss.__init__), vars(CTCLoss)
    names = inspect.signature(CTCLoss).parameters
    told = {name: get_type_hints(shown[name].fget)["return"] for name in names}
    assert told == {name: taken[name] for name in names} | {"stream": int | None}
    entered = get_type_hints(CTCLoss.__enter__)
    assert entered["self"] is entered["return"]
    assert isinstance(entered["self"], TypeVar)


def test_options_can_be_read_and_not_set():
    """Set and not heeded, a blank would be the wrong one without a word."""
    plan = CTCLoss(blank=3, reduction="sum")
    for name, parameter in inspect.signature(CTCLoss).parameters.items():
        expected = {"blank": 3, "reduction": "sum"}.get(name, parameter.default)
        assert getattr(plan, name) == expected
        with pytest.raises(AttributeError):
            setattr(plan, name, expected)


def test_a_plan_shows_its_options_and_can_be_copied_and_pickled():
    """As part of a model that is copied, or of what a worker process is handed."""
    logits = np.random.default_rng(3).normal(size=(9, 2, 5))
    with ctcbind.CTCLoss(blank=-1, reduction="sum", layout="NTC", zero_infinity=True) as plan:
        want = plan(logits.transpose(1, 0, 2), [[1, 2], [3] * 9])
        assert repr(plan) == "CTCLoss(blank=-1, layout='NTC', reduction='sum', zero_infinity=True)"
        copies = [copy.copy(plan), copy.deepcopy([plan])[0], pickle.loads(pickle.dumps(plan))]
    assert repr(plan).endswith("), closed")
    for each in copies:  # the first is closed, and they are not
        assert repr(each) + ", closed" == repr(plan)
        again = each(logits.transpose(1, 0, 2), [[1, 2], [3] * 9])
        assert again.loss == want.loss
        assert (again.grad == want.grad).all()
    assert copy.copy(plan).closed
    with pytest.raises(TypeError, match="a stream belongs to its process"):
        pickle.dumps(ctcbind.CTCLoss(stream=1))
    assert repr(ctcbind.CTCLoss()) == "CTCLoss()"


def test_a_plan_survives_a_refused_batch():
    x = scores(4, 1, 3)
    with CTCLoss() as plan:
        before = plan(x, [[1]])
        with pytest.raises(ctcbind.InvalidInput):
            plan(x, [[7]])
        assert same(plan(x, [[1]]).grad, before.grad)


def test_closing():
    plan = CTCLoss()
    assert plan.closed is False
    with plan as same_plan:
        assert same_plan is plan
        plan(scores(3, 1, 3), [[1]])
    assert plan.closed is True
    plan.close()
    plan.close()
    for use in (lambda: plan(scores(3, 1, 3), [[1]]), lambda: plan.loss(scores(3, 1, 3), [[1]]), plan.__enter__):
        with pytest.raises(ctcbind.ClosedError, match="was closed"):
            use()
    assert issubclass(ctcbind.ClosedError, RuntimeError)
    never_used = CTCLoss()
    never_used.close()
    assert never_used.closed


def test_a_plan_is_closed_when_its_block_raises():
    plan = CTCLoss()
    with pytest.raises(ZeroDivisionError), plan:
        plan(scores(3, 1, 3), [[1 // 0]])
    assert plan.closed


def test_one_plan_from_several_threads(engine):
    """The same bits as alone, whoever else calls; and each thread has its own results."""
    if engine.contract.arrays == "device":
        pytest.skip("a plan of device arrays is tested beside its engine")
    work = []
    for i in range(8):
        x = scores(30 + i, 3, 5 + i, key=i)
        targets = [[1, 2, 3], [4] * (i + 1), []]
        work.append((x, targets, engine(x, targets)))
    failures = []
    start = threading.Barrier(8)

    def call(plan, x, targets, alone):
        start.wait()
        for _ in range(5):
            got = plan(x, targets)
            if not (same(got.loss, alone.loss) and same(got.grad, alone.grad)):
                failures.append(x.shape)

    for shared in (True, False):
        with CTCLoss(engine=engine.name) as plan:
            plans = [plan if shared else CTCLoss(engine=engine.name) for _ in work]
            threads = [threading.Thread(target=call, args=(p, *each)) for p, each in zip(plans, work)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads)
    assert not failures


def test_closing_while_another_thread_calls():
    """The call that is under way finishes; the next raises ClosedError; nothing is freed under anyone's feet."""
    x, targets = scores(400, 4, 20), [[1, 2, 3] * 20] * 4
    for _ in range(5):
        plan, outcome = CTCLoss(), []
        alone = plan(x, targets)
        started = threading.Event()

        def loop(plan=plan, outcome=outcome, started=started, alone=alone):
            try:
                while True:
                    started.set()
                    outcome.append(same(plan(x, targets).grad, alone.grad))
            except ctcbind.ClosedError as error:
                outcome.append(str(error))

        thread = threading.Thread(target=loop)
        thread.start()
        started.wait(60)
        plan.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "was closed" in outcome.pop()
        assert all(each is True for each in outcome)


SCRIPT_AFTER_FORK = """
    import os, sys, threading
    import numpy as np, ctcbind
    ctcbind.set_num_threads(4)
    x = np.random.default_rng(1).normal(size=(60, 16, 12)).astype(np.float32)
    targets = [[1, 2, 3, 3]] * 16
    plan = ctcbind.CTCLoss()
    parent = plan(x, targets)
    for depth in range(2):  # a child, and a child of the child
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
            again = plan(x, targets)  # and the parent is as well as before
            assert again.grad.tobytes() == parent.grad.tobytes()
            print("ok" if depth == 0 else "child ok", flush=True)
            os._exit(os.waitstatus_to_exitcode(status))
        child, new = plan(x, targets), ctcbind.ctc_loss_and_grad(x, targets)
        assert child.grad.tobytes() == new.grad.tobytes() == parent.grad.tobytes()
        assert child.loss.tobytes() == parent.loss.tobytes()
    plan.close()
    print("grandchild ok", flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_fork(tmp_path):
    """A forked child computes with the plan it inherited and with a new one; no thread it lacks is waited for."""
    script = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(SCRIPT_AFTER_FORK)]
    # in a folder of its own: -c looks for ctcbind in the working folder first
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["grandchild ok", "child ok", "ok", ""]
