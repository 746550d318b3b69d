"""What ctcbind.torch refuses: as PyTorch does, with a RuntimeError, and as ctcbind does, naming what is wrong."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from contextlib import suppress

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")

from torch.autograd import forward_ad  # noqa: E402
from torch_batches import Broken  # noqa: E402

import ctcbind  # noqa: E402
import ctcbind.torch as ct  # noqa: E402
from ctcbind.torch import call  # noqa: E402

GOOD = {
    "log_probs": torch.zeros(10, 3, 6),
    "targets": torch.ones(3, 4, dtype=torch.int64),
    "input_lengths": [10, 9, 8],
    "target_lengths": [4, 3, 2],
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target_lengths": [5, 3, 2]}, "target_lengths[0] is 5, but targets have only 4 columns"),
        ({"target_lengths": [4, 3]}, "target_lengths has 2 lengths, but the batch has 3 samples"),
        ({"target_lengths": [4, -1, 2]}, "target_lengths[1] is -1; a length cannot be negative"),
        ({"target_lengths": torch.tensor([4.0, 3.0, 2.0])}, "target_lengths hold torch.float32"),
        ({"target_lengths": torch.tensor([True, True, False])}, "target_lengths hold torch.bool"),
        ({"input_lengths": [10, 11, 8]}, "input_lengths[1] is 11, but the log_probs have only T = 10"),
        ({"input_lengths": [10, 9, -1]}, "input_lengths[2] is -1; a length cannot be negative"),
        ({"input_lengths": [10, 9, 8, 7]}, "input_lengths has 4 lengths, but the batch has 3 samples"),
        ({"input_lengths": torch.tensor([10.0, 9.0, 8.0])}, "input_lengths hold torch.float32"),
        ({"targets": torch.full((3, 4), 6)}, "targets[0][0] is 6, but there are 6 classes"),
        ({"targets": torch.zeros(3, 4, dtype=torch.int64)}, "targets[0][0] is 0, which is the blank"),
        ({"targets": torch.ones(3, 4)}, "targets hold torch.float32; they must hold integers: pass targets.long()"),
        ({"targets": torch.full((3, 4), 1.5)}, "targets[0][0] is 1.5; it must be an integer"),
        ({"targets": torch.tensor([[1, 1, 1.5, 1]] * 3)}, "targets[0][2] is 1.5; it must be an integer"),
        ({"targets": torch.ones(8, dtype=torch.int64)}, "target_lengths sum to 9, but targets hold 8"),
        ({"targets": torch.ones(2, 4, dtype=torch.int64)}, "targets have 2 rows"),
        (
            {"targets": torch.ones(3, 4, 1, dtype=torch.int64)},
            "targets have 3 dimensions, shape (3, 4, 1); they must be padded rows (N, L), or all labels in one row",
        ),
        (
            {"log_probs": torch.zeros(10, 6), "input_lengths": [10], "target_lengths": [6]},
            "log_probs of shape (10, 6) are one sample, (T, C), but targets have shape (3, 4); they must be one row",
        ),
        (
            {
                "log_probs": torch.zeros(10, 6),
                "targets": torch.ones(1, 1, 4).long(),
                "input_lengths": [10],
                "target_lengths": [4],
            },
            "but targets have shape (1, 1, 4); they must be one row of labels",
        ),
        ({"targets": [[1, 1], [2], [3]]}, "targets are of type list; they must be a tensor: of rows padded"),
        ({"targets": [torch.tensor([1]), torch.tensor([2, 3])]}, "targets are of type list"),
        ({"targets": np.ones((3, 4), dtype=int)}, "all labels in one row; pass torch.as_tensor(targets)"),
        ({"log_probs": ()}, "log_probs are of type tuple; they must be a tensor (ctcbind.ctc_loss takes arrays)"),
        (
            {"log_probs": (np.zeros((10, 3, 6)), None)},
            "type tuple; they must be a tensor (ctcbind.ctc_loss takes arrays)",
        ),
        ({"log_probs": np.zeros((10, 3, 6))}, "log_probs are of type ndarray; they must be a tensor (ctcbind.ctc_loss"),
        (
            {"log_probs": torch.nn.LSTM(2, 6)(torch.zeros(10, 3, 2))},
            "log_probs are of type tuple; they must be a tensor: pass log_probs[0] if that is the output, as of an RNN",
        ),
        (
            {"log_probs": torch.nn.utils.rnn.pack_sequence([torch.zeros(10, 6)])},
            "log_probs are of type PackedSequence; they must be a tensor: pass "
            "torch.nn.utils.rnn.pad_packed_sequence(log_probs)[0]",
        ),
        (
            {"log_probs": torch.ones(3, 4, dtype=torch.int64), "targets": torch.zeros(10, 3, 6)},
            "log_probs are torch.int64; they must be float16, bfloat16, float32 or float64; the targets are "
            "torch.float32: the log_probs come first, then the targets",
        ),
        (
            {"input_lengths": torch.ones(3, 10, dtype=torch.int64)},
            "input_lengths has shape (3, 10); it must be one-dimensional, one length a sample: pass "
            "input_lengths.sum(axis=1) if they are a mask",
        ),
        (
            {"target_lengths": torch.tensor([[4], [3], [2], [1]])},
            "target_lengths has shape (4, 1); it must be one-dimensional, one length a sample: pass torch.ravel(",
        ),
        ({"input_lengths": 10}, "input_lengths is 10; it must hold one length a sample: pass [10] * 3"),
        (
            {"targets": torch.ones(12, dtype=torch.int64)},
            "target_lengths sum to 9, but targets hold 12 labels: if they are padded rows, one after the other, pass "
            "them in shape (3, 4)",
        ),
        ({"log_probs": torch.zeros(10)}, "log_probs have 1 dimension, shape (10,); they must have 3, (T, N, C), or 2"),
        ({"log_probs": torch.zeros(10, 3, 6, dtype=torch.int64)}, "float64: pass log_probs.float()"),
        (
            {"log_probs": torch.zeros(10, 0, 6), "input_lengths": [], "target_lengths": []},
            "the batch is empty: N = 0 in log_probs of shape (10, 0, 6)",
        ),
        (
            {"log_probs": torch.zeros(3, 10, 6)},
            "the log_probs, read as (T, N, C), have 3 time steps: if those are the samples, pass "
            "log_probs.transpose(0, 1), or log_probs.permute(2, 0, 1) if they are (N, C, T)",
        ),
        (
            {"log_probs": torch.zeros(10, 6, 3)},
            "the last axis of the log_probs is 3, and holds the classes: if those are the samples, transpose them",
        ),
        ({"blank": 6}, "blank is 6, but there are 6 classes"),
        ({"reduction": "label_mean"}, "one of 'none', 'mean', 'sum' ('label_mean' is PyTorch's 'mean')"),
        ({"reduction": "elementwise_mean"}, "'none', 'mean', 'sum' ('elementwise_mean' is PyTorch's 'mean')"),
        ({"reduction": "batch_mean"}, "reduction is 'batch_mean'; it must be one of 'none', 'mean', 'sum'"),
        *[
            ({"reduction": name}, "'sum': pass 'sum', and divide the loss by the number of samples")
            for name in ("batch_mean", "mean_batch", "batchmean")
        ],
        ({"from_logits": "no"}, "from_logits is 'no' (str); it must be True or False"),
        ({"input_lengths": None}, "input_lengths: None; they must be integers, one a sample"),
        ({"input_lengths": ["a"]}, "input_lengths: ['a']; they must be integers, one a sample"),
        ({"input_lengths": ["a" * 90] * 3}, "aaa']; they must be integers, one a sample"),
        ({"input_lengths": [[10], [9, 8]]}, "input_lengths: [[10], [9, 8]]; they must be integers"),
        ({"target_lengths": [2**70, 1, 1]}, "target_lengths: [1180591620717411303424, 1, 1]; they must be integers"),
        ({"targets": torch.ones(3, 4, dtype=torch.int64).to_sparse()}, "targets are of layout torch.sparse_coo; pass"),
        ({"log_probs": torch.zeros(10, 3, 6).to_sparse()}, "log_probs are of layout torch.sparse_coo; pass log_probs."),
    ],
)
def test_what_cannot_be_right_is_refused(changes, words):
    """As a RuntimeError, which PyTorch raises, and as an InvalidInput, with the words and fields of one."""
    for requires_grad in (False, True):
        arguments = GOOD | changes
        if torch.is_tensor(arguments["log_probs"]) and arguments["log_probs"].is_floating_point():
            arguments["log_probs"] = arguments["log_probs"].clone().requires_grad_(requires_grad)
        with pytest.raises(RuntimeError) as caught:
            ct.ctc_loss(**arguments)
        assert isinstance(caught.value, ctcbind.InvalidInput)
        assert isinstance(caught.value, ValueError)
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("loss", "changes", "rule", "value"),
    [
        (ct.ctc_loss, {"log_probs": np.zeros((10, 3, 6))}, "logits_dtype", None),
        (ct.ctc_loss, {"log_probs": torch.zeros(10, 3, 6).int()}, "logits_dtype", "torch.int32"),
        (ct.ctc_loss, {"log_probs": torch.zeros(10, 3, 6).to_sparse()}, "layout", torch.sparse_coo),
        (ct.ctc_loss, {"log_probs": torch.zeros(10, 3, 6, 1)}, "logits_rank", 4),
        (ct.lattice_loss, {"log_probs": torch.zeros(10, 3)}, "logits_rank", 2),
        (ct.lattice_loss, {"log_probs": torch.zeros(10, 3, 6, 1)}, "logits_rank", 4),
        (ct.ctc_loss, {"targets": [[1], [2], [3]]}, "targets_rank", None),
        (ct.ctc_loss, {"log_probs": torch.zeros(10, 6)}, "targets_rank", (3, 4)),
        (ct.ctc_loss, {"targets": torch.ones(3, 4).long().to("meta")}, "device", None),
        (ct.ctc_loss, {"input_lengths": None}, "input_lengths", None),
        (ct.ctc_loss, {"target_lengths": ["a"]}, "target_lengths", None),
        (ct.lattice_loss, {"log_prior": torch.zeros(6).to_sparse()}, "log_prior", torch.sparse_coo),
    ],
)
def test_a_refusal_has_its_rule_and_value(loss, changes, rule, value):
    log_probs, *others = (GOOD | changes).values()
    with pytest.raises(ct.InvalidTorchInput) as caught:
        loss(log_probs, *others[:3], **{name: changes[name] for name in changes if name not in GOOD})
    assert (caught.value.rule, caught.value.value) == (rule, value)


def test_the_lattice_loss_tells_the_shape_of_logits_of_another_rank() -> None:
    _, targets, frames, labels = GOOD.values()
    with pytest.raises(ct.InvalidTorchInput) as caught:
        ct.lattice_loss(torch.zeros(10, 3), targets, frames, labels)
    assert str(caught.value) == "logits have 2 dimensions, shape (10, 3); they must have 3, (T, N, C)"


@pytest.mark.parametrize(("loss", "name"), [(ct.ctc_loss, "log_probs"), (ct.lattice_loss, "logits")])
def test_refusals_call_the_scores_as_their_argument_is_called(loss, name):
    """Where ctcbind itself refuses, which calls them logits; a value that the caller gave stays as it is."""
    _, targets, frames, labels = GOOD.values()
    for scores, lengths, words in (
        (torch.zeros(10, 3, 6), [11, 9, 8], f"input_lengths[0] is 11, but the {name} have only T = 10 time steps"),
        (torch.zeros(3, 10, 6), frames, f"the {name}, read as (T, N, C), have 3 time steps"),
        (torch.zeros(3, 10, 6), frames, f"{name}.transpose(0, 1), or {name}.permute(2, 0, 1) if they are (N, C, T)"),
        (torch.zeros(10, 6, 3), frames, f"the last axis of the {name} is 3"),
    ):
        with pytest.raises(ct.InvalidTorchInput) as caught:
            loss(scores, targets, lengths, labels)
        assert words in str(caught.value)
    with pytest.raises(ct.InvalidTorchInput, match=r"^topology is 'logits'"):
        loss(torch.zeros(10, 3, 6), targets, frames, labels, topology="logits")


@pytest.mark.parametrize("name", ["input_lengths", "target_lengths"])
def test_lengths_that_cannot_be_read_are_named_with_the_cause(name):
    """A BufferError and an OverflowError came through as they were."""
    too_large = [4.0, 10**400, 4]
    for wrong, cause in (
        (Broken(BufferError("it is away")), "it is away"),
        (Broken(RuntimeError("it is away")), "it is away"),
        (too_large, "too large"),
        (np.array(["4", "4", "4"]), r"numpy\.str_"),
    ):
        with pytest.raises(ct.InvalidTorchInput, match=rf"^{name}: .*; they must be integers.* \(.*{cause}.*\)$"):
            ct.ctc_loss(**GOOD | {name: wrong})


def in_other_forms(tensor):
    """The numbers of a tensor in ways that no stride tells: (what is said of it, that tensor)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, of prototypes and of what it means to remove
        nested = r"nested; pass {}\.to_padded_tensor\({}\)$"
        return [
            (r"of layout torch\.sparse_coo; pass {}\.to_dense\(\)", tensor.to_sparse()),
            (r"quantised; pass {}\.dequantize\(\)", torch.quantize_per_tensor(tensor.float(), 1, 0, torch.qint8)),
            (nested, torch.nested.nested_tensor([tensor, tensor[:1]])),
            (nested, torch.nested.nested_tensor([tensor, tensor[:1]], layout=torch.jagged)),
        ]


