"""What `diagnose` makes of the steps before: explosions, losses that rise, that are below 0 or infinite."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from good_batches import good
from mistakes import C, N, T, well
from test_diagnose import command

import ctcbind
from ctcbind import diagnose


def test_exploding_by_the_batch_alone():
    x = np.random.default_rng(8).normal(size=(40, 4, 10)) * 1e4
    (finding,) = diagnose(x, [[1, 2, 3]] * 4).findings
    assert finding.kind == "exploding_gradients"
    assert "times that of a uniform model" in finding.seen
    assert finding.seen.count(f"at most {np.sqrt(80):.3g})") == len(finding.samples) == 3
    norms = diagnose(x, [[1, 2, 3]] * 4).measures.grad_norms
    assert len(norms) == 4
    assert max(norms) <= np.sqrt(80) + 1e-9


def test_history():
    given = well(2)
    for history in ([3.0, np.nan], [{"grad_norm": np.inf}], [1.0, 2.0, np.float32("nan")]):
        assert diagnose(**given, history=history).kinds == {"exploding_gradients"}
    (finding,) = diagnose(**given, history=[3.0, np.nan]).findings
    assert finding.sure == "likely", "that step may have been given nan"
    (finding,) = diagnose(**given, history=[3.0, 1.0, -0.5, -2.0]).findings
    assert (finding.kind, finding.seen) == ("negative_loss", "the loss of step 2 is -0.5")
    assert diagnose(**given, history=[3.0, 1e-6, -1e-7, 0.0]).ok, "that is rounding"
    for history in (None, [], [5.0], np.linspace(90, 3, 50), [{"loss": 3, "grad_norm": 1e9}]):
        assert diagnose(**given, history=history).ok
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    assert diagnose(**fresh, history=[42.0] * 40).kinds == {"not_learning"}
    assert diagnose(**fresh, history=np.linspace(90, 42, 40)).ok
    plateau = 100 * np.exp(-np.arange(400) / 10) + 42 + 0.3 * np.sin(1.7 * np.arange(400))
    for history in (plateau, plateau[-100:], [*plateau, np.inf]):
        assert "not_learning" in diagnose(**fresh, history=history).kinds, "whenever it fell"
    assert diagnose(**fresh, history=[np.inf] * 30).kinds == {"not_finite"}
    (finding,) = diagnose(**fresh, history=[0.5] * 100 + [20.0]).findings
    assert (finding.kind, "has been 0.5 for some steps, and is 20" in finding.seen) == ("exploding_gradients", True)
    wild = {**fresh, "logits": 45 * np.asarray(fresh["logits"], np.float64)}
    assert diagnose(**wild, history=np.linspace(3000, 2000, 300)).kinds & {"not_learning", "exploding_gradients"}
    calm = [{"loss": 0.1, "grad_norm": 0.02}] * 50
    assert diagnose(**given, history=[*calm, {"loss": 0.15, "grad_norm": 0.25}]).ok, "a hard batch among read ones"
    assert diagnose(**given, history=[*calm, {"loss": 0.15, "grad_norm": 250.0}]).kinds == {"exploding_gradients"}
    assert diagnose(**fresh, history=[(40.5, 1), (41.1, 1e3), (42.3, 1e6)]).kinds == {"exploding_gradients"}
    assert diagnose(**fresh, history=[(40.5, 1), (41.1, 1e3), (42.3, 9e4)]).ok, "which may be the third of all steps"
    for wrong in (
        3.0,
        "loss",
        np.zeros(3, [("lost", float)]),
        np.zeros(3, [("loss", "U1")]),
        [None],
        [{"lost": 1}],
        [{}],
        [{"loss": "x"}],
    ):
        with pytest.raises(ctcbind.InvalidInput) as caught:
            diagnose(**given, history=wrong)
        assert caught.value.rule == "history"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("3.5", "history is of type str"),
        (["3.5"], "history[0] has '3.5' for its loss"),
        ([np.complex128(3.5)], "history[0] has "),
        (
            np.zeros((2, 5)),
            "history has shape (2, 5); it must be (K,), the losses, or (K, 2), losses and gradient norms: ",
        ),
        (
            np.zeros((5, 5)),
            "history has shape (5, 5); it must be (K,), the losses, or (K, 2), losses and gradient norms",
        ),
        ({"loss": "35"}, "history has '35' for its loss"),
        ({"loss": np.array(3.5)}, "history has array(3.5) for its loss"),
        (
            [(5.0, 1.0), (6.0, 1.0), (7.0, 1.0)],
            "the first numbers of history's steps are 5, 6, 7, ...: they count steps",
        ),
    ],
)
def test_what_is_no_history_is_told(given, says):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        diagnose(**well(2), history=given)
    assert str(caught.value).startswith(says)
    assert ("pass history.T" in str(caught.value)) == says.endswith(": ")


def test_losses_that_rise_by_one_are_no_numbers_of_steps_where_they_have_their_name():
    """Nor where they are no whole numbers."""
    assert diagnose(**well(2), history=[(5.5 + step, 1.0) for step in range(3)]).ok
    named = [{"loss": 5.0 + step, "grad_norm": 1.0} for step in range(3)]
    rows = np.array([(5.0 + step, 1.0) for step in range(3)], [("loss", float), ("grad_norm", float)])
    assert diagnose(**well(2), history=named) == diagnose(**well(2), history=rows)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"loss": 3.0, "gradnorm": 1.0}], "history[0] has 'gradnorm', but no 'grad_norm'"),
        ([{"loss": 3.0, "grad_norm": 1.0}, {"Loss": 3.0, "grad_norm": 1.0}], "history[1] has 'Loss', but no 'loss'"),
        ([{"losses": 3.0, "grad_norm": 1.0}], "history[0] has 'losses', but no 'loss'"),
        ([{"lost": 3.0, "grad_norm": 1.0}], "history[0] has 'lost', but no 'loss'"),
        ([{"loss": 3.0, "gradient norm": 1.0}], "history[0] has 'gradient norm', but no 'grad_norm'"),
        (np.zeros(3, [("loss", float), ("norm", float)]), "history[0] has 'norm', but no 'grad_norm'"),
        ({"loss": [3.0, 2.0], "grad_norms": [1.0, 1.0]}, "history has 'grad_norms', but no 'grad_norm'"),
        ({"train_loss": [3.0, 2.0], "grad_norm": [1.0, 1.0]}, "history has 'train_loss', but no 'loss'"),
    ],
)
def test_a_misnamed_field_is_not_passed_over(given, says):
    with pytest.raises(ctcbind.InvalidInput) as caught:
        diagnose(**well(2), history=given)
    assert caught.value.rule == "history"
    assert str(caught.value).startswith(f"{says}: did you mean that?")


def test_fields_of_other_things_are():
    others = ("step", "epoch", "lr", "val_loss", "test_loss", "dev_loss", "loss_scale", "weight_norm", "param_norm", 7)
    beside = dict.fromkeys(others, 1e9)
    for named in ({"loss": 3.0}, {"grad_norm": 1.0}, {"loss": 3.0, "grad_norm": 1.0, "losses": 1e9, "gnorm": 1e9}):
        steps = [{**beside, **named}] * 3
        assert diagnose(**well(2), history=steps) == diagnose(**well(2), history=[named] * 3)
        table = {name: [value] * 3 for name, value in steps[0].items()}
        assert diagnose(**well(2), history=table) == diagnose(**well(2), history=[named] * 3)


def test_the_command_takes_the_history(tmp_path):
    given = well(3) | {"logits": np.random.default_rng(0).normal(size=(T, N, C))}
    width = max(map(len, given["targets"]))
    given["targets"] = np.array([row + [-1] * (width - len(row)) for row in given["targets"]])
    np.savez(tmp_path / "batch.npz", **given, history=[3.5, -0.5])
    done = command("diagnose", str(tmp_path / "batch.npz"))
    assert done.returncode == 1
    assert "the loss of step 1 is -0.5" in done.stdout
    fields = np.array([(50.0, 3.0)] * 20 + [(49.0, 4e4)], [("loss", float), ("grad_norm", np.float32)])
    np.savez(tmp_path / "batch.npz", **given, history=fields)
    done = command("diagnose", str(tmp_path / "batch.npz"))
    assert "the last gradient norm is 4e+04, the median of the 20 before 3" in done.stdout
    assert diagnose(**given, history=fields).kinds == {"exploding_gradients"}


RISING = {
    "slowly": [30.0 + step for step in range(30)],
    "worse than knowing nothing": [300.0 + 3 * step for step in range(60)],
    "more and more": [30 * 1.1**step for step in range(40)],
    "to nan": [*(30 * 1.3**step for step in range(9)), np.nan],
    "in few steps": [30.0 + step for step in range(10)],
    "with batches that differ": [30.0 + step + 3 * np.sin(7 * step) for step in range(60)],
}


@pytest.mark.parametrize("history", RISING.values(), ids=RISING)
def test_a_loss_that_rises_from_the_start_has_its_sign_looked_at_first(history):
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    for scale in (1, 40):
        (finding,) = diagnose(**{**fresh, "logits": scale * fresh["logits"]}, history=history).findings
        assert finding.kind in ("not_learning", "exploding_gradients")
        assert "the updates go uphill" in finding.means
        assert finding.do.startswith("see first that gradient and update have the right sign")
    fell = diagnose(**fresh, history=[history[-2] * 2.5, *np.linspace(history[-2] * 2, history[0], 9), *history])
    assert "uphill" not in str(fell)


def plateau(*, C: int = 10) -> dict[str, object]:
    """A batch that a network meets with blanks alone."""
    fresh = good(0, "fresh", size=(40, 4, C), plain=True)
    x = 0.02 * np.asarray(fresh["logits"], np.float64)
    x[:, :, 0] += np.log(8 * (C - 1))
    return {**fresh, "logits": x, "targets": [[1, 2, 3], [4], [5, 6], [7, 8, 9, 1]], "input_lengths": None}


@pytest.mark.parametrize("peak", [2981.5, 99155.9, 9.5e7])
def test_a_step_that_was_too_long_at_the_start(peak):
    """Losses of Adam with rates of 0.3, 1 and 10: what is left says blanks, and a larger rate is no cure for that."""
    first, after = [38.1, peak, peak / 20, 34.1, 28.9, 22.1], [13.0 + 0.5 * np.sin(7 * step) for step in range(94)]
    given = plateau()
    found = diagnose(**given, history=first + after)
    assert [finding.kind for finding in found.findings] == ["exploding_gradients", "all_blank"]
    assert f"the loss of step 1 is {peak:.4g}, that of the first 38.1" in found.findings[0].seen
    assert "raise the learning rate" not in str(found)
    assert "lower the learning rate" in found.findings[1].do
    read = {**well(0), "history": first + after}
    assert diagnose(**read).ok, "it has come back from that"
    assert "raise the learning rate" in str(diagnose(**given, history=[38.1, *after]))


def test_losses_that_stay_above_the_first():
    """With Adam and a rate 300 times too large: no step stands out among the others, and none reads anything."""
    for seed in range(2):
        rng = np.random.default_rng([SEED, 61, seed])
        x = rng.normal(size=(T, N, C)) * 15
        given = {"logits": x, "targets": [rng.integers(1, C, size=40).tolist() for _ in range(N)]}
        uniform = diagnose(**given).measures.uniform_loss
        history = uniform * np.array([0.9, 6, 4, 5, 4, 17, 18, 33, 31, 28, 33, 36, 30, 24, 14, 9, 7, 9, 7, 5, 7, 6])
        (finding,) = diagnose(**given, history=history).findings
        assert (finding.kind, finding.sure) == ("exploding_gradients", "likely")
        assert finding.seen.startswith(f"the loss of the first step is {history[0]:.4g}, and that of the last 11 at")
        for fine in (history[:5], history / 2.1, [*history, 2 * uniform], [4 * uniform, *history]):
            assert diagnose(**given, history=fine).kinds != {"exploding_gradients"}, "few, near the first, or falling"
        assert diagnose(**well(seed), history=history).ok, "it reads its batch"


def test_losses_of_batches_that_are_not_alike_are_no_explosion():
    """One sample a step, of one label or of a hundred."""
    rng = np.random.default_rng(5)
    history = (1.5 * rng.integers(1, 8, size=60)).tolist()
    history[0], history[30] = 1.5, 60.0
    assert "exploding_gradients" not in diagnose(**plateau(), history=history).kinds


def test_a_loss_below_0_that_rises_is_no_explosion():
    """That of torch.nn.CTCLoss, given logits, while the network learns to say blanks."""
    history = [-14.4 + 0.1 * np.sin(step) for step in range(50)] + np.linspace(-14, 11.5, 50).tolist()
    found = diagnose(**plateau(), history=history)
    assert found.kinds == {"all_blank", "negative_loss"}


def test_history_of_tensors():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'ctcbind[torch]'")
    given = well(0)
    for history in (torch.tensor([3.0, -2.0]), [torch.tensor(3.0), torch.tensor(-2.0, requires_grad=True)]):
        assert diagnose(**given, history=history).kinds == {"negative_loss"}
    with pytest.raises(ctcbind.InvalidInput, match="history is of type"):
        diagnose(**given, history=np.array(3.0))


def test_history_as_a_column_of_a_table():
    """Of pandas or Polars, which are no sequences to Python."""

    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.array([3.1, 0.2, -4.5], dtype)

    x, targets = np.random.default_rng(0).normal(size=(30, 2, 5)), [[1, 2], [3]]
    found = ctcbind.diagnose(x, targets, history=Column())
    assert found == ctcbind.diagnose(x, targets, history=[3.1, 0.2, -4.5])
    assert found.kinds == {"negative_loss"}


def test_history_of_pairs():
    """Losses and gradient norms side by side, as somebody keeps them who appends both at each step."""
    given = well(0)
    pairs = [(50.0 - step, 3.0) for step in range(20)] + [(30.0, 4e4)]
    as_dicts = diagnose(**given, history=[{"loss": loss, "grad_norm": norm} for loss, norm in pairs])
    assert as_dicts.kinds == {"exploding_gradients"}
    for history in (pairs, np.array(pairs), [list(pair) for pair in pairs], [np.array(pair) for pair in pairs]):
        assert diagnose(**given, history=history) == as_dicts
    falls = [50.0, 40.0, 30.0]
    assert diagnose(**given, history=np.array(falls)[:, None]) == diagnose(**given, history=falls)
    for wrong, said in (
        (np.zeros((2, 30)), r"shape \(2, 30\).*pass history.T"),
        (np.zeros((30, 3)), r"shape \(30, 3\); it must be"),
        (np.zeros((3, 2, 2)), r"shape \(3, 2, 2\); it must be"),
        (np.ma.masked_array([3.0, 2.0, 9.9], mask=[0, 0, 1]), r"masked array; .* pass history\.compressed\(\)"),
        ([(3.0, "x")], "'x' for its grad_norm"),
        ([(3.0, 1.0, 2.0)], "for its loss"),
        ([(1, 9.0), (2, 8.0), (3, 7.0)], "are 1, 2, 3, ...: they count steps"),
        (np.array([(0, 9.0), (100, 8.0), (200, 7.0)]), "are 0, 100, 200, ...: they count steps"),
    ):
        with pytest.raises(ctcbind.InvalidInput, match=said) as caught:
            diagnose(**given, history=wrong)
        assert caught.value.rule == "history"


def test_history_as_a_table():
    """By the names of its columns, in whatever order they stand."""

    class Frame:
        """As pandas and Polars have one: no mapping, nor a sequence."""

        columns = ("step", "grad_norm", "loss")

        def __init__(self, table):
            self.table = table

        def __getitem__(self, name):
            return self.table[name]

        def __array__(self, dtype=None, copy=None):
            return np.column_stack([self.table[name] for name in self.columns])

    given = well(0)
    table = {"step": np.arange(21), "grad_norm": [3.0] * 20 + [4e4], "loss": np.linspace(50, 30, 21)}
    as_dicts = diagnose(
        **given, history=[{"loss": a, "grad_norm": b} for a, b in zip(table["loss"], table["grad_norm"])]
    )
    for history in (table, Frame(table)):
        assert diagnose(**given, history=history) == as_dicts
    assert diagnose(**given, history={"loss": [3.1, 0.2, -4.5]}).kinds == {"negative_loss"}
    for wrong, said in (
        ({"losses": [3.0]}, "neither a column 'loss' nor 'grad_norm', but losses"),
        ({"loss": 3.0}, "3.0 for its loss; it must be one number a step"),
        ({"loss": [3.0, 2.0], "grad_norm": [1.0]}, "2 losses, but 1 gradient norms"),
    ):
        with pytest.raises(ctcbind.InvalidInput, match=said):
            diagnose(**given, history=wrong)


def test_batches_of_short_and_of_long_samples_in_turns_are_no_explosion():
    """From buckets by length, or one by one: the last is a long one."""
    fresh = good(0, "fresh", size=(40, 4, 10), plain=True)
    rng = np.random.default_rng(SEED)
    turns = [loss for _ in range(4) for loss in [*rng.uniform(5, 8, size=6), *rng.uniform(38, 45, size=6)]]
    assert "exploding_gradients" not in diagnose(**fresh, history=turns).kinds
    once = [*rng.uniform(5, 8, size=42), *rng.uniform(38, 45, size=6)]
    assert "exploding_gradients" in diagnose(**fresh, history=once).kinds


def test_a_loss_of_inf_that_makes_the_weights_nan_is_no_explosion():
    """As PyTorch's does for a sample without a path; no learning rate helps. After a rise to inf it is one."""
    given = well(4)
    before, lost = [(60.0, 3.0), (50.0, 4.0), (45.0, 3.0)], {**given, "logits": np.full((T, N, C), np.nan)}
    for history in (
        [*before, (np.inf, np.nan), (np.nan, np.nan)],
        [*before, (np.inf, np.nan)],
        [(np.inf, np.nan)],
        [60.0, 50.0, np.inf, np.nan, np.nan],
    ):
        found = [diagnose(**given, history=history), diagnose(**lost, history=history)]
        assert [each.kinds for each in found] == [{"not_finite"}, {"not_finite"}]
        for each in found:
            after = "those after it nan" if np.isnan(history[-1]).all() else "its gradient norm nan"
            assert each.findings[-1].seen.endswith(after)
            assert "PyTorch's gradient of such a loss is nan" in each.findings[-1].means
            assert f"before step {np.argmax(np.isinf(np.array(history).reshape(len(history), -1)[:, 0]))};" in str(each)
    for history in (
        [*before, (np.inf, 3.0), (44.0, 3.0), (np.nan, np.nan)],
        [*before, (2e3, 1e5), (1e9, 1e9), (np.inf, np.nan), (np.nan, np.nan)],
        [60.0, 50.0, 3e3, 1e9, np.inf, np.nan],
    ):
        assert "exploding_gradients" in diagnose(**given, history=history).kinds


