"""How many threads there are by default: the processors that the process may use, and its container's limit of them."""

from __future__ import annotations

import os

import pytest

import ctcbind
from ctcbind import processors


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes this a machine with so many processors, whose control groups are these files."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CTCBIND_NUM_THREADS", raising=False)

    def make(available, own, files):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(available)), raising=False)
        (tmp_path / "own").write_bytes(own)
        for name, content in files.items():
            path = tmp_path / "groups" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    monkeypatch.setattr(processors, "_OWN", tmp_path / "own")
    monkeypatch.setattr(processors, "_GROUPS", tmp_path / "groups")
    processors._limit.cache_clear()
    yield make
    processors._limit.cache_clear()


VERSION_1 = b"3:memory:/docker/c0\n2:cpu,cpuacct:/docker/c0\n1:name=systemd:/docker/c0\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        pytest.param(b"0::/\n", {"cpu.max": b"200000 100000\n"}, 2, id="docker run --cpus=2"),
        pytest.param(b"0::/\n", {"cpu.max": b"250000 100000\n"}, 3, id="a part counts as one"),
        pytest.param(b"0::/\n", {"cpu.max": b"1000 100000\n"}, 1, id="at least one"),
        pytest.param(b"0::/\n", {"cpu.max": b"900000 100000\n"}, 8, id="more than there are"),
        pytest.param(b"0::/\n", {"cpu.max": b"max 100000\n"}, 8, id="no limit"),
        pytest.param(b"0::/a/b\n", {"a/b/cpu.max": b"max 100000\n", "a/cpu.max": b"60000 20000"}, 3, id="further up"),
        pytest.param(b"0::/a/b\n", {"a/b/cpu.max": b"20000 10000\n", "a/cpu.max": b"5 1"}, 2, id="the least"),
        pytest.param(b"0::/a/b\n", {"a/c/cpu.max": b"20000 10000\n"}, 8, id="another group's"),
        pytest.param(b"0::/../b c\n", {"cpu.max": b"20000 10000\n"}, 2, id="beside the container's own"),
        pytest.param(b"0::/host/name\n", {"cpu.max": b"30000 10000\n"}, 3, id="a name from outside"),
        pytest.param(
            VERSION_1,
            {"cpu/docker/c0/cpu.cfs_quota_us": b"400000\n", "cpu/docker/c0/cpu.cfs_period_us": b"100000\n"},
            4,
            id="version 1",
        ),
        pytest.param(
            VERSION_1,
            {"cpu/cpu.cfs_quota_us": b"400000\n", "cpu/cpu.cfs_period_us": b"100000\n"},
            4,
            id="version 1 in a container",
        ),
        pytest.param(
            VERSION_1,
            {"cpu/docker/c0/cpu.cfs_quota_us": b"-1\n", "cpu/docker/c0/cpu.cfs_period_us": b"100000\n"},
            8,
            id="version 1 without a limit",
        ),
        pytest.param(VERSION_1, {"cpu/docker/c0/cpu.cfs_quota_us": b"400000\n"}, 8, id="version 1 in part"),
        pytest.param(
            b"2:cpuset:/other\n1:cpuacct,cpu:/docker/c0\n",
            {
                "cpu/other/cpu.cfs_quota_us": b"100000\n",
                "cpu/other/cpu.cfs_period_us": b"100000\n",
                "cpu/docker/c0/cpu.cfs_quota_us": b"400000\n",
                "cpu/docker/c0/cpu.cfs_period_us": b"100000\n",
            },
            4,
            id="version 1 of another controller whose name begins alike",
        ),
        pytest.param(b"0::/\n", {"cpu.max": b"100000 0\n"}, 8, id="a period that is none"),
        pytest.param(b"0::/\n", {"cpu.max": b"\xff 100000\n"}, 8, id="a limit that is no text"),
        pytest.param(b"", {"cpu.max": b"200000 100000\n"}, 8, id="no group"),
        pytest.param(b"0\n0:\n\xff::\n", {"cpu.max": b"200000 100000\n"}, 8, id="what no kernel writes"),
        pytest.param(b"0::/\n", {"cpu.max": b"0 0\n"}, 8, id="a limit that is none"),
        pytest.param(b"0::/\n", {"cpu.max": b"2 1 1\n"}, 8, id="a limit of another form"),
    ],
)
def test_the_limit_of_a_container(machine, own, files, expected):
    machine(8, own, files)
    assert ctcbind.get_num_threads() == expected


def test_the_least_of_affinity_limit_and_variable(machine, monkeypatch):
    machine(8, b"0::/\n", {"cpu.max": b"500000 100000\n"})
    assert ctcbind.get_num_threads() == 5
    machine(3, b"", {})  # the limit is read once; what threads may run on may change
    assert ctcbind.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert ctcbind.get_num_threads() == 2
    monkeypatch.setenv("CTCBIND_NUM_THREADS", "7")  # said in so many words
    assert ctcbind.get_num_threads() == 7


def test_no_groups_at_all(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "_OWN", tmp_path / "nowhere")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert ctcbind.get_num_threads() == 8
