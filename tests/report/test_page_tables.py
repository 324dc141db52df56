"""One table for terminal, Markdown, LaTeX and page; the words of the score's kind; the scenario `class`; recalled trainings."""

from __future__ import annotations

import csv
import io
import json
import math
import re

import pytest
from rich.console import Console
from test_page import Tables, write

from afec.cli import main
from afec.lab import find_runs
from afec.report.figures import FIGURES, POOLED
from afec.report.reading import read
from afec.report.rows import ordered, problems, rows_of
from afec.report.study_tables import results, tables_of
from afec.report.table import Cell, Column, Table, print_table, to_latex, to_markdown
from written_runs import learned, written

NAN = math.nan


def printed(table, width):
    console = Console(width=width, record=True, file=io.StringIO())
    print_table(console, table)
    return console.export_text()


def rows_in(root):
    return ordered(rows_of([(run.config, run) for run in find_runs(root)]))


# -- one model ------------------------------------------------------------------------------------------------------


def test_every_format_has_the_same_columns_numbers_and_explanations(study, tmp_path):
    tables = tables_of(rows_in(study))
    assert [table.key for table in tables] == ["results", "after", "differences"]
    page = write(study, tmp_path / "r.html")
    assert [table[0] for table in Tables(page).found[:3]] == [[c.name for c in table.columns] for table in tables]
    shown = [table[1:] for table in Tables(page).found[:3]]
    assert shown == [[[str(cell) for cell in row] for row in table.rows] for table in tables]
    markdown, latex = to_markdown(tables), to_latex(tables).replace(r"\%", "%").replace(r"\_", "_")
    for table in tables:
        terminal = printed(table, 400)
        names = [column.name for column in table.columns]
        assert f"| {' | '.join(names)} |" in markdown
        assert " & ".join(names).replace("%", "%") in latex
        for text in filter(None, (table.title, table.legend, table.caption)):
            assert text in markdown
            assert " ".join(text.replace("`", "").split()) in " ".join(terminal.split())
            first = text.replace("`", "'").partition("θ")[0].partition("±")[0].partition("λ")[0].rstrip(" .")
            assert first in latex
        for row in table.rows:
            assert all(str(cell) in terminal for cell in row)


WIDE = Table(
    "t",
    "title",
    (Column("method", kind="label"), *(Column(f"a long name {k}") for k in range(12))),
    ((Cell("ewc"), *(Cell(f"{k}{k}.5", "1.5", sort=k, best=k == 3) for k in range(12))),),
)


@pytest.mark.parametrize("width", [40, 80, 120, 400])
def test_a_terminal_cuts_no_column(width):
    text = printed(WIDE, width)
    assert all(len(line) <= width for line in text.splitlines())
    assert all(f"{k}{k}.5 ± 1.5" in text for k in range(12))
    assert "…" not in text
    assert text.count("ewc") == text.count("method")  # every part has the names of the rows again
    assert (text.count("ewc") > 1) == (width < 400)


def test_what_a_label_has_is_no_markup():
    table = Table(
        "t", "[red]a|b", (Column("method", kind="label"), Column("n")), ((Cell("[bold]x|`y`"), Cell("1", best=True)),)
    )
    assert "[bold]x|`y`" in printed(table, 100)
    assert "[red]a|b" in printed(table, 100)
    assert to_markdown([table]).splitlines()[-1] == r"| `[bold]x\|'y'` | **1** |"


# -- the scenario class ---------------------------------------------------------------------------------------------

PHASES = [[NAN] * 3, [0.9, NAN, NAN], [0.6, 0.8, NAN], [0.5, 0.4, 1.0]]
SIZES = (100, 50, 50)


def in_classes(root, method, seed, gain=0.0):
    """A run of the scenario `class`: a base phase of 100 test images, then twice 50."""
    matrix = [[value - gain for value in row] for row in PHASES]
    sets = {"stream": {"scenario": "class", "sizes": [4, 3, 3]}}
    config, run = written(root, method, seed, matrix, (4,) * 3, (0,) * 3, "digits", **sets)
    run.write_scores([type(one)(**{**vars(one), "size": SIZES[one.task - 1]}) for one in run.scores()])
    return config, run


@pytest.fixture
def classes(tmp_path):
    for seed in (0, 1):
        in_classes(tmp_path / "runs", "finetune", seed, 0.1)
        in_classes(tmp_path / "runs", "ewc", seed, 0.05 * seed)
        in_classes(tmp_path / "runs", "ewc+afec", seed)
    return tmp_path / "runs"


