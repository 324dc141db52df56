"""Means, paired differences by hand, and the picture."""

import math

import numpy as np
import pytest

from afec.report import Panel, draw_circles, mean_and_std, paired


def test_mean_and_sample_deviation():
    assert mean_and_std([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    mean, std = mean_and_std([4.0])
    assert mean == 4.0
    assert math.isnan(std)


def test_paired_difference_by_hand():
    found = paired([3.0, 5.0, 4.0], [1.0, 5.0, 3.0])  # differences 2, 0, 1
    assert found.mean == pytest.approx(1.0)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)  # Student's t, two degrees of freedom
    assert (found.won, found.pairs) == (2, 3)  # a draw is not won
    assert not found.distinguishable


def test_a_clear_difference_is_called_one():
    assert paired([1.0, 1.1, 0.9], [0.0, 0.0, 0.0]).distinguishable


def test_one_pair_claims_nothing():
    found = paired([1.0], [0.0])
    assert found.mean == 1.0
    assert math.isnan(found.error)
    assert not found.distinguishable


def test_pairs_must_match():
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


def panel():
    rng = np.random.default_rng(0)
    targets = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    return Panel(rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 2, 20), targets, accuracy=0.5)


def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "new" / "circles.png"
    draw_circles(path, [("old task", [panel(), panel()]), ("new task", [panel(), panel()])], ["a", "b"], "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_row_of_the_wrong_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="row 'old task' has 1 panels for 2 columns"):
        draw_circles(tmp_path / "x.png", [("old task", [panel()])], ["a", "b"], "title")
    assert not (tmp_path / "x.png").exists()