def test_steps_that_a_gradient_scaler_leaves_out_are_no_explosion():
    """Their gradients have overflowed, and the losses after them have not."""
    given = well(5)
    losses, norms = np.linspace(90, 20, 60), np.full(60, 3.0)
    for at in (range(5), [30], [0, 30, 40], [57]):
        history = [(loss, np.inf if step in at else norm) for step, (loss, norm) in enumerate(zip(losses, norms))]
        assert diagnose(**given, history=history).ok
    assert diagnose(**given, history=[(90.0, np.inf), (89.9, np.inf), (90.1, np.inf)]).ok, "it looks for its scale"
    (finding,) = diagnose(**given, history=[*zip(losses, norms), (20.0, np.inf)]).findings
    assert (finding.kind, finding.sure) == ("exploding_gradients", "likely")
    assert finding.do.endswith("a single step of inf is left out, and does no harm")
    for broken in [(loss, np.nan) for loss in losses], [*zip(losses, norms), (np.nan, np.nan)]:
        (finding,) = diagnose(**given, history=broken).findings
        assert (finding.kind, finding.sure) == ("exploding_gradients", "certain")
        assert "left out" not in finding.do


def test_losses_of_nan_that_pass_are_no_explosion():
    given = well(6)
    losses = np.linspace(90, 20, 40)
    losses[[7, 12]] = np.nan
    (finding,) = diagnose(**given, history=losses).findings
    assert finding.kind == "not_finite"
    assert finding.seen == "the loss of 2 of 40 steps, the first of them 7 is nan, and that of the last is 20"
    losses[13:] = np.nan
    assert diagnose(**given, history=losses).kinds == {"exploding_gradients"}
    (finding,) = diagnose(**given, history=[3.0, np.nan, 2.0]).findings
    assert finding.seen == "the loss of step 1 is nan, and that of the last is 2"


