"""`--tune`: how the demo's strengths were found.

Each method gets six trials, judged by the mean accuracy of the two tasks on validation images, under seeds that are not
reported. The test images are the same for all seeds and take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rich.table import Table

from afec.demo.rows import ROWS, Result, Row
from afec.report import mean_and_std

__all__ = ["FIRST_SEED", "TRIALS", "best_of", "tuning_table"]

FIRST_SEED = 100  # the reported seeds start at 0

STRENGTHS = (10, 30, 50, 100, 200, 300)
PAIRS = tuple((strength, forgetting) for strength in (30, 100, 300) for forgetting in (0.1, 1.0))


def _trials(row: Row) -> list[Row]:
    pairs = PAIRS if row.forgetting else tuple((strength, 0.0) for strength in STRENGTHS)
    return [Row(row.name, strength, forgetting, row.patience) for strength, forgetting in pairs]


TRIALS = tuple(trial for row in ROWS if row.strength for trial in _trials(row))
"""All trials; fine-tuning has nothing to tune."""


def best_of(results: Sequence[Result]) -> dict[str, tuple[float, float]]:
    """The (strength, forgetting) of each row with the best mean validation accuracy."""
    best: dict[str, tuple[float, float]] = {}
    for (name, strength, forgetting), group in _by_trial(results).items():
        if name not in best or _score(group) > _score(_by_trial(results)[name, *best[name]]):
            best[name] = (strength, forgetting)
    return best


def tuning_table(results: Sequence[Result]) -> Table:
    """Validation accuracy of every trial; the best of each method is marked."""
    seeds = len({result.seed for result in results})
    table = Table(title=f"tuning: validation accuracy in %, {seeds} seeds")
    for name in ("method", "old task", "new task", "average ± std", "epochs", ""):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    best = best_of(results)
    for (name, strength, forgetting), group in _by_trial(results).items():
        mean, std = mean_and_std([_validation(result) for result in group])
        table.add_row(
            str(Row(name, strength, forgetting)),
            f"{100 * fmean(result.validation_old for result in group):.1f}",
            f"{100 * fmean(result.validation_new for result in group):.1f}",
            f"{100 * mean:.1f} ± {100 * std:.1f}",
            f"{fmean(result.epochs for result in group):.0f}",
            "← best" if best[name] == (strength, forgetting) else "",
        )
    return table


def _by_trial(results: Sequence[Result]) -> dict[tuple[str, float, float], list[Result]]:
    groups: dict[tuple[str, float, float], list[Result]] = {}
    for result in results:
        groups.setdefault((result.row, result.strength, result.forgetting), []).append(result)
    return groups


def _validation(result: Result) -> float:
    return (result.validation_old + result.validation_new) / 2


def _score(group: Sequence[Result]) -> float:
    return fmean(_validation(result) for result in group)
