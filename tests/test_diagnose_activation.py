"""What was put between the last layer and the loss: a ReLU, a tanh, a clamp, a factor; and what only looks like it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from batches import SEED
from good_batches import good, smooth
from mistakes import MISTAKES, C, Given, well
from test_diagnose_mismatch import random_targets, sure_of

from ctcbind import Finding, diagnose
from ctcbind.engines.reference import log_softmax


def through(given: Given, activation, dtype: str = "float32") -> Given:
    """The batch with the network's pre-activations, around 0, sent through an activation."""
    x = given["logits"].astype(np.float64)
    return {**given, "logits": activation(x - x.mean()).astype(dtype)}


def found(given: Given) -> Finding:
    (finding,) = (each for each in diagnose(**given).findings if each.kind == "activation")
    return finding


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_relu(dtype):
    """Of a trained network, and of one that has not learned anything."""
    for seed in range(8):
        for given in (well(seed), good(seed, "fresh", size=(40, 4, 10), plain=True)):
            finding = found(through(given, lambda x: np.maximum(x, 0), dtype))
            assert (finding.sure, finding.harmless) == ("certain", True)
            assert finding.seen.startswith("no logit is below 0, and ")
            assert "activation" not in diagnose(**through(given, lambda x: x, dtype)).kinds


def test_a_class_that_a_relu_has_killed():
    for seed in range(8):
        given = well(seed)
        given["logits"][:, :, 3] = -5
        finding = found(through(given, lambda x: np.maximum(x, 0)))
        assert finding.seen.endswith("those of class 3 at every frame")
        assert not finding.harmless
        given["targets"] = [[label for label in row if label != 3] for row in given["targets"]]
        assert found(through(given, lambda x: np.maximum(x, 0))).harmless, "no label wants it"
        given["logits"][:, :, 0] = -5  # every sample wants the blank
        finding = found(through(given, lambda x: np.maximum(x, 0)))
        assert finding.seen.endswith("those of class 0 at every frame")
        assert not finding.harmless


def test_a_label_that_is_always_the_lowest_is_not_killed():
    """Where the lowest number of each frame was made 0."""
    for seed in range(8):
        x = np.random.default_rng([SEED, 107, seed]).normal(size=(40, 4, 6)) - 9 * (np.arange(6) == 2)
        assert "activation" not in diagnose(x - x.min(axis=2, keepdims=True), [[2]] * 4).kinds


def test_labels_that_a_relu_has_killed_all():
    """As trainings through one end where the plateau of blanks has pushed all labels below 0."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        x = np.zeros((40, 4, 10))
        x[:, :, 0] = np.maximum(smooth(rng, 40, 4, 1, 2.0)[:, :, 0] + 7, 1)
        finding, blank = diagnose(x, [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]]).findings
        assert (finding.kind, finding.sure, finding.harmless) == ("activation", "likely", False)
        assert finding.seen.endswith("those of classes 1, 2, 3, 4, 5 and 4 more at every frame")
        assert blank.kind == "all_blank"
        assert "activation" not in diagnose(x - 1, [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]]).kinds
        x[:, :, 0] -= 8  # a ReLU gives nothing below 0
        assert "activation" not in diagnose(x, [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]]).kinds


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_tanh(dtype):
    """Of a network that is at its ends: as far as one that has been trained through it, where nothing is sure."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        plateau = smooth(rng, 40, 4, C, 1.0) - 3 + 6 * (np.arange(C) == 0)  # blanks, whatever it sees
        trained = well(seed)
        for x in (plateau, 3 * plateau, 4 * (trained["logits"] - trained["logits"].mean())):
            given = {"logits": x, "targets": [[1, 2, 3]] * 4} if len(x) == 40 else trained | {"logits": x}
            finding = found(given | {"logits": np.tanh(x.astype(np.float64)).astype(dtype)})
            assert (finding.sure, finding.harmless) == ("likely", False)
            assert f"no class gets more than {np.e**2 / (np.e**2 + C - 1):.3g}, and training stalls" in finding.means
    small = good(SEED, "fresh", size=(40, 4, 10), plain=True)
    assert diagnose(**through(small, lambda x: np.tanh(0.1 * x))).ok, "small logits, as another fresh network has them"