@pytest.mark.parametrize("form", range(4))
@pytest.mark.parametrize("loss", [ct.ctc_loss, ct.lattice_loss])
def test_tensors_that_hold_their_numbers_in_another_way(loss, form):
    """PyTorch's own TypeError came through, of the lengths and of what is quantised."""
    given = list(GOOD.values())
    names = ["log_probs" if loss is ct.ctc_loss else "logits", *list(GOOD)[1:]]
    for place, name in enumerate(names):
        words, other = in_other_forms(torch.as_tensor(given[place]))[form]
        with pytest.raises(ct.InvalidTorchInput, match=f"^{name} are {words.format(name, -(name == 'targets'))}"):
            loss(*given[:place], other, *given[place + 1 :])
    if loss is ct.lattice_loss:
        for name, scores in (("path_bonus", torch.zeros(10, 9)), ("log_prior", torch.zeros(6))):
            words, other = in_other_forms(scores)[form]
            with pytest.raises(ct.InvalidTorchInput, match=f"^{name} is {words.format(name, 0)}"):
                loss(*given, **{name: other})


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.complex64, torch.float8_e4m3fn])
@pytest.mark.parametrize(("loss", "name"), [(ct.ctc_loss, "log_probs"), (ct.lattice_loss, "logits")])
def test_scores_of_other_dtypes_are_named_as_they_are_given(loss, name, dtype):
    cure = "" if dtype.is_complex else rf": pass {name}\.float\(\)"
    with pytest.raises(ct.InvalidTorchInput, match=rf"^{name} are {dtype}; they must be float16, .* float64{cure}$"):
        loss(GOOD["log_probs"].to(dtype), *list(GOOD.values())[1:])
    if dtype.is_complex:  # they are not the targets, whatever those are
        with pytest.raises(ct.InvalidTorchInput, match=rf"^{name} are {dtype}; they must be float16, .* float64$"):
            loss(GOOD["log_probs"].to(dtype), GOOD["targets"].float(), *list(GOOD.values())[2:])


