"""The table of dead and saturated units."""

from __future__ import annotations

from dataclasses import replace

from afec.cli import main
from afec.lab import RunDirectory, load_benchmark, resolve
from afec.report.rows import rows_of
from afec.report.study_tables import tables_of
from afec.report.unit_table import unit_table
from small_lab import quick_file
from written_runs import written

MATRIX = [[0.1, 0.1], [0.8, 0.2], [0.6, 0.7]]


def counted(row, *counts):
    """The row with these counts: for each seed a list over tasks of lists of (layer, units, dead, saturated)."""
    readings = {}
    for (seed, one), tasks in zip(sorted(row.readings.items()), counts, strict=True):
        keys = ("layer", "units", "dead", "saturated")
        units = [[dict(zip(keys, count, strict=True)) for count in task] for task in tasks]
        events = tuple({**task, "units": found} for task, found in zip(one.tasks, units, strict=True))
        readings[seed] = replace(one, tasks=events)
    return replace(row, readings=readings)


def test_it_has_the_means_over_the_seeds_per_layer_and_task(tmp_path):
    (row,) = rows_of([written(tmp_path, "ewc", seed, MATRIX) for seed in (0, 1)])
    assert unit_table([row], "here") is None
    first = [[("a", 8, 1, 2), ("b", 4, 0, 0)], [("a", 8, 3, 0), ("b", 4, 0, 1)]]
    second = [[("a", 8, 2, 2), ("b", 4, 0, 0)], [("a", 8, 5, 0), ("b", 4, 0, 2)]]
    table = unit_table([counted(row, first, second)], "here")
    assert [column.name for column in table.columns] == ["method", "layer", "units", "after 1", "after 2"]
    assert [[cell.text for cell in line] for line in table.rows] == [
        ["ewc (λ=30)", "a", "8", "1.5 / 2", "4 / 0"],
        ["ewc (λ=30)", "b", "4", "0 / 0", "0 / 1.5"],
    ]


def test_what_is_no_count_is_left_out(tmp_path):
    (row,) = rows_of([written(tmp_path, "ewc", 0, MATRIX)])
    wrong = [[("a", 8, -1, 2)], [("a", 8, 9, 0), (3, 8, 1, 1), ("a", True, 1, 1), ("b", 4, 1, 0.5)]]
    assert unit_table([counted(row, wrong)], "here") is None
    (one,) = row.readings.values()
    strange = replace(one, tasks=tuple({**task, "units": "many"} for task in one.tasks))
    assert unit_table([replace(row, readings={0: strange})], "here") is None
    table = unit_table(
        [replace(row, readings={0: replace(one, tasks=({**one.tasks[0], "no_units": "it is a ring"},))})], ""
    )
    assert ([cell.text for cell in table.rows[0]], table.caption) == (
        ["ewc (λ=30)", "–", "–"],
        "Where there is no number: it is a ring.",
    )


def test_a_run_counts_units_and_the_configuration_of_relu_is_what_it_was(tmp_path):
    file, runs = quick_file(tmp_path), tmp_path / "runs"
    arguments = [
        "run",
        file,
        "--scale",
        "tiny",
        "--method",
        "finetune",
        "--seeds",
        "1",
        "--runs",
        str(runs),
        "--workers",
        "1",
    ]
    assert main([*arguments, "--set", "net.activation=relu,gelu"]) == 0
    benchmark = load_benchmark(file)
    relu, gelu = (resolve(benchmark, "finetune", "tiny", {"net": {"activation": name}}) for name in ("relu", "gelu"))
    assert relu.hash == resolve(benchmark, "finetune", "tiny").hash != gelu.hash
    assert "activation" not in relu.net
    assert gelu.net["activation"] == "gelu"
    found = [(config, RunDirectory.of(runs, config, 0)) for config in (relu, gelu)]
    for row in rows_of(found):
        (table,) = (one for one in tables_of([row]) if one.key == "units")
        assert [line[1].text for line in table.rows] == ["backbone.layers.0", "backbone.layers.2", "backbone.layers.5"]
    assert main(["report", str(runs), "-o", str(tmp_path / "t.md")]) == 0
    assert "dead / saturated units" in (tmp_path / "t.md").read_text()
    assert main(["report", str(runs), "-o", str(tmp_path / "r.html"), "--no-pictures"]) == 0
    assert "dead / saturated units" in (tmp_path / "r.html").read_text()
