"""Runs that are stopped in their middle, as a study stops them: by a token, which they look at after every step."""

from __future__ import annotations

import pytest

from afec.experiments import StoppedError
from afec.lab import RunDirectory, run


class Token:
    """A stop that can be asked for."""

    def __init__(self, asked=False):
        self.asked = asked


def run_until(when, config, root, seed=0, **options):
    """Run until `when(seen)` holds, `seen` being the progress so far in this process, and stop; returns `seen`."""
    stop, seen = Token(), []

    def on_progress(progress):
        seen.append(progress)
        stop.asked = stop.asked or bool(when(seen))

    with pytest.raises(StoppedError):
        run(config, seed, root, on_progress, stop=stop, **options)
    assert not RunDirectory.of(root, config, seed).done
    return seen


def steps(count):
    """After so many steps."""
    return lambda seen: len(seen) == count


def in_task(number):
    """After the first step of this task, counted from 0."""
    return lambda seen: seen[-1].task == number