def test_losses_of_inf_that_the_batch_explains_are_told_once():
    given = well(8)
    history = [3.0, np.inf, 2.0]
    assert diagnose(**given, history=history).kinds == {"not_finite"}
    given["targets"][0] = [1, 1] * T
    assert diagnose(**given, history=history).kinds == {"infeasible"}


def test_a_loss_below_0_that_blanks_among_the_labels_make():
    given = well(7)
    blanks = [[label for one in row for label in (0, one)] for row in given["targets"]]
    for targets, told in ((given["targets"], False), (blanks, True)):
        found = diagnose(**given | {"targets": targets}, history=[3.0, 1.0, -0.5]).findings
        (finding,) = (one for one in found if one.kind == "negative_loss")
        assert finding.do.startswith("leave the blanks out of the targets") == told
        assert ("as PyTorch's does" in finding.means) == told


def test_a_first_step_of_nan_may_have_been_given_it():
    """No step was before it that can have been too long; one of later steps comes first, as the usual cause."""
    given, nan = well(2), np.nan
    for history in ([nan] * 4, [(nan, nan)] * 4):
        (finding,) = diagnose(**given, history=history).findings
        assert finding.kind == "exploding_gradients"
        assert finding.seen.startswith("the loss of step 0 is nan")
        assert finding.means.startswith("that step was given nan, or the first weights held it; or a step was too long")
        assert finding.do.startswith("look through the features of that step, and the weights before it; clip")
    for history in ([3.0, 2.9, nan, nan], [(3.0, 1.0), (2.9, 1.0), (nan, nan), (nan, nan)]):
        (finding,) = diagnose(**given, history=history).findings
        assert finding.kind == "exploding_gradients"
        assert finding.seen.startswith("the loss of step 2 is nan")
        assert finding.means.startswith("a step was too long")
        assert finding.means.endswith("or that step was given nan")
        assert finding.do.endswith("; look through the features of that step")
    (finding,) = diagnose(**given, history=[(3.0, 1.0), (2.9, nan), (nan, nan)]).findings
    assert finding.seen.startswith("the gradient norm of step 1 is nan;")
    assert "given nan" not in finding.means


