"""What a row costs in all: one training with its strengths, and the search that has found them.

The trials of a search are run directories beside the runs (`runs/tuning`). Each trial is counted once, by the mean over its
seeds: what somebody pays who tries every value once. A strength that finds itself, and a method without one, have no search.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from afec.experiments.hold_out import HOLD_OUT
from afec.lab import RunConfig, RunError, find_runs
from afec.lab.directory import TUNING, RunDirectory
from afec.lab.tuning import stages
from afec.report.reading import mean
from afec.report.rows import Row

__all__ = ["TotalCompute", "total_compute"]


@dataclass(frozen=True)
class TotalCompute:
    """Samples learned from or measured on."""

    training: float
    """Of one run, the mean over the seeds."""
    search: float
    """Of all trials, each once."""
    trials: int
    """How many trials the search had; 0 where there was none, or where its directories are not there."""

    @property
    def samples(self) -> float:
        """All of it."""
        return self.training + self.search


def total_compute(row: Row) -> TotalCompute:
    """The cost of a row of finished runs, tuning included."""
    found: dict[str, list[int]] = {}
    if _searched(row.config):
        for config, samples in _trials(row):
            found.setdefault(f"{config.label} {config.hash}", []).append(samples)
    return TotalCompute(mean(row.samples.values()), sum(map(mean, found.values())), len(found))


def _searched(config: RunConfig) -> bool:
    """Whether its strengths can be from a search."""
    return any(
        isinstance(settings.get(key), int | float)
        for settings in config.settings.values()
        for key in ("strength", "forgetting", "beta")
    )


def _trials(row: Row) -> Iterator[tuple[RunConfig, int]]:
    """Every finished trial of the stages of the row's search, with the samples that it took."""
    methods = [name.partition("@")[0] for name, _ in stages(row.config, together=False)]
    for root in {one.run.path.resolve().parents[3] for one in row.readings.values() if len(one.run.path.parents) > 3}:
        for run in _finished(root / TUNING / row.config.benchmark):
            try:
                config = run.config
                if config.method in methods and _alike(config, row.config):
                    yield config, run.samples
            except RunError:
                continue


def _finished(folder: Path) -> list[RunDirectory]:
    return [run for run in find_runs(folder) if run.done] if folder.is_dir() else []


def _alike(trial: RunConfig, config: RunConfig) -> bool:
    """Whether a trial is of the same tasks, net and training; images that were held out for it make no difference."""
    stream = {key: value for key, value in trial.stream.items() if key != HOLD_OUT}
    ours = {key: value for key, value in config.stream.items() if key != HOLD_OUT}
    same = (trial.variant, trial.scale, trial.net, trial.training) == (
        config.variant, config.scale, config.net, config.training,
    )  # fmt: skip
    return same and stream == ours
