"""A method that keeps every contract, and others that break one or more of them each: `BROKEN`."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from afec import Gaussian
from afec.guard import Term, checked_weight
from afec.randomness import forked


class L2(Term):
    """The whole method of docs/methods.md."""

    name = "l2"

    def __init__(self, strength, params=None):
        super().__init__(params)
        self.strength = checked_weight("L2: strength", strength)

    def described(self):
        return f"{type(self).__name__}(strength={self.strength:g})"

    @property
    def is_off(self):
        return self.strength == 0

    def quadratics(self, task, state, task_state):
        return [(self.strength, task.remembered(Gaussian.isotropic(state["mean"], 1.0)))] if state else []

    def preview(self, task, state, seconds):
        return [(self.strength, Gaussian.isotropic(task.values(), 1.0))]

    def end_task(self, task, state, task_state):
        return {"mean": task.values()}


class AdvancesTorch(L2):
    def end_task(self, task, state, task_state):
        torch.rand(1)
        return super().end_task(task, state, task_state)


class AdvancesNumpy(L2):
    def begin_task(self, task, state):
        np.random.rand()
        return {}


class AdvancesPython(L2):
    def begin_epoch(self, task, state, task_state):
        random.random()
        return task_state


class DrawsInEveryStep(L2):
    observes = frozenset({"gradient"})

    def after_step(self, task, task_state, step):
        torch.rand(1)
        return task_state


class NeverOff(L2):
    """Reads the data although nothing pulls."""

    is_off = False

    def end_task(self, task, state, task_state):
        with forked(task.seed("all")):
            list(task.batches("all"))
        return super().end_task(task, state, task_state)


class PullsAtZero(L2):
    is_off = False

    def __init__(self, strength, params=None):
        super().__init__(strength or 0.1, params)


class LeavesEvalMode(L2):
    def end_task(self, task, state, task_state):
        task.model.train()
        return super().end_task(task, state, task_state)


class DropsGradients(L2):
    def end_task(self, task, state, task_state):
        task.model.zero_grad()
        return super().end_task(task, state, task_state)


class ChangesBuffers(L2):
    def end_task(self, task, state, task_state):
        for buffer in task.model.buffers():
            buffer.add_(1)
        return super().end_task(task, state, task_state)


class ChangesWeights(L2):
    @torch.no_grad()
    def end_task(self, task, state, task_state):
        for weight in task.weights.values():
            weight.mul_(0.99)
        return super().end_task(task, state, task_state)


class ForgetsMomentum(L2):
    def begin_task(self, task, state):
        task.optimizers[0].state.clear()
        return {}


class LeavesItsHook(L2):
    """Takes the hook off at the end only."""

    def begin_task(self, task, state):
        self.handle = task.model.register_forward_hook(lambda module, inputs, output: None)
        return {}

    def end_task(self, task, state, task_state):
        if hasattr(self, "handle"):
            self.handle.remove()
        return super().end_task(task, state, task_state)


class KeepsItsHook(L2):
    """Never takes it off."""

    def end_task(self, task, state, task_state):
        register_optimizer_step_post_hook(lambda *_: None)
        return super().end_task(task, state, task_state)


class CountsInPlace(L2):
    """Writes to the old state when a task begins."""

    def begin_task(self, task, state):
        if state:
            state["begun"] += 1
        return {}

    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "begun": torch.ones(1) if not state else state["begun"].clone()}


class SumsInPlace(L2):
    """A path sum that is written to, as SI's would be by a careless hand."""

    observes = frozenset({"gradient"})

    def begin_task(self, task, state):
        return {"path": torch.zeros(1)}

    def after_step(self, task, task_state, step):
        task_state["path"] += 1
        return task_state


class KeepsASet(L2):
    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "seen": {"a", "b"}}


class KeepsNumpyNumbers(L2):
    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "scale": np.float64(1.0)}


class KeepsLiveWeights(L2):
    """The state is the weights themselves, not copies."""

    def end_task(self, task, state, task_state):
        return {"mean": {name: weight.detach() for name, weight in task.weights.items()}}


class RemembersOnTheInstance(L2):
    """Outside the state: a loaded guard does not know it."""

    scale = 0.0

    def quadratics(self, task, state, task_state):
        return [(self.strength * self.scale, gaussian) for _, gaussian in super().quadratics(task, state, task_state)]

    def end_task(self, task, state, task_state):
        self.scale += 1.0
        return super().end_task(task, state, task_state)


class CountsEpochsOnTheInstance(L2):
    """Of the present task only, so that only a task taken up in its middle goes wrong."""

    def begin_task(self, task, state):
        self.epochs = 0
        return {}

    def begin_epoch(self, task, state, task_state):
        self.epochs = getattr(self, "epochs", 0) + 1
        return task_state

    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "epochs": getattr(self, "epochs", 0)}


