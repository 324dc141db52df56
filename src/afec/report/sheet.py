"""The tables of a study as rows of cells: the page, Markdown and LaTeX write the same ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from afec.lab.spec import FULL
from afec.metrics import aac
from afec.report.compared import Compared, compare
from afec.report.paired import mean_and_std, number
from afec.report.paper import Published, published, published_after, published_transfer
from afec.report.reading import mean
from afec.report.table import COLUMNS, Line, top

__all__ = ["Cell", "Sheet", "after_tasks", "differences", "ordered", "results"]

AFTER = (2, 5, 10, 20, 25, 50, 100)
NAMES = {
    "aac": "AAC",
    "old_accuracy": "old tasks",
    "new_accuracy": "new task",
    "mean_new_task_accuracy": "each new task",
    "bwt": "BWT",
    "forgetting": "forgetting",
    "fwt_zero_shot": "FWT zero-shot",
    "fwt_vs_scratch": "FWT vs scratch",
    "transfer": "transfer",
}
MEANINGS = {
    "aac": "AAC: the mean test accuracy of all tasks after the last one was learned",
    "old_accuracy": "old tasks: the same without the last task",
    "new_accuracy": "new task: the last task alone",
    "mean_new_task_accuracy": "each new task: the mean accuracy of each task just after it was learned",
    "bwt": "BWT (backward transfer): what old tasks have gained or lost since they were learned",
    "forgetting": "forgetting: how far old tasks are below their best accuracy, lower is better",
    "fwt_zero_shot": "FWT zero-shot (forward transfer): accuracy just before a task is learned, less that at random weights",
    "fwt_vs_scratch": "FWT vs scratch: accuracy just after a task was learned, less that of the task learned alone",
    "transfer": "transfer: other tasks, by a linear probe on the final features",
}
"""What the columns mean, by the names of `NAMES`."""
LOWER_IS_BETTER = ("forgetting",)
PAPER = "paper"


@dataclass(frozen=True)
class Cell:
    """One cell: its text, what it is sorted by, and whether it is the best of its column."""

    text: str
    sort: float | None = None
    best: bool = False
    paper: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table."""

    key: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""
    legend: str = ""
    """What its columns mean: the page says it under the table."""


def ordered(rows: Sequence[Line]) -> list[Line]:
    """Fine-tuning first; each method, then at equal compute, then with AFEC; bounds and references last."""
    bases = list(dict.fromkeys(_base(row) for row in rows))

    def place(row: Line) -> tuple[object, ...]:
        reference = row.config.reference
        weights = [s.get("strength", 0) for s in row.config.settings.values()]
        known = [float(w) for w in weights if isinstance(w, int | float)]
        terms = row.config.method.split("+")
        return (
            reference,
            row.config.method != "finetune",
            bases.index(_base(row)),
            "afec" in terms,
            row.config.variant,
            known,
        )

    return sorted(rows, key=place)


def _base(row: Line) -> str:
    return "+".join(term for term in row.config.method.split("+") if term != "afec")


def results(rows: Sequence[Line]) -> Sheet:
    """Every metric, with the paper's averaged accuracy and the cost."""
    tasks = max((_tasks(row) for row in rows), default=0)
    metrics = [m for m in NAMES if any(not math.isnan(v) for row in rows for v in row.values(m))]
    unit = mean([mean(row.samples.values()) for row in rows if row.config.label == "finetune" and row.samples])
    theirs = {
        "aac": [published(row.config, tasks) for row in rows],
        "transfer": [published_transfer(row.config) for row in rows],
    }
    beside = [m for m in ("aac", "transfer") if m in metrics and any(theirs[m])]
    head = ["method"]
    for metric in metrics:
        head += [NAMES[metric], *([f"{NAMES[metric]}, {PAPER}"] if metric in beside else [])]
        head += ["compute"] if metric == metrics[0] else []  # what it was bought with, where everybody looks
    best = {m: _best(rows, m) for m in metrics}
    body = []
    for place, row in enumerate(rows):
        line = [Cell(row.label)]
        for metric in metrics:
            line.append(of_values(row.values(metric), best=row is best[metric]))
            if metric in beside:
                line.append(of_paper(theirs[metric][place]))
            if metric == metrics[0]:
                cost = mean(row.samples.values()) / unit
                line.append(Cell("–") if math.isnan(cost) else Cell(f"{cost:.2f} ×", cost))
        line += [
            _plain(mean(row.epochs.values())),
            _plain(mean([r.cost["cpu_seconds"] for r in row.readings.values() if "cpu_seconds" in r.cost])),
            _plain(mean([r.cost["peak_memory_mb"] for r in row.readings.values() if "peak_memory_mb" in r.cost])),
        ]
        body.append(tuple(line))
    head += ["epochs", "CPU s", "memory MB"]
    config = rows[0].config
    title = f"{config.benchmark} at scale {config.scale}: test accuracy in %, mean ± std (seeds)"
    legend = (
        f"{'; '.join(MEANINGS[m] for m in metrics)}. In brackets: the number of seeds. compute: samples learned from or "
        "measured on (θ_e, Fisher and importance included), relative to finetune. Bold: the best mean of a column, "
        "whether or not the difference means anything."
    )
    return Sheet("results", title, tuple(head), tuple(body), _scale_note(config.scale) if beside else "", legend)


