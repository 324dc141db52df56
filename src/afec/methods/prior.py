"""Prior: Eq. 5 of the paper taken literally. The old posterior is mixed with the prior, without a second network.

    log p(θ | D_old)^(1−β) · p(θ)^β:     L(θ) = L_new(θ) + [what the other terms add] + λ_p/2 · Σ_i (θ_i − c_i)²

The prior is a Gaussian of precision 1 around c, zero or the initial weights. `strength` is λ_p; the ½ is not part of it. Adam
divides a gradient by its size, so a weight that the task gives no gradient would be pulled at the full learning rate, however
small λ_p is. So by default the pull is decoupled, like AdamW's decay: after each step of the optimiser

    θ ← θ − lr · λ_p · (θ − c)

and with `decoupled=False` it is a part of the gradient, as in the equation.

    guard = afec.EWC(strength=100) + afec.Prior(strength=0.1)

It acts from the second task on: in the first nothing is old, and all methods share that training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, final

import torch
from torch import Tensor

from afec.gaussian import Gaussian, grown
from afec.guard import GuardedTask, Mover, State, option
from afec.methods.regulariser import OptionTerm

__all__ = ["Prior"]


@final
class Prior(OptionTerm):
    """Pull each weight back to zero, or to where it started, while later tasks are learned."""

    name = "prior"
    rank = 2
    pull_name = "prior"

    strength: float = option(
        kw_only=False, symbol="λ_p", at_least=0, doc="λ_p ≥ 0. Zero switches the method off, bit for bit."
    )
    center: Literal["zero", "init"] = option(
        default="zero", doc="Where the prior has its mean: `zero`, or `init`, the weights that the guard first saw."
    )
    decoupled: bool = option(
        default=True,
        doc="After the optimiser's step, at its learning rate, like AdamW's decay; else in the gradient, where Adam turns "
        "any pull on a weight without a gradient into full steps.",
    )

    @property
    def is_off(self) -> bool:
        """Whether λ_p = 0."""
        return self.strength == 0

    @property
    def exempt_contracts(self) -> dict[str, str]:
        """What `afec.testing` does not ask of it, and why."""
        return {"pulls": "it moves weights after the step, and not by a gradient"} if self.decoupled else {}

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """The mean of the prior, where it is not zero: weights born later start from their value at this entry."""
        if self.center == "zero":
            return {}
        kept = dict(state.get("kept", {}))
        for name, now in task.values().items():
            kept[name] = grown(name, kept[name].to(now), now) if name in kept else now
        return {"kept": kept}

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Precision 1 around the mean, times λ_p, where it is part of the gradient."""
        if self.decoupled or task.number == 0:
            return []
        return [(self.strength, self._gaussian(task, task_state))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """The same; a decoupled one is no pull that can be previewed."""
        return None if self.decoupled else [(self.strength, self._gaussian(task, self.begin_task(task, state)))]

    def mover(self, task: GuardedTask, state: State, task_state: State) -> Mover | None:
        """θ ← θ − lr·λ_p·(θ − c), from the second task on."""
        if not self.decoupled or task.number == 0:
            return None
        own, strength = set(task.weights), self.strength
        center = task_state.get("kept")

        def shrink(stepped: Mapping[str, Tensor], lr: float | None) -> None:
            weights = [weight for name, weight in stepped.items() if name in own]
            share = _share(lr, strength)
            if not weights:
                return
            if center is None:  # not θ·(1 − share): on a CPU a factor costs more than twice as much as a sum
                torch._foreach_add_(weights, weights, alpha=-share)
            else:
                means = [center[name].to(weight) for name, weight in stepped.items() if name in own]
                torch._foreach_lerp_(weights, means, share)

        return shrink

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """The mean of the prior is all that is kept."""
        return dict(task_state)

    def _gaussian(self, task: GuardedTask, task_state: State) -> Gaussian:
        values = task.values()
        mean = task_state.get("kept") or {name: torch.zeros_like(value) for name, value in values.items()}
        return Gaussian({name: mean[name] for name in values}, {n: torch.ones_like(v) for n, v in values.items()})


def _share(lr: float | None, strength: float) -> float:
    """What is taken off the distance to the mean in one step."""
    if lr is None:
        raise ValueError(
            "Prior(decoupled=True) moves weights by lr·strength, but a parameter group of the optimiser has no 'lr'; use an "
            "optimiser with one, or decoupled=False"
        )
    share = lr * strength
    if share > 1:
        raise ValueError(
            f"Prior: lr·strength = {lr:g}·{strength:g} = {share:g} throws every weight beyond the prior's mean in one step; "
            "expected at most 1, and useful values are far below: lower the strength or the learning rate"
        )
    return share
