"""A fault planted in the kernels is seen, and sanitizers see none in them as they stand."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import emulated
import fake_cupy
import numpy as np
import planted
import pytest

from ctcbind.cuda import kernels
from ctcbind.cuda import layout as layouts

pytest_plugins = ["emulated_fixture"]


@pytest.fixture
def small(cupy, monkeypatch):
    planted.lay_out_small(monkeypatch)
    for name in planted.ROWS["lane"]:
        monkeypatch.setattr(layouts, name, getattr(layouts, name))
    monkeypatch.setattr(fake_cupy, "rubbish", fake_cupy.rubbish)
    yield
    monkeypatch.undo()
    layouts.plan_layout.cache_clear()


def first_fault():
    for (case, rows), turns, rubbish in itertools.product(planted.cases(), range(4), (0xFF, 0x7F)):
        emulated.turns[0] = turns
        fake_cupy.rubbish = itertools.repeat(rubbish)  # else what memory holds hangs on the tests before
        try:
            planted.run(case, rows)
        except (AssertionError, emulated.LaunchFailed) as error:
            return error
    return None


@pytest.mark.parametrize("ways", [1, 2])
def test_there_is_no_fault_in_the_kernels_as_they_stand(small, monkeypatch, ways):
    planted.lay_out_small(monkeypatch, ways)
    assert first_fault() is None
    assert len(planted.BARRIERS) > 5


@pytest.mark.parametrize("barrier", range(len(planted.BARRIERS)), ids=planted.name_of)
def test_no_barrier_can_be_taken_away(small, monkeypatch, barrier):
    if barrier == planted.barrier_before("/* the number */"):  # then blocks are of samples that are not there
        script = [sys.executable, str(emulated.HERE / "planted.py"), str(barrier)]
        assert subprocess.run(script, capture_output=True, check=False, timeout=300).returncode
        return
    monkeypatch.setattr(kernels, "part", planted.without(barrier))
    assert first_fault() is not None


MISSED = "threads meet at __s.* and at __s|deadlock"


@pytest.mark.parametrize(
    ("was", "now", "case"),
    [
        ("__syncthreads(); /* rings", "if (warp) __syncthreads(); /* rings", 0),
        ("if (last) label.store(told + done + r);", "if (last) label.store(told + done + r), __syncwarp();", 0),
        ("if (tells) behind_it.tell(told + slot, left);", "(void)tells;", 3),
        ("if (tells) behind_it.tell(told + slot, left);", "if (tells && turn) behind_it.tell(told + slot, left);", 3),
    ],
)
def test_what_some_threads_wait_for_in_vain_ends_the_launch(small, monkeypatch, was, now, case):
    text = kernels.part("lattice")
    assert was in text
    monkeypatch.setattr(kernels, "part", planted.replaced("lattice", text.replace(was, now)))
    with pytest.raises(emulated.LaunchFailed, match=MISSED):
        planted.run(*planted.few()[case])


def test_shared_memory_past_what_was_asked_for_is_seen_by_the_sanitizer():
    """So that the clean run beside it means something."""
    done = sanitized("address", "undefined", script=OVERRUN)
    assert "heap-buffer-overflow" in done.stderr, done.stderr


OVERRUN = """
import emulated, planted
from ctcbind.cuda import kernels
text = kernels.part("gradient").replace("sums[i] = 0;", "sums[i + 8] = 0;")
kernels.part = planted.replaced("gradient", text)
emulated.install()
planted.lay_out_small()
planted.run(*planted.few()[2])
"""


def test_an_array_of_the_workspace_that_is_too_short_is_seen_by_the_sanitizer():
    """Likewise: the next array begins elsewhere there."""
    done = sanitized("address", "undefined", script=SHORT)
    assert "heap-buffer-overflow" in done.stderr, done.stderr


SHORT = """
import dataclasses
import emulated, planted
from ctcbind.cuda import launch
plan = launch.plan_layout

def short(*batch):  # of one measure, four numbers, all but the last
    found, ends = plan(*batch), False
    offsets = {}
    for name, begin in found.offsets.items():
        offsets[name] = begin - 4 * ends
        ends |= name == "measures"
    return dataclasses.replace(found, offsets=offsets, size=found.size - 4)

