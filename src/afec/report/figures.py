"""The figures of a study, from the rows of its table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from afec.experiments import ScoreKind
from afec.metrics import confusion, new_task_accuracy
from afec.report.chart import Bars, Chart, Figure, Heat, Lines, Trace
from afec.report.reading import mean
from afec.report.returns import accumulated_figure, has_evaluations, learning_figure
from afec.report.rows import Row
from afec.report.statistics import mean_and_std, number
from afec.report.total_compute import total_compute

__all__ = ["FIGURES", "MOST", "OF_CLASSES", "OF_GAMES", "Series", "figures_of", "series_of", "shown_rows"]

CAPTIONS = {
    "accuracy": "The mean {score} of all the tasks learned so far, after each of them.",
    "all-classes": "Accuracy over all classes so far, after each phase; the first is the base phase. Their mean is the average "
    "incremental accuracy.",
    "new-tasks": "The {score} of each task just after it was learned: where holding on to the old tasks hinders a new one, "
    "it is seen here.",
    "transfer": "Forward transfer: what having learned other tasks does for a new one, before it is learned (the paper's "
    "formula; with a fresh head for each task it is near zero whatever the method does) and after, against the "
    "same task learned alone from random weights. Backward transfer: what old tasks have gained or lost since "
    "they were learned. Whiskers: ± one standard deviation.",
    "matrix": "The {score} of every task (columns) after each step (rows; the first row is at random initialisation), "
    "the mean over the seeds. On the diagonal a task is new; below it, old; above it, not learned yet. "
    "Dark is {low}, bright is {high}.",
    "confusion": "After {after}: the test images of each phase (rows), and what part of them was given a class of each phase "
    "(columns), in %; the mean over the seeds. On the diagonal an answer may still be another class of the same phase.",
    "strength": "Over the seeds that every strength has, with and without AFEC. These are test scores: for choosing a "
    "strength there is `afec tune`.",
    "trade-off": "After the last task; further to the upper right is better. ",
    "compute": "Compute: samples learned from or measured on. With the search: every trial of `runs/tuning` counted once, by "
    "the mean over its seeds, and one training with what was found. Arms: ± one standard deviation over the seeds.",
    "cost": "Compute: samples learned from or measured on, θ_e, Fisher and importance included. A training that no guard "
    "touches (the first task, θ_e) is done once and shared between runs, so time can be less than compute says. Memory: "
    "the peak of the process.",
}
BANDS = " Bands: ± one standard deviation over the seeds."
ERROR_BARS = (
    " Error bars: ± one standard deviation over the seeds; the lines are moved a little sideways, "
    "so that no bar hides another."
)
ONE_SEED = " One seed: the spread over seeds is not known."
NO_NUMBERS = "there is no finished run that has these numbers"
ONE_TASK = "there is only one task; the table has its score"
TWO_POINTS = "there are only two points; a line through them would say no more than their numbers"
ONE_ROW = "there is only one row to draw, and nothing to compare it with; the table has its numbers"
ALL_ZERO = "it is zero for every row"
SINGLE_RUNS = (
    "each row has one seed only, so a difference may be chance; the table has the numbers, and `--seeds` runs more"
)
NO_SCRATCH = " There is no `scratch` run here; add `--method scratch` for the forward transfer that says something."
NO_ANSWERS = (
    "no finished run says which phase's classes it has answered; runs of the scenario `class` do, if they are not of an "
    "earlier version"
)
POOLED = "there is no BWT or FWT in the scenario `class`; the table has old and new classes apart"
MOST = 12
"""Methods in one figure: more colours than that nobody tells apart."""
Rows = Sequence[Row]


def figures_of(rows: Rows) -> list[Figure]:
    """All of them, in the order in which they are read."""
    absent = (() if has_evaluations(rows) else OF_GAMES) + (() if rows[0].pooled else OF_CLASSES)
    return [make(rows) for key, make in FIGURES.items() if key not in absent]


def average_curves(rows: Rows) -> Figure:
    """The average over the tasks so far, or over all classes so far."""
    shown, more = shown_rows(rows)
    traces = tuple(_curve(rows, row, row.curves) for row in shown)
    kind = rows[0].kind
    if rows[0].pooled:
        title, caption, x_label = "Accuracy over all classes so far", CAPTIONS["all-classes"], "phases learned"
    else:
        title, x_label = f"{kind.average} over the tasks so far", "tasks learned"
        caption = CAPTIONS["accuracy"].format(score=kind.name)
    chart = Lines(title, x_label, _axis(kind), traces, limits=_limits(kind))
    return _figure("accuracy", title, caption + more, chart)


def new_tasks(rows: Rows) -> Figure:
    """The score of each new task just after it was learned."""
    shown, more = shown_rows(rows, scratch=True)
    kind = rows[0].kind
    traces = tuple(
        _curve(rows, row, [new_task_accuracy(one.scores(), limits=kind.limits) for one in row.every_reading])
        for row in shown
    )
    chart = Lines(f"{kind.name} of each new task", "task", _axis(kind), traces, limits=_limits(kind))
    caption = CAPTIONS["new-tasks"].format(score=kind.name) + more
    return _figure("new-tasks", "Learning each new task", caption, chart)


def transfer(rows: Rows) -> Figure:
    """BWT and both FWT as bars."""
    if rows[0].pooled:
        return Figure("transfer", "Knowledge transfer", "", missing=POOLED)
    shown, more = shown_rows(rows)
    kind = rows[0].kind
    panels = {
        "fwt_zero_shot": "FWT, zero-shot (the paper's formula)",
        "fwt_vs_scratch": "FWT against learning from scratch",
        "bwt": "BWT",
    }
    charts = []
    for metric, title in panels.items():
        values = [(row, [kind.factor * value for value in row.values(metric)]) for row in shown]
        charts.append(_bars(rows, values, title, kind.difference, kind.digits))
    known = any("scratch" in row.config.method for row in rows)
    caption = CAPTIONS["transfer"] + more + ("" if known else NO_SCRATCH)
    return _of_several_seeds(shown, _figure("transfer", "Knowledge transfer", caption, *charts))


def matrices(rows: Rows) -> Figure:
    """A[i, j], one heat map for each method."""
    shown, more = shown_rows(rows)
    kind = rows[0].kind
    every = [(row, [one.scores() for one in row.every_reading]) for row in shown]
    means = [(row, kind.factor * np.mean(found, axis=0)) for row, found in every if len({m.shape for m in found}) == 1]
    low, high = _limits(kind)
    if math.isinf(high - low):  # then as far as the numbers go, the same in every map
        known = [value for _, values in means for value in values[np.isfinite(values)]] or [0.0]
        low, high = float(min(known)), float(max(known))
    digits = 0 if high - low > 20 else kind.digits
    about = (kind.title, kind.in_unit, (low, high), digits)
    charts = [Heat(row.label, v, row.every_reading[0].names, len(row.readings), *about) for row, v in means]
    ends = {"low": f"{number(low, digits)}{kind.in_unit}", "high": f"{number(high, digits)}{kind.in_unit}"}
    caption = CAPTIONS["matrix"].format(score=kind.title, **ends) + more
    return _figure("matrix", f"The {kind.name} of every task after every task, A[i, j]", caption, *charts)


def confusions(rows: Rows) -> Figure:
    """Which phase's classes are answered to images of each phase: after every phase of one method, or the last of several."""
    title = "Confusion matrix by phase"
    shown, more = shown_rows(rows)
    known = [(row, [one.answers for one in row.every_reading if one.answers]) for row in shown]
    known = [(row, found) for row, found in known if found]
    if not known:
        return Figure("confusion", title, "", missing=NO_ANSWERS)
    last = min(len(answers) for _, found in known for answers in found)
    steps = range(2, last + 1) if len(known) == 1 else [last]
    charts = []
    for row, found in known:
        for step in steps:
            values = 100 * np.mean([confusion(answers[step - 1]) for answers in found], axis=0)
            heading = row.label if len(known) > 1 else f"after phase {step}"
            names = row.every_reading[0].names[:step]
            about = ("answers in %", " %", (0.0, 100.0), 0, "answered a class of phase", "images of phase")
            charts.append(Heat(heading, values, names, len(found), *about))
    after = f"all {last} phases" if len(known) > 1 else "each phase"
    lacking = [row.label for row in shown if not any(row is one for one, _ in known)]
    more += f" Without these numbers, as runs of earlier versions are: {', '.join(lacking)}." if lacking else ""
    return _figure("confusion", title, CAPTIONS["confusion"].format(after=after) + more, *charts)


