"""Tables of replay: memory and prediction rule beside the numbers, and no two memories in one table."""

from __future__ import annotations

import csv
import io

import pytest

from afec.lab import load_benchmark, resolve, run
from afec.report.comparison import compare
from afec.report.paper import published_replay
from afec.report.rows import problems, rows_of
from afec.report.study_tables import results, to_csv


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
    assert cells["icarl"] == ("5 a class", "nearest-mean")
    assert "forgetting" in names


def test_afec_is_compared_at_its_own_memory_only(rows):
    (found,) = compare(rows, "average_incremental_accuracy")
    assert (found.ours.memory, found.theirs.memory) == ("2 a class", "2 a class")


def test_a_row_stands_in_the_csv_once(rows):
    lines = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [line["method"] for line in lines].count("finetune") == 1
    assert len(lines) == len(rows)
    assert all(line["forgetting"] for line in lines)


def test_the_papers_figures_stand_beside_ours():
    config = resolve(load_benchmark("cifar100-b50-5"), "icarl+afec", "short")
    found = published_replay(config)
    assert (found.mean, found.std) == (62.76, 0.52)
    assert published_replay(resolve(load_benchmark("cifar100-b50-5"), "er", "short")) is None
