"""Handles and descriptors of the cuDNN binding: closed once, never used after, never left alive."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from fake_cudnn.problem import (
    FLOAT,
    MAKERS,
    NOTHING_ALIVE,
    SOFTMAX,
    ZERO,
)

from ctcbind.bindings import cudnn
from ctcbind.errors import ClosedError

pytest_plugins = ["fake_cudnn.fixture"]


@pytest.mark.parametrize("kind", MAKERS)
def test_closed_once_and_never_used_again(fake, kind):
    make, destroy = MAKERS[kind]
    thing = make()
    assert fake.live[kind] == 1
    assert not thing.closed
    assert hex(thing.address) in repr(thing)
    with thing as same:
        assert same is thing
    assert thing.closed
    assert fake.live[kind] == 0
    assert "closed" in repr(thing)
    calls = len(fake.calls)
    thing.close()
    thing.close()
    assert len(fake.calls) == calls
    for use in (lambda: thing.address, thing.__enter__, lambda: destroy(thing)):
        with pytest.raises(ClosedError, match=r"was closed; make a new one"):
            use()
    assert len(fake.calls) == calls
    assert fake.stray == 0


@pytest.mark.parametrize("kind", MAKERS)
def test_destroy_is_close(fake, kind):
    make, destroy = MAKERS[kind]
    thing = make()
    destroy(thing)
    assert thing.closed
    assert fake.live == NOTHING_ALIVE


@pytest.mark.parametrize("kind", MAKERS)
def test_released_by_the_garbage_collector(fake, kind):
    thing = MAKERS[kind][0]()
    assert fake.live[kind] == 1
    del thing
    gc.collect()
    assert fake.live[kind] == 0


def test_a_failure_at_garbage_collection_is_logged_and_nothing_else(fake, caplog):
    fake.fail("cudnnDestroy", 5000)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        del_me = cudnn.cudnnCreate()
        del del_me
        gc.collect()
    assert "cudnnDestroy at garbage collection returned 5000" in caplog.text
    fake.reset(92800)


@pytest.mark.parametrize("kind", MAKERS)
def test_no_second_owner(fake, kind):
    import copy

    with MAKERS[kind][0]() as thing:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="two owners"):
                duplicate(thing)


def test_a_thousand_are_made_and_none_is_left(fake):
    def work():
        for _ in range(100):
            with cudnn.cudnnCreateTensorDescriptor() as tensor, cudnn.cudnnCreateCTCLossDescriptor() as desc:
                cudnn.cudnnSetTensorNdDescriptor(tensor, FLOAT, (3, 2, 2), (4, 2, 1))
                cudnn.cudnnSetCTCLossDescriptor_v9(desc, FLOAT, SOFTMAX, ZERO, 5)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake.live == NOTHING_ALIVE
    assert fake.stray == 0


def test_closing_in_two_threads_destroys_once(fake):
    for _ in range(50):
        handle = cudnn.cudnnCreate()
        start = threading.Barrier(4)

        def close(handle=handle, start=start):
            start.wait()
            handle.close()

        threads = [threading.Thread(target=close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert fake.calls.count("cudnnDestroy") == 50
    assert fake.stray == 0


def in_a_process(fake, script, **environment):
    """Runs a script in its own interpreter with this fake; returns (stdout, stderr, the calls)."""
    root = Path(cudnn.__file__).resolve().parents[2]
    log = fake.path.with_suffix(".log")
    log.unlink(missing_ok=True)
    env = {**os.environ, "CTCBIND_CUDNN": str(fake.path), "FAKE_CUDNN_LOG": str(log), **environment}
    script = f"import sys; sys.path.insert(0, {str(root)!r})\n" + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr, log.read_text().splitlines() if log.exists() else []


def test_nothing_is_called_while_the_interpreter_goes_down(fake):
    script = """
        from ctcbind.bindings import cudnn
        handle = cudnn.cudnnCreate()
        cycle = [cudnn.cudnnCreateCTCLossDescriptor()]
        cycle.append(cycle)
        cudnn.cudnnSetCallback(6, None, print)
    """
    out, err, calls = in_a_process(fake, script)
    assert (out, err) == ("", "")
    assert not any("Destroy" in call for call in calls)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_destroys_nothing(fake):
    """Its copy of the CUDA context is dead, and so are the handles in it."""
    script = """
        import os
        from ctcbind.bindings import cudnn
        handle, desc = cudnn.cudnnCreate(), cudnn.cudnnCreateCTCLossDescriptor()
        child = os.fork()
        if child == 0:
            handle.close()
            del desc
            os._exit(0)
        os.waitpid(child, 0)
        print(len(open(os.environ["FAKE_CUDNN_LOG"]).readlines()))
        handle.close()
        desc.close()
    """
    out, _, calls = in_a_process(fake, script)
    assert int(out) == 3  # the version check and the two that were made
    assert sum("Destroy" in call for call in calls) == 2


def test_importing_loads_nothing(fake):
    script = """
        from ctcbind.bindings import cudnn, find
        print("fake_cudnn" in open("/proc/self/maps").read())
        cudnn.cudnnGetVersion()
        print("fake_cudnn" in open("/proc/self/maps").read())
    """
    out, _, _ = in_a_process(fake, script)
    assert out.split() == ["False", "True"]


def test_a_failure_can_be_asked_for_from_outside(fake):
    script = """
        from ctcbind.bindings import cudnn
        print(cudnn.cudnnGetVersion())
        try:
            cudnn.cudnnCreate()
        except cudnn.load.__globals__["NativeError"] as error:
            print(error.status)
    """
    out, _, _ = in_a_process(fake, script, FAKE_CUDNN_VERSION="91203", FAKE_CUDNN_FAIL="cudnnCreate:1:1001")
    assert out.split() == ["91203", "1001"]
