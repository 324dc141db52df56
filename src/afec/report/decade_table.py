"""How much it matters which λ is taken: the mean over decades of λ, as a number.

∫ score d(log λ) / (log λ_max − log λ_min), by the trapezoidal rule over the strengths of a grid, seed by seed
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from afec.report.figures import Series, series_of
from afec.report.rows import Row
from afec.report.statistics import mean_and_std, number
from afec.report.table import Cell, Column, Table

__all__ = ["decade_table", "mean_over_decades"]

LEAST = 2.0
"""Decades that a grid must span: over less, λ hardly differs."""


def mean_over_decades(scores: Mapping[float, float]) -> float:
    """The mean of a score over the logarithm of its strength."""
    points = sorted((math.log10(strength), score) for strength, score in scores.items())
    if len(points) < 2:
        raise ValueError(f"a mean over decades needs two strengths at least; got {sorted(scores)}")
    area = sum((b - a) * (one + other) / 2 for (a, one), (b, other) in itertools.pairwise(points))
    return area / (points[-1][0] - points[0][0])


def decade_table(rows: Sequence[Row], where: str) -> Table | None:
    """A line for each method with a grid of λ over two decades or more; None where there is no such grid."""
    try:
        found = [one for every in series_of(rows).values() for one in every]
    except ValueError:
        return None
    wide = [
        one for one in found if min(one.points) > 0 and math.log10(max(one.points) / min(one.points)) >= LEAST - 1e-9
    ]
    if not wide:
        return None
    kind, metric = rows[0].kind, rows[0].parts.average
    head = (
        Column("method", kind="label"),
        Column("λ", kind="text"),
        Column("mean over λ", "mean over λ: the mean over log λ (trapezoidal rule), mean ± std over the seeds"),
        Column("worst λ", "worst λ, best λ: the lowest and the highest mean among these strengths, on test data"),
        Column("best λ"),
        Column("seeds"),
    )
    body = []
    for one in wide:
        seeds = sorted(next(iter(one.points.values())).metrics)
        means = {strength: kind.factor * mean_and_std(row.values(metric))[0] for strength, row in one.points.items()}
        centre, std = mean_and_std([kind.factor * value for value in _of_seeds(one, metric, seeds)])
        ends = [f"{number(value, kind.digits)} (λ={strength:g})" for value, strength in _ends(means)]
        body.append(
            (
                Cell(one.label),
                Cell(f"{min(one.points):g} to {max(one.points):g}"),
                Cell(number(centre, kind.digits), "" if math.isnan(std) else number(std, kind.digits), sort=centre),
                *(Cell(text, sort=value) for text, (value, _) in zip(ends, _ends(means), strict=True)),
                Cell(str(len(seeds)), sort=len(seeds)),
            )
        )
    return Table("decades", f"{where}: {kind.average} over decades of λ, in {kind.unit}", head, tuple(body), "")


def _of_seeds(series: Series, metric: str, seeds: Sequence[int]) -> list[float]:
    """The mean over the decades, seed by seed."""
    values = {strength: row.values(metric, seeds) for strength, row in series.points.items()}
    return [
        mean_over_decades({strength: found[place] for strength, found in values.items()}) for place in range(len(seeds))
    ]


def _ends(means: Mapping[float, float]) -> list[tuple[float, float]]:
    ranked = sorted((value, strength) for strength, value in means.items())
    return [ranked[0], ranked[-1]]