def test_labels_and_lengths_of_float8():
    """For which PyTorch has no largest element."""
    narrow = torch.ones(3, dtype=torch.float8_e4m3fn)
    for name, value in (("targets", narrow[:, None]), ("input_lengths", narrow), ("target_lengths", narrow)):
        with pytest.raises(ct.InvalidTorchInput, match=f"^{name} hold torch.float8_e4m3fn; they must hold integers"):
            ct.ctc_loss(**GOOD | {name: value})


def test_an_error_keeps_sample_position_and_value():
    with pytest.raises(ct.InvalidTorchInput) as caught:
        ct.ctc_loss(GOOD["log_probs"], torch.tensor([[1, 2], [3, 9], [1, 1]]), [10] * 3, [2] * 3)
    assert (caught.value.rule, caught.value.sample, caught.value.position, caught.value.value) == (
        "label_range",
        1,
        1,
        9,
    )
    assert type(caught.value.__cause__) is ctcbind.InvalidInput


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("blank", "x"),
        ("reduction", "label_mean"),
        ("zero_infinity", "no"),
        ("from_logits", 3),
        ("topology", "rnnt"),
        ("engine", "natve"),
    ],
)
def test_a_module_refuses_its_options_when_it_is_made(option, value):
    with pytest.raises(ct.InvalidTorchInput, match=rf"^{option} is ") as caught:
        ct.CTCLoss(**{option: value})
    assert (caught.value.rule, caught.value.value) == (option, value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bool])
