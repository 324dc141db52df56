"""Average: an exponential moving average of the weights along the training takes their place when the task ends.

    θ̄ ← d_t · θ̄ + (1 − d_t) · θ        after each step t = 1, 2, … of the task,   d_t = min(d, 1 − 1/t)

`decay` is d. While 1 − 1/t is the smaller one, θ̄ is the plain mean of the steps so far (the start has no weight in it), as in
Mean Teacher (Tarvainen & Valpola 2017); with `decay=1` it stays the plain mean, Polyak & Ruppert's. At the end of the task,
before any method measures importance, θ ← θ̄: so old tasks are held around the average, by the importance measured there.

    guard = afec.EWC(strength=100) + afec.Average(decay=0.99)

It acts in the first task too, as the temporal ensembles of continual learning do (Soutif-Cormerais et al. 2023). There the raw
weights go on being trained beside the average; here the next task starts from the average, because that is what is held.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from afec.gaussian import Gaussian, widened
from afec.guard import (
    GuardedTask,
    State,
    Step,
    TermBytes,
    at_bookmark,
    load,
    option,
    precision_bytes,
    trained,
    with_bookmark,
)
from afec.methods.regulariser import OptionTerm

__all__ = ["Average"]


@final
class Average(OptionTerm):
    """Put the average of the weights along the training in their place when a task ends."""

    name = "average"
    rank = 1  # before methods that look at the weights that stay, such as Recycle
    observes = frozenset({"total"})

    decay: float = option(
        default=0.99,
        kw_only=False,
        symbol="d",
        at_least=0,
        at_most=1,
        doc="d in [0, 1]: about 1/(1 − d) steps are averaged, at 1 all of the task. Zero switches the method off.",
    )

    @property
    def is_off(self) -> bool:
        """Whether d = 0: the average is the latest weights."""
        return self.decay == 0

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return {"untouched": "it puts the average in the place of the weights at the end of a task"}

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """No step has been taken; the average has the present weights, which the first step gives no weight."""
        return {"average": {name: widened(now).clone() for name, now in self._tensors(task).items()}, "steps": 0}

    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """θ̄ with the weights after this step."""
        count = task_state["steps"] + 1
        share = max(1 - self.decay, 1 / count)
        now = {name: widened(value) for name, value in self._tensors(task).items()}
        known = [task_state["average"][name].to(value) for name, value in now.items()]
        mixed = torch._foreach_lerp(known, list(now.values()), share)
        return {**task_state, "average": dict(zip(now, mixed, strict=True)), "steps": count}

    def bookmark(self, task_state: State) -> State:
        """The average that belongs to the best weights."""
        return with_bookmark(task_state)

    def return_to_bookmark(self, task_state: State) -> State:
        """The average as it was at the best weights."""
        return at_bookmark(task_state)

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Average has no pull."""
        return []

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ̄, while a task is learned, in 32 bits at least: in 16 a share of 1 − d would be rounded away."""
        return TermBytes(of_task={"θ̄": precision_bytes(self._tensors(task).values())})

    def change_weights(self, task: GuardedTask, state: State, task_state: State) -> State:
        """θ ← θ̄, if there was a step."""
        if task_state["steps"] > 0:
            load(task.model, task_state["average"])
        return task_state

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Nothing is kept over the tasks."""
        return {}

    def _tensors(self, task: GuardedTask) -> dict[str, Tensor]:
        """What is averaged: `params`, or all that is trained, heads and running statistics too: they fit these weights only."""
        everything = task.weights.items() if self.params is not None else trained(task.model)
        return {name: one.detach() for name, one in everything if one.is_floating_point()}