emulated.install()
planted.lay_out_small()
planted.lay_arrays_apart()
launch.plan_layout = short
planted.run(*planted.few()[2])
"""


def sanitized(*names, script=None, arguments=(), threads=False):
    """The batches of planted.py in a process with these sanitizers."""
    runtimes = []
    for name in names:
        runtime = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}[name]
        found = subprocess.run(
            ["g++", f"-print-file-name={runtime}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        if not os.path.isabs(found):
            pytest.skip(f"this g++ has no {runtime}")
        runtimes.append(found)
    flags = ["-fsanitize=" + ",".join(names), *(["-DEMULATE_BY_THREADS", "-pthread"] if threads else [])]
    if "undefined" in names:
        flags.append("-fno-sanitize-recover=undefined")
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(runtimes),
        "CTCBIND_EMULATED_FLAGS": " ".join(flags),
        "ASAN_OPTIONS": "detect_leaks=0,detect_stack_use_after_return=0",
        "TSAN_OPTIONS": "exitcode=66",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(emulated.HERE), str(emulated.HERE.parent)]),
    }
    # ThreadSanitizer knows where programs lie in memory only without address space randomisation
    command = [setarch, "-R"] if threads and (setarch := shutil.which("setarch")) else []
    command += [sys.executable, *(["-c", script] if script else [str(emulated.HERE / "planted.py"), *arguments])]
    away = Path(sys.executable).parent  # from the source tree, so that the installed one runs
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300, cwd=away)


def test_address_and_undefined_behaviour_sanitizers_see_nothing():
    done = sanitized("address", "undefined")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("apart", [False, True])
def test_thread_sanitizer_sees_no_race(apart):
    """Nor between blocks, three of which run at once."""
    done = sanitized("thread", threads=True, arguments=["few", "apart"] if apart else ["few"])
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot start here: " + done.stderr.partition("\n")[0])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_thread_sanitizer_sees_the_race_where_blocks_do_not_wait_for_each_other():
    """Where each direction has a block of its own, and does both halves of its way in one launch."""
    done = sanitized("thread", threads=True, script=IN_ONE_LAUNCH)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot start here: " + done.stderr.partition("\n")[0])
    assert "data race" in done.stderr


IN_ONE_LAUNCH = """
import emulated, planted
from ctcbind.cuda import kernels
text = kernels.part("lattice")
assert "CTC_WAYS == 2 || part == 1" in text
kernels.part = planted.replaced("lattice", text.replace("CTC_WAYS == 2 || part == 1", "CTC_WAYS == 2 || part == 2"))
emulated.install()
planted.lay_out_small(ways=1)
planted.run(*planted.few()[0])
"""


def test_an_order_of_blocks_is_not_to_be_relied_on(cupy):
    """The emulator begins with the first only where its threads take turns from first to last."""
    chain = """
extern "C" __global__ void ctc_chain(const Problem p)
{
    int n = (int)blockIdx.x;
    if (threadIdx.x == 0) p.clean[n] = n ? p.clean[n - 1] + 1 : 0;
}
"""
    module = kernels.batch_module("float32")
    launch = emulated.RawModule(code=module.source + chain, options=module.options).get_function("ctc_chain")
    found = []
    for emulated.turns[0] in range(4):
        clean = np.zeros(30, np.int32)
        launch((30,), (64,), (kernels.as_argument(kernels.PROBLEM | {"clean": clean.ctypes.data}),))
        found.append(clean.tolist() == list(range(30)))
    assert found == [True, False, False, False]


def test_strips_do_not_go_by_the_numbers_of_their_blocks(small, monkeypatch):
    """A device may begin with any block, and with no other before that one ends."""
    text, ticket = kernels.part("lattice"), "(int)atomicAdd(p.tickets + part - 1, 1u)"
    assert ticket in text
    emulated.turns[0] = 1
    monkeypatch.setattr(kernels, "part", planted.replaced("lattice", text.replace(ticket, "(int)blockIdx.x")))
    with pytest.raises(emulated.LaunchFailed, match="deadlock"):
        planted.run(*planted.few()[3])


def test_thread_sanitizer_sees_the_race_where_a_barrier_is_gone():
    rings = planted.barrier_before("/* rings")
    done = sanitized("thread", threads=True, arguments=["few", str(rings)])
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot start here: " + done.stderr.partition("\n")[0])
    assert "data race" in done.stderr


@pytest.mark.parametrize("defines", [[], ["-DOTHERS"]], ids=["its own kernels", "CuPy's"])
def test_the_stand_in_for_a_device_compiles(defines, tmp_path):
    """tools/check_cupy.sh puts it before each kernel, and nothing else here does; CUDA's headers are empty here."""
    if shutil.which("g++") is None:
        pytest.skip("no g++")
    for name in ("cuda_bf16.h", "cuda_fp16.h", "cuda_runtime.h"):
        (tmp_path / name).touch()
    header = Path(__file__).parents[1] / "fake_cuda" / "kernels.h"
    command = ["g++", "-std=c++17", "-fsyntax-only", "-w", *defines, f"-I{tmp_path}", "-x", "c++", str(header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
