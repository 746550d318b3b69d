"""The warp-ctc binding on a fake library, the real library against the Contract, and what the engine puts right."""

from __future__ import annotations

import array
import ctypes
import logging
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import EngineUnavailable, EngineUnsupported, InvalidInput, NativeError
from ctcbind.bindings import warpctc as binding
from ctcbind.engines import get
from ctcbind.engines.reference import forward_backward, log_softmax
from ctcbind.engines.warpctc import WarpctcSession

INF, NAN = np.inf, np.nan
CPU, GPU = binding.ctcComputeLocation.CTC_CPU, binding.ctcComputeLocation.CTC_GPU
CONTRACT = get("warpctc").contract

REASON = None
try:
    binding.loaded_from()
except EngineUnavailable as error:
    REASON = str(error)
real = pytest.mark.skipif(REASON is not None, reason=f"needs the real libwarpctc: {str(REASON).partition(chr(10))[0]}")


# --- the binding on a fake library ----------------------------------------------------------------------------


def build(folder: Path, *flags: str) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler to build the fake warp-ctc")
    # not by the real name: the finder would take it for one that the process has loaded
    path = folder / f"fake{len(list(folder.iterdir()))}.so"
    source = Path(__file__).with_name("fake_warpctc.c")
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", str(path), str(source)], check=True)
    return path


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


def options(blank=0, threads=1, **others):
    return binding.ctcOptions(num_threads=threads, blank_label=blank, **others)


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
    given = binding.ctcOptions(GPU, 3, stream, 1)
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


GOOD = {
    "activations": 0x1000, "gradients": 0x2000, "flat_labels": [3, 2], "label_lengths": [1, 1], "input_lengths": [8, 9],
    "alphabet_size": 5, "minibatch": 2, "costs": 0x3000, "workspace": 0x4000, "options": options(),
}  # fmt: skip
READ_ONLY = np.zeros(2, np.float32)
READ_ONLY.flags.writeable = False

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
    ({"activations": "text"}, "must be an address or a buffer"),
    ({"activations": [1.0]}, "must be an address or a buffer"),
    ({"activations": np.zeros(90)}, "must hold float values, not items of format 'd'"),
    ({"activations": np.zeros(89, np.float32)}, "has 89 values, and 90 are used"),
    ({"gradients": np.zeros(89, np.float32)}, "has 89 values, and 90 are used"),
    ({"activations": np.zeros(180, np.float32)[::2]}, "no gaps"),
    ({"activations": np.zeros(361, np.uint8)[1:].view(np.float32)}, "aligned"),
    ({"costs": np.zeros(1, np.float32)}, "has 1 values, and 2 are used"),
    ({"costs": READ_ONLY}, "read-only"),
    ({"workspace": bytearray(4002)}, "has 4002 bytes, and 4003 are used"),
    ({"flat_labels": [3]}, "holds 1 labels, but label_lengths sum to 2"),
    ({"flat_labels": [3, 5]}, r"flat_labels\[1\] is 5, not in 0..4"),
    ({"flat_labels": [-1, 2]}, r"flat_labels\[0\] is -1"),
    ({"flat_labels": [3, 2**31]}, "cannot hold"),
    ({"flat_labels": [3, 1.5]}, "must be an int, not float"),
    ({"flat_labels": "32"}, "is of type str"),
    ({"flat_labels": b"32"}, "is of type bytes"),
    ({"flat_labels": 3.0}, "is of type float"),
    ({"flat_labels": np.array([3, 2])}, "int32 values, not items of format 'l'"),
    ({"flat_labels": np.array([3, 2], np.float32)}, "int32 values"),
    ({"flat_labels": np.array([3, 2], np.uint32)}, "int32 values"),
    ({"flat_labels": np.arange(8, dtype=np.int32)[::4]}, "no gaps"),
    ({"flat_labels": np.zeros((1, 2), np.int32)}, "one dimension"),
    ({"label_lengths": [1]}, "holds 1 lengths, but minibatch is 2"),
    ({"input_lengths": [8, 9, 1]}, "holds 3 lengths"),
    ({"label_lengths": [-1, 1]}, r"label_lengths\[0\] is -1"),
    ({"input_lengths": [8, -9]}, r"input_lengths\[1\] is -9"),
    ({"label_lengths": [0, 1], "input_lengths": [0, 9]}, "sample 0 has no label and no frame"),
    ({"alphabet_size": 0}, "alphabet_size is 0"),
    ({"minibatch": 0}, "minibatch is 0"),
    ({"minibatch": 2.0}, "must be an int"),
    ({"options": options(blank=5)}, "blank_label is 5, not in 0..4"),
    ({"options": options(blank=-1)}, "blank_label is -1"),
    ({"options": options(threads=-1)}, "num_threads is -1"),
    ({"options": binding.ctcOptions(loc=2)}, "loc is 2"),
    ({"options": binding.ctcOptions(loc=GPU, stream=-1)}, "stream is -1"),
    ({"options": binding.ctcOptions(loc=GPU), "activations": np.zeros(90, np.float32)}, "device memory as an int"),
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


