"""Processes as the tests of the lab start, watch and end them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil

from afec.lab import find_runs


def afec(*arguments, **options):
    """The command in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "afec.cli", *map(str, arguments)], **options)


def workers_of(process):
    """The worker processes of a study; there are helpers of Python's beside them."""
    try:
        children = psutil.Process(process.pid).children()
        return [child for child in children if any("spawn_main" in word for word in child.cmdline())]
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
