"""Calls of the cuda engine with labels on the host, and with labels on the device that are checked, which are like one
before: they take a short way too, with the same results and the same errors."""

from __future__ import annotations

import numpy as np
import pytest
from batches import SEED
from repeated_calls import OPTIONS, anew, arrays, same

import ctcbind
from ctcbind import CTCLoss
from ctcbind import plan as plans
from ctcbind.cuda import device_batch, launch, repeated
from ctcbind.cuda.layout import plan_layout

pytest_plugins = ["emulated_fixture"]

T, N, C, L = 9, 3, 5, 3


@pytest.fixture
def long_ways(monkeypatch):
    """A list with an entry for each batch that was looked at."""
    seen = []
    for module, name in ((plans, "make_batch"), (device_batch, "make_device_batch")):
        make = getattr(module, name)

        def counted(*arguments, make=make, **options):
            seen.append(1)
            return make(*arguments, **options)

        monkeypatch.setattr(module, name, counted)
    return seen


def host_labels(key, form, longest=L):
    """Of N samples, the last with this many: targets, input_lengths, target_lengths."""
    rng = np.random.default_rng([SEED, 140, key])
    counts = np.append(rng.integers(0, longest + 1, N - 1), longest)
    rows = [rng.integers(1, C - 1, count).tolist() for count in counts]
    frames = rng.integers(0, T + 1, N)
    if form == "lists":
        return rows, None, None
    if form == "lists and frames":
        return rows, frames.tolist(), None
    if form == "one row":
        return np.array([label for row in rows for label in row], "int16"), frames, counts
    at = np.arange(longest + 1)
    table = rng.integers(1, C - 1, (N, longest + 1))
    if form == "negatives":
        return np.where(at < counts[:, None], table, -1), None, None
    return table, frames.astype("uint8"), counts.astype("int32")


def logits(cupy, key, dtype="float32", layout="TNC"):
    shape = (T, N, C) if layout == "TNC" else (N, T, C)
    return cupy.asarray(np.random.default_rng([SEED, 141, key]).normal(size=shape).astype(dtype))


def warm_host(plan, cupy, form="lists", **options):
    for key in range(2):
        plan(logits(cupy, key, **options), *host_labels(key, form))
        plan.loss(logits(cupy, key, **options), *host_labels(key, form))


def warm_checked(plan, cupy, **options):
    for key in range(2):
        plan(*arrays(cupy, key, **options))
        plan.loss(*arrays(cupy, key, **options))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", ["lists", "lists and frames", "one row", "negatives", "padded"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_labels_of_the_host(cupy, long_ways, options, form, dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    with CTCLoss(engine="cuda", **options) as plan:
        form_of_logits = {"dtype": dtype, "layout": plan.layout}
        warm_host(plan, cupy, form, **form_of_logits)
        for key in range(2, 5):
            given = logits(cupy, key, **form_of_logits), *host_labels(key, form)
            expected = anew(plan, given)
            before = len(long_ways)
            both, alone = plan(*given), plan.loss(*given)
            assert len(long_ways) == before
            same(cupy, (*both, alone), (*expected[0], expected[1]))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("form", [{}, {"lengths": False}, {"frames": False}, {"wide": "int64"}], ids=str)
def test_labels_that_are_checked_on_the_device(cupy, long_ways, options, form):
    with CTCLoss(engine="cuda", **options) as plan:
        form = {**form, "ntc": plan.layout == "NTC"}
        warm_checked(plan, cupy, **form)
        for key in range(2, 5):
            given = arrays(cupy, key, **form)
            expected = anew(plan, given)
            before, waited = len(long_ways), len(cupy.synchronized)
            both, alone = plan(*given), plan.loss(*given)
            assert (len(long_ways), len(cupy.synchronized)) == (before, waited + 2)
            same(cupy, (*both, alone), (*expected[0], expected[1]))


