"""What the learner gives a strategy to learn one task with, and what it gets back: trainings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from afec.guard import State
from afec.nets import Readout
from afec.strategy.schedule import Schedule

__all__ = ["AfterHook", "Learnable", "LearningContext", "Predict", "Samples", "TaskContext", "TaskLoss", "Training"]

AfterHook = Callable[[float], None]
"""Called with the learning rate; may write to the weights of the model that is trained."""


class Samples(Protocol):
    """Inputs and targets, row by row."""

    @property
    def inputs(self) -> Tensor:
        """The inputs as they are kept, before `TaskLoss.prepared`."""
        ...

    @property
    def targets(self) -> Tensor:
        """The number of the right output of each sample, or the values of a regression."""
        ...


class Learnable(Protocol):
    """A task, as far as a method looks at it before it is learned."""

    @property
    def name(self) -> str:
        """What the task is called."""
        ...

    @property
    def classes(self) -> tuple[int, ...]:
        """The numbers of its classes in the whole stream."""
        ...

    @property
    def train(self) -> Samples:
        """What it is learned from; classes are numbered from 0 inside it."""
        ...

    @property
    def prepare(self) -> Callable[[Tensor], Tensor] | None:
        """From the inputs as they are kept to what a net is given."""
        ...


class TaskLoss(Protocol):
    """The mean loss of a batch (inputs, targets): of a model's outputs, and of the targets."""

    @property
    def kind(self) -> str:
        """`cross_entropy`, `mse`, `cosine` or `angular`."""
        ...

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch."""
        ...

    def inputs(self, model: nn.Module, batch: Any) -> Tensor:
        """The inputs of a batch as a net takes them; augmented where the model is in training mode."""
        ...

    def outputs(self, model: nn.Module, batch: Any) -> Tensor:
        """The model's outputs for a batch; of augmented inputs where the model is in training mode."""
        ...

    def between(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of outputs that are there already."""
        ...

    def of_task(self, number: int) -> TaskLoss:
        """The same loss, where the model is asked for its outputs of another task."""
        ...

    def prepared(self, inputs: Tensor) -> Tensor:
        """A batch of inputs as a net takes it."""
        ...


class Predict(Protocol):
    """Something that a model makes of images."""

    def __call__(self, model: nn.Module, images: Tensor, task: int | None = None) -> Tensor:
        """For all these images, as they are kept; by default as those of the present task."""
        ...


@dataclass(frozen=True)
class Training:
    """One training of one model. What is not said here is as in every other training of the learner."""

    name: str
    """Its phase, in progress, events and costs."""
    model: nn.Module
    """The net, or a module of the strategy's own; every weight that gets a gradient is trained."""
    loss: Callable[[nn.Module, Any], Tensor]
    data: tuple[Tensor, Tensor] | None = None
    """Inputs and targets to train on; by default the task's."""
    validation: tuple[Tensor, Tensor] | None = None
    """Inputs and targets to validate on; by default the task's."""
    schedule: Schedule | None = None
    """The schedule of this training; by default the learner's."""
    guarded: bool = True
    """Whether the guard pulls (the net, so the model must be the net): expansion before it, consolidation after it."""
    guard_data: tuple[Tensor, Tensor] | None = None
    """What the guard learns from, in expansion and consolidation; by default the task's training data."""
    after_step: AfterHook | None = None
    after_epoch: AfterHook | None = None
    """Called before the validation loss is taken."""
    pure: bool = False
    """Whether its outcome depends on model, data, loss, schedule and seed alone, so that a memo may keep it."""


@dataclass
class LearningContext:
    """One task, as far as it is the same for labelled data and for games: all that a strategy with `learns_games` asks for."""

    number: int
    """The number of the task; the first is 0."""
    net: Readout
    loss: Callable[[nn.Module, Any], Tensor]
    """The mean loss of a batch."""
    state: State
    """What the strategy has kept of the tasks before; put a new one here at the end, and change nothing in the old one."""
    seed: Callable[..., int]
    """A seed for a purpose, the same in every process."""
    example: Callable[[], Tensor]
    """One or two inputs, as the backbone takes them."""
    inputs: Callable[[], Iterator[Tensor]]
    """One pass over the inputs, or over what the policy of a game sees, as the backbone takes them; counted as a cost."""


@dataclass
class TaskContext(LearningContext):
    """One task of labelled data, as a strategy sees it."""

    classes: tuple[int, ...]
    """The classes of the task, by their numbers in the whole stream; one output for each."""
    loss: TaskLoss
    train: Samples
    validation: Samples | None
    schedule: Schedule
    """The learner's schedule."""
    task_state: State
    """What is known already of this task; goes into a checkpoint, so that a fresh process finds it here."""
    passes: Callable[[], Iterator[Any]]
    """One pass over the training data, batch by batch, in their order; counted as a cost."""
    place: Callable[[nn.Module], nn.Module]
    """A module of the strategy's own, where and as the learner has the net; in place."""
    predict: Predict
    """The outputs of a model for any images, in eval mode; counted as a cost."""
    features: Predict
    """The features of any images by a readout, in eval mode; counted as a cost."""
