"""The tables of a study: results, the average after k tasks, AFEC's gain, decades of λ, dead units, games; seeds as CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from rich.console import Console

from afec.experiments import ScoreKind
from afec.lab.spec import FULL
from afec.report.cells import best_place, paper_cell, score_cell
from afec.report.comparison import Comparison, compare
from afec.report.decade_table import decade_table
from afec.report.game_tables import game_tables
from afec.report.paper import Published, published, published_after, published_replay, published_transfer
from afec.report.reading import Runs, mean
from afec.report.rows import NO_MEMORY, Row, ordered, problems, rows_of
from afec.report.statistics import number
from afec.report.table import UNKNOWN, Cell, Column, Table, print_table
from afec.report.unit_table import unit_table

__all__ = ["after_tasks", "differences", "metrics_of", "print_tables", "results", "score_cell", "tables_of", "to_csv"]

Columns = list[tuple[Column, list[Cell]]]
AFTER = (2, 5, 10, 20, 25, 50, 100)
EVERY_PHASE = 11
"""Phases of the scenario `class` up to which each has its column: a base phase and ten others."""
TASK = {
    "aac": "{average}: the mean test {score} of all tasks after the last one was learned",
    "old_accuracy": "old tasks: the mean of all tasks but the last one",
    "new_accuracy": "new task: the last task alone",
    "mean_new_task_accuracy": "each new task: the mean {score} of each task just after it was learned",
    "bwt": "BWT (backward transfer): what old tasks have gained or lost since they were learned",
    "forgetting": "forgetting: how far old tasks are below their best {score}, lower is better",
    "fwt_zero_shot": "FWT zero-shot (forward transfer): {score} just before a task is learned, less that at random weights",
    "fwt_vs_scratch": "FWT vs scratch: {score} just after a task was learned, less that of the task learned alone",
    "transfer": "transfer: other tasks, by a linear probe on the final features",
}
CLASS = {
    "average_incremental_accuracy": "average incremental: test accuracy over all classes so far, the mean over all phases with "
    "the base phase",
    "final_accuracy": "all classes: accuracy over all classes after the last phase",
    "old_class_accuracy": "old classes: after the last phase, over the classes of all phases before it",
    "new_class_accuracy": "new classes: after the last phase, over its own classes",
    "forgetting": "forgetting: how far the classes of old phases are below their best {score}, lower is better",
}
"""The metrics of the two scenarios, by their names in `afec.metrics`: the name of the column and what it means."""
CSV = ("aac", "old_accuracy", "new_accuracy", "mean_new_task_accuracy", "bwt", "fwt_vs_scratch", "transfer")
PROTOCOL = ("memory", "prediction", "class_order")
"""Columns that say how a number of the scenario `class` came about; empty in the scenario `task`."""
LOWER_IS_BETTER = ("forgetting",)
GAINS = (
    "aac", "old_accuracy", "new_accuracy", "mean_new_task_accuracy", "transfer",
    *(metric for metric in CLASS if metric not in LOWER_IS_BETTER),
)  # fmt: skip
COMPUTE = "compute: samples learned from or measured on (θ_e, Fisher and importance included), relative to finetune"
MEMORY = "memory: how many old images are kept, and what they take; rows of another memory are in another table"
PREDICTION = "prediction: by which rule; two rules of one method are in two tables"
BOLD = "Bold: the best mean of a column, whether or not the difference means anything."
RECALLED = (
    " *: some trainings were recalled from earlier runs and not done again, so these CPU times cannot be compared."
)


def metrics_of(row: Row) -> dict[str, Column]:
    """The columns of the row's scenario, in the words of its kind of score, by their names in `afec.metrics`."""
    found = {}
    for key, text in (CLASS if row.pooled else TASK).items():
        meaning = text.format(average=row.kind.average, score=row.kind.name)
        found[key] = Column(meaning.partition(":")[0].partition(" (")[0], meaning)
    return found


def tables_of(rows: Sequence[Row], mark: str = "") -> list[Table]:
    """The tables of rows that can be compared, without those that have nothing to say."""
    rows = ordered([row for row in rows if row.metrics])
    if not rows:
        return []
    where = _where(rows[0], mark)
    found = (
        results(rows, mark),
        after_tasks(rows, mark),
        differences(rows),
        decade_table(rows, where),
        unit_table(rows, where),
        *game_tables(rows, where),
    )
    return [table for table in found if table is not None]


def print_tables(console: Console, runs: Runs) -> None:
    """The tables of these runs that fit a terminal; other tasks or another net are another table."""
    for mark, group in problems(rows_of(runs)):
        for table in tables_of(group, mark):
            if table.key != "units":  # a line for each layer of each row: for a file and the page
                print_table(console, table)


