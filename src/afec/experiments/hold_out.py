"""Validation data for a tuning, where a benchmark has none: a part of the training data, which reported runs learn from.

A trial says so in its configuration, `hold_out = 0.1` in the section of the stream: it is never taken for a reported run.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from afec.randomness import seed_from
from afec.streams import Split, Stream, Task

__all__ = ["HOLD_OUT", "PART", "held_out"]

HOLD_OUT = "hold_out"
PART = 0.1


def held_out(stream: Stream, part: float, seed: int) -> Stream:
    """The stream with this part of the training data as validation data, where a task has none; a function of the seed.

    Tasks of equal size hold out the same rows: where they share their images, none is held out of one and learned in another.
    """
    return replace(
        stream,
        tasks=tuple(_divided(task, part, seed) for task in stream.tasks),
        transfer=tuple(_divided(task, part, seed) for task in stream.transfer),
    )


def _divided(task: Task, part: float, seed: int) -> Task:
    if task.validation is not None:
        return task
    size, (inputs, targets) = task.train.size, task.train
    if size < 2:
        raise ValueError(f"task '{task.name}' has one sample to train on, so none can be held out to tune on")
    generator = torch.Generator().manual_seed(seed_from("hold-out", seed, size))
    order = torch.randperm(size, generator=generator)
    count = max(1, round(part * size))
    held, kept = order[:count].sort().values, order[count:].sort().values
    return replace(task, train=Split(inputs[kept], targets[kept]), validation=Split(inputs[held], targets[held]))