def test_the_double_function_takes_one_thread_for_many_samples(fake):
    binding.compute_ctc_loss_double(**GOOD)
    for threads in (0, 2):
        with pytest.raises(InvalidInput, match="is right with 1 only"):
            binding.compute_ctc_loss_double(**{**GOOD, "options": options(threads=threads)})


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


# --- the real library, each field of the Contract --------------------------------------------------------------


def call(x, labels, frames=None, *, blank=0, threads=1, grad=True, fill=99.0):
    """(costs, gradients) as the C function leaves them in memory that held `fill`; the workspace is fenced."""
    x = np.ascontiguousarray(x)
    T, N, C = x.shape
    double = x.dtype == np.float64
    frames = [T] * N if frames is None else frames
    lengths = [len(row) for row in labels]
    flat = [k for row in labels for k in row]
    given = options(blank, threads)
    size = (binding.get_workspace_size_double if double else binding.get_workspace_size)(lengths, frames, C, N, given)
    space = np.full(size + 64, 0xA5, np.uint8)
    costs, gradients = np.full(N, fill, x.dtype), np.full(x.shape, fill, x.dtype)
    function = binding.compute_ctc_loss_double if double else binding.compute_ctc_loss
    function(x, gradients if grad else None, flat, lengths, frames, C, N, costs, space, given)
    assert (space[size:] == 0xA5).all(), "the library wrote past its workspace"
    return costs, gradients


def exact(x, labels, blank=0):
    """(loss, gradient) of one sample (T, C) in float64."""
    log_y = log_softmax(np.asarray(x, np.float64))
    loss, occupancy = forward_backward(log_y, np.array(labels, np.int32), blank)
    return loss, (np.exp(log_y) - occupancy if np.isfinite(loss) else np.zeros(log_y.shape))


def bound(x):
    """What rounding can do to a log-mass: T steps, four operations each, on numbers up to T (spread + ln C).

    The loss is one such number; an occupancy (at most 1) is exp of a sum of three, so its error is 3 times that.
    """
    T, C = x.shape
    eps = 2.0**-53 if x.dtype == np.float64 else 2.0**-24
    spread = float(np.ptp(x)) if x.size else 0.0
    return 4 * eps * (T + 2) * (1 + T * (spread + np.log(C)))


def close(x, labels, loss, grad, blank=0):
    true_loss, true_grad = exact(x, labels, blank)
    if not np.isfinite(true_loss):
        assert loss == true_loss
        assert not grad.any()
        return
    assert abs(loss - true_loss) <= bound(x)
    assert np.abs(grad - true_grad).max(initial=0) <= 3 * bound(x)


def rng(*more):
    return np.random.default_rng([SEED, *more])


FLOATS = pytest.mark.parametrize("dtype", [np.float32, np.float64])


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


# --- what the engine puts right --------------------------------------------------------------------------------


def engine(x, labels, *args, **more):
    return ctcbind.ctc_loss_and_grad(x, labels, *args, engine="warpctc", **more)


def certain(T, C, path, dtype, sharp=1000.0):
    x = np.zeros((T, 1, C), dtype)
    x[np.arange(T), 0, path] = sharp
    return x


#: Labels that leave one path only (T = L + repeats, or no label): certain where each of its frames is.
ONE_PATH = [([], [0, 0, 0]), ([1], [1]), ([2, 1, 3], [2, 1, 3]), ([2, 2, 1], [2, 0, 2, 1])]