def strength(rows: Rows) -> Figure:
    """Old tasks, the new task and the average against λ, with and without AFEC."""
    kind, parts = rows[0].kind, rows[0].parts
    title = f"The {kind.name} against the strength of the regulariser"
    try:
        found = series_of(rows)
    except ValueError as error:
        return Figure("strength", title, "", missing=str(error))
    charts = []
    for regulariser, every in _coloured(found).items():
        for metric, name in ((parts.old, "old tasks"), (parts.new, "new task"), (parts.average, "average")):
            traces = tuple(_along(*one, metric) for one in every)
            heading = f"{regulariser}: {name}"
            charts.append(Lines(heading, "strength λ", _axis(kind), traces, log_x=True, limits=_limits(kind)))
    return _figure("strength", title, CAPTIONS["strength"], *charts)


def trade_off(rows: Rows) -> Figure:
    """Old tasks against the new one: along the strengths of a grid, or one point for each row."""
    title, arms = "Old tasks against the new one", "Arms: ± one standard deviation over the seeds."
    kind, parts = rows[0].kind, rows[0].parts
    x_label, y_label = (f"{name}, {kind.unit}" if kind.unit else name for name in ("old tasks", "new task"))
    shown, more = shown_rows(rows)
    try:
        groups = _coloured(series_of(rows))
    except ValueError:
        groups = {}
    alone = not groups
    if alone:
        groups = {"old against new": [(Series(row.label, {0.0: row}), _colour(rows, row)) for row in shown]}
    charts = []
    for name, every in groups.items():
        found = [_along(*one, parts.new, parts.old, marks=not alone) for one in every]
        traces = tuple(one for one in found if not math.isnan(one.x[0] + one.y[0]))
        charts += [Lines(name, x_label, y_label, traces, bands=False, limits=_limits(kind))] if traces else []
    if alone:
        return _of_several_seeds(shown, _figure("trade-off", title, CAPTIONS["trade-off"] + arms + more, *charts))
    caption = f"{CAPTIONS['trade-off']}Each line goes along the strengths of one method. {arms}"
    return _figure("trade-off", title, caption, *charts)


