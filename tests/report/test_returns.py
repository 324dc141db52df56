"""Figures of games: evaluations as they stand in the run, and the paper's measure by hand."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from afec.experiments.games import CURVE
from afec.report.returns import accumulated_figure, evaluations_of, has_evaluations, learning_figure

TEXT = (
    "game,update,steps,evaluated,return\n1,2,20,1,{a}\n1,4,40,1,4\n2,2,20,1,3\n2,2,20,2,10\n2,4,40,1,1\n2,4,40,2,{b}\n"
)


def row(folder, method, *texts):
    readings = []
    for seed, text in enumerate(texts):
        path = folder / method / f"seed{seed}"
        path.mkdir(parents=True)
        if text is not None:
            (path / CURVE).write_text(text)
        readings.append(SimpleNamespace(run=SimpleNamespace(path=path), names=("one", "two")))
    config = SimpleNamespace(method=method, variant="", reference=method == "scratch")
    return SimpleNamespace(config=config, label=method, every_reading=readings)


def test_evaluations_are_rows_and_games_columns(tmp_path):
    found = evaluations_of(row(tmp_path, "ewc", TEXT.format(a=2, b=20)).every_reading[0])
    nan = np.nan
    np.testing.assert_array_equal(found, [[2, nan], [4, nan], [3, 10], [1, 20]])


@pytest.mark.parametrize("text", ["", "game,update\n1,2\n", TEXT.format(a="x", b=1), "\x00", None])
def test_a_damaged_file_is_no_curve(tmp_path, text):
    assert evaluations_of(row(tmp_path, "ewc", text).every_reading[0]) is None


def test_the_accumulated_reward_is_normalised_by_the_mean_maximum_of_finetuning(tmp_path):
    rows = [
        row(tmp_path, "finetune", TEXT.format(a=2, b=20), TEXT.format(a=2, b=40)),
        row(tmp_path, "ewc", TEXT.format(a=8, b=15)),
    ]
    (chart,) = accumulated_figure(rows).charts
    ewc = chart.traces[1]
    assert ewc.y == pytest.approx((8 / 4, 4 / 4, 3 / 4 + 10 / 30, 1 / 4 + 15 / 30))  # maxima 4 and (20 + 40)/2
    assert ewc.seeds == 1
    free = chart.traces[0]
    assert free.y[-1] == pytest.approx(1 / 4 + (20 + 40) / 2 / 30)
    assert free.spread[-1] == pytest.approx(np.std([20 / 30, 40 / 30], ddof=1))


def test_each_game_has_a_chart_that_begins_where_it_is_learned(tmp_path):
    one, two = learning_figure([row(tmp_path, "ewc", TEXT.format(a=2, b=20))]).charts
    assert one.traces[0].x == (1, 2, 3, 4)
    assert two.traces[0].x == (3, 4)
    assert two.traces[0].y == (10, 20)


def test_what_is_missing_is_said(tmp_path):
    nothing = row(tmp_path / "a", "ewc", None)
    assert not has_evaluations([nothing])
    assert "training.evaluations" in learning_figure([nothing]).missing
    assert (
        "no finished run of `finetune`"
        in accumulated_figure([row(tmp_path / "b", "ewc", TEXT.format(a=2, b=20))]).missing
    )
    below = row(tmp_path / "c", "finetune", TEXT.format(a=2, b=20).replace(",10\n", ",-10\n").replace(",20\n", ",-2\n"))
    assert "0 or below" in accumulated_figure([below]).missing
