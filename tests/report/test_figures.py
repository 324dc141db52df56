"""The figures: what is drawn, how the spread is drawn, and what says too little to be drawn."""

from __future__ import annotations

import re

import numpy as np
import pytest

from afec.cli import main
from afec.report.chart import Bars, Heat, Lines, Trace
from afec.report.figures import ALL_ZERO, FIGURES, ONE_ROW, ONE_TASK, SINGLE_RUNS, TWO_POINTS, _figure, figures_of
from afec.report.plot import _lines, new_drawing
from afec.report.rows import ordered
from afec.report.rows import rows_of as read_rows
from afec.report.svg import draw
from written_runs import learned, written


def rows_of(root, methods, seeds, tasks):
    """The rows of written runs; each method is a little better than the one before it, and so is each seed."""
    runs = [
        written(
            root, method, seed, learned(tasks, 0.5 + 0.03 * place, 0.01 * seed), (4,) * tasks, (0,) * tasks, "digits"
        )
        for place, method in enumerate(methods)
        for seed in range(seeds)
    ]
    return ordered(read_rows(runs))


def missing(rows):
    """Why figures are not drawn, by the figure."""
    return {figure.key: figure.missing for figure in figures_of(rows) if figure.missing}


def test_one_task_has_no_course_to_draw(tmp_path):
    found = missing(rows_of(tmp_path, ("finetune", "ewc"), 2, 1))
    assert {key: found[key] for key in ("accuracy", "new-tasks", "matrix")} == dict.fromkeys(
        ("accuracy", "new-tasks", "matrix"), ONE_TASK
    )


def test_one_row_has_nothing_to_be_compared_with(tmp_path):
    found = missing(rows_of(tmp_path, ("ewc",), 3, 5))
    assert (found["transfer"], found["trade-off"]) == (ONE_ROW, ONE_ROW)
    assert "accuracy" not in found  # what it forgets is seen in one row too
    assert "matrix" not in found


def test_one_seed_of_each_method_is_not_compared_in_a_picture(tmp_path):
    rows = rows_of(tmp_path, ("finetune", "ewc"), 1, 5)
    found = missing(rows)
    assert (found["transfer"], found["trade-off"]) == (SINGLE_RUNS, SINGLE_RUNS)
    figure = FIGURES["accuracy"](rows)
    assert figure.caption.endswith("One seed: the spread over seeds is not known.")
    assert "Bands" not in figure.caption
    more = rows_of(tmp_path / "more", ("finetune", "ewc"), 2, 5)
    assert not {"transfer", "trade-off"} & set(missing(more))


def test_a_line_needs_more_than_two_points(tmp_path):
    assert missing(rows_of(tmp_path / "one", ("ewc",), 1, 2))["accuracy"] == TWO_POINTS
    assert "accuracy" not in missing(rows_of(tmp_path / "two", ("finetune", "ewc"), 1, 2))


def test_a_panel_that_is_zero_for_every_row_is_left_out_and_named(tmp_path):
    figure = FIGURES["transfer"](rows_of(tmp_path, ("finetune", "ewc"), 2, 5))
    assert [chart.title for chart in figure.charts] == ["BWT"]
    assert figure.caption.endswith(f"Not drawn, because {ALL_ZERO}: FWT, zero-shot (the paper's formula).")


def test_a_figure_that_is_not_drawn_leaves_a_sentence_and_no_frame(tmp_path):
    rows_of(tmp_path / "runs", ("ewc",), 1, 1)
    out = tmp_path / "r.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(out), "--no-pictures"]) == 0
    text = out.read_text(encoding="utf-8")
    assert "<figure" not in text
    assert f"<strong>AAC over the tasks so far:</strong> {ONE_TASK}." in text


def test_a_figure_with_too_little_is_refused_as_a_file_with_the_reason(tmp_path, capsys):
    rows_of(tmp_path / "runs", ("ewc",), 1, 1)
    out = tmp_path / "accuracy.png"
    assert main(["report", str(tmp_path / "runs"), "--figure", "accuracy", "-o", str(out)]) == 2
    assert ONE_TASK in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


METHODS = ("finetune", "ewc", "mas", "si")


