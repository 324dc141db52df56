"""Worker processes that do one run after the other, each on a line of its own to the parent.

Nothing is shared between them: no queue, no lock, no event. A process that is killed while it holds one of these would stop all
the others. A worker that dies is known by its line, and so is the run that it had; the others do not notice.

The parent stops a worker by closing its line: it ends with the epoch that it is in, after a checkpoint. A parent that was
killed has closed all lines.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pickle import UnpicklingError
from threading import Thread
from types import TracebackType
from typing import Any, Literal

import torch

from afec.lab.directory import RunError

__all__ = ["Said", "Speaker", "StoppedError", "Workers"]

TICK = 0.2  # seconds between two reports of one worker


@dataclass(frozen=True)
class Said:
    """What came of a worker."""

    what: Literal["phase", "waits", "over", "died"]
    place: int
    """Of the work that it was about."""
    content: Any
    """A `Progress`; whom it waits for; what the work has returned; in which words it died."""


class StoppedError(BaseException):
    """The parent wants no more."""


class Speaker:
    """The worker's end of the line, for one piece of work."""

    def __init__(self, line: Connection, place: int) -> None:
        self.line, self.place, self.last = line, place, -TICK

    def say(self, what: Literal["phase", "waits"], content: Any) -> None:
        """Tell the parent, a few times per second at most; raises `StoppedError` if it wants no more."""
        try:
            if (
                self.line.poll()
            ):  # the parent says nothing while there is work, so this is its end of the line being closed
                raise StoppedError
            if time.monotonic() - self.last > TICK:
                self.last = time.monotonic()
                self.line.send(Said(what, self.place, content))
        except OSError as error:
            raise StoppedError from error


class Workers:
    """At most `count` processes; a block, at whose end all of them have ended.

    Args:
        count: how many.
        gpus: what each of them sees as CUDA_VISIBLE_DEVICES, in turn; nothing is changed where there are none.
    """

    def __init__(self, count: int, gpus: Sequence[str] = ()) -> None:
        self.slots: list[_Worker | None] = [None] * count
        self.gpus = gpus

    def __enter__(self) -> Workers:
        return self

    @property
    def busy(self) -> int:
        """How many are at work."""
        return sum(worker is not None and worker.place is not None for worker in self.slots)

    @property
    def free(self) -> int:
        """How many more can be given work."""
        return len(self.slots) - self.busy

    def start(self, place: int, work: Work) -> None:
        """Give work to a process that has none; one that is not there, or has died meanwhile, is started."""
        for number, worker in enumerate(self.slots):
            if worker is None or worker.place is None:
                if worker is None or not worker.take(place, work):
                    gpu = self.gpus[number % len(self.gpus)] if self.gpus else None
                    worker = self.slots[number] = _Worker(gpu)
                    worker.take(place, work)
                return
        raise AssertionError("no worker is free")

    def hear(self, timeout: float) -> Iterator[Said]:
        """What they have said since; waits for the first word of any of them, but no longer than `timeout` seconds."""
        lines = {worker.line: number for number, worker in enumerate(self.slots) if worker and worker.place is not None}
        for line in wait(list(lines), timeout):
            assert isinstance(line, Connection)
            number = lines[line]
            worker = self.slots[number]
            assert worker is not None
            assert worker.place is not None
            try:
                said: Said | None = line.recv()
            except (EOFError, OSError, UnpicklingError):  # also in the middle of a word
                self.slots[number] = None
                yield Said("died", worker.place, worker.obituary())
                continue
            if said is None:
                worker.ready = True
                continue
            if said.what == "over":
                worker.place = None
            yield said

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        workers = [worker for worker in self.slots if worker is not None]
        try:
            for worker in workers:
                worker.line.close()
            for worker in workers:
                worker.process.join()
        except BaseException:  # asked again to stop: at once
            for worker in workers:
                worker.process.kill()
            raise


Work = Callable[[Speaker], Any]
"""What a worker can be given; it is pickled."""


class _Worker:
    """One process, as the parent sees it."""

    def __init__(self, gpu: str | None) -> None:
        context = get_context("spawn")  # forking a process in which torch has run threads may hang
        self.line, there = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(there, gpu))
        self.place: int | None = None
        self.ready = False
        with _without_interrupts():
            self.process.start()
        there.close()  # or its death would never be the end of the line

    def take(self, place: int, work: Work) -> bool:
        """Whether it could be given the work."""
        self.place = place
        try:
            self.line.send((place, work))
        except OSError:  # it has died; where it is a new one, `hear` will say so
            return False
        return True

    def obituary(self) -> str:
        """How the process ended; it raises for one that could never begin, since no other would."""
        self.line.close()
        self.process.join()
        code = self.process.exitcode or 0
        if code >= 0 and not self.ready:
            raise RunError(
                f"a worker process could not start and ended with code {code}; what it said is above. A script that starts a "
                "study does so under `if __name__ == '__main__':`"
            )
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        how = f"was killed by {name}" if code < 0 else f"ended with code {code}"
        memory = " (was there no memory left? then use fewer --workers)" if code == -9 else ""
        return f"its worker process {self.process.pid} {how}{memory}"


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


def _serve(line: Connection, gpu: str | None) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a signal cannot be blocked before this line
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # nothing has asked for CUDA yet in this process
    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has closed the line
        line.send(None)  # it is there
        while True:
            place, work = line.recv()
            if line.poll():  # closed while this process was starting
                return
            try:
                found = work(Speaker(line, place))
            except StoppedError:
                return
            line.send(Said("over", place, found))


def _end_with_parent() -> None:
    """A parent that was killed cannot tell anybody to stop, and an epoch may be long."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