@real
@FLOATS
@pytest.mark.parametrize(("labels", "path"), ONE_PATH)
def test_a_certain_class_is_off_by_one_in_the_library_and_right_in_the_engine(dtype, labels, path):
    """Log-mass exactly 0.0 is read as "nothing written": p is left where p - occupancy belongs."""
    T = len(path)
    x = certain(T, 4, path, dtype)
    costs, grad = call(x, [labels])
    assert costs[0] == 0
    assert (grad[np.arange(T), 0, path] == 1).all(), "the library's own answer"
    result = engine(x, [labels])
    assert result.loss[0] == 0
    assert np.abs(result.grad).max() <= np.finfo(dtype).tiny
    halved = engine(x, [labels], reduction="label_mean")
    assert np.abs(halved.grad).max() <= np.finfo(dtype).tiny


@real
@FLOATS
def test_a_path_beside_others_is_not_exactly_certain(dtype):
    """The floor gives the other paths a mass of e^-87, which keeps the log-mass off 0.0: nothing to put right."""
    path, labels = [0, 2, 2, 0, 1, 0], [2, 1]
    x = certain(6, 4, path, dtype)
    costs, grad = call(x, [labels])
    assert -1e-36 < costs[0] < 0
    assert np.abs(grad).max() < 1e-6
    assert engine(x, [labels]).loss[0] == 0


@real
@FLOATS
@pytest.mark.parametrize(("labels", "path"), [*ONE_PATH, ([2, 1], [0, 2, 2, 0, 1, 0])])
def test_only_certain_frames_are_repaired(dtype, labels, path):
    """From uncertain to certain in small steps, and confident but wrong: the gradient is true on every step."""
    T, repaired = len(path), 0
    other = [3, 1] if len(labels) == 2 else [k % 3 + 1 for k in labels]  # as many repeats as in labels
    for sharp in np.linspace(0, 45, 181):
        x = certain(T, 4, path, dtype, sharp)
        _, raw = call(x, [labels])
        result = engine(x, [labels])
        loss, grad = exact(x[:, 0], labels)
        assert abs(result.loss[0] - loss) <= bound(x[:, 0])
        assert np.abs(result.grad[:, 0] - grad).max() <= 3 * bound(x[:, 0])
        changed = result.grad != raw
        assert (raw[changed] > 0.5).all()
        repaired += bool(changed.any())
        if labels:  # sure of other labels: gradients near 1 that must stay
            wrong = engine(x, [other])
            loss, grad = exact(x[:, 0], other)
            assert abs(wrong.loss[0] - loss) <= bound(x[:, 0])
            assert np.abs(wrong.grad[:, 0] - grad).max() <= 3 * bound(x[:, 0])
            assert sharp == 0 or (wrong.grad == call(x, [other])[1]).all()
    assert (repaired > 10) == (len(labels) != 2)


@real
@FLOATS
def test_one_certain_frame_beside_uncertain_ones(dtype):
    """A certain frame alone does not make the log-mass 0.0; the whole path must be."""
    x = rng().normal(size=(5, 1, 3)).astype(dtype)
    x[2, 0] = [0, 80, 0]
    _, raw = call(x, [[1]])
    result = engine(x, [[1]])
    assert np.array_equal(raw, result.grad)
    assert np.abs(result.grad[:, 0] - exact(x[:, 0], [1])[1]).max() <= 3 * bound(x[:, 0])


@real
@FLOATS
def test_one_class_and_empty_labels(dtype):
    x = rng().normal(size=(4, 2, 1)).astype(dtype)
    assert (call(x, [[], []])[1] == 1).all(), "the library's own answer"
    result = engine(x, [[], []], [4, 2])
    assert list(result.loss) == [0, 0]
    assert not result.grad.any()
    for blank in range(3):
        x = rng(blank).normal(size=(4, 2, 3)).astype(dtype)
        result = engine(x, [[], []], [4, 0], blank=blank)
        close(x[:, 0], [], result.loss[0], result.grad[:, 0], blank)
        assert result.loss[1] == 0
        assert not result.grad[:, 1].any()
    none = engine(np.zeros((0, 2, 3), dtype), [[], [1]])
    assert list(none.loss) == [0, INF]
    assert none.grad.shape == (0, 2, 3)


