"""The warp-ctc binding on a fake library, which notes what arrives: arguments, statuses, and what never gets there."""

from __future__ import annotations

import array
import ctypes

import numpy as np
import pytest
from warpctc_lab import build, options

import ctcbind
from ctcbind import EngineUnavailable, EngineUnsupported, InvalidInput, NativeError
from ctcbind.bindings import warpctc as binding
from ctcbind.engines import get

CPU, GPU = binding.ctcComputeLocation.CTC_CPU, binding.ctcComputeLocation.CTC_GPU


@pytest.fixture(scope="module")
def fake_path(tmp_path_factory):
    return build(tmp_path_factory.mktemp("fake"))


def use(monkeypatch, path):
    monkeypatch.setattr(binding, "_loaded", None)
    monkeypatch.setenv("CTCBIND_WARPCTC", str(path))


class Fake:
    def __init__(self, path):
        self._lib = ctypes.CDLL(str(path))
        self._record = (ctypes.c_int64 * 16).in_dll(self._lib, "fake_record")
        self._status = ctypes.c_int.in_dll(self._lib, "fake_status")
        self.path = path
        self.status = 0

    @property
    def record(self):
        return list(self._record)

    @property
    def status(self):
        return self._status.value

    @status.setter
    def status(self, value):
        self._status.value = value
        self._record[0] = 0


@pytest.fixture
def fake(monkeypatch, fake_path):
    use(monkeypatch, fake_path)
    library = Fake(fake_path)
    yield library
    library.status = 0


@pytest.mark.parametrize("name", ["compute_ctc_loss", "compute_ctc_loss_double"])
def test_every_argument_arrives_in_its_place(fake, name):
    which = 2 if name.endswith("double") else 1
    given = binding.ctcOptions(CPU, 1 if which == 2 else 7, 0, 4)
    getattr(binding, name)(0x1000, 0x2000, [3, 2], [1, 1], [8, 9], 5, 2, 0x3000, 0x4000, given)
    assert fake.record[:14] == [
        which,
        0x1000,
        0x2000,
        3,
        1,
        8,
        5,
        2,
        0x3000,
        0x4000,
        0,
        given.num_threads,
        given.num_threads,
        4,
    ]
    getattr(binding, name)(0x1000, None, [3, 2], [1, 1], [8, 9], 5, 2, 0x3000, 0x4000, given)
    assert fake.record[2] == 0, "NULL: the loss alone"
    stream = 0x7FFF_1234_5678
    given = binding.ctcOptions(GPU, 0, stream, 1)
    getattr(binding, name)(0x1000, 0x2000, [3, 2], [1, 1], [8, 9], 5, 2, 0x3000, 0x4000, given)
    assert fake.record[10:14] == [1, stream & 0xFFFFFFFF, stream, 1]


@pytest.mark.parametrize("name", ["get_workspace_size", "get_workspace_size_double"])
def test_sizes_come_back_as_return_values(fake, name):
    which = 4 if name.endswith("double") else 3
    assert getattr(binding, name)([1, 2], [8, 9], 5, 2, binding.ctcOptions(CPU, 3, 0, 2)) == 4000 + which
    assert fake.record[:5] == [which, 1, 8, 5, 2]
    assert fake.record[10:14] == [0, 3, 3, 2]


@pytest.mark.parametrize("status", [1, 2, 3, 4, 77, -1])
@pytest.mark.parametrize("name", ["compute_ctc_loss", "compute_ctc_loss_double", "get_workspace_size"])
def test_every_status_is_an_error_with_its_name(fake, name, status):
    fake.status = status
    lengths, pointers = ([1], [8], 5, 1), (0x1000, 0x2000, [3])
    args = (*lengths, options()) if "workspace" in name else (*pointers, *lengths, 0x3000, 0x4000, options())
    with pytest.raises(NativeError) as caught:
        getattr(binding, name)(*args)
    names = {1: "MEMOPS_FAILED", 2: "INVALID_VALUE", 3: "EXECUTION_FAILED", 4: "UNKNOWN_ERROR"}
    assert caught.value.call == name
    assert caught.value.status == status
    assert caught.value.name == (
        f"CTC_STATUS_{names[status]}" if status in names else "a status that ctc.h does not name"
    )
    assert caught.value.explanation.startswith("two" if status == 2 else "another")
    meanings = {1: "the device failed", 2: "is NULL or a size", 3: "without CUDA", 4: "names no reason"}
    assert meanings.get(status, "no meaning is known") in caught.value.explanation