@pytest.mark.parametrize("blank", [0, 2, -1])
def test_a_blank_among_labels_and_the_class_0(cupy, long_ways, blank):
    with CTCLoss(engine="cuda", blank=blank) as plan:
        others = [each for each in range(C) if each != blank % C]
        for _ in range(2):
            plan(logits(cupy, 7), [others[:L], [], others[-1:]])
        given = logits(cupy, 8), [others[:1], others[-L:], []]
        expected = anew(plan, given)[0]
        before = len(long_ways)
        same(cupy, plan(*given), expected)
        assert len(long_ways) == before
        with pytest.raises(ctcbind.InvalidInput, match=rf"targets\[1\]\[1\] is {blank % C}, which is the blank"):
            plan(logits(cupy, 8), [others[:L], [others[0], blank % C], []])


def test_labels_in_one_row_on_the_device(cupy, long_ways):
    """The longest is read from the lengths, for which the host waits."""
    with CTCLoss(engine="cuda") as plan:
        for key in range(4):
            given = arrays(cupy, key, flat=True)
            expected = anew(plan, given)[0]
            before = len(long_ways)
            same(cupy, plan(*given), expected)
            assert len(long_ways) == before + 1


def test_only_so_many_calls_are_known(cupy):
    with CTCLoss(engine="cuda") as plan:
        for number in range(1, repeated.MOST + 20):
            plan(cupy.zeros((number, 1, C), np.float32), [[1]])
            found = plan._sessions["cuda"]._repeated
            assert len(found) <= repeated.MOST
            assert len(found._of_host) <= repeated.MOST


def test_auto_takes_it_too(cupy, long_ways):
    with CTCLoss() as plan:
        warm_host(plan, cupy)
        given = logits(cupy, 7), *host_labels(7, "lists")
        expected = anew(plan, given)[0]
        before = len(long_ways)
        same(cupy, plan(*given), expected)
        assert len(long_ways) == before
        assert expected.engine == "cuda"


def test_a_longest_label_that_is_new_takes_the_long_way_once(cupy, long_ways):
    with CTCLoss(engine="cuda") as plan:
        warm_host(plan, cupy)
        for longest in (L + 1, 0, L, L + 1):
            given = logits(cupy, longest), *host_labels(20 + longest, "lists", longest)
            expected = anew(plan, given)
            plan(*given)
            before = len(long_ways)
            same(cupy, plan(*given), expected[0])
            assert len(long_ways) == before


@pytest.mark.parametrize("rows", [[[1], [2], [3, 4, 5]], [[1], [2, 0], [3, 4, 1]], [[1], [2], [3.5, 1, 2]], [[1]] * 4])
def test_wrong_labels_of_the_host_are_told_as_ever(cupy, rows):
    with CTCLoss(engine="cuda") as plan:
        warm_host(plan, cupy)
        x = logits(cupy, 7)
        with pytest.raises(ctcbind.InvalidInput) as short:
            plan(x, rows)
        with pytest.raises(ctcbind.InvalidInput) as long:
            ctcbind.ctc_loss(cupy.asnumpy(x), rows)
        assert str(short.value) == str(long.value)


@pytest.mark.parametrize("place", ["label", "target length", "input length"])
def test_wrong_labels_on_the_device_are_told_as_ever(cupy, place):
    with CTCLoss(engine="cuda") as plan:
        warm_checked(plan, cupy)
        x, labels, frames, lengths = arrays(cupy, 7)
        if place == "label":
            labels[1, 0], lengths[1] = C, 1
        elif place == "target length":
            lengths[2] = L + 1
        else:
            frames[0] = T + 1
        with pytest.raises(ctcbind.InvalidInput) as short:
            plan(x, labels, frames, lengths)
        with pytest.raises(ctcbind.InvalidInput) as long:
            ctcbind.ctc_loss(x, labels, frames, lengths, engine="cuda")
        assert str(short.value) == str(long.value)
        given = arrays(cupy, 8)
        same(cupy, plan(*given), anew(plan, given)[0])


def test_a_capture_is_refused_as_ever(cupy):
    stream = cupy.cuda.Stream()
    with stream, CTCLoss(engine="cuda") as plan:
        warm_host(plan, cupy)
        warm_checked(plan, cupy)
        for key in range(2):
            plan(*with_lengths(cupy, arrays(cupy, key), np.copy, np.copy))
        x, rows, given = logits(cupy, 7), host_labels(7, "lists"), arrays(cupy, 7)
        mixed = with_lengths(cupy, given, np.copy, np.copy)
        stream.begin_capture()
        with pytest.raises(ctcbind.EngineUnsupported, match="labels on the host"):
            plan(x, *rows)
        for each in (given, mixed):
            with pytest.raises(ctcbind.EngineUnsupported, match="checks labels on the device"):
                plan(*each)
        stream.end_capture()