@pytest.mark.parametrize("end", [1, 0.999])
def test_a_tanh_that_is_at_its_ends_nearly_everywhere(end):
    """Where a few frames alone differ from the others, as of a network whose inner layers have died."""
    rng = np.random.default_rng([SEED, 121])
    targets = [rng.integers(1, 30, size=12).tolist() for _ in range(16)]
    x = np.where(np.arange(30) == 0, end, -end) * np.ones((80, 16, 1))
    for frames in range(1, 4):
        x[frames, frames, 1:] = rng.uniform(-0.9, -0.8, size=29)
        assert [each.kind for each in diagnose(x, targets).findings] == ["activation", "constant_output"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_clamp(dtype):
    """It does harm where it leaves the network no room to be sure."""
    for seed in range(8):
        given = well(seed)
        for low, high, harmless in (
            (-0.5, 1.0, False),
            (-0.5, 10.0, True),
            (-0.5, np.inf, True),
            (-np.inf, 10.0, True),
            (0.25, 10.0, True),
        ):
            clamped = through(given, partial(np.clip, a_min=low, a_max=high), dtype)
            finding = found(clamped)
            assert "scaled_logits" not in diagnose(**clamped).kinds, "that is why"
            assert (finding.sure, finding.harmless) == ("likely", harmless)
            for end, which in ((low, "lowest"), (high, "highest")):
                shown = f"{np.float64(np.dtype(dtype).type(end)):.6g}"
                assert (f" are {shown}, the {which} of all" in finding.seen) == np.isfinite(end)


def test_a_clamp_does_no_harm_by_what_stands_behind_the_ends():
    for seed in range(4):
        given = well(seed)
        for high in (2.0, 4.0, 6.0, 8.0):
            clamped = through(given, partial(np.clip, a_min=-0.5, a_max=high))
            wide = {**clamped, "logits": np.pad(clamped["logits"], ((0, 900), (0, 0), (0, 0)))}
            assert found(wide).harmless == found(clamped).harmless == (high > 4)


def test_all_at_both_ends_of_a_clamp():
    """Blanks that have saturated: every frame is the same."""
    x = np.broadcast_to(np.where(np.arange(11) == 0, 1.0, -1.0), (40, 4, 11))
    assert diagnose(x, [[1, 2]] * 4).kinds == {"activation", "constant_output"}


#: Logits have been through one thing.
OTHERS = [each for each in MISTAKES if "probabilities" not in each.__name__ and each.__name__ != "softmax_twice"]


@pytest.mark.parametrize("mistake", OTHERS, ids=lambda each: each.__name__)
@pytest.mark.parametrize(
    ("activation", "kind"),
    [
        (lambda x: np.maximum(x, 0), "activation"),
        (lambda x: np.tanh(4 * x), "activation"),
        (lambda x: np.clip(x, -0.5, 5), "activation"),
        (lambda x: log_softmax(x) / np.log(2), "log_base"),
    ],
    ids=["relu", "tanh", "clamp", "base 2"],
)
def test_another_mistake_is_found_beside_it(activation, kind, mistake):
    given = well(len(mistake.__name__))
    mistake(given)
    lost = ~np.isfinite(given["logits"])
    given["logits"][lost] = 0
    changed = through(given, lambda x: activation(x.reshape(-1, C)).reshape(x.shape))
    changed["logits"][lost] = np.nan
    assert diagnose(**changed).kinds == {kind, mistake.__name__}


def masked(x: np.ndarray, value: float) -> np.ndarray:
    """Two classes that no label needs, forbidden where a grammar does so: here and there."""
    x = x.astype(np.float64)
    x[::2, :, -1], x[1::2, :, -2] = value, value
    return x


HARMLESS = {
    "less their highest": lambda x: x - x.max(axis=2, keepdims=True),
    "less their lowest": lambda x: x - x.min(axis=2, keepdims=True),
    "less the lowest of all": lambda x: x - x.min(),
    "of few bits": lambda x: np.round(x * (127 / np.abs(x).max())) * (np.abs(x).max() / 127),
    "every frame twice": lambda x: np.repeat(x[::2], 2, axis=0),
    "largest of 1": lambda x: x / np.abs(x).max(),
    "forbidden by -1e4": lambda x: masked(x, -1e4),
    "forbidden by -inf": lambda x: masked(x, -np.inf),
    "forbidden by -50": lambda x: masked(x, -50.0),
    "padded with zeros": lambda x: np.concatenate([x, np.zeros_like(x)]),
    "none but two numbers": lambda x: np.where(x > np.sort(x, axis=2)[:, :, -2:-1], 8.0, -4.0),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("change", HARMLESS)
def test_what_is_no_activation(change, dtype):
    for seed in range(60):
        given = good(SEED + seed, plain=True)
        given["logits"] = HARMLESS[change](given["logits"]).astype(dtype)
        assert "activation" not in diagnose(**given).kinds, seed


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("length", [1, 3])
def test_logits_of_one_length(length, dtype):
    """As of torch.nn.functional.normalize, and of a LayerNorm without weights."""
    for seed in range(8):
        targets = random_targets(np.random.default_rng([SEED, seed]))
        x = sure_of(targets, 12)
        unit = (length * x / np.linalg.norm(x, axis=2, keepdims=True)).astype(dtype)
        finding = found({"logits": unit, "targets": targets})
        assert (finding.sure, finding.harmless) == ("certain", False)
        assert f"has the Euclidean norm {length}" in finding.seen
        # the most that the largest of 12 numbers of this norm can get: it alone above 11 that are equal
        edge = np.r_[np.sqrt(11 / 12), np.full(11, -np.sqrt(1 / 132))] * length
        assert f"no class gets more than {np.exp(edge[0]) / np.exp(edge).sum():.3g}" in finding.means
        assert diagnose((30 * unit).astype(dtype), targets).ok, "large enough to be sure"
        lost = unit.copy()
        lost[:, 3] = np.nan  # what stands in its place is of another length
        assert diagnose(lost, targets).kinds == {"not_finite", "activation"}
        assert "activation" not in diagnose(unit * np.linspace(1, 1.01, len(x))[:, None, None], targets).kinds
    one_hot = np.eye(12)[np.random.default_rng(SEED).integers(12, size=(60, 16))]
    assert "norm" not in str(diagnose(one_hot, random_targets(np.random.default_rng(SEED))))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_layer_norm_of_small_variances(dtype, log):
    """It adds 1e-5 to them, as PyTorch's does; without that they are of one length, and moved away from it they are
    not."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 105, seed])
        x = smooth(rng, 60, 6, 12, 0.3) * rng.uniform(0.3, 1, size=(60, 6, 1))
        x -= x.mean(axis=2, keepdims=True)
        variance = (x**2).mean(axis=2, keepdims=True)

        def told(x):
            given = (log_softmax(x) if log else x).astype(dtype)
            return [each.sure for each in diagnose(given, [[1, 2, 3]] * 6).findings if each.kind == "activation"]

        assert told(x / np.sqrt(variance + 1e-5)) == ["likely"]
        assert told(x / np.sqrt(variance)) == ["certain"]
        for factor in (0.99, 1.01):
            assert told(factor * x / np.sqrt(variance + 1e-5)) == []


@pytest.mark.parametrize("C", [200, 2000])
def test_frames_of_many_classes_whose_norms_are_nearly_the_same(C):
    """Numbers drawn alike have norms about the root of their number, on both sides."""
    for seed in range(4):
        x = np.random.default_rng([SEED, 106, seed]).normal(size=(60, 8, C)) * (1 - 2 / np.sqrt(C))
        assert "Euclidean norm" not in str(diagnose(x.astype(np.float32), [[1, 2, 3]] * 8))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("C", [5, 28, 200])
def test_frames_that_are_nearly_alike_are_not_normalised(C, dtype):
    """What is left of the features is small beside the bias, and leaves the norms alike."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, seed])
        for bias in (2 * np.eye(C)[0], np.append(-4, 0.3 * rng.normal(size=C - 1))):
            for least in (1e-3, 1e-4, 1e-5, 1e-7):
                x = (bias + least * rng.normal(size=(60, 8, C))).astype(dtype)
                assert "Euclidean norm" not in str(diagnose(x, [[1, 2, 3]] * 8)), least


@pytest.mark.parametrize("factor", [0.1, 0.05, 0.01])
def test_logits_that_were_made_smaller(factor):
    for seed in range(8):
        targets = random_targets(np.random.default_rng([SEED, seed]))
        x = sure_of(targets, 12)
        assert diagnose(x, targets).ok
        result = diagnose(factor * x, targets)
        (finding,) = result.findings
        assert (finding.kind, finding.sure) == ("scaled_logits", "likely")
        assert result.measures.loss < 0.1 * result.measures.constant_loss, "it is put right for what comes after"


def test_a_network_that_is_not_sure_yet_is_told_nothing():
    """It is more sure than a factor of a tenth lets it, or makes errors; without labels enough nobody knows."""
    rng = np.random.default_rng(SEED)
    for seed in range(300):
        assert "scaled_logits" not in diagnose(**good(SEED + seed, "halfway")).kinds
    targets = random_targets(rng)
    noise = rng.normal(size=(6 + 7 * max(map(len, targets)), 16, 12))
    assert diagnose(0.1 * (sure_of(targets, 12) + 8 * noise), targets).ok
    assert diagnose(0.1 * sure_of([[1, 2]], 12), [[1, 2]]).ok


def unsure_of(targets: list[list[int]], C: int, rng: np.random.Generator) -> np.ndarray:
    """What a network says halfway through its training: some frames are surer than others, and a label in each fourth
    sample is one of two classes to it, the wrong one mostly."""
    x = rng.normal(size=(7 * max(map(len, targets)) + 6, len(targets), C)) * 1.5
    for n, row in enumerate(targets):
        path = np.zeros(len(x), int)
        for i, label in enumerate(row):
            path[3 + 7 * i : 5 + 7 * i] = label
            if n % 4 == i == 0:
                x[3 + 7 * i : 5 + 7 * i, n, 1 + label % (C - 1)] += 20
        x[np.arange(len(x)), n, path] += rng.uniform(8, 28, size=len(x))
    return x


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_logits_of_a_network_that_makes_errors_were_made_smaller(dtype):
    """A temperature that was forgotten: the surest frames are still surer than a fresh network's."""
    for seed in range(8):
        rng = np.random.default_rng([SEED, 41, seed])
        targets = random_targets(rng)
        x = unsure_of(targets, 12, rng)
        assert "scaled_logits" not in diagnose(x.astype(dtype), targets).kinds
        assert "scaled_logits" not in diagnose((0.4 * x).astype(dtype), targets).kinds
        (finding,) = (
            each for each in diagnose((0.1 * x).astype(dtype), targets).findings if each.kind == "scaled_logits"
        )
        assert (finding.sure, finding.harmless) == ("possible", False)
        log_p = log_softmax(x.reshape(-1, 12)).reshape(x.shape)  # no log-sigmoids, though they are as near to 0
        assert "scaled_logits" in diagnose((0.1 * log_p).astype(dtype), targets).kinds


@pytest.mark.parametrize("C", [5, 40])
def test_float16_outputs_that_hardly_vary_are_not_clamped(C):
    """A class that is rounded to few numbers is mostly at one of them."""
    for seed in range(40):
        rng = np.random.default_rng([SEED, 42, seed])
        bias = rng.normal(size=C) * rng.choice([0.3, 1.0])
        x = bias + 10 ** rng.uniform(-4.5, -2) * rng.normal(size=(60, 8, C))
        assert "activation" not in diagnose(x.astype(np.float16), [[1, 2, 1]] * 8).kinds


@pytest.mark.parametrize("dip", [-0.375, -0.278465, -0.16997])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_classes_that_stay_at_the_dip_of_an_activation_have_not_been_through_it(dip, dtype):
    rng = np.random.default_rng([SEED, 43])
    bias = np.concatenate([dip + np.array([2e-3, 4e-3, 6e-3]), rng.uniform(dip + 0.1, 1, 9)])
    x = np.maximum(bias + 1e-3 * rng.normal(size=(60, 8, 12)), dip).astype(dtype)
    x[0, 0, 0] = dip
    assert "activation" not in diagnose(x, [[1, 2, 1]] * 8).kinds


@pytest.mark.parametrize("sign", [1, -1])
def test_a_class_that_stays_near_0_beside_others_of_one_sign_has_not_been_through_an_activation(sign):
    rng = np.random.default_rng([SEED, 44])
    x = np.concatenate([[1e-3], rng.uniform(0.3, 2, 4)]) + 1e-4 * rng.normal(size=(60, 8, 5))
    assert x.min() > 0
    assert "activation" not in diagnose(sign * x, [[1, 2, 1]] * 8).kinds


SOFTPLUS = {
    "a softplus": (lambda x: np.logaddexp(0, x), "below", 2, -9),
    "a log-sigmoid": (lambda x: -np.logaddexp(0, -x), "above", 0.8, -2),
}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("name", SOFTPLUS)
def test_an_activation_that_ends_at_0(name, dtype):
    activation, side, scale, bias = SOFTPLUS[name]
    for seed in range(8):
        given = well(seed)
        given["logits"] = activation(scale * given["logits"].astype(np.float64) + bias).astype(dtype)
        finding = found(given)
        assert (finding.sure, finding.harmless) == ("likely", True)
        assert finding.seen.startswith(f"no logit is {side} 0, and ")
        assert name in finding.means
        fresh = good(SEED + seed, "fresh", size=(40, 4, 10), plain=True)
        small = through(fresh, lambda x: activation(x), dtype)
        assert "activation" not in diagnose(**small).kinds, "as far from 0 as another bias puts it"


def test_a_log_softmax_that_lacks_classes_is_no_log_sigmoid():
    """Its numbers come as near to 0, and no two of a frame do."""
    for seed in range(8):
        given = well(seed)
        given["logits"] = log_softmax(given["logits"].astype(np.float64).reshape(-1, C)).reshape(-1, 6, C)[:, :, :-1]
        assert "activation" not in diagnose(**given).kinds


@pytest.mark.parametrize("name", ["GELU", "SiLU", "Mish", "hard swish"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_activation_with_a_dip(name, dtype):
    """And the same numbers, moved or turned, are none."""
    apply = {
        "GELU": lambda x: x * np.array([0.5 + 0.5 * math.erf(one / 2**0.5) for one in x.ravel()]).reshape(x.shape),
        "SiLU": lambda x: x / (1 + np.exp(-x)),
        "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
        "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    }[name]
    for seed in range(4):
        rng = np.random.default_rng([SEED, 97, seed])
        x, targets = 1.5 * rng.normal(size=(60, 6, 12)), [rng.integers(1, 12, size=6).tolist() for _ in range(6)]
        (finding,) = diagnose(apply(x).astype(dtype), targets).findings
        assert (finding.kind, finding.sure, finding.harmless) == ("activation", "likely", True)
        assert f"been through a {name}" in finding.means
        for other in (x, x - x.min() + apply(x).min(), apply(x) + 0.01, -apply(x), 1.1 * apply(x)):
            assert "activation" not in diagnose(other.astype(dtype), targets).kinds
        targets[0][0] = 5
        x[:, :, 5] = -np.abs(x[:, :, 5])
        (finding,) = diagnose(apply(x).astype(dtype), targets).findings
        assert not finding.harmless
        assert "class 5 are above 0 at no frame" in finding.seen
        x[:, :, 0] = -np.abs(x[:, :, 0])
        (finding,) = diagnose(apply(x).astype(dtype), targets).findings
        assert "classes 0, 5 are above 0 at no frame" in finding.seen