def test_buffers_sequences_and_addresses_say_the_same(fake):
    ints = array.array("i", [3, 2]), np.array([3, 2], np.int32), [3, 2], (3, 2), memoryview(array.array("i", [3, 2]))
    for labels in (*ints, ints[1].ctypes.data):
        binding.compute_ctc_loss(0x1000, None, labels, [1, 1], [8, 9], 5, 2, 0x3000, 0x4000, options())
        assert fake.record[3] == 3
    x, costs = array.array("f", [0] * 90), array.array("f", [0] * 2)
    binding.compute_ctc_loss(x, x, [3, 2], np.ones(2, np.int32), [8, 9], 5, 2, costs, bytearray(5000), options())
    assert fake.record[1] == fake.record[2] == x.buffer_info()[0]
    assert fake.record[8] == costs.buffer_info()[0]
    # a label of none: the pointer is not NULL, which the library would refuse
    for none in ([], np.empty(0, np.int32)):
        binding.compute_ctc_loss(0x1000, None, none, [0], [8], 5, 1, 0x3000, 0x4000, options())
    x64 = np.zeros(90)
    binding.compute_ctc_loss_double(x64, None, [3, 2], [1, 1], [8, 9], 5, 2, np.zeros(2), np.zeros(600), options())
    assert fake.record[1] == x64.ctypes.data


@pytest.mark.parametrize("kind", [np.intp, np.uintp, np.array])
def test_numbers_of_numpy_are_addresses(fake, kind):
    """They are buffers as well, of one item."""
    labels, lengths = np.array([3, 2], np.int32), np.array([1, 1], np.int32)
    given = {name: kind(GOOD[name]) for name in ("activations", "gradients", "costs", "workspace")}
    given |= {"flat_labels": kind(labels.ctypes.data), "label_lengths": kind(lengths.ctypes.data)}
    binding.compute_ctc_loss(**{**GOOD, **given})
    assert fake.record[:3] == [1, 0x1000, 0x2000]
    assert (fake.record[3], fake.record[8], fake.record[9]) == (3, 0x3000, 0x4000)
    binding.compute_ctc_loss(**{**GOOD, "gradients": kind(0)})
    assert fake.record[2] == 0
    with pytest.raises(InvalidInput, match="options must be ctcOptions"):
        binding.get_workspace_size([1], [8], 5, 1, None)


def test_enumerators_have_the_names_that_c_gives_them():
    for kind in (binding.ctcComputeLocation, binding.ctcStatus_t):
        for each in kind:
            assert getattr(binding, each.name) is each
            assert each.name in binding.__all__


def test_a_tensor_of_pytorch_is_told_how_to_be_passed(fake):
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match=r"x\.numpy\(\) or x\.data_ptr\(\)"):
        binding.compute_ctc_loss(**{**GOOD, "activations": torch.zeros(9, 2, 5)})


GOOD = {
    "activations": 0x1000, "gradients": 0x2000, "flat_labels": [3, 2], "label_lengths": [1, 1], "input_lengths": [8, 9],
    "alphabet_size": 5, "minibatch": 2, "costs": 0x3000, "workspace": 0x4000, "options": options(),
}  # fmt: skip
READ_ONLY = np.zeros(2, np.float32)
READ_ONLY.flags.writeable = False
READ_ONLY_GRAD = np.zeros((9, 2, 5), np.float32)
READ_ONLY_GRAD.flags.writeable = False

