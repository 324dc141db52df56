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

from typing import Literal, final

import torch
from torch import Tensor

from afec.gaussian import Gaussian, running_sum
from afec.guard import GuardedTask, Params, State, Step, checked_weight, trial_steps
from afec.methods.path import PathTerm, path_options, wide_zeros
from afec.methods.presets import Preset

__all__ = ["SI"]


@final
class SI(PathTerm):
    """Pull each weight to where the old tasks left it, by what its path gave to the fall of their losses.

    Args:
        strength: λ ≥ 0. Zero switches the method off (fine-tuning, bit for bit).
        damping: ξ > 0, for weights that hardly moved.
        clamp: count a weight whose path raised the loss as zero; else its Ω may be negative, and it is pushed away from θ*.
        half: the ½ in the penalty; without it the pull is twice as strong.
        gradient: `task`, the task's own gradient, or `total`, with the pull (the released code).
        rewind: where the learner returns to its best weights, count the path up to them only (`task.bookmark()`); else all.
        preset: `default`, `paper` or `official`; what is given beside it wins.
        params: what is guarded, a module or parameters; default all that require grad (multi-head nets: the backbone).
    """

    name = "si"

    def __init__(
        self,
        strength: float,
        *,
        damping: float | None = None,
        clamp: bool | None = None,
        half: bool | None = None,
        gradient: Literal["task", "total"] | None = None,
        rewind: bool | None = None,
        preset: Preset = "default",
        params: Params = None,
    ) -> None:
        super().__init__(params)
        self.strength = checked_weight("SI: strength (λ)", strength)
        given = {"damping": damping, "clamp": clamp, "half": half, "gradient": gradient, "rewind": rewind}
        self.path = path_options("SI", preset, given)

    def described(self) -> str:
        """`SI(strength=…)`."""
        return f"SI(strength={self.strength:g}, {self.path})"

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """Where the path starts, and W = 0."""
        return {"start": task.values(), "path": wide_zeros(task.weights)}

    @torch.no_grad()
    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """W −= g·δ."""
        names, gradients, changes = self.path.seen(step)
        new = torch._foreach_addcmul(self.path.of(task_state["path"], names, gradients), gradients, changes, value=-1)
        return {**task_state, "path": {**task_state["path"], **dict(zip(names, new, strict=True))}}

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """Ω around the latest weights, times λ (2λ without the ½); nothing in the first task."""
        if not state:
            return []
        return [(self.path.scale * self.strength, task.remembered(Gaussian(state["mean"], state["precision"])))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """Before the first task: the path of some steps, around the present weights."""
        if state:
            return self.quadratics(task, state, {})
        task_state = trial_steps(task, self, self.begin_task(task, state), seconds)
        if task_state is None:
            return None
        return [(self.path.scale * self.strength, Gaussian(task_state["start"], self._omega(task, task_state)))]

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """Ω + this task's, around the weights as they are now."""
        old = Gaussian(state["mean"], state["precision"]) if state else None
        if old is not None:
            old = old.grown_to(dict(task.model.named_parameters()))
        total = running_sum(old, Gaussian(task.values(), self._omega(task, task_state)))
        return {"mean": total.mean, "precision": total.precision}

    def _omega(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """W / ((θ_end − θ_start)² + ξ)."""
        omega = {}
        for name, end in task.values().items():
            path = task_state["path"][name].to(end.device)
            moved = end.to(path) - task_state["start"][name].to(path)
            omega[name] = (path.clamp(min=0) if self.path.clamp else path) / (moved**2 + self.path.damping)
        return omega
