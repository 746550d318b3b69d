"""The experiments on cuDNN, each on record in the folder of --gpu-record; see docs/gpu/README.md.

What cuDNN does is not judged here: a test passes when every variant of its experiment has answered, or died in a way
that is on record.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import recording
from experiments import EXPERIMENTS


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_on_record(name, pytestconfig):
    entry = recording.record(name)
    folder = pytestconfig.getoption("--gpu-record")
    if folder:
        recording.write(Path(folder), entry)
    else:
        print(json.dumps(entry))
    recording.check(entry)


def test_each_question_is_asked():
    """E1 to E25, some in several parts."""
    assert {int(name[1:].rstrip("abc")) for name in EXPERIMENTS} == set(range(1, 26))
    for each in EXPERIMENTS.values():
        assert each.question.endswith("?") or "?" in each.question
        assert each.believed
        assert each.variants
