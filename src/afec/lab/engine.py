"""Running many runs at once: one process per core, one thread each; or one process per GPU.

Two threads in one process are slower on a CPU than one thread in each of two processes. Which process runs what, and when,
has no influence on the numbers: every draw is seeded by the run's own configuration and seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from afec.experiments import Progress
from afec.lab.config import differing
from afec.lab.directory import RunDirectory
from afec.lab.gpus import available_cores, default_workers, shared_gpus
from afec.lab.job import BUSY, Job, RunWork, keep_failure
from afec.lab.local_pool import LocalPool
from afec.lab.pool import Pool
from afec.lab.tensorboard import Board, check_tensorboard

__all__ = ["Job", "MakePool", "Outcome", "Watcher", "available_cores", "execute", "labelled", "workers_for"]

TICK = 0.2  # seconds between two looks at the pool's messages
MakePool = Callable[[Sequence[Job], Path], Pool]
"""What makes a pool for these jobs, whose run directories are under this root."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: done, failed or stopped."""

    job: Job
    directory: RunDirectory
    error: str | None
    """The traceback, where it failed."""
    fresh: bool
    """Whether it was run now; finished ones are not run again."""


class Watcher(Protocol):
    """Who wants to see it live."""

    def on_progress(self, index: int, job: Job, progress: Progress) -> None:
        """A run has made a step."""

    def on_wait(self, index: int, job: Job, holder: str) -> None:
        """A run waits until another process has ended it."""

    def on_outcome(self, outcome: Outcome) -> None:
        """Called when a job has ended."""

    def on_tick(self) -> None:
        """Called a few times per second, for drawing."""

    def on_stop(self, running: int) -> None:
        """Ctrl-C: nothing is begun any more, and so many runs are still to write a checkpoint."""


def labelled(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each saying what tells it from others of the same name: the values of a grid."""
    texts: dict[tuple[str, str, str], str] = {}
    for name in {(job.config.benchmark, job.config.label) for job in jobs}:
        configs = {j.config.hash: j.config for j in jobs if (j.config.benchmark, j.config.label) == name}
        texts |= {(*name, key): text for key, text in zip(configs, differing([*configs.values()]), strict=True)}
    return [replace(job, difference=texts[job.config.benchmark, job.config.label, job.config.hash]) for job in jobs]


def workers_for(jobs: Sequence[Job]) -> int:
    """As many as there are GPUs, for runs on `cuda`; otherwise one per core."""
    return default_workers(job.device for job in jobs)


def execute(
    jobs: Sequence[Job],
    root: Path,
    workers: int = 0,
    watcher: Watcher | None = None,
    *,
    board: Path | None = None,
    pool: Pool | MakePool | None = None,
) -> list[Outcome]:
    """All jobs, in their order. One that fails stops no other; Ctrl-C leaves everything resumable.

    Args:
        jobs: what to run.
        root: where the run directories are.
        workers: how many processes; 0: as `workers_for` says.
        watcher: who wants to see it live.
        board: where to log for TensorBoard.
        pool: where to run, or what makes a pool for the jobs that are left; by default processes of this machine.
    """
    if board is not None:
        check_tensorboard()
    outcomes: dict[int, Outcome] = {}
    todo: dict[tuple[str, str, str, int], list[int]] = {}  # a run that is asked for twice is run once
    for index, job in enumerate(jobs):
        directory = job.directory(root)
        if directory.done:
            directory.tidy()
            outcomes[index] = Outcome(job, directory, None, fresh=False)
            _log(board, directory)
            if watcher:
                watcher.on_outcome(outcomes[index])
        else:
            todo.setdefault((job.config.benchmark, job.config.method, job.config.hash, job.seed), []).append(index)
    alike = {indices[0]: indices for indices in todo.values()}
    # A run that another process holds comes last: two studies in one place share the work, and wait for each other at the end.
    queue = deque((index, False) for index in alike)
    if not queue:
        return [outcomes[index] for index in sorted(outcomes)]
    if callable(pool):
        pool = pool([jobs[index] for index in alike], root)
    elif pool is None:
        count = max(1, min(workers or workers_for(jobs), len(queue)))
        pool = LocalPool(count, shared_gpus(job.device for job in jobs))

    def end(index: int, error: str | None) -> None:
        for one in alike[index]:
            directory = jobs[one].directory(root)
            outcomes[one] = Outcome(jobs[one], directory, error, fresh=True)
            if watcher:
                watcher.on_outcome(outcomes[one])

    try:
        while queue or pool.busy:
            while queue and pool.free:
                index, patient = queue.popleft()
                pool.start(index, RunWork(jobs[index], root, board, patient))
            for message in pool.poll(TICK):
                if message.kind == "result" and message.content == BUSY:
                    queue.append((message.index, True))
                elif message.kind == "result":
                    end(message.index, message.content)
                elif message.kind == "died":
                    directory = jobs[message.index].directory(root)
                    end(message.index, keep_failure(directory, _how_to_go_on(message.content)))
                elif watcher:
                    tell = watcher.on_progress if message.kind == "progress" else watcher.on_wait
                    tell(message.index, jobs[message.index], message.content)
            if watcher:
                watcher.on_tick()
    except KeyboardInterrupt:
        if watcher:
            watcher.on_stop(pool.busy)
        raise
    finally:
        pool.stop()
    return [outcomes[index] for index in sorted(outcomes)]


def _how_to_go_on(reason: str) -> str:
    return f"{reason}; the other runs went on. The same command, or `afec resume`, goes on from its last checkpoint\n"


def _log(board: Path | None, directory: RunDirectory) -> None:
    """The log of a run that was done before, unless it is there."""
    if board is not None:
        with Board(board, directory) as log:
            if not log.exists:
                log.update(directory)