def test_the_scenario_class_by_hand(classes):
    """0.9, then (60 + 40) / 150, then (50 + 20 + 50) / 200; old classes are the first 150 images."""
    table = results(rows_in(classes))
    names = [column.name for column in table.columns]
    assert names[:6] == ["method", "average incremental", "compute", "all classes", "old classes", "new classes"]
    assert not {"AAC", "BWT", "old tasks", "FWT zero-shot"} & set(names)
    ours = next(row for row in table.rows if row[0].text.startswith("ewc+afec"))
    assert [str(cell) for cell in ours[1:6]] == [
        f"{100 * (0.9 + 100 / 150 + 0.6) / 3:.1f} ± 0.0",
        "1.00 ×",
        "60.0 ± 0.0",
        f"{100 * 70 / 150:.1f} ± 0.0",
        "100.0 ± 0.0",
    ]
    assert "the mean over all phases with the base phase" in table.legend
    after, gains = tables_of(rows_in(classes))[1:]
    assert [column.name for column in after.columns] == ["method", "A1", "A2", "A3"]
    assert [str(cell) for cell in after.rows[-1][1:]] == ["90.0 ± 0.0", "66.7 ± 0.0", "60.0 ± 0.0"]
    metrics = [row[2].text for row in gains.rows]
    assert metrics == ["average incremental", "all classes", "old classes", "new classes"]
    assert gains.rows[0][3].text == "+2.5"  # 0 and 5 points


def test_the_figure_of_all_classes_so_far(classes, tmp_path):
    rows = rows_in(classes)
    figure = FIGURES["accuracy"](rows)
    assert figure.title == "Accuracy over all classes so far"
    ours = next(trace for trace in figure.charts[0].traces if trace.label.startswith("ewc+afec"))
    assert ours.y == pytest.approx([90, 200 / 3, 60])
    assert FIGURES["transfer"](rows).missing == POOLED
    (chart,) = FIGURES["trade-off"](rows).charts
    assert chart.traces[-1].x[0] == pytest.approx(100 * 70 / 150)
    text = write(classes, tmp_path / "r.html")
    assert "Highest average incremental of 3 rows" in text
    assert "average incremental: test accuracy over all classes so far" in text
    assert "BWT" not in re.sub(r"<pre>.*?</pre>|<p class=\"absent.*?</p>", "", text, flags=re.S)


def test_tables_never_mix_scenarios(classes):
    written(classes, "ewc", 0, learned(3, 0.5), (4,) * 3, (0,) * 3, "digits", stream={"sizes": [4, 3, 3]})
    groups = problems(rows_in(classes))
    assert sorted((len(group), {row.pooled for row in group} == {True}) for _, group in groups) == [
        (1, False),
        (3, True),
    ]
    assert {mark for mark, _ in groups} == {"scenario class, class order seed", "scenario task"}


def test_every_seed_of_both_scenarios_as_csv(classes, tmp_path):
    written(classes, "ewc", 0, learned(3, 0.5), (4,) * 3, (0,) * 3, "digits", stream={"sizes": [4, 3, 3]})
    assert main(["report", str(classes), "-o", str(tmp_path / "t.csv")]) == 0
    found = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    first = (
        "benchmark scale tasks method hash seed aac old_accuracy new_accuracy mean_new_task_accuracy bwt fwt_vs_scratch"
    )
    assert list(found[0])[:15] == [*first.split(), "transfer", "epochs", "samples"]  # as ever; what is new comes after
    assert {row["score"] for row in found} == {"accuracy"}
    for row in found:
        pooled = row["tasks"].startswith("scenario class")
        assert bool(row["final_accuracy"]) == pooled
        assert bool(row["aac"]) != pooled
    ours = next(row for row in found if row["method"].startswith("ewc+afec"))
    assert float(ours["average_incremental_accuracy"]) == pytest.approx((0.9 + 100 / 150 + 0.6) / 3, abs=1e-6)


def test_a_phase_without_test_images_is_damage_and_stops_no_page(classes, tmp_path):
    run = find_runs(classes)[0]
    run.write_scores([type(one)(**{**vars(one), "size": 0}) for one in run.scores()])
    assert "a task has no test samples" in read(run.config, run).fault
    assert "a task has no test samples" in write(classes, tmp_path / "r.html")


# -- recalled trainings ---------------------------------------------------------------------------------------------


def recall(run, recalled):
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    lines[0]["recalled"] = recalled
    (run.path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.path / "DONE").write_text(json.dumps({"cpu_seconds": 7.0}))


def test_a_recalled_training_is_said_beside_the_times_that_it_falsifies(study, tmp_path):
    assert "recalled from earlier" not in write(study, tmp_path / "r.html")
    run = next(run for run in find_runs(study) if run.config.method == "finetune")
    recall(run, {"train": {"run": "another"}})
    assert read(run.config, run).recalled == ("task 1: train",)
    table = results(rows_in(study))
    place = [column.name for column in table.columns].index("CPU s")
    assert [row[place].text for row in table.rows] == ["7*", "–", "–", "–"]
    assert "*: some trainings were recalled from earlier runs" in table.caption
    runs = next(found for found in Tables(write(study, tmp_path / "r.html")).found if found[0][0] == "state")
    assert (
        sum("recalled from earlier runs, so its CPU time cannot be compared: task 1: train" in row[-1] for row in runs)
        == 1
    )


@pytest.mark.parametrize("strange", [3, ["a"], None, {"<script>": 1}])
def test_a_recalled_of_any_shape_harms_nothing(study, tmp_path, strange):
    recall(find_runs(study)[0], strange)
    assert "<script>: 1" not in write(study, tmp_path / "r.html")
