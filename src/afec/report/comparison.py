"""Each method with AFEC against the same one without, at its own and at equal compute, paired over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from afec.report.rows import Row
from afec.report.statistics import PairedDifference, bootstrap_interval, paired_difference

__all__ = ["Comparison", "compare", "without_afec"]


@dataclass(frozen=True)
class Comparison:
    """One method minus another."""

    ours: Row
    theirs: Row
    metric: str
    difference: PairedDifference
    bootstrap: tuple[float, float]

    @property
    def distinguishable(self) -> bool:
        """Whether both intervals leave zero out."""
        low, high = self.bootstrap
        return self.difference.distinguishable and (low > 0 or high < 0)


def without_afec(method: str) -> str:
    """What a method with AFEC is without it; empty where it has none, or is nothing else."""
    terms = method.split("+")
    return "+".join(term for term in terms if term != "afec") if "afec" in terms else ""


def compare(rows: Sequence[Row], metric: str) -> list[Comparison]:
    """All pairs of these rows that have this metric."""
    found = []
    rows = [row for row in rows if row.metrics and not any(map(math.isnan, row.values(metric)))]
    for ours in rows:
        base = without_afec(ours.config.method)
        if not base:
            continue
        own = {term: settings for term, settings in ours.config.settings.items() if term != "afec"}
        others = [
            row
            for row in rows
            if row.config.method == base
            and row.protocol == ours.protocol
            and (row.config.variant or row.config.training == ours.config.training)
        ]
        same = {row.config.variant for row in others if row.config.settings == own}
        for theirs in others:
            seeds = sorted(ours.metrics.keys() & theirs.metrics.keys())
            # In a grid of strengths each is compared at its own, where it is there without AFEC as well.
            if seeds and (theirs.config.settings == own or theirs.config.variant not in same):
                values = ours.values(metric, seeds), theirs.values(metric, seeds)
                found.append(Comparison(ours, theirs, metric, paired_difference(*values), bootstrap_interval(*values)))
    return found