def test_targets_that_are_no_integers(dtype):
    for device in ("cpu", "meta"):  # where there are no values to look at
        with pytest.raises(ct.InvalidTorchInput, match=rf"^targets hold {dtype}; .* pass targets\.long\(\)$"):
            ct.ctc_loss(torch.zeros(5, 1, 3), torch.ones(1, 2, dtype=dtype, device=device), [5], [2])


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("blank", [0.0, False, 0j, [], "0"]),
        ("reduction", [[], None]),
        ("zero_infinity", [[], "no", 2, 0.0]),
        ("engine", [[], "natve"]),
        ("topology", [[], "hmm"]),
        ("from_logits", [[], None]),
    ],
)
def test_an_option_is_refused_whatever_was_called_before(option, wrong):
    """0.0, False and 0j equal 0 as keys of what is kept, and 0.0 equals False."""
    for value in wrong:
        for good in ({}, {"blank": 0}, {"blank": 1, "zero_infinity": True}):
            ct.ctc_loss(**GOOD | {"targets": torch.full((3, 4), 2)}, **good)
        with pytest.raises(ct.InvalidTorchInput, match=rf"^{option} is "):
            ct.ctc_loss(**GOOD, **{option: value})


def test_options_that_mean_the_same_share_a_plan():
    for blank, zero_infinity in ((0, False), (np.int64(0), 0), (np.int8(0), np.False_)):
        ct.ctc_loss(**GOOD, blank=blank, zero_infinity=zero_infinity)
    assert len({key[1:] for key in call._kept.plans if key[1:4] == (0, "label_mean", False)}) == 1