def after_tasks(rows: Sequence[Line]) -> Sheet | None:
    """Averaged accuracy after 2, 5, 10, … tasks, as the paper prints it."""
    rows = [row for row in rows if row.config.method != "scratch"]
    tasks = max((_tasks(row) for row in rows), default=0)
    if tasks < 3:  # the table of results says it
        return None
    config = rows[0].config
    steps = sorted({k for k in (*AFTER, *published_after(config.benchmark)) if k < tasks} | {tasks})
    beside = [k for k in steps if any(published(row.config, k) for row in rows)]
    head = ["method"]
    for k in steps:
        head += [f"A{k}", f"A{k}, {PAPER}"] if k in beside else [f"A{k}"]
    body = []
    values = {k: [_after(row, k) for row in rows] for k in steps}
    competes = [not row.config.reference for row in rows]
    tops = {k: top([mean(v) if c else math.nan for c, v in zip(competes, values[k], strict=True)]) for k in steps}
    for place, row in enumerate(rows):
        line = [Cell(row.label)]
        for k in steps:
            line.append(of_values(values[k][place], best=tops[k] == place))
            if k in beside:
                line.append(of_paper(published(row.config, k)))
        body.append(tuple(line))
    title = f"{config.benchmark} at scale {config.scale}: averaged accuracy A_k after k tasks in %, mean ± std (seeds)"
    first = steps[0]
    legend = (
        f"A{first}: the mean test accuracy of the first {first} tasks just after task {first} was learned; the other columns "
        f"likewise. A{tasks}, after the last task, is AAC."
    )
    return Sheet("after", title, tuple(head), tuple(body), _scale_note(config.scale) if beside else "", legend)


def differences(rows: Sequence[Line]) -> Sheet | None:
    """Each method with AFEC against the same one without, at its own and at equal compute, seed by seed."""
    metrics = ("aac", "old_accuracy", "new_accuracy", "mean_new_task_accuracy", "transfer")
    found = [one for metric in metrics for one in compare(rows, metric)]
    if not found:
        return None
    found.sort(key=lambda one: (rows.index(one.ours), rows.index(one.theirs), metrics.index(one.metric)))
    body = tuple(_difference(one) for one in found)
    head = (
        "with AFEC",
        "against",
        "metric",
        "difference",
        "95 % bootstrap",
        "95 % Student's t",
        "seeds won",
        "zero is",
    )
    caption = (
        "Differences within seeds, in points: runs of one seed share tasks, images and initial weights. Zero is "
        "inside where both 95 % intervals contain it: chance alone can explain such a difference. Zero is outside where "
        "neither contains it. Where one of them does, the table says which; with few seeds the bootstrap's is too narrow, "
        "and Student's t supposes normal differences."
        f" {len(found)} comparisons are shown: with so many, expect {0.05 * len(found):.1f} outside by chance alone."
    )
    return Sheet("differences", "AFEC's gain, paired over seeds", head, body, caption)


def _difference(one: Compared) -> tuple[Cell, ...]:
    found, (low, high) = one.difference, one.bootstrap
    average, half = 100 * found.mean, 100 * found.half_width
    unknown = Cell("one seed only")
    return (
        Cell(one.ours.label),
        Cell(one.theirs.label),
        Cell(COLUMNS[one.metric]),
        Cell(number(average, sign=True), average),
        unknown if found.pairs == 1 else Cell(_interval(100 * low, 100 * high), low),
        unknown if found.pairs == 1 else Cell(_interval(average - half, average + half), average - half),
        Cell(f"{found.won} of {found.pairs}", found.won / found.pairs),
        Cell(_where_zero_is(one), best=one.distinguishable),
    )


def _where_zero_is(one: Compared) -> str:
    if one.difference.pairs == 1:
        return "unknown"
    if not one.difference.spreads:
        return "unknown: all seeds alike"
    low, high = one.bootstrap
    inside = [
        name
        for name, has in (("bootstrap", low <= 0 <= high), ("Student's", not one.difference.distinguishable))
        if has
    ]
    return ("outside", f"inside {inside[0]}" if inside else "", "inside")[len(inside)]


def _interval(low: float, high: float) -> str:
    return f"{number(low, sign=True)} to {number(high, sign=True)}"


def _scale_note(scale: str) -> str:
    if scale == FULL:
        ours = "ours are at the scale `full`: its setting as we read it, where no `--set` has changed it"
        return f"The paper's numbers are its own, of five runs; {ours}."
    return f"The paper's numbers are of its full scale; ours are at the smaller scale `{scale}`, so they need not be equal."


def of_values(values: Sequence[float], *, best: bool = False) -> Cell:
    """Mean ± standard deviation (seeds), from fractions."""
    if not values or any(map(math.isnan, values)):
        return Cell("–")
    average, std = mean_and_std(values)
    spread = "" if math.isnan(std) else f" ± {100 * std:.1f}"
    return Cell(f"{number(100 * average)}{spread} ({len(values)})", average, best)


def of_paper(found: Published | None) -> Cell:
    """As the paper prints it."""
    if found is None:
        return Cell("–", paper=True)
    return Cell(f"{found.mean:.2f}" + ("" if found.std is None else f" ± {found.std:.2f}"), found.mean, paper=True)


def _plain(value: float) -> Cell:
    return Cell("–") if math.isnan(value) else Cell(f"{value:.0f}", value)


def _tasks(row: Line) -> int:
    return max((one.matrix.shape[1] for one in row.readings.values() if one.matrix is not None), default=0)


def _after(row: Line, k: int) -> list[float]:
    every = [one.matrix for _, one in sorted(row.readings.items()) if one.matrix is not None]
    return [aac(matrix, k) if k <= matrix.shape[1] else math.nan for matrix in every]


def _best(rows: Sequence[Line], metric: str) -> Line | None:
    sign = -1 if metric in LOWER_IS_BETTER else 1
    place = top([math.nan if row.config.reference else sign * mean(row.values(metric)) for row in rows])
    return None if place is None else rows[place]
