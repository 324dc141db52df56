"""SI, synaptic intelligence (Zenke et al. 2017), with the AFEC paper's λ/2.

    L(θ) = L_new(θ) + λ/2 · Σ_i Ω_i (θ_i − θ*_i)²
    W_i = Σ_steps −g_i·δ_i,     Ω_i ← Ω_i + max(W_i, 0) / ((θ_end,i − θ_start,i)² + ξ)

g is the gradient that a step was taken from and δ the change that it made, so W is what the weight's path gave to the fall of
the loss; it starts at 0 in every task. θ* are the weights at the end of the latest task. `strength` is λ; the ½ is not part of
it (Zenke et al. write c·ΣΩ(θ−θ*)², so their c is λ/2). No pass over the data: all that is needed is seen in the steps.

    guard = afec.SI(strength=1)
    with guard.learning(model, optimizer, loader, loss_fn):
        train(model, optimizer, loader)
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from afec.guard import GuardedTask, State, Step, TermBytes, bytes_of, option, precision_bytes
from afec.methods.path import PathRegulariser, sums_like, wide_zeros

__all__ = ["SI"]


@final
class SI(PathRegulariser):
    """Pull each weight to where the old tasks left it, by what its path gave to the fall of their losses."""

    name = "si"

    damping: float = option(default=0.1, official=0.01, above=0, doc="ξ > 0, for weights that hardly moved.")

    def watched(self, task: GuardedTask, state: State) -> State:
        """Where the path starts, and W = 0."""
        return {"start": task.values(), "path": wide_zeros(task.weights)}

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ* and Ω; and where the path of the task starts, and W."""
        weights = task.weights.values()
        return replace(super().memory(task), of_task={"start": bytes_of(weights), "path": precision_bytes(weights)})

    @torch.no_grad()
    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """W −= g·δ."""
        names, gradients, changes = self.seen(step)
        path = sums_like(gradients, names, task_state["path"])
        new = torch._foreach_addcmul(path, gradients, changes, value=-1)
        return {**task_state, "path": {**task_state["path"], **dict(zip(names, new, strict=True))}}

    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """W / ((θ_end − θ_start)² + ξ)."""
        omega = {}
        for name, end in task.values().items():
            path = task_state["path"][name].to(end.device)
            moved = end.to(path) - task_state["start"][name].to(path)
            omega[name] = (path.clamp(min=0) if self.clamp else path) / (moved**2 + self.damping)
        return omega