@real
def test_the_librarys_own_floor():
    """Below e^-87.34, the smallest normal float, probabilities count as that much; in double below e^-708.4."""
    for dtype, floor in ((np.float32, 87.33655), (np.float64, 708.39642)):
        for depth in (floor - 1, floor + 1, 2 * floor, 1e10):
            costs, _ = call(np.array([[[depth, 0]]], dtype), [[1]])
            assert abs(costs[0] - min(depth, floor)) < 1e-3


@real
@pytest.mark.parametrize("with_grad", [True, False])
@pytest.mark.parametrize("depth", [80, 87, 88, 100, 300, 700])
def test_float32_samples_beyond_the_floor_are_computed_in_double(depth, with_grad, caplog):
    x = rng().normal(size=(6, 3, 4)).astype(np.float32)
    labels = [[1, 2], [3], [2]]
    x[3, 1] = [0, depth, 0, 0]  # class 1 is sure there, and no path of [3] has it
    library = call(x, labels)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        if with_grad:
            result = engine(x, labels)
        else:
            result = ctcbind.Result(ctcbind.ctc_loss(x, labels, engine="warpctc"), library[1], "")
    loss, grad = exact(x[:, 1], [3])
    assert abs(result.loss[1] - loss) <= bound(x[:, 1])
    if with_grad:
        assert np.abs(result.grad[:, 1] - grad).max() <= 3 * bound(x[:, 1])
    assert ("samples [1] computed again in double" in caplog.text) == (depth > 87.3)
    for n in (0, 2):
        assert result.loss[n] == library[0][n]
        assert np.array_equal(result.grad[:, n], library[1][:, n])
    if depth >= 100:
        assert abs(library[0][1] - loss) > 5, "the library's own answer is far off"


@real
@FLOATS
@pytest.mark.parametrize("with_grad", [True, False])
def test_what_double_cannot_hold_is_refused_by_name(dtype, with_grad):
    x = rng().normal(size=(6, 3, 4)).astype(dtype)
    x[3, 1] = [0, 1000, 0, 0]
    run = engine if with_grad else lambda *args: ctcbind.ctc_loss(*args, engine="warpctc")
    with pytest.raises(EngineUnsupported, match=r"sample 1: at frame 3 class [03].* ln p = -1000.*engine='native'"):
        run(x, [[1, 2], [3], [2]])
    x[3, 1] = -INF
    x[3, 1, 1] = 0
    with pytest.raises(EngineUnsupported, match=r"sample 1: at frame 3 class [03].* ln p = -inf"):
        run(x, [[1, 2], [3], [2]])
    run(x, [[1, 2], [1], [2]])  # the same logits are fine where the paths do not need the class
    run(x, [[1, 2], [3], [2]], [6, 3, 6])  # nor past the input length


@real
@FLOATS
def test_sharp_logits_are_not_refused_without_need(dtype):
    """Forbidden and hopeless classes off the paths that matter: computed, and true."""
    checked = 0
    for i in range(60):
        random = rng(i)
        x = random.normal(size=(12, 1, 6))
        x[np.arange(12), 0, random.integers(0, 6, 12)] += random.choice([50, 120, 800])
        x[random.random(x.shape) < 0.1] = -INF
        x = x.astype(dtype)
        labels = random.integers(1, 6, size=random.integers(0, 4)).tolist()
        loss, grad = exact(x[:, 0], labels)
        try:
            result = engine(x, [labels])
        except EngineUnsupported:
            assert loss > 600  # one step below e^-708 on every path
            continue
        checked += 1
        # e^-inf is no number to round: the bound is that of the finite logits
        slack = bound(np.where(np.isfinite(x[:, 0]), x[:, 0], 0).astype(dtype))
        assert result.loss[0] == loss or abs(result.loss[0] - loss) <= slack
        assert np.abs(result.grad[:, 0] - grad).max() <= 3 * slack
    assert checked >= 15
    x = np.zeros((8, 1, 5), dtype)
    x[:, 0, 4] = -INF  # a masked class
    result = engine(x, [[1, 2]])
    close(x[:, 0, :4], [1, 2], result.loss[0], result.grad[:, 0, :4])
    assert np.abs(result.grad[:, 0, 4]).max() <= np.finfo(dtype).tiny


