"""What a study will take before it is begun: hours of a core, memory and disk, on this machine and on a cluster.

A run costs what finished runs of its row have cost, else those of its benchmark and scale, with the same stream, net and
training: a trial with fewer tasks or epochs says nothing of the whole. Where there is none, its samples are counted, and
finished runs of the same net say how many a core learns in a second; early stopping is not foreseen, so that is the most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from afec.data.root import data_root_is
from afec.experiments import Context
from afec.lab.config import RunConfig
from afec.lab.directory import RunDirectory, RunError, find_runs
from afec.lab.engine import Job
from afec.lab.estimate import cost_of, keys_of

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """What the runs that are left will take."""

    seconds: tuple[float, ...]
    """Of each run that anything is known of, on one core."""
    counted: int
    """How many of them are known by their samples only."""
    unknown: int
    """Runs of which nothing is known."""
    memory_mb: float | None
    """The most that one run holds."""
    disk_mb: float | None
    """Of all finished run directories together."""

    def hours_on(self, places: int) -> float:
        """Wall time where so many runs go at once: whoever is free first takes the next one."""
        busy = [0.0] * max(1, min(places, len(self.seconds)))
        for one in self.seconds:
            busy[busy.index(min(busy))] += one
        return max(busy) / 3600

    def lines(self, local: int) -> list[str]:
        """In words, for `local` processes of this machine and for clusters."""
        found = [f"nothing is known of {self.unknown} runs: no run of the benchmark, nor of its net, is done"]
        found = found if self.unknown else []
        if self.seconds:
            how = f"; {self.counted} runs by their samples, at most" if self.counted else ""
            found.append(f"core hours: {_hours(sum(self.seconds) / 3600)} for {len(self.seconds)} runs{how}")
            pools = [f"{_hours(self.hours_on(local))} hours with --pool local ({local} processes)"]
            pools += [f"{_hours(self.hours_on(cpus))} with --pool ray on {cpus} CPUs" for cpus in (16, 128)]
            found.append(f"wall time: {', '.join(pools)}")
        if self.memory_mb is not None:
            found.append(f"memory: {self.memory_mb:.0f} MB a run, {local * self.memory_mb / 1000:.1f} GB for {local}")
        if self.disk_mb is not None:
            found.append(f"disk: {self.disk_mb:.0f} MB when all are done")
        return found


def forecast(jobs: Sequence[Job], root: Path) -> Forecast:
    """What the jobs that are not done will take, by the finished runs under `root`."""
    seconds: dict[tuple[str, ...], list[float]] = defaultdict(list)
    memory: dict[tuple[str, ...], float] = defaultdict(float)
    disk: dict[tuple[str, ...], list[float]] = defaultdict(list)
    rates: dict[str, list[float]] = defaultdict(list)
    for run in find_runs(root) if root.is_dir() else ():
        took = cost_of(run, "cpu_seconds") or cost_of(run, "wall_seconds")  # a run has one thread
        if took is None:
            continue
        size = sum(file.stat().st_size for file in run.path.rglob("*") if file.is_file()) / 1e6
        for key in keys_of(run.config):
            seconds[*key, _work(run.config)].append(took)
            memory[key] = max(memory[key], cost_of(run, "peak_memory_mb") or 0.0)
            disk[key].append(size)
        if took > 0 and (learned := _learned(run)):
            rates[_net(run.config)].append(learned / took)
    left = list({job.directory(root): job for job in jobs if not job.directory(root).done}.values())
    counts: dict[str, int | None] = {}
    found, counted, unknown = [], 0, 0
    memories, disks = [], []
    for job in left:
        keys, work = keys_of(job.config), _work(job.config)
        if kept := [key for key in keys if key in disk]:
            memories.append(memory[kept[0]])
            disks.append(fmean(disk[kept[0]]))
        if timed := [key for key in keys if (*key, work) in seconds]:
            found.append(fmean(seconds[*timed[0], work]))
            continue
        rate, samples = rates.get(_net(job.config)), None
        if rate and job.config.hash not in counts:  # counting reads the data
            counts[job.config.hash] = _samples(job)
        if rate and (samples := counts[job.config.hash]):
            found.append(samples / fmean(rate))
            counted += 1
        else:
            unknown += 1
    whole = len(left) / len(disks) if disks else 1.0  # the others are taken to be like these
    return Forecast(
        tuple(found),
        counted,
        unknown,
        max(memories) if any(memories) else None,
        sum(disks) * whole if disks else None,
    )


def _work(config: RunConfig) -> str:
    """What a run does, whatever its method."""
    return repr([sorted(section.items()) for section in (config.stream, config.net, config.training)])


def _net(config: RunConfig) -> str:
    return repr(sorted(config.net.items()))


def _learned(run: RunDirectory) -> int:
    try:
        return 0 if any(task.get("recalled") for task in run.tasks()) else run.samples
    except RunError:
        return 0


def _samples(job: Job) -> int | None:
    """The most samples that a run learns from; None where it cannot be told, or the data are not here."""
    try:
        with data_root_is(job.place.data):
            return job.config.kind.most_samples(job.config, Context(job.seed, job.place.device))
    except (ValueError, OSError, RuntimeError):
        return None


def _hours(hours: float) -> str:
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.3f}"
