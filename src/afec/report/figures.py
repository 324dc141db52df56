"""The figures of a study, from the rows of its table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from afec.experiments import ScoreKind
from afec.metrics import new_task_accuracy
from afec.report.chart import Bars, Chart, Figure, Heat, Lines, Trace
from afec.report.reading import mean
from afec.report.rows import Row
from afec.report.statistics import mean_and_std, number
from afec.report.strength import Series, series_of

__all__ = ["FIGURES", "MOST", "figures_of", "shown_rows"]

CAPTIONS = {
    "accuracy": "The mean {score} of all the tasks learned so far, after each of them.",
    "all-classes": "Accuracy over all classes so far, after each phase; the first is the base phase. Their mean is the average "
    "incremental accuracy.",
    "new-tasks": "The {score} of each task just after it was learned: where holding on to the old tasks hinders a new one, "
    "it is seen here.",
    "transfer": (
        "Forward transfer: what having learned other tasks does for a new one, before it is learned (the paper's "
        "formula; with a fresh head for each task it is near zero whatever the method does) and after, against the "
        "same task learned alone from random weights. Backward transfer: what old tasks have gained or lost since "
        "they were learned. Whiskers: ± one standard deviation."
    ),
    "matrix": (
        "The {score} of every task (columns) after each step (rows; the first row is at random initialisation), "
        "the mean over the seeds. On the diagonal a task is new; below it, old; above it, not learned yet. "
        "Dark is {low}, bright is {high}."
    ),
    "strength": (
        "Over the seeds that every strength has, with and without AFEC. These are test scores: for choosing a "
        "strength there is `afec tune`."
    ),
    "trade-off": "After the last task; further to the upper right is better. ",
    "cost": (
        "Compute: samples learned from or measured on, θ_e, Fisher and importance included. A training that no guard touches "
        "(the first task, θ_e) is done once and shared between runs, so time can be less than compute says. Memory: "
        "the peak of the process."
    ),
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
POOLED = "there is no BWT or FWT in the scenario `class`; the table has old and new classes apart"
MOST = 12
"""Methods in one figure: more colours than that nobody tells apart."""
Rows = Sequence[Row]


def figures_of(rows: Rows) -> list[Figure]:
    """All of them, in the order in which they are read."""
    return [make(rows) for make in FIGURES.values()]


def average_curves(rows: Rows) -> Figure:
    """The average over the tasks so far, or over all classes so far."""
    shown, more = shown_rows(rows)
    traces = tuple(_curve(rows, row, row.curves) for row in shown)
    kind, pooled = rows[0].kind, rows[0].pooled
    if pooled:
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
    charts = [
        _bars(rows, shown, title, kind.difference, partial(_metric, metric=metric), kind.factor, kind.digits)
        for metric, title in panels.items()
    ]
    known = any("scratch" in row.config.method for row in rows)
    caption = CAPTIONS["transfer"] + more + ("" if known else NO_SCRATCH)
    return _of_several_seeds(shown, _figure("transfer", "Knowledge transfer", caption, *charts))


NO_SCRATCH = " There is no `scratch` run here; add `--method scratch` for the forward transfer that says something."


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
    charts = [
        Heat(row.label, values, row.every_reading[0].names, len(row.readings), kind.title, kind.in_unit, (low, high))
        for row, values in means
    ]
    ends = {"low": f"{number(low, 0)}{kind.in_unit}", "high": f"{number(high, 0)}{kind.in_unit}"}
    caption = CAPTIONS["matrix"].format(score=kind.title, **ends) + more
    return _figure("matrix", f"The {kind.name} of every task after every task, A[i, j]", caption, *charts)


def strength(rows: Rows) -> Figure:
    """Old tasks, the new task and the average against λ, with and without AFEC."""
    kind, parts = rows[0].kind, rows[0].parts
    title = f"The {kind.name} against the strength of the regulariser"
    try:
        found = series_of(rows)
    except ValueError as error:
        return Figure("strength", title, "", missing=str(error))
    charts = []
    first = _first_colours(found)
    for regulariser, every in found.items():
        for metric, name in ((parts.old, "old tasks"), (parts.new, "new task"), (parts.average, "average")):
            traces = []
            for place, series in enumerate(every[:MOST], start=first[regulariser]):
                weights = sorted(series.points)
                pairs = [_shown(series.points[w], metric) for w in weights]
                seeds = min(len(point.metrics) for point in series.points.values())
                means, spreads = zip(*pairs, strict=True)
                marks = tuple(f"λ={w:g}" for w in weights)
                traces.append(Trace(series.label, place, tuple(weights), means, spreads, seeds, marks=marks))
            title_of = f"{regulariser}: {name}"
            charts.append(Lines(title_of, "strength λ", _axis(kind), tuple(traces), log_x=True, limits=_limits(kind)))
    return _figure("strength", title, CAPTIONS["strength"], *charts)


def trade_off(rows: Rows) -> Figure:
    """Old tasks against the new one."""
    title = "Old tasks against the new one"
    kind, parts = rows[0].kind, rows[0].parts
    x_label, y_label = (f"{name}, {kind.unit}" if kind.unit else name for name in ("old tasks", "new task"))
    try:
        grids = series_of(rows)
    except ValueError:
        grids = {}
    charts = []
    first = _first_colours(grids)
    for regulariser, every in grids.items():
        traces = []
        for place, series in enumerate(every[:MOST], start=first[regulariser]):
            points = [series.points[w] for w in sorted(series.points)]
            old, new = ([_shown(point, metric) for point in points] for metric in (parts.old, parts.new))
            marks = tuple(f"λ={w:g}" for w in sorted(series.points))
            seeds = min(len(p.metrics) for p in points)
            traces.append(
                Trace(
                    series.label,
                    place,
                    *_columns(old)[:1],
                    *_columns(new),
                    seeds,
                    marks=marks,
                    spread_x=_columns(old)[1],
                )
            )
        charts.append(Lines(regulariser, x_label, y_label, tuple(traces), bands=False, limits=_limits(kind)))
    if not charts:
        shown, more = shown_rows(rows)
        traces = []
        for row in shown:
            old_one, new_one = _shown(row, parts.old), _shown(row, parts.new)
            x, y, spread, side = ((value,) for value in (old_one[0], *new_one, old_one[1]))
            traces.append(Trace(row.label, _colour(rows, row), x, y, spread, len(row.metrics), spread_x=side))
        traces = [one for one in traces if not math.isnan(one.x[0] + one.y[0])]
        chart = Lines("old against new", x_label, y_label, tuple(traces), bands=False, limits=_limits(kind))
        charts = [chart] if traces else []
        caption = f"{CAPTIONS['trade-off']}Arms: ± one standard deviation over the seeds.{more}"
        return _of_several_seeds(shown, _figure("trade-off", title, caption, *charts))
    more = "Each line goes along the strengths of one method. Arms: ± one standard deviation over the seeds."
    return _figure("trade-off", title, CAPTIONS["trade-off"] + more, *charts)


def cost(rows: Rows) -> Figure:
    """Compute, time and memory."""
    shown, more = shown_rows(rows, scratch=True)
    unit = mean([mean(row.samples.values()) for row in rows if row.config.label == "finetune"])
    charts = []
    if unit > 0:

        def compute(row: Row) -> list[float]:
            return [samples / unit for samples in row.samples.values()]

        charts.append(_bars(rows, shown, "compute, relative to finetune", "×", compute, 1, 2))
    for key, title, name in (("cpu_seconds", "CPU time", "s"), ("peak_memory_mb", "peak memory", "MB")):
        values = [value for row in shown for value in _spent(row, key)]
        scale, unit_name = (1 / 3600, "h") if name == "s" and values and max(values) > 7200 else (1, name)
        charts.append(_bars(rows, shown, title, unit_name, partial(_spent, key=key), scale))
    return _figure("cost", "What each method costs", CAPTIONS["cost"] + more, *charts)


FIGURES: dict[str, Callable[[Rows], Figure]] = {
    "accuracy": average_curves,
    "new-tasks": new_tasks,
    "transfer": transfer,
    "matrix": matrices,
    "strength": strength,
    "trade-off": trade_off,
    "cost": cost,
}


def _metric(row: Row, metric: str) -> list[float]:
    return row.values(metric)


def _shown(row: Row, metric: str) -> tuple[float, float]:
    """Mean and standard deviation as they are shown."""
    return mean_and_std([row.kind.factor * value for value in row.values(metric)])


def _axis(kind: ScoreKind) -> str:
    return f"test {kind.name}, {kind.unit}" if kind.unit else f"test {kind.name}"


def _limits(kind: ScoreKind) -> tuple[float, float]:
    return kind.factor * kind.low, kind.factor * kind.high


def _spent(row: Row, key: str) -> list[float]:
    return [one.cost[key] for one in row.readings.values() if key in one.cost]


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


def _bars(
    rows: Rows, shown: Rows, title: str, unit: str, values: Callable[[Row], list[float]], scale: float, digits: int = 1
) -> Bars:
    traces = []
    for row in shown:
        known = [scale * value for value in values(row)]
        if known and not any(map(math.isnan, known)):
            centre, spread = mean_and_std(known)
            dashed = row.config.reference
            traces.append(Trace(row.label, _colour(rows, row), (0,), (centre,), (spread,), len(known), dashed=dashed))
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


def _first_colours(found: Mapping[str, Sequence[Series]]) -> dict[str, int]:
    """The first colour of each regulariser: charts of one figure share a legend, so no colour may stand for two methods."""
    first, used = {}, 0
    for regulariser, every in found.items():
        first[regulariser], used = used, used + len(every[:MOST])
    return first