def cost(rows: Rows) -> Figure:
    """Compute, time and memory."""
    shown, more = shown_rows(rows, scratch=True)
    unit = mean([mean(row.samples.values()) for row in rows if row.config.label == "finetune"])
    charts = []
    if unit > 0:
        compute = [(row, [samples / unit for samples in row.samples.values()]) for row in shown]
        charts.append(_bars(rows, compute, "compute, relative to finetune", "×", 2))
    for key, title, name in (("cpu_seconds", "CPU time", "s"), ("peak_memory_mb", "peak memory", "MB")):
        most = max((value for row in shown for value in row.spent(key)), default=0)
        scale, unit_name = (1 / 3600, "h") if name == "s" and most > 7200 else (1, name)
        values = [(row, [scale * value for value in row.spent(key)]) for row in shown]
        charts.append(_bars(rows, values, title, unit_name))
    return _figure("cost", "What each method costs", CAPTIONS["cost"] + more, *charts)


def compute(rows: Rows) -> Figure:
    """The average against the compute of one run and of the search for its strengths."""
    kind, average = rows[0].kind, rows[0].parts.average
    title = f"What {kind.name} costs, tuning included"
    shown, more = shown_rows([row for row in rows if not row.config.reference])
    unit = mean([mean(row.samples.values()) for row in rows if row.config.label == "finetune" and row.samples])
    if math.isnan(unit) or unit == 0:
        return Figure("compute", title, "", missing="there is no `finetune` run to measure compute by; run it as well")
    costs = [(row, total_compute(row)) for row in shown]
    charts = []
    for name, included in (("one training", False), ("with the search for its strengths", True)):
        traces = []
        for row, cost in costs:
            y, spread = _shown(row, average)
            samples = cost.samples if included else cost.training
            if not math.isnan(y) and (not included or cost.trials or not _searchable(row)):
                point = (samples / unit,), (y,), (spread,)
                traces.append(Trace(row.label, _colour(rows, row), *point, len(row.metrics), spread_x=(math.nan,)))
        label = "compute, relative to one finetune"
        charts.append(Lines(name, label, _axis(kind), tuple(traces), log_x=True, bands=False))
    unknown = [row.label for row, cost in costs if _searchable(row) and not cost.trials]
    if unknown:
        more += f" Not on the right, because no trials are beside the runs: {', '.join(unknown)}."
    return _figure("compute", title, CAPTIONS["compute"] + more, *charts)


