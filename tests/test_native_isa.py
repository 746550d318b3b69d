"""The native engine on each instruction set that this machine has, chosen by CTCBIND_ISA in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from batches import SEED

SETS = ("avx512", "avx2", "neon", "scalar")
TESTS = Path(__file__).resolve().parent

#: random batches of every dtype and topology against the reference; losses alone to the bit those with gradients
SCRIPT = """
    import json, sys
    sys.path.insert(0, sys.argv[1])
    from batches import random_case
    import ctcbind
    from ctcbind.bindings.native import instruction_set
    try:
        import ml_dtypes
        dtypes = ("float16", "bfloat16", "float32", "float64")
    except ImportError:
        dtypes = ("float16", "float32", "float64")
    seed, count = int(sys.argv[2]), 0
    sizes = (None, None, (33, 3, 17), (20, 2, 130), (70, 1, 600))
    for dtype in dtypes:
        for topology in ("ctc", "simple"):
            for i in range(30):
                case = random_case([seed, i], dtype=dtype, topology=topology, size=sizes[i % 5])
                result = ctcbind.ctc_loss_and_grad(*case.args, engine="native", **case.options)
                case.check(result, dtype, case.expected())
                alone = ctcbind.ctc_loss(*case.args, engine="native", **case.options)
                assert alone.tobytes() == result.loss.tobytes(), f"{case.name}: losses alone differ"
                count += 1
    print(json.dumps([instruction_set(), count, len(dtypes)]))
"""

READINGS = """
    import json
    from test_decode import DTYPES, check_greedy
    from ctcbind.bindings.native import instruction_set
    for seed in range(4):
        check_greedy(seed, DTYPES)
    print(json.dumps(instruction_set()))
"""

HUGE = """
    import numpy as np, ctcbind
    x = np.array([[[0.3, -1e12]], [[0.7, -1e12]]])
    print(-ctcbind.ctc_loss_and_grad(x, [[1]], engine="native").grad[0, 0, 1])
"""

#: logits that halves hold, in halves and in floats; how many gradients lie midway between two of bfloat16
ROUNDED = """
    import json, sys
    import ml_dtypes, numpy as np, ctcbind
    from ctcbind.bindings.native import instruction_set
    rng, ties = np.random.default_rng([int(sys.argv[1]), 12]), 0
    for T, N, C in ((60, 64, 300), (200, 100, 64)):
        for dtype in (ml_dtypes.bfloat16, np.float16):
            halves, targets = rng.normal(size=(T, N, C)).astype(dtype), rng.integers(1, C, size=(N, 9))
            found = ctcbind.ctc_loss_and_grad(halves, targets, engine="native")
            right = ctcbind.ctc_loss_and_grad(halves.astype(np.float32), targets, engine="native")
            np.testing.assert_array_equal(found.loss, right.loss)
            np.testing.assert_array_equal(found.grad.view(np.uint16), right.grad.astype(dtype).view(np.uint16))
            if dtype is not np.float16:
                ties += int(np.count_nonzero((right.grad.view(np.uint32) & 0x1FFFF) == 0x8000))
    print(json.dumps([instruction_set(), ties]))
"""

REFUSED = """
    import json, numpy as np, ctcbind
    info, said = ctcbind.engines()["native"], []
    for engine in ("native", "auto"):
        try:
            ctcbind.ctc_loss(np.zeros((2, 1, 3), np.float32), [[1]], engine=engine)
        except ctcbind.InvalidInput as error:
            said.append(str(error))
    for call in (lambda x: ctcbind.greedy_decode(x), lambda x: ctcbind.align(x, [[1]])):
        try:
            call(np.zeros((2, 1, 3)))
        except ctcbind.InvalidInput as error:
            said.append(str(error))
    print(json.dumps([info.available, info.reason, said]))
"""


def run(script, isa, *args):
    """The JSON that a script prints, in a folder of its own: -c looks for ctcbind in the working folder first."""
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(TESTS)]))
    environment = {**os.environ, "CTCBIND_ISA": isa, "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def available(isa):
    return run(
        "import json\nfrom ctcbind.bindings.native import instruction_set\nprint(json.dumps(instruction_set()))", isa
    )


@pytest.mark.parametrize("isa", SETS)
def test_random_batches_on_each_instruction_set(isa):
    if available(isa) is None:
        pytest.skip(f"this build and processor have no {isa}")
    used, count, dtypes = run(SCRIPT, isa, TESTS, SEED)
    assert used == isa
    assert count == 60 * dtypes >= 180


@pytest.mark.parametrize("isa", SETS)
def test_best_paths_on_each_instruction_set(isa):
    if available(isa) is None:
        pytest.skip(f"this build and processor have no {isa}")
    assert run(READINGS, isa) == isa


@pytest.mark.parametrize("isa", SETS)
def test_digits_of_a_huge_logit_on_each_instruction_set(isa):
    """A label may stand in either frame, at the same 1e12 nats, so that the frames' blanks decide."""
    if available(isa) is None:
        pytest.skip(f"this build and processor have no {isa}")
    share = run(HUGE, isa)
    assert abs(share - 1 / (1 + np.exp(0.3 - 0.7))) <= 4 * 2.0**-53  # rounded are an emission, a sum, a quotient, it


@pytest.mark.parametrize("isa", SETS)
def test_gradients_in_halves_are_those_in_floats_rounded_to_even(isa):
    if available(isa) is None:
        pytest.skip(f"this build and processor have no {isa}")
    pytest.importorskip("ml_dtypes")
    used, ties = run(ROUNDED, isa, SEED)
    assert used == isa
    assert ties  # that would be rounded up if it were not to even


@pytest.mark.parametrize(("isa", "count"), [("avx512", 32), ("avx2", 8)])
def test_tables_of_roots_hold_the_nearest_floats(isa, count):
    """An error in one of them would move only a part of the exponentials, and each by little."""
    source = (TESTS.parent / "csrc" / f"vec_{isa}.h").read_text(encoding="utf-8")
    found = re.findall(r"ROOT\((\d+), 0x([0-9a-f]{8})\)", source)
    assert [int(k) for k, _ in found] == list(range(count))
    bits = np.array([int(each, 16) for _, each in found], np.uint32)
    np.testing.assert_array_equal(bits.view(np.float32), (2.0 ** (np.arange(count) / count)).astype(np.float32))


def test_plain_c_is_everywhere():
    assert available("scalar") == "scalar"


def test_the_best_is_taken_where_none_is_named():
    best = next(isa for isa in SETS if available(isa))
    assert available("") == best


@pytest.mark.parametrize("wrong", ["avx1024", "AVX2", "none", "scalar "])
def test_a_wrong_name_is_refused_in_a_sentence(wrong):
    is_available, reason, said = run(REFUSED, wrong)
    assert not is_available
    assert f"CTCBIND_ISA is {wrong!r}" in reason
    assert "avx512, avx2, neon or scalar" in reason
    assert "unset it" in reason
    assert len(said) == 4, "all must end: another engine in its place would only be slow"
    assert all(f"CTCBIND_ISA is {wrong!r}" in each for each in said)
