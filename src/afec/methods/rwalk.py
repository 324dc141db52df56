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

from typing import Literal, final

import torch

from afec.gaussian import Gaussian
from afec.guard import GuardedTask, Params, State, Step, checked_weight, trial_steps
from afec.methods.path import PathTerm, path_options, wide_zeros
from afec.methods.presets import Preset, settings

__all__ = ["RWALK"]


@final
class RWALK(PathTerm):
    """Pull each weight to where the old tasks left it, by its Fisher information and by what its path gave to the losses.

    Args:
        strength: λ ≥ 0. Zero switches the method off (fine-tuning, bit for bit).
        alpha: α in (0, 1], the weight of a step's g² in the running Fisher.
        damping: ε > 0. It sets the scale of s: ½·F·δ² of a step is usually much smaller.
        clamp: count a step that raised the loss as zero; else s may be negative.
        half: the ½ in the penalty; without it the pull is twice as strong.
        gradient: `task`, the task's own gradient, or `total`, with the pull (the released code).
        rewind: where the learner returns to its best weights, count the path up to them only (`task.bookmark()`); else all.
        preset: `default`, `paper` or `official`; what is given beside it wins.
        params: what is guarded, a module or parameters; default all that require grad (multi-head nets: the backbone).
    """

    name = "rwalk"

    def __init__(
        self,
        strength: float,
        *,
        alpha: float | None = None,
        damping: float | None = None,
        clamp: bool | None = None,
        half: bool | None = None,
        gradient: Literal["task", "total"] | None = None,
        rewind: bool | None = None,
        preset: Preset = "default",
        params: Params = None,
    ) -> None:
        super().__init__(params)
        self.strength = checked_weight("RWALK: strength (λ)", strength)
        given = {"damping": damping, "clamp": clamp, "half": half, "gradient": gradient, "rewind": rewind}
        self.path = path_options("RWALK", preset, given)
        self.alpha = checked_weight("RWALK: alpha (α)", settings(self.name, preset, alpha=alpha)["alpha"])
        if not 0 < self.alpha <= 1:
            raise ValueError(f"RWALK: alpha (α) must be in (0, 1]; got {alpha!r}")

    def described(self) -> str:
        """`RWALK(strength=…)`."""
        return f"RWALK(strength={self.strength:g}, alpha={self.alpha:g}, {self.path})"

    def begin_task(self, task: GuardedTask, state: State) -> State:
        """F_run and s_run go on from the last task; a weight, or a row, that is new starts at 0."""
        task_state = {"fisher": wide_zeros(task.weights), "score": wide_zeros(task.weights)}
        for key, zeros in task_state.items():
            for name, known in _remembered(task, state, key).precision.items():
                zeros[name] = known.to(zeros[name])
        return task_state

    @torch.no_grad()
    def after_step(self, task: GuardedTask, task_state: State, step: Step) -> State:
        """F_run ← α·g² + (1−α)·F_run, then s_run += −g·δ / (½·F_run·δ² + ε)."""
        names, gradients, changes = self.path.seen(step)
        fisher = torch._foreach_mul(self.path.of(task_state["fisher"], names, gradients), 1 - self.alpha)
        torch._foreach_addcmul_(fisher, gradients, gradients, value=self.alpha)
        distance = torch._foreach_mul(fisher, 0.5)
        torch._foreach_mul_(distance, changes)
        torch._foreach_mul_(distance, changes)
        torch._foreach_add_(distance, self.path.damping)
        fallen = torch._foreach_mul(gradients, changes)
        torch._foreach_neg_(fallen)
        if self.path.clamp:
            torch._foreach_clamp_min_(fallen, 0.0)
        score = torch._foreach_addcdiv(self.path.of(task_state["score"], names, gradients), fallen, distance)
        return {
            **task_state,
            "fisher": {**task_state["fisher"], **dict(zip(names, fisher, strict=True))},
            "score": {**task_state["score"], **dict(zip(names, score, strict=True))},
        }

    def quadratics(self, task: GuardedTask, state: State, task_state: State) -> list[tuple[float, Gaussian]]:
        """F + s around the latest weights, times λ (2λ without the ½); nothing in the first task."""
        if not state:
            return []
        return [(self.path.scale * self.strength, _remembered(task, state, "precision"))]

    def preview(self, task: GuardedTask, state: State, seconds: float) -> list[tuple[float, Gaussian]] | None:
        """Before the first task: the path of some steps, around the present weights."""
        if state:
            return self.quadratics(task, state, {})
        start = task.values()
        task_state = trial_steps(task, self, self.begin_task(task, state), seconds)
        if task_state is None:
            return None
        precision = {name: task_state["fisher"][name] + task_state["score"][name] / 2 for name in start}
        return [(self.path.scale * self.strength, Gaussian(start, precision))]

    def end_task(self, task: GuardedTask, state: State, task_state: State) -> State:
        """F + s around the weights as they are now. A weight that is not guarded now keeps what was known of it."""
        new = {
            "mean": task.values(),
            "fisher": task_state["fisher"],
            "score": {name: score / 2 for name, score in task_state["score"].items()},
        }
        new["precision"] = {name: new["fisher"][name] + score for name, score in new["score"].items()}
        return {key: {**state.get(key, {}), **value} for key, value in new.items()}


def _remembered(task: GuardedTask, state: State, key: str) -> Gaussian:
    """One of the sums of a state, fitted to the present weights: new rows are 0."""
    return task.remembered(Gaussian(state.get("mean", {}), state.get(key, {})))