@pytest.mark.parametrize("number", [3, 4])
def test_more_than_three_bands_become_error_bars(number, tmp_path):
    figure = FIGURES["accuracy"](rows_of(tmp_path, METHODS[:number], 2, 5))
    drawn = draw(figure.charts[0])
    assert drawn.count('class="line"') == number
    assert drawn.count('class="band"') == (number if number < 4 else 0)
    assert drawn.count('class="arm"') == (number if number > 3 else 0)
    assert ("Bands: ±" in figure.caption, "Error bars: ±" in figure.caption) == (number < 4, number > 3)


def chart_of(number, points=5, spread=2.0):
    x = tuple(float(k + 1) for k in range(points))
    every = [Trace(f"m{k}", k, x, (50.0 + k,) * points, (spread,) * points, 3) for k in range(number)]
    return Lines("t", "task", "accuracy", tuple(every))


def test_rows_without_a_spread_are_no_bands():
    assert not chart_of(6, spread=float("nan")).error_bars
    assert chart_of(6).error_bars


def test_error_bars_stand_beside_each_other_and_are_as_high_as_the_spread():
    drawn = draw(chart_of(4))
    bars = [re.findall(r"M([\d.]+) ([\d.]+)V([\d.]+)", d) for d in re.findall(r'd="([^"]*)" class="arm"', drawn)]
    assert [len(one) for one in bars] == [5] * 4
    first = [float(one[0][0]) for one in bars]
    assert np.diff(first) == pytest.approx([4.0] * 3, abs=0.11)  # of places that are written with one digit
    # The axis goes from 48 to 55 with air of 6 % at both ends, over 236 units; a bar is 2 × 2 points high.
    high = [float(low) - float(top) for one in bars for _, low, top in one]
    assert high == pytest.approx([236 * 4 / (7 * 1.12)] * 20, abs=0.11)


def test_offsets_are_centred_and_stay_between_two_points():
    assert chart_of(3).offsets(400) == [0.0] * 3
    for number, points in ((4, 5), (12, 20), (12, 50)):
        found = chart_of(number, points).offsets(400)
        assert sum(found) == pytest.approx(0)
        assert found[-1] - found[0] < 400 / points


def test_a_file_has_error_bars_too():
    for number in (3, 4):
        axes = new_drawing(5, 4).subplots()
        _lines(axes, chart_of(number))
        kinds = [type(one).__name__ for one in axes.collections]
        assert kinds == (["LineCollection"] * 4 if number > 3 else [kinds[0]] * 3)
        assert ("LineCollection" in kinds) == (number > 3)


def test_numbers_of_an_axis_do_not_run_into_its_name():
    """Long numbers get room: they end left of the axis and begin right of its name, in the largest type of 15 units."""
    x = (1.0, 2.0)
    drawn = draw(Lines("t", "task", "accuracy", (Trace("m", 0, x, (49.1, 50.2), (0.1, 0.1), 2),)))
    numbers = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([\d.]+)<', drawn)
    assert max(len(text) for _, text in numbers) >= 4
    for end, text in numbers:
        assert float(end) - 15 * 0.6 * (len(text) - 0.5) > 16 + 15 * 0.3  # a point is half as wide as a digit


def test_colours_are_of_one_method_each_in_a_figure_of_several_regularisers(tmp_path):
    runs = []
    for term in ("ewc", "mas"):
        for strength in (10, 100, 1000):
            for seed in (0, 1):
                matrix, chosen = learned(3, 0.5, 0.01 * seed), {term: {"strength": strength}}
                runs.append(written(tmp_path, term, seed, matrix, (4,) * 3, (0,) * 3, "digits", method=chosen))
    for key in ("strength", "trade-off"):
        legend = FIGURES[key](ordered(read_rows(runs))).legend
        assert {label for label, _, _ in legend} == {"ewc", "mas"}
        assert len({colour for _, colour, _ in legend}) == 2


def test_what_is_worth_drawing_is_drawn():
    one = Trace("a", 0, (0,), (1.0,), (0.1,), 2)
    two = Trace("b", 1, (0,), (0.0,), (0.1,), 2)
    assert not _figure("cost", "t", "", Bars("b", "s", (one, two))).missing
    assert not _figure(
        "matrix", "t", "", Heat("h", np.ones((3, 2)), ("a", "b"), 1, "accuracy in %", " %", (0, 100))
    ).missing
