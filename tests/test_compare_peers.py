"""Other libraries beside the engines in `compare`: PyTorch, optax and TensorFlow, where they are installed."""

from __future__ import annotations

import json
import math
import sys

import numpy as np
import pytest
from batches import SEED

import ctcbind
from ctcbind import peers
from ctcbind.__main__ import main
from ctcbind.batch import make_batch
from ctcbind.compare import Comparison, EngineRow, compare
from ctcbind.compare_text import render
from ctcbind.problems import default_problems

FORUM = {"logits": np.zeros((100, 5, 10), np.float32), "targets": [[1, 2, 3, 4]] * 5}
RAGGED = dict(default_problems())["random ragged batch: repeats, an empty label, a sample without a path, padded time"]


def beside(name: str, *, logits: np.ndarray, targets: object, **options: object) -> EngineRow:
    pytest.importorskip(name)
    result: Comparison = compare(logits, targets, engines=["native"], peers=[name], **options)
    (row,) = [row for row in result.rows if row.engine == name and not (row.device or "").startswith("cuda")]
    return row


# where they are not installed


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None)


def test_a_library_that_is_not_installed_is_absent_with_the_command_that_brings_it(bare):
    result = compare(**FORUM, engines=["native"], peers=peers.NAMES, repeats=1)
    assert [(row.engine, row.status, row.command) for row in result.rows[1:]] == [
        ("torch", "absent", "pip install torch"),
        ("optax", "absent", "pip install optax"),
        ("tensorflow", "absent", "pip install tensorflow-cpu"),
    ]
    assert result.rows[2].reason == "jax and optax cannot be found: pip install optax"
    assert result.agree
    assert "torch is absent: torch cannot be found: pip install torch" in render([result])


def test_a_library_that_cannot_be_imported_is_absent_with_its_error(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "torch", None)
    (row,) = compare(**FORUM, engines=["native"], peers=["torch"], repeats=1).rows[1:]
    assert (row.status, row.command) == ("absent", None)
    assert row.reason.startswith("it is installed and cannot be imported: ModuleNotFoundError: import of torch halted")


def test_a_library_without_one_that_it_needs_is_absent(monkeypatch):
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "optax" else name)
    found = peers.inspect(peers.get("optax"))
    assert (found.available, found.reason) == (False, "optax cannot be found: pip install optax")


@pytest.mark.parametrize(
    ("error", "told"), [(RuntimeError("no device\nand more"), "RuntimeError: no device"), (KeyError(), "KeyError")]
)
def test_a_library_that_is_broken_is_absent_in_one_line(monkeypatch, error, told):
    def broken():
        raise error

    peer = peers.get("torch")
    monkeypatch.setattr(peers, "find_spec", lambda name: name)
    monkeypatch.setattr(peer, "version", broken, raising=False)
    found = peers.inspect(peer)
    assert (found.available, found.reason) == (False, f"it is installed and cannot be imported: {told}")


def test_the_command_exits_2_where_a_peer_asked_for_is_absent(bare, capsys):
    assert main(["compare", "--engines", "native", "--peers", "torch,optax"]) == 2
    assert "torch and optax did not run" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["torch", ["pytorch"], 3, ["native"]])
def test_wrong_names_are_refused(wrong):
    with pytest.raises(ctcbind.InvalidInput) as error:
        compare(**FORUM, peers=wrong)
    assert error.value.rule == "peers"


@pytest.mark.parametrize("wrong", ["numpy", ","])
def test_wrong_names_in_the_command_exit_2(wrong, capsys):
    with pytest.raises(SystemExit) as left:
        main(["compare", "--peers", wrong])
    assert left.value.code == 2
    assert "there are torch, optax, tensorflow" in capsys.readouterr().err


# where they are


@pytest.mark.parametrize("name", peers.NAMES)
def test_the_same_losses_and_gradients_as_the_reference(name):
    row = beside(name, **FORUM)
    assert row.status == "agrees"
    assert row.losses == pytest.approx([203.98393049135646] * 5, rel=1e-5)
    assert 0 < row.grad_diff <= row.grad_tolerance < 1e-3
    assert row.milliseconds > 0
    assert row.version


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_second_call_gives_what_the_first_gave(name):
    """And not the sum of both gradients."""
    pytest.importorskip(name)
    batch = make_batch(FORUM["logits"], FORUM["targets"])
    run = peers.get(name).take(batch, False)
    first, second = ([np.array(each) for each in run.read(run.call())] for _ in range(2))
    assert all(np.array_equal(one, other) for one, other in zip(first, second))


@pytest.mark.parametrize("name", peers.NAMES)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["TNC", "NTC"])
def test_every_dtype_and_layout(name, dtype, layout):
    random = np.random.default_rng([SEED, 1])
    logits = (3 * random.normal(size=(40, 4, 9))).astype(dtype)[:, ::-1]  # strides that no tensor can have
    logits.flags.writeable = False
    targets = [random.integers(0, 8, size=length).tolist() for length in (5, 0, 1, 12)]
    given = logits if layout == "TNC" else logits.transpose(1, 0, 2)
    row = beside(name, logits=given, targets=targets, input_lengths=[40, 7, 1, 30], blank=-1, layout=layout)
    if refusal := {"optax": "jax_enable_x64", "tensorflow": "takes float32 alone"}.get(name * (dtype == "float64")):
        assert row.status == "refused"
        assert refusal in row.reason
        return
    assert row.status == "agrees", row.reason
    assert row.grad_tolerance < (1e-11 if dtype == "float64" else 1e-3)
    exact = ctcbind.ctc_loss(logits.astype(np.float64), targets, [40, 7, 1, 30], blank=-1)
    assert row.losses == pytest.approx(exact.tolist(), rel=1e-5)


