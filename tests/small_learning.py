"""Real digits, cut so small that a whole stream is learned in a fraction of a second."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import afec
from afec.learner import Learner, Schedule, TaskRecord
from afec.nets import MultiHead
from afec.randomness import forked
from afec.streams import Split, Task, digits

SHORT = Schedule(batch_size=16, lr=1e-2, max_epochs=2, patience=1, lr_min=1e-4)


class Backbone(nn.Module):
    """Everything that a checkpoint could forget: buffers, dropout, weights."""

    out_features = 12

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, 12),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.layers(x)


def cut(task: Task, train: int = 48, others: int = 30) -> Task:
    """The same task with fewer images."""
    parts = [
        Split(split.inputs[:n], split.targets[:n])
        for split, n in ((task.train, train), (task.validation, others), (task.test, others))
    ]
    return replace(task, **dict(zip(("train", "validation", "test"), parts, strict=True)))


def few_tasks(count: int = 3, train: int = 48, sizes: list[int] | None = None) -> list[Task]:
    """The first tasks of the digits, cut."""
    stream = digits(seed=0, validation=0.15) if sizes is None else digits(seed=0, sizes=sizes, validation=0.15)
    return [cut(task, train) for task in stream.tasks[:count]]


def small_net(tasks: list[Task]) -> MultiHead:
    """The same net every time."""
    with forked(1):
        return MultiHead(Backbone(), [task.outputs for task in tasks])


def small_learner(tasks: list[Task], guard: afec.Guard | None = None, **options: object) -> Learner:
    """A learner that is quick."""
    return Learner(small_net(tasks), guard, **{"schedule": SHORT, "seed": 3, **options})


def numbers(took: list[TaskRecord]) -> list[TaskRecord]:
    """What learning took, without the clocks, and whether it was trained here or recalled."""
    return [replace(one, seconds={}, cpu_seconds={}, recalled={}) for one in took]


def same(one: object, other: object) -> bool:
    """Whether two trees are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.equal(other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other