WRONG = [
    ({"activations": None}, "activations must not be NULL"),
    ({"activations": 0}, "activations must not be NULL"),
    ({"costs": None}, "costs must not be NULL"),
    ({"workspace": 0}, "workspace must not be NULL"),
    ({"flat_labels": None}, "flat_labels must not be NULL"),
    ({"flat_labels": 0}, "flat_labels must not be NULL"),
    ({"label_lengths": None}, "label_lengths must not be NULL"),
    ({"activations": -4}, "no address"),
    ({"activations": 2**64}, "no address"),
    ({"activations": 0x1001}, "aligned to 4 bytes"),
    ({"flat_labels": 0x1001}, "aligned to 4 bytes"),
    ({"input_lengths": 8}, "input_lengths is 8, which is no address"),
    ({"flat_labels": np.intp(4092)}, "flat_labels is 4092, which is no address"),
    ({"workspace": 4000}, "workspace is 4000, which is no address"),
    ({"options": binding.ctcOptions(CPU, 1, 4)}, "stream is 4, but loc is CTC_CPU, where num_threads counts"),
    ({"options": binding.ctcOptions(stream=np.zeros(3))}, r"stream is array\(.*, but loc is CTC_CPU, where"),
    ({"options": binding.ctcOptions(stream=np.array([]))}, r"stream is array\(\[\], .*, but loc is CTC_CPU, where"),
    ({"options": binding.ctcOptions(stream=0.0)}, "stream is 0.0, but loc is CTC_CPU, where"),
    ({"options": binding.ctcOptions(GPU, np.ones(3))}, r"num_threads is array\(\[1., .*, but loc is CTC_GPU, where"),
    ({"options": binding.ctcOptions(GPU, stream=np.zeros(3))}, r"stream is array\(\[.*, which is no address"),
    ({"options": binding.ctcOptions(GPU, 0x7070, 4)}, "num_threads is 28784, but loc is CTC_GPU, where stream counts"),
    ({"activations": np.zeros((2, 9, 5), np.float32)}, r"shape \(2, 9, 5\), and the library reads .* = \(2, 2, 5\)"),
    ({"gradients": np.zeros((5, 9, 2), np.float32)}, r"gradients has the shape \(5, 9, 2\)"),
    ({"activations": "text"}, "must be an address or a buffer"),
    ({"activations": [1.0]}, "must be an address or a buffer"),
    ({"activations": np.zeros(90)}, "must hold float32 values, not float64"),
    ({"activations": np.zeros(90, bool)}, "must hold float32 values, not bool"),
    ({"activations": np.zeros(89, np.float32)}, "has 89 values, and 90 are used"),
    ({"gradients": np.zeros(89, np.float32)}, "has 89 values, and 90 are used"),
    ({"activations": np.zeros(180, np.float32)[::2]}, "no gaps"),
    ({"activations": np.zeros(361, np.uint8)[1:].view(np.float32)}, "aligned"),
    ({"costs": np.zeros(1, np.float32)}, "has 1 values, and 2 are used"),
    ({"costs": READ_ONLY}, "costs is read-only"),
    ({"gradients": READ_ONLY_GRAD}, "gradients is read-only"),
    ({"workspace": bytes(5000)}, "workspace is read-only"),
    ({"workspace": bytearray(4002)}, "has 4002 bytes, and 4003 are used"),
    ({"flat_labels": [3]}, "holds 1 labels, but label_lengths sum to 2"),
    ({"flat_labels": [3, 5]}, r"flat_labels\[1\] is 5, not in 0..4"),
    ({"flat_labels": [-1, 2]}, r"flat_labels\[0\] is -1"),
    ({"flat_labels": [3, 2**31]}, "cannot hold"),
    ({"flat_labels": [3, 1.5]}, "must be an int, not float"),
    ({"flat_labels": "32"}, "is of type str"),
    ({"flat_labels": b"32"}, "is of type bytes"),
    ({"flat_labels": 3.0}, "is of type float"),
    ({"flat_labels": np.array([3, 2])}, r"int32 values, not int64: pass flat_labels\.astype\(numpy\.int32\)$"),
    ({"flat_labels": np.array([3, 2], np.uint16)}, "int32 values, not uint16"),
    ({"flat_labels": np.array([3, 2], np.float32)}, "int32 values"),
    ({"flat_labels": np.array([3, 2], np.uint32)}, "int32 values"),
    ({"flat_labels": np.arange(8, dtype=np.int32)[::4]}, "no gaps"),
    ({"flat_labels": np.zeros((1, 2), np.int32)}, "one dimension and no gaps: .* one after the other, unpadded$"),
    ({"label_lengths": np.ones((2, 1), np.int32)}, "label_lengths must have one dimension and no gaps$"),
    ({"label_lengths": [1]}, "holds 1 lengths, but minibatch is 2"),
    ({"input_lengths": [8, 9, 1]}, "holds 3 lengths"),
    ({"label_lengths": [-1, 1]}, r"label_lengths\[0\] is -1"),
    ({"input_lengths": [8, -9]}, r"input_lengths\[1\] is -9"),
    ({"label_lengths": [0, 1], "input_lengths": [0, 9]}, "sample 0 has no label and no frame"),
    ({"label_lengths": [2, 0], "input_lengths": [9, 0]}, "sample 1 has no label and no frame"),
    ({"alphabet_size": 0}, "alphabet_size is 0"),
    ({"minibatch": 0}, "minibatch is 0"),
    ({"minibatch": 2.0}, "must be an int"),
    ({"options": None}, "options must be ctcOptions, not None"),
    ({"options": 0}, "options must be ctcOptions, not 0"),
    ({"activations": np.intp(0)}, "activations must not be NULL"),
    ({"flat_labels": np.int32(4)}, "one dimension"),
    ({"options": options(blank=5)}, "blank_label is 5, not in 0..4"),
    ({"options": options(blank=-1)}, "blank_label is -1"),
    ({"options": options(threads=-1)}, "num_threads is -1"),
    ({"options": options(threads=100_000)}, "num_threads is 100000; it must be .* at most, for OpenMP ends"),
    ({"options": binding.ctcOptions(loc=2)}, "loc is 2"),
    ({"options": binding.ctcOptions(loc=GPU, stream=-1)}, "stream is -1"),
    ({"options": binding.ctcOptions(loc=GPU), "activations": np.zeros(90, np.float32)}, "device memory as an int"),
    ({"flat_labels": np.array([3, 2], ">i4")}, "int32 values"),
    ({"activations": np.zeros(90, ">f4")}, "must hold float32 values"),
    ({"activations": np.zeros((9, 2, 6), np.float32)}, r"shape \(9, 2, 6\), and the library reads .* = \(9, 2, 5\)"),
    ({"workspace": 0x4004}, "workspace .0x4004. must be aligned to 8 bytes"),
    ({"label_lengths": [2**30, 1], "input_lengths": [0, 0]}, r"\(2 L \+ 1\) T is 2147483649"),
    ({"alphabet_size": 2**30, "input_lengths": [0, 0]}, "T \\* minibatch \\* alphabet_size is 2147483648"),
    ({"label_lengths": [2**29, 1]}, r"\(2 L \+ 1\) T is 9663676425"),
    ({"input_lengths": [2**28, 1]}, "T \\* minibatch \\* alphabet_size is 2684354560"),
    ({"label_lengths": [2**27] * 16, "input_lengths": [1] * 16, "minibatch": 16}, "the number of labels is 2147483648"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), WRONG, ids=range(len(WRONG)))