@real
@FLOATS
def test_nan_stays_in_its_sample_and_its_frames(dtype):
    x = rng().normal(size=(6, 4, 4)).astype(dtype)
    labels, frames = [[1, 2], [3], [2, 2], [1]], [6, 4, 5, 3]
    clean = engine(x, labels, frames)
    x[4:, 1] = NAN  # padded time
    x[3:, 3] = INF
    x[5:, 2] = -INF
    again = engine(x, labels, frames)
    assert np.array_equal(clean.loss, again.loss)
    assert np.array_equal(clean.grad, again.grad)
    x[1, 1, 2] = NAN
    result = engine(x, labels, frames)
    assert np.isnan(result.loss).tolist() == [False, True, False, False]
    assert np.isnan(result.grad[:4, 1]).all()
    assert not result.grad[4:, 1].any()
    for n in (0, 2, 3):
        assert result.loss[n] == clean.loss[n]
        assert np.array_equal(result.grad[:, n], clean.grad[:, n])


@real
@FLOATS
def test_infinite_logits(dtype):
    """+inf shares all the probability of its frame; a frame of nothing but -inf has none to give."""
    x = np.zeros((2, 4, 3), dtype)
    x[0, 0] = [0, INF, INF]
    x[1, 0, 1] = INF
    x[1, 1] = -INF
    x[0, 2] = [0, INF, 0]
    result = engine(x, [[1], [1], [1], [1]])
    assert np.isnan(call(x, [[1]] * 4)[0][:3]).all(), "the library's own answer"
    for n in range(4):
        loss, grad = exact(x[:, n], [1])
        assert np.allclose(result.loss[n], loss, rtol=8 * np.finfo(dtype).eps, atol=0)
        assert np.allclose(result.grad[:, n], grad, rtol=0, atol=8 * np.finfo(dtype).eps)


@real
def test_the_test_of_doubt_needs_few_looks(monkeypatch):
    """Small losses settle it without a look at the logits; so does a small spread, without one at the gradient."""
    module = __import__("ctcbind.engines.warpctc", fromlist=["lost_place"])
    looked = []
    for name in ("_spread", "lost_place"):
        before = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, name=name, f=before: looked.append(name) or f(*a))
    engine(certain(9, 5, [0, 1, 1, 0, 2, 0, 3, 3, 0], np.float32, 500.0), [[1, 2, 3]])
    assert looked == []
    engine(np.zeros((400, 1, 5), np.float32), [[1, 2, 3]])  # a loss of hundreds
    assert looked == ["_spread"]
    x = np.zeros((400, 1, 5), np.float32)
    x[7, 0, 3] = -200
    engine(x, [[1, 2]])
    assert looked == ["_spread", "_spread", "lost_place"]


# --- agreement, memory and the session -------------------------------------------------------------------------