def results(rows: Sequence[Row], mark: str = "") -> Table:
    """Every metric, with the paper's average, and the cost."""
    kind, names, tasks = rows[0].kind, metrics_of(rows[0]), max(map(_tasks, rows))
    metrics = [m for m in names if any(not math.isnan(v) for row in rows for v in row.values(m))]
    papers = {
        "aac": [published(row.config, tasks) for row in rows],
        "transfer": [published_transfer(row.config) for row in rows],
        "average_incremental_accuracy": [published_replay(row.config) for row in rows],
    }
    unit = mean([mean(row.samples.values()) for row in rows if row.config.label == "finetune" and row.samples])
    seeds = len({seed for row in rows for seed in row.metrics})
    columns: Columns = [(Column("method", kind="label"), [_label(row, seeds) for row in rows])]
    if rows[0].pooled and any(row.memory != NO_MEMORY for row in rows):
        columns += [
            (Column("memory", MEMORY, kind="text"), [_memory_cell(row) for row in rows]),
            (Column("prediction", PREDICTION, kind="text"), [Cell(row.prediction) for row in rows]),
        ]
    for metric in metrics:
        values, lower = [row.values(metric) for row in rows], metric in LOWER_IS_BETTER
        columns += _scores(rows, names[metric], values, papers.get(metric, []), lower)
        if metric == metrics[0]:  # what it was bought with, where everybody looks
            compute = [mean(row.samples.values()) / (unit or math.nan) for row in rows]
            columns.append((Column("compute", COMPUTE), [_cost_cell([cost], ".2f", " ×") for cost in compute]))
    recalled = [any(one.recalled for one in row.readings.values()) for row in rows]
    times = [_cost_cell(row.spent("cpu_seconds"), end="*" * star) for row, star in zip(rows, recalled, strict=True)]
    columns += [
        (Column("epochs"), [_cost_cell(list(row.epochs.values())) for row in rows]),
        (Column("CPU s"), times),
        (Column("memory MB"), [_cost_cell(row.spent("peak_memory_mb")) for row in rows]),
    ]
    spread = f"mean ± std of {seeds} seeds" if seeds > 1 else "one seed"
    title = f"{_where(rows[0], mark)}: test {kind.title}, {spread}"
    return _table("results", title, columns, BOLD + RECALLED * any(recalled), rows[0].config.scale)


def after_tasks(rows: Sequence[Row], mark: str = "") -> Table | None:
    """The average after 2, 5, 10, … tasks, as the paper prints it; after each phase of the scenario `class`."""
    rows = [row for row in rows if row.config.method != "scratch"]
    tasks = max(map(_tasks, rows), default=0)
    if tasks < 3:  # the table of results says it
        return None
    config, kind, pooled = rows[0].config, rows[0].kind, rows[0].pooled
    phases = range(1, tasks) if tasks <= EVERY_PHASE else (1, *AFTER)
    asked = phases if pooled else (*AFTER, *published_after(config.benchmark))
    steps = [*sorted({k for k in asked if k < tasks}), tasks]
    k = steps[0]
    if pooled:
        what = "accuracy over all classes after phase k, A_k"
        meaning = f"A{k}: test accuracy over all classes so far after phase {k}; the other columns likewise"
    else:
        what = f"{kind.average} after k tasks, A_k"
        meaning = (
            f"A{k}: the mean test {kind.name} of the first {k} tasks just after task {k} was learned; the other columns "
            f"likewise. A{tasks}, after the last task, is {kind.average}"
        )
    curves = [row.curves for row in rows]
    columns: Columns = [(Column("method", kind="label"), [Cell(row.label) for row in rows])]
    for k in steps:
        values = [[float(curve[k - 1]) if k <= len(curve) else math.nan for curve in every] for every in curves]
        papers = [] if pooled else [published(row.config, k) for row in rows]
        columns += _scores(rows, Column(f"A{k}", meaning if k == steps[0] else ""), values, papers)
    title = f"{_where(rows[0], mark)}: {what}{', in ' + kind.unit if kind.unit else ''}"
    return _table("after", title, columns, "", config.scale)


def _scores(
    rows: Sequence[Row],
    column: Column,
    values: Sequence[list[float]],
    papers: Sequence[Published | None],
    lower: bool = False,
) -> Columns:
    """A column of scores, the best in bold, and beside it the paper's, where it has some."""
    best, kind = best_place(rows, values, lower=lower), rows[0].kind
    ours = (column, [score_cell(found, kind, best=place == best) for place, found in enumerate(values)])
    paper = (Column(f"{column.name}, paper"), [paper_cell(found) for found in papers])
    return [ours, paper] if any(papers) else [ours]


def _table(key: str, title: str, columns: Columns, caption: str, scale: str) -> Table:
    if any(cell.paper for _, cells in columns for cell in cells):
        caption = f"{caption} {_scale_note(scale)}".strip()
    return Table(
        key, title, tuple(column for column, _ in columns), tuple(zip(*(c for _, c in columns), strict=True)), caption
    )


