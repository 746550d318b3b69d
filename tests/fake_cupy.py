"""A stand-in for CuPy on NumPy arrays, for code that would need a GPU.

A test puts it in CuPy's place with `monkeypatch.setitem(sys.modules, "cupy", fake_cupy)`. It is as strict as CuPy
where a mistake hides otherwise: an array of it is no NumPy array, neither is taken for the other unless asked for
(`asarray`, `asnumpy`, `get`), fresh memory holds no zeros, arithmetic takes arrays of the current device alone (as
CuPy does without peer access), a stream that is captured cannot be waited for, and no arithmetic
reads an array that lies between elements (misaligned, or with strides that are no whole number of them). As in CuPy,
arithmetic never warns. Its "device" memory is host memory, so that a library on the host can work on the addresses, and
work is done when it is asked for. Any function of NumPy is here under its name.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, ClassVar

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

__version__ = "14.0.0"

#: Tests may set it: how many devices there are. 0 is a machine with a driver and no GPU.
device_count = int(os.environ.get("FAKE_CUPY_DEVICES", "1"))
#: Every stream that was waited for, by its address.
synchronized: list[int] = []


class _Devices(threading.local):
    """The current one of each thread, and those before it."""

    def __init__(self) -> None:
        self.stack = [0]


class Device:
    """A device by its number; the current one without. Entered, it is the current one of its thread."""

    _of_thread: ClassVar[_Devices] = _Devices()

    def __init__(self, device: int | Device | None = None) -> None:
        self.id = Device._of_thread.stack[-1] if device is None else int(device)
        if not 0 <= self.id < device_count:
            raise CUDARuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        Device._of_thread.stack.append(self.id)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        Device._of_thread.stack.pop()

    def use(self) -> None:
        Device._of_thread.stack[-1] = self.id

    def synchronize(self) -> None:
        synchronized.append(0)

    @property
    def compute_capability(self) -> str:
        return "90"


class _Streams(threading.local):
    """The current one of each thread on each device, and those before it."""

    def __init__(self) -> None:
        self.stacks: dict[int, list[Stream]] = {}

    def of(self, device: int) -> list[Stream]:
        return self.stacks.setdefault(device, [])


class Stream:
    """A stream of the device that is current when it is made: an address, and note of who waited for it. It can be
    entered on its own device alone, where it is the current one of its thread."""

    _addresses = itertools.count(0x1000, 0x10)
    _of_thread: ClassVar[_Streams] = _Streams()

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        self.ptr = 0 if null else next(Stream._addresses)
        self.device_id = -1 if null else Device().id

    @classmethod
    def from_external(cls, of: Any) -> Stream:
        version, address = of.__cuda_stream__()
        assert version == 0
        stream = cls()
        stream.ptr = address
        stream._foreign_stream_ref = of
        return stream

    def __enter__(self) -> Stream:
        self._of_current_device().append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._of_thread.of(Device().id if self.device_id < 0 else self.device_id).pop()

    def use(self) -> Stream:
        self._of_current_device()[:] = [self]
        return self

    def _of_current_device(self) -> list[Stream]:
        device = Device().id
        if self.device_id not in (-1, device):
            raise RuntimeError(f"this stream is of device {self.device_id}, and device {device} is the current one")
        return self._of_thread.of(device)

    def synchronize(self) -> None:
        if self.is_capturing():
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: operation not permitted: stream is capturing")
        synchronized.append(self.ptr)

    done = True

    def begin_capture(self, mode: int | None = None) -> None:
        self._capturing = True

    def is_capturing(self) -> bool:
        return getattr(self, "_capturing", False)

    def end_capture(self) -> Graph:
        self._capturing = False
        return Graph()


class Graph:
    """What a capture gives. The work was done at once, so that launching it does nothing."""

    def launch(self, stream: Stream | None = None) -> None:
        pass


Stream.null = Stream(null=True)  # type: ignore[attr-defined]


def get_current_stream(device_id: int | None = None) -> Stream:
    stack = Stream._of_thread.of(Device._of_thread.stack[-1] if device_id is None else device_id)
    return stack[-1] if stack else Stream.null  # type: ignore[attr-defined]


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.stream: int | None = None
        self.time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.stream = (stream or get_current_stream()).ptr
        self.time = time.perf_counter()
        self.waits = len(synchronized)

    @property
    def done(self) -> bool:
        """Whether its stream was waited for since: earlier, a real device might be at work."""
        return self.stream in synchronized[self.waits :]

    def synchronize(self) -> None:
        assert self.stream is not None, "waited for an event that was never recorded"
        assert not get_current_stream().is_capturing(), "waited in a capture"
        synchronized.append(self.stream)


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    return 1e3 * (end_event.time - start_event.time)


class CUDARuntimeError(RuntimeError):
    pass


class MemoryPointer:
    """Memory of its own: `ptr` is its address, `mem` keeps it alive."""

    def __init__(self, mem: np.ndarray[Any, Any], offset: int = 0) -> None:
        self.mem = mem
        self.ptr = int(mem.ctypes.data) + offset
        self.device = Device()
        self.device_id = self.device.id

    def __int__(self) -> int:
        return self.ptr


class MemoryPool:
    """Counts what is taken; the memory itself is the garbage collector's."""

    def __init__(self, allocator: Any = None) -> None:
        self.taken: list[int] = []

    def malloc(self, size: int) -> MemoryPointer:
        self.taken.append(size)
        return alloc(size)

    def total_bytes(self) -> int:
        return sum(self.taken)

    used_bytes = total_bytes

    def free_all_blocks(self, stream: Stream | None = None) -> None:
        self.taken.clear()


