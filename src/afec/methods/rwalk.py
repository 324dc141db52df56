"""RWALK, Riemannian walk (Chaudhry et al. 2018), as the AFEC paper's code uses it, with the AFEC paper's λ/2.

    L(θ) = L_new(θ) + λ/2 · Σ_i (F_i + s_i) (θ_i − θ*_i)²
    at each step   F_run ← α·g² + (1−α)·F_run,     s_run ← s_run + max(−g·δ, 0) / (½·F_run·δ² + ε)
    after a task   F = F_run,     s ← ½·s_run

g is the gradient that a step was taken from and δ the change that it made: s is the fall of the loss per distance walked, with
the Fisher information as the metric. α = 0.9 is the weight of the new value, so F_run is little more than the squared gradients
of the latest mini-batches. F_run starts at 0 in the first task and goes on over the tasks; s_run goes on from the halved s,
which makes s = ½·(s_old + s_new). θ* are the weights at the end of the latest task. `strength` is λ; the ½ before Σ is not part
of it.

    guard = afec.RWALK(strength=10)
    with guard.learning(model, optimizer, loader, loss_fn):
        train(model, optimizer, loader)
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

import torch
from torch import Tensor

from afec.gaussian import Gaussian
from afec.guard import GuardedTask, State, Step, TermBytes, option, precision_bytes
from afec.methods.path import PathRegulariser, sums_like, wide_zeros

__all__ = ["RWALK"]


@final
class RWALK(PathRegulariser):
    """Pull each weight to where the old tasks left it, by its Fisher information and by what its path gave to the losses."""

    name = "rwalk"

    alpha: float = option(
        default=0.9, symbol="α", above=0, at_most=1, doc="α in (0, 1], the weight of a step's g² in the running Fisher."
    )
    damping: float = option(
        default=0.01,
        above=0,
        doc="ε > 0. It sets the scale of s: ½·F·δ² of a step is usually much smaller.",
    )

    def watched(self, task: GuardedTask, state: State) -> State:
        """F_run and s_run go on from the last task; a weight, or a row, that is new starts at 0."""
        task_state = {"fisher": wide_zeros(task.weights), "score": wide_zeros(task.weights)}
        for key, sums in task_state.items():
            known = task.remembered(Gaussian(state.get("mean", {}), state.get(key, {})))
            sums.update({name: value.to(sums[name]) for name, value in known.precision.items()})
        return task_state

    def memory(self, task: GuardedTask) -> TermBytes:
        """θ*, F + s, and F and s apart, of the earlier tasks and of this one."""
        own, sums = super().memory(task), precision_bytes(task.weights.values())
        both = {"fisher": sums, "score": sums}
        return replace(own, kept={**own.kept, **both}, of_task={f"{key} so far": one for key, one in both.items()})

    @torch.no_grad()
    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """F_run ← α·g² + (1−α)·F_run, then s_run += −g·δ / (½·F_run·δ² + ε)."""
        names, gradients, changes = self.seen(step)
        fisher = torch._foreach_mul(sums_like(gradients, names, task_state["fisher"]), 1 - self.alpha)
        torch._foreach_addcmul_(fisher, gradients, gradients, value=self.alpha)
        distance = torch._foreach_mul(fisher, 0.5)
        torch._foreach_mul_(distance, changes)
        torch._foreach_mul_(distance, changes)
        torch._foreach_add_(distance, self.damping)
        fallen = torch._foreach_mul(gradients, changes)
        torch._foreach_neg_(fallen)
        if self.clamp:
            torch._foreach_clamp_min_(fallen, 0.0)
        score = torch._foreach_addcdiv(sums_like(gradients, names, task_state["score"]), fallen, distance)
        new = {"fisher": dict(zip(names, fisher, strict=True)), "score": dict(zip(names, score, strict=True))}
        return {**task_state, **{key: {**task_state[key], **sums} for key, sums in new.items()}}

    def importance(self, task: GuardedTask, task_state: State) -> dict[str, Tensor]:
        """F_run + ½·s_run."""
        return {name: task_state["fisher"][name] + score / 2 for name, score in task_state["score"].items()}

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F + s around the weights as they are now. A weight that is not guarded now keeps what was known of it."""
        self.check_told(task, task_state)
        new = {"mean": task.values(), "precision": self.importance(task, task_state), "fisher": task_state["fisher"]}
        new["score"] = {name: score / 2 for name, score in task_state["score"].items()}
        return {key: {**state.get(key, {}), **value} for key, value in new.items()}