def _searchable(row: Row) -> bool:
    return any(isinstance(s.get("strength"), int | float) for s in row.config.settings.values())


FIGURES: dict[str, Callable[[Rows], Figure]] = {
    "accuracy": average_curves,
    "new-tasks": new_tasks,
    "transfer": transfer,
    "matrix": matrices,
    "confusion": confusions,
    "strength": strength,
    "trade-off": trade_off,
    "cost": cost,
    "compute": compute,
    "learning": learning_figure,
    "accumulated": accumulated_figure,
}
OF_GAMES = ("learning", "accumulated")
OF_CLASSES = ("confusion",)
"""Figures of the scenario `class`."""
"""Figures that need evaluations on the way, as games have them."""


def _shown(row: Row, metric: str) -> tuple[float, float]:
    """Mean and standard deviation as they are shown."""
    return mean_and_std([row.kind.factor * value for value in row.values(metric)])


def _axis(kind: ScoreKind) -> str:
    return f"test {kind.name}, {kind.unit}" if kind.unit else f"test {kind.name}"


def _limits(kind: ScoreKind) -> tuple[float, float]:
    return kind.factor * kind.low, kind.factor * kind.high


def shown_rows(rows: Rows, *, scratch: bool = False) -> tuple[list[Row], str]:
    """The rows that are drawn, and what to say about the others."""
    every = [row for row in rows if row.metrics and (scratch or row.config.method != "scratch")]
    rest = len(every) - MOST
    more = f" The first {MOST} of {len(every)} rows are drawn; choose others with `--where`." if rest > 0 else ""
    return every[:MOST], more


def _colour(rows: Rows, row: Row) -> int:
    return next(place for place, one in enumerate(rows) if one is row)


