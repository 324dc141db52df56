"""Accuracy against total compute, tuning included, and the mean over decades of λ."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afec.cli import main
from afec.report.decade_table import decade_table, mean_over_decades
from afec.report.figures import FIGURES, series_of
from afec.report.rows import ordered, rows_of
from afec.report.total_compute import total_compute
from written_runs import written


def matrix(accuracy):
    return [[0.1, 0.1], [0.8, 0.2], [accuracy, accuracy]]


def strength(value):
    return {"method": {"ewc": {"strength": value}}}


def tuned(root):
    """finetune, ewc, ewc+afec and ewc at `auto` with two seeds each, and the trials of both searches."""
    found = []
    for seed in (0, 1):
        found.append(written(root, "finetune", seed, matrix(0.5)))  # 800 samples
        found.append(written(root, "ewc", seed, matrix(0.6), epochs=(4, 6)))  # 1,000
        found.append(written(root, "ewc", seed, matrix(0.6), epochs=(4, 8), **strength("auto")))  # 1,200
        found.append(written(root, "ewc+afec", seed, matrix(0.7), theta_e=(0, 5)))  # 1,300
    for value, epochs in ((3, 5), (30, 7)):  # 900 and 1,100
        for seed in (100, 101):
            written(root / "tuning", "ewc", seed, matrix(0.5), epochs=(4, epochs), **strength(value))
    written(root / "tuning", "ewc+afec", 100, matrix(0.5), theta_e=(0, 6))  # 1,400
    written(root / "tuning", "ewc@equal-compute", 100, matrix(0.5))  # of another row
    written(root / "tuning", "ewc", 100, matrix(0.5), net={"features": 7})  # of another net
    written(root / "tuning", "mas", 100, matrix(0.5))
    return found


def test_the_search_is_counted_trial_by_trial(tmp_path):
    costs = {row.label: total_compute(row) for row in rows_of(tuned(tmp_path))}
    assert {label: (cost.training, cost.search, cost.trials) for label, cost in costs.items()} == {
        "finetune": (800, 0, 0),
        "ewc (λ=30)": (1000, 2000, 2),
        "ewc (λ=auto)": (1200, 0, 0),
        "ewc+afec (λ=30, λ_e=0.1)": (1300, 2000 + 1400, 3),
    }
    assert costs["ewc (λ=30)"].samples == 3000


def test_the_figure_has_one_training_and_all_of_it_relative_to_finetune(tmp_path):
    figure = FIGURES["compute"](ordered(rows_of(tuned(tmp_path))))
    alone, whole = figure.charts
    assert {t.label: (t.x[0], t.y[0]) for t in alone.traces}["ewc (λ=30)"] == (1000 / 800, pytest.approx(60))
    x = {trace.label: trace.x[0] for trace in whole.traces}
    assert x["ewc (λ=30)"] == 3000 / 800
    assert x["ewc (λ=auto)"] == 1200 / 800
    assert x["ewc+afec (λ=30, λ_e=0.1)"] == 4700 / 800


def test_rows_whose_trials_are_not_there_are_said_and_not_drawn_as_if_they_were_free(tmp_path):
    runs = [written(tmp_path, name, seed, matrix(0.5)) for name in ("finetune", "ewc", "mas") for seed in (0, 1)]
    figure = FIGURES["compute"](rows_of(runs))
    assert "no trials are beside the runs: ewc (λ=30), mas" in figure.caption
    assert FIGURES["compute"](rows_of(runs[2:])).missing.startswith("there is no `finetune` run")


def test_the_figure_as_a_user_asks_for_it(tmp_path):
    tuned(tmp_path / "runs")
    out = tmp_path / "compute.png"
    assert main(["report", str(tmp_path / "runs"), "--figure", "compute", "-o", str(out)]) == 0
    assert out.stat().st_size > 1000
    one = [
        written(tmp_path / "one", name, 0, matrix(0.5)) for name in ("finetune", "ewc")
    ]  # a study at `smoke` has one seed
    assert FIGURES["compute"](rows_of(one)).missing == ""


# -- decades --------------------------------------------------------------------------------------------------------


def test_the_mean_over_decades_by_hand():
    """From 1 to 10 the mean of .4 and .6, from 10 to 1000 that of .6 and .9, which are two decades: (.5 + 2·.75)/3."""
    assert mean_over_decades({1: 0.4, 10: 0.6, 1000: 0.9}) == pytest.approx((0.5 + 2 * 0.75) / 3)
    with pytest.raises(ValueError, match="two strengths at least"):
        mean_over_decades({1: 0.4})


@given(st.dictionaries(st.floats(1e-3, 1e6), st.floats(0, 1), min_size=2, max_size=6))
def test_it_is_between_the_worst_and_the_best_and_a_constant_is_its_own_mean(scores):
    if math.log10(max(scores) / min(scores)) < 1e-6:
        return
    found = mean_over_decades(scores)
    assert min(scores.values()) - 1e-9 <= found <= max(scores.values()) + 1e-9
    assert mean_over_decades(dict.fromkeys(scores, 0.25)) == pytest.approx(0.25)


def grid(root, values):
    every = {"ewc": 0.0, "ewc+recycle": 0.1}
    return [
        written(root, method, seed, matrix(0.5 + more + 0.1 * place + 0.02 * seed), **strength(value))
        for method, more in every.items()
        for place, value in enumerate(values)
        for seed in (0, 1)
    ]


def test_the_table_has_a_line_for_each_method_of_a_wide_grid(tmp_path):
    table = decade_table(rows_of(grid(tmp_path, (1, 10, 100))), "here")
    assert [[str(cell) for cell in line] for line in table.rows] == [
        ["ewc", "1 to 100", "61.0 ± 1.4", "51.0 (λ=1)", "71.0 (λ=100)", "2"],
        ["ewc+recycle", "1 to 100", "71.0 ± 1.4", "61.0 (λ=1)", "81.0 (λ=100)", "2"],
    ]
    assert decade_table(rows_of(grid(tmp_path / "narrow", (1, 10))), "here") is None


def test_a_strength_of_auto_is_no_point_of_a_curve(tmp_path):
    runs = [*grid(tmp_path, (1, 100)), written(tmp_path, "ewc", 0, matrix(0.5), **strength("auto"))]
    assert [sorted(one.points) for one in series_of(rows_of(runs))["ewc"]] == [[1, 100], [1, 100]]
