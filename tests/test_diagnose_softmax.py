"""Softmaxes, logarithms and sigmoids before the loss are found, and told apart."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from mistakes import T, softmax, well

from ctcbind import diagnose
from ctcbind.engines.reference import log_softmax


@pytest.mark.parametrize("base", [2, 10])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_logarithms_to_another_base(base, dtype):
    for seed in range(4):
        given = well(seed)
        x = log_softmax(given["logits"].astype(np.float64))
        natural = diagnose(**given | {"logits": x.astype(dtype)})
        found = diagnose(**given | {"logits": (x / np.log(base)).astype(dtype)})
        (finding,) = found.findings
        assert (finding.kind, finding.sure) == ("log_base", "certain")
        assert finding.do.startswith(f"multiply them by ln {base} = {np.log(base):.4f}")
        assert finding.means.endswith(f"a network that is {'more' if base == 2 else 'less'} sure")
        # a path adds T logits up, each of them rounded once here, and once before it is divided
        rounded = T * np.finfo(dtype).eps * np.abs(x).max()
        assert abs(found.measures.loss - natural.measures.loss) < rounded


def test_few_classes_whose_biases_lie_between_0_and_1_are_no_sigmoid():
    """A fresh network's, of three classes, as it was drawn once."""
    assert not diagnose(**good(3935643351)).kinds


def test_two_classes_whose_logits_are_small_are_no_softmax_of_a_softmax():
    """Those of a fresh network that is biased, less than 1 apart in each frame; and what is one."""
    rng = np.random.default_rng([SEED, 102])
    for _ in range(40):
        x = np.minimum(rng.normal(rng.uniform(0.5, 0.75), 0.08, size=(40, 4, 1)), 0.999) * [1, 0]
        assert diagnose(log_softmax(x), [[1]] * 4).kinds == {"log_probabilities"}
        sure = log_softmax(8 * (rng.normal(size=(40, 4, 2))))
        assert "softmax_twice" in diagnose(log_softmax(np.exp(sure)), [[1]] * 4).kinds


@pytest.mark.parametrize("axis", [0, 1], ids=["over time", "over the batch"])
@pytest.mark.parametrize("log", [False, True])
def test_a_softmax_over_another_axis_is_found(axis, log):
    words = ["over time, not over the classes", "over the samples of the batch, not over the classes"]
    for seed in range(4):
        given = well(seed)
        x = given["logits"].astype(np.float64)
        log_p = x - np.logaddexp.reduce(x, axis=axis, keepdims=True)
        given["logits"] = (log_p if log else np.exp(log_p)).astype(np.float32)
        (finding,) = (each for each in diagnose(**given).findings if each.kind == "probabilities")
        assert words[axis] in finding.means
        assert finding.sure == "certain"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("sure", [1, 4])
def test_a_sigmoid_is_found(dtype, sure):
    """Also one that its dtype has rounded to 1 in places."""
    for seed in range(4):
        given = well(seed)
        given["logits"] = (1 / (1 + np.exp(-sure * given["logits"].astype(np.float64)))).astype(dtype)
        assert sure == 1 or given["logits"].max() == 1
        (finding,) = (each for each in diagnose(**given).findings if each.kind == "probabilities")
        assert "a sigmoid" in finding.means
        assert finding.sure == "likely"


@pytest.mark.parametrize(("dtype", "scale"), [("float16", 4), ("float32", 30)])
def test_a_sigmoid_that_is_rounded_to_0_is_found(dtype, scale):
    """And is no ReLU, which gives 0 too, but goes on above 1."""
    for seed in range(8):
        given = well(seed)
        x = given["logits"].astype(np.float64)
        given["logits"] = (1 / (1 + np.exp(np.minimum(scale * (2 - 3 * x), 700)))).astype(dtype)
        assert (given["logits"].min(), given["logits"].max()) == (0, 1)
        (finding,) = (each for each in diagnose(**given).findings if each.kind in ("probabilities", "activation"))
        assert "a sigmoid" in finding.means
        assert not finding.harmless
        for top in (1.0, 3.0):
            given["logits"] = (np.maximum(x, 0) * (top / x.max())).astype(dtype)
            assert "a sigmoid" not in str(diagnose(**given))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("scale", [1, 2, 4, 8])