def random_batch(i, dtype):
    random = rng(i, np.dtype(dtype).num)
    T, N, C = (int(random.integers(low, high)) for low, high in ((1, 30), (1, 7), (2, 9)))
    blank = int(random.integers(0, C))
    scale = float(random.choice([0.3, 1, 4, 12]))
    x = (scale * random.normal(size=(T, N, C))).astype(dtype)
    frames = random.integers(0, T + 1, N)
    classes = [k for k in range(C) if k != blank]
    labels = [random.choice(classes[: 1 + i % 3], random.integers(0, T // 2 + 2)).tolist() for _ in range(N)]
    return x, labels, frames, blank, random


@real
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_agrees_with_the_reference_on_random_batches(dtype):
    for i in range(200):
        x, labels, frames, blank, random = random_batch(i, dtype)
        N = x.shape[1]
        ways = {
            "C": x, "Fortran": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=2)[:, :, ::2],
            "backwards": x[::-1, :, ::-1].copy()[::-1, :, ::-1], "read-only": x.copy(),
        }  # fmt: skip
        ways["read-only"].flags.writeable = False
        how = list(ways)[i % 5]
        layout = "NTC" if random.integers(2) else "TNC"
        given = ways[how].transpose(1, 0, 2) if layout == "NTC" else ways[how]
        before = given.copy()
        result = engine(given, labels, frames, blank=blank, layout=layout)
        assert np.array_equal(given, before), "the caller's logits were changed"
        assert result.grad.dtype == dtype
        assert result.grad.shape == given.shape
        grad = result.grad.transpose(1, 0, 2) if layout == "NTC" else result.grad
        losses = ctcbind.ctc_loss(given, labels, frames, blank=blank, layout=layout, engine="warpctc")
        assert np.array_equal(losses, result.loss), f"loss alone differs: batch {i}, seed {SEED}"
        for n in range(N):
            T = int(frames[n])
            assert not grad[T:, n].any()
            if T == 0:
                assert result.loss[n] == (INF if labels[n] else 0)
                continue
            true_loss, true_grad = exact(x[:T, n], labels[n], blank)
            rows = x[:T, n].astype(np.result_type(dtype, np.float32))
            stored = 2.0**-11 if dtype == np.float16 else 0.0  # half a unit in the last place of a gradient below 1
            assert result.loss[n] == true_loss or abs(result.loss[n] - true_loss) <= bound(rows), f"{i}, seed {SEED}"
            assert result.loss[n] >= 0
            assert np.abs(grad[:T, n] - true_grad).max() <= 3 * bound(rows) + stored, f"batch {i}, seed {SEED}"


@real
def test_weights_of_a_reduction():
    x, labels, frames, blank, _ = random_batch(3, np.float32)
    for reduction in ("sum", "batch_mean", "label_mean"):
        loss, grad, _ = engine(x, labels, frames, blank=blank, reduction=reduction, zero_infinity=True)
        options = {"blank": blank, "reduction": reduction, "zero_infinity": True, "engine": "reference"}
        true = ctcbind.ctc_loss_and_grad(x.astype(np.float64), labels, frames, **options)
        assert abs(loss - true.loss) <= len(labels) * max(bound(x[:, n]) for n in range(x.shape[1]))
        assert np.abs(grad - true.grad).max() <= 3 * bound(x.reshape(-1, x.shape[2]))


@real
def test_copies_are_told_and_only_made_where_they_must_be(caplog):
    x = np.zeros((4, 2, 3), np.float32)
    with caplog.at_level(logging.DEBUG, "ctcbind"):
        engine(x, [[1], [2]])
        assert "copied" not in caplog.text
        engine(x, [[1], [2], [1], [2]], layout="NTC")
        assert "96 bytes of logits copied" in caplog.text


@real
def test_the_workspace_grows_only_and_goes_with_the_session():
    session = get("warpctc").open()
    assert isinstance(session, WarpctcSession)
    sizes = []
    for T in (4, 40, 8):
        batch = ctcbind.batch.make_batch(np.zeros((T, 2, 3), np.float32), [[1], [2]])
        session.run(batch, with_grad=True, weights=None)
        sizes.append(session.workspace_bytes)
    assert sizes[0] < sizes[1] == sizes[2]
    session.close()
    session.close()
    assert session.workspace_bytes == 0
    with pytest.raises(ctcbind.errors.ClosedError):
        session.run(batch, with_grad=True, weights=None)


@real
def test_float64_batches_are_the_same_on_any_number_of_threads():
    """The library's double function is wrong, or crashes, with more than one; the engine never asks for it."""
    x = rng().normal(size=(50, 8, 6))
    labels = [rng(n).integers(1, 6, 10).tolist() for n in range(8)]
    ctcbind.set_num_threads(4)
    try:
        many = [engine(x, labels) for _ in range(20)]
    finally:
        ctcbind.set_num_threads(None)
    alone = [engine(x[:, n : n + 1], labels[n : n + 1]) for n in range(8)]
    for result in many:
        assert result.loss.tolist() == [each.loss[0] for each in alone]
        assert np.array_equal(result.grad, np.concatenate([each.grad for each in alone], axis=1))


@real
def test_float32_gradients_drift_as_the_contract_says():
    """Long inputs: the loss stays right; the gradient's error is float32 log space's own."""
    assert any("drift" in limit for limit in CONTRACT.limits)
    labels = rng().integers(1, 6, 400).tolist()
    x = rng().normal(size=(4000, 1, 6)).astype(np.float32)
    loss, grad, _ = engine(x, [labels])
    true = ctcbind.ctc_loss_and_grad(x.astype(np.float64), [labels], engine="native")
    assert abs(loss[0] - true.loss[0]) <= 1e-5 * true.loss[0]
    assert 0 < np.abs(grad - true.grad).max() < 0.1