def test_plans_do_not_pile_up():
    x, targets = torch.zeros(10, 1, 100), torch.tensor([[99]])
    for blank in range(99):
        ct.ctc_loss(x, targets, [10], [1], blank)
        assert len(call._kept.plans) <= call.MOST_PLANS


def test_empty_cache_lets_go_of_every_plan():
    """And so of its workspace."""
    ct.ctc_loss(**GOOD)
    kept = [weakref.ref(plan) for plan in call._kept.plans.values()]
    assert kept
    ct.empty_cache()
    gc.collect()
    assert not any(each() for each in kept)
    ct.ctc_loss(**GOOD)
    (plan,) = call._kept.plans.values()
    assert plan._room is call._kept.room


def test_empty_cache_lets_go_of_the_memory_of_a_plan_that_is_held():
    """As by a call that a signal handler interrupts; what that makes later is not kept by the thread."""
    ct.empty_cache()
    ct.ctc_loss(torch.zeros(400, 1, 1000, requires_grad=True), torch.tensor([[1, 2]]), [400], [2])
    (plan,) = call._kept.plans.values()
    if not plan._room._keeps:
        pytest.skip("this Python does not count references")
    assert plan._room._blocks
    ct.empty_cache()
    assert not plan._room._blocks
    assert call._kept.room is not plan._room


def test_a_refused_batch_is_let_go():
    """And not when the garbage collector comes round: a loop that skips bad batches would hold many."""
    gc.collect()
    gc.disable()
    try:
        for grad in (False, True):
            x = torch.zeros(10, 3, 6, requires_grad=grad)
            held = weakref.ref(x)
            with suppress(ct.InvalidTorchInput):
                ct.ctc_loss(x, torch.full((3, 4), 9), [10] * 3, [4] * 3)
            del x
            assert held() is None
    finally:
        gc.enable()


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
@pytest.mark.parametrize("requires_grad", [False, True])
def test_forward_mode_is_refused(requires_grad):
    """It would find a derivative of 0."""
    x = torch.zeros(10, 1, 6, requires_grad=requires_grad)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        for function in (ct.ctc_loss, ct.lattice_loss):
            with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
                function(dual, torch.tensor([[1, 2]]), [10], [2])
        plain = ct.ctc_loss(x.detach(), torch.tensor([[1, 2]]), [10], [2])
        assert torch.isfinite(plain)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