def test_what_would_crash_never_reaches_c(fake, change, message):
    binding.compute_ctc_loss(**GOOD)
    assert fake.record[0] == 1
    fake.status = 0
    with pytest.raises(InvalidInput, match=message):
        binding.compute_ctc_loss(**{**GOOD, **change})
    assert fake.record[0] in (0, 3), "compute_ctc_loss was called"


def test_what_is_right_reaches_c(fake):
    """Labels past those that are read, which may be anything; a label and no frame; arrays of (T, N, C)."""
    x, costs = np.zeros((9, 2, 5), np.float32), np.zeros((2, 1), np.float32)
    for change in (
        {"flat_labels": [3, 2, 99]},
        {"flat_labels": np.array([3, 2, -7], np.int32)},
        {"input_lengths": [0, 9]},
        {"activations": x, "gradients": x.copy(), "costs": costs},
    ):
        binding.compute_ctc_loss(**{**GOOD, **change})
        assert fake.record[0] == 1
        fake.status = 0


def test_a_negative_length_names_its_sample(fake):
    for name in ("label_lengths", "input_lengths"):
        with pytest.raises(InvalidInput) as caught:
            binding.compute_ctc_loss(**{**GOOD, name: [1, -2]})
        assert (caught.value.rule, caught.value.sample, caught.value.value) == (name, 1, -2)


@pytest.mark.parametrize("name", ["get_workspace_size", "get_workspace_size_double"])
def test_a_workspace_is_asked_for_as_long_as_an_int_can_count(fake, name):
    size = getattr(binding, name)
    assert size([2**30 - 1], [1], 2, 1, options()) > 4000  # (2 L + 1) T is 2^31 - 1
    for wrong in (([1], [2**30], 2, 1), ([2**30], [1], 2, 1)):
        with pytest.raises(InvalidInput, match="which the library's int cannot hold") as caught:
            size(*wrong, options())
        assert caught.value.rule == "size_limit"


def test_doubles_stand_where_doubles_may(fake):
    for name in ("activations", "gradients", "costs"):
        with pytest.raises(InvalidInput, match=rf"^{name} \(0x7004\) must be aligned to 8 bytes"):
            binding.compute_ctc_loss_double(**{**GOOD, name: 0x7004})