def differences(rows: Sequence[Row]) -> Table | None:
    """Each method with AFEC against the same one without, at its own and at equal compute, seed by seed."""
    found = [one for metric in GAINS for one in compare(rows, metric)]
    if not found:
        return None
    found.sort(key=lambda one: (rows.index(one.ours), rows.index(one.theirs), GAINS.index(one.metric)))
    kind, names = rows[0].kind, metrics_of(rows[0])
    head = (
        Column("with AFEC", kind="label"),
        Column("against", kind="label"),
        Column("metric", kind="text"),
        *map(Column, ("difference", "95 % bootstrap", "95 % Student's t", "seeds won")),
        Column("zero is", kind="text"),
    )
    caption = (
        f"Differences within seeds{', in' + kind.in_difference if kind.difference else ''}: runs of one seed share tasks, "
        "images and initial weights. Zero is inside where both 95 % intervals contain it: chance alone can explain such a "
        "difference. Zero is outside where neither contains it. Where one of them does, the table says which; with few seeds "
        "the bootstrap's is too narrow, and Student's t supposes normal differences. "
        f"{len(found)} comparisons are shown: with so many, expect {0.05 * len(found):.1f} outside by chance alone."
    )
    body = tuple(_difference(one, names[one.metric].name, kind) for one in found)
    return Table("differences", "AFEC's gain, paired over seeds", head, body, caption)


def _difference(one: Comparison, metric: str, kind: ScoreKind) -> tuple[Cell, ...]:
    found, (low, high) = one.difference, one.bootstrap

    def signed(value: float) -> str:
        return number(kind.factor * value, kind.digits, sign=True)

    def interval(low: float, high: float) -> Cell:
        return Cell("one seed only") if found.pairs == 1 else Cell(f"{signed(low)} to {signed(high)}", sort=low)

    return (
        Cell(one.ours.label),
        Cell(one.theirs.label),
        Cell(metric),
        Cell(signed(found.mean), sort=found.mean),
        interval(low, high),
        interval(found.mean - found.half_width, found.mean + found.half_width),
        Cell(f"{found.won} of {found.pairs}", sort=found.won / found.pairs),
        Cell(_where_zero_is(one), best=one.distinguishable),
    )


def _where_zero_is(one: Comparison) -> str:
    if one.difference.pairs == 1:
        return "unknown"
    if not one.difference.spreads:
        return "unknown: all seeds alike"
    low, high = one.bootstrap
    within = {"bootstrap": low <= 0 <= high, "Student's": not one.difference.distinguishable}
    inside = [name for name, has in within.items() if has]
    return ("outside", f"inside {inside[0]}" if inside else "", "inside")[len(inside)]


def to_csv(rows: Sequence[Row]) -> str:
    """One line for each row and seed, scores as they are in scores.csv; empty where a metric does not exist."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    more = [metric for metric in dict.fromkeys((*TASK, *CLASS)) if metric not in CSV]
    columns = (
        "benchmark",
        "scale",
        "tasks",
        "method",
        "hash",
        "seed",
        *CSV,
        "epochs",
        "samples",
        *more,
        "score",
        *PROTOCOL,
    )
    writer.writerow(columns)
    written = set[int]()
    for mark, group in problems(rows):
        for row in group:
            if id(row) in written:  # without a memory it stands beside every memory
                continue
            written.add(id(row))
            protocol = (row.memory, row.prediction, row.class_order) if row.pooled else ("", "", "")
            for seed in sorted(row.metrics):
                known = {m: "" if math.isnan(v) else f"{v:.6f}" for m, v in row.metrics[seed].items()}
                config, first, last = row.config, [known.get(m, "") for m in CSV], [known.get(m, "") for m in more]
                about = [config.benchmark, config.scale, mark, row.label, config.hash, seed]
                writer.writerow([*about, *first, row.epochs[seed], row.samples[seed], *last, config.score, *protocol])
    return text.getvalue()


def _cost_cell(values: Sequence[float], digits: str = ".0f", end: str = "") -> Cell:
    average = mean(values)
    return UNKNOWN if math.isnan(average) else Cell(f"{average:{digits}}{end}", sort=average)


def _memory_cell(row: Row) -> Cell:
    """How many images of old classes are kept, and what they take where the runs say it."""
    takes = mean(one.kept_mb for one in row.readings.values())
    return Cell(row.memory if math.isnan(takes) else f"{row.memory}, {takes:{'.0f' if takes >= 100 else '.2g'}} MB")


def _label(row: Row, seeds: int) -> Cell:
    return Cell(row.label if len(row.metrics) == seeds else f"{row.label}, {len(row.metrics)} of {seeds} seeds")


def _where(row: Row, mark: str) -> str:
    return f"{row.config.benchmark} at scale {row.config.scale}" + (f", {mark}" if mark else "")


def _scale_note(scale: str) -> str:
    if scale == FULL:
        ours = "ours are at the scale `full`: its setting as we read it, where no `--set` has changed it"
        return f"The paper's numbers are its own, of five runs; {ours}."
    return f"The paper's numbers are of its full scale; ours are at the smaller scale `{scale}`, so they need not be equal."


def _tasks(row: Row) -> int:
    return max((one.matrix.shape[1] for one in row.readings.values() if one.matrix is not None), default=0)
