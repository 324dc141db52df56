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

from afec.experiments import Progress, StoppedError
from afec.files import write_text
from afec.lab.config import RunConfig, differing
from afec.lab.directory import RunDirectory
from afec.lab.gpus import available_cores, default_workers, shared_gpus
from afec.lab.local_pool import LocalPool
from afec.lab.lock import BusyError
from afec.lab.pool import Channel, Pool
from afec.lab.run import HERE, Place, run
from afec.lab.tensorboard import Board, check_tensorboard

__all__ = ["Job", "Outcome", "Watcher", "available_cores", "execute", "labelled", "workers_for"]

TICK = 0.2  # seconds between two looks at the pool's messages
BUSY, STOPPED = "busy", "stopped"


@dataclass(frozen=True)
class Job:
    """One run to do."""

    config: RunConfig
    seed: int
    place: Place = HERE
    difference: str = field(default="", compare=False)
    """What tells its configuration from others of the same name in the study."""

    @property
    def label(self) -> str:
        """Method, variant and what differs in a grid."""
        return f"{self.config.label}, {self.difference}" if self.difference else self.config.label

    @property
    def device(self) -> str:
        """The device that the run asks for, such as `cpu` or `cuda`."""
        return self.place.device or str(self.config.training.get("device", "cpu"))

    def __str__(self) -> str:
        return f"{self.config.benchmark}, {self.label}, seed {self.seed}"


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
    pool: Pool | None = None,
) -> list[Outcome]:
    """All jobs, in their order. One that fails stops no other; Ctrl-C leaves everything resumable.

    Args:
        jobs: what to run.
        root: where the run directories are.
        workers: how many processes; 0: as `workers_for` says.
        watcher: who wants to see it live.
        board: where to log for TensorBoard.
        pool: where to run; by default processes of this machine.
    """
    if board is not None:
        check_tensorboard()
    outcomes: dict[int, Outcome] = {}
    todo: dict[tuple[str, str, str, int], list[int]] = {}  # a run that is asked for twice is run once
    for index, job in enumerate(jobs):
        directory = RunDirectory.of(root, job.config, job.seed)
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
    if pool is None:
        count = max(1, min(workers or workers_for(jobs), len(queue)))
        pool = LocalPool(count, shared_gpus(job.device for job in jobs))

    def end(index: int, error: str | None) -> None:
        for one in alike[index]:
            directory = RunDirectory.of(root, jobs[one].config, jobs[one].seed)
            outcomes[one] = Outcome(jobs[one], directory, error, fresh=True)
            if watcher:
                watcher.on_outcome(outcomes[one])

    try:
        while queue or pool.busy:
            while queue and pool.free:
                index, patient = queue.popleft()
                pool.start(index, partial(_work, jobs[index], root, board, patient))
            for message in pool.poll(TICK):
                if message.kind == "result" and message.content == BUSY:
                    queue.append((message.index, True))
                elif message.kind == "result":
                    end(message.index, message.content)
                elif message.kind == "died":
                    end(message.index, _failed(jobs[message.index], root, _how_to_go_on(message.content)))
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


def _failed(job: Job, root: Path, text: str) -> str:
    with suppress(OSError):  # it may be the directory itself that cannot be written
        write_text(RunDirectory.of(root, job.config, job.seed).path / "FAILED", text)
    return text


def _log(board: Path | None, directory: RunDirectory) -> None:
    """The log of a run that was done before, unless it is there."""
    if board is not None:
        with Board(board, directory) as log:
            if not log.exists:
                log.update(directory)


def _work(job: Job, root: Path, board: Path | None, patient: bool, channel: Channel) -> str | None:
    """One run in a worker; the traceback if it failed, or `BUSY` if another process holds it and it is not to be waited for."""
    begin = partial(
        run,
        job.config,
        job.seed,
        root,
        partial(channel.send, "progress"),
        on_wait=partial(channel.send, "waiting"),
        stop=channel.stop,
        patient=patient,
        place=job.place,
    )
    directory = RunDirectory.of(root, job.config, job.seed)
    try:
        if board is None:
            begin()
            return None
        with Board(board, directory) as log:
            begin(on_saved=log.update)
            log.update(directory)
    except BusyError:
        return BUSY
    except StoppedError:
        return STOPPED
    except Exception:
        return _failed(job, root, traceback.format_exc())
    return None