def test_threads_that_a_machine_may_have_are_taken(fake):
    for threads in (0, 256):
        binding.compute_ctc_loss(**{**GOOD, "options": options(threads=threads)})
        assert fake.record[11] == threads


def test_the_double_function_takes_one_thread_for_many_samples(fake):
    binding.compute_ctc_loss_double(**GOOD)
    for threads in (0, 2):
        with pytest.raises(InvalidInput, match="is right with 1 only"):
            binding.compute_ctc_loss_double(**{**GOOD, "options": options(threads=threads)})


def test_the_double_function_takes_any_threads_for_one_sample(fake):
    one = {**GOOD, "flat_labels": [3], "label_lengths": [1], "input_lengths": [8], "minibatch": 1}
    for threads in (0, 2):
        binding.compute_ctc_loss_double(**{**one, "options": options(threads=threads)})
        assert (fake.record[0], fake.record[11]) == (2, threads)


def test_the_double_function_needs_the_workspace_of_its_own_size(fake):
    """One byte more, of this library, than the function of floats."""
    binding.compute_ctc_loss_double(**{**GOOD, "workspace": bytearray(4004)})
    fake.status = 0
    with pytest.raises(InvalidInput, match="has 4003 bytes, and 4004 are used"):
        binding.compute_ctc_loss_double(**{**GOOD, "workspace": bytearray(4003)})
    assert fake.record[0] != 2


def test_costs_are_on_the_host_on_a_gpu_too(fake):
    costs = np.zeros(2, np.float32)
    binding.compute_ctc_loss(**{**GOOD, "costs": costs, "options": binding.ctcOptions(GPU, 0)})
    assert fake.record[8] == costs.ctypes.data


def test_a_status_that_no_int_holds_is_refused(fake):
    assert binding.ctcGetStatusString(2) == "two"
    for status in (2**31, -(2**31) - 1, 2.0):
        with pytest.raises(InvalidInput, match=r"^status "):
            binding.ctcGetStatusString(status)


def test_the_sample_without_label_and_frame_is_named(fake):
    with pytest.raises(InvalidInput) as caught:
        binding.compute_ctc_loss(**{**GOOD, "label_lengths": [2, 0], "input_lengths": [9, 0]})
    assert (caught.value.rule, caught.value.sample) == ("input_length", 1)


def test_the_library_is_loaded_once(fake):
    assert binding.loaded_from() is binding.loaded_from()


def test_version_1_and_strangers_are_refused(monkeypatch, tmp_path):
    for flags, message in (
        (["-DFAKE_VERSION=1"], "has API version 1, and version 2 is needed"),
        (["-DFAKE_VERSION=3"], "has API version 3"),
        (["-Dget_warpctc_version=nothing"], "is no warp-ctc"),
        (["-DFAKE_WITHOUT_COMPUTE"], "lacks compute_ctc_loss, compute_ctc_loss_double"),
    ):
        use(monkeypatch, build(tmp_path, *flags))
        for call in (binding.get_warpctc_version, get("warpctc").library):
            with pytest.raises(EngineUnavailable, match=message):
                call()
    broken = tmp_path / "broken.so"
    broken.write_text("not a library")
    use(monkeypatch, broken)
    with pytest.raises(EngineUnavailable, match="could not be loaded"):
        binding.get_warpctc_version()
    use(monkeypatch, tmp_path / "absent.so")
    with pytest.raises(EngineUnavailable, match="there is no such file"):
        ctcbind.ctc_loss(np.zeros((2, 1, 3)), [[1]], engine="warpctc")


def test_an_engine_says_what_it_refuses_before_it_is_there(monkeypatch, tmp_path):
    use(monkeypatch, tmp_path / "absent.so")
    x = np.broadcast_to(np.float32(0), (2**20, 2**10, 4))  # no memory behind it
    with pytest.raises(EngineUnsupported, match=r"T N C is 4294967296"):
        ctcbind.ctc_loss(x, [[]] * 2**10, engine="warpctc")
    with pytest.raises(EngineUnsupported, match="topology"):
        ctcbind.ctc_loss(np.zeros((2, 1, 3)), [[1]], engine="warpctc", topology="simple")
    x = np.broadcast_to(np.float32(0), (70000, 1, 2))
    with pytest.raises(EngineUnsupported, match=r"\(2 L \+ 1\) T is 2800070000"):
        ctcbind.ctc_loss(x, np.ones(20000, int), None, [20000], engine="warpctc")
