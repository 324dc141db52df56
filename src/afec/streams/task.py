"""What a task is and what a stream of tasks is: the data that every learner in this house is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

__all__ = ["LossKind", "Scenario", "Split", "Stream", "Task"]

LossKind = Literal["cross_entropy", "mse", "cosine", "angular"]
"""`cosine`: 1 − cos of the angle between two vectors, output and target. `angular`: 1 − cos(output − target), both angles."""
Scenario = Literal["task", "class"]


class Split(NamedTuple):
    """Inputs and targets, row by row. A plain tuple of tensors, it goes to `guard.learning` as it is."""

    inputs: Tensor
    targets: Tensor

    @property
    def size(self) -> int:
        """The number of samples (`len` of a tuple is its number of fields)."""
        return self.inputs.shape[0]


@dataclass(frozen=True, repr=False)
class Task:
    """One thing to learn.

    `decode` turns outputs into class numbers, and regression targets too: accuracy is one notion for every task. For a
    classification it is the largest output; a regression must say how its outputs are read.
    """

    name: str
    train: Split
    validation: Split | None
    """None: the data have none. A schedule that needs one then refuses the task."""
    test: Split
    outputs: int
    loss: LossKind
    decode: Callable[[Tensor], Tensor] = None  # type: ignore[assignment]  # set below
    prepare: Callable[[Tensor], Tensor] | None = None
    """From the inputs as they are kept (images: bytes) to what a net is given (floats, normalised); None: as they are."""
    augment: Callable[[Tensor], Tensor] | None = None
    """Changes a batch of inputs as they are kept, at random, wherever a net is in training mode; None: nothing."""
    chunk: int = 1024
    """How many samples go through a net at once where nothing is learned: fewer where each is large."""
    class_names: tuple[str, ...] = ()
    """The names of the classes, in the order of the outputs; empty where the data have none."""
    classes: tuple[int, ...] = ()
    """The number that the class of each output has in the whole dataset, the same in every task; by default 0, 1, …"""

    def __post_init__(self) -> None:
        if self.loss not in get_args(LossKind):
            kinds = ", ".join(repr(kind) for kind in get_args(LossKind))
            raise ValueError(f"the loss of task '{self.name}' must be one of {kinds}; got {self.loss!r}")
        object.__setattr__(self, "classes", tuple(self.classes) or tuple(range(self.outputs)))
        if len(set(self.classes)) != self.outputs or len(self.classes) != self.outputs:
            raise ValueError(
                f"task '{self.name}' has outputs={self.outputs}, so it needs as many different classes; got {self.classes}"
            )
        for name in ("train", "validation", "test") if self.validation is not None else ("train", "test"):
            object.__setattr__(self, name, self._checked(name, getattr(self, name)))
        if self.decode is None:
            if self.loss != "cross_entropy":
                raise ValueError(
                    f"task '{self.name}' is a regression, so it needs decode=: a function from outputs (and targets) to "
                    "class numbers, which is how its accuracy is read"
                )
            object.__setattr__(self, "decode", _largest)

    def _checked(self, name: str, split: object) -> Split:
        """The split, or an error that says what is wrong with it."""
        where = f"the {name} split of task '{self.name}'"
        parts = tuple(split) if isinstance(split, tuple | list) else (split,)
        if len(parts) != 2 or not all(isinstance(part, Tensor) for part in parts):
            kinds = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"{where} must be Split(inputs, targets), two tensors (torch.as_tensor); got {kinds}")
        inputs, targets = parts
        if len(inputs) == 0 or len(inputs) != len(targets):
            raise ValueError(
                f"{where} has {len(inputs)} inputs and {len(targets)} targets; it needs as many of one as of the other, "
                "and at least one"
            )
        if self.loss == "cross_entropy":
            if targets.dtype != torch.int64 or targets.dim() != 1:
                raise ValueError(
                    f"{where} needs class numbers as targets, int64 of shape (samples,); got {targets.dtype} of shape "
                    f"{tuple(targets.shape)}"
                )
            if int(targets.min()) < 0 or int(targets.max()) >= self.outputs:
                raise ValueError(
                    f"{where} has classes {int(targets.min())} to {int(targets.max())}, but the task has outputs="
                    f"{self.outputs}: classes are 0 to {self.outputs - 1}"
                )
        elif targets.shape != (len(inputs), self.outputs) or not targets.is_floating_point():
            raise ValueError(
                f"{where} needs targets of shape (samples, outputs) = {(len(inputs), self.outputs)}, floating point; "
                f"got {targets.dtype} of shape {tuple(targets.shape)}"
            )
        return Split(inputs, targets)

    def __repr__(self) -> str:
        sizes = "/".join(map(str, self.sizes))
        return f"Task('{self.name}', {self.loss}, {self.outputs} outputs, {sizes} samples for training/validation/test)"

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many samples there are for training, validation and test."""
        return self.train.size, 0 if self.validation is None else self.validation.size, self.test.size

    def class_name(self, number: int) -> str:
        """What a class is called, or its number."""
        return self.class_names[number] if number < len(self.class_names) else f"class {number}"

    def labels(self, split: Split) -> Tensor:
        """The true class of each sample of `split`, as a number of the task's own."""
        return split.targets if self.loss == "cross_entropy" else self.decode(split.targets)

    def accuracy(self, outputs: Tensor, split: Split) -> float:
        """The fraction of `split` whose class is read off `outputs` rightly."""
        return (self.decode(outputs) == self.labels(split)).float().mean().item()


def _largest(outputs: Tensor) -> Tensor:
    return outputs.argmax(dim=1)


@dataclass(frozen=True)
class Stream:
    """Tasks in the order in which they are learned.

    `scenario` is `task` (the task is known when predicting: `MultiHead`) or `class` (it is not: `SingleHead`).
    """

    name: str
    tasks: tuple[Task, ...]
    scenario: Scenario
    transfer: tuple[Task, ...] = ()
    """Learned after all others, each by a linear probe on features that no longer move: what the features are good for."""

    @property
    def outputs(self) -> list[int]:
        """The output size of each task, as `MultiHead` takes them."""
        return [task.outputs for task in self.tasks]

    def __str__(self) -> str:
        every = ["/".join(map(str, task.sizes)) for task in self.tasks]
        sizes = every[0] if len(set(every)) == 1 else ", ".join(every)
        names = ", ".join(task.name for task in self.tasks)
        more = f"; then linear probes: {', '.join(task.name for task in self.transfer)}" if self.transfer else ""
        return f"{self.name} (scenario '{self.scenario}'): {names}; {sizes} images for training/validation/test{more}"