def test_optax_computes_in_float64_where_jax_may() -> None:
    jax = pytest.importorskip("jax")
    given = {**FORUM, "logits": FORUM["logits"].astype(np.float64)}
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        row = beside("optax", **given)
    finally:
        jax.config.update("jax_enable_x64", before)
    assert row.status == "agrees", row.reason
    assert row.grad_tolerance < 1e-11
    assert row.version.endswith(f", jax {jax.__version__}")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("torch", "PyTorch's gradient is NaN where a sample has no path"),
        ("optax", "optax counts -1e5 as the logarithm of 0"),
        ("tensorflow", "TensorFlow counts -707 as the logarithm of 0"),
    ],
)
def test_why_a_sample_without_a_path_differs(name, cause):
    row = beside(name, **RAGGED)
    (hopeless,) = [
        n for n, loss in enumerate(compare(**RAGGED, engines=["native"]).reference_losses) if loss == math.inf
    ]
    assert row.status == "differs"
    assert f"the gradient of sample {hopeless} by" in row.reason
    assert "other sample" not in row.reason
    assert row.reason.count(cause) == 1


@pytest.mark.parametrize(
    ("name", "cause", "other"),
    [
        ("torch", "PyTorch's gradient is NaN at frames where a logit is infinite", "has no path"),
        ("optax", "optax's loss and gradient are NaN where a logit is infinite", "without a path"),
        ("tensorflow", "TensorFlow's loss and gradient are NaN where a logit is infinite", "without a path"),
    ],
)
@pytest.mark.parametrize("masked", [3, 5])  # a class that is no label, and one without which there is no path
def test_why_a_sample_with_a_masked_class_differs(name, cause, other, masked):
    logits = np.random.default_rng([SEED, 2]).normal(size=(20, 3, 6)).astype(np.float32)
    logits[:, 1, masked] = -np.inf
    row = beside(name, logits=logits, targets=[[1, 2], [5], [1]])
    assert row.status == "differs"
    assert "the gradient of sample 1 by inf" in row.reason
    assert row.reason.count(cause) == 1
    assert other not in row.reason


def test_why_a_loss_above_what_tensorflow_counts_for_0_differs():
    """Here it takes 707 nats to leave all labels out, and about 1000 to read them."""
    logits = np.random.default_rng([SEED, 3]).normal(scale=0.1, size=(300, 2, 12)).astype(np.float32)
    logits[:, :, 0] = 10
    row = beside("tensorflow", logits=logits, targets=[[1, 2] * 60, [1, 2]])
    assert row.status == "differs"
    assert "the gradient of sample 0 by" in row.reason
    assert "sample 1" not in row.reason
    assert row.reason.count("a larger loss may be too small") == 1
    assert row.losses[0] < ctcbind.ctc_loss(logits, [[1, 2] * 60, [1, 2]])[0] - 50


@pytest.mark.parametrize("name", peers.NAMES)
def test_a_topology_that_a_library_lacks_is_refused(name):
    row = beside(name, **FORUM, topology="simple")
    assert row.status == "refused"
    assert "has no topology 'simple'" in row.reason


def test_an_error_in_a_library_is_told(monkeypatch, capsys):
    torch = pytest.importorskip("torch")

    def broken(*_args, **_options):
        raise RuntimeError("no kernel\nand a long trace")

    monkeypatch.setattr(torch.nn.functional, "ctc_loss", broken)
    row = beside("torch", **FORUM)
    assert (row.status, row.reason) == ("failed", "RuntimeError: no kernel")
    assert main(["compare", "--engines", "native", "--peers", "torch"]) == 2
    assert "torch failed on" in capsys.readouterr().out


def test_a_library_that_is_wrong_is_told(monkeypatch, capsys):
    torch = pytest.importorskip("torch")
    right = torch.nn.functional.ctc_loss
    monkeypatch.setattr(torch.nn.functional, "ctc_loss", lambda *given, **options: right(*given, **options) * 1.001)
    row = beside("torch", **FORUM)
    assert row.status == "differs"
    assert "the loss of sample 0 by 2.0e-01" in row.reason
    assert "path" not in row.reason
    assert main(["compare", "--engines", "native", "--peers", "torch", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [row["engine"] for row in told["comparisons"][0]["rows"]] == ["native", "torch"]
    assert told["agree"] is False


def test_the_caller_s_settings_of_pytorch_stay_and_do_not_matter():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    with torch.no_grad():
        row = beside("torch", **FORUM)
        assert not torch.is_grad_enabled()
    with torch.inference_mode():
        other = beside("torch", **FORUM)
    assert row.status == other.status == "agrees"
    assert row.losses == other.losses
    assert threads == torch.get_num_threads()


def test_a_picture_has_a_mark_for_each(tmp_path, capsys):
    pytest.importorskip("torch")
    pytest.importorskip("optax")
    picture = tmp_path / "out.svg"
    main(["compare", "--engines", "native,reference", "--peers", "torch,optax", "--plot", str(picture)])
    assert picture.stat().st_size > 10_000
    assert "DISAGREEMENT with the float64 reference beyond tolerance: torch, optax." in capsys.readouterr().out


@pytest.mark.gpu
def test_pytorch_on_a_device_has_a_row_of_its_own():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no CUDA device")
    result = compare(**FORUM, engines=["native"], peers=["torch"], repeats=1)
    assert [row.label for row in result.rows] == ["native", "torch", "torch on cuda:0"]
    assert result.agree, render([result])
