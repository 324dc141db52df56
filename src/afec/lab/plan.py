"""A study: benchmarks × methods × settings × seeds, as jobs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from afec.experiments import Context, Experiment
from afec.lab.config import grid, parse_set, resolve
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job, Outcome, Watcher, execute, labelled
from afec.lab.run import HERE, Place
from afec.lab.spec import FULL, Changes, SpecError, load_benchmark

__all__ = ["check_runnable", "plan", "study", "unfinished"]


def plan(
    benchmarks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    scale: str = FULL,
    sets: Sequence[str] = (),
    tuned: Changes | None = None,
    place: Place = HERE,
) -> list[Job]:
    """The jobs, seed by seed, so that a study that is stopped has whole comparisons for its first seeds."""
    used = {term for method in methods for term in method.partition("@")[0].split("+")}
    for text in sets:
        path, _ = parse_set(text)
        if path[0] == "method" and path[1] not in used:
            raise SpecError(f"--set {text}: {path[1]} is part of none of the methods {', '.join(methods)}")
    configs = [
        resolve(benchmark, method, scale, changes, tuned)
        for benchmark in map(load_benchmark, benchmarks)
        for changes in grid(sets)
        for method in methods
    ]
    unique = list({(config.benchmark, config.label, config.hash): config for config in configs}.values())
    return labelled([Job(config, seed, place) for seed in seeds for config in unique])


def check_runnable(jobs: Sequence[Job]) -> list[str]:
    """Raise for what cannot be run, before anything is; returns what is worth telling, such as where weights are from."""
    from afec.data.root import data_root_is

    groups: dict[tuple[str, type[Experiment]], list[Job]] = {}
    for job in jobs:
        groups.setdefault((job.config.benchmark, job.config.kind), []).append(job)
    words: dict[str, None] = {}
    for (benchmark, kind), alike in groups.items():
        unique = list({job.config.hash: job.config for job in alike}.values())
        place = alike[0].place
        try:
            with data_root_is(place.data):
                found = kind.check(unique, Context(alike[0].seed, place.device))
        except (ValueError, TypeError, RuntimeError) as error:
            raise SpecError(f"{benchmark}: {error}") from error
        words |= dict.fromkeys(f"{benchmark}: {text}" for text in found)
    return list(words)


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
    board: Path | None = None,
    place: Place = HERE,
) -> list[Outcome]:
    """Run everything that is not done yet, one process per core (or GPU); what `afec run` does."""
    jobs = plan(benchmarks, methods, seeds, scale, sets, tuned, place)
    return execute(jobs, root, workers or 0, watcher, board=board)


def unfinished(root: Path, place: Place = HERE) -> list[Job]:
    """The runs under `root` that were begun and not finished; a damaged one is named, and stops no other."""
    jobs = []
    faults: list[RunError] = []
    for found in find_runs(root):
        if found.done:
            continue
        try:
            job = Job(found.config, found.seed, place)
        except RunError as error:
            faults.append(error)
            continue
        if RunDirectory.of(root, job.config, job.seed) != found:
            raise RunError(
                f"{found.path} is not where its run belongs under {root}; give what `afec run` had as --runs"
            )
        jobs.append(job)
    if faults and not jobs:
        raise faults[0]
    for fault in faults:
        warnings.warn(f"skipped: {fault}", RuntimeWarning, stacklevel=2)
    return labelled(jobs)
