"""The stand-in for CuPy refuses what CuPy and CUDA refuse: else what is wrong there is right here."""

from __future__ import annotations

import threading

import fake_cupy
import numpy as np
import pytest
from batches import scores
from device_batches import padded, there

from ctcbind import CTCLoss
from ctcbind.cuda import kernels

pytest_plugins = ["emulated_fixture"]


@pytest.fixture
def two(cupy, monkeypatch):
    monkeypatch.setattr(fake_cupy, "device_count", 2)
    return cupy


def test_a_stream_belongs_to_its_device_and_to_the_thread_that_entered_it(two):
    stream, found = two.cuda.Stream(), []
    with stream:
        assert two.cuda.get_current_stream() is stream
        thread = threading.Thread(target=lambda: found.append(two.cuda.get_current_stream().ptr))
        thread.start()
        thread.join()
        with two.cuda.Device(1):
            found.append(two.cuda.get_current_stream().ptr)
            with pytest.raises(RuntimeError, match="of device 0, and device 1 is the current one"):
                stream.use()
        assert two.cuda.get_current_stream() is stream
    assert found == [0, 0]
    assert two.cuda.get_current_stream().ptr == 0


def test_values_are_waited_for_and_not_to_be_had_in_a_capture(cupy):
    stream, number = cupy.cuda.Stream(), cupy.ndarray(np.array(3))
    with stream:
        for look in (cupy.asnumpy, int, bool, float, range, lambda each: each.get()):
            before = len(cupy.synchronized)
            look(number)
            assert cupy.synchronized[before:] == [stream.ptr]
            stream.begin_capture()
            with pytest.raises(RuntimeError, match="the current stream is capturing"):
                look(number)
            stream.end_capture()


def test_a_kernel_is_launched_on_the_device_that_it_was_loaded_on(two, monkeypatch):
    monkeypatch.setattr(kernels, "_compiled", {})
    arrays = there(scores(5, 2, 4)), there(padded([[1], [2]]))
    with CTCLoss(engine="cuda", graph_safe=True) as plan:
        plan(*arrays)
        (found,) = {device for _, device, _ in kernels._compiled}
        assert found == 0
        wrong = {(cupy, 1, module): made for (cupy, _, module), made in kernels._compiled.items()}
        monkeypatch.setattr(kernels, "_compiled", wrong)
        with two.cuda.Device(1):
            arrays = there(scores(5, 2, 4)), there(padded([[1], [2]]))
        with pytest.raises(AssertionError, match="CUDA_ERROR_INVALID_HANDLE"):
            plan(*arrays)
