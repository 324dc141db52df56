"""Some steps on borrowed weights, for `guard.check`: what would a pull do, what would a path look like?"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from afec.gaussian import Quadratic
from afec.guard.expansion import training_step
from afec.guard.memory import State
from afec.guard.pull import Puller
from afec.guard.steps import Observer, Step, observer_of
from afec.guard.task import GuardedTask, TermFunctions
from afec.randomness import forked

__all__ = ["MOST_STEPS", "Walk", "trial_steps", "walk", "watched"]

MOST_STEPS = 50


def watched(task: GuardedTask, quadratic: Quadratic, observer: Observer | None = None) -> Puller:
    """The pull of a quadratic, at work; `detach()` ends it."""
    puller = Puller(task.model, task.weights)
    puller.set(quadratic)
    puller.observer = observer
    puller.attach()
    return puller


@dataclass
class Walk:
    """How many steps were taken, and the norm of the task's gradient in each."""

    norms: list[float] = field(default_factory=list)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.norms)


def walk(
    task: GuardedTask,
    quadratic: Quadratic,
    *,
    until: float = math.inf,
    most: int = MOST_STEPS,
    observer: Observer | None = None,
    batches: Iterable[Any] | None = None,
    against: Walk | None = None,
) -> Walk:
    """Some steps with the user's optimisers, the same at every call.

    `against` is an earlier walk: the task's gradient is turned to climb the loss, with the norms that it had there, because
    uphill it would grow without bound.
    """
    puller, taken = watched(task, quadratic, observer), Walk()
    try:
        with forked(task.seed("walk"), task.device):
            passes = (task.batches("walk", epoch, training=True) for epoch in itertools.count())
            source = itertools.chain.from_iterable(passes) if batches is None else batches
            for number, batch in enumerate(itertools.islice(source, most)):
                seen: list[float] = []  # LBFGS looks several times

                def look(number: int = number, seen: list[float] = seen) -> None:
                    grads = [weight.grad for weight in task.model.parameters() if weight.grad is not None]
                    seen.append(float(nn.utils.get_total_norm(grads)))
                    if against is not None:
                        torch._foreach_mul_(grads, -against.norms[number] / max(seen[-1], 1e-30))

                training_step(task, task.optimizers, batch, look)
                taken.norms.append(seen[0])
                if time.monotonic() > until:
                    break
    finally:
        puller.detach()
    return taken


def trial_steps(task: GuardedTask, term: TermFunctions, task_state: State, seconds: float) -> State | None:
    """What a method that observes steps knows after some steps without a pull; None without an optimiser."""
    if not task.optimizers:
        return None
    latest = task_state

    def tell(step: Step) -> None:
        nonlocal latest
        latest = term.after_step(task, latest, step)

    if not task.model.training:
        task.model.train()
    nothing = Quadratic({}, {}, {}, torch.zeros(()))
    walk(task, nothing, until=time.monotonic() + seconds, observer=observer_of([term], tell))
    return latest
