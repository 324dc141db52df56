"""A pool of processes on this machine, each with a pipe of its own to the parent.

Nothing is shared between them: no queue, no lock, no event. A process that is killed while it holds one of these would stop all
the others. A worker that dies is known by its pipe, and so is the run that it had; the others do not notice.

The parent stops a worker by closing its pipe: the run ends with the epoch that it is in, after a checkpoint. A parent that was
killed has closed all pipes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pickle import UnpicklingError
from threading import Thread
from typing import Any, Literal

from afec.lab.directory import RunError
from afec.lab.pool import Message, Work

__all__ = ["LocalPool"]

MESSAGE_SECONDS = 0.2  # between two messages of one worker, at least


class PipeChannel:
    """The worker's end of its pipe, for one piece of work; its own stop token."""

    def __init__(self, pipe: Connection, index: int) -> None:
        self.pipe, self.index, self.last = pipe, index, -MESSAGE_SECONDS

    @property
    def stop(self) -> PipeChannel:
        """Ask the worker to stop; it looks at its pipe after every epoch."""
        return self

    @property
    def asked(self) -> bool:
        """Whether the parent has closed its end: while there is work it sends nothing, so that is all there can be to read."""
        try:
            return self.pipe.poll()
        except OSError:
            return True

    def send(self, kind: Literal["progress", "waiting"], content: Any) -> None:
        """Tell the parent, a few times per second at most."""
        if time.monotonic() - self.last > MESSAGE_SECONDS:
            self.last = time.monotonic()
            with suppress(OSError):  # a parent that is gone has asked to stop
                self.pipe.send(Message(kind, self.index, content))


class LocalPool:
    """At most `count` processes.

    Args:
        count: how many.
        gpus: what each of them sees as CUDA_VISIBLE_DEVICES, in turn; nothing is changed where there are none.
    """

    def __init__(self, count: int, gpus: Sequence[str] = ()) -> None:
        self.slots: list[_Worker | None] = [None] * count
        self.gpus = gpus

    @property
    def busy(self) -> int:
        """How many workers have a job."""
        return sum(worker is not None and worker.index is not None for worker in self.slots)

    @property
    def free(self) -> int:
        """How many more can be given work."""
        return len(self.slots) - self.busy

    def start(self, index: int, work: Work) -> None:
        """Give work to a process that has none; one that is not there, or has died meanwhile, is started."""
        for number, worker in enumerate(self.slots):
            if worker is None or worker.index is None:
                if worker is None or not worker.take(index, work):
                    gpu = self.gpus[number % len(self.gpus)] if self.gpus else None
                    worker = self.slots[number] = _Worker(gpu)
                    worker.take(index, work)
                return
        raise AssertionError("no worker is free")

    def poll(self, timeout: float) -> Iterator[Message]:
        """The messages since the last call; waits for the first one, but no longer than `timeout` seconds."""
        pipes = {worker.pipe: number for number, worker in enumerate(self.slots) if worker and worker.index is not None}
        for pipe in wait(list(pipes), timeout):
            assert isinstance(pipe, Connection)
            number = pipes[pipe]
            worker = self.slots[number]
            assert worker is not None
            assert worker.index is not None
            try:
                message: Message | None = pipe.recv()
            except (EOFError, OSError, UnpicklingError):  # also in the middle of a message
                self.slots[number] = None
                yield Message("died", worker.index, worker.exit_reason())
                continue
            if message is None:
                worker.ready = True
                continue
            if message.kind == "result":
                worker.index = None
            yield message

    def stop(self) -> None:
        """Close all pipes and wait for the processes to end; interrupted, kill them."""
        workers = [worker for worker in self.slots if worker is not None]
        try:
            for worker in workers:
                worker.pipe.close()
            for worker in workers:
                worker.process.join()
        except BaseException:  # asked again to stop: at once
            for worker in workers:
                worker.process.kill()
            raise


class _Worker:
    """One process, as the parent sees it."""

    def __init__(self, gpu: str | None) -> None:
        context = get_context("spawn")  # forking a process in which torch has run threads may hang
        self.pipe, there = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(there, gpu))
        self.index: int | None = None
        self.ready = False
        with _without_interrupts():
            self.process.start()
        there.close()  # or its death would never be the end of the pipe

    def take(self, index: int, work: Work) -> bool:
        """Whether it could be given the work."""
        self.index = index
        try:
            self.pipe.send((index, work))
        except OSError:  # it has died; where it is a new one, `poll` will say so
            return False
        return True

    def exit_reason(self) -> str:
        """How the process ended; it raises for one that could never begin, since no other would."""
        self.pipe.close()
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


def _serve(pipe: Connection, gpu: str | None) -> None:
    """What a worker process does: one piece of work after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where a signal cannot be blocked before this line
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # nothing has asked for CUDA yet in this process
    import torch

    torch.set_num_threads(1)
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has closed the pipe
        pipe.send(None)  # it is there
        while True:
            index, work = pipe.recv()
            if pipe.poll():  # closed while this process was starting
                return
            pipe.send(Message("result", index, work(PipeChannel(pipe, index))))


def _end_with_parent() -> None:
    """A parent that was killed cannot tell anybody to stop, and an epoch may be long."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
