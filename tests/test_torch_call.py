"""A call of the engines on tensors that are on a GPU: what is asked of CuPy, and in which scope."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.kinds import as_numpy, on_device  # noqa: E402
from ctcbind.torch.call import Call  # noqa: E402


def test_cuda_tensors_go_through_dlpack_on_pytorchs_stream(monkeypatch):
    """As far as it can be told without a GPU: what is asked of CuPy, and in which scope."""
    log = []

    class Scope:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(f"enter {self.name}")

        def __exit__(self, *_):
            log.append(f"leave {self.name}")

    cuda = SimpleNamespace(
        Stream=Scope,
        Device=lambda number: Scope(f"device {number}"),
        ExternalStream=lambda pointer, number: Scope(f"stream {pointer} of device {number}"),
    )

    class Tensor:
        def __init__(self, kind="cuda"):
            self.is_cpu, self.is_cuda, self.device = kind == "cpu", kind == "cuda", torch.device(kind, 1)

        def detach(self):
            return "detached"

    cupy = SimpleNamespace(cuda=cuda, from_dlpack=lambda each: f"cupy {each}")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=100 + device.index))
    monkeypatch.setattr(torch, "from_dlpack", lambda each: f"torch {each}")
    on_host = torch.tensor([1])
    with Call(Tensor()) as call:
        there, here = call.arrays(Tensor(), on_host)
        assert there == "cupy detached"
        assert here.ctypes.data == on_host.data_ptr()  # labels may stay on the host
        assert call.tensor("array") == "torch array"
        options = 0, "label_mean", False, "ctc", "auto"
        assert call.plan(*options) is call.plan(*options)
        assert call.plan(*options) is not Call(on_host).plan(*options)
        log.append("work")
    scopes = ["device 1", "stream 101 of device 1"]
    assert log == [*(f"enter {each}" for each in scopes), "work", *(f"leave {each}" for each in scopes[::-1])]

    def broken(_):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(cupy, "from_dlpack", broken)
    with Call(Tensor()) as call, pytest.raises(RuntimeError, match=r"^out of memory$"):
        call.arrays(Tensor(), on_host)  # not that they are nowhere
    with pytest.raises(ct.InvalidTorchInput, match="log_probs are on mps:1"):
        Call(Tensor("mps"))
    first, second = Tensor(), Tensor()
    first.device = torch.device("cuda", 0)
    assert Call(first).plan(*options) is not Call(second).plan(*options)


def test_the_scope_is_left_before_a_refusal_is_told_again(monkeypatch):
    """With the error at hand, as any scope."""
    log = []

    class Scope:
        def __enter__(self):
            log.append("enter")

        def __exit__(self, *error):
            log.append(error[:2])

    refusal = ctcbind.InvalidInput("no", rule="blank")
    call = Call(torch.zeros(1))
    monkeypatch.setattr(call, "_scope", Scope())
    with pytest.raises(ct.InvalidTorchInput, match=r"^no$"), call:
        raise refusal
    assert log == ["enter", (ctcbind.InvalidInput, refusal)]


@pytest.mark.parametrize("name", ["targets", "input_lengths", "target_lengths"])
def test_labels_on_a_gpu_beside_logits_on_the_host_are_refused(name):
    given = {"targets": torch.tensor([[1, 2]]), "input_lengths": torch.tensor([6]), "target_lengths": torch.tensor([2])}
    given[name] = on_a_gpu(given[name])
    for requires_grad in (False, True):
        with pytest.raises(
            ct.InvalidTorchInput, match=f"^{name} are in GPU memory while the log_probs are on the host"
        ):
            ct.ctc_loss(torch.zeros(6, 1, 4, requires_grad=requires_grad), **given)


def test_a_tensor_on_a_gpu_of_rocm_is_told_to_come_to_the_host(monkeypatch):
    """PyTorch calls its device cuda; CuPy for CUDA, which was to be installed, cannot read it."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(
        ct.InvalidTorchInput, match=r"^log_probs are on cuda:0, a device of ROCm; .* pass log_probs.cpu"
    ) as caught:
        Call(SimpleNamespace(is_cpu=False, is_cuda=True, device=torch.device("cuda", 0)))
    assert caught.value.rule == "device"
    with pytest.raises(ctcbind.InvalidInput, match=r"it is on the device cuda:0; pass tensor\.cpu\(\)$"):
        as_numpy(on_a_gpu(torch.zeros(2)))


def test_a_tensor_on_another_device_is_told_to_come_to_the_host() -> None:
    with pytest.raises(
        ct.InvalidTorchInput, match=r"^log_probs are on mps:0; .* CPU and on CUDA: pass log_probs.cpu\(\)$"
    ) as caught:
        Call(SimpleNamespace(is_cpu=False, is_cuda=False, device=torch.device("mps", 0)))
    assert caught.value.rule == "device"


def on_a_gpu(tensor):
    """A tensor that says so."""

    class OnAGpu(torch.Tensor):
        is_cpu, is_cuda, device = False, True, torch.device("cuda", 0)

    found = tensor.as_subclass(OnAGpu)
    assert on_device(found) is not bool(torch.version.hip)
    return found


def test_a_tensor_on_a_gpu_without_cupy_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(ct.InvalidTorchInput, match=r"through CuPy, which is not installed: pip install") as caught:
        Call(SimpleNamespace(is_cpu=False, is_cuda=True, device=torch.device("cuda", 0)))
    assert caught.value.rule == "device"
