"""Each task alone, from the random initial weights: the reference of `fwt_vs_scratch`."""

from __future__ import annotations

from typing import Any

from afec.experiments.base import Context, OnProgress, Score, Setup
from afec.experiments.joint import Joint
from afec.experiments.supervised import build, new_net, training_of
from afec.learner import Progress as Epochs
from afec.learner import TaskRecord
from afec.nets import MultiHead, Readout
from afec.streams import Stream

__all__ = ["Scratch"]


class Scratch(Joint):
    """A new net for every task, with the head that the task has in every other run."""

    description = "each task alone from the random initial weights: the reference of fwt_vs_scratch"

    def __init__(self, setup: Setup, context: Context) -> None:
        super().__init__(setup, context)
        self._check_method(setup, self.learner.net, self.stream)
        self.number: int | None = None
        """The task whose net the learner has."""

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """The task alone; one that was loaded in its middle goes on."""
        self._on_progress = on_progress
        if self.number != number:
            self._begin(number)
        return self.learner.learn(self.stream.tasks[number])

    def _begin(self, number: int) -> None:
        net = new_net(self.setup, self.stream, self.context.seed)
        assert isinstance(net, MultiHead), "the scenario is `task`"
        alone = MultiHead(net.backbone, [self.stream.outputs[number]])
        alone.heads[0].load_state_dict(net.heads[number].state_dict())
        self.learner, self.number = self._learner(alone), number

    def _number(self, epochs: Epochs) -> int:
        assert self.number is not None
        return self.number  # the learner of a task alone calls each its first

    def measure(self, after: int) -> list[Score]:
        """Its own task; before the first, every one."""
        tasks = list(enumerate(self.stream.tasks, start=1))
        return self._scores(after, tasks if after == 0 else [tasks[after - 1]])

    def state_dict(self) -> dict[str, Any]:
        """The learner of the present task, and which task that is."""
        return {"number": self.number, "learner": None if self.number is None else self.learner.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict()` was taken."""
        if state["number"] is not None:
            self._begin(state["number"])
            self.learner.load_state_dict(state["learner"])

    def finish(self, folder: object, on_progress: OnProgress) -> None:
        """No net knows all tasks, so none is kept."""

    @classmethod
    def most_samples(cls, setup: Setup, context: Context) -> int | None:
        """Every task once, for all epochs of the schedule."""
        stream, _ = build(setup, context.seed)
        schedule, _ = training_of(setup.training, context.device)
        return schedule.max_epochs * sum(task.train.size for task in stream.tasks)

    @classmethod
    def _check_method(cls, setup: Setup, net: Readout, stream: Stream) -> str:
        if net.scenario != "task":
            raise ValueError(
                f"scratch learns each task alone, with outputs of its own, so it is for the scenario 'task'; got the scenario "
                f"'{net.scenario}'. Leave scratch out, or compare with joint"
            )
        return ""