def _columns(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _curve(rows: Rows, row: Row, curves: Sequence[NDArray[np.float64]]) -> Trace:
    length = min(map(len, curves))
    pairs = [mean_and_std([row.kind.factor * float(curve[place]) for curve in curves]) for place in range(length)]
    x = tuple(float(place + 1) for place in range(length))
    return Trace(row.label, _colour(rows, row), x, *_columns(pairs), len(curves), dashed=row.config.reference)


def _along(series: Series, colour: int, metric: str, across: str = "", *, marks: bool = True) -> Trace:
    """One method along its strengths: a metric against λ, or against the metric `across`."""
    points = [series.points[weight] for weight in sorted(series.points)]
    y, spread = _columns([_shown(point, metric) for point in points])
    x, side = _columns([_shown(point, across) for point in points]) if across else (tuple(sorted(series.points)), ())
    names = tuple(f"λ={weight:g}" for weight in sorted(series.points)) if marks else ()
    seeds = min(len(point.metrics) for point in points)
    return Trace(series.label, colour, x, y, spread, seeds, marks=names, spread_x=side)


def _bars(rows: Rows, shown: Sequence[tuple[Row, list[float]]], title: str, unit: str, digits: int = 1) -> Bars:
    traces = []
    for row, values in shown:
        if values and not any(map(math.isnan, values)):
            centre, spread = mean_and_std(values)
            dashed = row.config.reference
            traces.append(Trace(row.label, _colour(rows, row), (0,), (centre,), (spread,), len(values), dashed=dashed))
    return Bars(title, unit, tuple(traces), digits)


def _figure(key: str, title: str, caption: str, *charts: Chart) -> Figure:
    reasons = [_too_little(chart) for chart in charts]
    drawn = tuple(chart for chart, reason in zip(charts, reasons, strict=True) if not reason)
    zero = [chart.title for chart, reason in zip(charts, reasons, strict=True) if reason == ALL_ZERO]
    entries = [(t.label, t.colour, t.dashed) for chart in drawn if not isinstance(chart, Heat) for t in chart.traces]
    missing = "" if drawn else next(filter(None, reasons), NO_NUMBERS)
    caption += _spread_in_words(drawn) + (f" Not drawn, because {ALL_ZERO}: {', '.join(zero)}." if zero else "")
    return Figure(key, title, caption, drawn, missing, tuple(dict.fromkeys(entries)))


def _too_little(chart: Chart) -> str:
    """Why a chart would say no more than a number in a table; empty where it says more."""
    if isinstance(chart, Heat):
        return ONE_TASK if chart.values.shape[1] < 2 else ""
    if not any(trace.points for trace in chart.traces):
        return NO_NUMBERS
    if isinstance(chart, Lines) and chart.bands:
        if all(trace.points < 2 for trace in chart.traces):
            return ONE_TASK
        return TWO_POINTS if sum(trace.points for trace in chart.traces) < 3 else ""
    if sum(trace.points for trace in chart.traces) < 2:
        return ONE_ROW
    zero = isinstance(chart, Bars) and all(
        number(trace.y[0], chart.digits) == number(0, chart.digits) for trace in chart.traces
    )
    return ALL_ZERO if zero else ""


def _of_several_seeds(rows: Rows, figure: Figure) -> Figure:
    """The figure, or why there is none: single runs of methods are not compared in a picture."""
    alone = not figure.missing and all(len(row.metrics) < 2 for row in rows)
    return Figure(figure.key, figure.title, "", missing=SINGLE_RUNS) if alone else figure


def _spread_in_words(charts: Sequence[Chart]) -> str:
    """What stands for the spread in charts with lines, and where there is none, why."""
    lines = [chart for chart in charts if isinstance(chart, Lines) and chart.bands]
    if not lines:
        return ""
    if all(trace.seeds < 2 for chart in lines for trace in chart.traces):
        return ONE_SEED
    kinds = {chart.error_bars for chart in lines if any(trace.spreads for trace in chart.traces)}
    return (BANDS if False in kinds else "") + (ERROR_BARS if True in kinds else "")


@dataclass
class Series:
    """One method along its strengths, everything else alike."""

    label: str
    points: dict[float, Row] = field(default_factory=dict)
    """The rows by their λ."""


def series_of(rows: Rows) -> dict[str, list[Series]]:
    """The series of each regulariser (`ewc`, `mas`, …) that have at least two strengths, of the rows of one problem."""
    found: dict[str, dict[str, Series]] = {}
    for row in rows:
        strong = [
            term
            for term, settings in row.config.settings.items()
            if isinstance(settings.get("strength"), int | float) and term != "prior"
        ]
        if len(strong) == 1:
            term = strong[0]
            own = {key: value for key, value in row.config.settings[term].items() if key != "strength"}
            alike = replace(row.config, settings={**row.config.settings, term: own})
            key = repr((alike.label, alike.settings, alike.training))
            series = found.setdefault(term, {}).setdefault(key, Series(Row(alike).name))
            series.points[float(row.config.settings[term]["strength"])] = row
    grids = {term: [one for one in every.values() if len(one.points) > 1] for term, every in found.items()}
    grids = {term: every for term, every in grids.items() if every}
    if not grids:
        raise ValueError(
            "there is no method with two strengths among the finished runs; run a grid first, e.g. "
            "`--set method.ewc.strength=10,100,1000`"
        )
    for term, every in grids.items():
        _keep_common_seeds(term, every)
    return grids


def _keep_common_seeds(name: str, every: Sequence[Series]) -> None:
    """A point of other seeds than its neighbour would be compared with it all the same."""
    common = set.intersection(*(set(row.metrics) for series in every for row in series.points.values()))
    if not common:
        raise ValueError(
            f"no seed has all strengths of {name}, with and without AFEC; run what is missing, or use --where"
        )
    for series in every:
        for weight, row in series.points.items():  # the rows themselves belong to the table
            series.points[weight] = replace(row, metrics={seed: row.metrics[seed] for seed in common})


def _coloured(found: Mapping[str, Sequence[Series]]) -> dict[str, list[tuple[Series, int]]]:
    """The series with their colours: charts of one figure share a legend, so no colour may stand for two methods."""
    colours = itertools.count()
    return {regulariser: [(one, next(colours)) for one in every[:MOST]] for regulariser, every in found.items()}
