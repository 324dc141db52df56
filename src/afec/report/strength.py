"""Accuracy against the strength of the regulariser, with and without AFEC: the paper's two-task figure, from runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from afec.report.paired import mean_and_std
from afec.report.reading import Runs
from afec.report.table import Line, lines, one_problem, problems
from afec.report.trade_off import Curve, draw_trade_off

__all__ = ["Series", "draw_strengths", "draw_trade_offs", "series_of", "strengths"]

PANELS = {"old_accuracy": "old tasks", "new_accuracy": "new task", "aac": "average"}


@dataclass
class Series:
    """One method along its strengths, everything else alike."""

    label: str
    points: dict[float, Line] = field(default_factory=dict)
    """By λ."""


def strengths(runs: Runs) -> dict[str, list[Series]]:
    """The series of each regulariser (`ewc`, `mas`, …) that have at least two strengths; the runs must be of one problem."""
    one_problem(runs)
    groups = problems(lines(runs))
    return series_of(groups[0][1] if groups else [])


def series_of(rows: Sequence[Line]) -> dict[str, list[Series]]:
    """The same of the rows of one problem."""
    found: dict[tuple[str, str], Series] = {}
    regulariser: dict[tuple[str, str], str] = {}
    for row in rows:
        strong = [term for term, settings in row.config.settings.items() if "strength" in settings]
        if len(strong) != 1:
            continue
        term = strong[0]
        rest = {**row.config.settings, term: {k: v for k, v in row.config.settings[term].items() if k != "strength"}}
        key = (row.config.label, repr((rest, row.config.training)))
        # Without λ the label is what the series has in common.
        label = Line(replace(row.config, settings=rest)).name
        found.setdefault(key, Series(label)).points[float(row.config.settings[term]["strength"])] = row
        regulariser[key] = term
    result: dict[str, list[Series]] = {}
    for key, series in found.items():
        if len(series.points) > 1:
            result.setdefault(regulariser[key], []).append(series)
    if not result:
        raise ValueError(
            "there is no method with two strengths among the finished runs; run a grid first, e.g. "
            "`--set method.ewc.strength=10,100,1000`"
        )
    for name, every in result.items():
        _keep_common_seeds(name, every)
    return result


def _keep_common_seeds(name: str, every: Sequence[Series]) -> None:
    """A point of other seeds than its neighbour would be compared with it all the same."""
    points = [row for series in every for row in series.points.values()]
    common = set.intersection(*(set(row.metrics) for row in points))
    if not common:
        raise ValueError(
            f"no seed has all strengths of {name}, with and without AFEC; run what is missing, or use --where"
        )
    for series in every:
        for weight, row in series.points.items():  # the rows themselves belong to the table
            kept = {seed: values for seed, values in row.metrics.items() if seed in common}
            series.points[weight] = replace(row, metrics=kept)


def draw_strengths(path: Path, runs: Runs) -> None:
    """Old tasks, new task and average against λ, a column for each regulariser; bands are ± one standard deviation."""
    found = strengths(runs)
    figure = Figure(figsize=(4.4 * len(found), 8.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(PANELS), len(found), sharey="row", sharex="col", squeeze=False)
    for column, (regulariser, every) in enumerate(found.items()):
        for row, (metric, title) in enumerate(PANELS.items()):
            ax = axes[row][column]
            for place, series in enumerate(every):
                colour = mpl.colormaps["tab10"](place % 10)
                weights = sorted(series.points)
                pairs = [mean_and_std(series.points[weight].values(metric)) for weight in weights]
                mean = [100 * pair[0] for pair in pairs]
                spread = [100 * pair[1] if pair[1] == pair[1] else 0.0 for pair in pairs]  # one seed has no spread
                ax.plot(weights, mean, marker="o", markersize=4, color=colour, label=series.label)
                low, high = ([m + sign * s for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
                ax.fill_between(weights, low, high, color=colour, alpha=0.15, linewidth=0)
            ax.set(title=f"{regulariser}: {title}", xscale="symlog" if any(0 in one.points for one in every) else "log")
            ax.grid(color="0.92")
        axes[-1][column].set_xlabel("strength λ")
        axes[0][column].legend(fontsize=8)
    for row in range(len(PANELS)):
        axes[row][0].set_ylabel("test accuracy, %")
    config = runs[0][0]
    seeds = sorted({len(row.metrics) for every in found.values() for one in every for row in one.points.values()})
    title = f"{config.benchmark}, {config.net['name']}, scale {config.scale}, {'/'.join(map(str, seeds))} seeds (band: ± std)"
    figure.suptitle(textwrap.fill(title, 44 * len(found)), fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def draw_trade_offs(path: Path, runs: Runs) -> None:
    """The same runs as old against new accuracy."""
    panels = []
    for regulariser, every in strengths(runs).items():
        curves = [
            Curve(
                series.label,
                [
                    (weight, mean_and_std(row.values("old_accuracy"))[0], mean_and_std(row.values("new_accuracy"))[0])
                    for weight, row in series.points.items()
                ],
            )
            for series in every
        ]
        panels.append((regulariser, curves))
    config = runs[0][0]
    draw_trade_off(
        path, panels, f"{config.benchmark}, {config.net['name']}, scale {config.scale}: old against new, by λ"
    )
