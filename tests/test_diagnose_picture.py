"""The picture of a diagnosis: where the labels lie, of the samples that findings name, in little memory."""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np
import pytest
from batches import SEED
from beyond import run_script
from good_batches import good

from ctcbind.engines.reference import forward_backward, log_softmax
from ctcbind.patient import Patient


def test_the_picture_shows_where_the_labels_lie(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    from ctcbind.plot_diagnosis import draw

    shown: list[np.ndarray] = []
    monkeypatch.setattr(Axes, "imshow", lambda self, array, **_: shown.append(array))
    x = np.random.default_rng([SEED, 22]).normal(size=(9, 3, 4))
    x[:4, 1, 1:] = -1e300  # no path for label 2 at these frames
    labels, frames = [[1, 1, 3], [2, 3], [1, 2] * 9], np.array([9, 7, 9])
    for topology in ("ctc", "simple"):
        shown.clear()
        draw(Patient(x, labels, frames, 0, topology, "float64"), tmp_path / "out.png")
        for n, occupancy in enumerate(shown[:2]):
            log_y, row = log_softmax(x[: frames[n], n]), np.array(labels[n], np.int32)
            _, right = forward_backward(log_y, row, 0, merge_repeats=topology == "ctc")
            np.testing.assert_allclose(occupancy, right[:, sorted(set(labels[n]))].T, rtol=0, atol=1e-12)
        assert not shown[2].any(), "there is no path"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the peak of this process from the kernel")
def test_the_picture_of_a_long_sample_takes_no_table_of_states():
    """4000 frames of 1501 states would be 48 MB a table."""
    pytest.importorskip("matplotlib")
    script = """
        import numpy as np
        from ctcbind.patient import Patient
        from ctcbind.plot_diagnosis import draw
        def picture(T, L):
            x = np.random.default_rng(0).normal(size=(T, 1, 5))
            draw(Patient(x, [[1, 2, 3] * (L // 3)], np.array([T]), 0, "ctc", "float64"), "out.png")
        picture(100, 9)
        before = peak()
        picture(4000, 750)
        print(peak() - before)
    """
    (grown,) = run_script(script)
    assert grown < 40e6


def test_the_picture_shows_the_samples_of_the_findings(tmp_path):
    pytest.importorskip("matplotlib")
    from ctcbind.plot_diagnosis import draw

    given = good(SEED, "trained", size=(60, 30, 8), plain=True)
    options = {"blank": 0, "layout": "TNC", "topology": "ctc", "engine": "auto", "history": None}

    def drawn() -> list[int]:
        arrays = given["logits"], given["targets"], given["input_lengths"], None
        return draw(import_module("ctcbind.diagnose_batch").examine(*arrays, **options)[1], tmp_path / "out.png")

    assert drawn() == [0, 1, 2, 3]
    given["logits"][5, [20, 21], 3] = np.nan
    assert drawn() == [20, 21, 0, 1]
    given["targets"][25] = [1, 2] * 40
    assert drawn()[:2] in ([20, 25], [25, 20])
    assert len(drawn()) == 4
