"""How long a study will take, from the runs that are done."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from afec.lab.config import RunConfig
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job
from afec.lab.plain import plain_text

__all__ = ["Estimate", "cost_of", "estimate", "keys_of", "memory_of"]


@dataclass(frozen=True)
class Estimate:
    """What is to be done, and how long it may take."""

    runs: int
    done: int
    begun: int
    seconds: float | None
    """Wall time on this many workers; None where no run of the benchmark and scale is done yet."""

    def __add__(self, other: Estimate) -> Estimate:
        """The estimate of both jobs, one after the other."""
        seconds = None if None in (self.seconds, other.seconds) else (self.seconds or 0) + (other.seconds or 0)
        return Estimate(self.runs + other.runs, self.done + other.done, self.begun + other.begun, seconds)

    def __str__(self) -> str:
        parts = [
            f"{self.runs} runs: {self.done} done, {self.begun} begun, {self.runs - self.done - self.begun} to start"
        ]
        if self.runs == self.done:
            return parts[0]
        if self.seconds is None:
            return f"{parts[0]}; how long it takes is not known before a run of this benchmark and scale is done"
        took = f"{self.seconds / 3600:.1f} hours" if self.seconds > 5400 else f"{self.seconds / 60:.0f} minutes"
        return f"{parts[0]}; about {took if self.seconds > 90 else f'{self.seconds:.0f} seconds'}"


def estimate(jobs: Sequence[Job], root: Path, workers: int, *, also: Path | None = None) -> Estimate:
    """By the mean of the finished runs of the same method; of the benchmark and scale, where there is none of the method.

    Args:
        jobs: what is to be run.
        root: where the run directories are.
        workers: how many processes.
        also: another place whose finished runs say how long one takes.
    """
    known: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for place in (root, also):
        for run in find_runs(place) if place is not None and place.is_dir() else ():
            if (seconds := cost_of(run, "wall_seconds")) is not None:
                for key in keys_of(run.config):
                    known[key].append(seconds)
    directories = {RunDirectory.of(root, job.config, job.seed): job for job in jobs}
    left = [job for directory, job in directories.items() if not directory.done]
    begun = sum(directory.checkpoint.exists() for directory in directories if not directory.done)
    each = [next((fmean(known[key]) for key in keys_of(job.config) if key in known), None) for job in left]
    busy = [0.0] * max(1, workers)
    for one in each:  # as the pool does it: whoever is free first takes the next run
        busy[busy.index(min(busy))] += one or 0.0
    seconds = None if None in each else max(busy)
    return Estimate(len(directories), len(directories) - len(left), begun, seconds)


def memory_of(root: Path) -> Callable[[Job], float | None]:
    """What says how many megabytes a job may hold: those of the largest finished run of its row, or else of its benchmark."""
    known: dict[tuple[str, ...], float] = {}

    def read() -> None:
        for run in find_runs(root) if root.is_dir() else ():
            if megabytes := cost_of(run, "peak_memory_mb"):
                for key in keys_of(run.config):
                    known[key] = max(known.get(key, 0.0), megabytes)

    looked: list[None] = []

    def found(job: Job) -> float | None:
        if not looked:
            looked.append(None)
            read()
        return next((known[key] for key in keys_of(job.config) if key in known), None)

    return found


def keys_of(config: RunConfig) -> list[tuple[str, ...]]:
    """From the same row to anything of the benchmark."""
    place = (config.benchmark, config.scale)
    return [(*place, config.label, config.hash), (*place, config.label), place]


def cost_of(run: RunDirectory, key: str) -> float | None:
    """What a finished run says about its cost; None where it cannot be read."""
    try:
        run.config  # noqa: B018
        found = float(json.loads(plain_text(run.path / "DONE"))[key])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError, RunError):
        return None
    return found if math.isfinite(found) and found >= 0 else None
