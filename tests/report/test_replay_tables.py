"""Tables of replay: memory and prediction rule beside the numbers, and no two memories or rules in one table."""

from __future__ import annotations

import csv
import io
import shutil

import pytest

from afec.cli import main
from afec.experiments.supervised import build
from afec.lab import RunDirectory, load_benchmark, resolve, run
from afec.report.comparison import compare
from afec.report.figures import FIGURES
from afec.report.page import page, studies
from afec.report.paper import published_replay
from afec.report.reading import load_learner, read
from afec.report.rows import one_problem, problems, rows_of
from afec.report.study_tables import after_tasks, results, tables_of, to_csv
from afec.report.svg import draw
from written_runs import learned, written


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    runs, benchmark = tmp_path_factory.mktemp("runs"), load_benchmark("digits-class")
    fast = {"training": {"max_epochs": 1}}
    few = {**fast, "method": {"er": {"per_class": 2}}}
    plans = [("finetune", fast), ("er", fast), ("er", few), ("er+afec", few), ("icarl", fast), ("joint", fast)]
    found = []
    for method, sets in plans:
        config = resolve(benchmark, method, "smoke", sets)
        found.append((config, run(config, 0, runs)))
    return rows_of(found)


def test_rows_of_another_memory_are_in_another_table(rows):
    groups = problems(rows)
    found = [{(row.config.method, row.memory) for row in group} for _, group in groups]
    bounds = {("finetune", "none"), ("joint", "all")}
    assert found == [
        {("er", "5 a class"), ("icarl", "5 a class"), *bounds},
        {("er", "2 a class"), ("er+afec", "2 a class"), *bounds},
    ]
    assert [mark.split(", ")[-1] for mark, _ in groups] == ["memory 5 a class", "memory 2 a class"]
    assert all("class order seed" in mark for mark, _ in groups)


def test_memory_and_prediction_stand_beside_each_number(rows):
    _, group = problems(rows)[0]
    table = results(group)
    names = [column.name for column in table.columns]
    assert names[:3] == ["method", "memory", "prediction"]
    cells = {row[0].text.split(" (")[0]: (row[1].text, row[2].text) for row in table.rows}
    assert cells["finetune"] == ("none", "classifier")
    assert cells["joint"] == ("all", "classifier")
    assert cells["icarl"] == ("5 a class, 0.013 MB", "nearest-mean")  # 50 images of 64 floats
    assert "forgetting" in names


def test_each_phase_has_its_column(rows, tmp_path):
    names = [column.name for column in after_tasks(problems(rows)[0][1]).columns]
    assert names == ["method", "A1", "A2", "A3", "A4"]
    many = written(tmp_path, "er", 0, learned(20, 0.5), (4,) * 20, (0,) * 20, "digits-class")
    names = [column.name for column in after_tasks(rows_of([many])).columns]
    assert names == ["method", "A1", "A2", "A5", "A10", "A20"]


def test_afec_is_compared_at_its_own_memory_only(rows):
    (found,) = compare(rows, "average_incremental_accuracy")
    assert (found.ours.memory, found.theirs.memory) == ("2 a class", "2 a class")


def test_a_row_stands_in_the_csv_once(rows):
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["method"] for line in lines].count("finetune") == 1
    assert len(lines) == len(rows)
    assert all(line["forgetting"] for line in lines)
    protocols = {(line["method"].split(" (")[0], line["memory"], line["prediction"]) for line in lines}
    assert ("finetune", "none", "classifier") in protocols
    assert ("icarl", "5 a class", "nearest-mean") in protocols
    assert {line["class_order"] for line in lines} == {"seed"}


def test_the_papers_figures_stand_beside_ours():
    config = resolve(load_benchmark("cifar100-b50-5"), "icarl+afec", "short")
    found = published_replay(config)
    assert (found.mean, found.std) == (62.76, 0.52)
    assert published_replay(resolve(load_benchmark("cifar100-b50-5"), "er", "short")) is None


def test_answers_are_those_of_the_learner_that_is_left(rows):
    """Counted anew from `predict` after the last phase; and the diagonal has at least what is right."""
    (row,) = [one for one in rows if one.config.method == "finetune"]
    (one,) = row.every_reading
    stream, net = build(row.config, 0)
    learner = load_learner(net, row.config, one.run)
    for number, task in enumerate(stream.tasks):
        predicted = learner.predict(task.test.inputs, task).tolist()
        phases = [[answer in other.classes for other in stream.tasks].index(True) for answer in predicted]
        assert one.answers[-1][number].tolist() == [phases.count(k) for k in range(4)]
        assert one.answers[-1][number, number] >= one.matrix[-1, number] * task.test.size - 1e-6
    assert [answers.shape for answers in one.answers] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert one.answers[-1].sum(axis=1).tolist() == list(one.sizes)


