"""Some steps on borrowed weights, for `guard.check`: what would a pull do, what would a path look like?"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import torch

from afec.gaussian import Quadratic
from afec.guard.expansion import training_step
from afec.guard.pull import Puller
from afec.guard.steps import Observer, Step, observer_of
from afec.randomness import forked

if TYPE_CHECKING:
    from afec.guard.base import State
    from afec.guard.task import GuardedTask
    from afec.guard.term import Term

__all__ = ["rehearsed_steps", "walk", "watched"]

MOST_STEPS = 50


def watched(task: GuardedTask, quadratic: Quadratic, observer: Observer | None = None) -> Puller:
    """The pull of a quadratic, at work; `detach()` ends it."""
    puller = Puller(task.model, task.weights)
    puller.set(quadratic)
    puller.observer = observer
    puller.attach()
    return puller


def walk(task: GuardedTask, quadratic: Quadratic, until: float, observer: Observer | None = None) -> int:
    """Some steps with the user's optimisers; how many."""
    if not task.optimizers:
        return 0
    puller = watched(task, quadratic, observer)
    try:
        with forked(task.seed("walk"), task.device):
            passes = (task.batches("walk", epoch, training=True) for epoch in itertools.count())
            for batch in itertools.islice(itertools.chain.from_iterable(passes), MOST_STEPS):
                training_step(task, task.optimizers, batch)
                if time.monotonic() > until:
                    break
    finally:
        puller.detach()
    return puller.steps


def rehearsed_steps(task: GuardedTask, term: Term, flight: State, seconds: float) -> State | None:
    """The flight of a method that observes steps, after some steps without a pull; None without an optimiser."""
    if not task.optimizers:
        return None
    latest = flight

    def tell(step: Step) -> None:
        nonlocal latest
        latest = term.after_step(task, latest, step)

    if not task.model.training:
        task.model.train()
    walk(task, Quadratic({}, {}, {}, torch.zeros(())), time.monotonic() + seconds, observer_of([term], tell))
    return latest
