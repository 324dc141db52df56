"""Means over seeds, and differences within seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy.stats takes 50 MB

__all__ = ["PairedDifference", "bootstrap_interval", "mean_and_std", "number", "paired_difference"]

EXACT = 50_000
TIE = 2e-6  # accuracies are kept with six digits
DRAWS = 20_000


def number(value: float, digits: int = 1, *, sign: bool = False) -> str:
    """As it is printed: with a minus that is one, and no −0.0. What is not zero does not look it, down to a thousandth."""
    while sign and digits < 3 and value and abs(value) < 0.5 * 10**-digits:
        digits += 1
    return f"{value:{'+' if sign else ''}z.{digits}f}".replace("-", "−")


def mean_and_std(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and the standard deviation of a sample (n − 1); nan where there is a single value, or one is not known."""
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    return fmean(values), stdev(values) if len(values) > 1 else math.nan


@dataclass(frozen=True)
class PairedDifference:
    """A difference within pairs: rows of one seed share images, arrangement and initial weights."""

    mean: float
    error: float
    """The standard error of the mean; nan for a single pair."""
    half_width: float
    """Half of the 95 % confidence interval, by Student's t with n − 1 degrees of freedom."""
    won: int
    """The pairs whose difference is above zero, by more than accuracies are rounded."""
    pairs: int

    @property
    def distinguishable(self) -> bool:
        """Whether the interval leaves zero out. Pairs that all differ by the same have none: that is rounding, or too few."""
        return self.spreads and abs(self.mean) > self.half_width

    @property
    def spreads(self) -> bool:
        """Whether the pairs differ from each other."""
        return self.error > TIE


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> PairedDifference:
    """The differences `ours` − `theirs`, pair by pair."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, std = mean_and_std(differences)
    n = len(differences)
    error = std / math.sqrt(n)
    half_width = float(stdtrit(n - 1, 0.975)) * error if n > 1 else math.nan
    return PairedDifference(mean, error, half_width, sum(d > TIE for d in differences), n)


def bootstrap_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile interval of the mean difference, pairs drawn with replacement; NaN for a single pair.

    Up to six pairs every possible draw is taken, so nothing is left to chance; beyond that 20,000 of them, always the same.
    """
    differences = np.array([a - b for a, b in zip(ours, theirs, strict=True)])
    n = len(differences)
    if n < 2:
        return math.nan, math.nan
    # No interpolation: of 27 draws the lowest has 4 %, so it is the 2.5 % quantile, and nothing narrower is.
    low, high = np.quantile(differences[_draws(n)].mean(axis=1), [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


@cache
def _draws(n: int) -> NDArray[np.int64]:
    if n**n <= EXACT:
        return np.array(list(itertools.product(range(n), repeat=n)))
    return np.random.default_rng(0).integers(0, n, size=(DRAWS, n))
