"""A study: benchmarks × methods × settings × seeds, as jobs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from afec.lab.config import REFERENCES, RunConfig, grid, parse_set, resolve
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job, Outcome, Watcher, execute, marked
from afec.lab.run import build, origin
from afec.lab.spec import FULL, Changes, SpecError, load_benchmark
from afec.methods.expression import make_method
from afec.strategy import as_strategy

__all__ = ["check_buildable", "plan", "study", "unfinished", "validation_sizes"]


def plan(
    benchmarks: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
    scale: str = FULL,
    sets: Sequence[str] = (),
    tuned: Changes | None = None,
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
    return marked([Job(config, seed) for seed in seeds for config in unique])


def check_buildable(jobs: Sequence[Job]) -> list[str]:
    """Make stream and net of each kind once, so that a value that cannot be is said before anything runs.

    Returns where the initial weights are from, of nets that say so.
    """
    kinds: dict[str, list[Job]] = {}
    for job in jobs:
        kinds.setdefault(repr((job.config.stream, job.config.net)), []).append(job)
    words: dict[str, None] = {}
    for alike in kinds.values():
        sizes, weights = _looked_at(alike[0], {job.config.method: job.config for job in alike}.values())
        if weights:
            words[f"{alike[0].config.benchmark}: {weights}"] = None
        for job in {repr((job.config.training, job.device)): job for job in alike}.values():
            job.config.machine_on(job.device)
            if not sizes:
                try:
                    job.config.schedule.check_without_validation()
                except ValueError as error:
                    raise SpecError(f"{job.config.benchmark}: {error}") from error
    return list(words)


def validation_sizes(job: Job) -> list[int]:
    """How many validation images each task has; empty where one of them, or of those to transfer to, has none.

    Makes stream and net, sends one image through it, and says what cannot be.
    """
    return _looked_at(job)[0]


def _looked_at(job: Job, configs: Iterable[RunConfig] = ()) -> tuple[list[int], str]:
    """The number of validation images of each task, as in `validation_sizes`, and where the initial weights are from.

    Also says what cannot be of the methods of `configs`, which share stream and net: not every strategy goes with every net.
    """
    try:
        stream, net = build(job.config, job.seed)
        task = stream.tasks[0]
        image = task.train.inputs[:1]
        with torch.no_grad():
            net.eval().features(image if task.prepare is None else task.prepare(image), task=0)
        for config in configs:
            if config.method not in REFERENCES:
                as_strategy(make_method(config.method, config.settings)).check(net)
    except (ValueError, TypeError, RuntimeError) as error:
        raise SpecError(f"{job.config.benchmark}: {error}") from error
    splits = [task.validation for task in stream.tasks]
    validates = None not in (*splits, *(task.validation for task in stream.transfer))
    return [split.size for split in splits if split is not None] if validates else [], origin(net)


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
) -> list[Outcome]:
    """Run everything that is not done yet, one process per core (or GPU); what `afec run` does."""
    jobs = plan(benchmarks, methods, seeds, scale, sets, tuned)
    return execute(jobs, root, workers or 0, watcher, board=board)


def unfinished(root: Path) -> list[Job]:
    """The runs under `root` that were begun and not finished; a damaged one is named, and stops no other."""
    jobs = []
    faults: list[RunError] = []
    for found in find_runs(root):
        if found.done:
            continue
        try:
            job = Job(found.config, found.seed)
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
    return marked(jobs)