class KeepsAllAnchors(L2):
    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "all": [*state.get("all", []), task.values()]}


class KeepsAList(L2):
    """No tensor grows, the list does."""

    def end_task(self, task, state, task_state):
        return {"mean": task.values(), "log": [*state.get("log", []), 1.0]}


class Inert(L2):
    def quadratics(self, task, state, task_state):
        return []


class SaysTwice(L2):
    """The value is twice what pulls."""

    def begin_task(self, task, state):
        honest = task.penalty
        task.penalty = lambda: 2 * honest()
        return {}


class PushesAway(L2):
    def quadratics(self, task, state, task_state):
        found = super().quadratics(task, state, task_state)
        return [(weight, Gaussian(g.mean, {n: -0.01 * f for n, f in g.precision.items()})) for weight, g in found]


class PushesOneAway(L2):
    """One number of one weight has a negative precision; the sum over all of them never shows it."""

    def quadratics(self, task, state, task_state):
        found = super().quadratics(task, state, task_state)
        for _, gaussian in found:
            gaussian.precision["body.0.bias"][1] = -1e-3
        return found


class NotANumber(L2):
    """At the third task, so that there is nothing wrong with the second."""

    def begin_task(self, task, state):
        if task.number == 2 and task.device.type == "cpu" and next(iter(task.weights.values())).dtype is torch.float64:
            task.penalty = lambda: torch.tensor(float("nan"))
        return {}


class FreezesTheRest(L2):
    def begin_task(self, task, state):
        for name, weight in task.model.named_parameters():
            weight.requires_grad_(name in task.weights)
        return {}


class PullsTheRest(L2):
    def begin_task(self, task, state):
        for name, weight in task.model.named_parameters():
            if name not in task.weights:
                weight.register_hook(lambda grad: grad + 0.1)
        return {}


class CountsTheRest(L2):
    def begin_task(self, task, state):
        honest = task.penalty
        rest = [weight for name, weight in task.model.named_parameters() if name not in task.weights]
        task.penalty = lambda: honest() + sum(weight.detach().square().sum() for weight in rest)
        return {}


class CannotGrow(L2):
    """Without task.remembered."""

    def quadratics(self, task, state, task_state):
        return [(self.strength, Gaussian.isotropic(state["mean"], 1.0))] if state else []


class InfiniteWhenGrown(L2):
    def quadratics(self, task, state, task_state):
        found = super().quadratics(task, state, task_state)
        grown = found and any(len(m) != len(state["mean"][n]) for n, m in found[0][1].mean.items())
        return [(float("inf"), gaussian) for _, gaussian in found] if grown else found


class StrongerOnTheLeft(L2):
    def __add__(self, other):
        self.strength *= 2
        return super().__add__(other)


class NamedByOrder(L2):
    def __add__(self, other):
        found = super().__add__(other)
        self.name = "left"
        return found


BROKEN = {
    AdvancesTorch: {"deterministic"},
    AdvancesNumpy: {"deterministic"},
    AdvancesPython: {"deterministic"},
    DrawsInEveryStep: {"deterministic"},
    NeverOff: {"zero"},
    PullsAtZero: {"zero"},
    LeavesEvalMode: {"untouched"},
    DropsGradients: {"untouched"},
    ChangesBuffers: {"untouched"},
    ChangesWeights: {"untouched"},
    ForgetsMomentum: {"untouched"},
    KeepsItsHook: {"untouched"},
    LeavesItsHook: {"abort"},
    CountsInPlace: {"abort", "state"},
    SumsInPlace: {"abort", "state"},
    KeepsASet: {"state"},
    KeepsNumpyNumbers: {"state"},
    KeepsLiveWeights: {"abort", "pulls", "resume", "state"},
    RemembersOnTheInstance: {"state", "resume"},
    CountsEpochsOnTheInstance: {"resume"},
    KeepsAllAnchors: {"bounded"},
    KeepsAList: {"bounded"},
    Inert: {"pulls"},
    SaysTwice: {"pulls"},
    PushesAway: {"nonnegative"},
    PushesOneAway: {"nonnegative"},
    NotANumber: {"nonnegative"},
    FreezesTheRest: {"guards_only_params"},
    PullsTheRest: {"guards_only_params"},
    CountsTheRest: {"guards_only_params"},
    CannotGrow: {"grows"},
    InfiniteWhenGrown: {"grows"},
    StrongerOnTheLeft: {"commutes"},
    NamedByOrder: {"commutes"},
}
