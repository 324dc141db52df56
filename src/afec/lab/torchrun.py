"""One run in several processes that `torchrun` has started: `torchrun --nproc-per-node 2 -m afec run …`.

The first process does all that a command does, run after run, and it alone writes. The others follow it: they are told which
run it is and where it stands, learn with it, and know nothing else.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Literal, NoReturn

import torch
from torch import distributed

from afec.data.root import data_root_is
from afec.experiments import Context, Stop, StoppedError
from afec.lab.agreed_stop import AgreedStop
from afec.lab.job import Job
from afec.lab.pool import Message, Work
from afec.parallel import Group, grouped

__all__ = ["GroupPool", "follow", "joined", "leave", "processes_of_torchrun"]

PATIENCE = timedelta(days=7)  # the others wait while the first one measures, writes, or waits for a lock


def processes_of_torchrun() -> int:
    """How many processes torchrun has started for this command; 1 where it has not."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


@contextmanager
def joined(backend: str = "gloo") -> Iterator[Group]:
    """The group of the processes that torchrun has started; `nccl` takes the GPU with the process's number on its machine."""
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    distributed.init_process_group(backend, timeout=PATIENCE)
    group = Group(distributed.get_rank(), distributed.get_world_size(), device)
    try:
        yield group
        group.total(0)  # nobody hangs up while another one still talks
    finally:
        distributed.destroy_process_group()


def leave(code: int) -> NoReturn:
    """End a process of torchrun when all is done and written.

    At once, because a thread of gloo that lets go of a tensor while Python shuts down aborts the process (torch 2.13).
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class GroupPool:
    """A pool of one place: the group. It is a thread of the first process, so that progress is shown meanwhile."""

    def __init__(self, group: Group) -> None:
        self.group, self.asked = group, False
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.thread: Thread | None = None

    def __call__(self, jobs: Sequence[Job], root: Path) -> GroupPool:
        """The pool of a study: this one."""
        for job in jobs:
            if not job.config.kind.shared_out:
                raise ValueError(f"{job}: this experiment learns in one process only; start it without torchrun")
        return self

    def __str__(self) -> str:
        return f"{self.group.size} processes together, each with its share of every batch"

    @property
    def busy(self) -> int:
        """One at a time."""
        return int(self.thread is not None)

    @property
    def free(self) -> int:
        """One at a time."""
        return 1 - self.busy

    def start(self, index: int, work: Work) -> None:
        """Begin it in this process; the others are told when its run begins."""
        self.thread = Thread(target=self._run, args=(index, work), daemon=True)
        self.thread.start()

    def poll(self, timeout: float) -> Iterator[Message]:
        """The messages since the last call."""
        wait = timeout
        while True:
            try:
                message = self.messages.get(timeout=wait) if wait else self.messages.get_nowait()
            except Empty:
                return
            wait = 0.0
            if message.kind in ("result", "died"):
                self.thread = None
            yield message

    def stop(self) -> None:
        """Ask the run to end, and wait for it."""
        self.asked = True
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.asked = False

    def _run(self, index: int, work: Work) -> None:
        torch.set_num_threads(1)
        with grouped(self.group):
            self.messages.put(Message("result", index, work(_ThreadChannel(self, index))))


class _ThreadChannel:
    """What a run talks through."""

    def __init__(self, pool: GroupPool, index: int) -> None:
        self.pool, self.index = pool, index

    @property
    def stop(self) -> Stop:
        """The pool knows."""
        return self.pool

    def send(self, kind: Literal["progress", "waiting"], content: Any) -> None:
        """Tell the pool."""
        self.pool.messages.put(Message(kind, self.index, content))


def follow(group: Group) -> None:
    """What all processes but the first do: learn what it learns, until it says that there is no more."""
    with grouped(group):
        while (told := group.agreed()) is not None:
            config, seed, place = told
            with data_root_is(place.data), tempfile.TemporaryDirectory() as folder:
                experiment = config.build(Context(seed, place.device, stop=AgreedStop(group)))
                done, state = group.agreed()
                if state is not None:
                    experiment.load_state_dict(state)
                try:
                    for number in range(done, len(experiment.tasks)):
                        experiment.learn(number, lambda progress: None)
                    experiment.finish(Path(folder), lambda progress: None)
                except StoppedError:
                    pass
