"""All tasks so far at once, from all their data: the upper bound."""

from __future__ import annotations

from typing import Any

from afec.experiments.base import Context, OnProgress, Setup
from afec.experiments.by_method import WithoutMethod
from afec.experiments.supervised import Supervised, build, training_of
from afec.learner import TaskRecord
from afec.nets import Readout
from afec.streams import Stream

__all__ = ["Joint"]


class Joint(WithoutMethod, Supervised):
    """No method acts; old data are kept."""

    description = "all tasks so far at once, from all their data: the upper bound"
    is_reference = True

    def _method(self) -> Any:
        return None

    def learn(self, number: int, on_progress: OnProgress) -> TaskRecord:
        """All tasks up to this one, from the present weights."""
        self._on_progress = on_progress
        return self.learner.learn_jointly(self.stream.tasks[: number + 1])

    @classmethod
    def most_samples(cls, setup: Setup, context: Context) -> int | None:
        """Every task again with each one after it."""
        stream, _ = build(setup, context.seed)
        schedule, _ = training_of(setup.training, context.device)
        sizes = [task.train.size for task in stream.tasks]
        return schedule.max_epochs * sum(sum(sizes[: number + 1]) for number in range(len(sizes)))

    @classmethod
    def _check_method(cls, setup: Setup, net: Readout, stream: Stream) -> str:
        return ""
