"""Rows of a grid along their strengths, with and without AFEC: what the paper's two-task figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from afec.report.reading import Runs
from afec.report.rows import Row, one_problem, problems, rows_of

__all__ = ["Series", "series_of", "strengths"]


@dataclass
class Series:
    """One method along its strengths, everything else alike."""

    label: str
    points: dict[float, Row] = field(default_factory=dict)
    """By λ."""


def strengths(runs: Runs) -> dict[str, list[Series]]:
    """The series of each regulariser (`ewc`, `mas`, …) that have at least two strengths; the runs must be of one problem."""
    one_problem(runs)
    groups = problems(rows_of(runs))
    return series_of(groups[0][1] if groups else [])


def series_of(rows: Sequence[Row]) -> dict[str, list[Series]]:
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
        label = Row(replace(row.config, settings=rest)).name
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
