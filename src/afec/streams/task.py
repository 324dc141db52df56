"""What a task is and what a stream of tasks is: the data that every learner in this house is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

__all__ = ["LossKind", "Scenario", "Split", "Stream", "Task"]

LossKind = Literal["cross_entropy", "mse"]
Scenario = Literal["task", "class"]


class Split(NamedTuple):
    """Inputs and targets, row by row. A plain tuple of tensors, it goes to `guard.learning` as it is."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """The number of samples (`len` of a tuple is its number of fields)."""
        return self.inputs.shape[0]


@dataclass(frozen=True)
class Task:
    """One thing to learn.

    `decode` turns outputs into class numbers, and regression targets too: accuracy is one notion for every task.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    outputs: int
    loss: LossKind
    decode: Callable[[Tensor], Tensor] = lambda outputs: outputs.argmax(dim=1)

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            inputs, targets = getattr(self, name)
            if len(inputs) == 0 or len(inputs) != len(targets):
                raise ValueError(
                    f"the {name} split of task '{self.name}' has {len(inputs)} inputs and {len(targets)} "
                    "targets; it needs as many of one as of the other, and at least one"
                )

    def classes(self, split: Split) -> Tensor:
        """The true class of each sample of `split`."""
        return split.targets if self.loss == "cross_entropy" else self.decode(split.targets)

    def accuracy(self, outputs: Tensor, split: Split) -> float:
        """The fraction of `split` whose class is read off `outputs` rightly."""
        return (self.decode(outputs) == self.classes(split)).float().mean().item()


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learned.

    `scenario` is `task` (the task is known when predicting: one head each) or `class` (it is not: one for all).
    """

    name: str
    tasks: tuple[Task, ...]
    scenario: Scenario

    @property
    def outputs(self) -> list[int]:
        """The output size of each task, as `MultiHead` takes them."""
        return [task.outputs for task in self.tasks]

    def __str__(self) -> str:
        every = ["/".join(str(split.size) for split in (t.train, t.validation, t.test)) for t in self.tasks]
        sizes = every[0] if len(set(every)) == 1 else ", ".join(every)
        names = ", ".join(task.name for task in self.tasks)
        return f"{self.name} (scenario '{self.scenario}'): {names}; {sizes} images for training/validation/test"