def with_lengths(cupy, given, frames, counts):
    """The same with lengths as these make them of arrays on the host."""
    x, labels, *lengths = given
    return (
        x,
        labels,
        *(None if each is None else make(cupy.asnumpy(each)) for each, make in zip(lengths, (frames, counts))),
    )


def list_of(array):
    return array.tolist()


def strided(array):
    return np.repeat(array.astype("int64"), 2)[::2]


def there(array):
    import cupy

    return cupy.asarray(array)


@pytest.mark.parametrize("options", OPTIONS[::2], ids=str)
@pytest.mark.parametrize("lengths", [(np.copy, np.copy), (list_of, there), (there, strided), (strided, list_of)])
@pytest.mark.parametrize("form", [{}, {"wide": "int64"}, {"flat": True}, {"frames": False}], ids=str)
def test_lengths_of_the_host_beside_labels_of_the_device(cupy, long_ways, options, lengths, form):
    frames, counts = lengths
    form = {**form, "ntc": options.get("layout") == "NTC"}
    short = not (form.get("flat") and counts is there)
    with CTCLoss(engine="cuda", **options) as plan:
        for key in range(2):
            for call in (plan, plan.loss):
                given = arrays(cupy, key, **form)
                given[3][-1] = L  # the longest
                call(*with_lengths(cupy, given, frames, counts))
        for key in range(2, 5):
            given = arrays(cupy, key, **form)
            given[3][-1] = L
            given = with_lengths(cupy, given, frames, counts)
            expected = anew(plan, given)
            before = len(long_ways)
            both, alone = plan(*given), plan.loss(*given)
            assert len(long_ways) == before + 2 * (not short)
            same(cupy, (*both, alone), (*expected[0], expected[1]))


def test_the_longest_label_counts_where_its_length_is_on_the_host(cupy, long_ways):
    """Other launches, and perhaps other last bits, than with its length on the device."""
    with CTCLoss(engine="cuda") as plan:
        for key in range(4):
            x, labels, frames, _ = arrays(cupy, key)
            few = np.array([1, 0, 1])
            for lengths in (few, cupy.asarray(few.astype(np.int32)), few.tolist(), [1, 2, 0]):
                given = x, labels, frames, lengths
                expected = anew(plan, given)
                same(cupy, (*plan(*given), plan.loss(*given)), (*expected[0], expected[1]))
        known = plan._sessions["cuda"]._repeated._known
        wide, narrow, middle = (plan_layout(T, N, C, longest, 4, True).pitch for longest in (L, 1, 2))
        assert {each.work.layout.pitch for each in known.values()} == {wide, narrow, middle}
        assert len({wide, narrow, middle}) == 3
        assert len(known) == 6


@pytest.mark.parametrize("place", ["label", "target length", "input length", "few", "no integers"])
def test_wrong_lengths_of_the_host_are_told_as_ever(cupy, place):
    with CTCLoss(engine="cuda") as plan:
        for key in range(3):
            plan(*with_lengths(cupy, arrays(cupy, key), np.copy, np.copy))
        x, labels, frames, counts = with_lengths(cupy, arrays(cupy, 7), np.copy, np.copy)
        if place == "label":
            labels[1, 0], counts[:] = C, L
        elif place == "target length":
            counts[2] = L + 1
        elif place == "input length":
            frames[0] = T + 1
        elif place == "few":
            counts = counts[:-1]
        else:
            frames = frames + 0.5
        with pytest.raises(ctcbind.InvalidInput) as short:
            plan(x, labels, frames, counts)
        with pytest.raises(ctcbind.InvalidInput) as long:
            ctcbind.ctc_loss(x, labels, frames, counts, engine="cuda")
        assert str(short.value) == str(long.value)


def test_what_is_sent_and_what_is_there_stay_until_the_next_call(cupy):
    with CTCLoss(engine="cuda") as plan:
        for key in range(3):
            given = with_lengths(cupy, arrays(cupy, key), np.copy, there)
            plan(*given)
        ((state, _),) = plan._sessions["cuda"]._states._kept.values()
        (labels, *lengths), staged = state._staged
        assert labels is given[1]
        assert any(each is given[3] for each in lengths)
        np.testing.assert_array_equal(np.frombuffer(staged, np.int32), [*[0] * N, *given[2]])


