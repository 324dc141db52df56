"""Running many runs at once: one process per core, one thread each.

Two threads in one process are slower on a CPU than one thread in each of two processes. Which process runs what, and when,
has no influence on the numbers: every draw is seeded by the run's own configuration and seed.
"""

from __future__ import annotations

import os
import queue
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Protocol

import torch

from afec.files import write_text
from afec.lab.config import RunConfig
from afec.lab.directory import RunDirectory, RunError
from afec.lab.run import run
from afec.learner import Phase

__all__ = ["Job", "Outcome", "Watcher", "available_cores", "execute"]

TICK = 0.2  # seconds between two looks at what the workers say


@dataclass(frozen=True)
class Job:
    """One run to do."""

    config: RunConfig
    seed: int

    def __str__(self) -> str:
        return f"{self.config.benchmark}, {self.config.label}, seed {self.seed}"


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

    def on_phase(self, place: int, job: Job, phase: Phase) -> None:
        """A worker is here."""

    def on_outcome(self, outcome: Outcome) -> None:
        """A job is over."""

    def on_tick(self) -> None:
        """A few times per second."""


class _Stopped(BaseException):
    """The parent wants no more."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execute(jobs: Sequence[Job], root: Path, workers: int, watcher: Watcher | None = None) -> list[Outcome]:
    """All jobs, in their order. One that fails stops no other; Ctrl-C leaves everything resumable."""
    outcomes: dict[int, Outcome] = {}
    todo: dict[tuple[str, str, str, int], list[int]] = {}  # a run that is asked for twice is run once
    for place, job in enumerate(jobs):
        directory = RunDirectory.of(root, job.config, job.seed)
        if directory.done:
            outcomes[place] = Outcome(job, directory, None, fresh=False)
            if watcher:
                watcher.on_outcome(outcomes[place])
        else:
            todo.setdefault((job.config.benchmark, job.config.method, job.config.hash, job.seed), []).append(place)
    if not todo:
        return [outcomes[place] for place in sorted(outcomes)]
    with _pool(min(workers, len(todo))) as (submit, said):
        running: dict[Future[str | None], list[int]] = {
            submit(_work, places[0], jobs[places[0]], root): places for places in todo.values()
        }
        while running:
            over, _ = wait(running, timeout=TICK, return_when=FIRST_COMPLETED)
            _pass_on(said, jobs, watcher)
            for future in over:
                for place in running.pop(future):
                    directory = RunDirectory.of(root, jobs[place].config, jobs[place].seed)
                    outcomes[place] = Outcome(jobs[place], directory, future.result(), fresh=True)
                    if watcher:
                        watcher.on_outcome(outcomes[place])
            if watcher:
                watcher.on_tick()
    return [outcomes[place] for place in sorted(outcomes)]


def _pass_on(said: Any, jobs: Sequence[Job], watcher: Watcher | None) -> None:
    while True:
        try:
            place, phase = said.get_nowait()
        except queue.Empty:
            return
        if watcher:
            watcher.on_phase(place, jobs[place], phase)


@contextmanager
def _pool(workers: int) -> Iterator[tuple[Callable[..., Future[Any]], Any]]:
    """Processes to submit work to, which stop within an epoch when the block is left early, by Ctrl-C or by an error."""
    context = get_context("spawn")  # forking a process in which torch has run threads may hang
    said, stop = context.Queue(), context.Event()
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(said, stop))

    def submit(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with _without_interrupts():  # a process may be born here
            return pool.submit(work, *arguments)

    try:
        yield submit, said
    except BrokenProcessPool as error:
        raise RunError(
            "a worker process was killed from outside (was there no memory left?); finished runs are kept, go on with the "
            "same command or with `afec resume`, perhaps with fewer --workers"
        ) from error
    finally:
        stop.set()  # after an orderly end there is nothing left to stop
        pool.shutdown(cancel_futures=True)
        said.cancel_join_thread()
        said.close()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ctrl-C waits until the end of the block; processes born in it never see one, the parent tells them to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_said: Any = None
_stop: Any = None


def _start_worker(said: Any, stop: Any) -> None:
    global _said, _stop
    _said, _stop = said, stop
    said.cancel_join_thread()  # a worker that ends does not wait until everything it said was read
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a signal cannot be blocked before this line
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot tell anybody to stop, and its workers would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(place: int, job: Job, root: Path) -> str | None:
    """One run in a worker; the traceback if it failed."""
    last = 0.0

    def on_phase(phase: Phase) -> None:
        nonlocal last
        if _stop.is_set():
            raise _Stopped
        if time.monotonic() - last > TICK:
            last = time.monotonic()
            _said.put((place, phase))

    try:
        run(job.config, job.seed, root, on_phase)
    except _Stopped:
        return None
    except Exception:
        text = traceback.format_exc()
        with suppress(OSError):  # it may be the directory itself that cannot be written
            write_text(RunDirectory.of(root, job.config, job.seed).path / "FAILED", text)
        return text
    return None
