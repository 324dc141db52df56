"""A study: benchmarks × methods × settings × seeds, as jobs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from afec.lab.config import grid, resolve
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job, Outcome, Watcher, available_cores, execute
from afec.lab.spec import FULL, Changes, load_benchmark

__all__ = ["plan", "study", "unfinished"]


def plan(
    benchmarks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    scale: str = FULL,
    sets: Sequence[str] = (),
    tuned: Changes | None = None,
) -> list[Job]:
    """The jobs, seed by seed, so that a study that is stopped has whole comparisons for its first seeds."""
    configs = [
        resolve(load_benchmark(benchmark), method, scale, changes, tuned)
        for benchmark in benchmarks
        for changes in grid(sets)
        for method in methods
    ]
    unique = list({(config.label, config.hash): config for config in configs}.values())
    return [Job(config, seed) for seed in seeds for config in unique]


def study(
    benchmarks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    *,
    scale: str = FULL,
    sets: Sequence[str] = (),
    tuned: Changes | None = None,
    root: Path = Path("runs"),
    workers: int | None = None,
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Run everything that is not done yet, one process per core; what `afec run` does."""
    return execute(plan(benchmarks, methods, seeds, scale, sets, tuned), root, workers or available_cores(), watcher)


def unfinished(root: Path) -> list[Job]:
    """The runs under `root` that were begun and not finished."""
    jobs = []
    for found in find_runs(root):
        if found.done:
            continue
        job = Job(found.config, found.seed)
        if RunDirectory.of(root, job.config, job.seed) != found:
            raise RunError(
                f"{found.path} is not where its run belongs under {root}; give what `afec run` had as --runs"
            )
        jobs.append(job)
    return jobs
