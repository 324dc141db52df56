"""What a net's features are good for: a new task by a linear head alone, on features that no longer move."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from afec.learner.fit import Fit, OnEpoch
from afec.learner.machine import Machine
from afec.learner.schedule import Schedule
from afec.learner.tasks import Batches, HeadLoss, accuracy, represent_in_chunks
from afec.nets import MultiHead
from afec.randomness import forked, seed_from
from afec.streams import Split, Task

__all__ = ["Transferred", "transfer"]


@dataclass(frozen=True)
class Transferred:
    """How well a head alone learned a task."""

    name: str
    validation: float
    """Accuracy; NaN where the task has no such split."""
    test: float
    epochs: int


def transfer(
    net: MultiHead,
    number: int,
    task: Task,
    schedule: Schedule,
    machine: Machine,
    seed: int,
    on_epoch: OnEpoch | None = None,
) -> Transferred:
    """Train a head for `task` on the net's features, by the same schedule as any task; the net stays as it is.

    Features are computed once, in eval mode and without augmentation; with statistics of its own for each task, a batch-norm
    takes those of task `number`.
    """

    def seen(split: Split) -> Split:
        return Split(
            represent_in_chunks(net, number, task, split.inputs, machine), split.targets.to(machine.torch_device)
        )

    train, test = seen(task.train), seen(task.test)
    validation = None if task.validation is None else seen(task.validation)
    seed = seed_from("transfer", seed, task.name)
    with forked(seed, machine.torch_device):
        head = MultiHead(nn.Identity(), [task.outputs], net.features, zero=net.zero)
    machine.placed(head)
    loss = HeadLoss(0, task.loss, machine)
    watched = None if validation is None else Batches(validation)
    fit = Fit(head, Batches(train), watched, loss, schedule, seed, machine).run(on_epoch=on_epoch)
    found = [math.nan if split is None else accuracy(head, loss, task, split) for split in (validation, test)]
    return Transferred(task.name, found[0], found[1], fit.epochs)
