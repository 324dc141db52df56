"""What a method is: settings that never change, and functions from its state to a new state.

Its state lasts over the tasks; its task state is what it knows of the present task. Both are plain dictionaries of tensors
and numbers, and a function never writes into the ones it is given: they may have been saved.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from afec.gaussian import Gaussian
from afec.guard.base import Guard, State
from afec.guard.steps import Step
from afec.guard.task import GuardedTask

__all__ = ["Term"]


class Term(Guard):
    """One method. A subclass is final: settings in the constructor, and functions of its state."""

    name: ClassVar[str]
    rank: ClassVar[int] = 0  # sorts the terms of a sum; the pull to the old tasks comes first
    pull_name: ClassVar[str] = "old"  # in reports: the pull to the old tasks, or the forgetting pull

    @property
    def terms(self) -> tuple[Term, ...]:
        """The method itself."""
        return (self,)

    @abstractmethod
    def described(self) -> str:
        """The expression that makes it, such as `EWC(strength=500)`."""

    @property
    @abstractmethod
    def is_off(self) -> bool:
        """Whether its weight is zero in every task: then it is dropped before anything runs."""

    def lacks(self, task: GuardedTask) -> str | None:
        """What the method still has to be told before its first task, as an error message."""
        return None

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """The task state on entry; it lives as long as the task."""
        return {}

    def begin_epoch(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The new task state at `task.epoch()`."""
        return task_state

    def acts_later(self, task_state: State) -> bool:
        """Whether `begin_epoch` has still something to do in this task."""
        return type(self).begin_epoch is not Term.begin_epoch

    @property
    def observes(self) -> frozenset[str]:
        """What the method wants to see of every step: "gradient" (the task's), "total" (with the pull); by default nothing."""
        return frozenset()

    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """The new task state after an optimiser's step, with new tensors: the old ones may have been saved."""
        return task_state

    def bookmark(self, task_state: State) -> State:
        """The new task state when the learner copies the weights because they are the best so far."""
        return task_state

    def return_to_bookmark(self, task_state: State) -> State:
        """The new task state when the learner has loaded them back."""
        return task_state

    @abstractmethod
    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """The weighted Gaussians that pull during the task."""

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """About what `quadratics` would give in the next task, in a few seconds, for `check`; None if it cannot tell."""
        return None

    @abstractmethod
    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The new state, from the weights at the end of the task."""
