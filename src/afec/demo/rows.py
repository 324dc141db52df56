"""The four rows of the demo, and how one row learns the two tasks under one seed.

Every row of a seed starts from the same net, has the same first task (trained once: no guard is active there), sees the
batches of the second task in the same order, and stops by the same rule. Only the guard differs, and the patience of the row
at equal compute.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from afec import AFEC, EWC, Guard, GuardedTask
from afec.learner import LossFn, OnEpoch, Schedule, Training, predict, train_to_end
from afec.nets import DigitsBackbone, MultiHead
from afec.randomness import forked, seed_from
from afec.streams import Split, Stream, Task, digits_regression

__all__ = ["ROWS", "SMOKE", "FirstTask", "Result", "Row", "Setting", "learn_both", "learn_first"]

OLD, NEW = 0, 1


@dataclass(frozen=True)
class Row:
    """One line of the table: `EWC(strength) + AFEC(forgetting)`, where a weight of zero means without."""

    name: str
    strength: float = 0.0
    """λ"""
    forgetting: float = 0.0
    """λ_e"""
    patience: int = 1
    """How many times the setting's patience the second task gets."""

    def __str__(self) -> str:
        weights = [f"λ={self.strength:g}"] * bool(self.strength) + [f"λ_e={self.forgetting:g}"] * bool(self.forgetting)
        return f"{self.name} ({', '.join(weights)})" if weights else self.name


@dataclass(frozen=True)
class Setting:
    """What all rows share."""

    train: int = 700
    validation: int = 300
    schedule: Schedule = field(default_factory=lambda: Schedule(patience=20, lr_min=1e-4))


SMOKE = Setting(train=120, validation=60, schedule=Schedule(batch_size=40, patience=1, lr_min=3e-4, max_epochs=4))
"""A few seconds in all, for tests: nothing is learned to the end, and its numbers mean nothing."""

# Tuned by `python -m afec.demo --tune` on the validation images of other seeds, six trials each; docs/demo.md has the table.
ROWS = (
    Row("finetune"),
    Row("ewc", strength=30),
    Row("ewc (equal compute)", strength=30, patience=3),
    Row("ewc+afec", strength=30, forgetting=0.1),
)


@dataclass(frozen=True)
class FirstTask:
    """The net after the first task, which all rows of a seed share."""

    seed: int
    weights: dict[str, NDArray[np.float32]]
    epochs: int


@dataclass(frozen=True)
class Result:
    """What one row came to under one seed. Accuracies are fractions; each row counts the first task's epochs as its own."""

    row: str
    seed: int
    strength: float
    forgetting: float
    old: float
    new: float
    validation_old: float
    validation_new: float
    epochs_first: int
    epochs_theta_e: int
    epochs_second: int
    points: tuple[NDArray[np.float32], NDArray[np.float32]]
    """The outputs for the test images, of the old and of the new task."""

    @property
    def average(self) -> float:
        """The mean test accuracy of the two tasks."""
        return (self.old + self.new) / 2

    @property
    def epochs(self) -> int:
        """All passes over the training images, those for θ_e included."""
        return self.epochs_first + self.epochs_theta_e + self.epochs_second


def learn_first(seed: int, setting: Setting, on_epoch: OnEpoch | None = None) -> FirstTask:
    """Learn the first task; there is nothing old yet, so no guard has anything to do."""
    stream, net = _prepare(seed, setting)
    training = _learn(
        net, stream.tasks[OLD], OLD, setting.schedule, seed_from("demo", "first", seed), on_epoch=on_epoch
    )
    weights = {name: value.numpy() for name, value in net.state_dict().items()}
    return FirstTask(seed, weights, training.epochs)


def learn_both(row: Row, first: FirstTask, setting: Setting, on_epoch: OnEpoch | None = None) -> Result:
    """Take the first task as learned, learn the second under the row's guard, and test both."""
    stream, net = _prepare(first.seed, setting)
    old, new = stream.tasks
    expansions: list[Training] = []

    def expand() -> None:  # θ_e: the new task alone, by the same rule as everything else
        seed = seed_from("demo", "theta_e", first.seed)
        expansions.append(_learn(net, new, NEW, setting.schedule, seed, on_epoch=on_epoch))

    guard = EWC(row.strength) + AFEC(row.forgetting, expand=expand)
    with _learning(guard, net, old, OLD):
        net.load_state_dict({name: torch.from_numpy(value) for name, value in first.weights.items()})
    with _learning(guard, net, new, NEW) as task:
        schedule = replace(setting.schedule, patience=setting.schedule.patience * row.patience)
        # The whole of what is minimised decides on the best weights: without the penalty, the best validation loss would be
        # that of an early epoch which has left the old weights and not yet come back.
        penalty = lambda: task.penalty().item()  # noqa: E731
        seed = seed_from("demo", "second", first.seed)
        training = _learn(net, new, NEW, schedule, seed, extra_loss=penalty, on_epoch=on_epoch)
    return Result(
        row=row.name,
        seed=first.seed,
        strength=row.strength,
        forgetting=row.forgetting,
        old=_accuracy(net, old, OLD, old.test),
        new=_accuracy(net, new, NEW, new.test),
        validation_old=_accuracy(net, old, OLD, old.validation),
        validation_new=_accuracy(net, new, NEW, new.validation),
        epochs_first=first.epochs,
        epochs_theta_e=sum(expansion.epochs for expansion in expansions),
        epochs_second=training.epochs,
        points=(_outputs(net, OLD, old.test).numpy(), _outputs(net, NEW, new.test).numpy()),
    )


def _prepare(seed: int, setting: Setting) -> tuple[Stream, MultiHead]:
    """The seed's tasks and its net before any learning, the same in every process."""
    stream = digits_regression(seed, train=setting.train, validation=setting.validation)
    with forked(seed_from("demo", "net", seed)):
        return stream, MultiHead(DigitsBackbone(), stream.outputs, zero=True)


def _loss(number: int) -> LossFn:
    return lambda model, batch: nn.functional.mse_loss(model(batch[0], task=number), batch[1])


def _learn(net: MultiHead, task: Task, number: int, schedule: Schedule, seed: int, **more: Any) -> Training:
    return train_to_end(net, task.train, task.validation, _loss(number), schedule, seed, **more)


def _learning(guard: Guard, net: MultiHead, task: Task, number: int) -> AbstractContextManager[GuardedTask]:
    """The guard's block around one task. The mean square of two coordinates is a Gaussian's negative log-likelihood."""
    return guard.learning(
        net,
        None,  # the learner makes a new optimiser at each decay; the guard finds it by itself
        task.train,
        _loss(number),
        predict=lambda model, batch: model(batch[0], task=number),
        likelihood="gaussian",
    )


def _outputs(net: MultiHead, number: int, split: Split) -> Tensor:
    return predict(partial(net.eval(), task=number), split.inputs)


def _accuracy(net: MultiHead, task: Task, number: int, split: Split) -> float:
    return task.accuracy(_outputs(net, number, split), split)
