"""Means, paired differences by hand, the table of a study, and the pictures."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from afec.lab import RunDirectory
from afec.report.circles import Panel, draw_circles
from afec.report.plot import new_drawing, save_drawing
from afec.report.rows import Row, rows_of
from afec.report.statistics import mean_and_std, number, paired_difference
from afec.report.study_figure import draw_study
from afec.report.study_tables import differences, results
from written_runs import after_two, with_weights, written


def test_mean_and_sample_deviation():
    assert mean_and_std([1.0, 3.0]) == (2.0, pytest.approx(math.sqrt(2)))
    mean, std = mean_and_std([4.0])
    assert mean == 4.0
    assert math.isnan(std)


def test_paired_difference_by_hand():
    found = paired_difference([3.0, 5.0, 4.0], [1.0, 5.0, 3.0])  # differences 2, 0, 1
    assert found.mean == pytest.approx(1.0)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)  # Student's t, two degrees of freedom
    assert (found.won, found.pairs) == (2, 3)  # a draw is not won
    assert not found.distinguishable


def test_a_clear_difference_is_called_one():
    assert paired_difference([1.0, 1.1, 0.9], [0.0, 0.0, 0.0]).distinguishable


def test_what_is_a_tie_but_for_rounding_is_not_won():
    found = paired_difference(
        [(0.089054 + 0.093383) / 2, 0.5], [(0.088435 + 0.094001) / 2, 0.4]
    )  # the same images in all, and more
    assert found.won == 1


def test_pairs_that_all_differ_by_the_same_claim_nothing():
    found = paired_difference([0.5, 0.6], [0.5003, 0.6003])
    assert not found.spreads
    assert not found.distinguishable


@pytest.mark.parametrize(
    ("value", "text"),
    [(-0.03, "−0.03"), (0.04, "+0.04"), (-0.0, "+0.0"), (1e-9, "+0.000"), (-0.3, "−0.3"), (0.0, "+0.0")],
)
def test_a_difference_that_is_not_zero_does_not_look_it(value, text):
    assert number(value, sign=True) == text


def test_one_pair_claims_nothing():
    found = paired_difference([1.0], [0.0])
    assert found.mean == 1.0
    assert math.isnan(found.error)
    assert not found.distinguishable


def test_pairs_must_match():
    with pytest.raises(ValueError, match="shorter"):
        paired_difference([1.0, 2.0], [1.0])


def panel():
    rng = np.random.default_rng(0)
    targets = np.array([[1, 0], [-1, 0]], dtype=np.float32)
    return Panel(rng.normal(size=(20, 2)).astype(np.float32), rng.integers(0, 2, 20), targets, accuracy=0.5)


def test_a_picture_that_fails_leaves_the_one_before(tmp_path):
    figure = new_drawing(1, 1)
    save_drawing(figure, tmp_path / "a.svg", dpi=50)
    before = (tmp_path / "a.svg").read_bytes()
    figure.text(0.5, 0.5, "$no mathematics")
    figure.text(0.5, 0.5, r"$\nothing$")
    with pytest.raises(ValueError, match="nothing"):
        save_drawing(figure, tmp_path / "a.svg", dpi=50)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.svg", before)]


def test_the_picture_is_a_png(tmp_path):
    path = tmp_path / "new" / "circles.png"
    draw_circles(path, [("old task", [panel(), panel()]), ("new task", [panel(), panel()])], ["a", "b"], "title")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_row_of_the_wrong_length_is_refused(tmp_path):
    with pytest.raises(ValueError, match="row 'old task' has 1 panels for 2 columns"):
        draw_circles(tmp_path / "x.png", [("old task", [panel()])], ["a", "b"], "title")
    assert not (tmp_path / "x.png").exists()


# -- the table of a study -----------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path):
    runs = []
    for seed, (plain, ewc, ours) in enumerate(
        [((0.4, 0.8), (0.6, 0.8), (0.6, 0.84)), ((0.2, 0.8), (0.6, 0.6), (0.6, 0.68))]
    ):
        runs.append(written(tmp_path, "finetune", seed, after_two(*plain)))
        runs.append(written(tmp_path, "ewc", seed, after_two(*ewc), epochs=(4, 6)))
        runs.append(written(tmp_path, "ewc+afec", seed, after_two(*ours), theta_e=(0, 4)))
        runs.append(written(tmp_path, "joint", seed, after_two(0.9, 0.9)))
        runs.append(written(tmp_path, "scratch", seed, [[0.1, 0.1], [0.7, math.nan], [math.nan, 0.9]]))
    return runs


def cells(table):
    """The table as {row: {column: cell}}, the best in stars."""
    names = [column.name for column in table.columns[1:]]
    return {
        row[0].text: {name: f"*{cell}*" if cell.best else str(cell) for name, cell in zip(names, row[1:], strict=True)}
        for row in table.rows
    }


def gains(rows):
    """The differences as {(ours, theirs, metric): (difference, Student's interval, seeds won, zero is)}."""
    table = differences(rows)
    every = [[str(cell) for cell in row] for row in table.rows] if table else []
    return {
        (ours, theirs, metric): (gain, student, won, zero)
        for ours, theirs, metric, gain, _, student, won, zero in every
    }


def test_the_table_by_hand(study):
    table = results(rows_of(study))
    assert table.title == "digits-regression at scale smoke: test accuracy in %, mean ± std of 2 seeds"
    found = cells(table)
    assert list(found) == ["finetune", "ewc (λ=30)", "ewc+afec (λ=30, λ_e=0.1)", "joint", "scratch"]
    assert found["finetune"] == {
        "AAC": "55.0 ± 7.1",  # 60 and 50
        "old tasks": "30.0 ± 14.1",
        "new task": "*80.0 ± 0.0*",
        "each new task": "*80.0 ± 0.0*",
        "BWT": "−50.0 ± 14.1",  # 40 − 80 and 20 − 80
        "forgetting": "50.0 ± 14.1",
        "FWT zero-shot": "0.0 ± 0.0",
        "FWT vs scratch": "*−10.0 ± 0.0*",  # 80 − 90, the second task
        "compute": "1.00 ×",
        "epochs": "8",
        "CPU s": "–",
        "memory MB": "–",
    }
    assert found["ewc+afec (λ=30, λ_e=0.1)"]["AAC"] == "*68.0 ± 5.7*"  # 72 and 64
    assert found["ewc+afec (λ=30, λ_e=0.1)"]["epochs"] == "12"
    assert found["ewc+afec (λ=30, λ_e=0.1)"]["compute"] == "1.50 ×"
    assert found["ewc (λ=30)"]["compute"] == "1.25 ×"


def test_references_do_not_compete_and_what_is_unknown_is_a_dash(study):
    found = cells(results(rows_of(study)))
    assert found["joint"]["AAC"] == "90.0 ± 0.0"
    assert found["scratch"]["AAC"] == found["scratch"]["BWT"] == found["scratch"]["FWT vs scratch"] == "–"
    assert found["scratch"]["each new task"] == "80.0 ± 0.0"  # 70 and 90 in the mean
    assert not any("*" in cell for row in ("joint", "scratch") for cell in found[row].values())


def test_a_column_that_nobody_knows_is_left_out(study):
    for config, run in study:
        if config.method == "scratch":
            (run.path / "DONE").unlink()
    without = [(config, run) for config, run in study if config.method not in ("scratch", "finetune")]
    found = cells(results(rows_of(without)))
    assert "FWT vs scratch" not in found["joint"]
    assert found["joint"]["compute"] == "–"  # relative to fine-tuning, which is not there


def test_scratch_runs_of_an_earlier_command_are_found_on_disk(study):
    """Those of the same content and seed; another training or another net is another reference."""
    without = [(config, run) for config, run in study if config.method == "finetune"]
    assert cells(results(rows_of(without)))["finetune"]["FWT vs scratch"] == "−10.0 ± 0.0"
    root = without[0][1].path.parents[3]
    for sets in ({"training": {"lr": 0.5}}, {"net": {"zero_heads": False}}):
        other = written(root, "finetune", 0, after_two(0.5, 0.7), **sets)
        assert "FWT vs scratch" not in cells(results(rows_of([other])))["finetune"]


def test_one_method_alone_is_not_the_best_of_anything(study):
    alone = [(config, run) for config, run in study if config.method == "ewc"]
    assert not any("*" in cell for cell in cells(results(rows_of(alone)))["ewc (λ=30)"].values())


def test_one_seed_has_no_spread_and_a_row_with_fewer_seeds_says_so(study):
    first = [(config, run) for config, run in study if run.seed == 0]
    assert cells(results(rows_of(first)))["finetune"]["AAC"] == "60.0"
    fewer = [(config, run) for config, run in study if run.seed == 0 or config.method == "finetune"]
    assert list(cells(results(rows_of(fewer))))[:2] == ["finetune", "ewc (λ=30), 1 of 2 seeds"]


def test_unfinished_runs_are_not_in_the_table(study):
    (study[1][1].path / "DONE").unlink()
    found = {row.config.method: sorted(row.metrics) for row in rows_of(study)}
    assert found == {"finetune": [0, 1], "ewc": [1], "ewc+afec": [0, 1], "joint": [0, 1], "scratch": [0, 1]}


EWC, OURS = "ewc (λ=30)", "ewc+afec (λ=30, λ_e=0.1)"


def test_paired_differences_by_hand(study):
    found = gains(rows_of(study))
    assert found[OURS, EWC, "AAC"] == (
        "+3.0",
        "−9.7 to +15.7",
        "2 of 2",
        "inside Student's",
    )  # 12.706 · 1.0 on either side
    found = gains(rows_of([pair for pair in study if pair[1].seed == 0]))
    assert found[OURS, EWC, "AAC"] == ("+2.0", "one seed only", "1 of 1", "unknown")


def test_a_clear_difference_and_pairs_by_seed(tmp_path):
    runs = [written(tmp_path, "ewc", seed, after_two(0.5, 0.5)) for seed in (0, 1, 2)]
    runs += [written(tmp_path, "ewc+afec", seed, after_two(0.5, new)) for seed, new in ((1, 0.6), (2, 0.62), (7, 1.0))]
    gain, student, won, zero = gains(rows_of(runs))[OURS, EWC, "AAC"]  # 5 and 6; seeds 0 and 7 have no partner
    assert (gain, student, won, zero) == ("+5.5", "−0.9 to +11.9", "2 of 2", "inside Student's")
    runs.append(written(tmp_path, "ewc+afec", 0, after_two(0.5, 0.61)))
    assert gains(rows_of(runs))[OURS, EWC, "AAC"][3] == "outside"


def test_a_grid_is_compared_row_by_row_and_each_with_its_own_scratch(tmp_path):
    runs = []
    for lr, alone in ((0.1, 0.5), (0.2, 0.6)):
        sets = {"training": {"lr": lr}}
        runs.append(written(tmp_path, "finetune", 0, after_two(0.5, 0.7), **sets))
        runs.append(written(tmp_path, "scratch", 0, [[0.1, 0.1], [0.7, math.nan], [math.nan, alone]], **sets))
    found = cells(results(rows_of(runs)))
    assert found["finetune, lr=0.1"]["FWT vs scratch"].removeprefix("*").startswith("20.0")
    assert found["finetune, lr=0.2"]["FWT vs scratch"].removeprefix("*").startswith("10.0")


@pytest.mark.parametrize(
    "sets", [{"stream": {"train": 90}}, {"net": {"zero_heads": False}}, {"training": {"lr": 0.5}}], ids=str
)
def test_rows_of_other_tasks_nets_or_trainings_are_never_compared(sets, tmp_path):
    plain = written(tmp_path, "ewc", 0, after_two(0.5, 0.5))
    ours = written(tmp_path, "ewc+afec", 0, after_two(0.5, 0.6), **sets)
    assert gains(rows_of([plain, ours])) == {}
    base = written(tmp_path, "ewc", 0, after_two(0.5, 0.58), **sets)
    found = gains(rows_of([plain, ours, base]))
    assert [row[0] for key, row in found.items() if key[2] == "AAC"] == ["+1.0"]
    if "training" not in sets:  # tables are split by what rows must share
        assert Row(plain[0]).problem != Row(ours[0]).problem == Row(base[0]).problem


def test_a_named_variant_of_the_training_is_compared_and_another_training_has_no_reference(tmp_path):
    runs = [
        written(tmp_path, "ewc@equal-compute", 0, after_two(0.5, 0.5)),
        written(tmp_path, "ewc+afec", 0, after_two(0.5, 0.6)),
        written(tmp_path, "scratch", 0, [[0.1, 0.1], [0.7, math.nan], [math.nan, 0.5]]),
        written(tmp_path, "finetune", 0, after_two(0.5, 0.7), training={"lr": 0.5}),
    ]
    assert gains(rows_of(runs))[OURS, "ewc@equal-compute (λ=30)", "AAC"][0] == "+5.0"
    found = cells(results(rows_of(runs)))
    assert found["finetune"]["FWT vs scratch"] == "–"
    assert found["ewc@equal-compute (λ=30)"]["FWT vs scratch"] == "0.0"


def test_rows_of_two_benchmarks_with_equal_content_stay_apart(tmp_path):
    config, first = written(tmp_path, "ewc", 0, after_two(0.5, 0.5))
    other = replace(config, benchmark="the same again")
    second = RunDirectory.of(tmp_path, other, 0)
    shutil.copytree(first.path, second.path)
    assert other.hash == config.hash
    found = rows_of([(config, first), (other, second)])
    assert [row.config.benchmark for row in found] == ["digits-regression", "the same again"]
    assert found[0].problem != found[1].problem
    alone, scratch = written(tmp_path, "scratch", 0, [[0.1, 0.1], [0.7, math.nan], [math.nan, 0.4]])
    shutil.copytree(scratch.path, RunDirectory.of(tmp_path, replace(alone, benchmark="the same again"), 0).path)
    for row in rows_of([(config, first), (other, second)]):  # each finds the reference of its own benchmark
        assert row.values("fwt_vs_scratch") == pytest.approx([0.1])


def test_a_variant_keeps_the_plain_reference(tmp_path):
    runs = [
        written(tmp_path, "ewc@equal-compute", 0, after_two(0.5, 0.7)),
        written(tmp_path, "scratch", 0, [[0.1, 0.1], [0.7, math.nan], [math.nan, 0.5]]),
    ]
    assert cells(results(rows_of(runs)))["ewc@equal-compute (λ=30)"]["FWT vs scratch"] == "20.0"


# -- the pictures of a study --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.pdf", b"%PDF")])
def test_curves_over_the_tasks(name, start, tmp_path):
    runs = [
        written(tmp_path, method, seed, after_two(0.5, 0.7), benchmark="digits")
        for method in ("finetune", "ewc", "joint", "scratch")
        for seed in (0, 1)
    ]
    draw_study(tmp_path / "new" / name, runs)
    assert (tmp_path / "new" / name).read_bytes().startswith(start)


def test_rows_of_a_grid_are_curves_of_their_own(tmp_path):
    runs = [
        written(tmp_path, "ewc", 0, after_two(0.5, 0.7), benchmark="digits", training={"lr": lr}) for lr in (0.1, 0.2)
    ]
    draw_study(tmp_path / "p.svg", runs)
    text = (tmp_path / "p.svg").read_text()  # matplotlib writes each text as a comment beside its outlines
    assert all(f"<!-- ewc (λ=30), lr={lr} -->" in text for lr in (0.1, 0.2))


def test_circles_from_the_weights_of_runs(tmp_path):
    runs = [written(tmp_path, method, 0, after_two(0.5, 0.7)) for method in ("finetune", "ewc")]
    for config, run in runs:
        with_weights(config, run)
    draw_study(tmp_path / "p.png", runs)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_without_a_finished_run_there_is_nothing_to_draw(tmp_path):
    with pytest.raises(ValueError, match="there is no finished run to draw"):
        draw_study(tmp_path / "p.png", [])
