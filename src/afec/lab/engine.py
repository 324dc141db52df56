"""Running many runs at once: one process per core, one thread each; or one process per GPU.

Two threads in one process are slower on a CPU than one thread in each of two processes. Which process runs what, and when,
has no influence on the numbers: every draw is seeded by the run's own configuration and seed.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from afec.files import write_text
from afec.lab.board import Board, check_tensorboard
from afec.lab.config import RunConfig, differing
from afec.lab.directory import RunDirectory
from afec.lab.gpus import available_cores, default_workers, shared_gpus
from afec.lab.run import run
from afec.lab.workers import Said, Speaker, Workers
from afec.learner import Progress

__all__ = ["Job", "Outcome", "Watcher", "available_cores", "execute", "marked", "workers_for"]

TICK = 0.2  # seconds between two looks at what the workers say
BUSY = "busy"


@dataclass(frozen=True)
class Job:
    """One run to do."""

    config: RunConfig
    seed: int
    device: str | None = None
    """Where to run it, if not where its configuration says."""
    mark: str = field(default="", compare=False)
    """What tells its configuration from others of the same name in the study."""

    @property
    def label(self) -> str:
        """Method, variant and what differs in a grid."""
        return f"{self.config.label}, {self.mark}" if self.mark else self.config.label

    @property
    def where(self) -> str:
        """The device."""
        return self.device or str(self.config.training["device"])

    def __str__(self) -> str:
        return f"{self.config.benchmark}, {self.label}, seed {self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    job: Job
    directory: RunDirectory
    error: str | None
    """The traceback, where it failed."""
    fresh: bool
    """Whether it was run now; finished ones are not run again."""


class Watcher(Protocol):
    """Who wants to see it live."""

    def on_phase(self, place: int, job: Job, phase: Progress) -> None:
        """A worker is here."""

    def on_wait(self, place: int, job: Job, holder: str) -> None:
        """A worker waits until somebody else has ended this run."""

    def on_outcome(self, outcome: Outcome) -> None:
        """A job is over."""

    def on_tick(self) -> None:
        """A few times per second."""

    def on_stop(self, running: int) -> None:
        """Ctrl-C: nothing is begun any more, and so many runs are still to write a checkpoint."""


def marked(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each saying what tells it from others of the same name: the values of a grid."""
    marks: dict[tuple[str, str, str], str] = {}
    for name in {(job.config.benchmark, job.config.label) for job in jobs}:
        configs = {j.config.hash: j.config for j in jobs if (j.config.benchmark, j.config.label) == name}
        marks |= {(*name, key): text for key, text in zip(configs, differing([*configs.values()]), strict=True)}
    return [replace(job, mark=marks[job.config.benchmark, job.config.label, job.config.hash]) for job in jobs]


def workers_for(jobs: Sequence[Job]) -> int:
    """As many as there are GPUs, for runs on `cuda`; otherwise one per core."""
    return default_workers(job.where for job in jobs)


def execute(
    jobs: Sequence[Job], root: Path, workers: int, watcher: Watcher | None = None, *, board: Path | None = None
) -> list[Outcome]:
    """All jobs, in their order. One that fails stops no other; Ctrl-C leaves everything resumable.

    Args:
        jobs: what to run.
        root: where the run directories are.
        workers: how many processes; 0: as `workers_for` says.
        watcher: who wants to see it live.
        board: where to log for TensorBoard.
    """
    if board is not None:
        check_tensorboard()
    outcomes: dict[int, Outcome] = {}
    todo: dict[tuple[str, str, str, int], list[int]] = {}  # a run that is asked for twice is run once
    for place, job in enumerate(jobs):
        directory = RunDirectory.of(root, job.config, job.seed)
        if directory.done:
            directory.tidy()
            outcomes[place] = Outcome(job, directory, None, fresh=False)
            _log(board, directory)
            if watcher:
                watcher.on_outcome(outcomes[place])
        else:
            todo.setdefault((job.config.benchmark, job.config.method, job.config.hash, job.seed), []).append(place)
    alike = {places[0]: places for places in todo.values()}
    # A run that somebody else is at comes last: two studies in one place share the work, and wait for each other at the end.
    queue = deque((place, False) for place in alike)

    def end(place: int, error: str | None) -> None:
        for one in alike[place]:
            directory = RunDirectory.of(root, jobs[one].config, jobs[one].seed)
            outcomes[one] = Outcome(jobs[one], directory, error, fresh=True)
            if watcher:
                watcher.on_outcome(outcomes[one])

    with Workers(max(1, min(workers or workers_for(jobs), len(queue))), shared_gpus(job.where for job in jobs)) as pool:
        try:
            while queue or pool.busy:
                while queue and pool.free:
                    place, patient = queue.popleft()
                    pool.start(place, partial(_work, jobs[place], root, board, patient))
                for said in pool.hear(TICK):
                    if said.what == "over" and said.content == BUSY:
                        queue.append((said.place, True))
                    elif said.what == "over":
                        end(said.place, said.content)
                    elif said.what == "died":
                        end(said.place, _failed(jobs[said.place], root, _of_the_dead(said)))
                    elif watcher:
                        tell = watcher.on_phase if said.what == "phase" else watcher.on_wait
                        tell(said.place, jobs[said.place], said.content)
                if watcher:
                    watcher.on_tick()
        except KeyboardInterrupt:
            if watcher:
                watcher.on_stop(pool.busy)
            raise
    return [outcomes[place] for place in sorted(outcomes)]


def _of_the_dead(said: Said) -> str:
    return f"{said.content}; the other runs went on. The same command, or `afec resume`, goes on from its last checkpoint\n"


def _failed(job: Job, root: Path, text: str) -> str:
    with suppress(OSError):  # it may be the directory itself that cannot be written
        write_text(RunDirectory.of(root, job.config, job.seed).path / "FAILED", text)
    return text


class _BusyError(Exception):
    """Somebody else is at this run."""


def _leave(holder: str) -> None:
    raise _BusyError(holder)


def _log(board: Path | None, directory: RunDirectory) -> None:
    """The log of a run that was done before, unless it is there."""
    if board is not None:
        with Board(board, directory) as log:
            if not log.exists:
                log.update(directory)


def _work(job: Job, root: Path, board: Path | None, patient: bool, speaker: Speaker) -> str | None:
    """One run in a worker; the traceback if it failed, or `BUSY` if somebody else is at it and it is not to be waited for."""
    say = partial(speaker.say, "phase")
    wait = partial(speaker.say, "waits") if patient else _leave
    directory = RunDirectory.of(root, job.config, job.seed)
    try:
        if board is None:
            run(job.config, job.seed, root, say, on_wait=wait, device=job.device)
            return None
        with Board(board, directory) as log:
            run(job.config, job.seed, root, say, on_wait=wait, on_saved=log.update, device=job.device)
            log.update(directory)
    except _BusyError:
        return BUSY
    except Exception:
        return _failed(job, root, traceback.format_exc())
    return None
