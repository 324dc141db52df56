"""A linear probe: how well an output layer alone learns a new task, on features that no longer move."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from afec.learner.fit import Fit, OnEpoch
from afec.learner.machine import Machine
from afec.learner.tasks import Batches, BatchLoss, features_of, outputs_of
from afec.nets import MultiHead, Readout
from afec.randomness import forked, seed_from
from afec.stopping import Stop
from afec.strategy import Schedule
from afec.streams import Split, Task

__all__ = ["LinearProbe", "linear_probe"]


@dataclass(frozen=True)
class LinearProbe:
    """How well an output layer alone learned a task."""

    name: str
    validation: float
    """The validation accuracy; NaN where the task has no such split."""
    test: float
    epochs: int


def linear_probe(
    net: Readout,
    number: int,
    task: Task,
    schedule: Schedule,
    machine: Machine,
    seed: int,
    on_epoch: OnEpoch | None = None,
    stop: Stop | None = None,
) -> LinearProbe:
    """Train an output layer for `task` on the net's features, by the same schedule as any task; the net stays as it is.

    Features are computed once, in eval mode and without augmentation; with statistics of its own for each task, a batch-norm
    takes those of task `number`.
    """
    given = BatchLoss.of(number, task, machine)
    train, validation, test = (
        None if s is None else Split(features_of(net, given, s.inputs), s.targets.to(machine.torch_device))
        for s in (task.train, task.validation, task.test)
    )
    assert train is not None
    seed = seed_from("transfer", seed, task.name)
    with forked(seed, machine.torch_device):
        head = MultiHead(nn.Identity(), [task.outputs], net.width, zero=net.zero)
    machine.placed(head)
    loss = BatchLoss(0, task.loss, machine)
    watched = None if validation is None else Batches(validation)
    fit = Fit(head, Batches(train), watched, loss, schedule, seed, machine).run(on_epoch=on_epoch, stop=stop)

    def accuracy(split: Split | None) -> float:
        if split is None:
            return math.nan
        return task.accuracy(outputs_of(head, loss, split.inputs).cpu(), Split(split.inputs, split.targets.cpu()))

    return LinearProbe(task.name, accuracy(validation), accuracy(test), fit.epochs)