def test_a_softmax_under_another_is_found_before_the_network_is_sure(scale, log):
    for seed in range(4):
        inner = softmax(scale * np.random.default_rng([SEED, seed]).normal(size=(80, 8, 28)))
        outer = softmax(inner)
        found = diagnose(np.log(outer) if log else outer, [[1, 2, 3, 4]] * 8)
        assert [each.kind for each in found.findings] == ["softmax_twice"], found
        undone = diagnose(np.log(np.maximum(inner, 1e-4)), [[1, 2, 3, 4]] * 8).measures.loss
        assert found.measures.loss == pytest.approx(undone, rel=1e-6), "it is put right for what comes after"


@pytest.mark.parametrize("C", [2, 3, 5, 28, 1000])
@pytest.mark.parametrize("scale", [1e-3, 1e-2, 0.1, 0.3, 1, 3])
def test_no_softmax_is_seen_under_small_logits(scale, C):
    x = scale * np.random.default_rng([SEED, C]).normal(size=(80, 4, C))
    assert [each.kind for each in diagnose(log_softmax(x), [[1]] * 4).findings] == ["log_probabilities"]
    assert [each.kind for each in diagnose(softmax(x), [[1]] * 4).findings] == ["probabilities"]


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
def test_a_softmax_of_half_precision_is_found_after_a_cast(dtype):
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype) if isinstance(dtype, str) else dtype)
    for scale in (0.5, 1, 4):
        x = scale * np.random.default_rng(SEED).normal(size=(50, 16, 11))
        rounded = softmax(x).astype(dtype)
        for each in (rounded, rounded.astype(np.float32), rounded.astype(np.float64)):
            assert diagnose(each, [[1, 2, 3]] * 16).kinds == {"probabilities"}


def test_log_probabilities_with_their_sign_turned_are_turned_back():
    """Of a few frames it is not sure."""
    x = log_softmax(np.random.default_rng([SEED, 106]).normal(size=(40, 4, 8)))
    for frames, sure in ((40, "certain"), (2, "likely")):
        found = diagnose(-x[:frames], [[1]] * 4)
        finding = found.findings[0]
        assert (finding.kind, finding.sure) == ("negated_log_probabilities", sure)
        assert found.measures.loss == pytest.approx(diagnose(x[:frames], [[1]] * 4).measures.loss)


def test_few_frames_are_less_sure():
    x = np.random.default_rng([SEED, 107]).normal(size=(9, 1, 8))
    for given, kind in ((softmax(x), "probabilities"), (log_softmax(x), "log_probabilities")):
        for frames, sure in ((9, "likely"), (10, "certain")):
            finding = diagnose(np.resize(given, (frames, 1, 8)), [[1]]).findings[0]
            assert (finding.kind, finding.sure) == (kind, sure)


def test_what_a_softmax_or_a_sigmoid_hid_is_put_right():
    for seed in range(2):
        given = well(seed)
        x = given["logits"].astype(np.float64)
        whole = diagnose(**given | {"logits": x}).measures.loss
        for axis in (0, 1):
            log_p = x - np.logaddexp.reduce(x, axis=axis, keepdims=True)
            logs, plain = (diagnose(**given | {"logits": each}).measures.loss for each in (log_p, np.exp(log_p)))
            assert plain == pytest.approx(logs, rel=1e-6)
        for hidden in (softmax(x), 1 / (1 + np.exp(-x))):
            assert diagnose(**given | {"logits": hidden}).measures.loss == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("same", [0.0, 1.0])
@pytest.mark.parametrize("shape", [(40, 1, 8), (1, 40, 8)])
def test_a_single_sample_or_frame_sums_to_itself(same, shape):
    assert "wrong axis" not in str(diagnose(np.full(shape, same), [[1]] * shape[1]))


@pytest.mark.parametrize("decimals", [5, 6])
def test_probabilities_that_were_written_with_few_digits_are_found(decimals):
    """Their dtype does not tell how they were rounded."""
    x = 5 * np.random.default_rng([SEED, 108]).normal(size=(80, 4, 30))
    for given, kind in ((softmax(x), "probabilities"), (log_softmax(x), "log_probabilities")):
        assert diagnose(np.round(given, decimals), [[1]] * 4).kinds == {kind}