def test_the_figure_has_every_phase_of_one_method_and_the_last_of_several(rows, tmp_path):
    alone = [row for row in rows if row.config.method == "icarl"]
    charts = FIGURES["confusion"](alone).charts
    assert [chart.title for chart in charts] == ["after phase 2", "after phase 3", "after phase 4"]
    assert all(chart.values.sum(axis=1) == pytest.approx([100] * len(chart.values)) for chart in charts)
    (_, group) = problems(rows)[0]
    several = FIGURES["confusion"](group)
    assert [chart.title for chart in several.charts] == [row.label for row in group]
    assert all(chart.values.shape == (4, 4) for chart in several.charts)
    assert draw(charts[0]).count("<path") > 1
    runs = str(group[0].every_reading[0].run.path.parents[3])
    only = ["--where", "method=icarl", "--figure", "confusion", "-o"]
    for name in ("confusion.png", "confusion.svg"):
        assert main(["report", runs, *only, str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 0
    assert "Confusion matrix by phase" in page([one for row in group for one in row.every_reading], "runs", "now")


def test_runs_of_earlier_versions_have_no_confusion_and_wrong_counts_are_damage(rows, two_rules, tmp_path):
    assert "no finished run says which phase" in FIGURES["confusion"](problems(rows_of(two_rules))[0][1]).missing
    config = rows[0].config
    for seed, counts in enumerate(("90 11", "100 0 0", "101 -1", "x")):
        directory = RunDirectory.of(tmp_path, config, seed)
        shutil.copytree(rows[0].every_reading[0].run.path, directory.path)
        text = "after,task,name,validation,test,size,answers\n1,1,a,,0.5,100,100\n2,1,a,,0.5,100,{}\n2,2,b,,0.5,100,0 100\n"
        (directory.path / "scores.csv").write_text(text.format(counts))
        found = read(config, directory)
        assert found.state == "damaged", counts
        assert "answers" in found.fault or "cannot be read" in found.fault


CLASSIFIER = {"method": {"icarl": {"prediction": "classifier"}}}
RULES = [
    ("finetune", {}), ("joint", {}), ("er", {}), ("icarl", {}), ("icarl+afec", {}),
    ("icarl", CLASSIFIER), ("icarl+afec", CLASSIFIER),
]  # fmt: skip


def of_class(root, method, seed, gain=0.0, /, **sets):
    """A finished run of `digits-class`, as if it had been run."""
    return written(root, method, seed, learned(4, 0.5, gain), (4,) * 4, (0,) * 4, "digits-class", **sets)


@pytest.fixture
def two_rules(tmp_path):
    """iCaRL by both of its prediction rules, with what stands beside any."""
    root = tmp_path / "runs"
    return [of_class(root, name, seed, 0.01 * k, **sets) for k, (name, sets) in enumerate(RULES) for seed in (0, 1)]


def test_two_prediction_rules_are_in_two_tables_and_baselines_beside_each(two_rules):
    groups = problems(rows_of(two_rules))
    assert [mark.split(", ")[-1] for mark, _ in groups] == ["prediction nearest-mean", "prediction classifier"]
    for (_, group), rule in zip(groups, ("nearest-mean", "classifier"), strict=True):
        assert [row.config.method for row in group] == ["finetune", "joint", "er", "icarl", "icarl+afec"]
        assert {row.prediction for row in group if "icarl" in row.config.method} == {rule}
        assert {row.prediction for row in group[:3]} == {"classifier"}
        (gain,) = [table for table in tables_of(group) if table.key == "differences"]
        assert all("icarl+afec" in line[0].text for line in gain.rows)


def test_no_difference_is_between_two_rules(two_rules):
    found = compare(rows_of(two_rules), "average_incremental_accuracy")
    assert [(one.ours.prediction, one.theirs.prediction) for one in found] == [
        ("nearest-mean", "nearest-mean"), ("classifier", "classifier")
    ]  # fmt: skip


def test_a_figure_of_two_rules_is_refused_and_one_of_each_is_drawn(two_rules, tmp_path, capsys):
    with pytest.raises(
        ValueError, match="prediction rules .*prediction nearest-mean; .*prediction classifier.*--where"
    ):
        one_problem(two_rules)
    out = tmp_path / "accuracy.png"
    assert main(["report", str(tmp_path / "runs"), "--figure", "accuracy", "-o", str(out)]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "memories or prediction rules" in message
    assert "choose one with --where" in message
    only = ["--where", "method.icarl.prediction=classifier"]
    assert main(["report", str(tmp_path / "runs"), "--figure", "accuracy", *only, "-o", str(out)]) == 0
    assert out.stat().st_size > 0


def test_another_choice_of_exemplars_is_another_memory(tmp_path):
    random = {"method": {"er": {"choice": "random"}}}
    runs = [of_class(tmp_path, "er", 0), of_class(tmp_path, "er", 0, **random)]
    assert [row.memory for row in rows_of(runs)] == ["5 a class", "5 a class, random"]
    assert len(problems(rows_of(runs))) == 2


def test_another_class_order_is_another_table_and_said_in_the_csv(tmp_path):
    orders = ({}, {"stream": {"class_order": "sorted"}})
    runs = [of_class(tmp_path, name, 0, **sets) for sets in orders for name in ("er", "er+afec")]
    groups = problems(rows_of(runs))
    assert [len(group) for _, group in groups] == [2, 2]
    assert [mark for mark, _ in groups] == ["class_order seed", "class_order sorted"]
    lines = list(csv.DictReader(io.StringIO(to_csv(rows_of(runs)))))
    assert [line["class_order"] for line in lines] == ["seed", "seed", "sorted", "sorted"]
    assert len(compare(rows_of(runs), "average_incremental_accuracy")) == 2


def test_the_page_has_a_section_for_each_rule_with_its_own_runs(two_rules):
    readings = [read(config, run) for config, run in two_rules]
    found = studies(readings)
    assert [len(study.readings) for study in found] == [10, 10]
    assert [len(study.labelled) for study in found] == [10, 10]
    assert "prediction nearest-mean" in page(readings, "runs", "afec report")


def test_the_scenario_task_has_no_protocol(tmp_path):
    (line,) = csv.DictReader(io.StringIO(to_csv(rows_of([written(tmp_path, "ewc", 0, learned(2, 0.5))]))))
    assert (line["memory"], line["prediction"], line["class_order"]) == ("", "", "")