#: What new memory holds, in turn: NaN and -1, or numbers as large as they come.
rubbish: Iterator[int] = itertools.cycle((0xFF, 0x7F))
#: What `alloc` and `alloc_pinned_memory` gave, by its address: where a copy begins and ends is known of these alone.
_of_device: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_pinned: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def alloc(size: int) -> MemoryPointer:
    _need_device()
    made = MemoryPointer(np.full(max(int(size), 1), next(rubbish), dtype=np.uint8))
    _of_device[made.ptr] = made.mem
    return made


def alloc_pinned_memory(size: int) -> Any:
    """Memory of the host that copies need not wait for; a buffer with `ptr`."""
    _need_device()
    made = np.full(size, next(rubbish), dtype=np.uint8).view(_Pinned)
    _pinned[made.ptr] = made
    return made


class _Pinned(np.ndarray):  # type: ignore[type-arg]
    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)


_pool = MemoryPool()


def get_default_memory_pool() -> MemoryPool:
    return _pool


def RawModule(*, code: str, options: tuple[str, ...] = ()) -> Any:
    """Kernels, which the emulator in tests/cuda runs when they are launched."""
    _need_device()
    folder = os.environ.get("FAKE_CUPY_KERNELS") or str(Path(__file__).resolve().parent / "cuda")
    if folder not in sys.path:
        sys.path.append(folder)
    import emulated

    return emulated.RawModule(code=code, options=options)


def _need_device() -> None:
    if not device_count:
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


