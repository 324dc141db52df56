"""Running rows in parallel: one process per core, one thread each.

Two threads in one process are slower here than one thread in each of two processes. Which process runs what, and when, has
no influence on the numbers: every draw is seeded by row and seed alone.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, TypeVar

import torch

from afec.demo.rows import FirstTask, Result, Row, Setting, learn_both, learn_first
from afec.learner import Epoch

__all__ = ["RowError", "available_cores", "run_rows"]

Answer = TypeVar("Answer")
TICK = 0.2  # seconds between two looks at the counter


class RowError(RuntimeError):
    """A worker's error, with the row and the seed it belongs to."""


class _Stopped(BaseException):
    """The parent wants no more."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_rows(
    rows: Sequence[Row],
    seeds: Sequence[int],
    setting: Setting,
    workers: int,
    on_result: Callable[[Result], None],
    on_tick: Callable[[int], None],
) -> list[Result]:
    """All rows under all seeds, sorted by seed and then as the rows are.

    Args:
        rows: what to compare.
        seeds: each gives other splits, arrangements and initial weights.
        setting: what all rows share.
        workers: the number of processes.
        on_result: called in this process for each row that is done.
        on_tick: called in this process a few times per second with the number of epochs so far, of all workers.
    """
    results: dict[tuple[int, int], Result] = {}
    places: dict[
        Future[Any], tuple[int, int]
    ] = {}  # (seed's place, row's place) of a row; row's place -1: a first task
    with _pool(workers) as (submit, epochs_so_far):
        for place, seed in enumerate(seeds):
            places[submit(_first, seed, setting)] = (place, -1)
        # What takes longest comes first, so that the cores finish together.
        longest_first = sorted(range(len(rows)), key=lambda i: (-rows[i].patience, not rows[i].forgetting))
        while places:
            done, _ = wait(places, timeout=TICK, return_when=FIRST_COMPLETED)
            for future in done:
                place, i = places.pop(future)
                answer = future.result()
                if isinstance(answer, FirstTask):
                    places |= {submit(_both, rows[i], answer, setting): (place, i) for i in longest_first}
                else:
                    results[place, i] = answer
                    on_result(answer)
            on_tick(epochs_so_far())
    return [results[key] for key in sorted(results)]


@contextmanager
def _pool(workers: int) -> Iterator[tuple[Callable[..., Future[Any]], Callable[[], int]]]:
    """Processes to submit work to, which stop within an epoch when the block is left early, by Ctrl-C or by an error."""
    context = get_context("spawn")  # forking a process in which torch has run threads may hang
    counter, stop = context.Value("Q", 0), context.Event()
    pool = ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(counter, stop))

    def submit(work: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        with _without_interrupts():  # a process may be born here
            return pool.submit(work, *arguments)

    try:
        yield submit, lambda: int(counter.value)
    finally:
        stop.set()  # after an orderly end there is nothing left to stop
        pool.shutdown(cancel_futures=True)


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


_counter: Any = None
_stop: Any = None


def _start_worker(counter: Any, stop: Any) -> None:
    global _counter, _stop
    _counter, _stop = counter, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a signal cannot be blocked before this line
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that was killed cannot tell anybody to stop, and its workers would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _count(epoch: Epoch) -> None:
    if _stop.is_set():
        raise _Stopped
    with _counter.get_lock():
        _counter.value += 1


def _first(seed: int, setting: Setting) -> FirstTask:
    return _named(f"the first task, seed {seed}", lambda: learn_first(seed, setting, _count))


def _both(row: Row, first: FirstTask, setting: Setting) -> Result:
    return _named(f"row '{row}', seed {first.seed}", lambda: learn_both(row, first, setting, _count))


def _named(what: str, work: Callable[[], Answer]) -> Answer:
    try:
        return work()
    except Exception as error:
        raise RowError(f"{what}: {type(error).__name__}: {error}") from error
