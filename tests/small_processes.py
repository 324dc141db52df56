"""Processes as the tests of the lab start, watch and end them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import torch
from torch.multiprocessing import start_processes

from afec.cli import main
from afec.lab import find_runs, local_pool


def afec(*arguments, **options):
    """The command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "afec.cli", *map(str, arguments)], **options)


def forkserver():
    """What forks processes from one that has imported everything: they start in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["afec.lab.engine", "afec.cli.work", "sklearn.datasets", "torch._dynamo"])
    return context


def several(work, folder, count):
    """`work(rank, folder)` in so many processes at once; an error in one of them is raised here."""
    forkserver()
    start_processes(work, (str(folder),), nprocs=count, start_method="forkserver")


def killed(work, *arguments):
    """`work(*arguments)` in a process of its own, which dies of SIGKILL on the way."""
    process = forkserver().Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


class ForkedCommand:
    """The command in a session of its own, its workers its children, as `afec` starts it, without the seconds for imports.

    It has what the tests need of `subprocess.Popen`; what it says goes to one file.
    """

    def __init__(self, *arguments):
        self.said = Path(tempfile.mkdtemp()) / "said"
        self.process = forkserver().Process(
            target=_command, args=([*map(str, arguments)], str(self.said), dict(os.environ))
        )
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=None):
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("afec", timeout)
        return self.process.exitcode

    def communicate(self):
        self.wait()
        return self.said.read_text() if self.said.exists() else "", None


def _command(arguments, said, environment):
    os.setsid()
    with open(said, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    context = _Forking()
    local_pool.get_context = lambda kind: context
    sys.exit(main(arguments))


class _Forking:
    """Workers that are forked from a process in which no thread has run; of the pipes each keeps its own end only."""

    def __init__(self):
        self.context, self.pipes = multiprocessing.get_context("fork"), []

    def Pipe(self):  # noqa: N802
        here, there = self.context.Pipe()
        self.pipes.append(here)
        return here, there

    def Process(self, target, args):  # noqa: N802
        def run():
            for pipe in self.pipes:
                pipe.close()
            target(*args)

        return self.context.Process(target=run)


def workers_of(process):
    """The worker processes of a study; there are helpers of Python's beside them."""
    kinds = ("spawn_main", "multiprocessing.forkserver")
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if any(kind in word for word in child.cmdline() for kind in kinds)]
    except psutil.Error:
        return []


def alive(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def all_scores(root):
    """The bytes of scores.csv of every run."""
    return {found.path.relative_to(root): (found.path / "scores.csv").read_bytes() for found in find_runs(root)}


def polled(pool):
    """The next messages of a pool."""
    messages = []
    while not messages:
        messages = list(pool.poll(1))
    return messages


# What workers can be given.


def sleep(channel):
    time.sleep(600)


def send_until_stopped(channel):
    while not channel.stop.asked:
        channel.send("waiting", "Godot")
        time.sleep(0.01)


def leave(channel):
    raise SystemExit(3)


def tell_gpu(channel):
    return os.environ.get("CUDA_VISIBLE_DEVICES")


def tell_number(channel):
    return os.getpid()


class Unreadable:
    """Nothing that a new process could read."""

    def __reduce__(self):
        return int, ("what",)
