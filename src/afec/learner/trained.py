"""A net and the tasks that it has learned: what can be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from afec.learner.machine import Machine
from afec.learner.tasks import HeadLoss, accuracy, predict_in_chunks
from afec.naming import unknown
from afec.nets import MultiHead
from afec.streams import Split, Task

__all__ = ["Known", "Trained"]


@dataclass(frozen=True)
class Known:
    """What stays of a task that was learned."""

    name: str
    outputs: int
    loss: str


def _split_of(task: Task, name: str) -> Split:
    if name not in ("train", "validation", "test"):
        raise ValueError(unknown("split", name, ["train", "validation", "test"]))
    split = getattr(task, name)
    if split is None:
        raise ValueError(f"task '{task.name}' has no {name} split; ask for 'test' or 'train'")
    assert isinstance(split, Split)
    return split


class Trained:
    """A net with a head for each task, on its machine."""

    def __init__(self, net: nn.Module, machine: Machine) -> None:
        self.net, self.machine = net if isinstance(net, MultiHead) else MultiHead(net, ()), machine
        self.machine.placed(self.net)
        self._known: list[Known] = []
        self._prepare: dict[str, Callable[[Tensor], Tensor] | None] = {}  # of the tasks that this process has seen

    @property
    def tasks_learned(self) -> list[str]:
        """The names of the tasks so far."""
        return [known.name for known in self._known]

    def evaluate(self, tasks: Task | Sequence[Task], split: str = "test") -> list[float]:
        """The accuracy of a task that was learned, or of each task of a stream.

        A stream is given in its order from the first task on: then tasks that are not learned yet can be asked for as well,
        where their heads are there.
        """
        if isinstance(tasks, Task):
            asked = [(self._number_of(tasks.name, None), tasks)]
        else:
            asked = [(self._number_of(task.name, place), task) for place, task in enumerate(tasks)]
        return [
            accuracy(self.net, HeadLoss.of(number, task, self.machine), task, _split_of(task, split), self._outputs)
            for number, task in asked
        ]

    def outputs(self, x: Tensor, task: int | str | Task) -> Tensor:
        """What the task's head says for the inputs `x`: logits, or the values of a regression."""
        if not isinstance(x, Tensor):
            raise TypeError(f"the inputs must be a tensor (torch.as_tensor); got {type(x).__name__}")
        number = self._place(task)
        if not 0 <= number < len(self._known):
            raise ValueError(f"no task number {number} was learned; there are {len(self._known)}: {self.tasks_learned}")
        prepare = task.prepare if isinstance(task, Task) else self._prepare.get(self._known[number].name)
        if prepare is None and not x.is_floating_point():
            raise TypeError(
                f"the inputs are {x.dtype}, and how task '{self._known[number].name}' prepares them is not in a loaded file; "
                "give the task itself in place of its number or name"
            )
        loss = HeadLoss(number, self._known[number].loss, self.machine, prepare)
        return predict_in_chunks(self.net, loss, x, says=self._outputs)

    def predict(self, x: Tensor, task: int | str | Task) -> Tensor:
        """The class of each input, or, of a regression task, its values. `task` is a number from 0, a name or the task."""
        outputs = self.outputs(x, task)
        return outputs.argmax(dim=1) if self._known[self._place(task)].loss == "cross_entropy" else outputs

    def _outputs(self, loss: HeadLoss, batch: Any) -> Tensor:
        """The prediction for a batch."""
        return loss.outputs(self.net, batch)

    def _place(self, task: int | str | Task) -> int:
        return task if isinstance(task, int) else self._number_of(task.name if isinstance(task, Task) else task, None)

    def _number_of(self, name: str, default: int | None) -> int:
        if name in self.tasks_learned:
            return self.tasks_learned.index(name)
        if default is None or not len(self._known) <= default < len(self.net.heads):
            raise ValueError(f"no task '{name}' was learned; the tasks so far are {self.tasks_learned}")
        return default