def test_logits_that_are_copied_first_are_not_taken_for_others(cupy, long_ways):
    with CTCLoss(engine="cuda") as plan:
        for key in range(4):
            wide = cupy.empty((T, N, 2 * C), np.float32)
            wide[:, :, ::2] = logits(cupy, key)
            given = wide[:, :, ::2], *host_labels(key, "lists")
            expected = anew(plan, given)[0]
            before = len(long_ways)
            same(cupy, plan(*given), expected)
            assert len(long_ways) == before + 1


@pytest.mark.parametrize("reads_host", [False, True])
def test_labels_that_are_many_or_that_the_device_may_read_late(cupy, long_ways, monkeypatch, reads_host):
    sent = []
    copy = cupy.runtime.memcpyAsync
    monkeypatch.setattr(cupy.runtime, "memcpyAsync", lambda *given: sent.append(given[2]) or copy(*given))
    if reads_host:
        monkeypatch.setattr(cupy.runtime, "deviceGetAttribute", lambda attribute, device: int(attribute == 88))
    else:
        monkeypatch.setattr(launch, "AT_ONCE", 4 * (2 * N + L))
    with CTCLoss(engine="cuda") as plan:
        warm_host(plan, cupy, "padded")
        for rows in ([[1, 2, 3], [], []], [[1, 2, 3], [1], []]):
            given = logits(cupy, 7), rows
            expected = anew(plan, given)[0]
            before = len(long_ways)
            del sent[:]
            same(cupy, plan(*given), expected)
            assert len(long_ways) == before
            assert len(sent) == (not reads_host and not rows[1])


def test_labels_may_change_as_soon_as_a_call_has_returned(cupy, long_ways):
    with CTCLoss(engine="cuda") as plan:
        warm_host(plan, cupy, "padded")
        targets, frames, counts = host_labels(7, "padded")
        x = logits(cupy, 7)
        expected = anew(plan, (x, targets.copy(), frames.copy(), counts.copy()))[0]
        ((state, _),) = plan._sessions["cuda"]._states._kept.values()
        result = plan(x, targets, frames, counts)
        held = bytes(state._staged)
        targets[...], frames[...], counts[...] = 1, 0, 0
        assert bytes(state._staged) == held
        same(cupy, result, expected)


@pytest.mark.parametrize("way", ["start", "start_with"])
def test_from_within_a_call(cupy, way):
    """As a signal's handler may."""
    warm = warm_checked if way == "start" else warm_host

    def given(key):
        return arrays(cupy, key) if way == "start" else (logits(cupy, key), *host_labels(key, "lists"))

    with CTCLoss(engine="cuda") as plan:
        warm(plan, cupy)
        expected, of_inner = anew(plan, given(7))[0], anew(plan, given(8))[0]
        ((state, _),) = plan._sessions["cuda"]._states._kept.values()
        heard, start = [], getattr(state, way)

        def interrupted(*arguments, **options):
            if not heard:
                heard.append(None)
                heard[0] = plan(*given(8))
            return start(*arguments, **options)

        setattr(state, way, interrupted)
        same(cupy, plan(*given(7)), expected)
        same(cupy, heard[0], of_inner)


def test_any_order_of_calls(cupy):
    rng = np.random.default_rng([SEED, 142])
    forms = ["lists", "lists and frames", "one row", "negatives", "padded", "device", "lengths of the host"]
    with CTCLoss(engine="cuda", reduction="batch_mean", zero_infinity=True) as plan:
        for number in range(80):
            key, form = 1000 + number, forms[rng.integers(len(forms))]
            if form in ("device", "lengths of the host"):
                given = arrays(cupy, key)
                given[3] = given[3] if form == "device" else cupy.asnumpy(given[3])
            else:
                given = logits(cupy, key), *host_labels(key, form, int(rng.integers(1, 4)))
            both, alone = anew(plan, given)
            if rng.integers(3):
                same(cupy, plan(*given), both)
            else:
                same(cupy, (plan.loss(*given),), (alone,))