def test_forward_mode_is_refused_by_a_compiled_function():
    """It found a derivative of 0."""
    x = torch.zeros(10, 1, 6)

    @torch.compile(backend="aot_eager")
    def product(x):
        return torch.func.jvp(lambda x: ct.ctc_loss(x, torch.tensor([[1, 2]]), [10], [2]), (x,), (torch.ones_like(x),))

    with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
        product(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_a_tangent_of_a_factor_reaches_the_gradient(reduction):
    """The gradient of factor * loss is factor * gradient: its tangent is the gradient times the factor's."""
    x = torch.randn(10, 1, 6, dtype=torch.float64).requires_grad_()
    factor = torch.tensor(2.0, dtype=torch.float64)
    with forward_ad.dual_level():
        loss = ct.ctc_loss(x, torch.tensor([[1, 2]]), [10], [2], reduction=reduction)
        scaled = (loss * forward_ad.make_dual(factor, torch.ones_like(factor))).sum()
        (grad,) = torch.autograd.grad(scaled, x)
        grad, tangent = forward_ad.unpack_dual(grad)
    torch.testing.assert_close(grad, 2 * tangent, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of PyTorch's own decompositions
def test_a_tangent_of_a_direction_is_refused():
    """Of that of a second derivative, and of that of its derivative in turn: the product had none."""
    x = torch.randn(6, 2, 4, dtype=torch.float64).requires_grad_()
    loss = ct.ctc_loss(x, torch.tensor([[1, 2], [3, 1]]), [6, 6], [2, 2], from_logits=True)
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    direction = torch.randn_like(x).requires_grad_()
    (product,) = torch.autograd.grad(grad, x, direction, create_graph=True)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(direction.detach(), torch.ones_like(direction))
        for of, by in ((grad, x), (product, direction)):
            assert torch.autograd.grad(of, by, direction.detach(), retain_graph=True)[0].any()
            with pytest.raises(NotImplementedError, match="no derivatives in forward mode"):
                torch.autograd.grad(of, by, dual, retain_graph=True)


@pytest.mark.parametrize("name", ["input_lengths", "target_lengths"])
def test_lengths_in_other_forms_than_integers(name):
    given = {"input_lengths": torch.tensor([8, 6]), "target_lengths": torch.tensor([2, 1])}
    for value, said in (
        (None, f"{name}: None; they must be integers, one a sample"),
        (torch.tensor([2.0, 1.0]), f"{name} hold torch.float32; they must hold integers: pass {name}.long()"),
        ([2.0, 1.0], f"{name} hold torch.float32; they must hold integers"),
        (torch.ones(2, device="meta"), f"{name} hold torch.float32; they must hold integers: pass {name}.long()"),
        (torch.tensor([1.0, 0.75]), "shares of the longest sample, pass them times its length, rounded"),
        (torch.ones(2, 8, dtype=torch.bool), "they must hold integers: pass mask.sum(1) if they are a mask"),
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            ct.ctc_loss(torch.zeros(8, 2, 5), torch.tensor([[1, 2], [3, 4]]), **{**given, name: value})
        assert str(caught.value).endswith(said)


@pytest.mark.parametrize("loss", [ct.ctc_loss, ct.lattice_loss])
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("targets", lambda y: y.double(), "targets holds float64; it must hold integers: pass targets.long()"),
        ("targets", lambda y: y == 1, "targets holds booleans; it must hold integers"),
        ("input_lengths", lambda each: each.half(), "holds float16; it must hold integers: pass input_lengths.long()"),
        ("target_lengths", lambda each: each > 0, "target_lengths holds booleans; it must hold integers"),
        (
            "target_lengths",
            lambda each: each.float(),
            "holds float32; it must hold integers: pass target_lengths.long()",
        ),
    ],
)
def test_numbers_that_are_no_integers_in_a_compiled_call(loss, name, change, words):
    """What is raised while PyTorch traces ends in words of its own: the operator says it."""
    given = {"targets": torch.tensor([[1, 2], [3, 4]]), "input_lengths": torch.tensor([8, 6])}
    given["target_lengths"] = torch.tensor([2, 1])
    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="eager")
    with pytest.raises(ct.InvalidTorchInput, match=re.escape(words) + "$"):
        compiled(torch.zeros(8, 2, 5), **{**given, name: change(given[name])})


@pytest.mark.parametrize("name", ["targets", "input_lengths", "target_lengths"])
def test_numbers_that_numpy_has_not_in_a_compiled_call(name):
    """The operator could not read them as arrays to say what they are."""
    given = {"targets": torch.tensor([[1, 2], [3, 4]]), "input_lengths": torch.tensor([8, 6])}
    given["target_lengths"] = torch.tensor([2, 2])
    torch.compiler.reset()
    compiled = torch.compile(ct.ctc_loss, backend="eager")
    with pytest.raises(ct.InvalidTorchInput, match=rf"^{name} hold torch\.bfloat16; .*: pass {name}\.long\(\)"):
        compiled(torch.zeros(8, 2, 5), **{**given, name: given[name].bfloat16()})
