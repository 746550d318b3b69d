"""What the errors of cuDNN's binding carry beside their words: the rule, the sample, and the value."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ctcbind.bindings import cudnn_arguments, cudnn_calls
from ctcbind.bindings.cudnn_enums import cudnnCTCLossAlgo_t, member
from ctcbind.errors import InvalidInput

ON_A_DEVICE = SimpleNamespace(__cuda_array_interface__={})


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "labels must be ints in host memory, not NULL (None)"),
        ("12", "labels must be ints in host memory, not str"),
        (b"12", "labels must be ints in host memory, not bytes"),
        (ON_A_DEVICE, "labels must be in host memory, this is on a device"),
    ],
)
def test_what_holds_no_ints_on_the_host(value: object, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        cudnn_arguments.host_ints("labels", value)
    assert (str(caught.value), caught.value.rule, caught.value.value) == (said, "host_ints", value)


@pytest.mark.parametrize(
    ("given", "rule", "value"),
    [
        (("dimA", "123"), "sequence", "123"),
        (("dimA", 3), "sequence", 3),
        (("dimA", np.ones((2, 3), int)), "sequence", (2, 3)),
        (("dimA", [2, 1.5]), "type", 1.5),
        (("dimA", [2, 2**31]), "int32", 2**31),
        (("dimA", [-(2**31) - 1]), "int32", -(2**31) - 1),
    ],
)
def test_what_is_no_list_of_ints_that_c_can_hold(given: tuple[str, Any], rule: str, value: object) -> None:
    with pytest.raises(InvalidInput, match="dimA") as caught:
        cudnn_arguments.int32_list(*given)
    assert (caught.value.rule, caught.value.value) == (rule, value)


def test_the_ends_of_an_int_are_ints() -> None:
    assert cudnn_arguments.int32_list("dimA", [2**31 - 1, -(2**31)]) == [2**31 - 1, -(2**31)]


@pytest.mark.parametrize(
    ("labels", "label_lengths", "input_lengths", "found", "said"),
    [
        ([1, 2], [1], [4, 4], ("lengths", None, 1), "1 label lengths for a batch of 2 (the second dimension of probs"),
        ([1, 2], [1, 1], [4] * 3, ("lengths", None, 3), "3 input lengths for a batch of 2 (the second dimension of p"),
        ([1, 2], [1, 1], [4, 5], ("input_length", 1, 5), "sample 1: input length 5 is not in [0, 4]"),
        ([1, 2], [1, 1], [-1, 4], ("input_length", 0, -1), "sample 0: input length -1 is not in [0, 4]"),
        ([1, 2], [1, -1], [4, 4], ("label_length", 1, -1), "sample 1: label length -1"),
        ([1, 2], [1, 2], [4, 4], ("label_length", 1, 2), "sample 1: its labels end at 3, and there are 2"),
        ([1, 5], [1, 1], [4, 4], ("label_range", 1, 5), "sample 1: label 5 is not in [1, 4] (cuDNN's blank is 0)"),
        ([1, 2, 0], [2, 1], [4, 4], ("label_range", 1, 0), "sample 1: label 0 is not in [1, 4] (cuDNN's blank is 0)"),
    ],
)
def test_which_of_the_lengths_and_labels_is_wrong(
    labels: list[int],
    label_lengths: list[int],
    input_lengths: list[int],
    found: tuple[str, int | None, int],
    said: str,
) -> None:
    four_frames_two_samples_five_classes: Any = SimpleNamespace(_dims=(4, 2, 5))
    given = (cudnn_arguments.host_ints("each", each) for each in (labels, label_lengths, input_lengths))
    with pytest.raises(InvalidInput) as caught:
        cudnn_arguments.check_labels(four_frames_two_samples_five_classes, *given)
    assert str(caught.value).startswith(said)
    assert (caught.value.rule, caught.value.sample, caught.value.value) == found


@pytest.mark.parametrize(
    ("size", "rule"), [(-1, "workspace"), (2**40, "workspace"), (True, "type"), (None, "type"), (1.0, "type")]
)
def test_what_is_no_size_of_a_workspace(size: object, rule: str) -> None:
    with pytest.raises(InvalidInput, match="workSpaceSizeInBytes") as caught:
        cudnn_arguments.workspace(0, size)
    assert caught.value.rule == rule
    assert caught.value.value is size


@pytest.mark.parametrize("mask", [1, 16])
def test_what_is_no_mask_of_severities(mask: int) -> None:
    with pytest.raises(InvalidInput, match=f"^mask must be a sum of CUDNN_SEV_[*]_EN, not {mask}$") as caught:
        cudnn_calls.collect_log(mask)
    assert (caught.value.rule, caught.value.value) == ("mask", mask)


@pytest.mark.parametrize("value", [7, True, "deterministic", None])
def test_what_is_no_member_of_an_enum(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^algo must be one of CUDNN_CTC_LOSS_ALGO_DETERMINISTIC") as caught:
        member(cudnnCTCLossAlgo_t, "algo", value)
    assert (caught.value.rule, caught.value.value) == ("enum", value)
