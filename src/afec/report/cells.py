"""Cells that several tables have: scores over seeds, the paper's numbers, and which row of a column is the best."""

from __future__ import annotations

import math
from collections.abc import Sequence

from afec.experiments import ScoreKind
from afec.report.paper import Published
from afec.report.reading import mean
from afec.report.rows import Row
from afec.report.statistics import mean_and_std, number
from afec.report.table import UNKNOWN, Cell

__all__ = ["best_place", "paper_cell", "score_cell"]


def score_cell(values: Sequence[float], kind: ScoreKind, *, best: bool = False) -> Cell:
    """Mean ± standard deviation of scores, as their kind is shown."""
    if not values or any(map(math.isnan, values)):
        return UNKNOWN
    average, std = mean_and_std(values)
    spread = "" if math.isnan(std) else kind.shown(std)
    return Cell(number(kind.factor * average, kind.digits), spread, sort=average, best=best)


def paper_cell(found: Published | None) -> Cell:
    """As the paper prints it."""
    if found is None:
        return Cell("–", paper=True)
    return Cell(f"{found.mean:.2f}", "" if found.std is None else f"{found.std:.2f}", sort=found.mean, paper=True)


def best_place(rows: Sequence[Row], values: Sequence[Sequence[float]], *, lower: bool = False) -> int | None:
    """Where the best mean is; bounds and references do not compete. None where one row does, or several share it."""
    sign = -1 if lower else 1
    means = [math.nan if row.config.reference else sign * mean(found) for row, found in zip(rows, values, strict=True)]
    known = [(value, place) for place, value in enumerate(means) if not math.isnan(value)]
    highest = max(known, default=(math.nan, 0))
    alone = sum(value == highest[0] for value, _ in known) == 1
    return highest[1] if len(known) > 1 and alone else None