class ndarray(NDArrayOperatorsMixin):  # noqa: N801
    """An array on the "device": NumPy's inside, and everything of NumPy's wrapped again on its way out."""

    __array_priority__ = 100

    def __init__(
        self,
        host: Any,
        device: Device | None = None,
        *,
        dtype: Any = None,
        memptr: MemoryPointer | None = None,
        strides: Any = None,
    ) -> None:
        """Around a NumPy array; or, as CuPy's own, of a shape in the memory at `memptr`."""
        _need_device()
        if memptr is not None:
            interface = {"shape": host, "typestr": np.dtype(dtype).str, "strides": strides, "version": 3}
            owner = SimpleNamespace(__array_interface__={**interface, "data": (memptr.ptr, False)}, mem=memptr.mem)
            host, device = np.asarray(owner), memptr.device
        self._host = host
        self.device = device or Device()

    @property
    def data(self) -> MemoryPointer:
        pointer = MemoryPointer.__new__(MemoryPointer)
        pointer.mem, pointer.ptr, pointer.device = self._host, int(self._host.ctypes.data), self.device
        pointer.device_id = self.device.id
        return pointer

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        inside = self._host.__array_interface__
        names = ("shape", "typestr", "descr", "strides", "data")
        stream = get_current_stream().ptr or 1
        return {**{name: inside[name] for name in names}, "version": 3, "stream": stream}

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()` explicitly.")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return _compute(getattr(ufunc, method), inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _compute(function, args, kwargs)

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise NotImplementedError("this stand-in has no DLPack")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device.id

    def get(self, stream: Stream | None = None, order: str = "C", out: Any = None) -> np.ndarray[Any, Any]:
        if get_current_stream().is_capturing():
            raise RuntimeError("the current stream is capturing, so synchronous API calls are disallowed")
        synchronized.append(get_current_stream().ptr)
        return self._host.copy(order=order)  # type: ignore[call-overload,no-any-return]

    def set(self, arr: np.ndarray[Any, Any], stream: Stream | None = None) -> None:
        self._host[...] = arr

    def __getitem__(self, key: Any) -> Any:
        _wait_for_masks(key)
        return _wrap(self._host[_unwrap(key)], self.device)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, np.ndarray) and value.ndim:
            raise TypeError("Unsupported type <class 'numpy.ndarray'>")
        _wait_for_masks(key)
        with np.errstate(all="ignore"):
            _unwrap(self)[_unwrap(key)] = _unwrap(value)

    def __len__(self) -> int:
        return len(self._host)

    def __iter__(self) -> Any:
        return (_wrap(each) for each in self._host)

    def __bool__(self) -> bool:
        return bool(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __repr__(self) -> str:
        return f"fake_cupy.{self._host!r}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._host, name)
        if not callable(found):
            return _wrap(found, self.device)

        @functools.wraps(found)
        def method(*args: Any, **kwargs: Any) -> Any:
            if name in ("reshape", "squeeze", "swapaxes", "transpose", "view"):  # no arithmetic: on any device
                return _wrap(found(*args, **kwargs), self.device)
            result = _compute(found, (*args,), kwargs, self)
            return self if result._host is self._host else result

        return method


def _wait_for_masks(key: Any) -> None:
    """CuPy has to know how many elements a mask leaves."""
    for each in key if isinstance(key, tuple) else (key,):
        if isinstance(each, ndarray) and each.dtype == bool:
            get_current_stream().synchronize()


def _compute(function: Any, args: Any, kwargs: Any, owner: ndarray | None = None) -> Any:
    _unwrap(owner)
    with np.errstate(all="ignore"):
        return _wrap(function(*_unwrap(args), **_unwrap(kwargs)))


def _wrap(value: Any, device: Device | None = None) -> Any:
    if isinstance(value, ndarray):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(np.asarray(value), device)  # CuPy's reductions give arrays of no dimension, not scalars
    if isinstance(value, (tuple, list)) and any(isinstance(each, np.ndarray) for each in value):
        return type(value)(_wrap(each, device) for each in value)
    return value


def _unwrap(value: Any) -> Any:
    """The NumPy arrays inside; raises for a NumPy array among the arguments, and for one of another device."""
    if isinstance(value, ndarray):
        if value.device != Device():
            message = f"array device = {value.device.id} while current = {Device().id}"
            raise ValueError(f"Array device must be same as the current device: {message}")
        if value._host.size and not value._host.flags.aligned:
            raise CUDARuntimeError("cudaErrorMisalignedAddress: misaligned address")
        return value._host
    if isinstance(value, np.ndarray) and value.ndim:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, (tuple, list)):
        return type(value)(_unwrap(each) for each in value)
    if isinstance(value, dict):
        return {key: _unwrap(each) for key, each in value.items()}
    return value


def asarray(a: Any, dtype: Any = None, order: str | None = None, **kwargs: Any) -> ndarray:
    """On the device: an array that is there already as it is, anything else copied."""
    if isinstance(a, ndarray):
        return a if dtype is None or a.dtype == np.dtype(dtype) else a.astype(dtype)
    if get_current_stream().is_capturing():
        raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")
    return ndarray(np.array(a, dtype=dtype, order="K" if order is None else order))  # type: ignore[call-overload]


def from_dlpack(array: Any) -> ndarray:
    """Of an object whose capsule is, here, the array itself."""
    made: ndarray = array.__dlpack__()
    assert isinstance(made, ndarray)
    return made


def array(a: Any, dtype: Any = None, copy: bool = True, order: str = "K", **kwargs: Any) -> ndarray:
    return ndarray(np.array(_unwrap(a) if isinstance(a, ndarray) else a, dtype=dtype, order=order))  # type: ignore[call-overload]


def asnumpy(a: Any, stream: Stream | None = None, order: str = "C", out: Any = None) -> np.ndarray[Any, Any]:
    return a.get() if isinstance(a, ndarray) else np.asarray(a)


def get_array_module(*args: Any) -> Any:
    return sys.modules[__name__] if any(isinstance(each, ndarray) for each in args) else np


def empty(shape: Any, dtype: Any = float, order: str = "C") -> ndarray:
    """Memory with nothing in it that could pass for a result: NaN, or a great negative number."""
    host = np.empty(shape, dtype=dtype, order=order)  # type: ignore[call-overload]
    host[...] = np.nan if host.dtype.kind == "f" else False if host.dtype.kind == "b" else 77
    return ndarray(host)


def empty_like(a: ndarray, dtype: Any = None, **kwargs: Any) -> ndarray:
    like = np.empty_like(a._host, dtype=dtype, **kwargs)
    like[...] = np.nan if like.dtype.kind == "f" else False if like.dtype.kind == "b" else 77
    return ndarray(like)


def _memset_async(ptr: int, value: int, size: int, stream: int) -> None:
    import ctypes

    ctypes.memset(ptr, value, size)


def _memcpy(dst: int, src: int, size: int, kind: int) -> None:
    import ctypes

    ctypes.memmove(dst, src, size)


def _memcpy_async(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """Between host and device alone, and the way that `kind` says. CUDA waits for the stream where the host's memory is
    pageable: to the device past 64 kB, from it always."""
    places = {runtime.memcpyHostToDevice: (dst, src), runtime.memcpyDeviceToHost: (src, dst)}
    if kind not in places:
        raise CUDARuntimeError("cudaErrorInvalidMemcpyDirection: invalid copy direction for memcpy")
    on_device, on_host = places[kind]
    if _within(_pinned, on_device, size) or _within(_of_device, on_host, size):
        raise CUDARuntimeError("cudaErrorInvalidValue: invalid argument")
    if not _within(_pinned, on_host, size) and (kind == runtime.memcpyDeviceToHost or size > 1 << 16):
        synchronized.append(stream)
    _memcpy(dst, src, size, kind)


def _within(blocks: weakref.WeakValueDictionary[int, Any], begin: int, size: int) -> bool:
    return any(at <= begin and begin + size <= at + each.nbytes for at, each in list(blocks.items()))


def _get_device_count() -> int:
    if device_count < 0:
        raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")
    return device_count


runtime = SimpleNamespace(
    getDeviceCount=_get_device_count,
    getDevice=lambda: Device().id,
    runtimeGetVersion=lambda: 12090,
    driverGetVersion=lambda: 12090,
    deviceGetAttribute=lambda attribute, device: 0,  # in particular, it reads no memory of the host
    getDeviceProperties=lambda device: {"name": b"a stand-in", "major": 9, "minor": 0, "totalGlobalMem": 1 << 30},
    memset=lambda ptr, value, size: _memset_async(ptr, value, size, 0),
    memsetAsync=_memset_async,
    memcpy=_memcpy,
    memcpyAsync=_memcpy_async,
    deviceSynchronize=lambda: synchronized.append(0),
    streamSynchronize=synchronized.append,
    CUDARuntimeError=CUDARuntimeError,
    is_hip=False,  # a test may make it CuPy's build for ROCm
    memcpyHostToDevice=1,
    memcpyDeviceToHost=2,
    memcpyDeviceToDevice=3,
)

cuda = SimpleNamespace(
    Device=Device,
    Event=Event,
    MemoryPointer=MemoryPointer,
    MemoryPool=MemoryPool,
    Stream=Stream,
    alloc=alloc,
    alloc_pinned_memory=alloc_pinned_memory,
    get_current_stream=get_current_stream,
    get_elapsed_time=get_elapsed_time,
    is_available=lambda: device_count > 0,
    runtime=runtime,
)


def __getattr__(name: str) -> Any:
    """NumPy's function of that name, for arrays of this module alone."""
    found = getattr(np, name)
    if isinstance(found, type) or not callable(found):
        return found

    @functools.wraps(found)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _compute(found, args, kwargs)

    return wrapped