def test_a_network_that_leaps_about_and_reads_some_of_its_batches():
    """As with Adam and a rate 1000 times too large: half of the losses are small, and this batch is read."""
    history = [300.0, *[20.0, 50.0, 9000.0, 30.0] * 20]
    for seed in range(4):
        given = well(seed)
        x = np.asarray(given["logits"], np.float64)
        far = given | {"logits": 300 * x}
        (finding,) = (each for each in diagnose(**far, history=history).findings if each.kind != "scaled_logits")
        assert (finding.kind, finding.sure) == ("exploding_gradients", "likely")
        assert finding.seen.startswith(
            "the loss of the first step is 300, and that of the last 40 is 2275 on average; "
        )
        assert "above the next, as the median" in finding.seen
        assert finding.means.startswith("the steps are too long")
        assert finding.do.startswith("begin anew with a learning rate lower by ten times")
        assert diagnose(**far, history=history[:19]).kinds <= {"scaled_logits"}, "too few steps"
        assert diagnose(**far, history=[9000.0, *history]).kinds <= {"scaled_logits"}, "they began there"
        assert diagnose(**given, history=history).ok, "its logits are those of a network that was trained well"
        masked = np.where(np.arange(x.shape[2]) == x.shape[2] - 1, -1e5, x)
        kinds = diagnose(**given | {"logits": masked}, history=history).kinds
        assert "exploding_gradients" not in kinds, "a mask is no leap"


def test_longer_samples_after_short_ones_may_be_why_the_loss_has_risen():
    """As of an epoch that begins with the short ones: the network knows nothing of these yet, and has lost nothing."""
    rng = np.random.default_rng([SEED, 141])
    targets = [rng.integers(1, 10, size=15).tolist() for _ in range(8)]
    x = 0.1 * rng.normal(size=(80, 8, 10))
    x[:, :, 0] += 3
    short = (4 + 0.1 * rng.normal(size=40)).tolist()
    (finding,) = [
        each for each in diagnose(x, targets, history=[*short, 60.0]).findings if each.kind == "exploding_gradients"
    ]
    assert "or the samples of late are longer" in finding.means
    x *= 40  # what no batch brings about
    (finding,) = [
        each for each in diagnose(x, targets, history=[*short, 900.0]).findings if each.kind == "exploding_gradients"
    ]
    assert "of late are longer" not in finding.means
