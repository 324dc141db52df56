"""What a figure shows, apart from how it is drawn: `svg.py` draws it into the page, `plot.py` into a file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bars", "Chart", "Figure", "Heat", "Lines", "Trace"]

MOST_BANDS = 3
"""More bands than that cover each other, so error bars are drawn in their place."""


@dataclass(frozen=True)
class Trace:
    """One method in one chart: means with their standard deviations over the seeds."""

    label: str
    colour: int
    """The same in every chart of a study."""
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...]
    """NaN for a single seed."""
    seeds: int
    dashed: bool = False
    """A bound or a reference, no method."""
    marks: tuple[str, ...] = ()
    """A text for each point."""
    spread_x: tuple[float, ...] = ()

    @property
    def spreads(self) -> bool:
        """Whether there is a standard deviation to draw."""
        return any(value > 0 for value in self.spread)

    @property
    def points(self) -> int:
        """How many points are known."""
        return sum(math.isfinite(x) and math.isfinite(y) for x, y in zip(self.x, self.y, strict=True))


@dataclass(frozen=True)
class Lines:
    """Lines with bands of one standard deviation, or with error bars where there would be too many bands."""

    title: str
    x_label: str
    y_label: str
    traces: tuple[Trace, ...]
    log_x: bool = False
    bands: bool = True
    """Crosses at the points otherwise, as wide and high as one standard deviation."""
    limits: tuple[float, float] = (-math.inf, math.inf)
    """The lowest and the highest value that there can be: the axes show no more."""

    @property
    def error_bars(self) -> bool:
        """Whether error bars are drawn in place of bands."""
        return self.bands and sum(trace.spreads for trace in self.traces) > MOST_BANDS

    def offsets(self, width: float) -> list[float]:
        """How far each trace is moved sideways on an axis of this width, so that error bars do not hide each other."""
        number = len(self.traces)
        points = max((len(trace.x) for trace in self.traces), default=1)
        step = min(4.0, 0.7 * width / (points * number)) if self.error_bars else 0.0
        return [(place - (number - 1) / 2) * step for place in range(number)]


@dataclass(frozen=True)
class Bars:
    """A bar for each method, with its standard deviation; each trace has one point."""

    title: str
    unit: str
    traces: tuple[Trace, ...]
    digits: int = 1


@dataclass(frozen=True)
class Heat:
    """A[i, j] of one method, or its confusion matrix: the mean over its seeds."""

    title: str
    values: NDArray[np.float64]
    """(T + 1, T), row 0 at random initialisation; or (T, T) of a confusion matrix."""
    names: tuple[str, ...]
    """The names of the tasks."""
    seeds: int
    score: str
    """What a number is, such as `accuracy in %`."""
    unit: str
    """What stands behind a number: ` %`, or nothing."""
    limits: tuple[float, float]
    """The values of the darkest and of the brightest cell."""
    digits: int = 0
    x_label: str = "task"
    y_label: str = "tasks learned"

    @property
    def confusion(self) -> bool:
        """Whether rows are tasks, and no times."""
        return len(self.values) == len(self.values.T)

    def level(self, value: float) -> float:
        """Where a value lies between dark, 0, and bright, 1."""
        low, high = self.limits
        return min(max((value - low) / ((high - low) or 1.0), 0.0), 1.0)


Chart = Lines | Bars | Heat


@dataclass(frozen=True)
class Figure:
    """Charts side by side under one caption."""

    key: str
    title: str
    caption: str
    charts: tuple[Chart, ...] = ()
    missing: str = ""
    """Why there is nothing to see, and what to do about it."""
    legend: tuple[tuple[str, int, bool], ...] = field(default=())
    """Label, colour, dashed."""
