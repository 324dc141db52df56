"""What the learner gives a strategy to learn one task with, and what it gets back: trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from afec.guard import State
from afec.nets import MultiHead

__all__ = ["AfterHook", "Samples", "TaskLoss", "Training", "Work"]

AfterHook = Callable[[float], None]
"""Called with the learning rate; may write to the weights of the model that is trained."""


class Samples(Protocol):
    """Inputs and targets, row by row."""

    @property
    def inputs(self) -> Tensor:
        """As they are kept."""
        ...

    @property
    def targets(self) -> Tensor:
        """Class numbers, or the values of a regression."""
        ...


class TaskLoss(Protocol):
    """The mean loss of a batch (inputs, targets), through the head of one task."""

    @property
    def number(self) -> int:
        """Of the head."""
        ...

    @property
    def kind(self) -> str:
        """`cross_entropy`, `mse`, …"""
        ...

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss."""
        ...

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """What the head says."""
        ...

    def between(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs that are there already."""
        ...

    def through(self, head: int) -> TaskLoss:
        """The same loss through another head."""
        ...

    def prepared(self, inputs: Tensor) -> Tensor:
        """A batch of inputs as a net takes it."""
        ...


@dataclass(frozen=True)
class Training:
    """One training of one model on the present task. What is not said here is as in every other training of the learner."""

    name: str
    """Its phase, in progress, events and costs."""
    model: nn.Module
    """The net, or a module of the strategy's own; every weight that gets a gradient is trained."""
    loss: Callable[[nn.Module, Any], Tensor]
    guarded: bool = True
    """Whether the guard pulls (the net, so the model must be the net): expansion before it, consolidation after it."""
    targets: tuple[Tensor, Tensor | None] | None = None
    """In place of the task's own, for training and validation."""
    max_epochs: int | None = None
    """In place of the schedule's."""
    after_step: AfterHook | None = None
    after_epoch: AfterHook | None = None
    """Before the validation loss is taken."""
    pure: bool = False
    """Whether its outcome depends on model, data, loss, schedule and seed alone, so that a memo may keep it."""


@dataclass
class Work:
    """One task, as a strategy sees it."""

    number: int
    """Counted from 0."""
    net: MultiHead
    outputs: int
    """Of the task."""
    loss: TaskLoss
    train: Samples
    validation: Samples | None
    state: State
    """What the strategy has kept of the tasks before; put a new one here at the end, and change nothing in the old one."""
    flight: State
    """What is known already of this task; goes into a checkpoint, so that a fresh process finds it here."""
    seed: Callable[..., int]
    """A seed for a purpose, the same in every process."""
    passes: Callable[[], Iterator[Any]]
    """One pass over the training data, batch by batch, in their order; counted as a cost."""
    place: Callable[[nn.Module], nn.Module]
    """A module of the strategy's own, where and as the learner has the net; in place."""
    predict: Callable[[nn.Module, TaskLoss, Tensor], Tensor]
    """What a model says for all of these inputs, in eval mode; counted as a cost."""
